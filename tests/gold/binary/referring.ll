; Kernels of AMD that refer to other parts of their file, or do not; see README.md.
target triple = "amdgcn-amd-amdhsa"

#ifndef FACTOR
#define FACTOR 2.5
#endif
#ifndef STEPS
#define STEPS 5
#endif

@tile = internal addrspace(3) global [256 x float] undef, align 4
@steps = addrspace(1) global [2 x i32] [i32 STEPS, i32 9], align 8

declare i32 @llvm.amdgcn.workitem.id.x()

#ifdef FIRST
define amdgpu_kernel void @first(float addrspace(1)* %p) {
  store float 4.5, float addrspace(1)* %p
  ret void
}
#endif

define internal float @helper(float %x) noinline {
  %y = fmul float %x, FACTOR
  ret float %y
}

define amdgpu_kernel void @alone(float addrspace(1)* %p) {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %at = getelementptr float, float addrspace(1)* %p, i32 %i
  %v = load float, float addrspace(1)* %at
  %in = getelementptr [256 x float], [256 x float] addrspace(3)* @tile, i32 0, i32 %i
  store volatile float %v, float addrspace(3)* %in
  %w = load volatile float, float addrspace(3)* %in
  store float %w, float addrspace(1)* %at
  ret void
}

define amdgpu_kernel void @calling(float addrspace(1)* %p) {
  %v = load float, float addrspace(1)* %p
  %w = call float @helper(float %v)
  store float %w, float addrspace(1)* %p
  ret void
}

define amdgpu_kernel void @reading(i32 addrspace(1)* %p) {
  %from = getelementptr [2 x i32], [2 x i32] addrspace(1)* @steps, i32 0, i32 0
  %v = load i32, i32 addrspace(1)* %from
  store i32 %v, i32 addrspace(1)* %p
  ret void
}
