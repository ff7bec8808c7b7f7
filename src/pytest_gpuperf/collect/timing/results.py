"""Results of measured calls that only promise work."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from io import IOBase
from itertools import chain, count, cycle, islice, repeat
from types import BuiltinFunctionType, CoroutineType, FunctionType, MethodType
from typing import Any
from weakref import getweakrefcount

from pytest_gpuperf.collect.base import PLAIN_TYPES, members_of
from pytest_gpuperf.collect.timing.contents import held_by
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
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType, partial)
_FEW = 10  # members of a result that may be an object and what belongs to it
# Members of a result that are looked at.
_MOST_MEMBERS = 100


def promised(output: object, given: Iterable[object], now_ns: Callable[[], int]) -> str:
    """
    Return the part of a result that only promises work, as a text, or "".

    Promises are iterators, unfinished futures, running threads and child processes, open
    cursors, lazy tables, blocks of `with` that were not entered, and empty lists that make
    their items when read. The result itself is looked at, the members of a container, and
    the attributes of an object of the project.

    Args:
        output: The result of a call.

        given: The arguments, which are no promise if they are returned.

        now_ns: The clock [ns].
    """
    members = _members(output)
    if not _KINDS_OF_GROUPS.isdisjoint(map(type, members)):
        deeper = map(_members, members)
        members += islice(chain.from_iterable(deeper), _MOST_MEMBERS)
    given_ids = set(map(id, given))
    if any(map(_promises, {type(output), *map(type, members)})):
        # Imported here, because few results may be promises.
        from pytest_gpuperf.collect.timing.promises import is_open

        for value in chain((output,), members):
            kind: type = type(value)
            if (
                id(value) not in given_ids
                and _promises(kind)
                and is_open(value, _end_of(kind), now_ns)
            ):
                name = kind.__name__
                return f"{'' if value is output else 'a result with '}{_article(name)} {name}"
    return ""


def promises_later(output: object) -> bool:
    """Return True for a function, and an object of the project or a few with one in them."""
    kinds = {type(output)}
    members = members_of(output, _FEW + 1)
    if len(members) <= _FEW:
        kinds |= {*map(type, members)}
    return any(kind in _FUNCTIONS or is_projects(kind.__module__) for kind in kinds)


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
    # Without the code of their classes, which may wait.
    for base in _GROUPS:
        kind: Any = base
        if isinstance(output, kind):
            return [*islice(kind.__iter__(output), _MOST_MEMBERS)]
    if isinstance(output, dict):
        return [*islice(dict.values(output), _MOST_MEMBERS)]
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
    is_table = is_table and hasattr(kind, "collect")
    if hasattr(kind, "__dask_graph__") or is_table or _is_block(kind):
        return True
    return issubclass(kind, _GROUPS) and type(kind.__iter__) is FunctionType


def _is_block(kind: type) -> bool:
    """Return True for a block of `with` that is made by a generator."""
    return kind.__module__ == "contextlib" and hasattr(kind, "__enter__")


def _end_of(kind: type) -> tuple[str, object] | None:
    """Return a method of pending work, and its answer, or None for another type."""
    for module, name, method, answer in _PENDING:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and issubclass(kind, known):
            return method, answer
    return None


def is_nothing(output: object) -> bool:
    """Return True for None and empty containers."""
    return output is None or (type(output) in _CONTAINERS and not output)
