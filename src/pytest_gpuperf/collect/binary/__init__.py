"""Resources and instructions of compiled kernels, without a GPU.

In: a cubin, a fatbin or a program, as path or bytes; a kernel compiled by Triton;
optionally the log of `ptxas -v`.
Out: KernelResources, one for each kernel and target; on request an InstructionMix.
Never: a run of the kernel, an import of Triton, a guess where the tools have no answer.
"""
