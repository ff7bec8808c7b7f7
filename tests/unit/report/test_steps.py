"""report.steps: what a loop says in a terminal and in Markdown."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.runs import key
from fakes.runs import run as a_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Note, Record, Role, Void, VoidCode
from pytest_gpuperf.model.sample import Estimate, SourceLabel, Unmeasured
from pytest_gpuperf.model.steps import (
    Compiled,
    LayerTimes,
    OperationTimes,
    PhaseTimes,
    SpanKind,
    StepSummary,
)
from pytest_gpuperf.report.rows import rows
from pytest_gpuperf.report.steps import run_steps_lines, steps_lines, steps_markdown


def value(metric: str, number: float, unit: str, **more: Any) -> Estimate:
    return Estimate(metric=metric, value=number, unit=unit, source="host", **more)


def phase(name: str, own_s: float, **more: Any) -> PhaseTimes:
    given = {"kind": SpanKind.FORWARD, "calls_count": 10, **more}
    return PhaseTimes(
        name=name, own_s=own_s, total_s=own_s, p50_s=own_s, p95_s=own_s, **given
    )


LOOP = StepSummary(
    unit="token",
    units=8192.0,
    step_count=13,
    counted_count=10,
    warmup_count=2,
    void_count=1,
    step_s=0.15,
    period_s=0.16,
    wait_s=0.008,
    data_was_recorded=True,
    covered_fraction=0.95,
    exposed_s=0.016,
    phases=(phase("forward", 0.06), phase("prefetch", 0.01, beside=True)),
    compiled=Compiled(count=2, graph_breaks_count=1, time_s=3.5),
    warmup_compiled=Compiled(count=3, graph_breaks_count=0, time_s=12.0),
    recompiled_steps=(5, 9),
    grade="B",
    efficiency_fraction=0.43,
)
VALUES = (
    value("time", 0.15, "s", low=0.148, high=0.152),
    value("time.p95", 0.18, "s"),
    value("time.first_call", 12.5, "s"),
    value("throughput", 51200.0, "1/s", low=51000.0, high=51400.0),
    value("mfu", 0.38, "fraction", label=SourceLabel.DATASHEET),
    value("data.wait_fraction", 0.05, "fraction"),
    value("memory.peak_bytes", 12.3e9, "bytes"),
)


def record(steps: StepSummary | None = LOOP, **more: Any) -> Record:
    given = {"key": key("test_train"), "estimates": VALUES, **more}
    return Record(kind=Kind.STEPS, steps=steps, **given)


def told(made: Record, **how: Any) -> str:
    return "\n".join(line.text for line in steps_lines(made, **how))


def line(text: str, word: str) -> str:
    """Return the one line that begins with a word, its blanks made single."""
    (found,) = (x for x in text.splitlines() if x.strip().startswith(word))
    return " ".join(found.split())


def test_the_block_begins_with_what_is_asked_first() -> None:
    """Throughput, utilisation, the step, waiting, compiling, talking, memory."""
    text = told(record(), called="test_train")

    assert text.splitlines()[0] == (
        "test_train: 10 of 13 steps counted (2 warm-up, 1 void), 8192 token a step"
    )
    assert line(text, "throughput") == "throughput 51200 token/s ±0.4 %"
    assert line(text, "MFU") == "MFU 38.0 % (datasheet)"
    assert line(text, "step") == ("step p50 150 ms ±1.3 %, p95 180 ms, first 12.5 s")
    assert line(text, "data wait") == "data wait 5.00 %, 8.00 ms a step"
    assert line(text, "recompiles") == (
        "recompiles 2 with 1 graph break, 3.50 s in steps 5, 9; "
        "3, 12.0 s in the warm-up"
    )
    assert line(text, "exposed") == "exposed communication 16.0 ms a step, 10.0 %"
    assert line(text, "peak memory") == "peak memory 12.3 GB"
    assert line(text, "coverage") == "coverage 95.0 % of the time is in spans"


def test_the_grade_is_one_row() -> None:
    """With the number that it stands for."""
    graded = told(record())

    assert line(graded, "grade") == (
        "grade B (training scorecard: 43.0 % of the bandwidth bound)"
    )
    ungraded = told(record(replace(LOOP, grade=None, efficiency_fraction=None)))
    assert "grade (it needs hardware=Hardware(…))" in ungraded


def test_what_was_expected_and_is_not_there_has_its_reason() -> None:
    """In one line, and not as a row of zeros."""
    gaps = (
        Unmeasured(metric="mfu", reason="no work is declared", remedy="declare it"),
        Unmeasured(metric="memory.peak_bytes", reason="no torch", remedy="use it"),
    )
    text = told(
        record(replace(LOOP, compiled=None), estimates=VALUES[:4], unmeasured=gaps)
    )

    assert "not measured: MFU (no work is declared), peak memory (no torch)" in text
    assert "recompiles" not in text
    assert "    MFU" not in text


def test_waiting_that_was_not_recorded_is_said_to_be_all_time_between_steps() -> None:
    """A logger between two steps is not a loader."""
    text = told(record(replace(LOOP, data_was_recorded=False)))

    assert line(text, "data wait").endswith("a step (all time between steps)")


def test_time_in_no_phase_is_a_row_of_its_own() -> None:
    """Shares add up to the whole; what runs beside the steps takes no part."""
    text = told(record())

    assert line(text, "forward").startswith("forward forward 60.0 ms 38 %")
    assert line(text, "prefetch").startswith("prefetch (in another thread)")
    assert line(text, "in no phase") == "in no phase 100 ms 62 %"


def test_long_tables_are_cut_with_the_others_added_up() -> None:
    """The slowest layers in the model's order; nothing vanishes."""
    layers = tuple(
        LayerTimes(layer=number, forward_s=0.001 * number, backward_s=0.002 * number)
        for number in range(12)
    )
    operations = tuple(
        OperationTimes(name=f"op{number:02}", own_s=0.001, layer=number % 2)
        for number in range(14)
    )
    text = told(record(replace(LOOP, layers=layers, operations=operations)))

    shown = [x.split()[0] for x in text[text.index("layer ") :].splitlines()[1:9]]
    assert shown == ["4", "5", "6", "7", "8", "9", "10", "11"]
    assert "4 others  6.00 ms  12.0 ms" in text
    assert "4 others   4.00 ms" in text
    assert "2.5 %" in text


def test_a_void_loop_says_so_in_its_block() -> None:
    """And its notes stand below it."""
    void = Void(code=VoidCode.LOOP_ENDED, reason="the loop was ended by OSError")
    notes = (Note(code="void-steps", text="1 of the steps did not count"),)
    text = told(record(void=void, notes=notes))

    assert line(text, "void") == "void the loop was ended by OSError"
    assert "note: 1 of the steps did not count" in text


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "a\u202eb"])
def test_a_name_of_the_tests_own_does_nothing_to_a_terminal(name: str) -> None:
    """Phases, operations and units are somebody's text."""
    loop = replace(
        LOOP,
        unit=name,
        phases=(phase(name, 0.1),),
        operations=(OperationTimes(name=name, own_s=0.1),),
    )
    text = told(record(loop))

    assert name not in text
    assert "\x1b" not in text


def test_markdown_has_the_same_facts() -> None:
    """As tables; names as code."""
    loop = replace(LOOP, phases=(phase("a|b", 0.1),))
    text = steps_markdown(record(loop), called="`test_train`")

    assert text.startswith("#### `test_train`: 10 of 13 steps counted")
    assert "| throughput | 51200 `token`/s ±0.4 % |" in text
    assert "| `a\\|b` | forward |" in text
    assert "\x1b" not in text


def test_the_table_has_the_grade_of_a_loop() -> None:
    """In the column of the roofs' grades: it is what a least grade is held against."""
    loop, ungraded = rows(
        a_run(
            (
                record(),
                record(replace(LOOP, grade=None), key=key("test_other")),
            )
        )
    )

    assert (loop.grade, ungraded.grade) == ("B", "")


def test_a_record_that_is_no_loop_says_nothing() -> None:
    """Nor one of which no step counts."""
    assert told(record(None)) == ""
    assert steps_markdown(record(None)) == ""


def test_many_loops_have_a_line_each() -> None:
    """So that the verdicts stay in sight; all of it with -v."""
    records = tuple(
        replace(record(), key=key(f"test_train[{number}]")) for number in range(6)
    )
    few, many = a_run(records[:5]), a_run(records)
    brief = [line.text for line in run_steps_lines(many, width=200)]

    assert sum("in no phase" in line.text for line in run_steps_lines(few)) == 5
    assert len(brief) == 7
    assert brief[0].startswith("test_train[0]: 10 of 13 steps counted")
    assert "51200 token/s" in brief[0]
    assert "p95 180 ms" in brief[0]
    assert "with -v" in brief[6]
    every = run_steps_lines(many, verbose=True)
    assert sum("in no phase" in line.text for line in every) == 6


def test_what_fresh_processes_measured_is_not_shown_again() -> None:
    """One block for a loop, however often it was confirmed."""
    again = replace(record(), role=Role.CONFIRM, process_index=1)
    lines = list(run_steps_lines(a_run((record(), again))))

    assert sum("steps counted" in line.text for line in lines) == 1


def test_a_block_fits_its_width() -> None:
    """Columns go before the line breaks."""
    for each in steps_lines(record(), called="test_train", width=80):
        assert len(each.text) <= 80
