// Walks the rows of every request until its round ends. Only rows that are reached are read.
#include "dspark/accept.h"

#include <algorithm>
#include <vector>

#include "dspark/final_draw.h"
#include "dspark/sample.h"
#include "dspark/seeded.h"

namespace dspark {
namespace {

struct Outcome {
    int64_t count = 0;  // accepted draft tokens
    int64_t last = -1;  // the token that ends the round; -1: drawn from `draw`
    FinalDraw draw{};
};

float q_of(const AcceptProblem& p, int64_t b, int64_t k, int64_t token) {
    const int64_t at = b * p.gamma + k;
    if (p.form == QForm::dense) return p.dense.token_probs[at];
    const int32_t* ids = p.sparse.ids + at * p.sparse.support;
    for (int64_t i = 0; i < p.sparse.support; ++i) {
        if (ids[i] == token) return p.sparse.probs[at * p.sparse.support + i];
    }
    return 0.0f;
}

int64_t argmax(const AcceptProblem& p, const RowKernels& kernels, int64_t row) {
    int64_t best;
    kernels.argmax(p.logit_row(row), p.vocab, &best);
    return best;
}

// Row k of request b. Returns true when its draft token stands and the next row is to be looked at.
bool look(const AcceptProblem& p, const RowKernels& kernels, int64_t b, int64_t k, Outcome& out) {
    const int64_t row = p.start[b] + k, drafted = k < p.gamma ? p.drafted[b * p.gamma + k] : -1;
    const bool tested = k < std::min(p.usable[b], p.gamma), cut = k == p.lengths[b];
    const float temperature = p.temperature(b);
    bool passed;
    FinalDraw draw{b, k, row, tested && p.form != QForm::none, {}};
    if (!(temperature > 0.0f)) {
        out.last = argmax(p, kernels, row);
        passed = tested && out.last == drafted;
    } else if (const NoiseKey noise = p.noise(b); noise.coupled) {
        const auto* given = static_cast<const float*>(p.probabilities.data);
        out.last = seeded_token(kernels, p.logit_row(row), given ? given + row * p.probabilities.stride : nullptr,
                                p.vocab, temperature, coupled_prefix(noise, static_cast<uint32_t>(k)));
        passed = tested && out.last == drafted;
    } else {
        float p_x = 0.0f;
        if (p.probabilities.data) {
            if (tested) p_x = static_cast<const float*>(p.probabilities.data)[row * p.probabilities.stride + drafted];
        } else {
            draw.softmax = kernels.softmax_row(p.logit_row(row), p.vocab, 1.0f / temperature);
            // A row without a distribution (no finite maximum) is decided by its maximum alone.
            if (draw.softmax.inverse_total == 0.0f) {
                out.last = argmax(p, kernels, row);
                return !cut && tested && out.last == drafted;
            }
            if (tested) kernels.softmax_probs(draw.softmax, p.logit_row(row) + drafted, 1, &p_x);
        }
        passed = tested && p.form != QForm::none &&
                 passes(uniform(noise, Purpose::accept, static_cast<uint32_t>(k)), q_of(p, b, k, drafted), p_x);
        out.last = passed ? drafted : -1;
        out.draw = draw;
    }
    return passed && !cut;
}

}  // namespace

void accept(const AcceptProblem& p, Isa isa, int threads) {
    const RowKernels& kernels = row_kernels(isa);
    std::vector<Outcome> outcomes(p.batch);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1 && p.batch > 1)
    for (int64_t b = 0; b < p.batch; ++b) {
        Outcome& out = outcomes[b];
        while (look(p, kernels, b, out.count, out)) ++out.count;
    }
    std::vector<FinalDraw> draws;
    for (int64_t b = 0; b < p.batch; ++b) {
        if (outcomes[b].last < 0) draws.push_back(outcomes[b].draw);
        p.last[b] = outcomes[b].last;
    }
    draw_finals(p, kernels, draws, threads);
    for (int64_t b = 0; b < p.batch; ++b) {
        int64_t* tokens = p.tokens + b * (p.gamma + 1);
        const int64_t count = outcomes[b].count;
        std::fill(std::copy(p.drafted + b * p.gamma, p.drafted + b * p.gamma + count, tokens), tokens + p.gamma + 1, 0);
        tokens[count] = p.last[b];
        p.counts[b] = count + 1;
    }
}

}  // namespace dspark
