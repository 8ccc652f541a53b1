// RMS norm, one block per row, or per head of a row. Where heads are some columns of wider rows,
// `x` points at the first of them and `stride` is the width of such a row; nothing else has gaps.

// 1 / sqrt(mean(x^2) + eps) of one row.
__device__ float inverse_rms(const float* x, int width, float eps) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += x[i] * x[i];
    return 1.0f / sqrtf(block_sum(squares) / width + eps);
}

// Where this block's numbers begin.
__device__ Count head_start(int width, int heads, int stride) {
    return (Count)(blockIdx.x / heads) * stride + blockIdx.x % heads * width;
}

// y = x * weight / rms(x)
template <typename To>
__device__ void norm_row(const float* x, const float* weight, To* y, int width, float eps,
                         int heads, int stride) {
    x += head_start(width, heads, stride);
    y += (Count)blockIdx.x * width;
    const float scale = inverse_rms(x, width, eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) put(y + i, x[i] * scale * weight[i]);
}

// Before a product.
extern "C" __global__ void rms_norm(const float* x, const float* weight, Operand* y, int width,
                                    float eps, int heads, int stride) {
    norm_row(x, weight, y, width, eps, heads, stride);
}

// Before anything else.
extern "C" __global__ void rms_norm_f32(const float* x, const float* weight, float* y, int width,
                                        float eps, int heads, int stride) {
    norm_row(x, weight, y, width, eps, heads, stride);
}

// The derivative by x, written or added; and each row's terms of the one by the weight,
// which `column_sums` adds up.
extern "C" __global__ void rms_norm_backward(const float* x, const float* weight,
                                             const float* grad, float* by_x, float* terms,
                                             int width, float eps, int heads, int stride,
                                             int accumulate) {
    x += head_start(width, heads, stride);
    const Count first = (Count)blockIdx.x * width;
    const float scale = inverse_rms(x, width, eps);
    float products = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        products += grad[first + i] * weight[i] * x[i];
    const float shared_part = scale * scale * block_sum(products) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float own = x[i], g = grad[first + i];
        const float derivative = scale * (g * weight[i] - shared_part * own);
        by_x[first + i] = accumulate ? by_x[first + i] + derivative : derivative;
        terms[first + i] = g * own * scale;
    }
}
