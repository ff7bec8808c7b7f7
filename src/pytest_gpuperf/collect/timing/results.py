"""Results of measured calls that only promise work, or tell that none was done."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from io import BytesIO, IOBase, StringIO
from itertools import chain, count, cycle, groupby, islice, repeat
from types import CoroutineType, FunctionType
from typing import Any
from weakref import getweakrefcount

from pytest_gpuperf.collect.base import PLAIN_TYPES, calls_the_test
from pytest_gpuperf.collect.timing.contents import held_by, items_left
from pytest_gpuperf.collect.timing.hidden import is_projects

_GROUPS = (list, tuple, set, frozenset, deque)
_KINDS_OF_GROUPS = frozenset({*_GROUPS, dict})
_CONTAINERS = frozenset({*_GROUPS, dict, str, bytes, bytearray})
# Iterators that hold no work: files, of containers, and those that give the same again.
_BUILTIN: tuple[Iterable[object], ...] = ([], (), {}, set(), range(0), "", b"")
_IDLE: tuple[type, ...] = (
    *(IOBase, count, cycle, repeat, type(reversed([]))),
    *(type(iter(each)) for each in _BUILTIN),
)
# Iterators that let go of what they read at its end, and those that end with any of it.
_LETTING_GO = (chain, islice, type(iter(int, 1)))
_ENDING_WITH = (enumerate, filter, groupby, map, zip, type(next(groupby([0]))[1]))
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
    if not _KINDS_OF_GROUPS.isdisjoint(map(type, members)):
        deeper = map(_members, members)
        members += islice(chain.from_iterable(deeper), _MOST_MEMBERS)
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
    values = [output, *_members(output)]
    kinds = {*map(type, values)}
    for kind in kinds:
        # That of a generator or a file is no code of the test.
        if type(getattr(kind, "__del__", None)) is FunctionType:
            return True
        if issubclass(kind, type):  # The class of an object outlives it.
            values = [value for value in values if not isinstance(value, type)]
    return any(map(getweakrefcount, values))


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
    if issubclass(kind, Iterator):
        return not issubclass(kind, _IDLE)
    if issubclass(kind, CoroutineType) or _end_of(kind):
        return True
    is_table = kind.__module__.partition(".")[0] in _LAZY_TABLES
    if hasattr(kind, "__dask_graph__") or (is_table and hasattr(kind, "collect")):
        return True
    return issubclass(kind, _GROUPS) and type(kind.__iter__) is FunctionType


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
    if _is_used_up(value, _MOST_LEVELS):
        return False
    # A cursor of a database without columns has done its work.
    return getattr(value, "description", True) is not None


def _is_used_up(value: object, levels: int) -> bool:
    """Return True for an iterator with nothing left, which is not asked for more."""
    kind = type(value)
    if isinstance(value, IOBase):
        return value.closed or _is_at_end(value)
    left = items_left(value)
    if left is not None or levels <= 0:
        return left == 0
    held = gc.get_referents(value)
    held += chain.from_iterable(each for each in held if type(each) is tuple)
    if kind.__module__ == "sqlite3":
        return not any(type(each).__name__ == "Statement" for each in held)
    if kind in _LETTING_GO:
        return not any(type(each) is not type for each in held)
    sources = [each for each in held if isinstance(each, (Iterator, IOBase))]
    is_builtin = kind in _ENDING_WITH or kind.__module__ == "_csv"
    return is_builtin and any(_is_used_up(each, levels - 1) for each in sources)


def _is_at_end(file: Any) -> bool:  # noqa: ANN401 - any file
    if type(file) not in {BytesIO, StringIO}:
        return False
    return bool(file.tell() >= len(file.getvalue()))


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
