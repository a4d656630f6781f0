#include "dspark/draft_head.h"

#include <algorithm>
#include <cmath>

namespace dspark {
namespace {

Matrix columns(const Matrix& m, int64_t first, int64_t count) {
    return {(Row{m.data, m.dtype} + first).data, m.dtype, m.stride, count};
}

}  // namespace

HiddenParts::HiddenParts(const DraftProblem& p, const RowKernels& kernels, int threads) {
    const int64_t positions = p.batch * p.gamma, size = arranged_size(p.hidden_size), together = 4;
    const int64_t outputs = joint_rows(p.head, p.rank);
    if (outputs) joint.resize(positions * outputs);
    if (p.confidence.data) confidence.resize(positions);
    if (!outputs && !p.confidence.data) return;
    // [h ; e] or [s ; e ; h]
    const Matrix hidden_joint =
        outputs ? columns(p.joint, p.head == Head::rnn ? 2 * p.rank : 0, p.hidden_size) : p.joint;
    const Matrix hidden_confidence = columns(p.confidence, 0, p.hidden_size);
    const int64_t groups = (positions + together - 1) / together;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = group * together, rows = std::min(together, positions - first);
        std::vector<float> wide(p.hidden_size), arranged(rows * size);
        const auto load = [&](Dtype weights) {
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t at = first + i;
                kernels.widen(p.hidden.row(at / p.gamma, at % p.gamma), p.hidden_size, wide.data());
                kernels.arrange(wide.data(), p.hidden_size, weights, &arranged[i * size]);
            }
        };
        if (outputs) {
            load(p.joint.dtype);
            float* out = &joint[first * outputs];
            kernels.dots(hidden_joint, nullptr, 0, outputs, arranged.data(), size, static_cast<int>(rows), out,
                         outputs);
            for (int64_t i = 0; p.joint_bias && i < rows * outputs; ++i) out[i] += p.joint_bias[i % outputs];
        }
        if (p.confidence.data) {
            load(p.confidence.dtype);
            kernels.dots(hidden_confidence, nullptr, 0, 1, arranged.data(), size, static_cast<int>(rows),
                         &confidence[first], 1);
        }
    }
}

HeadWalk::HeadWalk(const DraftProblem& problem, const RowKernels& kernels, const HiddenParts& parts, int64_t b)
    : p_(problem),
      kernels_(kernels),
      parts_(parts),
      b_(b),
      context_(2 * problem.rank, 0.0f),
      arranged_(arranged_size(2 * problem.rank)),
      projected_(3 * problem.rank),
      latent_(problem.rank) {}

bool HeadWalk::step(int64_t k, int64_t previous, float* latent) {
    const int64_t r = p_.rank, at = b_ * p_.gamma + k;
    float *state = context_.data(), *embedded = state + r;
    kernels_.widen(Row{p_.w1.data, p_.w1.dtype} + previous * p_.w1.stride, r, embedded);
    if (p_.confidences) {
        float logit = parts_.confidence[at] + p_.confidence_bias;
        if (p_.confidence_with_markov) {
            float part;
            kernels_.arrange(embedded, r, p_.confidence.dtype, arranged_.data());
            kernels_.dots(columns(p_.confidence, p_.hidden_size, r), nullptr, 0, 1, arranged_.data(), 0, 1, &part, 1);
            logit += part;
        }
        p_.confidences[at] = sigmoid(logit);
    }
    if (k == 0 && !p_.first_position) {
        std::fill(latent, latent + arranged_size(r), 0.0f);
        return false;
    }
    const int64_t outputs = joint_rows(p_.head, r);
    if (outputs) {
        const bool rnn = p_.head == Head::rnn;
        const int64_t count = rnn ? 2 * r : r;
        kernels_.arrange(rnn ? state : embedded, count, p_.joint.dtype, arranged_.data());
        kernels_.dots(columns(p_.joint, rnn ? 0 : p_.hidden_size, count), nullptr, 0, outputs, arranged_.data(), 0, 1,
                      projected_.data(), outputs);
        for (int64_t i = 0; i < outputs; ++i) projected_[i] += parts_.joint[at * outputs + i];
    }
    for (int64_t i = 0; i < r; ++i) {
        switch (p_.head) {
            case Head::vanilla:
                latent_[i] = activate(p_.activation, embedded[i]);
                break;
            case Head::gated:
                latent_[i] = gated_latent(p_.activation, embedded[i], projected_[i]);
                break;
            case Head::rnn:
                state[i] = rnn_state(state[i], projected_[i], projected_[r + i]);
                latent_[i] = std::tanh(projected_[2 * r + i]);
                break;
        }
    }
    kernels_.arrange(latent_.data(), r, p_.w2.dtype, latent);
    return true;
}

}  // namespace dspark
