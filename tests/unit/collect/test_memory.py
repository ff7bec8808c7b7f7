"""collect.memory: what a call takes of a device's memory, by the allocators' own counts."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.memory import (
    CupyPool,
    MemoryUse,
    MemoryWatch,
    TorchPool,
    fits_on_device,
    release_unused,
)

MIB = 1 << 20


class Device:
    """The memory of one device, as torch's and cupy's allocators count it."""

    def __init__(self) -> None:
        self.used = 0
        self.peak = 0
        self.driver_calls = 0
        self.cached = 0

    def take(self, size: int, *, from_driver: bool = True) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)
        self.driver_calls += from_driver

    def give_back(self, size: int) -> None:
        self.used -= size


class FakeTorch(types.ModuleType):
    """torch, of which one backend has started some devices."""

    def __init__(
        self, *devices: Device, backend: str = "cuda", ready: bool = True
    ) -> None:
        super().__init__("torch")
        self.ready = ready
        self.stats: Callable[[int], dict[str, int]] = lambda index: {
            "num_device_alloc": devices[index].driver_calls
        }

        def reset(index: int) -> None:
            devices[index].peak = devices[index].used

        def empty() -> None:
            for device in devices:
                device.cached = 0

        part = types.SimpleNamespace(
            empty_cache=empty,
            is_initialized=lambda: self.ready,
            device_count=lambda: len(devices),
            reset_peak_memory_stats=reset,
            max_memory_allocated=lambda index: devices[index].peak,
            memory_allocated=lambda index: devices[index].used,
            memory_stats=lambda index: self.stats(index),  # noqa: PLW0108 - set later
        )
        setattr(self, backend, part)


class MemoryHook:
    """cupy's hook, as far as a thread's list of hooks goes."""

    name = "MemoryHook"
    installed: dict[str, MemoryHook] = {}  # noqa: RUF012 - one list, as in cupy

    def __enter__(self) -> MemoryHook:  # noqa: PYI034 - typing_extensions is no need
        if self.name in self.installed:
            raise KeyError(self.name)
        self.installed[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self.installed[self.name]

    def alloc_postprocess(self, **_: object) -> None:
        pass

    def malloc_postprocess(self, **_: object) -> None:
        pass

    def free_postprocess(self, **_: object) -> None:
        pass


class FakeCupy:
    """cupy: a pool that calls the hooks, with the arguments that cupy gives them."""

    def __init__(self, used: int = 0) -> None:
        MemoryHook.installed.clear()
        self.used = used
        self.total = used
        pool = types.SimpleNamespace(
            used_bytes=lambda: self.used,
            total_bytes=lambda: self.total,
            free_all_blocks=lambda: setattr(self, "total", self.used),
        )
        cupy = types.ModuleType("cupy")
        vars(cupy).update(get_default_memory_pool=lambda: pool)
        hooks = types.ModuleType("cupy.cuda.memory_hook")
        vars(hooks).update(MemoryHook=MemoryHook)
        self.modules = {"cupy": cupy, "cupy.cuda.memory_hook": hooks}

    def take(self, size: int, *, from_driver: bool = True) -> None:
        self.used += size
        self.total = max(self.total, self.used)
        for hook in list(MemoryHook.installed.values()):
            if from_driver:
                hook.alloc_postprocess(device_id=0, mem_size=size, mem_ptr=1)
            hook.malloc_postprocess(
                device_id=0, size=size, mem_size=size, mem_ptr=1, pmem_id=1
            )

    def give_back(self, size: int) -> None:
        self.used -= size
        for hook in list(MemoryHook.installed.values()):
            hook.free_postprocess(device_id=0, mem_size=size, mem_ptr=1, pmem_id=1)


def torch_watch(torch: FakeTorch) -> MemoryWatch:
    modules: dict[str, Any] = {"torch": torch}
    return MemoryWatch((TorchPool(modules), CupyPool(modules)))


def test_nothing_is_imported_to_find_out() -> None:
    """A process without a framework stays one, and says so."""
    before = set(sys.modules)
    watch = MemoryWatch((TorchPool({}), CupyPool({})))
    watch.begin(calling=True)
    use = watch.end()

    assert use == MemoryUse(reason="no framework in this process holds device memory")
    assert set(sys.modules) == before


@pytest.mark.parametrize("backend", ["cuda", "xpu"])
def test_the_peak_is_that_of_the_fullest_device(backend: str) -> None:
    """With what was there before, and without what came and went before."""
    first, second = Device(), Device()
    first.take(5 * MIB)
    second.take(90 * MIB)
    second.give_back(90 * MIB)
    watch = torch_watch(FakeTorch(first, second, backend=backend))

    watch.begin(calling=True)
    first.take(7 * MIB)
    second.take(10 * MIB)
    first.give_back(7 * MIB)
    second.give_back(10 * MIB)
    use = watch.end()

    assert use.source == "torch"
    assert (use.peak_bytes, use.leaked_bytes) == (12 * MIB, 0)
    assert use.allocations_count == 2
    assert use.reason == ""


def test_what_is_left_is_leaked() -> None:
    """What a call keeps beyond what was there; what it freed of before is not a leak."""
    device = Device()
    device.take(MIB)
    watch = torch_watch(FakeTorch(device))
    watch.begin(calling=True)
    device.take(3 * MIB)
    assert watch.end().leaked_bytes == 3 * MIB

    watch.begin(calling=True)
    device.give_back(MIB)
    assert watch.end().leaked_bytes == 0


@pytest.mark.parametrize(("beside", "peak"), [(True, 6 * MIB), (False, 8 * MIB)])
def test_the_result_of_an_earlier_call_is_none_of_this_ones_peak(
    *, beside: bool, peak: int
) -> None:
    """It takes as much as this call's own result gives back."""
    device = Device()
    device.take(3 * MIB)  # 1 of inputs, and 2 of the result that is kept

    class Result:
        def __init__(self) -> None:
            device.take(2 * MIB)

        def __del__(self) -> None:
            device.give_back(2 * MIB)

    watch = torch_watch(FakeTorch(device))
    watch.begin(calling=True)
    result: list[object] = [Result()]
    device.take(3 * MIB)  # a workspace
    device.give_back(3 * MIB)
    watch.release_result(result, earlier_alive=beside)
    use = watch.end()

    assert result == []
    assert (use.peak_bytes, use.leaked_bytes) == (peak, 0)


def test_garbage_is_no_leak() -> None:
    """A cycle that holds memory is collected first; where nothing is left, nothing is."""
    device = Device()
    watch = torch_watch(FakeTorch(device))

    class Tensor:
        def __init__(self) -> None:
            self.itself = self
            device.take(MIB)

        def __del__(self) -> None:
            device.give_back(MIB)

    was_on = gc.isenabled()
    gc.disable()
    try:
        watch.begin(calling=True)
        Tensor()
        assert device.used == MIB
        use = watch.end()
    finally:
        if was_on:
            gc.enable()
    assert (use.leaked_bytes, use.peak_bytes) == (0, MIB)


def test_a_framework_that_started_meanwhile_had_nothing_before() -> None:
    """The first use of the device may lie in what is watched."""
    device = Device()
    torch = FakeTorch(device, ready=False)
    watch = torch_watch(torch)
    watch.begin(calling=False)
    torch.ready = True
    device.take(2 * MIB)

    use = watch.end()
    assert (use.peak_bytes, use.leaked_bytes, use.allocations_count) == (
        2 * MIB,
        2 * MIB,
        1,
    )


def test_a_watch_inside_another_leaves_it_its_peak() -> None:
    """The inner one begins the peak anew: the outer one keeps what was before."""
    device = Device()
    torch = FakeTorch(device)
    outer, inner = torch_watch(torch), torch_watch(torch)
    outer.begin(calling=False)
    device.take(8 * MIB)
    device.give_back(8 * MIB)
    outer.keep()
    inner.begin(calling=False)
    device.take(MIB)

    assert inner.end().peak_bytes == MIB
    assert outer.end().peak_bytes == 8 * MIB


@pytest.mark.parametrize("error", [AttributeError, KeyError, RuntimeError])
def test_an_allocator_that_does_not_count_is_no_zero(error: type[Exception]) -> None:
    """torch with a plugged-in allocator raises; the number is unknown then, by name."""
    device = Device()
    torch = FakeTorch(device)

    def refuse(index: int) -> dict[str, int]:
        raise error(index)

    torch.stats = refuse
    watch = torch_watch(torch)
    watch.begin(calling=True)
    device.take(MIB)
    use = watch.end()

    assert use.allocations_count is None
    assert use.reason == "torch does not count it here"
    assert use.peak_bytes == MIB


def test_cupys_peak_is_counted_by_a_hook_where_no_time_is_taken() -> None:
    """The hook is there for the call alone."""
    cupy = FakeCupy(used=4 * MIB)
    watch = MemoryWatch((CupyPool(cupy.modules),))
    watch.begin(calling=True)
    cupy.take(3 * MIB)
    cupy.give_back(3 * MIB)
    cupy.take(2 * MIB, from_driver=False)
    use = watch.end()
    cupy.take(90 * MIB)

    assert MemoryHook.installed == {}
    assert use.source == "cupy"
    assert (use.peak_bytes, use.leaked_bytes) == (7 * MIB, 2 * MIB)
    assert use.allocations_count == 1


def test_no_hook_is_called_where_time_is_taken() -> None:
    """There cupy's peak is not known, and it is said; what is left is."""
    cupy = FakeCupy(used=MIB)
    watch = MemoryWatch((CupyPool(cupy.modules),))
    watch.begin(calling=False)
    assert MemoryHook.installed == {}
    cupy.take(3 * MIB)
    use = watch.end()

    assert (use.peak_bytes, use.allocations_count) == (None, None)
    assert use.leaked_bytes == 3 * MIB
    assert use.reason == "cupy does not count it here"


def test_a_hook_of_that_name_is_left_alone() -> None:
    """cupy refuses a second one; nothing is taken out that was not put in."""
    cupy = FakeCupy(used=MIB)
    theirs = MemoryHook()
    MemoryHook.installed["pytest-gpuperf"] = theirs
    watch = MemoryWatch((CupyPool(cupy.modules),))
    watch.begin(calling=True)
    use = watch.end()

    assert MemoryHook.installed == {"pytest-gpuperf": theirs}
    assert use.peak_bytes is None


def test_what_raised_leaves_no_hook() -> None:
    """The next count begins without it, and it is taken out once only."""
    cupy = FakeCupy(used=MIB)
    watch = MemoryWatch((CupyPool(cupy.modules),))
    watch.begin(calling=True)
    watch.cancel()
    watch.cancel()
    assert MemoryHook.installed == {}

    watch.begin(calling=True)
    watch.begin(calling=True)  # nobody ended it
    assert len(MemoryHook.installed) == 1
    watch.end()
    assert MemoryHook.installed == {}


def test_allocators_of_one_process_are_added() -> None:
    """Their peaks need not have been at the same time: that is said."""
    device, cupy = Device(), FakeCupy(used=MIB)
    modules: dict[str, Any] = {"torch": FakeTorch(device), **cupy.modules}
    watch = MemoryWatch((TorchPool(modules), CupyPool(modules)))
    watch.begin(calling=True)
    device.take(2 * MIB)
    cupy.take(3 * MIB)
    use = watch.end()

    assert use.source == "torch+cupy"
    assert (use.peak_bytes, use.leaked_bytes) == (6 * MIB, 5 * MIB)
    assert [note.code for note in use.notes] == ["added-peaks"]


@given(st.lists(st.integers(min_value=-64, max_value=64), max_size=40))
def test_the_peak_is_no_less_than_what_is_left(changes: list[int]) -> None:
    """Whatever was taken and given back: peak >= in use at the end >= leaked >= 0."""
    device = Device()
    device.take(MIB)
    watch = torch_watch(FakeTorch(device))
    watch.begin(calling=True)
    for change in changes:
        if change >= 0:
            device.take(change)
        else:
            device.give_back(min(-change, device.used))
    use = watch.end()

    assert use.peak_bytes is not None
    assert use.leaked_bytes == max(0, device.used - MIB)
    assert use.peak_bytes >= max(device.used, MIB)


# memory for other processes


def test_what_frameworks_hold_unused_is_given_back() -> None:
    """Caches of every device, and the pool's free blocks; what is in use stays."""
    devices = (Device(), Device())
    cupy = FakeCupy(used=4 * MIB)
    cupy.total = 9 * MIB
    for device in devices:
        device.cached = 3 * MIB
    torch = TorchPool({"torch": FakeTorch(*devices)})
    release_unused((torch, CupyPool(cupy.modules)))

    assert [device.cached for device in devices] == [0, 0]
    assert (cupy.used, cupy.total) == (4 * MIB, 4 * MIB)


def test_a_framework_that_has_no_device_is_left_alone() -> None:
    """Nothing is started for it, and nothing is collected."""
    device = Device()
    device.cached = MIB
    release_unused((TorchPool({"torch": FakeTorch(device, ready=False)}), CupyPool({})))

    assert device.cached == MIB


@pytest.mark.parametrize(
    ("peak_gib", "free_gib", "most_count"),
    [(9, 40, 4), (9, 39, 3), (39, 40, 1), (40, 40, 0), (None, 1, 4), (99, None, 4)],
)
def test_a_device_holds_processes_with_their_contexts(
    peak_gib: int | None, free_gib: int | None, most_count: int
) -> None:
    """Each has the peak of the largest test and 1 GiB; what nobody knows, fits."""
    peak_bytes = None if peak_gib is None else peak_gib << 30
    free_bytes = None if free_gib is None else free_gib << 30
    fitting = [
        count
        for count in range(1, 5)
        if fits_on_device(count, peak_bytes=peak_bytes, free_bytes=lambda: free_bytes)
    ]

    assert fitting == [*range(1, most_count + 1)]
