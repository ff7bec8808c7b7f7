"""Rules of collect.binary."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.binaries import archive, elf
from fakes.runner import Call, FakeRunner, finished
from pytest_gpuperf.collect.binary.containers import (
    fatbin_of,
    fatbin_parts,
    has_linked_fatbins,
)
from pytest_gpuperf.collect.binary.cubin import without_stack_bound
from pytest_gpuperf.collect.binary.demangling import demangled_names
from pytest_gpuperf.collect.binary.read import Contents, read_cubins
from pytest_gpuperf.collect.binary.tools import (
    CUOBJDUMP,
    NVDISASM,
    Tool,
    find_tool,
    in_toolkit,
    in_triton,
    in_wheel,
    on_path,
)
from pytest_gpuperf.collect.runner import Finished, ProcessRunner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorFailedError,
    CollectorUnavailableError,
    MeasureError,
)
from pytest_gpuperf.model.activity import KernelResources

GOLD = Path(__file__).parents[2] / "gold" / "binary"


def read_binary(source: object, **how: Any) -> tuple[KernelResources, ...]:
    """Return the resources of each kernel of a binary, in its order."""
    cubins = read_cubins(source, **how).cubins
    return tuple(kernel for cubin in cubins for kernel in cubin.kernels)


def _tool_reason() -> str:
    try:
        find_tool(CUOBJDUMP)
    except CollectorUnavailableError as error:
        return str(error)
    return ""


NO_TOOL = _tool_reason()
with_tool = pytest.mark.skipif(bool(NO_TOOL), reason=NO_TOOL)


@pytest.fixture(autouse=True)
def _no_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever happens in a test, no temporary file is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield

    assert not list(folder.iterdir())


def small_cubin(*, kind: int = 2) -> bytes:
    """Return the smallest ELF file that says it is a whole cubin."""
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    return struct.pack(
        "<16sHHIQQQIHHHHHH", ident, kind, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 0, 0
    )


REMOVED = b"cuobjdump fatal   : Support for 'sm_35' has been removed. Use 11.8.\n"
INVALID = b"cuobjdump fatal   : Invalid ELF in 'image'\n"
NOT_DEFINED = b"cuobjdump fatal   : Value 'sm_35' is not defined for -arch\n"


class FakeCuobjdump(FakeRunner):
    """
    cuobjdump with scripted cubins: (target, what -res-usage answers) of each.

    As the real one, it stops at the first code that it cannot read.
    """

    def __init__(
        self,
        *cubins: tuple[str, Finished],
        ending: Finished | None = None,
        dropped: Sequence[str] = (),
        removed: bytes = REMOVED,
        invalid: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.cubins = cubins
        self.ending = ending
        self.dropped = dropped
        self.removed = removed
        self.invalid = invalid

    def answer(self, call: Call) -> Finished:
        argv = call.argv
        if "-xelf" in argv and call.cwd is not None:
            asked = argv[argv.index("-arch") + 1] if "-arch" in argv else None
            content = Path(argv[-1]).read_bytes()
            failed = self.ending or self._failure(content, asked)
            return failed or self._extracted(content, asked, Path(call.cwd))
        if "-res-usage" in argv:
            return self.cubins[int(argv[-1].split(".")[-3]) - 1][1]
        return finished(1)

    def _failure(self, content: bytes, asked: str | None) -> Finished | None:
        if asked is not None and asked in self.dropped:
            return finished(1, stderr=NOT_DEFINED.replace(b"sm_35", asked.encode()))
        for chip in chips_of(content) if asked is None else ():
            if f"sm_{chip}" in self.dropped:
                words = self.removed.replace(b"sm_35", b"sm_%d" % chip)
                return finished(1, stdout=b"Extracting\n" * 9, stderr=words)
        if any(marked(number) in content for number in self.invalid):
            return finished(1, stderr=INVALID)
        return None

    def _extracted(self, content: bytes, asked: str | None, into: Path) -> Finished:
        chips = chips_of(content)
        lines = []
        for number, (target, _) in enumerate(self.cubins, 1):
            chip = int(target.removeprefix("sm_").rstrip("af"))
            if target.startswith(asked) if asked else not chips or chip in chips:
                name = f"image.{number}.{target}.cubin"
                (into / name).write_bytes(small_cubin())
                lines.append(f"Extracting ELF file    {number}: {name}\n")
        return finished(stdout="".join(lines).encode())


def marked(number: int) -> bytes:
    """Return the code of one entry of a fatbin, which nothing else contains."""
    return b"CODE%04d" % number


def fatbin(*chips: int, of_ptx: Sequence[int] = ()) -> bytes:
    """Return a fatbin with code of 8 bytes for each chip, and PTX for others."""
    entries = b"".join(
        struct.pack("<HHIQQII", kind, 0x101, 64, 8, 0, 0, chip)
        + bytes(32)
        + marked(place)
        for kind, numbers in ((2, chips), (1, of_ptx))
        for place, chip in enumerate(numbers)
    )
    head = struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(entries))
    return head + entries


def chips_of(content: bytes) -> list[int]:
    """Return the chips of the code in a file, each once."""
    return sorted({part.chip for part in fatbin_parts(content)})


def usage(line: str, name: str = "k") -> Finished:
    """Return what cuobjdump prints of one function."""
    text = f"\nResource usage:\n Common:\n  GLOBAL:0\n Function {name}:\n  {line}\n"
    return finished(stdout=text.encode())


def read_one(line: str, *, target: str = "sm_90") -> KernelResources:
    """Return the one kernel of a cubin of which cuobjdump prints this line."""
    runner = FakeCuobjdump((target, usage(line)))
    (kernel,) = read_binary(small_cubin(), runner=runner, tool="cuobjdump")
    return kernel


def by_name(kernels: Sequence[KernelResources]) -> dict[str, KernelResources]:
    """Return kernels by the part of their names that a person gave them."""
    return {
        word: kernel
        for kernel in kernels
        for word in ("scale", "block_sum", "indexed", "spilling")
        if word in kernel.name
    }


@with_tool
@pytest.mark.parametrize(
    ("target", "registers"),
    [
        ("sm_80", {"scale": 8, "block_sum": 12, "indexed": 30, "spilling": 32}),
        ("sm_90", {"scale": 8, "block_sum": 12, "indexed": 32, "spilling": 32}),
    ],
)
def test_a_cubin_says_what_the_compiler_said(
    target: str, registers: dict[str, int]
) -> None:
    """Registers, stack and shared memory are those of its log, which is named or given."""
    log = GOLD / f"kernels_{target}.log"
    kernels = by_name(
        read_binary(
            GOLD / f"kernels_{target}.cubin",
            runner=ProcessRunner(),
            ptxas_log=str(log) if target == "sm_80" else log.read_text(),
            block=256,
        )
    )

    assert {name: each.registers_count for name, each in kernels.items()} == registers
    assert {name: each.stack_bytes for name, each in kernels.items()} == {
        "scale": 0,
        "block_sum": 0,
        "indexed": 256,
        "spilling": 288,
    }
    assert {name: each.shared_bytes for name, each in kernels.items()} == {
        "scale": 0,
        "block_sum": 1024,
        "indexed": 0,
        "spilling": 0,
    }
    assert {name: each.spills_bytes for name, each in kernels.items()} == {
        "scale": 0,
        "block_sum": 0,
        "indexed": 0,
        "spilling": 680,
    }
    assert kernels["block_sum"].barriers_count == 1
    assert {each.target for each in kernels.values()} == {target}
    assert {each.threads_per_block for each in kernels.values()} == {256}
    assert {each.dynamic_shared_bytes for each in kernels.values()} == {None}


@with_tool
def test_a_log_is_believed_for_the_kernels_that_it_fits() -> None:
    """The log of another chip, relabelled: kernels with other registers are unknown."""
    log = (GOLD / "kernels_sm_80.log").read_text().replace("sm_80", "sm_90")
    (cubin,) = read_cubins(
        GOLD / "kernels_sm_90.cubin", runner=ProcessRunner(), ptxas_log=log
    ).cubins
    gaps = {k.name: gap for k, gap in zip(cubin.kernels, cubin.log_gaps, strict=True)}
    unknown = gaps.pop("_Z7indexedPKiPfi")

    assert unknown is not None
    assert "30 registers and a stack of 256 B in it, and 32 registers" in unknown.reason
    assert set(gaps.values()) == {None}
    kernels = by_name(cubin.kernels)
    assert kernels["indexed"].spills_bytes is None
    assert kernels["indexed"].barriers_count is None
    assert kernels["spilling"].spills_bytes == 680


@with_tool
def test_bytes_are_as_good_as_a_path() -> None:
    """The same cubin gives the same kernels, from a file and from memory."""
    path = GOLD / "kernels_sm_90.cubin"

    assert read_binary(str(path), runner=ProcessRunner()) == read_binary(
        path.read_bytes(), runner=ProcessRunner()
    )


@with_tool
@pytest.mark.skipif(
    not (shutil.which("c++filt") or shutil.which("cu++filt")),
    reason="no demangler is on PATH",
)
def test_names_are_demangled() -> None:
    """A kernel has the name of the binary and the one that a reader writes."""
    kernels = by_name(read_binary(GOLD / "kernels_sm_90.cubin", runner=ProcessRunner()))

    assert kernels["spilling"].name == "_Z8spillingILi64EEvPf"
    assert kernels["spilling"].demangled == "void spilling<64>(float*)"
    assert kernels["scale"].demangled == "scale"


@with_tool
def test_a_fatbin_gives_each_kernel_for_each_target() -> None:
    """A file for several chips gives one entry for each kernel and chip."""
    kernels = read_binary(GOLD / "kernels.fatbin", runner=ProcessRunner())

    assert [each.target for each in kernels] == ["sm_80"] * 4 + ["sm_90a"] * 4
    assert len({each.name for each in kernels}) == 4
    assert {each.shared_bytes for each in kernels if "block_sum" in each.name} == {1024}


@with_tool
def test_one_target_is_chosen_by_its_name() -> None:
    """With a target only its kernels are read, and another's name is not a match."""
    path = GOLD / "kernels.fatbin"
    kernels = read_binary(path, runner=ProcessRunner(), target="sm_90a")

    assert [each.target for each in kernels] == ["sm_90a"] * 4
    with pytest.raises(CaptureFormatError, match="only for sm_80, sm_90a") as caught:
        read_binary(path, runner=ProcessRunner(), target="sm_90")
    assert caught.value.path == str(path)


@with_tool
@pytest.mark.parametrize("as_mapping", [False, True])
def test_triton_says_block_and_shared_memory(*, as_mapping: bool) -> None:
    """What Triton compiled is read without Triton; its metadata fill in the launch."""
    facts = {"num_warps": 4, "shared": 16, "name": "row_sum"}
    compiled = SimpleNamespace(
        asm={"ptx": "", "cubin": (GOLD / "row_sum_sm_90.cubin").read_bytes()},
        metadata=facts if as_mapping else SimpleNamespace(**facts),
    )
    (kernel,) = read_binary(compiled, runner=ProcessRunner())

    assert kernel.name == "row_sum"
    assert kernel.target == "sm_90a"
    assert kernel.registers_count == 16
    assert kernel.threads_per_block == 128
    assert kernel.shared_bytes == 0
    assert kernel.dynamic_shared_bytes == 16
    assert "triton" not in sys.modules


@with_tool
def test_a_sequence_is_read_in_order() -> None:
    """Several binaries give their kernels one after the other."""
    kernels = read_binary(
        [GOLD / "row_sum_sm_90.cubin", (GOLD / "kernels_sm_80.cubin").read_bytes()],
        runner=ProcessRunner(),
    )

    assert kernels[0].name == "row_sum"
    assert [each.target for each in kernels] == ["sm_90a"] + ["sm_80"] * 4


@with_tool
def test_an_unbounded_stack_is_none() -> None:
    """A kernel that calls itself has no known stack, and its callee is not a kernel."""
    (kernel,) = read_binary(GOLD / "recursive_sm_90.cubin", runner=ProcessRunner())

    assert kernel.name == "_Z9recursivePfi"
    assert kernel.stack_bytes is None
    assert kernel.registers_count == 24


@with_tool
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_the_calls_of_a_kernel_tell_whether_its_stack_is_bounded(target: str) -> None:
    """The compiler states 0 of a recursive kernel, or what its other functions take."""
    kernels = read_binary(GOLD / f"stack_{target}.cubin", runner=ProcessRunner())

    assert {kernel.name: kernel.stack_bytes for kernel in kernels} == {
        **dict.fromkeys(("recursion", "mutual", "pointer", "both")),
        "called": 0,
        "dividing": 0,
        "plain": 0,
        "chain": 128,
    }


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_a_damaged_cubin_has_no_known_call(target: str) -> None:
    """Wherever it is cut: at most a kernel that the whole file has, and no error."""
    content = (GOLD / f"stack_{target}.cubin").read_bytes()
    names = ["recursion", "mutual", "pointer", "both", "called", "dividing", "chain"]
    whole = without_stack_bound(content, names, target)

    assert whole == {"recursion", "mutual", "pointer", "both"}
    for cut in range(0, len(content), 997):
        assert without_stack_bound(content[:cut], names, target) <= whole


def test_calls_before_volta_are_not_read() -> None:
    """Each kernel with functions of its own may be recursive; a division is none."""
    content = (GOLD / "stack_sm_80.cubin").read_bytes()

    assert without_stack_bound(content, ["dividing", "plain", "called"], "sm_61") == {
        "called"
    }


@with_tool
def test_a_host_program_without_kernels_is_refused() -> None:
    """An ELF file of the host says that it holds no device code."""
    with pytest.raises(CaptureFormatError, match="has no device code"):
        read_binary(sys.executable, runner=ProcessRunner())


@with_tool
def test_a_fatbin_of_ptx_is_refused() -> None:
    """PTX has no registers yet: a chip must be named first."""
    with pytest.raises(CaptureFormatError, match="no kernel compiled for a chip"):
        read_binary(GOLD / "only_ptx.fatbin", runner=ProcessRunner())


@with_tool
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["kernels_sm_90.cubin", "kernels.fatbin"])
def test_a_file_that_is_cut_off_is_refused(name: str, share: float) -> None:
    """Half a binary never gives half of the kernels."""
    content = (GOLD / name).read_bytes()

    with pytest.raises((CaptureFormatError, CollectorFailedError)):
        read_binary(content[: int(len(content) * share)], runner=ProcessRunner())


def test_a_binary_that_is_not_linked_is_refused() -> None:
    """Before the device link the tool prints stack 0 for every kernel: not believed."""
    path = GOLD / "not_linked_sm_90.cubin"

    with pytest.raises(CaptureFormatError, match="not linked") as caught:
        read_binary(path, runner=FakeRunner())
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"hello\n", "is not a cubin"),
        (b".version 9.0\n.target sm_90\n", "is PTX"),
        (small_cubin()[:40], "is cut off"),
    ],
)
def test_what_is_no_binary_is_refused_unasked(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    """No tool is started for a file whose head says enough; the file is named."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(content)

    with pytest.raises(CaptureFormatError, match=problem) as caught:
        read_binary(path, runner=FakeRunner())
    assert caught.value.path == str(path)
    assert caught.value.remedy
    with pytest.raises(CaptureFormatError, match=problem):
        read_binary(content, runner=FakeRunner())


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and a pipe, which would never answer, are named."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in (
        (tmp_path / "missing.cubin", "cannot be read .*; check the path"),
        (tmp_path, "is a folder or a device"),
        (pipe, "is a folder or a device"),
    ):
        with pytest.raises(CaptureFormatError, match=why) as caught:
            read_binary(path, runner=FakeRunner())
        assert caught.value.path == str(path)


def test_a_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """It would never answer; a folder has no text."""
    os.mkfifo(tmp_path / "pipe")
    for log in (tmp_path / "pipe", tmp_path):
        with pytest.raises(CaptureFormatError, match="is a folder, a pipe or a device"):
            read_binary(b"", ptxas_log=log, runner=FakeRunner())


@pytest.mark.parametrize("source", [None, 5, [], (), {"cubin": b""}])
def test_what_stands_for_no_binary_is_refused(source: object) -> None:
    """Nothing to read is an error, never an empty answer."""
    with pytest.raises(MeasureError, match="compiled kernel"):
        read_binary(source, runner=FakeRunner())


def test_triton_for_another_vendor_is_refused() -> None:
    """A compile result without code for a chip says which forms it holds."""
    compiled = SimpleNamespace(asm={"ttgir": "", "spv": b""}, metadata=None)

    with pytest.raises(CaptureFormatError, match="only ttgir, spv"):
        read_binary(compiled, runner=FakeRunner())


def test_what_the_caller_says_wins_over_triton() -> None:
    """block and dynamic_shared_bytes replace Triton's numbers."""
    compiled = SimpleNamespace(
        asm={"cubin": small_cubin()}, metadata={"num_warps": 4, "shared": 16}
    )
    runner = FakeCuobjdump(("sm_80", usage("REG:8 STACK:0 SHARED:0 CONSTANT[0]:8")))
    (kernel,) = read_binary(
        compiled, runner=runner, tool="t", block=64, dynamic_shared_bytes=0
    )

    assert kernel.threads_per_block == 64
    assert kernel.dynamic_shared_bytes == 0


@pytest.mark.parametrize("facts", [{"block": 0}, {"dynamic_shared_bytes": -1}])
def test_a_launch_that_cannot_be_is_refused(facts: dict[str, int]) -> None:
    """A block has a thread, and memory is not negative."""
    with pytest.raises(MeasureError, match=next(iter(facts))):
        read_binary(
            small_cubin(),
            runner=FakeRunner(),
            block=facts.get("block"),
            dynamic_shared_bytes=facts.get("dynamic_shared_bytes"),
        )


@pytest.mark.parametrize(
    ("target", "counted", "own"),
    [
        ("sm_80", 1024, 1024),
        ("sm_89", 1024, 1024),
        ("sm_90", 0, 0),
        ("sm_90", 1024, 0),
        ("sm_90a", 2048, 1024),
        ("sm_120", 1040, 16),
        ("sm_120f", 512, 512),
    ],
)
def test_the_drivers_share_is_not_the_kernels(
    target: str, counted: int, own: int
) -> None:
    """From 9.0 on the tool counts 1 KiB of the driver's; it is taken out again."""
    line = f"REG:8 STACK:0 SHARED:{counted} LOCAL:0 CONSTANT[0]:528"

    assert read_one(line, target=target).shared_bytes == own


def test_local_memory_and_constant_banks_are_summed() -> None:
    """STACK and LOCAL are both a thread's local memory; banks add up."""
    kernel = read_one("REG:8 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:528 CONSTANT[2]:8")

    assert kernel.stack_bytes == 24
    assert kernel.constant_bytes == 536
    assert kernel.spills_bytes is None
    assert kernel.threads_per_block is None


def test_a_binary_of_functions_alone_is_refused() -> None:
    """A function that kernels call is not a kernel; with none left, that is said."""
    with pytest.raises(CaptureFormatError, match="has no kernel"):
        read_one("REG:8 STACK:0 SHARED:0 LOCAL:0 TEXTURE:0")


@pytest.mark.parametrize(
    "line", ["REG:many STACK:0 SHARED:0 CONSTANT[0]:8", "STACK:0 CONSTANT[0]:8"]
)
def test_an_answer_that_is_not_understood_is_an_error(line: str) -> None:
    """A number that is not there is never taken for 0."""
    with pytest.raises(CollectorFailedError):
        read_one(line)


def test_a_cubin_that_the_tool_cannot_read_is_the_tools_failure() -> None:
    """A whole cubin refused by the tool is too new for it: its words are passed on."""
    words = b"cuobjdump info    : File 'image' does not contain device code"
    for runner in (
        FakeCuobjdump(ending=finished(255, stderr=words)),
        FakeCuobjdump(("sm_90", finished(255, stderr=words))),
    ):
        with pytest.raises(CollectorFailedError, match="device code") as caught:
            read_binary(small_cubin(), runner=runner, tool="cuobjdump")
        assert caught.value.exit_code == 255
        assert "nvidia-cuda-cuobjdump" in caught.value.remedy


def test_a_tool_that_dies_silently_is_a_failure() -> None:
    """A crash without a word still has its exit status."""
    runner = FakeCuobjdump(("sm_90", finished(-11)))

    with pytest.raises(CollectorFailedError, match="exit status -11"):
        read_binary(small_cubin(), runner=runner, tool="cuobjdump")


def test_a_demangler_that_fails_loses_no_kernel() -> None:
    """Without a readable name the kernel is there, its demangled name None."""
    assert read_one("REG:8 STACK:0 SHARED:0 CONSTANT[0]:8").demangled is None


@pytest.mark.parametrize(
    "answer",
    [
        finished(1, stdout=b"a\n"),
        finished(stdout=b"a\nb\n"),
        CollectorUnavailableError("gone", remedy="none"),
    ],
)
def test_a_doubtful_name_is_no_name(answer: Finished | Exception) -> None:
    """One line for each name, or none is believed."""
    tool = Path(sys.executable).name
    runner = FakeRunner([answer])

    names = demangled_names(["_Z1kv"], runner=runner, tools=[sys.executable, tool])
    assert names == {}
    assert runner.calls[0].stdin == b"_Z1kv\n"


def test_without_a_demangler_nothing_is_started() -> None:
    """No tool on PATH: no names, no process."""
    assert demangled_names(["_Z1kv"], runner=FakeRunner(), tools=["no-such"]) == {}
    assert demangled_names([], runner=FakeRunner()) == {}


def test_the_first_place_that_has_the_tool_wins() -> None:
    """Places are asked in their order, and no further than needed."""
    places = [lambda _: None, lambda tool: f"/1/{tool.name}", lambda _: "/second"]

    assert find_tool(NVDISASM, places) == "/1/nvdisasm"


@pytest.mark.parametrize("tool", [CUOBJDUMP, NVDISASM])
def test_without_the_tool_the_remedy_is_a_command(tool: Tool) -> None:
    """A missing tool names the extra to install."""
    with pytest.raises(CollectorUnavailableError, match=tool.name) as caught:
        find_tool(tool, [lambda _: None])
    assert 'pip install "pytest-gpuperf[binary]"' in caught.value.remedy


def test_a_wheel_is_asked_for_what_it_brought() -> None:
    """One that is not installed, or brought no such tool, has none."""
    assert in_wheel(Tool(name="cuobjdump", wheel="no-such-wheel")) is None
    assert in_wheel(Tool(name="no-such-tool", wheel="pytest")) is None


def test_path_and_toolkit_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cuobjdump on PATH comes first; the toolkit that CUDA_HOME names is known."""
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    tool = home / "bin" / "cuobjdump"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert on_path(CUOBJDUMP) is None
    assert in_toolkit(CUOBJDUMP) == str(tool)
    monkeypatch.delenv("CUDA_HOME")
    assert in_toolkit(CUOBJDUMP) is None
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert find_tool(CUOBJDUMP) == str(tool)


def test_tritons_copy_is_found_without_importing_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton is located, never loaded."""
    folder = tmp_path / "triton" / "backends" / "nvidia" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("raise SystemExit\n")
    (folder / "cuobjdump").write_text("#!/bin/sh\n")
    (folder / "cuobjdump").chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert in_triton(CUOBJDUMP) == str(folder / "cuobjdump")


USAGE = usage("REG:8 STACK:0 SHARED:0 CONSTANT[0]:8")


def read_chips(
    content: bytes, target: str | None = None, *, dropped: Sequence[str] = ("sm_35",)
) -> tuple[Contents, FakeCuobjdump]:
    """Return what a tool reads that knows sm_80 and sm_90a, and the tool."""
    runner = FakeCuobjdump(("sm_80", USAGE), ("sm_90a", USAGE), dropped=dropped)
    contents = read_cubins(content, runner=runner, tool="t", target=target)
    return contents, runner


def targets(contents: Contents) -> list[str]:
    """Return the chip of each kernel."""
    return [kernel.target for cubin in contents.cubins for kernel in cubin.kernels]


def test_a_chip_that_the_tool_has_dropped_does_not_hide_the_others() -> None:
    """The code of the others is read chip by chip, and it is told what was left out."""
    contents, _ = read_chips(fatbin(35, 80, 90))
    both, _ = read_chips(fatbin(80, 37, 35), dropped=("sm_35", "sm_37"))

    assert targets(contents) == ["sm_80", "sm_90a"]
    assert contents.unread == ("sm_35 is not read: this cuobjdump has dropped it",)
    assert targets(both) == ["sm_80"]
    assert both.unread == (
        "sm_35, sm_37 are not read: this cuobjdump has dropped them",
    )


def test_a_chip_that_is_too_new_does_not_hide_the_others() -> None:
    """The tool names it, and an update helps."""
    words = b"cuobjdump fatal : Value 'sm_999' is not known\n"
    runner = FakeCuobjdump(("sm_80", USAGE), dropped=["sm_999"], removed=words)
    contents = read_cubins(fatbin(80, 999), runner=runner, tool="t")

    assert targets(contents) == ["sm_80"]
    assert contents.unread == ("sm_999 is not read: this cuobjdump does not know it",)
    with pytest.raises(CollectorFailedError, match="cannot read sm_999 of ") as caught:
        read_cubins(fatbin(80, 999), runner=runner, tool="t", target="sm_999")
    assert "update it" in caught.value.remedy


def test_an_invalid_file_does_not_hide_the_others() -> None:
    """Neither those of other chips nor those of its own."""
    runner = FakeCuobjdump(("sm_80", USAGE), ("sm_90a", USAGE), invalid=[2])
    chips = fatbin(80, 90, 80, 80)
    contents = read_cubins(chips, runner=runner, tool="t")

    # Of chip 80, each half is asked for, and both parts of the second half.
    assert targets(contents) == ["sm_80", "sm_80", "sm_90a"]
    assert contents.unread == (
        (
            "sm_80 (a part) is not read: this cuobjdump finds an invalid ELF file in it, and "
            "another version on PATH may read it"
        ),
    )
    runner = FakeCuobjdump(("sm_80", USAGE), ("sm_90a", USAGE), invalid=[0, 2])
    contents = read_cubins(fatbin(80, 90, 75), runner=runner, tool="t")
    assert targets(contents) == ["sm_90a"]
    assert contents.unread == (
        (
            "sm_75, sm_80 are not read: this cuobjdump finds an invalid ELF file in them, and "
            "another version on PATH may read them"
        ),
    )


def test_code_that_the_tool_passes_over_is_named() -> None:
    """It ends with 0, and the fatbin has an entry more than there are files."""
    runner = FakeCuobjdump(("sm_80", USAGE))
    contents = read_cubins(fatbin(80, 90), runner=runner, tool="t")

    assert targets(contents) == ["sm_80"]
    assert contents.unread == ("not all code for sm_90 is read: cuobjdump skips it",)


def test_an_invalid_file_needs_another_tool() -> None:
    """Where there is no other code, or it was asked for. An update is no remedy."""
    for content, target, what in (
        (fatbin(80, 80), None, ""),
        (fatbin(80, 90), "sm_80", "sm_80 of "),
    ):
        invalid = [0, 1] if target is None else [0]
        runner = FakeCuobjdump(("sm_90a", USAGE), invalid=invalid)
        words = rf"cannot read {what}\d+ bytes: Invalid ELF"
        with pytest.raises(CollectorFailedError, match=words) as caught:
            read_cubins(content, runner=runner, tool="t", target=target)
        assert "of the toolkit that compiled it" in caught.value.remedy
        assert "update" not in caught.value.remedy


def test_a_fatbin_is_cut_into_its_parts() -> None:
    """Each part is a fatbin of its own, whatever file it is from."""
    content = b"\x7fELF" + fatbin(35, 80, of_ptx=[90]) + bytes(7) + fatbin(120)
    parts = fatbin_parts(content)

    assert [part.chip for part in parts] == [35, 80, 120]
    assert fatbin_of(content, parts[:2]) == fatbin(35, 80)
    assert fatbin_of(content, parts[2:]) == fatbin(120)


def test_code_before_the_link_is_no_part() -> None:
    """It stands in a section of its own, and its resources are not final."""
    content = elf({"__nv_relfatbin": fatbin(70), ".nv_fatbin": fatbin(80)})

    assert chips_of(content) == [80]
    assert chips_of(fatbin(70) + fatbin(80)) == [70, 80]


def test_an_archive_has_the_parts_of_each_file() -> None:
    """As of objects that nvcc compiled without -rdc=true."""
    files = [elf({".nv_fatbin": fatbin(chip)}) for chip in (80, 90)]
    content = archive(elf({"__nv_relfatbin": fatbin(70)}), *files)

    assert has_linked_fatbins(content)
    assert not has_linked_fatbins(archive(elf({"__nv_relfatbin": fatbin(70)})))
    assert chips_of(content) == [80, 90]


def test_a_target_is_asked_for_alone() -> None:
    """Code for other chips is not touched: one extraction, and nothing to tell."""
    contents, runner = read_chips(fatbin(35, 80, 90), "sm_90a")

    assert targets(contents) == ["sm_90a"]
    assert contents.unread == ()
    extractions = [call.argv for call in runner.calls if "-xelf" in call.argv]
    assert [argv[1:3] for argv in extractions] == [("-arch", "sm_90a")]


def test_a_target_that_the_tool_has_dropped_needs_an_older_tool() -> None:
    """The remedy is no update: newer versions read fewer chips. One line is shown."""
    with pytest.raises(
        CollectorFailedError, match=r"cannot read sm_35 of \d+ bytes: Support"
    ) as caught:
        read_chips(fatbin(35, 80), "sm_35")
    assert "\n" not in str(caught.value)
    assert "Support for 'sm_35' has been removed" in str(caught.value)
    assert "update" not in caught.value.remedy
    with pytest.raises(CollectorFailedError, match=r"cannot read \d+ bytes"):
        read_chips(fatbin(35))
    with pytest.raises(CaptureFormatError, match="no kernel for sm_75, only for sm_80"):
        read_chips(fatbin(35, 80), "sm_75")


def test_a_damaged_binary_is_not_read_chip_by_chip() -> None:
    """Half of its kernels would be taken for all."""
    broken = finished(1, stdout=b"Extracting\n" * 30, stderr=b"Invalid fatbin header")
    runner = FakeCuobjdump(("sm_80", USAGE), ending=broken)

    with pytest.raises(CaptureFormatError, match="cut off or damaged"):
        read_cubins(fatbin(35, 80), runner=runner, tool="t")
    broken = finished(1, stdout=b"Extracting\n" * 30, stderr=b"out of memory")
    runner = FakeCuobjdump(("sm_80", USAGE), ending=broken)
    with pytest.raises(
        CollectorFailedError, match=r"cannot read \d+ bytes: out of memory;"
    ):
        read_cubins(fatbin(35, 80), runner=runner, tool="t")


def test_the_chips_of_a_fatbin_are_those_with_code() -> None:
    """In every fatbin of a file; PTX has no code yet."""
    library = b"\x7fELF" + fatbin(35, 80, of_ptx=[90]) + bytes(7) + fatbin(80, 120)

    assert chips_of(library) == [35, 80, 120]
    assert chips_of((GOLD / "kernels.fatbin").read_bytes()) == [80, 90]
    assert chips_of((GOLD / "only_ptx.fatbin").read_bytes()) == []


def test_a_fatbin_that_is_cut_or_full_of_nonsense_ends() -> None:
    """Lengths of 0 or beyond the file, and 1 MB of beginnings."""
    content = fatbin(35, 80)
    magic = content[:4]

    assert all(set(chips_of(content[:cut])) <= {35, 80} for cut in range(200))
    assert chips_of(magic * 250_000) == []
    assert chips_of(content[:8] + b"\xff" * 200) == []
    zero = content[:16] + content[16:20] + bytes(12) + content[32:]
    assert set(chips_of(zero)) <= {0, 35, 80}
