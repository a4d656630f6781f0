// The CUDA operations: what each takes, in device pointers, and the functions that launch it. Strides count elements.
//
// Every launch is safe inside CUDA graph capture: no allocation, no synchronisation; workspaces come from the caller,
// zeroed once when allocated and left zeroed where that matters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dspark/head.h"

namespace dspark::cuda {

// Base logits [B, gamma, V] -> the C largest of every row (the lower token of equal ones), by ascending token.
struct SelectCandidates {
    const void* logits;
    Dtype logits_dtype;
    int64_t batch_stride, position_stride;
    int64_t batch, gamma, vocab, candidates;
    const void *prefetch_w1, *prefetch_w2;  // rows of these that the loop may need are moved to L2; null: no
    int64_t prefetch_row_bytes;
    int64_t slices;   // blocks a row, from select_candidates_slices
    void* workspace;  // select_candidates_workspace bytes, zeroed once
    int32_t* ids;     // out [B, gamma, C]
    float* values;    // out [B, gamma, C]
    uint8_t* bad;     // out [B, gamma]: 1 where a base logit is NaN or +inf, or none is finite
};
int64_t select_candidates_slices(int64_t rows, int64_t vocab, int64_t multiprocessors);
size_t select_candidates_workspace(int64_t rows, int64_t slices, int64_t candidates);
int select_candidates(const SelectCandidates& p, void* stream);

// What the sequential loops share: heads, weights and noise. Matrices are as in the checkpoint, rows contiguous.
struct Heads {
    int64_t rank, hidden_size;
    Head head;
    Activation activation;
    bool first_position;
    const void *w1, *w2;  // [V, r]
    Dtype w1_dtype, w2_dtype;
    int64_t w1_stride, w2_stride;
    const void* joint;  // gated [r, H + r], rnn [3 r, 2 r + H]
    Dtype joint_dtype;
    int64_t joint_stride;
    const float* hidden_joint;  // [B, gamma, joint rows]: the part of h, bias included, which no drawn token changes
    const void* confidence;     // [H (+ r)], null without a confidence head
    Dtype confidence_dtype;
    const float* confidence_bias;  // one number in device memory, null: 0
    bool confidence_with_markov;
    const void* hidden;  // [B, gamma, H], read by the confidence head only
    Dtype hidden_dtype;
    int64_t hidden_batch_stride, hidden_position_stride;
};

// gamma tokens of every request, each from its position's candidates. One block a request.
struct SparseLoop {
    Heads heads;
    int64_t batch, gamma, candidates;
    bool gathered;        // w2 has a row a candidate, [B, gamma, C, r], instead of one a token
    int32_t* ids;         // [B, gamma, C] ascending; overwritten by 0..C-1 from the first position that is not usable
    const float* values;  // [B, gamma, C]
    const uint8_t* bad;   // [B, gamma]
    const int64_t* anchors;     // [B]
    const float* temperatures;  // [B], 0 for argmax; null: all are
    uint64_t seed;
    const int64_t *streams, *rounds;  // [B]
    const int64_t* top_k;             // [B] or null
    const float* top_p;               // [B] or null
    const int32_t* mask;              // [B, gamma, ceil(V / 32)] bits of allowed tokens, or null
    int64_t mask_batch_stride, mask_position_stride;
    int64_t* tokens;     // out [B, gamma]
    int64_t* usable;     // out [B]
    float* probs;        // out [B, gamma, C]: q, zeros where the row is argmax or not usable
    float* confidences;  // out [B, gamma], null without a confidence head
};
int sparse_loop(const SparseLoop& p, void* stream);

// What the dense loop leaves: q(v) = exp((U_v + b_v - shift) / T - log_sum) with the bias of the latent.
struct DenseRows {
    const void* logits;  // base logits [B, gamma, V]
    Dtype logits_dtype;
    int64_t batch_stride, position_stride;
    const void* w2;
    Dtype w2_dtype;
    int64_t w2_stride, rank;
    bool first_position;
    float* latents;      // [B, gamma, r rounded up to 4], zeros where no bias applies
    float* shifts;       // [B, gamma]
    float* log_sums;     // [B, gamma], 0 for argmax
    float* token_probs;  // [B, gamma], of the drawn token; 0 for argmax
};

// gamma tokens of every request over the whole vocabulary.
struct DenseLoop {
    Heads heads;
    int64_t batch, gamma, vocab;
    DenseRows rows;             // its arrays are outputs
    const int64_t* anchors;     // [B]
    const float* temperatures;  // [B], 0 for argmax; null: all are
    uint64_t seed;
    const int64_t *streams, *rounds;  // [B]
    int64_t blocks;                   // of a step, from dense_loop_blocks
    void* workspace;                  // dense_loop_workspace bytes
    int64_t* tokens;                  // out [B, gamma]
    int64_t* usable;                  // out [B]
    float* confidences;               // out [B, gamma], null without a confidence head
};
int64_t dense_loop_blocks(int64_t vocab, int64_t multiprocessors);
size_t dense_loop_workspace(int64_t batch, int64_t gamma, int64_t rank, int64_t blocks);
int dense_loop(const DenseLoop& p, void* stream);

// How many leading draft tokens each request verifies. Up to 16384 candidates (R gamma).
struct Schedule {
    int64_t requests, gamma;
    const float* confidence;  // [R, gamma]
    int64_t confidence_stride;
    const int64_t* limits;  // [R], clipped to 0..gamma
    const double* seconds;  // time of a round for every total of verified tokens 0 .. R (1 + gamma)
    // Null: the causal scan over `confidence`. Else the budget is the best one for these confidences of an earlier
    // round, and the candidates are the budget's best of `confidence`.
    const float* lagged;  // [R, gamma]
    int64_t lagged_stride;
    const int64_t* lagged_limits;
    int64_t* lengths;   // out [R]
    int64_t* admitted;  // out [1]: their sum
};
int schedule(const Schedule& p, void* stream);

enum class QForm : int32_t { none = 0, sparse = 1, dense = 2 };

// Tests the drafted tokens of every request and draws the one that ends its round (coupled cut).
struct Accept {
    int64_t batch, gamma, vocab;
    int64_t rows;        // M, rows of logits; those that belong to no request are not read
    const void* logits;  // [M, V], after the request's own processing; row start[r] + k is p_{k+1} of request r
    Dtype logits_dtype;
    int64_t logits_stride;
    const float* probabilities;  // [M, V]: p of sampled rows; null: softmax(logits / T)
    int64_t probabilities_stride;
    const int64_t *start, *lengths;  // [B], start ascending
    const int64_t* drafted;          // [B, gamma]
    const int64_t* usable;           // [B]
    const float* temperatures;       // [B], 0 for argmax; null: all are
    uint64_t seed;
    const int64_t *streams, *rounds;  // [B]
    QForm form;
    const int32_t* ids;  // sparse: [B, gamma, C] ascending
    const float* probs;  // sparse: [B, gamma, C]
    int64_t candidates;
    DenseRows dense;
    int64_t slices;   // blocks a row, from accept_slices
    void* workspace;  // accept_workspace bytes, zeroed once
    int64_t* tokens;  // out [B, gamma + 1], zeros past the count
    int64_t* counts;  // out [B], 1..length + 1
    int64_t* last;    // out [B]
};
int64_t accept_slices(int64_t rows, int64_t vocab, int64_t multiprocessors);
size_t accept_workspace(int64_t batch, int64_t gamma, int64_t rows, int64_t vocab, bool dense);
int accept(const Accept& p, void* stream);

}  // namespace dspark::cuda
