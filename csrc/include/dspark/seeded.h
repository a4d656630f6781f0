// What the target emits for seeded requests: a function of seed, place and p alone (algorithm, section 8).
#pragma once

#include "dspark/row_kernels.h"

namespace dspark {

struct SeededProblem {
    int64_t rows, vocab;
    Matrix logits;              // [rows, vocab]
    Matrix probabilities;       // [rows, vocab] fp32; data null: softmax(logits / T)
    const float* temperatures;  // [rows], 0 for argmax
    const int64_t* seeds;       // [rows]
    const int64_t* places;      // [rows], place in the sequence of the token before
    int64_t* tokens;            // out [rows]
};

// The token of one row, whose temperature is above 0. `probabilities` null: softmax(logits / T); a row without a finite
// maximum is then decided by its maximum alone, as everywhere.
int64_t seeded_token(const RowKernels& kernels, Row logits, const float* probabilities, int64_t vocab,
                     float temperature, uint32_t prefix);

void seeded_pick(const SeededProblem& problem, Isa isa, int threads);

}  // namespace dspark
