"""docs/gpu-timing.md: the table of drivers, cupti-python and torch says what the code uses."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fakes.cupti import FakeCupti
from fakes.shared_cupti import SharedCupti
from pytest_gpuperf.collect.cupti.activity import ActivityCollector
from pytest_gpuperf.collect.cupti.subscription import install_older, missing
from pytest_gpuperf.collect.timing.events import CurrentStream, TorchEvents
from pytest_gpuperf.collect.torch_device import TorchRuntime
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError

PAGE = Path(__file__).parents[3] / "docs" / "gpu-timing.md"
TITLE = "| driver | cupti-python | torch | kernels are timed by | shown by |"
SOURCES = ("cupti", "events", "host")
BACKENDS = {"AMD": "cuda", "Intel": "xpu", "Apple": "mps"}
NEW_DRIVER, SHARING_DRIVER = 580, 610


class Row(NamedTuple):
    """A row of the table."""

    driver: str
    binding: str
    torch: str
    timed_by: str
    shown_by: str

    @property
    def sources(self) -> set[str]:
        """The sources that the row names."""
        return set(re.findall(r"`(\w+)`", self.timed_by)) & set(SOURCES)

    @property
    def versions(self) -> list[tuple[int, ...]]:
        """The versions of cupti-python that the row names."""
        named = re.findall(r"\d+(?:\.\d+)*", self.binding.partition(",")[0])
        return [tuple(map(int, each.split("."))) for each in named]


def rows() -> list[Row]:
    """Return the rows that a double or a GPU has shown, or none without the documents."""
    if not PAGE.is_file():
        return []
    _, table = PAGE.read_text(encoding="utf-8").split(TITLE)
    lines = table.strip().partition("\n\n")[0].splitlines()[1:]
    every = [
        Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines
    ]
    return [row for row in every if row.shown_by != "not tried"]


ROWS = rows()
OF_OTHERS = [row for row in ROWS if row.driver.startswith("none")]
OF_CUPTI = [row for row in ROWS if row.versions]
WITHOUT = [row for row in ROWS if row not in OF_OTHERS and not row.versions]


def named(row: Row) -> str:
    return f"{row.driver}-{row.binding}-{row.torch}"


def test_the_table_has_rows_of_every_kind() -> None:
    """Without the documents nothing is checked."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    assert min(map(len, (OF_OTHERS, OF_CUPTI, WITHOUT))) >= 2


def double_of(real: ModuleType, row: Row, version: tuple[int, ...]) -> Any:
    """Return the CUPTI of a machine: that of CUDA 13 refuses a driver of CUDA 12."""
    (driver,) = re.findall(r"^\d+", row.driver)
    if version >= (13, 5):
        if not hasattr(real.SubscriberParams, "allow_multiple_subscribers"):
            pytest.skip("the parameters of cupti-python 13.2 are filled")
        return SharedCupti(real, new_driver=int(driver) >= SHARING_DRIVER)
    double = FakeCupti(real, older=version < (13,))
    if version >= (13,) and int(driver) < NEW_DRIVER:
        double.activity_register_callbacks = refusing  # type: ignore[method-assign,assignment] # a double
    return double


def refusing(*_: object) -> None:
    message = "only CUDA 13.0 or later driver is supported"
    raise RuntimeError(message)


@pytest.mark.parametrize("row", OF_CUPTI, ids=named)
def test_a_machine_with_cupti_has_the_source_of_its_row(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens or refuses, alone or next to others, for each version of cupti-python."""
    real = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "torch" else find_spec(name),
    )
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for version in row.versions:
        text = ".".join(map(str, (*version, 0, 1)[:3]))
        monkeypatch.setattr("importlib.metadata.version", lambda _, text=text: text)
        assert missing() is None
        double = double_of(real, row, version)
        collector = ActivityCollector(lambda: None, cupti=double, environment={})
        if "events" in row.sources:
            with pytest.raises(CollectorUnavailableError, match="CUDA 13") as refused:
                collector.open()
            assert refused.value.remedy == install_older()
            assert "cupti-cu12" in row.timed_by
        else:
            collector.open()
            assert row.sources == {"cupti"}
            assert collector.calls.shared == ("next to other users" in row.timed_by)
            collector.close()


@pytest.mark.parametrize("row", WITHOUT, ids=named)
def test_a_machine_without_cupti_has_the_source_of_its_row(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events where the framework names its stream, and else the host."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert missing() is not None
    loaded: Any = {"jax": ModuleType("jax")} if "jax" in row.torch else {}
    try:
        CurrentStream(loaded)()
    except CollectError:
        assert row.sources == {"cupti", "host"}
    else:
        assert row.sources == {"events"}


@pytest.mark.parametrize("row", OF_OTHERS, ids=named)
def test_a_machine_of_another_vendor_has_the_source_of_its_row(row: Row) -> None:
    """Events of torch, or of its backend; Apple's backend has no stream."""
    for kind in (kind for vendor, kind in BACKENDS.items() if vendor in row.driver):
        events = TorchEvents(*of_torch(kind, older="before" in row.torch))
        try:
            events.stream()
            events.create()
        except CollectError:
            assert row.sources == {"host"}
        else:
            assert row.sources == {"events"}


def of_torch(kind: str, *, older: bool) -> tuple[TorchRuntime, Any]:
    """Return the runtime and the modules of a process whose torch has a device."""
    streams = {"current_stream": lambda: "stream"} if kind != "mps" else {}
    backend = SimpleNamespace(
        is_initialized=lambda: True, Event=lambda **_: "event", **streams
    )
    hip = "6.2" if kind == "cuda" else None
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None, hip=hip))
    setattr(torch, kind, backend)
    if not older:
        torch.Event = lambda **_: "event"
        torch.accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type=kind),
            current_stream=lambda: "stream",
        )
    loaded: Any = {"torch": torch}
    return TorchRuntime(loaded), loaded
