"""Rules of judge.builds, model.inventory and report.builds."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.judge.builds import code_changes, code_passes, unknown_spills
from pytest_gpuperf.judge.files import FailOn
from pytest_gpuperf.model.inventory import (
    Fate,
    KernelChange,
    ListedKernel,
    inventory_text,
    read_inventory,
)
from pytest_gpuperf.report.builds import (
    change_columns,
    change_notes,
    inventory_columns,
    spill_lines,
    step_text,
)


def kernel(name: str = "gemm<64>", **facts: Any) -> ListedKernel:
    """Return a kernel with some facts."""
    usual: dict[str, Any] = {
        "kernel": name,
        "target": "sm_90",
        "registers": 64,
        "stack_bytes": 0,
        "spills_bytes": 0,
        "shared_bytes": 1024,
        "code_bytes": 4096,
        "digest": "1",
    }
    return ListedKernel(**(usual | facts))


def change(was: ListedKernel, now: ListedKernel) -> KernelChange:
    """Return the only change between two builds of one kernel."""
    (found,) = code_changes([was], [now])
    return found


MIX = {
    "tensor": 8,
    "async_copy": 4,
    "fma": 128,
    "fp32": 128,
    "global_load_16": 4,
    "global_load_4": 0,
}


@pytest.mark.parametrize(
    ("facts", "fate", "words"),
    [
        ({"spills_bytes": 100, "stack_bytes": 104}, Fate.WORSE, "spill added: 100 B"),
        ({"stack_bytes": 8}, Fate.WORSE, "stack 0 B -> 8 B"),
        ({"stack_bytes": None}, Fate.WORSE, "stack has no bound any more"),
        ({"registers": 65}, Fate.WORSE, "registers 64 -> 65"),
        ({"registers": 63}, Fate.BETTER, "registers 64 -> 63"),
        ({"shared_bytes": 2048}, Fate.WORSE, "shared memory 1024 B -> 2048 B"),
        ({"occupancy": 0.25}, Fate.WORSE, "occupancy 50.0 % -> 25.0 %"),
        ({"registers": 32, "shared_bytes": 2048}, Fate.WORSE, "shared memory"),
        ({"scalar_registers": 33}, Fate.MOVED, "scalar registers 32 -> 33"),
        ({"code_bytes": 8192}, Fate.MOVED, "code 4096 B -> 8192 B"),
        ({}, Fate.MOVED, ""),
    ],
)
def test_a_kernel_that_needs_more_is_worse(
    facts: dict[str, Any], fate: Fate, words: str
) -> None:
    """Of anything; less of the rest does not make up for it. Size alone costs nothing."""
    usual: dict[str, Any] = {"occupancy": 0.5, "scalar_registers": 32}
    was, now = kernel(**usual), kernel(**(usual | {"digest": "2"} | facts))
    found = change(was, now)

    assert found.fate is fate
    assert words in ", ".join(map(step_text, found.steps))
    if found.fate is Fate.WORSE:
        assert found.steps[0].is_worse


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"fma": 0, "fp32": 256}, "FMA contraction lost (128 -> 0)"),
        (  # What is left is done for two values at a time.
            {"fma": 32, "fma_pair": 16, "fp32": 144, "fp32_pair": 64},
            "FMA contraction lost (128 -> 48)",
        ),
        ({"global_load_16": 0, "global_load_4": 16}, "128-bit loads became 32-bit"),
        ({"global_load_16": 3, "global_load_8": 2}, "128-bit loads became 64-bit"),
        ({"tensor": 0}, "tensor instruction gone (8 -> 0)"),
        ({"async_copy": 0}, "asynchronous copies gone (4 -> 0)"),
    ],
)
def test_an_instruction_that_is_lost_is_worse(
    counts: dict[str, int], words: str
) -> None:
    """And the way back is better."""
    was, now = kernel(classes=MIX), kernel(classes=MIX | counts, digest="2")
    lost = change(was, now)
    gained = change(now, was)

    assert lost.fate is Fate.WORSE
    assert [step_text(step) for step in lost.steps] == [words]
    assert gained.fate is Fate.BETTER


@pytest.mark.parametrize(
    "counts",
    [
        {"fma": 64, "fp32": 64},  # half of the work
        {"fma": 256, "fp32": 256},  # unrolled
        {"fma": 64, "fma_pair": 64, "fp32": 64, "fp32_pair": 64},  # in pairs
        {"global_load_16": 8, "global_load_4": 2},
        {"global_load_16": 2},
        {"tensor": 4, "async_copy": 8},
    ],
)
def test_more_or_less_work_is_neither(counts: dict[str, int]) -> None:
    """A loop that is unrolled otherwise loses nothing."""
    was, now = kernel(classes=MIX), kernel(classes=MIX | counts, digest="2")

    assert change(was, now).fate is Fate.MOVED


def test_instructions_that_were_not_read_are_not_lost() -> None:
    """Only two known counts are compared, and two known spills."""
    read, unread = kernel(classes=MIX), kernel(digest="2", spills_bytes=None)

    assert change(read, unread).fate is Fate.MOVED
    assert change(unread, read).fate is Fate.MOVED


def test_a_renamed_kernel_is_known_by_its_code() -> None:
    """Then by its name without tile sizes, if there is only one of each."""
    same = change(kernel("old<1>"), kernel("renamed"))
    worse = change(
        kernel("old<64>"), kernel("old<128>", digest="2", spills_bytes=8, stack_bytes=8)
    )
    two = code_changes(
        [kernel("old<1>", digest="2"), kernel("old<2>", digest="3")],
        [kernel("old<3>", digest="4")],
    )

    assert same.fate is Fate.RENAMED
    assert worse.fate is Fate.WORSE
    assert worse.was is not None
    assert worse.was.kernel == "old<64>"
    assert [found.fate for found in two] == [Fate.GONE, Fate.GONE, Fate.NEW]


def test_equal_names_keep_their_partners() -> None:
    """Kernels of one name are numbered; chips are never paired with each other."""
    was = [kernel(), kernel(number=2, digest="2"), kernel(target="sm_80")]
    now = [kernel(), kernel(number=2, digest="3", registers=80)]
    found = {(c.kernel.target, c.kernel.number): c.fate for c in code_changes(was, now)}

    assert found == {
        ("sm_80", 1): Fate.GONE,
        ("sm_90", 1): Fate.SAME,
        ("sm_90", 2): Fate.WORSE,
    }


def test_a_new_kernel_that_spills_is_worse() -> None:
    """Else a rename with other code would hide the spill."""
    (spilling,) = code_changes([], [kernel(spills_bytes=4, stack_bytes=8)])
    (plain,) = code_changes([], [kernel()])

    assert (spilling.fate, plain.fate) == (Fate.WORSE, Fate.NEW)


def test_a_kernel_whose_chip_was_not_read_is_not_judged() -> None:
    """It may be in the other build. A pair of which both were read is judged as ever."""
    was = [kernel("a", target="sm_90a"), kernel("b", target="sm_80"), kernel("c")]
    now = [kernel("b"), kernel("c", registers=65), kernel("d", spills_bytes=4)]

    def fates(**unread: set[str]) -> dict[str, Fate]:
        changes = code_changes(was, now, **unread)
        return {f"{c.kernel.kernel} {c.kernel.target}": c.fate for c in changes}

    read = {
        "a sm_90a": Fate.GONE,
        "b sm_80": Fate.GONE,
        "b sm_90": Fate.NEW,
        "c sm_90": Fate.WORSE,
        "d sm_90": Fate.WORSE,  # Some of the chip's code was read: no spill is hidden.
    }
    assert fates() == read
    assert fates(unread_now={"sm_90"}) == read | {"a sm_90a": Fate.UNREAD}
    assert fates(unread_then={"sm_90"}) == read | {"b sm_90": Fate.UNREAD}
    (of_no_known_chip,) = code_changes([], [now[2]], unread_then={"sm_90"})
    assert of_no_known_chip.fate is Fate.UNREAD
    unread = [KernelChange(was=was[0], now=None, fate=Fate.UNREAD)]
    assert code_passes(unread, FailOn.WORSE)
    assert not code_passes(unread, FailOn.ANY)


def test_a_chip_of_one_build_is_a_sentence() -> None:
    """Not a row for each of its kernels, unless one spills."""
    was = [kernel("a"), kernel("b"), kernel("a", target="sm_50")]
    now = [
        *(kernel("a"), kernel("a", target="sm_120")),
        kernel("b", target="sm_120", spills_bytes=4, stack_bytes=8),
    ]

    changes = code_changes(was, now)
    columns, left_out = change_columns(changes, "text", top=None)

    assert columns[0].cells == ("b", "b")
    assert columns[1].cells == ("sm_120", "sm_90")
    assert columns[2].cells == ("WORSE, new", "gone")
    assert left_out == 0
    assert change_notes(changes) == [
        "chips that are gone, with all kernels: sm_50 (1)",
        "new chips, with all kernels: sm_120 (2)",
    ]


def test_kernels_that_spill_are_named() -> None:
    """The largest first; what is unknown is not counted as none."""
    kernels = [
        kernel("a", spills_bytes=8),
        kernel("b", spills_bytes=None, stack_bytes=16),
        kernel("c", spills_bytes=0, scalar_spills=1, target="gfx942"),
        kernel("d", spills_bytes=28, scalar_spills=11, target="gfx950"),
    ]

    spilling = {c.head: c.cells for c in inventory_columns(kernels)}["with spills"]

    assert spilling == ("1", "1", "1, 1 n/a")
    assert spill_lines(kernels) == [
        "d for gfx950 spills 28 B and 11 scalar registers",
        "a for sm_90 spills 8 B",
        "c for gfx942 spills 1 scalar register",
        (
            "spills n/a: of NVIDIA's kernels with stack, because they are instructions; "
            "gpuperf show counts them"
        ),
    ]
    assert spill_lines([kernel()]) == []
    many = [kernel(f"k{n}", spills_bytes=4) for n in range(12)]
    assert spill_lines(many)[-1] == "2 more kernels with spills; --format=json has all"


def test_a_new_kernel_with_scalar_spills_is_worse() -> None:
    """They are spills, too."""
    (found,) = code_changes([], [kernel(scalar_spills=30)])

    assert found.fate is Fate.WORSE
    assert [step_text(step) for step in found.steps] == ["scalar spill added: 30"]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("lib::sum(float*)", "lib2::sum(float*)"),
        ("culj91::decode<(culj91::Timing)0>()", "culj92::decode<(culj92::Timing)0>()"),
        ("void (anonymous namespace)::sum<64>(int)", "void sum<128>(int)"),
    ],
)
def test_a_kernel_in_another_namespace_is_the_same_one(was: str, now: str) -> None:
    """Else a version in a namespace would make all kernels gone and new."""
    before, after = kernel(was), kernel(now, registers=65, digest="2")

    assert change(before, after).fate is Fate.WORSE


def test_two_kernels_of_a_name_in_other_namespaces_are_not_guessed() -> None:
    """Neither of them is the old one for sure."""
    now = [kernel(f"{space}::sum()", digest=space) for space in ("a", "b")]

    changes = code_changes([kernel("lib::sum()")], now)

    assert sorted(c.fate.value for c in changes) == ["gone", "new", "new"]


def test_new_kernels_with_unknown_spills_are_found() -> None:
    """Their instructions have to be read."""
    now = [
        kernel("unknown", digest="2", stack_bytes=8, spills_bytes=None),
        kernel("known", digest="3"),
    ]

    assert unknown_spills(code_changes([], now)) == {"2"}
    assert unknown_spills(code_changes(now, now)) == set()


def test_worse_fails_and_any_difference_if_chosen() -> None:
    """Better, new and gone kernels fail with `any` alone, and nothing with `never`."""
    worse = change(kernel(), kernel(registers=65))
    better = change(kernel(), kernel(registers=63))
    same = change(kernel(), kernel())
    gone = code_changes([kernel()], [])[0]

    assert not code_passes([same, worse], FailOn.WORSE)
    assert code_passes([same, better, gone], FailOn.WORSE)
    assert not code_passes([better], FailOn.ANY)
    assert not code_passes([gone], FailOn.ANY)
    assert code_passes([same], FailOn.ANY)
    assert code_passes([worse], FailOn.NEVER)


def test_an_inventory_comes_back_as_it_was_written() -> None:
    """Whatever a kernel is called; instructions and occupancy are left out."""
    names = ["a\nb", "\u202eevil", '"{}', "ünï", ""]
    kernels = [kernel(name, stack_bytes=None) for name in names]
    text = inventory_text([*kernels, kernel(classes=MIX, occupancy=0.5)])
    back = read_inventory(text, "a.jsonl")

    assert len(text.splitlines()) == len(names) + 2
    assert {k.kernel for k in back} >= {"a\nb", "\u202eevil", '"{}', "ünï", ""}
    assert back[-1] == kernel() or kernel() in back
    assert inventory_text(back) == inventory_text(back[::-1])


def test_a_merge_that_went_wrong_is_named_line_by_line() -> None:
    """All bad lines at once: marks of git, a kernel with two lines, a cut line."""
    head, line = inventory_text([kernel()]).splitlines()
    deep = line[:-1] + b',"other":' + b"[" * 10_000
    ours, theirs = b"<<<<<<< ours", b"======="
    content = b"\n".join([head, ours, line, theirs, line, line[:30], deep])
    with pytest.raises(RecordError) as refused:
        read_inventory(content, "a.jsonl")

    message = str(refused.value)
    assert "a.jsonl" in message
    for part in ("line 2", "line 4", "line 5", "has two lines", "line 6", "line 7"):
        assert part in message
    with pytest.raises(RecordError, match="no inventory"):
        read_inventory(b'{"schema": "pytest-gpuperf/run/3"}\n', "b.json")


def test_another_kernel_of_the_name_changes_no_pair() -> None:
    """Kernels of an equal name are numbered by their code, and paired by it first."""
    leaner = kernel(digest="a", registers=26, code_bytes=2000)
    larger = kernel(digest="b", registers=30, code_bytes=4000)
    both = [leaner, kernel(digest="b", registers=30, code_bytes=4000, number=2)]

    for was, now, fate in (
        (both, [larger], Fate.GONE),
        ([larger], both, Fate.NEW),
    ):
        fates = [change.fate for change in code_changes(was, now)]
        assert sorted(fates) == sorted([Fate.SAME, fate])
