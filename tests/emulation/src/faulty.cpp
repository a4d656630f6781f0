#include "faulty.h"

#include "dspark/cuda/launch.cuh"

namespace emulation {
namespace {

__global__ void reverse_kernel(float* values, int n, bool barrier) {
    DSPARK_SHARED(float, held, 64);
    const int i = threadIdx.x;
    if (i < n) held[i] = values[i];
    if (barrier) __syncthreads();
    if (i < n) values[i] = held[n - 1 - i];
}

__global__ void count_kernel(int* counter, int n, bool atomic) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (atomic) {
        atomicAdd(counter, 1);
    } else {
        const int old = *counter;
        __threadfence();
        *counter = old + 1;
    }
}

__global__ void write_past_end_kernel(float* values, int n) {
    values[threadIdx.x + n - 31] = 1.0f;
}
__global__ void read_before_start_kernel(const float* values, float* out) {
    out[0] = values[int(threadIdx.x) - 1];
}

__global__ void write_past_shared_kernel(float* out) {
    DSPARK_SHARED(float, held, 31);
    held[threadIdx.x] = 1.0f;
    __syncthreads();
    out[0] = held[0];
}

__global__ void write_past_carved_kernel(float* out) {
    dspark::SharedLayout layout;
    const size_t first = layout.reserve<float>(31), second = layout.reserve<float>(32);
    float* held = dspark::dynamic_shared<float>(first, 31);
    float* other = dspark::dynamic_shared<float>(second, 32);
    held[threadIdx.x] = other[threadIdx.x] = 1.0f;
    __syncthreads();
    out[0] = held[0];
}

__global__ void diverge_kernel(float* out) {
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1.0f;
}

__global__ void leave_warp_kernel(int* out) {
    if (threadIdx.x == 3) return;
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, int(threadIdx.x), 1);
}

__global__ void too_much_shared_kernel(float* out) {
    float* held = dspark::dynamic_shared<float>(0, 64);
    held[threadIdx.x] = 1.0f;
    out[threadIdx.x] = held[threadIdx.x];
}

}  // namespace

void reverse(float* values, int n, bool barrier) {
    DSPARK_LAUNCH(reverse_kernel, 1, 64, 0, nullptr, values, n, barrier);
}
void count(int* counter, int n, bool atomic) {
    DSPARK_LAUNCH(count_kernel, (n + 31) / 32, 32, 0, nullptr, counter, n, atomic);
}
void write_past_end(float* values, int n) {
    DSPARK_LAUNCH(write_past_end_kernel, 1, 32, 0, nullptr, values, n);
}
void read_before_start(const float* values, float* out) {
    DSPARK_LAUNCH(read_before_start_kernel, 1, 1, 0, nullptr, values, out);
}
void write_past_shared(float* out) {
    DSPARK_LAUNCH(write_past_shared_kernel, 1, 32, 0, nullptr, out);
}
void write_past_carved(float* out) {
    DSPARK_LAUNCH(write_past_carved_kernel, 1, 32, 256, nullptr, out);
}
void diverge(float* out) {
    DSPARK_LAUNCH(diverge_kernel, 1, 64, 0, nullptr, out);
}
void leave_warp(int* out) {
    DSPARK_LAUNCH(leave_warp_kernel, 1, 32, 0, nullptr, out);
}
void too_much_shared(float* out) {
    DSPARK_LAUNCH(too_much_shared_kernel, 1, 64, 128, nullptr, out);
}

}  // namespace emulation
