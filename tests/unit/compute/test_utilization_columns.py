"""compute.utilization_columns: many readings at once, the same answers."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.timeline import Scoring, compute_all
from pytest_gpuperf.compute.utilization import CLASSES, INPUTS
from pytest_gpuperf.compute.utilization_columns import (
    HEALTHS,
    ComputedColumns,
    columns_of,
    compute_columns,
    missing_names,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model import CanonicalRecord, ComputedRecord
from pytest_gpuperf.model.frozen import replace
from unit.compute import vectors
from unit.compute.telemetry import full, record, records

MODELS = {0: "NVIDIA H200", 1: "NVIDIA RTX 6000 Ada Generation"}


def row(found: ComputedColumns, i: int) -> dict[str, Any]:
    """Return an entry in the words of a ComputedRecord."""

    def known(value: float) -> float | None:
        return None if math.isnan(value) else float(value)

    return {
        "real_util": float(found.real_util[i]),
        "preset_name": found.preset_name,
        "workload_class": CLASSES[found.workload_class[i]],
        "health": HEALTHS[found.health[i]],
        "memory_total_bytes": known(found.memory_total_bytes[i]),
        "memory_used_fraction": known(found.memory_used_fraction[i]),
        "pcie_replay_rate_per_s": known(found.pcie_replay_rate_per_s[i]),
        "missing": missing_names(int(found.missing[i])),
    }


def same(computed: ComputedRecord) -> dict[str, Any]:
    """Return of a ComputedRecord what an entry has."""
    names = row(compute_columns(columns_of([record()])), 0)
    return {name: getattr(computed, name) for name in names}


def check(given_records: Sequence[CanonicalRecord], scoring: Scoring) -> None:
    """Assert that both ways give the same answers."""
    found = compute_columns(
        columns_of(given_records),
        weights=scoring.weights,
        preset_name=scoring.preset_name,
        model_names=scoring.model_names,
    )

    one_by_one = [same(c) for c in compute_all(given_records, scoring)]
    assert [row(found, i) for i in range(len(given_records))] == one_by_one


weights = st.tuples(*[st.floats(-1, 2)] * 4)


@given(
    some=st.lists(records(gpu_index=st.integers(0, 2)), min_size=1, max_size=12),
    weighed=weights,
)
def test_columns_and_records_get_the_same_answers(
    some: list[CanonicalRecord], weighed: tuple[float, float, float, float]
) -> None:
    """Every number is the same double, and what is absent is absent."""
    check(some, Scoring(weights=weighed, model_names=MODELS))


def test_the_vectors_get_the_same_answers() -> None:
    """Those of the gold file too, as readings of one time line."""
    check(
        [vectors.record_of(v) for v in vectors.vectors() if v["id"] != "kp-0670"],
        Scoring(preset_name="mine"),
    )


def test_numbers_that_overflow_get_the_same_answers() -> None:
    """Beyond all numbers the score is at its most, in both ways, without a warning."""
    most = 1.7e308
    huge: dict[str, Any] = {name: most for name in INPUTS if name.endswith("_fraction")}

    check(
        [record(**huge), record(**(huge | {"sm_active_fraction": -most}))],
        Scoring(weights=(0.0, 1.0, 1.0, 1.0)),
    )


def test_instances_of_one_gpu_are_told_apart() -> None:
    """A count of one instance says nothing of the next."""
    one = full(gpu_uuid="GPU-a/GI1", monotonic_s=1.0, pcie_replay_count=1)
    other = replace(one, gpu_uuid="GPU-a/GI2", pcie_replay_count=5)
    later = replace(one, monotonic_s=2.0, pcie_replay_count=4)
    some = [one, other, later]

    check(some, Scoring())
    rates = compute_columns(columns_of(some)).pcie_replay_rate_per_s
    assert np.isnan(rates).tolist() == [True, True, False]
    assert rates[2] == 3.0


def test_gpus_are_told_apart_without_a_column_of_entities() -> None:
    """Then each is one; readings at the same time have no rate between them."""
    columns = {
        "gpu_index": np.array([0, 1, 0, 1, 1]),
        "monotonic_s": np.array([1.0, 1.0, 3.0, 2.0, 2.0]),
        "pcie_replay_count": np.array([1.0, 9.0, 5.0, 10.0, 12.0]),
    }
    rates = compute_columns(columns).pcie_replay_rate_per_s

    assert rates.tolist() == pytest.approx(
        [math.nan, math.nan, 2.0, 1.0, math.nan], nan_ok=True
    )


def test_places_are_whole_numbers() -> None:
    """They are looked up, and all else is measured."""
    columns = columns_of([full(), full()])

    assert {name for name, column in columns.items() if column.dtype == np.int64} == {
        "entity",
        "gpu_index",
    }


def test_a_column_that_is_not_there_is_absent_everywhere() -> None:
    """Only the GPU and the time are needed."""
    found = compute_columns(
        {"gpu_index": np.zeros(2, int), "monotonic_s": np.arange(2.0)}
    )

    assert missing_names(int(found.missing[1])) == INPUTS
    assert found.real_util.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("sm_active_fraction", math.inf), ("monotonic_s", math.nan)],
)
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    """NaN is absent in a reading; an infinity, or a time that is none, is an error."""
    columns = columns_of([full(), full(), full()])
    columns[name][1] = value

    with pytest.raises(RecordError) as caught:
        compute_columns(columns)
    assert caught.value.path == f"telemetry[1].{name}"
    assert f": {value!r} is not a finite number" in caught.value.message


def test_no_rows_are_no_answers() -> None:
    """An empty table gives an empty one."""
    assert compute_columns(columns_of([])).workload_class.size == 0


def test_without_numpy_it_says_what_to_install() -> None:
    """Numpy is an extra: nothing else of compute needs it."""
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "import pytest_gpuperf.compute.utilization\n"
        "from pytest_gpuperf.errors import CollectorUnavailableError\n"
        "try:\n"
        "    import pytest_gpuperf.compute.utilization_columns\n"
        "except CollectorUnavailableError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert "numpy, which is not installed; pip install numpy" in done.stdout, (
        done.stderr
    )
