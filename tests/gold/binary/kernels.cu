// Kernels whose resources are known from how they are written. See README.md.

extern "C" __global__ void scale(float *x, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}

// 256 floats of static shared memory: 1024 bytes.
__global__ void block_sum(const float *x, float *y) {
  __shared__ float part[256];
  part[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int step = 128; step; step >>= 1) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (!threadIdx.x) y[blockIdx.x] = part[0];
}

// An array indexed at run time: 64 floats of local memory, no spill.
__global__ void indexed(const int *index, float *y, int n) {
  float table[64];
  for (int i = 0; i < 64; i++) table[i] = y[i];
  for (int i = 0; i < n; i++) table[index[i] & 63] += 1.f;
  y[threadIdx.x] = table[index[threadIdx.x] & 63];
}

// 64 live values in the 32 registers that 2048 threads leave to each: spills.
template <int N>
__global__ void __launch_bounds__(1024, 2) spilling(float *x) {
  float held[N];
#pragma unroll
  for (int i = 0; i < N; i++) held[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++)
    x[i * 1024 + threadIdx.x] = held[i] * held[(i * 7 + 3) % N];
}
template __global__ void spilling<64>(float *);
