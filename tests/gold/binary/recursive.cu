// A kernel whose stack the linker cannot bound. See README.md.

__device__ __noinline__ float depth(float a, int n) {
  float t[8];
  for (int i = 0; i < 8; i++) t[i] = a * i;
  if (n <= 0) return t[n & 7];
  return depth(a + t[n & 7], n - 1) + t[(n * 3) & 7];
}
__global__ void recursive(float *x, int n) { x[threadIdx.x] = depth(x[threadIdx.x], n); }
