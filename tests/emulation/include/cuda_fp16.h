// The one conversion the kernels take from CUDA's half header.
#pragma once

#include "cuda_runtime.h"

struct __half {
    unsigned short bits;
};

inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}

inline float __half2float(__half value) {
    const unsigned sign = (value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7FFFu;
    if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    if (magnitude >= 0x400u) return __uint_as_float(sign | ((magnitude << 13) + 0x38000000u));
    const float small = std::ldexp(float(magnitude), -24);
    return sign != 0 ? -small : small;
}
