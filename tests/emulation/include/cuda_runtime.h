// Stands in for the CUDA runtime's header where .cu files are compiled by a host compiler (see ../README.md).
#pragma once

#define DSPARK_EMULATION 1

#include "emulation/atomics.h"
#include "emulation/intrinsics.h"
#include "emulation/scheduler.h"
#include "emulation/warp.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static const
#define __restrict__ __restrict

#define threadIdx (::emulation::self->index)
#define blockIdx (::emulation::self->block->index)
#define blockDim (::emulation::launch_now->block)
#define gridDim (::emulation::launch_now->grid)
constexpr int warpSize = 32;

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;

namespace emulation {

template <typename Kernel, typename... Arguments>
void launch(dim3 grid, dim3 block, size_t dynamic_bytes, Kernel kernel, Arguments... arguments) {
    run({grid, block, dynamic_bytes, [&] { kernel(arguments...); }});
}

// One array per declaration and block; the tag's address names the declaration.
template <typename T, size_t N>
T* fixed_array(const void* declaration) {
    return static_cast<T*>(shared_fixed(declaration, N * sizeof(T), alignof(T)));
}

}  // namespace emulation
