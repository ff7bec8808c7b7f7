"""report.exports: other programs read what they are written for."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fakes import runs
from pytest_gpuperf.cli.arguments import EXPORTS
from pytest_gpuperf.compute.stats import quantile
from pytest_gpuperf.model.activity import (
    COLUMNS,
    Copy,
    KernelShape,
    Launches,
    NamedRange,
    Trace,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, Void, VoidCode
from pytest_gpuperf.model.run import Run, TestPlace
from pytest_gpuperf.model.sample import Series
from pytest_gpuperf.model.telemetry import ClockReason, TimeLine
from pytest_gpuperf.report import exports
from pytest_gpuperf.report.exports import chrome_trace_bytes
from pytest_gpuperf.report.rows import sample_statistics

EVIL = '=cmd|"\n::error::x\x1b[31m,%0A'
SAMPLES = (4.0, 1.0, 2.0, 3.0, 100.0)


def sampled() -> Run:
    """Return a run whose first test has samples, and another none."""
    run = runs.gpu_run()
    series = Series(
        metric="time", unit="s", source="events", values=SAMPLES, iterations_count=7
    )
    first, *others = run.records
    places = (TestPlace(test_id=first.key.test_id, line=12, group="norms"),)
    return replace(
        run, records=(replace(first, series=(series,)), *others), tests=places
    )


def hostile() -> Run:
    """Return a run whose test, metric and kernel are named to be taken for something."""
    key = replace(runs.key(EVIL), name="@b")
    estimate = replace(runs.value_of(EVIL, 3, "count", kernel=EVIL), source="-s")
    record = replace(runs.record("x", estimate), key=key)
    failed = replace(runs.FAILED, key=key, metric=EVIL, estimate=estimate)
    place = TestPlace(test_id=key.test_id, line=3, group="+g")
    return replace(runs.run((record,), (failed,)), tests=(place,))


def families_of(text: str) -> list[Any]:
    """Return the metrics that Prometheus' own parser reads."""
    read = text_string_to_metric_families(text)  # type: ignore[no-untyped-call] # no types
    return [*read]


def rows_of(run: Run) -> list[dict[str, str]]:
    """Return the rows of a run's CSV."""
    return [*csv.DictReader(io.StringIO(exports.csv_bytes(run).decode()), strict=True)]


def test_every_format_that_the_command_names_is_there() -> None:
    """A trace is of a recording, and made elsewhere."""
    assert sorted([*exports.EXPORTS, "chrome-trace"]) == [*EXPORTS]


def test_csv_has_a_row_for_each_test_and_metric() -> None:
    """Numbers are unrounded and in the unit that stands beside them."""
    rows = rows_of(sampled())
    first = rows[0]
    regressed = next(row for row in rows if row["outcome"] == "regressed")

    assert [(row["test"], row["metric"]) for row in rows] == [
        (record.key.test_id, estimate.metric)
        for record in sampled().records
        for estimate in record.estimates
    ]
    assert (first["group"], first["line"], first["unit"]) == ("norms", "12", "s")
    assert float(first["value"]) == 41.2e-6
    assert float(regressed["change_fraction"]) == 0.079
    assert float(regressed["limit_fraction"]) == 0.05
    assert None not in {cell for row in rows for cell in row.values()}


def test_no_cell_is_a_formula() -> None:
    """Whatever a test, a metric or a kernel is called; numbers stay numbers."""
    (row,) = rows_of(hostile())

    assert row["metric"] == "'=cmd|\"\\x0a::error::x\\x1b[31m,%0A"
    assert [row["measurement"], row["group"], row["source"]] == ["'@b", "'+g", "'-s"]
    assert row["value"] == "3"


def test_bencher_has_values_by_test_and_metric() -> None:
    """With the ends of the interval where there is one; long names stay different."""
    content = json.loads(exports.bencher_bytes(runs.gpu_run()))
    metrics = [runs.value_of("m" * 70 + end, 1.0, "s") for end in "ab"]
    long = runs.run((runs.record("x" * 2000, *metrics),))
    ((name, measures),) = json.loads(exports.bencher_bytes(long)).items()

    gemm = content["tests/test_gemm.py::test_gemm[4096]"]
    assert gemm == {
        "time": {
            "value": 183e-6,
            "lower_value": 183e-6 * (1 - 0.004),
            "upper_value": 183e-6 * (1 + 0.004),
        },
        "roofline.fraction": {"value": 0.61},
    }
    assert len(name) == 1024
    assert {len(measure) for measure in measures} == {64}
    assert len(measures) == 2


@pytest.mark.parametrize("name", ["é" * 1000, "\N{SNOWMAN}" * 30, " time", "time "])
def test_bencher_takes_every_name(name: str) -> None:
    """It counts bytes, takes no space at the ends, and refuses all for one bad name."""
    estimates = [runs.value_of(each, 1.0, "s") for each in (name, name.strip() + "x")]
    content = exports.bencher_bytes(runs.run((runs.record(name, *estimates),)))
    ((test, measures),) = json.loads(content).items()

    assert len(test.encode()) <= 1024
    assert len(measures) == 2
    assert all(len(each.encode()) <= 64 for each in measures)
    assert all(each == each.strip() for each in measures)


def test_openmetrics_are_read_by_prometheus() -> None:
    """A gauge a metric, with its base unit; the names of tests are labels."""
    text = exports.openmetrics_bytes(runs.gpu_run()).decode()
    families = {each.name: each for each in families_of(text)}
    time = families["gpuperf_time_seconds"]
    values = {
        each.labels["test"].partition("::")[2]: each.value for each in time.samples
    }

    assert {name: each.unit for name, each in families.items()} == {
        "gpuperf_time_seconds": "seconds",
        "gpuperf_roofline_fraction_ratio": "ratio",
        "gpuperf_registers": "",
        "gpuperf_stack_bytes": "bytes",
        "gpuperf_occupancy_theoretical_ratio": "ratio",
    }
    assert values["test_gemm[4096]"] == 183e-6
    assert text.endswith("# EOF\n")


def test_openmetrics_are_rounded_for_who_compares_texts() -> None:
    """Whole numbers keep their digits: a register more is a change."""
    record = runs.record(
        "a", runs.value_of("t", 123456e-9, "s"), runs.value_of("n", 123456, "count")
    )
    text = exports.openmetrics_bytes(runs.run((record,)), digits=2).decode()

    assert [line.split()[-1] for line in text.splitlines() if "{" in line] == [
        "123456",
        "0.00012",
    ]


def test_no_name_breaks_openmetrics() -> None:
    """Labels are quoted, and the metric's own name is one of them."""
    text = exports.openmetrics_bytes(hostile()).decode()
    (family,) = families_of(text)
    (sample,) = family.samples

    assert sample.value == 3
    assert sample.labels["metric"] == '=cmd|"\\x0a::error::x\\x1b[31m,%0A'


def test_gitlab_reads_every_line_of_openmetrics() -> None:
    """It cuts a line at `#`, splits the rest as a shell does, takes name and value."""
    shape = 'void f<{lambda(int)#1}>(it\'s, "$x" `y`)'
    value = replace(runs.value_of("registers", 40, "count"), kernel=shape)
    text = exports.openmetrics_bytes(
        runs.run((runs.record("t[#1 a]", value),))
    ).decode()
    lines = [shlex.split(re.sub("#.*", "", line)) for line in text.splitlines()]
    (words,) = filter(None, lines)

    assert words[1:] == ["40"]
    assert r"f<{lambda(int)\x231}>(it's, " in words[0]


def test_allure_has_a_unit_and_a_direction_of_each_value() -> None:
    """Microseconds and percent: Allure shows three decimals, and seconds as 0."""
    content = json.loads(exports.allure_bytes(runs.gpu_run()))
    first = content[0]

    assert first == {
        "id": "tests/test_gemm.py::test_rmsnorm[8192]",
        "key": "time",
        "value": 41.2,
        "unit": "us",
        "better": "lower",
        "start": 1795200000000,
        "stop": 1795200000000,
    }
    better = {one["key"]: one["better"] for one in content}
    assert (better["roofline.fraction"], better["registers"]) == ("higher", "neutral")


def test_pytorch_has_a_record_for_each_metric() -> None:
    """
    With the values as a list, and what was measured where; its maps hold texts only.

    Its pages round to two decimals, which makes seconds 0.
    """
    first, *others = json.loads(exports.pytorch_bytes(runs.gpu_run()))

    assert first["model"] == {"name": "tests/test_gemm.py::test_rmsnorm[8192]"}
    assert first["metric"] == {
        "name": "time",
        "benchmark_values": [41.2],
        "extra_info": {"unit": "us", "source": "events", "outcome": "unchanged"},
    }
    assert first["benchmark"]["name"] == "pytest-gpuperf"
    assert first["benchmark"]["extra_info"]["device"] == "NVIDIA H200"
    maps = [
        part["extra_info"]
        for record in (first, *others)
        for part in (record["benchmark"], record["metric"])
    ]
    assert {type(text) for one in maps for text in one.values()} == {str}


@pytest.mark.parametrize(
    ("kind", "facts", "device"),
    [
        (Kind.CAPTURE, {"counter": {"gpu_name": "Tesla V100"}}, "Tesla V100"),
        (Kind.CAPTURE, {}, None),  # a report need not say
        (Kind.BINARY, {}, None),
        (Kind.MEASURE, {"host-time": {"cpu_model": "a CPU"}}, "cpu"),
    ],
)
def test_pytorch_names_the_device_of_a_capture(
    kind: Kind, facts: dict[str, dict[str, str]], device: str | None
) -> None:
    """It is not the host that read the report."""
    record = runs.record("a", runs.value_of("registers", 64, "count"))
    record = replace(record, kind=kind, facts=facts, device=None)

    (found,) = json.loads(exports.pytorch_bytes(runs.run((record,), ())))

    assert found["benchmark"]["extra_info"].get("device") == device


def test_pytest_benchmark_has_what_was_sampled() -> None:
    """Its own fields of each test; what has no samples is left out, and counted."""
    content = json.loads(exports.pytest_benchmark_bytes(sampled()))
    (benchmark,) = content["benchmarks"]
    stats = benchmark["stats"]

    assert {*content} == {
        *("machine_info", "commit_info", "benchmarks", "datetime", "version")
    }
    assert benchmark["group"] == "norms"
    assert benchmark["name"] == "test_rmsnorm[8192]"
    assert benchmark["fullname"] == "tests/test_gemm.py::test_rmsnorm[8192]"
    assert benchmark["param"] == "8192"
    assert benchmark["extra_info"] == {"roofline.fraction": 0.87}
    assert stats.pop("stddev") == pytest.approx(43.6177)
    assert stats == {
        "min": 1.0,
        "max": 100.0,
        "mean": 22.0,
        "rounds": 5,
        "median": 3.0,
        "iqr": 2.0,
        "q1": 2.0,
        "q3": 4.0,
        "iqr_outliers": 1,
        "stddev_outliers": 1,
        "outliers": "1;1",
        "ld15iqr": 1.0,
        "hd15iqr": 4.0,
        "ops": 5 / 110,
        "total": 110.0,
        "data": [*SAMPLES],
        "iterations": 7,
    }
    assert len(exports.without_times(sampled())) == 4


def test_pytest_benchmark_gets_what_the_run_knows_of_its_machine() -> None:
    """In its own words: `machine`, the architecture, is not a fact of a run."""
    run = sampled()
    facts = replace(run.header.environment, cpu_model=None, core_count=8)
    header = replace(run.header, environment=facts)
    content = json.loads(exports.pytest_benchmark_bytes(replace(run, header=header)))

    assert content["machine_info"] == {
        "node": run.header.session.host,
        "python_version": facts.python_minor,
        "system": "Linux",
        "cpu": {"count": 8},
    }
    assert {*content["commit_info"]} <= {"id", "branch", "dirty"}


@pytest.mark.parametrize(
    "write",
    [
        exports.allure_bytes,
        exports.bencher_bytes,
        exports.openmetrics_bytes,
        exports.pytest_benchmark_bytes,
        exports.pytorch_bytes,
    ],
)
def test_no_other_program_gets_what_is_void(write: Callable[[Run], bytes]) -> None:
    """It would judge the number; CSV has it, with what voids it."""
    run = sampled()
    first, *others = run.records
    changed = Void(code=VoidCode.MUTATES_ITS_INPUTS, reason="its list changed")
    void = replace(run, records=(replace(first, void=changed), *others))
    name = first.key.test_id.encode()

    assert name in write(run)
    assert name not in write(void)
    assert exports.void_measurements(void) == [str(first.key)]
    assert str(first.key) not in exports.without_times(void)
    assert rows_of(void)[0]["void"] == changed.code.value
    assert rows_of(run)[0]["void"] == ""


@pytest.mark.parametrize(
    ("test", "name", "parameter"),
    [
        ("TestA::test_b[std::sort]", "test_b[std::sort]", "std::sort"),
        ("TestA::test_b", "test_b", None),
    ],
)
def test_a_parameter_with_colons_stays_whole(
    test: str, name: str, parameter: str | None
) -> None:
    """The name for pytest-benchmark begins behind the class, not inside a parameter."""
    run = sampled()
    first, *others = run.records
    renamed = replace(first, key=runs.key(test))
    content = exports.pytest_benchmark_bytes(replace(run, records=(renamed, *others)))
    (benchmark,) = json.loads(content)["benchmarks"]

    assert (benchmark["name"], benchmark["param"]) == (name, parameter)


@pytest.mark.parametrize("samples", [(2.0,), (0.0, 0.0)])
def test_few_or_empty_samples_have_statistics(samples: tuple[float, ...]) -> None:
    """One sample has no spread, and no time has no rate."""
    stats = sample_statistics(samples)

    assert stats["stddev"] == 0
    assert stats["median"] == quantile(samples, 0.5)
    assert stats["ops"] == (0.5 if samples[0] else 0)


def test_a_failure_is_an_annotation_on_its_line() -> None:
    """Ten at most, the last of them counts the rest; what passed has none."""
    one = replace(runs.REGRESSED, key=runs.key("test_a[x:y,z]"))
    place = TestPlace(test_id=one.key.test_id, line=12)
    run = replace(runs.run(verdicts=(one,)), tests=(place,))
    below = replace(run, header=replace(run.header, options={"rootdir": "sub"}))
    many = [replace(runs.REGRESSED, key=runs.key(f"t{number}")) for number in range(15)]

    assert exports.annotation_lines(run) == [
        (
            "::error file=tests/test_gemm.py,title=test_a[x%3Ay%2Cz],line=12::"
            "time regressed: 183 us, was 170 us: +7.9 %25 (+7.1 … +8.7 %25), "
            "limit 5 %25, smallest detectable change 1.6 %25"
        )
    ]
    assert exports.annotation_lines(below)[0].startswith("::error file=sub/tests/")
    assert len(exports.annotation_lines(runs.run(verdicts=tuple(many)))) == 10
    assert exports.annotation_lines(runs.run(verdicts=tuple(many)))[-1] == (
        "::error title=gpuperf::6 more tests failed"
    )
    assert exports.annotations_bytes(runs.run()) == b""


@pytest.mark.parametrize(
    ("below", "key", "file"),
    [
        ("", "", "tests/test_gemm.py"),
        ("", "packages/a/tests/test_gemm.py::t", "packages/a/tests/test_gemm.py"),
        (
            "sub",
            "packages/a/tests/test_gemm.py::t",
            "sub/packages/a/tests/test_gemm.py",
        ),
        ("", "lib.tests.test_gemm::t", "../lib/test_gemm.py"),
        (None, "packages/a/tests/test_gemm.py::t", "../lib/test_gemm.py"),
    ],
)
def test_an_annotation_names_a_file_of_the_repository(
    below: str | None, key: str, file: str
) -> None:
    """GitHub marks no line of a file that is named from a folder inside."""
    one = runs.REGRESSED
    typed = "../lib/test_gemm.py::t" if key else ""
    place = TestPlace(test_id=one.key.test_id, key=key, typed=typed)
    run = replace(runs.run(verdicts=(one,)), tests=(place,))
    (line,) = exports.annotation_lines(run, below=below)

    assert line.startswith(f"::error file={file},")


def test_a_test_that_broke_is_an_annotation_too() -> None:
    """Whether it had measured something or not: pytest fails it."""
    record = runs.record("test_a", runs.time_of(1e-3))
    ids = record.key.test_id, runs.key("test_b").test_id
    run = replace(runs.run((record,)), broken=ids)
    text = "the test itself failed: see the output of pytest"

    assert exports.annotation_lines(run) == [
        f"::error file=tests/test_gemm.py,title={name}::{text}"
        for name in ("test_a", "test_b")
    ]


def test_no_name_begins_another_command() -> None:
    """A line break, a percent sign and an escape in a name stay in their property."""
    (line,) = exports.annotations_bytes(hostile()).decode().splitlines()

    assert line.startswith(
        '::error file=tests/test_gemm.py,title==cmd|"\\x0a%3A%3Aerror'
    )
    assert line.removeprefix("::").partition("::")[0].endswith(" @b,line=3")
    assert "%250A" in line


@pytest.mark.parametrize("write", [*exports.EXPORTS.values()], ids=[*exports.EXPORTS])
def test_no_name_is_too_strange_for_a_format(write: Any) -> None:
    """A lone surrogate is no text in any encoding; an empty run has no value."""
    key = runs.key("a\udc80[\udc80]")
    record = replace(runs.record("x", runs.time_of(1.0)), key=key)
    series = Series(metric="time", unit="s", source="host", values=(1.0,))
    run = runs.run((replace(record, series=(series,)),))

    text = write(run).decode()

    assert "\udc80" not in text
    assert ("udc80" in text) == (write is not exports.annotations_bytes)
    assert write(runs.run()).decode() != text or not text


NONE = dict.fromkeys(COLUMNS, array("I"))  # of no launch
SHAPE = KernelShape(
    name="gemm",
    grid=(1, 2, 3),
    block=(4, 1, 1),
    registers_count=40,
    shared_bytes=0,
    dynamic_shared_bytes=8,
    stack_bytes=0,
)


def events_of(trace: Trace, *lines: TimeLine) -> list[dict[str, Any]]:
    """Return the events of one measurement's trace."""
    record = replace(runs.record("test_a"), time_lines=lines)
    content = json.loads(chrome_trace_bytes([(record, trace)]))
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def test_a_trace_says_when_the_clock_was_held_down() -> None:
    """A counter a reason, 1 as long as it held."""
    cap = ClockReason.SOFTWARE_POWER_CAP
    line = TimeLine(
        gpu_index=1,
        gpu_uuid="",
        since_s=(),
        throttled_s={cap: 1.5},
        throttled_spans_s={cap: ((0.5, 2.0),)},
    )
    trace = Trace(begun_ns=0, ended_ns=10**9, launches=Launches(shapes=(), **NONE))
    counters = [e for e in events_of(trace, line) if e["ph"] == "C"]

    assert [(e["name"], e["ts"], e["args"]) for e in counters] == [
        ("GPU 1 software power cap", 5e5, {"throttled": 1}),
        ("GPU 1 software power cap", 2e6, {"throttled": 0}),
    ]


def test_ranges_nest_and_rows_are_in_order() -> None:
    """A range inside a range shares its thread; stream 7 stands above stream 13."""
    zeros = array("I", [0, 0])
    columns = dict.fromkeys(COLUMNS, zeros) | {
        "start_ns": array("Q", [1, 2]),
        "end_ns": array("Q", [9, 8]),
        "stream": array("I", [13, 7]),
    }
    trace = Trace(
        begun_ns=1,
        ended_ns=99,
        launches=Launches(shapes=(SHAPE,), **columns),
        ranges=tuple(
            NamedRange(name=name, domain="", start_ns=start, end_ns=end)
            for name, start, end in (
                ("forward", 10, 20),
                ("step", 10, 40),
                ("backward", 20, 40),
                ("gemm", 25, 30),
                ("prefetch", 35, 45),  # of another thread: it outlives the step
                ("step", 45, 60),
            )
        ),
    )
    events = events_of(trace)
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    order = {
        names[event["tid"]]: event["args"]["sort_index"]
        for event in events
        if event["name"] == "thread_sort_index"
    }

    assert [
        (event["name"], names[event["tid"]])
        for event in events
        if event.get("cat") == "nvtx"
    ] == [
        ("step", "NVTX"),
        ("forward", "NVTX"),
        ("backward", "NVTX"),
        ("gemm", "NVTX"),
        ("prefetch", "NVTX (2)"),
        ("step", "NVTX"),
    ]
    assert sorted(order, key=order.__getitem__) == [
        *("measurements", "NVTX", "NVTX (2)", "GPU 0 stream 7", "GPU 0 stream 13"),
    ]


def test_a_trace_has_a_process_a_test_and_a_thread_a_stream() -> None:
    """What overlaps on a stream stands on a further thread: slices must nest."""
    begun = 10**18
    zeros = array("I", [0, 0, 0])
    columns = dict.fromkeys(COLUMNS, zeros) | {
        "start_ns": array("Q", [begun + 1000, begun + 1500, 0]),
        "end_ns": array("Q", [begun + 3000, begun + 1750, 0]),
        "call_ns": array("Q", [0, 0, 0]),
        "stream": array("I", [7, 7, 7]),
    }
    copy = Copy(
        direction="host_to_device",
        source="pinned",
        target="device",
        size_bytes=64,
        count=1,
        start_ns=begun,
        end_ns=begun + 500,
    )
    named = NamedRange(name="fwd\x1b", domain="", start_ns=begun, end_ns=begun + 4000)
    trace = Trace(
        begun_ns=begun,
        ended_ns=begun + 5000,
        launches=Launches(shapes=(SHAPE,), **columns),
        copies=(copy,),
        fills=((32, begun, begun + 250),),
        graphs=((begun, begun + 125),),
        ranges=(named,),
    )
    sensor = TimeLine(
        gpu_index=0,
        gpu_uuid="",
        since_s=(0.0, 1e-6),
        readings={"power_watts": (300.0, None)},
    )
    events = events_of(trace, sensor)
    threads = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }

    slices = [
        (threads[event["tid"]], event["name"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X"
    ]
    assert slices == [
        ("measurements", "measurement", 0.0, 5.0),
        ("NVTX", "fwd\\x1b", 0.0, 4.0),
        ("copies", "host to device", 0.0, 0.5),
        ("memsets", "memset", 0.0, 0.25),
        ("graphs", "graph", 0.0, 0.125),
        ("GPU 0 stream 7", "gemm", 1.0, 2.0),
        ("GPU 0 stream 7 (2)", "gemm", 1.5, 0.25),
    ]
    assert [event for event in events if event["ph"] == "C"] == [
        {
            "ph": "C",
            "name": "GPU 0 power",
            "pid": 1,
            "ts": 0.0,
            "args": {"W": 300.0},
        }
    ]
    (process,) = [event for event in events if event["name"] == "process_name"]
    assert process["args"] == {"name": "tests/test_gemm.py::test_a"}


def test_measurements_follow_one_another() -> None:
    """A process a test; minutes without a trace would make all of it invisible."""

    def measured(test: str, name: str, begun_s: int) -> tuple[Record, Trace]:
        columns = dict.fromkeys(COLUMNS, array("I", [0])) | {
            "start_ns": array("Q", [begun_s * 10**9 + 1000]),
            "end_ns": array("Q", [begun_s * 10**9 + 3000]),
        }
        trace = Trace(
            begun_ns=begun_s * 10**9,
            ended_ns=begun_s * 10**9 + 5000,
            launches=Launches(shapes=(SHAPE,), **columns),
        )
        record = runs.record(test)
        return replace(record, key=replace(record.key, name=name)), trace

    traces = [
        measured("test_b", "", 900),
        measured("test_a", "second", 300),
        measured("test_a", "", 100),
    ]

    events = json.loads(chrome_trace_bytes(traces))["traceEvents"]

    assert [
        (e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"
    ] == [
        *((1, "measurement", 0.0, 5.0), (1, "gemm", 1.0, 2.0)),
        *((1, "second", 5.1, 5.0), (1, "gemm", 6.1, 2.0)),
        *((2, "measurement", 10.2, 5.0), (2, "gemm", 11.2, 2.0)),
    ]
    assert [
        e["args"]["started_s"] for e in events if e.get("cat") == "measurements"
    ] == [0.0, 200.0, 800.0]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        *("tests/test_gemm.py::test_a", "tests/test_gemm.py::test_b"),
    ]
