"""--gpuperf-chip: counters are checked for a chip while tests are collected."""

from __future__ import annotations

import pytest

from fakes.chips import need_library
from fakes.project import XDIST, Project
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.hooks.chip import ChipCheck

RIGHT = """
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes.sum", "launch__grid_size"])
    def test_bytes(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf(limits=["sm__throughput.avg.pct_of_peak_sustained_elapsed >= 50"])
    def test_throughput(gpuperf):
        gpuperf(int)

    def test_nothing(gpuperf):
        gpuperf(int)
"""
WRONG = """
    import pytest

    @pytest.mark.gpuperf(counters=["dram__bytes_read.sum", "sm__cycles_actve.avg"])
    def test_counters(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf(limits=["dram__bytes <= 4", "lts__t_sector_hit_rate.sum >= 1"])
    def test_limits(gpuperf):
        gpuperf(int)

    @pytest.mark.gpuperf(counters=["dram__bytes"])
    def test_base(gpuperf):
        gpuperf(int)
"""
SAID = (
    "test_it.py::test_counters: counter 'dram__bytes_read.sum': GB202 has no such metric",
    "dram__bytes_op_read.sum",
    "test_it.py::test_counters: counter 'sm__cycles_actve.avg': GB202 has no such metric",
    "sm__cycles_active.avg",
    "test_it.py::test_limits: counter 'dram__bytes': a value needs an ending",
    "lts__t_sector_hit_rate of GB202 is a ratio, and .sum is no ending of it",
)


@pytest.fixture(autouse=True)
def _library() -> None:
    """Skip what needs the library where it is not installed."""
    need_library()


def test_every_wrong_counter_of_a_run_is_told_at_once(project: Project) -> None:
    """A collection error of each module names all counters that the chip lacks."""
    project.write(WRONG)
    project.write(WRONG, "test_other.py")
    result = project.run("--gpuperf-chip=GB202")
    result.assert_outcomes(errors=2)
    text = result.stdout.str()
    for sentence in SAID:
        assert sentence in text
        assert sentence.replace("test_it", "test_other") in text
    assert "test_base" not in text  # a base is a name that Nsight Compute takes


def test_right_counters_are_told_what_they_cost(project: Project) -> None:
    """After collection one line says how many passes the counters need."""
    project.write(RIGHT)
    result = project.run("--gpuperf-chip=sm_90", "--collect-only")
    assert result.ret == 0
    text = result.stdout.str()
    assert "gpuperf: GH100 gives 3 counters of 2 tests in 1 group: 2 tests in" in text
    assert "8 passes (about 9 runs of each launch under Nsight Compute)" in text


def test_only_selected_tests_are_counted(project: Project) -> None:
    """What was deselected costs nothing."""
    project.write(RIGHT)
    result = project.run("--gpuperf-chip=GH100", "--collect-only", "-k", "bytes")
    result.stdout.fnmatch_lines(["gpuperf: GH100 gives 2 counters of 1 test*1 pass *"])
    result = project.run("--gpuperf-chip=GH100", "--collect-only", "-k", "nothing")
    assert "GH100" not in result.stdout.str()


def test_the_ini_file_names_the_chip_too(project: Project) -> None:
    """gpuperf_chip of the ini file does what the option does, which overrules it."""
    project.write("[pytest]\ngpuperf_chip = GB202\n", "pytest.ini")
    project.write(WRONG)
    project.run().assert_outcomes(errors=1)
    result = project.run("--gpuperf-chip=off", "--collect-only")
    result.assert_outcomes()
    assert "GB202" not in result.stdout.str()


def test_an_unknown_chip_is_a_mistake_of_the_option(project: Project) -> None:
    """Where a test has counters, a chip that is none fails the collection once a file."""
    project.write(RIGHT)
    result = project.run("--gpuperf-chip=GX100")
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert text.count("--gpuperf-chip=GX100: 'GX100' is no chip") >= 1
    assert "did you mean" in text


def test_why_a_gpu_is_not_checked_for_is_said_once() -> None:
    """Where nobody named a chip, a GPU whose chip is unknown fails nothing."""

    def unknown(_: str | None) -> Catalogue | None:
        raise ConfigError("the chips of sm_75 differ", remedy="name one: TU102, TU116")

    check = ChipCheck(None, load=unknown)
    assert check.mistakes("test_it.py::test_a", Plan(counters=("foo__bar.sum",))) == []
    (said,) = check.pytest_report_collectionfinish([])
    assert said == (
        "gpuperf: counters are not checked: the chips of sm_75 differ; "
        "name one: TU102, TU116"
    )


def test_without_counters_nothing_is_loaded(project: Project) -> None:
    """A suite that declares no counter does not ask the library, whatever the chip."""
    project.write("def test_nothing(gpuperf):\n    gpuperf(int)\n")
    done = project.spawn("--gpuperf-chip=GX100", "--collect-only")
    assert done.returncode == 0
    assert "GX100" not in done.stdout


def test_workers_check_too(project: Project) -> None:
    """Under xdist the workers collect, and their errors name the same counters."""
    project.write(WRONG)
    done = project.spawn(*XDIST, "-n1", "--gpuperf-chip=GB202")
    assert done.returncode != 0
    assert SAID[0] in done.stdout
    assert "INTERNALERROR" not in done.stdout
