// All randomness of a round: Philox4x32-10, and what its words are used for (docs/noise.md).
//
//   key      seed, 64 bits
//   counter  c0 = index | position << 21 | purpose << 29,  c1 = round,  c2, c3 = low and high half of the stream
//
// The stream is the request's own number and the round counts its rounds, so noise is fresh for every (request, round,
// position, purpose) and the same whatever else is in the batch. `position` is the 0-based place in the block.
//
// A coupled request draws with its own seed's noise instead, which the target uses too (algorithm, section 8): there
// the stream is that seed, and the round is the place in the sequence of the token before the block's first.
#pragma once

#include "dspark/hd.h"

namespace dspark {
namespace one {  // a single lane

using F = float;
using U = uint32_t;

#if defined(__CUDA_ARCH__)
// The intrinsics are never contracted to fused multiply-adds.
DSPARK_HD inline F fadd(F a, F b) {
    return __fadd_rn(a, b);
}
DSPARK_HD inline F fsub(F a, F b) {
    return __fsub_rn(a, b);
}
DSPARK_HD inline F fmul(F a, F b) {
    return __fmul_rn(a, b);
}
DSPARK_HD inline U umulhi(U a, U b) {
    return __umulhi(a, b);
}
DSPARK_HD inline F to_float(U a) {
    return __uint2float_rn(a);
}
#else
DSPARK_HD inline F fadd(F a, F b) {
    return a + b;
}
DSPARK_HD inline F fsub(F a, F b) {
    return a - b;
}
DSPARK_HD inline F fmul(F a, F b) {
    return a * b;
}
DSPARK_HD inline U umulhi(U a, U b) {
    return static_cast<U>(static_cast<uint64_t>(a) * b >> 32);
}
DSPARK_HD inline F to_float(U a) {
    return static_cast<F>(a);
}
#endif
DSPARK_HD inline F fset(float x) {
    return x;
}
DSPARK_HD inline F fmin(F a, F b) {
    return a < b ? a : b;
}
DSPARK_HD inline U uset(uint32_t x) {
    return x;
}
DSPARK_HD inline U uadd(U a, U b) {
    return a + b;
}
DSPARK_HD inline U uxor(U a, U b) {
    return a ^ b;
}
DSPARK_HD inline U uand(U a, U b) {
    return a & b;
}
DSPARK_HD inline U uor(U a, U b) {
    return a | b;
}
template <int N>
DSPARK_HD inline U ushl(U a) {
    return a << N;
}
template <int N>
DSPARK_HD inline U ushr(U a) {
    return a >> N;
}
DSPARK_HD inline U umullo(U a, U b) {
    return a * b;
}
DSPARK_HD inline F as_float(U a) {
    return bits_float(a);
}
DSPARK_HD inline U as_bits(F a) {
    return float_bits(a);
}

#include "dspark/random_impl.h"

}  // namespace one

using one::gumbel;
using one::log_positive;

// The largest value of gumbel(), that of word 0: 33 log 2.
constexpr float kGumbelMax = 22.873856f;

enum class Purpose : uint32_t { draft = 0, accept = 1, last = 2 };

constexpr int64_t kMaxVocab = int64_t{1} << 23;  // indices have 21 bits, four tokens each
constexpr int64_t kMaxGamma = 255;               // positions 0..gamma have 8 bits

// Whose noise: one request in one of its rounds.
struct NoiseKey {
    uint64_t seed, stream;
    uint32_t round;
    bool coupled = false;
};

DSPARK_HD inline uint32_t counter(Purpose purpose, uint32_t position, uint32_t index) {
    return index | position << 21 | static_cast<uint32_t>(purpose) << 29;
}

DSPARK_HD inline one::Words noise_words(const NoiseKey& key, Purpose purpose, uint32_t position, uint32_t index) {
    return one::philox(counter(purpose, position, index), key.round, static_cast<uint32_t>(key.stream),
                       static_cast<uint32_t>(key.stream >> 32), static_cast<uint32_t>(key.seed),
                       static_cast<uint32_t>(key.seed >> 32));
}

// 64 consecutive tokens share 16 indices: token t has word (t / 16) % 4 of index t / 64 * 16 + t % 16, so that 16 lanes
// with consecutive indices produce four vectors of consecutive tokens.
DSPARK_HD inline uint32_t token_index(uint32_t token) {
    return (token >> 6 << 4) | (token & 15);
}
DSPARK_HD inline uint32_t token_word(uint32_t token) {
    return (token >> 4) & 3;
}

// What all tokens at one place of a seeded request have in common of their hash.
DSPARK_HD inline uint32_t seeded_prefix(uint64_t seed, uint32_t place) {
    const uint32_t low = one::murmur_step(0, static_cast<uint32_t>(seed));
    return one::murmur_step(one::murmur_step(low, static_cast<uint32_t>(seed >> 32)), place);
}

DSPARK_HD inline uint32_t coupled_prefix(const NoiseKey& key, uint32_t position) {
    return seeded_prefix(key.stream, key.round + position);
}

// Gumbel noise of one token at one position of the draft.
DSPARK_HD inline float draft_gumbel(const NoiseKey& key, uint32_t position, uint32_t token) {
    if (key.coupled) return gumbel(one::coupled_word(coupled_prefix(key, position), token));
    const one::Words words = noise_words(key, Purpose::draft, position, token_index(token));
    const uint32_t word = token_word(token);
    return gumbel(word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3]);
}

// The one uniform of (request, round, position, purpose): 52 bits, strictly inside (0, 1).
DSPARK_HD inline double uniform(const NoiseKey& key, Purpose purpose, uint32_t position) {
    const one::Words words = noise_words(key, purpose, position, 0);
    const uint64_t bits = (static_cast<uint64_t>(words.w[0]) << 32 | words.w[1]) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace dspark
