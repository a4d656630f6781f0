// Warp and block reductions in a fixed order: the same bits whatever order the threads run in.
#pragma once

#include "dspark/cuda/launch.cuh"

namespace dspark {

template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int bits = kWarp / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(kFullMask, x, bits);
    return x;
}

template <typename T>
__device__ __forceinline__ T warp_max(T x) {
#pragma unroll
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
        const T other = __shfl_xor_sync(kFullMask, x, bits);
        x = other > x ? other : x;
    }
    return x;
}

// Sums N values of every lane across the warp with N - 1 + log2(32 / N) shuffles instead of 5 N: at each step a lane
// keeps half of its values. N is a power of two up to 32; afterwards lane l holds the sum of value `bit_prefix(l)`,
// that is value l / (32 / N), in x[0], the same in all lanes of that group.
template <int N>
__device__ __forceinline__ float warp_sum_many(float (&x)[N], int lane) {
    int bits = kWarp / 2;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2, bits /= 2) {
        const bool upper = (lane & bits) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float give = upper ? x[i] : x[i + half];
            const float keep = upper ? x[i + half] : x[i];
            x[i] = keep + __shfl_xor_sync(kFullMask, give, bits);
        }
    }
#pragma unroll
    for (; bits > 0; bits /= 2) x[0] += __shfl_xor_sync(kFullMask, x[0], bits);
    return x[0];
}

// Block-wide result for every thread. `partial` holds one entry a warp and is free again after the next barrier.
template <typename T, typename F>
__device__ __forceinline__ T block_reduce(T warp_result, T* partial, F combine) {
    const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    if (threadIdx.x % kWarp == 0) partial[warp] = warp_result;
    __syncthreads();
    T result = partial[0];
    for (int i = 1; i < warps; ++i) result = combine(result, partial[i]);
    return result;
}

template <typename T>
__device__ __forceinline__ T block_sum(T x, T* partial) {
    return block_reduce(warp_sum(x), partial, [](T a, T b) { return a + b; });
}

template <typename T>
__device__ __forceinline__ T block_max(T x, T* partial) {
    return block_reduce(warp_max(x), partial, [](T a, T b) { return a > b ? a : b; });
}

// Counters at the start of a workspace, whatever shapes it serves: they must be zero when a launch starts.
constexpr int64_t kCounters = 16384;

// True in all threads of the block that arrives last of `total`; what the others wrote before is then visible (read it
// with __ldcg). The counter is back at 0 afterwards, ready for the next launch. `flag`: one int of shared memory.
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned total, int* flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *flag = atomicInc(counter, total - 1) == total - 1;
    __syncthreads();
    const bool last = *flag != 0;
    if (last) __threadfence();
    return last;
}

}  // namespace dspark
