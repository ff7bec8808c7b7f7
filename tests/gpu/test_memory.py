"""Peak and leak of device memory, beside what a framework says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpu.machine import framework
from pytest_gpuperf.collect.memory import CupyPool, MemoryWatch, TorchPool

MIB = 1 << 20


def test_the_peak_is_what_was_in_use_at_a_time(torch: Any) -> None:
    """Three blocks of which two live together: the peak is that of the two."""
    watch = MemoryWatch((TorchPool(),))
    before = torch.cuda.memory_allocated()
    watch.begin(calling=True)
    first = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    second = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    del first, second
    third = torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
    del third
    use = watch.end()

    assert use.source == "torch"
    assert use.peak_bytes == before + 96 * MIB
    assert use.peak_bytes == torch.cuda.max_memory_allocated()
    assert use.leaked_bytes == 0


def test_what_stays_is_a_leak(torch: Any) -> None:
    """A tensor that somebody still holds is left behind, to the byte."""
    watch = MemoryWatch((TorchPool(),))
    watch.begin(calling=True)
    held = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    use = watch.end()

    assert use.leaked_bytes == held.numel()


def test_what_only_garbage_holds_is_none(torch: Any) -> None:
    """A tensor in a cycle is collected before anybody calls it a leak."""
    watch = MemoryWatch((TorchPool(),))
    watch.begin(calling=True)
    cycle: list[object] = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    del cycle
    use = watch.end()

    assert use.leaked_bytes == 0


def test_a_pool_that_has_enough_asks_for_nothing(torch: Any) -> None:
    """The first block of a size is one allocation of the driver, the second is none."""
    torch.cuda.empty_cache()
    watch = MemoryWatch((TorchPool(),))
    counts = []
    for _ in range(2):
        watch.begin(calling=True)
        held = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        del held
        counts.append(watch.end().allocations_count)

    assert counts == [1, 0]


def test_cupys_pool_is_counted(torch: Any) -> None:
    """The peak of cupy's pool is that of its own accounting, and nothing stays."""
    cupy = framework("cupy")
    cupy.zeros(1)
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    watch = MemoryWatch((CupyPool(),))
    watch.begin(calling=True)
    first = cupy.empty(64 * MIB, dtype=cupy.uint8)
    second = cupy.empty(32 * MIB, dtype=cupy.uint8)
    in_use = pool.used_bytes()
    del first, second
    use = watch.end()

    assert use.source == "cupy"
    assert use.peak_bytes == in_use == before + 96 * MIB
    assert use.leaked_bytes == 0


def test_two_frameworks_are_added(torch: Any) -> None:
    """torch and cupy in one process: the sum of both, and a note says so."""
    cupy = framework("cupy")
    cupy.zeros(1)
    watch = MemoryWatch()
    watch.begin(calling=True)
    held = (
        torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"),
        cupy.empty(16 * MIB, dtype=cupy.uint8),
    )
    use = watch.end()

    assert use.leaked_bytes == pytest.approx(sum(each.nbytes for each in held))
    assert [note.code for note in use.notes] == ["added-peaks"]
