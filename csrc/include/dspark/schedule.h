// The prefix scheduler (algorithm, section 3): which leading draft tokens of each request are verified.
#pragma once

#include <cstdint>

namespace dspark {

struct ScheduleProblem {
    int64_t requests, gamma;
    const float* confidence;  // [requests, gamma], row stride below
    int64_t confidence_row;
    const int64_t* limits;  // [requests]; clipped to 0..gamma
    int64_t* lengths;       // out [requests]
};

// Admits candidates by descending survival while (R + sum of survivals) / seconds[R + K] strictly improves, and stops
// at the first that does not. `seconds` has the round's time for every total of verified tokens 0 .. R (1 + gamma).
// Returns K, the number admitted.
int64_t causal_scan(const ScheduleProblem& problem, const double* seconds);

// The K that maximises (R + sum of the K largest survivals) / seconds[R + K]; the smallest of equals. `lengths` is not
// used. For confidences of an earlier round only: over this round's own it would be biased.
int64_t best_budget(const ScheduleProblem& problem, const double* seconds);

// The `budget` candidates with the largest survival. Returns how many there were, at most `budget`.
int64_t top_candidates(const ScheduleProblem& problem, int64_t budget);

}  // namespace dspark
