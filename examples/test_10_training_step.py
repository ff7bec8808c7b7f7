"""
# 10. A training step

`gpuperf.steps` measures a loop step by step: throughput, the tail of the step times, the
time spent waiting for data, recompilations, and the time of each part of a step. The first
step is a warm-up and is not counted.

The test writes the loop. `steps.data(loader)` times the loader, `steps.step()` marks a
step, and phases, layers and operations divide its time.

This loop trains two layers with NumPy on the CPU. On a GPU it is written the same way.
"""

import numpy as np
import pytest

from pytest_gpuperf import Hardware, Work, s

SAMPLES, WIDTH = 128, 64
# a product of (SAMPLES, WIDTH) and (WIDTH, WIDTH); three of them a layer and step
PRODUCT = 2 * SAMPLES * WIDTH * WIDTH
STEP = Work(flop=2 * 3 * PRODUCT, dtype="fp32")


def batches(count):
    random = np.random.default_rng(seed=0)
    for _ in range(count):
        x = random.standard_normal((SAMPLES, WIDTH), dtype=np.float32)
        yield x, np.sin(x)


def train(steps, count=40):
    random = np.random.default_rng(seed=1)
    weights = [
        random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / WIDTH
        for _ in range(2)
    ]
    losses = []
    for x, wanted in steps.data(batches(count)):
        with steps.step():
            with steps.phase("forward"):
                inputs = [x]
                for number, weight in enumerate(weights):
                    with steps.layer(number), steps.operation("matmul"):
                        inputs.append(inputs[-1] @ weight)
                losses.append(float(np.mean((inputs[-1] - wanted) ** 2)))
            with steps.phase("backward"):
                upstream = (inputs[-1] - wanted) / wanted.size
                gradients = []
                for number in reversed(range(len(weights))):
                    with steps.layer(number), steps.operation("matmul"):
                        gradients.insert(0, inputs[number].T @ upstream)
                        upstream = upstream @ weights[number].T
            with steps.phase("optimizer"):
                for number, gradient in enumerate(gradients):
                    weights[number] -= 50 * gradient
    return losses


@pytest.mark.gpuperf(limits=["throughput >= 100 /s", "time.p95 <= 5 s"])
def test_training_step(gpuperf):
    with gpuperf.steps(units=SAMPLES, unit="sample") as steps:
        losses = train(steps)

    assert losses[-1] < losses[0]
    assert steps["phase.forward"] <= 5 * s
    assert steps["data.wait_fraction"] < 1


def test_training_scorecard(gpuperf):
    hardware = Hardware(  # of this machine, as its owner declares it
        peak_bw_gb_s=10,
        bytes_per_token=4 * WIDTH * 4,  # four rows of float32 to and from memory
        peak_flop_per_s=50e9,
    )
    with gpuperf.steps(
        units=SAMPLES, unit="sample", work=STEP, hardware=hardware
    ) as steps:
        train(steps)

    assert steps.mfu > 0
    assert steps.scorecard.grade >= "F"
    print(steps.report())
