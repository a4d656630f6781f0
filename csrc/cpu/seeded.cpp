#include "dspark/seeded.h"

#include "dspark/random.h"
#include "dspark/scratch.h"

namespace dspark {

int64_t seeded_token(const RowKernels& kernels, Row logits, const float* probabilities, int64_t vocab,
                     float temperature, uint32_t prefix) {
    if (probabilities) return kernels.seeded_pick(probabilities, vocab, prefix);
    const SoftmaxRow softmax = kernels.softmax_row(logits, vocab, 1.0f / temperature);
    if (softmax.inverse_total == 0.0f) {
        int64_t best;
        kernels.argmax(logits, vocab, &best);
        return best;
    }
    struct Probabilities;
    float* row = scratch<Probabilities, float>(static_cast<size_t>(vocab));
    kernels.softmax_probs(softmax, logits, vocab, row);
    return kernels.seeded_pick(row, vocab, prefix);
}

void seeded_pick(const SeededProblem& p, Isa isa, int threads) {
    const RowKernels& kernels = row_kernels(isa);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1 && p.rows > 1)
    for (int64_t r = 0; r < p.rows; ++r) {
        const Row logits = Row{p.logits.data, p.logits.dtype} + r * p.logits.stride;
        if (!(p.temperatures[r] > 0.0f)) {
            kernels.argmax(logits, p.vocab, &p.tokens[r]);
            continue;
        }
        const float* given = static_cast<const float*>(p.probabilities.data);
        p.tokens[r] = seeded_token(
            kernels, logits, given ? given + r * p.probabilities.stride : nullptr, p.vocab, p.temperatures[r],
            seeded_prefix(static_cast<uint64_t>(p.seeds[r]), static_cast<uint32_t>(p.places[r])));
    }
}

}  // namespace dspark
