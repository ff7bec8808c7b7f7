"""The identity of code that the driver loads while a test runs, on doubles of a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fakes import fake_cuda
from fakes.project import Project
from fakes.runner import FakeRunner
from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.model.identity import CodeIdentity

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the scripted driver is an ELF library"
)
GOLD = Path(__file__).parents[1] / "gold" / "binary"
CUBIN = GOLD / "row_sum_sm_90.cubin"
CONFTEST = """
    import seen_by_cupti

    double = seen_by_cupti.double
    seen_by_cupti.launched = lambda ns: double.launch("row_sum", ns, registers=16)
"""
TESTS = """
    import pathlib

    import gpu
    import pytest

    from seen_by_cupti import double

    def compiled():
        double.load(5, pathlib.Path({cubin!r}).read_bytes())
        gpu.launch()

    @pytest.mark.gpuperf
    def test_compiled_here(gpuperf):
        gpuperf.measure(compiled)

    @pytest.mark.gpuperf
    def test_compiled_before(gpuperf):
        gpuperf.measure(gpu.launch)
"""


@pytest.mark.parametrize("is_asked", [True, False])
def test_code_that_a_test_loads_is_identified(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_asked: bool,
) -> None:
    """The code that was loaded earlier is unknown, and all code unless it is asked for."""
    if is_asked:
        monkeypatch.setenv("GPUPERF_LOADED_CODE", "1")
    fake_cuda.machine(project, tmp_path / "machine")
    fake_cuda.with_cupti(project)
    project.write(CONFTEST, "conftest.py")
    project.write(TESTS.format(cubin=str(CUBIN)))
    ended = project.spawn("--gpuperf-json=run.json")
    assert ended.returncode == 0, ended.stdout
    digests = {
        record["key"]["test_id"].partition("::test_")[2]: record.get("code_digest")
        for record in project.report()["records"]
    }
    identities = code_identities(CUBIN.read_bytes(), runner=FakeRunner())

    assert digests == {
        "compiled_here": (
            str(CodeIdentity.of_kernels(identities.values())) if is_asked else None
        ),
        "compiled_before": None,
    }
