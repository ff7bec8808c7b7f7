"""Rules that every record of the model keeps."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import Frozen, finite, positive, replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Completeness, Measured, Run
from pytest_gpuperf.model.sample import CoreSpeed, Estimate
from pytest_gpuperf.model.verdict import Limit
from pytest_gpuperf.model.work import Work
from unit.model.records import (
    any_record,
    fields_of,
    is_record,
    records_of_model,
)

ALL = records_of_model()
NUMBERS = ("float", "float | None", "tuple[float, ...]")


def _reachable(*roots: type) -> list[type]:
    """Return the records that may stand somewhere inside some records."""
    found: dict[type, None] = {}
    left: list[Any] = list(roots)
    while left:
        kind = left.pop()
        if is_record(kind) and kind not in found:
            found[typing.cast("type", kind)] = None
            left += typing.get_type_hints(kind).values()
        left += typing.get_args(kind)
    return list(found)


CROSSING = _reachable(Run, Measured)
# Those of CoreSpeed are checked where they are read: a run reads some for each stored session.
FLOATS = [
    (kind, name, form)
    for kind in CROSSING
    if kind is not CoreSpeed
    for name, form in fields_of(kind).items()
    if form in NUMBERS
]


def test_the_search_finds_records() -> None:
    """The rules below are about something."""
    assert len(ALL) > 20
    assert {Run, Estimate, Measured} <= set(CROSSING) <= set(ALL)
    assert (Estimate, "value", "float") in FLOATS


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_record_cannot_change(kind: type[Frozen]) -> None:
    """Records are frozen, slotted and built by the names of their fields."""
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        kind("one")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_field_is_explained(kind: type) -> None:
    """The section `Attributes:` names each field, once, in the order of the class."""
    text = inspect.cleandoc(kind.__doc__ or "")  # from 3.13 on it comes dedented
    section = text.partition("Attributes:\n")[2]
    described = re.findall(r"^ {4}(\w+):", section, flags=re.MULTILINE)

    assert sorted(described) == sorted(fields_of(kind))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_collection_in_a_record_cannot_grow(kind: type) -> None:
    """Tuples and Mappings, never a list, a dict or a set."""
    types = " ".join(fields_of(kind).values())

    assert not re.search(r"\b(list|dict|set|Any)\b", types)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("kind", "name", "form"), FLOATS, ids=lambda value: getattr(value, "__name__", None)
)
@settings(max_examples=3)
@given(data=st.data())
def test_no_record_holds_what_is_not_finite(
    kind: type, name: str, form: str, bad: float, data: st.DataObject
) -> None:
    """NaN and infinity are refused when a record is built, with the field's path."""
    whole = data.draw(any_record(kind))
    value = (bad,) if form.startswith("tuple") else bad

    with pytest.raises(RecordError, match="is not a finite number") as caught:
        replace(whole, **{name: value})

    assert caught.value.path
    assert caught.value.remedy


@pytest.mark.parametrize(
    "row",
    ["[0]", "[-1.0]", "[1e999]", "[1,1e999]", "[1,NaN]", "[1,0,-1]", "[1,0,1e999]"],
)
def test_an_impossible_speed_of_a_core_is_not_read(row: str) -> None:
    """It would correct every value of the session."""
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(row, type=CoreSpeed)


def test_an_allowed_change_is_finite() -> None:
    """A limit of NaN would let everything pass."""
    with pytest.raises(RecordError, match="max_regression"):
        Measured(test_id="t", max_regression={"time": math.nan})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_border_lets_numbers_through(value: float) -> None:
    """Any finite number passes, and None: the source did not say."""
    finite("x", value, None)
    if value > 0:
        positive("x", value, None)


@pytest.mark.parametrize("value", [0.0, -0.0, -1e-300, math.nan, math.inf])
def test_the_border_tells_the_field(value: float) -> None:
    """What is refused is named with its field and its value."""
    with pytest.raises(RecordError, match=re.escape(f"work.flop: {value!r} is not")):
        positive("work.flop", 1.0, value)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "work"),
        ({"flop": 0.0, "bytes": 1.0}, "work.flop"),
        ({"bytes": -1.0}, "work.bytes"),
        ({"flop": 1e9}, "work.dtype"),
    ],
)
def test_work_without_a_roof_is_refused(given: Mapping[str, float], path: str) -> None:
    """Nothing declared, nothing to do, or FLOP whose peak nobody knows."""
    with pytest.raises(RecordError) as caught:
        Work(**given)  # type: ignore[arg-type] # names of its fields

    assert caught.value.path == path


def test_an_interval_is_the_right_way_up() -> None:
    """A lower end above the upper end is a mistake of its maker."""
    with pytest.raises(RecordError, match=r"estimate\[time\]\.low"):
        Estimate(metric="time", value=1.0, unit="s", source="x", low=2.0, high=1.0)


def test_a_limit_has_a_number() -> None:
    """A threshold of NaN would let everything pass."""
    with pytest.raises(RecordError, match=r"limit\.threshold"):
        Limit(text="t", metric="t", operator="<=", threshold=math.nan, unit=None)


@given(any_record(KernelResources))
def test_a_kernel_may_leave_unsaid_what_its_source_did_not_say(
    kernel: KernelResources,
) -> None:
    """None is not a number: every optional count of a kernel may be absent."""
    optional = [
        name
        for name, form in fields_of(KernelResources).items()
        if form == "int | None"
    ]

    nothing: dict[str, Any] = dict.fromkeys(optional)
    bare = replace(kernel, **nothing)

    assert len(optional) > 3
    assert all(getattr(bare, name) is None for name in optional)


@pytest.mark.parametrize(
    ("missing", "interrupted", "complete"),
    [((), "", True), (("t",), "", False), ((), "Ctrl-C", False)],
)
def test_a_run_is_complete_when_every_test_reported(
    missing: tuple[str, ...], interrupted: str, *, complete: bool
) -> None:
    """A lost test or an early end makes it incomplete."""
    given = Completeness(
        expected_count=1, reported_count=1, missing=missing, interrupted=interrupted
    )

    assert given.complete is complete


def test_a_key_reads_as_its_test_and_its_name() -> None:
    """The first measurement of a test is called like the test; keys are in order."""
    first, named = RecordKey(test_id="t.py::a"), RecordKey(test_id="t.py::a", name="b")

    assert (str(first), str(named)) == ("t.py::a", "t.py::a b")
    assert sorted([named, first]) == [first, named]
