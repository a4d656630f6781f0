// The sequential part of a draft (algorithm, step 2): gamma tokens per request, left to right.
//
//   dense   q over the whole vocabulary; W2 is read once per step for the whole batch
//   sparse  q over the C best base logits of each position; only their rows of W2 are read
#pragma once

#include "dspark/row_kernels.h"

namespace dspark {

// [batch, gamma, n] with free strides over the first two; counted in elements.
struct Block3 {
    const void* data;
    Dtype dtype;
    int64_t batch, position;

    Row row(int64_t b, int64_t k) const { return Row{data, dtype} + (b * batch + k * position); }
};

// Restricts q of one request: all pointers may be null.
struct SparseFilter {
    const int64_t* top_k;  // [batch], at least 1
    const float* top_p;    // [batch]
    const int32_t* mask;   // [batch, gamma, ceil(vocab / 32)] with strides: bit t % 32 of word t / 32 allows token t
    int64_t mask_batch, mask_position;
};

struct DraftProblem {
    int64_t batch, gamma, vocab, rank, hidden_size;
    Block3 base;             // [batch, gamma, vocab]
    Block3 hidden;           // [batch, gamma, hidden_size]; data may be null when neither head reads it
    const int64_t* anchors;  // [batch], in [0, vocab)

    Head head;
    Activation activation;
    bool first_position;
    Matrix w1, w2;            // [vocab, rank]
    Matrix joint;             // see joint_rows, joint_columns
    const float* joint_bias;  // may be null

    Matrix confidence;  // one row, hidden_size (+ rank) columns; data null without a confidence head
    float confidence_bias;
    bool confidence_with_markov;

    const float* temperatures;  // [batch], 0 for argmax; null when all are
    uint64_t seed;
    const int64_t* streams;  // [batch]
    const int64_t* rounds;   // [batch], the low 32 bits count
    const uint8_t* coupled;  // [batch] whose noise is its own seed's (random.h), or null

    int64_t* tokens;     // out [batch, gamma]; 0 from the first position that could not be drawn
    int64_t* usable;     // out [batch], how many could
    float* confidences;  // out [batch, gamma], or null

    float temperature(int64_t b) const { return temperatures ? temperatures[b] : 0.0f; }
    NoiseKey noise(int64_t b) const {
        return {seed, static_cast<uint64_t>(streams[b]), static_cast<uint32_t>(rounds[b]), coupled && coupled[b] != 0};
    }
};

struct SparseOutput {
    int64_t support;  // C
    int32_t* ids;     // [batch, gamma, C], ascending in each row
    float* probs;     // [batch, gamma, C]: q; zeros where the row is argmax or not usable
};

// Candidates chosen elsewhere, in SparseOutput's ids; the problem's base then holds their base logits
// [batch, gamma, C] in float32, NaN among them where the position cannot be drawn from.
struct ChosenCandidates {
    bool given;     // false: they are selected here, from base logits of the whole vocabulary
    bool gathered;  // w2 has a row a candidate, [batch, gamma, C, rank], instead of one a token
};

// What the accept needs to recompute a row of q bit for bit.
struct DenseOutput {
    float* latents;      // [batch, gamma, arranged_size(rank)], zeros where no bias applies
    float* shifts;       // [batch, gamma]
    float* log_sums;     // [batch, gamma]: q(v) = exp((l_v - shift) / T - log_sum)
    float* token_probs;  // [batch, gamma]: q of the drawn token
};

void draft_sparse(const DraftProblem& problem, const SparseFilter& filter, const ChosenCandidates& chosen,
                  const SparseOutput& out, Isa isa, int threads);
void draft_dense(const DraftProblem& problem, const DenseOutput& out, Isa isa, int threads);

}  // namespace dspark
