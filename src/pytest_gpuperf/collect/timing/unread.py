"""Generators and coroutines that a function makes as a statement, and neither reads nor awaits."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from pytest_gpuperf.collect.timing.contents import attributes
from pytest_gpuperf.collect.timing.hidden import is_projects

# Functions that are looked into, one called by the other.
_MOST_FUNCTIONS = 20
# A call of such a function only makes an object.
_MAKES = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def unread(fn: object) -> str:
    """
    Return the name of a generator or coroutine function whose result is dropped, or "".

    Only the code of the project is read. Nothing is called.

    Args:
        fn: The measured function.
    """
    pending: list[Any] = [fn]
    seen: set[CodeType] = set()
    for function in pending:
        owner = function.__self__ if isinstance(function, MethodType) else None
        plain: Any = getattr(function, "__func__", function)
        if (
            type(plain) is not FunctionType
            or plain.__code__ in seen
            or not is_projects(plain.__module__)
            or len(seen) >= _MOST_FUNCTIONS
        ):
            continue
        seen.add(plain.__code__)
        named = _named_by(plain, owner)
        made = {name for name, each in named.items() if each.__code__.co_flags & _MAKES}
        if made and (dropped := made & _statements_of(plain.__code__)):
            return min(dropped)
        pending += named.values()
    return ""


def _named_by(function: FunctionType, owner: object) -> dict[str, FunctionType]:
    """
    Return the functions that the code of a function names.

    Args:
        function: The function.

        owner: Its object if it is a method, or None.
    """
    codes = [function.__code__]
    own_name = codes[0].co_varnames[0] if owner is not None else ""
    found: dict[str, FunctionType] = {}
    known = attributes(function)
    for code in codes:
        if CodeType in {*map(type, code.co_consts)}:
            codes += [each for each in code.co_consts if type(each) is CodeType]
        for name in (*code.co_names, *known):
            value = known.get(name, function.__globals__.get(name))
            if type(value) is FunctionType:
                found[name] = value
            method = (
                inspect.getattr_static(type(owner), name, None) if own_name else None
            )
            if type(method) is FunctionType:
                found[f"{own_name}.{name}"] = method
    return found


@lru_cache(256)  # functions of a suite that name a generator or a coroutine function
def _statements_of(code: CodeType) -> frozenset[str]:
    """Return what code calls as a statement, or nothing if its source is not there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):
        return frozenset()
    return frozenset(_dropped(tree))


def _dropped(tree: ast.AST) -> Iterator[str]:
    for each in ast.walk(tree):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            yield ast.unparse(each.value.func)
