// Causal attention of query rows over the keys and values of their own sequence. Decoding a
// token, prefilling it and scoring it are this one kernel: keys are read through a table of
// pages, which lie in a cache or, for a whole sequence, in the packed rows themselves. So a
// row goes through its keys in the same order everywhere, and gets the same bits.
//
// A block has one row and one key head, hence all query heads that share it: each key is
// read once for all of them. Softmax is computed page by page with a running maximum
// (arXiv:1805.02867, arXiv:2205.14135).

// Keys or values of the head that this block has, from a page's first position on.
__device__ const Operand* page_of(const Address* pages, unsigned page, Address base, int width) {
    return (const Operand*)(pages[page] + base) + blockIdx.y * width;
}

template <typename A, typename B> __device__ float dot(const A* a, const B* b, int width) {
    float sum = 0.0f;
    for (int i = 0; i < width; ++i) sum += number(a[i]) * number(b[i]);
    return sum;
}

// mixed = softmax(q k / sqrt(width)) v; log_sums[row][head] = ln of the sum of exponentials,
// which the backward pass takes up. Shared memory: group * (2 * width + PAGE + 3) numbers.
extern "C" __global__ void attend(const Operand* queries, const unsigned* positions,
                                  const unsigned* page_starts, const Address* pages,
                                  Address key_base, Address value_base, Operand* mixed,
                                  float* log_sums, int heads, int kv_heads, int width) {
    DYNAMIC_SHARED(shared);
    const int group = heads / kv_heads, stride = kv_heads * width, wide = group * width;
    float* query = shared;
    float* sums = query + wide;
    float* weights = sums + wide;
    float* max = weights + group * PAGE;
    float* total = max + group;
    float* factor = total + group;
    const unsigned row = blockIdx.x;
    const Count first = ((Count)row * heads + blockIdx.y * group) * width;
    const float scale = 1.0f / sqrtf((float)width);
    for (int i = threadIdx.x; i < wide; i += blockDim.x) {
        query[i] = number(queries[first + i]) * scale;
        sums[i] = 0.0f;
    }
    for (int head = threadIdx.x; head < group; head += blockDim.x) {
        max[head] = LOWEST;
        total[head] = 0.0f;
    }
    const int keys = (int)positions[row] + 1;
    for (int start = 0; start < keys; start += PAGE) {
        const unsigned page = page_starts[row] + start / PAGE;
        const Operand* key = page_of(pages, page, key_base, width);
        const Operand* value = page_of(pages, page, value_base, width);
        const int count = min(PAGE, keys - start);
        __syncthreads();
        for (int pair = threadIdx.x; pair < group * PAGE; pair += blockDim.x) {
            const int head = pair / PAGE, j = pair % PAGE;
            if (j < count) weights[pair] = dot(query + head * width, key + j * stride, width);
        }
        __syncthreads();
        for (int head = threadIdx.x; head < group; head += blockDim.x) {
            float* own = weights + head * PAGE;
            float top = max[head], sum = 0.0f;
            for (int j = 0; j < count; ++j) top = fmaxf(top, own[j]);
            for (int j = 0; j < count; ++j) sum += own[j] = expf(own[j] - top);
            factor[head] = expf(max[head] - top);
            max[head] = top;
            total[head] = total[head] * factor[head] + sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < wide; i += blockDim.x) {
            const int head = i / width, column = i % width;
            float sum = sums[i] * factor[head];
            for (int j = 0; j < count; ++j)
                sum += weights[head * PAGE + j] * number(value[j * stride + column]);
            sums[i] = sum;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < wide; i += blockDim.x)
        put(mixed + first + i, sums[i] / total[i / width]);
    for (int head = threadIdx.x; head < group; head += blockDim.x)
        log_sums[(Count)row * heads + blockIdx.y * group + head] = max[head] + logf(total[head]);
}
