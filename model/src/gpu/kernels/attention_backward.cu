// The derivative of attention over whole sequences, packed one after another. Weights are
// computed again from queries, keys and the kept logarithms of their sums, page by page:
// nothing of length x length is ever held. With p the weights and dp = grad . v,
//     ds = p * (dp - delta),  delta = grad . mixed,
// queries get sum_j ds k, keys sum_r ds q, values sum_r p grad: each by one block that adds
// in ascending order.

// Derivative by the queries; a block per (row, key head). Leaves deltas[row][head] for the
// kernel below. Keys and values are packed rows, `starts[row]` the first of the row's
// sequence. Shared memory: group * (3 * width + PAGE + 2) numbers.
extern "C" __global__ void attend_backward_queries(const Operand* queries,
                                                   const Operand* keys, const Operand* values,
                                                   const Operand* mixed,
                                                   const float* grad, const float* log_sums,
                                                   const unsigned* starts, float* deltas,
                                                   float* by_queries, int heads, int kv_heads,
                                                   int width) {
    DYNAMIC_SHARED(shared);
    const int group = heads / kv_heads, stride = kv_heads * width, wide = group * width;
    float* query = shared;
    float* own_grad = query + wide;
    float* sums = own_grad + wide;
    float* by_scores = sums + wide;
    float* log_sum = by_scores + group * PAGE;
    float* delta = log_sum + group;
    const unsigned row = blockIdx.x;
    const Count first = ((Count)row * heads + blockIdx.y * group) * width;
    const Count first_head = (Count)row * heads + blockIdx.y * group;
    const float scale = 1.0f / sqrtf((float)width);
    for (int i = threadIdx.x; i < wide; i += blockDim.x) {
        query[i] = number(queries[first + i]) * scale;
        own_grad[i] = grad[first + i];
        sums[i] = 0.0f;
    }
    __syncthreads();
    for (int head = threadIdx.x; head < group; head += blockDim.x) {
        log_sum[head] = log_sums[first_head + head];
        delta[head] = dot(own_grad + head * width, mixed + first + head * width, width);
        deltas[first_head + head] = delta[head];
    }
    for (unsigned start = starts[row]; start <= row; start += PAGE) {
        const int count = (int)min((unsigned)PAGE, row + 1 - start);
        const Operand* key = keys + (Count)start * stride + blockIdx.y * width;
        const Operand* value = values + (Count)start * stride + blockIdx.y * width;
        __syncthreads();
        for (int pair = threadIdx.x; pair < group * PAGE; pair += blockDim.x) {
            const int head = pair / PAGE, j = pair % PAGE;
            if (j >= count) continue;
            const float score = dot(query + head * width, key + j * stride, width);
            const float by_weight = dot(own_grad + head * width, value + j * stride, width);
            by_scores[pair] = expf(score - log_sum[head]) * (by_weight - delta[head]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < wide; i += blockDim.x) {
            const int head = i / width, column = i % width;
            float sum = sums[i];
            for (int j = 0; j < count; ++j)
                sum += by_scores[head * PAGE + j] * number(key[j * stride + column]);
            sums[i] = sum;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < wide; i += blockDim.x) by_queries[first + i] = sums[i] * scale;
}

// Derivatives by keys and values; a block per (key row, key head), over the query rows from
// its own to `ends[row]`, the end of its sequence. Shared memory: 4 * width + 2 * group * PAGE
// numbers.
extern "C" __global__ void attend_backward_keys(const Operand* queries, const Operand* keys,
                                                const Operand* values, const float* grad,
                                                const float* log_sums, const float* deltas,
                                                const unsigned* ends, float* by_keys,
                                                float* by_values, int heads, int kv_heads,
                                                int width) {
    DYNAMIC_SHARED(shared);
    const int group = heads / kv_heads;
    float* key = shared;
    float* value = key + width;
    float* key_sums = value + width;
    float* value_sums = key_sums + width;
    float* weights = value_sums + width;
    float* by_scores = weights + group * PAGE;
    const unsigned row = blockIdx.x;
    const Count first = ((Count)row * kv_heads + blockIdx.y) * width;
    const float scale = 1.0f / sqrtf((float)width);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        key[i] = number(keys[first + i]) * scale;
        value[i] = number(values[first + i]);
        key_sums[i] = value_sums[i] = 0.0f;
    }
    for (unsigned start = row; start < ends[row]; start += PAGE) {
        const int pairs = (int)min((unsigned)PAGE, ends[row] - start) * group;
        __syncthreads();
        for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
            const Count head = (Count)(start + pair / group) * heads + blockIdx.y * group + pair % group;
            const float score = dot(queries + head * width, key, width);
            const float by_weight = dot(grad + head * width, value, width);
            weights[pair] = expf(score - log_sums[head]);
            by_scores[pair] = weights[pair] * (by_weight - deltas[head]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * width; i += blockDim.x) {
            const bool is_key = i < width;
            const int column = is_key ? i : i - width;
            const float* factors = is_key ? by_scores : weights;
            float* sums = is_key ? key_sums : value_sums;
            float sum = sums[column];
            for (int pair = 0; pair < pairs; ++pair) {
                const Count head = (Count)(start + pair / group) * heads + blockIdx.y * group + pair % group;
                const Count at = head * width + column;
                sum += factors[pair] * (is_key ? number(queries[at]) : grad[at]);
            }
            sums[column] = sum;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        by_keys[first + i] = key_sums[i] * scale;
        by_values[first + i] = value_sums[i];
    }
}
