"""Rules of collect.binary.amd_identity: which code of AMD is the same."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.code_object import code_object, kernel
from fakes.runner import FakeRunner
from pytest_gpuperf.collect.binary.elf import ElfFile
from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.errors import CaptureFormatError, CollectError
from pytest_gpuperf.model.identity import CodeIdentity, Sameness

GOLD = Path(__file__).parents[2] / "gold" / "binary"
SAME, OTHER_DATA, CHANGED = Sameness.SAME, Sameness.SAME_CODE, Sameness.CHANGED


def gold(name: str) -> bytes:
    """Return a code object."""
    return (GOLD / f"{name}.hsaco").read_bytes()


REFERRING = gold("referring_gfx90a")
# Its instructions cannot leave its own code, while the other kernels call or read.
ALONE = "alone"
KERNELS = frozenset({ALONE, "calling", "reading"})


def identities(content: bytes) -> dict[str, CodeIdentity]:
    """Return the identities of a code object, for which no tool is started."""
    return dict(code_identities(content, runner=FakeRunner()))


def answers(then: bytes, now: bytes) -> dict[str, Sameness]:
    """Return what became of each kernel of a file."""
    new = identities(now)
    return {name: new[name].compared(old) for name, old in identities(then).items()}


def span_of(content: bytes, name: str) -> tuple[int, int]:
    """Return the place in the file and the size of what a symbol stands for [B]."""
    file = ElfFile(content)
    (symbol,) = {s for s in file.symbols() if s.name == name}
    assert symbol.section is not None
    section = file.sections[symbol.section]
    return section.start + symbol.start - section.address, symbol.size


def changed_at(content: bytes, place: int, bit: int = 0) -> bytes:
    """Return a file with one other bit."""
    mutated = bytearray(content)
    mutated[place] ^= 1 << bit
    return bytes(mutated)


@pytest.mark.parametrize(
    ("name", "alone", "calling", "reading"),
    [
        ("referring", SAME, SAME, SAME),
        # A kernel in front. What refers to places is taken for changed.
        ("referring_moved", SAME, CHANGED, CHANGED),
        # A number in the function that one of them calls.
        ("referring_called", SAME, CHANGED, CHANGED),
        # A number that one of them reads. The data of a file belong to all its kernels.
        ("referring_data", OTHER_DATA, OTHER_DATA, OTHER_DATA),
    ],
)
def test_what_a_kernel_may_reach_is_part_of_it(
    name: str, alone: Sameness, calling: Sameness, reading: Sameness
) -> None:
    """All code of the file if it may leave its own, and nothing else if it cannot."""
    expected = {ALONE: alone, "calling": calling, "reading": reading}

    assert answers(REFERRING, gold(f"{name}_gfx90a")) == expected


START, SIZE = span_of(REFERRING, ALONE)


@given(place=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_each_bit_of_an_instruction_is_code(place: int, bit: int) -> None:
    """Of the kernel, and of those that may reach it."""
    after = changed_at(REFERRING, START + place, bit)

    assert answers(REFERRING, after) == dict.fromkeys(KERNELS, CHANGED)


@pytest.mark.parametrize("place", [*range(16), *range(24, 64)])
def test_each_byte_of_the_descriptor_is_shape(place: int) -> None:
    """Registers, shared memory, scratch, arguments and modes of the one kernel."""
    start, _ = span_of(REFERRING, f"{ALONE}.kd")
    after = changed_at(REFERRING, start + place)

    expected = {**dict.fromkeys(KERNELS, SAME), ALONE: OTHER_DATA}
    assert answers(REFERRING, after) == expected


def test_a_descriptor_of_other_code_is_refused() -> None:
    """The code that would run is not that of the kernel's name."""
    start, _ = span_of(REFERRING, f"{ALONE}.kd")
    with pytest.raises(CaptureFormatError, match=r"alone\.kd is not that of its func"):
        identities(changed_at(REFERRING, start + 16, bit=7))


@pytest.mark.parametrize(
    "fact",
    [
        *(".vgpr_count", ".sgpr_count", ".agpr_count", ".wavefront_size"),
        *(".group_segment_fixed_size", ".private_segment_fixed_size"),
        *(".kernarg_segment_size", ".vgpr_spill_count", ".value_kind"),
    ],
)
def test_each_stated_fact_is_shape(fact: str) -> None:
    """The metadata say more than the descriptor."""
    content = gold("matmul_64_gfx942")
    place = content.index(fact.encode()) + len(fact) + (fact == ".value_kind")

    assert answers(content, changed_at(content, place)) == {"matmul": OTHER_DATA}


@pytest.mark.parametrize("generation", ["gfx90a", "gfx1200"])
def test_names_are_no_part(generation: str) -> None:
    """Neither the kernel's nor those of a file without a table of symbols."""
    content = gold(f"row_sum_1024_4_{generation}")
    renamed = content.replace(b"row_sum", b"row_tot")
    stripped = bytearray(content)
    file = ElfFile(content)
    (index,) = (i for i, s in enumerate(file.sections) if s.name == ".symtab")
    (table,) = struct.unpack_from("<Q", content, 40)
    struct.pack_into("<I", stripped, table + 64 * index + 4, 1)

    assert identities(renamed)["row_tot"] == identities(content)["row_sum"]
    assert answers(content, bytes(stripped)) == {"row_sum": SAME}


def test_the_architecture_is_code() -> None:
    """Equal bytes run at another speed on another chip, or with other settings of one."""
    flags = 48  # Place of e_flags in the header.
    other = REFERRING.replace(b"--gfx90a", b"--gfx942")

    for after in (changed_at(REFERRING, flags), other):
        assert set(answers(REFERRING, after).values()) == {CHANGED}


NINE, TEN, TWELVE = "gfx90a", "gfx1030", "gfx1200"
FILES = {
    NINE: ("referring_gfx90a", ALONE),
    TEN: ("referring_gfx1030", ALONE),
    TWELVE: ("row_sum_1024_4_gfx1200", "row_sum"),
}


@pytest.mark.parametrize(
    ("chip", "word", "expected"),
    [
        (NINE, 0xBE841C00, CHANGED),  # s_getpc_b64
        (NINE, 0xBE801D04, CHANGED),  # s_setpc_b64
        (NINE, 0xBE841E06, CHANGED),  # s_swappc_b64
        (NINE, 0xBA840064, CHANGED),  # s_call_b64
        (NINE, 0xBF827FFF, CHANGED),  # s_branch far ahead
        (NINE, 0xBF898000, CHANGED),  # s_cbranch_execnz far back
        (NINE, 0xBF820001, SAME),  # s_branch inside the kernel
        (NINE, 0xBE842006, SAME),  # s_and_saveexec_b64
        (TEN, 0xBE841F00, CHANGED),
        (TEN, 0xBE802004, CHANGED),
        (TEN, 0xBE842106, CHANGED),
        (TEN, 0xBB040064, CHANGED),
        (TEN, 0xBF827FFF, CHANGED),
        (TEN, 0xBE842406, SAME),
        (TWELVE, 0xBE844700, CHANGED),
        (TWELVE, 0xBE804804, CHANGED),
        (TWELVE, 0xBE844906, CHANGED),
        (TWELVE, 0xBA040064, CHANGED),
        (TWELVE, 0xBFA07FFF, CHANGED),
        (TWELVE, 0xBFA68000, CHANGED),
        (TWELVE, 0xBFA00001, SAME),
        (TWELVE, 0xBE842106, SAME),
    ],
)
def test_instructions_that_leave_the_code_reach_all_of_it(
    chip: str, word: int, expected: Sameness
) -> None:
    """As LLVM encodes them for each generation. Code behind the kernel then counts."""
    file, name = FILES[chip]
    content = bytearray(gold(file))
    start, size = span_of(gold(file), name)
    struct.pack_into("<I", content, start, word)
    now = changed_at(bytes(content), start + size)

    assert answers(bytes(content), now)[name] is expected


def start_of(name: str) -> int:
    """Return the place of a section of the file with references [B]."""
    (section,) = (s for s in ElfFile(REFERRING).sections if s.name == name)
    return section.start


def test_addresses_belong_to_what_may_read_them() -> None:
    """Places of sections, and what the loader writes where, decide what code reads."""
    file = ElfFile(REFERRING)
    (index,) = (i for i, s in enumerate(file.sections) if s.name == ".data")
    (table,) = struct.unpack_from("<Q", REFERRING, 40)
    expected = {**dict.fromkeys(KERNELS, CHANGED), ALONE: SAME}

    for place in (
        table + 64 * index + 17,  # The address of the variable's section.
        start_of(".rela.dyn") + 16,  # The distance from a symbol.
        start_of(".dynstr") + 1,  # The name of a symbol.
    ):
        assert answers(REFERRING, changed_at(REFERRING, place)) == expected


@pytest.mark.parametrize(
    ("distance", "expected"),
    [(-8, SAME), (-7, CHANGED), (SIZE - 1, CHANGED), (SIZE, SAME)],
)
def test_code_that_the_loader_writes_into_may_reach_all(
    distance: int, expected: Sameness
) -> None:
    """Its bytes are not those that run. An address has 8 of them."""
    (alone,) = {s for s in ElfFile(REFERRING).symbols() if s.name == ALONE}
    filled = bytearray(REFERRING)
    struct.pack_into("<Q", filled, start_of(".rela.dyn"), alone.start + distance)
    after = changed_at(bytes(filled), START + SIZE)

    assert answers(bytes(filled), after)[ALONE] is expected


def at_place(address: int) -> bytes:
    """Return the file with its first kernel as one instruction at an address."""
    content = bytearray(REFERRING)
    (table,) = (s for s in ElfFile(REFERRING).sections if s.name == ".symtab")
    for start in range(table.start, table.start + table.size, 24):
        (was,) = struct.unpack_from("<Q", content, start + 8)
        if (was, content[start + 4] & 0xF) == (ADDRESS, 2):
            struct.pack_into("<QQ", content, start + 8, address, 4)
    descriptor, _ = span_of(REFERRING, f"{ALONE}.kd")
    (distance,) = struct.unpack_from("<q", content, descriptor + 16)
    struct.pack_into("<q", content, descriptor + 16, distance + address - ADDRESS)
    return bytes(content)


(ADDRESS,) = {s.start for s in ElfFile(REFERRING).symbols() if s.name == ALONE}


def test_the_place_of_a_kernel_that_may_leave_it_is_code() -> None:
    """Equal instructions lead from there to another function or variable."""
    (helper,) = {s for s in ElfFile(REFERRING).symbols() if s.name == "helper"}
    padding = helper.start + helper.size  # Of equal instructions.
    first, second = at_place(padding), at_place(padding + 4)

    assert answers(first, first)[ALONE] is SAME
    assert answers(first, second)[ALONE] is CHANGED


def test_the_page_that_a_linker_fills_is_no_data() -> None:
    """Its size follows from the places of other kernels."""
    content = bytearray(gold("row_sum_1024_4_gfx90a"))
    file = ElfFile(bytes(content))
    (index,) = (i for i, s in enumerate(file.sections) if s.name == ".relro_padding")
    (table,) = struct.unpack_from("<Q", content, 40)
    now = changed_at(bytes(content), table + 64 * index + 33)

    assert answers(bytes(content), now) == {"row_sum": SAME}


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        (b".name\xa7reading", b".name\xa7calling", "two kernels calling"),
        (b"\0reading\0", b"\0calling\0", "2 symbols calling"),
    ],
)
def test_equal_names_are_refused(was: bytes, now: bytes, reason: str) -> None:
    """Which code belongs to which of the kernels is not guessed."""
    with pytest.raises(CaptureFormatError, match=reason):
        identities(REFERRING.replace(was, now))


def test_of_an_unknown_generation_all_code_counts() -> None:
    """Its instructions are not known; nor is where a kernel goes that does not end."""
    start, size = span_of(REFERRING, ALONE)
    unknown = REFERRING.replace(b"--gfx90a", b"--gfx803")
    endless = changed_at(REFERRING, start + size - 2)  # s_endpgm is now s_nop.

    for content in (unknown, endless):
        after = changed_at(content, start + size)
        assert answers(content, after)[ALONE] is CHANGED
    assert answers(REFERRING, changed_at(REFERRING, start + size))[ALONE] is SAME


def test_a_file_that_is_no_linked_code_has_no_identity() -> None:
    """Notes alone say nothing about the code, and before the link places are missing."""
    unlinked = bytearray(REFERRING)
    struct.pack_into("<H", unlinked, 16, 1)

    with pytest.raises(CaptureFormatError, match="not linked"):
        identities(bytes(unlinked))
    with pytest.raises(CaptureFormatError, match="has 0 symbols"):
        identities(code_object([kernel("k", symbol="k.kd")]))


@pytest.mark.parametrize("length", [20, 64, 200, 4000])
def test_a_damaged_file_has_no_identity(length: int) -> None:
    """A file that is cut off is refused with its name."""
    with pytest.raises(CaptureFormatError, match=r"k\.hsaco"):
        code_identities(REFERRING[:length], runner=FakeRunner(), label="k.hsaco")


@given(st.data())
def test_a_file_with_wrong_bytes_raises_only_our_errors(data: st.DataObject) -> None:
    """Its resources may still be readable, and a test must not end with a KeyError."""
    damaged = bytearray(REFERRING)
    for _ in range(3):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CollectError):
        identities(bytes(damaged))
