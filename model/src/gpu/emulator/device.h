// The part of CUDA C that the kernels use, for the host's C++ compiler: what a kernel computes
// can be tested on a machine without a GPU. The threads of a block are coroutines of one
// operating-system thread, switched at barriers. They run in ascending order, or in one that is
// drawn anew after each barrier, so a missing barrier shows as a difference between the two. With
// ACCESSES, `accesses.cpp` looks at every load and store too.

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>
#include <ucontext.h>
#ifdef ACCESSES
#include <link.h>
#endif

#define __global__
#define __device__ inline
#define __shared__ static thread_local
#define UNROLL
#define __syncthreads() emulator::barrier()
#define DYNAMIC_SHARED(name) float* name = emulator::shared_memory()
#define ALIGNED(at, bytes) emulator::check_aligned((uintptr_t)(at) % (bytes))

struct Index {
    unsigned x, y;
};
static thread_local struct {
    Index thread, block, threads, blocks;
    bool misaligned;
} emulated;
#define threadIdx emulated.thread
#define blockIdx emulated.block
#define blockDim emulated.threads
#define gridDim emulated.blocks

#ifdef ACCESSES
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
extern "C" {
void accesses_launch(const void* memory, size_t memories);
void accesses_own(const void* begin, const void* end, const void* statics, const void* statics_end);
void accesses_block(int block, const void* begin, const void* end);
void accesses_barrier();
void accesses_enter(int thread, const void* begin, const void* end);
void accesses_leave();
const char* accesses_complaint();
}
#else
#define UNSEEN
static inline void accesses_block(int, const void*, const void*) {}
static inline void accesses_barrier() {}
static inline void accesses_enter(int, const void*, const void*) {}
static inline void accesses_leave() {}
#endif

static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Never part of a multiply-add; the compiler is told to make none by itself.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }

template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }

namespace emulator {

enum class State { ready, waiting, done };

// A thread of a block. It lives as long as the operating-system thread, and runs a thread of
// one block after another.
struct Coroutine {
    jmp_buf at;
    std::unique_ptr<char[]> stack;
    State state;
};

static thread_local jmp_buf scheduler;
static thread_local std::vector<Coroutine> coroutines;
static thread_local std::vector<float> dynamic_shared;
// The kernel of the launch under way, with its arguments.
// The orders of blocks and of threads; each launch seeds them again.
static thread_local std::vector<size_t> block_order, thread_order;
static thread_local std::minstd_rand random_bits;
static thread_local bool shuffled;
static thread_local void (*body)(void**);
static thread_local void** body_arguments;

const size_t STACK = 1 << 16;

UNSEEN static float* shared_memory() { return dynamic_shared.data(); }

static inline void check_aligned(size_t rest) { emulated.misaligned |= rest != 0; }

// Leaves the thread that runs; the scheduler comes back to it. (`_setjmp` asks the system for
// nothing, `swapcontext` would on every switch.)
UNSEEN static void leave(State state) {
    accesses_leave();
    Coroutine& own = coroutines[threadIdx.x];
    own.state = state;
    if (_setjmp(own.at) == 0) _longjmp(scheduler, 1);
    const char* stack = coroutines[threadIdx.x].stack.get();
    accesses_enter(threadIdx.x, stack, stack + STACK);
}

static void barrier() { leave(State::waiting); }

UNSEEN static void run_threads() {
    leave(State::done);
    for (;;) {
        body(body_arguments);
        leave(State::done);
    }
}

// Gives a coroutine a stack and runs it to its first leave.
static void start(Coroutine& coroutine) {
    ucontext_t entry;
    coroutine.stack.reset(new char[STACK]);
    getcontext(&entry);
    entry.uc_stack.ss_sp = coroutine.stack.get();
    entry.uc_stack.ss_size = STACK;
    entry.uc_link = nullptr;
    makecontext(&entry, run_threads, 0);
    if (_setjmp(scheduler) == 0) setcontext(&entry);
}

// Fills `order` with 0 to count - 1, shuffled where the launch is.
static void ordered(std::vector<size_t>& order, size_t count) {
    order.resize(count);
    std::iota(order.begin(), order.end(), (size_t)0);
    if (shuffled) std::shuffle(order.begin(), order.end(), random_bits);
}

// Runs every thread to its next barrier or end; false where some wait for a barrier that
// others will never reach.
static bool run_to_barrier() {
    size_t waiting = 0;
    const unsigned threads = blockDim.x;
    ordered(thread_order, threads);
    for (volatile unsigned i = 0; i < threads; i = i + 1) {
        threadIdx.x = (unsigned)thread_order[i];
        if (_setjmp(scheduler) == 0) _longjmp(coroutines[threadIdx.x].at, 1);
    }
    for (unsigned i = 0; i < threads; ++i) waiting += coroutines[i].state == State::waiting;
    return waiting == 0 || waiting == threads;
}

static bool run_block() {
    // What was left by the block before is nothing to rely on.
    for (float& x : dynamic_shared) x = std::numeric_limits<float>::quiet_NaN();
    const float* shared = dynamic_shared.data();
    accesses_block(blockIdx.y * gridDim.x + blockIdx.x, shared, shared + dynamic_shared.size());
    do {
        if (!run_to_barrier()) return false;
        accesses_barrier();
    } while (coroutines[0].state == State::waiting);
    return true;
}

// Makes coroutines for a block of this size. A launch that ended at a divergent barrier left
// some of them in the middle of a kernel, so they are all made anew after one.
static void prepare(unsigned block) {
    if (coroutines.size() >= block) return;
    coroutines.clear();
    coroutines.resize(block);
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) start(coroutines[threadIdx.x]);
}

// A letter for each type that a kernel may take, so that a launch with other ones is found.
template <typename T> struct Letter;
template <typename T> struct Letter<T*> { static const char value = 'p'; };
template <> struct Letter<int> { static const char value = 'i'; };
template <> struct Letter<float> { static const char value = 'f'; };
template <> struct Letter<unsigned long long> { static const char value = 'q'; };

template <auto kernel, typename... P> struct Entry;
template <typename... P, void (*kernel)(P...)> struct Entry<kernel, std::tuple<P...>> {
    template <size_t... I> UNSEEN static void call(void** values, std::index_sequence<I...>) {
        kernel(*(P*)values[I]...);
    }
    UNSEEN static void run(void** values) { call(values, std::index_sequence_for<P...>()); }
    static bool takes(const char* letters) {
        const char own[] = {Letter<P>::value..., 0};
        return strcmp(own, letters) == 0;
    }
};
template <typename... P> std::tuple<P...> parameters(void (*)(P...));

enum Outcome { ok = 0, wrong_arguments = 1, divergent_barrier = 2, misaligned = 3 };

#ifdef ACCESSES
// Where this module keeps what is thread_local, static shared memory among it.
static int find_statics(dl_phdr_info* module, size_t, void* found) {
    const char* own = (const char*)&emulated;
    for (int i = 0; i < module->dlpi_phnum; ++i) {
        const auto& part = module->dlpi_phdr[i];
        const char* begin = (const char*)module->dlpi_tls_data;
        if (part.p_type != PT_TLS || !begin || own < begin || own >= begin + part.p_memsz) continue;
        ((const char**)found)[0] = begin;
        ((const char**)found)[1] = begin + part.p_memsz;
        return 1;
    }
    return 0;
}

extern "C" void emulate_memory(const void* ranges, size_t count) {
    const char* statics[2] = {nullptr, nullptr};
    dl_iterate_phdr(find_statics, statics);
    accesses_own(&emulated, &emulated + 1, statics[0], statics[1]);
    accesses_launch(ranges, count);
}

extern "C" const char* emulate_complaint() { return accesses_complaint(); }
#endif

template <auto kernel>
int launch(void** values, const char* letters, unsigned grid_x, unsigned grid_y, unsigned block,
           unsigned shared_bytes, unsigned seed) {
    using Own = Entry<kernel, decltype(parameters(kernel))>;
    if (!Own::takes(letters)) return wrong_arguments;
    body = Own::run;
    body_arguments = values;
    emulated.misaligned = false;
    blockDim = {block, 1};
    gridDim = {grid_x, grid_y};
    prepare(block);
    dynamic_shared.assign(shared_bytes / sizeof(float), 0.0f);
    shuffled = seed != 0;
    random_bits.seed(seed);
    ordered(block_order, (size_t)grid_x * grid_y);
    for (const size_t at : block_order) {
        blockIdx = {(unsigned)(at % grid_x), (unsigned)(at / grid_x)};
        if (!run_block()) {
            coroutines.clear();
            return divergent_barrier;
        }
    }
    return emulated.misaligned ? misaligned : ok;
}

}  // namespace emulator

#define EMULATE(kernel)                                                                          \
    extern "C" int emulate_##kernel(void** values, const char* letters, unsigned grid_x,         \
                                    unsigned grid_y, unsigned block, unsigned shared_bytes,      \
                                    unsigned seed) {                                             \
        return emulator::launch<kernel>(values, letters, grid_x, grid_y, block, shared_bytes,    \
                                        seed);                                                   \
    }
