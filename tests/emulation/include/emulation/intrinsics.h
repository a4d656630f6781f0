// Functions and vector types of the device runtime that are plain arithmetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

template <typename T>
T __ldg(const T* address) {
    return *address;
}
template <typename T>
T __ldcs(const T* address) {  // read once: do not keep in L2
    return *address;
}
template <typename T>
T __ldcg(const T* address) {  // past L1: what other blocks wrote
    return *address;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline int __float_as_int(float value) {
    return int(__float_as_uint(value));
}
inline float __int_as_float(int bits) {
    return __uint_as_float(unsigned(bits));
}

inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(unsigned(x));
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned(uint64_t(a) * b >> 32);
}

// Round to nearest without contraction, as on the device.
inline float __fmaf_rn(float a, float b, float c) {
    return std::fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}

using std::fmaf;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
