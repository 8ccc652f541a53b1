// The derivative of attention over whole sequences, packed one after another, or over a tree of
// them, in which the rows of a node's subtree follow it. Weights are
// computed again from queries, keys and the kept logarithms of their sums, page by page:
// nothing of length x length is ever held. With p the weights and dp = grad . v,
//     ds = p * (dp - delta),  delta = grad . mixed,
// queries get sum_j ds k, keys sum_r ds q, values sum_r p grad: each by one block that adds
// in ascending order.

// The rows of keys, or of values, from `first` on that are before `end`.
template <typename Number> struct KeyRows {
    const Number* matrix;
    unsigned first, end;
    int kv_heads, width;
    __device__ const Number* operator()(int j) const {
        const Count row = first + j;
        return row < end ? matrix + (row * kv_heads + blockIdx.y) * width : (const Number*)nullptr;
    }
};

// Derivative by the queries of up to 32 pairs; leaves deltas[row][head] for the kernel below.
// An entry is a `PairsOf`. Shared memory: vectors of 32 pairs twice and of 64 keys, and
// 32 rows of weights.
template <int Chunks>
__device__ void attend_backward_queries(const unsigned* tiles, const Operand* queries,
                                        const unsigned* positions, const unsigned* page_starts,
                                        const Address* pages, Address key_base,
                                        Address value_base, const Operand* mixed, const float* grad,
                                        const float* log_sums, float* deltas,
                                        float* by_queries, int heads, int kv_heads, int width) {
    DYNAMIC_SHARED(memory);
    const int pairs = pairs_of<4>(), stride = stride_of<Chunks>();
    __shared__ float log_sum[pairs], delta[pairs];
    __shared__ int last[pairs];
    float* query = memory;
    float* own_grad = query + pairs * stride;
    float* page = own_grad + pairs * stride;
    float* by_scores = page + PAGE * stride;
    const PairsOf of(tiles + 3 * blockIdx.x, heads, kv_heads, width);
    const Pages at = {pages + page_starts[of.row], key_base, value_base, kv_heads, width};
    const Share<4> share;
    const float scale = 1.0f / sqrtf((float)width);
    load_rows<Chunks>(query, pairs, width, scale, [=](int p) { return of.in(queries, p); });
    load_rows<Chunks>(own_grad, pairs, width, 1.0f, [=](int p) { return of.in(grad, p); });
    if (threadIdx.x < pairs)
        last[threadIdx.x] = of.has(threadIdx.x) ? (int)positions[of.row_of(threadIdx.x)] : -1;
    __syncthreads();
    if (threadIdx.x < pairs && of.has(threadIdx.x)) {
        const int pair = threadIdx.x;
        const Operand* own = of.in(mixed, pair);
        float sum = 0.0f;
        for (int i = 0; i < width; ++i) sum = fmaf(own_grad[pair * stride + i], number(own[i]), sum);
        delta[pair] = deltas[of.head_of(pair)] = sum;
        log_sum[pair] = log_sums[of.head_of(pair)];
    }
    const int end = last[of.last(pairs)] + 1;
    float sums[Chunks][PAIRS_OF_THREAD][4];
    clear(sums);
    for (int start = 0; start < end; start += PAGE) {
        const int count = min(PAGE, end - start);
        float scores[PAIRS_OF_THREAD][4], by_weights[PAIRS_OF_THREAD][4];
        __syncthreads();
        at.load<Chunks>(page, start / PAGE, value_base, count);
        __syncthreads();
        dots<Chunks, 4>(own_grad, page, width, by_weights);
        __syncthreads();
        at.load<Chunks>(page, start / PAGE, key_base, count);
        __syncthreads();
        dots<Chunks, 4>(query, page, width, scores);
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p)
            UNROLL
            for (int t = 0; t < 4; ++t) {
                const int pair = share.first + p;
                const bool sees = start + share.key(t) <= last[pair];
                by_scores[pair * WEIGHTS_STRIDE + share.key(t)] =
                    sees ? expf(scores[p][t] - log_sum[pair]) * (by_weights[p][t] - delta[pair])
                         : 0.0f;
            }
        __syncthreads();
        mix<Chunks, 4>(by_scores, page, count, sums);
    }
    UNROLL
    for (int p = 0; p < PAIRS_OF_THREAD; ++p) {
        if (!of.has(share.first + p)) continue;
        float* to = by_queries + of.head_of(share.first + p) * width;
        UNROLL
        for (int chunk = 0; chunk < Chunks; ++chunk)
            UNROLL
            for (int c = 0; c < 4; ++c)
                if (share.column(chunk, c) < width)
                    to[share.column(chunk, c)] = sums[chunk][p][c] * scale;
    }
}

// Derivatives by the keys and values of up to 64 rows on one path, from 16 pairs at a time of the
// rows that see them. An entry: the first row, one past the last row, and one past the last row
// that sees them all: the end of their subtree. A thread has 4 keys and 8 * Chunks columns. Shared memory: vectors of 64 keys twice and
// of 16 pairs twice, and 16 rows of weights twice.
template <int Chunks>
__device__ void attend_backward_keys(const unsigned* tiles, const Operand* queries,
                                     const Operand* keys, const Operand* values,
                                     const float* grad, const float* log_sums,
                                     const float* deltas, float* by_keys, float* by_values,
                                     int heads, int kv_heads, int width) {
    DYNAMIC_SHARED(memory);
    const int pairs = pairs_of<2>(), stride = stride_of<Chunks>(), quads = 2 * Chunks;
    __shared__ float log_sum[pairs], delta[pairs];
    float* key = memory;
    float* value = key + PAGE * stride;
    float* query = value + PAGE * stride;
    float* own_grad = query + pairs * stride;
    float* weights = own_grad + pairs * stride;
    float* by_scores = weights + pairs * WEIGHTS_STRIDE;
    const unsigned* entry = tiles + 3 * blockIdx.x;
    const unsigned page = entry[0], page_end = entry[1], end = entry[2];
    const int group = heads / kv_heads;
    const float scale = 1.0f / sqrtf((float)width);
    const Share<2> share;
    load_rows<Chunks>(key, PAGE, width, 1.0f,
                      KeyRows<Operand>{keys, page, page_end, kv_heads, width});
    load_rows<Chunks>(value, PAGE, width, 1.0f,
                      KeyRows<Operand>{values, page, page_end, kv_heads, width});
    const int own_key = threadIdx.x / 8 * 4, lane = threadIdx.x % 8;
    float key_sums[quads][4][4], value_sums[quads][4][4];
    UNROLL
    for (int i = 0; i < quads; ++i)
        UNROLL
        for (int k = 0; k < 4; ++k)
            UNROLL
            for (int c = 0; c < 4; ++c) key_sums[i][k][c] = value_sums[i][k][c] = 0.0f;
    for (unsigned pair = 0; pair < (end - page) * group; pair += pairs) {
        const unsigned tile[3] = {page, pair, (end - page) * group};
        const PairsOf of(tile, heads, kv_heads, width);
        float scores[PAIRS_OF_THREAD][2], by_weights[PAIRS_OF_THREAD][2];
        __syncthreads();
        load_rows<Chunks>(query, pairs, width, scale, [=](int p) { return of.in(queries, p); });
        load_rows<Chunks>(own_grad, pairs, width, 1.0f, [=](int p) { return of.in(grad, p); });
        if (threadIdx.x < pairs && of.has(threadIdx.x)) {
            log_sum[threadIdx.x] = log_sums[of.head_of(threadIdx.x)];
            delta[threadIdx.x] = deltas[of.head_of(threadIdx.x)];
        }
        __syncthreads();
        dots<Chunks, 2>(query, key, width, scores);
        dots<Chunks, 2>(own_grad, value, width, by_weights);
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p)
            UNROLL
            for (int t = 0; t < 2; ++t) {
                const int own = share.first + p, at = own * WEIGHTS_STRIDE + share.key(t);
                const unsigned row = page + share.key(t);
                const bool sees = of.has(own) && row < page_end && row <= of.row_of(own);
                const float weight = sees ? expf(scores[p][t] - log_sum[own]) : 0.0f;
                weights[at] = weight;
                by_scores[at] = sees ? weight * (by_weights[p][t] - delta[own]) : 0.0f;
            }
        __syncthreads();
        for (int p = 0; p < pairs; ++p) {
            const Four<float> weight = four(weights + p * WEIGHTS_STRIDE + own_key);
            const Four<float> by_score = four(by_scores + p * WEIGHTS_STRIDE + own_key);
            UNROLL
            for (int i = 0; i < quads; ++i) {
                const int column = 32 * i + 4 * lane;
                const Four<float> q = four(query + p * stride + column);
                const Four<float> g = four(own_grad + p * stride + column);
                UNROLL
                for (int k = 0; k < 4; ++k)
                    UNROLL
                    for (int c = 0; c < 4; ++c) {
                        key_sums[i][k][c] = fmaf(by_score.x[k], q.x[c], key_sums[i][k][c]);
                        value_sums[i][k][c] = fmaf(weight.x[k], g.x[c], value_sums[i][k][c]);
                    }
            }
        }
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
        const Count row = page + own_key + k;
        if (row >= page_end) continue;
        const Count to = (row * kv_heads + blockIdx.y) * width;
        UNROLL
        for (int i = 0; i < quads; ++i)
            UNROLL
            for (int c = 0; c < 4; ++c) {
                const int column = 32 * i + 4 * lane + c;
                if (column >= width) continue;
                by_keys[to + column] = key_sums[i][k][c];
                by_values[to + column] = value_sums[i][k][c];
            }
    }
}

#define BY_QUERIES_PARAMETERS                                                                  \
    const unsigned *tiles, const Operand *queries, const unsigned *positions,                  \
        const unsigned *page_starts, const Address *pages, Address key_base,                   \
        Address value_base, const Operand *mixed, const float *grad, const float *log_sums,    \
        float *deltas, float *by_queries, int heads, int kv_heads, int width
#define BY_QUERIES_ARGUMENTS                                                                   \
    tiles, queries, positions, page_starts, pages, key_base, value_base, mixed, grad,          \
        log_sums, deltas, by_queries, heads, kv_heads, width
#define BY_KEYS_PARAMETERS                                                                     \
    const unsigned *tiles, const Operand *queries, const Operand *keys, const Operand *values, \
        const float *grad, const float *log_sums, const float *deltas, float *by_keys,         \
        float *by_values, int heads, int kv_heads, int width
#define BY_KEYS_ARGUMENTS                                                                      \
    tiles, queries, keys, values, grad, log_sums, deltas, by_keys, by_values, heads, kv_heads, width

// Heads of up to 64 numbers, and of up to 128.
extern "C" __global__ void attend_backward_queries_64(BY_QUERIES_PARAMETERS) {
    attend_backward_queries<1>(BY_QUERIES_ARGUMENTS);
}
extern "C" __global__ void attend_backward_queries_128(BY_QUERIES_PARAMETERS) {
    attend_backward_queries<2>(BY_QUERIES_ARGUMENTS);
}
extern "C" __global__ void attend_backward_keys_64(BY_KEYS_PARAMETERS) {
    attend_backward_keys<1>(BY_KEYS_ARGUMENTS);
}
extern "C" __global__ void attend_backward_keys_128(BY_KEYS_PARAMETERS) {
    attend_backward_keys<2>(BY_KEYS_ARGUMENTS);
}
