// Products inside a block of attention: of some pairs of (row, query head), whose vectors lie
// in shared memory, with 64 keys, and of weights with 64 values. A thread has 4 pairs and
// `Own` keys, or columns, of 64, kept in registers; a block of 128 threads has 8 * Own pairs.
//
// Every sum is one chain of multiply-adds in ascending order, written out so that the
// compiler has no choice: a pair gets the same bits in a block of 8 pairs and in one of 32.

#define ATTENTION_THREADS 128
#define PAIRS_OF_THREAD 4

// Numbers between rows of weights in shared memory: 64, and 16 bytes more so that threads
// which read the same columns of neighbouring rows meet different banks.
#define WEIGHTS_STRIDE 68

// The same for vectors of up to 64 * Chunks numbers.
template <int Chunks> __device__ constexpr int stride_of() { return 64 * Chunks + 4; }

template <int Own> __device__ constexpr int pairs_of() {
    return PAIRS_OF_THREAD * ATTENTION_THREADS * Own / 64;
}

template <typename Number> struct alignas(4 * sizeof(Number)) Four {
    Number x[4];
};

// Four numbers at an address that is a multiple of their size.
template <typename Number> __device__ Four<Number> four(const Number* at) {
    ALIGNED(at, sizeof(Four<Number>));
    return *(const Four<Number>*)at;
}

template <typename Pointer> struct Pointed;
template <typename Number> struct Pointed<const Number*> { typedef Number Type; };

// Fills `rows` rows of shared memory: row r with `width` numbers from where(r), times `scale`,
// and zeros behind them; with zeros alone where where(r) is null.
template <int Chunks, typename Where>
__device__ void load_rows(float* to, int rows, int width, float scale, Where where) {
    typedef typename Pointed<decltype(where(0))>::Type Number;
    const int quads = 16 * Chunks;
    for (int i = threadIdx.x; i < rows * quads; i += ATTENTION_THREADS) {
        const int row = i / quads, column = i % quads * 4;
        const Number* from = where(row);
        Four<float> own = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (from && column < width) {
            if (width % 4 == 0) {
                const Four<Number> read = four(from + column);
                UNROLL
                for (int c = 0; c < 4; ++c) own.x[c] = __fmul_rn(number(read.x[c]), scale);
            } else {
                for (int c = 0; c < 4 && column + c < width; ++c)
                    own.x[c] = __fmul_rn(number(from[column + c]), scale);
            }
        }
        float* const place = to + row * stride_of<Chunks>() + column;
        ALIGNED(place, sizeof own);
        *(Four<float>*)place = own;
    }
}

// Which pairs, and which keys or columns, a thread has.
template <int Own> struct Share {
    static const int lanes = 64 / Own;
    int lane, first;
    __device__ Share() : lane(threadIdx.x % lanes), first(threadIdx.x / lanes * PAIRS_OF_THREAD) {}
    __device__ int key(int t) const { return lane + lanes * t; }
    __device__ int column(int chunk, int t) const { return 64 * chunk + lane * Own + t; }
};

// found[p][t] = vector of pair p . vector of key t
template <int Chunks, int Own>
__device__ void dots(const float* pairs, const float* keys, int width,
                     float (&found)[PAIRS_OF_THREAD][Own]) {
    const Share<Own> share;
    const int stride = stride_of<Chunks>();
    UNROLL
    for (int p = 0; p < PAIRS_OF_THREAD; ++p)
        UNROLL
        for (int t = 0; t < Own; ++t) found[p][t] = 0.0f;
    for (int i = 0; i < width; i += 4) {
        Four<float> pair[PAIRS_OF_THREAD], key[Own];
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p) pair[p] = four(pairs + (share.first + p) * stride + i);
        UNROLL
        for (int t = 0; t < Own; ++t) key[t] = four(keys + share.key(t) * stride + i);
        UNROLL
        for (int c = 0; c < 4; ++c)
            UNROLL
            for (int p = 0; p < PAIRS_OF_THREAD; ++p)
                UNROLL
                for (int t = 0; t < Own; ++t)
                    found[p][t] = fmaf(pair[p].x[c], key[t].x[c], found[p][t]);
    }
}

// sums[.][p][c] += the sum of weights[p][j] * rows[j][c] over j < count; weights are zero from
// there on to a multiple of 4.
template <int Chunks, int Own>
__device__ void mix(const float* weights, const float* rows, int count,
                    float (&sums)[Chunks][PAIRS_OF_THREAD][Own]) {
    const Share<Own> share;
    for (int start = 0; start < count; start += 4) {
        Four<float> weight[PAIRS_OF_THREAD];
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p)
            weight[p] = four(weights + (share.first + p) * WEIGHTS_STRIDE + start);
        UNROLL
        for (int j = 0; j < 4; ++j)
            UNROLL
            for (int chunk = 0; chunk < Chunks; ++chunk) {
                const float* from = rows + (start + j) * stride_of<Chunks>() + share.column(chunk, 0);
                float value[Own];
                if constexpr (Own == 4) {
                    const Four<float> read = four(from);
                    UNROLL
                    for (int c = 0; c < 4; ++c) value[c] = read.x[c];
                } else {
                    UNROLL
                    for (int c = 0; c < Own; ++c) value[c] = from[c];
                }
                UNROLL
                for (int p = 0; p < PAIRS_OF_THREAD; ++p)
                    UNROLL
                    for (int c = 0; c < Own; ++c)
                        sums[chunk][p][c] = fmaf(weight[p].x[j], value[c], sums[chunk][p][c]);
            }
    }
}

template <int Chunks, int Own>
__device__ void clear(float (&sums)[Chunks][PAIRS_OF_THREAD][Own]) {
    UNROLL
    for (int chunk = 0; chunk < Chunks; ++chunk)
        UNROLL
        for (int p = 0; p < PAIRS_OF_THREAD; ++p)
            UNROLL
            for (int c = 0; c < Own; ++c) sums[chunk][p][c] = 0.0f;
}

// Neighbouring pairs of one sequence and one key head. A sequence's pairs are counted row by
// row, the query heads that share the key head inside of it.
struct PairsOf {
    unsigned row, pair, pairs;
    int heads, kv_heads, width;

    // List entries begin with the sequence's first row, the first pair, and how many pairs the
    // sequence has.
    __device__ PairsOf(const unsigned* entry, int heads, int kv_heads, int width)
        : row(entry[0]), pair(entry[1]), pairs(entry[2]), heads(heads), kv_heads(kv_heads),
          width(width) {}
    __device__ int group() const { return heads / kv_heads; }
    __device__ bool has(int p) const { return pair + p < pairs; }
    __device__ unsigned row_of(int p) const { return row + (pair + p) / group(); }
    // Place of (row, head) in what has a number for each.
    __device__ Count head_of(int p) const {
        return (Count)row_of(p) * heads + blockIdx.y * group() + (pair + p) % group();
    }
    template <typename Number> __device__ const Number* in(const Number* matrix, int p) const {
        return has(p) ? matrix + head_of(p) * width : (const Number*)nullptr;
    }
    // The last pair among `count`.
    __device__ int last(int count) const { return min(count, (int)(pairs - pair)) - 1; }
};

// Where the keys and values of a sequence are, for the head that this block has.
struct Pages {
    const Address* pages;
    Address key_base, value_base;
    int kv_heads, width;
    // Fills shared memory with `count` keys, or values, of a page.
    template <int Chunks> __device__ void load(float* to, int page, Address base, int count) const {
        const Operand* first = (const Operand*)(pages[page] + base) + blockIdx.y * width;
        const int stride = kv_heads * width;
        load_rows<Chunks>(to, PAGE, width, 1.0f, [=](int j) {
            return j < count ? first + j * stride : (const Operand*)nullptr;
        });
    }
};
