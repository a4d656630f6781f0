// Memory that a thread keeps: buffers of these sizes would otherwise come from and go back to the kernel at every call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace dspark {

// `count` elements, 64-byte aligned, contents undefined. One buffer per (Tag, thread): a Tag is used by one function.
template <typename Tag, typename T>
T* scratch(size_t count) {
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local size_t size = 0;
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (size < bytes) {
        memory.reset(std::aligned_alloc(64, bytes));
        if (!memory) throw std::bad_alloc();
        size = bytes;
    }
    return static_cast<T*>(memory.get());
}

}  // namespace dspark
