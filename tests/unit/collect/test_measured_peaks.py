"""collect.measured_peaks: peaks that are measured, and the file that keeps them."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.framework import FakeFramework
from pytest_gpuperf.collect import measured_peaks as measuring
from pytest_gpuperf.collect.measured_peaks import (
    FILE_VARIABLE,
    find_framework,
    measure_peaks,
    peaks_file,
    store_peaks,
    stored_peaks,
)
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorUnavailableError,
)
from pytest_gpuperf.model.environment import Device

VALUES = {"dram": 4.1e12, "bf16": 7.4e14}


def gpu(uuid: str = "GPU-a", driver: str = "580.1") -> Device:
    return Device(index=0, uuid=uuid, name="NVIDIA H200", driver_version=driver)


# measuring


def test_a_copy_reads_and_writes() -> None:
    """Both ways count for the bandwidth, and the slow first calls do not."""
    clock = FakeClock()
    framework = FakeFramework(clock, bytes_per_s=1e12, flop_per_s={"bf16": 8e14})

    assert measure_peaks(framework, clock) == {
        "dram": pytest.approx(2e12, rel=1e-4),
        "bf16": pytest.approx(8e14, rel=1e-4),
    }


class Cached(FakeFramework):
    """Copies that fit twice into an L2 of 4000 bytes are five times as fast."""

    def copier(self, size_bytes: int) -> Callable[[], object]:
        sizes.append(size_bytes)
        return super().copier(size_bytes if size_bytes > 2000 else size_bytes // 5)


sizes: list[int] = []


def test_copies_inside_the_l2_are_timed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Source and target are half of it; one copy would be too short to be timed."""
    sizes.clear()
    monkeypatch.setattr(measuring, "_COPY_BYTES", 1_000_000)
    clock = FakeClock()
    framework = Cached(clock, bytes_per_s=1e9)

    assert measure_peaks(framework, clock, l2_bytes=4000) == {
        "dram": pytest.approx(2e9, rel=1e-2),
        "l2": pytest.approx(1e10, rel=1e-2),
    }
    assert sizes == [1_000_000, 1000]
    assert "l2" not in measure_peaks(framework, clock, l2_bytes=None)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError("full")])
def test_a_framework_that_fails_says_what_it_said(error: Exception) -> None:
    """Nothing is kept of a device that ran out of memory half-way."""
    clock = FakeClock()
    framework = FakeFramework(clock)
    framework.failing = error

    with pytest.raises(CollectError, match=f"fake could not measure: {error}"):
        measure_peaks(framework, clock)


def test_without_a_framework_each_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says of torch and of cupy why they cannot measure."""
    monkeypatch.setitem(sys.modules, "torch", None)
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))

    with pytest.raises(CollectorUnavailableError) as caught:
        find_framework()

    assert "torch is not installed" in str(caught.value)
    assert "cupy finds no NVIDIA GPU" in str(caught.value)


class Tensor:
    """An array that remembers what was done with it."""

    def __init__(self, log: list[tuple[object, ...]], kind: str) -> None:
        self.log = log
        self.kind = kind

    def to(self, kind: str) -> Tensor:
        return Tensor(self.log, kind)

    def astype(self, kind: str) -> Tensor:
        return Tensor(self.log, kind)

    def copy_(self, source: Tensor) -> None:
        self.log.append(("copy", source.kind))


def fake_torch(capability: tuple[int, int]) -> Any:
    """Return the part of torch that is used, with a log of what it did."""
    log: list[tuple[object, ...]] = []
    matmul = types.SimpleNamespace(allow_tf32=False)
    torch = types.SimpleNamespace(
        log=log,
        uint8="uint8",
        float32="float32",
        bfloat16="bfloat16",
        float16="float16",
        version=types.SimpleNamespace(cuda="13.0"),
        backends=types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=matmul)),
        cuda=types.SimpleNamespace(
            is_available=lambda: True,
            get_device_capability=lambda: capability,
            synchronize=lambda: log.append(("synchronize",)),
        ),
        empty=lambda size, dtype, device: Tensor(log, f"{size} {dtype} {device}"),
        empty_like=lambda other: Tensor(log, other.kind),
        randn=lambda *shape, device: Tensor(log, f"{shape} {device}"),
    )
    torch.matmul = lambda a, b: log.append((a.kind, b.kind, matmul.allow_tf32))
    return torch


def test_torch_multiplies_in_the_type_that_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TF32 is switched on for its own product alone, and switched back."""
    torch = fake_torch((9, 0))
    monkeypatch.setitem(sys.modules, "torch", torch)
    framework = find_framework()
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        multiply = framework.multiplier(64, dtype)
        assert multiply is not None
        multiply()
    framework.copier(10)()
    framework.synchronize()

    assert framework.name == "torch"
    assert torch.log == [
        ("float32", "float32", False),
        ("float32", "float32", True),
        ("bfloat16", "bfloat16", False),
        ("float16", "float16", False),
        ("copy", "10 uint8 cuda"),
        ("synchronize",),
    ]
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_an_old_gpu_has_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 8.0 torch would compute it otherwise, under the same name."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch((7, 5)))
    framework = find_framework()

    assert framework.multiplier(64, "tf32") is None
    assert framework.multiplier(64, "bf16") is None
    assert framework.multiplier(64, "fp16") is not None


def test_cupy_is_asked_where_torch_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It copies and multiplies in the types that it has."""
    log: list[tuple[object, ...]] = []
    cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            is_available=lambda: True,
            runtime=types.SimpleNamespace(is_hip=False),
            get_current_stream=lambda: types.SimpleNamespace(
                synchronize=lambda: log.append(("synchronize",))
            ),
        ),
        random=types.SimpleNamespace(rand=lambda *shape: Tensor(log, str(shape))),
        zeros=lambda size, dtype: Tensor(log, f"{size} {dtype}"),
        empty_like=lambda other: Tensor(log, other.kind),
        copyto=lambda target, source: log.append((target.kind, source.kind)),
        matmul=lambda a, b: log.append((a.kind, b.kind)),
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    framework = find_framework()
    framework.copier(10)()
    half = framework.multiplier(64, "fp16")
    assert half is not None
    half()
    framework.synchronize()

    assert framework.name == "cupy"
    assert framework.multiplier(64, "bf16") is None
    assert log == [
        ("10 uint8", "10 uint8"),
        ("float16", "float16"),
        ("synchronize",),
    ]


def test_both_frameworks_are_what_measuring_needs() -> None:
    """The double and the wrappers have every name of the seam."""
    wanted = {n for n in vars(measuring.ArrayFramework) if not n.startswith("_")}

    for kind in (FakeFramework, measuring._Torch, measuring._Cupy):
        assert wanted <= set(dir(kind))


# keeping


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    """By the GPU's UUID; other GPUs of the file stay, and measuring again replaces."""
    file = tmp_path / "folder" / "peaks.json"

    assert store_peaks(gpu(), VALUES, file) == file
    store_peaks(gpu("GPU-b"), {"dram": 1.0}, file)
    store_peaks(gpu("GPU-b"), {"fp32": 2.0}, file)

    assert stored_peaks(gpu(), file).values == VALUES
    assert stored_peaks(gpu("GPU-b"), file).values == {"fp32": 2.0}
    assert [path.name for path in file.parent.iterdir()] == ["peaks.json"]


def test_a_gpu_that_was_not_measured_has_nothing(tmp_path: Path) -> None:
    """Neither a missing file nor another GPU's entry is worth a word."""
    file = tmp_path / "peaks.json"
    assert stored_peaks(gpu(), file) == stored_peaks(gpu("GPU-b"), file)

    store_peaks(gpu(), VALUES, file)
    found = stored_peaks(gpu("GPU-b"), file)
    assert (found.values, found.reason) == ({}, "")


def test_another_driver_was_not_measured(tmp_path: Path) -> None:
    """Its peaks are not taken, and the reason names both drivers."""
    file = tmp_path / "peaks.json"
    store_peaks(gpu(), VALUES, file)
    found = stored_peaks(gpu(driver="581.2"), file)

    assert found.values == {}
    assert "580.1" in found.reason
    assert "581.2" in found.reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "pytest-gpuperf/peaks/1"}',
        '{"schema": "pytest-gpuperf/peaks/2", "gpus": {}}',
        '{"schema": "pytest-gpuperf/peaks/1", "gpus": {"GPU-a": {}}}',
        '{"schema": "pytest-gpuperf/peaks/1", "gpus": {"GPU-a": {"driver": "1"}}}',
        (
            '{"schema": "pytest-gpuperf/peaks/1", "gpus":'
            ' {"GPU-a": {"driver": "1", "values": {"dram": 0}}}}'
        ),
        (
            '{"schema": "pytest-gpuperf/peaks/1", "gpus":'
            ' {"GPU-a": {"driver": "1", "values": {"dram": NaN}}}}'
        ),
        (
            '{"schema": "pytest-gpuperf/peaks/1", "gpus":'
            ' {"GPU-a": {"driver": "1", "values": {"rate": 1}}}}'
        ),
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_such_file_is_a_reason(
    tmp_path: Path, text: str | bytes
) -> None:
    """Nothing is taken from it, it stops no test, and it is never overwritten."""
    file = tmp_path / "peaks.json"
    content = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    found = stored_peaks(gpu(), file)

    assert found.values == {}
    assert str(file) in found.reason
    with pytest.raises(CaptureFormatError):
        store_peaks(gpu(), VALUES, file)
    assert file.read_bytes() == content


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may do anything")
def test_a_folder_that_is_shut_is_an_error(tmp_path: Path) -> None:
    """What was measured is not silently lost."""
    tmp_path.chmod(0o500)

    with pytest.raises(CollectError, match="cannot be written"):
        store_peaks(gpu(), VALUES, tmp_path / "peaks.json")


def test_a_name_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    """The file beside it that would replace it cannot be made, and none is left."""
    with pytest.raises(CollectError, match="cannot be written"):
        store_peaks(gpu(), VALUES, tmp_path / ("x" * 250))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    """A file cannot stand there, and no part of one is left behind."""
    with pytest.raises(CollectError, match="cannot be"):
        store_peaks(gpu(), VALUES, tmp_path)
    assert stored_peaks(gpu(), tmp_path).reason


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It would never answer; the reason says how to name another file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert "it is a folder or a device" in stored_peaks(gpu(), pipe).reason
    with pytest.raises(CollectError, match="it is a folder or a device") as caught:
        store_peaks(gpu(), VALUES, pipe)
    assert FILE_VARIABLE in caught.value.remedy


def test_a_file_where_a_folder_should_be_is_an_error(tmp_path: Path) -> None:
    """The folder cannot be made, and nothing is left behind."""
    (tmp_path / "file").write_text("x", "utf-8")

    with pytest.raises(CollectError):
        store_peaks(gpu(), VALUES, tmp_path / "file" / "peaks.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_file_stands_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user names one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    if sys.platform == "linux":
        assert peaks_file() == tmp_path / "pytest-gpuperf" / "peaks.json"

    monkeypatch.setenv(FILE_VARIABLE, "mine.json")

    assert peaks_file() == Path("mine.json")


def test_the_file_is_not_written_through_a_link_beside_it(tmp_path: Path) -> None:
    """Whoever shares the folder may have guessed the name of the unfinished file."""
    file, victim = tmp_path / "peaks.json", tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    (tmp_path / f".peaks.json.{os.getpid()}.tmp").symlink_to(victim)
    store_peaks(gpu(), VALUES, file)

    assert victim.read_text("utf-8") == "precious"
    assert stored_peaks(gpu(), file).values == VALUES


def test_the_file_is_readable_by_people(tmp_path: Path) -> None:
    """It names the GPU and the driver beside the numbers."""
    file = store_peaks(gpu(), VALUES, tmp_path / "peaks.json")

    assert json.loads(file.read_text("utf-8"))["gpus"]["GPU-a"] == {
        "driver": "580.1",
        "name": "NVIDIA H200",
        "values": VALUES,
    }
