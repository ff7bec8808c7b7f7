"""What a test writes around the parts of its loop: names and with blocks."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from types import TracebackType
from typing import SupportsFloat, final

from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.steps import Level, SpanKind, kind_of

__all__ = [
    "Mark",
    "SpanBlock",
    "StepBlock",
    "amount",
    "check_loader",
    "layer",
    "named",
]

_PARTS = {"forward": SpanKind.FORWARD, "backward": SpanKind.BACKWARD}


class Mark(Frozen, frozen=True, kw_only=True):
    """
    What the spans of one place in a program have in common.

    Attributes:
        name: What the test calls it.

        level: Which call made it.

        kind: What it is spent on; None: what the span around it is spent on.

        layer: The number of its layer; None: that of the span around it, if it has one.
    """

    name: str
    level: Level
    kind: SpanKind | None = None
    layer: int | None = None


@final
class SpanBlock:
    """The with block of a span; it holds nothing of a single one, so it may nest."""

    __slots__ = ("_close", "_mark", "_open")

    def __init__(
        self,
        mark: Mark,
        open_span: Callable[[Mark], None],
        close_span: Callable[[Mark, bool], None],
    ) -> None:
        self._mark = mark
        self._open = open_span
        self._close = close_span

    def __enter__(self) -> None:
        """Begin a span."""
        self._open(self._mark)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, whatever the block raised."""
        self._close(self._mark, kind is not None)


@final
class StepBlock:
    """The with block of a step."""

    __slots__ = ("_close", "_open", "_units")

    def __init__(
        self,
        units: float,
        open_step: Callable[[], None],
        close_step: Callable[[float, BaseException | None], None],
    ) -> None:
        self._units = units
        self._open = open_step
        self._close = close_step

    def __enter__(self) -> None:
        """Wait for the device, then start."""
        self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the device, then stop; a step that raised does not count."""
        self._close(self._units, error)


def named(level: Level, name: object, kind: object) -> Mark:
    """
    Return the mark of a phase or an operation.

    Args:
        level: Which of them.

        name: What the test calls it.

        kind: What it is spent on; None: what a well-known name says. A phase without
            either is spent on something else; an operation on what its phase is.

    Raises:
        MeasureError: The name is no text, or the kind is none.
    """
    checked = _name(level, name)
    meant = _kind(kind) or kind_of(checked)
    if level is Level.PHASE:
        meant = meant or SpanKind.OTHER
    return Mark(name=checked, level=level, kind=meant)


def layer(index: object, part: object) -> Mark:
    """
    Return the mark of a layer's forward or backward pass.

    Args:
        index: Its number, from 0.

        part: "forward" or "backward"; None: as the span around it, else forward.

    Raises:
        MeasureError: Either is something else.
    """
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        remedy = "number the layers from 0: steps.layer(0)"
        raise _refused("layer", index, "is no number of a layer", remedy)
    if not (part is None or (isinstance(part, str) and part in _PARTS)):
        raise _refused("part", part, "is no part", 'write "forward" or "backward"')
    kind = None if part is None else _PARTS[part]
    return Mark(name=str(index), level=Level.LAYER, kind=kind, layer=int(index))


def check_loader(loader: object) -> None:
    """
    Refuse what a for loop does not take.

    Raises:
        MeasureError: It is of that kind.
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(
        type(loader), "__getitem__"
    ):
        remedy = "give what a for loop takes"
        raise _refused("loader", loader, "cannot be looped over", remedy)


def _name(level: Level, name: object) -> str:
    """Return a name that can be written to a file."""
    remedy = f'write its name in quotes: steps.{level.value}("forward")'
    if not isinstance(name, str) or not name.strip():
        raise _refused(level.value, name, "is no name", remedy)
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise _refused(level.value, name, "holds half a character", remedy)
    return name


def _kind(kind: object) -> SpanKind | None:
    """Return a kind that was given by its name; None: none was given."""
    if kind is None:
        return None
    try:
        return SpanKind(kind)
    except ValueError as error:
        known = ", ".join(each.value for each in SpanKind)
        raise _refused("kind", kind, "is no kind", f"write one of {known}") from error


def amount(units: object) -> float:
    """
    Return the units of work of a step.

    Raises:
        MeasureError: It is no number above zero.
    """
    remedy = "give the units of this step: steps.step(units=512)"
    if isinstance(units, (bool, str, bytes)) or not isinstance(units, SupportsFloat):
        raise _refused("units", units, "is no number", remedy)
    try:
        amount = float(units)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused("units", units, "is no number", remedy) from error
    if not (math.isfinite(amount) and amount > 0):
        raise _refused("units", units, "is not above zero", remedy)
    return amount


def _refused(argument: str, value: object, why: str, remedy: str) -> MeasureError:
    """Return the error for an argument; the text of its value is kept short."""
    return MeasureError(f"{argument}: {reprlib.repr(value)} {why}", remedy=remedy)
