"""CUPTI with several subscribers: this plugin and torch's profiler in one process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fakes.shared_cupti import FakeTorch, SharedCupti
from pytest_gpuperf.collect.cupti.activity import ActivityCollector, ActivityTimer
from pytest_gpuperf.collect.cupti.kineto import KinetoUse, kineto_use, start_kineto
from pytest_gpuperf.errors import CollectorUnavailableError

real = pytest.importorskip(
    "cupti.cupti", reason="cupti-python is not installed: pip install cupti-python"
)
pytestmark = pytest.mark.skipif(
    not hasattr(getattr(real, "SubscriberParams", None), "allow_multiple_subscribers"),
    reason="the parameters of cupti-python 13.2 are filled: pip install 'cupti-python>=13.2'",
)


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed torch decides nothing here."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "torch" else find_spec(name),
    )
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def cupti() -> SharedCupti:
    """One that nobody uses."""
    return SharedCupti(real)


def made(cupti: SharedCupti) -> ActivityCollector:
    """Return a collector that sees no variables of this machine."""
    return ActivityCollector(cupti.synchronize, cupti=cupti, environment={})


def kernels(collector: ActivityCollector, cupti: SharedCupti) -> list[str]:
    """Return the kernels of a window with one launch."""
    with collector.window() as window:
        cupti.launch("axpy")
    assert window.void is None
    return [shape.name for shape in window.trace().launches.shapes]


def test_several_record_at_once(cupti: SharedCupti) -> None:
    """Each has records, labels and spans of its own; one that ends takes no other's."""
    first, second = made(cupti), made(cupti)
    first.open()
    second.open()
    timer = ActivityTimer(second)
    timer.begin()
    assert kernels(first, cupti) == ["axpy"]
    timer.end()
    cupti.synchronize()
    assert list(timer.taken()) == [pytest.approx(10e-6)]
    assert timer.refusal() is None
    first.close()

    assert kernels(second, cupti) == ["axpy"]
    assert second.calls.shared
    assert cupti.families == {"subscriber"}


def test_an_older_driver_admits_one(cupti: SharedCupti) -> None:
    """It refuses several with 39, also where nobody else is: then one is asked for."""
    old = SharedCupti(real, new_driver=False)
    collector = made(old)
    collector.open()

    assert kernels(collector, old) == ["axpy"]
    assert not collector.calls.shared
    assert old.families == {"process"}


@pytest.mark.parametrize(
    ("lacking", "knows_several"),
    [("", False), ("", True), ("get_timestamp", True)],
)
def test_the_loaded_libcupti_decides(lacking: str, *, knows_several: bool) -> None:
    """One that is older than the binding, as torch's own, admits one user of its functions."""
    older = SharedCupti(real, lacking=lacking, knows_several=knows_several)
    collector = made(older)
    collector.open()

    assert kernels(collector, older) == ["axpy"]
    assert not collector.calls.shared
    assert older.families == {"process"}
    collector.close()
    assert not older.subscribers


def test_one_that_is_alone_shuts_several_out(cupti: SharedCupti) -> None:
    """The refusal is the one of a holder."""
    cupti.admit(alone=True)
    with pytest.raises(CollectorUnavailableError, match="CUPTI 39"):
        made(cupti).open()
    assert len(cupti.subscribers) == 1


@pytest.mark.parametrize(
    ("several", "use"), [(True, KinetoUse.SEVERAL), (False, KinetoUse.ALONE)]
)
def test_what_torchs_library_calls_says_how_it_shares(
    cupti: SharedCupti,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    use: KinetoUse,
    *,
    several: bool,
) -> None:
    """No version of torch promises it, and its library names the functions."""
    torch = FakeTorch(cupti, tmp_path / "torch", several=several)
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert kineto_use() is use


def test_a_torch_without_a_library_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of Windows, or one that is cut off: nobody knows what it calls."""
    torch = ModuleType("torch")
    torch.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert kineto_use() is KinetoUse.ALONE


def test_a_torch_without_cupti_shares_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cupti: SharedCupti
) -> None:
    """One for AMD, or for CPUs."""
    torch = FakeTorch(cupti, tmp_path / "torch", several=True)
    library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    library.write_bytes(
        library.read_bytes().replace(b"cuptiActivity", b"rocprofActivi")
    )
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert kineto_use() is KinetoUse.NONE


def test_the_functions_of_the_process_are_kept_for_a_torch_that_is_alone(
    cupti: SharedCupti, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of a subscriber would refuse its profiles with 14 for good, in silence."""
    torch = FakeTorch(cupti, tmp_path / "torch", several=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    collector = made(cupti)
    collector.open()
    assert kernels(collector, cupti) == ["axpy"]
    collector.close()
    with torch.profile(activities=["cuda"]):
        cupti.launch("theirs")
        cupti.synchronize()

    assert torch.seen == [["theirs"]]


def test_a_start_that_fails_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler without a GPU, say: the tests go on."""

    def failing(**_: object) -> None:
        message = "no CUDA"
        raise RuntimeError(message)

    torch = ModuleType("torch")
    vars(torch)["profiler"] = torch
    vars(torch)["profile"] = failing
    vars(torch)["ProfilerActivity"] = type("Activity", (), {"CUDA": 1})
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert start_kineto(lambda: 0).endswith("before the tests (no CUDA)")
