"""Calls with their arguments bound, and the loop that times them; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, islice, repeat

from pytest_gpuperf.collect.base import TimedCall

__all__ = ["Arguments", "arguments", "calls", "settle", "timed", "unsettled"]

Arguments = tuple[tuple[object, ...], dict[str, object]]

_MEMBERS = 64  # outputs of one dispatch are ready together; a long list is plain data


def timed(
    call: Callable[[], object],
    others_count: int,
    now_ns: Callable[[], int],
    *,
    settle: Callable[[object], None] | None = None,
    synchronize: Callable[[], None] | None = None,
) -> tuple[int, object]:
    """
    Return the time of a batch [ns] and its last output.

    Only locals between the two readings; what the loop itself takes (some 10 ns a call) is
    part of the time and not subtracted: a calibrated loop would be a second measurement
    with an error of its own.
    """
    __tracebackhide__ = True
    others = repeat(None, others_count)
    start_ns = now_ns()
    for _ in others:
        call()
    output = call()
    if settle is not None:
        settle(output)
    if synchronize is not None:
        synchronize()
    return now_ns() - start_ns, output


def arguments(request: TimedCall, given: object) -> Arguments:
    """
    Return the arguments that one item of `inputs`, or one return of `setup`, stands for.

    Args:
        request: Whose keyword arguments are kept where the item gives no others.

        given: A tuple, (tuple, dict), the one argument, or None for the request's own.
    """
    kwargs = dict(request.kwargs)
    if given is None:
        return request.args, kwargs
    if not isinstance(given, tuple):
        return (given,), kwargs
    if len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict):  # noqa: PLR2004 - (args, kwargs)
        return given[0], kwargs | given[1]
    return given, kwargs


def calls(request: TimedCall) -> Callable[[], Callable[[], object]]:
    """Return what gives the next call, with its arguments bound."""
    fn, setup = request.fn, request.setup
    if setup is not None:
        return lambda: _bound(fn, *arguments(request, setup()))
    if request.inputs is not None:
        pool = [_bound(fn, *arguments(request, given)) for given in request.inputs]
        return cycle(pool).__next__
    return repeat(_bound(fn, request.args, dict(request.kwargs))).__next__


def _bound(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[[], object]:
    """Return a callable without arguments; one that needs none is not wrapped."""
    return partial(fn, *args, **kwargs) if args or kwargs else fn


def unsettled(output: object) -> list[Callable[[], object]]:
    """
    Return the waits of an output that is still being computed, as jax returns it.

    Looked at: the output, or the first members of a tuple, list or dict.
    """
    members: Iterable[object] = (output,)
    if isinstance(output, (tuple, list)):
        members = output[:_MEMBERS]
    elif isinstance(output, dict):
        members = islice(output.values(), _MEMBERS)
    waits = (getattr(member, "block_until_ready", None) for member in members)
    return [wait for wait in waits if wait is not None]


def settle(output: object) -> None:
    """Wait until an output has been computed."""
    for wait in unsettled(output):
        wait()
