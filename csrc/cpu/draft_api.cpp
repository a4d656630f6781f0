// Python's view of the sequential loop: checks every argument, fills the problem, launches.
#include <cfloat>
#include <cmath>
#include <optional>

#include "api.h"
#include "dspark/draft.h"
#include "tensor_arg.h"

namespace py = pybind11;

namespace dspark {
namespace {

constexpr auto kLogits = {Element::f32, Element::bf16, Element::f16};
constexpr auto kWeights = {Element::f32, Element::bf16};

struct HeadArgs {
    std::string kind, activation;
    bool first_position;
    py::object w1, w2, joint, joint_bias;
};

Head head_of(const std::string& kind) {
    if (kind == "vanilla") return Head::vanilla;
    if (kind == "gated") return Head::gated;
    if (kind == "rnn") return Head::rnn;
    fail("kind: expected vanilla, gated or rnn, got " + kind);
}

Activation activation_of(const std::string& name) {
    if (name == "none") return Activation::none;
    if (name == "silu") return Activation::silu;
    fail("activation: expected none or silu, got " + name);
}

void check_tokens(const char* name, const int64_t* tokens, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; ++i) {
        if (tokens[i] < 0 || tokens[i] >= vocab) {
            fail(std::string(name) + ": token " + std::to_string(tokens[i]) + " of request " + std::to_string(i) +
                 " is outside the vocabulary of " + std::to_string(vocab));
        }
    }
}

void check_candidates(const TensorArg& ids, const DraftProblem& p, int64_t support) {
    const int32_t* row = ids.data<int32_t>();
    for (int64_t at = 0; at < p.batch * p.gamma; ++at, row += support) {
        for (int64_t i = 0; i < support; ++i) {
            if (row[i] < (i ? row[i - 1] + 1 : 0) || row[i] >= p.vocab) ids.fail("tokens of the vocabulary, ascending");
        }
    }
}

void read_head(DraftProblem& p, const HeadArgs& head, int64_t rows_of_w2) {
    p.head = head_of(head.kind);
    p.activation = activation_of(head.activation);
    p.first_position = head.first_position;
    p.w1 = TensorArg("head.w1", head.w1).of(kWeights).shaped({-1, -1}, "[V, r]").rows_contiguous().matrix();
    p.rank = p.w1.columns;
    const TensorArg w1("head.w1", head.w1);
    if (w1.size(0) < p.vocab || p.rank < 1) w1.fail("at least as many rows as base_logits has entries, r >= 1");
    p.w2 = TensorArg("head.w2", head.w2)
               .of(kWeights)
               .shaped({rows_of_w2, p.rank}, "[V, r] of base_logits and w1, or a row a candidate")
               .rows_contiguous()
               .matrix();
    const int64_t rows = joint_rows(p.head, p.rank);
    if (rows == 0) return;
    p.joint = TensorArg("head.joint", head.joint)
                  .of(kWeights)
                  .shaped({rows, joint_columns(p.head, p.rank, p.hidden_size)}, "of the head's joint projection")
                  .rows_contiguous()
                  .matrix();
    if (!head.joint_bias.is_none()) {
        p.joint_bias = TensorArg("head.joint_bias", head.joint_bias)
                           .of({Element::f32})
                           .shaped({rows}, "[rows]")
                           .contiguous()
                           .data<float>();
    }
}

void read_confidence(DraftProblem& p, const py::object& weight, float bias, bool with_markov, const py::object& out) {
    if (weight.is_none()) return;
    p.confidence = TensorArg("confidence_head.weight", weight)
                       .of(kWeights)
                       .shaped({1, p.hidden_size + (with_markov ? p.rank : 0)}, "[1, H (+ r)]")
                       .rows_contiguous()
                       .matrix();
    p.confidence_bias = bias;
    p.confidence_with_markov = with_markov;
    p.confidences = TensorArg("confidences", out)
                        .of({Element::f32})
                        .shaped({p.batch, p.gamma}, "[B, gamma]")
                        .contiguous()
                        .data<float>();
}

// `vocab` 0: base_logits are of the whole vocabulary; else of that many tokens' chosen candidates.
DraftProblem read_problem(const py::object& base_logits, int64_t vocab, bool gathered, const py::object& anchors,
                          const py::object& hidden, const HeadArgs& head, const py::object& temperatures, uint64_t seed,
                          const py::object& streams, const py::object& rounds, const py::object& coupled,
                          const py::object& tokens, const py::object& usable) {
    DraftProblem p{};
    TensorArg base("base_logits", base_logits);
    base.of(kLogits).shaped({-1, -1, -1}, "[B, gamma, V]").rows_contiguous();
    p.batch = base.size(0), p.gamma = base.size(1), p.vocab = vocab ? vocab : base.size(2);
    if (p.gamma < 1 || p.gamma > kMaxGamma || p.vocab < 1 || p.vocab > kMaxVocab) {
        base.fail("1 to 255 positions and 1 to 2^23 tokens");
    }
    p.base = {base.data<void>(), base.dtype(), base.stride(0), base.stride(1)};
    TensorArg states("hidden", hidden);
    states.of(kLogits).shaped({p.batch, p.gamma, -1}, "[B, gamma, H]").rows_contiguous();
    p.hidden_size = states.size(2);
    p.hidden = {states.data<void>(), states.dtype(), states.stride(0), states.stride(1)};
    p.anchors = TensorArg("anchors", anchors).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    check_tokens("anchors", p.anchors, p.batch, p.vocab);
    read_head(p, head, gathered ? p.batch * p.gamma * base.size(2) : p.vocab);
    if (!temperatures.is_none()) {
        TensorArg t("temperatures", temperatures);
        p.temperatures = t.of({Element::f32}).shaped({p.batch}, "[B]").contiguous().data<float>();
        for (int64_t i = 0; i < p.batch; ++i) {
            const float value = p.temperatures[i];
            if (value != 0.0f && !(value >= FLT_MIN && std::isfinite(value))) t.fail("0 or a positive normal number");
        }
    }
    p.seed = seed;
    p.streams = TensorArg("streams", streams).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    p.rounds = TensorArg("rounds", rounds).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    if (!coupled.is_none()) {
        p.coupled =
            TensorArg("coupled", coupled).of({Element::boolean}).shaped({p.batch}, "[B]").contiguous().data<uint8_t>();
    }
    p.tokens = TensorArg("tokens", tokens)
                   .of({Element::i64})
                   .shaped({p.batch, p.gamma}, "[B, gamma]")
                   .contiguous()
                   .data<int64_t>();
    p.usable = TensorArg("usable", usable).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    return p;
}

SparseFilter read_filter(const DraftProblem& p, const py::object& top_k, const py::object& top_p,
                         const py::object& mask) {
    SparseFilter f{};
    if (!top_k.is_none()) {
        TensorArg arg("top_k", top_k);
        f.top_k = arg.of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
        for (int64_t i = 0; i < p.batch; ++i) {
            if (f.top_k[i] < 1) arg.fail("values of at least 1");
        }
    }
    if (!top_p.is_none()) {
        TensorArg arg("top_p", top_p);
        f.top_p = arg.of({Element::f32}).shaped({p.batch}, "[B]").contiguous().data<float>();
        for (int64_t i = 0; i < p.batch; ++i) {
            if (!(f.top_p[i] >= 0.0f && f.top_p[i] <= 1.0f)) arg.fail("values in [0, 1]");
        }
    }
    if (!mask.is_none()) {
        TensorArg arg("mask", mask);
        arg.of({Element::i32}).shaped({p.batch, p.gamma, (p.vocab + 31) / 32}, "[B, gamma, ceil(V / 32)]");
        f.mask = arg.rows_contiguous().data<int32_t>();
        f.mask_batch = arg.stride(0), f.mask_position = arg.stride(1);
    }
    return f;
}

void sparse(const py::object& base_logits, const py::object& anchors, const py::object& hidden, const HeadArgs& head,
            const py::object& confidence_weight, float confidence_bias, bool with_markov,
            const py::object& temperatures, uint64_t seed, const py::object& streams, const py::object& rounds,
            const py::object& coupled, const py::object& top_k, const py::object& top_p, const py::object& mask,
            const py::object& tokens, const py::object& usable, const py::object& confidences, const py::object& ids,
            const py::object& probs, int64_t vocab, bool gathered, const std::string& isa, int threads) {
    const Isa selected = select_isa(isa);
    if (gathered && vocab == 0) fail("gathered: expected the size of the vocabulary with it, got 0");
    DraftProblem p = read_problem(base_logits, vocab, gathered, anchors, hidden, head, temperatures, seed, streams,
                                  rounds, coupled, tokens, usable);
    read_confidence(p, confidence_weight, confidence_bias, with_markov, confidences);
    const SparseFilter filter = read_filter(p, top_k, top_p, mask);
    TensorArg candidates("ids", ids);
    candidates.of({Element::i32}).shaped({p.batch, p.gamma, -1}, "[B, gamma, C]").contiguous();
    const int64_t support = candidates.size(2);
    if (support < 1 || support > p.vocab) candidates.fail("a support of 1 to V");
    const ChosenCandidates chosen{vocab != 0, gathered};
    if (chosen.given) {
        TensorArg("base_logits", base_logits).of({Element::f32}).shaped({p.batch, p.gamma, support}, "[B, gamma, C]");
        check_candidates(candidates, p, support);
    }
    TensorArg weights("probs", probs);
    weights.of({Element::f32}).shaped({p.batch, p.gamma, support}, "[B, gamma, C]").contiguous();
    const SparseOutput out{support, candidates.data<int32_t>(), weights.data<float>()};
    py::gil_scoped_release release;
    draft_sparse(p, filter, chosen, out, selected, checked_threads(threads));
}

void dense(const py::object& base_logits, const py::object& anchors, const py::object& hidden, const HeadArgs& head,
           const py::object& confidence_weight, float confidence_bias, bool with_markov, const py::object& temperatures,
           uint64_t seed, const py::object& streams, const py::object& rounds, const py::object& coupled,
           const py::object& tokens, const py::object& usable, const py::object& confidences, const py::object& latents,
           const py::object& shifts, const py::object& log_sums, const py::object& token_probs, const std::string& isa,
           int threads) {
    const Isa selected = select_isa(isa);
    DraftProblem p = read_problem(base_logits, 0, false, anchors, hidden, head, temperatures, seed, streams, rounds,
                                  coupled, tokens, usable);
    read_confidence(p, confidence_weight, confidence_bias, with_markov, confidences);
    const auto output = [&](const char* name, const py::object& tensor) {
        return TensorArg(name, tensor)
            .of({Element::f32})
            .shaped({p.batch, p.gamma}, "[B, gamma]")
            .contiguous()
            .data<float>();
    };
    TensorArg vectors("latents", latents);
    vectors.of({Element::f32}).shaped({p.batch, p.gamma, arranged_size(p.rank)}, "[B, gamma, arranged r]").contiguous();
    const DenseOutput out{vectors.data<float>(), output("shifts", shifts), output("log_sums", log_sums),
                          output("token_probs", token_probs)};
    py::gil_scoped_release release;
    draft_dense(p, out, selected, checked_threads(threads));
}

// For tests: the noise of tokens 0 .. 63 from `first`, one lane at a time, or by an instruction set's own path.
void noise(uint64_t seed, int64_t stream, int64_t round, int64_t position, int64_t first, const py::object& out,
           const std::string& isa) {
    float* to = TensorArg("out", out).of({Element::f32}).shaped({kBlock}, "[64]").contiguous().data<float>();
    if (position < 0 || position > kMaxGamma || first < 0 || first >= kMaxVocab || first % kBlock) fail("out of range");
    const NoiseKey key{seed, static_cast<uint64_t>(stream), static_cast<uint32_t>(round)};
    const auto at = static_cast<uint32_t>(position);
    if (isa == "one") {
        for (int i = 0; i < kBlock; ++i) to[i] = draft_gumbel(key, at, static_cast<uint32_t>(first + i));
    } else {
        row_kernels(select_isa(isa)).draft_noise(key, at, static_cast<int32_t>(first), to);
    }
}

}  // namespace

void register_draft(py::module_& m) {
    py::class_<HeadArgs>(m, "Head").def(
        py::init<std::string, std::string, bool, py::object, py::object, py::object, py::object>());
    m.def("arranged_size", &arranged_size);
    m.def("draft_noise", &noise);
    m.def("draft_sparse", &sparse);
    m.def("draft_dense", &dense);
}

}  // namespace dspark
