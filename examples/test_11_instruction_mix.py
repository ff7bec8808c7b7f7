"""
# 11. The instructions of a kernel, without a GPU

A matrix product that no longer uses the tensor cores, or that loads its input two bytes at
a time, gives the same result and takes many times as long. Both show in the machine code,
so any CI job can limit them: `instructions.hgmma` counts the instructions of one class,
and `instructions.loop.global_load_2` those in a loop. The counts are of the code, not of a
run: an instruction in a loop counts once.

This needs `pip install triton 'pytest-gpuperf[binary]'`. Without Triton, the test is
skipped.
"""

import pytest

triton = pytest.importorskip("triton", reason="compiles the kernel: pip install triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def matmul(a, b, c, depth, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr):
    rows = tl.program_id(0) * m + tl.arange(0, m)
    columns = tl.program_id(1) * n + tl.arange(0, n)
    inner = tl.arange(0, k)
    a_tile = a + rows[:, None] * depth + inner[None, :]
    b_tile = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((m, n), dtype=tl.float32)
    for _ in range(0, depth, k):
        total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        a_tile += k
        b_tile += k * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


def compiled(capability, *, aligned=True):
    promise = {(i,): [["tt.divisibility", 16]] for i in range(4)} if aligned else {}
    source = triton.compiler.ASTSource(
        fn=matmul,
        signature={
            "a": "*fp16",
            "b": "*fp16",
            "c": "*fp16",
            "depth": "i32",
            "m": "constexpr",
            "n": "constexpr",
            "k": "constexpr",
        },
        constexprs={"m": 128, "n": 128, "k": 64},
        attrs=promise,
    )
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"enable_fp_fusion": True})


@pytest.mark.gpuperf(
    limits=[
        "instructions.loop.hmma >= 64",
        "instructions.hgmma == 0",
        "instructions.loop.ldgsts >= 8",  # copies that run beside the arithmetic
        "instructions.loop.global_load == 0",
        "spills_bytes == 0",
    ]
)
def test_tensor_cores_of_a100(gpuperf):
    gpuperf.binary(compiled(80))


@pytest.mark.gpuperf(
    limits=[
        'instructions.loop.wgmma["matmul"] >= 1',
        "instructions.hmma == 0",
        "instructions.loop.local_load == 0",
        "instructions.loop.local_store == 0",
    ]
)
def test_tensor_cores_of_h100(gpuperf):
    perf = gpuperf.binary(compiled(90))

    assert (
        perf.instructions.wgmma == perf.instructions.hgmma == perf.instructions.tensor
    )


@pytest.mark.parametrize("capability", [80, 90])
def test_without_the_promise_of_alignment(gpuperf, capability):
    wide = gpuperf.binary(compiled(capability), name="aligned")
    narrow = gpuperf.binary(compiled(capability, aligned=False), name="not aligned")

    assert wide.instructions.loop.global_load_2 == 0
    assert narrow.instructions.loop.global_load_2 >= 100  # two bytes at a time
    assert narrow.instructions.loop.async_copy == 0
