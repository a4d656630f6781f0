// Scanning, selecting, softmax over one row, in terms of V. Included once per instruction set (see row_kernels_*.cpp).

namespace dspark::DSPARK_ISA {

constexpr float kInf = __builtin_inff();
constexpr int kBlockVectors = kBlock / V::W;

inline F load(const float* p) {
    return V::load(p);
}
inline F load(const Bf16* p) {
    return V::load(p);
}
inline F load(const Half* p) {
    return load_half(p);
}

// One block of a row, `fill` past its `count` elements.
template <typename T>
struct Block {
    F x[kBlockVectors];

    Block(const T* p, int64_t count, float fill) {
        if (count >= kBlock) {
            for (int i = 0; i < kBlockVectors; ++i) x[i] = load(p + i * V::W);
            return;
        }
        T padded[kBlock];
        float wide[kBlock];
        for (int i = 0; i < kBlock; ++i) padded[i] = i < count ? p[i] : T{};
        for (int i = 0; i < kBlockVectors; ++i) load(padded + i * V::W).store(wide + i * V::W);
        for (int i = static_cast<int>(count); i < kBlock; ++i) wide[i] = fill;
        for (int i = 0; i < kBlockVectors; ++i) x[i] = V::load(wide + i * V::W);
    }
    // NaN is left out.
    F largest() const {
        F top = fset(-kInf);
        for (int i = 0; i < kBlockVectors; ++i) top = V::max(x[i], top);
        return top;
    }
};

// Asks for what a pass over a row reaches soon: 2 KiB ahead made the pass 10 to 20 % faster than the hardware alone, on
// a 2-core Xeon with AMX (bench_ops.py, sparse, batch 64).
template <typename T>
inline void prefetch_block(const T* p) {
    const char* ahead = reinterpret_cast<const char*>(p) + 2048;
    for (int byte = 0; byte < kBlock * static_cast<int>(sizeof(T)); byte += 64) __builtin_prefetch(ahead + byte);
}

template <typename T>
RowScan block_maxima_of(const T* row, int64_t count, float* maxima) {
    float largest = -kInf;
    uint32_t nan = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
        prefetch_block(row + first);
        const Block<T> block(row + first, count - first, -kInf);
        for (int i = 0; i < kBlockVectors; ++i) nan |= mask_nan(block.x[i]);
        const float top = block.largest().largest();
        maxima[first / kBlock] = top;
        largest = top > largest ? top : largest;
    }
    return {largest, nan != 0};
}

template <typename T>
int64_t collect_of(const T* row, int64_t count, const float* maxima, float threshold, int64_t ties, uint64_t* out) {
    int64_t n = 0;
    const F bound = fset(threshold);
    for (int64_t first = 0; first < count; first += kBlock) {
        if (!(maxima[first / kBlock] >= threshold)) continue;
        const Block<T> block(row + first, count - first, __builtin_nanf(""));
        for (int i = 0; i < kBlockVectors; ++i) {
            uint32_t found = mask_at_least(block.x[i], bound);
            if (!found) continue;
            float values[V::W];
            block.x[i].store(values);
            for (; found; found &= found - 1) {
                const int lane = __builtin_ctz(found);
                if (values[lane] == threshold && --ties < 0) continue;
                out[n++] = packed_choice(values[lane], static_cast<uint32_t>(first + i * V::W + lane));
            }
        }
    }
    return n;
}

template <typename T>
void widen_of(const T* row, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + V::W <= count; i += V::W) load(row + i).store(out + i);
    if (i == count) return;
    T padded[V::W] = {};
    float wide[V::W];
    for (int64_t j = i; j < count; ++j) padded[j - i] = row[j];
    load(padded).store(wide);
    for (int64_t j = i; j < count; ++j) out[j] = wide[j - i];
}

template <typename T>
float argmax_of(const T* row, int64_t count, int64_t* index) {
    float largest = -kInf;
    int64_t where = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
        prefetch_block(row + first);
        const float top = Block<T>(row + first, count - first, -kInf).largest().largest();
        if (top > largest) largest = top, where = first;
    }
    *index = where;
    if (largest == -kInf) return largest;
    const Block<T> block(row + where, count - where, -kInf);
    for (int i = 0; i < kBlockVectors; ++i) {
        if (const uint32_t found = mask_equal(block.x[i], fset(largest))) {
            *index = where + i * V::W + __builtin_ctz(found);
            break;
        }
    }
    return largest;
}

// exp((l - largest) / T); NaN and -inf give 0.
inline F weight(F logit, F largest, F inverse_temperature) {
    return V::exp(V::max(fmul(fsub(logit, largest), inverse_temperature), fset(-kInf)));
}

template <typename T>
SoftmaxRow softmax_row_of(const T* row, int64_t count, float inverse_temperature) {
    // A chunk stays in the first-level cache between finding its maximum and adding it up.
    constexpr int64_t kChunk = 16 * kBlock;
    float largest = -kInf;
    double total = 0.0;
    for (int64_t start = 0; start < count; start += kChunk) {
        const int64_t end = start + kChunk < count ? start + kChunk : count;
        F top = fset(-kInf);
        for (int64_t first = start; first < end; first += kBlock) {
            prefetch_block(row + first);
            top = V::max(Block<T>(row + first, count - first, -kInf).largest(), top);
        }
        const float chunk_top = top.largest();
        if (chunk_top > largest) {
            float scale[V::W];
            weight(fset(largest), fset(chunk_top), fset(inverse_temperature)).store(scale);
            total *= static_cast<double>(scale[0]);
            largest = chunk_top;
        }
        if (!is_finite(largest)) continue;
        F sum[kBlockVectors];
        for (F& s : sum) s = V::zero();
        for (int64_t first = start; first < end; first += kBlock) {
            const Block<T> block(row + first, count - first, -kInf);
            for (int i = 0; i < kBlockVectors; ++i) {
                sum[i] = fadd(sum[i], weight(block.x[i], fset(largest), fset(inverse_temperature)));
            }
        }
        for (F& s : sum) total += sum_double(s);
    }
    const bool exists = is_finite(largest) && total > 0.0;
    return {largest, inverse_temperature, exists ? static_cast<float>(1.0 / total) : 0.0f};
}

template <typename T>
void softmax_probs_of(const SoftmaxRow& softmax, const T* row, int64_t count, float* out) {
    const F largest = fset(softmax.largest), inverse = fset(softmax.inverse_temperature);
    for (int64_t first = 0; first < count; first += kBlock) {
        const Block<T> block(row + first, count - first, -kInf);
        float wide[kBlock];
        float* to = count - first >= kBlock ? out + first : wide;
        for (int i = 0; i < kBlockVectors; ++i) {
            fmul(weight(block.x[i], largest, inverse), fset(softmax.inverse_total)).store(to + i * V::W);
        }
        if (to == wide) __builtin_memcpy(out + first, wide, (count - first) * sizeof(float));
    }
}

inline double residual(float* p, const float* q, int64_t count) {
    double total = 0.0;
    int64_t i = 0;
    for (; i + V::W <= count; i += V::W) {
        const F left = V::max(fsub(V::load(p + i), q ? V::load(q + i) : V::zero()), V::zero());
        left.store(p + i);
        total += sum_double(left);
    }
    for (; i < count; ++i) {
        p[i] = residual_weight(p[i], q ? q[i] : 0.0f);
        total += static_cast<double>(p[i]);
    }
    return total;
}

// f(typed pointer) for the type a row has.
template <typename G>
inline auto typed(Row row, G f) {
    switch (row.dtype) {
        case Dtype::bf16:
            return f(static_cast<const Bf16*>(row.data));
        case Dtype::f16:
            return f(static_cast<const Half*>(row.data));
        default:
            return f(static_cast<const float*>(row.data));
    }
}

inline RowScan block_maxima(Row row, int64_t count, float* maxima) {
    return typed(row, [=](auto* p) { return block_maxima_of(p, count, maxima); });
}
inline int64_t collect(Row row, int64_t count, const float* maxima, float threshold, int64_t ties, uint64_t* out) {
    return typed(row, [=](auto* p) { return collect_of(p, count, maxima, threshold, ties, out); });
}
inline void widen(Row row, int64_t count, float* out) {
    typed(row, [=](auto* p) { widen_of(p, count, out); });
}
inline float argmax(Row row, int64_t count, int64_t* index) {
    return typed(row, [=](auto* p) { return argmax_of(p, count, index); });
}
inline SoftmaxRow softmax_row(Row row, int64_t count, float inverse_temperature) {
    return typed(row, [=](auto* p) { return softmax_row_of(p, count, inverse_temperature); });
}
inline void softmax_probs(const SoftmaxRow& softmax, Row row, int64_t count, float* out) {
    typed(row, [&](auto* p) { softmax_probs_of(softmax, p, count, out); });
}

}  // namespace dspark::DSPARK_ISA
