"""Any valid record of the model, by its own types and invariants."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from enum import EnumMeta
from typing import Any

from hypothesis import strategies as st

from pytest_gpuperf import model
from pytest_gpuperf.model.activity import KernelResources, Track
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import AcceptedLevel, SessionValue
from pytest_gpuperf.model.roofline import Peak, Roofline, TimeBound
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import CoreSpeed, Estimate, SourceLabel
from pytest_gpuperf.model.steps import Compiled, StepSummary
from pytest_gpuperf.model.work import Work

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_COUNTS = st.integers(min_value=0, max_value=2**40)


def is_record(thing: object) -> bool:
    """Return whether something is a class of records."""
    return isinstance(thing, type) and issubclass(thing, Frozen)


def fields_of(kind: Any) -> dict[str, str]:
    """Return the fields of a record's class, each with its type as it is written."""
    forms: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        forms |= getattr(base, "__annotations__", {})
    return {name: forms[name] for name in kind.__struct_fields__}


def records_of_model() -> list[type]:
    """Return every public class of records that a module of the room defines."""
    found = []
    for module in pkgutil.iter_modules(model.__path__):
        loaded = importlib.import_module(f"{model.__name__}.{module.name}")
        found += [
            thing
            for thing in vars(loaded).values()
            if is_record(thing)
            and thing.__module__ == loaded.__name__
            and not thing.__name__.startswith("_")
            and fields_of(thing)
        ]
    return found


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the valid instances of a type of the model."""
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if is_record(kind):
        return any_record(kind)
    if isinstance(kind, EnumMeta):
        return st.sampled_from(list(kind))
    return _any_generic(kind)


def _any_generic(kind: object) -> st.SearchStrategy[Any]:
    """Return a strategy for a union, a tuple or a mapping."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([any_of(each) for each in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(any_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(any_of, inner))
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin is Mapping:
        return st.dictionaries(any_of(inner[0]), any_of(inner[1]), max_size=2)
    message = f"no strategy for {kind}"
    raise AssertionError(message)


def any_record(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy for a record whose fields are free, or repaired."""
    hints = typing.get_type_hints(kind)
    fields = {name: any_of(hints[name]) for name in hints}
    if kind is KernelResources:
        fields = {
            name: field.map(_not_negative) if "int" in str(hints[name]) else field
            for name, field in fields.items()
        }
    if kind is Run:
        fields["schema"] = st.just(SCHEMA_VERSION)
    return st.fixed_dictionaries(fields).map(
        lambda given: kind(**_REPAIRS.get(kind, _as_it_is)(given))
    )


def _not_negative(value: object) -> object:
    """Return a count that a kernel may have; text and None as they are."""
    return 1 + abs(value) if isinstance(value, int) else value


def _as_it_is(given: dict[str, Any]) -> dict[str, Any]:
    return given


def _ordered(given: dict[str, Any]) -> dict[str, Any]:
    """Turn an interval that is upside down."""
    if given["low"] is not None and given["high"] is not None:
        given["low"], given["high"] = sorted((given["low"], given["high"]))
    return given


def _declared(given: dict[str, Any]) -> dict[str, Any]:
    """Make work that says something, with a roof."""
    for name in ("flop", "bytes"):
        if given[name] is not None:
            given[name] = abs(given[name]) or 1.0
    if given["bytes"] is None:
        given["bytes"] = 1.0
    if given["flop"] is not None or given["dtype"] is not None:
        given["dtype"] = "bf16"
    return given


def _above_zero(given: dict[str, Any]) -> dict[str, Any]:
    """Make every number one that a roof or a time may be."""
    return {
        name: abs(value) or 1.0 if isinstance(value, float) else value
        for name, value in given.items()
    }


def _labelled(given: dict[str, Any]) -> dict[str, Any]:
    """Make a peak whose label says whether it is known."""
    known = given["label"] is not SourceLabel.UNAVAILABLE
    return _above_zero(given) | {"value": abs(given["value"] or 1.0) if known else None}


def _looped(given: dict[str, Any]) -> dict[str, Any]:
    """Make a core whose loop took some time, and a precision."""
    loop_s, precision = abs(given["loop_s"]) or 1.0, abs(given["precision"])
    return given | {"loop_s": loop_s, "precision": precision}


def _with_values(given: dict[str, Any]) -> dict[str, Any]:
    """Make a session that has a value, and widths of intervals."""
    widths = tuple(map(abs, given["half_widths"]))
    values = given["run_values"] or (1.0,)
    cores = given["cores"] if len(given["cores"]) == len(values) else ()
    alone = given["alone_cores"]
    clocks = tuple(abs(each) or 1.0 for each in given["sm_clocks_hz"])
    return given | {
        "run_values": values,
        "half_widths": widths,
        "cores": cores,
        "sm_clocks_hz": clocks if len(clocks) == len(values) else (),
        "alone_cores": alone if len(alone) == len(given["alone_values"]) else (),
    }


def _of_some_sessions(given: dict[str, Any]) -> dict[str, Any]:
    """Make a level that a session stands behind."""
    return given | {"session_count": 1 + abs(given["session_count"])}


def _as_long(given: dict[str, Any]) -> dict[str, Any]:
    """Make columns of one length."""
    columns = dict.fromkeys(("ends_ns", "kernels"), given["starts_ns"])
    return given | columns


_REPAIRS: Mapping[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    AcceptedLevel: _of_some_sessions,
    Compiled: _above_zero,
    CoreSpeed: _looped,
    StepSummary: _above_zero,
    Estimate: _ordered,
    SessionValue: _with_values,
    Track: _as_long,
    Work: _declared,
    Peak: _labelled,
    Roofline: _above_zero,
    TimeBound: _above_zero,
}
_BY_TYPE: Mapping[object, st.SearchStrategy[Any]] = {
    str: _TEXT,
    float: _FINITE,
    int: _COUNTS,
    bool: st.booleans(),
    type(None): st.none(),
}
