// Looks at every load and store of the kernels, as the compiler reports them with
// -fsanitize=thread, in the place of that sanitizer's own library. Between two barriers no two threads
// may use the same memory if one of them writes; blocks of one launch may not at all; shared memory
// is read after this block has written it; other memory lies inside of an allocation. What is wrong
// is told as a line.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>

namespace {

const int NOBODY = -1, SEVERAL = -2;

// Two bytes of memory: who wrote them and who read them since the last barrier, and in this launch.
struct Cell {
    unsigned interval;
    int writer = NOBODY, reader = NOBODY;
    int writing_block = NOBODY, reading_block = NOBODY;
    // Whether this block wrote them, if they are shared.
    int written_in = NOBODY;
};

struct Range {
    uintptr_t begin, end;
    bool has(uintptr_t at) const { return at >= begin && at < end; }
};

struct State {
    bool on = false;
    int thread = 0, block = 0;
    unsigned interval = 0;
    // The thread's stack, dynamic shared memory, what the emulation itself has.
    Range stack{}, dynamic{}, own{};
    // Allocations, ascending.
    const Range* memory = nullptr;
    size_t memories = 0;
    // What a module keeps per operating-system thread, where static shared memory is.
    Range statics{};
    std::unordered_map<uintptr_t, Cell> cells;
    char complaint[160] = "";
};

thread_local State state;

void complain(const char* what, int other) {
    if (state.complaint[0]) return;
    snprintf(state.complaint, sizeof state.complaint, "%s: threads %d and %d of block %d, interval %u",
             what, state.thread, other, state.block, state.interval);
}

bool allocated(uintptr_t at, unsigned bytes) {
    size_t low = 0, high = state.memories;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (state.memory[middle].end <= at) low = middle + 1;
        else high = middle;
    }
    return low < state.memories && at >= state.memory[low].begin && at + bytes <= state.memory[low].end;
}

void access(const void* pointer, unsigned bytes, bool writes) {
    State& s = state;
    const uintptr_t at = (uintptr_t)pointer;
    // A single byte is the compiler's: whether a thread_local is there.
    if (!s.on || bytes == 1 || s.stack.has(at) || s.own.has(at)) return;
    s.on = false;
    const bool shared = s.dynamic.has(at) || s.statics.has(at);
    if (!shared && !allocated(at, bytes)) complain("an access out of range", NOBODY);
    for (uintptr_t cell = at >> 1; cell <= (at + bytes - 1) >> 1; ++cell) {
        Cell& c = s.cells[cell];
        if (c.interval != s.interval) c.writer = c.reader = NOBODY;
        c.interval = s.interval;
        if (c.writer != NOBODY && c.writer != s.thread) complain("a race with a write", c.writer);
        if (writes && c.reader != NOBODY && c.reader != s.thread) complain("a race with a read", c.reader);
        if (!shared) {
            if (c.writing_block != NOBODY && c.writing_block != s.block)
                complain("a race with a write of another block", c.writing_block);
            if (writes && c.reading_block != NOBODY && c.reading_block != s.block)
                complain("a race with a read of another block", c.reading_block);
        } else if (!writes && c.written_in != s.block) {
            complain("a read of shared memory that the block did not write", NOBODY);
        }
        if (writes) {
            c.writer = s.thread;
            c.writing_block = c.written_in = s.block;
        } else {
            c.reader = c.reader == NOBODY || c.reader == s.thread ? s.thread : SEVERAL;
            c.reading_block = c.reading_block == NOBODY || c.reading_block == s.block ? s.block : SEVERAL;
        }
    }
    s.on = true;
}

}  // namespace

extern "C" {

void accesses_launch(const void* memory, size_t memories) {
    state.cells.clear();
    state.memory = (const Range*)memory;
    state.memories = memories;
    state.complaint[0] = 0;
    state.interval = 1;
}
void accesses_own(const void* begin, const void* end, const void* statics, const void* statics_end) {
    state.own = {(uintptr_t)begin, (uintptr_t)end};
    state.statics = {(uintptr_t)statics, (uintptr_t)statics_end};
}
void accesses_block(int block, const void* begin, const void* end) {
    state.block = block;
    state.interval++;
    state.dynamic = {(uintptr_t)begin, (uintptr_t)end};
}
void accesses_barrier() { state.interval++; }
void accesses_enter(int thread, const void* begin, const void* end) {
    state.thread = thread;
    state.stack = {(uintptr_t)begin, (uintptr_t)end};
    state.on = true;
}
void accesses_leave() { state.on = false; }
const char* accesses_complaint() { return state.complaint; }

#define ACCESS(bytes)                                                                            \
    void __tsan_read##bytes(void* at) { access(at, bytes, false); }                              \
    void __tsan_write##bytes(void* at) { access(at, bytes, true); }                              \
    void __tsan_unaligned_read##bytes(void* at) { access(at, bytes, false); }                    \
    void __tsan_unaligned_write##bytes(void* at) { access(at, bytes, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void* at, unsigned long bytes) { access(at, bytes, false); }
void __tsan_write_range(void* at, unsigned long bytes) { access(at, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
