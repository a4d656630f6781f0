// Warp collectives: every lane of the mask must arrive, and with the same operation, before any goes on.
#pragma once

#include <cstring>
#include <type_traits>

#include "emulation/scheduler.h"

namespace emulation {

template <typename T>
uint64_t pack(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "shuffles move at most 64 bits");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <typename T>
T unpack(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

// A source outside the calling lane's segment of `width` lanes gives the lane's own value.
template <typename T>
T shuffle(unsigned mask, T value, int source, bool inside, const char* operation, Place place) {
    const uint64_t* values = exchange(mask, pack(value), operation, place);
    if (!inside) return value;
    if ((mask >> source & 1) == 0) fault(std::string(operation) + ": reads a lane outside the mask");
    return unpack<T>(values[source]);
}

template <typename T, typename F>
T reduce(unsigned mask, T value, F combine, const char* operation, Place place) {
    static_assert(std::is_integral_v<T> && sizeof(T) == 4, "the hardware reduces 32-bit integers only");
    const uint64_t* values = exchange(mask, pack(value), operation, place);
    bool first = true;
    T result{};
    for (int lane = 0; lane < 32; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        const T other = unpack<T>(values[lane]);
        result = first ? other : combine(result, other);
        first = false;
    }
    return result;
}

}  // namespace emulation

#define EMULATION_HERE (::emulation::Place{__FILE__, __LINE__})

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int base = int(emulation::self->lane) & ~(width - 1);
    return emulation::shuffle(mask, value, base + (source & (width - 1)), true, "__shfl_sync", EMULATION_HERE);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = int(emulation::self->lane), at = lane + int(delta);
    return emulation::shuffle(mask, value, at, at / width == lane / width, "__shfl_down_sync", EMULATION_HERE);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = int(emulation::self->lane), at = lane - int(delta);
    const bool inside = (lane & (width - 1)) >= int(delta);
    return emulation::shuffle(mask, value, at, inside, "__shfl_up_sync", EMULATION_HERE);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = int(emulation::self->lane), at = lane ^ bits;
    return emulation::shuffle(mask, value, at, at / width <= lane / width, "__shfl_xor_sync", EMULATION_HERE);
}

template <typename T>
T __reduce_or_sync(unsigned mask, T value) {
    return emulation::reduce(mask, value, [](T a, T b) { return T(a | b); }, "__reduce_or_sync", EMULATION_HERE);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint64_t* values = emulation::exchange(mask, predicate != 0, "__ballot_sync", EMULATION_HERE);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1) votes |= unsigned(values[lane]) << lane;
    }
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}

template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
    return emulation::reduce(mask, value, [](T a, T b) { return T(a + b); }, "__reduce_add_sync", EMULATION_HERE);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
    return emulation::reduce(mask, value, [](T a, T b) { return a > b ? a : b; }, "__reduce_max_sync", EMULATION_HERE);
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
    return emulation::reduce(mask, value, [](T a, T b) { return a < b ? a : b; }, "__reduce_min_sync", EMULATION_HERE);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    emulation::exchange(mask, 0, "__syncwarp", EMULATION_HERE);
}

#define __syncthreads() ::emulation::sync_threads(EMULATION_HERE)
#define __syncthreads_count(predicate) ::emulation::sync_threads_count(predicate, EMULATION_HERE)
#define __syncthreads_or(predicate) (::emulation::sync_threads_count(predicate, EMULATION_HERE) != 0)
