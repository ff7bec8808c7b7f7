"""collect.translate.launches: every launch as lines, and back."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.translate.launches import launch_lines, launches_from
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.activity import KernelShape, Launches

SHAPE = KernelShape(
    name="_Z4axpyPf",
    grid=(8, 1, 1),
    block=(128, 1, 1),
    registers_count=32,
    shared_bytes=0,
    dynamic_shared_bytes=0,
    stack_bytes=0,
)
NUMBER = st.integers(0, 2**32 - 1)
MOMENT = st.integers(0, 2**64 - 1)
ROW = st.tuples(NUMBER, MOMENT, MOMENT, MOMENT, NUMBER, NUMBER, NUMBER)


def launches(rows: list[tuple[int, ...]]) -> Launches:
    """Return launches of rows."""
    columns = [
        array(code, [row[i] for row in rows]) for i, code in enumerate("IQQQIII")
    ]
    shape, start_ns, end_ns, call_ns, device, stream, graph = columns
    return Launches(
        shapes=(SHAPE,),
        shape=shape,
        start_ns=start_ns,
        end_ns=end_ns,
        call_ns=call_ns,
        device=device,
        stream=stream,
        graph=graph,
    )


@given(st.lists(ROW, max_size=5))
def test_they_come_back(rows: list[tuple[int, ...]]) -> None:
    """Every number that CUPTI can write, to the last nanosecond."""
    kept = launches(rows)
    assert launches_from(list(launch_lines(kept))) == kept


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"no json"],
        [b'{"schema": "other/1", "columns": [], "shapes": []}'],
        [*launch_lines(launches([])), b"[0,1,2"],
        [*launch_lines(launches([])), b"[0,1,2]"],
        [*launch_lines(launches([])), b"[0,-1,2,3,4,5,6]"],
    ],
)
def test_what_was_cut_off_or_is_another_file_is_refused(lines: list[bytes]) -> None:
    """The path is named, with what to do."""
    with pytest.raises(CaptureFormatError, match=r"here\.jsonl") as caught:
        launches_from(lines, path="here.jsonl")
    assert caught.value.remedy == "record the run again"
