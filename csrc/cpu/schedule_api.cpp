// Python's view of the prefix scheduler. Its arguments are small host arrays, taken through the buffer protocol.
#include <pybind11/numpy.h>

#include <cmath>
#include <string>

#include "api.h"
#include "dspark/random.h"
#include "dspark/schedule.h"
#include "dspark/schedule_keys.h"
#include "tensor_arg.h"

namespace py = pybind11;

namespace dspark {
namespace {

std::string shape_of(const py::array& a) {
    std::string text = std::string(py::str(a.dtype())) + " [";
    for (py::ssize_t i = 0; i < a.ndim(); ++i) text += (i ? ", " : "") + std::to_string(a.shape(i));
    return text + "]";
}

template <typename T>
const T* vector_of(const char* name, const py::array& a, int64_t least, const char* expected) {
    const bool fits = py::isinstance<py::array_t<T>>(a) && a.ndim() == 1 && a.shape(0) >= least &&
                      (a.shape(0) < 2 || a.strides(0) == sizeof(T));
    if (!fits) fail(std::string(name) + ": expected " + expected + ", got " + shape_of(a));
    return static_cast<const T*>(a.data());
}

ScheduleProblem read_problem(const py::array& confidence, const py::array& limits, py::array* lengths) {
    const bool fits =
        py::isinstance<py::array_t<float>>(confidence) && confidence.ndim() == 2 &&
        confidence.shape(0) < kMaxRequests && confidence.shape(1) <= kMaxGamma &&
        (confidence.size() == 0 || ((confidence.shape(1) < 2 || confidence.strides(1) == sizeof(float)) &&
                                    confidence.strides(0) % static_cast<py::ssize_t>(sizeof(float)) == 0));
    if (!fits) fail("confidence: expected contiguous rows float32 [R, gamma <= 255], got " + shape_of(confidence));
    ScheduleProblem p{};
    p.requests = confidence.shape(0), p.gamma = confidence.shape(1);
    p.confidence = static_cast<const float*>(confidence.data());
    p.confidence_row = confidence.strides(0) / static_cast<py::ssize_t>(sizeof(float));
    p.limits = vector_of<int64_t>("limits", limits, p.requests, "int64 [R]");
    if (limits.shape(0) != p.requests) fail("limits: expected int64 [R], got " + shape_of(limits));
    if (lengths) {
        *lengths = py::array_t<int64_t>(p.requests);
        p.lengths = static_cast<int64_t*>(lengths->mutable_data());
    }
    return p;
}

const double* read_seconds(const ScheduleProblem& p, const py::array& seconds) {
    const int64_t most = p.requests * (1 + p.gamma);
    const double* values = vector_of<double>("seconds", seconds, most + 1, "float64 [at least R (1 + gamma) + 1]");
    double least = HUGE_VAL, largest = 0.0;
    bool nan = false;
    for (int64_t i = p.requests; i <= most && p.requests > 0; ++i) {
        least = values[i] < least ? values[i] : least;
        largest = values[i] > largest ? values[i] : largest;
        nan |= values[i] != values[i];
    }
    if (p.requests > 0 && (nan || !(least > 0.0) || !std::isfinite(largest))) {
        fail("seconds: expected positive finite times from R to R (1 + gamma) tokens");
    }
    return values;
}

void check_repeat(int repeat) {
    if (repeat < 1) fail("repeat: expected at least 1, got " + std::to_string(repeat));
}

}  // namespace

// `repeat` runs the computation several times in one call, so that a benchmark can leave the binding out.
void register_schedule(py::module_& m) {
    m.def(
        "causal_scan",
        [](const py::array& confidence, const py::array& seconds, const py::array& limits, int repeat) {
            py::array lengths;
            check_repeat(repeat);
            const ScheduleProblem p = read_problem(confidence, limits, &lengths);
            const double* times = read_seconds(p, seconds);
            for (int i = 0; i < repeat; ++i) causal_scan(p, times);
            return lengths;
        },
        py::arg("confidence"), py::arg("seconds"), py::arg("limits"), py::arg("repeat") = 1);
    m.def(
        "best_budget",
        [](const py::array& confidence, const py::array& seconds, const py::array& limits, int repeat) {
            check_repeat(repeat);
            const ScheduleProblem p = read_problem(confidence, limits, nullptr);
            const double* times = read_seconds(p, seconds);
            int64_t budget = 0;
            for (int i = 0; i < repeat; ++i) budget = best_budget(p, times);
            return budget;
        },
        py::arg("confidence"), py::arg("seconds"), py::arg("limits"), py::arg("repeat") = 1);
    m.def(
        "top_candidates",
        [](const py::array& confidence, int64_t budget, const py::array& limits, int repeat) {
            py::array lengths;
            check_repeat(repeat);
            const ScheduleProblem p = read_problem(confidence, limits, &lengths);
            if (budget < 0) fail("budget: expected at least 0, got " + std::to_string(budget));
            for (int i = 0; i < repeat; ++i) top_candidates(p, budget);
            return lengths;
        },
        py::arg("confidence"), py::arg("budget"), py::arg("limits"), py::arg("repeat") = 1);
}

}  // namespace dspark
