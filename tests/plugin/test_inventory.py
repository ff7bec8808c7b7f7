"""Inventories of libraries, in a user's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.code_object import bundle, code_object, elf, kernel, program
from fakes.project import Project
from pytest_gpuperf import cli
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, find_tool
from pytest_gpuperf.errors import CollectError

GOLD = Path(__file__).parents[1] / "gold" / "binary"


def test_a_test_asserts_that_no_kernel_is_worse(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """The assertion shows each worse kernel with its reason; better passes."""
    folder = project.write("", name="conftest.py").parent
    for name, facts in {
        "a.so": {"vgpr_count": 64},
        "worse.so": {"vgpr_spill_count": 2},
        "better.so": {"vgpr_count": 60},
    }.items():
        code = code_object([kernel("k", **facts)])
        (folder / name).write_bytes(program(bundle({"gfx942": code})))
    baseline = str(folder / "kernels.jsonl")
    written = ["inventory", str(folder / "a.so"), "--baseline", baseline, "--update"]
    assert cli.main(written) == 0
    capsys.readouterr()
    project.write("""
        import pytest

        @pytest.mark.parametrize("name", ["a.so", "better.so", "worse.so"])
        def test_it(gpuperf, name):
            found = gpuperf.inventory(name, baseline="kernels.jsonl")
            assert [kernel.target for kernel in found.kernels] == ["gfx942"]
            assert len(found.changed) == (name == "better.so")
            assert gpuperf.inventory(name).worse == ()
            assert not found.worse

        def test_missing(gpuperf):
            gpuperf.inventory("a.so", baseline="missing.jsonl")
    """)
    result = project.run()

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*k for gfx942: spill added: 8 B*"])
    result.stdout.fnmatch_lines(["*missing.jsonl*cannot be read*"])


def test_a_library_is_listed_for_each_chip(project: Project) -> None:
    """Each number has a name of its own, and a second list of a library is given one."""
    chips = {chip: code_object([kernel("k")], chip) for chip in ("gfx90a", "gfx942")}
    project.write("")
    (project.path / "a.so").write_bytes(program(bundle(chips)))
    project.write("""
        def test_it(gpuperf):
            gpuperf.inventory("a.so", target="gfx90a")
            gpuperf.inventory("a.so", target="gfx942")
            gpuperf.inventory(".")
            gpuperf.inventory("a.so", target="gfx942", name="again")
    """)
    result = project.run("--gpuperf-json=run.json")

    result.assert_outcomes(passed=1)
    names = {record["key"]["name"] for record in project.report()["records"]}
    assert names == {
        "a.so gfx90a.kernels",
        "a.so gfx942.kernels",
        f"{project.path.name}.kernels",
        "again.kernels",
    }


def test_code_that_is_not_read_is_named(project: Project) -> None:
    """The library has PTX, which is no code for a chip."""
    ptx = (GOLD / "only_ptx.fatbin").read_bytes()
    bundles = bundle({"gfx942": code_object([kernel("k")])})
    content = elf({".hip_fatbin": (1, bundles), ".nv_fatbin": (1, ptx)}, machine=62)
    try:
        find_tool(CUOBJDUMP)
    except CollectError as error:
        pytest.skip(str(error))
    project.write("")
    (project.path / "both.so").write_bytes(content)
    project.write("""
        def test_it(gpuperf):
            found = gpuperf.inventory("both.so")
            assert len(found.kernels) == 1
            assert found.unread == (
                "both.so: code for NVIDIA's GPUs: has no kernel compiled for a chip",
            )
    """)

    project.run().assert_outcomes(passed=1)
