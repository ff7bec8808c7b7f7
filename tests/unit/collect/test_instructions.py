"""Rules of collect.binary's reading of machine code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary.instructions import (
    CodeListing,
    Instruction,
    KernelCode,
    classes_of,
    instruction_mix,
    kernel_code,
    read_listing,
    spilled_bytes,
)
from pytest_gpuperf.collect.binary.read import Cubin, read_cubins, read_mixes
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool
from pytest_gpuperf.collect.runner import Finished, ProcessRunner
from pytest_gpuperf.errors import CollectorFailedError, CollectorUnavailableError
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES

GOLD = Path(__file__).parents[2] / "gold" / "binary"


def _tool_reason() -> str:
    try:
        find_tool(CUOBJDUMP)
        find_tool(NVDISASM)
    except CollectorUnavailableError as error:
        return str(error)
    return ""


NO_TOOL = _tool_reason()
with_tools = pytest.mark.skipif(bool(NO_TOOL), reason=NO_TOOL)


def listed(*lines: str) -> str:
    """Return lines as nvdisasm lists them: a label as it is, the rest with a place."""
    text = ["\t.section\t.text.k", "        .type k,@function", "k:", ".text.k:"]
    text += [
        line if line.endswith(":") else f"        /*{index * 16:04x}*/    {line} ;"
        for index, line in enumerate(lines)
    ]
    return "\n".join(text)


def code_of(*lines: str) -> KernelCode:
    """Return the code of the kernel that these lines are."""
    code = kernel_code(read_listing(listed(*lines)), "k")
    assert code is not None
    return code


def opcodes(instructions: tuple[Instruction, ...]) -> list[str]:
    """Return the opcodes alone."""
    return [instruction.opcode for instruction in instructions]


# listing


def test_a_line_is_an_instruction() -> None:
    """Guard, opcode with modifiers and operands; directives and comments are none."""
    text = listed("@!P0 LDG.E.128 R4, desc[UR8][R2.64+0x200]", "EXIT")
    text += "\n//---- comment\n        .size k,(.L_x_1 - k)\n"
    listing = read_listing(text)

    assert listing.instructions == [
        Instruction(
            guard="!P0",
            opcode="LDG.E.128",
            operands="R4, desc[UR8][R2.64+0x200]",
        ),
        Instruction(opcode="EXIT"),
    ]
    assert listing.places == {"k": 0, ".text.k": 0}


def test_another_kernel_is_not_this_one() -> None:
    """A name that the file does not have has no code."""
    assert kernel_code(read_listing(listed("EXIT")), "other") is None


# flow


def test_a_backward_branch_makes_a_loop() -> None:
    """What lies between its target and itself is in the loop, and nothing else."""
    code = code_of(
        "MOV R1, R2", ".L_x_0:", "LDG.E R3, [R4]", "@P0 BRA `(.L_x_0)", "EXIT"
    )

    assert opcodes(code.in_loops) == ["LDG.E", "BRA"]
    assert opcodes(code.instructions) == ["MOV", "LDG.E", "BRA", "EXIT"]


def test_a_block_out_of_line_is_no_loop() -> None:
    """A jump back to where it came from, once, runs nothing twice."""
    code = code_of(
        "@P0 BRA `(.L_x_1)",
        ".L_x_0:",
        "FADD R1, R2, R3",
        "EXIT",
        ".L_x_1:",
        "FMUL R2, R2, R3",
        "BRA `(.L_x_0)",
    )

    assert code.in_loops == ()
    assert len(code.instructions) == 5


def test_padding_is_not_code() -> None:
    """What follows the last exit and nobody jumps to is not counted."""
    code = code_of("EXIT", ".L_x_0:", "BRA `(.L_x_0)", "NOP", "NOP")

    assert opcodes(code.instructions) == ["EXIT"]


@pytest.mark.parametrize(
    "branch",
    ["@P0 BRA `(.L_x_0)", "BRA !P5, `(.L_x_0)", "BRA.U !UP0, `(.L_x_0)"],
)
def test_a_guarded_jump_may_go_on(branch: str) -> None:
    """A predicate before the jump or among its operands leaves both ways open."""
    code = code_of(".L_x_0:", branch, "FADD R1, R2, R3", "EXIT")

    assert opcodes(code.in_loops) == [branch.removeprefix("@P0 ").split()[0]]
    assert len(code.instructions) == 3


def test_a_jump_that_never_runs_goes_nowhere() -> None:
    """@!PT lets no thread pass; @PT lets all."""
    code = code_of(".L_x_0:", "@!PT BRA `(.L_x_0)", "@PT EXIT", "NOP")

    assert code.in_loops == ()
    assert opcodes(code.instructions) == ["BRA", "EXIT"]


def test_threads_that_meet_again_make_no_loop() -> None:
    """What follows the meeting place is reached; one barrier may serve twice."""
    region = ("BSSY B0, `({0})", "@P0 BRA `({1})", "FADD R1, R2, R3", "{1}:")
    ends = ("BSYNC B0", "{0}:")
    lines = [
        line.format(f".L_x_{n}", f".L_x_{n + 1}")
        for n in (0, 2)
        for line in region + ends
    ]
    code = code_of(*lines, "FMUL R2, R2, R3", "EXIT")

    assert code.in_loops == ()
    assert opcodes(code.instructions).count("FADD") == 2
    assert "FMUL" in opcodes(code.instructions)


def test_a_table_of_jumps_has_its_targets() -> None:
    """A switch in a loop: every listed target is reached, and is in the loop."""
    code = code_of(
        ".L_x_0:",
        'BRX R8 -0x190   (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)',
        "NOP",
        ".L_x_1:",
        "FADD R1, R2, R3",
        "BRA `(.L_x_0)",
        ".L_x_2:",
        "EXIT",
    )

    assert opcodes(code.in_loops) == ["BRX", "FADD", "BRA"]
    assert opcodes(code.instructions)[-1] == "EXIT"
    assert code.doubt is None


def test_a_table_that_is_not_listed_is_a_doubt() -> None:
    """Nobody knows where the jump goes: the code is not all known."""
    assert code_of("BRX R8 -0x190", "EXIT").doubt == (
        "jumps to targets that nvdisasm does not list"
    )


FUNCTION = ("f:", "FMUL R2, R2, R3", "RET.REL.NODEC R20 `(k)")


def test_a_called_function_is_part_of_the_kernel() -> None:
    """Once, from however many places it is called; no loop of its own makes none."""
    code = code_of("CALL.REL.NOINC `(f)", "CALL.REL.NOINC `(f)", "EXIT", *FUNCTION)

    assert opcodes(code.instructions).count("FMUL") == 1
    assert code.in_loops == ()


def test_what_a_loop_calls_is_in_the_loop() -> None:
    """Through one function and the next."""
    code = code_of(
        ".L_x_0:",
        "CALL.REL.NOINC `(g)",
        "@P0 BRA `(.L_x_0)",
        "EXIT",
        *FUNCTION,
        "g:",
        "FADD R1, R2, R3",
        "CALL.REL.NOINC `(f)",
        "RET.REL.NODEC R20 `(k)",
    )

    assert sorted(opcodes(code.in_loops)) == sorted(
        [*["CALL.REL.NOINC", "RET.REL.NODEC"] * 2, "BRA", "FADD", "FMUL"]
    )


def test_a_far_jump_is_no_call() -> None:
    """A jump out of a loop that is written as a call does not take the rest with it."""
    code = code_of(
        ".L_x_0:",
        "FADD R1, R2, R3",
        "@P6 CALL.REL.NOINC `(.L_x_1)",
        "BRA `(.L_x_0)",
        ".L_x_1:",
        "FMUL R2, R2, R3",
        "EXIT",
    )

    assert "FMUL" in opcodes(code.instructions)
    assert opcodes(code.in_loops) == ["FADD", "CALL.REL.NOINC", "BRA"]


def test_a_function_that_calls_itself_is_a_loop() -> None:
    """Recursion runs its code again."""
    code = code_of(
        "CALL.REL.NOINC `(f)",
        "EXIT",
        "f:",
        "@P0 RET.REL.NODEC R20 `(k)",
        "FMUL R2, R2, R3",
        "CALL.REL.NOINC `(f)",
        "RET.REL.NODEC R20 `(k)",
    )

    assert "FMUL" in opcodes(code.in_loops)
    assert "EXIT" not in opcodes(code.in_loops)


def test_a_call_through_a_pointer_is_a_doubt() -> None:
    """Within the file nobody knows what it calls; a driver's function is not ours."""
    assert code_of("CALL.REL.NOINC R8 `(k)", "EXIT").doubt == (
        "calls functions through pointers"
    )
    assert code_of("CALL.ABS.NOINC R12", "EXIT").doubt is None
    assert code_of("CALL.ABS.NOINC `(vprintf)", "EXIT").doubt is None


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans()), min_size=12, max_size=12))
def test_loops_are_what_can_run_again(jumps: list[tuple[int, bool]]) -> None:
    """In any tangle of jumps: an instruction is in a loop if it can reach itself."""
    instructions = [
        Instruction(
            opcode="BRA", operands=f"`(.L_x_{to})", guard="P0" if guarded else None
        )
        for to, guarded in jumps
    ]
    places = {f".L_x_{index}": index for index in range(12)} | {"k": 0}
    code = kernel_code(CodeListing(instructions=instructions, places=places), "k")

    after = {
        i: {to} | ({i + 1} if guarded and i < 11 else set())
        for i, (to, guarded) in enumerate(jumps)
    }

    def reach(start: int) -> set[int]:
        seen: set[int] = set()
        todo = set(after[start])
        while todo:
            place = todo.pop()
            seen.add(place)
            todo |= after[place] - seen
        return seen

    reached = {0} | reach(0)
    assert code is not None
    assert len(code.instructions) == len(reached)
    assert len(code.in_loops) == sum(place in reach(place) for place in reached)


# classes


@pytest.mark.parametrize(
    ("opcode", "classes"),
    [
        ("LDG.E.U8", {"global_load", "global_load_1"}),
        ("LDG.E.S16.CONSTANT", {"global_load", "global_load_2"}),
        ("LDG.E.LTC128B", {"global_load", "global_load_4"}),
        ("LDG.E.64.STRONG.GPU", {"global_load", "global_load_8"}),
        ("LDG.E.LTC128B.128", {"global_load", "global_load_16"}),
        ("LDG.E.ENL2.256", {"global_load", "global_load_32"}),
        ("STG.E.U16", {"global_store", "global_store_2"}),
        ("LD.E", {"generic_load"}),
        ("ST.E.128", {"generic_store"}),
        ("LDSM.16.M88.4", {"shared_load"}),
        ("STS.128", {"shared_store"}),
        ("LDL.LU.64", {"local_load"}),
        ("STL", {"local_store"}),
        ("LDGSTS.E.BYPASS.128", {"async_copy", "ldgsts"}),
        ("UBLKCP.G.S", {"async_copy", "bulk_copy"}),
        ("UTMALDG.2D", {"async_copy", "tma"}),
        ("LDGDEPBAR", set()),
        ("HMMA.16816.F32", {"tensor", "hmma"}),
        ("IMMA.16816.S8.S8", {"tensor", "imma"}),
        ("DMMA.8x8x4", {"tensor", "dmma"}),
        ("HGMMA.64x128x16.F32", {"tensor", "wgmma", "hgmma"}),
        ("QGMMA.64x64x32.F32.E4M3.E4M3", {"tensor", "wgmma", "qgmma"}),
        ("UTCHMMA.2CTA", {"tensor", "tcgen05", "utchmma"}),
        ("UTCXMMA", {"tensor", "tcgen05"}),
        ("WARPGROUP.ARRIVE", set()),
        ("DFMA", {"fp64", "fma"}),
        ("FFMA.FTZ", {"fp32", "fma"}),
        ("FFMA2", {"fp32", "fp32_pair", "fma", "fma_pair"}),
        ("FMUL2", {"fp32", "fp32_pair"}),
        ("HFMA2.BF16_V2", {"fp16", "fma"}),
        ("IMAD.MOV.U32", set()),
        ("BAR.SYNC.DEFER_BLOCKING", {"barrier"}),
        ("SYNCS.ARRIVE.TRANS64", {"mbarrier"}),
        ("ATOMG.E.ADD.STRONG.GPU", {"atomic", "atomic_global"}),
        ("RED.E.ADD.STRONG.GPU", {"atomic", "atomic_global"}),
        ("ATOMS.OR", {"atomic", "atomic_shared"}),
        ("BRA.U", {"branch"}),
        ("CALL.REL.NOINC", {"call"}),
    ],
)
def test_an_opcode_counts_in_its_classes(opcode: str, classes: set[str]) -> None:
    """And only in classes that have a metric."""
    found = classes_of(Instruction(opcode=opcode, operands="R1, R2, R3"))

    assert set(found) == classes <= set(INSTRUCTION_CLASSES)


@pytest.mark.parametrize(
    "line",
    [
        "HFMA2.MMA R5, -RZ, RZ, 0, 2.384185791015625e-07",
        "HADD2.F32 R5, -RZ, R4.H0_H0",
        "FADD R0, -RZ, |R1|",
        "FADD.FTZ R0, R1, -RZ",
        "DADD R2, -RZ, -R4",
    ],
)
def test_a_move_is_no_arithmetic(line: str) -> None:
    """Compilers write constants, signs and conversions with arithmetic opcodes."""
    (instruction,) = read_listing(listed(line)).instructions

    assert classes_of(instruction) == ()


def test_what_no_thread_runs_is_not_counted() -> None:
    """@!PT LDS is a filler, NOP padding."""
    runner = FakeRunner(
        [finished(stdout=listed("@!PT LDS RZ, [RZ]", "NOP", "EXIT").encode())]
    )
    (mix,) = instruction_mix("nvdisasm", Path("x"), ["k"], runner=runner)

    assert mix.counts is not None
    assert mix.counts["compiled"] == 1
    assert mix.counts["shared_load"] == 0
    assert runner.calls[0].argv == ("nvdisasm", "-c", "x")


# spills


def spilled(*lines: str) -> int | None:
    """Return the spills of a kernel of these lines."""
    return spilled_bytes(code_of("LDC R1, c[0x0][0x28]", *lines, "EXIT"))


SPILL = ("STL [R1], R4", "LDL R4, [R1]")


def test_a_kernel_without_local_memory_spills_nothing() -> None:
    """Even where the code is not all known there is no doubt of what is."""
    assert spilled("FADD R4, R5, R6") == 0


def test_places_of_the_stack_are_spills() -> None:
    """Both ways count, each with its width."""
    assert (
        spilled("VIADD R1, R1, 0xffffffe0", "STL.128 [R1+0x10], R4", "LDL R4, [R1]")
        == 20
    )


@pytest.mark.parametrize(
    "lines",
    [
        ("STL [R1], R4",),
        ("LDL R4, [R1]",),
        ("STL.U8 [R1], R4", "LDL.U8 R4, [R1]"),
        ("STL [R5], R4", "LDL R4, [R5]"),
        ("STL [R1+UR4], R4", "LDL R4, [R1+UR4]"),
        ("LEA R5, R6, R1, 0x2", *SPILL),
        ("IADD3 R4, P0, R1, UR4, RZ", *SPILL),
        ("IADD3 R1, R1, -0x40, RZ", *SPILL, "IADD3 R1, R1, 0x40, RZ"),
        (*SPILL, "CALL.REL.NOINC R8 `(k)"),
    ],
)
def test_an_array_on_the_stack_is_no_spill(lines: tuple[str, ...]) -> None:
    """
    Nobody can tell what only one way, or less than a register, or a run-time address,
    a pointer, a callee or unknown code means.
    """
    assert spilled(*lines) is None


# whole files


def mixes_of(name: str) -> dict[str, dict[str, int]]:
    """Return what each kernel of a gold file consists of, without what it has not."""
    cubins = read_cubins(GOLD / name, runner=ProcessRunner()).cubins
    mixes = read_mixes(cubins, runner=ProcessRunner())
    return {
        mix.kernel: {key: count for key, count in mix.counts.items() if count}
        for mix in mixes
        if mix.counts is not None
    }


@with_tools
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_accesses_are_counted_by_width(target: str) -> None:
    """As the source has them: one of each width, one load and one store in the loop."""
    found = mixes_of(f"mix_{target}.cubin")["widths"]
    loads = {key: n for key, n in found.items() if "global_load" in key}
    stores = {key: n for key, n in found.items() if "global_store" in key}

    assert loads == {
        "global_load": 5,
        **{f"global_load_{n}": 1 for n in (1, 2, 4, 8, 16)},
        "loop.global_load": 1,
        "loop.global_load_4": 1,
    }
    assert stores == {
        "global_store": 3,
        **{f"global_store_{n}": 1 for n in (1, 8, 16)},
        "loop.global_store": 1,
        "loop.global_store_8": 1,
    }


@with_tools
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_arithmetic_is_counted_by_width(target: str) -> None:
    """As the source has it."""
    found = mixes_of(f"mix_{target}.cubin")["arithmetic"]

    assert {key: found[key] for key in ("fp64", "fp32", "fp16")} == {
        "fp64": 2,
        "fp32": 3,
        "fp16": 1,
    }
    assert found["barrier"] == found["atomic_global"] == 1
    assert found["shared_load"] == found["shared_store"] == 1


@with_tools
def test_tensor_cores_are_told_apart() -> None:
    """One source, two chips: a warp's instruction on one, a warp group's on the other."""
    old = mixes_of("mix_sm_80.cubin")["product"]
    new = mixes_of("mix_sm_90a.cubin")["product"]

    assert (old["loop.hmma"], old["imma"], old["tensor"]) == (1, 1, 2)
    assert (new["loop.hgmma"], new["imma"], new["tensor"]) == (1, 1, 2)
    assert "wgmma" not in old
    assert "hmma" not in new


@with_tools
def test_copies_are_told_apart() -> None:
    """cp.async, cp.async.bulk and the one by tensor map."""
    old = mixes_of("mix_sm_80.cubin")["copies"]
    new = mixes_of("mix_sm_90a.cubin")["copies"]

    assert old["async_copy"] == old["loop.ldgsts"] == 1
    assert (new["async_copy"], new["loop.async_copy"]) == (3, 1)
    assert new["ldgsts"] == new["bulk_copy"] == new["tma"] == 1


@with_tools
def test_functions_are_followed() -> None:
    """The store of a called function is in the loop that calls it, and counted once."""
    found = mixes_of("mix_sm_90a.cubin")

    assert found["called"]["global_store"] == found["called"]["loop.global_store"] == 1
    assert "pointer" not in found


@with_tools
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_spills_are_those_of_the_compilers_log(target: str) -> None:
    """340 bytes stored and 340 loaded, read from the code alone; an array is unknown."""
    cubins = read_cubins(
        GOLD / f"kernels_{target}.cubin", runner=ProcessRunner()
    ).cubins
    mixes = read_mixes(cubins, runner=ProcessRunner())

    assert {mix.kernel: mix.spills_bytes for mix in mixes} == {
        "scale": 0,
        "_Z9block_sumPKfPf": 0,
        "_Z7indexedPKiPfi": None,
        "_Z8spillingILi64EEvPf": 680,
    }


def test_a_cubin_without_a_chosen_kernel_is_not_read() -> None:
    """A library has one for each chip, and nvdisasm reads each of them whole."""
    runner = FakeRunner()

    assert read_mixes([Cubin(content=b"", kernels=())], runner=runner, tool="t") == ()
    assert runner.calls == []


@with_tools
def test_mixes_stand_beside_their_kernels() -> None:
    """Of several files and targets: the order of the kernels."""
    cubins = read_cubins(
        [GOLD / "row_sum_sm_90.cubin", GOLD / "kernels.fatbin"], runner=ProcessRunner()
    ).cubins
    mixes = read_mixes(cubins, runner=ProcessRunner())

    assert [mix.kernel for mix in mixes] == [
        kernel.name for cubin in cubins for kernel in cubin.kernels
    ]
    assert len(mixes) == 9
    assert all(mix.counts for mix in mixes)


def test_a_kernel_that_is_not_listed_is_a_doubt() -> None:
    """It has no counts, not counts of zero."""
    runner = FakeRunner([finished(stdout=listed("EXIT").encode())])
    known, unknown = instruction_mix("t", Path("x"), ["k", "other"], runner=runner)

    assert known.counts is not None
    assert set(known.counts) == {
        f"{scope}{name}" for scope in ("", "loop.") for name in INSTRUCTION_CLASSES
    }
    assert unknown.counts is None
    assert unknown.spills_bytes is None
    assert unknown.doubt == "nvdisasm does not list it"


DEPRECATED = (
    b'nvdisasm fatal   : CUDA architecture "SM60" is deprecated. Please use CUDA '
    b"toolkit 13.0 or earlier\n"
)


def test_a_chip_that_the_tool_has_dropped_does_not_hide_the_others() -> None:
    """Its kernels have no counts, and the tool's words say why."""
    kernel = KernelResources(
        name="k",
        demangled=None,
        target="sm_60",
        registers_count=8,
        stack_bytes=0,
        shared_bytes=0,
        constant_bytes=0,
    )
    cubins = [Cubin(content=b"", kernels=(kernel,))] * 2
    good = finished(stdout=listed("EXIT").encode())
    runner = FakeRunner([finished(255, stderr=DEPRECATED), good])
    dropped, known = read_mixes(cubins, runner=runner, tool="t")

    assert known.counts is not None
    assert dropped.counts is None
    assert dropped.doubt is not None
    assert 'architecture "SM60" is deprecated' in dropped.doubt
    runner = FakeRunner([finished(255, stderr=DEPRECATED)] * 2)
    with pytest.raises(CollectorFailedError, match="SM60") as caught:
        read_mixes(cubins, runner=runner, tool="t")
    assert "update" not in caught.value.remedy


@pytest.mark.parametrize(
    "answer",
    [finished(255, stderr=b"nvdisasm fatal : unknown SM"), finished(stdout=b"\n")],
)
def test_a_tool_that_cannot_read_it_is_a_failure(answer: Finished) -> None:
    """In the tool's words, with what to update."""
    with pytest.raises(CollectorFailedError, match="nvdisasm cannot") as caught:
        instruction_mix("t", Path("x"), ["k"], runner=FakeRunner([answer]))
    assert "nvidia-cuda-nvdisasm" in caught.value.remedy
