// The one way kernels are launched and shared memory is declared, for nvcc and for the CPU emulation alike.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#if defined(DSPARK_EMULATION)

// Kernels with several template arguments come in parentheses: DSPARK_LAUNCH((kernel<A, B>), ...).
#define DSPARK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (static_cast<void>(stream), ::emulation::launch(grid, block, shared_bytes, kernel, __VA_ARGS__), cudaSuccess)

#define DSPARK_SHARED(T, name, count)         \
    static const char name##_declaration = 0; \
    T* const name = ::emulation::fixed_array<T, (count)>(&name##_declaration)

#else

// Blocks get more than 48 KB of shared memory only after asking for it.
#define DSPARK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                            \
    ([&]() -> cudaError_t {                                                                                      \
        if ((shared_bytes) > 48 * 1024) {                                                                        \
            const cudaError_t raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                                            static_cast<int>(shared_bytes));                     \
            if (raised != cudaSuccess) return raised;                                                            \
        }                                                                                                        \
        kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__);                   \
        return cudaGetLastError();                                                                               \
    }())

#define DSPARK_SHARED(T, name, count) __shared__ T name[count]

#endif

namespace dspark {

// Hands out pieces of the dynamic shared memory, 16-byte aligned. Host and kernel call the same sequence: the host
// with base 0, to learn the size to launch with.
class SharedLayout {
public:
    template <typename T>
    __host__ __device__ size_t reserve(size_t count) {
        const size_t offset = bytes_;
        bytes_ += (count * sizeof(T) + 15) / 16 * 16;
        return offset;
    }
    __host__ __device__ size_t bytes() const { return bytes_; }

private:
    size_t bytes_ = 0;
};

// The array at `offset` of the dynamic shared memory.
template <typename T>
__device__ __forceinline__ T* dynamic_shared(size_t offset, size_t count) {
#if defined(DSPARK_EMULATION)
    return static_cast<T*>(::emulation::shared_dynamic(offset, count * sizeof(T), 16));
#else
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
    (void)count;
    return reinterpret_cast<T*>(dynamic_shared_memory + offset);
#endif
}

// Starts moving the line of `address` into L2; a hint that needs no answer.
__device__ __forceinline__ void prefetch_l2(const void* address) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
    (void)address;
#endif
}

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xFFFFFFFFu;

}  // namespace dspark
