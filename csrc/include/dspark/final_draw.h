// The draws that end rounds: from (p - q)^+ after a rejection, else from p.
#pragma once

#include <vector>

#include "dspark/accept.h"

namespace dspark {

struct FinalDraw {
    int64_t request, position, row;
    bool residual;
    SoftmaxRow softmax;  // of the row's logits; not used where probabilities are given
};

// Writes last[request] of every draw.
//
// The rule: w_v are the weights in float32, u the uniform of (request, round, position, Purpose::last); the token is
// the first whose cumulative weight, added up in float64 in token order, exceeds u times the total.
void draw_finals(const AcceptProblem& problem, const RowKernels& kernels, const std::vector<FinalDraw>& draws,
                 int threads);

}  // namespace dspark
