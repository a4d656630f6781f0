// Registration only. Tensors arrive as addresses and strides: no torch header, so any torch build can be beside it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu/api.h"
#include "dspark/attention.h"
#include "dspark/elementwise.h"
#include "dspark/isa.h"

namespace py = pybind11;

namespace {

template <typename T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (dspark::Isa isa : dspark::available_isas()) names.emplace_back(dspark::name(isa));
    return names;
}

void register_attention(py::module_& m) {
    m.def("paged_attention",
          [](uintptr_t out, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t req_to_token, uintptr_t req_rows,
             uintptr_t query_start, uintptr_t kv_lens, uintptr_t mask, int64_t requests, int64_t heads,
             int64_t kv_heads, int64_t dim, int64_t v_dim, int64_t slots, int64_t q_row, int64_t q_head, int64_t k_row,
             int64_t k_head, int64_t v_row, int64_t v_head, int64_t table_row, bool q_bf16, bool kv_bf16, bool causal,
             float scale, int64_t window, float logit_cap, const std::string& isa, int threads) {
              const dspark::Isa selected = dspark::select_isa(isa);
              const dspark::PagedAttention p{at<void>(out),
                                             at<void>(q),
                                             at<void>(k),
                                             at<void>(v),
                                             at<int32_t>(req_to_token),
                                             at<int64_t>(req_rows),
                                             at<int64_t>(query_start),
                                             at<int64_t>(kv_lens),
                                             at<uint8_t>(mask),
                                             requests,
                                             heads,
                                             kv_heads,
                                             dim,
                                             v_dim,
                                             slots,
                                             q_row,
                                             q_head,
                                             k_row,
                                             k_head,
                                             v_row,
                                             v_head,
                                             table_row,
                                             q_bf16,
                                             kv_bf16,
                                             causal,
                                             scale,
                                             window,
                                             logit_cap};
              py::gil_scoped_release release;
              dspark::paged_attention(p, selected, threads);
          });
}

void register_elementwise(py::module_& m) {
    m.def("rms_norm", [](uintptr_t out, uintptr_t sum, uintptr_t x, uintptr_t residual, uintptr_t weight, int64_t rows,
                         int64_t width, int64_t x_row, int64_t residual_row, float eps, bool bf16,
                         const std::string& isa, int threads) {
        const dspark::Isa selected = dspark::select_isa(isa);
        py::gil_scoped_release release;
        dspark::rms_norm({at<void>(out), at<void>(sum), at<void>(x), at<void>(residual), at<void>(weight), rows, width,
                          x_row, residual_row, eps, bf16},
                         selected, threads);
    });
    m.def("silu_and_mul", [](uintptr_t out, uintptr_t x, int64_t rows, int64_t width, int64_t x_row, bool bf16,
                             const std::string& isa, int threads) {
        const dspark::Isa selected = dspark::select_isa(isa);
        py::gil_scoped_release release;
        dspark::silu_and_mul({at<void>(out), at<void>(x), rows, width, x_row, bf16}, selected, threads);
    });
    m.def("rotary", [](uintptr_t out, uintptr_t x, uintptr_t positions, uintptr_t cos_sin, int64_t rows, int64_t heads,
                       int64_t head_dim, int64_t rotary_dim, int64_t x_row, int64_t max_position, bool neox, bool bf16,
                       const std::string& isa, int threads) {
        const dspark::Isa selected = dspark::select_isa(isa);
        py::gil_scoped_release release;
        dspark::rotary({at<void>(out), at<void>(x), at<int64_t>(positions), at<float>(cos_sin), rows, heads, head_dim,
                        rotary_dim, x_row, max_position, neox, bf16},
                       selected, threads);
    });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
#if defined(__clang__)
    m.attr("compiler") = "clang " __clang_version__;
#else
    m.attr("compiler") = "gcc " __VERSION__;
#endif
#if defined(_OPENMP)
    m.attr("openmp") = _OPENMP;
#else
    m.attr("openmp") = 0;
#endif
    m.def("available_isas", &isa_names);
    register_attention(m);
    register_elementwise(m);
    dspark::register_draft(m);
    dspark::register_accept(m);
    dspark::register_schedule(m);
    dspark::register_seeded(m);
}
