"""
# 3. The registers of a Triton kernel, without a GPU

A kernel can be compiled for a chip that this machine does not have. Registers, local
memory, shared memory and the occupancy that they allow are exact and without noise. They
can be limited in any CI job.

This needs `pip install triton 'pytest-gpuperf[binary]'`. Without Triton, the test is
skipped.
"""

import pytest

from pytest_gpuperf import kB

triton = pytest.importorskip("triton", reason="compiles the kernel: pip install triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def scaled_sum(x_ptr, y_ptr, out_ptr, scale, count, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x * scale + y, mask=inside)


def compiled(capability):
    source = triton.compiler.ASTSource(
        fn=scaled_sum,
        signature={
            "x_ptr": "*fp32",
            "y_ptr": "*fp32",
            "out_ptr": "*fp32",
            "scale": "fp32",
            "count": "i32",
            "block": "constexpr",
        },
        constexprs={"block": 1024},
    )
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"enable_fp_fusion": True})


def test_registers_on_h100(gpuperf):
    perf = gpuperf.binary(compiled(90))

    assert perf.registers["scaled_sum"] <= 40
    assert perf.stack_bytes == 0  # nothing spilled, no array indexed at run time
    assert perf.shared_bytes <= 48 * kB
    assert perf.occupancy.theoretical == 1.0


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.gpuperf(limits=["registers <= 40", "stack_bytes == 0"])
def test_registers_everywhere(gpuperf, capability):
    gpuperf.binary(compiled(capability))
