"""Containers that a call reaches without an argument, and their content before the first call.

A function may keep results in a global dict, sort a list of its object, or get the same list
from each call of `setup`. All later calls then find the work done. Only functions and classes
of the project are looked into: the caches of other packages are part of how they work.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

from pytest_gpuperf.collect.base import TimedCall

# Limits for the copies of one measurement. Copying 8 MiB takes a few milliseconds.
_MOST_BYTES = 8 * 1024**2
_MOST_PLACES = 200
# The folders of packages that are not the project.
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib would be slower, and says the same
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - as above
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CACHED = type(functools.lru_cache(len))
_EMPTY = CellType()
_PLAIN = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None)),
        *(ModuleType, BuiltinFunctionType),
    }
)
_ARGUMENT = "an argument"


class _Copying(NamedTuple):
    """How the content of a type is copied, compared with a copy, and put back."""

    copied: Callable[[Any], Any]
    is_same: Callable[[Any, Any], bool]
    put_back: Callable[[Any, Any], object]


class Holder(NamedTuple):
    """
    A container that a call reaches, with its content before the first call.

    Attributes:
        place: Its place, as "rows" or "parser.cache".

        value: The container.

        kind: How to copy it.

        before: A shallow copy of its content.
    """

    place: str
    value: Any
    kind: _Copying
    before: Any

    @property
    def is_same(self) -> bool:
        """True if the container still holds the same objects."""
        return self.kind.is_same(self.value, self.before)

    def now(self) -> Holder:
        """Return the container with its current content."""
        return self._replace(before=self.kind.copied(self.value))

    def put_back(self) -> None:
        """Write the content that the container had before."""
        self.kind.put_back(self.value, self.before)


def forgets(holder: Holder) -> bool:
    """Return True for a cache of results, which can only forget them."""
    return type(holder.value) is _CACHED


def holders(request: TimedCall) -> list[Holder]:
    """
    Return the containers that a call reaches by globals, closures, defaults and attributes.

    Arguments themselves are left to `Contract`, which reads their whole content.
    """
    pending: list[tuple[str, Any]] = [("", request.fn), ("", request.setup)]
    pending += [(_ARGUMENT, value) for value in request.args]
    pending += [(_ARGUMENT, value) for value in request.kwargs.values()]
    found: dict[int, Holder] = {}
    # Kept alive, so that no other object gets the id of one that was looked at.
    seen: dict[int, object] = {}
    left_bytes = _MOST_BYTES
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    for place, value in pending:
        if type(value) in _PLAIN or id(value) in seen or len(seen) > _MOST_PLACES:
            continue
        seen[id(value)] = value
        for name, item in _look(place, value, pending):
            kind = _KINDS.get(type(item))
            if type(item) is ndarray:
                kind = _array_kind(item)
            if kind is None or id(item) in found:
                continue
            left_bytes -= getattr(item, "nbytes", sys.getsizeof(item))
            if left_bytes < 0:
                return list(found.values())
            found[id(item)] = Holder(name, item, kind, kind.copied(item))
    return list(found.values())


def _look(  # noqa: PLR0911 - a way for each kind of object
    place: str,
    value: Any,  # noqa: ANN401 - any object
    pending: list[tuple[str, Any]],
) -> Sequence[tuple[str, Any]]:
    """Return what a value holds by name, and add what it reaches to the pending values."""
    kind = type(value)
    if kind is FunctionType:
        if not is_projects(value.__module__):
            return ()
        pending += _variables(value)
        return (
            ("the attributes of a function", value.__dict__),
            *value.__dict__.items(),
        )
    if kind is functools.partial:
        pending.append((place, value.func))
        pending += [
            (_ARGUMENT, item) for item in (*value.args, *value.keywords.values())
        ]
        return ()
    if kind is MethodType:
        pending += [(place, value.__func__), ("self", value.__self__)]
        return ()
    if kind is _CACHED:
        pending.append((place, value.__wrapped__))
        return ((place or value.__name__, value),)
    if kind is type:
        return [*vars(value).items()] if is_projects(value.__module__) else ()
    if not is_projects(kind.__module__):
        # An argument is read by its contract.
        return () if place == _ARGUMENT else ((place, value),)
    pending.append((place, vars(kind).get("__call__")))
    name = place or kind.__name__
    own: Mapping[str, Any] = {}
    with suppress(AttributeError):
        # No code of the object's class runs, so a proxy is not resolved.
        own = object.__getattribute__(value, "__dict__")
    return (
        (f"the attributes of {name}", own),
        *[(f"{name}.{each}", item) for each, item in own.items()],
        *[(f"{kind.__name__}.{each}", item) for each, item in vars(kind).items()],
    )


def _variables(function: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a function
    """Return the values of the variables that a function names."""
    codes, known = [function.__code__], function.__globals__
    found = [("a default", value) for value in function.__defaults__ or ()]
    found += (function.__kwdefaults__ or {}).items()
    cells = zip(codes[0].co_freevars, function.__closure__ or (), strict=True)
    found += [(name, cell.cell_contents) for name, cell in cells if cell != _EMPTY]
    for code in codes:
        # Comprehensions and lambdas have their own code.
        codes += [each for each in code.co_consts if type(each) is CodeType]
        found += [(name, known[name]) for name in code.co_names if name in known]
    return found


@functools.cache
def is_projects(module: str | None) -> bool:
    """Return True for a module that is neither built in, nor standard, nor installed, nor ours."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if not isinstance(file, str) or file.startswith((_STANDARD, _OURS)):
        return False
    return not any(folder in file for folder in _INSTALLED)


def _array_kind(value: Any) -> _Copying | None:  # noqa: ANN401 - any object
    """Return the kind of an array of numpy, or None if it cannot be written."""
    return _NUMPY if value.flags.writeable and not value.dtype.hasobject else None


def _same_items(value: Any, copy: Any) -> bool:  # noqa: ANN401 - a list or a deque
    return len(value) == len(copy) and all(map(operator.is_, value, copy))


def _same_pairs(value: dict[Any, Any], copy: dict[Any, Any]) -> bool:
    return _same_items(value, copy) and _same_items(value.values(), copy.values())


def _put_back_items(value: Any, copy: Any) -> None:  # noqa: ANN401 - a list, buffer or array
    value[:] = copy


def _put_back_deque(value: deque[Any], copy: deque[Any]) -> None:
    value.clear()
    value.extend(copy)


def _put_back_hashed(value: Any, copy: Any) -> None:  # noqa: ANN401 - a dict or a set
    value.clear()
    value.update(copy)


def _misses(function: Any) -> int:  # noqa: ANN401 - a function with a cache
    return int(function.cache_info().misses)


_PAIRS = _Copying(operator.methodcaller("copy"), _same_pairs, _put_back_hashed)
_FLAT = _Copying(operator.itemgetter(slice(None)), operator.eq, _put_back_items)
_NUMPY = _Copying(
    operator.methodcaller("copy", "K"),
    lambda value, copy: value.tobytes() == copy.tobytes(),
    lambda value, copy: value.__setitem__(..., copy),
)
# By exact type: a subclass may hold more than its items.
_KINDS: dict[type, _Copying] = {
    list: _Copying(list.copy, _same_items, _put_back_items),
    deque: _Copying(deque.copy, _same_items, _put_back_deque),
    set: _Copying(set.copy, operator.eq, _put_back_hashed),
    bytearray: _FLAT,
    array: _FLAT,
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _PAIRS),
    # The results of a cache cannot be put back, but they can be forgotten.
    _CACHED: _Copying(
        _misses, lambda f, before: _misses(f) == before, lambda f, _: f.cache_clear()
    ),
}
