"""
# 8. Record here, judge there

A run can keep every reading:

    pytest examples/test_08_record_and_replay.py --gpuperf-record=kept

and be judged again, on another machine, with other limits or another baseline, with
nothing measured. `examples/recordings/digest` is such a run:

    pytest examples/test_08_record_and_replay.py --gpuperf-replay=examples/recordings/digest

The verdicts are those of the recorded values. So a GPU machine only has to measure, and a
machine without one can judge.
"""

import hashlib

import pytest


@pytest.mark.gpuperf(limits=["time <= 100 ms", "time.min <= 50 ms"])
@pytest.mark.parametrize("size", [1_000, 100_000])
def test_digest(gpuperf, size):
    digest = gpuperf(hashlib.sha256, b"x" * size)

    assert len(digest.digest()) == 32
