"""collect.binary.compiled: which code ran, of the kernels compiled in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.runner import FakeRunner
from pytest_gpuperf.collect.binary.compiled import launched_identity
from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.collect.binary.module import read_module
from pytest_gpuperf.model.activity import KernelShape
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import CodeIdentity

GOLD = Path(__file__).parents[2] / "gold" / "binary"
# Compiled by Triton; num_warps 4, shared 16.
ROW_SUM = (GOLD / "row_sum_sm_90.cubin").read_bytes()
OTHERS = (GOLD / "kernels_sm_90.cubin").read_bytes()
RUNNER = FakeRunner()
SHAPE = KernelShape(
    name="row_sum",
    grid=(8, 1, 1),
    block=(128, 1, 1),
    registers_count=20,
    shared_bytes=0,
    dynamic_shared_bytes=16,
    stack_bytes=0,
)
SCALE = replace(SHAPE, name="scale", dynamic_shared_bytes=0, block=(32, 1, 1))


class CompiledKernel:
    """A kernel as Triton keeps it."""

    def __init__(
        self, name: str, content: bytes | None, *, warps: int = 4, shared: int = 16
    ) -> None:
        self.asm = {"ptx": "", "cubin": content}
        self.metadata = SimpleNamespace(name=name, num_warps=warps, shared=shared)


class StaticallyLaunchedCudaKernel:
    """A kernel as Inductor keeps it: its file, and no code."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.cubin_path = str(path)
        self.num_warps = 4
        self.shared = 16


MODULES = {
    "triton.compiler.compiler": SimpleNamespace(CompiledKernel=CompiledKernel),
    "torch._inductor.runtime.static_cuda_launcher": SimpleNamespace(
        StaticallyLaunchedCudaKernel=StaticallyLaunchedCudaKernel
    ),
}
_alive: list[object] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Let no kernel of another test live on."""
    yield
    _alive.clear()


def made(*kernels: object) -> None:
    """Keep kernels alive, as a compiler's cache does."""
    _alive.extend(kernels)


def identity(
    *shapes: KernelShape, modules: Any = None, loaded: tuple[bytes, ...] = ()
) -> CodeIdentity | None:
    """Return the identity of launches."""
    given = MODULES if modules is None else modules
    return launched_identity(shapes, runner=RUNNER, modules=given, loaded=loaded)


def expected(**contents: bytes) -> CodeIdentity:
    """Return the identity of kernels by their names."""
    return CodeIdentity.of_kernels(
        code_identities(content, runner=RUNNER)[name]
        for name, content in contents.items()
    )


def changed(content: bytes) -> bytes:
    """Return a cubin of which the code of row_sum has another bit."""
    section = read_module(content).section(".text.row_sum")
    assert section is not None
    mutated = bytearray(content)
    mutated[content.index(section.content)] ^= 1
    return bytes(mutated)


def test_the_launched_kernels_are_found() -> None:
    """The identity is that of all launched kernels, and no others."""
    made(
        CompiledKernel("row_sum", ROW_SUM),
        CompiledKernel("scale", OTHERS, warps=1, shared=0),
    )
    assert identity(SHAPE) == expected(row_sum=ROW_SUM)
    assert identity(SCALE, SHAPE) == expected(row_sum=ROW_SUM, scale=OTHERS)


def test_an_unknown_kernel_leaves_all_unknown() -> None:
    """A library's kernel has no code at hand, and part of a call proves nothing."""
    made(CompiledKernel("row_sum", ROW_SUM))

    assert identity(SHAPE, replace(SHAPE, name="sgemm_128")) is None
    assert identity() is None
    assert identity(SHAPE, modules={}) is None


def test_kernels_of_one_name_are_told_apart_by_their_launch() -> None:
    """Threads and shared memory choose; if they do not, the code is unknown."""
    other = changed(ROW_SUM)
    made(CompiledKernel("row_sum", ROW_SUM), CompiledKernel("row_sum", other, warps=8))
    wide = replace(SHAPE, block=(256, 1, 1))

    assert identity(SHAPE) == expected(row_sum=ROW_SUM)
    assert identity(wide) == expected(row_sum=other)
    made(CompiledKernel("row_sum", other))
    assert identity(SHAPE) is None


def test_equal_code_of_one_name_is_known() -> None:
    """A kernel that was compiled twice has one identity."""
    made(CompiledKernel("row_sum", ROW_SUM), CompiledKernel("row_sum", ROW_SUM + b"\0"))

    assert identity(SHAPE) == expected(row_sum=ROW_SUM)


def test_triton_keeps_the_code_for_amd() -> None:
    """Its result for hip has a code object, and says how many threads a warp has."""
    content = (GOLD / "row_sum_1024_4_gfx90a.hsaco").read_bytes()
    compiled = CompiledKernel("row_sum", None)
    compiled.asm = {"amdgcn": "", "hsaco": content}
    compiled.metadata.warp_size = 64
    made(compiled)

    assert identity(replace(SHAPE, block=(256, 1, 1))) == expected(row_sum=content)
    assert identity(SHAPE) is None


def test_a_file_of_inductor_is_read(tmp_path: Path) -> None:
    """A kernel that keeps only its file is known as long as the file is there."""
    file = tmp_path / "row_sum.cubin"
    file.write_bytes(ROW_SUM)
    made(StaticallyLaunchedCudaKernel("row_sum", file))

    assert identity(SHAPE) == expected(row_sum=ROW_SUM)
    file.unlink()
    assert identity(SHAPE) is None


@pytest.mark.parametrize("content", [None, b"", ROW_SUM[:2000]])
def test_code_that_cannot_be_read_is_unknown(content: bytes | None) -> None:
    """No measurement is lost for it."""
    made(CompiledKernel("row_sum", content))

    assert identity(SHAPE) is None


def registers(content: bytes, name: str) -> int:
    """Return the registers of a kernel."""
    return dict(read_module(content).registers)[name]


def test_the_code_that_the_driver_loaded_is_found() -> None:
    """No compiler of Python needs to know it; other kernels of the module do not count."""
    shape = replace(SHAPE, registers_count=registers(ROW_SUM, "row_sum"))
    scale = replace(SCALE, registers_count=registers(OTHERS, "scale"))
    loaded = (b"row_sum: no module", OTHERS, ROW_SUM)

    for modules in (MODULES, {}):
        assert identity(shape, modules=modules, loaded=loaded) == expected(
            row_sum=ROW_SUM
        )
        assert identity(shape, scale, modules=modules, loaded=loaded) == expected(
            row_sum=ROW_SUM, scale=OTHERS
        )
    unknown = replace(shape, name="sgemm_128")
    assert identity(shape, unknown, modules={}, loaded=loaded) is None


def test_loaded_code_with_other_registers_is_that_of_another_kernel() -> None:
    """A kernel of the name may have been loaded before anybody looked."""
    count = registers(ROW_SUM, "row_sum")
    other = replace(SHAPE, registers_count=count + 8)

    assert identity(other, modules={}, loaded=(ROW_SUM,)) is None
    shape = replace(SHAPE, registers_count=count)
    two = (ROW_SUM, changed(ROW_SUM))
    assert identity(shape, modules={}, loaded=two) is None


def test_what_a_compiler_keeps_comes_before_loaded_code() -> None:
    """It knows threads and shared memory of each variant."""
    made(CompiledKernel("row_sum", ROW_SUM))
    shape = replace(SHAPE, registers_count=registers(ROW_SUM, "row_sum"))

    assert identity(shape, loaded=(changed(ROW_SUM),)) == expected(row_sum=ROW_SUM)
