"""Rules of reading a report into a tree."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import pytest

from fakes import fake_ncu_report
from fakes.runner import FakeRunner, finished
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.extract import answer
from pytest_gpuperf.collect.ncu.forms import ADVICE, LAUNCHES, NOT_A_REPORT
from pytest_gpuperf.collect.ncu.launches import decode_launches
from pytest_gpuperf.collect.ncu.metrics import (
    Metric,
    MetricCorrelation,
    MetricCorrelationData,
    MetricCounter,
)
from pytest_gpuperf.collect.ncu.reading import is_report
from pytest_gpuperf.collect.ncu.report import Report
from pytest_gpuperf.collect.ncu.text import report_text
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectorFailedError,
    CollectorUnavailableError,
    ConfigError,
    EntryCountError,
    MetricUnavailableError,
    MissingEntryError,
    RecordError,
    WrongEntryError,
)

TEXT, FLOAT, INTEGER = 2, 4, 6
COUNTER, SUM, AVG, PER_SECOND = 1, 4, 1, 14
SIZE = "launch__grid_size"
BYTES = "dram__bytes.sum"
OPCODES = "sass__inst_executed_per_opcode"
METRICS: dict[str, list[object]] = {
    SIZE: [FLOAT, 8.0, "", 0, 0, 0],
    BYTES: [FLOAT, 1024.0, "byte", COUNTER, 0, SUM],
    "dram__bytes.avg": [FLOAT, 0.5, "byte", COUNTER, 0, AVG],
    "dram__bytes.sum.per_second": [FLOAT, 2.5, "byte/s", COUNTER, PER_SECOND, SUM],
    "group:dram": [TEXT, f"{BYTES},dram__bytes.avg,dram__absent.sum", ""],
    OPCODES: [FLOAT, 5.0, "inst", 0, 0, 0, [TEXT, ["IMAD", "LEA", None], [3, 2.0, 9]]],
    "link__ports": [0, 3, ""],  # a kind of value that nobody can read
    "memory_type": [INTEGER, None, "", 0, 0, 0, [INTEGER, [16], [4]]],
}


# where three addresses lie: file, line, instruction
SOURCE: dict[str, list[object]] = {
    "16": ["a.cu", 7, " LDG R0 "],
    "32": ["a.cu", 7, ""],
    "48": [None, 0, "???"],
}
BARE: dict[str, list[object]] = {"16": [None, 0, ""], "48": [None, 0, "???"]}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ncu-report wheel of doubles, also for what this process reads itself."""
    module = fake_ncu_report.install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    yield module
    sys.modules.pop("ncu_report", None)


def read_elsewhere(some: Report, form: str, names: Sequence[str]) -> str:
    """Return what a process of its own reads of a report."""
    return report_text(some.path, form, names, runner=ProcessRunner()).decode()


@pytest.fixture(
    params=[
        path
        for folder in [os.environ.get("GPUPERF_CAPTURES")]
        for path in (sorted(Path(folder).glob("*.ncu-rep")) if folder else [None])
    ],
    ids=lambda path: path and path.stem,
)
def real(request: pytest.FixtureRequest) -> Path:
    """Each real report in turn."""
    if request.param is None:
        pytest.skip("needs real reports: name their folder in GPUPERF_CAPTURES")
    if find_spec("ncu_report") is None:
        pytest.skip("needs the package ncu-report")
    return Path(request.param)


def action(**changes: object) -> dict[str, object]:
    """Return one launch as the double reads it."""
    usual = {"kernel": "k", "demangled": "k(int)", "mangled": "_Z1ki"}
    return {**usual, "metrics": METRICS, **changes}


def failed() -> dict[str, object]:
    """Return a launch whose profile failed."""
    metrics = {BYTES: [FLOAT, math.nan, "byte"], "x__zero": [FLOAT, 0.0, ""]}
    device = {"device__attribute_x": [INTEGER, 7, ""]}
    return action(metrics=metrics | device)


def within(*domains: list[object]) -> dict[str, object]:
    """Return a launch under NVTX ranges: name, stack, started of each domain."""
    return action(nvtx=list(domains))


def stalled(lines: dict[str, list[object]]) -> dict[str, object]:
    """Return a launch with samples at three addresses, and the lines of these."""
    start = "smsp__pcsamp_warps_issue_stalled_"
    samples: dict[str, list[int]] = {
        "wait": [2, 3, 4],
        "long_scoreboard": [3, 0, 0],
        "long_scoreboard_not_issued": [99, 0, 0],
        "selected": [0, 0, 99],
    }
    metrics = {
        start + name: [INTEGER, 0, "", 0, 0, 0, [INTEGER, [16, 32, 48], counts]]
        for name, counts in samples.items()
    }
    total = {f"{start}membar": [INTEGER, 0, ""]}
    return action(metrics=METRICS | metrics | total, lines=lines)


def report(folder: Path, *ranges: list[dict[str, object]]) -> Report:
    """Return a report that the double reads."""
    path = folder / "some.v1.ncu-rep"
    path.write_bytes(b"NVR\0" + json.dumps({"ranges": ranges}).encode())
    return Report(path)


class TestTheFile:
    def test_is_named_in_three_ways(self, tmp_path: Path) -> None:
        """A dot in its name is part of the name."""
        path = report(tmp_path, []).path

        assert Report(path=tmp_path, name="some.v1").path == path
        assert Report(tmp_path, "some.v1.ncu-rep").path == path
        assert repr(str(path)) in repr(Report(path))
        command = Command(executable="x", output=tmp_path / "some.v1")
        assert Report(command=command).path == path

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"name": "some.v1"},
            {"path": "x", "command": "c"},
            {"name": "x", "command": "c"},
        ],
    )
    def test_is_named_in_one_way(self, arguments: dict[str, str]) -> None:
        """A mix has no meaning; the error shows what has."""
        with pytest.raises(ConfigError, match=r"Report\(command=c\)"):
            Report(**arguments)  # type: ignore[arg-type] # it is what is refused

    def test_is_looked_at_first(self, tmp_path: Path) -> None:
        """A missing or foreign file is told where it is named."""
        (tmp_path / "x.ncu-rep").write_text("text")

        with pytest.raises(CaptureFormatError, match="No such file"):
            Report(tmp_path, "none")
        with pytest.raises(CaptureFormatError, match="not a report"):
            Report(tmp_path, "x")
        with pytest.raises(CaptureFormatError, match="not a path"):
            Report(tmp_path, "a\0b")
        with (tmp_path / "x.ncu-rep").open("wb") as stream:
            stream.write(b"NVR\0")
            stream.truncate(2_000_000_000)  # its tail takes no room on the disk
        with pytest.raises(CaptureFormatError, match="2000 MB, more than 1000"):
            Report(tmp_path, "x")

    def test_is_read_once_for_one_question(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """Choosing other launches of the same metrics starts no process."""
        del installed
        text = b'{"ranges":[{"launches":[%s]}]}\n' % b",".join(
            b'{"index":%d,"kernel":"k","demangled":"k()","mangled":"_Z1kv",'
            b'"workload":"kernel","nvtx":[],"measured":true,"values":[],"names":[],'
            b'"facts":[]}' % number
            for number in range(2)
        )
        runner = FakeRunner([finished(stdout=text)])
        some = Report(report(tmp_path, []).path, runner=runner)

        first = some.extract_results_in_range([], indices=[0])
        second = some.extract_results_in_range([], indices=[1])

        assert (list(first.data), list(second.data)) == (["k-0"], ["k-1"])
        assert (some.range_count, len(runner.calls)) == (1, 1)


@pytest.mark.usefixtures("installed")
class TestValues:
    def test_stand_under_their_labels(self, tmp_path: Path) -> None:
        """A metric with roll-ups has one key for each; names stand beside."""
        metrics = (
            Metric(SIZE, pretty_name="grid"),
            MetricCounter("dram__bytes", "moved", subs=("sum", ("sum", "per_second"))),
            "dram__bytes.avg",
        )

        found = report(tmp_path, [action()]).extract_results_in_range(metrics)

        assert found.query_metrics(("k-0",)) == {
            "grid": 8,
            "moved.sum": 1024,
            "moved.sum.per_second": 2.5,
            "dram__bytes.avg": 0.5,
            "mangled": "_Z1ki",
            "demangled": "k(int)",
        }
        assert found.query_metrics(("k-0",))["moved (sum, per_second)"] == 2.5

    def test_that_are_whole_are_integers(self, tmp_path: Path) -> None:
        """The same size is a float in one version of ncu and an integer in another."""
        metrics = {
            SIZE: [FLOAT, 8.0, ""],
            "a": [FLOAT, 2.0**53, ""],
            "b": [FLOAT, -3.0, ""],
            "c": [INTEGER, 2**64 - 1, ""],
        }

        found = report(tmp_path, [action(metrics=metrics)]).launches(names=["*"])

        values = found[0].values
        assert [repr(values[n]) for n in (SIZE, "a", "b", "c")] == [
            "8",
            "9007199254740992.0",
            "-3",
            "18446744073709551615",
        ]

    def test_come_with_what_the_report_says_of_them(self, tmp_path: Path) -> None:
        """Units and roll-ups differ between versions: they are read, not known."""
        found = report(tmp_path, [action(), action()]).extract_results_in_range(None)

        leaf = found.query_metrics(("k-1",))
        facts = leaf.facts[BYTES]
        assert facts is not None
        assert (facts.unit, facts.kind, facts.type, facts.subtype, facts.rollup) == (
            "byte",
            "double",
            "counter",
            None,
            "sum",
        )
        assert found.aggregate_metrics() == {BYTES: 2048}
        assert set(found.aggregate_metrics().left_out) == set(leaf) - {
            BYTES,
            "mangled",
            "demangled",
        }

    def test_of_a_group_are_its_members(self, tmp_path: Path) -> None:
        """The report says which they are; one that it lacks has no value."""
        found = report(tmp_path, [action()]).extract_results_in_range(
            ["group:dram", SIZE]
        )

        leaf = found.query_metrics(("k-0",))
        assert (leaf[BYTES], leaf["dram__bytes.avg"], leaf[SIZE]) == (1024, 0.5, 8)
        assert "group:dram" not in leaf
        with pytest.raises(MetricUnavailableError):
            leaf["dram__absent.sum"]

    def test_of_a_group_within_itself_end(self, tmp_path: Path) -> None:
        """A list that names itself is not an endless list."""
        metrics = METRICS | {"group:me": [TEXT, f"group:me,{BYTES}", ""]}

        (launch,) = report(tmp_path, [action(metrics=metrics)]).launches(
            names=["group:me"]
        )

        assert launch.values[BYTES] == 1024

    def test_by_opcode_come_with_their_total(self, tmp_path: Path) -> None:
        """A total that the report does not have is None; a place without id is none."""
        found = report(tmp_path, [action()]).extract_results_in_range(
            [MetricCorrelation(OPCODES), MetricCorrelation("memory_type")]
        )

        leaf = found.query_metrics(("k-0",))
        assert leaf[OPCODES] == MetricCorrelationData(
            correlated={"IMAD": 3, "LEA": 2}, value=5
        )
        assert leaf["memory_type"] == MetricCorrelationData(correlated={16: 4})

    @pytest.mark.parametrize(
        ("metrics", "reason"),
        [
            (
                [BYTES, "no__such.sum"],
                "launch k-0 of some.v1.ncu-rep has no such metric",
            ),
            (["dram__bytes"], f"ask for dram__bytes.avg, {BYTES}"),
            (["dram__byte.sum"], f"ask for {BYTES}"),
            (["group:none"], "profile with ncu --metrics=group:none"),
            ([MetricCorrelation(BYTES)], "no values of it by opcode or address"),
            ([MetricCorrelation("no__such")], "no such metric"),
            (["no__a.sum", "no__b.sum"], "nor no__b.sum"),
        ],
    )
    def test_that_are_not_there_are_told(
        self, tmp_path: Path, metrics: list[Metric | str], reason: str
    ) -> None:
        """With the names that may have been meant."""
        with pytest.raises(MetricUnavailableError) as caught:
            report(tmp_path, [action()]).extract_results_in_range(metrics)

        assert reason in str(caught.value)

    @pytest.mark.parametrize(
        "metrics",
        [
            [Metric(BYTES, "x"), Metric(SIZE, "x")],
            [Metric(BYTES, "mangled")],
            ["mangled"],
            [OPCODES, MetricCorrelation(OPCODES)],
        ],
    )
    def test_never_share_a_key(
        self, tmp_path: Path, metrics: list[Metric | str]
    ) -> None:
        """One of the two would be lost."""
        with pytest.raises(ConfigError, match="pretty_name"):
            report(tmp_path, [action()]).extract_results_in_range(metrics)

    @pytest.mark.parametrize("metrics", ["a b", ["a b"], [Metric(SIZE), "a b"]])
    def test_are_asked_for_by_names(
        self, tmp_path: Path, metrics: str | list[Metric | str]
    ) -> None:
        """A text that is none is refused alike, alone or beside a metric."""
        with pytest.raises(ConfigError, match=r"Metric\('a b'\): a name has no blanks"):
            report(tmp_path, [action()]).extract_results_in_range(metrics)

    def test_have_one_key_however_they_are_asked_for(self, tmp_path: Path) -> None:
        """A name is a metric that is called by its name; one asked for twice is one."""
        some = report(tmp_path, [action()])

        by_name = some.extract_results_in_range([BYTES, SIZE, BYTES])
        by_metric = some.extract_results_in_range([Metric(BYTES), SIZE, Metric(BYTES)])

        assert by_name == by_metric
        assert list(by_name.query_metrics(("k-0",)))[:2] == [BYTES, SIZE]

    def test_of_a_failed_launch_are_none(self, tmp_path: Path) -> None:
        """Its neighbours are read all the same; its zeros and NaN are not numbers."""
        found = report(tmp_path, [action(), failed()]).extract_results_in_range(
            [BYTES, SIZE]
        )

        leaf = found.query_metrics(("k-1",))
        assert found.query_metrics(("k-0",))[BYTES] == 1024
        assert (leaf.measured, leaf.data[BYTES], leaf.data[SIZE]) == (False, None, None)
        with pytest.raises(MetricUnavailableError, match="profiling it failed"):
            leaf[BYTES]
        assert found.aggregate_metrics().left_out[BYTES] == "k-1: profiling it failed"

    def test_may_differ_from_launch_to_launch(self, tmp_path: Path) -> None:
        """Names that a launch shares with the one before are written once only."""
        few = {SIZE: METRICS[SIZE], "a": [TEXT, "x", "u"]}
        others = few | {"a": [INTEGER, 1, "v"]}
        actions = [action(), action(), action(metrics=few), action(metrics=others)]

        launches = report(tmp_path, actions, [action(metrics=few)]).launches(
            names=["*"]
        )

        assert [len(each.values) for each in launches] == [8, 8, 2, 2]
        assert launches[0].facts is launches[1].facts
        units = [
            facts and facts.unit for facts in (each.facts.get("a") for each in launches)
        ]
        assert units == [None, None, "u", "v"]

    def test_name_a_kernel_as_the_caller_likes(self, tmp_path: Path) -> None:
        """The demangler is asked once for a kernel, however often it was launched."""
        asked: list[str] = []

        class Demangler:
            @staticmethod
            def demangle(name: str) -> str:
                asked.append(name)
                return f"<{name}>"

        some = report(tmp_path, [action(), action(), action(mangled="_Z1x")])
        found = some.extract_results_in_range([], demangler=Demangler)

        assert found.query_metrics(("k-1",))["demangled"] == "<_Z1ki>"
        assert asked == ["_Z1ki", "_Z1x"]
        upper = some.extract_results_in_range([], demangler=str.upper)
        assert upper.query_metrics(("k-2",))["demangled"] == "_Z1X"


@pytest.mark.usefixtures("installed")
class TestTheTree:
    def test_is_one_of_push_pop_ranges(self, tmp_path: Path) -> None:
        """Start/end ranges overlap, so they make no tree; they are kept beside it."""
        some = report(
            tmp_path,
            [
                within(["d", ["outer", "inner"], ["started"]]),
                within(["d", [], ["started"]]),
                action(),
            ],
        )

        found = some.extract_results_in_range([])

        assert [way for way, _ in found.iter_launches()] == [
            ("outer", "inner", "k-0"),
            ("k-1",),
            ("k-2",),
        ]
        (domain,) = some.launches()[0].nvtx
        assert (domain.name, domain.stack, domain.started) == (
            "d",
            ("outer", "inner"),
            ("started",),
        )

    def test_has_a_launch_once_for_each_domain_with_ranges(
        self, tmp_path: Path
    ) -> None:
        """A domain without an open range adds nothing; equal stacks are one way."""
        launch = within(
            ["a", ["x"], []], ["b", [], []], ["c", ["x"], []], ["d", ["y"], []]
        )
        some = report(tmp_path, [launch])

        found = some.extract_results_in_range([])

        assert list(found.data) == ["x", "y"]
        assert found.query(("x", "k-0")) is found.query(("y", "k-0"))
        assert len(list(found.iter_launches())) == 1
        assert list(some.extract_results_in_range([], domain="d").data) == ["y"]
        assert list(some.extract_results_in_range([], domain="b").data) == ["k-0"]

    @pytest.mark.parametrize(
        "launches",
        [
            [action(), within(["d", ["k-0"], []])],
            [within(["d", ["k-1"], []]), action()],
        ],
    )
    def test_refuses_a_range_called_like_a_launch(
        self, tmp_path: Path, launches: list[dict[str, object]]
    ) -> None:
        """Either would hide the other, whichever comes first."""
        some = report(tmp_path, launches)

        with pytest.raises(WrongEntryError, match="has the name of a launch"):
            some.extract_results_in_range([])

    def test_keeps_ranges_apart(self, tmp_path: Path) -> None:
        """An index counts within its range of the report."""
        some = report(tmp_path, [action(), action()], [action(kernel="x")])

        assert some.range_count == 2
        assert list(some.extract_results_in_range([], 1).data) == ["x-0"]
        for wrong in (2, -1, "0"):
            with pytest.raises(MissingEntryError, match="range_idx from 0 to 1"):
                some.extract_results_in_range([], wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
class TestChoosing:
    @pytest.fixture
    def some(self, tmp_path: Path) -> Report:
        """Three kernels under two ranges."""
        nvtx = [["<default domain>", ["run", "one"], []]]
        two = [["<default domain>", ["run", "two"], ["s"]]]
        return report(
            tmp_path,
            [
                action(kernel="axpy", demangled="axpy<float*>(int)", nvtx=nvtx),
                action(kernel="axpy", demangled="axpy<double*>(int)", nvtx=two),
                action(kernel="dot", demangled="dot(int)", nvtx=two),
            ],
        )

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ({"includes": ["one/"]}, ["axpy-0"]),
            ({"includes": ["run/"], "excludes": ["one]"]}, ["axpy-1", "dot-2"]),
            ({"excludes": ["one/"]}, ["axpy-1", "dot-2"]),
            ({"includes": ["s"]}, ["axpy-1", "dot-2"]),
            ({"kernels": "axpy"}, ["axpy-0", "axpy-1"]),
            ({"kernels": ["axpy<float*>(int)"]}, ["axpy-0"]),
            ({"kernels": ["*double*", "d?t"]}, ["axpy-1", "dot-2"]),
            ({"indices": [0, 2]}, ["axpy-0", "dot-2"]),
            ({"indices": range(2), "includes": ["two/"]}, ["axpy-1"]),
            # what can be gone through only once
            ({"indices": iter([0, 2])}, ["axpy-0", "dot-2"]),
            ({"kernels": iter(["d?t"])}, ["dot-2"]),
        ],
    )
    def test_keeps_a_launchs_own_index(
        self, some: Report, choice: dict[str, list[str]], expected: list[str]
    ) -> None:
        """All conditions hold together."""
        found = some.extract_results_in_range([], **choice)  # type: ignore[arg-type] # of several types

        assert [way[-1] for way, _ in found.iter_launches()] == expected

    def test_nothing_says_what_there_is(self, some: Report) -> None:
        """No launch is a RuntimeError with the names that are there."""
        with pytest.raises(RuntimeError) as caught:
            some.extract_results_in_range([], includes=["none/"])

        assert isinstance(caught.value, EntryCountError)
        assert "none of the 3 launches" in str(caught.value)
        assert "axpy, dot and from the NVTX ranges one, run, s, two" in str(
            caught.value
        )

    def test_no_such_index_says_which_there_are(self, some: Report) -> None:
        """The names would not help."""
        with pytest.raises(EntryCountError, match="indices are from 0 to 2"):
            some.extract_results_in_range([], indices=[3])

    def test_by_ranges_needs_ranges(self, tmp_path: Path) -> None:
        """A report of ncu without --nvtx has none."""
        with pytest.raises(EntryCountError, match="profile with ncu --nvtx"):
            report(tmp_path, [action()]).extract_results_in_range([], includes=["a/"])

    def test_reads_nothing_where_an_expression_is_wrong(self, some: Report) -> None:
        """NVIDIA's reader would abort."""
        with pytest.raises(ConfigError, match="'/'"):
            some.extract_results_in_range([], includes=["/"])


@pytest.mark.usefixtures("installed")
class TestAdvice:
    RULE: ClassVar[dict[str, object]] = {
        "rule_identifier": "Occ",
        "name": "Occupancy",
        "section_identifier": "Occupancy",
        "rule_message": {
            "title": "Low",
            "message": "See @url:the guide:https://x.y/z#a@, "
            "@section:LaunchStats:Launch Statistics@ and @source:a.cu:7:line 7@.",
            "type": 2,
        },
        "speedup_estimation": {"type": 2, "speedup": 25.0},
    }

    def test_is_what_the_rules_found(self, tmp_path: Path) -> None:
        """A level that is new stays its number; links become their text."""
        plain = {
            key: value
            for key, value in self.RULE.items()
            if key != "speedup_estimation"
        } | {"rule_message": {"title": "", "message": "m", "type": 9}}
        some = report(tmp_path, [action()], [action(rules=[self.RULE, plain])])

        first, second = some.advice(0, range_idx=1).rules

        assert (first.rule, first.level, first.title) == ("Occ", "optimization", "Low")
        assert first.text == "See the guide, Launch Statistics and line 7."
        assert (first.speedup_fraction, first.speedup_scope) == (0.25, "global")
        assert (second.level, second.speedup_fraction) == ("9", None)

    def test_names_the_lines_where_warps_wait_most(self, tmp_path: Path) -> None:
        """Samples of one line count together; who issues or could does not wait."""
        some = report(tmp_path, [stalled(SOURCE), stalled(BARE), action()])

        stall, *colder = some.advice(0).stalls

        assert (stall.file, stall.line, stall.sass) == ("a.cu", 7, "LDG R0")
        assert (stall.reason, stall.samples_count) == ("wait", 8)
        assert stall.samples_fraction == pytest.approx(8 / 12)
        assert sum(line.samples_count for line in colder) == 4
        bare = some.advice(1).stalls[0]
        assert (bare.file, bare.line, bare.sass, bare.samples_count) == (
            None,
            None,
            None,
            5,
        )
        assert some.advice(2).stalls == ()

    def test_needs_a_launch(self, tmp_path: Path) -> None:
        """A number that is not a launch's says which are."""
        some = report(tmp_path, [action()])

        for index, number in ((1, 0), (-1, 0), (0, 1)):
            with pytest.raises(MissingEntryError):
                some.advice(index, number)

    def test_names_a_package_that_cannot_be_loaded(
        self, tmp_path: Path, installed: Path
    ) -> None:
        """An import that fails in the child is not a damaged file."""
        some = report(tmp_path, [action()])
        some.launches()
        installed.write_text("raise ImportError('ELF')")

        with pytest.raises(CollectorUnavailableError, match="ELF"):
            some.advice(0)


@pytest.mark.usefixtures("installed")
class TestTheProcess:
    def test_may_abort(self, tmp_path: Path) -> None:
        """NVIDIA's reader takes its own process with it, not this one."""
        with pytest.raises(CollectorFailedError, match="signal 6"):
            report(tmp_path, [action(abort=True)]).launches()

    def test_survives_any_name(self, tmp_path: Path) -> None:
        """Names come from other people's programs; one may be none."""
        name = 'k<"\\\n\x1b[31m\x00é\U0001f600>'
        nvtx = [[None, [name, None], [name]]]

        (launch,) = report(
            tmp_path, [action(kernel=name, mangled=None, nvtx=nvtx, workload=1)]
        ).launches()

        assert (launch.kernel, launch.mangled, launch.workload) == (name, "", "range")
        (domain,) = launch.nvtx
        assert (domain.name, domain.stack, domain.started) == ("", (name, ""), (name,))

    def test_shares_its_work(self, tmp_path: Path) -> None:
        """A report long enough for several processes reads like a short one."""
        actions = [action(kernel=f"k{number}") for number in range(40)]

        found = report(tmp_path, actions).launches(names=[BYTES])

        assert [each.key for each in found] == [f"k{n}-{n}" for n in range(40)]
        assert {each.values[BYTES] for each in found} == {1024}

    @pytest.mark.parametrize(
        "names",
        [
            ("*",),
            (BYTES, "no__such"),
            ("group:dram", f"correlated:{OPCODES}", f"correlated:{BYTES}"),
            (),
        ],
    )
    def test_is_not_needed(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        """Where no process can be forked, this one reads the same."""
        nvtx = [["d", ["outer"], ["s", None]]]
        some = report(tmp_path, [action(nvtx=nvtx), failed()], [action(workload=7)])

        status, text = answer(LAUNCHES, str(some.path), names, processes=1)

        assert status == 0
        assert text == read_elsewhere(some, LAUNCHES, names)

    def test_is_not_needed_for_advice(self, tmp_path: Path) -> None:
        """The same text, or the same refusal."""
        rule = TestAdvice.RULE
        unknown = rule | {"speedup_estimation": {"type": 7, "speedup": 1.0}}
        actions = [
            stalled(SOURCE) | {"rules": [rule, unknown]},
            stalled(BARE),
            action(),
        ]
        some = report(tmp_path, actions)

        for index in ("0", "1", "2"):
            status, text = answer(ADVICE, str(some.path), ("0", index))

            assert status == 0
            assert text == read_elsewhere(some, ADVICE, ("0", index))
        assert answer(ADVICE, str(some.path), ("0", "3"))[0] == NOT_A_REPORT
        with pytest.raises(CaptureFormatError, match="no launch 3 in range 0"):
            read_elsewhere(some, ADVICE, ("0", "3"))

    def test_never_gives_one_address_two_values(self) -> None:
        """One of them would be lost."""
        text = json.dumps(
            {
                "ranges": [
                    {
                        "launches": [
                            {
                                "index": 0,
                                "kernel": "k",
                                "demangled": "",
                                "mangled": "",
                                "workload": "kernel",
                                "nvtx": [],
                                "measured": True,
                                "values": [],
                                "names": [],
                                "facts": [],
                                "correlated": {
                                    "a": {"value": 3, "pairs": [[16, 1], [16, 2]]}
                                },
                            }
                        ]
                    }
                ]
            }
        )

        with pytest.raises(RecordError, match="given twice"):
            decode_launches(text.encode())


class TestRealReports:
    def test_put_each_launch_into_the_tree(self, real: Path) -> None:
        """Each once, named by its kernel and its place."""
        some = Report(real)

        found = some.extract_results_in_range([])

        keys = sorted(way[-1] for way, _ in found.iter_launches())
        assert keys == sorted(launch.key for launch in some.launches())

    def test_have_advice(self, real: Path) -> None:
        """A launch that was profiled with a set of sections has a rule's result."""
        advice = Report(real).advice(0)

        assert advice.rules
        assert all("@" not in rule.text for rule in advice.rules)
        assert sum(line.samples_fraction for line in advice.stalls) <= 1 + 1e-9
        assert all(line.samples_fraction > 0 for line in advice.stalls)

    def test_add_up_by_opcode(self, real: Path) -> None:
        """What each opcode was executed makes the whole."""
        some = Report(real)
        if OPCODES not in some.launches(names=["*"])[0].facts:
            pytest.skip("the report has no instructions by opcode")

        found = some.extract_results_in_range([MetricCorrelation(OPCODES)])

        for _, leaf in found.iter_launches():
            if leaf.measured:
                data = leaf[OPCODES]
                assert isinstance(data, MetricCorrelationData)
                assert sum(data.correlated.values()) == data.value


@pytest.mark.parametrize(
    ("start", "name", "is_one"),
    [
        (b"NVR\0", "a.ncu-rep", True),
        (b"NVR\0", "a", True),
        (b"\x28\xb5\x2f\xfd", "a.ncu-repz", True),
        (b"\x28\xb5\x2f\xfd", "a.json.zst", False),
        (b"{", "a.ncu-rep", False),
    ],
)
def test_a_report_is_known_by_its_first_bytes(
    start: bytes, name: str, is_one: bool
) -> None:
    """Compressed ones by their name, too: NVIDIA's reader asks for it."""
    assert is_report(start, name) is is_one
