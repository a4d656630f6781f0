// What the draft, accept and noise need beyond V: 32-bit integer lanes, comparisons, fp16. Included after vec_avx2.h.
#pragma once

namespace dspark::avx2 {

using F = V;

struct U {
    __m256i r;
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
    return {_mm256_set1_epi32(static_cast<int>(x))};
}
inline U uload(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline U ulane() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)};
}
inline U uadd(U a, U b) {
    return {_mm256_add_epi32(a.r, b.r)};
}
inline U uxor(U a, U b) {
    return {_mm256_xor_si256(a.r, b.r)};
}
inline U uand(U a, U b) {
    return {_mm256_and_si256(a.r, b.r)};
}
inline U uor(U a, U b) {
    return {_mm256_or_si256(a.r, b.r)};
}
template <int N>
inline U ushr(U a) {
    return {_mm256_srli_epi32(a.r, N)};
}
template <int N>
inline U ushl(U a) {
    return {_mm256_slli_epi32(a.r, N)};
}
inline U umullo(U a, U b) {
    return {_mm256_mullo_epi32(a.r, b.r)};
}
inline U umulhi(U a, U b) {
    const __m256i even = _mm256_mul_epu32(a.r, b.r);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.r, 32), _mm256_srli_epi64(b.r, 32));
    return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)};
}
inline U uselect_equal(U a, U b, U x, U other) {
    return {_mm256_blendv_epi8(other.r, x.r, _mm256_cmpeq_epi32(a.r, b.r))};
}
// Both halves are exact, so the sum is rounded once, as in a direct conversion.
inline F to_float(U a) {
    const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(a.r, 16));
    const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(a.r, _mm256_set1_epi32(0xffff)));
    return {_mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low)};
}
inline F as_float(U a) {
    return {_mm256_castsi256_ps(a.r)};
}
inline U as_bits(F a) {
    return {_mm256_castps_si256(a.r)};
}

// One bit per lane.
inline uint32_t mask_at_least(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.r, b.r, _CMP_GE_OQ));
}
inline uint32_t mask_equal(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.r, b.r, _CMP_EQ_OQ));
}
inline uint32_t mask_nan(F a) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.r, a.r, _CMP_UNORD_Q));
}

inline F load_half(const Half* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

// The even and the odd of 2 W consecutive elements.
inline void load_pair(const Bf16* p, F& even, F& odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even.r = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd.r = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Sum of W floats in double.
inline double sum_double(F a) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(a.r));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(a.r, 1));
    const __m256d both = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

}  // namespace dspark::avx2
