"""Rules of collect.binary.compiler_log: spills are certain, or unknown with a reason."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.collect.binary.compiler_log import (
    CodeParts,
    facts_of,
    log_name,
    log_text,
    read_ptxas_log,
    unlike_code,
)
from pytest_gpuperf.collect.binary.cubin import code_parts
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.activity import InstructionMix, KernelResources
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap

KERNEL = KernelResources(
    name="k",
    demangled=None,
    target="sm_90",
    registers_count=24,
    stack_bytes=280,
    shared_bytes=0,
    constant_bytes=528,
)
CALLER = replace(KERNEL, name="caller", registers_count=32, stack_bytes=208)
SMALL = replace(KERNEL, name="small", registers_count=10, stack_bytes=0)


def function(name: str, *, frame: int = 0, spills: int = 0) -> str:
    """Return what ptxas prints of a function, half of the spills each way."""
    return (
        f"ptxas info    : Function properties for {name}\n"
        f"    {frame} bytes stack frame, {spills // 2} bytes spill stores, "
        f"{spills - spills // 2} bytes spill loads\n"
    )


def entry(kernel: KernelResources, *, frame: int | None = None, spills: int = 0) -> str:
    """Return what ptxas prints of a kernel; its own frame is its stack, if not given."""
    stack = kernel.stack_bytes or 0
    cumulative = f", {stack} bytes cumulative stack size" if stack else ""
    return (
        f"ptxas info    : Compiling entry function '{kernel.name}' for "
        f"'{kernel.target}'\n"
        + function(kernel.name, frame=stack if frame is None else frame, spills=spills)
        + f"ptxas info    : Used {kernel.registers_count} registers, used 1 barriers"
        f"{cumulative}, 368 bytes cmem[0]\n"
        "ptxas info    : Compile time = 1.000 ms\n"
    )


UNIT = "ptxas info    : 0 bytes gmem, 32 bytes cmem[4]\n"
# A kernel with two functions of its own, and one without.
LOG = (
    UNIT
    + entry(CALLER, spills=12)
    + function("heavy", spills=600)
    + function("other", spills=16)
    + entry(SMALL)
    + UNIT
    + entry(KERNEL, spills=764)
)
TRUE = {"caller": 628, "small": 0, "k": 764}
INSIDE = {
    "caller": frozenset({"heavy", "other"}),
    "small": frozenset[str](),
    "k": frozenset[str](),
}
PARTS = CodeParts(inside=INSIDE, apart=frozenset())


def spills(
    log: str, kernel: KernelResources = KERNEL, parts: CodeParts = PARTS
) -> int | str:
    """Return the spills of a kernel [B], or why they are unknown."""
    told = facts_of(kernel, read_ptxas_log(log), parts)
    return told.reason if isinstance(told, Gap) else told["spills_bytes"]


def all_spills(log: str) -> dict[str, int | None]:
    """Return the spills of all kernels of LOG [B], as a damaged log tells them."""
    try:
        read = read_ptxas_log(log)
    except CaptureFormatError:
        return dict.fromkeys(TRUE)
    facts = {k.name: facts_of(k, read, PARTS) for k in (CALLER, SMALL, KERNEL)}
    return {
        name: None if isinstance(told, Gap) else told["spills_bytes"]
        for name, told in facts.items()
    }


def is_safe(found: Mapping[str, int | None]) -> bool:
    """Return whether every value is true or unknown."""
    return all(value in {None, TRUE[name]} for name, value in found.items())


def test_a_kernel_has_the_spills_of_its_functions() -> None:
    """And none of other kernels; barriers are told with them."""
    assert all_spills(LOG) == TRUE
    told = facts_of(CALLER, read_ptxas_log(LOG), PARTS)
    assert not isinstance(told, Gap)
    assert told["barriers_count"] == 1


@pytest.mark.parametrize("last_first", [False, True])
def test_two_kernels_of_one_name_are_told_apart(*, last_first: bool) -> None:
    """By registers and stack: every file may have a kernel called `k`."""
    other = replace(KERNEL, registers_count=8, stack_bytes=0)
    units = [UNIT + entry(other), UNIT + entry(KERNEL, spills=764)]
    log = "".join(reversed(units) if last_first else units)

    assert spills(log) == 764
    assert spills(log, other) == 0


def test_two_kernels_that_look_alike_are_not_told_apart() -> None:
    """If they spill differently; if not, either is right."""
    log = UNIT + entry(KERNEL, spills=700)

    assert spills(log + log) == 700
    assert "2 kernels k with 24 registers and different" in str(spills(log + LOG))


def test_functions_of_another_compilation_are_no_part_of_a_kernel() -> None:
    """A file of device functions that follows the kernel's file."""
    log = UNIT + entry(SMALL) + UNIT + function("heavy", frame=1560, spills=65544)

    assert spills(log, SMALL) == 0


def test_functions_that_a_kernel_does_not_contain_are_no_part_of_it() -> None:
    """An exported function of the same file, which no kernel calls."""
    log = UNIT + entry(SMALL) + function("exported", frame=300, spills=2080)

    assert spills(log, SMALL) == 0


def test_a_log_of_another_build_says_nothing() -> None:
    """Neither with other registers, nor with another stack, nor for another chip."""
    for other in (
        replace(KERNEL, registers_count=40),
        replace(KERNEL, stack_bytes=0),
        replace(KERNEL, stack_bytes=288),
    ):
        reason = str(spills(LOG, other))
        assert (
            "is from another build: k has 24 registers and a stack of 280 B" in reason
        )
        assert f"{other.registers_count} registers and {other.stack_bytes} B" in reason
    reason = str(spills(LOG, replace(KERNEL, target="sm_90a")))
    assert reason == "the compiler's log does not name k for sm_90a"


def test_frames_of_functions_elsewhere_do_not_hide_another_build() -> None:
    """A relocatable build of the same file prints frames and no sum of them."""
    log = UNIT + entry(KERNEL, frame=250, spills=700)
    log = log.replace(", 280 bytes cumulative stack size", "")
    log += function("heavy", frame=184, spills=212)

    assert "another build: k has 24 registers and a stack frame of 250 B" in str(
        spills(log)
    )
    calls = CodeParts(inside={"k": frozenset({"heavy"})}, apart=frozenset())
    assert spills(log, parts=calls) == 912
    for stack_bytes in (248, 440):
        other = replace(KERNEL, stack_bytes=stack_bytes)
        assert "is from another build" in str(spills(log, other, calls))


def test_spills_need_a_stack() -> None:
    """The stack of a kernel that calls itself is 0 in some binaries."""
    log = UNIT + entry(SMALL, spills=8)

    assert "small spills 8 B in the compiler's log, and has no stack" in str(
        spills(log, SMALL)
    )


def test_an_unbounded_stack_is_not_compared() -> None:
    """The registers must do."""
    assert spills(LOG, replace(KERNEL, stack_bytes=None)) == 764


def test_a_kernel_that_shares_functions_is_unknown_if_they_spill() -> None:
    """Separate compilation does not say who calls them; their stack adds to its own."""
    shared = CodeParts(inside=INSIDE, apart=frozenset({"heavy"}))
    own, calls = entry(KERNEL, spills=8), entry(KERNEL, frame=80, spills=8)
    spilling = UNIT + function("heavy", frame=200, spills=40)
    quiet = UNIT + function("heavy", frame=200)

    assert spills(spilling + UNIT + own, parts=shared) == 8
    assert spills(quiet + UNIT + calls, parts=shared) == 8
    unknown = "k may call functions that were compiled apart and spill"
    assert spills(spilling + UNIT + calls, parts=shared) == unknown
    assert spills(UNIT + calls, parts=shared) == unknown  # The other log is missing.
    linked = replace(KERNEL, registers_count=32)  # The link gives it more registers.
    assert spills(UNIT + own, linked, shared) == unknown


def test_an_old_compiler_prints_no_sum_of_stacks_and_no_barriers() -> None:
    """As ptxas 11.8: the frame is the stack, unless called functions have their own."""
    log = LOG.replace(", used 1 barriers", "")
    for kernel in (CALLER, KERNEL):
        log = log.replace(f", {kernel.stack_bytes} bytes cumulative stack size", "")
    deep = UNIT + entry(KERNEL, frame=16) + function("f", frame=264, spills=40)
    deep = deep.replace(", 280 bytes cumulative stack size", "")
    told = facts_of(KERNEL, read_ptxas_log(log), PARTS)

    assert all_spills(log) == TRUE
    assert not isinstance(told, Gap)
    assert told["barriers_count"] is None
    calls = CodeParts(inside={"k": frozenset({"f"})}, apart=frozenset())
    assert spills(deep, KERNEL, calls) == 40


def test_the_linkers_lines_are_not_the_compilers() -> None:
    """nvlink names functions, too, with registers after the link."""
    link = (
        "nvlink info    : 0 bytes gmem\n"
        "nvlink info    : Function properties for 'k':\n"
        "nvlink info    : used 99 registers, 512 stack, 0 bytes smem, 0 bytes lmem\n"
    )

    assert all_spills(LOG + link) == all_spills(link + LOG) == TRUE


def test_a_log_that_is_cut_anywhere_is_never_wrong() -> None:
    """At its end, at its beginning, and where a second log follows the rest."""
    cuts = range(len(LOG))

    assert all(is_safe(all_spills(LOG[:cut])) for cut in cuts)
    assert all(is_safe(all_spills(LOG[cut:])) for cut in cuts)
    assert all(is_safe(all_spills(LOG[:cut] + LOG)) for cut in cuts)
    assert all_spills(LOG[: LOG.index("for other")])["caller"] is None


def test_a_log_with_a_gap_is_never_wrong() -> None:
    """A part is missing from the middle of a line to a line, or from a line on."""
    lines = [0, *(at + 1 for at, letter in enumerate(LOG) if letter == "\n")]
    gaps = [(cut, line) for cut in range(0, len(LOG), 5) for line in lines]

    for cut, line in gaps:
        assert is_safe(all_spills(LOG[: min(cut, line)] + LOG[max(cut, line) :]))


def interleaved(parts: list[list[str]], chance: random.Random) -> Iterator[str]:
    """Yield the pieces of several logs, each in its order."""
    while any(parts):
        yield chance.choice([part for part in parts if part]).pop(0)


@pytest.mark.parametrize("mark", ["ptxas", "\n"], ids=["messages", "lines"])
def test_compilers_that_write_at_once_are_never_mixed_up(mark: str) -> None:
    """make -j mixes messages, which may have two lines, and a pipe mixes lines."""
    first, second, third = LOG.split(UNIT)[1], UNIT + entry(KERNEL, spills=764), UNIT
    third += entry(replace(CALLER, name="b"), spills=4) + function("heavy", spills=6)
    chance = random.Random(5)
    known = 0
    for _ in range(300):
        logs = [
            [f"{mark}{piece}" for piece in log.split(mark) if piece]
            for log in (UNIT + first, second, third)
        ]
        found = all_spills("".join(interleaved(logs, chance)))
        assert is_safe(found)
        known += sum(value is not None for value in found.values())
    assert known


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (replace(KERNEL, target="sm_80"), replace(SMALL, target="sm_80")),
        (replace(KERNEL, name="b"), replace(SMALL, name="c")),
        (KERNEL, SMALL),
    ],
    ids=["chips", "files", "builds"],
)
def test_a_function_of_another_compiler_is_no_part_of_a_kernel(
    first: KernelResources, last: KernelResources
) -> None:
    """nvcc --threads and make -j write at once, and names of functions are equal."""
    parts = CodeParts(
        inside={"k": frozenset({"heavy"}), "small": frozenset()}, apart=frozenset()
    )
    mine, other = entry(KERNEL) + function("heavy", spills=600), entry(first)
    mixed = UNIT + other + UNIT + entry(KERNEL) + function("heavy", spills=40)
    mixed += entry(last) + function("heavy", spills=600)

    assert "are cut off, or mixed with those of another" in str(
        spills(mixed, parts=parts)
    )
    assert spills(UNIT + other + UNIT + mine + UNIT + entry(last), parts=parts) == 600


def test_projects_that_msbuild_compiles_at_once_are_told_apart() -> None:
    """It numbers their lines; a line without a number continues the one before."""
    first, second = LOG.split(UNIT)[1:]
    logs = [
        [f"{number}>{line}" for line in (UNIT + log).splitlines(keepends=True)]
        for number, log in enumerate((first, second), 1)
    ]
    mixed = "".join(interleaved(logs, random.Random(2)))
    console = "  1>" + LOG.replace("ptxas", "  ptxas")

    assert all_spills(mixed) == all_spills(console) == TRUE


@pytest.mark.parametrize(
    "content",
    [
        LOG.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + LOG.encode(),
        LOG.encode("utf-16"),
        b"\xfe\xff" + LOG.encode("utf-16-be"),
        b"\xe9t\xe9\n" + LOG.encode(),
        LOG.replace("ptxas info", "\x1b[1;36mptxas info\x1b[0m").encode(),
        LOG.replace("function", "\x1b[Kfunction").encode(),
        b"".join(b"#12 3.45 %b\n" % line for line in LOG.encode().splitlines()),
        LOG.replace("ptxas info    : C", "[2/9] nvcc a.cu\nptxas info    : C").encode(),
    ],
    ids=[
        "crlf",
        "bom",
        "utf16",
        "utf16be",
        "latin1",
        "colours",
        "erased",
        "docker",
        "ninja",
    ],
)
def test_a_log_is_read_as_it_was_written(tmp_path: Path, content: bytes) -> None:
    """With the encoding, the colours and the prefixes of shells and build tools."""
    path = tmp_path / "build.log"
    path.write_bytes(content)

    assert all_spills(log_text(path)) == TRUE


def test_a_compressed_log_must_be_uncompressed(tmp_path: Path) -> None:
    """Its kernels cannot be read, so the remedy is gunzip."""
    path = tmp_path / "build.log.gz"
    path.write_bytes(gzip.compress(LOG.encode()))

    with pytest.raises(
        CaptureFormatError, match="it is compressed with gzip"
    ) as caught:
        log_text(path)
    assert "gunzip" in caught.value.remedy


def test_a_path_may_have_a_line_break(tmp_path: Path) -> None:
    """Only a str with a line break is the log itself."""
    path = tmp_path / 'build "1"\n.log'
    path.write_text(LOG)

    assert all_spills(log_text(path)) == TRUE
    assert log_name(path) == str(path)


def test_a_large_log_is_read_in_linear_time() -> None:
    """10 MB of log, and lines of 1 MB that begin again and again; quadratic is hours."""
    pieces = (
        "Used 1 registers ",
        "9",
        "Compiling entry function '",
        "Function prop",
    )
    hostile = "".join(piece * (1_000_000 // len(piece)) + "\n" for piece in pieces)
    long = UNIT + entry(SMALL) * 30_000 + function("f") * 10_000

    assert all_spills(long + hostile + LOG) == TRUE


@pytest.mark.parametrize(
    "line",
    [
        "{} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        "0 bytes stack frame, {} bytes spill stores, 0 bytes spill loads",
        "Used {} registers, used 1 barriers",
    ],
)
def test_a_number_that_no_compiler_prints_is_refused(line: str) -> None:
    """Python makes no integer of 5,000 digits, and 64 bits hold 18."""
    head = "ptxas info : Function properties for f\n"
    with pytest.raises(CaptureFormatError, match="a number of 5000 digits"):
        read_ptxas_log(head + line.replace("{}", "9" * 5000))


@pytest.mark.parametrize("log", ["", "nvcc warning: nothing\n", function("f")])
def test_a_log_without_kernels_is_refused(log: str) -> None:
    """A log that was made without -v is said to be one."""
    with pytest.raises(CaptureFormatError, match="names no kernel") as caught:
        read_ptxas_log(log)
    assert "-Xptxas -v" in caught.value.remedy


def test_a_log_of_another_tool_is_named() -> None:
    """A text of ptxas without kernels is of no other tool."""
    nvbench = '{"meta": {"version": {"json": {}, "nvbench": {}}}}'
    with pytest.raises(CaptureFormatError, match="a result of nvbench") as caught:
        read_ptxas_log(nvbench, path="build.log")
    assert "and it names no kernel" in str(caught.value)
    assert caught.value.path == "build.log"
    with pytest.raises(CaptureFormatError) as caught:
        read_ptxas_log("ptxas info    : 0 bytes gmem\n")
    assert str(caught.value).startswith("the compiler's log: names no kernel")


@pytest.mark.parametrize(
    ("log", "name"),
    [("a\nb", "the compiler's log"), ("", "the compiler's log"), ("a.log", "a.log")],
)
def test_a_log_is_named_by_its_file(log: str, name: str) -> None:
    """A text has no name."""
    assert log_name(log) == name


def mix(*, loads: int, stores: int, spills: int | None) -> InstructionMix:
    """Return the code of a kernel with some accesses to local memory."""
    counts = {"local_load": loads, "local_store": stores}
    return InstructionMix(kernel="k", counts=counts, spills_bytes=spills)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (mix(loads=0, stores=0, spills=0), "in the binary spills 0 B"),
        (mix(loads=99, stores=92, spills=760), "in the binary spills 760 B"),
        (mix(loads=20, stores=20, spills=None), "has 40 accesses to local memory"),
        (mix(loads=99, stores=92, spills=764), ""),
        (mix(loads=99, stores=92, spills=None), ""),
        (InstructionMix(kernel="k", counts=None, doubt="calls pointers"), ""),
    ],
)
def test_the_code_may_contradict_a_log(code: InstructionMix, words: str) -> None:
    """By other spills, or by too few accesses; code that is not known does not."""
    gap = unlike_code(replace(KERNEL, spills_bytes=764), code)

    assert words in gap.reason if words and gap else gap is None
    assert unlike_code(KERNEL, code) is None


def cubin(*symbols: tuple[str, str]) -> bytes:
    """Return a cubin with functions: the name and the section of each."""
    sections = [".symtab", ".strtab", *dict.fromkeys(section for _, section in symbols)]
    texts = b"\0" + b"".join(
        name.encode() + b"\0" for name in (*sections, *(name for name, _ in symbols))
    )

    def place(name: str) -> int:
        return texts.index(b"\0" + name.encode() + b"\0") + 1

    table = b"".join(
        struct.pack("<IBBHQQ", place(name), 2, 0, sections.index(section) + 1, 0, 8)
        for name, section in symbols
    )
    start = 64 + len(texts)
    headers = [bytes(64)]
    for name in sections:
        kind, at, size = 1, 64, len(texts)
        if name == ".symtab":
            kind, at, size = 2, start, len(table)
        fields = (place(name), kind, 0, 0, at, size, 2, 0, 8, 24)
        headers.append(struct.pack("<IIQQQQIIQQ", *fields))
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = (2, 190, 1, 0, 0, start + len(table), 0, 64, 0, 0, 64, len(headers), 2)
    elf = struct.pack("<16sHHIQQQIHHHHHH", ident, *head)
    return elf + texts + table + b"".join(headers)


def test_a_cubin_names_the_functions_of_each_kernel() -> None:
    """Without those of the compiler itself, and apart from those with their own code."""
    content = cubin(
        ("k", ".text.k"),
        ("$k$_Z5heavyPKfi", ".text.k"),
        ("$k$_Z5otherPKfi$1", ".text.k"),
        ("$k$__cuda_sm20_div_f64_slowpath_v2", ".text.k"),
        ("$__internal_0_$__cuda_sm20_div_rn_f64_full", ".text.k"),
        ("small", ".text.small"),
        ("_Z6sharedv", ".text._Z6sharedv"),
    )

    parts = code_parts(content, {"k", "small"})
    assert parts.inside == {
        "k": {"_Z5heavyPKfi", "_Z5otherPKfi$1"},
        "small": frozenset(),
    }
    assert parts.apart == {"_Z6sharedv"}


def test_a_damaged_table_of_symbols_names_no_function() -> None:
    """The spills are then unknown, whatever the log says."""
    content = cubin(("k", ".text.k"))
    table = content.index(b"\0k\0") + len(b"\0k\0")
    damaged = content[:table] + b"\xff" * 4 + content[table + 4 :]

    parts = code_parts(damaged, {"k"})
    assert parts.inside == {}
    assert "does not list the functions of k" in str(spills(LOG, parts=parts))
