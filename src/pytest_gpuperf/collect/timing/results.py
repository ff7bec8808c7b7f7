"""Results of measured calls that only promise work."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from inspect import GEN_CREATED, getgeneratorstate
from io import BytesIO, IOBase, StringIO
from itertools import chain, count, cycle, groupby, islice, repeat
from types import BuiltinFunctionType, CoroutineType, FunctionType, MethodType
from typing import Any
from weakref import getweakrefcount

from pytest_gpuperf.collect.base import PLAIN_TYPES, members_of
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
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType, partial)
_FEW = 10  # members of a result that may be an object and what belongs to it
# Members of a result that are looked at.
_MOST_MEMBERS = 100
_MOST_LEVELS = 3


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
        for value in chain((output,), members):
            if id(value) not in given_ids and _is_open(value, now_ns):
                name = type(value).__name__
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


def _is_open(value: Any, now_ns: Callable[[], int]) -> bool:  # noqa: ANN401 - any member of a result
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
        return base.__len__(value) == 0 and _gives_items(value, now_ns)
    if hasattr(kind, "__dask_graph__"):
        return value.__dask_graph__() is not None
    if _is_block(kind):
        made_by = getattr(value, "gen", None)
        return made_by is not None and getgeneratorstate(made_by) == GEN_CREATED
    # A cursor of a database without columns has done its work.
    is_cursor = hasattr(kind, "description") and not is_projects(kind.__module__)
    has_columns = not is_cursor or value.description is not None
    return has_columns and not _is_used_up(value, _MOST_LEVELS)


def _gives_items(value: Iterable[object], now_ns: Callable[[], int]) -> bool:
    """Return True if the code of a container without items makes some, and has no effect."""
    # Imported here, because few results are such containers.
    from pytest_gpuperf.collect.timing.effects import Proof, Stopped, value_of

    if not Proof(value).has_no_effect(type(value).__iter__):
        return False
    try:
        return bool(value_of(lambda: any(True for _ in value), now_ns))
    except Stopped:
        return True


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
