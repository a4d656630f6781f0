#include "dspark/row_kernels.h"
#include "dspark/sample.h"

#if DSPARK_X86

#include <type_traits>

#include "dspark/target_avx2.h"
//
#include "dspark/lanes_avx2.h"
//
#include "dspark/row_tile.h"
//
#include "dspark/draft_tile.h"
//
#include "dspark/target_end.h"

namespace dspark {

const RowKernels& row_kernels_avx2() {
    return avx2::kernels();
}

}  // namespace dspark

#endif
