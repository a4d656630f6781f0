// Python's view of the seeded pick: checks every argument, fills the problem, launches.
#include "dspark/seeded.h"

#include <cfloat>
#include <cmath>

#include "api.h"
#include "tensor_arg.h"

namespace py = pybind11;

namespace dspark {
namespace {

void pick_rows(const py::object& target_logits, const py::object& probabilities, const py::object& temperatures,
               const py::object& seeds, const py::object& places, const py::object& tokens, const std::string& isa,
               int threads) {
    const Isa selected = select_isa(isa);
    SeededProblem p{};
    TensorArg logits("target_logits", target_logits);
    p.logits =
        logits.of({Element::f32, Element::bf16, Element::f16}).shaped({-1, -1}, "[M, V]").rows_contiguous().matrix();
    p.rows = logits.size(0), p.vocab = logits.size(1);
    if (p.vocab < 1 || p.vocab > kMaxVocab) logits.fail("1 to 2^23 tokens");
    if (!probabilities.is_none()) {
        p.probabilities = TensorArg("p", probabilities)
                              .of({Element::f32})
                              .shaped({p.rows, p.vocab}, "[M, V]")
                              .rows_contiguous()
                              .matrix();
    }
    TensorArg t("temperatures", temperatures);
    p.temperatures = t.of({Element::f32}).shaped({p.rows}, "[M]").contiguous().data<float>();
    for (int64_t r = 0; r < p.rows; ++r) {
        const float value = p.temperatures[r];
        if (value != 0.0f && !(value >= FLT_MIN && std::isfinite(value))) t.fail("0 or a positive normal number");
    }
    const auto integers = [&](const char* name, const py::object& tensor) {
        return TensorArg(name, tensor).of({Element::i64}).shaped({p.rows}, "[M]").contiguous().data<int64_t>();
    };
    p.seeds = integers("seeds", seeds), p.places = integers("places", places), p.tokens = integers("tokens", tokens);
    py::gil_scoped_release release;
    seeded_pick(p, selected, checked_threads(threads));
}

}  // namespace

void register_seeded(py::module_& m) {
    m.def("seeded_pick", &pick_rows);
}

}  // namespace dspark
