// What the draft, accept and noise need beyond V: 32-bit integer lanes, comparisons, fp16. Included after vec_scalar.h.
#pragma once

namespace dspark::scalar {

using F = V;

struct U {
    uint32_t r[V::W];

    template <typename G>
    static U each(G g) {
        U out;
        for (int i = 0; i < V::W; ++i) out.r[i] = g(i);
        return out;
    }
};

inline F fset(float x) {
    return V::set1(x);
}
inline F fadd(F a, F b) {
    return V::add(a, b);
}
inline F fsub(F a, F b) {
    return V::sub(a, b);
}
inline F fmul(F a, F b) {
    return V::mul(a, b);
}
inline F fmin(F a, F b) {
    return V::min(a, b);
}
inline U uset(uint32_t x) {
    return U::each([=](int) { return x; });
}
inline U uload(const int32_t* p) {
    return U::each([=](int i) { return static_cast<uint32_t>(p[i]); });
}
inline U ulane() {
    return U::each([](int i) { return static_cast<uint32_t>(i); });
}
inline U uadd(U a, U b) {
    return U::each([&](int i) { return a.r[i] + b.r[i]; });
}
inline U uxor(U a, U b) {
    return U::each([&](int i) { return a.r[i] ^ b.r[i]; });
}
inline U uand(U a, U b) {
    return U::each([&](int i) { return a.r[i] & b.r[i]; });
}
inline U uor(U a, U b) {
    return U::each([&](int i) { return a.r[i] | b.r[i]; });
}
template <int N>
inline U ushr(U a) {
    return U::each([&](int i) { return a.r[i] >> N; });
}
template <int N>
inline U ushl(U a) {
    return U::each([&](int i) { return a.r[i] << N; });
}
inline U umullo(U a, U b) {
    return U::each([&](int i) { return a.r[i] * b.r[i]; });
}
inline U umulhi(U a, U b) {
    return U::each([&](int i) { return static_cast<uint32_t>(static_cast<uint64_t>(a.r[i]) * b.r[i] >> 32); });
}
inline U uselect_equal(U a, U b, U x, U other) {
    return U::each([&](int i) { return a.r[i] == b.r[i] ? x.r[i] : other.r[i]; });
}
inline F to_float(U a) {
    return V::each([&](int i) { return static_cast<float>(a.r[i]); });
}
inline F as_float(U a) {
    return V::each([&](int i) { return bits_float(a.r[i]); });
}
inline U as_bits(F a) {
    return U::each([&](int i) { return float_bits(a.r[i]); });
}

template <typename G>
inline uint32_t mask_of(G g) {
    uint32_t mask = 0;
    for (int i = 0; i < V::W; ++i) mask |= static_cast<uint32_t>(g(i)) << i;
    return mask;
}
// One bit per lane.
inline uint32_t mask_at_least(F a, F b) {
    return mask_of([&](int i) { return a.r[i] >= b.r[i]; });
}
inline uint32_t mask_equal(F a, F b) {
    return mask_of([&](int i) { return a.r[i] == b.r[i]; });
}
inline uint32_t mask_nan(F a) {
    return mask_of([&](int i) { return is_nan(a.r[i]); });
}

inline float widen_half(Half x) {
    const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u, fraction = x.bits & 0x3ffu;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -tiny : tiny;
}
inline F load_half(const Half* p) {
    return V::each([=](int i) { return widen_half(p[i]); });
}

// The even and the odd of 2 W consecutive elements.
inline void load_pair(const Bf16* p, F& even, F& odd) {
    even = V::each([=](int i) { return V::widen(p[2 * i]); });
    odd = V::each([=](int i) { return V::widen(p[2 * i + 1]); });
}

// Sum of W floats in double.
inline double sum_double(F a) {
    double total = 0;
    for (float x : a.r) total += static_cast<double>(x);
    return total;
}

}  // namespace dspark::scalar
