#include "tensor_arg.h"

#include <algorithm>

namespace py = pybind11;

namespace dspark {
namespace {

// "torch.float32" and so on; comparing names needs no torch import.
Element element_of(const std::string& name) {
    if (name == "torch.float32") return Element::f32;
    if (name == "torch.bfloat16") return Element::bf16;
    if (name == "torch.float16") return Element::f16;
    if (name == "torch.float64") return Element::f64;
    if (name == "torch.int32") return Element::i32;
    if (name == "torch.int64") return Element::i64;
    if (name == "torch.bool") return Element::boolean;
    return Element::other;
}

const char* name_of(Element element) {
    switch (element) {
        case Element::f32:
            return "float32";
        case Element::bf16:
            return "bfloat16";
        case Element::f16:
            return "float16";
        case Element::f64:
            return "float64";
        case Element::i32:
            return "int32";
        case Element::i64:
            return "int64";
        default:
            return "another type";
    }
}

std::string list(const std::vector<int64_t>& values) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}

}  // namespace

void fail(const std::string& message) {
    throw py::value_error(message);
}

TensorArg::TensorArg(std::string name, const py::handle& tensor) : name_(std::move(name)) {
    if (!py::hasattr(tensor, "data_ptr") || !py::hasattr(tensor, "is_cpu") || !py::hasattr(tensor, "stride")) {
        dspark::fail(name_ + ": expected a tensor, got " + std::string(py::str(py::type::of(tensor))));
    }
    element_name_ = py::str(tensor.attr("dtype"));
    element_ = element_of(element_name_);
    for (const auto& size : tensor.attr("shape")) shape_.push_back(size.cast<int64_t>());
    for (const auto& stride : tensor.attr("stride")()) stride_.push_back(stride.cast<int64_t>());
    if (!tensor.attr("is_cpu").cast<bool>()) fail("a tensor on the CPU");
    data_ = reinterpret_cast<void*>(tensor.attr("data_ptr")().cast<uintptr_t>());
}

void TensorArg::fail(const std::string& expected) const {
    dspark::fail(name_ + ": expected " + expected + ", got " + element_name_ + " " + list(shape_) + " with strides " +
                 list(stride_));
}

TensorArg& TensorArg::of(std::initializer_list<Element> elements) {
    if (std::find(elements.begin(), elements.end(), element_) == elements.end()) {
        std::string expected;
        for (Element e : elements) expected += (expected.empty() ? "" : " or ") + std::string(name_of(e));
        fail(expected);
    }
    return *this;
}

TensorArg& TensorArg::shaped(std::initializer_list<int64_t> sizes, const char* meaning) {
    bool same = sizes.size() == shape_.size();
    std::vector<int64_t> wanted(sizes);
    for (size_t i = 0; same && i < wanted.size(); ++i) same = wanted[i] < 0 || wanted[i] == shape_[i];
    if (!same) {
        std::string known = "[";
        for (size_t i = 0; i < wanted.size(); ++i) {
            known += (i ? ", " : "") + (wanted[i] < 0 ? std::string("any") : std::to_string(wanted[i]));
        }
        fail("shape " + std::string(meaning) + " = " + known + "]");
    }
    return *this;
}

TensorArg& TensorArg::rows_contiguous() {
    if (!shape_.empty() && shape_.back() > 1 && stride_.back() != 1) fail("a contiguous last dimension");
    return *this;
}

TensorArg& TensorArg::contiguous() {
    int64_t expected = 1;
    for (size_t i = shape_.size(); i-- > 0;) {
        if (shape_[i] > 1 && stride_[i] != expected) fail("a contiguous tensor");
        expected *= std::max<int64_t>(shape_[i], 1);
    }
    return *this;
}

Dtype TensorArg::dtype() const {
    return element_ == Element::bf16 ? Dtype::bf16 : element_ == Element::f16 ? Dtype::f16 : Dtype::f32;
}

int checked_threads(int threads) {
    return std::clamp(threads, 1, 256);
}

}  // namespace dspark
