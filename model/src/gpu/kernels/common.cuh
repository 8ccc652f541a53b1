// What all kernel files share. They are one program to the compiler, in the order of
// `kernels.rs`, and keep to the part of CUDA C that `emulator/device.h` has too.
//
// Two rules hold for all of them. Sums run in an order that the kernel alone fixes:
// no atomics, no launch that depends on the batch. And what a row gets depends on
// that row, and on the rows it is to read, alone.

typedef unsigned long long Address;
typedef unsigned long long Count;

// A number of 16 bits: the upper half of a float's.
struct bf16 {
    unsigned short bits;
};

// What products read and attention keeps: the program is compiled with OPERAND as `float` or
// as `bf16`. Everything else is float, and what is computed is.
typedef OPERAND Operand;

__device__ float number(float x) { return x; }
__device__ float number(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ void put(float* to, float x) { *to = x; }

// The nearest, the even one of two; not a number stays that.
__device__ void put(bf16* to, float x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    to->bits = (unsigned short)(x == x ? nearest : 0x7fc0u);
}

// Less than any score, and the exponential of its distance to one is zero.
#define LOWEST (-3.0e38f)

// Positions in a page of keys and values; attention goes through keys page by page.
#define PAGE 64

// The sum of one number per thread, in the same tree for everybody. The block is a
// power of two, at most 1024.
template <typename Number> __device__ Number block_sum(Number own) {
    __shared__ Number sums[1024];
    sums[threadIdx.x] = own;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    Number sum = sums[0];
    // Nobody writes the next sum before everybody has read this one.
    __syncthreads();
    return sum;
}

// The largest of one number per thread.
__device__ float block_max(float own) {
    __shared__ float largest[1024];
    largest[threadIdx.x] = own;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + half]);
    }
    __syncthreads();
    float max = largest[0];
    __syncthreads();
    return max;
}

// The element of a long list that this thread computes.
__device__ Count element() { return (Count)blockIdx.x * blockDim.x + threadIdx.x; }
