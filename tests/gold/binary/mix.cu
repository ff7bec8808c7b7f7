// What the tests expect of these kernels is written here: each asm statement is one
// instruction, and #pragma unroll 1 keeps a loop a loop.

extern "C" __global__ void widths(char *p, int n)
{
    unsigned b, h, w, q, r, x, y, z, v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(b) : "l"(p));
    asm volatile("ld.global.u16 %0, [%1+16];" : "=r"(h) : "l"(p));
#pragma unroll 1
    for (int i = 0; i < n; i++, p += 64) {
        asm volatile("ld.global.u32 %0, [%1+32];" : "=r"(w) : "l"(p));
        asm volatile("st.global.v2.u32 [%0+40], {%1, %2};" ::"l"(p), "r"(w), "r"(h));
    }
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2+48];" : "=r"(q), "=r"(r) : "l"(p));
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4+64];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(v) : "l"(p));
    asm volatile("st.global.u8 [%0+80], %1;" ::"l"(p), "r"(b));
    asm volatile("st.global.v4.u32 [%0+96], {%1, %2, %3, %4};"
                 ::"l"(p), "r"(x + q), "r"(y + r), "r"(z), "r"(v));
}

extern "C" __global__ void arithmetic(double *d, float *f, unsigned *h, int *counter)
{
    __shared__ float shared[32];
    double a = d[0], b = d[1];
    asm volatile("fma.rn.f64 %0, %0, %1, %1;" : "+d"(a) : "d"(b));
    asm volatile("add.rn.f64 %0, %0, %1;" : "+d"(a) : "d"(b));
    float x = f[0], y = f[1];
    asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(y));
    asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    unsigned u = h[0], v = h[1];
    asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(u) : "r"(v));
    shared[threadIdx.x] = x;
    __syncthreads();
    asm volatile("red.global.add.u32 [%0], 2;" ::"l"(counter) : "memory");
    d[2] = a, f[2] = shared[31 - threadIdx.x], h[2] = u;
}

extern "C" __global__ void product(float *out, unsigned a, unsigned b, int n)
{
    float c[4] = {0, 0, 0, 0};
#if __CUDA_ARCH__ >= 900
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1
    for (int i = 0; i < n; i++)
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                     "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;\n"
                     "wgmma.commit_group.sync.aligned;\n"
                     "wgmma.wait_group.sync.aligned 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "l"((long)a + i), "l"((long)b));
#else
#pragma unroll 1
    for (int i = 0; i < n; i++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(b));
#endif
    int d0, d1;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%2, %3};"
                 : "=r"(d0), "=r"(d1) : "r"(a), "r"(b));
    out[threadIdx.x] = c[0] + c[1] + c[2] + c[3] + d0 + d1;
}

extern "C" __global__ void copies(char *p, int n)
{
    extern __shared__ char shared[];
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
#pragma unroll 1
    for (int i = 0; i < n; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i), "l"(p + i));
    asm volatile("cp.async.wait_all;" ::: "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;"
                 ::"l"(p), "r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];"
                 ::"l"(p), "r"(n), "r"(at) : "memory");
#endif
}

__device__ __noinline__ void store(int *p, int value)
{
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

extern "C" __global__ void called(int *p, int n)
{
#pragma unroll 1
    for (int i = 0; i < n; i++)
        store(p + i, i);
    store(p, n);
}

typedef void (*Function)(int *, int);
__device__ Function table[2] = {store, store};

extern "C" __global__ void pointer(int *p, int n) { table[n & 1](p, n); }
