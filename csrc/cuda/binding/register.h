// Registers every CUDA operation with a module: the real one and the emulated one of the tests.
#pragma once

#include <pybind11/pybind11.h>

namespace dspark::cuda {

void register_ops(pybind11::module_& m);

}  // namespace dspark::cuda
