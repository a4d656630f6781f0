// Scaled logits, noise and q of the dense draft, the same bits wherever they are computed.
#pragma once

#include "dspark/cuda/dtype.cuh"
#include "dspark/cuda/ops.h"
#include "dspark/random.h"

namespace dspark::cuda {

// One request's position.
struct DenseRow {
    const void* logits;
    Dtype dtype;
    bool biased;
    float shift, inverse_temperature;

    __device__ DenseRow(const DenseRows& rows, int64_t b, int64_t k, int64_t gamma, float temperature)
        : logits(static_cast<const unsigned char*>(rows.logits) +
                 (b * rows.batch_stride + k * rows.position_stride) * (rows.logits_dtype == Dtype::f32 ? 4 : 2)),
          dtype(rows.logits_dtype),
          biased(k > 0 || rows.first_position),
          shift(rows.shifts[b * gamma + k]),
          inverse_temperature(temperature > 0.0f ? 1.0f / temperature : 0.0f) {}

    __device__ __forceinline__ float corrected(int64_t token, float bias) const {
        const float base = load_as(logits, token, dtype);
        return biased ? one::fadd(base, bias) : base;
    }
    // (l - shift) / T. The bound keeps a finite logit finite at a tiny temperature.
    __device__ __forceinline__ float scaled(float logit) const {
        const float z = one::fmul(one::fsub(logit, shift), inverse_temperature);
        return z > 3e38f ? 3e38f : z;
    }
    __device__ __forceinline__ float probability(int64_t token, float bias, float log_sum) const {
        return expf(one::fsub(scaled(corrected(token, bias)), log_sum));
    }
};

}  // namespace dspark::cuda
