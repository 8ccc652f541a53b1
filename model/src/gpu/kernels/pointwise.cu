// Element by element, row by row: activations, copies of rows, sums of columns.

// y = x, rounded.
extern "C" __global__ void to_operands(const float* x, Operand* y, Count count) {
    const Count i = element();
    if (i < count) put(y + i, x[i]);
}

// y = x
extern "C" __global__ void to_numbers(const Operand* x, float* y, Count count) {
    const Count i = element();
    if (i < count) y[i] = number(x[i]);
}

// y = x, rounded, where y is some columns of rows of `stride` numbers.
extern "C" __global__ void to_columns(const float* x, Operand* y, int width, int stride,
                                      Count count) {
    const Count i = element();
    if (i < count) put(y + i / width * stride + i % width, x[i]);
}

// silu(gate) * up; a row has `width` numbers of the gate, and as many of `up` behind them.
extern "C" __global__ void swiglu(const float* gate_up, Operand* y, int width, Count count) {
    const Count i = element();
    if (i >= count) return;
    const float* gate = gate_up + i / width * 2 * width + i % width;
    put(y + i, gate[0] * gate[width] / (1.0f + expf(-gate[0])));
}

extern "C" __global__ void swiglu_backward(const float* gate_up, const float* grad,
                                           Operand* by_gate, Operand* by_up, int width,
                                           Count count) {
    const Count i = element();
    if (i >= count) return;
    const float* gate = gate_up + i / width * 2 * width + i % width;
    const float sigmoid = 1.0f / (1.0f + expf(-gate[0]));
    const float silu = gate[0] * sigmoid;
    put(by_up + i, grad[i] * silu);
    put(by_gate + i, grad[i] * gate[width] * (sigmoid + silu * (1.0f - sigmoid)));
}

// y += x
extern "C" __global__ void add_assign(float* y, const float* x, Count count) {
    const Count i = element();
    if (i < count) y[i] += x[i];
}

// to = base + (scale·a)·b, rounded; base is [count / width, width], a [.., rank], b [rank, width],
// and `to` some columns of rows of `stride` numbers. A sum is one chain of multiply-adds, cut
// after 512, as the processor's are (K_PIECE in `kernels/matmul.rs`).
extern "C" __global__ void merge_factors(const float* base, const float* a, const float* b,
                                         Operand* to, float scale, int rank, int width,
                                         int stride, Count count) {
    const Count i = element();
    if (i >= count) return;
    const float* row = a + i / width * rank;
    const float* column = b + i % width;
    float sum = base[i];
    for (int first = 0; first < rank; first += 512) {
        const int end = min(first + 512, rank);
        float piece = 0.0f;
        for (int k = first; k < end; k++) {
            piece = fmaf(row[k] * scale, column[(Count)k * width], piece);
        }
        sum += piece;
    }
    put(to + i / width * stride + i % width, sum);
}

// x *= factor
extern "C" __global__ void scale(float* x, float factor, Count count) {
    const Count i = element();
    if (i < count) x[i] *= factor;
}

// y[i] = matrix[rows[i]], a block per row.
template <typename From, typename To>
__device__ void gather_row(const From* matrix, const unsigned* rows, To* y, int width) {
    const Count from = (Count)rows[blockIdx.x] * width, to = (Count)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) put(y + to + i, number(matrix[from + i]));
}

// The embedding of ids.
extern "C" __global__ void embed(const Operand* matrix, const unsigned* rows, float* y,
                                 int width) {
    gather_row(matrix, rows, y, width);
}

// The rows that are wanted.
extern "C" __global__ void gather_rows(const float* matrix, const unsigned* rows, float* y,
                                       int width) {
    gather_row(matrix, rows, y, width);
}

extern "C" __global__ void gather_operands(const Operand* matrix, const unsigned* rows,
                                           Operand* y, int width) {
    gather_row(matrix, rows, y, width);
}

// matrix[rows[i]] = x[i], a block per row. What is for one row, which is then named several times in
// a row, is added by the block of the first.
extern "C" __global__ void scatter_rows(const float* x, const unsigned* rows, float* matrix,
                                        int width) {
    const unsigned row = rows[blockIdx.x];
    if (blockIdx.x > 0 && rows[blockIdx.x - 1] == row) return;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = x[(Count)blockIdx.x * width + i];
        for (unsigned k = blockIdx.x + 1; k < gridDim.x && rows[k] == row; ++k)
            sum += x[(Count)k * width + i];
        matrix[(Count)row * width + i] = sum;
    }
}

// Rows sources[b] of keys and of values once more, from row `first` on, a block per row.
extern "C" __global__ void repeat_rows(Operand* keys, Operand* values, const unsigned* sources,
                                       int first, int width) {
    const Count from = (Count)sources[blockIdx.x] * width;
    const Count to = ((Count)first + blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        keys[to + i] = keys[from + i];
        values[to + i] = values[from + i];
    }
}

// matrix[ids[b]] += the sum of the rows order[starts[b]] ... order[starts[b + 1] - 1] of x, one
// after another. A block has an id to itself, so nothing is added by two at a time.
extern "C" __global__ void sum_rows_by_id(const float* x, const unsigned* ids,
                                          const unsigned* starts, const unsigned* order,
                                          float* matrix, int width) {
    const unsigned begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    const Count to = (Count)ids[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        for (unsigned k = begin; k < end; ++k) sum += x[(Count)order[k] * width + i];
        matrix[to + i] += sum;
    }
}

// y[chunk] = the sum of `chunk_rows` rows of x, one after another. Twice in a row it gives
// the sums of whole columns, in an order that the number of rows alone fixes.
extern "C" __global__ void column_sums(const float* x, float* y, int rows, int width,
                                       int chunk_rows) {
    const int column = (int)element();
    if (column >= width) return;
    const int begin = blockIdx.y * chunk_rows;
    const int end = min(rows, begin + chunk_rows);
    float sum = 0.0f;
    for (int row = begin; row < end; ++row) sum += x[(Count)row * width + column];
    y[(Count)blockIdx.y * width + column] = sum;
}
