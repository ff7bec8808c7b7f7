// Kernels of code_identity.py. Each macro is one change of the source.
#include <cassert>
#include <cstdio>
#ifndef SUFFIX
#define SUFFIX
#endif
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define NAME(name) GLUE(name, SUFFIX)
#ifndef STEPS
#define STEPS 7
#endif
#ifndef FIRST
#define FIRST 1.f
#endif
#ifndef FACTOR
#define FACTOR 3.f
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef VECTOR
#define VECTOR float4
#endif
#ifndef TILE
#define TILE 256
#endif
#ifndef PADDING
#define PADDING 1
#endif
#ifndef THEN_FIRST
#define THEN_FIRST 1
#endif
#ifndef MESSAGE
#define MESSAGE "negative"
#endif
#ifndef POLICY
#define POLICY(p) __ldg(p)
#endif

#ifdef PAD_VARIABLES
__device__ float padding_[64] = {9, 8, 7};
extern "C" __global__ void reads_padding(float *a) { a[threadIdx.x] = padding_[threadIdx.x & 63]; }
#endif
#ifdef EXTRA_KERNEL
extern "C" __global__ void extra(float *a) { a[threadIdx.x] = sqrtf(a[threadIdx.x]); }
#endif

constexpr int unrolled = UNROLL;
__device__ float weights[8] = {FIRST, 2, 3, 4, 5, 6, 7, 8};
__constant__ int steps = STEPS;
__device__ int limits[2] = {STEPS, 3};
__device__ int *limit_table[2] = {&limits[0], &limits[1]};

static __device__ __noinline__ float helper(float x) { return x * FACTOR + 1.f; }
static __device__ __noinline__ float twice(float x) { return x + x; }
static __device__ __noinline__ float cubed(float x) { return x * x * FACTOR; }
typedef float (*Function)(float);
__device__ Function functions[2] = {twice, cubed};

extern "C" __global__ void NAME(copies)(VECTOR *to, const VECTOR *from, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i];
}
extern "C" __global__ void NAME(weighted)(float *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = 0;
#pragma unroll unrolled
    for (int j = 0; j < 64; j++) s += a[i + j * n] * weights[j & 7];
    a[i] = s;
}
extern "C" __global__ void NAME(loops)(float *a) {
    float s = a[threadIdx.x];
    for (int j = 0; j < steps; j++) s = s * s + 1.f;
    a[threadIdx.x] = s;
}
extern "C" __global__ void NAME(by_table)(float *a, int which) {
    float s = a[threadIdx.x];
    for (int j = 0; j < *limit_table[which & 1]; j++) s = s * s + 1.f;
    a[threadIdx.x] = s;
}
extern "C" __global__ void NAME(calls)(float *a, int n) {
    float s = a[threadIdx.x];
    for (int j = 0; j < n; j++) s = helper(s) + helper(s * 2.f);
    a[threadIdx.x] = s;
}
extern "C" __global__ void NAME(by_pointer)(float *a, int which) { a[threadIdx.x] = functions[which & 1](a[threadIdx.x]); }
extern "C" __global__ void NAME(reduces)(const float *a, float *out) {
    __shared__ float tile[TILE];
    tile[threadIdx.x] = POLICY(a + blockIdx.x * 256 + threadIdx.x);
    __syncthreads();
    for (int w = 128; w > 0; w /= 2) {
        if (threadIdx.x < w) tile[threadIdx.x] += tile[threadIdx.x + w];
#ifndef NO_BARRIER
        __syncthreads();
#endif
    }
    if (!threadIdx.x) out[blockIdx.x] = tile[0];
}
extern "C" __global__ void NAME(transposes)(const float *a, float *out) {
    __shared__ float tile[32][32 + PADDING];
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = a[(blockIdx.y * 32 + threadIdx.y + j) * 1024 + blockIdx.x * 32 + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 32; j += 8) out[(blockIdx.x * 32 + threadIdx.y + j) * 1024 + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void
#ifdef BOUNDS
__launch_bounds__(BOUNDS)
#endif
NAME(many_registers)(float *a, int n) {
    float r[48];
#pragma unroll
    for (int j = 0; j < 48; j++) r[j] = a[threadIdx.x + j * 1024];
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int j = 0; j < 48; j++) r[j] = r[j] * r[(j + 7) % 48] + r[(j + 13) % 48];
    }
#pragma unroll
    for (int j = 0; j < 48; j++) a[threadIdx.x + j * 1024] = r[j];
}
extern "C" __global__ void NAME(branches)(float *a, int n) {
    float s = a[threadIdx.x];
    for (int j = 0; j < n; j++) {
#if THEN_FIRST
        if (s > 1.f) { s = sinf(s) * a[j]; }
        else { s = cosf(s) + a[j + 1]; a[j + 2] = s; }
#else
        if (!(s > 1.f)) { s = cosf(s) + a[j + 1]; a[j + 2] = s; }
        else { s = sinf(s) * a[j]; }
#endif
    }
    a[threadIdx.x] = s;
}
extern "C" __global__ void NAME(prints)(float *a) { if (a[threadIdx.x] < 0) printf(MESSAGE " %f\n", a[threadIdx.x]); }
extern "C" __global__ void NAME(asserts)(float *a) { assert(a[threadIdx.x] >= 0); a[threadIdx.x] += 1; }
extern "C" __global__ void NAME(switches)(int *a, int which) {
    int s = a[threadIdx.x];
    switch (which) {
        case 0: s = s * 3 + a[1]; break;  case 1: s = s / (a[2] + 7); break;
        case 2: s ^= a[3] << 3; break;    case 3: s = __popc(s) + a[4]; break;
        case 4: s = __clz(s) * a[5]; break; case 5: s = s % (a[6] + 5); break;
        case 6: s = min(s, a[7]); break;  case 7: s = __brev(s) + a[8]; break;
    }
    a[threadIdx.x] = s;
}
#ifdef DIVISION
#define DIVIDE(a, b) __fdividef(a, b)
#else
#define DIVIDE(a, b) ((a) / (b))
#endif
extern "C" __global__ void NAME(divides)(float *a, float b) { a[threadIdx.x] = DIVIDE(a[threadIdx.x], b) + expf(b); }
