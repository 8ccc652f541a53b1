// Rotary position embedding: the first half of a head against the second, as Qwen2 does.
// Angles come from a table that the processor computed in f64, [position][half].

// Rotates all heads of a row, a block per row; sign -1 rotates back. y may be x.
template <typename To>
__device__ void rotate_row(const float* x, To* y, const unsigned* positions,
                           const float* cosines, const float* sines, int heads, int half,
                           float sign) {
    const Count row = (Count)blockIdx.x * heads * 2 * half;
    const Count angles = (Count)positions[blockIdx.x] * half;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        const int head = i / half, k = i % half;
        const float cosine = cosines[angles + k], sine = sign * sines[angles + k];
        const Count at = row + head * 2 * half + k;
        const float a = x[at], b = x[at + half];
        put(y + at, a * cosine - b * sine);
        put(y + at + half, b * cosine + a * sine);
    }
}

extern "C" __global__ void rope(const float* x, Operand* y, const unsigned* positions,
                                const float* cosines, const float* sines, int heads, int half) {
    rotate_row(x, y, positions, cosines, sines, heads, half, 1.0f);
}

// The derivative, in place.
extern "C" __global__ void rope_backward(float* x, const unsigned* positions,
                                         const float* cosines, const float* sines, int heads,
                                         int half) {
    rotate_row(x, x, positions, cosines, sines, heads, half, -1.0f);
}

// Puts a row's keys, which are rotated already, and its values where attention will look for
// them: in the page of its position. `heads_width` numbers each, a block per row.
extern "C" __global__ void store_keys_values(const Operand* keys, const Operand* values,
                                             const unsigned* positions,
                                             const unsigned* page_starts, const Address* pages,
                                             Address key_base, Address value_base,
                                             int heads_width) {
    const unsigned position = positions[blockIdx.x];
    const Address page = pages[page_starts[blockIdx.x] + position / PAGE];
    const Count from = (Count)blockIdx.x * heads_width;
    const Count to = (Count)(position % PAGE) * heads_width;
    Operand* key = (Operand*)(page + key_base) + to;
    Operand* value = (Operand*)(page + value_base) + to;
    for (int i = threadIdx.x; i < heads_width; i += blockDim.x) {
        key[i] = keys[from + i];
        value[i] = values[from + i];
    }
}
