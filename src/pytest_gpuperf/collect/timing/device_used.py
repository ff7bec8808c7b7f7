"""Whether a measurement used the device, as far as it shows without CUPTI.

A process keeps its context from the first test that uses the device to its end. That this
test used it shows in what it asks for, in where its arrays lie, and in a device that goes
on when the call has returned. A call that has none of these may have used the device and
waited for it, or not: nobody can tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pytest_gpuperf.collect.base import TimedCall, Timing, unsettled

__all__ = ["lies_on_device", "use_is_known"]

_CUPTI, _HOST = "cupti", "host"
# Waiting for an idle device takes some 5 us (*unverified on hardware*): what is ten times
# as long was work
_WORKED_S = 50e-6
_HOST_MEMORY = frozenset({1, 3, 11})  # DLDeviceType: kDLCPU, kDLCUDAHost, kDLROCMHost
_MEMBERS = 64  # of a container: as many as are waited for (collect.base.unsettled)


def use_is_known(
    timing: Timing, needs: Sequence[str], request: TimedCall | None = None
) -> bool:
    """
    Return whether it is known if a measurement used the device that is in use.

    Args:
        timing: What was measured.

        needs: What the test requires, and asks to be counted: all of it is a GPU's.

        request: What was called; None: a block was measured.

    References:
        DLDeviceType in dlpack.h 1.1; the `__cuda_array_interface__` protocol.
    """
    if timing.unused or _CUPTI in {timing.source, *timing.others} or needs:
        return True
    given = () if request is None else _given(request)
    return _went_on(timing) or any(map(lies_on_device, (timing.result, *given)))


def lies_on_device(value: object) -> bool:
    """Return whether a value, or a member of a tuple, list or dict, is a device's array."""
    members: Iterable[object] = (value,)
    if isinstance(value, (tuple, list)):
        members = value[:_MEMBERS]
    elif isinstance(value, dict):
        members = islice(value.values(), _MEMBERS)
    return any(map(_is_device_array, members))


def _is_device_array(value: Any) -> bool:  # noqa: ANN401 - any framework's array
    """Return whether a value says that its memory is a device's."""
    kind = type(value)
    if not hasattr(kind, "__dlpack_device__"):
        return hasattr(kind, "__cuda_array_interface__")
    try:
        return int(value.__dlpack_device__()[0]) not in _HOST_MEMORY
    except Exception:  # noqa: BLE001 - a framework may raise what it likes: not known
        return False


def _given(request: TimedCall) -> Iterator[object]:
    """Yield what a function works on, as far as it can be seen from outside."""
    yield from request.args
    yield from request.kwargs.values()
    yield from islice(request.inputs or (), _MEMBERS)
    yield from _enclosed(request.fn)


def _enclosed(fn: Callable[..., object]) -> Iterator[object]:
    """Yield the variables that a function has from those around it."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _went_on(timing: Timing) -> bool:
    """Return whether the device usually went on when the call had returned."""
    if unsettled(timing.result):
        return False  # jax computes on, and perhaps on the CPU
    walls = timing.samples if timing.source == _HOST else timing.others.get(_HOST, ())
    if not timing.returned or len(walls) != len(timing.returned):
        return False
    waits = (wall - back for wall, back in zip(walls, timing.returned, strict=True))
    return statistics.median(waits) * timing.iterations_count > _WORKED_S
