"""
# 9. How much of the machine is used

A time of 41 us is only fast or slow compared with what the hardware allows. Declare the
work of a call, and `roofline.fraction` is the share of the hardware's limit that the call
reached:

    perf = gpuperf.measure(rmsnorm, x, work=Work(bytes=2 * x.nbytes))
    assert perf.roofline.fraction >= 0.80

A kernel that writes into a buffer gets the buffer as usual, with `out=out` or as its last
argument.

`Work(bytes=…)` is compared with the bandwidth of the memory, `Work(flop=…, dtype="bf16")`
with the peak of its data type, and both together with the roofline. `Work.matmul`,
`Work.attention` and `Work.transformer_layer` count the work for you.

The peaks of a GPU are read from it or from its data sheet. The peaks of a CPU must be
declared in the ini file:

    [pytest]
    gpuperf_peaks =
        cpu: dram 20 GB/s, fp32 500 GFLOP/s

    pytest examples/test_09_roofline.py -o "gpuperf_peaks=cpu: dram 20 GB/s"

Without that line the copy below is *unmeasured*, and the test is skipped with the reason.
A fraction above 1.05 never passes a limit: the data came from a cache, or the declared
work is wrong. `min_grade="B"` is a limit, too. Memory and arithmetic have bands of their
own.
"""

import pytest

from pytest_gpuperf import Work

SIZE = 32 * 1024 * 1024


@pytest.mark.gpuperf(limits=["roofline.fraction >= 0.1 %"])
def test_copy(gpuperf):
    data = bytearray(SIZE)
    perf = gpuperf.measure(bytes, data, work=Work(bytes=2 * SIZE))  # read and written

    assert perf.result == data
    assert perf.roofline.fraction > 0


def test_a_product_counts_itself():
    work = Work.matmul(4096, 4096, 4096, "bf16")

    assert work.flop == 2 * 4096**3
    assert work.flop / work.bytes == pytest.approx(1365, abs=1)  # far above the ridge
