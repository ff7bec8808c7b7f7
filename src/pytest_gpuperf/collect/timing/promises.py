"""Results of a kind that promises work: is the work still to be done?"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from inspect import GEN_CREATED, getgeneratorstate
from io import BytesIO, IOBase, StringIO
from itertools import chain, groupby, islice
from typing import Any

from pytest_gpuperf.collect.timing.contents import base_of, items_left
from pytest_gpuperf.collect.timing.effects import Proof, Stopped, value_of
from pytest_gpuperf.collect.timing.hidden import is_projects

# Iterators that let go of what they read at its end, and those that end with any of it.
_LETTING_GO = (chain, islice, type(iter(int, 1)))
_ENDING_WITH = (enumerate, filter, groupby, map, zip, type(next(groupby([0]))[1]))
_MOST_LEVELS = 3


def is_open(
    value: Any,  # noqa: ANN401 - any member of a result
    pending: tuple[str, object] | None,
    now_ns: Callable[[], int],
) -> bool:
    """
    Return True if work of a result is still to be done.

    Args:
        value: A result, or a member of one, whose kind promises work.

        pending: A method of pending work, and its answer, or None for another kind.

        now_ns: The clock [ns].
    """
    kind: type = type(value)
    if pending is not None:
        method, answer = pending
        return getattr(value, method)() is answer
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        # A container that holds its items may give them in any way.
        base = base_of(value)
        return base.__len__(value) == 0 and _gives_items(value, now_ns)
    if hasattr(kind, "__dask_graph__"):
        return value.__dask_graph__() is not None
    if kind.__module__ == "contextlib":  # a block of `with`
        made_by = getattr(value, "gen", None)
        return made_by is not None and getgeneratorstate(made_by) == GEN_CREATED
    # A cursor of a database without columns has done its work.
    is_cursor = hasattr(kind, "description") and not is_projects(kind.__module__)
    has_columns = not is_cursor or value.description is not None
    return has_columns and not _is_used_up(value, _MOST_LEVELS)


def _gives_items(value: Iterable[object], now_ns: Callable[[], int]) -> bool:
    """Return True if the code of a container without items makes some, and has no effect."""
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
