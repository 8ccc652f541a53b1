// A driver's library that finds what the environment says, and can compute nothing. NVRTC opens
// the driver too and wants more of it than is here, so nothing may be compiled behind it.
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
    // 75 and 76 are the compute capability, major and minor.
    *value = attribute == 75 ? said("FAKE_MAJOR", 9) : 0;
    return 0;
}
int cuGetErrorName(int error, const char** text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "nothing is here"; return 0; }
