// Ends a region started by target_avx512.h or target_avx2.h.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
