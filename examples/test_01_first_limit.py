"""
# 1. A first limit

Take the `gpuperf` fixture, measure a function and assert on its time. A figure is a float
in SI units. When an assert on it fails, the report shows the spread, the number of
samples and the clock.

This works for any callable on any machine: without a GPU, the host's clock is used.
"""

from pytest_gpuperf import ms


def test_sort(gpuperf):
    perf = gpuperf.measure(sorted, list(range(10_000)))
    assert perf.time <= 5 * ms


def test_result_of_the_measured_function(gpuperf):
    perf = gpuperf.measure(sorted, [3, 1, 2])

    assert perf.result == [1, 2, 3]


def test_sort_as_with_other_plugins(gpuperf):
    assert gpuperf(sorted, [3, 1, 2]) == [1, 2, 3]  # measured, and its result returned
