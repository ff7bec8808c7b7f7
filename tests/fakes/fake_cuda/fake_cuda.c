/* A CUDA driver with scripted devices, for tests that start a whole process.
 *
 * It exports what the plugin calls, and fake_cuda_launch(ns, stream), which gives the
 * current device work: each stream in its order, beside the others, in real time.
 * fake_cuda_set_device(n) makes another one current for the launches that follow, with
 * no effect on what the driver says is current, as a worker thread does.
 *
 *   FAKE_CUDA_UUID=<32 hex digits>,…    a device's name for life; as many devices
 *   FAKE_CUDA_FAIL=<function>:<code>    that function fails
 *   FAKE_CUDA_SLOWER=<factor>           the board is slower, whatever runs on it
 *
 * A kernel of a module takes 100 us. fake_cuda_kernels() counts their launches.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICES 4
#define STREAMS 16
#define CONTEXTS 0x1000 /* the primary context of device 0 */
#define DEPTH 16
#define EVENTS 65536
#define NS_PER_S 1000000000ll
#define AWAKE_NS 5000000ll
#define KERNEL_NS 100000ll
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600 };
enum { L2_CACHE_SIZE = 38, MULTIPROCESSORS = 16 };

static int64_t busy_until[DEVICES][STREAMS]; /* [ns] */
static int64_t reached[EVENTS];     /* by event [ns]; 0: not recorded */
static uintptr_t events, launched, kernels;
static size_t allocated; /* the last buffer, which a flush overwrites [B] */
static int held; /* modules and buffers that were not given back */
static int started[DEVICES]; /* a context exists from the first launch on */
static int working;          /* the device that gets what is launched */
static int pushed[DEPTH], depth;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* A sleep is late by some 50 us: the last milliseconds are spent awake. */
static void wait_until(int64_t ns) {
    int64_t asleep = ns - now() - AWAKE_NS;
    if (asleep > 0) nanosleep(&(struct timespec){asleep / NS_PER_S, asleep % NS_PER_S}, NULL);
    while (now() < ns) {}
}

static int failing(const char *function) {
    const char *told = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(function);
    if (told && !strncmp(told, function, length) && told[length] == ':')
        return atoi(told + length + 1);
    return SUCCESS;
}

static int64_t on_this_board(int64_t ns) {
    const char *slower = getenv("FAKE_CUDA_SLOWER");
    return slower ? ns * atof(slower) : ns;
}

static int place(const void *stream) { return (uintptr_t)stream % STREAMS; }

static int current(void) { return depth ? pushed[depth - 1] : 0; }

/* the application's side */

EXPORT void fake_cuda_launch(int64_t ns, int stream) {
    int at = stream % STREAMS;
    int64_t begin = now();
    ns = on_this_board(ns);
    started[0] = started[working] = 1;
    launched++;
    if (busy_until[working][at] > begin) begin = busy_until[working][at];
    busy_until[working][at] = begin + ns;
}

EXPORT void fake_cuda_set_device(int device) { working = device % DEVICES; }

EXPORT uint64_t fake_cuda_launched(void) { return launched; }
EXPORT uint64_t fake_cuda_kernels(void) { return kernels; }
EXPORT int fake_cuda_held(void) { return held; }

/* the driver's side */

EXPORT int cuInit(unsigned flags) { (void)flags; return failing("cuInit"); }
EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }

EXPORT int cuCtxGetCurrent(void **context) {
    int device = current();
    *context = started[device] ? (void *)(uintptr_t)(CONTEXTS + device) : NULL;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = started[device];
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(uintptr_t)(CONTEXTS + device);
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }

EXPORT int cuCtxPushCurrent_v2(void *context) {
    pushed[depth++] = (uintptr_t)context - CONTEXTS;
    return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(void **context) {
    *context = (void *)(uintptr_t)(CONTEXTS + pushed[--depth]);
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void) {
    for (int i = 0; i < STREAMS; i++) wait_until(busy_until[current()][i]);
    return failing("cuCtxSynchronize");
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = (void *)(++events % EVENTS);
    return failing("cuEventCreate");
}

EXPORT int cuEventRecord(void *event, void *stream) {
    int64_t begin = now(), end = busy_until[current()][place(stream)];
    reached[(uintptr_t)event] = end > begin ? end : begin;
    return failing("cuEventRecord");
}

EXPORT int cuEventSynchronize(void *event) {
    wait_until(reached[(uintptr_t)event]);
    return failing("cuEventSynchronize");
}

EXPORT int cuEventElapsedTime(float *ms, void *start, void *end) {
    int64_t from = reached[(uintptr_t)start], to = reached[(uintptr_t)end];
    if (!from || !to) return NOT_READY;
    *ms = (to - from) / 1e6f;
    return failing("cuEventElapsedTime");
}

EXPORT int cuEventDestroy_v2(void *event) { (void)event; return SUCCESS; }

EXPORT int cuCtxSetCurrent(void *context) {
    depth = context != NULL;
    if (context) pushed[0] = (uintptr_t)context - CONTEXTS;
    return SUCCESS;
}

EXPORT int cuModuleLoadData(void **module, const void *image) {
    *module = (void *)image;
    held++;
    return failing("cuModuleLoadData");
}

EXPORT int cuModuleUnload(void *module) { (void)module; held--; return SUCCESS; }

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strstr(module, name) ? SUCCESS : 500; /* CUDA_ERROR_NOT_FOUND */
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **parameters, void **extra) {
    int64_t begin = now(), *until = &busy_until[current()][place(stream)];
    if (!function || !gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1 || shared || extra ||
        !**(uint64_t **)parameters)
        return INVALID_VALUE;
    kernels++;
    *until = (*until > begin ? *until : begin) + on_this_board(KERNEL_NS);
    return failing("cuLaunchKernel");
}

EXPORT int cuCtxResetPersistingL2Cache(void) { return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { *device = current(); return SUCCESS; }

EXPORT int cuDeviceGetCount(int *count) {
    const char *text = getenv("FAKE_CUDA_UUID");
    *count = 1;
    for (; text && *text; text++) *count += *text == ',';
    return SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }

EXPORT int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    snprintf(name, length, "NVIDIA H200");
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *text = getenv("FAKE_CUDA_UUID");
    if (text) text += device * 33; /* 32 digits and a comma */
    memset(uuid, 0, 16);
    for (int i = 0; text && i < 16; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        uuid[i] = byte;
    }
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (attribute == L2_CACHE_SIZE) *value = 50 << 20;
    else if (attribute == MULTIPROCESSORS) *value = 132;
    else return INVALID_VALUE;
    return SUCCESS;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    *address = 0xABC0;
    allocated = size;
    held++;
    return failing("cuMemAlloc_v2");
}

EXPORT int cuMemFree_v2(uint64_t address) { (void)address; held--; return SUCCESS; }

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = 1u << 30;
    *total = 1u << 31;
    return failing("cuMemGetInfo_v2");
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *begin, size_t *size, uint64_t address) {
    *begin = address;
    *size = allocated;
    return allocated ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
    (void)address, (void)value, (void)size;
    return SUCCESS;
}

EXPORT int cuGetErrorName(int code, const char **name) {
    (void)code;
    *name = "CUDA_ERROR_SCRIPTED";
    return SUCCESS;
}
