// Causal attention of query rows over the keys and values of their own sequence. Keys are read
// through a table of pages, which lie in a cache or, where whole sequences are packed, in the rows
// themselves.
//
// A block loads each page of keys once for all its pairs of (row, query head): up to 32 of them
// where many rows of a sequence are computed (`attend`), up to 8 where it is one, in decoding
// (`attend_span`). So that one row can occupy the whole GPU its keys are cut into spans, each
// with a block of its own (arXiv:2311.01282): inside a span softmax is computed page by page
// with a running maximum (arXiv:1805.02867, arXiv:2205.14135), then the spans are merged, the
// earliest first. `attend` goes through the same steps in the same order, and a page in which a
// pair sees nothing leaves it as it is. So a row gets the same bits from both, and in any
// company.

// Positions in a span.
#define SPAN (4 * PAGE)

#define MINUS_INFINITY __uint_as_float(0xff800000u)

// What the blocks of this file keep in shared memory.
template <int Chunks, int Own> struct Shared {
    static const int pairs = pairs_of<Own>();
    float *query, *page, *weights, *parts;
    // Of the span under way, then of all spans before: largest score, sum of exponentials.
    float *max, *total, *all_max, *all_total;
    float *factor, *other_factor;
    __device__ explicit Shared(float* base) {
        query = base;
        page = query + pairs * stride_of<Chunks>();
        weights = page + PAGE * stride_of<Chunks>();
        parts = weights + pairs * WEIGHTS_STRIDE;
        max = parts + 4 * pairs;
        total = max + pairs;
        all_max = total + pairs;
        all_total = all_max + pairs;
        factor = all_total + pairs;
        other_factor = factor + pairs;
    }
};

// Attention over the positions from `begin` to `end`, both of one span. Leaves its largest
// scores and sums in shared memory.
template <int Chunks, int Own>
__device__ void attend_in_span(const Shared<Chunks, Own>& shared, const Pages& pages,
                               const int* last, int begin, int end,
                               float (&sums)[Chunks][PAIRS_OF_THREAD][Own]) {
    const Share<Own> share;
    // Softmax has 4 threads to a pair, each every fourth key.
    const int pair = threadIdx.x / 4, quarter = threadIdx.x % 4;
    const bool in_softmax = pair < shared.pairs;
    float* own = shared.weights + pair * WEIGHTS_STRIDE + quarter;
    if (threadIdx.x < shared.pairs) {
        shared.max[threadIdx.x] = LOWEST;
        shared.total[threadIdx.x] = 0.0f;
    }
    clear(sums);
    for (int start = begin; start < end; start += PAGE) {
        const int count = min(PAGE, end - start);
        __syncthreads();
        pages.load<Chunks>(shared.page, start / PAGE, pages.key_base, count);
        __syncthreads();
        float scores[PAIRS_OF_THREAD][Own];
        dots<Chunks, Own>(shared.query, shared.page, pages.width, scores);
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p)
            UNROLL
            for (int t = 0; t < Own; ++t) {
                const bool sees = start + share.key(t) <= last[share.first + p];
                shared.weights[(share.first + p) * WEIGHTS_STRIDE + share.key(t)] =
                    sees ? scores[p][t] : MINUS_INFINITY;
            }
        __syncthreads();
        pages.load<Chunks>(shared.page, start / PAGE, pages.value_base, count);
        if (in_softmax) {
            float top = LOWEST;
            for (int j = 0; j < PAGE; j += 4) top = fmaxf(top, own[j]);
            shared.parts[threadIdx.x] = top;
        }
        __syncthreads();
        float top = LOWEST;
        if (in_softmax) {
            const Four<float> parts = four(shared.parts + 4 * pair);
            top = fmaxf(fmaxf(parts.x[0], parts.x[1]), fmaxf(parts.x[2], parts.x[3]));
            top = fmaxf(shared.max[pair], top);
        }
        __syncthreads();
        if (in_softmax) {
            float sum = 0.0f;
            for (int j = 0; j < PAGE; j += 4) {
                own[j] = expf(own[j] - top);
                sum = __fadd_rn(sum, own[j]);
            }
            shared.parts[threadIdx.x] = sum;
        }
        __syncthreads();
        if (in_softmax && quarter == 0) {
            const Four<float> parts = four(shared.parts + 4 * pair);
            const float sum = __fadd_rn(__fadd_rn(parts.x[0], parts.x[1]),
                                        __fadd_rn(parts.x[2], parts.x[3]));
            const float factor = expf(shared.max[pair] - top);
            shared.factor[pair] = factor;
            shared.max[pair] = top;
            shared.total[pair] = fmaf(shared.total[pair], factor, sum);
        }
        __syncthreads();
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p) {
            const float factor = shared.factor[share.first + p];
            UNROLL
            for (int chunk = 0; chunk < Chunks; ++chunk)
                UNROLL
                for (int c = 0; c < Own; ++c)
                    sums[chunk][p][c] = __fmul_rn(sums[chunk][p][c], factor);
        }
        mix<Chunks, Own>(shared.weights, shared.page, count, sums);
    }
    __syncthreads();
}

// Largest score and sum of exponentials of all spans so far, and how what belongs to either
// side is to be scaled when a span is added.
struct Merged {
    float max, total, factor, other_factor;
    __device__ Merged(float all_max, float all_total, float span_max, float span_total) {
        max = fmaxf(all_max, span_max);
        factor = expf(all_max - max);
        other_factor = expf(span_max - max);
        total = fmaf(all_total, factor, __fmul_rn(span_total, other_factor));
    }
    static __device__ float sum(float all, float factor, float span, float other_factor) {
        return fmaf(all, factor, __fmul_rn(span, other_factor));
    }
};

// Adds the span under way to all before.
template <int Chunks, int Own>
__device__ void merge_span(const Shared<Chunks, Own>& shared,
                           const float (&sums)[Chunks][PAIRS_OF_THREAD][Own],
                           float (&all)[Chunks][PAIRS_OF_THREAD][Own]) {
    const Share<Own> share;
    if (threadIdx.x < shared.pairs) {
        const int pair = threadIdx.x;
        const Merged merged(shared.all_max[pair], shared.all_total[pair], shared.max[pair],
                            shared.total[pair]);
        shared.all_max[pair] = merged.max;
        shared.all_total[pair] = merged.total;
        shared.factor[pair] = merged.factor;
        shared.other_factor[pair] = merged.other_factor;
    }
    __syncthreads();
    UNROLL
    for (int p = 0; p < PAIRS_OF_THREAD; ++p) {
        const float factor = shared.factor[share.first + p];
        const float other_factor = shared.other_factor[share.first + p];
        UNROLL
        for (int chunk = 0; chunk < Chunks; ++chunk)
            UNROLL
            for (int c = 0; c < Own; ++c)
                all[chunk][p][c] =
                    Merged::sum(all[chunk][p][c], factor, sums[chunk][p][c], other_factor);
    }
}

__device__ float log_sum_of(float max, float total) { return __fadd_rn(max, logf(total)); }

// Loads the queries of a block, and begins.
template <int Chunks, int Own>
__device__ void begin_pairs(const Shared<Chunks, Own>& shared, const PairsOf& of,
                            const Operand* queries, const unsigned* positions, int* last) {
    const float scale = 1.0f / sqrtf((float)of.width);
    load_rows<Chunks>(shared.query, shared.pairs, of.width, scale,
                      [=](int p) { return of.in(queries, p); });
    if (threadIdx.x < shared.pairs) {
        last[threadIdx.x] = of.has(threadIdx.x) ? (int)positions[of.row_of(threadIdx.x)] : -1;
        shared.all_max[threadIdx.x] = LOWEST;
        shared.all_total[threadIdx.x] = 0.0f;
    }
    __syncthreads();
}

// mixed = softmax(q k / sqrt(width)) v; log_sums = ln of the sum of exponentials, which the
// backward pass takes up.
template <int Chunks, int Own>
__device__ void finish_pairs(const Shared<Chunks, Own>& shared, const PairsOf& of,
                             const float (&all)[Chunks][PAIRS_OF_THREAD][Own], Operand* mixed,
                             float* log_sums) {
    const Share<Own> share;
    UNROLL
    for (int p = 0; p < PAIRS_OF_THREAD; ++p) {
        if (!of.has(share.first + p)) continue;
        Operand* to = mixed + of.head_of(share.first + p) * of.width;
        const float total = shared.all_total[share.first + p];
        UNROLL
        for (int chunk = 0; chunk < Chunks; ++chunk)
            UNROLL
            for (int c = 0; c < Own; ++c)
                if (share.column(chunk, c) < of.width)
                    put(to + share.column(chunk, c), all[chunk][p][c] / total);
    }
    const int pair = threadIdx.x;
    if (pair < shared.pairs && of.has(pair))
        log_sums[of.head_of(pair)] = log_sum_of(shared.all_max[pair], shared.all_total[pair]);
}

// Up to 32 pairs over all their keys; an entry is a `PairsOf`.
template <int Chunks>
__device__ void attend_block(const unsigned* tiles, const Operand* queries,
                             const unsigned* positions, const unsigned* page_starts,
                             const Address* pages, Address key_base, Address value_base,
                             Operand* mixed, float* log_sums, int heads, int kv_heads,
                             int width) {
    DYNAMIC_SHARED(memory);
    __shared__ int last[32];
    const Shared<Chunks, 4> shared(memory);
    const PairsOf of(tiles + 3 * blockIdx.x, heads, kv_heads, width);
    const Pages at = {pages + page_starts[of.row], key_base, value_base, kv_heads, width};
    begin_pairs(shared, of, queries, positions, last);
    const int end = last[of.last(shared.pairs)] + 1;
    float sums[Chunks][PAIRS_OF_THREAD][4], all[Chunks][PAIRS_OF_THREAD][4];
    clear(all);
    for (int begin = 0; begin < end; begin += SPAN) {
        attend_in_span(shared, at, last, begin, min(end, begin + SPAN), sums);
        merge_span(shared, sums, all);
    }
    finish_pairs(shared, of, all, mixed, log_sums);
}

// Up to 8 pairs over the keys of one span. An entry is a `PairsOf`, the span's number, and the
// place for what is to be merged, or ALONE where there is no other span. One without pairs is
// nothing to do.
#define ALONE 0xffffffffu

template <int Chunks>
__device__ void attend_span_block(const unsigned* tiles, const Operand* queries,
                                  const unsigned* positions, const unsigned* page_starts,
                                  const Address* pages, Address key_base, Address value_base,
                                  Operand* mixed, float* log_sums, float* spans, int heads,
                                  int kv_heads, int width) {
    DYNAMIC_SHARED(memory);
    __shared__ int last[8];
    const Shared<Chunks, 1> shared(memory);
    const unsigned* entry = tiles + 5 * blockIdx.x;
    const PairsOf of(entry, heads, kv_heads, width);
    if (of.pairs == 0) return;
    const Pages at = {pages + page_starts[of.row], key_base, value_base, kv_heads, width};
    begin_pairs(shared, of, queries, positions, last);
    const int begin = (int)entry[3] * SPAN;
    const int end = min(last[of.last(shared.pairs)] + 1, begin + SPAN);
    float sums[Chunks][PAIRS_OF_THREAD][1];
    attend_in_span(shared, at, last, begin, end, sums);
    if (entry[4] == ALONE) {
        float all[Chunks][PAIRS_OF_THREAD][1];
        clear(all);
        merge_span(shared, sums, all);
        finish_pairs(shared, of, all, mixed, log_sums);
        return;
    }
    // [place][key head][pair][width, largest score, sum of exponentials]
    float* to = spans + ((Count)entry[4] * kv_heads + blockIdx.y) * shared.pairs * (width + 2);
    const Share<1> share;
    UNROLL
    for (int p = 0; p < PAIRS_OF_THREAD; ++p)
        UNROLL
        for (int chunk = 0; chunk < Chunks; ++chunk)
            if (share.column(chunk, 0) < width)
                to[(share.first + p) * (width + 2) + share.column(chunk, 0)] = sums[chunk][p][0];
    if (threadIdx.x < shared.pairs) {
        to[threadIdx.x * (width + 2) + width] = shared.max[threadIdx.x];
        to[threadIdx.x * (width + 2) + width + 1] = shared.total[threadIdx.x];
    }
}

// Merges the spans of up to 8 pairs. An entry is a `PairsOf`, the first span's place and how
// many there are.
extern "C" __global__ void attend_merge(const unsigned* tiles, const float* spans,
                                        Operand* mixed, float* log_sums, int heads,
                                        int kv_heads, int width) {
    const unsigned* entry = tiles + 5 * blockIdx.x;
    const PairsOf of(entry, heads, kv_heads, width);
    const Count apart = (Count)kv_heads * 8 * (width + 2);
    for (int i = threadIdx.x; i < 8 * width; i += blockDim.x) {
        const int pair = i / width, column = i % width;
        if (!of.has(pair)) continue;
        const float* from =
            spans + entry[3] * apart + ((Count)blockIdx.y * 8 + pair) * (width + 2);
        float max = LOWEST, total = 0.0f, sum = 0.0f;
        for (unsigned span = 0; span < entry[4]; ++span, from += apart) {
            const Merged merged(max, total, from[width], from[width + 1]);
            max = merged.max;
            total = merged.total;
            sum = Merged::sum(sum, merged.factor, from[column], merged.other_factor);
        }
        put(mixed + of.head_of(pair) * width + column, sum / total);
        if (column == 0) log_sums[of.head_of(pair)] = log_sum_of(max, total);
    }
}

#define ATTEND_PARAMETERS                                                                        \
    const unsigned *tiles, const Operand *queries, const unsigned *positions,                    \
        const unsigned *page_starts, const Address *pages, Address key_base, Address value_base, \
        Operand *mixed, float *log_sums
#define ATTEND_ARGUMENTS                                                                         \
    tiles, queries, positions, page_starts, pages, key_base, value_base, mixed, log_sums

// Heads of up to 64 numbers, and of up to 128.
extern "C" __global__ void attend_64(ATTEND_PARAMETERS, int heads, int kv_heads, int width) {
    attend_block<1>(ATTEND_ARGUMENTS, heads, kv_heads, width);
}
extern "C" __global__ void attend_128(ATTEND_PARAMETERS, int heads, int kv_heads, int width) {
    attend_block<2>(ATTEND_ARGUMENTS, heads, kv_heads, width);
}
extern "C" __global__ void attend_span_64(ATTEND_PARAMETERS, float* spans, int heads,
                                          int kv_heads, int width) {
    attend_span_block<1>(ATTEND_ARGUMENTS, spans, heads, kv_heads, width);
}
extern "C" __global__ void attend_span_128(ATTEND_PARAMETERS, float* spans, int heads,
                                           int kv_heads, int width) {
    attend_span_block<2>(ATTEND_ARGUMENTS, spans, heads, kv_heads, width);
}
