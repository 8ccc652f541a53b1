// The next-token distribution of rows of logits, a block per row. Sampling and scoring both
// measure a row by the same function, so that the log-probability recorded while sampling
// equals the scored one.

struct Distribution {
    float max;
    float sum;
    float log_sum;
    float entropy;
};

// Softmax of logits / temperature, by its normalising constants.
__device__ Distribution measure(const float* logits, int vocabulary, float inverse_temperature) {
    Distribution found;
    float max = LOWEST;
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x)
        max = fmaxf(max, logits[i] * inverse_temperature);
    found.max = block_max(max);
    float sum = 0.0f, weighted = 0.0f;
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) {
        const float z = logits[i] * inverse_temperature - found.max;
        const float e = expf(z);
        sum += e;
        weighted += e * z;
    }
    found.sum = block_sum(sum);
    found.log_sum = logf(found.sum);
    found.entropy = found.log_sum - block_sum(weighted) / found.sum;
    return found;
}

// Log-probability of an id with this raw logit.
__device__ float log_prob_of(const Distribution& found, float logit, float inverse_temperature) {
    return fmaf(logit, inverse_temperature, -found.max) - found.log_sum;
}

// Log-probability of each row's target and entropy of its distribution.
extern "C" __global__ void distribution(const float* logits, const unsigned* targets,
                                        float* log_probs, float* entropies, int vocabulary,
                                        float inverse_temperature) {
    const float* row = logits + (Count)blockIdx.x * vocabulary;
    const Distribution found = measure(row, vocabulary, inverse_temperature);
    if (threadIdx.x == 0) {
        log_probs[blockIdx.x] = log_prob_of(found, row[targets[blockIdx.x]], inverse_temperature);
        entropies[blockIdx.x] = found.entropy;
    }
}

// d(a * log_prob(target) + b * entropy) / d logits.
extern "C" __global__ void distribution_backward(const float* logits, const unsigned* targets,
                                                 const float* by_log_prob,
                                                 const float* by_entropy, Operand* by_logits,
                                                 int vocabulary, float inverse_temperature) {
    const float* row = logits + (Count)blockIdx.x * vocabulary;
    Operand* by_row = by_logits + (Count)blockIdx.x * vocabulary;
    const Distribution found = measure(row, vocabulary, inverse_temperature);
    const float a = by_log_prob[blockIdx.x], b = by_entropy[blockIdx.x];
    const int target = (int)targets[blockIdx.x];
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) {
        const float z = row[i] * inverse_temperature - found.max;
        const float p = expf(z) / found.sum;
        const float inner = a + b * (z - found.log_sum + found.entropy);
        put(by_row + i, ((i == target ? a : 0.0f) - p * inner) * inverse_temperature);
    }
}

// Draws an id from each row: where the running sum of weights, in id order, passes the row's
// number in [0, 1) of the whole. A number of -1 takes the most probable id, the lowest of
// equals; one of -2 - id takes that id. Log-probabilities and entropies are over the whole
// vocabulary.
// Weights are added in f64, over a fixed run of ids per thread and then over the threads.
extern "C" __global__ void sample(const float* logits, const double* numbers,
                                  const float* inverse_temperatures, unsigned* ids,
                                  float* log_probs, float* entropies, int vocabulary) {
    __shared__ double sums[1024];
    __shared__ int chosen[1024];
    const float* row = logits + (Count)blockIdx.x * vocabulary;
    const float inverse_temperature = inverse_temperatures[blockIdx.x];
    const Distribution found = measure(row, vocabulary, inverse_temperature);
    const double number = numbers[blockIdx.x];
    const int run = (vocabulary + (int)blockDim.x - 1) / (int)blockDim.x;
    const int begin = min(vocabulary, (int)threadIdx.x * run), end = min(vocabulary, begin + run);
    // Each thread's sum, or the best of its ids.
    double sum = 0.0;
    int best = begin;
    for (int i = begin; i < end; ++i) {
        sum += expf(row[i] * inverse_temperature - found.max);
        if (row[i] > row[best]) best = i;
    }
    sums[threadIdx.x] = sum;
    chosen[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        int id = 0;
        if (number <= -2.0) {
            id = (int)(-2.0 - number);
        } else if (number < 0.0) {
            for (int t = 0; t < (int)blockDim.x; ++t)
                if (t * run < vocabulary && row[chosen[t]] > row[id]) id = chosen[t];
        } else {
            double total = 0.0, before = 0.0;
            int t = 0, last = 0;
            for (int other = 0; other < (int)blockDim.x; ++other) {
                total += sums[other];
                if (sums[other] > 0.0) last = other;
            }
            const double goal = number * total;
            // Where rounding leaves the sum at the goal, the last possible id.
            while (t < last && before + sums[t] <= goal) before += sums[t++];
            for (int i = min(vocabulary, t * run); i < min(vocabulary, (t + 1) * run); ++i) {
                const float weight = expf(row[i] * inverse_temperature - found.max);
                if (weight > 0.0f) id = i;
                before += weight;
                if (before > goal) break;
            }
        }
        ids[blockIdx.x] = (unsigned)id;
        log_probs[blockIdx.x] = log_prob_of(found, row[id], inverse_temperature);
        entropies[blockIdx.x] = found.entropy;
    }
}
