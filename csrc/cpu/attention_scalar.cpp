#include "dspark/attention.h"

#define DSPARK_ISA scalar
#include "dspark/vec_scalar.h"
//
#include "dspark/attention_tile.h"

namespace dspark {

AttentionKernel attention_kernel_scalar() {
    return scalar::attention_kernel();
}

}  // namespace dspark
