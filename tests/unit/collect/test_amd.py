"""Rules of collect.binary.amd."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.binaries import archive
from fakes.code_object import (
    bundle,
    code_object,
    compressed,
    elf,
    kernel,
    note,
    program,
)
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary import amd
from pytest_gpuperf.collect.binary.containers import members
from pytest_gpuperf.collect.binary.read import Contents, read_cubins, read_mixes
from pytest_gpuperf.collect.chip_limits import target_limits
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.compute.derive import kernel_occupancy
from pytest_gpuperf.errors import CaptureFormatError, CollectorUnavailableError
from pytest_gpuperf.model.frozen import replace

GOLD = Path(__file__).parents[2] / "gold" / "binary"
ONE = code_object([kernel("one")])
TWO = code_object([kernel("two", vgpr_spill_count=3)], "gfx90a:sramecc+:xnack-")


def read(source: object, **how: object) -> Contents:
    """Return what a file holds, read without any tool but a demangler."""
    return read_cubins(source, runner=ProcessRunner(), **how)  # type: ignore[arg-type] # each test passes its own


def names(contents: Contents) -> list[str]:
    """Return name and chip of each kernel."""
    kernels = (k for cubin in contents.cubins for k in cubin.kernels)
    return [f"{k.name} {k.target}" for k in kernels]


@pytest.mark.parametrize(
    ("name", "registers", "accumulation", "scalar", "spills", "warps"),
    [
        ("row_sum_1024_4_gfx90a", 10, 0, 22, 0, 8),
        ("matmul_64_gfx942", 70, 0, 28, 0, 7),
        ("matmul_64_gfx950", 96, 0, 30, 0, 5),
        ("matmul_128_gfx1100", 237, None, 107, 30, 6),
        ("row_sum_1024_4_gfx1200", 14, None, 12, 0, 16),
    ],
)
def test_a_code_object_says_what_llvm_said(
    name: str,
    registers: int,
    accumulation: int | None,
    scalar: int,
    spills: int,
    warps: int,
) -> None:
    """Registers as llvm-readelf prints them, and LLVM's own occupancy of a SIMD."""
    (cubin,) = read(GOLD / f"{name}.hsaco").cubins
    (found,) = cubin.kernels
    one_warp = replace(found, threads_per_block=found.warp_size_count)
    limits = target_limits(found.target, found.warp_size_count)
    assert limits is not None
    occupancy = kernel_occupancy(one_warp, limits)

    assert found.target == name.rpartition("_")[2]
    assert found.registers_count == registers
    assert found.accumulation_registers_count == accumulation
    assert found.scalar_registers_count == scalar
    assert (found.scalar_spills_count, found.spills_bytes) == (spills, 0)
    assert occupancy is not None
    assert occupancy.warps == 4 * warps


def test_a_spilled_register_is_four_bytes() -> None:
    """Spills, scratch and shared memory are those of the notes; recursion has no bound."""
    facts = {"vgpr_spill_count": 25, "private_segment_fixed_size": 104}
    plain = kernel("a", **facts, group_segment_fixed_size=2048)
    dynamic = kernel("b", **facts, uses_dynamic_stack=True)
    (cubin,) = read(code_object([plain, dynamic])).cubins
    first, second = cubin.kernels

    assert (first.spills_bytes, first.stack_bytes) == (100, 104)
    assert first.shared_bytes == 2048
    assert second.stack_bytes is None
    mixes = read_mixes([cubin], runner=ProcessRunner())
    assert [mix.spills_bytes for mix in mixes] == [100, 100]


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        lambda b: compressed(b, 1),
        lambda b: compressed(b, 2),
        lambda b: compressed(b, 3),
        program,
        lambda b: program(compressed(b)),
    ],
    ids=["plain", "version 1", "version 2", "version 3", "library", "packed library"],
)
def test_a_bundle_gives_each_chip(wrap: Callable[[bytes], bytes]) -> None:
    """Compressed or not, alone or in a library; one chip is chosen with its settings."""
    content = wrap(bundle({"gfx942": ONE, "gfx90a:sramecc+:xnack-": TWO}))

    assert names(read(content)) == ["one gfx942", "two gfx90a:sramecc+:xnack-"]
    for target in ("gfx90a", "gfx90a:sramecc+:xnack-"):
        assert names(read(content, target=target)) == ["two gfx90a:sramecc+:xnack-"]
    with pytest.raises(CaptureFormatError, match="no kernel for gfx1100, only for gfx"):
        read(content, target="gfx1100")


OF_CLANG = "__CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa--gfx942"


@pytest.mark.parametrize("long_names", [False, True])
def test_an_archive_has_the_code_of_each_file(*, long_names: bool) -> None:
    """Bundles, code objects, and objects with either in a section; odd sizes are padded."""
    packed = bundle({"hip-amdgcn-amd-amdhsa--gfx942": code_object([kernel("a")])})
    loose = code_object([kernel("b")])
    in_section = elf({OF_CLANG: (1, code_object([kernel("c")]))}, machine=62)
    host = elf({".text": (1, b"\0"), OF_CLANG: (1, b"BC\xc0\xde")}, machine=62) + b"\0"
    files = (host, packed, host, loose, in_section, program(packed), host)
    content = archive(*files, long_names=long_names)

    assert names(read(content)) == [f"{name} gfx942" for name in "abca"]


def test_the_names_of_sections_are_no_bundle() -> None:
    """clang begins them with the same words, before the link and for other vendors."""
    host = elf({OF_CLANG: (1, b"BC\xc0\xde")}, machine=62)
    for content in (host, archive(host)):
        assert not amd.has_code_objects(content)


def test_every_cut_of_an_archive_is_an_archive_of_less() -> None:
    """Its last whole file counts."""
    loose = code_object([kernel("a")])
    content = archive(loose, loose)
    counts = [len([*members(content[:cut])]) for cut in range(8, len(content) + 1)]

    assert counts == sorted(counts)
    assert {*counts} == {0, 1, 2}


def test_a_library_has_a_bundle_for_each_unit() -> None:
    """Bundles follow one another, compressed by either version or not at all."""
    first, second = bundle({"gfx942": ONE}), bundle({"gfx90a": TWO})
    for content in (
        program(first, second),
        program(compressed(first, 1), compressed(second, 1)),
        program(compressed(first, 3), second),
        program(first, compressed(second)),
    ):
        assert names(read(content)) == ["one gfx942", "two gfx90a"]


def test_zstd_is_read_by_python_or_by_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without either, the remedy is a command, and the code is not called absent."""
    plain = bundle({"gfx942": ONE})
    content = compressed(plain, method=1, packed=b"packed")
    monkeypatch.setattr(amd, "_ZSTD_MODULES", ("no_such_module",))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    runner = FakeRunner([finished(stdout=plain), finished(1)])
    assert names(read_cubins(content, runner=runner)) == ["one gfx942"]
    assert runner.calls[0].stdin == b"packed"

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CollectorUnavailableError, match="compressed with zstd") as no:
        read(content)
    assert "pip install" in no.value.remedy


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ONE[:-70], "cut off"),
        (ONE[:30], "cut off or damaged"),
        (bundle({"gfx942": ONE})[:-1], "cut off"),
        (bundle({"gfx942": ONE})[:40], "damaged"),
        (compressed(bundle({"gfx942": ONE}))[:-1], "cut off"),
        (compressed(bundle({}), packed=b"no zlib"), "damaged"),
        (compressed(b"no bundle"), "9 B and not 9 B"),
        (b"CCOB\x09\0\0\0" + bytes(40), "version 9"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 8, "entries"),
        (elf({".note": (7, note(b"\xc1"))}, machine=224), "damaged"),
        # A map as the key of a map.
        (elf({".note": (7, note(b"\x81\x80\x01"))}, machine=224), "damaged"),
        # Arrays of one array.
        (elf({".note": (7, note(b"\x91" * 10_000))}, machine=224), "damaged"),
        (elf({".note": (7, note(b"\x90"))}, machine=224), "no note"),
        (elf({".note": (7, note(b"", b"AMD", 10))}, machine=224), "version 2"),
        (elf({}, machine=224), "no note"),
        (code_object([kernel(vgpr_count="many")]), "vgpr_count is 'many'"),
        (code_object([kernel(sgpr_count=-1)]), "sgpr_count is -1"),
        (code_object([]), "has no kernel"),
        (code_object([kernel()], "r600"), "r600"),
    ],
)
def test_damaged_code_is_refused_with_its_name(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    """From bytes or a file: never a traceback, never "no device code"."""
    path = tmp_path / "a.hsaco"
    path.write_bytes(content)
    for source in (content, path):
        with pytest.raises(CaptureFormatError, match=reason) as refused:
            read(source)
        assert "no device code" not in str(refused.value)


def test_an_old_version_is_not_called_damaged(tmp_path: Path) -> None:
    """Copying it again would not help."""
    path = tmp_path / "old.hsaco"
    path.write_bytes(elf({".note": (7, note(b"", b"AMD", 10))}, machine=224))

    with pytest.raises(
        CaptureFormatError, match="is a code object of version 2"
    ) as old:
        read(path)
    assert "ROCm 3.5" in old.value.remedy
    assert "damaged" not in str(old.value)


def test_every_cut_of_a_bundle_is_an_error() -> None:
    """A file cut anywhere is refused, or its kernels are all there."""
    content = compressed(bundle({"gfx942": ONE}))
    for end in range(4, len(content), 7):
        with pytest.raises(CaptureFormatError):
            read(content[:end])


def test_triton_says_block_and_warp_of_amd() -> None:
    """A warp of CDNA has 64 threads; a block of more than one takes a barrier."""
    compiled = SimpleNamespace(
        asm={"amdgcn": "", "hsaco": (GOLD / "matmul_64_gfx942.hsaco").read_bytes()},
        metadata={"num_warps": 4, "warp_size": 64, "shared": 8192, "name": "matmul"},
    )
    (cubin,) = read(compiled).cubins
    (found,) = cubin.kernels

    assert found.threads_per_block == 256
    assert found.dynamic_shared_bytes == 8192
    assert found.barriers_count == 1


@pytest.mark.parametrize(
    ("facts", "target", "fraction", "limiter"),
    [
        ({"vgpr_count": 512}, "gfx942", 1 / 8, "registers"),
        ({"vgpr_count": 129}, "gfx90a", 3 / 8, "registers"),
        ({"vgpr_count": 64, "sgpr_count": 108}, "gfx90a", 7 / 8, "scalar registers"),
        ({"group_segment_fixed_size": 33_000}, "gfx942", 1 / 8, "shared"),
        ({"group_segment_fixed_size": 33_000}, "gfx950", 4 / 8, "shared"),
        ({"vgpr_count": 97, "wavefront_size": 32}, "gfx1200", 12 / 16, "registers"),
        ({"vgpr_count": 97, "wavefront_size": 64}, "gfx1200", 7 / 16, "registers"),
    ],
)
def test_occupancy_follows_the_architecture(
    facts: dict[str, Any], target: str, fraction: float, limiter: str
) -> None:
    """The register file, its granules and the shared memory are the chip's own."""
    (cubin,) = read(code_object([kernel(**facts)], target), block=256).cubins
    (found,) = cubin.kernels
    limits = target_limits(found.target, found.warp_size_count)
    assert limits is not None
    occupancy = kernel_occupancy(found, limits)

    assert occupancy is not None
    assert occupancy.fraction == fraction
    assert limiter in occupancy.limiters


def test_a_chip_that_is_not_in_the_table_has_no_occupancy() -> None:
    """A newer chip, or a warp that the chip does not run, is unknown."""
    assert target_limits("gfx1300") is None
    assert target_limits("gfx942", 32) is None


def test_a_cut_library_is_not_called_free_of_device_code() -> None:
    """Its sections cannot be told, so that nothing is known of its code."""
    content = program(bundle({"gfx942": ONE}))[:-100]
    runner = FakeRunner([finished(255, stderr=b"does not contain device code")])

    with pytest.raises(CaptureFormatError, match="table of sections is missing"):
        read_cubins(content, runner=runner, tool="cuobjdump")
