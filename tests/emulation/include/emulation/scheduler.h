// Runs a kernel's threads as fibers, several blocks at a time, in a seeded random order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulation/fiber.h"

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulation {

// A kernel did something that is wrong on a GPU: diverging barrier, reading an absent lane, too much shared memory.
class Fault : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

struct Place {
    const char* file = "";
    int line = 0;
};

struct Thread;

struct Warp {
    Thread* lanes[32] = {};
    unsigned alive = 0;    // lanes that have not returned
    unsigned arrived = 0;  // lanes waiting in the collective that is forming
    unsigned mask = 0;     // its mask
    const char* operation = nullptr;
    unsigned phase = 0;
    uint64_t slot[2][32] = {};  // two, so that a fast lane's next collective cannot overwrite what a slow one reads
};

struct SharedArray {
    std::unique_ptr<unsigned char[]> memory;  // exactly as large as declared: AddressSanitizer guards both ends
    size_t bytes = 0;
};

struct Block {
    uint3 index{};
    unsigned threads = 0;
    unsigned alive = 0;
    unsigned arrived = 0;
    int votes[2] = {};  // of __syncthreads_or / _count, by phase
    unsigned phase = 0;
    Place barrier;
    std::vector<Warp> warps;
    std::vector<Thread*> members;
    std::map<const void*, SharedArray> fixed;  // by the declaration
    std::map<size_t, SharedArray> dynamic;     // by the offset in the launch's dynamic shared memory
};

struct Thread {
    Fiber fiber;
    uint3 index{};
    unsigned linear = 0;
    unsigned lane = 0;
    Block* block = nullptr;
    Warp* warp = nullptr;
    Place waiting;
    const char* reason = nullptr;  // what it waits for, null when it can run
};

// What a kernel sees of its launch.
struct Launch {
    dim3 grid, block;
    size_t dynamic_bytes = 0;
    std::function<void()> body;
};

extern thread_local Thread* self;
extern thread_local const Launch* launch_now;

// 0 runs threads and blocks in index order; any other seed gives a random order, the same for the same seed.
void set_order(uint64_t seed);

// cudaDeviceProp's limits that a launch is checked against (compute capability 9.0).
constexpr size_t kMaxDynamicShared = 227 * 1024;
constexpr unsigned kMaxThreads = 1024;

void run(const Launch& launch);

// Called by threads.
void sync_threads(Place place);
int sync_threads_count(int predicate, Place place);
// Waits until every lane of `mask` arrived with a value; returns the 32 values.
const uint64_t* exchange(unsigned mask, uint64_t value, const char* operation, Place place);
void maybe_yield();  // before atomics: lets others go first
void* shared_fixed(const void* declaration, size_t bytes, size_t alignment);
void* shared_dynamic(size_t offset, size_t bytes, size_t alignment);
[[noreturn]] void fault(const std::string& what);

}  // namespace emulation
