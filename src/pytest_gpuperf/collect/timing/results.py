"""Results of measured calls: those that only promise work, and those of two functions that differ."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from io import IOBase
from itertools import chain, count, cycle, islice, repeat
from types import FunctionType
from typing import Any

from pytest_gpuperf.collect.base import calls_the_test
from pytest_gpuperf.collect.timing.hidden import is_projects

_GROUPS = (list, tuple, set, frozenset, deque)
# Iterators that hold no work: files, and those that give the same again.
_IDLE = (IOBase, count, cycle, repeat)
# Classes of work that goes on elsewhere, and the method that says that it has ended.
_PENDING = (
    ("concurrent.futures", "Future", "done"),
    ("multiprocessing.pool", "ApplyResult", "ready"),
    ("subprocess", "Popen", "poll"),
)
# Members of a result that are looked at.
_MOST_MEMBERS = 100
_MOST_LEVELS = 3
# Relative differences that another order of rounding explains, by the bytes of a number.
_ROUNDING = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_ZERO = 1e-8  # A difference from zero has no relative size.
_NUMBERS = (bool, int, float, complex)
# Mistakes of the code, which a function does not raise on purpose.
_MISTAKES = (AttributeError, NameError, TypeError)


def promised(output: object, given: Iterable[object]) -> str:
    """
    Return the part of a result that only promises work, as a text, or "".

    Promises are iterators, unfinished futures and child processes, lazy tables, and lists
    with an `__iter__` of their own. The result itself is looked at, the members of a
    container, and the attributes of an object of the project.

    Args:
        output: The result of a call.

        given: The arguments, which are no promise if they are returned.
    """
    members: Iterable[object] = ()
    if isinstance(output, _GROUPS):
        members = output
    elif isinstance(output, dict):
        members = output.values()
    elif is_projects(type(output).__module__):
        members = getattr(output, "__dict__", {}).values()
    given_ids = set(map(id, given))
    if any(map(_promises, {type(output), *map(type, members)})):
        for value in chain((output,), islice(members, _MOST_MEMBERS)):
            if id(value) not in given_ids and _is_open(value):
                name = type(value).__name__
                return f"{'' if value is output else 'a result with '}{_article(name)} {name}"
    return ""


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


@lru_cache(256)  # types of results, of which a suite has few
def _promises(kind: type) -> bool:
    """Return True if a value of a type may only promise work."""
    if issubclass(kind, Iterator):
        return not issubclass(kind, _IDLE)
    if _end_of(kind) or hasattr(kind, "__dask_graph__"):
        return True
    if hasattr(kind, "collect") and hasattr(kind, "explain"):  # polars, ibis
        return True
    return issubclass(kind, (*_GROUPS, dict)) and type(kind.__iter__) is FunctionType


def _end_of(kind: type) -> str:
    """Return the method that says that pending work has ended, or "" for another type."""
    for module, name, method in _PENDING:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and issubclass(kind, known):
            return method
    return ""


def _is_open(value: object) -> bool:
    kind: type = type(value)
    if not _promises(kind):
        return False
    method = _end_of(kind)
    ended = getattr(value, method)() if method else None
    # `poll` returns the exit status, which may be 0.
    return ended is None or ended is False


def swallowed(call: Callable[[], object], fn: object) -> str:
    """
    Return the name of a mistake that a function of the project swallows, or "".

    The function is called once more, unless it cannot catch anything or is traced already.

    Args:
        call: Calls the function.

        fn: The function, which has returned None.
    """
    code = getattr(fn, "__code__", None)
    # Python 3.10 has no table of the exceptions that are caught.
    may_catch = code is not None and getattr(code, "co_exceptiontable", True)
    if (
        not may_catch
        or sys.gettrace()
        or not is_projects(getattr(fn, "__module__", ""))
    ):
        return ""
    raised: list[type[BaseException]] = []

    def inside(_frame: Any, event: str, argument: Any) -> Any:  # noqa: ANN401 - as sys.settrace has it
        if event == "exception":
            raised.append(argument[0])
        return inside

    def outside(frame: Any, _event: str, _argument: Any) -> Any:  # noqa: ANN401 - as sys.settrace has it
        if frame.f_code is not code:
            return None
        frame.f_trace_lines = False
        return inside

    _traced(call, outside)
    names = [kind.__name__ for kind in raised if issubclass(kind, _MISTAKES)]
    return names[-1] if names else ""


@calls_the_test
def _traced(call: Callable[[], object], trace: Callable[..., Any]) -> None:
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)


def differ(  # noqa: PLR0911 - a line for each kind of result
    a: object, b: object, *, levels: int = _MOST_LEVELS
) -> bool:
    """
    Return True if two results are known to differ by more than rounding.

    Lists and tuples are alike. False for results that cannot be compared, and where one
    function returns None because it writes to an argument.
    """
    if a is None or b is None or a is b:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return not _close(complex(a), complex(b))
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return True
        a, b = list(a.values()), [b[key] for key in a]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return _items_differ(a, b, levels)
    if isinstance(a, (str, bytes)):
        return type(a) is type(b) and a != b
    return type(a) is type(b) and _arrays_differ(a, b)


def _close(a: complex, b: complex) -> bool:
    difference = abs(a - b)
    # A NaN differs from nothing.
    return not difference > max(_ROUNDING[8] * max(abs(a), abs(b)), _ZERO)


def _items_differ(a: Sequence[object], b: Sequence[object], levels: int) -> bool:
    if len(a) != len(b):
        return True
    step = len(a) // _MOST_MEMBERS + 1
    pairs = zip(a[::step], b[::step], strict=True)
    return levels > 0 and any(differ(*pair, levels=levels - 1) for pair in pairs)


def _arrays_differ(a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of any library
    """Return True if arrays of numpy, torch or cupy differ in shape or values."""
    library: Any = sys.modules.get(type(a).__module__.partition(".")[0])
    if not hasattr(a, "shape") or not hasattr(library, "allclose"):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return bool(a.shape != b.shape)
    most = _ROUNDING.get(getattr(a.dtype, "itemsize", 8), _ROUNDING[8])
    try:
        least = most * float(abs(a).max())
        return not library.allclose(a, b, rtol=most, atol=least, equal_nan=True)
    except (RuntimeError, TypeError, ValueError):  # not a number, or on two devices
        return False
