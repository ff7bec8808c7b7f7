"""
# 2. Limits in a marker

An `assert` compares the point estimate, so it passes or fails. A limit in the marker also
considers the noise: if the interval of a value reaches over the limit, the verdict is
*inconclusive*. Use markers for gates.

Limits are parsed at collection. A typing error in a metric or a unit is a collection
error that points to the column.
"""

import pytest


@pytest.mark.gpuperf(limits=["time <= 50 ms", "time.p95 <= 100 ms"])
def test_join(gpuperf):
    words = [str(number) for number in range(10_000)]

    gpuperf(" ".join, words)


@pytest.mark.gpuperf(limits=["queue_depth <= 8", "answer_time <= 2 s"])
def test_numbers_of_your_own(gpuperf):
    """Any number can be held to a limit, and is kept in the baseline like the others."""
    gpuperf.record("queue_depth", 3, unit="count", better="lower")
    gpuperf.record("answer_time", [0.21, 0.19, 0.20], unit="s", better="lower")
