// Attention of the last positions of each request over a paged KV cache, in place and for all requests at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dspark/isa.h"
#include "dspark/types.h"

namespace dspark {

// Pointers are borrowed. Strides count elements; the innermost dimension is contiguous everywhere.
struct PagedAttention {
    void* out;                    // [T, heads, v_dim], contiguous, type of q
    const void* q;                // [T, heads, dim]
    const void* k;                // [slots, kv_heads, dim]
    const void* v;                // [slots, kv_heads, v_dim]
    const int32_t* req_to_token;  // [*, table_row]: slot of each position of each request
    const int64_t* req_rows;      // [requests]: row of req_to_token
    const int64_t* query_start;   // [requests + 1]: rows of q of each request; they are its last positions
    const int64_t* kv_lens;       // [requests]: positions to read, own rows included
    const uint8_t* mask;          // null, or per request [n, n]: which of its n rows each row sees
    int64_t requests, heads, kv_heads, dim, v_dim, slots;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, table_row;
    bool q_bf16, kv_bf16;
    bool causal;  // a row sees keys up to its own position; the mask replaces this among own rows
    float scale;
    int64_t window;   // >= 0: a row at position p sees no key before p - window
    float logit_cap;  // > 0: score = cap * tanh(score / cap)
};

// Work of one thread at a time: `rows` of the n * group (row, head) pairs that share a KV head of a request.
struct AttentionTile {
    int64_t request, kv_head, first, rows, mask_at;
};

// A slot outside the KV buffer.
struct BadSlot {
    int64_t request, column, slot;
    bool found = false;
};

// One kernel per instruction set. `scratch` has scratch_floats(p) elements, 64-byte aligned.
struct AttentionKernel {
    int64_t tile_rows;
    size_t (*scratch_floats)(const PagedAttention& p);
    BadSlot (*run)(const PagedAttention& p, const AttentionTile& tile, float* scratch);
};

AttentionKernel attention_kernel_scalar();
#if DSPARK_X86
AttentionKernel attention_kernel_avx2();
AttentionKernel attention_kernel_avx512();
#endif

// Runs all tiles on up to `threads` threads. Throws std::out_of_range for a bad slot, after all threads are done.
void paged_attention(const PagedAttention& p, Isa isa, int threads);

}  // namespace dspark
