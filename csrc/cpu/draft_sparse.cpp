// Candidates of all positions first, in parallel; then every request walks its gamma positions on its own.
#include <algorithm>
#include <vector>

#include "dspark/draft.h"
#include "dspark/draft_head.h"
#include "dspark/sample.h"
#include "dspark/scratch.h"

namespace dspark {
namespace {

struct Maxima;
struct Order;
struct Keys;
struct Sorted;
struct Bases;

int64_t at_least(const float* values, int64_t count, float threshold) {
    int32_t n = 0;
    for (int64_t i = 0; i < count; ++i) n += values[i] >= threshold;
    return n;
}

// A value that at least `support` of the values reach, and not many more. Halving the range finds one in a few passes
// over a small array; where values crowd (ties, huge outliers) it gives up, and the exact one is selected.
float lower_bound(const float* values, int64_t count, int64_t support) {
    float low = __builtin_inff(), high = -__builtin_inff();
    for (int64_t i = 0; i < count; ++i) low = std::min(low, values[i]), high = std::max(high, values[i]);
    if (is_finite(low)) {
        for (int step = 0; step < 24; ++step) {
            const float middle = low + 0.5f * (high - low);
            const int64_t reached = at_least(values, count, middle);
            if (reached >= support && reached <= support + support / 4) return middle;
            (reached >= support ? low : high) = middle;
        }
    }
    float* order = scratch<Order, float>(count);
    std::copy(values, values + count, order);
    std::nth_element(order, order + support - 1, order + count, std::greater<float>());
    return order[support - 1];
}

// The `support` largest entries of a row, lowest token on ties: ids ascending, and their values. False when the row
// cannot be drawn from.
//
// A value that C of the blocks' maxima reach bounds the C-th largest entry from below, since C blocks have an entry
// that reaches it. So the row is read once in full, and once more only where something can be found.
bool select(const RowKernels& kernels, Row row, int64_t vocab, int64_t support, int32_t* ids, float* values) {
    const int64_t blocks = (vocab + kBlock - 1) / kBlock;
    float* maxima = scratch<Maxima, float>(blocks);
    const RowScan scan = kernels.block_maxima(row, vocab, maxima);
    if (!drawable(scan.largest, scan.any_nan)) return false;
    float threshold = -__builtin_inff();
    if (blocks > support) threshold = lower_bound(maxima, blocks, support);
    // Entries above the threshold lie in at most support + support / 4 blocks; of equal ones `support` are taken.
    uint64_t* keys = scratch<Keys, uint64_t>(std::min(vocab, (support + support / 4) * kBlock) + support);
    int64_t found = kernels.collect(row, vocab, maxima, threshold, support, keys);
    uint64_t last = 0;
    if (found > support) {
        uint64_t* sorted = scratch<Sorted, uint64_t>(found);
        std::copy(keys, keys + found, sorted);
        std::nth_element(sorted, sorted + support - 1, sorted + found, std::greater<uint64_t>());
        last = sorted[support - 1];
    }
    for (int64_t i = 0, n = 0; i < found; ++i) {
        if (keys[i] < last) continue;
        ids[n] = static_cast<int32_t>(packed_token(keys[i]));
        values[n++] = ordered_float(static_cast<uint32_t>(keys[i] >> 32));
    }
    return true;
}

// Base logits of candidates that were chosen elsewhere. False when the row cannot be drawn from.
bool copy_bases(const RowKernels& kernels, Row row, int64_t count, float* bases) {
    kernels.widen(row, count, bases);
    float largest = -__builtin_inff();
    bool any_nan = false;
    for (int64_t i = 0; i < count; ++i) any_nan |= is_nan(bases[i]), largest = std::max(largest, bases[i]);
    return drawable(largest, any_nan);
}

// Room of one request's walk.
struct Walk {
    std::vector<float> logits;
    std::vector<float> latent;
    std::vector<uint8_t> keep;
    std::vector<int32_t> order;
};

bool allowed(const SparseFilter& f, int64_t b, int64_t k, int32_t token) {
    const auto word = static_cast<uint32_t>(f.mask[b * f.mask_batch + k * f.mask_position + token / 32]);
    return word >> (token % 32) & 1u;
}

// Marks what top-k and top-p leave of the weights, and returns their sum. The same rule as the target's filters: both
// judged on the row sorted once, the largest always kept.
double filter_weights(const SparseFilter& f, int64_t b, const int32_t* ids, int64_t count, double total, float* weights,
                      Walk& walk) {
    for (int64_t i = 0; i < count; ++i) walk.order[i] = static_cast<int32_t>(i);
    std::sort(walk.order.begin(), walk.order.begin() + count, [&](int32_t x, int32_t y) {
        return weights[x] > weights[y] || (weights[x] == weights[y] && ids[x] < ids[y]);
    });
    const int64_t top_k = f.top_k ? f.top_k[b] : count;
    const double top_p = f.top_p ? static_cast<double>(f.top_p[b]) * total : total;
    double before = 0.0, kept = 0.0;
    for (int64_t rank = 0; rank < count; ++rank) {
        const int32_t i = walk.order[rank];
        const double weight = static_cast<double>(weights[i]);
        walk.keep[i] = rank == 0 || (rank < top_k && before <= top_p);
        before += weight;
        if (walk.keep[i])
            kept += weight;
        else
            weights[i] = 0.0f;
    }
    return kept;
}

// Draws position k from `logits`. Returns the candidate's index, or -1 when there is nothing to draw from.
int draw(const DraftProblem& p, const SparseFilter& f, const RowKernels& kernels, int64_t b, int64_t k,
         const int32_t* ids, int64_t count, float* probs, Walk& walk) {
    float* logits = walk.logits.data();
    if (f.mask) {
        for (int64_t i = 0; i < count; ++i) {
            if (!allowed(f, b, k, ids[i])) logits[i] = -__builtin_inff();
        }
    }
    int best = 0;
    bool any_nan = false;
    for (int64_t i = 0; i < count; ++i) {
        any_nan |= is_nan(logits[i]);
        if (logits[i] > logits[best]) best = static_cast<int>(i);  // ids ascend: the first of equals is the lowest
    }
    const float largest = logits[best];
    if (!drawable(largest, any_nan)) return -1;
    const float temperature = p.temperature(b);
    if (temperature == 0.0f) return best;
    const float inverse = 1.0f / temperature;
    const int n = static_cast<int>(count);
    double total = kernels.sparse_weights(logits, n, largest, inverse, probs);
    const bool filtered = f.top_k || f.top_p;
    if (filtered) total = filter_weights(f, b, ids, count, total, probs, walk);
    const auto scale = static_cast<float>(1.0 / total);
    for (int64_t i = 0; i < count; ++i) probs[i] *= scale;
    return kernels.sparse_draw(logits, ids, filtered ? walk.keep.data() : nullptr, n, largest, inverse, p.noise(b),
                               static_cast<uint32_t>(k));
}

}  // namespace

void draft_sparse(const DraftProblem& p, const SparseFilter& f, const ChosenCandidates& chosen, const SparseOutput& out,
                  Isa isa, int threads) {
    const RowKernels& kernels = row_kernels(isa);
    const int64_t c = out.support, positions = p.batch * p.gamma;
    if (positions == 0) return;
    const HiddenParts parts(p, kernels, threads);
    float* bases = scratch<Bases, float>(positions * c);
    std::vector<uint8_t> drawable_rows(positions);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t at = 0; at < positions; ++at) {
        const Row row = p.base.row(at / p.gamma, at % p.gamma);
        if (chosen.given) {
            drawable_rows[at] = copy_bases(kernels, row, c, bases + at * c);
        } else {
            drawable_rows[at] = select(kernels, row, p.vocab, c, out.ids + at * c, bases + at * c);
        }
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1 && p.batch > 1)
    for (int64_t b = 0; b < p.batch; ++b) {
        HeadWalk head(p, kernels, parts, b);
        Walk walk{std::vector<float>(c), std::vector<float>(arranged_size(p.rank)), std::vector<uint8_t>(c),
                  std::vector<int32_t>(c)};
        int64_t previous = p.anchors[b], k = 0;
        for (; k < p.gamma; ++k) {
            const int64_t at = b * p.gamma + k;
            if (!drawable_rows[at]) break;
            const int32_t* ids = out.ids + at * c;
            float* probs = out.probs + at * c;
            float* logits = walk.logits.data();
            const bool biased = head.step(k, previous, walk.latent.data());
            const int32_t* rows = chosen.gathered ? nullptr : ids;
            if (biased) kernels.dots(p.w2, rows, chosen.gathered ? at * c : 0, c, walk.latent.data(), 0, 1, logits, c);
            for (int64_t i = 0; i < c; ++i) logits[i] = bases[at * c + i] + (biased ? logits[i] : 0.0f);
            std::fill(probs, probs + c, 0.0f);
            const int choice = draw(p, f, kernels, b, k, ids, c, probs, walk);
            if (choice < 0) break;
            previous = p.tokens[at] = ids[choice];
        }
        p.usable[b] = k;
        for (; k < p.gamma; ++k) {
            const int64_t at = b * p.gamma + k;
            p.tokens[at] = 0;
            if (p.confidences) p.confidences[at] = 0.0f;
            for (int64_t i = 0; i < c; ++i) out.ids[at * c + i] = static_cast<int32_t>(i), out.probs[at * c + i] = 0.0f;
        }
    }
}

}  // namespace dspark
