"""
# 8. Record here, judge there

A run can keep every reading:

    pytest examples/test_08_record_and_replay.py --gpuperf-record=kept

Another machine can judge the recording, with other limits or another baseline. Nothing is
measured again. `examples/recordings/digest` is such a recording:

    pytest examples/test_08_record_and_replay.py --gpuperf-replay=examples/recordings/digest

The verdicts are those of the recorded values. A machine with a GPU only has to measure,
and a machine without one can judge.
"""

import hashlib

import pytest


@pytest.mark.gpuperf(limits=["time <= 100 ms", "time.min <= 50 ms"])
@pytest.mark.parametrize("size", [1_000, 100_000])
def test_digest(gpuperf, size):
    digest = gpuperf(hashlib.sha256, b"x" * size)

    assert len(digest.digest()) == 32
