// The sequential heads and the confidence head, one latent element at a time (algorithm, steps 2 and 3).
#pragma once

#include <cmath>

#include "dspark/hd.h"

namespace dspark {

enum class Head : int32_t { vanilla = 0, gated = 1, rnn = 2 };
enum class Activation : int32_t { none = 0, silu = 1 };
enum class Dtype : int32_t { f32 = 0, bf16 = 1, f16 = 2 };

// Rows of the joint projection: none, r (gate) or 3 r (gate, candidate, output).
DSPARK_HD inline int64_t joint_rows(Head head, int64_t rank) {
    return head == Head::vanilla ? 0 : head == Head::gated ? rank : 3 * rank;
}

// Columns before and after the embedding's: gated [h ; e], rnn [s ; e ; h].
DSPARK_HD inline int64_t joint_columns(Head head, int64_t rank, int64_t hidden) {
    return head == Head::vanilla ? 0 : head == Head::gated ? hidden + rank : 2 * rank + hidden;
}

DSPARK_HD inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

DSPARK_HD inline float activate(Activation act, float x) {
    return act == Activation::silu ? x * sigmoid(x) : x;
}

// Latent element of the gated head; `gate` is its row of Wg [h ; e] + bg.
DSPARK_HD inline float gated_latent(Activation act, float embedded, float gate) {
    return sigmoid(gate) * activate(act, embedded);
}

// Next state element of the rnn head; its latent element is tanh(output).
DSPARK_HD inline float rnn_state(float state, float gate, float candidate) {
    const float keep = sigmoid(gate);
    return keep * state + (1.0f - keep) * tanhf(candidate);
}

}  // namespace dspark
