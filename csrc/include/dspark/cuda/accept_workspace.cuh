// What the accept's kernels hand to each other.
#pragma once

#include "dspark/cuda/target_row.cuh"

namespace dspark::cuda {

// A draw from (p - q)^+ of a dense q, left to the kernels that recompute q. position -1: none.
struct Pending {
    int32_t position;
    int32_t row;
    TargetRow target;
};

struct AcceptWorkspace {
    unsigned* arrived;  // [kCounters], a request each, zero between launches
    PieceStats* stats;  // [M, pieces]
    Pending* pending;   // [B], dense only
    double* sums;       // [B, pieces], dense only
    size_t bytes;

    AcceptWorkspace(void* base, int64_t batch, int64_t rows, int64_t pieces, bool dense) : bytes(0) {
        auto* start = static_cast<unsigned char*>(base);
        const auto take = [&](size_t wanted) {
            unsigned char* at = start + bytes;
            bytes += (wanted + 15) / 16 * 16;
            return at;
        };
        arrived = reinterpret_cast<unsigned*>(take(kCounters * sizeof(unsigned)));
        stats = reinterpret_cast<PieceStats*>(take(rows * pieces * sizeof(PieceStats)));
        pending = reinterpret_cast<Pending*>(take(dense ? batch * sizeof(Pending) : 0));
        sums = reinterpret_cast<double*>(take(dense ? batch * pieces * sizeof(double) : 0));
    }
};

inline int64_t pieces_of(int64_t vocab) {
    return (vocab + kPiece - 1) / kPiece;
}

// Runs after accept's first kernel: draws of requests whose Pending was set (accept_dense.cu).
cudaError_t accept_dense(const Accept& p, const AcceptWorkspace& w, void* stream);

}  // namespace dspark::cuda
