#include "emulation/scheduler.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>

namespace emulation {

thread_local Thread* self = nullptr;
thread_local const Launch* launch_now = nullptr;

namespace {

// Blocks in flight together, as on a device: enough to see races between blocks, few enough for small stacks in use.
constexpr size_t kResidentBlocks = 6;

uint64_t order_seed = 0;
uint64_t launches = 0;

struct Run {
    std::mt19937_64 rng;
    bool random = false;
    std::deque<Thread*> ready;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Thread*> idle;
    std::exception_ptr error;
};

thread_local Run* now = nullptr;
// Stacks are kept: mapping thousands of them for every launch would dominate.
thread_local std::vector<std::unique_ptr<Thread>> pool;

std::string describe(const uint3& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

void wait(const char* reason, Place place) {
    self->reason = reason;
    self->waiting = place;
    Thread* me = self;
    me->fiber.suspend();
    self = me;
    if (now->error) throw Fault("cancelled");  // another thread failed: unwind
}

void wake(Thread* thread) {
    thread->reason = nullptr;
    now->ready.push_back(thread);
}

void thread_main(void* argument) {
    auto* thread = static_cast<Thread*>(argument);
    self = thread;
    try {
        if (!now->error) launch_now->body();
    } catch (...) {
        if (!now->error) now->error = std::current_exception();
    }
    Block& block = *thread->block;
    --block.alive;
    thread->warp->alive &= ~(1u << thread->lane);
    const bool leaves_lanes = thread->warp->arrived != 0 && (thread->warp->mask >> thread->lane & 1);
    if (!now->error && (block.arrived != 0 || leaves_lanes)) {
        const std::string what = block.arrived != 0 ? "__syncthreads" : thread->warp->operation;
        now->error = std::make_exception_ptr(Fault("thread " + describe(thread->index) + " of block " +
                                                   describe(block.index) + " returned while others wait in " + what));
    }
}

uint3 unflatten(size_t i, const dim3& extent) {
    return {unsigned(i % extent.x), unsigned(i / extent.x % extent.y), unsigned(i / extent.x / extent.y)};
}

void start_block(const Launch& launch, size_t number) {
    now->blocks.push_back(std::make_unique<Block>());
    Block& block = *now->blocks.back();
    block.index = unflatten(number, launch.grid);
    block.threads = block.alive = launch.block.x * launch.block.y * launch.block.z;
    block.warps.resize((block.threads + 31) / 32);
    for (unsigned i = 0; i < block.threads; ++i) {
        if (now->idle.empty()) {
            pool.push_back(std::make_unique<Thread>());
            now->idle.push_back(pool.back().get());
        }
        Thread* thread = now->idle.back();
        now->idle.pop_back();
        thread->index = unflatten(i, launch.block);
        thread->linear = i;
        thread->lane = i % 32;
        thread->block = &block;
        thread->warp = &block.warps[i / 32];
        thread->warp->alive |= 1u << thread->lane;
        thread->warp->lanes[thread->lane] = thread;
        block.members.push_back(thread);
        thread->reason = nullptr;
        thread->fiber.start(&thread_main, thread);
        now->ready.push_back(thread);
    }
}

std::string deadlock() {
    std::string what = "deadlock:";
    for (const auto& thread : pool) {
        if (thread->fiber.finished() || thread->reason == nullptr) continue;
        what += "\n  block " + describe(thread->block->index) + " thread " + describe(thread->index) + " in " +
                thread->reason + " at " + thread->waiting.file + ":" + std::to_string(thread->waiting.line);
        if (what.size() > 2000) return what + "\n  ...";
    }
    return what;
}

Thread* next() {
    auto& ready = now->ready;
    const size_t at = now->random ? now->rng() % ready.size() : 0;
    Thread* thread = ready[at];
    if (now->random) {
        ready[at] = ready.back();
        ready.pop_back();
    } else {
        ready.pop_front();
    }
    return thread;
}

void check(const Launch& launch) {
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    if (threads == 0 || threads > kMaxThreads) throw Fault("a block of " + std::to_string(threads) + " threads");
    if (launch.dynamic_bytes > kMaxDynamicShared) throw Fault("too much dynamic shared memory");
    if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) throw Fault("an empty grid");
    if (launch.grid.y > 65535 || launch.grid.z > 65535) throw Fault("grid.y and grid.z end at 65535");
}

// Resumes threads until all blocks are done; blocks start in a random order as others finish.
void run_blocks(const Launch& launch) {
    std::vector<size_t> order(size_t(launch.grid.x) * launch.grid.y * launch.grid.z);
    std::iota(order.begin(), order.end(), size_t{0});
    if (now->random) std::shuffle(order.begin(), order.end(), now->rng);
    size_t started = 0, resident = 0;
    while (true) {
        while (!now->error && started < order.size() && resident < kResidentBlocks) {
            start_block(launch, order[started++]);
            ++resident;
        }
        if (now->ready.empty()) break;
        Thread* thread = next();
        thread->fiber.resume();
        if (!thread->fiber.finished()) continue;
        now->idle.push_back(thread);
        Block* block = thread->block;
        if (block->alive != 0) continue;
        --resident;
        now->blocks.erase(
            std::find_if(now->blocks.begin(), now->blocks.end(), [&](const auto& b) { return b.get() == block; }));
    }
    if (resident != 0 && !now->error) now->error = std::make_exception_ptr(Fault(deadlock()));
}

void* allocate(SharedArray& array, size_t bytes) {
    array.bytes = bytes;
    array.memory.reset(new unsigned char[bytes]);
    // Two patterns: NaN for floats, and a large number; nothing may depend on either.
    std::memset(array.memory.get(), now->rng() & 1 ? 0xFF : 0xCD, bytes);
    return array.memory.get();
}

}  // namespace

void set_order(uint64_t seed) {
    order_seed = seed;
    launches = 0;
}

void fault(const std::string& what) {
    throw Fault(what + " (block " + describe(self->block->index) + ", thread " + describe(self->index) + ")");
}

void run(const Launch& launch) {
    check(launch);
    Run run;
    run.random = order_seed != 0;
    run.rng.seed(order_seed * 0x9E3779B97F4A7C15ull + ++launches);
    for (const auto& thread : pool) run.idle.push_back(thread.get());
    now = &run;
    launch_now = &launch;
    run_blocks(launch);
    if (run.error) {
        // Unwind what still waits, so that its destructors run and its stack can be used again.
        for (const auto& thread : pool) {
            if (!thread->fiber.finished()) thread->fiber.resume();
        }
    }
    now = nullptr;
    launch_now = nullptr;
    if (run.error) std::rethrow_exception(run.error);
}

void maybe_yield() {
    if (!now->random || (now->rng() & 3) != 0) return;
    now->ready.push_back(self);
    wait(nullptr, {});
}

int sync_threads_count(int predicate, Place place) {
    Block& block = *self->block;
    if (block.alive != block.threads) fault("__syncthreads after some threads of the block returned");
    if (block.arrived != 0 && block.barrier.line != place.line) {
        fault("threads of one block wait in different __syncthreads, lines " + std::to_string(block.barrier.line) +
              " and " + std::to_string(place.line));
    }
    block.barrier = place;
    const unsigned phase = block.phase & 1;
    block.votes[phase] += predicate != 0;
    if (++block.arrived < block.threads) {
        wait("__syncthreads", place);
        return block.votes[phase];
    }
    block.arrived = 0;
    ++block.phase;
    block.votes[block.phase & 1] = 0;
    for (Thread* thread : block.members) {
        if (thread != self) wake(thread);
    }
    now->ready.push_back(self);  // the last to arrive is not the first to go on
    wait(nullptr, {});
    return block.votes[phase];
}

void sync_threads(Place place) {
    sync_threads_count(0, place);
}

const uint64_t* exchange(unsigned mask, uint64_t value, const char* operation, Place place) {
    Warp& warp = *self->warp;
    const unsigned bit = 1u << self->lane;
    if ((mask & bit) == 0) fault(std::string(operation) + ": the calling lane is not in the mask");
    if ((mask & ~warp.alive) != 0) fault(std::string(operation) + ": a lane of the mask has returned");
    if (warp.arrived != 0 && (warp.mask != mask || std::strcmp(warp.operation, operation) != 0)) {
        fault(std::string("lanes of one warp meet in ") + operation + " and " + warp.operation);
    }
    warp.mask = mask;
    warp.operation = operation;
    warp.arrived |= bit;
    const uint64_t* values = warp.slot[warp.phase];
    warp.slot[warp.phase][self->lane] = value;
    if (warp.arrived != mask) {
        wait(operation, place);
        return values;
    }
    warp.arrived = 0;
    warp.phase ^= 1;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((mask & ~bit) >> lane & 1) wake(warp.lanes[lane]);
    }
    return values;
}

void* shared_fixed(const void* declaration, size_t bytes, size_t) {
    SharedArray& array = self->block->fixed[declaration];
    return array.memory ? array.memory.get() : allocate(array, bytes);
}

void* shared_dynamic(size_t offset, size_t bytes, size_t) {
    if (offset + bytes > launch_now->dynamic_bytes) {
        fault("dynamic shared memory: " + std::to_string(offset + bytes) + " bytes used, " +
              std::to_string(launch_now->dynamic_bytes) + " launched with");
    }
    SharedArray& array = self->block->dynamic[offset];
    if (!array.memory) return allocate(array, bytes);
    if (array.bytes != bytes) fault("two arrays at one offset of dynamic shared memory");
    return array.memory.get();
}

}  // namespace emulation
