// 4 floats in an array, for any CPU; compilers turn the loops into SSE2 or NEON.
#pragma once

#include <cmath>
#include <cstring>

namespace dspark::scalar {

struct V {
    static constexpr int W = 4;
    float r[W];

    template <typename F>
    static V each(F f) {
        V out;
        for (int i = 0; i < W; ++i) out.r[i] = f(i);
        return out;
    }
    static float widen(Bf16 x) {
        const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }

    static V zero() { return set1(0.0f); }
    static V set1(float x) {
        return each([=](int) { return x; });
    }
    static V load(const float* p) {
        return each([=](int i) { return p[i]; });
    }
    static V load(const Bf16* p) {
        return each([=](int i) { return widen(p[i]); });
    }
    static V load_n(const float* p, int n) {
        return each([=](int i) { return i < n ? p[i] : 0.0f; });
    }
    static V load_n(const Bf16* p, int n) {
        return each([=](int i) { return i < n ? widen(p[i]) : 0.0f; });
    }
    void store(float* p) const { std::memcpy(p, r, sizeof r); }

    static V fma(V a, V b, V c) {
        return each([&](int i) { return a.r[i] * b.r[i] + c.r[i]; });
    }
    static V add(V a, V b) {
        return each([&](int i) { return a.r[i] + b.r[i]; });
    }
    static V sub(V a, V b) {
        return each([&](int i) { return a.r[i] - b.r[i]; });
    }
    static V mul(V a, V b) {
        return each([&](int i) { return a.r[i] * b.r[i]; });
    }
    static V div(V a, V b) {
        return each([&](int i) { return a.r[i] / b.r[i]; });
    }
    // A NaN in b is kept, one in a is not.
    static V max(V a, V b) {
        return each([&](int i) { return a.r[i] > b.r[i] ? a.r[i] : b.r[i]; });
    }
    static V min(V a, V b) {
        return each([&](int i) { return a.r[i] < b.r[i] ? a.r[i] : b.r[i]; });
    }
    static V where_less(V a, V b, V x, V other) {
        return each([&](int i) { return a.r[i] < b.r[i] ? x.r[i] : other.r[i]; });
    }
    float sum() const { return (r[0] + r[1]) + (r[2] + r[3]); }
    float largest() const { return std::fmax(std::fmax(r[0], r[1]), std::fmax(r[2], r[3])); }
    static void sum4(V a, V b, V c, V d, float* out) {
        out[0] = a.sum(), out[1] = b.sum(), out[2] = c.sum(), out[3] = d.sum();
    }
    static V exp(V x) {
        return each([&](int i) { return std::exp(x.r[i]); });
    }
};

}  // namespace dspark::scalar
