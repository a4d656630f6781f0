#include "dspark/elementwise.h"

#define DSPARK_ISA scalar
#include "dspark/vec_scalar.h"
//
#include "dspark/elementwise_tile.h"

namespace dspark {

ElementwiseKernel elementwise_kernel_scalar() {
    return scalar::elementwise_kernel();
}

}  // namespace dspark
