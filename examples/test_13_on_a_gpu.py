"""
# 13. On a GPU

The cost of a kernel is written beside its test: one launch, few registers, no more DRAM
traffic than its work needs, most of the bandwidth, a limited energy. The tests below apply
such limits to a kernel in Triton, a product and a training step in PyTorch, and a sum in
CuPy. Without a GPU they are *unmeasured*, and skipped with the reason.

A call may write into a buffer that it is given, as most kernels do. An output does not
count as a changed input. Torch and CuPy call it `out`:

    gpuperf.measure(torch.matmul, a, b, out=c)

`launches.count` needs `pytest-gpuperf[cupti]`. `registers` and `dram.bytes` need the
counters that the marker requests: Nsight Compute or CUPTI counts the bytes, and only
Nsight Compute the registers. `energy` needs a GPU that counts it.

`gpuperf.device` is the GPU that is measured. When a recording is judged on a machine
without a GPU, it is `"cpu"`: nothing is measured, NumPy replaces the frameworks, and the
verdicts are those of the recorded values. `examples/recordings/gpu` is a recording of an
NVIDIA H200:

    pytest examples/test_13_on_a_gpu.py --gpuperf-record=kept
    pytest examples/test_13_on_a_gpu.py --gpuperf-replay=examples/recordings/gpu
"""

import numpy as np
import pytest

from pytest_gpuperf import Work

COUNT = 1 << 26  # floats: 256 MiB, several times the L2 of today's GPUs
SIZE = 4096  # of a product on the tensor cores
ROWS, WIDTH = 512, 1024  # of a training step


def framework(device, name):
    """Return a framework, or NumPy where there is no GPU to use it on."""
    if device == "cpu":
        return np
    return pytest.importorskip(name, reason=f"pip install {name}")


def triton_sum(out):
    """Return a function that adds two tensors into a third by a kernel in Triton."""
    triton = framework("cuda", "triton")
    tl = triton.language

    @triton.jit
    def add_kernel(x, y, out, count, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < count
        total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
        tl.store(out + at, total, mask=inside)

    def add(x, y):
        grid = (triton.cdiv(COUNT, 1024),)
        add_kernel[grid](x, y, out, COUNT, block=1024)
        return out

    return add


@pytest.mark.gpuperf(
    counters=["dram__bytes.sum", "launch__registers_per_thread"],
    limits=[
        "launches.count == 1",
        "registers <= 32",
        "dram.bytes <= 850 MB",  # of 805 MB that the work needs
        "roofline.fraction >= 70 %",
    ],
)
def test_sum_in_triton(gpuperf):
    device = gpuperf.device
    torch = framework(device, "torch")
    if device == "cpu":
        x, add = np.ones(COUNT, "float32"), np.add
    else:
        x = torch.ones(COUNT, device=device)
        add = triton_sum(torch.empty_like(x))

    perf = gpuperf.measure(add, x, x + 1, work=Work(bytes=3 * x.nbytes))

    assert perf.result[-1] == 3


@pytest.mark.gpuperf(
    limits=["launches.count == 1", "energy <= 1 J", "roofline.fraction >= 40 %"]
)
def test_product_in_torch(gpuperf):
    device = gpuperf.device
    torch = framework(device, "torch")
    if device == "cpu":
        a = np.ones((8, 8))
    else:
        a = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)

    gpuperf.measure(torch.matmul, a, a, work=Work.matmul(SIZE, SIZE, SIZE, "bf16"))


def parts_of_a_step(torch, device):
    """Return forward pass, backward pass and update of a small network."""
    if device == "cpu":
        return (lambda: 0), (lambda loss: loss), (lambda: None)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(4 * WIDTH, WIDTH),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(ROWS, WIDTH, device=device)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    return (
        lambda: model(batch).square().mean(),
        lambda loss: loss.backward(),
        update,
    )


@pytest.mark.gpuperf(limits=["throughput >= 10000 /s", "time.p95 <= 50 ms"])
def test_training_step_in_torch(gpuperf):
    device = gpuperf.device
    torch = framework(device, "torch")
    forward, backward, update = parts_of_a_step(torch, device)
    with gpuperf.steps(units=ROWS, unit="row") as steps:
        for _ in range(30):
            with steps.step():
                with steps.phase("forward"):
                    loss = forward()
                with steps.phase("backward"):
                    backward(loss)
                with steps.phase("optimizer"):
                    update()


@pytest.mark.gpuperf(
    limits=["launches.count <= 2", "memory.peak_bytes <= 400 MB", "time <= 5 ms"]
)
def test_sum_in_cupy(gpuperf):
    cupy = framework(gpuperf.device, "cupy")
    x = cupy.ones(COUNT, dtype="float32")

    perf = gpuperf.measure(cupy.sum, x, work=Work(bytes=x.nbytes))

    assert perf.result == COUNT
