// What one target row gives: p of its tokens, and sums over pieces of the vocabulary.
#pragma once

#include "dspark/cuda/dtype.cuh"
#include "dspark/cuda/ops.h"
#include "dspark/cuda/reduce.cuh"
#include "dspark/sample.h"

namespace dspark::cuda {

constexpr int kPiece = 1024;  // tokens summed together; the last draw looks inside one piece only

// One row's piece. Sampled: largest logit and sum of exp((l - largest) / T), or sum of the given probabilities.
// Argmax: the best choice.
struct PieceStats {
    double total;
    uint64_t best;
    float largest;
    float unused;
};

// p(v) = exp((l - largest) / T) * inverse_total, or the given probability; inverse_total 0: no distribution exists.
struct TargetRow {
    float largest, inverse_temperature, inverse_total;
};

__device__ __forceinline__ float exponential(float logit, float largest, float inverse_temperature) {
    return expf((logit - largest) * inverse_temperature);
}

// Piece of a row by one warp: kPiece / 32 values a lane, read once. `inverse` 0: argmax; `given`: probabilities.
template <typename T, bool Vector>
__device__ PieceStats warp_piece(const T* row, int64_t first, int count, float inverse, bool given) {
    constexpr int kStep = Vector ? kPack<T> : 1, kSteps = kPiece / kWarp / kStep;
    const int lane = threadIdx.x % kWarp;
    float x[kSteps][kStep];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * kWarp + lane) * kStep;
        if constexpr (Vector) {
            if (at + kStep <= count) {
                unpack_as<T>(__ldcs(reinterpret_cast<const uint4*>(row + first + at)), x[s]);
                continue;
            }
        }
#pragma unroll
        for (int i = 0; i < kStep; ++i)
            x[s][i] = at + i < count ? to_float(row[first + at + i]) : given ? 0.0f : -INFINITY;
    }
    PieceStats stats{0.0, 0, -INFINITY, 0.0f};
    if (inverse == 0.0f) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < kStep; ++i) {
                const int at = (s * kWarp + lane) * kStep + i;
                const uint64_t choice = packed_choice(x[s][i], static_cast<uint32_t>(first + at));
                if (at < count && choice > stats.best) stats.best = choice;
            }
        }
        stats.best = warp_max(stats.best);
        return stats;
    }
    if (!given) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < kStep; ++i) stats.largest = x[s][i] > stats.largest ? x[s][i] : stats.largest;
        }
        stats.largest = warp_max(stats.largest);
    }
    // A piece of -inf has no exponentials, unless a NaN is to spoil the row.
    const float largest = stats.largest == -INFINITY ? 0.0f : stats.largest;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
            const float weight = given ? residual_weight(x[s][i], 0.0f) : exponential(x[s][i], largest, inverse);
            stats.total += static_cast<double>(weight);
        }
    }
    stats.total = warp_sum(stats.total);
    return stats;
}

// Sum of a piece relative to the row's largest logit.
__device__ __forceinline__ double rescaled(double total, float piece_largest, const TargetRow& row) {
    if (!(total > 0.0) && !(total != total)) return 0.0;
    return total * exp((static_cast<double>(piece_largest) - static_cast<double>(row.largest)) *
                       static_cast<double>(row.inverse_temperature));
}

// The row from its pieces, by one warp.
__device__ inline TargetRow warp_row(const PieceStats* pieces, int count, float inverse, bool given) {
    const int lane = threadIdx.x % kWarp;
    TargetRow row{-INFINITY, inverse, 0.0f};
    if (given) {
        row.inverse_total = 1.0f;
        return row;
    }
    for (int i = lane; i < count; i += kWarp) {
        const float largest = __ldcg(&pieces[i].largest);
        row.largest = largest > row.largest ? largest : row.largest;
    }
    row.largest = warp_max(row.largest);
    if (!is_finite(row.largest)) return row;
    double total = 0.0;
    for (int i = lane; i < count; i += kWarp) {
        const float largest = __ldcg(&pieces[i].largest);
        total += rescaled(__ldcg(&pieces[i].total), largest == -INFINITY ? row.largest : largest, row);
    }
    total = warp_sum(total);
    if (total > 0.0) row.inverse_total = static_cast<float>(1.0 / total);
    return row;
}

// First index in token order whose cumulative weight exceeds `target`, among `count` weights in shared memory, or the
// last positive one; -1 when none is positive. All threads of the block call it; scratch: one double and one int a
// warp.
__device__ inline int block_pick(const float* weights, int count, double before, double target, double* sums,
                                 int* picks) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    const int each = (count + blockDim.x - 1) / blockDim.x;
    const int begin = threadIdx.x * each, end = begin + each < count ? begin + each : count;
    double own = 0.0;
    for (int i = begin; i < end; ++i) own += static_cast<double>(weights[i]);
    double until = own;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
        const double other = __shfl_up_sync(kFullMask, until, step);
        if (lane >= step) until += other;
    }
    if (lane == kWarp - 1) sums[warp] = until;
    __syncthreads();
    for (int i = 0; i < warp; ++i) before += sums[i];
    before += until - own;
    int pick = INT32_MAX, last = -1;
    for (int i = begin; i < end; ++i) {
        if (!(weights[i] > 0.0f)) continue;
        last = i;
        before += static_cast<double>(weights[i]);
        if (before > target && pick == INT32_MAX) pick = i;
    }
    pick = __reduce_min_sync(kFullMask, pick);
    last = __reduce_max_sync(kFullMask, last);
    if (lane == 0) {
        picks[warp] = pick;
        picks[warps + warp] = last;
    }
    __syncthreads();
    for (int i = 0; i < warps; ++i) {
        pick = picks[i] < pick ? picks[i] : pick;
        last = picks[warps + i] > last ? picks[warps + i] : last;
    }
    __syncthreads();
    return pick != INT32_MAX ? pick : last;
}

// The piece in which the cumulative sum exceeds u times the total, by one warp; `before` is the sum of those before it.
// -1 when nothing is positive. sums: in shared memory, non-negative.
__device__ inline int warp_pick_piece(const double* sums, int count, double u, double* before, double* target) {
    const int lane = threadIdx.x % kWarp, each = (count + kWarp - 1) / kWarp;
    const int begin = lane * each, end = begin + each < count ? begin + each : count;
    double own = 0.0;
    for (int i = begin; i < end; ++i) own += sums[i];
    double until = own;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
        const double other = __shfl_up_sync(kFullMask, until, step);
        if (lane >= step) until += other;
    }
    *target = u * __shfl_sync(kFullMask, until, kWarp - 1);
    double at = until - own;
    int pick = INT32_MAX, last = -1;
    double pick_before = 0.0, last_before = 0.0;
    for (int i = begin; i < end; ++i) {
        if (sums[i] > 0.0) last = i, last_before = at;
        if (at + sums[i] > *target && pick == INT32_MAX) pick = i, pick_before = at;
        at += sums[i];
    }
    const int first = __reduce_min_sync(kFullMask, pick), furthest = __reduce_max_sync(kFullMask, last);
    const int found = first != INT32_MAX ? first : furthest;
    if (found < 0) return -1;
    const double mine = first != INT32_MAX ? pick_before : last_before;
    *before = __shfl_sync(kFullMask, mine, found / each);
    return found;
}

}  // namespace dspark::cuda
