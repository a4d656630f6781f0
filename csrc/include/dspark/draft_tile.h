// Dot products and draws of the sequential loop, in terms of V. Included once per instruction set, after row_tile.h.

namespace dspark::DSPARK_ISA {

#include "dspark/random_impl.h"

// The order in which `dots` reads a vector: as it is for fp32 weights; for bf16 weights the even and the odd elements
// of every 2 W apart, because that is how the weights come out of a register.
inline void arrange(const float* x, int64_t count, Dtype weights, float* out) {
    const int64_t step = weights == Dtype::bf16 ? 2 * V::W : V::W;
    for (int64_t i = 0; i < arranged_size(count); ++i) {
        const int64_t within = i % step, start = i - within;
        const int64_t from = start + (weights != Dtype::bf16 ? within
                                      : within < V::W        ? 2 * within
                                                             : 2 * (within - V::W) + 1);
        out[i] = from < count ? x[from] : 0.0f;
    }
}

// sum[m][n] += one step of weights times one step of vectors. Every pair has one accumulator: its value does not depend
// on the M and N it is computed with.
template <int M, int N>
inline void accumulate(const float* const* w, const float* x, int64_t x_stride, F (*sum)[N]) {
    F left[M];
    for (int m = 0; m < M; ++m) left[m] = V::load(x + m * x_stride);
    for (int n = 0; n < N; ++n) {
        const F right = V::load(w[n]);
        for (int m = 0; m < M; ++m) sum[m][n] = V::fma(right, left[m], sum[m][n]);
    }
}

template <int M, int N>
inline void accumulate(const Bf16* const* w, const float* x, int64_t x_stride, F (*sum)[N]) {
    F left[M], right[M];
    for (int m = 0; m < M; ++m) left[m] = V::load(x + m * x_stride), right[m] = V::load(x + m * x_stride + V::W);
    for (int n = 0; n < N; ++n) {
        F even, odd;
        load_pair(w[n], even, odd);
        for (int m = 0; m < M; ++m) sum[m][n] = V::fma(even, left[m], sum[m][n]);
        for (int m = 0; m < M; ++m) sum[m][n] = V::fma(odd, right[m], sum[m][n]);
    }
}

template <int M, int N, typename T>
inline void dot_tile(const T* const* rows, int64_t columns, const float* x, int64_t x_stride, float (*out)[N]) {
    constexpr int kStep = sizeof(T) == 2 ? 2 * V::W : V::W;
    F sum[M][N];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) sum[m][n] = V::zero();
    const T* w[N];
    int64_t i = 0;
    for (; i + kStep <= columns; i += kStep) {
        for (int n = 0; n < N; ++n) w[n] = rows[n] + i;
        accumulate<M, N>(w, x + i, x_stride, sum);
    }
    if (i < columns) {
        T padded[N][kStep];
        for (int n = 0; n < N; ++n) {
            for (int j = 0; j < kStep; ++j) padded[n][j] = i + j < columns ? rows[n][i + j] : T{};
            w[n] = padded[n];
        }
        accumulate<M, N>(w, x + i, x_stride, sum);
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; n += 4) V::sum4(sum[m][n], sum[m][n + 1], sum[m][n + 2], sum[m][n + 3], out[m] + n);
}

template <int M, int N, typename T>
void dots_of(const Matrix& w, const int32_t* ids, int64_t first, int64_t count, const float* x, int64_t x_stride,
             float* out, int64_t out_stride) {
    const T* data = static_cast<const T*>(w.data);
    // Gathered rows lie anywhere: ask for those of the next tile while this one is computed.
    const int64_t lines = ids ? w.columns * static_cast<int64_t>(sizeof(T)) : 0;
    for (int64_t i = 0; i < count; i += N) {
        const T* rows[N];
        for (int n = 0; n < N; ++n) {
            const int64_t at = i + n < count ? i + n : count - 1;
            rows[n] = data + (ids ? ids[at] : first + at) * w.stride;
            if (i + n + N < count) {
                const char* next = reinterpret_cast<const char*>(data + (ids ? ids[at + N] : 0) * w.stride);
                for (int64_t byte = 0; byte < lines; byte += 64) __builtin_prefetch(next + byte);
            }
        }
        float tile[M][N];
        dot_tile<M, N>(rows, w.columns, x, x_stride, tile);
        const int64_t valid = count - i < N ? count - i : N;
        for (int m = 0; m < M; ++m)
            for (int64_t n = 0; n < valid; ++n) out[m * out_stride + i + n] = tile[m][n];
    }
}

template <typename T>
void dots_typed(const Matrix& w, const int32_t* ids, int64_t first, int64_t count, const float* x, int64_t x_stride,
                int rows, float* out, int64_t out_stride) {
    constexpr int kWide = V::W == 16 ? 4 : 2;  // rows at once: 32 registers, or 16
    constexpr int kNarrow = V::W == 16 ? 8 : 4;
    while (rows >= kWide) {
        dots_of<kWide, 4, T>(w, ids, first, count, x, x_stride, out, out_stride);
        rows -= kWide, x += kWide * x_stride, out += kWide * out_stride;
    }
    for (; rows > 0; --rows, x += x_stride, out += out_stride) {
        dots_of<1, kNarrow, T>(w, ids, first, count, x, x_stride, out, out_stride);
    }
}

inline void dots(const Matrix& w, const int32_t* ids, int64_t first, int64_t count, const float* x, int64_t x_stride,
                 int rows, float* out, int64_t out_stride) {
    if (w.dtype == Dtype::bf16) {
        dots_typed<Bf16>(w, ids, first, count, x, x_stride, rows, out, out_stride);
    } else {
        dots_typed<float>(w, ids, first, count, x, x_stride, rows, out, out_stride);
    }
}

// Here packed vectors are the vectors.
inline int64_t pack_size(const Matrix& w, int64_t rows) {
    return rows * arranged_size(w.columns);
}

inline void pack(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, float* out) {
    const int64_t size = arranged_size(w.columns);
    for (int64_t row = 0; row < rows; ++row)
        __builtin_memcpy(out + row * size, x + row * x_stride, size * sizeof(float));
}

inline void packed_dots(const Matrix& w, const float* packed, int64_t row, int rows, int64_t first, int64_t count,
                        float* out, int64_t out_stride) {
    const int64_t size = arranged_size(w.columns);
    dots(w, nullptr, first, count, packed + row * size, size, rows, out, out_stride);
}

inline Words draft_words(const NoiseKey& key, uint32_t position, U index) {
    return philox(uor(index, uset(counter(Purpose::draft, position, 0))), uset(key.round),
                  uset(static_cast<uint32_t>(key.stream)), uset(static_cast<uint32_t>(key.stream >> 32)),
                  static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
}

// Noise of the 64 tokens of one block, in token order; `first` is a multiple of 64.
inline void block_noise(const NoiseKey& key, uint32_t position, int32_t first, F* out) {
    constexpr int kLanes = 16 / V::W;
    if (key.coupled) {
        const uint32_t prefix = coupled_prefix(key, position);
        for (int i = 0; i < kBlockVectors; ++i) {
            out[i] = gumbel(coupled_word(prefix, uadd(ulane(), uset(static_cast<uint32_t>(first + i * V::W)))));
        }
        return;
    }
    for (int part = 0; part < kLanes; ++part) {
        const U index = uadd(ulane(), uset(static_cast<uint32_t>(first / 4 + part * V::W)));
        const Words words = draft_words(key, position, index);
        for (int word = 0; word < 4; ++word) out[word * kLanes + part] = gumbel(words.w[word]);
    }
}

inline void draft_noise(const NoiseKey& key, uint32_t position, int32_t first, float* out) {
    F noise[kBlockVectors];
    block_noise(key, position, first, noise);
    for (int i = 0; i < kBlockVectors; ++i) noise[i].store(out + i * V::W);
}

template <typename T>
inline void add_bias(Block<T>& block, const float* bias, int count) {
    if (!bias) return;
    float padded[kBlock] = {};
    if (count < kBlock) bias = static_cast<const float*>(__builtin_memcpy(padded, bias, count * sizeof(float)));
    for (int i = 0; i < kBlockVectors; ++i) block.x[i] = fadd(block.x[i], V::load(bias + i * V::W));
}

// z = (l - shift) / T. The bound keeps a finite logit finite at a tiny temperature.
inline F scaled(F logit, const DenseRow& row) {
    const F z = fmul(fsub(logit, fset(row.shift)), fset(row.inverse_temperature));
    return V::min(fset(3e38f), z);
}

inline void take_best(DenseState* state, const F* keys, float best, int32_t first) {
    for (int i = 0; i < kBlockVectors; ++i) {
        if (const uint32_t found = mask_equal(keys[i], fset(best))) {
            state->best_key = best;
            state->best = first + i * V::W + __builtin_ctz(found);
            return;
        }
    }
}

template <typename T>
void dense_block_of(DenseState* state, const DenseRow& row, const T* base, const float* bias, int32_t first,
                    int count) {
    Block<T> block(base, count, -kInf);
    add_bias(block, bias, count);
    uint32_t nan = 0;
    for (int i = 0; i < kBlockVectors; ++i) nan |= mask_nan(block.x[i]);
    const F infinity = fset(kInf);
    F top = fset(-kInf);
    if (row.inverse_temperature == 0.0f) {
        top = block.largest();
        const float largest = top.largest();
        state->spoiled |= nan != 0 || largest == kInf;
        if (largest > state->best_key) take_best(state, block.x, largest, first);
        return;
    }
    uint32_t infinite = 0;
    F z[kBlockVectors];
    for (int i = 0; i < kBlockVectors; ++i) {
        infinite |= mask_equal(block.x[i], infinity);
        z[i] = scaled(block.x[i], row);
        top = V::max(z[i], top);
    }
    state->spoiled |= (nan | infinite) != 0;
    const float largest = top.largest();
    if (largest == -kInf) return;
    if (largest > state->largest) {
        float scale[V::W];
        V::exp(fset(state->largest - largest)).store(scale);
        state->total *= static_cast<double>(scale[0]);
        state->largest = largest;
    }
    F sum = V::zero();
    for (int i = 0; i < kBlockVectors; ++i) sum = fadd(sum, V::exp(fsub(z[i], fset(state->largest))));
    state->total += static_cast<double>(sum.sum());
    // No noise can lift this block over the best key so far (rounding is monotone).
    if (largest + kGumbelMax <= state->best_key) return;
    F keys[kBlockVectors];
    block_noise(row.key, row.position, first, keys);
    top = fset(-kInf);
    for (int i = 0; i < kBlockVectors; ++i) {
        keys[i] = fadd(z[i], keys[i]);
        top = V::max(keys[i], top);
    }
    const float best = top.largest();
    if (best > state->best_key) take_best(state, keys, best, first);
}

inline void dense_block(DenseState* state, const DenseRow& row, Row base, const float* bias, int32_t first, int count) {
    typed(base, [&](auto* p) { dense_block_of(state, row, p, bias, first, count); });
}

inline void dense_probs(const DenseRow& row, Row base, const float* bias, int64_t count, float log_sum, float* out) {
    typed(base, [&](auto* p) {
        for (int64_t first = 0; first < count; first += kBlock) {
            using T = std::remove_const_t<std::remove_reference_t<decltype(*p)>>;
            const int valid = static_cast<int>(count - first < kBlock ? count - first : kBlock);
            Block<T> block(p + first, valid, -kInf);
            add_bias(block, bias ? bias + first : nullptr, valid);
            float wide[kBlock];
            for (int i = 0; i < kBlockVectors; ++i) {
                V::exp(fsub(scaled(block.x[i], row), fset(log_sum))).store(wide + i * V::W);
            }
            __builtin_memcpy(out + first, wide, valid * sizeof(float));
        }
    });
}

// The vectors of a short list, `fill` past the end.
inline F load_list(const float* p, int left, float fill) {
    if (left >= V::W) return V::load(p);
    float padded[V::W];
    for (int i = 0; i < V::W; ++i) padded[i] = i < left ? p[i] : fill;
    return V::load(padded);
}

inline double sparse_weights(const float* logits, int count, float largest, float inverse_temperature, float* probs) {
    double total = 0.0;
    for (int i = 0; i < count; i += V::W) {
        const F w = weight(load_list(logits + i, count - i, -kInf), fset(largest), fset(inverse_temperature));
        float lanes[V::W];
        w.store(lanes);
        __builtin_memcpy(probs + i, lanes, (count - i < V::W ? count - i : V::W) * sizeof(float));
        total += sum_double(w);
    }
    return total;
}

// The word of every token's noise; `token` may hold any tokens.
inline U token_words(const NoiseKey& key, uint32_t position, U token) {
    if (key.coupled) return coupled_word(coupled_prefix(key, position), token);
    const U which = uand(ushr<4>(token), uset(3));
    const Words words = draft_words(key, position, uor(ushl<4>(ushr<6>(token)), uand(token, uset(15))));
    U word = words.w[0];
    for (uint32_t w = 1; w < 4; ++w) word = uselect_equal(which, uset(w), words.w[w], word);
    return word;
}

inline int sparse_draw(const float* logits, const int32_t* ids, const uint8_t* keep, int count, float largest,
                       float inverse_temperature, const NoiseKey& key, uint32_t position) {
    float best = -kInf;
    int choice = 0;
    int32_t choice_id = 0;
    for (int i = 0; i < count; i += V::W) {
        const int left = count - i < V::W ? count - i : V::W;
        int32_t tokens[V::W] = {};
        __builtin_memcpy(tokens, ids + i, left * sizeof(int32_t));
        const U word = token_words(key, position, uload(tokens));
        const F logit = load_list(logits + i, left, -kInf);
        const F z = fmul(fsub(logit, fset(largest)), fset(inverse_temperature));
        float keys[V::W];
        fadd(z, gumbel(word)).store(keys);
        for (int lane = 0; lane < left; ++lane) {
            if (keep && !keep[i + lane]) continue;
            if (keys[lane] > best || (keys[lane] == best && best > -kInf && tokens[lane] < choice_id)) {
                best = keys[lane], choice = i + lane, choice_id = tokens[lane];
            }
        }
    }
    return choice;
}

// The token at which the exponential race of p is won, E / p smallest, E = -log(hash / (2^32 - 1)): the argmax of
// log p plus the engine's seeded noise. E >= 1 - hash / (2^32 - 1) decides almost every token without a logarithm; for
// the rest the engine's own float64 formula is used.
inline int64_t seeded_pick(const float* p, int64_t count, uint32_t prefix) {
    double best = -__builtin_inf();
    float ratio = 0x1.8p127f;  // no token that can win has E / p above it
    int64_t choice = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
        const int64_t here = count - first < kBlock ? count - first : kBlock;
        F chance = fset(-1.0f);
        for (int64_t i = 0; i < here; i += V::W) {
            const F weight = load_list(p + first + i, static_cast<int>(here - i), 0.0f);
            const U token = uadd(ulane(), uset(static_cast<uint32_t>(first + i)));
            const F least = fmul(to_float(coupled_word(prefix, token)), fset(0.99999f * 0x1p-32f));
            chance = V::max(fsub(fmul(weight, fset(ratio)), least), chance);
        }
        if (chance.largest() < 0.0f) continue;
        for (int64_t token = first; token < first + here; ++token) {
            const uint32_t hash = one::seeded_hash(prefix, static_cast<uint32_t>(token));
            const double key = seeded_key(p[token], hash);
            if (key > best) {
                best = key, choice = token;
                const double least = std::exp(-key) * 1.00001;
                ratio = least < 0x1p127 ? static_cast<float>(least) : ratio;
            }
        }
    }
    return choice;
}

inline const RowKernels& kernels() {
    static constexpr RowKernels table = {
        block_maxima,  collect,     widen,       arrange,     dots,           4,           pack_size, pack,
        packed_dots,   draft_noise, dense_block, dense_probs, sparse_weights, sparse_draw, argmax,    softmax_row,
        softmax_probs, residual,    seeded_pick};
    return table;
}

}  // namespace dspark::DSPARK_ISA
