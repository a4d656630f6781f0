// Dot products of many W2 rows with many latents on the CPU's matrix unit (AMX-BF16), for the dense loop.
#pragma once

#include "dspark/row_kernels.h"

namespace dspark {

// Whether the CPU has the unit and the system lets this process use it (asked for once).
bool amx_usable();

// AVX-512 with the packed products on the matrix unit. Only where amx_usable().
const RowKernels& row_kernels_amx();

}  // namespace dspark
