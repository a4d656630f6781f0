// What the draft, accept and noise need beyond V: 32-bit integer lanes, comparisons, fp16. Included after vec_avx512.h.
#pragma once

namespace dspark::avx512 {

using F = V;

struct U {
    __m512i r;
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
    return {_mm512_set1_epi32(static_cast<int>(x))};
}
inline U uload(const int32_t* p) {
    return {_mm512_loadu_si512(p)};
}
inline U ulane() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline U uadd(U a, U b) {
    return {_mm512_add_epi32(a.r, b.r)};
}
inline U uxor(U a, U b) {
    return {_mm512_xor_si512(a.r, b.r)};
}
inline U uand(U a, U b) {
    return {_mm512_and_si512(a.r, b.r)};
}
inline U uor(U a, U b) {
    return {_mm512_or_si512(a.r, b.r)};
}
template <int N>
inline U ushr(U a) {
    return {_mm512_srli_epi32(a.r, N)};
}
template <int N>
inline U ushl(U a) {
    return {_mm512_slli_epi32(a.r, N)};
}
inline U umullo(U a, U b) {
    return {_mm512_mullo_epi32(a.r, b.r)};
}
inline U umulhi(U a, U b) {
    const __m512i even = _mm512_mul_epu32(a.r, b.r);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.r, 32), _mm512_srli_epi64(b.r, 32));
    return {_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd)};
}
inline U uselect_equal(U a, U b, U x, U other) {
    return {_mm512_mask_mov_epi32(other.r, _mm512_cmpeq_epi32_mask(a.r, b.r), x.r)};
}
inline F to_float(U a) {
    return {_mm512_cvtepu32_ps(a.r)};
}
inline F as_float(U a) {
    return {_mm512_castsi512_ps(a.r)};
}
inline U as_bits(F a) {
    return {_mm512_castps_si512(a.r)};
}

// One bit per lane.
inline uint32_t mask_at_least(F a, F b) {
    return _mm512_cmp_ps_mask(a.r, b.r, _CMP_GE_OQ);
}
inline uint32_t mask_equal(F a, F b) {
    return _mm512_cmp_ps_mask(a.r, b.r, _CMP_EQ_OQ);
}
inline uint32_t mask_nan(F a) {
    return _mm512_cmp_ps_mask(a.r, a.r, _CMP_UNORD_Q);
}

inline F load_half(const Half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// The even and the odd of 2 W consecutive elements.
inline void load_pair(const Bf16* p, F& even, F& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even.r = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.r = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Sum of W floats in double.
inline double sum_double(F a) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a.r));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.r, 1));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

}  // namespace dspark::avx512
