"""--gpuperf-chip: counters are checked for a chip while tests are collected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes import fake_cuda
from fakes.chips import need_library
from fakes.nvml import FakeGpu, FakeNvml
from fakes.project import XDIST, Project
from pytest_gpuperf.collect.cupti.chips import chip_measured
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.hooks.chip_check import ChipCheck

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
    "lts__t_sector_hit_rate of GB202 is a ratio, and .sum is not an ending of it",
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
    assert "gpuperf: GH100 counts 3 counters of 2 tests in 1 group: 2 tests in" in text
    assert "8 passes (about 9 runs of each launch under Nsight Compute)" in text


def test_only_selected_tests_are_counted(project: Project) -> None:
    """What was deselected costs nothing."""
    project.write(RIGHT)
    result = project.run("--gpuperf-chip=GH100", "--collect-only", "-k", "bytes")
    result.stdout.fnmatch_lines(["gpuperf: GH100 counts 2 counters of 1 test*1 pass *"])
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
    assert text.count("--gpuperf-chip=GX100: 'GX100' is not a chip") >= 1
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


HOPPER = FakeGpu(uuid="GPU-aa00")
BLACKWELL = FakeGpu(
    uuid="GPU-bb00", name="NVIDIA RTX PRO 6000", compute_capability=(12, 0)
)
ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("asked", "environment", "chip"),
    [
        (None, ORDERED, "GH100"),
        (None, {**ORDERED, "CUDA_VISIBLE_DEVICES": "1"}, "GB202"),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-bb00"}, "GB202"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, None),
        ("0", ORDERED, "GH100"),
        ("1", ORDERED, "GB202"),
        ("gpu-bb", ORDERED, "GB202"),
    ],
)
def test_the_chip_is_that_of_the_gpu_that_is_measured(
    asked: str | None, environment: dict[str, str], chip: str | None
) -> None:
    """By index or UUID, or as CUDA shows them; which NVML lists first says nothing."""
    query = query_devices(FakeNvml(HOPPER, BLACKWELL))

    assert chip_measured(query, asked, environment) == chip


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_unlike_gpus_without_an_order_are_told(environment: dict[str, str]) -> None:
    """CUDA may have put the other one first: no counter is called wrong."""
    query = query_devices(FakeNvml(HOPPER, BLACKWELL))
    with pytest.raises(ConfigError, match="GPUs of several kinds") as caught:
        chip_measured(query, None, environment)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caught.value.remedy
    assert "--gpuperf-chip" in caught.value.remedy


def test_a_part_of_a_gpu_has_the_chip_of_the_whole() -> None:
    """Even where NVML does not say the compute capability of the part."""
    unsaid = {"nvmlDeviceGetCudaComputeCapability": 3}
    part = FakeGpu(uuid="MIG-cc00", name="NVIDIA H200 MIG 1g.18gb", errors=unsaid)
    split = FakeGpu(uuid="GPU-aa00", mig=1, slices=(part,))
    query = query_devices(FakeNvml(BLACKWELL, split))

    assert query.slices[0].compute_capability is None
    environment = {**ORDERED, "CUDA_VISIBLE_DEVICES": "MIG-cc00"}
    assert chip_measured(query, "MIG-cc00", environment) == "GH100"


def test_a_gpu_without_a_compute_capability_is_told() -> None:
    """It has some chip: that nothing is checked is not passed over in silence."""
    unsaid = {"nvmlDeviceGetCudaComputeCapability": 3}
    query = query_devices(FakeNvml(FakeGpu(uuid="GPU-aa00", errors=unsaid)))
    with pytest.raises(ConfigError, match="compute capability of GPU 0") as caught:
        chip_measured(query, None, {})
    assert "--gpuperf-chip" in caught.value.remedy


@pytest.fixture(name="unlike")
def unlike_(project: Project, tmp_path: Path) -> Project:
    """Return a project on a machine with two unlike GPUs."""
    fake_cuda.machine(project, tmp_path / "m", gpus=(fake_cuda.UUID, fake_cuda.OTHER))
    with Path(os.environ["FAKE_NVML_SCRIPT"]).open("a", encoding="utf-8") as script:
        script.write(",1,cc,12.0\n,1,name,NVIDIA RTX PRO 6000\n")
    project.environment.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(counters=["dram__bytes_op_read.sum"])
        def test_it(gpuperf):
            gpuperf(int)
        """
    )
    return project


@pytest.mark.parametrize(
    ("ini", "line", "chip"),
    [
        ("", (), "GH100"),
        ("", ("--gpuperf-device=1",), "GB202"),
        ("", (f"--gpuperf-device={fake_cuda.OTHER[:9]}",), "GB202"),
        ("gpuperf_device = 1", (), "GB202"),
        ("gpuperf_device = 1", ("--gpuperf-device=0",), "GH100"),
        ("", ("--gpuperf-device=1", "--gpuperf-chip=GH100"), "GH100"),
        ("gpuperf_chip = GB202", ("--gpuperf-device=0",), "GB202"),
    ],
)
def test_counters_are_checked_for_the_gpu_that_was_asked_for(
    unlike: Project, ini: str, line: tuple[str, ...], chip: str
) -> None:
    """The counter is one of GB202 alone; --gpuperf-chip goes before the GPU."""
    unlike.write(f"[pytest]\n{ini}\n", "pytest.ini")
    ended = unlike.spawn("--collect-only", *line)

    if chip == "GB202":
        assert ended.returncode == 0, ended.stdout
        assert "gpuperf: GB202 counts 1 counter of 1 test" in ended.stdout
    else:
        assert ended.returncode == pytest.ExitCode.INTERRUPTED
        assert (
            "counter 'dram__bytes_op_read.sum': GH100 has no such metric"
            in ended.stdout
        )
