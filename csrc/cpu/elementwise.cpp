// Splits rows over threads. The arithmetic is in elementwise_tile.h, once per instruction set.
#include "dspark/elementwise.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace dspark {
namespace {

// Elements below which a second thread costs more to wake than it saves (measured on a 2-core machine).
constexpr int64_t kElementsPerThread = 1 << 16;

ElementwiseKernel kernel_for(Isa isa) {
#if DSPARK_X86
    if (isa == Isa::avx512) return elementwise_kernel_avx512();
    if (isa == Isa::avx2) return elementwise_kernel_avx2();
#endif
    return elementwise_kernel_scalar();
}

template <typename P>
void run_rows(void (*rows)(const P&, int64_t, int64_t), const P& p, int64_t row_elements, int threads) {
    const int64_t useful = std::min(p.rows, 1 + p.rows * row_elements / kElementsPerThread);
    const int team = static_cast<int>(std::clamp<int64_t>(useful, 1, std::max(threads, 1)));
#if defined(_OPENMP)
#pragma omp parallel for num_threads(team) schedule(static, 1) if (team > 1)
#endif
    for (int part = 0; part < team; ++part) rows(p, p.rows * part / team, p.rows * (part + 1) / team);
}

}  // namespace

void rms_norm(const RmsNorm& p, Isa isa, int threads) {
    run_rows(kernel_for(isa).rms_norm, p, p.width, threads);
}

void silu_and_mul(const SiluAndMul& p, Isa isa, int threads) {
    run_rows(kernel_for(isa).silu_and_mul, p, 2 * p.width, threads);
}

void rotary(const Rotary& p, Isa isa, int threads) {
    for (int64_t row = 0; row < p.rows; ++row) {
        if (p.positions[row] < 0 || p.positions[row] >= p.max_position) {
            throw std::out_of_range("positions: " + std::to_string(p.positions[row]) + " in row " +
                                    std::to_string(row) + " is outside the " + std::to_string(p.max_position) +
                                    " rows of cos_sin_cache");
        }
    }
    run_rows(kernel_for(isa).rotary, p, p.heads * p.head_dim, threads);
}

}  // namespace dspark
