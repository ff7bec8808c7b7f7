/* A CUDA driver with one scripted device, for tests that start a whole process.
 *
 * It exports what the plugin calls, and fake_cuda_launch(ns, stream), which gives the
 * device work: each stream in its order, beside the others, in real time.
 *
 *   FAKE_CUDA_UUID=<32 hex digits>      the device's name for life
 *   FAKE_CUDA_FAIL=<function>:<code>    that function fails
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define STREAMS 16
#define EVENTS 65536
#define NS_PER_S 1000000000ll
#define AWAKE_NS 5000000ll
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600 };
enum { L2_CACHE_SIZE = 38, MULTIPROCESSORS = 16 };

static int64_t busy_until[STREAMS]; /* [ns] */
static int64_t reached[EVENTS];     /* by event [ns]; 0: not recorded */
static uintptr_t events, launched;
static size_t allocated; /* the one buffer, which a flush overwrites [B] */
static int started; /* a context exists from the first launch on */

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

static int place(const void *stream) { return (uintptr_t)stream % STREAMS; }

/* the application's side */

EXPORT void fake_cuda_launch(int64_t ns, int stream) {
    int at = stream % STREAMS;
    int64_t begin = now();
    started = 1;
    launched++;
    if (busy_until[at] > begin) begin = busy_until[at];
    busy_until[at] = begin + ns;
}

EXPORT uint64_t fake_cuda_launched(void) { return launched; }

/* the driver's side */

EXPORT int cuInit(unsigned flags) { (void)flags; return failing("cuInit"); }
EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }

EXPORT int cuCtxGetCurrent(void **context) {
    *context = started ? (void *)0x1000 : NULL;
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void) {
    for (int i = 0; i < STREAMS; i++) wait_until(busy_until[i]);
    return failing("cuCtxSynchronize");
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = (void *)(++events % EVENTS);
    return failing("cuEventCreate");
}

EXPORT int cuEventRecord(void *event, void *stream) {
    int64_t begin = now(), end = busy_until[place(stream)];
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

EXPORT int cuCtxResetPersistingL2Cache(void) { return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { *device = 0; return SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }

EXPORT int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    snprintf(name, length, "NVIDIA H200");
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *text = getenv("FAKE_CUDA_UUID");
    (void)device;
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
    return failing("cuMemAlloc_v2");
}

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
