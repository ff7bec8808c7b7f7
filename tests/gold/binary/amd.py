"""The Triton kernels of the code objects of AMD; see README.md."""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def row_sum(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=0.0)
    tl.store(out + row, tl.sum(v * v + v, axis=0))


@triton.jit
def matmul(a, b, c, K, BLOCK: tl.constexpr):
    m = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, 32):
        ks = k + tl.arange(0, 32)
        rows = tl.load(a + m[:, None] * K + ks[None, :])
        columns = tl.load(b + ks[:, None] * BLOCK + m[None, :])
        acc += tl.dot(rows, columns)
    tl.store(c + m[:, None] * BLOCK + m[None, :], acc)


ROWS = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
TILES = {
    "a": "*fp16",
    "b": "*fp16",
    "c": "*fp32",
    "K": "i32",
    "BLOCK": "constexpr",
}
for kernel, block, chip in (
    (row_sum, 1024, "gfx90a"),
    (matmul, 64, "gfx942"),
    (matmul, 64, "gfx950"),
    (matmul, 128, "gfx1100"),
    (row_sum, 1024, "gfx1200"),
):
    is_rows = kernel is row_sum
    source = ASTSource(
        kernel, ROWS if is_rows else TILES, {(3 if is_rows else 4,): block}
    )
    target = GPUTarget("hip", chip, 32 if chip.startswith("gfx1") else 64)
    compiled = triton.compile(source, target=target, options={"num_warps": 4})
    name = f"{kernel.__name__}_{block}{'_4' if is_rows else ''}_{chip}.hsaco"
    Path(sys.argv[1], name).write_bytes(compiled.asm["hsaco"])
    (line,) = (t for t in compiled.asm["amdgcn"].splitlines() if "; Occupancy:" in t)
    print(name, line)
