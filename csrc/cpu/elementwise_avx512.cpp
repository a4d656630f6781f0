#include "dspark/elementwise.h"

#if DSPARK_X86

#include "dspark/target_avx512.h"
//
#include "dspark/elementwise_tile.h"
//
#include "dspark/target_end.h"

namespace dspark {

ElementwiseKernel elementwise_kernel_avx512() {
    return avx512::elementwise_kernel();
}

}  // namespace dspark

#endif
