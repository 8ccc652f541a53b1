// AdamW as PyTorch defines it, one pass over a parameter; constants as in `adamw.rs`.
extern "C" __global__ void adamw(float* weights, const float* gradient, float* first,
                                 float* second, float clip_scale, float rate1, float beta2,
                                 float rate2, float keep, float step_size, float inverse_root,
                                 float eps, Count count) {
    const Count i = element();
    if (i >= count) return;
    const float g = gradient[i] * clip_scale;
    const float m = first[i] + rate1 * (g - first[i]);
    const float v = beta2 * second[i] + rate2 * g * g;
    first[i] = m;
    second[i] = v;
    weights[i] = weights[i] * keep - step_size * m / (sqrtf(v) * inverse_root + eps);
}

// The nearest numbers of bf16, of two as near the even one.
extern "C" __global__ void nearest_bf16(const float* numbers, float* nearest, Count count) {
    const Count i = element();
    if (i >= count) return;
    bf16 rounded;
    put(&rounded, numbers[i]);
    nearest[i] = number(rounded);
}

// The sum of squares of each run of `run` numbers, in f64, a block per run.
extern "C" __global__ void sum_of_squares(const float* x, double* sums, Count run, Count count) {
    const Count begin = blockIdx.x * run, end = min(count, begin + run);
    double sum = 0.0;
    for (Count i = begin + threadIdx.x; i < end; i += blockDim.x) sum += (double)x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
