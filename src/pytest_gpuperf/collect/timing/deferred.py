"""Results whose work is done when they are used: a function, or an object of the project.

An object may hold the arguments of its call and nothing else, and compute when it is indexed,
printed or asked for a value. A use is timed only if it changes nothing: special methods that
read, properties, methods named after a value, and methods whose code has no effect.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.timing.contents import attributes
from pytest_gpuperf.collect.timing.hidden import is_projects
from pytest_gpuperf.collect.timing.same_work import Probe, shortest_s
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Note

_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType, functools.partial)
# What the arguments are made of, and what computes with them.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), *_FUNCTIONS, type)
_CONTAINERS = (bytearray, dict, frozenset, list, set, tuple)
# Instructions that only name and return something.
_IDLE = (
    *(
        "BUILD_TUPLE",
        "CACHE",
        "COPY_FREE",
        "LOAD_",
        "MAKE_",
        "NOP",
        "PRECALL",
        "PUSH_NULL",
    ),
    *("RESUME", "RETURN_", "SET_FUNCTION_ATTRIBUTE", "STORE_FAST"),
)
# Instructions of a function that gives what was there before it.
_GIVES = frozenset({"COPY_FREE_VARS", "NOP", "RESUME", "RETURN_VALUE"})
_NAMES = frozenset({"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
_METHODS_OF_VALUES = frozenset(
    {
        *("as_dict", "as_list", "collect", "compute", "evaluate", "force", "item"),
        *("items", "materialize", "numpy", "realize", "result", "results", "rows"),
        *("to_array", "to_dict", "to_list", "to_numpy", "tolist", "value", "values"),
    }
)
# Special methods that read, and how they are used.
_READS: dict[str, Callable[[Any], object]] = {
    "__array__": lambda value: value.__array__(),
    "__bool__": bool,
    "__bytes__": bytes,
    "__complex__": complex,
    "__eq__": lambda value: value == None,  # noqa: E711 - the operator of its class
    "__float__": float,
    "__format__": format,
    "__getitem__": lambda value: value[0],
    "__index__": lambda value: value.__index__(),
    "__int__": int,
    "__iter__": lambda value: next(iter(value), None),
    "__len__": len,
    "__next__": lambda value: next(value, None),
    "__repr__": repr,
    "__str__": str,
}
# Special methods that may do anything.
_CALLED = frozenset({"__call__", "__enter__"})
# Writing a character takes less, so that a long text is no work.
_WRITE_S = 1e-6
# Functions and modules without an effect.
_PURE = frozenset(
    {
        *(
            "abs",
            "all",
            "any",
            "bool",
            "bytes",
            "complex",
            "dict",
            "divmod",
            "enumerate",
        ),
        *("filter", "float", "frozenset", "hash", "int", "len", "list", "map", "max"),
        *("min", "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted"),
        *("str", "sum", "tuple", "zip"),
    }
)
_PURE_MODULES = frozenset(
    {"bisect", "functools", "math", "numpy", "operator", "statistics"}
)
# Methods of plain data that change it, and functions of numpy with an effect.
_CHANGES = frozenset(
    {
        *("append", "appendleft", "clear", "discard", "extend", "extendleft", "fill"),
        *(
            "insert",
            "itemset",
            "partition",
            "pop",
            "popitem",
            "popleft",
            "put",
            "remove",
        ),
        *("load", "memmap", "open", "resize", "reverse", "rotate", "save", "savetxt"),
        *("savez", "seed", "setdefault", "setflags", "shuffle", "sort", "tofile"),
        *("update", "write"),
    }
)
_EFFECTS = (
    *(
        "BEFORE_WITH",
        "DELETE_",
        "GET_AWAITABLE",
        "IMPORT_",
        "SETUP_WITH",
        "STORE_DEREF",
    ),
    *("STORE_GLOBAL", "STORE_SLICE", "STORE_SUBSCR", "YIELD_"),
)
_MOST_CALLS = 3  # of functions of the project, one in the other
_MOST_MEMBERS = 10
# A use that takes less than this, or so many times the call, is none of its work.
_LEAST_S, _MOST_RATIO = 1e-4, 3


class Use(NamedTuple):
    """
    A use of a result.

    Attributes:
        name: What is done with it, as "Row.value()".

        of: Uses the result.
    """

    name: str
    of: Callable[[Any], object]


def returned_function(fn: object, output: object) -> str:
    """
    Return the name of a function that a call returns and neither calls nor needs, or "".

    A function that needs arguments is made for others to call.

    Args:
        fn: The measured function.

        output: Its result.
    """
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None or not isinstance(output, _FUNCTIONS) or _needs_arguments(output):
        return ""
    names = [each.opname for each in dis.get_instructions(code)]
    others = [name for name in names if not name.startswith(_IDLE)]
    # A partial is made by a call.
    made = ["CALL"] if isinstance(output, functools.partial) else []
    if [name.partition("_")[0] for name in others] != made:
        return ""
    target = output.func if isinstance(output, functools.partial) else output
    return str(getattr(target, "__name__", "a function"))


def given_before(fn: object, output: object) -> str:
    """
    Return the name of the data that a function only returns, or "".

    Args:
        fn: The measured function.

        output: Its result.
    """
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    is_data = isinstance(output, _CONTAINERS) or hasattr(output, "dtype")
    if code is None or not is_data or getattr(output, "__len__", bool)() == 0:
        return ""
    others = [each for each in dis.get_instructions(code) if each.opname not in _GIVES]
    if len(others) != 1 or others[0].opname not in _NAMES:
        return ""
    return str(others[0].argval)


def _needs_arguments(function: Any) -> bool:  # noqa: ANN401 - any function
    bound_count = int(isinstance(function, MethodType))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return _needs_by_signature(function)
    defaults = function.__defaults__ or ()
    needed_count = code.co_argcount - len(defaults) - bound_count
    return bool(needed_count > 0 or code.co_kwonlyargcount)


def _needs_by_signature(function: Any) -> bool:  # noqa: ANN401 - a function of C, or a partial
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in several for p in parameters)


def of_project(output: object) -> object:
    """Return a result, or its first member, that is an object of the project, or None."""
    members: Iterable[object] = (output,)
    if isinstance(output, (list, tuple)):
        members = itertools.chain(members, output[:_MOST_MEMBERS])
    elif isinstance(output, dict):
        members = itertools.islice(output.values(), _MOST_MEMBERS)
    return next((m for m in members if is_projects(type(m).__module__)), None)


def adds_nothing(result: object, other: object, given: Iterable[object]) -> bool:
    """
    Return True if a result holds nothing that its call has made but numbers and texts.

    Args:
        result: An object of the project.

        other: The result of another call.

        given: The arguments of the call that returned `result`.
    """
    known_ids = {*map(id, given), *map(id, attributes(other).values())}
    held = attributes(result).values()
    return all(
        id(item) in known_ids or isinstance(item, _PLAIN) or _is_group(item, known_ids)
        for item in held
    )


def _is_group(item: object, known_ids: set[int]) -> bool:
    """Return True for the arguments themselves, as `*args` and `**kwargs` have them."""
    if not isinstance(item, (tuple, dict)):
        return False
    members = item.values() if isinstance(item, dict) else item
    return all(id(m) in known_ids or isinstance(m, _PLAIN) for m in members)


def uses(result: object) -> Iterator[Use]:
    """
    Yield the uses of an object of the project that change nothing.

    A use may raise anything.
    """
    kind = type(result)
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if is_projects(base.__module__):
            members |= vars(base)
    held = [*attributes(result).values()]
    for name, member in members.items():
        if name in _READS:
            if type(member) is FunctionType:
                yield Use(f"{name} of {kind.__name__}", _READS[name])
        elif isinstance(member, (property, functools.cached_property)):
            if not name.startswith("_"):
                yield Use(f"{kind.__name__}.{name}", _attribute(name))
        elif type(member) is FunctionType and not _needs_arguments(_bound(member)):
            is_value = name in _METHODS_OF_VALUES
            may_be_called = not name.startswith("__") or name in _CALLED
            if is_value or (may_be_called and _has_no_effect(member, held)):
                yield Use(f"{kind.__name__}.{name}()", _method(name))


def is_written(value: object, time_s: float) -> bool:
    """Return True if a use only wrote a text, as long texts take their time."""
    return isinstance(value, str) and time_s < _WRITE_S * len(value)


def _bound(function: FunctionType) -> MethodType:
    return MethodType(function, object())


def _attribute(name: str) -> Callable[[object], object]:
    return lambda value: getattr(value, name)


def _method(name: str) -> Callable[[object], object]:
    return lambda value: getattr(value, name)()


def _has_no_effect(function: FunctionType, held: Iterable[object]) -> bool:
    """Return True if the code of a method only computes with plain data."""
    if any(not _is_data(item) for item in held):
        return False
    return _is_pure(function.__code__, function.__globals__, _MOST_CALLS)


def _is_data(item: object) -> bool:
    if type(item).__module__.partition(".")[0] == "numpy":
        return True
    return isinstance(item, (*_PLAIN[:7], list, tuple, dict, set, frozenset))


def _is_pure(code: CodeType, known: Mapping[str, Any], calls_count: int) -> bool:
    instructions = [*dis.get_instructions(code)]
    ends = {each.offset for each in instructions if each.opname == "FOR_ITER"}
    for each in instructions:
        name = each.argval
        # Other loops than those of `for` may be endless.
        if "JUMP" in each.opname and name < each.offset and name not in ends:
            return False
        if each.opname.startswith(_EFFECTS) or name in _CHANGES:
            return False
        if each.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and not _is_pure_global(
            name, known, calls_count
        ):
            return False
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return all(_is_pure(each, known, calls_count) for each in inner)


def _is_pure_global(name: str, known: Mapping[str, Any], calls_count: int) -> bool:
    if name not in known:
        return name in _PURE
    value = known[name]
    if isinstance(value, ModuleType):
        return value.__name__ in _PURE_MODULES
    if type(value) is FunctionType:
        is_ours = is_projects(value.__module__) and calls_count > 0
        return is_ours and _is_pure(value.__code__, value.__globals__, calls_count - 1)
    return _is_data(value)


def notes(
    request: TimedCall,
    output: object,
    probe_of: Callable[[TimedCall], Probe],
    usual_s: float,
    now_ns: Callable[[], int],
) -> Iterator[Note]:
    """
    Yield a doubt if a call has done none of the work that its result stands for.

    Args:
        request: The call.

        output: Its last timed result.

        probe_of: Returns what calls a function again.

        usual_s: The time of a call [s].

        now_ns: The clock [ns].
    """
    name = returned_function(request.fn, output)
    if name:
        text = f"the call returns the function {name} and does not call it"
        yield Note(code="lazy-result", text=text, doubt=True)
    name = given_before(request.fn, output)
    if name:
        text = f"the call only returns {name}, which was there before it"
        yield Note(code="less-work", text=text, doubt=True)
    if of_project(output) is None:
        return
    slow = None
    # An object of the test may raise anything.
    with suppress(Exception):
        slow = _slow_use(request, probe_of, usual_s, now_ns)
    if slow is not None:
        name, used_s = slow
        text = (
            f"the result holds nothing but the arguments, and {name} takes"
            f" {used_s / usual_s:,.0f} times as long as the call; measure a function that"
            " uses the result"
        )
        yield Note(code="lazy-result", text=text, doubt=True, full_s=used_s)


def _slow_use(
    request: TimedCall,
    probe_of: Callable[[TimedCall], Probe],
    usual_s: float,
    now_ns: Callable[[], int],
) -> tuple[str, float] | None:
    """Return a use of the result that takes far longer than the call, and both times [s]."""
    seen: list[tuple[object, tuple[object, ...]]] = []

    def looked_at(*args: object, **kwargs: object) -> object:
        result = request.fn(*args, **kwargs)
        seen.append((of_project(result), (*args, *kwargs.values())))
        return result

    probe = probe_of(replace(request, fn=looked_at))
    probe.call()
    probe.call()
    (other, _), (result, given) = seen[-2:]
    if result is None or not adds_nothing(result, other, given):
        return None
    least_s = max(_MOST_RATIO * usual_s, _LEAST_S)
    for use in uses(result):
        used_s, value = _first_use(result, use, now_ns)
        if used_s > least_s and not is_written(value, used_s):
            again_s = _used_again_s(request, use, probe_of)
            if least_s < again_s < math.inf:
                return use.name, again_s
    return None


def _first_use(
    result: object, use: Use, now_ns: Callable[[], int]
) -> tuple[float, object]:
    """Return the time of a use [s] and its value, or 0 and None if it raised."""
    begun_ns = now_ns()
    with suppress(Exception):
        value = use.of(result)
        return (now_ns() - begun_ns) / NS_PER_S, value
    return 0.0, None


def _used_again_s(
    request: TimedCall, use: Use, probe_of: Callable[[TimedCall], Probe]
) -> float:
    """Return the shortest time of a call whose result is used [s]."""

    def used(*args: object, **kwargs: object) -> object:
        return use.of(of_project(request.fn(*args, **kwargs)))

    probe = probe_of(replace(request, fn=used))
    return shortest_s(probe)
