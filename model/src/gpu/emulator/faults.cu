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
