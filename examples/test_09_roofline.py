"""
# 9. How much of the machine it uses

41 us is fast or slow only beside what the hardware allows. Say what a call has to do, and
`roofline.fraction` says how much of that was reached:

    perf = gpuperf.measure(rmsnorm, x, work=Work(bytes=2 * x.nbytes))
    assert perf.roofline.fraction >= 0.80

A kernel that writes into a buffer gets it as it is, with `out=out` or as its last argument.

`Work(bytes=…)` is held against the bandwidth of the memory, `Work(flop=…, dtype="bf16")`
against the peak of its data type, both against the roofline of the two. `Work.matmul`,
`Work.attention` and `Work.transformer_layer` count for you.

What a GPU can do is read from it, or stands on its datasheet. Of a CPU only a person can
say it, in the ini file:

    [pytest]
    gpuperf_peaks =
        cpu: dram 20 GB/s, fp32 500 GFLOP/s

    pytest examples/test_09_roofline.py -o "gpuperf_peaks=cpu: dram 20 GB/s"

Without that line the copy below is *unmeasured*, and the test is skipped with the reason:
nobody's figures stand in. A fraction above 1.05 never passes a limit: then the data never
left a cache, or the work is not what was declared. `min_grade="B"` is a limit too, with
bands of its own for memory and for arithmetic.
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
