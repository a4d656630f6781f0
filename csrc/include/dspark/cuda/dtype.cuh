// Reading float, bfloat16 and half as float, one element or 16 bytes at a time.
#pragma once

#include <cuda_fp16.h>

#include "dspark/cuda/launch.cuh"
#include "dspark/head.h"
#include "dspark/types.h"

namespace dspark {

__device__ __forceinline__ float to_float(float x) {
    return x;
}
// The upper half of a float.
__device__ __forceinline__ float to_float(Bf16 x) {
    return bits_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(Half x) {
    return __half2float(__ushort_as_half(x.bits));
}

// Elements in one 16-byte access.
template <typename T>
constexpr int kPack = 16 / sizeof(T);

__device__ __forceinline__ void unpack(const uint4& raw, float (&out)[4]) {
    out[0] = __uint_as_float(raw.x);
    out[1] = __uint_as_float(raw.y);
    out[2] = __uint_as_float(raw.z);
    out[3] = __uint_as_float(raw.w);
}

template <typename T>
__device__ __forceinline__ void unpack16(const uint4& raw, float (&out)[8]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = to_float(T{static_cast<uint16_t>(words[i] & 0xFFFFu)});
        out[2 * i + 1] = to_float(T{static_cast<uint16_t>(words[i] >> 16)});
    }
}

template <typename T>
__device__ __forceinline__ void unpack_as(const uint4& raw, float (&out)[kPack<T>]) {
    if constexpr (sizeof(T) == 4) {
        unpack(raw, out);
    } else {
        unpack16<T>(raw, out);
    }
}

// Calls f(T{}) with the storage type of `dtype`.
template <typename F>
cudaError_t with_dtype(Dtype dtype, F f) {
    switch (dtype) {
        case Dtype::bf16:
            return f(Bf16{});
        case Dtype::f16:
            return f(Half{});
        default:
            return f(float{});
    }
}

// One element of a row whose type is known at run time only: small vectors, read once.
__device__ __forceinline__ float load_as(const void* base, int64_t i, Dtype dtype) {
    switch (dtype) {
        case Dtype::bf16:
            return to_float(static_cast<const Bf16*>(base)[i]);
        case Dtype::f16:
            return to_float(static_cast<const Half*>(base)[i]);
        default:
            return static_cast<const float*>(base)[i];
    }
}

inline int64_t dtype_bytes(Dtype dtype) {
    return dtype == Dtype::f32 ? 4 : 2;
}

// Whether rows that start at `base + i * stride` elements can all be read 16 bytes at a time.
inline bool aligned16(const void* base, int64_t stride, Dtype dtype) {
    return reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride * dtype_bytes(dtype) % 16 == 0;
}

}  // namespace dspark
