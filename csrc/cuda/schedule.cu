// Prefix scheduler: from confidences to verify lengths in one block, without the host.
//
// Keys of all R gamma candidates are sorted in shared memory; sums of survivals along that order are a block scan in
// float64; the first candidate that does not improve Theta (causal) or the best budget (lagged) is a reduction. The
// lagged mode then selects the budget's best of this round by their key, which needs no second sort.
//
// The cost vector is read from global memory: every entry once, by neighbouring threads. Staging it would add a pass.
//
//   bytes      R gamma 4 (twice if lagged) + R (1 + gamma) 8 + R 16
//   launches   1, of one block: the work is latency, not bandwidth
//   sync       about log2(n)^2 / 2 barriers for n = R gamma rounded up, n <= 16384
//   H200       gamma = 7, expected: R = 1: 3 us   16: 4 us   64: 6 us   256: 10 us   1024: 40 us
#include "dspark/cuda/block_top.cuh"
#include "dspark/cuda/ops.h"
#include "dspark/schedule_keys.h"

namespace dspark::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMost = 16384;
constexpr int kEach = kMost / kThreads;

// A plan's output and cost, and how many candidates it admits.
struct Plan {
    double tokens, seconds;
    int admitted;
};

// The better plan; of equal ones the smaller.
__device__ Plan better(const Plan& a, const Plan& b) {
    const bool take_b = a.admitted <= b.admitted ? improves(b.tokens, b.seconds, a.tokens, a.seconds)
                                                 : !improves(a.tokens, a.seconds, b.tokens, b.seconds);
    return take_b ? b : a;
}

__device__ Plan warp_better(Plan plan) {
#pragma unroll
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
        const Plan other{__shfl_xor_sync(kFullMask, plan.tokens, bits), __shfl_xor_sync(kFullMask, plan.seconds, bits),
                         __shfl_xor_sync(kFullMask, plan.admitted, bits)};
        plan = better(plan, other);
    }
    return plan;
}

// Fills `keys` up to `size` (0 for none) and returns how many candidates there are.
__device__ int make_keys(const float* confidence, int64_t stride, const int64_t* limits, int requests, int gamma,
                         uint64_t* keys, int size, int* partial) {
    int own = 0;
    for (int r = threadIdx.x; r < requests; r += kThreads) {
        float survival = 1.0f;
        for (int k = 0; k < gamma; ++k) {
            survival = next_survival(survival, confidence[r * stride + k]);
            const bool counts = survival > 0.0f && k < limits[r];
            keys[r * gamma + k] =
                counts ? candidate_key(survival, static_cast<uint32_t>(k), static_cast<uint32_t>(r)) : 0;
            own += counts;
        }
    }
    for (int i = requests * gamma + threadIdx.x; i < size; i += kThreads) keys[i] = 0;
    return block_reduce(__reduce_add_sync(kFullMask, own), partial, [](int a, int b) { return a + b; });
}

// Sum of the survivals before this thread's `each` keys of the sorted order, counted from `start`.
__device__ double tokens_before(const uint64_t* keys, int size, int each, double start, double* partial) {
    double own = 0.0;
    const int begin = static_cast<int>(threadIdx.x) * each;
    for (int i = begin; i < begin + each && i < size; ++i) {
        own += static_cast<double>(key_survival(keys[i]));
    }
    double until = own;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
        const double before = __shfl_up_sync(kFullMask, until, step);
        if (lane >= step) until += before;
    }
    if (lane == kWarp - 1) partial[warp] = until;
    __syncthreads();
    for (int i = 0; i < warp; ++i) start += partial[i];
    return start + (until - own);
}

// Number of leading keys admitted: up to the first that does not improve Theta, or the best prefix.
__device__ int admit(const Schedule& p, const uint64_t* keys, int size, int count, bool causal, double* sums,
                     Plan* plans, int* stops) {
    const int each = (size + kThreads - 1) / kThreads, requests = static_cast<int>(p.requests);
    Plan plan{tokens_before(keys, size, each, requests, sums), 0.0, static_cast<int>(threadIdx.x) * each};
    if (plan.admitted > count) plan.admitted = count;
    plan.seconds = p.seconds[requests + plan.admitted];
    Plan best = threadIdx.x == 0 ? plan : Plan{0.0, 1.0, 0};
    int stop = count;
    for (int i = 0; i < each && plan.admitted < count; ++i) {
        const Plan longer{plan.tokens + static_cast<double>(key_survival(keys[plan.admitted])),
                          p.seconds[requests + plan.admitted + 1], plan.admitted + 1};
        if (causal && !improves(longer.tokens, longer.seconds, plan.tokens, plan.seconds)) {
            stop = plan.admitted;
            break;
        }
        best = better(best, longer);
        plan = longer;
    }
    if (causal) {
        return block_reduce(__reduce_min_sync(kFullMask, stop), stops, [](int a, int b) { return a < b ? a : b; });
    }
    best = block_reduce(warp_better(best), plans, [](const Plan& a, const Plan& b) { return better(a, b); });
    return best.admitted;
}

__global__ void __launch_bounds__(kThreads, 1) schedule_kernel(Schedule p, int size) {
    DSPARK_SHARED(int, partial, 4 * kWarps);
    DSPARK_SHARED(double, sums, kWarps);
    DSPARK_SHARED(Plan, plans, kWarps);
    uint64_t* keys = dynamic_shared<uint64_t>(0, size);
    int* lengths = dynamic_shared<int>(size * sizeof(uint64_t), p.requests);
    const int requests = static_cast<int>(p.requests), gamma = static_cast<int>(p.gamma);
    const bool causal = p.lagged == nullptr;
    for (int r = threadIdx.x; r < requests; r += kThreads) lengths[r] = 0;

    const int count = make_keys(causal ? p.confidence : p.lagged, causal ? p.confidence_stride : p.lagged_stride,
                                causal ? p.limits : p.lagged_limits, requests, gamma, keys, size, partial);
    block_sort_descending(keys, size);
    int admitted = admit(p, keys, size, count, causal, sums, plans, partial + kWarps);
    uint64_t own[kEach];
    uint64_t threshold = 1;
    if (causal) {
        threshold = admitted > 0 ? keys[admitted - 1] : ~0ull;
    } else {
        __syncthreads();  // all have read the lagged keys
        const int now = make_keys(p.confidence, p.confidence_stride, p.limits, requests, gamma, keys, size, partial);
        if (admitted > now) admitted = now;
        if (admitted == 0) threshold = ~0ull;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = threadIdx.x + i * kThreads;
        own[i] = at < size ? keys[at] : 0;
    }
    if (!causal && admitted > 0) {
        uint64_t any = 0;
        for (int i = 0; i < size && any == 0; ++i) any = keys[i];  // the first candidate; usually keys[0]
        threshold = block_kth_largest(own, any, admitted, partial + 2 * kWarps);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (own[i] >= threshold) atomicAdd(&lengths[key_request(own[i])], 1);
    }
    __syncthreads();
    for (int r = threadIdx.x; r < requests; r += kThreads) p.lengths[r] = lengths[r];
    if (threadIdx.x == 0) p.admitted[0] = admitted;
}

}  // namespace

int schedule(const Schedule& p, void* stream) {
    if (p.requests == 0) return cudaSuccess;
    int size = 2;
    while (size < p.requests * p.gamma) size *= 2;
    if (size > kMost) return cudaErrorInvalidValue;
    const size_t bytes = size * sizeof(uint64_t) + p.requests * sizeof(int);
    return DSPARK_LAUNCH(schedule_kernel, dim3(1), dim3(kThreads), bytes, stream, p, size);
}

}  // namespace dspark::cuda
