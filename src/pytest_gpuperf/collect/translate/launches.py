"""Every launch of a window as a file, and back; PYTEST_DONT_REWRITE.

A record holds what launches amount to, and never the launches: they are columns in memory
as long as their test runs, and go to a file of their own when a run is recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.activity import KernelShape, Launches
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["launch_lines", "launches_from"]

_SCHEMA = "pytest-gpuperf/launches/1"
_COLUMNS = {  # of Launches, and what a number of each takes
    "shape": "I",
    "start_ns": "Q",
    "end_ns": "Q",
    "call_ns": "Q",
    "device": "I",
    "stream": "I",
    "graph": "I",
}
_REWRITE = "record the run again"


def launch_lines(launches: Launches) -> Iterator[bytes]:
    """
    Yield the lines of a file with every launch: JSON, a head and one line for each.

    References:
        docs/gpu-timing.md says what the columns are.
    """
    encode = msgspec.json.encode
    head = {"schema": _SCHEMA, "columns": list(_COLUMNS), "shapes": launches.shapes}
    yield encode(head) + b"\n"
    columns = (getattr(launches, name) for name in _COLUMNS)
    for row in zip(*columns, strict=True):
        yield encode(row) + b"\n"


class _Head(Frozen, frozen=True, kw_only=True):
    """The first line of a file of launches."""

    schema: str
    columns: tuple[str, ...]
    shapes: tuple[KernelShape, ...]


def launches_from(lines: Iterable[bytes], *, path: str = "") -> Launches:
    """
    Return the launches that `launch_lines` wrote.

    Args:
        lines: The lines of the file.

        path: What to call it in a message.

    Raises:
        CaptureFormatError: They are not such lines; a file that was cut off is not.
    """
    rest = iter(lines)
    columns = [array(code) for code in _COLUMNS.values()]
    try:
        head = msgspec.json.decode(next(rest, b""), type=_Head)
        if head.schema != _SCHEMA or head.columns != tuple(_COLUMNS):
            message = f"{path or 'a file of launches'} is written as {head.schema!r}"
            raise CaptureFormatError(message, remedy=_REWRITE, path=path)
        row = msgspec.json.Decoder(tuple[int, int, int, int, int, int, int])
        for line in rest:
            for column, value in zip(columns, row.decode(line), strict=True):
                column.append(value)
    except (msgspec.MsgspecError, OverflowError) as error:
        message = f"{path or 'it'} is no file of launches, or was cut off: {error}"
        raise CaptureFormatError(message, remedy=_REWRITE, path=path) from error
    return Launches(shapes=head.shapes, **dict(zip(_COLUMNS, columns, strict=True)))
