// The extension `sglang_dspark._CUDA`. No torch header: tensors arrive as addresses and strides, streams as handles.
#include "register.h"

PYBIND11_MODULE(_CUDA, m) {
    dspark::cuda::register_ops(m);
}
