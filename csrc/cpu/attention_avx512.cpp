#include "dspark/attention.h"

#if DSPARK_X86

#include "dspark/target_avx512.h"
//
#include "dspark/attention_tile.h"
//
#include "dspark/target_end.h"

namespace dspark {

AttentionKernel attention_kernel_avx512() {
    return avx512::attention_kernel();
}

}  // namespace dspark

#endif
