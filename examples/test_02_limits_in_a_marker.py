"""
# 2. Limits in a marker

An `assert` compares the point estimate and has two outcomes. A limit in the marker knows
the spread between one day and the next, and has a third: a value that straddles its limit
is *inconclusive*. Use markers for gates.

The whole text of a limit is read when tests are collected: a typing error in a metric or
a unit is a collection error that points at the column, never a limit that is not there.
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
