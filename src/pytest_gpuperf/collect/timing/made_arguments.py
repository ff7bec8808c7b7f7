"""Calls with the arguments of a marker's `make`, and the results of its `reference`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from math import inf

from pytest_gpuperf.collect.base import TimedCall, arguments, calls_the_test
from pytest_gpuperf.collect.timing.differences import differ
from pytest_gpuperf.collect.timing.same_work import Probe, shortest_s
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Note

# A call with other arguments may take so much longer.
_MOST_RATIO = 3
# Arguments of `make` are not known before the run.
_SEED_BITS = 31


def notes(
    request: TimedCall,
    output: object,
    probe_of: Callable[[TimedCall], Probe],
    usual_s: float,
) -> Iterator[Note]:
    """
    Yield doubts about the result of a call, and about its time with new arguments.

    Args:
        request: The call, with a `make`, a `reference` or both.

        output: Its last timed result.

        probe_of: Returns what calls a function again.

        usual_s: The time of a call [s].
    """
    __tracebackhide__ = True
    if request.reference is not None:
        yield from _of_reference(request, request.reference, output)
    if request.make is None:
        return
    make, new = request.make, replace(request, args=(), inputs=None)
    probe = probe_of(replace(new, setup=lambda: make(secrets.randbits(_SEED_BITS))))
    new_s = shortest_s(probe)
    if _MOST_RATIO * usual_s < new_s < inf:
        text = f"a call with new arguments of make= takes {new_s / usual_s:,.1f} times as long"
        yield Note(code="new-content", text=text, doubt=True, full_s=new_s)


@calls_the_test
def _of_reference(
    request: TimedCall, reference: Callable[..., object], output: object
) -> Iterator[Note]:
    """Yield a doubt if the function returns something else than its reference."""
    __tracebackhide__ = True
    words = ""
    if request.make is not None:
        seed = secrets.randbits(_SEED_BITS)
        new = replace(request, args=(), setup=None, inputs=None)
        args, kwargs = arguments(new, request.make(seed))
        output = request.fn(*args, **kwargs)
        args, kwargs = arguments(new, request.make(seed))
        words = f" for make({seed})"
    elif request.setup is None and request.inputs is None:
        args, kwargs = request.args, dict(request.kwargs)
    else:
        return
    if differ(output, reference(*args, **kwargs)):
        text = f"the function does not return what its reference returns{words}"
        yield Note(code="wrong-result", text=text, doubt=True)
