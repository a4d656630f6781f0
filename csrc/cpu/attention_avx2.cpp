#include "dspark/attention.h"

#if DSPARK_X86

#include "dspark/target_avx2.h"
//
#include "dspark/attention_tile.h"
//
#include "dspark/target_end.h"

namespace dspark {

AttentionKernel attention_kernel_avx2() {
    return avx2::attention_kernel();
}

}  // namespace dspark

#endif
