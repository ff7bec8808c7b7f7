"""Every launch of a measurement, a line each.

There may be millions: they are printed in blocks of some thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from pytest_gpuperf.model.activity import KernelShape, Trace
from pytest_gpuperf.model.record import Record, Role
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import code, escape, prose

__all__ = ["launch_blocks"]

_UNKNOWN = "n/a"
_HEADS = ("start us", "duration us", "gap us", "device", "stream", "grid", "block")
# characters of these columns; the kernel comes last, as long as it is
_WIDTHS = (14, 12, 12, 6, 6, 14, 10)
_NAME = "kernel"


class _Row(NamedTuple):
    """A launch; None: not known."""

    shape: KernelShape
    start_ns: int | None  # since the window began
    duration_ns: int | None
    gap_ns: int | None
    device: int
    stream: int
    graph: int


def launch_blocks(
    traces: Iterable[tuple[Record, Trace]],
    form: str,
    *,
    demangle: Callable[[str], str | None] = lambda _: None,
) -> Iterator[bytes]:
    """
    Yield all launches as they are printed [UTF-8], in blocks.

    Args:
        traces: Measurements with their traces.

        form: text, markdown, or json: one object, with a launch a line.

        demangle: Returns a readable name; None: it does not know.
    """
    names = _Names(demangle)
    if form == "json":
        yield from _json(traces, names)
        return
    printed = _text if form == "text" else _markdown
    for number, (record, trace) in enumerate(traces):
        if number:
            yield b"\n"
        yield from ("".join(block).encode() for block in printed(record, trace, names))


class _Names(dict[str, str]):
    """Readable names by what the device's code has."""

    def __init__(self, demangle: Callable[[str], str | None]) -> None:
        super().__init__()
        self._demangle = demangle

    def __missing__(self, name: str) -> str:
        """Demangle a name once: a kernel is launched many times."""
        self[name] = self._demangle(name) or name
        return self[name]


def _rows(trace: Trace) -> Iterator[list[_Row]]:
    """Yield launches, in the order of CUPTI's records, some thousands at a time."""
    begun_ns = trace.begun_ns
    shapes = trace.launches.shapes
    ends: dict[tuple[int, int], int] = {}  # of the last launch of each stream [ns]
    for piece in trace.launches.pieces():
        rows = []
        for place, start, end, device, stream, graph in zip(
            *(piece.shape, piece.start_ns, piece.end_ns),
            *(piece.device, piece.stream, piece.graph),
            strict=True,
        ):
            lane = device, stream
            before = ends.get(lane, 0)
            ends[lane] = end
            rows.append(
                _Row(
                    shapes[place],
                    start - begun_ns if start else None,
                    end - start if start and end else None,
                    start - before if start and before else None,
                    device,
                    stream,
                    graph,
                )
            )
        yield rows


def _json(traces: Iterable[tuple[Record, Trace]], names: _Names) -> Iterator[bytes]:
    """Yield one object in blocks."""
    encode = msgspec.json.encode
    yield b'{"measurements":['
    for number, (record, trace) in enumerate(traces):
        head = encode(
            {
                "key": record.key,
                "role": record.role,
                "process_index": record.process_index,
                "begun_ns": trace.begun_ns,
                "ended_ns": trace.ended_ns,
                "launches_count": len(trace.launches),
            }
        )
        yield b'%b\n%b,"launches":[' % (b"," if number else b"", head[:-1])
        separator = b"\n"
        for rows in _rows(trace):
            yield separator + b",\n".join(encode(_plain(row, names)) for row in rows)
            separator = b",\n"
        yield b"]}"
    yield b"\n]}\n"


def _plain(row: _Row, names: _Names) -> dict[str, object]:
    """Return a launch as JSON has it."""
    shape = row.shape
    return {
        "kernel": shape.name,
        "demangled": names[shape.name],
        "start_ns": row.start_ns,
        "duration_ns": row.duration_ns,
        "gap_ns": row.gap_ns,
        "device": row.device,
        "stream": row.stream,
        "graph": row.graph or None,
        "grid": shape.grid,
        "block": shape.block,
        "registers_count": shape.registers_count,
        "shared_bytes": shape.shared_bytes,
        "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        "stack_bytes": shape.stack_bytes,
    }


def _text(record: Record, trace: Trace, names: _Names) -> Iterator[Iterable[str]]:
    """Yield the lines of one measurement."""
    heads = zip(_HEADS, _WIDTHS, strict=True)
    aligned = "  ".join(f"{head:>{width}}" for head, width in heads)
    yield f"{escape(_title(record, trace))}\n", f"{aligned}  {_NAME}\n"
    for rows in _rows(trace):
        yield [
            "  ".join(map(str.rjust, _cells(row), _WIDTHS))
            + f"  {escape(names[row.shape.name])}\n"
            for row in rows
        ]


def _markdown(record: Record, trace: Trace, names: _Names) -> Iterator[Iterable[str]]:
    """Yield a heading and a table of one measurement."""
    yield (
        f"### {prose(_title(record, trace))}\n\n",
        f"| {' | '.join(_HEADS)} | {_NAME} |\n",
        f"|{' ---: |' * len(_HEADS)} --- |\n",
    )
    for rows in _rows(trace):
        yield [
            f"| {' | '.join(_cells(row))} | {code(names[row.shape.name])} |\n"
            for row in rows
        ]


def _title(record: Record, trace: Trace) -> str:
    """Return whose launches these are, and how many."""
    count = display.plural(len(trace.launches), "launch", "launches")
    process = f"{record.role.value} process {record.process_index}"
    made_by = "" if record.role is Role.MAIN else f" ({process})"
    return f"{record.key}{made_by}: {count}"


def _cells(row: _Row) -> tuple[str, ...]:
    """Return what stands before the kernel's name."""
    return (
        _microseconds(row.start_ns),
        _microseconds(row.duration_ns),
        _microseconds(row.gap_ns),
        str(row.device),
        str(row.stream),
        "x".join(map(str, row.shape.grid)),
        "x".join(map(str, row.shape.block)),
    )


def _microseconds(time_ns: int | None) -> str:
    """Return a time to the nanosecond; a column of them has one unit."""
    return _UNKNOWN if time_ns is None else f"{time_ns / 1000:.3f}"
