// The closing draw from (p - q)^+ when q is dense. q was never stored: its logits are recomputed, bit for bit, from the
// position's latent, for the requests that were rejected only. One pass over W2 for up to 64 of them together gives the
// sum of every piece of 1024 tokens; the piece that the draw falls into is then computed once more.
//
//   bytes      V r sizeof(w2) ceil(B / 64) + n V (sizeof(base logit) + sizeof(logit)), n requests that were rejected
//   launches   2, after accept.cu's
//   sync       two barriers a tile; between blocks only the order of launches
//   H200       V = 151936, r = 256, bf16, every request rejected; floor at 4.3 TB/s, expected in brackets
//              B = 1: 18 us (35 us)   B = 16: 22 us (60 us)   B = 64: 32 us (160 us)   B = 256: 109 us (610 us)
#include "dspark/cuda/accept_workspace.cuh"
#include "dspark/cuda/dense_row.cuh"
#include "dspark/cuda/dense_tile.cuh"

namespace dspark::cuda {
namespace {

constexpr int kPieceTiles = kPiece / kTile;
constexpr int kEach = kTileRequests / kTileWarps;  // requests a warp sums

__host__ __device__ inline int padded(int64_t rank) {
    return static_cast<int>((rank + 3) / 4 * 4);
}

// p and q of one pending request.
struct Residual {
    const unsigned char* logits;
    Dtype dtype;
    const float* given;
    TargetRow target;
    DenseRow row;
    float log_sum;

    __device__ Residual(const Accept& p, const Pending& pending, int64_t b)
        : logits(static_cast<const unsigned char*>(p.logits) +
                 pending.row * p.logits_stride * (p.logits_dtype == Dtype::f32 ? 4 : 2)),
          dtype(p.logits_dtype),
          given(p.probabilities != nullptr ? p.probabilities + pending.row * p.probabilities_stride : nullptr),
          target(pending.target),
          row(p.dense, b, pending.position, p.gamma, p.temperatures[b]),
          log_sum(p.dense.log_sums[b * p.gamma + pending.position]) {}

    __device__ __forceinline__ float p(int64_t token) const {
        if (given != nullptr) return residual_weight(given[token], 0.0f);
        return exponential(load_as(logits, token, dtype), target.largest, target.inverse_temperature) *
               target.inverse_total;
    }
    __device__ __forceinline__ float weight(int64_t token, float bias) const {
        return residual_weight(p(token), row.probability(token, bias, log_sum));
    }
};

struct SumsLayout {
    SharedLayout shared;
    size_t latents, biases;
    int requests, stride;

    __host__ __device__ SumsLayout(const Accept& p, int requests) : requests(requests), stride(padded(p.dense.rank)) {
        latents = shared.reserve<float>(requests * stride);
        biases = shared.reserve<float>(requests * kTile);
    }
};

template <typename T, int Chunks, bool Vector>
__global__ void __launch_bounds__(kTileThreads, 2) sums_kernel(Accept p, AcceptWorkspace w, int pieces) {
    DSPARK_SHARED(int, waiting, kTileRequests);
    DSPARK_SHARED(int, count, 1);
    const int64_t chunk = int64_t{blockIdx.y} * kTileRequests, piece = blockIdx.x;
    const int most = static_cast<int>(p.batch - chunk < kTileRequests ? p.batch - chunk : kTileRequests);
    if (threadIdx.x == 0) {
        int n = 0;
        for (int i = 0; i < most; ++i) {
            if (w.pending[chunk + i].position >= 0) waiting[n++] = i;
        }
        *count = n;
    }
    __syncthreads();
    const int n = *count, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (n == 0) return;
    const SumsLayout layout(p, most);
    const int stride = layout.stride;
    float* latents = dynamic_shared<float>(layout.latents, most * stride);
    float* biases = dynamic_shared<float>(layout.biases, most * kTile);
    for (int i = threadIdx.x; i < n * stride; i += kTileThreads) {
        const int64_t b = chunk + waiting[i / stride];
        latents[i] = p.dense.latents[(b * p.gamma + w.pending[b].position) * stride + i % stride];
    }
    __syncthreads();
    double sums[kEach] = {};
    for (int tile = 0; tile < kPieceTiles; ++tile) {
        const int64_t first = piece * kPiece + tile * kTile;
        if (first >= p.vocab) break;
        tile_biases<T, Chunks, Vector>(static_cast<const T*>(p.dense.w2), p.dense.w2_stride,
                                       static_cast<int>(p.dense.rank), first, p.vocab, latents, stride, n, biases);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const int i = j * kTileWarps + warp;
            if (i >= n) continue;
            const int64_t b = chunk + waiting[i];
            const Residual residual(p, w.pending[b], b);
            for (int at = lane; at < kTile && first + at < p.vocab; at += kWarp) {
                sums[j] += static_cast<double>(residual.weight(first + at, biases[i * kTile + at]));
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int i = j * kTileWarps + warp;
        if (i >= n) continue;
        const double sum = warp_sum(sums[j]);
        if (lane == 0) w.sums[(chunk + waiting[i]) * pieces + piece] = sum;
    }
}

struct DrawLayout {
    SharedLayout shared;
    size_t sums, weights, latent, biases;
    int stride;

    __host__ __device__ DrawLayout(const Accept& p, int pieces) : stride(padded(p.dense.rank)) {
        sums = shared.reserve<double>(pieces);
        weights = shared.reserve<float>(kPiece);
        latent = shared.reserve<float>(stride);
        biases = shared.reserve<float>(kTile);
    }
};

template <typename T, int Chunks, bool Vector>
__global__ void __launch_bounds__(kTileThreads, 2) draw_kernel(Accept p, AcceptWorkspace w, int pieces) {
    DSPARK_SHARED(double, picks, kTileWarps);
    DSPARK_SHARED(int, pick_ints, 2 * kTileWarps);
    const int64_t b = blockIdx.x;
    const Pending pending = w.pending[b];
    if (pending.position < 0) return;
    const DrawLayout layout(p, pieces);
    double* sums = dynamic_shared<double>(layout.sums, pieces);
    float* weights = dynamic_shared<float>(layout.weights, kPiece);
    float* latent = dynamic_shared<float>(layout.latent, layout.stride);
    float* biases = dynamic_shared<float>(layout.biases, kTile);
    const Residual r(p, pending, b);
    for (int i = threadIdx.x; i < pieces; i += kTileThreads) sums[i] = w.sums[b * pieces + i];
    for (int i = threadIdx.x; i < layout.stride; i += kTileThreads) {
        latent[i] = p.dense.latents[(b * p.gamma + pending.position) * layout.stride + i];
    }
    __syncthreads();
    const NoiseKey key{p.seed, static_cast<uint64_t>(p.streams[b]), static_cast<uint32_t>(p.rounds[b])};
    const double u = uniform(key, Purpose::last, static_cast<uint32_t>(pending.position));
    bool residual = true;
    int64_t token = 0;
    while (true) {
        double before = 0.0, goal = 0.0;
        const int piece = warp_pick_piece(sums, pieces, u, &before, &goal);  // every warp alike
        if (piece < 0 && !residual) break;                                   // p has no weight anywhere: token 0
        if (piece < 0) {
            // Equal p and q reject with probability 0; rounding can still bring us here, and then p is what is left.
            residual = false;
            __syncthreads();
            for (int i = threadIdx.x; i < pieces; i += kTileThreads) {
                const PieceStats& stats = w.stats[int64_t{pending.row} * pieces + i];
                sums[i] = r.given != nullptr ? stats.total
                                             : rescaled(stats.total, stats.largest, r.target) *
                                                   static_cast<double>(r.target.inverse_total);
            }
            __syncthreads();
            continue;
        }
        const int64_t first = int64_t{piece} * kPiece;
        const int count = static_cast<int>(p.vocab - first < kPiece ? p.vocab - first : kPiece);
        for (int tile = 0; tile * kTile < count; ++tile) {
            tile_biases<T, Chunks, Vector>(static_cast<const T*>(p.dense.w2), p.dense.w2_stride,
                                           static_cast<int>(p.dense.rank), first + tile * kTile, p.vocab, latent,
                                           layout.stride, 1, biases);
            __syncthreads();
            const int at = tile * kTile + threadIdx.x;
            if (threadIdx.x < kTile && at < count) {
                weights[at] = residual ? r.weight(first + at, biases[threadIdx.x]) : r.p(first + at);
            }
            __syncthreads();
        }
        const int pick = block_pick(weights, count, before, goal, picks, pick_ints);
        if (pick >= 0) {
            token = first + pick;
            break;
        }
        // Only rounding had given this piece its weight.
        if (threadIdx.x == 0) sums[piece] = 0.0;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        p.last[b] = token;
        p.tokens[b * (p.gamma + 1) + pending.position] = token;
    }
}

}  // namespace

cudaError_t accept_dense(const Accept& p, const AcceptWorkspace& w, void* stream) {
    if (p.temperatures == nullptr) return cudaSuccess;  // no request is sampled
    const DenseRows& q = p.dense;
    return with_rows(q.w2, q.w2_dtype, q.w2_stride, q.rank, [&](auto type, auto chunks, auto vector) {
        using T = decltype(type);
        constexpr int kChunks = decltype(chunks)::value;
        constexpr bool kVector = decltype(vector)::value;
        const int pieces = static_cast<int>(pieces_of(p.vocab));
        const dim3 grid(static_cast<unsigned>(pieces),
                        static_cast<unsigned>((p.batch + kTileRequests - 1) / kTileRequests));
        const size_t bytes =
            SumsLayout(p, static_cast<int>(p.batch < kTileRequests ? p.batch : kTileRequests)).shared.bytes();
        const dim3 threads(kTileThreads), batch(static_cast<unsigned>(p.batch));
        const cudaError_t status =
            DSPARK_LAUNCH((sums_kernel<T, kChunks, kVector>), grid, threads, bytes, stream, p, w, pieces);
        if (status != cudaSuccess) return status;
        return DSPARK_LAUNCH((draw_kernel<T, kChunks, kVector>), batch, threads, DrawLayout(p, pieces).shared.bytes(),
                             stream, p, w, pieces);
    });
}

}  // namespace dspark::cuda
