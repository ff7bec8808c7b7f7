"""What compiled kernels need of a chip and consist of, with no GPU.

In: a cubin, a fatbin or a program, as path or bytes; what Triton's compiler returns;
optionally the log of `ptxas -v`.
Out: KernelResources, one for each kernel and target; on request an InstructionMix.
Never: a run of the kernel, an import of Triton, a guess where the tools are silent.
"""
