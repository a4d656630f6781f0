// Splits a batch into tiles and runs them. The arithmetic is in attention_tile.h, once per instruction set.
#include "dspark/attention.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dspark {
namespace {

// Multiply-adds below which a second thread costs more to wake than it saves (about 20 us on a 2-core machine).
constexpr int64_t kWorkPerThread = 1 << 20;

AttentionKernel kernel_for(Isa isa) {
#if DSPARK_X86
    if (isa == Isa::avx512) return attention_kernel_avx512();
    if (isa == Isa::avx2) return attention_kernel_avx2();
#endif
    return attention_kernel_scalar();
}

// Longest tiles first within a request, so that a dynamic schedule ends evenly.
std::vector<AttentionTile> make_tiles(const PagedAttention& p, int64_t tile_rows) {
    std::vector<AttentionTile> tiles;
    const int64_t group = p.heads / p.kv_heads;
    int64_t mask_at = 0;
    for (int64_t request = 0; request < p.requests; ++request) {
        const int64_t count = p.query_start[request + 1] - p.query_start[request];
        const int64_t pairs = count * group;
        for (int64_t tile = (pairs + tile_rows - 1) / tile_rows - 1; tile >= 0; --tile) {
            const int64_t first = tile * tile_rows;
            for (int64_t head = 0; head < p.kv_heads; ++head) {
                tiles.push_back({request, head, first, std::min(tile_rows, pairs - first), mask_at});
            }
        }
        mask_at += count * count;
    }
    return tiles;
}

int64_t total_work(const PagedAttention& p) {
    int64_t work = 0;
    for (int64_t i = 0; i < p.requests; ++i) {
        work += (p.query_start[i + 1] - p.query_start[i]) * p.kv_lens[i];
    }
    return work * p.heads * (p.dim + p.v_dim);
}

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};

// Kept for the thread's life: a buffer of this size would come from and go back to the kernel at every call.
float* thread_scratch(size_t floats) {
    thread_local std::unique_ptr<float, Free> memory;
    thread_local size_t size = 0;
    if (size < floats) {
        const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
        memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
        if (!memory) throw std::bad_alloc();
        size = floats;
    }
    return memory.get();
}

}  // namespace

void paged_attention(const PagedAttention& p, Isa isa, int threads) {
    const AttentionKernel kernel = kernel_for(isa);
    const std::vector<AttentionTile> tiles = make_tiles(p, kernel.tile_rows);
    const int64_t count = static_cast<int64_t>(tiles.size());
    if (count == 0) return;
    const size_t floats = kernel.scratch_floats(p);
    const int64_t useful = std::min<int64_t>(count, 1 + total_work(p) / kWorkPerThread);
    const int team = static_cast<int>(std::clamp<int64_t>(useful, 1, std::max(threads, 1)));
    BadSlot bad{};
#if defined(_OPENMP)
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
#endif
    for (int64_t i = 0; i < count; ++i) {
        const BadSlot found = kernel.run(p, tiles[i], thread_scratch(floats));
        if (found.found) {
#if defined(_OPENMP)
#pragma omp critical(dspark_bad_slot)
#endif
            bad = found;
        }
    }
    if (bad.found) {
        throw std::out_of_range("req_to_token: slot " + std::to_string(bad.slot) + " at position " +
                                std::to_string(bad.column) + " of request " + std::to_string(bad.request) +
                                " is outside the KV buffer of " + std::to_string(p.slots) + " slots");
    }
}

}  // namespace dspark
