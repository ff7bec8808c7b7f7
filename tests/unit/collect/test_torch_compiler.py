"""TorchCompiler of collect.step_profile: torch's counters are read, and nothing is imported."""

from __future__ import annotations

import sys
import types
from collections import Counter, defaultdict
from typing import Any

import pytest

from pytest_gpuperf.collect.step_profile import TorchCompiler
from pytest_gpuperf.model.steps import Compiled


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


def dynamo(**names: Any) -> dict[str, types.ModuleType]:
    given = {"counters": {}, "compilation_time_metrics": {}, **names}
    return {
        "torch": module("torch"),
        "torch._dynamo.utils": module("torch._dynamo.utils", **given),
    }


def test_nothing_is_loaded_to_find_out() -> None:
    """A process without a compiler stays one, and has compiled nothing."""
    before = set(sys.modules)
    compiler = TorchCompiler({})

    assert compiler.compiled() == Compiled(count=0, graph_breaks_count=0, time_s=0.0)
    assert compiler.uncompiled_reason() == ""
    assert set(sys.modules) == before


def test_what_other_compilers_do_is_unknown() -> None:
    """Never 0 where something that torch does not count may have compiled."""
    compiler = TorchCompiler({"jax": module("jax"), "numba": module("numba")})
    beside = TorchCompiler({"jax": module("jax"), "torch": module("torch")})

    assert compiler.compiled() is None
    assert compiler.uncompiled_reason() == (
        "jax and numba may compile, and only torch's compilations are counted"
    )
    assert beside.compiled() == Compiled(count=0, graph_breaks_count=0, time_s=0.0)


def test_torch_that_has_compiled_nothing_has_compiled_nothing() -> None:
    """Its compiler is not even loaded: a count of 0, measured."""
    compiler = TorchCompiler({"torch": module("torch")})

    assert compiler.compiled() == Compiled(count=0, graph_breaks_count=0, time_s=0.0)
    assert compiler.uncompiled_reason() == ""


@pytest.mark.parametrize(
    "name", ["_compile.compile_inner", "_compile.<locals>.compile_inner"]
)
def test_what_the_compiler_counts_is_read(name: str) -> None:
    """Graphs, graph breaks of all reasons, and the time of whole frames."""
    counters = {
        "stats": Counter(unique_graphs=3, calls_captured=40),
        "graph_break": Counter({"call print": 2, "data-dependent jump": 1}),
    }
    times = {name: [1.5, 0.25], "OutputGraph.call_user_compiler": [1.0]}
    compiler = TorchCompiler(dynamo(counters=counters, compilation_time_metrics=times))

    assert compiler.compiled() == Compiled(count=3, graph_breaks_count=3, time_s=1.75)


def test_reading_makes_no_counters() -> None:
    """The compiler's own mapping makes an entry for whoever asks with brackets."""
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    compiler = TorchCompiler(dynamo(counters=counters))

    compiler.compiled()
    assert not counters


def test_a_compiler_that_does_not_tell_its_time_has_a_count() -> None:
    """The one is known without the other."""
    counters = {"stats": {"unique_graphs": 2}}

    compiled = TorchCompiler(dynamo(counters=counters)).compiled()
    assert compiled == Compiled(count=2, graph_breaks_count=0, time_s=None)


@pytest.mark.parametrize(
    "broken",
    [
        {"torch._dynamo.utils": module("utils")},
        dynamo(counters=None),
        dynamo(counters={"stats": {"unique_graphs": "many"}}),
        dynamo(counters={"graph_break": {"a": "b"}}),
        dynamo(compilation_time_metrics=7),
    ],
)
def test_a_compiler_that_counts_otherwise_is_a_sentence(
    broken: dict[str, types.ModuleType],
) -> None:
    """A later torch is not an error of the test."""
    compiler = TorchCompiler({"torch": module("torch"), **broken})

    assert compiler.compiled() is None
    assert "no known counter" in compiler.uncompiled_reason()
