"""collect.cupti.modules: the code that CUPTI shows when the driver loads a module."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.cupti import FakeCupti
from pytest_gpuperf.collect.cupti import modules
from pytest_gpuperf.collect.cupti.activity import ActivityCollector

real = pytest.importorskip(
    "cupti.cupti", reason="cupti-python is not installed: pip install cupti-python"
)
CUBIN = b"\x7fELF\0code with zeros\0\0"


@pytest.fixture(params=[False, True], ids=["named", "12.8"])
def cupti(request: pytest.FixtureRequest) -> FakeCupti:
    """A CUPTI that nobody uses."""
    return FakeCupti(real, older=request.param)


def opened(cupti: FakeCupti) -> ActivityCollector:
    """Return a collector that records."""
    collector = ActivityCollector(
        cupti.synchronize, cupti=cupti, environment={modules.ASKED: "1"}
    )
    collector.open()
    return collector


def held(collector: ActivityCollector) -> tuple[bytes, ...]:
    """Return the code that is known now."""
    return collector.modules.contents


def test_code_is_known_while_its_module_is_loaded(cupti: FakeCupti) -> None:
    """It is copied, because the address is that of the call only."""
    collector = opened(cupti)
    cupti.load(5, CUBIN)
    cupti.load(6, CUBIN + b"2")
    assert held(collector) == (CUBIN, CUBIN + b"2")

    cupti.load(5, None, event=7)
    assert held(collector) == (CUBIN + b"2",)
    cupti.load(6, CUBIN)
    assert held(collector) == (CUBIN,)


def test_nothing_is_known_beyond_the_subscription(cupti: FakeCupti) -> None:
    """A module may be unloaded, or another one loaded, while nobody looks."""
    collector = opened(cupti)
    cupti.load(5, CUBIN)
    collector.close()
    assert held(collector) == ()
    cupti.load(6, CUBIN)
    assert cupti.holder is None

    collector.open()
    assert held(collector) == ()
    cupti.load(7, CUBIN)
    assert held(collector) == (CUBIN,)


def test_large_code_is_not_copied(
    cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a library has hundreds of megabytes, and many modules have as much."""
    monkeypatch.setattr(modules, "_LARGEST_BYTES", 8)
    monkeypatch.setattr(modules, "_MOST_BYTES", 20)
    collector = opened(cupti)
    for number, size in enumerate((9, 8, 8, 8, 4)):
        cupti.load(number, b"x" * size)
    assert [len(code) for code in held(collector)] == [8, 8, 4]

    cupti.load(1, None, event=7)
    cupti.load(9, b"y" * 8)
    assert sum(map(len, held(collector))) == 20


@pytest.mark.parametrize("refused", ["enable_callback", None])
def test_a_cupti_without_such_events_records_all_the_same(
    cupti: FakeCupti, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is no reason to lose a measurement."""
    if refused is None:
        monkeypatch.delattr(FakeCupti, "enable_callback")
    else:
        cupti.refused[refused] = 7
    collector = opened(cupti)
    cupti.load(5, CUBIN)
    with collector.window() as window:
        cupti.launch("axpy")

    assert held(collector) == ()
    assert [shape.name for shape in window.trace().launches.shapes] == ["axpy"]


@pytest.mark.parametrize(
    "arguments", [(), (None, 3, 6, None), (None, 3, 6, object()), (None, 4, 6, None)]
)
def test_the_call_that_loads_a_module_never_fails(
    cupti: FakeCupti, arguments: tuple[Any, ...]
) -> None:
    """What CUPTI hands over may be of a newer kind; then the code is unknown."""
    collector = opened(cupti)
    cupti.load(5, CUBIN)
    cupti.callback(*arguments)

    assert held(collector) == ((CUBIN,) if 4 in arguments else ())
