#include "dspark/final_draw.h"

#include <algorithm>
#include <utility>

#include "dspark/sample.h"
#include "dspark/scratch.h"

namespace dspark {
namespace {

struct Weights;

constexpr int64_t kPiece = 16 * kBlock;

// What one draw needs besides the problem.
struct Prepared {
    FinalDraw draw;
    std::vector<std::pair<int32_t, float>> q;  // sparse: ids ascending
    std::vector<double> sums;                  // weight of each piece
};

class Drawer {
public:
    Drawer(const AcceptProblem& p, const RowKernels& kernels) : p_(p), kernels_(kernels) {}

    int64_t pieces() const { return (p_.vocab + kPiece - 1) / kPiece; }
    int64_t first(int64_t piece) const { return piece * kPiece; }
    int64_t count(int64_t piece) const { return std::min(kPiece, p_.vocab - first(piece)); }

    Prepared prepare(const FinalDraw& draw) const {
        Prepared out{draw, {}, std::vector<double>(pieces())};
        if (!draw.residual || p_.form != QForm::sparse) return out;
        const int64_t c = p_.sparse.support, at = (draw.request * p_.gamma + draw.position) * c;
        for (int64_t i = 0; i < c; ++i) out.q.emplace_back(p_.sparse.ids[at + i], p_.sparse.probs[at + i]);
        if (!std::is_sorted(out.q.begin(), out.q.end())) std::sort(out.q.begin(), out.q.end());
        return out;
    }

    // The latents of dense draws, packed for `biases`.
    std::vector<float> pack(const Prepared* const* draws, int64_t count) const {
        const int64_t size = arranged_size(p_.w2.columns);
        std::vector<float> latents(count * size), packed(kernels_.pack_size(p_.w2, count));
        for (int64_t i = 0; i < count; ++i) {
            const FinalDraw& d = draws[i]->draw;
            const float* latent = p_.dense.latents + (d.request * p_.gamma + d.position) * size;
            std::copy(latent, latent + size, &latents[i * size]);
        }
        kernels_.pack(p_.w2, latents.data(), size, count, packed.data());
        return packed;
    }

    // The bias over one piece of `rows` draws from `row` on, bias[i * kPiece + token].
    void biases(const std::vector<float>& packed, int64_t row, int rows, int64_t piece, float* bias) const {
        kernels_.packed_dots(p_.w2, packed.data(), row, rows, first(piece), count(piece), bias, kPiece);
    }

    // Weights of one piece; returns their sum.
    double weights(const Prepared& prepared, int64_t piece, const float* bias, float* out) const {
        const FinalDraw& d = prepared.draw;
        const int64_t start = first(piece), n = count(piece);
        if (p_.probabilities.data) {
            const float* row =
                static_cast<const float*>(p_.probabilities.data) + d.row * p_.probabilities.stride + start;
            std::copy(row, row + n, out);
        } else {
            kernels_.softmax_probs(d.softmax, p_.logit_row(d.row) + start, n, out);
        }
        if (!d.residual) return kernels_.residual(out, nullptr, n);
        if (p_.form == QForm::dense) {
            float q[kPiece];
            const int64_t at = d.request * p_.gamma + d.position;
            const float t = p_.temperature(d.request);
            const DenseRow row{{}, 0, p_.dense.shifts[at], 1.0f / t};
            kernels_.dense_probs(row, p_.base.row(d.request, d.position) + start, biased(d) ? bias : nullptr, n,
                                 p_.dense.log_sums[at], q);
            return kernels_.residual(out, q, n);
        }
        auto entry = std::lower_bound(prepared.q.begin(), prepared.q.end(), std::pair<int32_t, float>(start, 0.0f));
        for (; entry != prepared.q.end() && entry->first < start + n; ++entry) {
            out[entry->first - start] = residual_weight(out[entry->first - start], entry->second);
        }
        return kernels_.residual(out, nullptr, n);
    }

    // Fills the sums of a single draw.
    void sum(Prepared& prepared) const {
        float* out = scratch<Weights, float>(kPiece);
        std::vector<float> bias(kPiece), packed;
        const Prepared* const only = &prepared;
        if (needs_bias(prepared.draw)) packed = pack(&only, 1);
        for (int64_t piece = 0; piece < pieces(); ++piece) {
            if (needs_bias(prepared.draw)) biases(packed, 0, 1, piece, bias.data());
            prepared.sums[piece] = weights(prepared, piece, bias.data(), out);
        }
    }

    bool needs_bias(const FinalDraw& d) const { return d.residual && p_.form == QForm::dense && biased(d); }

    int64_t draw(Prepared& prepared) const {
        FinalDraw& d = prepared.draw;
        double total = add(prepared.sums);
        if (!(total > 0.0) && d.residual) {
            // Equal p and q reject with probability 0; rounding can still bring us here, and then p is what is left.
            d.residual = false;
            sum(prepared);
            total = add(prepared.sums);
        }
        if (!(total > 0.0)) {
            int64_t best;
            kernels_.argmax(p_.logit_row(d.row), p_.vocab, &best);
            return best;
        }
        const double target = uniform(p_.noise(d.request), Purpose::last, static_cast<uint32_t>(d.position)) * total;
        double before = 0.0;
        int64_t piece = 0, last = 0;
        for (; piece < pieces(); ++piece) {
            if (prepared.sums[piece] > 0.0) last = piece;
            if (before + prepared.sums[piece] > target) break;
            before += prepared.sums[piece];
        }
        if (piece == pieces()) piece = last;
        std::vector<float> out(kPiece), bias(kPiece);
        const Prepared* const only = &prepared;
        if (needs_bias(d)) biases(pack(&only, 1), 0, 1, piece, bias.data());
        weights(prepared, piece, bias.data(), out.data());
        int64_t token = first(piece);
        for (int64_t i = 0; i < count(piece); ++i) {
            if (!(out[i] > 0.0f)) continue;
            token = first(piece) + i;
            before += static_cast<double>(out[i]);
            if (before > target) break;
        }
        return token;
    }

private:
    bool biased(const FinalDraw& d) const { return d.position > 0 || p_.first_position; }
    static double add(const std::vector<double>& sums) {
        double total = 0.0;
        for (double s : sums) total += s;
        return total;
    }

    const AcceptProblem& p_;
    const RowKernels& kernels_;
};

}  // namespace

void draw_finals(const AcceptProblem& p, const RowKernels& kernels, const std::vector<FinalDraw>& draws, int threads) {
    const Drawer drawer(p, kernels);
    std::vector<Prepared> prepared;
    prepared.reserve(draws.size());
    for (const FinalDraw& draw : draws) prepared.push_back(drawer.prepare(draw));
    // Dense residuals share a pass over W2; the others are independent of each other.
    std::vector<Prepared*> together, alone;
    for (Prepared& item : prepared) (drawer.needs_bias(item.draw) ? together : alone).push_back(&item);
    const int64_t pieces = drawer.pieces(), singles = static_cast<int64_t>(alone.size()) * pieces;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < singles; ++i) {
        Prepared& item = *alone[i / pieces];
        item.sums[i % pieces] = drawer.weights(item, i % pieces, nullptr, scratch<Weights, float>(kPiece));
    }
    const auto grouped = static_cast<int64_t>(together.size());
    const std::vector<float> packed = grouped ? drawer.pack(together.data(), grouped) : std::vector<float>();
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t piece = 0; piece < (grouped ? pieces : 0); ++piece) {
        float* out = scratch<Weights, float>(kPiece);
        std::vector<float> bias(kernels.packed_rows * kPiece);
        for (int64_t i = 0; i < grouped; i += kernels.packed_rows) {
            const int rows = static_cast<int>(std::min<int64_t>(kernels.packed_rows, grouped - i));
            drawer.biases(packed, i, rows, piece, bias.data());
            for (int j = 0; j < rows; ++j) {
                together[i + j]->sums[piece] = drawer.weights(*together[i + j], piece, &bias[j * kPiece], out);
            }
        }
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (size_t i = 0; i < prepared.size(); ++i) p.last[prepared[i].draw.request] = drawer.draw(prepared[i]);
}

}  // namespace dspark
