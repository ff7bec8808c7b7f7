"""Compiles a kernel for three chips with the Triton at hand, into a folder; needs no GPU.

Usage: python examples/compile_kernels.py FOLDER
"""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = (
    GPUTarget("cuda", 90, 32),
    GPUTarget("hip", "gfx942", 64),
    GPUTarget("hip", "gfx1100", 32),
)
TYPES = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}


@triton.jit
def rms_norm(x, out, n, BLOCK: tl.constexpr):  # noqa: N803 - as Triton's users write it
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * n + columns, mask=inside, other=0.0)
    scale = 1 / tl.sqrt(tl.sum(values * values, axis=0) / n + 1e-6)
    tl.store(out + row * n + columns, values * scale, mask=inside)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for target in TARGETS:
        source = ASTSource(rms_norm, TYPES, {(3,): 16384})
        code = triton.compile(source, target=target, options={"num_warps": 4}).asm
        kind = "cubin" if "cubin" in code else "hsaco"
        (folder / f"rms_norm_{target.arch}.{kind}").write_bytes(code[kind])


if __name__ == "__main__":
    main()
