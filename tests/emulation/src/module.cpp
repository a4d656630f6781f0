// Python's view of the emulated kernels: the very classes of `sglang_dspark._CUDA`, and the order to run threads in.
#include <pybind11/pybind11.h>

#include "binding/register.h"
#include "emulation/scheduler.h"
#include "faulty.h"

namespace py = pybind11;

namespace {

template <typename T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace

PYBIND11_MODULE(_cuda_emulated, m) {
    py::register_exception<emulation::Fault>(m, "Fault", PyExc_RuntimeError);
    m.def("set_order", &emulation::set_order, py::arg("seed"),
          "0: index order; else a random order, fixed by the seed.");
#if defined(__SANITIZE_ADDRESS__)
    m.attr("checked") = true;
#else
    m.attr("checked") = false;
#endif
    dspark::cuda::register_ops(m);

    auto faulty = m.def_submodule("faulty");
    faulty.def("reverse", [](uintptr_t v, int n, bool barrier) { emulation::reverse(at<float>(v), n, barrier); });
    faulty.def("count", [](uintptr_t v, int n, bool atomic) { emulation::count(at<int>(v), n, atomic); });
    faulty.def("write_past_end", [](uintptr_t v, int n) { emulation::write_past_end(at<float>(v), n); });
    faulty.def("read_before_start",
               [](uintptr_t v, uintptr_t out) { emulation::read_before_start(at<float>(v), at<float>(out)); });
    faulty.def("write_past_shared", [](uintptr_t out) { emulation::write_past_shared(at<float>(out)); });
    faulty.def("write_past_carved", [](uintptr_t out) { emulation::write_past_carved(at<float>(out)); });
    faulty.def("diverge", [](uintptr_t out) { emulation::diverge(at<float>(out)); });
    faulty.def("leave_warp", [](uintptr_t out) { emulation::leave_warp(at<int>(out)); });
    faulty.def("too_much_shared", [](uintptr_t out) { emulation::too_much_shared(at<float>(out)); });
}
