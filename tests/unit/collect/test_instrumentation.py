"""Rules of collect.instrumentation: what changes how fast all code runs."""

from __future__ import annotations

import signal
import sys
import threading
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.collect.instrumentation import named, tracers


@pytest.fixture(autouse=True)
def _plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing traces, whatever runs these tests."""
    for module in (sys, threading):
        for function in ("gettrace", "getprofile"):
            monkeypatch.setattr(module, function, lambda: None)
    monkeypatch.delattr(sys, "monitoring", raising=False)


@pytest.mark.parametrize(
    ("of_thread", "name"),
    [
        ({}, ""),
        ({"gettrace": pytest.fail}, "_pytest"),
        ({"getprofile": SimpleNamespace()}, "types"),
        ({"getprofile": 123}, "a profiler"),
    ],
)
def test_what_traces_a_thread_is_named(
    monkeypatch: pytest.MonkeyPatch,
    of_thread: dict[str, object],
    name: str,
) -> None:
    """By its package: that is what a reader knows."""
    monkeypatch.setattr(sys, "gettrace", lambda: of_thread.get("gettrace"))
    monkeypatch.setattr(sys, "getprofile", lambda: of_thread.get("getprofile"))

    assert "+".join(tracers()) == name


@pytest.mark.parametrize("attribute", ["gettrace", "getprofile"])
@pytest.mark.parametrize(
    ("spec", "name"),
    [(SimpleNamespace(name="profile.__main__"), "profile"), (None, "__main__")],
    ids=["module", "script"],
)
def test_a_tracer_that_started_python_has_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
    attribute: str,
    spec: SimpleNamespace | None,
    name: str,
) -> None:
    """`python -m profile` runs as `__main__`, which would name every such tracer."""
    scope: dict[str, Any] = {"__name__": "__main__", "__spec__": spec}
    exec("def function(): ...\nclass Profiler: ...", scope)  # noqa: S102 - a module of that name
    main = SimpleNamespace(__spec__=spec)
    monkeypatch.setitem(sys.modules, "__main__", main)

    for traces in (scope["function"], scope["Profiler"]()):
        monkeypatch.setattr(sys, attribute, lambda traces=traces: traces)

        assert "+".join(tracers()) == name


@pytest.mark.parametrize(
    ("events", "name"), [({}, ""), ({3: 0}, ""), ({1: 0, 3: 8}, "tool 3")]
)
def test_monitoring_tool_traces_where_it_asks_for_events(
    monkeypatch: pytest.MonkeyPatch, events: dict[int, int], name: str
) -> None:
    """One that is registered and listens to nothing takes no time (Python 3.12)."""
    monitoring = SimpleNamespace(
        get_tool=lambda tool: f"tool {tool}" if tool in events else None,
        get_events=events.__getitem__,
    )
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)

    assert "+".join(tracers()) == name


def test_traced_allocations_are_a_tracer() -> None:
    """Most numbers of the loop are allocated."""
    tracemalloc.start()
    try:
        assert list(tracers()) == ["tracemalloc"]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("function", ["gettrace", "getprofile"])
def test_a_profiler_of_memory_shows_in_new_threads_alone(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """It follows allocations, and in Python only what it told `threading`."""
    monkeypatch.setattr(threading, function, lambda: pytest.fail)

    assert list(tracers()) == ["_pytest"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timers here")
@pytest.mark.parametrize(
    ("timer", "name"), [("ITIMER_REAL", "SIGALRM"), ("ITIMER_PROF", "SIGPROF")]
)
def test_a_sampling_profiler_shows_in_its_timer(timer: str, name: str) -> None:
    """Signals that come many times a second are its own; a timeout comes once."""
    number, kind = getattr(signal, name), getattr(signal, timer)
    before = signal.signal(number, lambda *_: None)
    module = __name__.partition(".")[0]
    try:
        signal.setitimer(kind, 60.0)
        timeout = list(tracers())
        signal.setitimer(kind, 0.05, 0.05)
        sampling = list(tracers())
    finally:
        signal.setitimer(kind, 0)
        signal.signal(number, before)

    assert (timeout, sampling) == ([], [module])


def test_conditions_are_named_in_one_order() -> None:
    """The tracer first, since it is what a reader can switch off."""
    assert named({"allocator": "jemalloc", "tracer": "memray"}) == "memray, jemalloc"
    assert named({}) == ""
