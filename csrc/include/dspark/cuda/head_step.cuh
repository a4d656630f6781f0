// What the heads make of (previous token, hidden state), for one request, by a whole block (algorithm, steps 2 and 3).
#pragma once

#include "dspark/cuda/dot.cuh"
#include "dspark/cuda/ops.h"

namespace dspark::cuda {

// A request's vectors in shared memory.
struct HeadShared {
    float* context;    // [2 r]: state (rnn), embedding of the previous token
    float* projected;  // [3 r], of the joint projection; unused by the vanilla head
    float* latent;     // [r rounded up to 4], what W2 is multiplied with

    __device__ float* state() const { return context; }
    __device__ float* embedded(int rank) const { return context + rank; }
};

// Offsets of the same in dynamic shared memory.
struct HeadLayout {
    size_t context, projected, latent;
    int rank, joint;

    __host__ __device__ HeadLayout(SharedLayout& layout, const Heads& h)
        : rank(static_cast<int>(h.rank)), joint(static_cast<int>(joint_rows(h.head, h.rank))) {
        context = layout.reserve<float>(2 * rank);
        projected = layout.reserve<float>(joint == 0 ? 1 : joint);
        latent = layout.reserve<float>(padded());
    }
    __host__ __device__ int padded() const { return (rank + 3) / 4 * 4; }
    __device__ HeadShared arrays() const {
        return {dynamic_shared<float>(context, 2 * rank), dynamic_shared<float>(projected, joint == 0 ? 1 : joint),
                dynamic_shared<float>(latent, padded())};
    }
};

// Embedding and latent of `previous`. `carry`, `next_carry` [r] hold the rnn's state between calls and may be the same.
// Starts after the block's last use of `s` and ends before a barrier that the caller owes. Without bias (the first
// position of some checkpoints) the latent is zero and the state stays.
__device__ inline void head_step(const Heads& h, const HeadShared& s, int64_t previous, const float* hidden_joint,
                                 bool biased) {
    const int rank = static_cast<int>(h.rank);
    float* embedded = s.embedded(rank);
    const unsigned char* row =
        static_cast<const unsigned char*>(h.w1) + previous * h.w1_stride * (h.w1_dtype == Dtype::f32 ? 4 : 2);
    for (int i = threadIdx.x; i < rank; i += blockDim.x) {
        const float e = load_as(row, i, h.w1_dtype);
        embedded[i] = e;
        if (h.head == Head::vanilla || !biased) s.latent[i] = biased ? activate(h.activation, e) : 0.0f;
    }
    if (h.head == Head::vanilla || !biased) return;
    const int rows = static_cast<int>(joint_rows(h.head, h.rank));
    const bool rnn = h.head == Head::rnn;
    const int64_t first = rnn ? 0 : h.hidden_size;  // gated [h ; e], rnn [s ; e ; h]
    const unsigned char* joint =
        static_cast<const unsigned char*>(h.joint) + first * (h.joint_dtype == Dtype::f32 ? 4 : 2);
    __syncthreads();
    block_matvec(joint, h.joint_dtype, h.joint_stride, rows, rnn ? 2 * rank : rank, rnn ? s.context : embedded,
                 s.projected);
    __syncthreads();
    for (int i = threadIdx.x; i < rank; i += blockDim.x) {
        if (rnn) {
            float* state = s.state();
            state[i] =
                rnn_state(state[i], s.projected[i] + hidden_joint[i], s.projected[rank + i] + hidden_joint[rank + i]);
            s.latent[i] = tanhf(s.projected[2 * rank + i] + hidden_joint[2 * rank + i]);
        } else {
            s.latent[i] = gated_latent(h.activation, embedded[i], s.projected[i] + hidden_joint[i]);
        }
    }
}

// Confidence logits of all positions without the embedding's part: out[k * warps + warp] are partial sums, which
// confidence() adds. Four positions at a time keep four loads in flight.
__device__ inline void confidence_of_hidden(const Heads& h, int64_t batch, int gamma, float* out) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    const int64_t bytes = h.hidden_dtype == Dtype::f32 ? 4 : 2;
    const unsigned char* base = static_cast<const unsigned char*>(h.hidden) + batch * h.hidden_batch_stride * bytes;
    const bool aligned = reinterpret_cast<uintptr_t>(base) % 16 == 0 && h.hidden_position_stride * bytes % 16 == 0;
    const bool aligned_weight = reinterpret_cast<uintptr_t>(h.confidence) % 16 == 0;
    for (int first = 0; first < gamma; first += 4) {
        float sum[4] = {};
        for (int64_t at = (warp * kWarp + lane) * 8; at < h.hidden_size; at += warps * kWarp * 8) {
            float w[8], x[4][8];
            load8(h.confidence, at, h.hidden_size, h.confidence_dtype, aligned_weight, w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int k = first + i < gamma ? first + i : gamma - 1;
                load8(base + k * h.hidden_position_stride * bytes, at, h.hidden_size, h.hidden_dtype, aligned, x[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i] = fmaf(w[j], x[i][j], sum[i]);
            }
        }
        const float total = warp_sum_many(sum, lane);
        const int k = first + lane / 8;
        if (lane % 8 == 0 && k < gamma) out[k * warps + warp] = total;
    }
}

// The confidence of position k, by one warp, once `embedded` is known.
__device__ inline float confidence(const Heads& h, const float* of_hidden, int k, const float* embedded) {
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    float sum = lane < warps ? of_hidden[k * warps + lane] : 0.0f;
    if (h.confidence_with_markov) {
        for (int i = lane; i < h.rank; i += kWarp) {
            sum = fmaf(load_as(h.confidence, h.hidden_size + i, h.confidence_dtype), embedded[i], sum);
        }
    }
    return sigmoid(warp_sum(sum) + (h.confidence_bias != nullptr ? *h.confidence_bias : 0.0f));
}

}  // namespace dspark::cuda
