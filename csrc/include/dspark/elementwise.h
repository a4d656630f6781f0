// The small operations between the matrix products of a decoder layer, each in one pass over its rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dspark/isa.h"
#include "dspark/types.h"

namespace dspark {

// out = y * weight / rms(y), y = x, or x + residual, which then goes to `sum` as well.
struct RmsNorm {
    void* out;             // [rows, width]
    void* sum;             // [rows, width], only with a residual
    const void* x;         // [rows, width], row stride x_row
    const void* residual;  // null, or [rows, width], row stride residual_row
    const void* weight;    // [width]
    int64_t rows, width, x_row, residual_row;
    float eps;
    bool bf16;
};

// out[i] = silu(x[i]) * x[width + i].
struct SiluAndMul {
    void* out;      // [rows, width]
    const void* x;  // [rows, 2 * width], row stride x_row
    int64_t rows, width, x_row;
    bool bf16;
};

// Rotates the first rotary_dim of every head by its row's position; the rest is copied.
struct Rotary {
    void* out;                 // [rows, heads, head_dim]
    const void* x;             // [rows, heads, head_dim], row stride x_row
    const int64_t* positions;  // [rows]
    const float* cos_sin;      // [max_position, rotary_dim]: cosines, then sines
    int64_t rows, heads, head_dim, rotary_dim, x_row, max_position;
    bool neox;  // pairs (i, i + rotary_dim / 2), otherwise (2 i, 2 i + 1)
    bool bf16;
};

// Each runs the rows [begin, end).
struct ElementwiseKernel {
    void (*rms_norm)(const RmsNorm& p, int64_t begin, int64_t end);
    void (*silu_and_mul)(const SiluAndMul& p, int64_t begin, int64_t end);
    void (*rotary)(const Rotary& p, int64_t begin, int64_t end);
};

ElementwiseKernel elementwise_kernel_scalar();
#if DSPARK_X86
ElementwiseKernel elementwise_kernel_avx2();
ElementwiseKernel elementwise_kernel_avx512();
#endif

void rms_norm(const RmsNorm& p, Isa isa, int threads);
void silu_and_mul(const SiluAndMul& p, Isa isa, int threads);
// Throws std::out_of_range for a position outside [0, max_position).
void rotary(const Rotary& p, Isa isa, int threads);

}  // namespace dspark
