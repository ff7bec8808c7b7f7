// Kernels of which the compiler states less stack than they may take. See README.md.

__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void recursion(int *o, int n) { o[0] = fib(n); }

__device__ __noinline__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1) * 3 + n; }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1) * 5 + n; }
extern "C" __global__ void mutual(int *o, int n) { o[0] = even(n); }

typedef int (*Function)(int);
__device__ Function table[2];
extern "C" __global__ void pointer(int *o, int n) { o[0] = table[n & 1](n); }

__device__ __noinline__ int leaf(int n) {
  int a[16];
  for (int i = 0; i < 16; i++) a[i] = n * i;
  return a[n & 15] + n;
}
__device__ __noinline__ int middle(int n) {
  int a[16];
  for (int i = 0; i < 16; i++) a[i] = n + i;
  return leaf(n) + a[n & 15] + n;
}
extern "C" __global__ void chain(int *o, int n) { o[0] = middle(n) + middle(n * n); }
extern "C" __global__ void both(int *o, int n) { o[0] = middle(n) + fib(n); }

__device__ __noinline__ int square(int n) { return n * n + 3; }
extern "C" __global__ void called(int *o, int n) { o[0] = square(n) + square(n + 1); }
extern "C" __global__ void dividing(double *o, double n) { o[0] = n / o[1]; }
extern "C" __global__ void plain(int *o, int n) { o[0] = n; }
