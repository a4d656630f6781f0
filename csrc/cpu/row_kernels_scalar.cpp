#include <type_traits>

#include "dspark/amx.h"
#include "dspark/row_kernels.h"
#include "dspark/sample.h"

#define DSPARK_ISA scalar
#include "dspark/vec_scalar.h"
//
#include "dspark/lanes_scalar.h"
//
#include "dspark/row_tile.h"
//
#include "dspark/draft_tile.h"

namespace dspark {

const RowKernels& row_kernels_scalar() {
    return scalar::kernels();
}

const RowKernels& row_kernels(Isa isa) {
#if DSPARK_X86
#if defined(__linux__)
    if (isa == Isa::avx512 && amx_usable()) return row_kernels_amx();
#endif
    if (isa == Isa::avx512) return row_kernels_avx512();
    if (isa == Isa::avx2) return row_kernels_avx2();
#endif
    (void)isa;
    return row_kernels_scalar();
}

}  // namespace dspark
