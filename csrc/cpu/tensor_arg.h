// Tensors as the binding takes them: any object with torch's `data_ptr`, `shape`, `stride` and `dtype`, read once and
// checked before anything runs. No torch header, so any torch build can be beside the extension.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "dspark/row_kernels.h"

namespace dspark {

enum class Element { f32, bf16, f16, f64, i32, i64, boolean, other };

class TensorArg {
public:
    // Throws py::value_error for what is not a CPU tensor.
    TensorArg(std::string name, const pybind11::handle& tensor);

    // Each throws py::value_error "name: expected ..., got ..." unless it holds. A size of -1 is any.
    TensorArg& of(std::initializer_list<Element> elements);
    TensorArg& shaped(std::initializer_list<int64_t> sizes, const char* meaning);
    TensorArg& rows_contiguous();
    TensorArg& contiguous();

    int64_t size(size_t axis) const { return shape_[axis]; }
    int64_t stride(size_t axis) const { return stride_[axis]; }
    size_t dims() const { return shape_.size(); }
    Dtype dtype() const;
    template <typename T>
    T* data() const {
        return static_cast<T*>(data_);
    }
    Matrix matrix() const { return {data_, dtype(), stride_[0], shape_[1]}; }
    [[noreturn]] void fail(const std::string& expected) const;

private:
    std::string name_;
    void* data_ = nullptr;
    Element element_ = Element::other;
    std::string element_name_;
    std::vector<int64_t> shape_, stride_;
};

[[noreturn]] void fail(const std::string& message);

// The number of threads to use: at least 1, never more than makes sense.
int checked_threads(int threads);

}  // namespace dspark
