// Rotary position embedding: the first half of a head against the second, as Qwen2 does.
// Angles come from a table that the processor computed in f64, [position][half].

// Rotates the heads of a row; sign -1 rotates back. y may be x.
template <typename To>
__device__ void rotate_row(const float* x, const float* bias, To* y, const float* cosines,
                           const float* sines, int heads, int half, float sign) {
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        const int k = i % half, at = i / half * 2 * half + k;
        const float cosine = cosines[k], sine = sign * sines[k];
        const float a = bias ? x[at] + bias[at] : x[at];
        const float b = bias ? x[at + half] + bias[at + half] : x[at + half];
        put(y + at, a * cosine - b * sine);
        put(y + at + half, b * cosine + a * sine);
    }
}

// What a row brings to attention, a block per row: its queries, rotated, and, where attention
// will look for them, in the page of its position, its keys, rotated, and its values. `q_stride`,
// `k_stride` and `v_stride` are from one row to the next. A bias, if there is one, is added
// first: that of queries, keys and values, one after the other.
extern "C" __global__ void rotate_and_store(const float* q, const float* k, const float* v,
                                            const float* bias, int q_stride, int k_stride,
                                            int v_stride, const unsigned* positions,
                                            const float* cosines, const float* sines,
                                            const unsigned* page_starts, const Address* pages,
                                            Address key_base, Address value_base,
                                            Operand* queries, int heads, int kv_heads,
                                            int half) {
    const Count row = blockIdx.x;
    const int wide = heads * 2 * half, narrow = kv_heads * 2 * half;
    const unsigned position = positions[row];
    const Address page = pages[page_starts[row] + position / PAGE];
    const Count place = (Count)(position % PAGE) * narrow;
    Operand* key = (Operand*)(page + key_base) + place;
    Operand* value = (Operand*)(page + value_base) + place;
    const float* key_bias = bias ? bias + wide : bias;
    const float* value_bias = bias ? bias + wide + narrow : bias;
    cosines += (Count)position * half;
    sines += (Count)position * half;
    rotate_row(q + row * q_stride, bias, queries + row * wide, cosines, sines, heads, half, 1.0f);
    rotate_row(k + row * k_stride, key_bias, key, cosines, sines, kv_heads, half, 1.0f);
    for (int i = threadIdx.x; i < narrow; i += blockDim.x) {
        const float own = v[row * v_stride + i];
        put(value + i, value_bias ? own + value_bias[i] : own);
    }
}

// The derivative of a rotation, in place, a block per row.
extern "C" __global__ void rope_backward(float* x, const unsigned* positions,
                                         const float* cosines, const float* sines, int heads,
                                         int half) {
    x += (Count)blockIdx.x * heads * 2 * half;
    const Count angles = (Count)positions[blockIdx.x] * half;
    rotate_row(x, (const float*)nullptr, x, cosines + angles, sines + angles, heads, half, -1.0f);
}
