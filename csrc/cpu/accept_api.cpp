// Python's view of the accept: checks every argument, fills the problem, launches.
#include "dspark/accept.h"

#include <cfloat>
#include <cmath>

#include "api.h"
#include "tensor_arg.h"

namespace py = pybind11;

namespace dspark {
namespace {

constexpr auto kLogits = {Element::f32, Element::bf16, Element::f16};

const int64_t* integers(const char* name, const py::object& tensor, int64_t count) {
    return TensorArg(name, tensor).of({Element::i64}).shaped({count}, "[B]").contiguous().data<int64_t>();
}

void check_rows(const AcceptProblem& p, int64_t rows) {
    for (int64_t b = 0; b < p.batch; ++b) {
        if (p.lengths[b] < 0 || p.lengths[b] > p.gamma) {
            fail("lengths: expected 0.." + std::to_string(p.gamma) + ", got " + std::to_string(p.lengths[b]) +
                 " for request " + std::to_string(b));
        }
        if (p.start[b] < 0 || p.start[b] >= rows || p.start[b] + p.lengths[b] >= rows) {
            fail("start: rows " + std::to_string(p.start[b]) + " to " + std::to_string(p.start[b] + p.lengths[b]) +
                 " of request " + std::to_string(b) + " are not all in target_logits of " + std::to_string(rows) +
                 " rows");
        }
        for (int64_t k = 0; k < p.gamma; ++k) {
            const int64_t token = p.drafted[b * p.gamma + k];
            if (token < 0 || token >= p.vocab) {
                fail("tokens: " + std::to_string(token) + " of request " + std::to_string(b) +
                     " is outside the vocabulary of " + std::to_string(p.vocab));
            }
        }
    }
}

void read_sparse(AcceptProblem& p, const py::object& ids, const py::object& probs) {
    TensorArg candidates("q.ids", ids);
    candidates.of({Element::i32}).shaped({p.batch, p.gamma, -1}, "[B, gamma, C]").contiguous();
    const int64_t support = candidates.size(2);
    p.sparse = {support, candidates.data<int32_t>(),
                TensorArg("q.probs", probs)
                    .of({Element::f32})
                    .shaped({p.batch, p.gamma, support}, "[B, gamma, C]")
                    .contiguous()
                    .data<float>()};
}

void read_dense(AcceptProblem& p, const py::object& base, const py::object& w2, bool first_position,
                const py::object& latents, const py::object& shifts, const py::object& log_sums,
                const py::object& token_probs) {
    TensorArg logits("q.base_logits", base);
    logits.of(kLogits).shaped({p.batch, p.gamma, p.vocab}, "[B, gamma, V]").rows_contiguous();
    p.base = {logits.data<void>(), logits.dtype(), logits.stride(0), logits.stride(1)};
    p.w2 = TensorArg("q.w2", w2)
               .of({Element::f32, Element::bf16})
               .shaped({p.vocab, -1}, "[V, r]")
               .rows_contiguous()
               .matrix();
    p.first_position = first_position;
    TensorArg vectors("q.latents", latents);
    vectors.of({Element::f32}).shaped({p.batch, p.gamma, arranged_size(p.w2.columns)}, "[B, gamma, r]").contiguous();
    const auto input = [&](const char* name, const py::object& tensor) {
        return TensorArg(name, tensor)
            .of({Element::f32})
            .shaped({p.batch, p.gamma}, "[B, gamma]")
            .contiguous()
            .data<float>();
    };
    p.dense = {vectors.data<float>(), input("q.shifts", shifts), input("q.log_sums", log_sums),
               input("q.token_probs", token_probs)};
}

// `q` is None, (ids, probs), or (base_logits, w2, first_position, latents, shifts, log_sums, token_probs).
void read_q(AcceptProblem& p, const py::object& q) {
    if (q.is_none()) return;
    const auto parts = q.cast<py::tuple>();
    if (parts.size() == 2) {
        p.form = QForm::sparse;
        read_sparse(p, parts[0], parts[1]);
    } else if (parts.size() == 7) {
        if (!py::isinstance<py::bool_>(parts[2])) fail("q.first_position: expected a bool");
        p.form = QForm::dense;
        read_dense(p, parts[0], parts[1], parts[2].cast<bool>(), parts[3], parts[4], parts[5], parts[6]);
    } else {
        fail("q: expected 2 or 7 parts, got " + std::to_string(parts.size()));
    }
}

void accept_rows(const py::object& target_logits, const py::object& probabilities, const py::object& start,
                 const py::object& lengths, const py::object& drafted, const py::object& usable,
                 const py::object& temperatures, uint64_t seed, const py::object& streams, const py::object& rounds,
                 const py::object& coupled, const py::object& q, const py::object& tokens, const py::object& counts,
                 const py::object& last, const std::string& isa, int threads) {
    const Isa selected = select_isa(isa);
    AcceptProblem p{};
    TensorArg logits("target_logits", target_logits);
    p.logits = logits.of(kLogits).shaped({-1, -1}, "[M, V]").rows_contiguous().matrix();
    p.vocab = logits.size(1);
    if (p.vocab < 1 || p.vocab > kMaxVocab) logits.fail("1 to 2^23 tokens");
    if (!probabilities.is_none()) {
        p.probabilities = TensorArg("p", probabilities)
                              .of({Element::f32})
                              .shaped({logits.size(0), p.vocab}, "[M, V]")
                              .rows_contiguous()
                              .matrix();
    }
    TensorArg block("tokens", drafted);
    p.drafted = block.of({Element::i64}).shaped({-1, -1}, "[B, gamma]").contiguous().data<int64_t>();
    p.batch = block.size(0), p.gamma = block.size(1);
    if (p.gamma < 1 || p.gamma > kMaxGamma) block.fail("1 to 255 positions");
    p.start = integers("start", start, p.batch);
    p.lengths = integers("lengths", lengths, p.batch);
    p.usable = integers("usable", usable, p.batch);
    p.streams = integers("streams", streams, p.batch);
    p.rounds = integers("rounds", rounds, p.batch);
    p.seed = seed;
    if (!coupled.is_none()) {
        p.coupled =
            TensorArg("coupled", coupled).of({Element::boolean}).shaped({p.batch}, "[B]").contiguous().data<uint8_t>();
    }
    if (!temperatures.is_none()) {
        TensorArg t("temperatures", temperatures);
        p.temperatures = t.of({Element::f32}).shaped({p.batch}, "[B]").contiguous().data<float>();
        for (int64_t b = 0; b < p.batch; ++b) {
            const float value = p.temperatures[b];
            if (value != 0.0f && !(value >= FLT_MIN && std::isfinite(value))) t.fail("0 or a positive normal number");
        }
    }
    check_rows(p, logits.size(0));
    read_q(p, q);
    p.tokens = TensorArg("out tokens", tokens)
                   .of({Element::i64})
                   .shaped({p.batch, p.gamma + 1}, "[B, gamma + 1]")
                   .contiguous()
                   .data<int64_t>();
    p.counts = TensorArg("counts", counts).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    p.last = TensorArg("last", last).of({Element::i64}).shaped({p.batch}, "[B]").contiguous().data<int64_t>();
    py::gil_scoped_release release;
    accept(p, selected, checked_threads(threads));
}

}  // namespace

void register_accept(py::module_& m) {
    m.def("accept", &accept_rows);
}

}  // namespace dspark
