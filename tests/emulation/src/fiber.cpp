#include "emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {
namespace {

// Kernels keep small frames, but AddressSanitizer pads every local and its report writer needs room.
constexpr size_t kStack = 128 * 1024;
size_t guard() {
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

thread_local Fiber* starting = nullptr;

}  // namespace

// Saves the callee-saved registers of the System V ABI; the rest is dead across a call.
#if defined(__x86_64__)
extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");
#endif

void fiber_main() {
    starting->run();
    __builtin_unreachable();  // run() suspends for good
}

Fiber::Fiber() {
    void* memory =
        mmap(nullptr, guard() + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("emulation: no memory for a fiber's stack");
    memory_ = static_cast<char*>(memory);
    mprotect(memory_, guard(), PROT_NONE);
    stack_ = memory_ + guard();
}

Fiber::~Fiber() {
    if (memory_ != nullptr) munmap(memory_, guard() + kStack);
}

void Fiber::start(void (*entry)(void*), void* argument) {
    entry_ = entry;
    argument_ = argument;
    finished_ = false;
#if defined(__SANITIZE_ADDRESS__)
    fake_stack_ = nullptr;
#endif
#if defined(__x86_64__)
    auto* top = reinterpret_cast<uint64_t*>(stack_ + kStack);
    *--top = 0;  // the return address of fiber_main, never used; 8 past a multiple of 16, as at any function's entry
    *--top = reinterpret_cast<uint64_t>(&fiber_main);
    for (int i = 0; i < 6; ++i) *--top = 0;
    stack_pointer_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStack;
    context_.uc_link = nullptr;
    makecontext(&context_, &fiber_main, 0);
#endif
}

void Fiber::run() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_stack_size_);
#endif
    entry_(argument_);
    finished_ = true;
    suspend(true);
}

void Fiber::resume() {
    starting = this;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stack_, kStack);
#endif
#if defined(__x86_64__)
    emulation_switch(&scheduler_pointer_, stack_pointer_);
#else
    swapcontext(&scheduler_context_, &context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::suspend([[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, scheduler_stack_, scheduler_stack_size_);
#endif
#if defined(__x86_64__)
    emulation_switch(&stack_pointer_, scheduler_pointer_);
#else
    swapcontext(&context_, &scheduler_context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_stack_size_);
#endif
}

}  // namespace emulation
