"""Frameworks of collect.step_profile: what torch counts is read, and nothing is imported for it."""

from __future__ import annotations

import sys
import types
from collections import Counter, defaultdict
from typing import Any

import pytest

from pytest_gpuperf.collect.step_profile import Frameworks
from pytest_gpuperf.model.steps import Compiled


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


class FakeCuda:
    """torch.cuda as far as memory goes."""

    def __init__(self, *peaks: int, ready: bool = True) -> None:
        self.peaks = list(peaks)
        self.ready = ready

    def is_initialized(self) -> bool:
        return self.ready

    def device_count(self) -> int:
        return len(self.peaks)

    def max_memory_allocated(self, index: int) -> int:
        return self.peaks[index]

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peaks[index] = 0


def dynamo(**names: Any) -> dict[str, types.ModuleType]:
    given = {"counters": {}, "compilation_time_metrics": {}, **names}
    return {
        "torch": module("torch"),
        "torch._dynamo.utils": module("torch._dynamo.utils", **given),
    }


def test_nothing_is_loaded_to_find_out() -> None:
    """A process without torch stays one, and knows why it has no counts."""
    before = set(sys.modules)
    frameworks = Frameworks({})

    assert frameworks.compiled() is None
    assert frameworks.peak_bytes() is None
    assert "torch is not imported" in frameworks.uncompiled_reason()
    assert set(sys.modules) == before


def test_torch_that_has_compiled_nothing_has_compiled_nothing() -> None:
    """Its compiler is not even loaded: a count of 0, measured."""
    frameworks = Frameworks({"torch": module("torch")})

    assert frameworks.compiled() == Compiled(count=0, graph_breaks_count=0, time_s=0.0)
    assert frameworks.uncompiled_reason() == ""


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
    frameworks = Frameworks(dynamo(counters=counters, compilation_time_metrics=times))

    assert frameworks.compiled() == Compiled(count=3, graph_breaks_count=3, time_s=1.75)


def test_reading_makes_no_counters() -> None:
    """The compiler's own mapping makes an entry for whoever asks with brackets."""
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    frameworks = Frameworks(dynamo(counters=counters))

    frameworks.compiled()
    assert not counters


def test_a_compiler_that_does_not_tell_its_time_has_a_count() -> None:
    """The one is known without the other."""
    counters = {"stats": {"unique_graphs": 2}}

    found = Frameworks(dynamo(counters=counters)).compiled()
    assert found == Compiled(count=2, graph_breaks_count=0, time_s=None)


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
    frameworks = Frameworks({"torch": module("torch"), **broken})

    assert frameworks.compiled() is None
    assert "no known counter" in frameworks.uncompiled_reason()


def test_the_peak_is_that_of_the_fullest_device() -> None:
    """And begins anew when it is told to."""
    cuda = FakeCuda(7, 9, 0)
    frameworks = Frameworks({"torch": module("torch", cuda=cuda)})

    assert frameworks.peak_bytes() == 9
    frameworks.forget_peak()
    assert cuda.peaks == [0, 0, 0]


def test_an_allocator_that_does_not_count_is_no_error() -> None:
    """One that was plugged into torch raises when it is asked."""

    class Plugged(FakeCuda):
        def max_memory_allocated(self, index: int) -> int:
            message = "CUDAPluggableAllocator does not yet support getDeviceStats"
            raise RuntimeError(message)

        def reset_peak_memory_stats(self, index: int) -> None:
            self.max_memory_allocated(index)

    frameworks = Frameworks({"torch": module("torch", cuda=Plugged(7))})

    frameworks.forget_peak()
    assert frameworks.peak_bytes() is None


@pytest.mark.parametrize(
    "torch",
    [module("torch"), module("torch", cuda=FakeCuda(7, ready=False))],
    ids=["without CUDA", "not in use"],
)
def test_memory_of_an_unused_device_is_not_known(torch: types.ModuleType) -> None:
    """Asking would start CUDA; and nothing is forgotten either."""
    frameworks = Frameworks({"torch": torch})

    assert frameworks.peak_bytes() is None
    frameworks.forget_peak()
