"""A Triton kernel whose launch has a known name, grid and block."""

from typing import Any

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore] # optional
def add_one_kernel(x, count, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - types mean something else to Triton
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + at, tl.load(x + at, mask=at < count) + 1, mask=at < count)


def add_one(x: Any) -> None:
    """Add one to each element, 1024 of them a block of 4 warps."""
    count = x.numel()
    add_one_kernel[(triton.cdiv(count, BLOCK),)](x, count, block=BLOCK, num_warps=4)
