"""Results whose work is done when they are used: a function, or an object of the project.

An object may hold the arguments of its call and nothing else, and compute when it is indexed,
printed or asked for a value. A use is timed only if it changes nothing: special methods that
read, properties and methods without arguments, if their code is known to have no effect.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
)
from typing import Any, NamedTuple

from pytest_gpuperf.collect.base import TimedCall, members_of
from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.timing.contents import attributes
from pytest_gpuperf.collect.timing.effects import STOPPED_S, Proof, Stopped, value_of
from pytest_gpuperf.collect.timing.hidden import is_projects
from pytest_gpuperf.collect.timing.same_work import Probe, shortest_s
from pytest_gpuperf.errors import GpuPerfError
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
# Writing a character takes less, so that a long text is no work.
_WRITE_S = 1e-6
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


def given_before(fn: object, output: object, *, has_arguments: bool = True) -> str:
    """
    Return the name of the data that a function only returns, or "".

    Args:
        fn: The measured function.

        output: Its result.

        has_arguments: Whether it is called with arguments. Otherwise its parameters are
            defaults, which were there before it.
    """
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    kind = type(output)
    is_array = hasattr(kind, "dtype") and not is_projects(kind.__module__)
    is_data = kind in _CONTAINERS or is_array
    if code is None or not is_data or getattr(output, "__len__", bool)() == 0:
        return ""
    others = [each for each in dis.get_instructions(code) if each.opname not in _GIVES]
    names = _NAMES if has_arguments else _NAMES | {"LOAD_FAST", "LOAD_FAST_BORROW"}
    if len(others) != 1 or others[0].opname not in names:
        return ""
    return str(others[0].argval)


def _needs_arguments(function: Any) -> bool:  # noqa: ANN401 - any function
    bound_count = int(isinstance(function, MethodType))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return True
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return any(p.default is p.empty and p.kind not in several for p in parameters)
    defaults = function.__defaults__ or ()
    needed_count = code.co_argcount - len(defaults) - bound_count
    return bool(needed_count > 0 or code.co_kwonlyargcount)


def of_project(output: object) -> object:
    """Return a result, or its first member, that is an object of the project, or None."""
    members = (output, *members_of(output, _MOST_MEMBERS))
    return next((m for m in members if is_projects(type(m).__module__)), None)


def functions_in(output: object) -> list[Callable[[], object]]:
    """Return the functions without arguments in a tuple, list or dict of few members."""
    members: list[Any] = members_of(output, _MOST_MEMBERS + 1)
    if len(members) > _MOST_MEMBERS:
        return []
    return [m for m in members if isinstance(m, _FUNCTIONS) and not _needs_arguments(m)]


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
    Yield the uses of an object of the project that are known to change nothing.

    A use may raise an exception.
    """
    kind = type(result)
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if is_projects(base.__module__):
            members |= vars(base)
    proof = Proof(result)
    for name, member in members.items():
        use = _use_of(kind.__name__, name, member)
        if use is not None and proof.has_no_effect(member):
            yield use


def _use_of(kind: str, name: str, member: object) -> Use | None:
    """Return how a member of a class is used without arguments, or None if it is not."""
    is_function = type(member) is FunctionType
    if name in _READS:
        return Use(f"{name} of {kind}", _READS[name]) if is_function else None
    if name.startswith("_") and name != "__call__":
        return None
    if isinstance(member, (property, functools.cached_property)):
        return Use(f"{kind}.{name}", lambda value: getattr(value, name))
    if type(member) is not FunctionType:
        return None
    if _needs_arguments(MethodType(member, object())):
        return None
    return Use(f"{kind}.{name}()", lambda value: getattr(value, name)())


def is_written(value: object, time_s: float) -> bool:
    """Return True if a use only wrote a text, as long texts take their time."""
    return isinstance(value, str) and time_s < _WRITE_S * len(value)


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
    has_arguments = bool(
        request.args or request.kwargs or request.inputs or request.setup
    ) or isinstance(request.fn, MethodType)
    name = given_before(request.fn, output, has_arguments=has_arguments)
    if name:
        text = f"the call only returns {name}, which was there before it"
        yield Note(code="less-work", text=text, doubt=True)
    yield from _use_notes(request, output, probe_of, usual_s, now_ns)


def _use_notes(
    request: TimedCall,
    output: object,
    probe_of: Callable[[TimedCall], Probe],
    usual_s: float,
    now_ns: Callable[[], int],
) -> Iterator[Note]:
    """Yield a doubt if a use of a result takes far longer than the call."""
    slow, holds = None, "nothing but the arguments, and "
    try:
        if of_project(output) is not None:
            slow = _slow_use(request, probe_of, usual_s, now_ns)
        else:
            slow, holds = _slow_function(output, usual_s, now_ns), ""
    except (GpuPerfError, KeyboardInterrupt):
        raise
    except BaseException:  # noqa: BLE001 - of the function, or an object of the test
        return
    if slow is not None:
        name, used_s = slow
        text = (
            f"the result holds {holds}{name}{'' if holds else ', which'} takes at least"
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
    """
    Return a use of the result that takes far longer than the call, and its time [s].

    It took longer if it was stopped.
    """
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
        begun_ns, value = now_ns(), None
        try:
            with suppress(Exception):  # The code may raise one.
                value = value_of(partial(use.of, result), now_ns)
        except Stopped:
            return (use.name, STOPPED_S) if least_s < STOPPED_S else None
        # The tracer only makes it longer.
        if now_ns() - begun_ns > least_s * NS_PER_S:
            again_s = _used_again_s(request, use, probe_of)
            if least_s < again_s < math.inf and not is_written(value, again_s):
                return use.name, again_s
    return None


def _slow_function(
    output: object, usual_s: float, now_ns: Callable[[], int]
) -> tuple[str, float] | None:
    """
    Return a function in a result that takes far longer than the call, and its time [s].

    It is called only if it is known to have no effect.
    """
    least_s = max(_MOST_RATIO * usual_s, _LEAST_S)
    functions = functions_in(output)
    proof = Proof(functions)
    for function in functions:
        if not proof.is_known(function):
            continue
        name = str(getattr(function, "__name__", "a function")) + "()"
        try:
            with suppress(Exception):  # The code may raise one.
                value_of(function, now_ns)
                begun_ns = now_ns()
                function()
                used_s = (now_ns() - begun_ns) / NS_PER_S
                if used_s > least_s:
                    return name, used_s
        except Stopped:
            return (name, STOPPED_S) if least_s < STOPPED_S else None
    return None


def _used_again_s(
    request: TimedCall, use: Use, probe_of: Callable[[TimedCall], Probe]
) -> float:
    """Return the shortest time of a call whose result is used [s]."""

    def used(*args: object, **kwargs: object) -> object:
        return use.of(of_project(request.fn(*args, **kwargs)))

    probe = probe_of(replace(request, fn=used))
    return shortest_s(probe)
