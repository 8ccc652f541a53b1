// CUDA's libraries, all in one: they find what the environment says, keep memory, compute nothing, and
// fail as they are told to: FAKE_LAUNCH=2:3 lets the first three launches answer 2.
#include <stdlib.h>
#include <string.h>

static int said(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return said("FAKE_INIT", 0); }
int cuDriverGetVersion(int* version) { *version = said("FAKE_VERSION", 13000); return 0; }
int cuDeviceGetCount(int* count) { *count = said("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) {
    strncpy(name, "Fake GPU", length);
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    // 75 and 76 are the compute capability, major and minor; 115 says whether there are memory pools.
    *value = attribute == 75 ? said("FAKE_MAJOR", 9) : attribute == 115 ? said("FAKE_POOLS", 1) : 0;
    return 0;
}
// The answer of a call that is told to fail so many times.
static int faulty(const char* name, int* calls) {
    const char* text = getenv(name);
    const char* times = text ? strchr(text, ':') : 0;
    return times && (*calls)++ < atoi(times + 1) ? atoi(text) : 0;
}

typedef unsigned long long Address;
typedef void* Handle;
static int make(Handle* handle) { *handle = (Handle)1; return 0; }
static int keep(Address* address, size_t bytes) { *address = (Address)malloc(bytes); return 0; }

int cuDevicePrimaryCtxRetain(Handle* context, int device) { return make(context); }
int cuCtxSetCurrent(Handle context) { return 0; }
int cuDeviceGetDefaultMemPool(Handle* pool, int device) { return make(pool); }
int cuMemPoolSetAttribute(Handle pool, int attribute, void* value) { return 0; }
int cuMemPoolTrimTo(Handle pool, size_t bytes) { return 0; }
int cuDeviceGraphMemTrim(int device) { return 0; }
int cuModuleLoadData(Handle* module, const void* image) { return make(module); }
int cuModuleGetFunction(Handle* function, Handle module, const char* name) { return make(function); }
int cuFuncSetAttribute(Handle function, int attribute, int value) { return 0; }
int cuStreamCreate(Handle* stream, unsigned flags) { return make(stream); }
int cuStreamSynchronize(Handle stream) { return said("FAKE_SYNC", 0); }
int cuMemGetInfo_v2(size_t* free, size_t* total) { *free = *total = 0; return 0; }
int cuMemAlloc_v2(Address* address, size_t bytes) { return keep(address, bytes); }
int cuMemAllocAsync(Address* address, size_t bytes, Handle stream) {
    static int calls;
    int answer = faulty("FAKE_ALLOC", &calls);
    return answer ? answer : keep(address, bytes);
}
int cuMemFreeAsync(Address address, Handle stream) { free((void*)address); return 0; }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) { *memory = malloc(bytes); return 0; }
int cuEventCreate(Handle* event, unsigned flags) { return make(event); }
int cuEventRecord(Handle event, Handle stream) { return 0; }
int cuEventSynchronize(Handle event) { return 0; }
int cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, Handle stream) { return 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Handle stream) { return 0; }
int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Handle stream,
                   void** arguments, void** more) {
    static int calls;
    return faulty("FAKE_LAUNCH", &calls);
}

// cuBLAS
#ifndef MAJOR
#define MAJOR 13
#endif
int cublasCreate_v2(Handle* handle) { return make(handle); }
int cublasSetStream_v2(Handle handle, Handle stream) { return 0; }
int cublasSetMathMode(Handle handle, int mode) { return 0; }
int cublasSetWorkspace_v2(Handle handle, void* memory, size_t bytes) { return 0; }
int cublasGetVersion_v2(Handle handle, int* version) { *version = MAJOR * 10000; return 0; }
int cublasGemmEx() {
    static int calls;
    return faulty("FAKE_GEMM", &calls);
}

// NVRTC
int nvrtcVersion(int* major, int* minor) { *major = MAJOR; *minor = 7; return 0; }
int nvrtcCreateProgram(Handle* program) { return make(program); }
int nvrtcDestroyProgram(Handle* program) { return 0; }
int nvrtcCompileProgram(Handle program, int count, const char** options) { return 0; }
int nvrtcGetCUBINSize(Handle program, size_t* bytes) { *bytes = 4; return 0; }
int nvrtcGetCUBIN(Handle program, char* code) { memcpy(code, "code", 4); return 0; }
int nvrtcGetProgramLogSize(Handle program, size_t* bytes) { *bytes = 0; return 0; }
int nvrtcGetProgramLog(Handle program, char* log) { return 0; }

int cuGetErrorName(int error, const char** text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "nothing is here"; return 0; }
