// Dot products of weight rows with one vector, a warp a group of rows.
#pragma once

#include "dspark/cuda/dtype.cuh"
#include "dspark/cuda/reduce.cuh"

namespace dspark {

// A few weight rows in registers, one 16-byte piece a lane and chunk: loaded long before the vector is known, so that
// the latency of a gather is spent while something else is computed.
template <typename T, int Chunks>
struct RowGroup {
    static constexpr int kRows = 8 / Chunks;  // 32 registers whatever the row's size
    static constexpr int kChunk = kWarp * kPack<T>;

    // Row i of the group starts at row_of(i); rank is a multiple of the pack and at most Chunks * kChunk.
    template <typename F>
    __device__ __forceinline__ void load(F row_of, int rank, int lane) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const T* row = row_of(i);
#pragma unroll
            for (int c = 0; c < Chunks; ++c) {
                const int column = c * kChunk + lane * kPack<T>;
                raw[i][c] = column < rank ? __ldg(reinterpret_cast<const uint4*>(row + column)) : uint4{0, 0, 0, 0};
            }
        }
    }

    // The lane's part of a vector in shared memory that is zero from `rank` to a multiple of 4.
    struct Vector {
        float x[Chunks][kPack<T>];

        __device__ __forceinline__ void load(const float* vector, int rank, int lane) {
#pragma unroll
            for (int c = 0; c < Chunks; ++c) {
#pragma unroll
                for (int j = 0; j < kPack<T>; j += 4) {
                    const int column = c * kChunk + lane * kPack<T> + j;
                    const float4 part = column < rank ? *reinterpret_cast<const float4*>(vector + column)
                                                      : float4{0.0f, 0.0f, 0.0f, 0.0f};
                    x[c][j] = part.x;
                    x[c][j + 1] = part.y;
                    x[c][j + 2] = part.z;
                    x[c][j + 3] = part.w;
                }
            }
        }
    };

    // Lane l returns the dot product of row l / (32 / kRows).
    __device__ __forceinline__ float dots(const Vector& vector, int lane) const {
        float sum[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            sum[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < Chunks; ++c) {
                float w[kPack<T>];
                unpack_as<T>(raw[i][c], w);
#pragma unroll
                for (int j = 0; j < kPack<T>; ++j) sum[i] = fmaf(w[j], vector.x[c][j], sum[i]);
            }
        }
        return warp_sum_many(sum, lane);
    }

    uint4 raw[kRows][Chunks];
};

// Dot product of one row of any length and alignment; the same in every lane.
template <typename T>
__device__ __forceinline__ float row_dot(const T* row, const float* vector, int columns, int lane) {
    float sum = 0.0f;
    for (int i = lane; i < columns; i += kWarp) sum = fmaf(to_float(row[i]), vector[i], sum);
    return warp_sum(sum);
}

// Eight consecutive elements; `aligned`: they can be read 16 bytes at a time. Zeros past `count`.
__device__ __forceinline__ void load8(const void* base, int64_t at, int64_t count, Dtype dtype, bool aligned,
                                      float (&out)[8]) {
    if (!aligned || at + 8 > count) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = at + i < count ? load_as(base, at + i, dtype) : 0.0f;
    } else if (dtype == Dtype::f32) {
        const float4* p = reinterpret_cast<const float4*>(static_cast<const float*>(base) + at);
        const float4 low = __ldg(p), high = __ldg(p + 1);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    } else {
        const uint4 raw = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) + at));
        dtype == Dtype::bf16 ? unpack16<Bf16>(raw, out) : unpack16<Half>(raw, out);
    }
}

// out[i] = matrix row i . vector for the rows of a block's turn; every warp takes four rows at a time.
__device__ inline void block_matvec(const void* matrix, Dtype dtype, int64_t stride, int rows, int columns,
                                    const float* vector, float* out) {
    constexpr int kGroup = 4;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    const int64_t bytes = dtype == Dtype::f32 ? 4 : 2;
    const bool aligned = reinterpret_cast<uintptr_t>(matrix) % 16 == 0 && stride * bytes % 16 == 0;
    for (int first = warp * kGroup; first < rows; first += warps * kGroup) {
        float sum[kGroup] = {};
        for (int at = lane * 8; at < columns; at += kWarp * 8) {
            float w[kGroup][8];
#pragma unroll
            for (int i = 0; i < kGroup; ++i) {
                const int64_t row = first + i < rows ? first + i : rows - 1;
                load8(static_cast<const unsigned char*>(matrix) + row * stride * bytes, at, columns, dtype, aligned,
                      w[i]);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float x = at + j < columns ? vector[at + j] : 0.0f;
#pragma unroll
                for (int i = 0; i < kGroup; ++i) sum[i] = fmaf(w[i][j], x, sum[i]);
            }
        }
        const float total = warp_sum_many(sum, lane);
        const int row = first + lane / (kWarp / kGroup);
        if (lane % (kWarp / kGroup) == 0 && row < rows) out[row] = total;
    }
}

}  // namespace dspark
