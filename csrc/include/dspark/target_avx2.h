// Starts a region compiled for AVX2 and FMA, ended by target_end.h; see target_avx512.h.
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define DSPARK_ISA avx2
#include "dspark/vec_avx2.h"
