// Choices: which of two tokens wins, whether a draft token passes, what is left of p after a rejection.
#pragma once

#include <cfloat>
#include <cmath>

#include "dspark/hd.h"

namespace dspark {

// Maps floats to integers of the same order. -0 equals +0; NaN comes below everything.
DSPARK_HD inline uint32_t ordered_bits(float x) {
    if (is_nan(x)) return 0;
    const uint32_t bits = x == 0.0f ? 0u : float_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DSPARK_HD inline float ordered_float(uint32_t ordered) {
    return bits_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// (value, token) as one integer: the maximum is the largest value, of equal ones the lowest token.
DSPARK_HD inline uint64_t packed_choice(float value, uint32_t token) {
    return static_cast<uint64_t>(ordered_bits(value)) << 32 | static_cast<uint32_t>(~token);
}

DSPARK_HD inline uint32_t packed_token(uint64_t choice) {
    return ~static_cast<uint32_t>(choice);
}

// A position's corrected logits can be drawn from when none is NaN or +inf and the largest is finite. -inf is a mask.
DSPARK_HD inline bool drawable(float largest, bool any_nan) {
    return !any_nan && is_finite(largest);
}

// Key whose argmax over the tokens is a draw of softmax(logit / T). `shift` is a value of the logits' own size (their
// maximum, or that of the base logits): it keeps keys near 0, where float32 resolves the noise at any temperature.
// Not fused, so that the host and a GPU choose alike.
DSPARK_HD inline float draft_key(float logit, float shift, float inverse_temperature, float gumbel_noise) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(__fmul_rn(__fsub_rn(logit, shift), inverse_temperature), gumbel_noise);
#else
    const float scaled = (logit - shift) * inverse_temperature;
    return scaled + gumbel_noise;
#endif
}

// log p plus the engine's noise for a hash, in its own float64 steps: -log(-log(x)), x = hash / (2^32 - 1), with
// -log(x) kept between 2^-32 and the largest double.
inline double seeded_key(float p, uint32_t hash) {
    const double exponential = -std::log(static_cast<double>(hash) / 4294967295.0);
    const double clamped = exponential > 0x1p-32 ? (exponential < DBL_MAX ? exponential : DBL_MAX) : 0x1p-32;
    return std::log(static_cast<double>(p)) - std::log(clamped);
}

// min(1, p / q) against one uniform. q = 0 cannot have been drawn; such a token passes when p allows it.
DSPARK_HD inline bool passes(double uniform, float q, float p) {
    return uniform * static_cast<double>(q) < static_cast<double>(p);
}

// (p - q)^+, and 0 for anything that is not a number.
DSPARK_HD inline float residual_weight(float p, float q) {
    return p > q ? p - q : 0.0f;
}

}  // namespace dspark
