"""How long a million readings of GPUs take to be scored and classified.

Run it as a script; it fails when a target is missed. Making the readings is not counted,
because they come from elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_gpuperf.compute.timeline import compute_all
from pytest_gpuperf.compute.utilization import INPUTS
from pytest_gpuperf.model import CanonicalRecord

SECONDS = 20.0  # for a million
MEGABYTES = 300.0  # above the readings

_COUNT = 1_000_000
_CHUNK = 10_000
_GPUS = 8
_ABSENT = 0.1  # of each reading
_HIGHEST = {"_fraction": 1.0, "_per_s": 2e9, "_count": 4.0, "_failed": 1.0}


def columns(count: int) -> dict[str, Any]:
    """Return readings of some GPUs in turns, whole percents among them."""
    draw = np.random.default_rng(1)
    drawn: dict[str, Any] = {
        "gpu_index": np.arange(count) % _GPUS,
        "monotonic_s": np.arange(count) // _GPUS / 10,
    }
    for name in INPUTS:
        highest = next((h for end, h in _HIGHEST.items() if name.endswith(end)), 1e11)
        share = draw.integers(0, 101, count) / 100
        values = share * (100.0 if name.endswith("_celsius") else highest)
        if name.endswith(("_count", "_failed")):
            values = np.floor(values)
        values[draw.random(count) < _ABSENT] = np.nan
        drawn[name] = values
    return drawn


def records(drawn: dict[str, Any], start: int) -> list[CanonicalRecord]:
    """Return the readings of some rows."""
    rows = slice(start, start + _CHUNK)
    lists = {name: drawn[name][rows].tolist() for name in INPUTS}
    lists["row_remap_failed"] = [
        v if v != v else v == 1  # noqa: PLR0124 - NaN is absent
        for v in lists["row_remap_failed"]
    ]
    return [
        CanonicalRecord(
            gpu_index=gpu,
            gpu_uuid="",
            monotonic_s=second,
            unix_s=1.75e9 + second,
            **{n: v for n, v in zip(INPUTS, values, strict=True) if v == v},  # noqa: PLR0124 - the same
        )
        for gpu, second, *values in zip(
            drawn["gpu_index"][rows].tolist(),
            drawn["monotonic_s"][rows].tolist(),
            *lists.values(),
            strict=True,
        )
    ]


class Stream:
    """Readings one after the other, with the time that making them took."""

    def __init__(self, drawn: dict[str, Any], count: int) -> None:
        self.drawn = drawn
        self.count = count
        self.making_s = 0.0

    def __iter__(self) -> Iterator[CanonicalRecord]:
        for start in range(0, self.count, _CHUNK):
            begun = time.perf_counter()
            chunk = records(self.drawn, start)
            self.making_s += time.perf_counter() - begun
            yield from chunk


def megabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure the stream."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=_COUNT)
    count = parser.parse_args().count
    drawn = columns(count)
    records(drawn, 0)
    gc.collect()
    before = megabytes()
    stream = Stream(drawn, count)
    begun = time.perf_counter()
    for computed in compute_all(stream):
        assert computed.real_util >= 0
    streamed = time.perf_counter() - begun - stream.making_s
    above = megabytes() - before
    print(f"stream:  {streamed:.2f} s, {above:.0f} MB above the readings")
    assert streamed < SECONDS
    assert above < MEGABYTES


if __name__ == "__main__":
    main()
