"""Records of telemetry for tests: plain ones, and any."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from pytest_gpuperf.model import CanonicalRecord
from pytest_gpuperf.model.telemetry import READINGS

THRESHOLDS = (5, 15, 20, 25, 30, 40, 50, 60, 80)


def record(**given: Any) -> CanonicalRecord:
    """Return a record of GPU 0 at second 1 with these readings."""
    facts: dict[str, Any] = {
        "gpu_index": 0,
        "gpu_uuid": "",
        "monotonic_s": 1.0,
        "unix_s": 1.75e9,
    }
    return CanonicalRecord(**(facts | given))


def full(**given: Any) -> CanonicalRecord:
    """Return a record that has every reading, of a GPU that does nothing."""
    zeros: dict[str, Any] = dict.fromkeys(READINGS, 0.0)
    zeros |= {name: 0 for name in READINGS if name.endswith("_count")}
    return record(**(zeros | {"last_xid": 0, "row_remap_failed": False} | given))


def near(percent: int) -> list[float]:
    """Return the fraction of a percent and its neighbours, one ulp to both sides."""
    exact = percent / 100
    return [math.nextafter(exact, 0.0), exact, math.nextafter(exact, 1.0)]


edges = st.sampled_from([f for percent in THRESHOLDS for f in near(percent)])
fractions = st.none() | edges | st.floats(0, 1)
rates = (
    st.none() | st.sampled_from([0.0, 1e9, math.nextafter(1e9, 0)]) | st.floats(0, 1e12)
)
sizes = st.none() | st.integers(0, 2**38)
counts = st.none() | st.integers(0, 5)


BY_ENDING: dict[str, st.SearchStrategy[Any]] = {
    "_fraction": fractions,
    "_per_s": rates,
    "_bytes": sizes,
    "_count": counts,
    "_xid": counts,
    "_failed": st.none() | st.booleans(),
    "_celsius": st.none() | st.sampled_from([92.0, 93.0, 95.0]) | st.floats(-50, 150),
    "_watts": st.none() | st.floats(0, 1e4),
    "_joules": st.none() | st.floats(0, 1e9),
    "_hz": st.none() | st.floats(0, 1e10),
}
READING_VALUES = {
    name: values
    for name in READINGS
    for ending, values in BY_ENDING.items()
    if name.endswith(ending)
}


def records(
    *, gpu_index: int | st.SearchStrategy[int] = 0
) -> st.SearchStrategy[CanonicalRecord]:
    """Return any record."""
    index = st.just(gpu_index) if isinstance(gpu_index, int) else gpu_index
    return st.builds(
        CanonicalRecord,
        gpu_index=index,
        gpu_uuid=st.just(""),
        monotonic_s=st.integers(0, 5).map(lambda i: i / 10),
        unix_s=st.just(1.75e9),
        **READING_VALUES,
    )
