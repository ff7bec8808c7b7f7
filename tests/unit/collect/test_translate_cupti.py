"""collect.translate.cupti: records that are slow to read are unpacked at once."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.collect.translate.cupti import quick

np = pytest.importorskip("numpy", reason="numpy is not installed")


def wrapped(kind: str, dtype: list[tuple[str, str]], *values: int) -> Any:
    """Return a record as cupti-python 13.0 keeps it: an array of one row."""
    layout = np.dtype(dtype, align=True)
    return type(kind, (), {"_data": np.array([values], dtype=layout)})()


def test_an_array_is_unpacked_with_its_text() -> None:
    """Gaps between fields are skipped, and a text is read where its address leads."""
    text = ctypes.create_string_buffer(b"_Z4axpyPf")
    dtype = [
        *(("kind", "<i4"), ("cache", "u1"), ("registers_per_thread", "<u2")),
        *(("start", "<u8"), ("grid_x", "<i4"), ("name", "<i8")),
    ]
    record = wrapped(
        "ActivityKernel10", dtype, 10, 1, 255, 2**63 + 1, -1, ctypes.addressof(text)
    )
    (found,) = quick([[record]])
    assert (found.kind, found.registers_per_thread) == (10, 255)
    assert (found.start, found.grid_x, found.name) == (2**63 + 1, -1, "_Z4axpyPf")
    assert not hasattr(found, "cache")


def test_no_text_is_an_empty_one() -> None:
    """The end of a range has no name."""
    record = wrapped("ActivityMarker2", [("kind", "<i4"), ("name", "<i8")], 12, 0)
    assert [each.name for each in quick([[record]])] == [""]


def test_a_text_that_nobody_asks_for_is_not_read() -> None:
    """The address in a record of another kind may lead nowhere."""
    record = wrapped("ActivityMemory4", [("kind", "<i4"), ("name", "<i8")], 49, 1)
    (found,) = quick([[record]])
    assert not hasattr(found, "name")


def test_a_record_that_is_quick_is_left_alone() -> None:
    """From 13.3 on reading a field takes 0.02 us."""
    record = SimpleNamespace(kind=10)
    assert next(quick([[record]])) is record
