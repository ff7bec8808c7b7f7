"""Code of an object's class that has no effect and ends, as its instructions show.

An object may do its work when it is used. A use that was not asked for may wait for a server,
write a file or never end, unless it is known beforehand that it does not. So only code is
run that computes with plain data: it calls builtin functions that read, and other such code.
What it names decides, not what it is named after.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.timing.contents import attributes
from pytest_gpuperf.collect.timing.hidden import is_projects

# Numbers and texts, and containers of them.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = (list, tuple, dict, set, frozenset)
_MOST_LEVELS = 3
# Builtin code cannot be stopped. It runs for at most some seconds over so many items, and
# over the square of so large a number.
_MOST_ITEMS, _MOST_NUMBER = 1_000_000, 10_000
# Functions that are looked into, one by the other.
_MOST_FUNCTIONS = 20
# Other code is stopped after so long. The tracer that stops it makes Python code some
# tens of times as slow, so that it takes so long without one, at least.
_MOST_S, STOPPED_S = 1.0, 0.01
# Functions and modules without an effect.
_READING = frozenset(
    {
        *("abs", "all", "any", "bool", "bytes", "chr", "complex", "dict", "divmod"),
        *("enumerate", "filter", "float", "frozenset", "hash", "int", "isinstance"),
        *("iter", "len", "list", "map", "max", "min", "next", "ord", "pow", "range"),
        *("repr", "reversed", "round", "set", "slice", "sorted", "str", "sum"),
        *("tuple", "zip"),
    }
)
_READING_MODULES = frozenset(
    {"bisect", "functools", "math", "numpy", "operator", "statistics"}
)
# Methods of plain data that change it, and functions of those modules with an effect.
_CHANGES = frozenset(
    {
        *("add", "append", "appendleft", "byteswap", "clear", "copyto", "delitem"),
        *("difference_update", "discard", "dump", "extend", "iadd", "iand"),
        *("iconcat", "imul", "intersection_update", "ior", "isub", "ixor"),
        *("methodcaller", "symmetric_difference_update"),
        *("extendleft", "fill", "fill_diagonal", "insert", "insort", "insort_left"),
        *("insort_right", "itemset", "partition", "place", "pop", "popitem"),
        *("popleft", "put", "put_along_axis", "putmask", "remove", "resize"),
        *("reverse", "rotate", "shuffle", "sort", "tofile", "update", "write"),
        *("DataSource", "ctypeslib", "memmap", "open", "random", "test", "testing"),
        *("cache", "cached_property", "lru_cache", "singledispatch"),
    }
)
_CHANGES_FROM = ("from", "gen", "load", "save", "set", "seed")
# Keywords of functions that write to an argument.
_WRITES_TO = frozenset({"copy", "out", "overwrite_input"})
# Instructions with an effect, and those whose end is not known. What catches an exception
# would catch the one that stops it.
_EFFECTS = (
    *("ASYNC", "BEFORE_", "CALL_INTRINSIC_2", "DELETE_ATTR", "DELETE_DEREF"),
    *("DELETE_GLOBAL", "DELETE_SUBSCR", "GET_A", "IMPORT_", "LOAD_BUILD_CLASS"),
    *("LOAD_SUPER", "PUSH_EXC_INFO", "SEND", "SETUP_", "STORE_DEREF"),
    *("STORE_GLOBAL", "STORE_NAME", "STORE_SLICE", "STORE_SUBSCR", "YIELD_FROM"),
)
# A function may be given the object by these names of its own.
_LOADS = ("LOAD_CLOSURE", "LOAD_DEREF", "LOAD_FAST")


class Stopped(BaseException):
    """A use took too long. No `except Exception` of other code catches it."""


def value_of(use: Callable[[], object], now_ns: Callable[[], int]) -> object:
    """
    Return the value of a use that has no effect.

    Args:
        use: Uses an object.

        now_ns: The clock [ns].

    Raises:
        Stopped: It did not end within a second, in which it is traced.
    """
    end_ns = now_ns() + _MOST_S * NS_PER_S

    def trace(_: FrameType, __: str, ___: object) -> Callable[..., Any]:
        if now_ns() > end_ns:
            raise Stopped
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return use()
    finally:
        sys.settrace(before)


class Proof:
    """
    Looks into the code of an object's class, and what it calls.

    Args:
        value: The object.
    """

    def __init__(self, value: object) -> None:
        self._kind = type(value)
        # Code that is being looked into. What calls itself may not end.
        self._open: list[CodeType] = []
        self._looked_count = 0
        self._holds_data = all(map(self.is_known, attributes(value).values()))

    def has_no_effect(self, member: object) -> bool:
        """
        Return True if code is known to have no effect on anything but its object.

        Args:
            member: A function or property of the class.
        """
        self._looked_count = 0
        return self._holds_data and self.of_member(member)

    def is_known(self, item: object) -> bool:
        """Return True for plain data that is not too large, and functions without an effect."""
        if type(item) is BuiltinFunctionType or isinstance(item, type):
            name = item.__name__
            return name in _READING and getattr(builtins, name) is item
        if type(item) is FunctionType:
            return self._of_function(item, is_bound=False)
        if type(item) is functools.partial:
            parts = (item.func, *item.args, *item.keywords.values())
            return all(map(self.is_known, parts))
        return _is_small(item, _MOST_LEVELS)

    def of_member(self, member: Any) -> bool:  # noqa: ANN401 - of any class
        """Return True if a member of the class is data or has no effect when it is used."""
        if type(member) is FunctionType:
            return self._of_function(member, is_bound=True)
        if isinstance(member, property):
            return type(member.fget) is FunctionType and self.of_member(member.fget)
        if isinstance(member, functools.cached_property):
            return type(member.func) is FunctionType and self.of_member(member.func)
        if isinstance(member, (staticmethod, classmethod)):
            function = member.__func__
            is_bound = isinstance(member, classmethod)
            return type(function) is FunctionType and self._of_function(
                function, is_bound=is_bound
            )
        return type(member) is MemberDescriptorType or self.is_known(member)

    def _of_function(self, function: FunctionType, *, is_bound: bool) -> bool:
        code = function.__code__
        self._looked_count += 1
        is_ours = is_projects(function.__module__)
        if not is_ours or code in self._open or self._looked_count > _MOST_FUNCTIONS:
            return False
        given = chain(
            function.__defaults__ or (),
            (function.__kwdefaults__ or {}).values(),
            attributes(function).values(),
        )
        self._open.append(code)
        own_name = code.co_varnames[0] if is_bound and code.co_argcount else ""
        is_harmless = all(map(self.is_known, given)) and self._of_code(
            code, function.__globals__, own_name
        )
        self._open.pop()
        return is_harmless

    def _of_code(self, code: CodeType, known: Mapping[str, Any], own_name: str) -> bool:
        """
        Return True if code has no effect.

        Args:
            code: The code.

            known: The variables of its module.

            own_name: Its name for the object, or "".
        """
        instructions = [*dis.get_instructions(code)]
        constants = [c for c in code.co_consts if type(c) is tuple]
        if not _WRITES_TO.isdisjoint(map(str, chain.from_iterable(constants))):
            return False
        if not _ends(instructions) or _writes_in_place(instructions):
            return False
        for place, each in enumerate(instructions):
            following = instructions[place + 1 : place + 2]
            if each.opname.startswith(_EFFECTS) or not (
                self._is_of_object(
                    each, following, "" if _is_handed(each, code) else own_name
                )
                and self._is_known_name(each, known)
            ):
                return False
            if each.opname == "STORE_ATTR" and not _names(
                instructions[place - 1], own_name
            ):
                return False
        inner = (c for c in code.co_consts if isinstance(c, CodeType))
        numbers = (c for c in code.co_consts if not isinstance(c, CodeType))
        return all(map(self.is_known, numbers)) and all(
            self._of_code(each, known, own_name) for each in inner
        )

    def _is_of_object(
        self,
        each: dis.Instruction,
        following: Iterable[dis.Instruction],
        own_name: str,
    ) -> bool:
        """Return True if an instruction only asks the object for what has no effect."""
        if not own_name or not _names(each, own_name):
            return True
        for after in following:
            if after.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
                return self._is_harmless_attribute(str(after.argval))
            if after.opname == "STORE_ATTR":
                found = getattr(self._kind, str(after.argval), None)
                is_data = type(found) is MemberDescriptorType or self.is_known(found)
                return is_data and self._kind.__setattr__ is object.__setattr__
        return False

    def _is_harmless_attribute(self, name: str) -> bool:
        own = (k for k in self._kind.__mro__ if is_projects(k.__module__))
        if any("__getattribute__" in vars(kind) for kind in own):
            return False
        for kind in self._kind.__mro__:
            if name in vars(kind):
                if is_projects(kind.__module__):
                    return self.of_member(vars(kind)[name])
                return kind in _CONTAINERS and not name.startswith("_")
        # Of the object itself, which holds nothing else than what is known.
        return not hasattr(self._kind, "__getattr__")

    def _is_known_name(self, each: dis.Instruction, known: Mapping[str, Any]) -> bool:
        name = each.argval
        if each.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            changes = name in _CHANGES or str(name).startswith(_CHANGES_FROM)
            return not (changes or str(name).startswith("__"))
        if each.opname not in {"LOAD_GLOBAL", "LOAD_NAME"}:
            return True
        if name not in known:
            return name in _READING or name == "NotImplemented"
        value = known[name]
        if isinstance(value, ModuleType):
            return value.__name__ in _READING_MODULES
        return self.is_known(value)


def _is_handed(each: dis.Instruction, code: CodeType) -> bool:
    """Return True for an instruction that hands a variable on to inner code."""
    # Newer versions call it as they call the loads of other variables.
    shared = (*code.co_cellvars, *code.co_freevars)
    return each.opname == "LOAD_CLOSURE" or (
        each.opname == "LOAD_FAST" and each.argval in shared
    )


def _names(each: dis.Instruction, own_name: str) -> bool:
    """Return True for an instruction that loads the object."""
    if not own_name or not each.opname.startswith(_LOADS):
        return False
    name = each.argval
    # Some instructions of newer versions load two variables.
    return own_name in name if isinstance(name, tuple) else name == own_name


def _ends(instructions: Sequence[dis.Instruction]) -> bool:
    """Return True if code has no other loops than those over what is there."""
    begins = {each.offset for each in instructions if each.opname == "FOR_ITER"}
    asks_again = any(each.argval == "iter" for each in instructions)
    for each in instructions:
        name = each.argval
        if "JUMP" in each.opname and name < each.offset and name not in begins:
            return False
        # `iter` with two arguments may not end.
        if asks_again and each.opname.startswith("CALL") and each.arg == 2:  # noqa: PLR2004 - its number of arguments
            return False
    return True


def _writes_in_place(instructions: Sequence[dis.Instruction]) -> bool:
    """Return True if code may change a value in place that it has not made."""
    own: set[object] = set()
    other: set[object] = set()
    for before, each in pairwise(instructions):
        if each.opname == "STORE_FAST":
            is_made = before.opname.startswith(("LOAD_CONST", "BINARY_", "INPLACE_"))
            (own if is_made else other).add(each.argval)
    for each, after in pairwise(instructions):
        in_place = each.opname.startswith("INPLACE_") or (
            each.opname == "BINARY_OP" and each.argrepr.endswith("=")
        )
        if in_place and (
            after.opname != "STORE_FAST" or after.argval not in own - other
        ):
            return True
    return False


def _is_small(item: Any, levels: int) -> bool:  # noqa: ANN401 - what an object holds
    """Return True for plain data that builtin code goes through soon."""
    kind = type(item)
    if kind in _PLAIN:
        return kind is not int or abs(item) <= _MOST_NUMBER
    if kind.__module__ == "numpy" and hasattr(kind, "dtype"):
        return bool(item.dtype.kind in "biufc" and item.size <= _MOST_ITEMS)
    if kind not in _CONTAINERS or levels == 0 or len(item) > _MOST_ITEMS:
        return False
    members = [*item, *(item.values() if kind is dict else ())]
    return {*map(type, members)} <= _PLAIN or all(
        _is_small(member, levels - 1) for member in members
    )
