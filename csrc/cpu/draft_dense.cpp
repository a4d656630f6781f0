// One pass over W2 per step for the whole batch. Neither the bias nor the corrected logits are stored.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dspark/draft.h"
#include "dspark/draft_head.h"
#include "dspark/sample.h"
#include "dspark/scratch.h"

namespace dspark {
namespace {

struct Maxima;

// Tokens of one piece of work. Pieces, not threads, have their own sums, so that the result does not depend on how many
// threads there are.
constexpr int64_t kPiece = 16 * kBlock;

// States of a row's pieces, merged in their order.
DenseState merge(const DenseState* states, int64_t pieces, int64_t stride) {
    DenseState all;
    for (int64_t i = 0; i < pieces; ++i) {
        const DenseState& s = states[i * stride];
        all.spoiled |= s.spoiled;
        if (s.best_key > all.best_key) all.best_key = s.best_key, all.best = s.best;
        all.largest = std::max(all.largest, s.largest);
    }
    for (int64_t i = 0; i < pieces; ++i) {
        const DenseState& s = states[i * stride];
        if (s.total > 0.0) all.total += s.total * std::exp(static_cast<double>(s.largest) - all.largest);
    }
    return all;
}

}  // namespace

void draft_dense(const DraftProblem& p, const DenseOutput& out, Isa isa, int threads) {
    const RowKernels& kernels = row_kernels(isa);
    const int64_t positions = p.batch * p.gamma, size = arranged_size(p.rank);
    if (positions == 0) return;
    const HiddenParts parts(p, kernels, threads);
    const int64_t blocks = (p.vocab + kBlock - 1) / kBlock, pieces = (p.vocab + kPiece - 1) / kPiece;
    std::vector<uint8_t> drawable_rows(positions);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t at = 0; at < positions; ++at) {
        float* maxima = scratch<Maxima, float>(blocks);
        const RowScan scan = kernels.block_maxima(p.base.row(at / p.gamma, at % p.gamma), p.vocab, maxima);
        drawable_rows[at] = drawable(scan.largest, scan.any_nan);
        out.shifts[at] = scan.largest;
        out.log_sums[at] = out.token_probs[at] = 0.0f;
        p.tokens[at] = 0;
        if (p.confidences) p.confidences[at] = 0.0f;
    }
    std::fill(out.latents, out.latents + positions * size, 0.0f);

    std::vector<HeadWalk> walks;
    walks.reserve(p.batch);
    for (int64_t b = 0; b < p.batch; ++b) walks.emplace_back(p, kernels, parts, b), p.usable[b] = p.gamma;
    std::vector<DenseState> states(pieces * p.batch);
    std::vector<int64_t> active;
    std::vector<float> latents, packed;
    for (int64_t k = 0; k < p.gamma; ++k) {
        active.clear();
        for (int64_t b = 0; b < p.batch; ++b) {
            if (p.usable[b] < p.gamma) continue;
            if (drawable_rows[b * p.gamma + k])
                active.push_back(b);
            else
                p.usable[b] = k;
        }
        const int64_t n = static_cast<int64_t>(active.size());
        if (n == 0) break;
        latents.resize(n * size);
        const bool biased = k > 0 || p.first_position;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1 && n > 1)
        for (int64_t i = 0; i < n; ++i) {
            const int64_t at = active[i] * p.gamma + k;
            walks[active[i]].step(k, k == 0 ? p.anchors[active[i]] : p.tokens[at - 1], &latents[i * size]);
            std::copy(&latents[i * size], &latents[i * size] + size, out.latents + at * size);
        }
        if (biased) {
            packed.resize(kernels.pack_size(p.w2, n));
            kernels.pack(p.w2, latents.data(), size, n, packed.data());
        }
        const auto row_of = [&](int64_t b) {
            const float t = p.temperature(b);
            return DenseRow{p.noise(b), static_cast<uint32_t>(k), out.shifts[b * p.gamma + k], t > 0 ? 1.0f / t : 0.0f};
        };
#pragma omp parallel for num_threads(threads) schedule(dynamic, 2) if (threads > 1)
        for (int64_t piece = 0; piece < pieces; ++piece) {
            DenseState* mine = &states[piece * p.batch];
            std::fill(mine, mine + n, DenseState{});
            const int64_t end = std::min(p.vocab, (piece + 1) * kPiece);
            for (int64_t first = piece * kPiece; first < end; first += kBlock) {
                const int count = static_cast<int>(std::min<int64_t>(kBlock, end - first));
                for (int64_t i = 0; i < n; i += kernels.packed_rows) {
                    const int rows = static_cast<int>(std::min<int64_t>(kernels.packed_rows, n - i));
                    alignas(64) float bias[kMaxPackedRows][kBlock];
                    if (biased) kernels.packed_dots(p.w2, packed.data(), i, rows, first, count, bias[0], kBlock);
                    for (int j = 0; j < rows; ++j) {
                        const int64_t b = active[i + j];
                        kernels.dense_block(&mine[i + j], row_of(b), p.base.row(b, k) + first,
                                            biased ? bias[j] : nullptr, static_cast<int32_t>(first), count);
                    }
                }
            }
        }
        for (int64_t i = 0; i < n; ++i) {
            const int64_t b = active[i], at = b * p.gamma + k;
            const DenseState all = merge(&states[i], pieces, p.batch);
            if (all.spoiled || !(all.best_key > -__builtin_inff())) {
                p.usable[b] = k;
                if (p.confidences) p.confidences[at] = 0.0f;
                continue;
            }
            p.tokens[at] = all.best;
            if (p.temperature(b) == 0.0f) continue;
            out.log_sums[at] = static_cast<float>(all.largest + std::log(all.total));
            // The same numbers as the accept's, whatever vector they come from.
            const DenseRow row = row_of(b);
            float bias[kMaxPackedRows][kBlock] = {};
            if (biased) {
                const int64_t group = i / kernels.packed_rows * kernels.packed_rows;
                const int rows = static_cast<int>(std::min<int64_t>(kernels.packed_rows, n - group));
                kernels.packed_dots(p.w2, packed.data(), group, rows, all.best, 1, bias[0], kBlock);
            }
            kernels.dense_probs(row, p.base.row(b, k) + all.best, biased ? bias[i % kernels.packed_rows] : nullptr, 1,
                                out.log_sums[at], out.token_probs + at);
        }
    }
}

}  // namespace dspark
