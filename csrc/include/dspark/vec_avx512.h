// 16 floats in an AVX-512 register. Included inside a target region (see attention_avx512.cpp), after immintrin.h.
#pragma once

namespace dspark::avx512 {

struct V {
    static constexpr int W = 16;
    __m512 r;

    static V zero() { return {_mm512_setzero_ps()}; }
    static V set1(float x) { return {_mm512_set1_ps(x)}; }
    static V load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static V load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    // The first n < W elements, zeros behind; nothing past them is read.
    static V load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
    static V load_n(const Bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
    void store(float* p) const { _mm512_storeu_ps(p, r); }

    static V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
    static V add(V a, V b) { return {_mm512_add_ps(a.r, b.r)}; }
    static V sub(V a, V b) { return {_mm512_sub_ps(a.r, b.r)}; }
    static V mul(V a, V b) { return {_mm512_mul_ps(a.r, b.r)}; }
    static V div(V a, V b) { return {_mm512_div_ps(a.r, b.r)}; }
    // A NaN in b is kept, one in a is not.
    static V max(V a, V b) { return {_mm512_max_ps(a.r, b.r)}; }
    static V min(V a, V b) { return {_mm512_min_ps(a.r, b.r)}; }
    // x where a < b, `other` elsewhere.
    static V where_less(V a, V b, V x, V other) {
        return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.r, b.r, _CMP_LT_OQ), other.r, x.r)};
    }
    float sum() const { return _mm512_reduce_add_ps(r); }
    float largest() const { return _mm512_reduce_max_ps(r); }

    // out[i] = sum of the i-th argument.
    static void sum4(V a, V b, V c, V d, float* out) {
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.r, b.r), _mm512_unpackhi_ps(a.r, b.r));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.r, d.r), _mm512_unpackhi_ps(c.r, d.r));
        const __m512 lanes = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }

    // e^x; 0 below -104, NaN stays NaN. Relative error about 2e-7.
    static V exp(V x) {
        const __m512 y = _mm512_max_ps(_mm512_set1_ps(-104.0f), x.r);
        const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504f)), 8);
        __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
        f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
        __m512 s = _mm512_set1_ps(1.9875691500e-4f);
        s = _mm512_fmadd_ps(s, f, _mm512_set1_ps(1.3981999507e-3f));
        s = _mm512_fmadd_ps(s, f, _mm512_set1_ps(8.3334519073e-3f));
        s = _mm512_fmadd_ps(s, f, _mm512_set1_ps(4.1665795894e-2f));
        s = _mm512_fmadd_ps(s, f, _mm512_set1_ps(1.6666665459e-1f));
        s = _mm512_fmadd_ps(s, f, _mm512_set1_ps(5.0000001201e-1f));
        s = _mm512_fmadd_ps(s, _mm512_mul_ps(f, f), _mm512_add_ps(f, _mm512_set1_ps(1.0f)));
        return {_mm512_scalef_ps(s, n)};
    }

private:
    static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
    static V widen(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }
};

}  // namespace dspark::avx512
