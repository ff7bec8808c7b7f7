"""Results of measured calls: those that only promise work, and those of two functions that differ."""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from io import IOBase
from itertools import chain, count, cycle, islice, repeat
from types import CoroutineType, FunctionType
from typing import Any
from weakref import getweakrefcount

from pytest_gpuperf.collect.base import PLAIN_TYPES, calls_the_test
from pytest_gpuperf.collect.timing.contents import held_by
from pytest_gpuperf.collect.timing.hidden import is_projects

_GROUPS = (list, tuple, set, frozenset, deque)
_CONTAINERS = frozenset({*_GROUPS, dict, str, bytes, bytearray})
# Iterators that hold no work: files, of containers, and those that give the same again.
_BUILTIN: tuple[Iterable[object], ...] = ([], (), {}, set(), range(0), "", b"")
_IDLE: tuple[type, ...] = (
    *(IOBase, count, cycle, repeat, type(reversed([]))),
    *(type(iter(each)) for each in _BUILTIN),
)
# Classes of work that goes on elsewhere, with a method, and its answer while it does.
_PENDING = (
    ("concurrent.futures", "Future", "done", False),
    ("multiprocessing.pool", "ApplyResult", "ready", False),
    ("multiprocessing.process", "BaseProcess", "is_alive", True),
    ("subprocess", "Popen", "poll", None),
    ("threading", "Thread", "is_alive", True),
)
# Packages whose tables are computed when `collect` is called.
_LAZY_TABLES = frozenset({"daft", "ibis", "polars", "pyspark"})
# Members of a result that are looked at.
_MOST_MEMBERS = 100
_MOST_LEVELS = 3
# Relative differences that another order of rounding explains, by the bytes of a number.
_ROUNDING = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_ZERO = 1e-6  # A difference from zero has no relative size.
_NUMBERS = (bool, int, float, complex)
_LINES = 3  # of a handler that ends the function
_WORK_NS = 100_000  # A call that got so far has done work.
# Mistakes of the code, which a function does not raise on purpose.
_MISTAKES = (AttributeError, NameError, TypeError)


def promised(output: object, given: Iterable[object]) -> str:
    """
    Return the part of a result that only promises work, as a text, or "".

    Promises are iterators, unfinished futures, running threads and child processes, open
    cursors, lazy tables, and empty lists that make their items when read. The result itself is looked at, the members of a
    container, and the attributes of an object of the project.

    Args:
        output: The result of a call.

        given: The arguments, which are no promise if they are returned.
    """
    members = _members(output)
    given_ids = set(map(id, given))
    if any(map(_promises, {type(output), *map(type, members)})):
        for value in chain((output,), members):
            if id(value) not in given_ids and _is_open(value):
                name = type(value).__name__
                return f"{'' if value is output else 'a result with '}{_article(name)} {name}"
    return ""


def has_finalizer(output: object) -> bool:
    """Return True if code runs when a result, or a member of it, is no longer referred to."""
    if type(output) in PLAIN_TYPES:
        return False
    # That of a generator or a file is no code of the test.
    return any(
        type(getattr(type(value), "__del__", None)) is FunctionType
        or getweakrefcount(value)
        for value in (output, *_members(output))
        if not isinstance(value, type)  # The class of an object outlives it.
    )


def _members(output: object) -> list[object]:
    """Return the first members of a container, or the attributes of an object of the project."""
    if isinstance(output, _GROUPS):
        return [*islice(output, _MOST_MEMBERS)]
    if isinstance(output, dict):
        return [*islice(output.values(), _MOST_MEMBERS)]
    return [*held_by(output)] if is_projects(type(output).__module__) else []


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


@lru_cache(256)  # types of results, of which a suite has few
def _promises(kind: type) -> bool:
    """Return True if a value of a type may only promise work."""
    if issubclass(kind, Iterator):
        return not issubclass(kind, _IDLE)
    if issubclass(kind, CoroutineType) or _end_of(kind):
        return True
    if hasattr(kind, "__dask_graph__") or _is_lazy_table(kind):
        return True
    return issubclass(kind, _GROUPS) and type(kind.__iter__) is FunctionType


def _is_lazy_table(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LAZY_TABLES and hasattr(
        kind, "collect"
    )


def _end_of(kind: type) -> tuple[str, object] | None:
    """Return a method of pending work, and its answer, or None for another type."""
    for module, name, method, answer in _PENDING:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and issubclass(kind, known):
            return method, answer
    return None


def _is_open(value: Any) -> bool:  # noqa: ANN401 - any member of a result
    kind: type = type(value)
    if not _promises(kind):
        return False
    pending = _end_of(kind)
    if pending is not None:
        method, answer = pending
        return getattr(value, method)() is answer
    if isinstance(value, _GROUPS):
        # A container that holds its items may give them in any way.
        base: Any = next(base for base in _GROUPS if isinstance(value, base))
        return base.__len__(value) == 0 and any(True for _ in value)
    if hasattr(kind, "__dask_graph__"):
        return value.__dask_graph__() is not None
    # A cursor of a database without columns has done its work.
    return getattr(value, "description", True) is not None


def is_nothing(output: object) -> bool:
    """Return True for None and empty containers."""
    return output is None or (type(output) in _CONTAINERS and not output)


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
    started_ns = thread_cpu_ns()

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
        return inside if frame.f_code is code else None

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
    if isinstance(a, (str, set, frozenset)):
        # Bytes may be a compressed or encrypted form of the same.
        return type(a) is type(b) and a != b
    return type(a) is type(b) and _arrays_differ(a, b)


def _close(a: complex, b: complex) -> bool:
    if a == b:
        return True
    largest = max(abs(a), abs(b))
    # A NaN differs from nothing.
    return largest != math.inf and not abs(a - b) > max(_ROUNDING[8] * largest, _ZERO)


def _items_differ(a: Sequence[Any], b: Sequence[Any], levels: int) -> bool:
    if len(a) != len(b):
        return True
    step = len(a) // _MOST_MEMBERS + 1
    pairs = zip(a[::step], b[::step], strict=True)
    if levels <= 0 or not any(differ(*pair, levels=levels - 1) for pair in pairs):
        return False
    try:
        if list(a) == sorted(a) or list(b) == sorted(b):
            return True
        # Sets and pools give the same items in any order.
        return Counter(a) != Counter(b)
    except Exception:  # noqa: BLE001 - of items that cannot be ordered or hashed
        return True


def _arrays_differ(a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of any library
    """Return True if arrays of numpy, torch or cupy differ in shape or values."""
    library: Any = sys.modules.get(type(a).__module__.partition(".")[0])
    if not hasattr(a, "shape") or not hasattr(library, "allclose"):
        return False
    if a.shape != b.shape:
        return True
    if a.dtype != b.dtype:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return not _is_close(library, a, b)
    except Exception:  # noqa: BLE001 - each library has its own errors
        return False


def _is_close(library: Any, a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of a library
    dtype = a.dtype
    is_float = getattr(dtype, "kind", "") in {"f", "c"}
    if not (is_float or getattr(dtype, "is_floating_point", False)):
        return bool((a == b).all())
    sizes = abs(a[library.isfinite(a)])
    largest = float(sizes.max()) if len(sizes) else 0.0
    most = _ROUNDING[sizes.dtype.itemsize]
    return bool(library.allclose(a, b, rtol=most, atol=most * largest, equal_nan=True))
