// Sequential loop of the dense draft: q over the whole vocabulary, gamma steps of one pass over W2 for the whole batch.
//
// A step's blocks share the vocabulary. A tile of 64 rows of W2 is read once, its biases for up to 64 requests stay in
// shared memory, and every lane keeps a running maximum, sum of exponentials and best key: neither the bias nor the
// corrected logits are written. A second kernel, one block a request, merges the blocks' states, takes the token and
// computes the next latent. (The last block of a step could do that for all, but it would be one block's work.)
//
//   bytes      gamma (V r sizeof(w2) ceil(B / 64) + B V sizeof(logit)) + B gamma V sizeof(logit) for the shifts
//   launches   2 gamma + 2
//   sync       two barriers a tile inside a block; between blocks only the order of launches
//   H200       V = 151936, r = 256, gamma = 7, bf16; floor at 4.3 TB/s, expected in brackets. From B = 16 on this is
//   bound
//              by float32 multiply-adds (about 33 useful TFLOP/s), not by memory.
//              B = 1: 128 us (190 us)   B = 16: 143 us (370 us)   B = 64: 190 us (1.1 ms)   B = 256: 380 us (4.2 ms)
#include "dspark/cuda/dense_row.cuh"
#include "dspark/cuda/dense_tile.cuh"
#include "dspark/cuda/head_step.cuh"
#include "dspark/sample.h"

namespace dspark::cuda {
namespace {

constexpr int kScanSlices = 16;
constexpr uint64_t kSpoiled = ~0ull;  // above every packed choice: NaN or +inf was seen

// Distribution and best key of a part of a row.
struct State {
    double total;  // sum of exp(z - largest)
    uint64_t best;
    float largest;
    float unused;
};

struct Workspace {
    unsigned* scans;   // [B, gamma, kScanSlices]: ordered maxima, all ones for NaN
    float* of_hidden;  // [B, gamma, warps]
    float* states;     // [B, r], of the rnn
    State* parts;      // [B, blocks]
    size_t bytes;

    Workspace(void* base, int64_t batch, int64_t gamma, int64_t rank, int64_t blocks) : bytes(0) {
        auto* start = static_cast<unsigned char*>(base);
        const auto take = [&](size_t wanted) {
            unsigned char* at = start + bytes;
            bytes += (wanted + 15) / 16 * 16;
            return at;
        };
        scans = reinterpret_cast<unsigned*>(take(batch * gamma * kScanSlices * sizeof(unsigned)));
        of_hidden = reinterpret_cast<float*>(take(batch * gamma * kTileWarps * sizeof(float)));
        states = reinterpret_cast<float*>(take(batch * rank * sizeof(float)));
        parts = reinterpret_cast<State*>(take(batch * blocks * sizeof(State)));
    }
};

__host__ __device__ inline int padded(int64_t rank) {
    return static_cast<int>((rank + 3) / 4 * 4);
}

__device__ float temperature_of(const DenseLoop& p, int64_t b) {
    return p.temperatures != nullptr ? p.temperatures[b] : 0.0f;
}

// Largest base logit of a slice of a row: what the keys are shifted by.
__global__ void __launch_bounds__(kTileThreads) scan_kernel(DenseLoop p, Workspace w) {
    DSPARK_SHARED(unsigned, partial, kTileWarps);
    const int64_t row = blockIdx.x / kScanSlices, slice = blockIdx.x % kScanSlices;
    const int64_t bytes = p.rows.logits_dtype == Dtype::f32 ? 4 : 2;
    const auto* logits = static_cast<const unsigned char*>(p.rows.logits) +
                         (row / p.gamma * p.rows.batch_stride + row % p.gamma * p.rows.position_stride) * bytes;
    const bool aligned = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    const int64_t length = ((p.vocab + kScanSlices - 1) / kScanSlices + 7) / 8 * 8;
    const int64_t end = (slice + 1) * length < p.vocab ? (slice + 1) * length : p.vocab;
    unsigned largest = 0;
    for (int64_t at = slice * length + threadIdx.x * 8; at < end; at += kTileThreads * 8) {
        float x[8];
        load8(logits, at, end, p.rows.logits_dtype, aligned, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const unsigned ordered = at + i >= end ? 0 : is_nan(x[i]) ? ~0u : ordered_bits(x[i]);
            largest = ordered > largest ? ordered : largest;
        }
    }
    largest = block_reduce(__reduce_max_sync(kFullMask, largest), partial,
                           [](unsigned a, unsigned b) { return a > b ? a : b; });
    if (threadIdx.x == 0) w.scans[row * kScanSlices + slice] = largest;
}

// Confidence and latent of position k, or the request's end when its base logits cannot be drawn from.
__device__ void enter(const DenseLoop& p, const Workspace& w, const HeadShared& s, int64_t b, int k, int64_t previous) {
    const int64_t at = b * p.gamma + k, rank = p.heads.rank;
    if (!is_finite(p.rows.shifts[at])) {
        if (threadIdx.x == 0) p.usable[b] = k;
        return;
    }
    for (int i = threadIdx.x; i < rank; i += blockDim.x) s.state()[i] = w.states[b * rank + i];
    __syncthreads();
    const int64_t rows = joint_rows(p.heads.head, rank);
    head_step(p.heads, s, previous, rows != 0 ? p.heads.hidden_joint + at * rows : nullptr,
              k > 0 || p.heads.first_position);
    __syncthreads();
    for (int i = threadIdx.x; i < rank; i += blockDim.x) {
        w.states[b * rank + i] = s.state()[i];
        p.rows.latents[at * padded(rank) + i] = s.latent[i];
    }
    if (p.confidences != nullptr && threadIdx.x < kWarp) {
        const float c =
            confidence(p.heads, w.of_hidden + b * p.gamma * kTileWarps, k, s.embedded(static_cast<int>(rank)));
        if (threadIdx.x == 0) p.confidences[at] = c;
    }
}

__global__ void __launch_bounds__(kTileThreads, 1) begin_kernel(DenseLoop p, Workspace w) {
    SharedLayout shared;
    const HeadShared s = HeadLayout(shared, p.heads).arrays();
    const int64_t b = blockIdx.x;
    const int gamma = static_cast<int>(p.gamma);
    for (int k = threadIdx.x; k < gamma; k += kTileThreads) {
        unsigned largest = 0;
        for (int i = 0; i < kScanSlices; ++i) {
            const unsigned other = w.scans[(b * gamma + k) * kScanSlices + i];
            largest = other > largest ? other : largest;
        }
        p.rows.shifts[b * gamma + k] = largest == ~0u ? NAN : ordered_float(largest);
        p.rows.log_sums[b * gamma + k] = p.rows.token_probs[b * gamma + k] = 0.0f;
        p.tokens[b * gamma + k] = 0;
        if (p.confidences != nullptr) p.confidences[b * gamma + k] = 0.0f;
    }
    const int64_t stride = padded(p.heads.rank);
    for (int64_t i = threadIdx.x; i < gamma * stride; i += kTileThreads) p.rows.latents[b * gamma * stride + i] = 0.0f;
    for (int64_t i = threadIdx.x; i < p.heads.rank; i += kTileThreads) w.states[b * p.heads.rank + i] = 0.0f;
    if (threadIdx.x == 0) p.usable[b] = gamma;
    if (p.confidences != nullptr) confidence_of_hidden(p.heads, b, gamma, w.of_hidden + b * gamma * kTileWarps);
    __syncthreads();
    enter(p, w, s, b, 0, p.anchors[b]);
}

struct StepLayout {
    SharedLayout shared;
    size_t latents, biases, best, largest, total, active;
    int requests, stride;

    __host__ __device__ StepLayout(const DenseLoop& p, int requests)
        : requests(requests), stride(padded(p.heads.rank)) {
        latents = shared.reserve<float>(requests * stride);
        biases = shared.reserve<float>(requests * kTile);
        best = shared.reserve<uint64_t>(requests * kWarp);
        largest = shared.reserve<float>(requests * kWarp);
        total = shared.reserve<float>(requests * kWarp);
        active = shared.reserve<int>(requests);
    }
};

// One tile's tokens of one request into the states of its warp's lanes; a lane has tokens `lane` and `lane + 32`, whose
// noise comes from one index.
__device__ __forceinline__ void take(const DenseRow& row, const NoiseKey& key, int k, int64_t first, int64_t vocab,
                                     const float* biases, int lane, uint64_t& best, float& largest, float& total) {
    float z[2];
    bool noisy = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int64_t token = first + lane + i * kWarp;
        z[i] = -INFINITY;
        if (token >= vocab) continue;
        const float logit = row.corrected(token, biases[lane + i * kWarp]);
        if (is_nan(logit) || logit == INFINITY) best = kSpoiled;
        if (row.inverse_temperature == 0.0f) {
            const uint64_t choice = packed_choice(logit, static_cast<uint32_t>(token));
            best = choice > best ? choice : best;
            continue;
        }
        z[i] = row.scaled(logit);
        if (!(z[i] > -INFINITY)) continue;
        if (z[i] > largest) {
            total = total * expf(largest - z[i]) + 1.0f;
            largest = z[i];
        } else {
            total += expf(z[i] - largest);
        }
        // No noise can lift the token over the best key so far (rounding is monotone).
        noisy |= packed_choice(one::fadd(z[i], kGumbelMax), static_cast<uint32_t>(token)) > best;
    }
    if (!__any_sync(kFullMask, noisy)) return;
    const uint32_t low = static_cast<uint32_t>(first) + lane;
    const one::Words words = noise_words(key, Purpose::draft, static_cast<uint32_t>(k), token_index(low));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t word = lane < 16 ? words.w[2 * i] : words.w[2 * i + 1];
        if (!(z[i] > -INFINITY)) continue;
        const uint64_t choice = packed_choice(one::fadd(z[i], gumbel(word)), low + i * kWarp);
        best = choice > best ? choice : best;
    }
}

template <typename T, int Chunks, bool Vector>
__global__ void __launch_bounds__(kTileThreads, 2) step_kernel(DenseLoop p, Workspace w, int k) {
    const int64_t chunk = int64_t{blockIdx.y} * kTileRequests;
    const StepLayout layout(p, static_cast<int>(p.batch - chunk < kTileRequests ? p.batch - chunk : kTileRequests));
    const int n = layout.requests, stride = layout.stride, rank = static_cast<int>(p.heads.rank);
    float* latents = dynamic_shared<float>(layout.latents, n * stride);
    float* biases = dynamic_shared<float>(layout.biases, n * kTile);
    uint64_t* best = dynamic_shared<uint64_t>(layout.best, n * kWarp);
    float* largest = dynamic_shared<float>(layout.largest, n * kWarp);
    float* total = dynamic_shared<float>(layout.total, n * kWarp);
    int* active = dynamic_shared<int>(layout.active, n);
    for (int i = threadIdx.x; i < n * stride; i += kTileThreads) {
        latents[i] = p.rows.latents[((chunk + i / stride) * p.gamma + k) * stride + i % stride];
    }
    for (int i = threadIdx.x; i < n * kWarp; i += kTileThreads) {
        best[i] = 0;
        largest[i] = -INFINITY;
        total[i] = 0.0f;
    }
    for (int i = threadIdx.x; i < n; i += kTileThreads) active[i] = p.usable[chunk + i] == p.gamma;
    __syncthreads();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t tiles = (p.vocab + kTile - 1) / kTile;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_biases<T, Chunks, Vector>(static_cast<const T*>(p.rows.w2), p.rows.w2_stride, rank, tile * kTile, p.vocab,
                                       latents, stride, n, biases);
        __syncthreads();
        for (int i = warp; i < n; i += kTileWarps) {
            if (!active[i]) continue;
            const int64_t b = chunk + i;
            const DenseRow row(p.rows, b, k, p.gamma, temperature_of(p, b));
            const NoiseKey key{p.seed, static_cast<uint64_t>(p.streams[b]), static_cast<uint32_t>(p.rounds[b])};
            const int at = i * kWarp + lane;
            take(row, key, k, tile * kTile, p.vocab, biases + i * kTile, lane, best[at], largest[at], total[at]);
        }
        __syncthreads();
    }
    for (int i = warp; i < n; i += kTileWarps) {
        const int at = i * kWarp + lane;
        State state{0.0, warp_max(best[at]), warp_max(largest[at]), 0.0f};
        const float scale = largest[at] > -INFINITY ? expf(largest[at] - state.largest) : 0.0f;
        state.total = warp_sum(static_cast<double>(total[at]) * static_cast<double>(scale));
        if (lane == 0) w.parts[(chunk + i) * gridDim.x + blockIdx.x] = state;
    }
}

// Token, log-sum and probability of position k, then position k + 1's latent.
template <typename T, int Chunks, bool Vector>
__global__ void __launch_bounds__(kTileThreads, 1) finish_kernel(DenseLoop p, Workspace w, int k, int blocks) {
    DSPARK_SHARED(uint64_t, bests, kTileWarps);
    DSPARK_SHARED(float, tops, kTileWarps);
    DSPARK_SHARED(double, totals, kTileWarps);
    SharedLayout shared;
    const HeadShared s = HeadLayout(shared, p.heads).arrays();
    const int64_t b = blockIdx.x, at = b * p.gamma + k;
    if (p.usable[b] < p.gamma) return;
    const State* parts = w.parts + b * blocks;
    uint64_t best = 0;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < blocks; i += kTileThreads) {
        best = parts[i].best > best ? parts[i].best : best;
        largest = parts[i].largest > largest ? parts[i].largest : largest;
    }
    best = block_max(best, bests);
    largest = block_max(largest, tops);
    double total = 0.0;
    for (int i = threadIdx.x; i < blocks; i += kTileThreads) {
        if (parts[i].total > 0.0) {
            total += parts[i].total * exp(static_cast<double>(parts[i].largest) - static_cast<double>(largest));
        }
    }
    total = block_sum(total, totals);
    if (best == kSpoiled || !(ordered_float(static_cast<uint32_t>(best >> 32)) > -INFINITY)) {
        if (threadIdx.x == 0) p.usable[b] = k;
        if (threadIdx.x == 0 && p.confidences != nullptr) p.confidences[at] = 0.0f;
        return;
    }
    const int64_t token = packed_token(best);
    const float temperature = temperature_of(p, b);
    if (threadIdx.x == 0) p.tokens[at] = token;
    if (temperature > 0.0f) {
        const auto log_sum = static_cast<float>(static_cast<double>(largest) + log(total));
        for (int i = threadIdx.x; i < padded(p.heads.rank); i += kTileThreads) {
            s.latent[i] = p.rows.latents[at * padded(p.heads.rank) + i];
        }
        __syncthreads();
        if (threadIdx.x < kWarp) {
            TokenRows<T, Chunks, Vector> rows;
            const int rank = static_cast<int>(p.heads.rank), lane = threadIdx.x;
            rows.load(static_cast<const T*>(p.rows.w2), p.rows.w2_stride, rank, token, p.vocab, lane);
            const float bias = rows.dot(s.latent, rank, lane);
            const DenseRow row(p.rows, b, k, p.gamma, temperature);
            if (lane == 0) {
                p.rows.log_sums[at] = log_sum;
                p.rows.token_probs[at] = row.probability(token, bias, log_sum);
            }
        }
        __syncthreads();
    }
    if (k + 1 < p.gamma) enter(p, w, s, b, k + 1, token);
}

template <typename T, int Chunks, bool Vector>
cudaError_t steps(const DenseLoop& p, const Workspace& w, size_t head_bytes, void* stream) {
    const dim3 batch(static_cast<unsigned>(p.batch)), threads(kTileThreads);
    const dim3 grid(static_cast<unsigned>(p.blocks),
                    static_cast<unsigned>((p.batch + kTileRequests - 1) / kTileRequests));
    const int most = static_cast<int>(p.batch < kTileRequests ? p.batch : kTileRequests);
    const size_t bytes = StepLayout(p, most).shared.bytes();
    for (int k = 0; k < p.gamma; ++k) {
        cudaError_t status = DSPARK_LAUNCH((step_kernel<T, Chunks, Vector>), grid, threads, bytes, stream, p, w, k);
        if (status != cudaSuccess) return status;
        status = DSPARK_LAUNCH((finish_kernel<T, Chunks, Vector>), batch, threads, head_bytes, stream, p, w, k,
                               static_cast<int>(p.blocks));
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

}  // namespace

int64_t dense_loop_blocks(int64_t vocab, int64_t multiprocessors) {
    const int64_t tiles = (vocab + kTile - 1) / kTile;
    return tiles < 2 * multiprocessors ? tiles : 2 * multiprocessors;
}

size_t dense_loop_workspace(int64_t batch, int64_t gamma, int64_t rank, int64_t blocks) {
    return Workspace(nullptr, batch, gamma, rank, blocks).bytes;
}

int dense_loop(const DenseLoop& p, void* stream) {
    if (p.batch == 0) return cudaSuccess;
    const Workspace w(p.workspace, p.batch, p.gamma, p.heads.rank, p.blocks);
    SharedLayout head;
    const HeadLayout layout(head, p.heads);
    static_cast<void>(layout);
    const dim3 scans(static_cast<unsigned>(p.batch * p.gamma * kScanSlices)), threads(kTileThreads);
    cudaError_t status = DSPARK_LAUNCH(scan_kernel, scans, threads, 0, stream, p, w);
    if (status != cudaSuccess) return status;
    status = DSPARK_LAUNCH(begin_kernel, dim3(static_cast<unsigned>(p.batch)), threads, head.bytes(), stream, p, w);
    if (status != cudaSuccess) return status;
    return with_rows(
        p.rows.w2, p.rows.w2_dtype, p.rows.w2_stride, p.heads.rank, [&](auto type, auto chunks, auto vector) {
            return steps<decltype(type), decltype(chunks)::value, decltype(vector)::value>(p, w, head.bytes(), stream);
        });
}

}  // namespace dspark::cuda
