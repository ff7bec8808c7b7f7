"""Resources and instructions of compiled kernels, without a GPU.

In: a cubin, a fatbin, a code object of AMD, a bundle or a program, as path or bytes, or a
kernel compiled by Triton, and optionally the log of `ptxas -v`.
Out: KernelResources for each kernel and target, and on request an InstructionMix, or the
identity of the machine code, also of the kernels that this process has compiled.
Never: a run of the kernel, an import of Triton, a guess if the tools have no answer or if a
log is not certain to be about the kernel.
"""
