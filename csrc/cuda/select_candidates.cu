// Candidates of the sparse draft: the C largest base logits of every (request, position), all rows in one launch.
//
// A row is read by `slices` blocks; each keeps the largest C keys of its part (block_top.cuh), and the row's last block
// merges, sorts and writes them. Nothing is read twice.
//
//   bytes      B gamma V sizeof(logit), read once; 8 slices C a row through L2 when slices > 1
//   launches   1
//   sync       none between blocks but one counter a row (the last to arrive merges)
//   H200       V = 151936, gamma = 7, bf16, C = 256; floor at 4.3 TB/s, expected in brackets (docs/kernels.md)
//              B = 1: 0.5 us (11 us, two compactions and a merge)   B = 16: 8 us (20 us)
//              B = 64: 32 us (45 us)                               B = 256: 127 us (155 us)
#include "dspark/cuda/block_top.cuh"
#include "dspark/cuda/dtype.cuh"
#include "dspark/cuda/ops.h"
#include "dspark/sample.h"

namespace dspark::cuda {
namespace {

constexpr int kEach = kTopTile / kTopThreads;  // elements a thread reads of a tile

struct Workspace {
    unsigned* arrived;  // [kCounters], a row each
    unsigned* flags;    // [rows, slices]
    uint64_t* keys;     // [rows, slices, C]
};

__host__ __device__ inline size_t rounded(size_t bytes) {
    return (bytes + 15) / 16 * 16;
}

Workspace layout(void* base, int64_t rows, int64_t slices) {
    auto* at = static_cast<unsigned char*>(base);
    Workspace w;
    w.arrived = reinterpret_cast<unsigned*>(at);
    at += kCounters * sizeof(unsigned);
    w.flags = reinterpret_cast<unsigned*>(at);
    at += rounded(rows * slices * sizeof(unsigned));
    w.keys = reinterpret_cast<uint64_t*>(at);
    return w;
}

// A thread's part of a tile: kEach / pack vectors, each `threads * pack` elements after the one before.
template <typename T, bool Vector>
struct Tile {
    static constexpr int kStep = Vector ? kPack<T> : 1;
    static constexpr int kVectors = kEach / kStep;

    __device__ static int element(int tile, int vector) {
        return tile + (vector * kTopThreads + static_cast<int>(threadIdx.x)) * kStep;
    }

    __device__ void load(const T* row, int tile, int end) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const int at = element(tile, v);
            if constexpr (Vector) {
                // Ends of slices are multiples of the vector, and so is an aligned row's stride, not always its length.
                if (at + kStep <= end) {
                    raw[v] = __ldcs(reinterpret_cast<const uint4*>(row + at));
                }
            } else {
                if (at < end) single[v] = row[at];
            }
        }
    }

    __device__ void values(const T* row, int tile, int end, int v, float (&out)[kStep]) const {
        const int at = element(tile, v);
        if constexpr (Vector) {
            if (at + kStep <= end) {
                unpack_as<T>(raw[v], out);
            } else {
                for (int i = 0; i < kStep; ++i) out[i] = at + i < end ? to_float(row[at + i]) : 0.0f;
            }
        } else {
            out[0] = at < end ? to_float(single[v]) : 0.0f;
        }
    }

    uint4 raw[Vector ? kVectors : 1] = {};
    T single[Vector ? 1 : kVectors] = {};
};

// Keys of the tile's elements. Returns whether one was NaN.
template <typename T, bool Vector>
__device__ bool keys_of(const Tile<T, Vector>& tile, const T* row, int begin, int end, uint64_t (&keys)[kEach]) {
    constexpr int kStep = Tile<T, Vector>::kStep;
    bool nan = false;
#pragma unroll
    for (int v = 0; v < Tile<T, Vector>::kVectors; ++v) {
        const int at = Tile<T, Vector>::element(begin, v);
        float x[kStep];
        tile.values(row, begin, end, v, x);
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
            nan |= is_nan(x[i]);
            keys[v * kStep + i] = at + i < end ? packed_choice(x[i], static_cast<uint32_t>(at + i)) : 0;
        }
    }
    return nan;
}

// Writes the row's candidates by ascending token. Keys come in as (value, ~token); the halves are swapped to sort.
__device__ void write_row(const SelectCandidates& p, int64_t row, uint64_t* keys, int count, bool nan,
                          unsigned* partial) {
    int size = 2;
    while (size < p.candidates) size *= 2;
    unsigned best = 0;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        const uint64_t key = i < count ? keys[i] : 0;
        const auto value = static_cast<unsigned>(key >> 32);
        best = value > best ? value : best;
        keys[i] = key << 32 | value;
    }
    best =
        block_reduce(__reduce_max_sync(kFullMask, best), partial, [](unsigned a, unsigned b) { return a > b ? a : b; });
    block_sort_descending(keys, size);
    for (int i = threadIdx.x; i < p.candidates; i += blockDim.x) {
        const int64_t id = packed_token(keys[i] >> 32);
        p.ids[row * p.candidates + i] = static_cast<int32_t>(id);
        p.values[row * p.candidates + i] = ordered_float(static_cast<uint32_t>(keys[i]));
        for (int64_t byte = 0; byte < p.prefetch_row_bytes; byte += 128) {
            const int64_t at = id * p.prefetch_row_bytes + byte;
            if (p.prefetch_w1 != nullptr) prefetch_l2(static_cast<const unsigned char*>(p.prefetch_w1) + at);
            if (p.prefetch_w2 != nullptr) prefetch_l2(static_cast<const unsigned char*>(p.prefetch_w2) + at);
        }
    }
    if (threadIdx.x == 0) p.bad[row] = !drawable(ordered_float(best), nan);
}

template <typename T, bool Vector>
__global__ void __launch_bounds__(kTopThreads, 2) select_kernel(SelectCandidates p, Workspace w) {
    DSPARK_SHARED(uint64_t, keys, kTopCapacity);
    DSPARK_SHARED(int, counters, 2 + 2 * kTopThreads / kWarp);
    DSPARK_SHARED(unsigned, partial, kTopThreads / kWarp);
    const int64_t row = blockIdx.x / p.slices, slice = blockIdx.x % p.slices;
    const int64_t batch = row / p.gamma, position = row % p.gamma;
    const T* logits = static_cast<const T*>(p.logits) + batch * p.batch_stride + position * p.position_stride;
    // Vectors never straddle two slices. Tokens fit an int (kMaxVocab), which saves registers.
    const int vocab = static_cast<int>(p.vocab);
    const int length = static_cast<int>(((p.vocab + p.slices - 1) / p.slices + 31) / 32 * 32);
    const int begin = static_cast<int>(slice) * length;
    const int end = begin + length < vocab ? begin + length : vocab;

    BlockTop top(keys, counters, static_cast<int>(p.candidates));
    top.clear();
    bool nan = false;
    // A tile is 4 or 8 KB; several in flight are what hides the latency of memory.
    constexpr int kDepth = sizeof(T) == 2 ? 4 : 2;
    Tile<T, Vector> ring[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) ring[i].load(logits, begin + i * kTopTile, end);
    int slot = 0;
#pragma unroll 1
    for (int at = begin; at < end; at += kTopTile) {
        Tile<T, Vector> tile;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            if (i != slot) continue;
            tile = ring[i];
            ring[i].load(logits, at + kDepth * kTopTile, end);
        }
        slot = slot + 1 == kDepth ? 0 : slot + 1;
        uint64_t found[kEach];
        nan |= keys_of<T, Vector>(tile, logits, at, end, found);
        top.offer(found);
    }
    int count = top.finish();
    nan = __syncthreads_or(nan);
    if (p.slices == 1) {
        write_row(p, row, keys, count, nan, partial);
        return;
    }

    uint64_t* own = w.keys + (row * p.slices + slice) * p.candidates;
    for (int i = threadIdx.x; i < p.candidates; i += blockDim.x) own[i] = i < count ? keys[i] : 0;
    if (threadIdx.x == 0) w.flags[row * p.slices + slice] = nan;
    if (!arrives_last(&w.arrived[row], static_cast<unsigned>(p.slices), &counters[1])) return;

    nan = false;
    for (int64_t i = threadIdx.x; i < p.slices; i += blockDim.x) nan |= __ldcg(&w.flags[row * p.slices + i]) != 0;
    nan = __syncthreads_or(nan);
    top.clear();
    const uint64_t* all = w.keys + row * p.slices * p.candidates;
    for (int64_t at = 0; at < p.slices * p.candidates; at += kTopTile) {
        uint64_t found[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t j = at + i * kTopThreads + threadIdx.x;
            found[i] = j < p.slices * p.candidates ? __ldcg(&all[j]) : 0;
        }
        top.offer(found);
    }
    count = top.finish();
    write_row(p, row, keys, count, nan, partial);
}

}  // namespace

int64_t select_candidates_slices(int64_t rows, int64_t vocab, int64_t multiprocessors) {
    if (rows == 0) return 1;
    // Four blocks a multiprocessor keep enough bytes in flight; a slice of less than two tiles is not worth its merge.
    const int64_t wanted = (4 * multiprocessors + rows - 1) / rows;
    const int64_t most = vocab / (2 * kTopTile) < 16 ? vocab / (2 * kTopTile) : 16;
    return wanted < most ? wanted : most < 1 ? 1 : most;
}

size_t select_candidates_workspace(int64_t rows, int64_t slices, int64_t candidates) {
    return kCounters * sizeof(unsigned) + rounded(rows * slices * sizeof(unsigned)) +
           rows * slices * candidates * sizeof(uint64_t);
}

int select_candidates(const SelectCandidates& p, void* stream) {
    const int64_t rows = p.batch * p.gamma;
    if (rows == 0) return cudaSuccess;
    if (rows > kCounters || p.candidates > kTopMax) return cudaErrorInvalidValue;
    const Workspace w = layout(p.workspace, rows, p.slices);
    const dim3 grid(static_cast<unsigned>(rows * p.slices));
    const bool vector =
        aligned16(p.logits, p.position_stride, p.logits_dtype) && aligned16(p.logits, p.batch_stride, p.logits_dtype);
    return with_dtype(p.logits_dtype, [&](auto type) {
        using T = decltype(type);
        return vector ? DSPARK_LAUNCH((select_kernel<T, true>), grid, dim3(kTopThreads), 0, stream, p, w)
                      : DSPARK_LAUNCH((select_kernel<T, false>), grid, dim3(kTopThreads), 0, stream, p, w);
    });
}

}  // namespace dspark::cuda
