"""Mistakes of a function that it catches itself, so that it does no work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_gpuperf.collect.base import calls_the_test
from pytest_gpuperf.collect.timing.hidden import is_projects

_LINES = 3  # of a handler that ends the function
_WORK_NS = 100_000  # A call that got so far has done work.
# Mistakes of the code, which a function does not raise on purpose.
_MISTAKES = (AttributeError, NameError, TypeError)


def swallowed(
    call: Callable[[], object], fn: object, thread_cpu_ns: Callable[[], int]
) -> str:
    """
    Return the name of a mistake that a function of the project swallows, or "".

    The function is called once more, unless it cannot catch anything or is traced already.
    A mistake after a loop, or after 0.1 ms, does not count: the work was done before it.

    Args:
        call: Calls the function.

        fn: The function, which has returned nothing.

        thread_cpu_ns: Returns the processor time of this thread [ns].
    """
    code = getattr(fn, "__code__", None)
    # Python 3.10 has no table of the exceptions that are caught, and each function that
    # returns nothing would be called once more.
    may_catch = getattr(code, "co_exceptiontable", b"")
    if (
        not may_catch
        or sys.gettrace()
        or not is_projects(getattr(fn, "__module__", ""))
    ):
        return ""
    raised: list[type[BaseException]] = []
    lines: list[int] = []
    did_work = False
    started_ns = 0

    def inside(frame: Any, event: str, argument: Any) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal did_work
        if event == "line":
            lines.append(frame.f_lineno)
        elif event == "exception":
            raised.append(argument[0])
            took_ns = thread_cpu_ns() - started_ns
            # A line that ran twice is that of a loop.
            did_work = took_ns > _WORK_NS or len({*lines}) < len(lines)
            lines.clear()
        return inside

    def outside(frame: Any, _event: str, _argument: Any) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal started_ns
        if frame.f_code is not code:
            return None
        # Not before: garbage may be collected first.
        started_ns = thread_cpu_ns()
        return inside

    _traced(call, outside)
    # More lines, or more errors, are work that goes on without what was missing.
    is_end = len(raised) == 1 and len(lines) <= _LINES and not did_work
    return raised[0].__name__ if is_end and issubclass(raised[0], _MISTAKES) else ""


@calls_the_test
def _traced(call: Callable[[], object], trace: Callable[..., Any]) -> None:
    sys.settrace(trace)
    try:
        call()
    finally:
        if sys.gettrace() is trace:
            sys.settrace(None)
