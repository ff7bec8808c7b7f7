"""collect.ncu: reports and logs that Nsight Compute 2025.3.1 made on an NVIDIA H200."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_gpuperf.collect.ncu import Report
from pytest_gpuperf.collect.ncu.launches import ReadReport, read_report
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
from pytest_gpuperf.collect.ncu.session import errors_in, find_trouble
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.translate.counters import standard_counters
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.launch import CapturedLaunch

GOLD = Path(__file__).parents[3] / "gold" / "gpu" / "reports"
NAMES = sorted(path.name.partition(".")[0] for path in GOLD.glob("*.xz"))
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
TIME, REGISTERS = "gpu__time_duration.sum", "launch__registers_per_thread"
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS = (TIME, READ, WRITTEN, THROUGHPUT, REGISTERS)
CHOSEN = ("regex:inner@.+", "outer@step/")  # what two_domains was profiled with
SMALL, LARGE = 4 << 20, 16 << 20  # bytes of the vector in ranges.py, in graph.py

Unpack = Callable[[str], Path]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    """Return what unpacks a report, once."""
    if find_spec("ncu_report") is None:
        pytest.skip("needs the package ncu-report")
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def unpack(name: str) -> Path:
        path = folder / f"{name}.ncu-rep"
        with lzma.open(GOLD / f"{name}.ncu-rep.xz") as packed, path.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return path

    return unpack


def read(path: Path) -> ReadReport:
    """Read a report with the metrics that were asked for."""
    return read_report(path, METRICS, runner=ProcessRunner())


def launches(path: Path) -> list[CapturedLaunch]:
    """Return the launches of a report, all of one context."""
    placed = read(path).launches
    assert {each.range_index for each in placed} == {0}
    return list(placed)


def values(found: list[CapturedLaunch], metric: str) -> list[float]:
    """Return a metric of launches that were measured."""
    numbers = []
    for launch in found:
        value = launch.metrics[metric].value
        assert launch.measured
        assert isinstance(value, (int, float))
        numbers.append(float(value))
    return numbers


def test_ranges_and_threads(report: Unpack) -> None:
    """A stack belongs to its thread, a start/end range to the process."""
    found = launches(report("every_launch"))

    # the fill, add and mul; neg of another thread; sqrt after all ranges
    assert [launch.nvtx.get("outer", ()) for launch in found] == [
        (),
        ("step",),
        ("step", "layer"),
        (),
        (),
    ]
    assert [launch.nvtx.get("inner", ()) for launch in found] == [
        (),
        ("forward",),
        ("forward",),
        ("backward",),
        (),
    ]
    assert ["neg_kernel" in launch.demangled for launch in found] == [
        *(False, False, False, True, False)
    ]


def test_we_choose_what_ncu_chose(report: Unpack) -> None:
    """Expressions mean to us, of a report of all launches, what they meant to ncu."""
    everything, by_ncu = read(report("every_launch")), launches(report("two_domains"))
    ours = everything.chosen(LaunchFilter(includes=CHOSEN), "every_launch")

    assert len(ours) < len(everything.launches)
    assert [each.demangled for each in ours] == [each.demangled for each in by_ncu]
    assert [each.nvtx for each in ours] == [each.nvtx for each in by_ncu]


def test_a_tree_has_the_launches_of_its_ranges(report: Unpack) -> None:
    """Under `step` are the two kernels that its thread launched, one in `layer`."""
    results = Report(path=report("two_domains")).extract_results_in_range(
        (READ,), includes=("outer@step/",)
    )
    text = str(results)

    assert len(list(results.iter_launches())) == 2
    assert text.index("step") < text.index("layer")


def test_a_range_is_one_result(report: Unpack) -> None:
    """Under range replay three kernels have one time and one count of bytes."""
    (found,) = launches(report("range_replay"))
    (whole,) = Report(path=report("range_replay")).launches()

    assert (found.kernel, whole.workload) == ("range", "range")
    assert found.nvtx["outer"] == ("step",)
    assert values([found], TIME)[0] > 0
    # caches were left alone: what the kernels before it wrote was still there
    assert 0 < values([found], READ)[0] < LARGE / 10


def test_a_graph_is_whole_or_its_nodes(report: Unpack) -> None:
    """The same program: two results after six kernels, or six kernels more."""
    whole = Report(path=report("graph_as_a_whole")).launches()
    nodes = Report(path=report("graph_by_node")).launches()

    assert [each.workload for each in whole] == 6 * ["kernel"] + 2 * ["graph"]
    assert {each.workload for each in nodes} == {"kernel"}
    assert [each.mangled for each in whole[:6]] == [each.mangled for each in nodes[:6]]
    one, other = nodes[6:9], nodes[9:]
    assert [each.mangled for each in one] == [each.mangled for each in other]
    assert len({each.mangled for each in one}) == 3


@pytest.mark.parametrize(
    ("name", "workload"), [("graph_as_a_whole", "graph"), ("range_replay", "range")]
)
def test_the_launch_of_a_whole_is_that_of_one_of_its_kernels(
    report: Unpack, name: str, workload: str
) -> None:
    """ncu writes grid and registers all the same: nothing of ours takes them for its own."""
    *_, whole = launches(report(name))
    counters = standard_counters(whole).values

    assert whole.workload == workload
    assert whole.metrics[REGISTERS].value == 32
    assert "duration_s" in counters
    assert not {"registers_count", "grid_blocks_count", "waves_count"} & {*counters}


def test_a_graph_reads_once_what_its_nodes_read_each(report: Unpack) -> None:
    """Before each result ncu empties the caches: before a node, or before a graph."""
    whole = launches(report("graph_as_a_whole"))
    nodes = launches(report("graph_by_node"))

    assert values(whole[6:], READ) == pytest.approx([LARGE] * 2, rel=0.01)
    assert values(nodes[6:], READ) == pytest.approx([LARGE] * 6, rel=0.01)


def test_a_launch_that_failed_is_not_measured(report: Unpack) -> None:
    """It has a name and no number; the two before it have theirs."""
    *good, failed = launches(report("failed_launch"))

    assert [launch.measured for launch in good] == [True, True]
    assert not failed.measured
    assert failed.kernel == "index_elementwise_kernel"
    assert {metric.value for metric in failed.metrics.values()} == {None}
    assert set(failed.metrics) <= set(METRICS)
    assert values(good, TIME) == [2688.0, 4064.0]


def test_known_work_reads_its_bytes(report: Unpack) -> None:
    """Four kernels read 4 MiB each, and one that fills them reads nothing of them."""
    fill, *others = launches(report("every_launch"))

    assert values(others, READ) == pytest.approx([SMALL] * 4, rel=0.01)
    assert values([fill], READ)[0] < SMALL / 100


@pytest.mark.parametrize("name", NAMES)
def test_values_have_the_units_of_the_base(report: Unpack, name: str) -> None:
    """Nanoseconds, bytes and percent: no prefix that a number would have to be read by."""
    units = {
        metric: each.unit
        for launch in launches(report(name))
        if launch.measured
        for metric, each in launch.metrics.items()
    }
    assert units == {
        TIME: "ns",
        READ: "byte",
        WRITTEN: "byte",
        THROUGHPUT: "%",
        REGISTERS: "register/thread",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_log_names_a_trouble_where_there_was_one(name: str) -> None:
    """What ncu warns of while all goes well is no trouble; a kernel that failed is."""
    log = (GOLD / f"{name}.log").read_text("utf-8")
    found = find_trouble(log)

    if name != "failed_launch":
        assert (found, errors_in(log)) == (None, ())
        return
    assert found is not None
    assert found[0].name == "launch-failed"
    assert "index out of bounds" in found[1]  # which that program has
    assert "without ncu" in found[0].remedy


def test_every_report_has_its_log() -> None:
    """None lies there for nothing."""
    assert len(NAMES) == 6
    assert sorted(path.stem for path in GOLD.glob("*.log")) == NAMES


def test_a_report_that_is_cut_has_no_wrong_number(
    report: Unpack, tmp_path: Path
) -> None:
    """It is refused, or has the first launches of the whole. Each place is a process."""
    whole = launches(report("every_launch"))
    content = report("every_launch").read_bytes()
    path = tmp_path / "cut.ncu-rep"
    for number in range(1, 10):
        path.write_bytes(content[: len(content) * number // 10])
        cut: list[CapturedLaunch] = []
        with suppress(CaptureFormatError):
            cut = launches(path)

        assert len(cut) < len(whole)
        assert cut == whole[: len(cut)]
