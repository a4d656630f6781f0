// What the shared headers need to compile for the host, for a GPU and for the CPU emulation of CUDA.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define DSPARK_HD __host__ __device__
#else
#define DSPARK_HD
#endif

namespace dspark {

DSPARK_HD inline uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

DSPARK_HD inline float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

DSPARK_HD inline bool is_finite(float x) {
    return (float_bits(x) & 0x7f800000u) != 0x7f800000u;
}
DSPARK_HD inline bool is_nan(float x) {
    return (float_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

}  // namespace dspark
