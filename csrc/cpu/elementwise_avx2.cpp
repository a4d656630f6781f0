#include "dspark/elementwise.h"

#if DSPARK_X86

#include "dspark/target_avx2.h"
//
#include "dspark/elementwise_tile.h"
//
#include "dspark/target_end.h"

namespace dspark {

ElementwiseKernel elementwise_kernel_avx2() {
    return avx2::elementwise_kernel();
}

}  // namespace dspark

#endif
