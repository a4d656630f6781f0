// Starts a region compiled for AVX-512, ended by target_end.h. Only what is in between may use it: the rest of the
// program runs on any CPU, so standard headers come before this one.
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#define DSPARK_ISA avx512
#include "dspark/vec_avx512.h"
