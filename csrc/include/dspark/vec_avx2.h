// 8 floats in an AVX register. Included inside a target region (see attention_avx2.cpp), after immintrin.h.
#pragma once

namespace dspark::avx2 {

struct V {
    static constexpr int W = 8;
    __m256 r;

    static V zero() { return {_mm256_setzero_ps()}; }
    static V set1(float x) { return {_mm256_set1_ps(x)}; }
    static V load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static V load(const Bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
    // The first n < W elements, zeros behind; nothing past them is read.
    static V load_n(const float* p, int n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return {_mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))};
    }
    static V load_n(const Bf16* p, int n) {
        Bf16 padded[W] = {};
        for (int i = 0; i < n; ++i) padded[i] = p[i];
        return load(padded);
    }
    void store(float* p) const { _mm256_storeu_ps(p, r); }

    static V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.r, b.r, c.r)}; }
    static V add(V a, V b) { return {_mm256_add_ps(a.r, b.r)}; }
    static V sub(V a, V b) { return {_mm256_sub_ps(a.r, b.r)}; }
    static V mul(V a, V b) { return {_mm256_mul_ps(a.r, b.r)}; }
    static V div(V a, V b) { return {_mm256_div_ps(a.r, b.r)}; }
    // A NaN in b is kept, one in a is not.
    static V max(V a, V b) { return {_mm256_max_ps(a.r, b.r)}; }
    static V min(V a, V b) { return {_mm256_min_ps(a.r, b.r)}; }
    // x where a < b, `other` elsewhere.
    static V where_less(V a, V b, V x, V other) {
        return {_mm256_blendv_ps(other.r, x.r, _mm256_cmp_ps(a.r, b.r, _CMP_LT_OQ))};
    }
    float sum() const {
        const __m128 x = _mm_add_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
        const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
    }
    float largest() const {
        const __m128 x = _mm_max_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
        const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
    }

    // out[i] = sum of the i-th argument.
    static void sum4(V a, V b, V c, V d, float* out) {
        const __m256 lanes = _mm256_hadd_ps(_mm256_hadd_ps(a.r, b.r), _mm256_hadd_ps(c.r, d.r));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1)));
    }

    // e^x; 0 below -87, NaN stays NaN. Relative error about 2e-7.
    static V exp(V x) {
        const __m256 low = _mm256_set1_ps(-87.0f);
        const __m256 y = _mm256_min_ps(_mm256_set1_ps(88.0f), _mm256_max_ps(low, x.r));
        const __m256 n = _mm256_round_ps(_mm256_mul_ps(y, _mm256_set1_ps(1.44269504f)), 8);
        __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), y);
        f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
        __m256 s = _mm256_set1_ps(1.9875691500e-4f);
        s = _mm256_fmadd_ps(s, f, _mm256_set1_ps(1.3981999507e-3f));
        s = _mm256_fmadd_ps(s, f, _mm256_set1_ps(8.3334519073e-3f));
        s = _mm256_fmadd_ps(s, f, _mm256_set1_ps(4.1665795894e-2f));
        s = _mm256_fmadd_ps(s, f, _mm256_set1_ps(1.6666665459e-1f));
        s = _mm256_fmadd_ps(s, f, _mm256_set1_ps(5.0000001201e-1f));
        s = _mm256_fmadd_ps(s, _mm256_mul_ps(f, f), _mm256_add_ps(f, _mm256_set1_ps(1.0f)));
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        const __m256 e = _mm256_mul_ps(s, _mm256_castsi256_ps(power));
        return {_mm256_andnot_ps(_mm256_cmp_ps(x.r, low, _CMP_LT_OQ), e)};
    }

private:
    static V widen(__m128i x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))}; }
};

}  // namespace dspark::avx2
