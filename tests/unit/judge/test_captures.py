"""judge.captures: where each metric of a kernel went between two captures."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_gpuperf.judge.captures import (
    CaptureSide,
    Difference,
    Direction,
    KernelCounters,
    Mismatch,
    differences,
    mismatch,
)


def side(
    kernels: Mapping[str, KernelCounters] | None = None,
    *,
    gpu: str = "NVIDIA A40",
    clock_hz: float | None = 1e9,
) -> CaptureSide:
    return CaptureSide(device={"gpu": gpu}, clock_hz=clock_hz, kernels=kernels or {})


def kernel(time_s: float = 1e-3, **values: float) -> KernelCounters:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return KernelCounters(
        time_s=time_s, values={name: (value, "") for name, value in named.items()}
    )


def direction(metric: str, was: float, now: float, unit: str = "") -> Direction | None:
    return Difference(
        kernel="copy", metric=metric, unit=unit, was=was, now=now
    ).direction


@pytest.mark.parametrize(
    ("metric", "unit", "now", "expected"),
    [
        ("dram.bytes", "B", 102.0, Direction.SAME),
        ("dram.bytes", "B", 102.1, Direction.WORSE),
        ("dram.bytes", "B", 97.9, Direction.BETTER),
        ("launches.count", "", 101.0, Direction.WORSE),
        ("registers", "", 101.0, Direction.CHANGED),
        ("stack_bytes", "B", 101.0, Direction.WORSE),
    ],
)
def test_counts_are_exact_and_other_amounts_have_a_tolerance(
    metric: str, unit: str, now: float, expected: Direction
) -> None:
    """Two passes over one launch differ by up to 2 % of the larger value."""
    assert direction(metric, 100.0, now, unit) is expected


def test_shares_have_a_tolerance_in_points() -> None:
    """A small share may move by more than 2 % of itself."""
    assert direction("dram.fraction", 0.01, 0.03, "fraction") is Direction.SAME
    assert direction("dram.fraction", 0.01, 0.031, "fraction") is Direction.CHANGED


def test_times_are_not_judged() -> None:
    """One launch under a profiler says little of its time."""
    assert direction("time", 1e-3, 1.0, "s") is None


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (side(), side(), None),
        (side(), side(gpu="NVIDIA A10G", clock_hz=2e9), Mismatch.DEVICE),
        (side(), side(clock_hz=1.11e9), None),  # by less than a tenth of the higher one
        (side(), side(clock_hz=1.12e9), Mismatch.CLOCK),
        (side(clock_hz=1.12e9), side(), Mismatch.CLOCK),
        (side(), side(clock_hz=None), None),
    ],
)
def test_captures_of_different_gpus_or_clocks_are_not_compared(
    was: CaptureSide, now: CaptureSide, expected: Mismatch | None
) -> None:
    """Their values come from two experiments; an unknown clock is no reason."""
    assert mismatch(was, now) is expected


def test_a_kernel_alone_in_its_capture_needs_no_name() -> None:
    """A variant under another name is compared all the same."""
    (difference,) = differences(
        side({"old": kernel(0, registers=32)}), side({"new": kernel(0, registers=32)})
    )

    assert (difference.kernel, difference.direction) == ("new", Direction.SAME)


def test_of_a_kernel_in_one_capture_only_its_launches_are_listed() -> None:
    """The longest kernel comes first; new and gone ones have one line each."""
    was = side({"a": kernel(1e-3, launches_count=1, registers=32)})
    now = side(
        {
            "b": kernel(2e-3, launches_count=1, registers=32),
            "c": kernel(3e-3, launches_count=2, registers=32),
        }
    )

    assert [(d.kernel, d.metric, d.direction) for d in differences(was, now)] == [
        ("c", "launches.count", Direction.NEW),
        ("b", "launches.count", Direction.NEW),
        ("a", "launches.count", Direction.GONE),
    ]


def test_a_metric_of_one_capture_is_new_or_gone() -> None:
    """The time comes first, then the metrics of the newer capture."""
    was = side({"a": kernel(1e-3, registers=32, dram_bytes=1e6)})
    now = side({"a": kernel(1e-3, registers=32, l2_bytes=1e6)})

    assert [(d.metric, d.direction) for d in differences(was, now)] == [
        ("time", None),
        ("registers", Direction.SAME),
        ("l2.bytes", Direction.NEW),
        ("dram.bytes", Direction.GONE),
    ]
