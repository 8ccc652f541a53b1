// Rotary position embedding: the first half of a head against the second, as Qwen2 does.
// Angles come from a table that the processor computed in f64, [position][half].

// Rotates all heads of a row in place, a block per row; sign -1 rotates back, which is the
// derivative.
extern "C" __global__ void rope(float* x, const unsigned* positions, const float* cosines,
                                const float* sines, int heads, int half, float sign) {
    float* row = x + (Count)blockIdx.x * heads * 2 * half;
    const Count angles = (Count)positions[blockIdx.x] * half;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        const int head = i / half, k = i % half;
        const float cosine = cosines[angles + k], sine = sign * sines[angles + k];
        float* pair = row + head * 2 * half + k;
        const float a = pair[0], b = pair[half];
        pair[0] = a * cosine - b * sine;
        pair[half] = b * cosine + a * sine;
    }
}

// Puts a row's keys, which are rotated already, and its values where attention will look for
// them: in the page of its position. `heads_width` numbers each, a block per row.
extern "C" __global__ void store_keys_values(const float* keys, const float* values,
                                             const unsigned* positions,
                                             const unsigned* page_starts, const Address* pages,
                                             Address key_base, Address value_base,
                                             int heads_width) {
    const unsigned position = positions[blockIdx.x];
    const Address page = pages[page_starts[blockIdx.x] + position / PAGE];
    const Count from = (Count)blockIdx.x * heads_width;
    const Count to = (Count)(position % PAGE) * heads_width;
    float* key = (float*)(page + key_base) + to;
    float* value = (float*)(page + value_base) + to;
    for (int i = threadIdx.x; i < heads_width; i += blockDim.x) {
        key[i] = keys[from + i];
        value[i] = values[from + i];
    }
}
