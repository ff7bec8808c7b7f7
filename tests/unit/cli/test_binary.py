"""cli.records, report.kernels: compiled kernels are shown without a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuperf import cli
from pytest_gpuperf.cli import records
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.report.lines import SCHEMAS

GOLD = Path(__file__).parents[2] / "gold" / "binary"


@pytest.fixture(autouse=True)
def tools() -> None:
    """Skip where NVIDIA's tools are not installed."""
    try:
        find_tool(CUOBJDUMP)
        find_tool(NVDISASM)
    except CollectError as error:
        pytest.skip(str(error))


def shown(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> str:
    """Return what the command prints of a good file."""
    assert cli.main(["show", *arguments]) == 0
    return capfdbinary.readouterr().out.decode()


def test_each_kernel_has_a_row_with_its_chip(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Demangled, with registers, stack, spills, shared memory and instructions."""
    text = shown(capfdbinary, str(GOLD / "kernels.fatbin"), "--block=1024")

    assert "sm_80" in text
    assert "sm_90a" in text
    assert "1 KiB" in text
    assert "spilling<64>" in text
    assert "680 B" in text
    assert "occupancy" in text


def test_kernels_are_chosen_by_readable_names(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """As a limit chooses them; JSON has every class of instructions."""
    text = shown(
        capfdbinary,
        *(str(GOLD / "kernels_sm_90.cubin"), "--format=json", "--block=1024"),
        "--kernel=*spilling<64>*",
    )
    content = json.loads(text)
    (kernel,) = content["kernels"]
    assert content["schema"] == SCHEMAS["show BINARY"]

    assert kernel["demangled"] == "void spilling<64>(float*)"
    assert kernel["target"] == "sm_90"
    assert kernel["instructions"]["local_store"] == 85
    assert kernel["spills_bytes"] == 680
    assert 0 < kernel["occupancy_fraction"] <= 1


def test_a_library_is_shown_by_its_greediest_kernels(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not shown is counted; code that would take minutes is not read."""
    monkeypatch.setattr(records, "_MOST_BYTES", 10_000)
    file = str(GOLD / "kernels.fatbin")
    text = shown(capfdbinary, file, "--top=2")
    everything = json.loads(shown(capfdbinary, file, "--top=2", "--format=json"))

    assert text.count("spilling<64>") == 2  # of two chips
    assert "block_sum" not in text
    assert "6 more kernels" in text
    assert "and only 10 kB are read; choose" in text
    assert "--target=sm_90a" in text
    one_chip = shown(capfdbinary, str(GOLD / "kernels_sm_90.cubin"))
    assert "gpuperf.binary in a test reads all" in " ".join(one_chip.split())
    assert "0 KiB" not in text
    assert len(everything["kernels"]) == 8
    assert {kernel["instructions"] for kernel in everything["kernels"]} == {None}


def test_one_chip_of_a_library_is_chosen(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code is read where that of all chips would be too much."""
    monkeypatch.setattr(records, "_MOST_BYTES", 30_000)
    file = str(GOLD / "kernels.fatbin")
    everything = shown(capfdbinary, file)
    one = json.loads(shown(capfdbinary, file, "--target=sm_90a", "--format=json"))

    assert "--target" in everything
    assert {kernel["target"] for kernel in one["kernels"]} == {"sm_90a"}
    assert all(kernel["instructions"] for kernel in one["kernels"])
    assert cli.main(["show", file, "--target=sm_75"]) == 4
    assert "has no kernel for sm_75, only for sm_80, sm_90a" in (
        capfdbinary.readouterr().err.decode()
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--kernel=gemm*",), 2, "no kernel fits 'gemm*'"),
        (("--metrics=registers",), 2, "is a binary: it has kernels and no launches"),
        (("--launches=3",), 2, "is a binary"),
        (("--details", "--sort=name"), 2, "is a binary"),
    ],
)
def test_a_mistake_is_told(
    capfdbinary: pytest.CaptureFixture[bytes],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """With what there is to choose from."""
    file = str(GOLD / "kernels_sm_90.cubin")

    assert cli.main(["show", file, *arguments]) == code
    assert words in capfdbinary.readouterr().err.decode()


def test_a_pattern_that_fits_nothing_gets_short_names(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """What differs by its case alone comes first."""
    assert cli.main(["show", str(GOLD / "kernels.fatbin"), "--kernel=*SUM"]) == 2
    told = capfdbinary.readouterr().err.decode()

    assert "there are block_sum, " in told
    assert "spilling<64>, " in told
    assert "(float" not in told


@pytest.mark.parametrize("option", ["--block=32", "--target=sm_90"])
def test_block_and_target_are_of_a_binary_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], option: str
) -> None:
    """A run or a capture says its own."""
    file = tmp_path / "run.json"
    file.write_text("{}")

    assert cli.main(["show", str(file), option]) == 2
    assert (
        f"{option.partition('=')[0]} is for binaries"
        in capfdbinary.readouterr().err.decode()
    )
