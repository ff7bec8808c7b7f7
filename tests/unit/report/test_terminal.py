"""report.terminal: what a run says, screen by screen."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from textwrap import dedent

import pytest

from fakes import runs
from pytest_gpuperf.config import ConfirmBy
from pytest_gpuperf.judge.tally import Complaint, tally
from pytest_gpuperf.model.change import Against, AgainstEvidence, Progress
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Note,
    Record,
    RecordKey,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.run import (
    HeaderNote,
    MachineShift,
    MissedAssert,
    Run,
    TestPlace,
)
from pytest_gpuperf.model.sample import Series, Source
from pytest_gpuperf.model.verdict import Limit, Outcome, Reason, Verdict
from pytest_gpuperf.report import notices, summary, terminal
from pytest_gpuperf.report.explanation import fitted, longrepr_lines
from pytest_gpuperf.report.html.page import html_bytes
from pytest_gpuperf.report.lines import Line, Style
from pytest_gpuperf.report.rows import rows
from pytest_gpuperf.report.runs import run_markdown
from pytest_gpuperf.report.summary import View, table_lines


def table(run: Run, *, width: int = 100, verbose: bool = False) -> Iterator[Line]:
    """The table of a run."""
    return table_lines(rows(run), width=width, verbose=verbose)


def screen(lines: object) -> str:
    """Return lines as one text."""
    return "\n".join(str(line) for line in lines)  # type: ignore[attr-defined]


def below_title(run: Run, **options: object) -> list[Line]:
    """Return the lines of a run below the title."""
    _, *lines = terminal.run_lines(run, **options)  # type: ignore[arg-type]
    return lines


def drawn(text: str) -> str:
    """Return a drawing in a test as the text that it stands for."""
    return dedent(text).strip("\n")


def new(name: str, reason: str = "") -> Verdict:
    """Return an undecided verdict."""
    outcome = Outcome.UNMEASURED if reason else Outcome.NEW
    return Verdict(
        key=runs.key(name),
        metric="time",
        outcome=outcome,
        reason=Reason.NOT_MEASURED if reason else Reason.NOTHING_STORED,
        detail=(reason,) if reason else (),
    )


def test_a_wide_terminal_shows_everything() -> None:
    """The whole screen: title, table, blocks with the gravest last, and the count."""
    expected = drawn("""
    gpuperf: NVIDIA H200, driver 580.159, events, host
        cupti: the package is not installed; pip install cupti-python
    test                                  time     ±       vs baseline  verdict       roofline   bound
    test_rmsnorm[8192]                    41.2 us  ±0.3 %  -1.2 %       unchanged     87 % dram  memory
    test_gemm[4096]                       183 us   ±0.4 %  +7.9 %       REGRESSED     61 % bf16  compute
    test_gather[64k]                      9.10 us  ±6 %    +3.0 %       inconclusive  n/a        -
    test_attention_ba…6-8192-causal-128]  1.50 ms  ±0.3 %  limit only   inconclusive  n/a        -
    test_registers                        -                limit only   FAILED        n/a        -
        registers 72, stack 0 B, theoretical occupancy 62.5 %
    test_counters                         -                -            unmeasured    n/a        -
    inconclusive test_attention_backward[bfloat16-8192-causal-128]: time 1.50 ms (1.48 … 1.52 ms), limit
        time <= 1.49 ms: the limit lies inside the interval of the value
        reproduce: pytest "tests/test_gemm.py::test_attention_backward[bfloat16-8192-causal-128]" --gpuperf-baseline=.gpuperf
    inconclusive test_gather[64k]: 9.10 us, was 8.83 us: +3.0 % (-3.0 … +9.0 %), limit 5 %, smallest
        detectable change 1.6 %: the baseline has too few sessions to estimate their spread
        remedy: store 2 more sessions with --gpuperf-update=new
        reproduce: pytest "tests/test_gemm.py::test_gather[64k]" --gpuperf-baseline=.gpuperf
    REGRESSED test_gemm[4096]: 183 us, was 170 us: +7.9 % (+7.1 … +8.7 %), limit 5 %, smallest
        detectable change 1.6 %
        registers 168 -> 232
        confirmed in 3 fresh processes (+7.7 … +8.1 %)
        baseline: 6 sessions, 2026-11-02 … 2026-11-20, commits 3f2a1c9 … 9be01d4; since then torch
            2.11.0 -> 2.11.1
        reproduce: pytest "tests/test_gemm.py::test_gemm[4096]" --gpuperf-baseline=.gpuperf
        accept:    pytest "tests/test_gemm.py::test_gemm[4096]" --gpuperf-baseline=.gpuperf --gpuperf-update=all
    FAILED test_registers: registers["rmsnorm"] 72, limit registers["rms*"] <= 64, missed by 12.5 %
        reproduce: pytest tests/test_gemm.py::test_registers --gpuperf-baseline=.gpuperf
    judged 3 of 7: 1 failed, 1 regressed, 1 unchanged; 2 inconclusive (1 straddles limit, 1 too few
        sessions), 1 unmeasured (counters: no permission), 1 without a result
    """)

    assert screen(terminal.run_lines(runs.gpu_run(), width=100)) == expected


def test_a_narrow_terminal_shortens_names_and_drops_what_can_be_guessed() -> None:
    """At 80 columns the table fits: names lose their middle, then `bound` goes."""
    expected = drawn("""
    test                       time     ±       vs baseline  verdict       roofline
    test_rmsnorm[8192]         41.2 us  ±0.3 %  -1.2 %       unchanged     87 % dram
    test_gemm[4096]            183 us   ±0.4 %  +7.9 %       REGRESSED     61 % bf16
    test_gather[64k]           9.10 us  ±6 %    +3.0 %       inconclusive  n/a
    test_attenti…-causal-128]  1.50 ms  ±0.3 %  limit only   inconclusive  n/a
    test_registers             -                limit only   FAILED        n/a
        registers 72, stack 0 B, theoretical occupancy 62.5 %
    test_counters              -                -            unmeasured    n/a
    """)

    assert screen(table(runs.gpu_run(), width=80)) == expected


def test_columns_that_say_nothing_are_not_there() -> None:
    """A run without times, baseline and work shows names, verdicts and resources."""
    measured = runs.record(
        "test_registers",
        runs.value_of("registers", 40, "count"),
        runs.value_of("stack_bytes", 0, "bytes"),
        runs.value_of("registers", 40, "count", kernel="rmsnorm_bf16"),
    )
    passed = replace(runs.FAILED, outcome=Outcome.PASSED, reason=Reason.WITHIN_LIMIT)
    expected = drawn("""
    test            verdict
    test_registers  passed
        stack 0 B, rmsnorm_bf16: registers 40
    judged 1 of 1: 1 passed
    """)

    assert screen(below_title(runs.run((measured,), (passed,)))) == expected


def test_the_name_of_a_kernel_stands_before_its_own_values_alone() -> None:
    """What is of the whole call comes first, of its best source alone."""
    measured = runs.record(
        "test_sum",
        replace(runs.value_of("time", 2e-3, "s"), source=Source.CUPTI),
        replace(runs.value_of("time.min", 1e-3, "s"), source=Source.CUPTI),
        replace(runs.value_of("time", 4e-3, "s"), source=Source.EVENTS),
        replace(runs.value_of("time.min", 3e-3, "s"), source=Source.EVENTS),
        runs.value_of("registers", 26, "count"),
        runs.value_of("registers", 26, "count", kernel="add_kernel"),
    )
    (row,) = rows(runs.run((measured,), ()))

    assert row.measured() == ("time.min 1.00 ms", "add_kernel: registers 26")


def test_a_change_of_something_else_than_time_is_named() -> None:
    """A cell that is not about time says what it is about; 0 has no percentage."""
    grown = replace(
        runs.REGRESSED,
        metric="stack_bytes",
        estimate=runs.value_of("stack_bytes", 48, "bytes"),
        change=replace(runs.change(0.1, 48), effect=None, reference=0, exact=True),
    )
    run = runs.run((runs.record("test_gemm[4096]", runs.time_of(1e-3)),), (grown,))
    _, row = table(run)

    assert "stack 0 B -> 48 B" in row.text


def test_a_number_of_its_own_stands_where_times_do() -> None:
    """A row named after a recorded number has it as its value, and no other line."""
    named = replace(runs.REGRESSED.key, name="tokens_per_second")
    rate = runs.value_of("tokens_per_second", 4200, "1/s")
    fell = replace(
        runs.REGRESSED,
        key=named,
        metric="tokens_per_second",
        estimate=rate,
        change=runs.change(-0.079, 4200),
    )
    measured = replace(runs.record("test_gemm[4096]", rate), key=named)
    timed = runs.record("test_sort", runs.time_of(1e-3))
    expected = drawn("""
    test                               value     ±       vs baseline  verdict
    test_gemm[4096] tokens_per_second  4200 1/s          -7.9 %       REGRESSED
    test_sort                          1.00 ms   ±0.3 %  -            -
    """)

    assert screen(table(runs.run((measured, timed), (fell,)))) == expected


def test_two_tests_of_one_name_keep_their_files() -> None:
    """What stands in the first column is the name of one test only."""
    run = runs.run(
        (runs.record("test_a", runs.time_of(1e-3)),),
        (
            replace(runs.REGRESSED, key=runs.key("test_a")),
            replace(runs.REGRESSED, key=runs.key("test_a", file="tests/other.py")),
        ),
    )
    texts = [line.text for line in table(run, width=120)]

    assert texts[1].startswith("tests/test_gemm.py::test_a ")
    assert texts[2].startswith("tests/other.py::test_a ")


def test_what_was_slower_in_the_suite_stands_below_its_row() -> None:
    """Without -v and in a table of many rows, though the test is unchanged."""
    moved = runs.change(0.0, 10.1e-3)
    told = runs.changed(
        "test_7",
        Outcome.UNCHANGED,
        Reason.WITHIN_NOISE,
        moved,
        confirmations=(0.0, 0.0),
        in_suite=runs.change(0.99, 20.1e-3),
    )
    quiet = [
        runs.changed(f"test_{n}", Outcome.UNCHANGED, Reason.WITHIN_NOISE, moved)
        for n in range(50)
        if n != 7
    ]
    names = [f"test_{n}" for n in range(50)]
    records = tuple(runs.record(name, runs.time_of(20.1e-3)) for name in names)
    shown = [line.text for line in table(runs.run(records, (told, *quiet)), width=120)]

    assert shown[1].split()[:3] == ["test_7", "10.1", "ms"]
    assert shown[2] == (
        "    20.1 ms in the suite (+99.0 %), 10.1 ms alone: another test may have left "
        "state behind, or the machine was busy"
    )
    assert shown[3:] == [
        "49 rows passed, unchanged or blind: show with -v",
    ]


def test_a_long_table_shows_what_matters() -> None:
    """Of many rows those that passed are counted, and shown with -v."""
    records = tuple(runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(1, 200))
    bad = replace(runs.REGRESSED, key=runs.key("test_7"))
    run = runs.run(records, (bad,))
    heads, row, hidden = table(run)

    assert row.text.startswith("test_7 ")
    assert hidden.text == "198 rows passed, unchanged or blind: show with -v"
    # the heads, 199 rows, and what the suite measured of the row that others judged
    assert len(list(table(run, verbose=True))) == 201
    assert heads.style is Style.FAINT


@pytest.mark.parametrize(
    ("processes", "shown", "below"),
    [
        (1, ["1.00", "ms", "±0.3", "%"], []),
        (5, ["2.50", "ms", "0.0", "%"], ["    time in the suite 1.00 ms"]),
    ],
)
def test_the_time_of_one_process_is_what_it_measured(
    processes: int, shown: list[str], below: list[str]
) -> None:
    """Its change has it without what its core did to it; others decide if there are."""
    moved = replace(runs.change(0.0, 2e-3), run_count=processes, core_shift=0.25)
    verdict = runs.changed("test_a", Outcome.UNCHANGED, Reason.WITHIN_NOISE, moved)
    verdict = replace(verdict, estimate=runs.time_of(1e-3))
    record = runs.record("test_a", runs.time_of(1e-3))
    _, row, *rest = table(runs.run((record,), (verdict,)), verbose=True)

    assert row.text.split()[1:5] == shown
    assert [line.text for line in rest] == below


def test_a_row_without_verdict_says_what_it_came_to() -> None:
    """An assert that did not hold is of its measurement; the others of its test say "-"."""
    names = ("test_missed", "test_broken", "test_void", "test_skipped", "test_held")
    records = [runs.record(name, runs.time_of(1e-3)) for name in names]
    ids = [record.key.test_id for record in records]
    records[2] = replace(
        records[2], void=Void(code=VoidCode.CLOCK_DRIFT, reason="it drifted")
    )
    named = replace(records[0], key=replace(records[0].key, name="a"))
    run = replace(
        runs.run((*records, named)),
        missed=(MissedAssert(key=named.key, comparison="time 1 ms <= 1 us"),),
        broken=(ids[1],),
        skipped=(ids[3],),
        asserted=(ids[2], ids[4]),
    )
    labels = {str(row.key).partition("::")[2]: row.label for row in rows(run)}
    loud = [row.missed for row in rows(run) if row.is_loud]

    assert labels == {
        "test_missed": "",
        "test_missed a": "FAILED",
        "test_broken": "ERROR",
        "test_void": "void",
        "test_skipped": "skipped",
        "test_held": "passed",
    }
    assert loud == ["", "its own assert failed: time 1 ms <= 1 us"]


def test_a_verdict_speaks_before_an_assert_that_held() -> None:
    """A test may assert one thing and regress in another."""
    record = runs.record("test_gemm[4096]", runs.time_of(183e-6))
    judged = runs.run((record,), (runs.REGRESSED,))
    (row,) = rows(replace(judged, asserted=(record.key.test_id,)))

    assert (row.label, row.ending) == ("REGRESSED", None)


def test_an_empty_run_has_no_table() -> None:
    """Nothing measured is nothing shown, and the count says so."""
    assert list(table(runs.run())) == []
    assert summary.judged_line(runs.run()).text == "judged 0 of 0"


def test_many_changes_that_are_not_repeated_are_counted() -> None:
    """Eight lines, the number of the others, and a block each with -v or in a strict run."""
    assert runs.REGRESSED.change is not None
    change = replace(runs.REGRESSED.change, effect=0.1, detectable_effect=0.4)
    verdicts = tuple(
        replace(
            runs.REGRESSED,
            key=runs.key(f"test_{n}"),
            outcome=Outcome.INCONCLUSIVE,
            reason=Reason.NOT_SIGNIFICANT,
            change=change,
            confirmations=(0.01, 0.12),
            remedy=f"remedy {n}",
        )
        for n in range(1, 11)
    )
    run = runs.run((), verdicts)
    header = replace(run.header, options={"gpuperf_strict": "True"})

    def told(run: Run, *, verbose: bool = False) -> list[str]:
        shown = screen(below_title(run, width=100, verbose=verbose)).split("\n")
        return shown[shown.index("test_10  +10.0 %      inconclusive") + 1 :]

    assert told(run)[:9] == [
        *(
            f"inconclusive test_{n}: +1.0 … +12.0 % in 2 fresh processes, "
            "detectable: 40.0 % (-v: more)"
            for n in range(1, 9)
        ),
        "2 more like these",
    ]
    for shown in (told(run, verbose=True), told(replace(run, header=header))):
        assert sum(text.startswith("inconclusive test_") for text in shown) == 10
        assert not any("-v: more" in text for text in shown)


def test_many_tests_of_one_reason_share_a_block() -> None:
    """A first run against a short baseline is one block, not one hundred."""
    verdicts = tuple(
        replace(
            runs.REGRESSED,
            key=runs.key(f"test_{n}"),
            outcome=Outcome.INCONCLUSIVE,
            reason=Reason.TOO_FEW_SESSIONS,
            remedy="store 2 more sessions",
        )
        for n in range(1, 13)
    )
    expected = drawn("""
    inconclusive 12 measurements: the baseline has too few sessions to estimate their spread
        registers 168 -> 232
        remedy: store 2 more sessions
        test_1: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_2: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_3: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_4: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_5: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_6: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_7: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        test_8: 183 us, was 170 us: +7.9 %, smallest detectable change 1.6 %
        4 more
    """)
    run = runs.run(verdicts=verdicts)

    assert f"\n{expected}\n" in screen(terminal.run_lines(run, width=100))


@pytest.mark.parametrize(("spread", "noisy"), [(0.32, True), (0.05, False)])
def test_a_machine_that_is_too_noisy_is_told_once(
    spread: float, *, noisy: bool
) -> None:
    """By its usual spread, above the last line, whatever the verdicts are."""
    assert runs.REGRESSED.change is not None
    verdicts = tuple(
        replace(
            runs.REGRESSED,
            key=runs.key(f"test_{n}"),
            change=replace(runs.REGRESSED.change, session_spread=spread),
        )
        for n in range(3)
    )
    text = screen(terminal.run_lines(runs.run(verdicts=verdicts)))

    assert text.count("sessions of this machine differ by 32.0 %, too much") == noisy


def test_failures_never_share_a_block() -> None:
    """Each regression is explained, however many there are."""
    verdicts = tuple(
        replace(runs.REGRESSED, key=runs.key(f"test_{n}")) for n in range(9)
    )
    text = screen(terminal.run_lines(runs.run(verdicts=verdicts)))

    assert text.count("REGRESSED test_") == 9
    assert text.count("accept:") == 9


def test_files_that_are_compared_have_no_commands() -> None:
    """A command belongs to the machine that measured."""
    text = screen(terminal.run_lines(runs.gpu_run(), commands=False))

    assert "reproduce:" not in text
    assert "accept:" not in text


@pytest.mark.parametrize(
    ("why", "title"),
    [
        (
            "CPU only: no driver; times are the host's",
            "gpuperf: host, Intel Xeon Platinum 8480+, python 3.12, CPU only",
        ),
        (
            "CPU only: NVML does not start: NVML Shared Library Not Found; times are",
            (
                "gpuperf: host, Intel Xeon Platinum 8480+, python 3.12, CPU only (NVML "
                "does not start)"
            ),
        ),
        ("", "gpuperf: host, Intel Xeon Platinum 8480+, python 3.12"),
    ],
)
def test_the_title_says_on_what_was_measured(why: str, title: str) -> None:
    """Without a GPU the title names the processor, and an error of the driver."""
    notes = (runs.no_gpu(why),) if why else ()

    assert terminal.title(runs.run(notes=notes)) == title


def test_a_collector_that_would_see_the_gpu_better_is_told() -> None:
    """Not what nobody asked for, and without a GPU none of them."""
    unasked = HeaderNote(about="events", text="not now", code=GapCode.NOT_ASKED)
    cache = HeaderNote(about="ncu-cache", text="ncu's cache: it is full")
    other = HeaderNote(about="binary", text="no tool", code=GapCode.NOT_INSTALLED)
    header = runs.run(notes=(runs.NO_CUPTI, unasked, cache, other)).header

    def told(device: Device | None) -> list[str]:
        _, *lines = terminal.header_lines(header, device=device)
        return [line.text.strip() for line in lines]

    assert told(runs.H200) == [runs.NO_CUPTI.text, cache.text]
    assert told(None) == [cache.text]


def test_collectors_that_were_not_taken_are_told_with_v() -> None:
    """One line each, and only where somebody asked."""
    header = runs.gpu_run().header
    _, told = terminal.header_lines(header, verbose=True)

    assert len(list(terminal.header_lines(header))) == 1
    assert told == Line(
        "    cupti: the package is not installed; pip install cupti-python",
        Style.FAINT,
    )


def test_notes_and_void_stand_below_their_row() -> None:
    """What a reader must know of a value is beside it; notes only with -v."""
    measured = replace(
        runs.record("test_a", runs.time_of(1e-3)),
        void=Void(code=VoidCode.CLOCK_DRIFT, reason="the clock drifted by 4 %"),
        notes=(Note(code="trend", text="the samples get slower"),),
    )
    run = runs.run((measured,))
    _, row, void = table(run)
    *_, note = table(run, verbose=True)

    assert row.text.endswith("void")
    assert void == Line("    void: the clock drifted by 4 %", Style.DOUBT)
    assert note == Line("    note: the samples get slower", Style.FAINT)


def test_a_note_that_puts_the_value_in_doubt_stands_there_without_v() -> None:
    """Whoever reads the number must know that it may be of another thing; once."""
    doubtful = replace(
        runs.record("test_a", runs.time_of(1e-3)),
        notes=(
            Note(code="used-up", doubt=True, text="it may have been \x1b used up"),
            Note(code="trend", text="the samples get slower"),
        ),
    )
    others = [runs.record(f"test_{n}", runs.time_of(1e-3)) for n in range(50)]
    told = Line("    it may have been \\x1b used up (used-up)", Style.DOUBT)
    short = list(table(runs.run((doubtful,))))
    long = list(table(runs.run((*others, doubtful))))
    verbose = list(table(runs.run((doubtful,)), verbose=True))

    assert short[2:] == [told]
    assert told in long
    assert len(long) == 4
    assert verbose.count(told) == 1
    assert verbose[-1] == Line("    note: the samples get slower", Style.FAINT)


@pytest.mark.parametrize(
    ("verdicts", "expected", "text", "style"),
    [
        ((runs.REGRESSED,), 1, "judged 1 of 1: 1 regressed", Style.BAD),
        ((), 1, "judged 0 of 1: 1 without a measurement", Style.DOUBT),
        ((new("a"),), 2, "judged 0 of 2: 1 new, 1 without a measurement", Style.DOUBT),
        (
            (new("a"), new("b", "no GPU")),
            2,
            "judged 0 of 2: 1 unmeasured (no GPU), 1 new",
            Style.BAD,
        ),
        (
            (new("a", "no GPU"), new("b", "no GPU")),
            2,
            "judged 0 of 2: 2 unmeasured (no GPU)",
            Style.BAD,
        ),
        (
            tuple(new(str(n), f"reason {min(n, 3)}") for n in range(6)),
            6,
            "judged 0 of 6: 6 unmeasured (3 reason 3, 1 reason 0, 2 others)",
            Style.BAD,
        ),
        (
            tuple(new(str(n), f"reason {n}") for n in range(3)),
            3,
            "judged 0 of 3: 3 unmeasured (1 reason 0, 1 reason 1, 1 other)",
            Style.BAD,
        ),
        (
            (replace(runs.REGRESSED, outcome=Outcome.IMPROVED), new("a")),
            2,
            "judged 1 of 2: 1 improved; 1 new",
            Style.DOUBT,
        ),
        (
            (replace(runs.REGRESSED, outcome=Outcome.UNCHANGED),),
            1,
            "judged 1 of 1: 1 unchanged",
            Style.GOOD,
        ),
    ],
)
def test_the_last_line_says_how_much_was_judged(
    verdicts: tuple[Verdict, ...], expected: int, text: str, style: Style
) -> None:
    """A gate is never silently off: what was not judged is counted with its reason."""
    line = summary.judged_line(runs.run(verdicts=verdicts, expected=expected))

    assert line == Line(text, style)


def test_tests_without_a_limit_are_counted_as_not_judged() -> None:
    """A test that nothing could fail is not called passed."""
    run = runs.run((runs.record("test_a", runs.time_of(1e-3)),))

    assert summary.judged_line(run).text == (
        "judged 0 of 1: 1 without a limit or a baseline"
    )

    options = {"gpuperf_baseline": ".gpuperf"}
    against_stored = replace(run, header=replace(run.header, options=options))

    assert summary.judged_line(against_stored).text == (
        "judged 0 of 1: 1 without a limit"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"gpuperf_max_regression": "off"},
            "without a limit (--gpuperf-max-regression=off)",
        ),
        ({"gpuperf_disable": "true"}, "disabled"),
    ],
)
def test_what_was_asked_for_is_why_nothing_was_judged(
    options: dict[str, str], why: str
) -> None:
    """A switch of the reader's own is named, not a baseline that may be there."""
    run = runs.run((runs.record("test_a", runs.time_of(1e-3)),), options=options)

    assert summary.judged_line(run).text == f"judged 0 of 1: 1 {why}"


def test_tests_that_were_disabled_are_counted_once() -> None:
    """With or without a verdict that says so, in one spelling."""
    verdicts = (new("test_b", "measuring is switched off"),)
    measured = (runs.record("test_a", runs.time_of(1e-3)),)
    run = runs.run(measured, verdicts, expected=2, options={"gpuperf_disable": "true"})

    assert summary.judged_line(run).text == "judged 0 of 2: 2 disabled"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_title_fits_between_its_rules(width: int) -> None:
    """pytest writes a rule on both sides, which need four characters."""
    why = "CPU only: a driver that is there and does not answer; times are the host's"
    title = terminal.title(runs.run(notes=(runs.no_gpu(why),)), width=width)

    assert len(title) <= width - 4
    assert title.startswith("gpuperf: host, ")


def test_a_title_that_is_too_long_leaves_out_what_reads_files() -> None:
    """An H200 with all collectors: the GPU, its driver and who times stay whole."""
    collectors = ("cupti", "events", "host", "ncu", "nvml", "binary", "ncu-report")
    run = runs.run((runs.record("test_a", device=runs.H200),), collectors=collectors)
    short, whole = (terminal.title(run, width=width) for width in (80, 120))

    assert (
        short == "gpuperf: NVIDIA H200, driver 580.159, cupti, events, host, ncu, nvml"
    )
    assert whole == f"{short}, binary, ncu-report"


def test_what_cannot_be_compared_names_the_facts() -> None:
    """A reader sees what differs without looking for it."""
    verdict = Verdict(
        key=runs.key("test_a"),
        metric="time",
        outcome=Outcome.INCOMPARABLE,
        reason=Reason.FINGERPRINT_DIFFERS,
        detail=("core_count: 8 -> 16",),
        remedy="store sessions of this machine",
    )
    alike = tuple(replace(verdict, key=runs.key(f"test_{n}")) for n in range(4))

    for verdicts in ((verdict,), alike):
        text = screen(terminal.run_lines(runs.run(verdicts=verdicts)))
        assert "core_count: 8 -> 16" in text


def test_the_table_shows_the_time_that_was_judged() -> None:
    """Beside a confirmed change stands the confirmed time, not the first one."""
    measured = runs.record("test_gemm[4096]", runs.time_of(250e-6))
    _, row = table(runs.run((measured,), (runs.REGRESSED,)))

    assert row.text.split() == [
        "test_gemm[4096]",
        "183",
        "us",
        "+7.9",
        "%",
        "REGRESSED",
    ]


@pytest.mark.parametrize(
    ("effect", "way"), [(0.06, "it looked worse"), (-0.06, "it looked better")]
)
def test_what_was_not_confirmed_says_in_which_direction(
    effect: float, way: str
) -> None:
    """An improvement did not look worse."""
    likely, unlikely = 0.99, 0.01
    moved = replace(
        runs.change(effect, 183e-6),
        p_worse=unlikely if effect > 0 else likely,
        p_better=likely if effect > 0 else unlikely,
    )
    verdict = runs.changed("test_a", Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED, moved)

    assert way in screen(terminal.run_lines(runs.run(verdicts=(verdict,))))


def shift(bound_class: BoundClass, effect: float, metric: str = "time") -> MachineShift:
    """Return what a machine did to a class of tests; noise is up to 0.5 %."""
    return MachineShift(
        bound_class=bound_class,
        metric=metric,
        effect=effect,
        control_count=8,
        moved=abs(effect) > 0.005,
    )


@pytest.mark.parametrize(
    ("shifts", "told"),
    [
        ((shift(BoundClass.MEMORY, 0.019),), "memory-bound +1.9 % (from 8 controls)"),
        (
            (shift(BoundClass.COMPUTE, 0.004), shift(BoundClass.HOST, -0.021)),
            "host-bound -2.1 % (from 8 controls)",
        ),
        (
            (
                shift(BoundClass.MEMORY, 0.019),
                shift(BoundClass.HOST, 0.03, "time.wall"),
            ),
            (
                "memory-bound +1.9 % (from 8 controls), "
                "host-bound time.wall +3.0 % (from 8 controls)"
            ),
        ),
    ],
)
def test_a_machine_that_moved_is_told_once(
    shifts: tuple[MachineShift, ...], told: str
) -> None:
    """One line for all its classes, before the blocks, whatever else is told."""
    run = replace(runs.gpu_run(), shifts=shifts)
    lines = [str(line) for line in below_title(run, width=200)]
    (place,) = [n for n, line in enumerate(lines) if "machine drift" in line]

    assert lines[place].startswith(f"machine drift: {told}; ")
    assert place < min(n for n, line in enumerate(lines) if "reproduce:" in line)


def test_a_machine_that_stood_still_is_not_told() -> None:
    """A shift within noise is kept in the record and costs no line."""
    run = replace(runs.gpu_run(), shifts=(shift(BoundClass.MEMORY, 0.004),))

    assert screen(below_title(run)) == screen(below_title(runs.gpu_run()))


def test_what_stands_in_failures_is_not_told_twice() -> None:
    """One line names what pytest has explained above; other blocks and the row stay."""
    every = screen(below_title(runs.gpu_run(), width=200))
    text = screen(
        below_title(
            runs.gpu_run(),
            width=200,
            in_failures=[runs.REGRESSED],
        )
    )

    assert "explained in FAILURES above: test_gemm[4096]" in text
    assert "REGRESSED test_gemm[4096]" in every
    assert "REGRESSED test_gemm[4096]" not in text
    assert [line for line in text.splitlines() if "+7.9 %" in line and "REGR" in line]
    assert "FAILED test_registers" in text


def test_many_that_stand_in_failures_are_counted() -> None:
    """The line that points to them stays short."""
    verdicts = tuple(
        replace(runs.REGRESSED, key=runs.key(f"test_{number}")) for number in range(30)
    )
    lines = terminal.run_lines(runs.run(verdicts=verdicts), in_failures=verdicts)

    assert "test_7, 22 more\n" in screen(lines)


def test_a_failure_that_is_expected_is_called_so() -> None:
    """By pytest's word in its row and in the last line; without a block, and not in red."""
    run = runs.run(
        (runs.record("test_registers", runs.value_of("registers", 72, "count")),),
        (runs.FAILED,),
    )
    run = replace(run, xfailed=(runs.FAILED.key.test_id,))
    lines = list(below_title(run))

    assert "FAILED" not in screen(lines)
    assert Style.BAD not in {line.style for line in lines}
    assert "xfailed" in lines[1].text
    assert lines[-1].text == "judged 1 of 1: 1 xfailed"


def test_no_line_of_a_run_is_wider_than_the_terminal() -> None:
    """Wrapped, or shortened in the middle: names of 300 characters, too."""
    estimates = tuple(
        runs.value_of("x" * 300, 3.0, "count", kernel=k) for k in (None, "y" * 300)
    )
    long = Record(key=runs.key("z" * 300), kind=Kind.RECORD, estimates=estimates)
    limit = Limit(
        text=f"{'x' * 300} <= 1",
        metric="x" * 300,
        operator="<=",
        threshold=1.0,
        unit="count",
    )
    missed = replace(
        runs.FAILED, key=long.key, limit=limit, metric="x" * 300, estimate=estimates[1]
    )
    for run in (runs.run((long,), (missed,)), runs.gpu_run()):
        for line in terminal.run_lines(run, width=80, commands=False, verbose=True):
            assert len(line.text) <= 80, line.text


def test_a_failure_fits_the_terminal_and_its_commands_are_whole() -> None:
    """What is typed again is never broken; all else is, under what it belongs to."""
    command = f"    reproduce: pytest {'x' * 90}"
    text = f"head {'word ' * 30}\n    body {'word ' * 30}\n{command}"
    lines = [line.text for line in fitted(text, width=60)]

    assert lines[-1] == command
    assert max(map(len, lines[:-1])) <= 60
    assert [len(line) - len(line.lstrip()) for line in lines[:-1]] == [
        *(0, 4, 4),
        *(4, 8, 8),
    ]


def test_what_was_held_is_announced() -> None:
    """
    Whoever watches knows why letters follow the last test, and what takes so long.

    What a file says is not measured again, whatever is suspected of it.
    """
    waited = "gpuperf: deciding 2 tests at the end of the run"

    assert notices.held_line(2, None) == waited
    assert notices.held_line(2, None, confirm_by=ConfirmBy.AGAINST) == waited
    assert notices.held_line(2, 0) == waited
    assert notices.held_line(2, 5) == (
        f"{waited}; 5 fresh processes will measure suspected times and counts again"
    )
    compared = (
        f"{waited}; suspects are compared with the commit of their newest session"
    )
    possible = f"{compared} where that is possible"
    for confirm in (0, 5):
        line = notices.held_line(2, confirm, confirm_by=ConfirmBy.AGAINST)
        assert line == compared
    assert notices.held_line(2, 0, confirm_by=ConfirmBy.AUTO) == possible
    assert notices.held_line(2, 5, confirm_by=ConfirmBy.AUTO) == (
        f"{possible}, else measured again by 5 fresh processes"
    )


@pytest.mark.parametrize(
    ("expected_s", "takes"),
    [
        (9.9, ""),
        (10.0, ", which takes about 10 s"),
        (620.0, ", which takes about 10 min"),
    ],
)
def test_a_long_confirmation_is_announced(expected_s: float, takes: str) -> None:
    """Before it begins: a short one is over before the line is read."""
    again = "5 fresh processes will measure suspected times and counts again"
    assert notices.held_line(1, 5, expected_s=expected_s) == (
        f"gpuperf: deciding 1 test at the end of the run; {again}{takes}"
    )
    line = notices.held_line(1, 5, confirm_by=ConfirmBy.AUTO, expected_s=expected_s)
    assert line.endswith(f"else measured again by 5 fresh processes{takes}")
    assert "about" not in notices.held_line(1, None, expected_s=expected_s)


def test_slow_calls_are_announced() -> None:
    """With their number, and what they come to."""
    key = RecordKey(test_id="tests/test_fit.py::test_fit[a]")
    assert notices.slow_line(key, 3, 31.0) == (
        "gpuperf: test_fit[a]: the first call took 31.0 s; 3 more take about 93 s"
    )
    assert notices.slow_line(replace(key, name="b"), 1, 300.0) == (
        "gpuperf: test_fit[a] b: the first call took 300 s; one more takes about 5 min"
    )


def test_the_last_line_adds_up_to_all_tests() -> None:
    """Those without a limit, those without a result and those without a value, too."""
    run = runs.run(
        (runs.record("test_a"),), (runs.REGRESSED,), expected=5, missing=("lost",)
    )

    assert summary.judged_line(run).text == (
        "judged 1 of 5: 1 regressed; 1 without a limit or a baseline, "
        "1 without a result, 2 without a measurement"
    )


def test_a_comparison_says_how_far_it_is() -> None:
    """What it makes, which block begins, and what the blocks so far have decided."""
    begun = Progress(revision="main", text="making the two sides")
    block = Progress(
        revision="main",
        block_count=4,
        most_blocks=16,
        open_count=1,
        test_count=3,
        left_s=240.0,
    )
    looked = replace(block, looked=True, elapsed_s=31.2)
    lines = [notices.comparison_line(p) for p in (begun, block, looked)]
    ended = replace(looked, open_count=0, left_s=100.0)

    assert lines == [
        "gpuperf: against main: making the two sides",
        "gpuperf: against main: block 5 of at most 16, 1 test open, about 4 min left",
        "gpuperf: against main: 4 blocks in 31 s, 2 of 3 tests decided, about 4 min left",
    ]
    assert notices.comparison_line(ended).endswith("3 of 3 tests decided")
    spent = replace(looked, left_s=0.4)
    assert notices.comparison_line(spent).endswith("2 of 3 tests decided")


def test_a_run_that_fails_as_a_whole_says_why() -> None:
    """Each complaint has its sentence, with the option that made it one."""
    counted = tally(runs.run(verdicts=(runs.REGRESSED,), expected=4, missing=("lost",)))
    told = {code: summary.complaint(code, counted, 0.55) for code in Complaint}

    assert told == {
        Complaint.NOTHING_COMPARED: (
            "a baseline was named, but no test was compared with it: see the reasons "
            "above, or store sessions with --gpuperf-update=new"
        ),
        Complaint.NOTHING_AGAINST: (
            "no test was decided against the revision: see the reasons above"
        ),
        Complaint.NOTHING_JUDGED: (
            "nothing was judged: the command line or GPUPERF_BASELINE names a baseline, "
            "and PYTEST_ADDOPTS or the ini file switches measuring off; drop "
            "gpuperf_disable there, or type --gpuperf-disable on the command line"
        ),
        Complaint.NOT_MEASURED: (
            "0 tests of the baseline not measured, which the newest session with the same "
            "options measured (--gpuperf-strict): run them, or drop them from the baseline"
        ),
        Complaint.TOO_FEW_JUDGED: (
            "judged 1 of 4 tests; --gpuperf-min-judged=55% requires 3"
        ),
        Complaint.NEVER_REPORTED: "1 test without a result (--gpuperf-strict)",
    }
    nothing = tally(runs.run(expected=0))
    assert summary.complaint(Complaint.NOTHING_AGAINST, nothing) == (
        "no test was compared with the revision: none that measures has run"
    )


def test_no_name_reaches_the_terminal_raw() -> None:
    """Test ids, kernels, details and options are escaped wherever they are printed."""
    evil = "\x1b[2J\u202e"
    verdict = replace(
        runs.REGRESSED,
        key=runs.key(f"test[{evil}]"),
        detail=(evil,),
        remedy=evil,
        baseline=replace(runs.SPAN, first_commit=evil, moved={evil: (evil, evil)}),
    )
    measured = runs.record(f"test[{evil}]", runs.value_of(evil, 1.0, evil, kernel=evil))
    run = runs.run((measured,), (verdict,), options={"gpuperf_baseline": evil})
    text = screen(terminal.run_lines(run, verbose=True))
    text += screen(longrepr_lines(verdict))

    assert "\x1b" not in text
    assert "\u202e" not in text


BLOCKS = AgainstEvidence(block_count=8, null_fraction=0.008)
SLOWER = replace(
    runs.REGRESSED, baseline=None, confirmations=(), detail=(), against=BLOCKS
)


def test_a_comparison_with_a_revision_has_a_column_and_a_block_of_its_own() -> None:
    """Was, now, difference, blocks, and what the same code differed by; no acceptance."""
    faster = runs.changed(
        "test_gemm[4096]",
        Outcome.UNCHANGED,
        Reason.WITHIN_NOISE,
        runs.change(0.012, 172e-6),
        baseline=runs.SPAN,
    )
    record = runs.record("test_gemm[4096]", runs.time_of(172e-6))
    against = Against(
        revision="v1.2",
        commit="3f2a1c9d5b",
        modules=("linear.gemm",),
        block_count=8,
        elapsed_s=95.0,
        null_fraction=0.011,
    )
    run = replace(runs.run((record,), (faster, SLOWER)), against=against)

    assert screen(below_title(run)) == drawn(
        """
        test             time    vs baseline  vs revision  verdict
        test_gemm[4096]  183 us  +1.2 %       +7.9 %       REGRESSED
        REGRESSED test_gemm[4096]: 183 us, was 170 us: +7.9 % (+7.1 … +8.7 %), limit 5 %, smallest
            detectable change 1.6 %
            8 blocks; noise floor ±0.8 %
            reproduce: pytest "tests/test_gemm.py::test_gemm[4096]"
        against v1.2 (3f2a1c9): 8 blocks in 95.0 s; noise floor ±1.1 %; linear.gemm differs
        judged 1 of 1: 1 regressed
        """
    )


@pytest.mark.parametrize(
    ("options", "outcome", "is_explained"),
    [
        ({}, Outcome.UNCHANGED, False),
        ({"gpuperf_strict": "true"}, Outcome.UNCHANGED, True),
        ({}, Outcome.INCONCLUSIVE, True),
    ],
)
def test_a_young_baseline_is_counted_where_a_revision_decided(
    options: dict[str, str], outcome: Outcome, is_explained: bool
) -> None:
    """Too few sessions need no block if the revision decided, unless they fail the run."""
    young = runs.changed(
        "test_gemm[4096]",
        Outcome.INCONCLUSIVE,
        Reason.TOO_FEW_SESSIONS,
        runs.change(0.012, 172e-6),
        baseline=runs.SPAN,
    )
    decided = replace(SLOWER, outcome=outcome, reason=Reason.WITHIN_NOISE)
    record = runs.record("test_gemm[4096]", runs.time_of(172e-6))
    run = runs.run((record,), (young, decided))
    run = replace(
        run,
        against=Against(revision="v1.2", block_count=8),
        header=replace(run.header, options=options),
    )
    said = screen(below_title(run))

    assert ("the baseline has too few sessions" in said) is is_explained
    assert "too few sessions" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("against", "text"),
    [
        (
            Against(revision="HEAD", block_count=1),
            "against HEAD: 1 block in 0 s; no module of the project differs",
        ),
        (
            Against(revision="v1", modules=("a", "b"), block_count=4, elapsed_s=2),
            "against v1: 4 blocks in 2.00 s; a, b differ",
        ),
        (
            Against(
                revision="v1",
                gap=Gap(
                    code=GapCode.FAILED, reason="both load one file", remedy="build"
                ),
            ),
            "against v1: both load one file; build",
        ),
        (
            Against(revision="v1", only_old=("t::old",), only_new=("t::new", "t::x")),
            (
                "in the revision alone: t::old\nin the working tree alone: t::new, t::x; "
                "--gpuperf-against-tests=mine runs them on both sides"
            ),
        ),
    ],
)
def test_what_a_revision_was_compared_by_is_told_once(
    against: Against, text: str
) -> None:
    """And why it could not be."""
    run = replace(runs.run(), against=against)

    assert screen(below_title(run)) == f"{text}\njudged 0 of 0"


def test_blocks_that_differ_do_not_make_a_machine_too_noisy() -> None:
    """They answer for exactly that: sessions are another matter."""
    noisy = replace(runs.change(0.079, 183e-6), session_spread=0.4)
    run = runs.run((), (replace(SLOWER, change=noisy),))

    assert tally(run).noise_fraction is None
    stored = replace(SLOWER, change=noisy, against=None)
    assert tally(runs.run((), (stored,))).noise_fraction == 0.4


def sampled(
    name: str, *values: float, group: str | None = None
) -> tuple[Record, TestPlace]:
    """Return a record with samples of its time, and its place."""
    series = Series(metric="time", unit="s", source="host", values=values)
    record = replace(runs.record(name, runs.time_of(values[0])), series=(series,))
    return record, TestPlace(test_id=record.key.test_id, group=group)


def test_columns_order_and_unit_are_those_asked_for() -> None:
    """As pytest-benchmark's options do it; groups are headings, and sorted within."""
    measured = (
        sampled("test_b", 3e-3, 1e-3, 2e-3, group="g"),
        sampled("test_a", 5e-6, 5e-6),
        sampled("test_c", 1e-3, group="g"),
    )
    binary = runs.record("test_z", runs.value_of("registers", 40, "count"))
    records = (binary, *(record for record, _ in measured))
    run = replace(runs.run(records), tests=tuple(place for _, place in measured))
    view = View(columns=("max", "mean", "rounds"), sort="max", time_unit="ms")
    lines = [line.text for line in terminal.run_lines(run, view=view)]

    assert lines[1:8] == [
        "test    max         mean        rounds",
        "no group:",
        "test_a  0.00500 ms  0.00500 ms  2",
        "test_z  -           -           -",
        "    registers 40",
        "g:",
        "test_c  1.00 ms     1.00 ms     1",
    ]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (None, "test_rmsnorm[8192]"),
        ("name", "test_attention_backward[bfloat16-8192-causal-128]"),
        ("fullname", "test_attention_backward[bfloat16-8192-causal-128]"),
        ("time", "test_gather[64k]"),
        ("change", "test_gemm[4096]"),
        ("verdict", "test_registers"),
        ("mean", "test_rmsnorm[8192]"),  # nothing was sampled
    ],
)
def test_a_table_is_sorted(sort: str | None, first: str) -> None:
    """What has no such value stands last, in the order of the tests."""
    lines = [*terminal.run_lines(runs.gpu_run(), view=View(sort=sort), width=200)]
    table = [line.text for line in lines if line.text.startswith("test_")]

    assert table[0].split()[0] == first


def blind(name: str, sees: float) -> Verdict:
    """Return the verdict of a time whose baseline detects a change of a size."""
    wide = runs.change(0.01, 1e-3, sees=sees)
    return runs.changed(name, Outcome.BLIND, Reason.NOT_DETECTABLE, wide)


def test_a_run_of_blind_tests_says_what_it_would_have_detected() -> None:
    """The last line names the smallest slowdown, and what detects more."""
    measured = tuple(
        runs.record(name, runs.time_of(1e-3)) for name in ("test_a", "test_b")
    )
    run = runs.run(measured, (blind("test_a", 0.8), blind("test_b", 0.63)))
    line = summary.judged_line(run)

    assert line.style is Style.DOUBT
    assert line.text == (
        "0 judged, 2 blind: smallest slowdown detectable here 63.0 %; "
        "--gpuperf-against=REV detects smaller ones"
    )


def test_blind_tests_among_others_are_counted() -> None:
    """They are not among the judged ones, and a judged test may have a blind change."""
    calm = runs.changed(
        "test_b", Outcome.UNCHANGED, Reason.WITHIN_NOISE, runs.change(0.01, 1e-3)
    )
    beside = replace(blind("test_b", 4.0), metric="time.p95")
    measured = tuple(
        runs.record(name, runs.time_of(1e-3)) for name in ("test_a", "test_b")
    )
    run = runs.run(measured, (blind("test_a", 0.63), calm, beside))

    assert summary.judged_line(run).text == (
        "judged 1 of 2: 1 unchanged; 1 blind (smallest slowdown detectable here 63.0 %), "
        "also 1 blind (smallest slowdown detectable here 5.0 x) in judged tests"
    )


def test_an_improvement_that_was_not_confirmed_is_not_a_plain_one() -> None:
    """It is neither sure nor stored: its row and the last line say so."""
    verdict = runs.changed(
        "test_x", Outcome.IMPROVED, Reason.NOT_CONFIRMED, runs.change(-0.06, 1e-3)
    )
    _, row = table(runs.run((), (verdict,)))
    _, sure = table(runs.run((), (replace(verdict, reason=Reason.FASTER_THAN_LIMIT),)))

    assert row.text.endswith(" improved (not confirmed)")
    assert sure.text.endswith(" improved")


def test_the_last_line_counts_what_was_not_confirmed_apart() -> None:
    """On every surface: it must not claim what the row does not."""
    doubtful = runs.changed(
        "test_x", Outcome.IMPROVED, Reason.NOT_CONFIRMED, runs.change(-0.06, 1e-3)
    )
    sure = runs.changed(
        "test_y", Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT, runs.change(-0.06, 1e-3)
    )
    one = runs.run((), (doubtful,))
    both = runs.run((), (doubtful, sure), expected=2)
    said = "judged 2 of 2: 1 improved, 1 improved (not confirmed)"

    assert summary.judged_line(one).text == "judged 1 of 1: 1 improved (not confirmed)"
    assert summary.judged_line(both).text == said
    assert said in run_markdown(both)
    if find_spec("jinja2") is not None:
        assert said[1:] in html_bytes(both).decode()  # it begins with a capital there


@pytest.mark.parametrize("part", ["core_shift", "machine_shift"])
@pytest.mark.parametrize("width", [60, 100])
def test_a_change_that_its_values_do_not_show_is_marked(part: str, width: int) -> None:
    """What the machine did is taken out of it: it is told once, where a row is marked."""
    assert runs.REGRESSED.change is not None
    moved = replace(runs.REGRESSED.change, **{part: 0.1})
    adjusted = replace(runs.REGRESSED, change=moved)
    _, row, *below = table(runs.run((), (adjusted,)), width=width)
    told = " ".join(line.text.strip() for line in below)
    usual = screen(table(runs.run((), (runs.REGRESSED,))))

    assert " +7.9 %* " in row.text
    assert told == "* corrected for CPU speed and machine drift"
    assert max(len(line.text) for line in below) <= width
    assert "*" not in usual


def test_a_table_without_changes_explains_no_mark() -> None:
    """Who asked for other columns sees no mark."""
    assert runs.REGRESSED.change is not None
    moved = replace(runs.REGRESSED.change, core_shift=0.1)
    run = runs.run((), (replace(runs.REGRESSED, change=moved),))
    lines = table_lines(rows(run), width=100, view=View(columns=("time", "verdict")))

    assert "*" not in screen(lines)


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        (("a/test_x.py", "b/test_x.py"), "--rootdir=.,"),
        (("../a/test_x.py", "test_x.py"), "--rootdir=..,"),
        (("../../a/test_x.py", "../b/test_x.py"), "--rootdir=../..,"),
        (("a/tests.yaml", "a/tests.yaml"), "give each of them an id of its own"),
    ],
)
def test_the_remedy_for_equal_ids_holds_both_files(
    files: tuple[str, str], remedy: str
) -> None:
    """The folder that is named is one above both, from where pytest was started."""
    first, second = (f"{file}::test_it" for file in files)
    line = notices.twins_line("test_x.py::test_it", first, second)

    assert f"test_x.py::test_it: {first} and {second}; " in line
    assert remedy in line
