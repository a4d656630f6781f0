// Kernels that are wrong on purpose: the harness is trusted only while it catches them.
#pragma once

#include <cstdint>

namespace emulation {

// Reverses `n` floats through shared memory, without the barrier it needs when `barrier` is false.
void reverse(float* values, int n, bool barrier);
// Adds 1 to a counter from `n` threads of several blocks, atomically or by load and store across a yield.
void count(int* counter, int n, bool atomic);
void write_past_end(float* values, int n);                // global memory, one element past the end
void read_before_start(const float* values, float* out);  // global memory, one element before the start
void write_past_shared(float* out);                       // shared memory, one element past the end
void write_past_carved(float* out);                       // the same in dynamic shared memory
void diverge(float* out);                                 // half of the block skips a barrier
void leave_warp(int* out);                                // a lane returns before a shuffle names it
void too_much_shared(float* out);                         // more dynamic shared memory than launched with

}  // namespace emulation
