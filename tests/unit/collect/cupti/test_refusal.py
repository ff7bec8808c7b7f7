"""collect.cupti.statuses: what each answer of libcupti means, and leads to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fakes.libcupti import FakeCupti
from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.cupti import statuses
from pytest_gpuperf.collect.cupti.libcupti import Libcupti, find_libraries
from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    CounterPermissionError,
    CountersBusyError,
    GpuPerfError,
    UnknownMetricError,
)

INIT = "cuptiProfilerInitialize"
HOST = "cuptiProfilerHost"
RANGE = "cuptiRangeProfiler"

# status: the call that answers it, what is raised, and a word of what to do
STATUSES = {
    1: (f"{RANGE}SetConfig", CollectError, "doctor"),
    2: (f"{RANGE}Enable", CollectorUnavailableError, "CUDA_VISIBLE_DEVICES"),
    3: (f"{RANGE}Enable", CollectError, "in the thread that counts"),
    7: (f"{RANGE}Start", CollectError, "end the other profiler first"),
    8: (f"{RANGE}Enable", CollectError, "free memory of the GPU"),
    9: (f"{RANGE}DecodeData", CollectError, "run it again"),
    10: (f"{RANGE}CounterDataImageInitialize", CollectError, "fewer ranges"),
    11: (f"{RANGE}Enable", CollectorUnavailableError, "doctor"),
    12: (f"{RANGE}Stop", CollectError, "more ranges"),
    13: (f"{RANGE}DecodeData", CollectError, "wait for the device"),
    14: (f"{RANGE}Start", CollectError, "end the other profiler first"),
    15: (INIT, CollectorUnavailableError, "doctor"),
    17: (f"{HOST}EvaluateToGpuValues", CollectError, "gpuperf metrics search"),
    23: (INIT, CollectorUnavailableError, "without the other profiler"),
    21: (f"{RANGE}Enable", CollectorUnavailableError, "--upgrade"),
    26: (f"{RANGE}Enable", CountersBusyError, "dcgmi profile --pause"),
    27: (f"{RANGE}SetConfig", CollectorUnavailableError, "other metrics"),
    33: (f"{RANGE}Enable", CollectorUnavailableError, "whole GPU"),
    35: (
        f"{RANGE}Enable",
        CounterPermissionError,
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    36: (INIT, CollectorUnavailableError, "without it"),
    38: (INIT, CollectorUnavailableError, "nvidia-cuda-cupti"),
    39: (f"{RANGE}Enable", CountersBusyError, "without it"),
    40: (f"{RANGE}Enable", CounterPermissionError, "enable_profiling=1"),
    41: (f"{RANGE}Enable", CollectorUnavailableError, "without confidential"),
    42: (f"{RANGE}Enable", CollectorUnavailableError, "another GPU"),
    43: (f"{RANGE}Enable", CollectorUnavailableError, "MIG "),
    44: (f"{RANGE}Enable", CollectorUnavailableError, "SLI off"),
    45: (f"{RANGE}Enable", CollectorUnavailableError, "WSL2"),
    46: (f"{HOST}Initialize", CollectorUnavailableError, "gpuperf metrics chips"),
    47: (INIT, CollectorUnavailableError, "MPS off"),
    999: (INIT, CollectorUnavailableError, "doctor"),
}
CAUSES = {
    "architecture": "7.5",
    "sli": "SLI",
    "vGpu": "virtual GPU",
    "confidentialCompute": "confidential",
    "cmp": "mining",
    "wsl": "WSL",
    "sku": "model",
}


def count(fake: FakeCupti) -> None:
    """Count one kernel."""
    driver = FakeDriver()
    library = Libcupti(fake, path="the double", driver=lambda: driver)
    profiler = RangeProfiler(
        ("dram__bytes.sum",), synchronize=lambda: None, library=library
    )
    profiler.count_kernels(lambda: fake.launch({"dram__bytes.sum": 1.0}))


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_says_why_nothing_was_counted(status: int) -> None:
    """Each status leaves the counters unmeasured, with its name, a reason and a remedy."""
    function, error, remedy = STATUSES[status]
    fake = FakeCupti()
    fake.status_of[function] = status

    with pytest.raises(CollectError) as caught:
        count(fake)

    assert type(caught.value) is error
    name = statuses.STATUSES[status].name
    assert f"({function}: {status} {name})" in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("status", STATUSES)
def test_what_was_enabled_is_given_back_whatever_fails(status: int) -> None:
    """A failure leaves no profiler behind that would refuse the next one."""
    function = STATUSES[status][0]
    fake = FakeCupti()
    fake.status_of[function] = status

    with pytest.raises(CollectError):
        count(fake)

    enabled = f"{RANGE}Enable" in fake.calls and function != f"{RANGE}Enable"
    assert fake.calls.count(f"{RANGE}Disable") == enabled


def test_no_status_is_left_out() -> None:
    """Every status that has a meaning here is tested above, but for our own."""
    assert set(STATUSES) | {statuses.NO_FUNCTION} == set(statuses.STATUSES)


def test_names_are_those_of_the_header() -> None:
    """A status is called what NVIDIA's header calls it."""
    folders = [path.resolve().parents[1] / "include" for path in find_libraries()]
    headers = [each / "cupti_result.h" for each in folders]
    texts = [each.read_text() for each in headers if each.exists()]
    if not texts:
        pytest.skip("cupti_result.h is not installed")
    found = re.findall(r"CUPTI_ERROR_(\w+)\s*=\s*(\d+)", "\n".join(texts))
    names = {int(number): name for name, number in found}

    # the header may be a toolkit's, older than the newest code
    known = {s: meant.name for s, meant in statuses.STATUSES.items() if s in names}
    assert len(known) > 20
    assert known == {status: names[status] for status in known}


@pytest.mark.parametrize(
    ("function", "status", "error", "word"),
    [
        (f"{HOST}ConfigAddMetrics", 27, CollectorUnavailableError, "in this way"),
        (f"{HOST}ConfigAddMetrics", 1, ConfigError, "ending"),
    ],
)
def test_a_status_of_one_call_says_why(
    function: str, status: int, error: type[GpuPerfError], word: str
) -> None:
    """A status means in one call what it does not mean in others."""
    fake = FakeCupti()
    fake.status_of[function] = status

    with pytest.raises(error, match=word):
        count(fake)

    assert fake.calls.count(f"{RANGE}Enable") == fake.calls.count(f"{RANGE}Disable")


def test_a_range_outside_of_the_body_is_the_tests_mistake() -> None:
    """7 of PushRange is about where a range was begun, not about other profilers."""
    error = statuses.failure(f"{RANGE}PushRange", 7)

    assert "where nothing is counted" in str(error)


def test_a_status_of_a_later_version_is_said_as_it_is() -> None:
    """A number that these headers do not have is shown, not guessed at."""
    error = statuses.failure(INIT, 48)

    assert f"({INIT}: 48 unknown status)" in str(error)


def test_a_function_that_is_not_there_is_named() -> None:
    """A library without the calls says which one it lacks."""

    class Old:
        def cuptiGetVersion(self, found: object) -> int:  # noqa: N802 - NVIDIA's name
            found._obj.value = 26  # type: ignore[attr-defined] # a ctypes reference
            return 0

    library = Libcupti(Old(), path="old", driver=FakeDriver)

    with pytest.raises(CollectorUnavailableError, match=f"{INIT}: -1 NOT_FOUND"):
        library.chip(0)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_device_that_cannot_count_says_every_cause(cause: str) -> None:
    """A verdict of the probe names its cause before anything is enabled."""
    fake = FakeCupti()
    fake.support = {"isSupported": 1, cause: 1}

    with pytest.raises(CollectorUnavailableError, match=CAUSES[cause]):
        count(fake)

    assert f"{RANGE}Enable" not in fake.calls


def test_several_causes_are_said_at_once() -> None:
    """Nobody repairs one cause only to meet the next."""
    fake = FakeCupti()
    fake.support = {"isSupported": 1, "wsl": 1, "sku": 1}

    with pytest.raises(CollectorUnavailableError, match=r"WSL.*; .*model"):
        count(fake)


def test_counters_that_the_hypervisor_keeps_are_a_matter_of_permission() -> None:
    """DISABLED of a virtual GPU is what status 40 says when it is too late."""
    fake = FakeCupti()
    fake.support = {"isSupported": 2, "vGpu": 2}

    with pytest.raises(CounterPermissionError, match="enable_profiling=1"):
        count(fake)


def test_a_probe_without_a_cause_says_so() -> None:
    """A verdict that nothing explains is not explained."""
    fake = FakeCupti()
    fake.support = {"isSupported": 1}

    with pytest.raises(CollectorUnavailableError, match="names no cause"):
        count(fake)


def test_a_probe_that_does_not_know_is_no_refusal() -> None:
    """UNKNOWN keeps nobody from trying."""
    fake = FakeCupti()
    fake.support = {"isSupported": 0, "vGpu": 0}

    count(fake)

    assert f"{RANGE}Enable" in fake.calls


def test_an_older_library_has_no_verdict_on_the_model() -> None:
    """Before 13.1 there is no `sku`, and what lies there means nothing."""
    fake = FakeCupti(version=130001)
    fake.support = {"isSupported": 1}

    with pytest.raises(CollectorUnavailableError, match="names no cause"):
        count(fake)


def test_unknown_metrics_are_named() -> None:
    """What the chip lacks is named, all of it, with where to look."""
    driver = FakeDriver()
    fake = FakeCupti()
    library = Libcupti(fake, path="the double", driver=lambda: driver)

    def prepare(*names: str) -> RangeProfiler:
        return RangeProfiler(names, synchronize=lambda: None, library=library)

    with pytest.raises(UnknownMetricError, match=r"'nope.sum'.*--chip=GH100"):
        prepare("dram__bytes.sum", "nope.sum")
    with pytest.raises(ConfigError, match=r"'nope.sum', 'none.avg' of GH100"):
        prepare("nope.sum", "none.avg", "dram__bytes.sum")
    with pytest.raises(ConfigError, match="lacks its ending"):
        prepare("dram__bytes")
    assert fake.open_count == 0


def test_the_page_names_every_status() -> None:
    """Each status stands in the page's table with the test that proves it."""
    page = (Path(__file__).parents[4] / "docs" / "gpu-timing-internals.md").read_text()

    for status in STATUSES:
        row = rf"^\| {status} {statuses.STATUSES[status].name} .*\[{status}\]` \|$"
        assert re.search(row, page, re.MULTILINE), status


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("libcupti.so.12", "use a framework for CUDA 12.8 or later"),
        ("/opt/libcupti.so.12", "for a driver before 580 'pytest-gpuperf[cupti-cu12]'"),
    ],
)
def test_an_old_library_says_what_helps(path: str, remedy: str) -> None:
    """
    What a framework has loaded is used, whatever is installed beside it.

    The missing permission of a user would show only afterwards.
    """
    with pytest.raises(CollectorUnavailableError, match="API version 24") as caught:
        Libcupti(FakeCupti(version=24), path=path)

    assert remedy in caught.value.remedy
    assert "counter-permission" in caught.value.remedy
