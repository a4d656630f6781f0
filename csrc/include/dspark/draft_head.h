// What the sequential head and the confidence head make of (previous token, hidden state), for one request at a time.
#pragma once

#include <vector>

#include "dspark/draft.h"

namespace dspark {

// The parts of the heads that do not depend on drawn tokens, for all positions at once.
struct HiddenParts {
    std::vector<float> joint;       // [batch * gamma, joint_rows], bias included; empty for the vanilla head
    std::vector<float> confidence;  // [batch * gamma]; empty without a confidence head

    HiddenParts(const DraftProblem& problem, const RowKernels& kernels, int threads);
};

// Walks one request through its positions.
class HeadWalk {
public:
    HeadWalk(const DraftProblem& problem, const RowKernels& kernels, const HiddenParts& parts, int64_t b);

    // Takes the token before position k: writes the confidence, and the latent in the order of `dots` with W2.
    // Returns false where no bias applies (the latent is zero then).
    bool step(int64_t k, int64_t previous, float* latent);

private:
    const DraftProblem& p_;
    const RowKernels& kernels_;
    const HiddenParts& parts_;
    const int64_t b_;
    std::vector<float> context_;    // [2 r]: state (rnn), embedding
    std::vector<float> arranged_;   // the same, arranged
    std::vector<float> projected_;  // [3 r]
    std::vector<float> latent_;     // [r]
};

}  // namespace dspark
