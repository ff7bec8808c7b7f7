"""Instructions of compiled kernels, in a user's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.project import Project, lines
from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.identity import CodeIdentity

GOLD = Path(__file__).parents[1] / "gold" / "binary"


@pytest.fixture(name="mixed")
def mixed_(project: Project) -> Project:
    """A project with a cubin whose source says what is in it, and tools to read it."""
    try:
        find_tool(CUOBJDUMP)
        find_tool(NVDISASM)
    except CollectorUnavailableError as error:
        pytest.skip(str(error))
    folder = project.write("", name="conftest.py").parent
    for name in ("mix_sm_90a.cubin", "kernels_sm_90.cubin"):
        (folder / name).write_bytes((GOLD / name).read_bytes())
    return project


def test_a_test_asserts_on_instructions(mixed: Project) -> None:
    """By attribute, by name and by kernel; read when they are first asked for."""
    mixed.write("""
        import pathlib
        import pytest

        @pytest.mark.gpuperf
        def test_it(gpuperf):
            perf = gpuperf.binary("kernels_sm_90.cubin")
            pathlib.Path("kernels_sm_90.cubin").unlink()
            assert perf.has("instructions.loop.fp32")
            assert perf["instructions.fp32"] == perf.instructions.fp32 == 64
            assert perf.instructions.loop.fp32["*indexed*"] == 21
            assert perf.instructions.loop.fp32["scale"] == 0
            assert perf.figure("spills_bytes", kernel="*spilling*") == 680
            assert not perf.has("instructions.count")
            with pytest.raises(AttributeError):
                perf.instructions.loop.fp128
    """)

    mixed.run().assert_outcomes(passed=1)


def test_what_is_not_read_of_a_library_is_told(mixed: Project) -> None:
    """A limit on all kernels must not seem to cover code that the tool cannot read."""
    tool = find_tool(CUOBJDUMP)
    known = ProcessRunner().run([tool, "--help"], timeout_s=60.0).stdout
    if b"'sm_35'" in known:
        pytest.skip(f"{tool} reads sm_35")
    library = bytearray((GOLD / "kernels.fatbin").read_bytes())
    chip = library.index((80).to_bytes(4, "little"))
    library[chip : chip + 4] = (35).to_bytes(4, "little")
    (mixed.path / "old.fatbin").write_bytes(library)
    mixed.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["registers <= 64"])
        def test_it(gpuperf):
            gpuperf.binary("old.fatbin")
    """)
    ended = mixed.run()

    ended.assert_outcomes(passed=1)
    assert lines(ended, "worst of 4 kernels (sm_90a): registers 32")
    assert lines(ended, "sm_35 is not read: this cuobjdump has dropped it")


def test_a_log_that_the_code_contradicts_decides_nothing(mixed: Project) -> None:
    """A limit on spills passes by the true log only, not by that of another build."""
    log = (GOLD / "kernels_sm_90.log").read_text()
    for name, text in {
        "true.log": log,
        "none.log": log.replace("340 bytes", "0 bytes"),
        "some.log": log.replace("340 bytes", "8 bytes"),
        "more.log": log.replace(" 0 bytes spill stores", " 9 bytes spill stores"),
    }.items():
        (mixed.path / name).write_text(text)
    mixed.write("""
        import pathlib
        import pytest

        @pytest.mark.parametrize("log", ["true", "none", "some", "more"])
        @pytest.mark.gpuperf(limits=["spills_bytes <= 680"])
        def test_it(gpuperf, log):
            perf = gpuperf.binary(
                "kernels_sm_90.cubin", ptxas_log=pathlib.Path(f"{log}.log")
            )
            assert perf.has("spills_bytes") == (log == "true")
    """)
    ended = mixed.run("--gpuperf-strict")

    assert lines(ended, "is from another build: void spilling<64>(float*) spills 0 B")
    assert lines(ended, "is from another build: void spilling<64>(float*) spills 16 B")
    ended.assert_outcomes(passed=1, failed=3)


def test_one_session_judges_what_is_exact(mixed: Project) -> None:
    """Nothing is timed beside it, and no more sessions are asked for."""
    mixed.write("""
        import pytest

        @pytest.mark.gpuperf(max_regression={"registers": "0 %"})
        def test_it(gpuperf):
            gpuperf.binary("kernels.cubin")
    """)
    cubin = mixed.path / "kernels.cubin"
    cubin.write_bytes((GOLD / "recursive_sm_90.cubin").read_bytes())
    stored = mixed.run("--gpuperf-update=new")
    cubin.write_bytes((GOLD / "kernels_sm_90.cubin").read_bytes())
    ended = mixed.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    assert lines(stored, "stored 1 measurement")
    assert lines(stored, "wanted") == []
    assert not list(mixed.path.glob(".gpuperf/*/gpuperf~*.json"))
    assert mixed.report()["references"] == []
    assert ended.ret == 1
    assert lines(ended, "registers", "REGRESSED")


def test_kernels_that_are_known_are_judged(mixed: Project) -> None:
    """A doubt about one kernel is none about another; without a name it is."""
    mixed.write("""
        import pytest

        def limited(*limits):
            return pytest.mark.gpuperf(limits=limits)

        @limited(
            'instructions.loop.wgmma["product"] >= 1',
            'instructions.loop.global_load_4["widths"] <= 1',
            'spills_bytes["widths"] == 0',
        )
        def test_holds(gpuperf):
            gpuperf.binary("mix_sm_90a.cubin")

        @limited('instructions.loop.global_load["widths"] == 0')
        def test_breaks(gpuperf):
            gpuperf.binary("mix_sm_90a.cubin")

        @limited("instructions.wgmma >= 1")
        def test_doubts(gpuperf):
            gpuperf.binary("mix_sm_90a.cubin")
    """)
    result = mixed.run()

    result.assert_outcomes(passed=1, failed=1, skipped=1)
    said = result.stdout.str()
    assert 'instructions.loop.global_load["widths"] failed: 1' in said
    assert "widths (sm_90a): instructions.loop.global_load 1; it has loop." in said
    assert "worst of 6 kernels (sm_90a): registers 30" in said
    assert "not all code of pointer is known: calls functions through" in said


def test_a_kept_run_needs_no_tool(mixed: Project) -> None:
    """What was read for a test is in its record, asserted on or limited."""
    mixed.write("""
        import pytest

        @pytest.mark.gpuperf(limits=['instructions.tma["copies"] == 1'])
        def test_it(gpuperf):
            perf = gpuperf.binary("mix_sm_90a.cubin")
            assert perf.figure("instructions.ldgsts", kernel="copies") == 1
    """)
    mixed.run("--gpuperf-record=kept").assert_outcomes(passed=1)
    Path("mix_sm_90a.cubin").unlink()

    mixed.run("--gpuperf-replay=kept").assert_outcomes(passed=1)


def test_a_tool_that_fails_makes_it_unmeasured(
    mixed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words; what cuobjdump tells is measured all the same."""
    bad = Path("bin", "nvdisasm")
    bad.parent.mkdir()
    bad.write_text("#!/bin/sh\necho 'nvdisasm fatal : SM90a is too new' >&2\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("PATH", str(bad.parent.resolve()), prepend=":")
    mixed.write("""
        import pytest

        @pytest.mark.gpuperf(limits=["instructions.wgmma >= 1"])
        def test_code(gpuperf):
            gpuperf.binary("mix_sm_90a.cubin")

        @pytest.mark.gpuperf(limits=["registers <= 64"])
        def test_registers(gpuperf):
            gpuperf.binary("mix_sm_90a.cubin")
    """)
    result = mixed.run()

    result.assert_outcomes(passed=1, skipped=1)
    assert "SM90a is too new" in result.stdout.str()


def test_a_session_stores_which_code_it_measured(mixed: Project) -> None:
    """The store has the digest of a binary's code, and a worse count is of the code."""
    mixed.write("""
        import pytest

        @pytest.mark.gpuperf(max_regression={"registers": "0 %"})
        def test_it(gpuperf):
            gpuperf.binary("k.cubin")
    """)
    (mixed.path / "k.cubin").write_bytes((GOLD / "recursive_sm_90.cubin").read_bytes())
    mixed.run("--gpuperf-update=all").assert_outcomes(passed=1)
    (stored,) = (path.read_text() for path in (mixed.path / ".gpuperf").rglob("*.json"))
    (mixed.path / "k.cubin").write_bytes((GOLD / "kernels_sm_90.cubin").read_bytes())
    ended = mixed.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    identity = code_identities(
        (GOLD / "recursive_sm_90.cubin").read_bytes(), runner=ProcessRunner()
    )
    whole = CodeIdentity.of_kernels(identity.values())
    assert f'"code":"{whole}"' in stored
    ended.assert_outcomes(failed=1)
    assert lines(ended, "registers regressed (code): ")
    assert lines(ended, "cause: code: the machine code of the kernels changed")


@pytest.mark.parametrize(
    ("changes_code", "cause"),
    [
        (True, "cause: code: the machine code of the kernels changed"),
        (False, "cause: code: the kernels have the same code, with other data"),
    ],
)
def test_the_code_of_amd_names_the_cause(
    project: Project, changes_code: bool, cause: str
) -> None:
    """No tool is needed, and more registers of the same code are not other code."""
    project.write("""
        import pytest

        @pytest.mark.gpuperf(max_regression={"registers": "0 %"})
        def test_it(gpuperf):
            gpuperf.binary("k.hsaco")
    """)
    was = (GOLD / "matmul_64_gfx942.hsaco").read_bytes()
    (project.path / "k.hsaco").write_bytes(was)
    project.run("--gpuperf-update=all").assert_outcomes(passed=1)
    (stored,) = (f.read_text() for f in (project.path / ".gpuperf").rglob("*.json"))
    now = was.replace(b".vgpr_count\x46", b".vgpr_count\x47")
    if changes_code:
        end = b"\0\0\x81\xbf"  # s_endpgm
        now = now.replace(end, b"\1" + end[1:])
    (project.path / "k.hsaco").write_bytes(now)
    ended = project.run("--gpuperf-baseline=.gpuperf")

    (identity,) = code_identities(was, runner=ProcessRunner()).values()
    assert f'"code":"{CodeIdentity.of_kernels([identity])}"' in stored
    ended.assert_outcomes(failed=1)
    assert lines(ended, "registers regressed (code): ")
    assert lines(ended, cause)
