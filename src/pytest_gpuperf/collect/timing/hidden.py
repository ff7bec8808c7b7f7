"""What a call reaches without an argument, and what the first call changed of it.

A function may keep results in a global dict, sort a list of its object, or get the same list
from each call of `setup`. All later calls then find the work done. Nothing is written, and
no code of the test runs. Only functions and classes of the project are looked into: caches
of installed packages are part of how they work.
"""

from __future__ import annotations

import functools
import gc
import operator
import os
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice, repeat
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.timing.contents import (
    attributes,
    held_by,
    items_left,
    marshalled,
)

# Limits for the copies of one measurement. Copying 8 MiB takes a few milliseconds.
_MOST_BYTES = 8 * 1024**2
_MOST_PLACES = 200
_MOST_OBJECTS = 100_000
# The folders of packages that are not the project.
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")  # noqa: PTH118, PTH120 - pathlib is slower, and says the same
_OURS = os.path.join(os.path.dirname(__file__).rpartition("collect")[0], "")  # noqa: PTH118, PTH120 - as above
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
CACHED = type(functools.lru_cache(len))
_EMPTY = CellType()
_PLAIN = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None)),
        *(ModuleType, BuiltinFunctionType),
    }
)
_ARGUMENT = "an argument"
# A getter, because each comprehension is a call.
_NAME_AND_ITEM = operator.itemgetter(0, 1)
# Members of a result that are looked for among what was kept.
_MOST_MEMBERS = 100
# Packages whose objects are arrays and numbers.
_ARRAYS = frozenset({"cupy", "jaxlib", "numpy", "torch"})


class _State(NamedTuple):
    """How the content of a kind of value is kept, and whether its change is a sign."""

    kept: Callable[[Any], Any]
    is_same: Callable[[Any, Any], bool]
    # Whether a change from one content to another leaves less to do.
    is_sign: Callable[[Any, Any], bool]


class Place(NamedTuple):
    """
    A value that a call reaches, with its content before the first call.

    Attributes:
        name: Its place, as "rows" or "parser.cache".

        find: Returns the value. An array is not referred to, because one that is cannot be
            resized.

        state: How its content is kept.

        before: Its content.

        before_id: The id of the value.
    """

    name: str
    find: Callable[[], Any]
    state: _State
    before: Any
    before_id: int = 0

    def now(self) -> Place:
        """Return the place with its current content as `before`."""
        return self._replace(before=self.state.kept(self.find()))

    @property
    def is_same(self) -> bool:
        """True if the value still has its content."""
        return self.state.is_same(self.find(), self.before)


def changed(places: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Return the places with another content than before, then and now."""
    found = []
    # A comprehension is one more call, and mostly nothing has changed.
    for place in places:
        if not place.is_same:
            found.append((place, place.now()))  # noqa: PERF401
    return found


def signs(found: Sequence[tuple[Place, Place]], *results: object) -> list[str]:
    """
    Return the names of places that hold plain data, and where a change leaves less to do.

    Args:
        found: Each place as it was before the first call, and after it.

        results: The result of later calls, if what was kept must be in it to count.
            Otherwise a call keeps settings and tables as well.
    """
    names = []
    for then, now in found:
        value = then.find()
        if isinstance(value, _Attributes):
            new = _new_attributes(then, value.owner)
            kept: Iterable[object] = new.values()
            named = [f"{then.name}.{name}" for name in new]
        else:
            kept, named = (value,), [then.name]
            if not then.state.is_sign(then.before, now.before) or (
                then.state is _NOTHING and not _are_plain([value])
            ):
                named = []
        is_kept = named and not (results and _is_added(then, now))
        if is_kept or (named and _are_in(results[0], kept)):
            names += named
    return names


def grown_by(place: Place) -> int:
    """Return the number of items that a place has more than before, or 0 without items."""
    then, now = place.before, place.state.kept(place.find())
    if place.state is _STATES[CACHED]:
        return int(now[1] - then[1])
    return len(now) - len(then) if isinstance(now, Sized) else 0


def is_queue(place: Place) -> bool:
    """Return True for the items of a queue."""
    kept_by = getattr(place.find, "func", None)
    return kept_by in {_KEEPERS["Queue"], _KEEPERS["SimpleQueue"]}


def is_kept_data(value: object) -> bool:
    """
    Return True for plain data that are small enough to keep.

    These are containers and arrays, and objects of the project that hold such.
    """
    if is_projects(type(value).__module__):
        held = held_by(value)
        return any(map(is_kept_data, held)) and _are_plain(
            v for v in held if type(v) is not type(value) and not isinstance(v, type)
        )
    if not isinstance(value, (list, dict, set, deque, bytearray)):
        if type(value).__module__.partition(".")[0] not in _ARRAYS:
            return False
    elif not _length(value):
        return False
    is_small = getattr(value, "nbytes", sys.getsizeof(value)) <= _MOST_BYTES
    plain = list.copy(value) if isinstance(value, list) else value
    return is_small and _are_plain([plain])


def _length(value: Any) -> int:  # noqa: ANN401 - a container of any class
    """Return the number of items of a container, without the code of its class."""
    bases = (list, dict, set, deque, bytearray)
    base: Any = next(base for base in bases if isinstance(value, base))
    return int(base.__len__(value))


def _is_added(then: Place, now: Place) -> bool:
    """Return True if a place has other content than before, and nothing was sorted or taken."""
    if then.state in {_FLAT, _NUMPY}:
        return False
    before, after = then.before, now.before
    if isinstance(then.find(), _Attributes) or not isinstance(before, Sized):
        return True
    is_ordered = isinstance(before, (list, deque))
    return len(after) > len(before) or (not is_ordered and len(after) == len(before))


def _are_in(result: object, kept: Iterable[object]) -> bool:
    """Return True if a result, or all of its first members, are among the kept objects."""
    ids = ids_in(map(_result_of, kept))
    if id(result) in ids:
        return True
    group = result.values() if isinstance(result, dict) else result
    if not isinstance(group, (list, tuple, set, frozenset, deque, type({}.values()))):
        return False
    first = [*islice(group, _MOST_MEMBERS)]
    return bool(first) and ids.issuperset(map(id, first))


def ids_in(values: Iterable[object], *, levels_count: int = 2) -> set[int]:
    """Return the ids of values, of what they hold, of what that holds, and so on."""
    members = [*values]
    ids = {*map(id, members)}
    for _ in range(levels_count):
        # A larger level takes longer than the call.
        if len(members) > _MOST_OBJECTS:
            break
        members = gc.get_referents(*members)
        ids.update(map(id, members))
    return ids


def places(request: TimedCall) -> list[Place]:
    """
    Return what a call reaches by globals, closures, defaults and attributes.

    Arguments themselves are left to `Contract`, which reads their whole content.
    """
    pending: list[tuple[str, Any]] = [("", request.fn), ("", request.setup)]
    pending += zip(repeat(_ARGUMENT), (*request.args, *request.kwargs.values()))
    found: dict[object, Place] = {}
    # The objects that were looked at.
    seen: dict[int, object] = {}
    left_bytes = _MOST_BYTES
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    if type(request.fn) is BuiltinFunctionType:
        pending.append(("", _Bound(request.fn.__self__)))
    for place, value in pending:
        if type(value) in _PLAIN or id(value) in seen or len(seen) > _MOST_PLACES:
            continue
        seen[id(value)] = value
        for name, item, find in _look(place, value, pending):
            state = _STATES.get(type(item))
            if type(item) is ndarray:
                state = (
                    _NUMPY
                    if item.flags.writeable and not item.dtype.hasobject
                    else None
                )
            elif state is None and isinstance(item, _BASES):
                state = _state_of_subclass(item)
            size_bytes = getattr(item, "nbytes", sys.getsizeof(item))
            # Several names stand for None, and each may get a result.
            key = id(item) if item is not None else name
            if state is None or key in found or size_bytes > left_bytes:
                continue
            left_bytes -= size_bytes
            found[key] = Place(name, find, state, state.kept(item), id(item))
    return list(found.values())


_Found = tuple[str, Any, Callable[[], Any]]


def _look(
    place: str,
    value: Any,  # noqa: ANN401 - any object
    pending: list[tuple[str, Any]],
) -> Sequence[_Found]:
    """Return the state held by a value, and append further values to `pending`."""
    kind = type(value)
    held: Sequence[_Found] = ()
    if kind is FunctionType and is_projects(value.__module__):
        held = _variables(value)
        pending += map(_NAME_AND_ITEM, held)
        held = [
            *held,
            ("the attributes of a function", value.__dict__, _just(value.__dict__)),
        ]
    elif kind is functools.partial:
        pending.append((place, value.func))
        pending += [
            (_ARGUMENT, item) for item in (*value.args, *value.keywords.values())
        ]
    elif kind is _Bound:
        held = [("the object of the method", value.owner, _just(value.owner))]
    elif kind is MethodType:
        pending += [(place, value.__func__), ("self", value.__self__)]
    elif kind is CACHED:
        pending.append((place, value.__wrapped__))
        held = [(place or "the cache of the function", value, _just(value))]
    elif kind.__name__ in _KEEPERS and kind.__module__ in _MODULES_OF_KEEPERS:
        kept_by = _KEEPERS[kind.__name__]
        held = [(place, kept_by(value), functools.partial(kept_by, value))]
    elif kind is type and is_projects(value.__module__):
        held = _of_class(value)
    elif is_projects(kind.__module__):
        pending.append((place, _member(kind, "__call__")))
        held = [*_of_object(place or kind.__name__, value), *_of_class(kind)]
    return held


def _variables(function: Any) -> list[_Found]:  # noqa: ANN401 - a function
    codes, known = [function.__code__], function.__globals__
    defaults = (
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    )
    found: list[_Found] = []
    for value in defaults:
        found.append(("a default", value, _just(value)))  # noqa: PERF401 - a comprehension is a call
    for name, cell in zip(
        codes[0].co_freevars, function.__closure__ or (), strict=True
    ):
        if cell != _EMPTY:
            find = functools.partial(getattr, cell, "cell_contents", None)
            found.append((name, cell.cell_contents, find))
    for code in codes:
        # Comprehensions and lambdas have their own code.
        if CodeType in {*map(type, code.co_consts)}:
            codes += [each for each in code.co_consts if type(each) is CodeType]
        for name in code.co_names:
            if name in known:
                found.append((name, known[name], functools.partial(known.get, name)))
                if type(known[name]) is ModuleType:
                    found += _of_module(known[name], code.co_names)
    return found


def _of_module(module: ModuleType, names: Iterable[str]) -> list[_Found]:
    if not is_projects(module.__name__):
        return []
    held = vars(module)
    return [
        (f"{module.__name__}.{name}", held[name], functools.partial(held.get, name))
        for name in names
        if name in held
    ]


def _of_object(name: str, value: object) -> Iterator[_Found]:
    """Yield the attributes of an object, without reading its `__dict__`."""
    # Until Python 3.12, an object whose `__dict__` was read is slower from then on.
    of_object = _Attributes(value)
    yield name, of_object, _just(of_object)
    for item in held_by(value):
        if type(item) in _STATES or isinstance(item, _BASES):
            yield name, item, _just(item)


def _of_class(kind: type) -> list[_Found]:
    members = {name: item for base in kind.__mro__ for name, item in vars(base).items()}
    return [
        (f"{kind.__name__}.{name}", item, functools.partial(getattr, kind, name, None))
        for name, item in members.items()
        if type(item) in _STATES or isinstance(item, _BASES)
    ]


def _member(kind: type, name: str) -> object:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


class _Attributes(NamedTuple):
    """The attributes of an object."""

    owner: object


class _Bound(NamedTuple):
    """The object of a method that is built in, as of `table.get`."""

    owner: object


def _just(value: Any) -> Callable[[], Any]:  # noqa: ANN401 - any object
    return functools.partial(operator.getitem, (value,), 0)


def _new_attributes(place: Place, owner: object) -> dict[str, object]:
    old = set(place.before)
    new = {n: v for n, v in attributes(owner).items() if id(v) not in old}
    return new if _are_plain(new.values()) else {}


def is_projects(module: object) -> bool:
    """Return True for a module that is neither built in, nor standard, nor installed, nor ours."""
    file = getattr(
        sys.modules.get(module if isinstance(module, str) else ""), "__file__", None
    )
    return isinstance(file, str) and _is_file_of_project(file)


@functools.cache
def _is_file_of_project(file: str) -> bool:
    if file.startswith((_STANDARD, _OURS)):
        return False
    return not any(folder in file for folder in _INSTALLED)


def _state_of_subclass(value: Any) -> _State:  # noqa: ANN401 - a list, dict or set
    """Return how the items of a container are kept, without its own methods."""
    base: Any = next(base for base in _BASES if isinstance(value, base))
    state = _STATES[base]
    return _State(
        base.copy,
        lambda value, kept: state.is_same(base.copy(value), kept),
        state.is_sign,
    )


def _same_items(value: Any, kept: Any) -> bool:  # noqa: ANN401 - a list or a deque
    return len(value) == len(kept) and all(map(operator.is_, value, kept))


def _same_pairs(value: dict[Any, Any], kept: dict[Any, Any]) -> bool:
    return _same_items(value, kept) and _same_items(value.values(), kept.values())


def _same_set(value: set[Any], kept: set[Any]) -> bool:
    return len(value) == len(kept) and set(map(id, value)) == set(map(id, kept))


def _same_array(value: Any, kept: Any) -> bool:  # noqa: ANN401 - an array, or what replaced it
    return bool(getattr(value, "tobytes", bytes)() == kept.tobytes())


def _is_other_order(then: Any, now: Any) -> bool:  # noqa: ANN401 - a list, buffer or array
    """Return True if all items are there, in another order: something was sorted."""
    if type(then).__name__ == "ndarray":
        numpy: Any = sys.modules["numpy"]
        return bool(numpy.array_equal(numpy.sort(then, None), numpy.sort(now, None)))
    if isinstance(then, (list, deque)):
        return Counter(map(id, then)) == Counter(map(id, now))
    return sorted(then) == sorted(now)


def _is_sign_of_items(then: Any, now: Any) -> bool:  # noqa: ANN401 - a list or a deque
    """Return True if items were sorted, added or taken. New values of each are an output."""
    if len(then) == len(now):
        return _is_other_order(then, now)
    return _is_plain_difference(then, now)


def _is_plain_difference(then: Any, now: Any) -> bool:  # noqa: ANN401 - two containers
    """Return True if what was added or taken is plain data: no connection, no lock."""
    if isinstance(then, dict):
        then, now = then.values(), now.values()
    old, new = set(map(id, then)), set(map(id, now))
    return _are_plain(v for v in then if id(v) not in new) and _are_plain(
        v for v in now if id(v) not in old
    )


def _are_plain(values: Iterable[object]) -> bool:
    settled = map(_result_of, values)
    others = [v for v in settled if type(v).__module__.partition(".")[0] not in _ARRAYS]
    return marshalled(others) is not None


def _result_of(value: Any) -> object:  # noqa: ANN401 - any object
    futures: Any = sys.modules.get("concurrent.futures")
    if futures is None or type(value) is not futures.Future or not value.done():
        return value
    return value if value.cancelled() or value.exception() else value.result()


def _attribute_ids(value: _Attributes) -> list[int]:
    return [*map(id, held_by(value.owner))]


def _cache_counts(function: Any) -> tuple[int, int]:  # noqa: ANN401 - a function with a cache
    info = function.cache_info()
    return info.misses, info.currsize


_ITEMS = (_same_items, _is_sign_of_items)
_FLAT = _State(operator.itemgetter(slice(None)), operator.eq, _is_other_order)
_PAIRS = _State(operator.methodcaller("copy"), _same_pairs, _is_plain_difference)
_NUMPY = _State(operator.methodcaller("copy", "K"), _same_array, _is_other_order)
_NOTHING = _State(id, lambda value, kept: id(value) == kept, operator.ne)
# Objects of the standard library that keep values for a function, and what they keep.
_KEEPERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("Queue", "LifoQueue", "PriorityQueue"), operator.attrgetter("queue")
    ),
    "SimpleQueue": lambda value: [None] * value.qsize(),
    "ContextVar": lambda value: value.get(None),
    "WeakKeyDictionary": operator.attrgetter("data"),
    "_local": operator.attrgetter("__dict__"),
}
_MODULES_OF_KEEPERS = frozenset(
    {"queue", "_queue", "_contextvars", "weakref", "_thread"}
)
# Containers whose subclasses have their items.
_BASES = (list, dict, set)
# By exact type: a subclass may have methods of its own.
_STATES: dict[type, _State] = {
    type(None): _NOTHING,
    list: _State(list.copy, *_ITEMS),
    deque: _State(deque.copy, *_ITEMS),
    set: _State(set.copy, _same_set, _is_plain_difference),
    bytearray: _FLAT,
    array: _FLAT,
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _PAIRS),
    _Attributes: _State(
        _attribute_ids,
        lambda value, kept: _attribute_ids(value) == kept,
        operator.ne,  # `signs` looks at the attributes themselves
    ),
    # What a call takes is not there for later calls.
    GeneratorType: _State(
        items_left, lambda value, kept: items_left(value) == kept, operator.gt
    ),
    # A cache that keeps more results than before answers later calls from them.
    CACHED: _State(
        _cache_counts,
        lambda function, kept: _cache_counts(function) == kept,
        lambda then, now: now[1] > then[1],
    ),
}
