"""report.launches: a line for each launch; times to the nanosecond, gaps by stream."""

from __future__ import annotations

import json
from array import array

import pytest

from pytest_gpuperf.model.activity import (
    COLUMNS,
    PIECE_COUNT,
    KernelShape,
    Launches,
    Trace,
)
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.report.launches import launch_blocks
from pytest_gpuperf.report.lines import SCHEMAS

BEGUN_NS = 1_763_000_000_000_000_000
RECORD = Record(key=RecordKey(test_id="t.py::a"), kind=Kind.RANGE, estimates=())
AGAIN = Record(
    key=RecordKey(test_id="t.py::a", name="b"),
    kind=Kind.RANGE,
    estimates=(),
    role=Role.CONFIRM,
    process_index=2,
)


def shape(name: str) -> KernelShape:
    """Return a kernel as it was launched."""
    return KernelShape(
        name=name,
        grid=(132, 2, 1),
        block=(128, 1, 1),
        registers_count=32,
        shared_bytes=1,
        dynamic_shared_bytes=2,
        stack_bytes=3,
    )


def trace(*rows: tuple[int, int, int], name: str = "_Z1av") -> Trace:
    """Return launches of stream, start and end since the window began; 0: not known."""
    count = len(rows)
    starts, ends = (
        array("Q", [row[place] and BEGUN_NS + row[place] for row in rows])
        for place in (1, 2)
    )
    zeros = array("I", bytes(4 * count))
    columns = dict.fromkeys(COLUMNS, zeros) | {"call_ns": starts}
    columns |= {"start_ns": starts, "end_ns": ends}
    columns |= {"stream": array("I", [row[0] for row in rows])}
    launches = Launches(shapes=(shape(name),) if rows else (), **columns)
    return Trace(begun_ns=BEGUN_NS, ended_ns=BEGUN_NS + 10**6, launches=launches)


def told(*kept: tuple[Record, Trace], form: str = "text") -> str:
    """Return what is printed."""
    return b"".join(launch_blocks(kept, form, width=200)).decode()


def cells(text: str) -> list[list[str]]:
    """Return the first columns of the rows of one measurement."""
    return [line.split()[:5] for line in text.splitlines()[2:]]


def test_a_gap_is_that_of_a_stream() -> None:
    """Since the launch before it in its stream ended; others run beside it."""
    seen = trace((7, 100, 1_100), (8, 200, 5_200), (7, 1_350, 2_000), (8, 5_100, 5_300))

    assert cells(told((RECORD, seen))) == [
        ["0.100", "1.000", "n/a", "0", "7"],
        ["0.200", "5.000", "n/a", "0", "8"],
        ["1.350", "0.650", "0.250", "0", "7"],
        ["5.100", "0.200", "-0.100", "0", "8"],
    ]


def test_what_has_no_time_is_not_zero() -> None:
    """Nor is the gap before or after it known."""
    seen = trace((7, 100, 200), (7, 0, 0), (7, 400, 0), (7, 500, 600))

    assert [row[:3] for row in cells(told((RECORD, seen)))] == [
        ["0.100", "0.100", "n/a"],
        ["n/a", "n/a", "n/a"],
        ["0.400", "n/a", "n/a"],
        ["0.500", "0.100", "n/a"],
    ]
    rows = json.loads(told((RECORD, seen), form="json"))["measurements"][0]["launches"]
    assert [row["gap_ns"] for row in rows] == [None] * 4
    assert [row["duration_ns"] for row in rows] == [100, None, None, 100]


def test_each_measurement_has_its_title() -> None:
    """With its name, and the process where it was not the main one."""
    text = told((RECORD, trace((7, 1, 2))), (AGAIN, trace()))

    assert text.splitlines()[0] == "t.py::a: 1 launch"
    assert "\n\nt.py::a b (confirm process 2): 0 launches\n" in text
    table = told((RECORD, trace((7, 1, 2))), (AGAIN, trace()), form="markdown")
    assert table.startswith("### t.py::a: 1 launch\n\n| start us | duration us |")
    assert table.count("\n### ") == 1


def test_json_is_one_object_that_comes_in_blocks() -> None:
    """None of them has more than some thousands of launches."""
    many = trace(*((7, n, n + 1) for n in range(1, PIECE_COUNT + 3)))
    blocks = list(launch_blocks([(RECORD, many), (AGAIN, trace())], "json"))
    first, second = json.loads(b"".join(blocks))["measurements"]

    assert max(block.count(b"\n") for block in blocks) == PIECE_COUNT
    assert len(first["launches"]) == first["launches_count"] == PIECE_COUNT + 2
    assert first["launches"][1] == {
        "kernel": "_Z1av",
        "demangled": "_Z1av",
        "start_ns": 2,
        "duration_ns": 1,
        "gap_ns": 0,
        "device": 0,
        "stream": 7,
        "graph": None,
        "grid": [132, 2, 1],
        "block": [128, 1, 1],
        "registers_count": 32,
        "shared_bytes": 1,
        "dynamic_shared_bytes": 2,
        "stack_bytes": 3,
    }
    assert (first["begun_ns"], first["ended_ns"]) == (BEGUN_NS, BEGUN_NS + 10**6)
    assert (second["key"]["name"], second["role"]) == ("b", "confirm")
    assert (second["process_index"], second["launches"]) == (2, [])


def test_json_of_nothing_is_an_object_too() -> None:
    """So is one with a measurement that launched nothing."""
    content = json.loads(told(form="json"))

    assert content == {"schema": SCHEMAS["show FILE --launches"], "measurements": []}
    (one,) = json.loads(told((RECORD, trace()), form="json"))["measurements"]
    assert one["launches"] == []


def test_a_name_is_asked_for_once_and_is_safe_to_print() -> None:
    """Whatever a kernel is called; a mangled name that nobody knows stays."""
    asked: list[str] = []

    def demangle(name: str) -> str | None:
        asked.append(name)
        return "a\x1b[31m|b()" if name == "_Z1av" else None

    kept = [
        (RECORD, trace((7, 1, 2), (7, 3, 4))),
        (AGAIN, trace((7, 1, 2), name="_Zx")),
    ]
    blocks = launch_blocks(kept, "text", demangle=demangle, width=200)
    text = b"".join(blocks).decode()
    table = b"".join(launch_blocks(kept, "markdown", demangle=demangle)).decode()

    assert asked == ["_Z1av", "_Zx"] * 2
    assert text.count("  a\\x1b[31m|b()\n") == 2
    assert text.endswith("  _Zx\n")
    assert "\x1b" not in table
    assert table.count("\\x1b[31m\\|b()` |\n") == 2


@pytest.mark.parametrize("digits", [1, 9])
def test_columns_stand_below_their_heads(digits: int) -> None:
    """From nanoseconds to seconds."""
    start_ns = 10**digits
    lines = told((RECORD, trace((7, start_ns, start_ns + 10**digits)))).splitlines()

    assert lines[1].index("start us") + 8 == lines[2].index(".") + 4
    assert lines[1].index("kernel") == lines[2].index("_Z1av")


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_a_line_is_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A name has no room beside the columns: it stands above them, once for a row of it."""
    monkeypatch.setenv("COLUMNS", str(width))
    name = f"void at::kernel<{'Wide, ' * 30}int>(float*)"
    kept = [(RECORD, trace((7, 1, 2), (7, 3, 4), name=name))]
    _, heads, *lines = b"".join(launch_blocks(kept, "text")).decode().splitlines()

    assert max(map(len, (heads, *lines))) <= width
    assert sum("kernel<Wide" in line for line in lines) == (2 if width > 120 else 1)
    assert all(f"{head} us" in heads for head in ("start", "duration", "gap"))
    assert ("device" in heads) == (width >= 100)


def test_a_name_is_whole_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a pipe, where it is searched for."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    name = f"void at::kernel<{'Wide, ' * 30}int>(float*)"
    text = b"".join(launch_blocks([(RECORD, trace((7, 1, 2), name=name))], "text"))

    assert text.decode().endswith(f"  {name}\n")
