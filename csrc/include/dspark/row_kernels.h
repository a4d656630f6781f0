// The inner loops of draft and accept, one set per instruction set; what calls them is in csrc/cpu/.
#pragma once

#include <cstdint>

#include "dspark/head.h"
#include "dspark/isa.h"
#include "dspark/random.h"
#include "dspark/types.h"

namespace dspark {

// Tokens handled together; the grouping of the noise (random.h).
constexpr int kBlock = 64;

// A row of logits in its own type.
struct Row {
    const void* data;
    Dtype dtype;
};

inline Row operator+(Row row, int64_t elements) {
    const int64_t size = row.dtype == Dtype::f32 ? 4 : 2;
    return {static_cast<const char*>(row.data) + elements * size, row.dtype};
}

// [rows, columns], fp32 or bf16; the stride counts elements.
struct Matrix {
    const void* data;
    Dtype dtype;
    int64_t stride, columns;
};

// Room of one arranged vector (see RowKernels::arrange), in floats.
inline int64_t arranged_size(int64_t columns) {
    return (columns + 31) / 32 * 32;
}

struct RowScan {
    float largest;
    bool any_nan;
};

// Distribution and draw of one row while its blocks go by. Scaled logits are z = (l - shift) / T, or l at T = 0.
struct DenseState {
    double total = 0.0;  // sum of exp(z - largest)
    float largest = -__builtin_inff();
    float best_key = -__builtin_inff();
    int32_t best = 0;
    bool spoiled = false;  // NaN or +inf was seen
};

struct DenseRow {
    NoiseKey key;
    uint32_t position;
    float shift, inverse_temperature;  // the latter 0 for argmax
};

struct SoftmaxRow {
    float largest, inverse_temperature;
    float inverse_total;  // 1 / sum of exp((l - largest) / T); 0 when no distribution exists
};

struct RowKernels {
    // Largest entry of every block of 64 (-inf in an empty one) and of the row. NaN is reported, not compared.
    RowScan (*block_maxima)(Row row, int64_t count, float* maxima);
    // packed_choice() of the entries above `threshold` and of the first `ties` equal to it, tokens ascending. Only
    // blocks whose maximum reaches it are read. Returns how many.
    int64_t (*collect)(Row row, int64_t count, const float* maxima, float threshold, int64_t ties, uint64_t* out);

    void (*widen)(Row row, int64_t count, float* out);
    // Reorders a vector for `dots` with weights of the given type and pads it with zeros to arranged_size().
    void (*arrange)(const float* x, int64_t count, Dtype weights, float* out);
    // out[m * out_stride + i] = w[ids ? ids[i] : first + i] . x_m in fp32; x_m = x + m * x_stride, arranged. The value
    // of a pair does not depend on what else is computed with it.
    void (*dots)(const Matrix& w, const int32_t* ids, int64_t first, int64_t count, const float* x, int64_t x_stride,
                 int rows, float* out, int64_t out_stride);

    // The same products for the dense loop, with vectors that are packed once for many calls. A call takes up to
    // `packed_rows` of them from a multiple of it on, and rows of w from `first` on.
    int packed_rows;
    int64_t (*pack_size)(const Matrix& w, int64_t rows);  // in floats
    void (*pack)(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, float* out);
    void (*packed_dots)(const Matrix& w, const float* packed, int64_t row, int rows, int64_t first, int64_t count,
                        float* out, int64_t out_stride);

    // Noise of the 64 tokens from `first`, a multiple of 64, on.
    void (*draft_noise)(const NoiseKey& key, uint32_t position, int32_t first, float* out);
    // Adds `bias` (null: 0) to one block of base logits and takes it into the state.
    void (*dense_block)(DenseState* state, const DenseRow& row, Row base, const float* bias, int32_t first, int count);
    // q of tokens of a row whose log of the sum of exp(z) is known.
    void (*dense_probs)(const DenseRow& row, Row base, const float* bias, int64_t count, float log_sum, float* out);
    // probs = exp((l - largest) / T), not normalised; returns their sum in id order of arrival.
    double (*sparse_weights)(const float* logits, int count, float largest, float inverse_temperature, float* probs);
    // Index of the largest draft key among entries with keep != 0 (null: all).
    int (*sparse_draw)(const float* logits, const int32_t* ids, const uint8_t* keep, int count, float largest,
                       float inverse_temperature, const NoiseKey& key, uint32_t position);

    // Largest entry, lowest token on ties, NaN left out; -inf and 0 when nothing is there.
    float (*argmax)(Row row, int64_t count, int64_t* index);
    SoftmaxRow (*softmax_row)(Row row, int64_t count, float inverse_temperature);
    void (*softmax_probs)(const SoftmaxRow& softmax, Row row, int64_t count, float* out);
    // p = (p - q)^+ in place (null: q = 0); returns the sum.
    double (*residual)(float* p, const float* q, int64_t count);
    // Token that maximises log p plus the noise of a seeded request; `prefix` is seeded_prefix().
    int64_t (*seeded_pick)(const float* p, int64_t count, uint32_t prefix);
};

const RowKernels& row_kernels_scalar();
#if DSPARK_X86
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();
#endif
// The largest packed_rows.
constexpr int kMaxPackedRows = 16;

const RowKernels& row_kernels(Isa isa);

}  // namespace dspark
