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
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
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
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), ModuleType})
_ARGUMENT = "an argument"


class _Kind(NamedTuple):
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
    kind: _Kind
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
    for place, value in pending:
        if type(value) in _PLAIN or id(value) in seen or len(seen) > _MOST_PLACES:
            continue
        seen[id(value)] = value
        pending += _reached(place, value)
        for inner, held in _held(place, value):
            kind = _kind_of(held)
            if kind is None or id(held) in found:
                continue
            left_bytes -= getattr(held, "nbytes", sys.getsizeof(held))
            if left_bytes < 0:
                return list(found.values())
            found[id(held)] = Holder(inner, held, kind, kind.copied(held))
    return list(found.values())


def _reached(place: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any callable
    """Yield the functions and objects behind a callable."""
    kind = type(value)
    if kind is functools.partial:
        yield place, value.func
        yield from ((_ARGUMENT, item) for item in value.args)
        yield from ((_ARGUMENT, item) for item in value.keywords.values())
    elif kind is MethodType:
        yield place, value.__func__
        yield "self", value.__self__
    elif kind is _CACHED:
        yield place, value.__wrapped__
    elif kind is FunctionType:
        yield from _variables(value)
    elif is_projects(kind.__module__):
        yield place, vars(kind).get("__call__")


def _held(place: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any object
    """Yield a container itself, or the attributes of an object of the project."""
    if _kind_of(value) is not None:
        # An argument is read by its contract.
        if place != _ARGUMENT or type(value) is _CACHED:
            yield place or value.__name__, value
        return
    owner = type(value)
    if owner is FunctionType or owner is type:
        owner = value
    if not is_projects(owner.__module__):
        return
    name = place or owner.__name__
    if owner is not value:
        yield from (
            (f"{owner.__name__}.{each}", held) for each, held in vars(owner).items()
        )
    attributes = getattr(value, "__dict__", {})
    if type(attributes) is dict:
        yield f"the attributes of {name}", attributes
    yield from ((f"{name}.{each}", held) for each, held in attributes.items())


def _variables(function: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - a function
    """Yield the values of the variables that a function of the project names."""
    if not is_projects(function.__module__):
        return
    code, known = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != _EMPTY:
            yield name, cell.cell_contents
    yield from (("a default", value) for value in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    codes = [code]
    for inner in codes:
        # Comprehensions and lambdas have their own code.
        codes += [each for each in inner.co_consts if type(each) is CodeType]
        for name in inner.co_names:
            if name in known:
                yield name, known[name]


@functools.cache
def is_projects(module: str | None) -> bool:
    """Return True for a module that is neither built in, nor standard, nor installed, nor ours."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if not isinstance(file, str) or file.startswith((_STANDARD, _OURS)):
        return False
    return not any(folder in file for folder in _INSTALLED)


def _kind_of(value: object) -> _Kind | None:
    kind = _KINDS.get(type(value))
    if kind is None and type(value).__name__ == "ndarray":
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray:
            array_: Any = value
            plain = array_.flags.writeable and not array_.dtype.hasobject
            return _NUMPY if plain else None
    return kind


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


_PAIRS = _Kind(operator.methodcaller("copy"), _same_pairs, _put_back_hashed)
_FLAT = _Kind(operator.itemgetter(slice(None)), operator.eq, _put_back_items)
_NUMPY = _Kind(
    operator.methodcaller("copy", "K"),
    lambda value, copy: value.tobytes() == copy.tobytes(),
    lambda value, copy: value.__setitem__(..., copy),
)
# By exact type: a subclass may hold more than its items.
_KINDS: dict[type, _Kind] = {
    list: _Kind(list.copy, _same_items, _put_back_items),
    deque: _Kind(deque.copy, _same_items, _put_back_deque),
    set: _Kind(set.copy, operator.eq, _put_back_hashed),
    bytearray: _FLAT,
    array: _FLAT,
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _PAIRS),
    # The results of a cache cannot be put back, but they can be forgotten.
    _CACHED: _Kind(
        _misses, lambda f, before: _misses(f) == before, lambda f, _: f.cache_clear()
    ),
}
