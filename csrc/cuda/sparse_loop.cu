// Sequential loop of the sparse draft: one block a request draws all gamma tokens, each from its position's candidates.
//
// Which rows of W2 position k needs is known before the loop; only what they are multiplied with depends on the token
// drawn before. So every warp loads its next rows into registers one group ahead, across steps too: the gather's
// latency is spent in the draw. A step is: embedding and head -> C dot products of rank r -> largest -> weights and
// keys -> token.
//
//   bytes      B gamma (C r sizeof(w2) + r sizeof(w1) + 20 C); gated adds gamma r^2, rnn gamma 6 r^2 weights through L2
//   launches   1
//   sync       three barriers a step inside a block (filters two more, gated and rnn two more); none between blocks
//   H200       r = 256, C = 256, gamma = 7, bf16; floor at 4.3 TB/s or one multiprocessor's 110 GB/s, expected in
//   brackets
//              B = 1: 8 us (13 us)   B = 16: 8 us (14 us)   B = 64: 14 us (20 us)   B = 256: 55 us (70 us)
#include "dspark/cuda/head_step.cuh"
#include "dspark/cuda/ops.h"
#include "dspark/random.h"
#include "dspark/sample.h"

namespace dspark::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr uint64_t kSpoiled = ~0ull;  // above every packed choice: a NaN among the logits

struct Layout {
    SharedLayout shared;
    HeadLayout head;
    size_t ids, bases, noise, logits, weights, of_hidden;
    int candidates, gamma;

    __host__ __device__ explicit Layout(const SparseLoop& p)
        : head(shared, p.heads), candidates(static_cast<int>(p.candidates)), gamma(static_cast<int>(p.gamma)) {
        ids = shared.reserve<int32_t>(gamma * candidates);
        bases = shared.reserve<float>(gamma * candidates);
        noise = shared.reserve<float>(gamma * candidates);
        logits = shared.reserve<float>(candidates);
        weights = shared.reserve<float>(candidates);
        of_hidden = shared.reserve<float>(gamma * kWarps);
    }
};

struct Shared {
    HeadShared head;
    int32_t* ids;      // [gamma, C]
    float* bases;      // [gamma, C], NaN where the mask forbids the token (a row with a NaN of its own is not drawn)
    float* noise;      // [gamma, C]
    float* logits;     // [C] of the step
    float* weights;    // [C] of the step, with filters only
    float* of_hidden;  // [gamma, warps]

    __device__ explicit Shared(const Layout& l)
        : head(l.head.arrays()),
          ids(dynamic_shared<int32_t>(l.ids, l.gamma * l.candidates)),
          bases(dynamic_shared<float>(l.bases, l.gamma * l.candidates)),
          noise(dynamic_shared<float>(l.noise, l.gamma * l.candidates)),
          logits(dynamic_shared<float>(l.logits, l.candidates)),
          weights(dynamic_shared<float>(l.weights, l.candidates)),
          of_hidden(dynamic_shared<float>(l.of_hidden, l.gamma * kWarps)) {}
};

// Gathered rows lie in the order of the request's candidates; else a candidate's row is its token's.
__device__ __forceinline__ int64_t first_row_of_w2(const SparseLoop& p) {
    return p.gathered ? static_cast<int64_t>(blockIdx.x) * p.gamma * p.candidates : 0;
}

__device__ __forceinline__ int64_t row_of_w2(const int32_t* ids, int at) {
    return ids != nullptr ? ids[at] : at;
}

// The warps' shares of W2's rows at all steps, one group after the other; `next` is always in flight.
template <typename T, int Chunks>
struct Gather {
    using Group = RowGroup<T, Chunks>;

    __device__ Gather(const SparseLoop& p, const Shared& s, int warp, int lane)
        : w2(static_cast<const T*>(p.heads.w2) + first_row_of_w2(p) * p.heads.w2_stride),
          stride(p.heads.w2_stride),
          rank(static_cast<int>(p.heads.rank)),
          candidates(static_cast<int>(p.candidates)),
          gamma(static_cast<int>(p.gamma)),
          ids(p.gathered ? nullptr : s.ids),
          lane(lane),
          first(warp * Group::kRows) {
        if (first < candidates) fetch(0, first);
    }

    __device__ __forceinline__ void fetch(int k, int at) {
        next.load(
            [&](int i) {
                const int candidate = at + i < candidates ? at + i : candidates - 1;
                return w2 + row_of_w2(ids, k * candidates + candidate) * stride;
            },
            rank, lane);
    }

    // Calls use(candidate, dot product) from one lane a candidate.
    template <typename F>
    __device__ __forceinline__ void step(int k, const float* latent, F use) {
        typename Group::Vector vector;
        vector.load(latent, rank, lane);
        constexpr int kLanes = kWarp / Group::kRows;
        for (int at = first; at < candidates; at += kWarps * Group::kRows) {
            const Group group = next;
            if (at + kWarps * Group::kRows < candidates) {
                fetch(k, at + kWarps * Group::kRows);
            } else if (k + 1 < gamma) {
                fetch(k + 1, first);
            }
            const float dot = group.dots(vector, lane);
            const int candidate = at + lane / kLanes;
            if (lane % kLanes == 0 && candidate < candidates) use(candidate, dot);
        }
    }

    const T* w2;
    int64_t stride;
    int rank, candidates, gamma;
    const int32_t* ids;
    int lane, first;
    Group next;
};

// Any rank and alignment: one row at a time.
template <typename T>
struct Gather<T, 0> {
    __device__ Gather(const SparseLoop& p, const Shared& s, int warp, int lane)
        : w2(static_cast<const T*>(p.heads.w2) + first_row_of_w2(p) * p.heads.w2_stride),
          stride(p.heads.w2_stride),
          rank(static_cast<int>(p.heads.rank)),
          candidates(static_cast<int>(p.candidates)),
          ids(p.gathered ? nullptr : s.ids),
          warp(warp),
          lane(lane) {}

    template <typename F>
    __device__ __forceinline__ void step(int k, const float* latent, F use) {
        for (int at = warp; at < candidates; at += kWarps) {
            const float dot = row_dot(w2 + row_of_w2(ids, k * candidates + at) * stride, latent, rank, lane);
            if (lane == 0) use(at, dot);
        }
    }

    const T* w2;
    int64_t stride;
    int rank, candidates;
    const int32_t* ids;
    int warp, lane;
};

// One entry a warp for each of a step's reductions.
struct Partials {
    uint64_t* largest;
    uint64_t* key;
    double* total;
    double* kept;
};

struct Max {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct Sum {
    __device__ double operator()(double a, double b) const { return a + b; }
};

// Whether candidate i survives top-k and top-p, judged on the weights sorted once (equal ones by token, that is by i).
__device__ bool survives(const float* weights, int candidates, int i, int64_t top_k, double mass) {
    const float own = weights[i];
    int rank = 0;
    double before = 0.0;
    for (int j = 0; j < candidates; ++j) {
        const float other = weights[j];
        if (other > own || (other == own && j < i)) {
            ++rank;
            before += static_cast<double>(other);
        }
    }
    return rank == 0 || (rank < top_k && before <= mass);
}

// Token of a sampled position and its row of q. All threads of the block; `noise` is the position's.
__device__ int64_t draw(const SparseLoop& p, const Shared& s, const Partials& partials, int64_t b, int k, float largest,
                        float inverse, float* probs) {
    const int candidates = static_cast<int>(p.candidates);
    const int32_t* ids = s.ids + k * candidates;
    const bool filtered = p.top_k != nullptr || p.top_p != nullptr;
    double own_total = 0.0;
    uint64_t own_key = 0;
    for (int i = threadIdx.x; i < candidates; i += kThreads) {
        const float weight = expf((s.logits[i] - largest) * inverse);
        own_total += static_cast<double>(weight);
        s.weights[i] = weight;
        if (!filtered) {
            const float key = draft_key(s.logits[i], largest, inverse, s.noise[k * candidates + i]);
            const uint64_t choice = packed_choice(key, static_cast<uint32_t>(ids[i]));
            own_key = choice > own_key ? choice : own_key;
        }
    }
    own_key = warp_max(own_key);
    if (threadIdx.x % kWarp == 0) partials.key[threadIdx.x / kWarp] = own_key;
    double total = block_reduce(warp_sum(own_total), partials.total, Sum{});
    if (filtered) {
        const int64_t top_k = p.top_k != nullptr ? p.top_k[b] : candidates;
        const double mass = p.top_p != nullptr ? static_cast<double>(p.top_p[b]) * total : total;
        own_total = 0.0;
        for (int i = threadIdx.x; i < candidates; i += kThreads) {
            const bool keep = survives(s.weights, candidates, i, top_k, mass);
            // Kept in the row of q until every thread has compared the weights.
            probs[i] = keep ? s.weights[i] : 0.0f;
            if (!keep) continue;
            own_total += static_cast<double>(s.weights[i]);
            const float key = draft_key(s.logits[i], largest, inverse, s.noise[k * candidates + i]);
            const uint64_t choice = packed_choice(key, static_cast<uint32_t>(ids[i]));
            own_key = choice > own_key ? choice : own_key;
        }
        own_key = warp_max(own_key);
        if (threadIdx.x % kWarp == 0) partials.key[threadIdx.x / kWarp] = own_key;
        total = block_reduce(warp_sum(own_total), partials.kept, Sum{});
    }
    const auto scale = static_cast<float>(1.0 / total);
    for (int i = threadIdx.x; i < candidates; i += kThreads) probs[i] = (filtered ? probs[i] : s.weights[i]) * scale;
    uint64_t best = partials.key[0];
    for (int i = 1; i < kWarps; ++i) best = Max{}(best, partials.key[i]);
    return packed_token(best);
}

template <typename T, int Chunks>
__global__ void __launch_bounds__(kThreads, 1) loop_kernel(SparseLoop p) {
    DSPARK_SHARED(uint64_t, partial_choices, 2 * kWarps);
    DSPARK_SHARED(double, partial_totals, 2 * kWarps);
    const Layout layout(p);
    const Shared s(layout);
    const Partials partials{partial_choices, partial_choices + kWarps, partial_totals, partial_totals + kWarps};
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int64_t b = blockIdx.x;
    const int candidates = static_cast<int>(p.candidates), gamma = static_cast<int>(p.gamma);
    const int rank = static_cast<int>(p.heads.rank);
    const float temperature = p.temperatures != nullptr ? p.temperatures[b] : 0.0f;
    const float inverse = temperature > 0.0f ? 1.0f / temperature : 0.0f;
    const NoiseKey key{p.seed, static_cast<uint64_t>(p.streams[b]), static_cast<uint32_t>(p.rounds[b])};

    for (int i = threadIdx.x; i < gamma * candidates; i += kThreads) {
        const int32_t id = p.ids[b * gamma * candidates + i];
        s.ids[i] = id;
        float base = p.values[b * gamma * candidates + i];
        const int k = i / candidates;
        if (p.mask != nullptr) {
            const int32_t* mask = p.mask + b * p.mask_batch_stride + k * p.mask_position_stride;
            if ((static_cast<uint32_t>(mask[id / 32]) >> (id % 32) & 1u) == 0) base = NAN;
        }
        s.bases[i] = base;
        if (inverse > 0.0f) s.noise[i] = draft_gumbel(key, static_cast<uint32_t>(k), static_cast<uint32_t>(id));
    }
    for (int i = threadIdx.x; i < 2 * rank; i += kThreads) s.head.context[i] = 0.0f;
    for (int i = rank + threadIdx.x; i < layout.head.padded(); i += kThreads) s.head.latent[i] = 0.0f;
    if (p.confidences != nullptr) confidence_of_hidden(p.heads, b, gamma, s.of_hidden);
    __syncthreads();
    Gather<T, Chunks> gather(p, s, warp, lane);

    int64_t previous = p.anchors[b];
    int k = 0;
    for (; k < gamma; ++k) {
        const int64_t at = b * gamma + k;
        if (p.bad[at] != 0) break;
        const bool biased = k > 0 || p.heads.first_position;
        const int64_t rows = joint_rows(p.heads.head, p.heads.rank);
        head_step(p.heads, s.head, previous, rows != 0 ? p.heads.hidden_joint + at * rows : nullptr, biased);
        __syncthreads();
        uint64_t own_largest = 0;
        gather.step(k, s.head.latent, [&](int i, float bias) {
            const float base = s.bases[k * candidates + i];
            const float logit = is_nan(base) ? -INFINITY : base + (biased ? bias : 0.0f);
            s.logits[i] = logit;
            const uint64_t choice =
                is_nan(logit) ? kSpoiled : packed_choice(logit, static_cast<uint32_t>(s.ids[k * candidates + i]));
            own_largest = Max{}(own_largest, choice);
        });
        const float c = p.confidences != nullptr && warp == kWarps - 1
                            ? confidence(p.heads, s.of_hidden, k, s.head.embedded(rank))
                            : 0.0f;
        const uint64_t choice = block_reduce(warp_max(own_largest), partials.largest, Max{});
        const float largest = ordered_float(static_cast<uint32_t>(choice >> 32));
        if (choice == kSpoiled || !is_finite(largest)) break;
        float* probs = p.probs + at * candidates;
        if (inverse > 0.0f) {
            previous = draw(p, s, partials, b, k, largest, inverse, probs);
        } else {
            previous = packed_token(choice);
            for (int i = threadIdx.x; i < candidates; i += kThreads) probs[i] = 0.0f;
        }
        if (threadIdx.x == 0) p.tokens[at] = previous;
        if (p.confidences != nullptr && warp == kWarps - 1 && lane == 0) p.confidences[at] = c;
    }
    if (threadIdx.x == 0) p.usable[b] = k;
    for (; k < gamma; ++k) {
        const int64_t at = b * gamma + k;
        if (threadIdx.x == 0) p.tokens[at] = 0;
        if (threadIdx.x == 0 && p.confidences != nullptr) p.confidences[at] = 0.0f;
        for (int i = threadIdx.x; i < candidates; i += kThreads) {
            p.ids[at * candidates + i] = i;
            p.probs[at * candidates + i] = 0.0f;
        }
    }
}

template <typename T, int Chunks>
cudaError_t launch(const SparseLoop& p, void* stream) {
    const Layout layout(p);
    return DSPARK_LAUNCH((loop_kernel<T, Chunks>), dim3(static_cast<unsigned>(p.batch)), dim3(kThreads),
                         layout.shared.bytes(), stream, p);
}

}  // namespace

int sparse_loop(const SparseLoop& p, void* stream) {
    if (p.batch == 0) return cudaSuccess;
    return with_dtype(p.heads.w2_dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t chunk = kWarp * kPack<T>, rank = p.heads.rank;
        const bool vector = aligned16(p.heads.w2, p.heads.w2_stride, p.heads.w2_dtype) && rank % kPack<T> == 0;
        if (vector && rank <= chunk) return launch<T, 1>(p, stream);
        if (vector && rank <= 2 * chunk) return launch<T, 2>(p, stream);
        return launch<T, 0>(p, stream);
    });
}

}  // namespace dspark::cuda
