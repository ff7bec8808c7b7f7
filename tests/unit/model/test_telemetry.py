"""model.telemetry: the record of one reading, and the words for what it says."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import model
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model import (
    BottleneckCategory,
    CanonicalRecord,
    ComputedRecord,
    Health,
    WorkloadClass,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.telemetry import READINGS

RECORD = CanonicalRecord(gpu_index=0, gpu_uuid="", monotonic_s=1.0, unix_s=1.75e9)
NUMBERS = ("monotonic_s", "unix_s", *READINGS)


def test_only_the_gpu_and_the_time_are_needed() -> None:
    """Every reading is None until a source says it."""
    assert len(READINGS) == 36
    assert {getattr(RECORD, name) for name in READINGS} == {None}
    others = ("clock_reasons", "hostname")
    assert CanonicalRecord.__struct_fields__[4:] == (*READINGS, *others)
    assert (RECORD.clock_reasons, RECORD.hostname) == (None, "")


def test_a_stored_zero_is_not_an_absent_value() -> None:
    """Zero stays zero."""
    assert replace(RECORD, sm_active_fraction=0.0).sm_active_fraction == 0.0


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    """Any field is checked, and named in the error."""
    facts: dict[str, Any] = {name: value}

    with pytest.raises(RecordError, match="not a finite number") as caught:
        replace(RECORD, **facts)
    assert caught.value.path == f"telemetry.{name}"


def test_two_infinities_do_not_hide_each_other() -> None:
    """The check of all at once is not fooled by sums, and names every field."""
    with pytest.raises(RecordError) as caught:
        replace(RECORD, power_watts=math.inf, energy_joules=-math.inf)
    assert caught.value.path == "telemetry.power_watts"
    assert caught.value.message == (
        "telemetry.power_watts: inf is not a finite number; "
        "telemetry.energy_joules: -inf is not a finite number"
    )


@pytest.mark.parametrize("value", ["0.5", "", True, [], 1j])
@pytest.mark.parametrize("name", ["unix_s", "sm_active_fraction"])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    """Nothing is read out of a text, and no other type is taken for a number."""
    facts: dict[str, Any] = {name: value}

    with pytest.raises(RecordError, match="is not a number") as caught:
        replace(RECORD, **facts)
    assert caught.value.path == f"telemetry.{name}"


@pytest.mark.parametrize("value", [True, False, None, 0, 1])
def test_one_reading_is_true_or_false(value: Any) -> None:
    """Whether rows failed is not an amount; a source that writes 0 and 1 is read too."""
    assert replace(RECORD, row_remap_failed=value).row_remap_failed is value
    with pytest.raises(RecordError, match=r"row_remap_failed: 'no' is not a number"):
        replace(RECORD, row_remap_failed="no")


finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)


@given(facts=st.dictionaries(st.sampled_from(NUMBERS), finite))
def test_what_is_finite_is_kept(facts: dict[str, Any]) -> None:
    """Out of its range, and together more than a float holds: a record all the same."""
    record = replace(RECORD, **facts)

    assert {name: getattr(record, name) for name in facts} == facts


def test_records_cannot_be_changed() -> None:
    """A record that exists stays as it is, and takes no other field."""
    with pytest.raises(AttributeError):
        RECORD.unix_s = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        CanonicalRecord(0, "", 1.0, 1.0)  # type: ignore[call-arg]


def test_a_computed_record_has_its_fields() -> None:
    """The names that other programs rely on."""
    assert list(ComputedRecord.__struct_fields__) == [
        "record",
        "gpu_index",
        "gpu_uuid",
        "model_name",
        "real_util",
        "preset_name",
        "weights",
        "workload_class",
        "bottleneck",
        "health",
        "memory_total_bytes",
        "memory_used_fraction",
        "pcie_replay_rate_per_s",
        "missing",
    ]


CLASSES = {
    "IDLE": ("idle", "idle"),
    "TENSOR_HEAVY_COMPUTE": ("tensor-heavy compute", "compute"),
    "TENSOR_COMPUTE": ("tensor compute", "compute"),
    "FP64_HPC_COMPUTE": ("FP64 / HPC compute", "compute"),
    "IO_OR_DATA_LOADING": ("I/O or data-loading", "io"),
    "MEMORY_BOUND": ("memory-bound", "memory"),
    "COMPUTE_HEAVY": ("compute-heavy", "compute"),
    "COMPUTE_ACTIVE": ("compute-active", "compute"),
    "MEMORY_ACTIVE": ("memory-active", "memory"),
    "BUSY_LOW_SM_USE": ("busy, low SM use", "mixed"),
    "LOW_UTILIZATION": ("low utilization", "mixed"),
    "MIXED_OR_MODERATE": ("mixed / moderate", "mixed"),
}


def test_a_class_is_its_label_and_has_a_bottleneck() -> None:
    """Twelve classes in the order of the rules; the value is the label alone."""
    found = {c.name: (c.label, c.bottleneck.value) for c in WorkloadClass}

    assert found == CLASSES
    assert list(found) == list(CLASSES)
    assert all(
        c.value == c.label == c and WorkloadClass(c.label) is c for c in WorkloadClass
    )


def test_the_words_for_bottleneck_and_health() -> None:
    """Closed sets, in the order in which people count them up."""
    assert [b.value for b in BottleneckCategory] == [
        "idle",
        "compute",
        "io",
        "memory",
        "mixed",
    ]
    assert [(h.name, h.value) for h in Health] == [
        (word, word) for word in ("OK", "WARN", "HOT", "CRIT")
    ]


def test_the_room_gives_its_records() -> None:
    """Their names are those of the room, and no other is."""
    assert sorted(model.__all__) == model.__all__ == dir(model)
    assert model.WorkloadClass is WorkloadClass
    with pytest.raises(AttributeError, match="Records"):
        _ = model.Records


def test_the_room_costs_nothing_until_it_is_asked() -> None:
    """Importing the room loads none of its records."""
    program = "import sys, pytest_gpuperf.model as m; print(*sorted(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "pytest_gpuperf.model" in done.stdout.split()
    assert "pytest_gpuperf.model.telemetry" not in done.stdout.split()
