// Accept over ragged rows with the coupled cut (algorithm, step 6).
#pragma once

#include "dspark/draft.h"

namespace dspark {

enum class QForm { none, sparse, dense };

struct AcceptProblem {
    int64_t batch, gamma, vocab;
    Matrix logits;           // [M, vocab], after the request's own processing; row start[r] + k is p_{k+1} of request r
    Matrix probabilities;    // [M, vocab] fp32, p of sampled rows; data null: softmax(logits / T)
    const int64_t* start;    // [batch]
    const int64_t* lengths;  // [batch], 0..gamma
    const int64_t* drafted;  // [batch, gamma]
    const int64_t* usable;   // [batch]
    const float* temperatures;  // [batch], 0 for argmax; null when all are
    uint64_t seed;
    const int64_t* streams;
    const int64_t* rounds;
    const uint8_t* coupled;  // [batch] who accepts what equals its seed's pick (seeded.h), or null

    QForm form;
    SparseOutput sparse;
    // Dense: the draft's inputs and what it left, to recompute rows of q. The instruction set must be the same.
    Block3 base;
    Matrix w2;
    bool first_position;
    DenseOutput dense;

    int64_t* tokens;  // out [batch, gamma + 1], zeros past the count
    int64_t* counts;  // out [batch], 1..length + 1
    int64_t* last;    // out [batch]

    float temperature(int64_t b) const { return temperatures ? temperatures[b] : 0.0f; }
    NoiseKey noise(int64_t b) const {
        return {seed, static_cast<uint64_t>(streams[b]), static_cast<uint32_t>(rounds[b]), coupled && coupled[b] != 0};
    }
    Row logit_row(int64_t row) const { return Row{logits.data, logits.dtype} + row * logits.stride; }
};

void accept(const AcceptProblem& problem, Isa isa, int threads);

}  // namespace dspark
