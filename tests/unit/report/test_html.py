"""report.html: the page of a run, as an HTML parser reads it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fakes import runs
from pytest_gpuperf.baseline.stored_record import stored_record
from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.activity import ActivitySummary, KernelShape, KernelUse, Track
from pytest_gpuperf.model.change import AgainstEvidence
from pytest_gpuperf.model.counters import Analysis, CounterGap, KernelAnalysis
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.model.run import MachineShift, MissedAssert, Run, TestPlace
from pytest_gpuperf.model.sample import Series, SourceLabel
from pytest_gpuperf.model.steps import StepSummary
from pytest_gpuperf.model.telemetry import ClockReason, TimeLine
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.report import html
from pytest_gpuperf.report.html.figures import ChangeAxis, LogAxis
from pytest_gpuperf.report.html.kernels import KernelTable, tracks
from pytest_gpuperf.report.html.page import STATUSES, RunPage, html_bytes

if importlib.util.find_spec("jinja2") is None:
    pytest.skip("Jinja2 is not installed (extra html)", allow_module_level=True)

HOSTILE = "</code></script><img src=x onerror=alert(1)>'\"{{7*7}}\u202e\x1b[31m"
EMPTY = {"br", "img", "input", "link", "meta", "wbr"}


class Document(HTMLParser):
    """What a page holds: its elements, the text of each, and whether they are closed."""

    def __init__(self, content: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self._breaks = False  # a word may be broken here, and goes on
        self.feed(content.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._breaks = tag == "wbr"
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._breaks:
            data = self.texts.pop()[1] + data
            self._breaks = False
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str, name: str = "") -> list[dict[str, str]]:
        """Return the attributes of the elements of a tag, and of a class."""
        return [
            attrs
            for other, attrs in self.tags
            if other == tag and (not name or name in attrs.get("class", "").split())
        ]

    def text(self, tag: str = "") -> str:
        """Return all text, or that of one kind of element; no style, no script."""
        return " ".join(
            data
            for other, data in self.texts
            if other not in {"style", "script"} and (not tag or other == tag)
        )


def read(run: Run, *older: Run) -> Document:
    """Return the page of a run."""
    return Document(html_bytes(run, older))


def with_samples(record: Record, *values: float) -> Record:
    """Return a record with the samples of its time."""
    series = Series(metric="time", unit="s", source="events", values=values)
    return replace(record, series=(series,))


def stored(name: str, number: int, value_s: float) -> StoredRecord:
    """Return a stored session of a test."""
    return StoredRecord(
        key=runs.key(name),
        session=Session(
            id=f"old{number}",
            started_unix_s=1.79e9 + number * 86_400,
            host="h",
            commit=f"{number}abcdef123",
        ),
        values=(
            SessionValue(
                metric="time",
                unit="s",
                source="events",
                run_values=(value_s,),
                quantiles=tuple(value_s * share for share in (0.9, 1, 1.01, 1.02, 1.1)),
            ),
        ),
    )


def test_a_page_is_well_formed_and_whole() -> None:
    """Every element is closed, every address is there once, and nothing is fetched."""
    document = read(runs.gpu_run())
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]

    assert document.open == []
    assert len(ids) == len(set(ids))
    for _, attrs in document.tags:
        assert not {"src", "style", "srcset", "data"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
        assert attrs.get("href", "#").startswith("#")
        assert attrs.get("href", "#") in {"#", *(f"#{name}" for name in ids)}


def test_templates_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To compile them takes as long as 150 tests of a page."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(html, "_CACHE", tmp_path / "cache")
    page = html_bytes(runs.gpu_run())

    monkeypatch.setattr("jinja2.Environment._compile", None)
    assert html_bytes(runs.gpu_run()) == page


def test_templates_trust_only_the_page_s_own_files_and_macros() -> None:
    """Whatever else a template writes is escaped, as the texts in a macro are."""
    folder = Path(html.__file__).with_name("templates")
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.j2")]
    macros = {name for text in texts for name in re.findall(r"% macro (\w+)", text)}
    trusted = [
        re.fullmatch(r"(?:f\.)?(\w+)(\(.*\))?", trust, re.DOTALL)
        for text in texts
        for trust in re.findall(r"\{\{ ((?:(?!\}\}).)*?)\|safe\b", text, re.DOTALL)
    ]

    assert sum(text.count("safe") for text in texts) == len(trusted)
    for trust in trusted:
        assert trust is not None
        name, called = trust.groups()
        assert name in (macros if called else {"style", "script", "unscripted"})


@pytest.mark.parametrize("writes", [True, False])
def test_templates_that_cannot_be_kept_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, writes: bool
) -> None:
    """The package of another user is no place to write to, nor is one if Python must not."""
    place = tmp_path / "cache"
    if writes:
        place.write_text("no folder")
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    monkeypatch.setattr(html, "_CACHE", place)

    assert html_bytes(runs.gpu_run()).startswith(b"<!doctype html>")
    assert place.exists() is writes


def test_the_policy_lets_nothing_in_but_what_stands_in_the_page() -> None:
    """Styles and script are named by their digests; a network is not."""
    content = html_bytes(runs.gpu_run()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)">', content)
    inside = re.findall(
        r"<(?:style|script)>(.*?)</(?:style|script)>", content, re.DOTALL
    )
    digests = {
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in inside
    }
    named = re.findall(r"&#39;sha256-(.*?)&#39;|'sha256-(.*?)'", policy)

    assert len(inside) == 3
    assert {first or second for first, second in named} == digests
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "http" not in policy
    assert "url(" not in content.replace("url(#hatch)", "")


def test_every_verdict_is_a_row_with_a_word_and_a_shape() -> None:
    """The worst first; the head says how many fail and how many were judged."""
    document = read(runs.gpu_run())
    rows = document.of("details", "t")
    names = [row["data-name"].partition("::")[2] for row in rows]
    symbols = {attrs["id"] for attrs in document.of("symbol")}

    assert names == [
        "test_registers",
        "test_gemm[4096]",
        "test_counters",
        "test_gather[64k]",
        "test_attention_backward[bfloat16-8192-causal-128]",
        "test_rmsnorm[8192]",
    ]
    assert document.text("h1") == "2 of 7 tests fail: 1 missed a limit, 1 regressed."
    assert "Judged 3 of 7: 1 failed, 1 regressed, 1 unchanged" in document.text("p")
    assert symbols == {f"g-{status.name}" for status in STATUSES}
    assert [attrs["id"] for attrs in document.of("input")][:2] == [
        "f-failed",
        "f-regressed",
    ]


def test_own_asserts_are_no_limits() -> None:
    """The headline tells a marker's limits from asserts in a body, as the terminal does."""
    names = [f"test_{number}" for number in range(3)]
    records = [runs.record(name, runs.time_of(1e-3)) for name in names]
    missed = [
        MissedAssert(key=record.key, comparison="time 1 ms <= 1 us")
        for record in records
    ]
    verdict = replace(runs.FAILED, key=records[0].key)
    run = replace(runs.run((*records,), (verdict,)), missed=(*missed[1:],))
    one = replace(runs.run((*records[:2],), (verdict,)), missed=(missed[1],))

    assert RunPage(run).headline == (
        "3 of 3 tests fail: 1 missed a limit, 2 failed their own asserts"
    )
    assert RunPage(one).headline.endswith("1 missed a limit, 1 failed its own assert")
    assert "It was measured and missed its limit, or an assert" in read(one).text("li")


def test_all_controls_of_a_drift_are_named() -> None:
    """Those that are no tests are reference workloads."""
    shift = MachineShift(
        bound_class=BoundClass.HOST,
        metric="time",
        effect=0.069,
        control_count=5,
        moved=True,
        controls=("test_a", "test_b"),
    )
    page = RunPage(replace(runs.gpu_run(), shifts=(shift,)))

    assert dict(page.conditions)["drift of host-bound times"] == (
        "+6.9 %, from 5 controls: test_a, test_b, 3 reference workloads"
    )


@pytest.mark.parametrize(
    ("dirty", "commit", "shown"),
    [
        (False, "9be01d4c", []),
        (True, "9be01d4c", [("9be01d4", "9be01d4 and uncommitted changes")]),
        (False, "1abcdef0", [("9be01d4", "1abcdef")]),
        (True, "1abcdef0", [("9be01d4", "1abcdef and uncommitted changes")]),
    ],
)
def test_uncommitted_changes_are_a_change_since(
    *, dirty: bool, commit: str, shown: list[tuple[str, str]]
) -> None:
    """A working tree is not its commit."""
    run = runs.run(
        (runs.record("test_gemm[4096]", runs.time_of(183e-6)),), (runs.REGRESSED,)
    )
    session = replace(run.header.session, commit=commit, dirty=dirty)
    (test,) = RunPage(replace(run, header=replace(run.header, session=session))).tests
    assert test.panel is not None

    assert [row[1:] for row in test.panel.moved if row[0] == "commit"] == shown


def test_sessions_of_one_minute_are_told_apart() -> None:
    """By their seconds, and all of them: two forms in one table are hard to compare."""
    name = "test_gemm[4096]"
    record = stored(name, 1, 169e-6)
    later = replace(
        record.session, id="s9", started_unix_s=record.session.started_unix_s + 5
    )
    run = runs.run((runs.record(name, runs.time_of(183e-6)),), (runs.REGRESSED,))
    run = replace(run, stored=(record, replace(record, session=later)))
    (test,) = RunPage(run).tests
    assert test.panel is not None
    assert test.panel.samples is not None
    first, second, _ = (row.label for row in test.panel.samples.rows)

    assert first[:-3] == second[:-3]
    assert first != second


def test_counts_say_what_they_count() -> None:
    """The headline counts tests, a chip measurements: where these differ, both are said."""
    first, second = (
        replace(runs.REGRESSED, key=replace(runs.REGRESSED.key, name=name))
        for name in ("", "warm")
    )
    document = read(runs.run(verdicts=(first, second, runs.FAILED), expected=4))
    text = " ".join(document.text().split())

    assert document.text("h1") == "2 of 4 tests fail: 1 missed a limit, 1 regressed."
    assert "3 measurements of 2 tests:" in text
    assert "2 regressed in 1 test" in text
    assert "2 tests without a measurement" in document.text("span")
    assert "measurements of" not in read(runs.gpu_run()).text()
    assert "1 test without a measurement" in read(runs.gpu_run()).text("span")


def test_a_panel_says_what_the_terminal_says() -> None:
    """Numbers, evidence, remedy, and the lines to type, from the same functions."""
    text = read(runs.gpu_run()).text()

    assert "183\u202fµs, was 170\u202fµs: +7.9\u202f%" in text
    assert "confirmed in 3 fresh processes (+7.7 … +8.1\u202f%)" in text
    assert "since then torch 2.11.0 → 2.11.1" in text
    assert "store 2 more sessions with --gpuperf-update=new" in text
    command = 'pytest "tests/test_gemm.py::test_gemm[4096]" --gpuperf-baseline=.gpuperf'
    assert command in text
    assert f"{command} --gpuperf-update=all" in text


def test_a_value_that_others_judged_says_so() -> None:
    """The row has that of fresh processes; the panel has both, told apart."""
    moved = replace(runs.change(0.0, 2e-3), fresh=True)
    verdict = runs.changed("test_a", Outcome.UNCHANGED, Reason.WITHIN_NOISE, moved)
    verdict = replace(verdict, estimate=runs.time_of(1e-3))
    record = runs.record("test_a", runs.time_of(1e-3))
    run = runs.run((record,), (verdict,))
    (test,) = RunPage(run).tests

    assert test.value == "2.00 ms"
    assert "judged 2.00\u202fms" in read(run).text()
    assert test.panel is not None
    (value,) = test.panel.values
    assert value.value == "1.00 ms"
    assert (
        value.origin == "measured by events, 50 samples, in the suite; judged 2.00 ms"
    )


def test_a_test_that_broke_points_to_what_pytest_printed() -> None:
    """It has a row and a panel though it measured nothing; the report has no traceback."""
    test_id = runs.key("test_a").test_id
    page = RunPage(replace(runs.run(expected=1), broken=(test_id,)))
    (test,) = page.tests

    assert page.headline == "1 of 1 test fails: 1 failed before being judged"
    assert test.line.startswith("The test itself failed: see the output of pytest.")
    assert test.panel is not None
    assert test.panel.state == test.line


def test_a_test_keeps_its_address_in_another_run() -> None:
    """A link to a row outlives other tests and other verdicts."""
    run = runs.gpu_run()
    shorter = replace(run, records=run.records[:1], verdicts=())
    address = {row["data-name"]: row["id"] for row in read(run).of("details", "t")}

    for row in read(shorter).of("details", "t"):
        assert address[row["data-name"]] == row["id"]


def test_foreign_text_stays_text() -> None:
    """Names and sentences of others: no element, no attribute, nothing invisible."""
    use = KernelUse(
        shape=KernelShape(
            name=HOSTILE,
            grid=(8, 2, 1),
            block=(128, 1, 1),
            registers_count=40,
            shared_bytes=0,
            dynamic_shared_bytes=0,
            stack_bytes=0,
        ),
        demangled=HOSTILE,
        count=3,
        total_s=1e-3,
    )
    record = replace(
        runs.record(HOSTILE, runs.time_of(1e-3)),
        activity=ActivitySummary(kernels=(use,), kernels_count=1, launches_count=3),
        soft_facts={HOSTILE: HOSTILE},
    )
    verdict = replace(
        runs.UNMEASURED,
        key=record.key,
        detail=(HOSTILE,),
        remedy=HOSTILE,
        metric=HOSTILE,
    )
    run = runs.run((record,), (verdict,), options={HOSTILE: HOSTILE})
    content = html_bytes(
        replace(run, tests=(TestPlace(test_id=record.key.test_id, group=HOSTILE),))
    )
    document = Document(content)

    assert not document.of("img")
    assert len(document.of("script")) == 1
    assert {"onerror", "src"}.isdisjoint(
        name for _, attrs in document.tags for name in attrs
    )
    assert document.text().count("<img src=x onerror=alert(1)>") > 5
    assert "{{7*7}}" in document.text()
    assert "\u202e".encode() not in content
    assert b"\x1b" not in content


def test_lone_surrogates_can_be_written() -> None:
    """A name that UTF-8 has no bytes for does not end the report."""
    content = html_bytes(runs.run((runs.record("test_\ud800", runs.time_of(1e-3)),)))

    assert b"test_\\ud800" in content


def test_samples_stand_beside_every_stored_session() -> None:
    """Sessions of the store and of older runs, by time; then this run, then fresh ones."""
    name = "test_gemm[4096]"
    now = with_samples(runs.record(name, runs.time_of(183e-6)), *[183e-6] * 30)
    fresh = replace(now, role=Role.CONFIRM, process_index=1)
    earlier = runs.run((runs.record(name, runs.time_of(171e-6)),), session_id="old2")
    session = replace(earlier.header.session, started_unix_s=1.79e9 + 3 * 86_400)
    earlier = replace(earlier, header=replace(earlier.header, session=session))
    run = replace(
        runs.run((now, fresh), (runs.REGRESSED,)),
        stored=(stored(name, 2, 170e-6), stored(name, 1, 169e-6)),
    )
    document = read(run, earlier)
    kinds = [row["class"] for row in document.of("tr") if "class" in row]

    assert kinds == ["k-stored", "k-stored", "k-older", "k-now", "k-fresh"]
    assert "1abcdef" in document.text("code")
    assert len(document.of("rect", "box")) == 4  # the older run has no samples


def test_a_run_that_is_stored_too_is_shown_once() -> None:
    """A session of the store may be given as a file as well."""
    name = "test_gemm[4096]"
    older = runs.run((runs.record(name, runs.time_of(170e-6)),), session_id="old1")
    run = runs.run((runs.record(name, runs.time_of(183e-6)),), (runs.REGRESSED,))
    begun = stored(name, 1, 170e-6).session.started_unix_s
    session = replace(older.header.session, started_unix_s=begun)
    older = replace(older, header=replace(older.header, session=session))

    page = RunPage(replace(run, stored=(stored(name, 1, 170e-6),)), [older])
    (panel,) = [test.panel for test in page.tests]
    assert panel is not None
    assert panel.samples is not None
    assert [row.kind for row in panel.samples.rows] == ["older", "now"]


def test_many_sessions_have_a_history() -> None:
    """A point a session, with the band that the limit allows about the baseline."""
    name = "test_gemm[4096]"
    run = runs.run((runs.record(name, runs.time_of(183e-6)),), (runs.REGRESSED,))
    many = tuple(stored(name, number, 170e-6) for number in range(9))
    page = RunPage(replace(run, stored=many))
    (panel,) = [test.panel for test in page.tests]

    assert panel is not None
    assert panel.history is not None
    assert len(panel.history.points) == 10
    assert panel.history.band is not None
    assert panel.history.change is None


def test_a_history_says_where_its_level_changed() -> None:
    """With the commit and the session, and what it was before and since."""
    name = "test_gemm[4096]"
    run = runs.run((runs.record(name, runs.time_of(183e-6)),), (runs.REGRESSED,))
    values = (*(170e-6 * n for n in (1, 1.01, 0.99, 1)), 182e-6, 183e-6, 184e-6)
    many = tuple(stored(name, number, value) for number, value in enumerate(values))
    (test,) = RunPage(replace(run, stored=many)).tests

    assert test.panel is not None
    assert test.panel.history is not None
    assert test.panel.history.change is not None
    assert test.panel.history.change[1] == (
        "+7.6 % since 2026-09-25 14:13 4abcdef: 170 us → 183 us"
    )


def test_a_roofline_is_drawn_where_both_roofs_are_known() -> None:
    """The point lies below its roof by the fraction that was reached."""
    attained = Attainment(
        fraction=0.5,
        bound="memory",
        roof="dram",
        label=SourceLabel.DATASHEET,
        peak_label=SourceLabel.DATASHEET,
        source="data sheet",
        intensity_flop_per_byte=10.0,
        peak_flop_per_s=1e12,
        peak_bytes_per_s=5e10,
    )
    record = replace(runs.record("test_a", runs.time_of(1e-3)), roofline=attained)
    (test,) = RunPage(runs.run((record,))).tests
    assert test.panel is not None
    drawn = test.panel.roofline
    assert drawn is not None
    (point,) = drawn.points
    assert point.text == "250 GFLOP/s at 10 FLOP/B"
    assert drawn.sources == ("data sheet",)
    assert point.roof_y < point.y < drawn.height

    bytes_alone = replace(attained, peak_flop_per_s=None)
    (test,) = RunPage(runs.run((replace(record, roofline=bytes_alone),))).tests
    assert test.panel is not None
    assert test.panel.roofline is None


def test_kernels_of_a_capture_stand_in_a_table_and_under_their_roofs() -> None:
    """Numbered alike, with their shares; the roofs of two data types are two."""
    standing = Attainment(
        fraction=0.5,
        bound="compute",
        roof="fp64",
        label=SourceLabel.MEASURED,
        peak_label=SourceLabel.MEASURED,
        source="counted",
        intensity_flop_per_byte=100.0,
        peak_flop_per_s=1e12,
        peak_bytes_per_s=5e10,
    )
    standing = replace(standing, dtype="fp64")
    single = replace(standing, dtype="fp32", bound="memory", peak_flop_per_s=2.1e12)
    single = replace(single, roof="dram", intensity_flop_per_byte=1.0)
    gap = CounterGap(reason="not collected")
    tensor = CounterGap(reason="tensor cores computed")
    record = replace(
        runs.record("test_a", runs.value_of("waves", 3, "count", kernel="gemm")),
        kind=Kind.CAPTURE,
        analyses=tuple(
            KernelAnalysis(
                kernel=name,
                demangled=f"{name}<{HOSTILE}>",
                launches_count=2,
                total_s=total_s,
                analysis=Analysis(
                    limiter=gap,
                    roofline=roofline,
                    roofline_gap=tensor if roofline is None else None,
                ),
            )
            for name, total_s, roofline in (
                ("gemm", 3e-3, standing),
                ("copy", 1e-3, None),
                ("norm", 1e-3, replace(single, fraction=0.1)),
            )
        ),
    )
    run = runs.run((record,))
    (test,) = RunPage(run).tests
    assert test.panel is not None
    table, drawn = test.panel.kernels, test.panel.roofline
    assert table is not None
    assert drawn is not None
    document = read(run)

    assert [row.share.text for row in table.rows if row.share] == [
        "60 %",
        "20 %",
        "20 %",
    ]
    assert [row.values for row in table.rows] == [("3",), ("",), ("",)]
    assert "not known not collected" in document.text()
    assert [point.number for point in drawn.points] == ["1", "3"]
    assert [row.limits.standing for row in table.rows if row.limits] == [
        "500 GFLOP/s fp64 at 100 FLOP/B",
        "tensor cores computed",
        "5.00 GFLOP/s fp32 at 1 FLOP/B",
    ]
    assert [flat.label for flat in drawn.flats] == [
        "fp32 2.10 TFLOP/s",
        "fp64 1.00 TFLOP/s",
    ]
    assert drawn.points[0].radius > drawn.points[1].radius
    assert document.open == []
    assert not document.of("img")


def test_a_row_shows_the_time_where_a_limit_was_kept_on_something_else() -> None:
    """One launch, as it should be, is not what a reader looks for."""
    launches = runs.value_of("launches.count", 1, "count")
    record = runs.record("test_a", runs.time_of(187e-6), launches)
    values = {}
    for outcome, reason in (
        (Outcome.PASSED, Reason.WITHIN_LIMIT),
        (Outcome.FAILED, Reason.BEYOND_LIMIT),
    ):
        verdict = Verdict(
            key=runs.key("test_a"),
            metric="launches.count",
            outcome=outcome,
            reason=reason,
            threshold=1.0,
            estimate=launches,
        )
        (test,) = RunPage(runs.run((record,), (verdict,))).tests
        values[outcome] = test.value

    assert values[Outcome.PASSED].startswith("187")
    assert values[Outcome.FAILED] == "1"


def test_instances_of_one_template_are_rows_of_their_own() -> None:
    """Counters by base name are of both: neither row has them, nor the table a column."""
    gap = CounterGap(reason="not collected")
    record = replace(
        runs.record("test_a", runs.value_of("waves", 3, "count", kernel="Kernel")),
        kind=Kind.CAPTURE,
        analyses=tuple(
            KernelAnalysis(
                kernel="Kernel",
                demangled=f"Kernel<{gemm}>",
                launches_count=count,
                total_s=total_s,
                analysis=Analysis(limiter=gap),
            )
            for gemm, count, total_s in (("B2b", 1, 3e-3), ("Gemm", 2, 1e-3))
        ),
    )
    (test,) = RunPage(runs.run((record,))).tests
    assert test.panel is not None
    assert test.panel.kernels is not None

    assert [
        (row.name, row.share.text if row.share else "", row.values)
        for row in test.panel.kernels.rows
    ] == [("Kernel<B2b>", "75 %", ()), ("Kernel<Gemm>", "25 %", ())]
    assert test.panel.kernels.metrics == ()


def test_a_kernel_is_named_by_what_tells_it_from_the_others() -> None:
    """Its parameters stand where nothing else tells two apart; its title has all of it."""
    names = ("void a::scale<float>(float*)", "void norm(float*)", "void norm(double*)")
    (test,) = RunPage(runs.run((with_kernels(*((n, 1, 1e-3) for n in names)),))).tests
    assert test.panel is not None
    assert test.panel.kernels is not None
    rows = test.panel.kernels.rows

    assert [row.name for row in rows] == ["a::scale<float>", *names[1:]]
    assert [row.full_name for row in rows] == [names[0], "", ""]


def test_sizes_of_a_grid_are_no_decimal() -> None:
    """2,66 is a number where a comma is the point of a decimal."""
    record = with_kernels(("scale", 2, 1e-3))
    assert record.activity is not None
    (use,) = record.activity.kernels
    use = replace(use, shape=replace(use.shape, grid=(2, 66, 1)))
    record = replace(record, activity=replace(record.activity, kernels=(use,)))
    (test,) = RunPage(runs.run((record,))).tests
    assert test.panel is not None
    assert test.panel.kernels is not None
    (row,) = test.panel.kernels.rows

    assert (row.grid, row.block) == ("2x66", "128")


def with_kernels(*kernels: tuple[str, int, float]) -> Record:
    """Return a record of kernels, each with its grid and time [s]."""
    return replace(
        runs.record("test_a", runs.time_of(1e-3)),
        activity=ActivitySummary(
            kernels_count=len(kernels),
            kernels=tuple(
                KernelUse(
                    shape=KernelShape(
                        name=name,
                        grid=(grid, 1, 1),
                        block=(128, 1, 1),
                        registers_count=32,
                        shared_bytes=0,
                        dynamic_shared_bytes=0,
                        stack_bytes=0,
                    ),
                    demangled=None,
                    count=1,
                    total_s=total_s,
                )
                for name, grid, total_s in kernels
            ),
        ),
    )


NOW = with_kernels(("gemm", 9, 3e-3), ("axpy", 1, 1e-3))
COMPARED = [
    (1, "gemm", "2.00 ms", "+50.0 %"),
    (2, "axpy", "", "new"),
    (0, "norm", "100 us", "gone"),
]


def kernel_table(run: Run, *older: Run) -> KernelTable:
    """Return the kernels of a run's only test."""
    (test,) = RunPage(run, older).tests
    assert test.panel is not None
    assert test.panel.kernels is not None
    return test.panel.kernels


def test_kernels_of_an_earlier_run_stand_beside_those_of_now() -> None:
    """By name, whatever else moved; what is new or gone says so."""
    then = with_kernels(("gemm", 8, 2e-3), ("norm", 8, 1e-4))
    table = kernel_table(runs.run((NOW,)), runs.run((then,), session_id="s0"))

    assert [(r.number, r.name, r.before, r.change) for r in table.rows] == COMPARED
    assert (table.before, table.moved) == (
        "the newest of the earlier runs",
        "together 4.00 ms, was 2.10 ms: +90.5 %; 1 new, 1 gone",
    )
    differences = [row.difference for row in table.rows]
    assert differences == ["+1.00 ms", "+1.00 ms", "-100 us"]
    assert [row.moved for row in table.rows] == [
        "grid 8 -> 9",
        "",
        "",
    ]


def test_a_kernel_stands_beside_the_one_that_it_replaces() -> None:
    """It is not new, and the other one is not gone."""
    then = with_kernels(("gemm_128x64", 9, 2e-3), ("axpy", 1, 1e-3))
    now = with_kernels(("gemm_64x64", 18, 3e-3), ("axpy", 1, 1e-3))
    table = kernel_table(runs.run((now,)), runs.run((then,), session_id="s0"))

    assert [(r.name, r.change, r.moved) for r in table.rows] == [
        ("gemm_64x64", "+50.0 %", "replaces gemm_128x64, grid 9 -> 18"),
        ("axpy", "0.0 %", ""),
    ]


def test_kernels_of_a_store_stand_beside_those_of_now() -> None:
    """The newest stored session with names; its day and commit say which it is."""
    then = with_kernels(("gemm", 8, 2e-3), ("norm", 8, 1e-4))
    named = stored_record([then], stored("test_a", 2, 1e-3).session)
    sessions = (stored("test_a", 1, 1e-3), named, stored("test_a", 3, 1e-3))
    run = replace(runs.run((NOW,)), stored=sessions)
    table = kernel_table(run)

    assert [(r.number, r.name, r.before, r.change) for r in table.rows] == COMPARED
    assert table.before == "the stored session of 2026-09-23 14:13 UTC 2abcdef"
    assert "1 new, 1 gone" in read(run).text()


def test_what_fills_a_call_is_drawn_where_the_device_idles() -> None:
    """Kernels, copies, waits and launches make up the call; a busy one needs no figure."""
    idle = ActivitySummary(span_s=1e-3, busy_s=6e-4, copying_s=1e-4, waited_s=3e-4)
    record = replace(runs.record("test_a", runs.time_of(1e-3)), activity=idle)
    run = runs.run((record,))
    (test,) = RunPage(run).tests
    assert test.panel is not None
    assert test.panel.activity is not None

    assert [(s.name, s.text) for s in test.panel.activity.shares] == [
        ("kernels", "50 %"),
        ("copies alone", "10 %"),
        ("gaps in which the host waited", "30 %"),
        ("gaps between launches", "10 %"),
    ]
    assert "Where a call of 1.00\u202fms goes" in read(run).text()
    for change in ({"busy_s": 1e-3, "copying_s": 0.0}, {"span_s": None}):
        other = replace(record, activity=replace(idle, **change))
        (test,) = RunPage(runs.run((other,))).tests
        assert test.panel is not None
        assert test.panel.activity is None


def on_streams(*lines: Track, pieces_count: int | None = None) -> Record:
    """Return a record of two kernels that ran on streams."""
    record = with_kernels(("gemm", 8, 9e-6), ("copy<4>", 8, 1e-6))
    assert record.activity is not None
    activity = replace(record.activity, tracks=lines, pieces_count=pieces_count)
    return replace(record, activity=activity)


def on_stream(stream: int, *spans: tuple[int, int, int], device: int = 0) -> Track:
    """Return kernels of one stream: from and to so many ns, and which."""
    starts, ends, kernels = zip(*spans, strict=True)
    return Track(
        kind="kernel",
        device=device,
        stream=stream,
        starts_ns=starts,
        ends_ns=ends,
        kernels=kernels,
    )


def test_what_ran_on_each_stream_is_drawn() -> None:
    """A lane a stream; kernels have the numbers of their table; what is cut is told."""
    copies = Track(
        kind="copy", device=None, stream=None, starts_ns=(0,), ends_ns=(2_000,)
    )
    first = on_stream(7, (0, 9_000, 0), (9_990, 10_000, -1))
    record = on_streams(first, on_stream(9, (9_000, 9_900, 1)), copies)
    document = read(runs.run((record,)))
    drawn = tracks(record)
    assert drawn is not None

    assert "What ran on the device in 10.0\u202fµs" in document.text()
    assert [lane.name for lane in drawn.lanes] == ["stream 7", "stream 9", "copies"]
    assert [
        (p.number, p.x, p.width, p.is_labelled, p.text)
        for lane in drawn.lanes[:2]
        for p in lane.pieces
    ] == [
        ("1", "0%", "90%", True, "gemm: 9.00 us, from 0 s on"),
        ("", "99.9%", "0.1%", False, "kernel: 10.0 ns, from 9.99 us on"),
        ("2", "90%", "9%", True, "copy<4>: 900 ns, from 9.00 us on"),
    ]
    cut = tracks(on_streams(first, copies, pieces_count=5_000))
    assert cut is not None
    assert cut.count == "the first 3 of 5,000 pieces of work"


@pytest.mark.parametrize(("count", "drawn_count"), [(200, 200), (201, 20)])
def test_a_large_page_draws_few_streams(count: int, drawn_count: int) -> None:
    """The lanes of one test are 25 kB; those of the first rows, the worst, are drawn."""
    record = on_streams(on_stream(7, (0, 9, 0), (9, 12, 1)))
    records = tuple(
        replace(record, key=replace(record.key, test_id=f"test_{number}"))
        for number in range(count)
    )
    panels = [test.panel for test in RunPage(runs.run(records)).tests]

    assert sum(p is not None and p.tracks is not None for p in panels) == drawn_count
    assert panels[0] is not None
    assert panels[0].tracks is not None


def test_streams_of_several_gpus_are_told_apart() -> None:
    """Each GPU counts its streams from the same number on."""
    drawn = tracks(
        on_streams(on_stream(7, (0, 9, 0)), on_stream(7, (0, 9, 0), device=1))
    )
    assert drawn is not None

    assert [lane.name for lane in drawn.lanes] == ["GPU 0, stream 7", "GPU 1, stream 7"]


def test_one_piece_of_work_needs_no_lane() -> None:
    """Nor do files of earlier versions have any, nor pieces that took no time."""
    assert tracks(on_streams(on_stream(7, (0, 9, 0)))) is None
    assert tracks(on_streams(on_stream(7, (0, 0, 0), (0, 0, 0)))) is None
    assert tracks(on_streams()) is None
    assert tracks(runs.record("test_a")) is None


def test_equal_kernels_are_said_to_be_equal() -> None:
    """Where no kernel came or went, the table says so."""
    session = stored("test_a", 2, 1e-3).session
    run = replace(runs.run((NOW,)), stored=(stored_record([NOW], session),))

    assert kernel_table(run).moved.endswith(": 0.0 %; the same kernels")


def test_blocks_against_a_revision_are_drawn() -> None:
    """Each block, what the same code differs by, and both sides; nothing is accepted."""
    verdict = replace(
        runs.REGRESSED,
        baseline=None,
        confirmations=(),
        against=AgainstEvidence(
            block_count=4,
            old_values=(1.0e-4, 1.1e-4),
            new_values=(1.2e-4, 1.3e-4),
            effects=(0.07, 0.08, 0.09, 0.075),
            null_fraction=0.02,
        ),
    )
    run = runs.run((runs.record("test_gemm[4096]", runs.time_of(1.8e-4)),), (verdict,))
    (test,) = RunPage(run).tests
    assert test.panel is not None
    (compared,) = test.panel.against

    assert len(compared.blocks.points) == 4
    assert compared.blocks.null is not None
    assert compared.sides is not None
    assert [row.label for row in compared.sides.rows] == [
        "the revision",
        "the working tree",
    ]
    assert [name for name, _ in test.panel.commands] == ["reproduce"]
    assert test.change.startswith("+7.9")


def test_a_row_shows_what_its_verdict_is_about() -> None:
    """Regressed against a revision: not the value and change of the store beside it."""
    of_store = replace(
        runs.REGRESSED,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.NOT_CONFIRMED,
        change=runs.change(0.02, 1.7e-4),
    )
    of_revision = replace(
        runs.REGRESSED,
        baseline=None,
        confirmations=(),
        against=AgainstEvidence(block_count=4),
        change=runs.change(0.5, 2.0e-4),
    )
    record = runs.record("test_gemm[4096]", runs.time_of(1.8e-4))
    (test,) = RunPage(runs.run((record,), (of_store, of_revision))).tests
    assert test.panel is not None

    assert (test.value, test.change) == ("200 us", "+50.0 %")
    assert test.effect == pytest.approx(0.5)
    assert [one.outcome for one in test.panel.judgements] == [
        "regressed",
        "inconclusive",
    ]


def test_a_column_that_is_empty_is_not_there() -> None:
    """Neither its head nor its place; the legend leaves it out, too."""
    page = RunPage(runs.run((runs.record("test_a", runs.time_of(1e-3)),)))

    assert page.absent == ("no-f", "no-d", "no-r", "no-t")
    assert RunPage(runs.run((runs.record("test_a"),))).absent[0] == "no-x"
    assert RunPage(runs.gpu_run()).absent == ("no-t",)
    assert "right is worse" not in read(page.run).text()


def test_the_column_of_grades_is_named_for_what_it_holds() -> None:
    """A loop has a grade and no roof; where a test has a roof, both stand there."""
    loop = StepSummary(
        unit="token",
        units=8192.0,
        step_count=13,
        counted_count=10,
        warmup_count=3,
        void_count=0,
        step_s=0.15,
        period_s=0.16,
        wait_s=0.008,
        data_was_recorded=True,
        grade="B",
    )
    graded = replace(runs.record("test_train"), steps=loop)
    heads = read(runs.run((graded,))).text("span"), read(runs.gpu_run()).text("span")

    assert ["grade" in text.split() for text in heads] == [True, False]
    assert ["roofline" in text.split() for text in heads] == [False, True]


def test_a_time_line_is_drawn_where_sensors_were_sampled() -> None:
    """A band a sensor with what it ranged over, and the classes as stretches."""
    line = TimeLine(
        gpu_index=0,
        gpu_uuid="",
        since_s=(0.0, 0.5, 1.0),
        readings={
            "sm_clock_hz": (1.98e9, 1.98e9, 1.74e9),
            "power_watts": (300.0, None, None),
        },
        classes=("idle", "idle", "compute-heavy"),
    )
    record = replace(runs.record("test_a", runs.time_of(1e-3)), time_lines=(line,))
    (test,) = RunPage(runs.run((record,))).tests
    assert test.panel is not None
    (figure,) = test.panel.time_lines

    assert [(band.name, band.range) for band in figure.bands] == [
        ("SM clock", "1.74 … 1.98 GHz")
    ]
    assert [(x, width, name) for x, width, name, _ in figure.classes] == [
        ("0%", "50%", "idle"),
        ("50%", "50%", "compute-heavy"),
    ]
    assert [text for _, text, _ in figure.ticks] == [
        *("0", "200 ms", "400 ms", "600 ms", "800 ms", "1 s")
    ]
    assert read(runs.run((record,))).of("polyline")
    assert figure.clock == "whether a limit held the clock down is not recorded"


def test_a_time_line_shows_when_the_clock_was_held_down() -> None:
    """Each reason has a lane that says how long; the sensors are shaded meanwhile."""
    cap, hot = ClockReason.SOFTWARE_POWER_CAP, ClockReason.HARDWARE_THERMAL
    line = TimeLine(
        gpu_index=0,
        gpu_uuid="",
        since_s=(0.5, 2.0),
        readings={"sm_clock_hz": (1.98e9, 1.74e9)},
        throttled_s={cap: 0.8, hot: 0.5},
        throttled_spans_s={cap: ((0.0, 0.2), (1.0, 1.6)), hot: ((1.5, 2.0),)},
    )
    record = replace(runs.record("test_a", runs.time_of(1e-3)), time_lines=(line,))
    (test,) = RunPage(runs.run((record,))).tests
    assert test.panel is not None
    (figure,) = test.panel.time_lines
    first, second = figure.throttled

    assert (first.name, first.share) == ("software power cap", "800 ms, 40 %")
    assert [span[:2] for span in first.spans] == [("0%", "10%"), ("50%", "30%")]
    assert second.text == (
        "hardware thermal slowdown held the clock down for 500 ms, 25 %: 1.50 … 2.00 s"
    )
    assert figure.shades == (("0.0", "100.0"), ("500.0", "500.0"))
    text = read(runs.run((record,))).text()
    assert "shaded: the clock was held down" in text
    assert "whether a limit" not in text


def test_a_free_clock_is_told() -> None:
    """A time line without a band says that nothing held the clock down."""
    line = TimeLine(gpu_index=0, gpu_uuid="", since_s=(0.0, 1.0), throttled_s={})
    record = replace(runs.record("test_a", runs.time_of(1e-3)), time_lines=(line,))

    assert "nothing held the clock down" in read(runs.run((record,))).text()


def test_right_is_worse_for_every_metric() -> None:
    """A throughput that fell stands where a time that grew by the same factor does."""
    moved = runs.change(0.25, 1.0)
    slower = runs.changed("test_a", Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT, moved)
    fewer = replace(
        slower,
        key=runs.key("test_b"),
        metric="throughput",
        change=replace(moved, effect=-0.2, low=-0.21, high=-0.19),
    )
    tests = RunPage(runs.run((), (slower, fewer))).tests
    effects = [test.effect for test in tests]
    places = {test.strip.at for test in tests if test.strip is not None}

    assert effects == [pytest.approx(0.25)] * 2
    assert len(places) == 1


def test_what_most_tests_share_is_told_once() -> None:
    """A fact of all tests stands in the conditions, not in each panel."""
    records = [
        replace(
            runs.record(f"test_{number}", runs.time_of(1e-3)),
            soft_facts={"torch": "2.11", "own": str(number)},
        )
        for number in range(6)
    ]
    page = RunPage(runs.run(tuple(records)))
    panels = [test.panel for test in page.tests if test.panel is not None]

    assert ("torch", "2.11") in page.conditions
    assert [dict(panel.facts) for panel in panels] == [
        {"own": str(number)} for number in range(6)
    ]


def test_a_large_page_has_panels_for_what_matters() -> None:
    """The first of so many rows, and every test that fails; the others are a row."""
    page = RunPage(runs.gpu_run(), most_panels=1)

    assert [test.panel is not None for test in page.tests] == [True, True, *[False] * 4]
    assert page.panels_count == 2


def test_a_row_without_a_panel_is_not_opened() -> None:
    """The page says which tests have one."""
    records = [runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(1001)]
    document = read(runs.run(tuple(records)))

    assert len(document.of("details", "t")) == 1000
    assert len(document.of("div", "t")) == 1
    assert "The first 1000 rows have a panel" in document.text("p")


def test_a_run_that_was_interrupted_says_so() -> None:
    """Its headline is not that nothing failed."""
    run = runs.run(())
    complete = replace(run.header.completeness, interrupted="Ctrl-C")
    run = replace(run, header=replace(run.header, completeness=complete))

    assert read(run).text("h1") == "Incomplete: Ctrl-C; it holds no test."
    assert read(runs.run(())).text("h1") == "Nothing was judged."


def test_without_jinja2_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that has it is named."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ReportError, match="needs Jinja2") as caught:
        html_bytes(runs.gpu_run())

    assert caught.value.remedy == "pip install 'pytest-gpuperf[html]'"


@pytest.mark.parametrize(
    ("low", "high"),
    [(1e-6, 1.001e-6), (1e-6, 1.2e-6), (1e-6, 5e-6), (1e-9, 10.0), (2.0, 2.0)],
)
def test_an_axis_has_some_round_ticks(low: float, high: float) -> None:
    """At least two where numbers differ, at most as many as were allowed, in order."""
    axis = LogAxis(low, high, most=5)

    assert (2 if high > low else 0) <= len(axis.ticks) <= 5
    assert list(axis.ticks) == sorted(axis.ticks)
    assert 0 <= axis.at(low) < axis.at(high * 1.0001) <= 1


def test_the_axis_of_changes_is_symmetric() -> None:
    """Twice as slow and twice as fast are equally far from no change; ends are cut."""
    axis = ChangeAxis([1.0, 0.02])

    assert axis.at(0) == 0.5
    assert axis.at(1.0) - 0.5 == pytest.approx(0.5 - axis.at(-0.5))
    assert axis.at(1e9) == 1
    assert axis.at(-1.0) == 0
    assert axis.is_beyond(50.0)
    assert not axis.is_beyond(1.0)


def test_a_closed_row_says_what_is_not_confirmed_and_what_was_taken_out() -> None:
    """It is all that many readers see of a test; the mark is explained below the rows."""
    moved = replace(runs.change(-0.06, 1e-3), core_shift=0.1)
    verdict = runs.changed("test_x", Outcome.IMPROVED, Reason.NOT_CONFIRMED, moved)
    page = html_bytes(runs.run((), (verdict,))).decode()
    closed = page[page.index('<summary class="row">') :].partition("</summary>")[0]
    legend = page.partition("How to read it")[2]

    assert "<span>improved (not confirmed)</span>" in closed
    assert "−6.0\u202f%*</span>" in closed
    assert "* corrected for CPU speed" in legend
    assert "* corrected" not in html_bytes(runs.gpu_run()).decode()


def test_a_binary_unit_stays_beside_its_number() -> None:
    """A line that begins with MiB is read twice."""
    record = runs.record("test_a", runs.value_of("pool", 8, "MiB"))

    assert "8\u202fMiB" in read(runs.run((record,))).text()
