"""The Triton kernel of axpy_0_sm_90a.cubin and axpy_1_sm_90a.cubin; see README.md."""

import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = sys.argv[1]

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def axpy(x, y, out, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + place)
    b = tl.load(y + place)
    for _ in tl.static_range(16):
        a = a * b + 1.5
    tl.store(out + place, a)


types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
compiled = triton.compile(
    ASTSource(axpy, types, {(3,): 1024}), target=GPUTarget("cuda", 90, 32)
)
with open(sys.argv[2], "wb") as file:
    file.write(compiled.asm["cubin"])
