// Atomics. Others may run first; the update itself is one step, as fibers do not preempt each other.
#pragma once

#include "emulation/scheduler.h"

namespace emulation {

template <typename T, typename F>
T update(T* address, F combine) {
    maybe_yield();
    const T old = *address;
    *address = combine(old);
    return old;
}

}  // namespace emulation

template <typename T>
T atomicAdd(T* address, T value) {
    return emulation::update(address, [=](T old) { return T(old + value); });
}
template <typename T>
T atomicMax(T* address, T value) {
    return emulation::update(address, [=](T old) { return old > value ? old : value; });
}
template <typename T>
T atomicMin(T* address, T value) {
    return emulation::update(address, [=](T old) { return old < value ? old : value; });
}
template <typename T>
T atomicExch(T* address, T value) {
    return emulation::update(address, [=](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
    return emulation::update(address, [=](T old) { return old == expected ? value : old; });
}
// As the hardware does it: wraps to 0 past `limit`.
inline unsigned atomicInc(unsigned* address, unsigned limit) {
    return emulation::update(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

inline void __threadfence() {
    emulation::maybe_yield();
}
inline void __threadfence_block() {
    emulation::maybe_yield();
}
