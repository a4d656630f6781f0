// Admission in order of packed keys (schedule_keys.h). A survival never rises along a request, so the order of all keys
// is the order in which a heap over the requests' next candidates would yield them.
//
// Keys are spread over buckets by their leading bits, which one pass does, and a bucket is sorted when the scan reaches
// it: an early stop leaves most of them alone, and equal survivals arrive in their final order.
#include "dspark/schedule.h"

#include <algorithm>
#include <vector>

#include "dspark/schedule_keys.h"
#include "dspark/scratch.h"

namespace dspark {
namespace {

struct AllKeys;
struct Spread;
struct Starts;

// Survivals in (0, 1] fall into buckets of 1/64 of a factor of two, the lowest holding everything below 2^-15.
constexpr int kShift = 17;
constexpr uint32_t kOne = 0x3f800000u >> kShift;  // bucket 0: survival 1
constexpr int kBuckets = 15 * 64 + 1;

int bucket_of(uint64_t key) {
    const uint32_t below = kOne - static_cast<uint32_t>(key >> (32 + kShift));
    return static_cast<int>(std::min<uint32_t>(below, kBuckets - 1));
}

// Keys of all candidates with a positive survival, position by position. Returns how many.
int64_t make_keys(const ScheduleProblem& p, uint64_t* keys) {
    float* survival = scratch<ScheduleProblem, float>(p.requests);
    std::fill(survival, survival + p.requests, 1.0f);
    int64_t n = 0;
    for (int64_t k = 0; k < p.gamma; ++k) {
        for (int64_t r = 0; r < p.requests; ++r) {
            const float a = next_survival(survival[r], p.confidence[r * p.confidence_row + k]);
            survival[r] = a;
            keys[n] = candidate_key(a, static_cast<uint32_t>(k), static_cast<uint32_t>(r));
            n += a > 0.0f && k < p.limits[r];
        }
    }
    return n;
}

class Buckets {
public:
    explicit Buckets(const ScheduleProblem& p) {
        const int64_t room = p.requests * p.gamma + 1;
        uint64_t* keys = scratch<AllKeys, uint64_t>(room);
        keys_ = scratch<Spread, uint64_t>(room);
        start_ = scratch<Starts, int64_t>(kBuckets + 1);
        const int64_t n = make_keys(p, keys);
        std::fill(start_, start_ + kBuckets + 1, 0);
        for (int64_t i = 0; i < n; ++i) ++start_[bucket_of(keys[i]) + 1];
        for (int b = 0; b < kBuckets; ++b) start_[b + 1] += start_[b];
        // Filling moves each start to the next bucket's; it is read shifted by one from here on.
        for (int64_t i = 0; i < n; ++i) keys_[start_[bucket_of(keys[i])]++] = keys[i];
    }

    uint64_t* begin(int bucket) const { return keys_ + (bucket == 0 ? 0 : start_[bucket - 1]); }
    uint64_t* end(int bucket) const { return keys_ + start_[bucket]; }

    void sort(int bucket) const {
        uint64_t *first = begin(bucket), *last = end(bucket);
        if (last - first < 2 || std::is_sorted(first, last, std::greater<uint64_t>())) return;
        std::sort(first, last, std::greater<uint64_t>());
    }

private:
    uint64_t* keys_;
    int64_t* start_;
};

}  // namespace

int64_t causal_scan(const ScheduleProblem& p, const double* seconds) {
    std::fill(p.lengths, p.lengths + p.requests, 0);
    if (p.requests == 0) return 0;
    const Buckets buckets(p);
    double tokens = static_cast<double>(p.requests), time = seconds[p.requests];
    int64_t admitted = 0;
    for (int b = 0; b < kBuckets; ++b) {
        buckets.sort(b);
        for (const uint64_t* key = buckets.begin(b); key != buckets.end(b); ++key) {
            const double more = tokens + static_cast<double>(key_survival(*key));
            const double longer = seconds[p.requests + admitted + 1];
            if (!improves(more, longer, tokens, time)) return admitted;
            tokens = more, time = longer;
            ++admitted;
            ++p.lengths[key_request(*key)];
        }
    }
    return admitted;
}

int64_t best_budget(const ScheduleProblem& p, const double* seconds) {
    if (p.requests == 0) return 0;
    const Buckets buckets(p);
    double tokens = static_cast<double>(p.requests);
    double best_tokens = tokens, best_time = seconds[p.requests];
    int64_t best = 0, considered = 0;
    for (int b = 0; b < kBuckets; ++b) {
        buckets.sort(b);
        for (const uint64_t* key = buckets.begin(b); key != buckets.end(b); ++key) {
            tokens += static_cast<double>(key_survival(*key));
            const double time = seconds[p.requests + ++considered];
            if (improves(tokens, time, best_tokens, best_time))
                best = considered, best_tokens = tokens, best_time = time;
        }
    }
    return best;
}

int64_t top_candidates(const ScheduleProblem& p, int64_t budget) {
    std::fill(p.lengths, p.lengths + p.requests, 0);
    if (p.requests == 0 || budget <= 0) return 0;
    const Buckets buckets(p);
    int64_t left = budget;
    for (int b = 0; b < kBuckets && left > 0; ++b) {
        uint64_t *first = buckets.begin(b), *last = buckets.end(b);
        if (last - first > left) {
            std::nth_element(first, first + left, last, std::greater<uint64_t>());
            last = first + left;
        }
        for (const uint64_t* key = first; key != last; ++key) ++p.lengths[key_request(*key)];
        left -= last - first;
    }
    return budget - left;
}

}  // namespace dspark
