"""Rules of collect.binary.identity: which code is the same."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.collect.binary.module import CODE, read_module
from pytest_gpuperf.collect.binary.tools import NVDISASM, find_tool
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorFailedError,
    CollectorUnavailableError,
    RecordError,
)
from pytest_gpuperf.model.identity import CodeIdentity, Sameness, sameness

GOLD = Path(__file__).parents[2] / "gold" / "binary"
PLAIN = (GOLD / "kernels_sm_90.cubin").read_bytes()
# Its references need nvdisasm.
REFERRING = (GOLD / "referring_sm_80.cubin").read_bytes()
RECURSIVE = (GOLD / "recursive_sm_90.cubin").read_bytes()
SCALE = "scale"


def _tool_reason() -> str:
    try:
        find_tool(NVDISASM)
    except CollectorUnavailableError as error:
        return str(error)
    return ""


with_tool = pytest.mark.skipif(bool(_tool_reason()), reason=_tool_reason())


def identities(content: bytes) -> dict[str, CodeIdentity]:
    """Return the identities of a cubin for which no tool is needed."""
    return dict(code_identities(content, runner=FakeRunner()))


def span_of(content: bytes, section: str) -> tuple[int, int]:
    """Return the place and the size of a section in a file [B]."""
    body = read_module(content).section(section)
    assert body is not None
    return content.index(body.content), body.size


def changed_at(content: bytes, place: int, bit: int) -> bytes:
    """Return a file with one other bit."""
    mutated = bytearray(content)
    mutated[place] ^= 1 << bit
    return bytes(mutated)


def swapped(content: bytes, first: int, second: int, size: int) -> bytes:
    """Return a file in which two parts of a size have changed places."""
    a, b = content[first : first + size], content[second : second + size]
    moved = bytearray(content)
    moved[first : first + size], moved[second : second + size] = b, a
    return bytes(moved)


START, SIZE = span_of(PLAIN, CODE + SCALE)


def test_the_identity_says_what_it_compares() -> None:
    """Every kernel has three digests, and its target belongs to the code."""
    of_90 = identities(PLAIN)
    of_80 = identities((GOLD / "kernels_sm_80.cubin").read_bytes())

    assert of_90.keys() == of_80.keys()
    assert all(of_90[name].compared(of_80[name]) is Sameness.CHANGED for name in of_90)
    # Scale has the same parameters and limits for both chips.
    assert of_90[SCALE].data == of_80[SCALE].data


@given(place=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_each_bit_of_an_instruction_is_code(place: int, bit: int) -> None:
    """Another operand, register or control bit is a change of this kernel alone."""
    before = identities(PLAIN)
    after = identities(changed_at(PLAIN, START + place, bit))

    assert after[SCALE].compared(before[SCALE]) is Sameness.CHANGED
    assert {n: i for n, i in after.items() if n != SCALE} == {
        n: i for n, i in before.items() if n != SCALE
    }


@given(st.data())
def test_moved_instructions_are_a_change(data: st.DataObject) -> None:
    """The order of instructions, and so of blocks, is part of the code."""
    places = st.integers(0, SIZE // 16 - 1)
    first, second = (START + 16 * data.draw(places) for _ in range(2))
    moved = swapped(PLAIN, first, second, 16)
    expected = Sameness.SAME if moved == PLAIN else Sameness.CHANGED

    assert identities(moved)[SCALE].compared(identities(PLAIN)[SCALE]) is expected


def test_another_shape_is_the_same_code() -> None:
    """Registers, stack and parameters are the shape, and tell it apart from the code."""
    place, size = span_of(PLAIN, f".nv.info.{SCALE}")
    answers = set()
    for at in range(place, place + size):
        try:
            after = identities(changed_at(PLAIN, at, 0))[SCALE]
        except CaptureFormatError:
            continue
        answers.add(after.compared(identities(PLAIN)[SCALE]))

    assert answers == {Sameness.SAME, Sameness.SAME_CODE}


def test_names_are_no_part() -> None:
    """A kernel with another name is the same, and so is a file with other debug sections."""
    renamed = PLAIN.replace(b"scale\0", b"other\0")
    assert renamed != PLAIN

    assert identities(renamed)["other"] == identities(PLAIN)[SCALE]


def referring(name: str) -> dict[str, CodeIdentity]:
    """Return the identities of a file whose kernels refer to other parts of it."""
    content = (GOLD / f"{name}_sm_80.cubin").read_bytes()
    return dict(code_identities(content, runner=ProcessRunner()))


@with_tool
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("variable", Sameness.SAME_CODE),  # The content of the array.
        ("constant", Sameness.SAME_CODE),  # A number in the bank of constants.
        ("table", Sameness.SAME_CODE),  # A number behind a pointer in a variable.
        ("direct", Sameness.CHANGED),  # The function that is called by name.
        ("pointer", Sameness.CHANGED),  # A function that a variable points to.
        ("other", Sameness.SAME),  # It refers to nothing that differs.
        ("message", Sameness.SAME),
    ],
)
def test_what_a_kernel_refers_to_is_part_of_it(kernel: str, expected: Sameness) -> None:
    """Functions are code and contents are data, also behind pointers, and nothing else."""
    then, now = referring("referring"), referring("referring_changed")

    assert now[kernel].compared(then[kernel]) is expected


@with_tool
def test_moved_variables_are_the_same() -> None:
    """Another variable and kernel in front move places that are no part of a kernel."""
    then, now = referring("referring"), referring("referring_moved")
    # The added kernel is no function that a pointer reaches.
    assert {name: now[name] for name in then} == then


@with_tool
def test_a_message_is_data() -> None:
    """Another text of the same length leaves the code as it is."""
    content = (GOLD / "referring_sm_80.cubin").read_bytes()
    other = content.replace(b"negative %f", b"positive %f")
    now = code_identities(other, runner=ProcessRunner())

    answers = {
        name: i.compared(now[name]) for name, i in referring("referring").items()
    }
    assert answers.pop("message") is Sameness.SAME_CODE
    assert set(answers.values()) == {Sameness.SAME}


def test_without_the_tool_nothing_is_guessed() -> None:
    """A file whose references only nvdisasm shows has no identity without it."""
    broken = FakeRunner([finished(1, stderr=b"unknown chip")])
    with pytest.raises(CollectorFailedError, match="unknown chip"):
        code_identities(REFERRING, runner=broken, tool="nvdisasm")


@pytest.mark.parametrize("length", [0, 3, 64, 200, 8000])
def test_a_damaged_file_has_no_identity(length: int) -> None:
    """A file that is cut off is refused with its name."""
    with pytest.raises(CaptureFormatError, match=r"k\.cubin"):
        code_identities(PLAIN[:length], runner=FakeRunner(), label="k.cubin")


def test_an_old_chip_has_no_identity() -> None:
    """Before Volta, control bits are no part of their instruction."""
    (flags,) = struct.unpack_from("<I", PLAIN, 48)
    old = bytearray(PLAIN)
    new_form = PLAIN[8] >= 8
    chip = flags & ~0xFF00 | 61 << 8 if new_form else flags & ~0xFF | 61
    struct.pack_into("<I", old, 48, chip)
    with pytest.raises(CollectorUnavailableError, match="sm_61"):
        identities(bytes(old))


def test_the_stored_form_is_read_again() -> None:
    """What a session stores gives the same identity, of several kernels in any order."""
    several = [*identities(PLAIN).values()]
    whole = CodeIdentity.of_kernels(several)

    assert CodeIdentity.read(str(whole)) == whole
    assert CodeIdentity.of_kernels(several[::-1]) == whole
    assert CodeIdentity.of_kernels(several[1:]) != whole


def test_unknown_code_is_not_the_same() -> None:
    """Without both identities, and by other rules, there is no answer."""
    text = str(identities(PLAIN)[SCALE])
    other = "2" + text[1:]

    assert sameness(text, text) is Sameness.SAME
    assert sameness(None, text) is sameness(text, None) is sameness(other, text) is None
    with pytest.raises(RecordError, match="has 1 parts"):
        CodeIdentity.read("1.abc")


@given(st.data())
def test_a_file_with_wrong_bytes_raises_only_our_errors(data: st.DataObject) -> None:
    """Its resources may still be readable, and a test must not end with a KeyError."""
    damaged = bytearray(RECURSIVE)
    for _ in range(3):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    runner = FakeRunner([finished(1, stderr=b"damaged")])
    with contextlib.suppress(CollectError):
        code_identities(bytes(damaged), runner=runner, tool="nvdisasm")
