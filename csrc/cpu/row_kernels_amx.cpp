// The matrix unit multiplies bf16 and accumulates fp32. Rows of W2 are one operand as they lie in memory; the latents
// are the other, packed once per step. An fp32 latent is the exact sum of three bf16 numbers, so products lose nothing;
// where all latents are bf16 already (embeddings of a bf16 table) two of the three are zero and are left out.
#include "dspark/amx.h"

#if DSPARK_X86 && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "dspark/target_avx512.h"
#include "dspark/target_end.h"
//
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,amx-tile,amx-bf16")
#endif

namespace dspark {
namespace {

constexpr int kGroup = 16;        // latents of one tile
constexpr int kStep = 32;         // columns of one tile
constexpr int kTileFloats = 256;  // 1 KiB
constexpr int kParts = 3;         // bf16 numbers of one fp32
constexpr int64_t kHeader = 16;   // floats; the first holds the parts in use

bool fits(const Matrix& w) {
    return w.dtype == Dtype::bf16 && w.columns % kStep == 0;
}

int64_t group_size(int64_t columns) {
    return kHeader + kParts * (columns / kStep) * kTileFloats;
}

uint16_t to_bf16(float x) {
    const uint32_t bits = float_bits(x);
    if (is_nan(x)) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float from_bf16(uint16_t x) {
    return bits_float(static_cast<uint32_t>(x) << 16);
}

int64_t pack_size(const Matrix& w, int64_t rows) {
    if (!fits(w)) return row_kernels_avx512().pack_size(w, rows);
    return (rows + kGroup - 1) / kGroup * group_size(w.columns);
}

// Tile (part, step) of a group: [16 pairs of columns][16 latents][2] bf16. `x` is arranged: the even columns of a step,
// then the odd ones.
void pack(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, float* out) {
    if (!fits(w)) return row_kernels_avx512().pack(w, x, x_stride, rows, out);
    const int64_t steps = w.columns / kStep, size = group_size(w.columns);
    std::memset(out, 0, pack_size(w, rows) * sizeof(float));
    for (int64_t row = 0; row < rows; ++row) {
        float* group = out + row / kGroup * size;
        auto* tiles = reinterpret_cast<uint16_t*>(group + kHeader);
        for (int64_t i = 0; i < w.columns; ++i) {
            const int64_t within = i % kStep, pair = within % (kStep / 2), odd = within / (kStep / 2);
            float left = x[row * x_stride + i];
            for (int part = 0; part < kParts; ++part) {
                const uint16_t piece = to_bf16(left);
                tiles[((part * steps + i / kStep) * 16 + pair) * 32 + (row % kGroup) * 2 + odd] = piece;
                if (left != 0.0f) group[0] = std::max(group[0], static_cast<float>(part + 1));
                left = is_finite(left) && is_finite(from_bf16(piece)) ? left - from_bf16(piece) : 0.0f;
            }
        }
    }
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// out[j * out_stride + i] = in[i][j] of a 16 x 16 tile, for the first `rows` j.
void store_transposed(const float (*in)[16], int rows, float* out, int64_t out_stride) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_load_ps(in[i]);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xEE);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    // a[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3.
    for (int c = 0; c < 4; ++c) {
        const __m512 even0 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88),
                     odd0 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xDD);
        const __m512 even1 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
        const __m512 odd1 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xDD);
        b[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
        b[c + 8] = _mm512_shuffle_f32x4(even0, even1, 0xDD);
        b[c + 4] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
        b[c + 12] = _mm512_shuffle_f32x4(odd0, odd1, 0xDD);
    }
    for (int j = 0; j < rows; ++j) _mm512_storeu_ps(out + j * out_stride, b[j]);
}

// 64 tokens from `weights` on, all of which exist. Tiles 0..3 accumulate, 4 holds weights, 5..7 the latents' parts.
template <int Parts>
void multiply(const uint16_t* weights, int64_t stride, int64_t steps, const uint16_t* tiles, float (*out)[16][16]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step) {
        const uint16_t* w = weights + step * kStep;
        _tile_loadd(5, tiles + step * 512, 64);
        if (Parts > 1) _tile_loadd(6, tiles + (steps + step) * 512, 64);
        if (Parts > 2) _tile_loadd(7, tiles + (2 * steps + step) * 512, 64);
#define DSPARK_MULTIPLY(tile)                             \
    _tile_loadd(4, w + 16 * (tile) * stride, 2 * stride); \
    _tile_dpbf16ps(tile, 4, 5);                           \
    if (Parts > 1) _tile_dpbf16ps(tile, 4, 6);            \
    if (Parts > 2) _tile_dpbf16ps(tile, 4, 7);
        DSPARK_MULTIPLY(0)
        DSPARK_MULTIPLY(1)
        DSPARK_MULTIPLY(2)
        DSPARK_MULTIPLY(3)
#undef DSPARK_MULTIPLY
    }
    _tile_stored(0, out[0], 64);
    _tile_stored(1, out[1], 64);
    _tile_stored(2, out[2], 64);
    _tile_stored(3, out[3], 64);
}

void packed_dots(const Matrix& w, const float* packed, int64_t row, int rows, int64_t first, int64_t count, float* out,
                 int64_t out_stride) {
    if (!fits(w)) return row_kernels_avx512().packed_dots(w, packed, row, rows, first, count, out, out_stride);
    const TileConfig config;
    _tile_loadconfig(&config);
    const float* group = packed + row / kGroup * group_size(w.columns);
    const auto* tiles = reinterpret_cast<const uint16_t*>(group + kHeader);
    const auto* data = static_cast<const uint16_t*>(w.data);
    const int64_t steps = w.columns / kStep;
    std::vector<uint16_t> padded;
    for (int64_t i = 0; i < count; i += kBlock) {
        const uint16_t* weights = data + (first + i) * w.stride;
        int64_t stride = w.stride;
        const int64_t left = std::min<int64_t>(kBlock, count - i);
        if (left < kBlock) {
            padded.assign(kBlock * w.columns, 0);
            for (int64_t j = 0; j < left; ++j) {
                std::memcpy(&padded[j * w.columns], weights + j * w.stride, w.columns * sizeof(uint16_t));
            }
            weights = padded.data(), stride = w.columns;
        }
        alignas(64) float tile[4][16][16];
        // One product is skipped only where all of its factors are 0, which leaves the same bits.
        if (group[0] <= 1.0f)
            multiply<1>(weights, stride, steps, tiles, tile);
        else if (group[0] <= 2.0f)
            multiply<2>(weights, stride, steps, tiles, tile);
        else
            multiply<3>(weights, stride, steps, tiles, tile);
        for (int t = 0; t * 16 < left; ++t) {
            float* to = out + i + 16 * t;
            if (left - 16 * t >= 16) {
                store_transposed(tile[t], rows, to, out_stride);
                continue;
            }
            for (int j = 0; j < rows; ++j) {
                for (int64_t k = 0; k < left - 16 * t; ++k) to[j * out_stride + k] = tile[t][k][j];
            }
        }
    }
    _tile_release();
}

bool ask() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kBf16) || !(d & kTile)) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_usable() {
    static const bool usable = ask();
    return usable;
}

const RowKernels& row_kernels_amx() {
    static const RowKernels table = [] {
        RowKernels kernels = row_kernels_avx512();
        kernels.packed_rows = kGroup;
        kernels.pack_size = pack_size;
        kernels.pack = pack;
        kernels.packed_dots = packed_dots;
        return kernels;
    }();
    return table;
}

}  // namespace dspark

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
