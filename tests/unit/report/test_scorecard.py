"""Rules of report.scorecard and report.sheet: what a reader sees."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.measured_scorecard import measured_scorecard
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.roofline import TRAINING_BANDS
from pytest_gpuperf.model.scorecard import (
    Hardware,
    Recommendation,
    ScorecardRegression,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import Layer, Phase, StepProfile
from pytest_gpuperf.report.scorecard import fixed, scorecard_bytes

UNIT = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e7)  # 100 tokens/s
EVIL = "a|b`<i>\n@x\x1b[31m"
PROFILE = StepProfile(
    avg_step_ms=100.0,
    wall_coverage=0.9,
    phases={
        "forward": Phase(total_ms=40.0, pct=40.0, avg_ms=40.0),
        "h2d": Phase(total_ms=35.0, pct=35.0, avg_ms=35.0),
    },
    per_layer=(
        Layer(layer=0, fwd_ms=10.0, bwd_ms=21.0, ops={"gemm": 9.0, "norm": 1.0}),
        Layer(layer=1, fwd_ms=11.0, bwd_ms=22.5),
    ),
)
CARD = training_scorecard(PROFILE, throughput=15.0, hardware=UNIT)


def shown(card: TrainingScorecard, form: str = "text", width: int = 100) -> str:
    """Return a scorecard as it is printed."""
    return scorecard_bytes(card, form, width=width).decode()


def test_a_scorecard_is_a_page() -> None:
    """Facts, then operations and layers, then what got worse and what to do."""
    regression = ScorecardRegression(
        metric="throughput_tok_s", delta=-0.2504, severity="critical"
    )
    advice = Recommendation(rule="own-rule", text="Do less.", evidence={"x_ms": 1.5})
    card = replace(CARD, regressions=(regression,), recommendations=(advice,))

    assert shown(card) == (
        "Training scorecard\n"
        "\n"
        "grade               D\n"
        "efficiency          15.0 %\n"
        "bottleneck          transfer\n"
        "throughput          15 of 100 tok/s\n"
        "step time           100.0 ms\n"
        "backward / forward  2.07\n"
        "wall coverage       90.0 %\n"
        "in copies           35.0 %\n"
        "in no phase         25.0 %\n"
        "\n"
        "operation    ms   share\n"
        "gemm       9.00  90.0 %\n"
        "norm       1.00  10.0 %\n"
        "\n"
        "layer  forward ms  backward ms  ratio  longest operation  of the layer\n"
        "    0       10.00        21.00   2.10  gemm                     90.0 %\n"
        "    1       11.00        22.50   2.05\n"
        "\n"
        "Regressions\n"
        "    throughput_tok_s: -25.0 %, critical\n"
        "\n"
        "Advice\n"
        "    own-rule: Do less. (x ms 1.500)\n"
    )


def test_what_is_empty_is_not_shown() -> None:
    """No heading without something below it."""
    card = training_scorecard(StepProfile(), throughput=99.0, hardware=UNIT)

    assert shown(card).count("\n\n") == 1
    assert shown(card, "markdown").count("#") == 2


def test_markdown_is_a_table_with_the_grade_in_bold() -> None:
    """Names are code; the sections follow in the order of the text."""
    text = shown(CARD, "markdown")

    assert text.startswith(
        "## Training scorecard\n\n| quantity | value |\n| --- | --- |\n"
    )
    assert (
        "| grade | **D** |\n| efficiency | 15.0 % |\n| bottleneck | transfer |" in text
    )
    assert "| `gemm` | 9.00 | 90.0 % |" in text
    assert "\n### Advice\n\n- `slow-transfer`: Copy less" in text


def test_a_name_can_do_nothing_to_its_reader() -> None:
    """Neither end a cell nor a line, nor colour a terminal, nor call a person."""
    layer = Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops={EVIL: 1.0})
    card = training_scorecard(
        replace(PROFILE, per_layer=(layer,)), throughput=15.0, hardware=UNIT
    )
    card = replace(card, recommendations=(Recommendation(text=EVIL),))
    text, markdown = shown(card), shown(card, "markdown")

    assert "\x1b" not in text + markdown
    assert "a|b`<i>\\x0a@x\\x1b[31m" in text
    assert "| ``a\\|b`<i>\\x0a@x\\x1b[31m`` |" in markdown
    assert "- a\\|b\\`\\<i\\>\\\\x0a@\u200bx\\\\x1b\\[31m" in markdown


@pytest.mark.parametrize(
    ("number", "places", "text"),
    [
        (0.25, 1, "0.2"),
        (0.125, 2, "0.12"),
        (0.35, 1, "0.3"),
        (2.675, 2, "2.67"),
        (-0.0, 1, "-0.0"),
        (math.inf, 1, "inf"),
        (-math.inf, 2, "-inf"),
        (math.nan, 0, "nan"),
    ],
)
def test_a_tie_goes_to_the_even_digit_of_the_binary_value(
    number: float, places: int, text: str
) -> None:
    """Halves that no float holds are rounded as what the float is."""
    assert fixed(number, places) == text


@pytest.mark.parametrize(
    ("number", "limit", "text"),
    [
        (0.59996, 0.6, "59.996 %"),
        (0.6, 0.6, "60.0 %"),
        (0.60004, 0.6, "60.004 %"),
        (-0.1000000001, -0.1, "-10.00000001 %"),
    ],
)
def test_a_shown_number_keeps_to_its_side(
    number: float, limit: float, text: str
) -> None:
    """It gets as many digits as it takes to show that it is not at the limit."""
    assert fixed(number, 1, limits=[limit], percent=True) == text


@given(
    efficiency=st.floats(min_value=0, max_value=1)
    | st.sampled_from([0.1, 0.2, 0.4, 0.6]).flatmap(
        lambda limit: st.sampled_from(
            [math.nextafter(limit, 0.0), limit, math.nextafter(limit, 1.0)]
        )
    )
)
def test_the_shown_efficiency_has_the_shown_grade(efficiency: float) -> None:
    """Who grades the printed number gets the printed grade."""
    card = training_scorecard(PROFILE, throughput=efficiency * 100, hardware=UNIT)
    facts = dict(line.split(maxsplit=1) for line in shown(card).splitlines()[2:4])
    read = float(f"{facts['efficiency'].removesuffix(' %')}e-2")

    assert str(TRAINING_BANDS.grade(read)) == facts["grade"]


def test_a_number_that_overflowed_is_null_in_json() -> None:
    """JSON has no infinity; other writers put null too."""
    card = replace(CARD, forward_backward_ratio=math.inf)

    assert json.loads(shown(card, "json"))["forward_backward_ratio"] is None
    assert "backward / forward  inf" in shown(card)


def test_a_loaded_scorecard_does_not_say_what_it_does_not_hold() -> None:
    """The shares that chose the bottleneck are in no file."""
    card = replace(
        CARD, peak_throughput_tok_s=None, transfer_fraction=None, launch_fraction=None
    )

    assert "throughput          15 tok/s" in shown(card)
    assert "in copies" not in shown(card)


def test_the_measured_policy_says_what_is_not_known() -> None:
    """n/a is not a zero; the rest of many operations is one row."""
    ops = {f"op{n:02}": float(n) for n in range(1, 15)}
    layer = Layer(layer=0, fwd_ms=0.0, bwd_ms=1.0, ops=ops)
    steps = StepProfile(per_layer=(layer,))
    text = scorecard_bytes(
        measured_scorecard(steps, throughput=0.0, hardware=UNIT, unit="image"),
        "text",
        width=80,
    ).decode()

    assert "grade               n/a\nefficiency          n/a\n" in text
    assert "step time           n/a\n" in text
    assert "\n4 others   10.00   9.5 %\n" in text
    assert "\nUnknown\n    no efficiency: the throughput is not above zero" in text


def test_decisions_are_told_with_what_they_rest_on() -> None:
    """Loud where something got worse or lost."""
    times = tuple(100.0 + 7 * n % 10 / 10 for n in range(10))
    base = measured_scorecard(
        replace(PROFILE, step_ms=times), throughput=50.0, hardware=UNIT
    )
    slower = replace(PROFILE, step_ms=tuple(1.2 * ms for ms in times), phases={})
    card = measured_scorecard(slower, throughput=50 / 1.2, hardware=UNIT, baseline=base)
    text = scorecard_bytes(card, "text", width=100).decode()

    assert "step time           120.54 ms (120.00 … 121.08), p95" in text
    assert (
        "    step_time_ms: REGRESSED; 20.0 % worse; 120.54, was 100.45; "
        "also throughput\n"
        "    coverage: UNMEASURED; the baseline has it, this run does not\n"
    ) in text


def test_a_mean_is_told_as_one() -> None:
    """Nothing is said of a spread that nobody knows."""
    base = measured_scorecard(PROFILE, throughput=50.0, hardware=UNIT)
    card = measured_scorecard(PROFILE, throughput=50.0, hardware=UNIT, baseline=base)
    text = scorecard_bytes(card, "markdown").decode()

    assert "| step time | 100.00 ms (mean) |" in text
    assert "unchanged; 100.00, was 100.00; one value each" in text
