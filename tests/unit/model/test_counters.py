"""model.counters: standard names, modes, and what may be put together."""

from __future__ import annotations

import math

import pytest

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.counters import (
    STANDARD,
    CounterMode,
    LaunchCounters,
    merged,
)

UNITS = {"s", "hz", "bytes", "count", "fraction", "ratio"}


@pytest.mark.parametrize("name", STANDARD)
def test_the_unit_is_the_last_word_of_a_name(name: str) -> None:
    """A reader of a formula never has to look a unit up."""
    assert name.rpartition("_")[2] in UNITS
    assert STANDARD[name]


def test_a_launch_that_was_profiled_twice_has_both_halves() -> None:
    """What both say, the first one says."""
    first = LaunchCounters(values={"dram_bytes": 1.0})
    second = LaunchCounters(values={"dram_bytes": 2.0, "waves_count": 3.0})

    assert merged(first, second).values == {"dram_bytes": 1.0, "waves_count": 3.0}


def test_two_modes_are_two_experiments() -> None:
    """A formula over both would compare cold caches with warm ones."""
    cold = LaunchCounters(values={}, mode=CounterMode(cache="all"))
    warm = LaunchCounters(values={}, mode=CounterMode(cache="none"))

    with pytest.raises(RecordError, match="cache mode all and none are not mixed"):
        merged(cold, warm)
    assert merged(cold, cold).mode == cold.mode


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(number: float) -> None:
    """A failed pass must not look like a number."""
    with pytest.raises(RecordError):
        LaunchCounters(values={"dram_bytes": number})
