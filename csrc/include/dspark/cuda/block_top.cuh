// The largest keys of a stream that one block reads once.
#pragma once

#include "dspark/cuda/reduce.cuh"

namespace dspark {

constexpr int kTopThreads = 256;
constexpr int kTopCapacity = 4096;
constexpr int kTopTile = 2048;  // keys offered between two checks for room
constexpr int kTopMax = kTopCapacity - kTopTile;

// The k-th largest of the block's keys (0 stands for none; there are at least k), bit by bit from the first in which
// they differ. `any` is one of them. Counting in registers needs no atomics on shared memory, which keys of one
// exponent would make contend. partial: 2 * warps ints.
template <int N>
__device__ inline uint64_t block_kth_largest(const uint64_t (&own)[N], uint64_t any, int k, int* partial) {
    uint64_t differ = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) differ |= own[i] != 0 ? own[i] ^ any : 0;
    const auto high = __reduce_or_sync(kFullMask, static_cast<unsigned>(differ >> 32));
    const auto low = __reduce_or_sync(kFullMask, static_cast<unsigned>(differ));
    const int first = high != 0 ? 63 - __clz(static_cast<int>(high)) : 31 - __clz(static_cast<int>(low));
    int bit = block_reduce(first, partial, [](int a, int b) { return a > b ? a : b; });
    uint64_t found = bit == 63 ? 0 : any >> (bit + 1) << (bit + 1);
    int buffer = 1;
    for (; bit >= 0; --bit, buffer ^= 1) {
        const uint64_t trial = found | 1ull << bit;
        int own_count = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) own_count += own[i] >= trial;
        const int count =
            block_reduce(__reduce_add_sync(kFullMask, own_count),
                         partial + buffer * static_cast<int>(blockDim.x / kWarp), [](int a, int b) { return a + b; });
        if (count >= k) found = trial;
        if (count == k) break;
    }
    return found;
}

// Keeps every key above a rising threshold in shared memory. When the buffer could overflow, the exact `wanted` largest
// stay and the threshold becomes the smallest of them, so that a stream without pattern is compacted a few times in all
// and the worst one (ascending) once a tile. Keys are distinct and above 0; the kept set does not depend on the order
// in which threads append.
class BlockTop {
public:
    // keys: [kTopCapacity]; counters: [2 + 2 * warps] ints; both in shared memory.
    __device__ BlockTop(uint64_t* keys, int* counters, int wanted)
        : keys_(keys), count_(counters), partial_(counters + 2), wanted_(wanted) {}

    __device__ void clear() {
        __syncthreads();
        if (threadIdx.x == 0) *count_ = 0;
        threshold_ = 0;
        __syncthreads();
    }

    // Offers N keys a thread, N * threads <= kTopTile; 0 stands for none. All threads of the block call it.
    template <int N>
    __device__ void offer(const uint64_t (&x)[N]) {
        append(x, threshold_);
        __syncthreads();
        const int held = *count_;
        __syncthreads();  // nobody appends before all have read the count
        if (held > kTopCapacity - kTopTile) compact(held);
    }

    // Number of keys kept, at most `wanted`; they lie in `keys`, in no particular order.
    __device__ int finish() {
        __syncthreads();
        const int held = *count_;
        __syncthreads();
        if (held > wanted_) compact(held);
        return held < wanted_ ? held : wanted_;
    }

private:
    static constexpr int kEach = kTopCapacity / kTopThreads;

    template <int N>
    __device__ void append(const uint64_t (&x)[N], uint64_t above) {
        const int lane = threadIdx.x % kWarp;
        int own = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) own += x[i] > above;
        if (!__any_sync(kFullMask, own)) return;
        int until = own;
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
            const int before = __shfl_up_sync(kFullMask, until, step);
            if (lane >= step) until += before;
        }
        int base = 0;
        if (lane == kWarp - 1) base = atomicAdd(count_, until);
        int at = __shfl_sync(kFullMask, base, kWarp - 1) + until - own;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (x[i] > above) keys_[at++] = x[i];
        }
    }

    __device__ void compact(int held) {
        uint64_t own[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int at = threadIdx.x + i * kTopThreads;
            own[i] = at < held ? keys_[at] : 0;
        }
        const uint64_t smallest = block_kth_largest(own, keys_[0], wanted_, partial_);
        __syncthreads();
        if (threadIdx.x == 0) *count_ = 0;
        __syncthreads();
        append(own, smallest - 1);
        threshold_ = smallest;
        __syncthreads();
    }

    uint64_t* keys_;
    int* count_;
    int* partial_;
    uint64_t threshold_ = 0;
    int wanted_;
};

// Sorts size = 2^n keys in shared memory, largest first. All threads of the block call it.
__device__ inline void block_sort_descending(uint64_t* keys, int size) {
    for (int width = 2; width <= size; width *= 2) {
        for (int step = width / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                const int i = 2 * pair - (pair & (step - 1)), j = i + step;
                const uint64_t a = keys[i], b = keys[j];
                if ((a < b) == ((i & width) == 0)) {
                    keys[i] = b;
                    keys[j] = a;
                }
            }
        }
    }
    __syncthreads();
}

}  // namespace dspark
