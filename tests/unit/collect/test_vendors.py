"""Rules of collect.binary.containers about device code of other vendors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from fakes.binaries import archive, elf, pe
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.binary.containers import other_code
from pytest_gpuperf.collect.binary.read import read_cubins
from pytest_gpuperf.errors import CaptureFormatError

HIP = (".text", ".hip_fatbin", ".hipFatBinSegment")
# Of a library of bitsandbytes for Intel's GPUs.
SYCL = (
    ".rodata",
    "__CLANG_OFFLOAD_BUNDLE__sycl-spir64_gen",
    "__CLANG_OFFLOAD_BUNDLE__sycl-spir64",
)
OFFLOADED = "__CLANG_OFFLOAD_BUNDLE__sycl-amdgcn-amd-amdhsa"


def of(names: Iterable[str]) -> dict[str, bytes]:
    """Return empty sections of these names."""
    return dict.fromkeys(names, b"")


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (elf(of(HIP)), ("code for AMD's GPUs (.hip_fatbin)",)),
        (pe(of(HIP)), ("code for AMD's GPUs (.hip_fat)",)),
        (
            elf(of(SYCL)),
            (
                f"code for Intel's GPUs ({SYCL[1]})",
                f"SPIR-V, which a driver compiles for its GPU ({SYCL[2]})",
            ),
        ),
        (
            elf(of([OFFLOADED])),
            ("device code in a section of clang (" + OFFLOADED + ")",),
        ),
        (
            archive(elf(of([".text"])), elf(of([".llvm.offloading"]))),
            ("device code that is not linked yet (.llvm.offloading)",),
        ),
        (
            archive(elf(of(SYCL[:2])), long_names=True),
            (f"code for Intel's GPUs ({SYCL[1]})",),
        ),
        (elf(of([".text", ".nv_fatbin", ".rodata"])), ()),
        # A compiler has the word in its data.
        (elf(of([".rodata"])) + b"__CLANG_OFFLOAD_BUNDLE__hip .hip_fatbin", ()),
    ],
)
def test_the_sections_say_whose_code_a_library_has(
    content: bytes, kinds: tuple[str, ...]
) -> None:
    """Each kind is named once, with the section."""
    assert other_code(content) == kinds


@pytest.mark.parametrize("content", [elf(of(HIP)), pe(of(HIP))], ids=["elf", "pe"])
def test_a_cut_library_is_read_without_an_error(content: bytes) -> None:
    """At every length, and with a table that begins outside of any file."""
    found = {other_code(content[:cut]) for cut in range(len(content))}
    far = content[:40] + b"\xff" * 24 + content[64:]

    assert found <= {(), other_code(content)}
    assert other_code(far) == ()


@pytest.mark.parametrize(
    ("names", "whose"), [(HIP, "AMD's GPUs"), (SYCL, "Intel's GPUs")]
)
def test_a_library_of_another_vendor_is_named(
    tmp_path: Path, names: Sequence[str], whose: str
) -> None:
    """It has device code, of a kind that is not read."""
    path = tmp_path / "lib.so"
    path.write_bytes(elf(of(names)))
    runner = FakeRunner([finished(255, stderr=b"does not contain device code")])

    with pytest.raises(CaptureFormatError, match=f"has code for {whose}") as caught:
        read_cubins(path, runner=runner, tool="cuobjdump")
    assert "no code for NVIDIA's GPUs" in str(caught.value)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", [".nv_fatbin", "__nv_relfatbin"])
@pytest.mark.parametrize("wrap", [bytes, archive])
def test_a_section_of_fatbins_that_cannot_be_read_is_damaged(
    tmp_path: Path, name: str, wrap: Callable[[bytes], bytes]
) -> None:
    """Whatever its headers say, it is device code; an empty section has none."""
    path = tmp_path / "lib.so"
    runner = FakeRunner([finished(255, stderr=b"does not contain device code")] * 2)
    path.write_bytes(wrap(elf({name: b"\x50\xed\x55\xba of some size"})))
    with pytest.raises(CaptureFormatError, match="is cut off or damaged"):
        read_cubins(path, runner=runner, tool="cuobjdump")

    path.write_bytes(wrap(elf({name: b""})))
    with pytest.raises(CaptureFormatError, match="it has no device code"):
        read_cubins(path, runner=runner, tool="cuobjdump")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".llvm.offloading", r"not linked yet \(.llvm.offloading\)"),
        (OFFLOADED, "device code in a section of clang"),
    ],
)
def test_code_before_the_link_of_clang_is_named(
    tmp_path: Path, name: str, message: str
) -> None:
    """It may be of any vendor, and the link decides on its registers."""
    path = tmp_path / "a.o"
    path.write_bytes(elf({name: b"BC"}))
    runner = FakeRunner([finished(255, stderr=b"does not contain device code")])

    with pytest.raises(CaptureFormatError, match=message) as caught:
        read_cubins(path, runner=runner, tool="cuobjdump")
    assert "link it" in caught.value.remedy
