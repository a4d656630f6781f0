// Candidates of the prefix scheduler as integers whose descending order is the order of admission.
#pragma once

#include "dspark/hd.h"

namespace dspark {

constexpr int64_t kMaxRequests = int64_t{1} << 24;

// Survival of position k from that of k - 1 (1 before the first): a serial float32 product, so it never rises. A
// confidence that is not a number in [0, 1] makes it 0 from here on.
DSPARK_HD inline float next_survival(float survival, float confidence) {
    return confidence >= 0.0f && confidence <= 1.0f ? survival * confidence : 0.0f;
}

// Larger survival first, then the earlier position, then the lower request. Survival must be >= +0.
DSPARK_HD inline uint64_t candidate_key(float survival, uint32_t position, uint32_t request) {
    return static_cast<uint64_t>(float_bits(survival)) << 32 | (0xffu - position) << 24 | (0xffffffu - request);
}

DSPARK_HD inline float key_survival(uint64_t key) {
    return bits_float(static_cast<uint32_t>(key >> 32));
}
DSPARK_HD inline uint32_t key_position(uint64_t key) {
    return 0xffu - (static_cast<uint32_t>(key) >> 24);
}
DSPARK_HD inline uint32_t key_request(uint64_t key) {
    return 0xffffffu - (static_cast<uint32_t>(key) & 0xffffffu);
}

// Theta = tokens / seconds strictly improves, without the divisions.
DSPARK_HD inline bool improves(double tokens, double seconds, double best_tokens, double best_seconds) {
    return tokens * best_seconds > best_tokens * seconds;
}

}  // namespace dspark
