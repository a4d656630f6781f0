// One attention tile, in terms of the vector type V of an instruction set. Included once per instruction set, with
// DSPARK_ISA set to its namespace and V defined there; no standard container is used, so that nothing compiled for a
// newer CPU is shared with the rest of the program.
//
// The M rows of a tile are (query, head) pairs of one KV head, so each key and value row is read once for all of them.
// Few rows (decoding): lanes run over the head dimension, scores S[m][j]. Many rows (prefill, verification): lanes run
// over the rows, scores S[j][m], and the keys are broadcast. Softmax is online over blocks of kBlock positions.

#include "dspark/convert.h"

namespace dspark::DSPARK_ISA {

constexpr int kBlock = 64;
constexpr int kFewRows = V::W / 2;
constexpr int kTileRows = 4 * V::W;
constexpr int kRowsAtOnce = V::W == 16 ? 4 : 2;  // register blocking: 32 registers, or 16
constexpr float kHidden = -__builtin_inff();

inline int round_up(int64_t n, int64_t step) {
    return static_cast<int>((n + step - 1) / step * step);
}

// Scratch of one thread, carved from one allocation.
struct Scratch {
    float* q;                                                // [M, dim padded], or [dim, M padded]
    float* scores;                                           // [kBlock * kTileRows]
    float* acc;                                              // [M, v_dim padded], not yet divided by `total`
    float* keys;                                             // [kRowsAtOnce, dim], widened
    float *largest, *total, *rescale, *first_key, *end_key;  // [kTileRows]

    static size_t floats(const PagedAttention& p) {
        const size_t dim = round_up(p.dim, V::W), v_dim = round_up(p.v_dim, V::W);
        return kTileRows * (dim + v_dim + kBlock + 5) + kRowsAtOnce * dim;
    }
    Scratch(const PagedAttention& p, float* at) {
        const size_t dim = round_up(p.dim, V::W), v_dim = round_up(p.v_dim, V::W);
        q = at;
        scores = q + kTileRows * dim;
        acc = scores + kTileRows * kBlock;
        keys = acc + kTileRows * v_dim;
        largest = keys + kRowsAtOnce * dim;
        total = largest + kTileRows;
        rescale = total + kTileRows;
        first_key = rescale + kTileRows;
        end_key = first_key + kTileRows;
    }
};

// What a tile knows about its rows.
struct Rows {
    int64_t group, count, prefix, row0;  // heads per KV head, rows of the request, positions before them, row in q
    const AttentionTile& tile;

    int64_t query(int m) const { return (tile.first + m) / group; }
    int64_t head(int m) const { return tile.kv_head * group + (tile.first + m) % group; }
};

template <typename Q>
void load_queries(const PagedAttention& p, const Rows& rows, int m_count, int m_step, int d_step, float* out) {
    for (int m = 0; m < m_count; ++m) {
        const Q* q = static_cast<const Q*>(p.q) + (rows.row0 + rows.query(m)) * p.q_row + rows.head(m) * p.q_head;
        for (int64_t d = 0; d < p.dim; ++d) out[m * m_step + d * d_step] = to_float(q[d]) * p.scale;
    }
}

template <typename Q>
void store_rows(const PagedAttention& p, const Rows& rows, int m_count, const Scratch& s) {
    const int padded = round_up(p.v_dim, V::W);
    for (int m = 0; m < m_count; ++m) {
        Q* out = static_cast<Q*>(p.out) + ((rows.row0 + rows.query(m)) * p.heads + rows.head(m)) * p.v_dim;
        const float inverse = s.total[m] == 0.0f ? 0.0f : 1.0f / s.total[m];
        for (int64_t d = 0; d < p.v_dim; ++d) from_float(s.acc[m * padded + d] * inverse, out + d);
    }
}

// scores[m * kBlock + j] for few rows: MB rows of q against 4 keys at a time.
template <int MB, typename T>
void few_scores(const PagedAttention& p, const T* const* keys, int count, const float* q, float* scores) {
    const int dim = static_cast<int>(p.dim), padded = round_up(dim, V::W);
    for (int j = 0; j < count; j += 4) {
        const T* k[4];
        for (int i = 0; i < 4; ++i) k[i] = keys[j + i < count ? j + i : count - 1];
        V sum[MB][4];
        for (int m = 0; m < MB; ++m)
            for (int i = 0; i < 4; ++i) sum[m][i] = V::zero();
        int d = 0;
        for (; d + V::W <= dim; d += V::W) {
            V key[4];
            for (int i = 0; i < 4; ++i) key[i] = V::load(k[i] + d);
            for (int m = 0; m < MB; ++m) {
                const V query = V::load(q + m * padded + d);
                for (int i = 0; i < 4; ++i) sum[m][i] = V::fma(query, key[i], sum[m][i]);
            }
        }
        if (d < dim) {
            for (int i = 0; i < 4; ++i) {
                const V key = V::load_n(k[i] + d, dim - d);
                for (int m = 0; m < MB; ++m) sum[m][i] = V::fma(V::load(q + m * padded + d), key, sum[m][i]);
            }
        }
        for (int m = 0; m < MB; ++m) V::sum4(sum[m][0], sum[m][1], sum[m][2], sum[m][3], scores + m * kBlock + j);
    }
}

// scores[j * m_padded + m] for many rows: kRowsAtOnce keys against NM vectors of rows.
template <int NM>
void many_scores(int dim, const float* const* keys, int keys_here, const float* q, int m_padded, float* scores) {
    V sum[kRowsAtOnce][NM];
    for (int i = 0; i < kRowsAtOnce; ++i)
        for (int n = 0; n < NM; ++n) sum[i][n] = V::zero();
    for (int d = 0; d < dim; ++d) {
        V query[NM];
        for (int n = 0; n < NM; ++n) query[n] = V::load(q + d * m_padded + n * V::W);
        for (int i = 0; i < kRowsAtOnce; ++i) {
            const V key = V::set1(keys[i][d]);
            for (int n = 0; n < NM; ++n) sum[i][n] = V::fma(key, query[n], sum[i][n]);
        }
    }
    for (int i = 0; i < keys_here; ++i)
        for (int n = 0; n < NM; ++n) sum[i][n].store(scores + i * m_padded + n * V::W);
}

inline const float* widened(const float* key, int, float*) {
    return key;
}
inline const float* widened(const Bf16* key, int dim, float* room) {
    for (int d = 0; d < dim; ++d) room[d] = to_float(key[d]);
    return room;
}

template <typename T>
void all_scores(const PagedAttention& p, const T* const* keys, int count, int m_count, int m_padded, Scratch& s) {
    const int dim = static_cast<int>(p.dim), padded = round_up(dim, V::W);
    if (m_padded == 0) {  // few rows
        int m = 0;
        for (; m + kRowsAtOnce <= m_count; m += kRowsAtOnce)
            few_scores<kRowsAtOnce>(p, keys, count, s.q + m * padded, s.scores + m * kBlock);
        for (; m + 2 <= m_count; m += 2) few_scores<2>(p, keys, count, s.q + m * padded, s.scores + m * kBlock);
        for (; m < m_count; ++m) few_scores<1>(p, keys, count, s.q + m * padded, s.scores + m * kBlock);
        return;
    }
    for (int j = 0; j < count; j += kRowsAtOnce) {
        const int here = count - j < kRowsAtOnce ? count - j : kRowsAtOnce;
        const float* k[kRowsAtOnce];
        for (int i = 0; i < kRowsAtOnce; ++i) k[i] = widened(keys[i < here ? j + i : j], dim, s.keys + i * padded);
        float* out = s.scores + j * m_padded;
        switch (m_padded / V::W) {
            case 1:
                many_scores<1>(dim, k, here, s.q, m_padded, out);
                break;
            case 2:
                many_scores<2>(dim, k, here, s.q, m_padded, out);
                break;
            case 3:
                many_scores<3>(dim, k, here, s.q, m_padded, out);
                break;
            default:
                many_scores<4>(dim, k, here, s.q, m_padded, out);
                break;
        }
    }
}

inline V capped(V x, float cap) {
    const V e = V::exp(V::mul(x, V::set1(2.0f / cap)));
    const V t = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
    return V::mul(t, V::set1(cap));
}

// Hide what a row must not see: score (m, j) is at m * m_step + j * j_step, j counts from position `start`.
inline void hide(const PagedAttention& p, const Rows& rows, int m_count, int64_t start, int count, int m_step,
                 int j_step, Scratch& s) {
    for (int m = 0; m < m_count; ++m) {
        float* row = s.scores + m * m_step;
        const int64_t first = static_cast<int64_t>(s.first_key[m]) - start;
        const int64_t end = static_cast<int64_t>(s.end_key[m]) - start;
        for (int j = 0; j < count && j < first; ++j) row[j * j_step] = kHidden;
        for (int j = end < 0 ? 0 : static_cast<int>(end < count ? end : count); j < count; ++j)
            row[j * j_step] = kHidden;
        if (p.mask == nullptr) continue;
        const uint8_t* seen = p.mask + rows.tile.mask_at + rows.query(m) * rows.count;
        const int64_t own = rows.prefix - start;  // j of the request's first own row
        for (int j = own < 0 ? 0 : static_cast<int>(own < count ? own : count); j < count; ++j)
            if (!seen[j - own]) row[j * j_step] = kHidden;
    }
}

// Turn scores into weights relative to the running maximum; few rows, lanes over positions.
inline void few_softmax(int m_count, int count, Scratch& s) {
    const int padded = round_up(count, V::W);
    for (int m = 0; m < m_count; ++m) {
        float* row = s.scores + m * kBlock;
        for (int j = count; j < padded; ++j) row[j] = kHidden;
        V top = V::set1(kHidden);
        for (int j = 0; j < padded; j += V::W) top = V::max(top, V::load(row + j));
        const float block_top = top.largest(), before = s.largest[m];
        const float largest = block_top > before ? block_top : before;
        const V base = V::set1(largest == kHidden ? 0.0f : largest);
        V sum = V::zero();
        for (int j = 0; j < padded; j += V::W) {
            const V weight = V::exp(V::sub(V::load(row + j), base));
            weight.store(row + j);
            sum = V::add(sum, weight);
        }
        float shrink[V::W];
        V::exp(V::sub(V::set1(before), base)).store(shrink);
        s.rescale[m] = shrink[0];
        s.total[m] = s.total[m] * shrink[0] + sum.sum();
        s.largest[m] = largest;
    }
}

// The same for many rows, lanes over rows.
inline void many_softmax(int m_padded, int count, Scratch& s) {
    for (int m = 0; m < m_padded; m += V::W) {
        const V before = V::load(s.largest + m), hidden = V::set1(kHidden);
        V largest = before;
        for (int j = 0; j < count; ++j) largest = V::max(largest, V::load(s.scores + j * m_padded + m));
        const V base = V::where_less(hidden, largest, largest, V::zero());
        V sum = V::zero();
        for (int j = 0; j < count; ++j) {
            const V weight = V::exp(V::sub(V::load(s.scores + j * m_padded + m), base));
            weight.store(s.scores + j * m_padded + m);
            sum = V::add(sum, weight);
        }
        const V shrink = V::exp(V::sub(before, base));
        shrink.store(s.rescale + m);
        V::fma(V::load(s.total + m), shrink, sum).store(s.total + m);
        largest.store(s.largest + m);
    }
}

// acc[m][d] = acc[m][d] * rescale[m] + sum_j weight(m, j) * values[j][d], MB rows by NV vectors in registers.
template <int MB, int NV, typename T>
void weigh(const T* const* values, int count, int d, int tail, const float* weights, int m_step, int j_step,
           const float* rescale, float* acc, int padded) {
    V sum[MB][NV];
    for (int m = 0; m < MB; ++m)
        for (int n = 0; n < NV; ++n) sum[m][n] = V::mul(V::load(acc + m * padded + d + n * V::W), V::set1(rescale[m]));
    for (int j = 0; j < count; ++j) {
        V value[NV];
        for (int n = 0; n < NV; ++n)
            value[n] = tail > 0 ? V::load_n(values[j] + d, tail) : V::load(values[j] + d + n * V::W);
        for (int m = 0; m < MB; ++m) {
            const V weight = V::set1(weights[m * m_step + j * j_step]);
            for (int n = 0; n < NV; ++n) sum[m][n] = V::fma(weight, value[n], sum[m][n]);
        }
    }
    for (int m = 0; m < MB; ++m)
        for (int n = 0; n < NV; ++n) sum[m][n].store(acc + m * padded + d + n * V::W);
}

template <int MB, typename T>
void weigh_rows(const PagedAttention& p, const T* const* values, int count, const float* weights, int m_step,
                int j_step, const float* rescale, float* acc) {
    const int dim = static_cast<int>(p.v_dim), padded = round_up(dim, V::W);
    int d = 0;
    for (; d + 4 * V::W <= dim; d += 4 * V::W)
        weigh<MB, 4>(values, count, d, 0, weights, m_step, j_step, rescale, acc, padded);
    for (; d + 2 * V::W <= dim; d += 2 * V::W)
        weigh<MB, 2>(values, count, d, 0, weights, m_step, j_step, rescale, acc, padded);
    for (; d < dim; d += V::W)
        weigh<MB, 1>(values, count, d, dim - d < V::W ? dim - d : 0, weights, m_step, j_step, rescale, acc, padded);
}

template <typename T>
void all_weigh(const PagedAttention& p, const T* const* values, int count, int m_count, int m_step, int j_step,
               Scratch& s) {
    const int padded = round_up(p.v_dim, V::W);
    int m = 0;
    for (; m + kRowsAtOnce <= m_count; m += kRowsAtOnce)
        weigh_rows<kRowsAtOnce>(p, values, count, s.scores + m * m_step, m_step, j_step, s.rescale + m,
                                s.acc + m * padded);
    for (; m + 2 <= m_count; m += 2)
        weigh_rows<2>(p, values, count, s.scores + m * m_step, m_step, j_step, s.rescale + m, s.acc + m * padded);
    for (; m < m_count; ++m)
        weigh_rows<1>(p, values, count, s.scores + m * m_step, m_step, j_step, s.rescale + m, s.acc + m * padded);
}

// Which positions each row sees, before the mask: [first_key, end_key), exact in float below 2^24.
inline void row_limits(const PagedAttention& p, const Rows& rows, int m_count, int64_t kv_len, Scratch& s) {
    for (int m = 0; m < m_count; ++m) {
        const int64_t position = rows.prefix + rows.query(m);
        const bool causal = p.causal && p.mask == nullptr;
        s.end_key[m] = static_cast<float>(causal ? position + 1 : kv_len);
        s.first_key[m] = static_cast<float>(p.window >= 0 && position > p.window ? position - p.window : 0);
    }
}

template <typename T>
void prefetch_row(const T* row, int64_t width) {
    const char* line = reinterpret_cast<const char*>(row);
    for (const char* end = line + width * sizeof(T); line < end; line += 64) __builtin_prefetch(line);
}

template <typename T>
BadSlot attend(const PagedAttention& p, const Rows& rows, int m_count, int m_padded, Scratch& s) {
    float first_any = s.first_key[0], first_all = first_any, end_any = s.end_key[0], end_all = end_any;
    for (int m = 1; m < m_count; ++m) {
        first_any = s.first_key[m] < first_any ? s.first_key[m] : first_any;
        first_all = s.first_key[m] > first_all ? s.first_key[m] : first_all;
        end_any = s.end_key[m] > end_any ? s.end_key[m] : end_any;
        end_all = s.end_key[m] < end_all ? s.end_key[m] : end_all;
    }
    const bool few = m_padded == 0;
    const int m_step = few ? kBlock : 1, j_step = few ? 1 : m_padded;
    const int32_t* table = p.req_to_token + p.req_rows[rows.tile.request] * p.table_row;
    const T* k_head = static_cast<const T*>(p.k) + rows.tile.kv_head * p.k_head;
    const T* v_head = static_cast<const T*>(p.v) + rows.tile.kv_head * p.v_head;
    const int64_t end = static_cast<int64_t>(end_any);
    for (int64_t start = static_cast<int64_t>(first_any); start < end; start += kBlock) {
        const int count = static_cast<int>(end - start < kBlock ? end - start : kBlock);
        const T *keys[kBlock], *values[kBlock];
        for (int j = 0; j < count; ++j) {
            const int64_t slot = table[start + j];
            if (slot < 0 || slot >= p.slots) return {rows.tile.request, start + j, slot, true};
            keys[j] = k_head + slot * p.k_row;
            values[j] = v_head + slot * p.v_row;
        }
        // The values are needed after the scores and the next keys after that; slots are in no order a CPU foresees.
        for (int j = 0; j < count; ++j) prefetch_row(values[j], p.v_dim);
        for (int64_t j = start + kBlock; j < end && j < start + 2 * kBlock; ++j)
            prefetch_row(k_head + table[j] * p.k_row, p.dim);
        all_scores(p, keys, count, m_count, m_padded, s);
        if (p.logit_cap > 0.0f) {
            const int scores = few ? m_count * kBlock : count * m_padded;
            for (int i = 0; i < scores; i += V::W) capped(V::load(s.scores + i), p.logit_cap).store(s.scores + i);
        }
        const bool masked = p.mask != nullptr && start + count > rows.prefix;
        if (masked || start < static_cast<int64_t>(first_all) || start + count > static_cast<int64_t>(end_all))
            hide(p, rows, m_count, start, count, m_step, j_step, s);
        if (few)
            few_softmax(m_count, count, s);
        else
            many_softmax(m_padded, count, s);
        all_weigh(p, values, count, m_count, m_step, j_step, s);
    }
    return {};
}

inline BadSlot run_tile(const PagedAttention& p, const AttentionTile& tile, float* memory) {
    Scratch s(p, memory);
    const int64_t row0 = p.query_start[tile.request];
    const int64_t count = p.query_start[tile.request + 1] - row0, kv_len = p.kv_lens[tile.request];
    const Rows rows{p.heads / p.kv_heads, count, kv_len - count, row0, tile};
    const int m_count = static_cast<int>(tile.rows);
    const int m_padded = m_count <= kFewRows ? 0 : round_up(m_count, V::W);
    const int dim = static_cast<int>(p.dim), padded = round_up(dim, V::W);

    // Padding columns and rows are read by whole vectors, so they must be finite.
    for (int i = 0, n = m_padded == 0 ? m_count * padded : dim * m_padded; i < n; ++i) s.q[i] = 0.0f;
    const int m_step = m_padded == 0 ? padded : 1, d_step = m_padded == 0 ? 1 : m_padded;
    if (p.q_bf16)
        load_queries<Bf16>(p, rows, m_count, m_step, d_step, s.q);
    else
        load_queries<float>(p, rows, m_count, m_step, d_step, s.q);
    for (int m = 0; m < kTileRows; ++m) s.largest[m] = kHidden, s.total[m] = 0.0f;
    for (int i = 0, n = m_count * round_up(p.v_dim, V::W); i < n; ++i) s.acc[i] = 0.0f;
    row_limits(p, rows, m_count, kv_len, s);

    const BadSlot bad =
        p.kv_bf16 ? attend<Bf16>(p, rows, m_count, m_padded, s) : attend<float>(p, rows, m_count, m_padded, s);
    if (bad.found) return bad;
    if (p.q_bf16)
        store_rows<Bf16>(p, rows, m_count, s);
    else
        store_rows<float>(p, rows, m_count, s);
    return {};
}

inline AttentionKernel attention_kernel() {
    return {kTileRows, &Scratch::floats, &run_tile};
}

}  // namespace dspark::DSPARK_ISA
