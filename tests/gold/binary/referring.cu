// Kernels that refer to variables, constants, messages and functions of their file.
#include <cstdio>
#ifndef FACTOR
#define FACTOR 3.f
#endif
#ifndef STEPS
#define STEPS 7
#endif
#ifdef FIRST
__device__ float before[64] = {9, 8, 7};
extern "C" __global__ void added(float *a) { a[threadIdx.x] = before[threadIdx.x & 63]; }
#endif
__device__ float weights[4] = {FACTOR, 2, 3, 4};
__constant__ int steps = STEPS;
__device__ int limit = STEPS;
__device__ int *limits[1] = {&limit};
__device__ __noinline__ float twice(float x) { return x + x; }
__device__ __noinline__ float scaled(float x) { return x * x * FACTOR; }
typedef float (*Function)(float);
__device__ Function functions[2] = {twice, scaled};

extern "C" __global__ void variable(float *a, int i) { a[threadIdx.x] *= weights[i & 3]; }
extern "C" __global__ void constant(float *a) { for (int j = 0; j < steps; j++) a[j] *= 2; }
extern "C" __global__ void table(float *a, int i) { for (int j = 0; j < *limits[i]; j++) a[j] *= 2; }
extern "C" __global__ void direct(float *a) { a[threadIdx.x] = scaled(a[threadIdx.x]); }
extern "C" __global__ void pointer(float *a, int i) { a[threadIdx.x] = functions[i & 1](a[threadIdx.x]); }
extern "C" __global__ void other(float *a) { a[threadIdx.x] = twice(a[threadIdx.x]); }
extern "C" __global__ void message(float *a) { if (a[0] < 0) printf("negative %f\n", a[0]); }
