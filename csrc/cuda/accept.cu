// Accept over ragged rows with the coupled cut. One pass over the target's logits: every warp reduces pieces of 1024
// tokens to a maximum and a sum, or to the best token where the request is greedy. The last block of a request decides
// its positions, and ends its round.
//
// The closing draw inverts the cumulative weight: the sums of pieces are at hand already, so it reads one piece again,
// not the row. For a sparse q, (p - q)^+ differs from p at C tokens, whose terms leave their pieces' sums exactly (the
// same float32 number, added and subtracted in float64). A dense q is recomputed by accept_dense.cu.
//
//   bytes      M V sizeof(logit), read once; 24 bytes a piece through L2; 1024 logits and C gathered ones a request
//   launches   1 (dense q: 3)
//   sync       one counter a request; no barrier in the streaming part
//   H200       V = 151936, fp32 logits, M = 4 B (length 3 on average); floor at 4.3 TB/s, expected in brackets
//              B = 1: 0.6 us (9 us)   B = 16: 9 us (19 us)   B = 64: 36 us (48 us)   B = 256: 145 us (170 us)
#include "dspark/cuda/accept_workspace.cuh"
#include "dspark/random.h"

namespace dspark::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct Layout {
    SharedLayout shared;
    size_t rows, best, p_x, q_x, sums, weights, ids, terms, residuals;
    int positions, pieces, candidates;

    __host__ __device__ explicit Layout(const Accept& p)
        : positions(static_cast<int>(p.gamma + 1)),
          pieces(static_cast<int>((p.vocab + kPiece - 1) / kPiece)),
          candidates(p.form == QForm::sparse ? static_cast<int>(p.candidates) : 1) {
        rows = shared.reserve<TargetRow>(positions);
        best = shared.reserve<uint64_t>(positions);
        p_x = shared.reserve<float>(positions);
        q_x = shared.reserve<float>(positions);
        sums = shared.reserve<double>(pieces);
        weights = shared.reserve<float>(kPiece);
        ids = shared.reserve<int32_t>(candidates);
        terms = shared.reserve<float>(candidates);
        residuals = shared.reserve<float>(candidates);
    }
};

struct Shared {
    TargetRow* rows;   // [gamma + 1]
    uint64_t* best;    // [gamma + 1], of greedy rows and of those without a distribution
    float *p_x, *q_x;  // [gamma + 1], of the drafted token
    double* sums;      // [pieces], of the closing draw
    float* weights;    // [kPiece], of the piece it falls into
    int32_t* ids;      // [C], the candidates of its position
    float* terms;      // [C], their terms in their pieces' totals
    float* residuals;  // [C], their (p - q)^+

    __device__ explicit Shared(const Layout& l)
        : rows(dynamic_shared<TargetRow>(l.rows, l.positions)),
          best(dynamic_shared<uint64_t>(l.best, l.positions)),
          p_x(dynamic_shared<float>(l.p_x, l.positions)),
          q_x(dynamic_shared<float>(l.q_x, l.positions)),
          sums(dynamic_shared<double>(l.sums, l.pieces)),
          weights(dynamic_shared<float>(l.weights, kPiece)),
          ids(dynamic_shared<int32_t>(l.ids, l.candidates)),
          terms(dynamic_shared<float>(l.terms, l.candidates)),
          residuals(dynamic_shared<float>(l.residuals, l.candidates)) {}
};

// How a round ends, the same in all threads.
struct Ending {
    int count;     // accepted draft tokens; the last row's position
    int64_t last;  // the token that ends the round; -1: drawn
    bool residual;
};

// A request's view of its rows.
template <typename T>
struct Request {
    const Accept& p;
    int64_t b, start;
    int length;
    float inverse;  // 0: argmax
    bool given;     // p comes as probabilities

    __device__ Request(const Accept& p, int64_t b)
        : p(p), b(b), start(p.start[b]), length(static_cast<int>(p.lengths[b])) {
        const float temperature = p.temperatures != nullptr ? p.temperatures[b] : 0.0f;
        inverse = temperature > 0.0f ? 1.0f / temperature : 0.0f;
        given = inverse > 0.0f && p.probabilities != nullptr;
    }
    __device__ const T* logits(int64_t row) const { return static_cast<const T*>(p.logits) + row * p.logits_stride; }
    __device__ const float* probabilities(int64_t row) const { return p.probabilities + row * p.probabilities_stride; }
    __device__ float probability(const TargetRow& target, int64_t row, int64_t token) const {
        if (given) return residual_weight(probabilities(row)[token], 0.0f);
        return exponential(to_float(logits(row)[token]), target.largest, inverse) * target.inverse_total;
    }
    __device__ bool tested(int k) const { return k < p.gamma && k < p.usable[b]; }
    __device__ NoiseKey noise() const {
        return {p.seed, static_cast<uint64_t>(p.streams[b]), static_cast<uint32_t>(p.rounds[b])};
    }
};

// Largest of a row read again: rows of sampled requests that have no distribution.
template <typename T>
__device__ uint64_t warp_argmax(const T* row, int64_t vocab) {
    uint64_t best = 0;
    for (int64_t i = threadIdx.x % kWarp; i < vocab; i += kWarp) {
        const uint64_t choice = packed_choice(to_float(row[i]), static_cast<uint32_t>(i));
        best = choice > best ? choice : best;
    }
    return warp_max(best);
}

// q of the drafted token of position k, by one warp.
__device__ float drafted_q(const Accept& p, int64_t b, int k, int64_t drafted) {
    const int64_t at = b * p.gamma + k;
    if (p.form == QForm::dense) return p.dense.token_probs[at];
    if (p.form == QForm::none) return 0.0f;
    const int32_t* ids = p.ids + at * p.candidates;
    float q = 0.0f;
    for (int64_t i = threadIdx.x % kWarp; i < p.candidates; i += kWarp) {
        if (ids[i] == drafted) q = p.probs[at * p.candidates + i];
    }
    return warp_sum(q);  // at most one lane has it
}

// Position k's row from its pieces, by one warp.
template <typename T>
__device__ void gather_row(const Request<T>& r, const AcceptWorkspace& w, const Shared& s, int pieces, int k) {
    const Accept& p = r.p;
    const int64_t row = r.start + k;
    const PieceStats* stats = w.stats + row * pieces;
    TargetRow target{-INFINITY, r.inverse, 0.0f};
    uint64_t best = 0;
    float p_x = 0.0f, q_x = 0.0f;
    if (r.inverse == 0.0f) {
        for (int i = threadIdx.x % kWarp; i < pieces; i += kWarp) {
            const uint64_t choice = __ldcg(&stats[i].best);
            best = choice > best ? choice : best;
        }
        best = warp_max(best);
    } else {
        target = warp_row(stats, pieces, r.inverse, r.given);
        if (target.inverse_total == 0.0f) {
            best = warp_argmax(r.logits(row), p.vocab);
        } else if (r.tested(k)) {
            const int64_t drafted = p.drafted[r.b * p.gamma + k];
            p_x = r.probability(target, row, drafted);
            q_x = drafted_q(p, r.b, k, drafted);
        }
    }
    if (threadIdx.x % kWarp != 0) return;
    s.rows[k] = target;
    s.best[k] = best;
    s.p_x[k] = p_x;
    s.q_x[k] = q_x;
}

// Walks the positions until the round ends. Every thread does it: they are few, and nothing has to be passed on.
template <typename T>
__device__ Ending decide(const Request<T>& r, const Shared& s) {
    const Accept& p = r.p;
    Ending end{0, -1, false};
    while (true) {
        const int k = end.count;
        const bool tested = r.tested(k);
        const int64_t drafted = tested ? p.drafted[r.b * p.gamma + k] : -1;
        bool passed;
        // A row without a distribution (no finite maximum) is decided by its maximum alone.
        if (r.inverse == 0.0f || s.rows[k].inverse_total == 0.0f) {
            // A row of NaN has no maximum: token 0, as the host has it.
            end.last = s.best[k] >> 32 == 0 ? 0 : packed_token(s.best[k]);
            passed = tested && end.last == drafted;
        } else {
            passed = tested && p.form != QForm::none &&
                     passes(uniform(r.noise(), Purpose::accept, static_cast<uint32_t>(k)), s.q_x[k], s.p_x[k]);
            end.last = passed ? drafted : -1;
            end.residual = tested && p.form != QForm::none;
        }
        if (!passed || k == r.length) return end;
        ++end.count;
    }
}

__device__ int lower_bound(const int32_t* ids, int count, int64_t wanted) {
    int begin = 0;
    while (begin < count) {
        const int middle = (begin + count) / 2;
        if (ids[middle] < wanted) {
            begin = middle + 1;
        } else {
            count = middle;
        }
    }
    return begin;
}

// Weights of the pieces of the closing draw, from the totals of the streaming part.
template <typename T>
__device__ void piece_sums(const Request<T>& r, const AcceptWorkspace& w, const Shared& s, const TargetRow& target,
                           int pieces, int64_t row, bool residual) {
    const int candidates = residual ? static_cast<int>(r.p.candidates) : 0;
    for (int i = threadIdx.x; i < pieces; i += kThreads) {
        const PieceStats& stats = w.stats[row * pieces + i];
        double total = __ldcg(&stats.total), kept = 0.0;
        for (int c = lower_bound(s.ids, candidates, int64_t{i} * kPiece);
             c < candidates && s.ids[c] < (int64_t{i} + 1) * kPiece; ++c) {
            total -= static_cast<double>(s.terms[c]);
            kept += static_cast<double>(s.residuals[c]);
        }
        if (!(total > 0.0)) total = 0.0;
        if (!r.given)
            total = rescaled(total, __ldcg(&stats.largest), target) * static_cast<double>(target.inverse_total);
        s.sums[i] = total + kept;
    }
    __syncthreads();
}

// Terms and residuals of the position's candidates.
template <typename T>
__device__ void load_candidates(const Request<T>& r, const AcceptWorkspace& w, const Shared& s, const TargetRow& target,
                                int pieces, int64_t row, int k) {
    const Accept& p = r.p;
    const int64_t at = (r.b * p.gamma + k) * p.candidates;
    for (int i = threadIdx.x; i < p.candidates; i += kThreads) {
        const int32_t id = p.ids[at + i];
        const float weight = r.probability(target, row, id);
        s.ids[i] = id;
        s.residuals[i] = residual_weight(weight, p.probs[at + i]);
        s.terms[i] = weight;
        if (!r.given) {
            const float largest = __ldcg(&w.stats[row * pieces + id / kPiece].largest);
            s.terms[i] = exponential(to_float(r.logits(row)[id]), largest == -INFINITY ? 0.0f : largest, r.inverse);
        }
    }
    __syncthreads();
}

// The token that ends a sampled round.
template <typename T>
__device__ int64_t closing_draw(const Request<T>& r, const AcceptWorkspace& w, const Shared& s, int pieces,
                                const Ending& end, double* picks, int* pick_ints) {
    const Accept& p = r.p;
    const int64_t row = r.start + end.count;
    const TargetRow target = s.rows[end.count];
    const double u = uniform(r.noise(), Purpose::last, static_cast<uint32_t>(end.count));
    bool residual = end.residual && p.form == QForm::sparse;
    if (residual) load_candidates(r, w, s, target, pieces, row, end.count);
    piece_sums(r, w, s, target, pieces, row, residual);
    while (true) {
        double before = 0.0, goal = 0.0;
        const int piece = warp_pick_piece(s.sums, pieces, u, &before, &goal);  // every warp alike
        if (piece < 0 && residual) {
            // Equal p and q reject with probability 0; rounding can still bring us here, and then p is what is left.
            residual = false;
            __syncthreads();
            piece_sums(r, w, s, target, pieces, row, false);
            continue;
        }
        if (piece < 0) return packed_token(warp_argmax(r.logits(row), p.vocab));
        const int64_t first = int64_t{piece} * kPiece;
        const int count = static_cast<int>(p.vocab - first < kPiece ? p.vocab - first : kPiece);
        for (int i = threadIdx.x; i < count; i += kThreads) s.weights[i] = r.probability(target, row, first + i);
        __syncthreads();
        if (residual) {
            for (int i = threadIdx.x; i < p.candidates; i += kThreads) {
                if (s.ids[i] >= first && s.ids[i] < first + count) s.weights[s.ids[i] - first] = s.residuals[i];
            }
            __syncthreads();
        }
        const int pick = block_pick(s.weights, count, before, goal, picks, pick_ints);
        if (pick >= 0) return first + pick;
        // Only rounding had given this piece its weight.
        if (threadIdx.x == 0) s.sums[piece] = 0.0;
        __syncthreads();
    }
}

template <typename T, bool Vector>
__global__ void __launch_bounds__(kThreads, 2) accept_kernel(Accept p, AcceptWorkspace w, bool given_vector) {
    DSPARK_SHARED(double, picks, kWarps);
    DSPARK_SHARED(int, pick_ints, 2 * kWarps);
    DSPARK_SHARED(int, flag, 1);
    const int64_t row = blockIdx.x / p.slices, slice = blockIdx.x % p.slices;
    int64_t b = 0;  // the last request that starts at or before the row
    for (int64_t end = p.batch; b + 1 < end;) {
        const int64_t middle = (b + end) / 2;
        if (p.start[middle] <= row) {
            b = middle;
        } else {
            end = middle;
        }
    }
    if (row < p.start[b] || row - p.start[b] > p.lengths[b]) return;
    const Request<T> r(p, b);
    const Layout layout(p);
    const int pieces = layout.pieces, warp = threadIdx.x / kWarp;
    for (int64_t i = slice * kWarps + warp; i < pieces; i += p.slices * kWarps) {
        const int64_t first = i * kPiece;
        const int count = static_cast<int>(p.vocab - first < kPiece ? p.vocab - first : kPiece);
        const PieceStats stats = !r.given ? warp_piece<T, Vector>(r.logits(row), first, count, r.inverse, false)
                                 : given_vector
                                     ? warp_piece<float, true>(r.probabilities(row), first, count, r.inverse, true)
                                     : warp_piece<float, false>(r.probabilities(row), first, count, r.inverse, true);
        if (threadIdx.x % kWarp == 0) w.stats[row * pieces + i] = stats;
    }
    if (!arrives_last(&w.arrived[b], static_cast<unsigned>((r.length + 1) * p.slices), flag)) return;

    const Shared s(layout);
    for (int k = warp; k <= r.length; k += kWarps) gather_row(r, w, s, pieces, k);
    __syncthreads();
    Ending end = decide(r, s);
    const bool later = end.last < 0 && end.residual && p.form == QForm::dense;
    if (p.form == QForm::dense && threadIdx.x == 0) {
        w.pending[b] = {later ? end.count : -1, static_cast<int32_t>(r.start + end.count), s.rows[end.count]};
    }
    if (end.last < 0 && !later) end.last = closing_draw(r, w, s, pieces, end, picks, pick_ints);
    int64_t* tokens = p.tokens + b * (p.gamma + 1);
    for (int k = threadIdx.x; k <= p.gamma; k += kThreads) {
        tokens[k] = k < end.count ? p.drafted[b * p.gamma + k] : k == end.count ? end.last : 0;
    }
    if (threadIdx.x == 0) {
        p.counts[b] = end.count + 1;
        p.last[b] = end.last;
    }
}

}  // namespace

int64_t accept_slices(int64_t rows, int64_t vocab, int64_t multiprocessors) {
    if (rows == 0) return 1;
    const int64_t most = (pieces_of(vocab) + kWarps - 1) / kWarps, wanted = (8 * multiprocessors + rows - 1) / rows;
    return wanted < most ? wanted : most;
}

size_t accept_workspace(int64_t batch, int64_t, int64_t rows, int64_t vocab, bool dense) {
    return AcceptWorkspace(nullptr, batch, rows, pieces_of(vocab), dense).bytes;
}

int accept(const Accept& p, void* stream) {
    if (p.batch == 0) return cudaSuccess;
    if (p.batch > kCounters) return cudaErrorInvalidValue;
    const AcceptWorkspace w(p.workspace, p.batch, p.rows, pieces_of(p.vocab), p.form == QForm::dense);
    const Layout layout(p);
    const dim3 grid(static_cast<unsigned>(p.rows * p.slices));
    const bool vector = aligned16(p.logits, p.logits_stride, p.logits_dtype);
    const bool given_vector = aligned16(p.probabilities, p.probabilities_stride, Dtype::f32);
    const size_t bytes = layout.shared.bytes();
    const cudaError_t status = with_dtype(p.logits_dtype, [&](auto type) {
        using T = decltype(type);
        return vector
                   ? DSPARK_LAUNCH((accept_kernel<T, true>), grid, dim3(kThreads), bytes, stream, p, w, given_vector)
                   : DSPARK_LAUNCH((accept_kernel<T, false>), grid, dim3(kThreads), bytes, stream, p, w, given_vector);
    });
    if (status != cudaSuccess || p.form != QForm::dense) return status;
    return accept_dense(p, w, stream);
}

}  // namespace dspark::cuda
