// Kernels with a fault each: the emulation has to find it.

// Reads what another thread may not have written yet.
extern "C" __global__ void lacks_a_barrier(float* x) {
    __shared__ float passed[64];
    passed[threadIdx.x] = -1.0f;
    __syncthreads();
    passed[threadIdx.x] = (float)threadIdx.x;
    x[threadIdx.x] = passed[(threadIdx.x + 1) % 64];
}

extern "C" __global__ void meets_half_a_barrier(float* x) {
    if (threadIdx.x < 32) __syncthreads();
    x[threadIdx.x] = 0.0f;
}

extern "C" __global__ void writes_past_the_end(float* x) { x[threadIdx.x + 1] = 0.0f; }

// Two threads write one number.
extern "C" __global__ void writes_twice(float* x) { x[threadIdx.x / 2] = 0.0f; }

extern "C" __global__ void reads_past_the_end(float* x) {
    if (x[threadIdx.x + 1] == 2.0f) x[threadIdx.x] = 0.0f;
}

// Every block but the first finds what the one before has left.
extern "C" __global__ void takes_over(float* x) {
    __shared__ float kept[64];
    if (blockIdx.x == 0) kept[threadIdx.x] = 1.0f;
    x[threadIdx.x + 64 * blockIdx.x] = kept[threadIdx.x];
}

// Blocks use the same number.
extern "C" __global__ void meets_other_blocks(float* x) {
    if (threadIdx.x == 0) x[0] = x[0] + 1.0f;
}

extern "C" __global__ void reads_a_crooked_vector(float* x) {
    if (threadIdx.x == 0) x[0] = four(x + 1).x[0];
}
