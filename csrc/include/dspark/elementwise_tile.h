// Rows of the elementwise operations in terms of the vector type V; see attention_tile.h for how this is included.

#include "dspark/convert.h"

namespace dspark::DSPARK_ISA {

inline void store(V x, float* out) {
    x.store(out);
}
inline void store(V x, Bf16* out) {
    float lanes[V::W];
    x.store(lanes);
    for (int i = 0; i < V::W; ++i) from_float(lanes[i], out + i);
}
template <typename T>
void store_n(V x, T* out, int n) {
    float lanes[V::W];
    x.store(lanes);
    for (int i = 0; i < n; ++i) from_float(lanes[i], out + i);
}

// f(offset, count): whole vectors first, then the remainder.
#define DSPARK_FOR_VECTORS(i, n, width) \
    for (int64_t i = 0, n; n = (width) - i < V::W ? (width) - i : V::W, i < (width); i += V::W)

template <typename T>
V load_some(const T* p, int64_t n) {
    return n == V::W ? V::load(p) : V::load_n(p, static_cast<int>(n));
}
template <typename T>
void store_some(V x, T* p, int64_t n) {
    if (n == V::W)
        store(x, p);
    else
        store_n(x, p, static_cast<int>(n));
}

template <typename T>
void rms_norm_rows(const RmsNorm& p, int64_t begin, int64_t end) {
    const T* weight = static_cast<const T*>(p.weight);
    for (int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(p.x) + row * p.x_row;
        const T* residual = p.residual == nullptr ? nullptr : static_cast<const T*>(p.residual) + row * p.residual_row;
        T* out = static_cast<T*>(p.out) + row * p.width;
        V squares = V::zero();
        DSPARK_FOR_VECTORS(i, n, p.width) {
            V value = load_some(x + i, n);
            if (residual != nullptr) value = V::add(value, load_some(residual + i, n));
            squares = V::fma(value, value, squares);
        }
        const float mean = squares.sum() / static_cast<float>(p.width);
        const V factor = V::set1(1.0f / __builtin_sqrtf(mean + p.eps));
        DSPARK_FOR_VECTORS(i, n, p.width) {
            V value = load_some(x + i, n);
            if (residual != nullptr) {
                value = V::add(value, load_some(residual + i, n));
                store_some(value, static_cast<T*>(p.sum) + row * p.width + i, n);
            }
            store_some(V::mul(V::mul(value, factor), load_some(weight + i, n)), out + i, n);
        }
    }
}

template <typename T>
void silu_and_mul_rows(const SiluAndMul& p, int64_t begin, int64_t end) {
    const V one = V::set1(1.0f);
    for (int64_t row = begin; row < end; ++row) {
        const T *gate = static_cast<const T*>(p.x) + row * p.x_row, *up = gate + p.width;
        T* out = static_cast<T*>(p.out) + row * p.width;
        DSPARK_FOR_VECTORS(i, n, p.width) {
            const V g = load_some(gate + i, n);
            const V silu = V::div(g, V::add(one, V::exp(V::sub(V::zero(), g))));
            store_some(V::mul(silu, load_some(up + i, n)), out + i, n);
        }
    }
}

template <typename T>
void rotary_rows(const Rotary& p, int64_t begin, int64_t end) {
    const int64_t half = p.rotary_dim / 2;
    for (int64_t row = begin; row < end; ++row) {
        const float* cos = p.cos_sin + p.positions[row] * p.rotary_dim;
        const float* sin = cos + half;
        for (int64_t head = 0; head < p.heads; ++head) {
            const T* x = static_cast<const T*>(p.x) + row * p.x_row + head * p.head_dim;
            T* out = static_cast<T*>(p.out) + (row * p.heads + head) * p.head_dim;
            if (p.neox) {
                DSPARK_FOR_VECTORS(i, n, half) {
                    const V a = load_some(x + i, n), b = load_some(x + half + i, n);
                    const V c = load_some(cos + i, n), s = load_some(sin + i, n);
                    store_some(V::sub(V::mul(a, c), V::mul(b, s)), out + i, n);
                    store_some(V::fma(b, c, V::mul(a, s)), out + half + i, n);
                }
            } else {
                for (int64_t i = 0; i < half; ++i) {
                    const float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
                    from_float(a * cos[i] - b * sin[i], out + 2 * i);
                    from_float(b * cos[i] + a * sin[i], out + 2 * i + 1);
                }
            }
            for (int64_t i = p.rotary_dim; i < p.head_dim; ++i) out[i] = x[i];
        }
    }
}

inline void rms_norm_any(const RmsNorm& p, int64_t begin, int64_t end) {
    p.bf16 ? rms_norm_rows<Bf16>(p, begin, end) : rms_norm_rows<float>(p, begin, end);
}
inline void silu_and_mul_any(const SiluAndMul& p, int64_t begin, int64_t end) {
    p.bf16 ? silu_and_mul_rows<Bf16>(p, begin, end) : silu_and_mul_rows<float>(p, begin, end);
}
inline void rotary_any(const Rotary& p, int64_t begin, int64_t end) {
    p.bf16 ? rotary_rows<Bf16>(p, begin, end) : rotary_rows<float>(p, begin, end);
}

#undef DSPARK_FOR_VECTORS

inline ElementwiseKernel elementwise_kernel() {
    return {&rms_norm_any, &silu_and_mul_any, &rotary_any};
}

}  // namespace dspark::DSPARK_ISA
