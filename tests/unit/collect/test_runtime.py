"""Rules of collect.runtime."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.cuda_device import CudaRuntime, DriverFacts
from pytest_gpuperf.collect.runtime import NoDevice, find_runtime
from pytest_gpuperf.collect.torch_device import TorchRuntime
from pytest_gpuperf.errors import CollectError


def runtime_of(driver: FakeDriver | None) -> CudaRuntime:
    """Return a runtime on a driver that has been loaded, or has not."""
    return CudaRuntime(lambda: driver)


def test_no_device_is_never_active() -> None:
    """A machine without a device waits for nothing and names nothing."""
    runtime = NoDevice()
    runtime.synchronize()
    runtime.flush_l2()

    assert not runtime.active()
    assert runtime.device_uuid() is None


def test_a_driver_that_nobody_loaded_is_not_active() -> None:
    """As long as the library is not in the process, nothing is called."""
    runtime = runtime_of(None)
    runtime.synchronize()
    runtime.flush_l2()

    assert not runtime.active()
    assert runtime.device_uuid() is None


def test_a_driver_is_found_as_soon_as_it_is_loaded() -> None:
    """The library is asked for again until it is there, then never more."""
    answers = [None, FakeDriver(), None]
    runtime = CudaRuntime(lambda: answers.pop(0))

    assert [runtime.active() for _ in range(4)] == [False, True, True, True]


@pytest.mark.parametrize("how", ["no context", "not initialised"])
def test_without_a_context_there_is_nothing_to_wait_for(how: str) -> None:
    """No context is made: without one the driver gets no other call."""
    driver = FakeDriver(context=None if how == "no context" else 0x1000)
    if how == "not initialised":
        driver.failing["cuCtxGetCurrent"] = 3
    runtime = runtime_of(driver)
    runtime.synchronize()
    runtime.flush_l2()

    assert not runtime.active()
    assert driver.calls == []


def test_synchronize_waits_for_the_context() -> None:
    """With a context, synchronising is the driver's."""
    driver = FakeDriver()
    runtime_of(driver).synchronize()

    assert driver.calls == [("cuCtxSynchronize",)]


def two_devices(**how: Any) -> FakeDriver:
    """Return a driver whose devices 3 and 1 are in use, the first by this thread."""
    driver = FakeDriver(**how)
    driver.primaries = {1: 0x2000, 3: 0x1000}
    return driver


def found(driver: FakeDriver) -> CudaRuntime:
    """Return a runtime that has found the devices in use."""
    runtime = runtime_of(driver)
    assert runtime.active()
    return runtime


@pytest.mark.parametrize("own_context", [0x1000, 0x9000, None])
def test_every_device_in_use_is_waited_for(own_context: int | None) -> None:
    """Whatever context this thread has: one device's own, one it made, or none."""
    driver = two_devices(context=own_context)
    for handle in (0x1000, 0x2000, 0x9000):
        driver.launch(handle, context=handle)
    found(driver).synchronize()

    assert driver.clock.now_ns() >= (0x9000 if own_context == 0x9000 else 0x2000)
    assert driver.context == own_context
    assert not +driver.retained


def test_a_device_that_this_process_does_not_use_is_left_alone() -> None:
    """On it no context is made, and nothing is waited for."""
    driver = FakeDriver()
    driver.primaries = {3: 0x1000}
    found(driver).synchronize()

    assert driver.calls == [("cuCtxSynchronize",)]
    assert set(driver.retained) <= {3}


def test_a_device_in_use_is_found_anew() -> None:
    """One that a call has started is waited for once it was looked for."""
    driver = FakeDriver()
    driver.primaries = {3: 0x1000}
    runtime = found(driver)
    driver.primaries[1] = 0x2000
    driver.launch(5_000, context=0x2000)
    runtime.active()
    runtime.synchronize()

    assert driver.clock.now_ns() == 5_000


def test_a_device_that_was_reset_is_not_waited_for() -> None:
    """Its context is gone, and is not made again."""
    driver = two_devices()
    runtime = found(driver)
    del driver.primaries[1]
    runtime.synchronize()

    assert driver.calls == [("cuCtxSynchronize",)]


def test_an_error_of_another_device_leaves_the_context_as_it_was() -> None:
    """Verdict: an error, and the test's own context is current again."""
    driver = two_devices(context=None)
    runtime = found(driver)
    driver.failing["cuCtxSynchronize"] = 700

    with pytest.raises(CollectError, match="cuCtxSynchronize failed"):
        runtime.synchronize()
    assert driver.context is None


def test_a_flush_reaches_every_device_in_use() -> None:
    """Each has an L2 of its own, and a buffer in its own context."""
    driver = two_devices()
    runtime = found(driver)
    runtime.flush_l2()
    runtime.flush_l2()
    names = [call[0] for call in driver.calls]

    assert names.count("cuMemAlloc_v2") == 2
    assert names.count("cuMemsetD8_v2") == 4


def test_a_thread_without_a_context_uses_what_others_use() -> None:
    """Worker threads of a framework have the context: the device is in use all the same."""
    driver = two_devices(context=None)
    driver.uuids = [[0] * 16, list(range(16)), [2] * 16, [3] * 16]
    runtime = found(driver)

    assert runtime.device_uuid() == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert runtime.free_bytes() == 1 << 30


@pytest.mark.parametrize(("code", "free_bytes"), [(0, 1 << 30), (2, None)])
def test_the_driver_tells_the_free_memory(code: int, free_bytes: int | None) -> None:
    """It is not known without a context, nor where the driver refuses: no error."""
    driver = FakeDriver()
    driver.failing["cuMemGetInfo_v2"] = code

    assert runtime_of(driver).free_bytes() == free_bytes
    assert runtime_of(FakeDriver(context=None)).free_bytes() is None
    assert runtime_of(None).free_bytes() is None
    assert NoDevice().free_bytes() is None


def test_flush_overwrites_twice_the_l2() -> None:
    """The buffer has 2 x L2, is kept, and persisting lines are reset each time."""
    driver = FakeDriver(l2_bytes=1024)
    runtime = runtime_of(driver)
    runtime.flush_l2()
    runtime.flush_l2()

    flush = [("cuCtxResetPersistingL2Cache",), ("cuMemsetD8_v2", 0xABC0, 0, 2048)]
    assert driver.calls == [
        ("cuDeviceGetAttribute", 38, 3),
        ("cuMemAlloc_v2", 2049),
        *flush,
        *flush,
    ]


def test_a_device_without_persisting_lines_is_flushed_all_the_same() -> None:
    """Before compute capability 8.0 the driver answers 801: there is nothing to reset."""
    driver = FakeDriver(l2_bytes=1024)
    driver.failing["cuCtxResetPersistingL2Cache"] = 801
    runtime_of(driver).flush_l2()

    assert driver.calls[-1] == ("cuMemsetD8_v2", 0xABC0, 0, 2048)


def test_each_context_has_its_own_buffer() -> None:
    """A buffer belongs to its context: another context gets another."""
    driver = FakeDriver()
    runtime = runtime_of(driver)
    runtime.flush_l2()
    driver.context = 0x2000
    runtime.flush_l2()

    assert [call[0] for call in driver.calls].count("cuMemAlloc_v2") == 2


@pytest.mark.parametrize("allocated_bytes", [0, 1024, 2048, 4096])
def test_a_device_that_was_reset_gets_another_buffer(allocated_bytes: int) -> None:
    """The context has its old handle: what lies at the old address is not overwritten."""
    driver = FakeDriver(l2_bytes=1024)
    runtime = runtime_of(driver)
    runtime.flush_l2()
    driver.reset(allocated_bytes=allocated_bytes)
    runtime.flush_l2()

    assert [call[0] for call in driver.calls if "Mem" in str(call[0])] == [
        *("cuMemAlloc_v2", "cuMemsetD8_v2"),
        *("cuMemAlloc_v2", "cuMemsetD8_v2"),
    ]


@pytest.mark.parametrize(
    ("name", "code", "remedy"),
    [
        ("cuMemAlloc_v2", 2, 'cache="warm"'),
        ("cuMemsetD8_v2", 900, "the replay of a graph"),
        ("cuMemsetD8_v2", 908, "the replay of a graph"),
        ("cuMemsetD8_v2", 700, "CUDA_LAUNCH_BLOCKING=1"),
        ("cuMemsetD8_v2", 909, "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_the_remedy_is_that_of_the_code(name: str, code: int, remedy: str) -> None:
    """Full memory, a capture and a failed kernel are mended in different ways."""
    driver = FakeDriver()
    driver.failing[name] = code

    with pytest.raises(CollectError) as caught:
        runtime_of(driver).flush_l2()
    assert remedy in (caught.value.remedy or "")


def test_the_device_is_named_as_nvml_names_it() -> None:
    """The UUID has NVML's form, so that it finds its Device."""
    uuid = runtime_of(FakeDriver()).device_uuid()

    assert uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("code", "name"), [(2, "CUDA_ERROR_OUT_OF_MEMORY"), (9999, "an unknown error")]
)
def test_an_error_code_becomes_an_error(code: int, name: str) -> None:
    """The error names the function, the driver's word and its number."""
    driver = FakeDriver()
    driver.failing["cuCtxSynchronize"] = code

    with pytest.raises(CollectError, match=rf"cuCtxSynchronize failed with {name} \("):
        runtime_of(driver).synchronize()


def test_a_driver_on_its_way_out_is_no_error() -> None:
    """At the process's end the driver says that it is gone: nothing is left to wait for."""
    driver = FakeDriver()
    driver.failing["cuCtxSynchronize"] = 4

    runtime_of(driver).synchronize()


def test_finding_a_runtime_loads_no_library() -> None:
    """Looking for CUDA in a fresh process leaves it as it was."""
    script = (
        "import sys; from pytest_gpuperf.collect.runtime import find_runtime;"
        "r = find_runtime(); print(r.active());"
        "print(sorted({'torch', 'cupy', 'numpy', 'pynvml'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split("\n")[:2] == ["False", "[]"]


def test_mac_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is torch's device at most, which nobody has started here."""
    monkeypatch.setattr(sys, "platform", "darwin")

    assert isinstance(find_runtime(), TorchRuntime)
    assert not find_runtime().active()


FACTS = {13: 1_980_000, 16: 132, 18: 0, 36: 3_201_000, 37: 6016, 38: 62_914_560}


def test_the_driver_says_what_a_device_is() -> None:
    """Attributes in kHz become Hz; a device is found by its UUID, not its place."""
    driver = FakeDriver(context=None)
    driver.attributes = dict(FACTS)
    driver.uuids = [[0] * 16, list(range(16))]
    runtime = runtime_of(driver)

    assert runtime.facts_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == DriverFacts(
        name="NVIDIA H200",
        sm_count=132,
        rated_clock_hz=1_980_000_000,
        memory_clock_hz=3_201_000_000,
        memory_bus_bits=6016,
        l2_bytes=62_914_560,
        integrated=False,
    )
    assert ("cuDeviceGetName", 1) in driver.calls
    assert runtime.facts_of("GPU-ffffffff-0405-0607-0809-0a0b0c0d0e0f") is None


def test_what_the_driver_refuses_is_none() -> None:
    """An attribute that is refused, or zero where zero means nothing, is not known."""
    driver = FakeDriver()
    driver.attributes = {13: 0, 18: 1}
    facts = runtime_of(driver).facts_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")

    assert facts == DriverFacts(
        name="NVIDIA H200",
        sm_count=None,
        rated_clock_hz=None,
        memory_clock_hz=None,
        memory_bus_bits=None,
        l2_bytes=None,
        integrated=True,
    )


def test_the_real_driver_is_loaded_or_not_there() -> None:
    """Loading it in a process of its own never raises, with a driver and without."""
    program = (
        "from pytest_gpuperf.collect.cuda_device import CudaRuntime, load_driver\n"
        "print(CudaRuntime(load_driver).facts_of('GPU-0'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, text=True
    )

    assert (done.stdout, done.stderr) == ("None\n", "")


@pytest.mark.parametrize("how", ["not loaded", "not started"])
def test_a_driver_that_nobody_started_says_nothing(how: str) -> None:
    """It is not started for its facts: a started driver does not survive a fork."""
    driver = FakeDriver()
    driver.failing["cuDeviceGetCount"] = 3
    runtime = runtime_of(None if how == "not loaded" else driver)

    assert runtime.facts_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") is None
    assert NoDevice().facts_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") is None
