// Biases of 64 consecutive tokens for many requests: every row of W2 is read once and multiplied with all latents.
#pragma once

#include <type_traits>

#include "dspark/cuda/dtype.cuh"
#include "dspark/cuda/reduce.cuh"

namespace dspark {

constexpr int kTile = 64;  // the grouping of the noise (random.h)
constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / kWarp;
constexpr int kTileRequests = 64;  // latents that stay in shared memory together

// A few rows of W2 as float32, spread over a warp. Vector: ranks that are a multiple of 16 bytes and aligned rows.
template <typename T, int Chunks, bool Vector>
struct TokenRows {
    static constexpr int kStep = kPack<T>;
    static constexpr int kChunk = kWarp * kStep;
    static constexpr int kFit = 64 / (Chunks * kStep);
    static constexpr int kRows = kFit < 8 ? kFit : 8;  // at most 64 registers
    static constexpr int kLanes = kWarp / kRows;       // that end up with the same row

    // Rows first .. first + kRows, none past `vocab`.
    __device__ __forceinline__ void load(const T* w2, int64_t stride, int rank, int64_t first, int64_t vocab,
                                         int lane) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const T* row = w2 + (first + i < vocab ? first + i : vocab - 1) * stride;
#pragma unroll
            for (int c = 0; c < Chunks; ++c) {
                const int column = c * kChunk + lane * kStep;
                if constexpr (Vector) {
                    unpack_as<T>(
                        column < rank ? __ldg(reinterpret_cast<const uint4*>(row + column)) : uint4{0, 0, 0, 0},
                        w[i][c]);
                } else {
#pragma unroll
                    for (int j = 0; j < kStep; ++j) w[i][c][j] = column + j < rank ? to_float(row[column + j]) : 0.0f;
                }
            }
        }
    }

    // Lane l returns the bias of row l / kLanes. Its bits depend on the row and the latent alone, not on their place.
    __device__ __forceinline__ float dot(const float* latent, int rank, int lane) const {
        float sum[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) sum[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < Chunks; ++c) {
#pragma unroll
            for (int j = 0; j < kStep; j += 4) {
                const int column = c * kChunk + lane * kStep + j;
                const float4 x =
                    column < rank ? *reinterpret_cast<const float4*>(latent + column) : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    sum[i] = fmaf(w[i][c][j], x.x, sum[i]);
                    sum[i] = fmaf(w[i][c][j + 1], x.y, sum[i]);
                    sum[i] = fmaf(w[i][c][j + 2], x.z, sum[i]);
                    sum[i] = fmaf(w[i][c][j + 3], x.w, sum[i]);
                }
            }
        }
        return warp_sum_many(sum, lane);
    }

    float w[kRows][Chunks][kStep];
};

// biases[request * kTile + token] of the tile that starts at `first`, for `requests` latents of `stride` floats in
// shared memory. Starts after and ends before a barrier that the caller owes.
template <typename T, int Chunks, bool Vector>
__device__ __forceinline__ void tile_biases(const T* w2, int64_t w2_stride, int rank, int64_t first, int64_t vocab,
                                            const float* latents, int stride, int requests, float* biases) {
    using Rows = TokenRows<T, Chunks, Vector>;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (int at = warp * Rows::kRows; at < kTile; at += kTileWarps * Rows::kRows) {
        Rows rows;
        rows.load(w2, w2_stride, rank, first + at, vocab, lane);
        for (int i = 0; i < requests; ++i) {
            const float bias = rows.dot(latents + i * stride, rank, lane);
            if (lane % Rows::kLanes == 0) biases[i * kTile + at + lane / Rows::kLanes] = bias;
        }
    }
}

// Calls f(T{}, chunks, vector) with the instantiation that fits W2. Ranks go up to 512, or 256 in float32; heads that
// are trained have 256.
template <typename F>
cudaError_t with_rows(const void* w2, Dtype dtype, int64_t stride, int64_t rank, F f) {
    return with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int64_t kChunk = kWarp * kPack<T>;
        const bool vector = aligned16(w2, stride, dtype) && rank % kPack<T> == 0;
        using One = std::integral_constant<int, 1>;
        using Two = std::integral_constant<int, 2>;
        if (rank > 2 * kChunk) return cudaErrorInvalidValue;
        if (!vector) return f(type, Two{}, std::false_type{});
        return rank <= kChunk ? f(type, One{}, std::true_type{}) : f(type, Two{}, std::true_type{});
    });
}

}  // namespace dspark
