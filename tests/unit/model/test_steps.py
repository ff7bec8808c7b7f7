"""model.steps: what a measured loop may look like."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.steps import (
    Compiled,
    LayerTimes,
    Loop,
    OperationTimes,
    PhaseTimes,
    Span,
    SpanKind,
    SpanLevel,
    Step,
    StepSummary,
    Waiting,
    kind_of,
)


def span(start_s: float, end_s: float, **more: Any) -> Span:
    given = {
        "name": "forward",
        "kind": SpanKind.FORWARD,
        "level": SpanLevel.PHASE,
        **more,
    }
    return Span(start_s=start_s, end_s=end_s, **given)


def step(*spans: Span, **more: Any) -> Step:
    given = {"index": 0, "begin_s": 0.0, "start_s": 1.0, "end_s": 3.0, **more}
    return Step(spans=spans, **given)


SUMMARY = StepSummary(
    unit="token",
    units=512.0,
    step_count=10,
    counted_count=8,
    warmup_count=1,
    void_count=1,
    step_s=2.0,
    period_s=3.0,
    wait_s=1.0,
    data_was_recorded=True,
    covered_fraction=0.9,
    exposed_s=0.0,
    waiting=Waiting.SPAN,
    phases=(
        PhaseTimes(
            name="forward",
            kind=SpanKind.FORWARD,
            own_s=1.0,
            total_s=1.0,
            p50_s=1.0,
            p95_s=1.2,
            calls_count=8,
        ),
    ),
    layers=(LayerTimes(layer=0, forward_s=0.5, backward_s=0.0),),
    operations=(OperationTimes(name="gemm", own_s=0.4, layer=0, calls_count=8),),
    compiled=Compiled(count=1, graph_breaks_count=0, time_s=0.5),
    recompiled_steps=(4,),
    grade="B",
    efficiency_fraction=0.5,
)


def test_a_step_is_split_into_waiting_and_working() -> None:
    """What lies before its start is waiting, and its period holds both."""
    made = step()

    assert (made.wait_s, made.duration_s, made.period_s) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "times",
    [
        {"start_s": 4.0},
        {"begin_s": 2.0},
        {"begin_s": -1.0},
        {"end_s": math.inf},
        {"end_s": math.nan},
    ],
    ids=str,
)
def test_a_step_that_runs_backwards_is_refused(times: dict[str, float]) -> None:
    """Every time is finite, and none is before the one that it follows."""
    with pytest.raises(RecordError, match=r"steps\[0\]"):
        step(**times)


@pytest.mark.parametrize("units", [0.0, -8.0, math.nan, math.inf])
def test_a_step_does_some_work(units: float) -> None:
    """A number of units is finite and above zero."""
    with pytest.raises(RecordError, match="units"):
        step(units=units)


def test_a_span_lies_in_its_step_or_in_the_wait_before_it() -> None:
    """Between the end of the step before and the step's own end."""
    assert step(span(0.0, 1.0), span(1.0, 3.0)).spans[1].duration_s == 2.0
    with pytest.raises(RecordError, match="does not lie in"):
        step(span(2.0, 3.5))


def test_a_span_lies_in_its_parent() -> None:
    """A parent stands before its children, is of their thread, and holds them."""
    step(span(1.0, 3.0), span(1.5, 2.0, parent=0))
    with pytest.raises(RecordError, match="does not lie in"):
        step(span(1.0, 2.0), span(1.5, 2.5, parent=0))
    with pytest.raises(RecordError, match="not a span before it"):
        step(span(1.0, 2.0, parent=0))
    with pytest.raises(RecordError, match="another thread"):
        step(span(1.0, 3.0), span(1.5, 2.0, parent=0, thread=1))


def test_a_span_that_ends_before_it_begins_is_refused() -> None:
    """And so is a layer below zero."""
    with pytest.raises(RecordError, match="backwards"):
        span(2.0, 1.0)
    with pytest.raises(RecordError, match="layer"):
        span(1.0, 2.0, layer=-1)


def test_steps_that_overlap_are_refused() -> None:
    """A step begins no earlier than the one before it ended."""
    first, second = step(), step(index=1, begin_s=2.9, start_s=3.0, end_s=4.0)

    with pytest.raises(RecordError, match=r"steps\[1\]"):
        Loop(unit="step", units=1.0, warmup_count=0, steps=(first, second))


def test_warming_up_and_void_steps_do_not_count() -> None:
    """The first ones by their number, the void ones wherever they are."""
    steps = tuple(
        step(
            index=i,
            begin_s=3.0 * i,
            start_s=3.0 * i,
            end_s=3.0 * i + 1,
            void="ValueError" if i == 2 else None,
        )
        for i in range(4)
    )
    loop = Loop(unit="step", units=1.0, warmup_count=1, steps=steps)

    assert [each.index for each in loop.counted] == [1, 3]


def test_less_than_nothing_cannot_be_compiled() -> None:
    """Counts and times are not negative."""
    with pytest.raises(RecordError):
        Compiled(count=-1, graph_breaks_count=0)
    with pytest.raises(RecordError):
        Compiled(count=0, graph_breaks_count=0, time_s=-0.1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("forward", SpanKind.FORWARD),
        ("Backward", SpanKind.BACKWARD),
        ("all_reduce", SpanKind.COMMUNICATION),
        ("h2d", SpanKind.TRANSFER),
        ("dataloader", SpanKind.DATA),
        ("grad_h2d", None),
        ("path2d2htable", None),
        ("forward_total", None),
    ],
)
def test_a_name_is_well_known_as_a_whole(name: str, kind: SpanKind | None) -> None:
    """A name that only holds a known word says nothing."""
    assert kind_of(name) is kind


def test_a_summary_travels_in_its_record() -> None:
    """As text and back, nothing is lost."""
    record = Record(
        key=RecordKey(test_id="t.py::t"), kind=Kind.STEPS, estimates=(), steps=SUMMARY
    )

    assert codec.from_text(codec.to_text(record), Record) == record


def test_a_record_of_an_older_version_is_no_loop() -> None:
    """A file that never heard of steps is read as before."""
    record = Record(key=RecordKey(test_id="t.py::t"), kind=Kind.RANGE, estimates=())
    loose = codec.to_builtins(record)
    del loose["steps"]

    assert codec.from_builtins(loose, Record) == record
