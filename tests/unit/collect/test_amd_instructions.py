"""Rules of collect.binary.amd_instructions: what counts as which class."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.code_object import code_object, kernel
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary.amd_instructions import (
    AmdInstruction,
    amd_classes_of,
    amd_mixes,
    find_disassembler,
    read_amd_listing,
)
from pytest_gpuperf.collect.binary.read import read_cubins, read_mixes
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import CollectorFailedError, CollectorUnavailableError
from pytest_gpuperf.model.activity import InstructionMix

GOLD = Path(__file__).parents[2] / "gold" / "binary"
LISTING = """
image.hsaco:\tfile format elf64-amdgpu

Disassembly of section .text:

0000000000001000 <k>:
\ts_load_dwordx2 s[0:1], s[4:5], 0x0                         // 000000001000: C0060002 00000000
\tglobal_load_dwordx4 v[0:3], v4, s[0:1]                     // 000000001008: DC5C8000 00000004
\tv_fma_f32 v0, v1, v2, v3                                   // 000000001010: D1CB0000 040E0501
\ts_nop 0                                                    // 000000001018: BF800000
\ts_cbranch_scc1 65534                                       // 00000000101C: BF85FFFC <k+0x10>
\tglobal_store_dword v4, v0, s[0:1]                          // 000000001020: DC708000 00000004
\ts_endpgm                                                   // 000000001028: BF810000
\ts_code_end                                                 // 00000000102C: BF9F0000
"""


def mix_of(text: str, target: str = "gfx90a", stderr: bytes = b"") -> InstructionMix:
    """Return the mix of a kernel with such a listing."""
    content = code_object([kernel()], target=target)
    (cubin,) = read_cubins(content, runner=ProcessRunner()).cubins
    runner = FakeRunner([finished(stdout=text.encode(), stderr=stderr)])
    (mix,) = amd_mixes(content, cubin.kernels, tool="llvm-objdump", runner=runner)
    return mix


def test_the_instructions_that_can_run_are_counted() -> None:
    """Without padding; those that control comes back to are in a loop."""
    mix = mix_of(LISTING)

    assert mix.doubt is None
    assert mix.classes() == {
        "compiled": 6,
        "global_load": 1,
        "global_load_16": 1,
        "global_store": 1,
        "global_store_4": 1,
        "fma": 1,
        "fp32": 1,
        "branch": 1,
    }
    assert mix.classes(in_loops=True) == {
        "loop.compiled": 2,
        "loop.fma": 1,
        "loop.fp32": 1,
        "loop.branch": 1,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("s_swappc_b64 s[30:31], s[4:5]", "calls functions through pointers"),
        ("s_setpc_b64 s[4:5]", "jumps to targets"),
        ("s_branch 4", "jumps to targets"),
        ("<unknown>", "does not know an instruction"),
    ],
)
def test_code_that_is_not_all_known_has_no_counts(line: str, reason: str) -> None:
    """A count of a part would pass for one of the whole."""
    mix = mix_of(LISTING.replace("v_fma_f32 v0, v1, v2, v3", line))

    assert mix.counts is None
    assert reason in (mix.doubt or "")
    assert mix.spills_bytes == 0


@pytest.mark.parametrize(
    ("opcode", "operands", "classes"),
    [
        ("v_mfma_f32_32x32x8f16", "", {"tensor"}),
        ("v_wmma_f32_16x16x16_f16", "", {"tensor"}),
        ("v_pk_fma_f16", "v0, v1", {"fp16", "fma"}),
        ("v_pk_fma_f32", "v0, v1", {"fp32", "fp32_pair", "fma", "fma_pair"}),
        ("v_pk_mul_f32", "v0, v1", {"fp32", "fp32_pair"}),
        ("v_mad_f32", "v0, v1", {"fp32"}),
        ("v_add_f64", "v[0:1]", {"fp64"}),
        ("v_add_u32_e32", "v0, v1", set()),
        ("v_dual_fmac_f32", " v0, v1 :: v_dual_add_f32 v2, v3", {"fma", "fp32"}),
        ("ds_read_b128", "v[0:3], v4", {"shared_load"}),
        ("ds_store_2addr_b64", "v0, v1", {"shared_store"}),
        ("ds_add_u32", "v0, v1", {"atomic", "atomic_shared"}),
        ("ds_bpermute_b32", "v0, v1, v2", set()),
        ("flat_load_dword", "v0, v[2:3]", {"generic_load"}),
        ("scratch_store_dword", "off, v0, s32", {"local_store"}),
        (
            "buffer_load_ubyte",
            "v0, v1, s[4:7], 0 idxen",
            {"global_load", "global_load_1"},
        ),
        ("buffer_load_dword", "v0, off, s[0:3], 0 offset:4", {"local_load"}),
        ("buffer_load_dword", "v0, s[4:7], 0 idxen lds", {"async_copy"}),
        ("global_load_dwordx3", "v[0:2], v3", {"global_load"}),
        ("global_atomic_add_f32", "v0, v1", {"atomic", "atomic_global"}),
        ("flat_atomic_add", "v0, v1", {"atomic"}),
        ("s_barrier", "", {"barrier"}),
        ("s_cbranch_vccz", "3", {"branch"}),
        ("s_waitcnt", "vmcnt(0)", set()),
    ],
)
def test_an_instruction_has_the_classes_of_its_work(
    opcode: str, operands: str, classes: set[str]
) -> None:
    """By the names of LLVM, before and after gfx11 renamed them."""
    instruction = AmdInstruction(place=0, opcode=opcode, operands=operands)

    assert set(amd_classes_of(instruction, has_scratch=True)) == classes


def test_a_buffer_is_global_without_scratch() -> None:
    """The first registers then hold another descriptor."""
    load = AmdInstruction(place=0, opcode="buffer_load_dword", operands="v0, s[0:3], 0")

    assert amd_classes_of(load) == ("global_load", "global_load_4")


def test_a_chip_that_the_tool_does_not_know_is_refused() -> None:
    """It goes on with another chip, whose instructions these are not."""
    warning = b"'gfx942' is not a recognized processor for this target (ignoring it)"

    with pytest.raises(CollectorFailedError, match="does not know gfx942") as no:
        mix_of(LISTING, target="gfx942", stderr=warning)
    assert "newer LLVM" in no.value.remedy


def test_without_the_tool_the_spills_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The notes state them; the counts have a reason and a remedy."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(CollectorUnavailableError, match="neither on PATH nor in ROCm"):
        find_disassembler()

    content = code_object([kernel(vgpr_spill_count=2)])
    cubins = read_cubins(content, runner=ProcessRunner()).cubins
    (mix,) = read_mixes(cubins, runner=FakeRunner())

    assert mix.spills_bytes == 8
    assert mix.counts is None
    assert "apt install llvm" in mix.remedy


def test_the_tool_of_rocm_is_taken_first(tmp_path: Path) -> None:
    """It knows the newest chips."""
    tool = tmp_path / "llvm" / "bin" / "llvm-objdump"
    tool.parent.mkdir(parents=True)
    tool.touch(mode=0o755)

    assert find_disassembler({"ROCM_PATH": str(tmp_path)}) == str(tool)


@pytest.mark.skipif(shutil.which("llvm-objdump") is None, reason="no llvm-objdump")
def test_a_kernel_of_triton_is_counted() -> None:
    """The counts are those of a plain search in the same listing."""
    path = GOLD / "row_sum_1024_4_gfx90a.hsaco"
    cubins = read_cubins(path, runner=ProcessRunner()).cubins
    (mix,) = read_mixes(cubins, runner=ProcessRunner())
    command = ["llvm-objdump", "-d", "--mcpu=gfx90a", str(path)]
    text = subprocess.check_output(command, encoding="utf-8")
    opcodes = [line.split()[0] for line in text.splitlines() if "// 0000" in line]

    assert mix.doubt is None
    counts = mix.counts or {}
    assert counts["compiled"] == len([o for o in opcodes if o != "s_nop"])
    assert counts["fp32"] == len(
        [o for o in opcodes if re.match(r"v_(?:pk_)?(?:add|mul|sub|fma)_f32", o)]
    )
    assert counts["barrier"] == opcodes.count("s_barrier")
    assert counts["global_load"] == len(
        [o for o in opcodes if o.startswith("buffer_load")]
    )
    assert [*read_amd_listing(text)] == ["row_sum"]
