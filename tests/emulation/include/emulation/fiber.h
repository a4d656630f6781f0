// One CUDA thread's own stack. Switching costs a few nanoseconds on x86-64; elsewhere ucontext does it.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

class Fiber {
public:
    Fiber();
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Arms the fiber: the next resume() calls entry(argument) on the fiber's stack.
    void start(void (*entry)(void*), void* argument);

    // From the scheduler: runs the fiber until it suspends or its entry returns.
    void resume();

    // From the fiber: back to the scheduler. `last` when it will not be resumed again.
    void suspend(bool last = false);

    bool finished() const { return finished_; }

private:
    friend void fiber_main();
    void run();

    void (*entry_)(void*) = nullptr;
    void* argument_ = nullptr;
    bool finished_ = true;
    char* memory_ = nullptr;  // guard page, then the stack
    char* stack_ = nullptr;
    void* fake_stack_ = nullptr;            // AddressSanitizer's, of this fiber
    void* scheduler_fake_stack_ = nullptr;  // AddressSanitizer's, of the thread that resumed it
    const void* scheduler_stack_ = nullptr;
    size_t scheduler_stack_size_ = 0;
#if defined(__x86_64__)
    void* stack_pointer_ = nullptr;
    void* scheduler_pointer_ = nullptr;
#else
    ucontext_t context_;
    ucontext_t scheduler_context_;
#endif
};

}  // namespace emulation
