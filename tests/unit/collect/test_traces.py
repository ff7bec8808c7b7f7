"""collect.traces: every launch is read as it was written, or refused with its place."""

from __future__ import annotations

import functools
import tracemalloc
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.disk import files_end_at
from pytest_gpuperf.collect import traces
from pytest_gpuperf.collect.traces import (
    LaunchStream,
    TraceKeeper,
    columns_of,
    line_of,
    part_of,
    read_trace,
)
from pytest_gpuperf.collect.translate.activity import Bounds
from pytest_gpuperf.collect.translate.activity import read_trace as trace_of_records
from pytest_gpuperf.compute.activity import summarise
from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model.activity import (
    COLUMNS,
    PIECE_COUNT,
    WHOLE_COUNT,
    Copy,
    KernelShape,
    Launches,
    NamedRange,
    Trace,
    TracePlace,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, Role

KEY = RecordKey(test_id="tests/test_x.py::test_a", name="b")
NUMBER = st.integers(0, 2**32 - 1)
MOMENT = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
MIB = 2**20


def shape(name: str = "_Z4axpyPf") -> KernelShape:
    """Return a kernel as it was launched."""
    return KernelShape(
        name=name,
        grid=(8, 1, 1),
        block=(128, 1, 1),
        registers_count=32,
        shared_bytes=0,
        dynamic_shared_bytes=0,
        stack_bytes=0,
    )


def launches(rows: list[tuple[int, ...]], shapes: tuple[KernelShape, ...]) -> Launches:
    """Return launches of rows."""
    columns = {
        name: array(code, [row[place] for row in rows])
        for place, (name, code) in enumerate(COLUMNS.items())
    }
    return Launches(shapes=shapes, **columns)


def many(count: int, begin_ns: int = 1_000) -> Launches:
    """Return launches of one shape, 10 ns each and 2 ns apart."""
    starts = range(begin_ns, begin_ns + 12 * count, 12)
    return Launches(
        shapes=(shape(),) if count else (),
        shape=array("I", bytes(4 * count)),
        start_ns=array("Q", starts),
        end_ns=array("Q", range(starts.start + 10, starts.stop + 10, 12)),
        call_ns=array("Q", bytes(8 * count)),
        device=array("I", bytes(4 * count)),
        stream=array("I", [7]) * count,
        graph=array("I", bytes(4 * count)),
    )


def trace(found: Any = None, **changed: Any) -> Trace:
    """Return a trace of launches."""
    kept = many(3) if found is None else found
    return Trace(begun_ns=900, ended_ns=10**12, launches=kept, **changed)


@st.composite
def any_launches(draw: st.DrawFn) -> Launches:
    """Return any launches that CUPTI can record."""
    shapes = tuple(map(shape, draw(st.lists(st.text(max_size=4), max_size=3))))
    if not shapes:
        return launches([], ())
    row = st.tuples(
        st.integers(0, len(shapes) - 1),
        *(MOMENT, MOMENT, MOMENT, NUMBER, NUMBER, NUMBER),
    )
    return launches(draw(st.lists(row, min_size=1, max_size=5)), shapes)


NAMES = st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)
TRACES = st.builds(
    Trace,
    begun_ns=MOMENT,
    ended_ns=MOMENT,
    launches=any_launches(),
    copies=st.lists(st.from_type(Copy), max_size=2).map(tuple),
    fills=st.lists(st.tuples(MOMENT, MOMENT, MOMENT), max_size=2).map(tuple),
    graphs=st.lists(st.tuples(MOMENT, MOMENT), max_size=2).map(tuple),
    host_launches_count=NUMBER,
    latencies_ns=st.lists(SIGNED, max_size=3).map(lambda values: array("q", values)),
    synchronizations=NAMES,
    wait_ends_ns=st.lists(MOMENT, max_size=2).map(tuple),
    allocations=st.lists(MOMENT, max_size=2).map(tuple),
    compilations_ns=st.lists(SIGNED, max_size=2).map(tuple),
    overheads_ns=NAMES,
    ranges=st.lists(st.from_type(NamedRange), max_size=2).map(tuple),
    unlabelled_count=NUMBER,
    untimed_count=NUMBER,
    dropped_count=NUMBER,
    children=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    device_children=st.lists(NUMBER, max_size=2).map(tuple),
    unrecorded=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)
st.register_type_strategy(
    Copy,
    st.builds(
        Copy,
        direction=st.text(max_size=3),
        source=st.text(max_size=3),
        target=st.text(max_size=3),
        size_bytes=MOMENT,
        count=NUMBER,
        start_ns=MOMENT,
        end_ns=MOMENT,
    ),
)
st.register_type_strategy(
    NamedRange,
    st.builds(
        NamedRange,
        name=st.text(max_size=3),
        domain=st.text(max_size=3),
        start_ns=MOMENT,
        end_ns=MOMENT,
    ),
)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kept=st.lists(TRACES, min_size=1, max_size=3))
def test_any_trace_comes_back(tmp_path: Path, kept: list[Trace]) -> None:
    """Every number that CUPTI can write, to the last nanosecond, in whatever order."""
    for left in tmp_path.iterdir():
        left.unlink()
    keeper = TraceKeeper(str(tmp_path), writer="main")
    places = [keeper.keep(KEY, each) for each in kept]

    for place, each in reversed(list(zip(places, kept, strict=True))):
        assert read_trace(str(tmp_path), place) == each


def test_a_place_is_a_line_and_a_byte_of_a_file(tmp_path: Path) -> None:
    """As an editor counts lines; the last line of each trace says whose it is."""
    keeper = TraceKeeper(str(tmp_path), writer="gw1", role=Role.REPEAT, process_index=2)
    first, second = keeper.keep(KEY, trace()), keeper.keep(KEY, trace())
    content = (tmp_path / "traces-gw1.jsonl").read_bytes()

    assert (first.file, first.line, first.offset_bytes) == ("traces-gw1.jsonl", 1, 0)
    assert content[second.offset_bytes :] == content[: second.offset_bytes]
    assert content[: second.offset_bytes].count(b"\n") == second.line - 1
    end = msgspec.json.decode(content.splitlines()[-1])["part"]
    assert (end["key"]["test_id"], end["key"]["name"]) == (KEY.test_id, "b")
    assert (end["role"], end["process_index"]) == ("repeat", 2)


@pytest.mark.parametrize("count", [0, 1, PIECE_COUNT, PIECE_COUNT + 1])
def test_a_list_is_written_in_pieces(tmp_path: Path, count: int) -> None:
    """No line has more than some thousands of launches, copies or others."""
    kept = trace(many(count), allocations=(1,) * count)
    place = TraceKeeper(str(tmp_path), writer="main").keep(KEY, kept)
    parts = [
        part_of(line + b"\n")
        for line in (tmp_path / place.file).read_bytes().splitlines()
    ]
    counts = [
        len(each.shape) for each in parts if isinstance(each, traces.LaunchColumns)
    ]

    assert counts == [min(PIECE_COUNT, count - n) for n in range(0, count, PIECE_COUNT)]
    assert len(parts) == 2 + 2 * len(counts)
    assert read_trace(str(tmp_path), place) == kept


class Kernel(NamedTuple):
    """A record of a kernel, as far as it is read."""

    correlation_id: int
    start: int
    end: int
    name: str
    kind: int = 10
    device_id: int = 0
    stream_id: int = 7
    graph_id: int = 0
    grid_x: int = 1
    grid_y: int = 1
    grid_z: int = 1
    block_x: int = 32
    block_y: int = 1
    block_z: int = 1
    registers_per_thread: int = 16
    static_shared_memory: int = 0
    dynamic_shared_memory: int = 0
    local_memory_per_thread: int = 0


@functools.cache
def kernels() -> list[Kernel]:
    """Return one more than are held; some shapes come late."""
    return [
        Kernel(n, 1_000 + 12 * n, 1_010 + 12 * n, f"k{n % 3 + n // 150_000}")
        for n in range(WHOLE_COUNT + 1)
    ]


@pytest.mark.parametrize("over", [0, 1])
def test_more_than_200_000_launches_are_a_stream(tmp_path: Path, over: int) -> None:
    """One more, and they go to a file as they are found: same list, same summary."""
    count = WHOLE_COUNT + over
    bounds = Bounds(
        label_kind=3, first=1, begun_ns=1, returned_ns=10**9, ended_ns=10**9
    )
    keeper = TraceKeeper(str(tmp_path), writer="main")
    whole = trace_of_records([kernels()[:count]], bounds)
    kept = trace_of_records([kernels()[:count]], bounds, sink=keeper.stream)
    assert isinstance(kept.launches, LaunchStream) == bool(over)

    place = keeper.keep(KEY, kept)
    back = read_trace(str(tmp_path), place)

    assert place.file == ("traces-main.1.jsonl" if over else "traces-main.jsonl")
    assert isinstance(back.launches, LaunchStream) == bool(over)
    assert len(back.launches) == len(kept.launches) == len(whole.launches) == count
    for found in (kept, back):
        assert list(found.launches.pieces()) == list(whole.launches.pieces())
        assert replace(found, launches=None) == replace(whole, launches=None)
    assert summarise(back) == summarise(kept) == summarise(whole)
    assert summarise(back).launches_count == count


def test_memory_does_not_grow_with_a_stream(tmp_path: Path) -> None:
    """400,000 launches, 28 MB of text: a piece is held, or as much as is held whole."""
    pieces_count = 2 * WHOLE_COUNT // PIECE_COUNT
    keeper = TraceKeeper(str(tmp_path), writer="main")
    piece = many(PIECE_COUNT)
    tracemalloc.start()
    writer = keeper.stream()
    for _ in range(pieces_count):
        writer.put(piece)
    place = keeper.keep(KEY, trace(writer.end()))
    _, written_bytes = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    back = read_trace(str(tmp_path), place)
    _, read_bytes = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    count = sum(map(len, back.launches.pieces()))
    _, walked_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == len(back.launches) == pieces_count * PIECE_COUNT
    assert written_bytes < 4 * MIB
    assert read_bytes < 16 * MIB
    assert walked_bytes < 8 * MIB


def test_streams_of_two_windows_do_not_mix(tmp_path: Path) -> None:
    """A range in a range: each has a file, whichever is kept first."""
    keeper = TraceKeeper(str(tmp_path), writer="main")
    outer, inner = keeper.stream(), keeper.stream()
    for begin_ns in (1_000, 2_000):
        outer.put(many(2, begin_ns))
        inner.put(many(1, begin_ns))
    kept = [trace(outer.end()), trace(inner.end())]
    places = [keeper.keep(KEY, each) for each in reversed(kept)][::-1]

    found = [read_trace(str(tmp_path), place).launches for place in places]
    assert [next(each.pieces()).start_ns.tolist() for each in found] == [  # type: ignore[attr-defined] # an array
        [1_000, 1_012, 2_000, 2_012],
        [1_000, 2_000],
    ]


def test_a_stream_whose_file_was_replaced_is_refused(tmp_path: Path) -> None:
    """It was whole when it was opened: what is there now is another trace."""
    place = TraceKeeper(str(tmp_path), writer="main").keep(KEY, trace(many(3)))
    path = tmp_path / place.file
    stream = LaunchStream(path, place, (shape(),), 5)
    end_bytes = path.read_bytes().rindex(b"\n{") + 1

    with pytest.raises(CaptureFormatError) as caught:
        list(stream.pieces())

    said = f"{path}: line 3 (byte {end_bytes}) ends the trace 2 launches too early"
    assert caught.value.message == said


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> TracePlace:
    """Return where the second of two traces stands, of 6 lines each."""
    keeper = TraceKeeper(str(tmp_path), writer="main")
    whole = trace(many(PIECE_COUNT + 1), allocations=(1,), fills=((1, 2, 3),))
    keeper.keep(KEY, whole)
    return keeper.keep(KEY, whole)


def refusal(tmp_path: Path, place: TracePlace) -> str:
    """Return why a trace is not read."""
    with pytest.raises(CaptureFormatError) as caught:
        read_trace(str(tmp_path), place)
    assert caught.value.remedy == "record it again with --gpuperf-record"
    return caught.value.message


@pytest.mark.parametrize("line", range(6))
@pytest.mark.parametrize("left", [0, 1, -1])
def test_a_file_that_was_cut_off_is_refused(
    tmp_path: Path, place: TracePlace, line: int, left: int
) -> None:
    """At the line where it was: its number, and the byte at which it begins."""
    path = tmp_path / place.file
    lines = path.read_bytes().splitlines(keepends=True)
    before = b"".join(lines[: 6 + line])
    path.write_bytes(before + lines[6 + line][:left])
    where = f"{path}: line {7 + line} (byte {len(before)}) is "

    said = refusal(tmp_path, place)

    assert said == where + (
        "cut off" if left else "missing: the file ends before the trace does"
    )


@given(place_in_line=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_one_byte_that_changed_is_never_read_as_a_number(
    tmp_path: Path, place_in_line: int, value: int
) -> None:
    """Whichever byte: a refusal of that line or the one after it."""
    keeper = TraceKeeper(str(tmp_path), writer="main")
    (tmp_path / "traces-main.jsonl").unlink(missing_ok=True)
    place = keeper.keep(KEY, trace())
    path = tmp_path / place.file
    content = bytearray(path.read_bytes())
    at = place_in_line % len(content)
    same = content[at] == value
    content[at] = value
    path.write_bytes(bytes(content))
    line = bytes(content[:at]).count(b"\n") + 1

    if same:
        assert read_trace(str(tmp_path), place) == trace()
    else:
        said = refusal(tmp_path, place)
        assert f"{path}: line {line} (byte " in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"trace/1", b"trace/2", "has schema 'pytest-gpuperf/trace/2', which is not"),
        (b'"device":[', b'"device":[0,', "has columns of different lengths"),
        (b'"device":[0', b'"device":[-1', "has no launches: can't convert negative"),
        (b'"shape":[0', b'"shape":[9', "has the index of a missing shape"),
        (
            b'"launches_count":4097',
            b'"launches_count":5',
            "counts 5 launches, the trace has",
        ),
        (b'"role":"main"', b'"role":"x"', "is damaged: Invalid enum value 'x'"),
        (b'"kind":"end"', b'"kind":"head"', "is not the beginning of a trace"),
        (b'"kind":"end"', b'"kind":"other"', "is damaged: Invalid value 'other'"),
    ],
)
def test_a_line_with_a_good_checksum_is_not_believed_either(
    tmp_path: Path, place: TracePlace, old: bytes, new: bytes, said: str
) -> None:
    """A recording comes from anywhere: what it says is checked."""
    path = tmp_path / place.file
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(n for n in range(6, 12) if old in lines[n])
    part = msgspec.json.encode(msgspec.json.decode(lines[number])["part"])
    forged = msgspec.Raw(part.replace(old, new, 1))
    before = b"".join(lines[:number])
    forged_line = line_of(forged)  # type: ignore[arg-type] # a part as text
    path.write_bytes(before + forged_line + b"".join(lines[number + 1 :]))

    assert f"line {number + 1} (byte {len(before)}) {said}" in refusal(tmp_path, place)


@pytest.mark.parametrize("file", ["../traces-main.jsonl", "/etc/passwd", ""])
def test_a_file_outside_of_the_recording_is_not_read(tmp_path: Path, file: str) -> None:
    """A recording comes from anywhere."""
    TraceKeeper(str(tmp_path), writer="main").keep(KEY, trace())
    inner = tmp_path / "inner"
    inner.mkdir()
    place = TracePlace(file=file, line=1, offset_bytes=0)

    assert "is not a file of a recording" in refusal(inner, place) or not file


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, place: TracePlace) -> None:
    """By its name; a place in the middle of a trace is none."""
    (tmp_path / "traces-gone.jsonl").mkdir()
    gone = replace(place, file="traces-gone.jsonl")
    middle = replace(place, line=2, offset_bytes=place.offset_bytes + 1)

    assert "traces-gone.jsonl: it cannot be read (Is a dir" in refusal(tmp_path, gone)
    assert "line 2 (byte " in refusal(tmp_path, middle)


def test_a_full_disk_costs_one_trace(tmp_path: Path) -> None:
    """Half a trace is taken back, so that the ones around it can be read."""
    keeper = TraceKeeper(str(tmp_path), writer="main")
    first = keeper.keep(KEY, trace())
    size_bytes = (tmp_path / first.file).stat().st_size
    with (
        files_end_at(size_bytes + 2_000),
        pytest.raises(ReportError, match=r"traces-main\.jsonl cannot be written") as e,
    ):
        keeper.keep(KEY, trace(many(PIECE_COUNT)))
    second = keeper.keep(KEY, trace(unlabelled_count=1))

    assert e.value.remedy == "make room, or choose another folder"
    assert second.offset_bytes == size_bytes
    assert read_trace(str(tmp_path), first) == trace()
    assert read_trace(str(tmp_path), second) == trace(unlabelled_count=1)


def test_columns_are_those_of_a_line() -> None:
    """A line that was read is what was written."""
    kept = many(3)
    (part,) = traces.launch_parts(kept, known_count=0)
    back = part_of(line_of(part))

    assert isinstance(back, traces.LaunchColumns)
    assert Launches(shapes=kept.shapes, **columns_of(back, 1)) == kept
    with pytest.raises(RecordError, match="is cut off"):
        part_of(line_of(part)[:-1])
