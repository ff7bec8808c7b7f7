"""Rules of compute.scorecard and its recommendations: the rules in the wild."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.advice import RULES, Rule, recommendations
from pytest_gpuperf.compute.measured_scorecard import measured_scorecard
from pytest_gpuperf.compute.parity import compare_parity
from pytest_gpuperf.compute.scorecard import (
    HARDWARE,
    REFERENCE,
    Bottleneck,
    Grade,
    Hardware,
    ReferencePolicy,
    TrainingScorecard,
    added,
    training_scorecard,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.codec import (
    decode_hardware,
    decode_parity_profile,
    decode_scorecard,
    decode_step_profile,
    encode_parity,
    encode_scorecard,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.reference_json import load_json
from pytest_gpuperf.model.roofline import Bands
from pytest_gpuperf.model.scorecard import BOTTLENECK_LIMITS
from pytest_gpuperf.model.steps import Layer, Phase, StepProfile

GOLD = Path(__file__).parents[2] / "gold" / "vectors" / "scorecard.jsonl"
FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

# What is refused where the other program goes on, or panics: its input is not finite.
REFUSED = {
    ("classify", "l_nan"),
    ("parity", "inf_over_finite"),
    ("scorecard", "nan_many_ops_sort"),
    ("scorecard", "phase_nan_pct_h2d/eff0.55"),
    ("scorecard", "ratio_inf"),
    ("scorecard", "step_nan"),
    ("scorecard", "tput_nan"),
    ("scorecard_baseline", "base_tput_nan"),
}

UNIT = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e7)  # 100 tokens/s
TIMES = st.floats(min_value=-1e6, max_value=1e6)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def with_floats(value: Any) -> Any:
    """Return a vector with its texts for NaN and infinity as floats."""
    if isinstance(value, dict):
        return {name: with_floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_floats(each) for each in value]
    return FLOATS.get(value, value) if isinstance(value, str) else value


def vectors() -> list[dict[str, Any]]:
    """Return the vectors."""
    with GOLD.open(encoding="utf-8") as lines:
        return [with_floats(json.loads(line)) for line in lines]


def answer(kind: str, given: Any) -> dict[str, Any]:
    """Return what we say to the input of a vector, in its words."""
    if kind == "grade":
        return {"grade": str(Grade.from_efficiency(given["efficiency"]))}
    if kind == "classify":
        found = Bottleneck.classify(
            transfer_fraction=given["transfer_pct"],
            launch_fraction=given["launch_overhead"],
            compute_utilization=given["compute_util"],
        ).value
        return {"bottleneck": found, "serde_name": found}
    if kind == "hardware":
        peak = decode_hardware(given).peak_throughput_tok_s
        return {"peak_throughput_tok_s": peak}
    if kind == "parity":
        sides = (decode_parity_profile(given[side]) for side in ("apr", "baseline"))
        return {"comparison": encode_parity(compare_parity(*sides))}
    return scored(given)


def scored(given: Any) -> dict[str, Any]:
    """Return a scorecard and its probe in the words of the vectors."""
    scorecard = training_scorecard(
        decode_step_profile(given["profile"]),
        throughput=given["throughput_tok_s"],
        hardware=decode_hardware(given["hw"]),
        baseline=given["baseline"] and decode_scorecard(given["baseline"]),
    )
    encoded = encode_scorecard(scorecard)
    encoded["recommendations_count"] = len(encoded.pop("recommendations"))
    return {
        "probe": {
            "launch_overhead": scorecard.launch_fraction,
            "peak_throughput_tok_s": scorecard.peak_throughput_tok_s,
            "transfer_pct": scorecard.transfer_fraction,
        },
        "scorecard": encoded,
    }


def profile(*, step_ms: float = 100.0, **phases: float) -> StepProfile:
    """Return a profile whose phases take so much of a step of 100 ms."""
    return StepProfile(
        avg_step_ms=step_ms,
        wall_coverage=0.9,
        phases={
            name: Phase(total_ms=ms, pct=ms, avg_ms=ms) for name, ms in phases.items()
        },
    )


def score(
    steps: StepProfile, throughput: float = 50.0, **options: Any
) -> TrainingScorecard:
    """Return a scorecard on hardware that allows 100 tokens/s."""
    return training_scorecard(steps, throughput=throughput, hardware=UNIT, **options)


def one_layer(**ops: float) -> StepProfile:
    """Return a profile of one layer with these operations."""
    layer = Layer(layer=0, fwd_ms=1.0, bwd_ms=2.0, ops=ops)
    return replace(profile(forward=95.0), per_layer=(layer,))


def test_every_vector_is_of_a_known_kind() -> None:
    """A vector that no test reads would prove nothing."""
    assert Counter(vector["kind"] for vector in vectors()) == {
        "classify": 8,
        "deserialize": 3,
        "grade": 6,
        "hardware": 1,
        "parity": 11,
        "scorecard": 30,
        "scorecard_baseline": 21,
    }


@pytest.mark.parametrize(
    "vector",
    [vector for vector in vectors() if vector["kind"] != "deserialize"],
    ids=lambda vector: f"{vector['kind']}-{vector['id']}-{vector['tag']}",
)
def test_the_answers_are_those_of_the_other_program(vector: dict[str, Any]) -> None:
    """To the last bit of every float, unless the input is refused by name."""
    if (vector["kind"], vector["tag"]) in REFUSED:
        with pytest.raises(RecordError, match="not a finite number"):
            answer(vector["kind"], vector["input"])
        return

    ours = answer(vector["kind"], vector["input"])

    assert json.dumps(ours, sort_keys=True) == json.dumps(
        vector["output"], sort_keys=True
    )


def test_every_refusal_is_of_a_vector() -> None:
    """A deviation that no vector has any more would be a dead letter."""
    assert {(vector["kind"], vector["tag"]) for vector in vectors()} >= REFUSED


@pytest.mark.parametrize("wrong", [None, "1", 10**400])
def test_what_is_no_throughput_has_no_scorecard(wrong: Any) -> None:
    """The argument is named, and the remedy is to measure."""
    with pytest.raises(RecordError) as raised:
        training_scorecard(StepProfile(), throughput=wrong, hardware=UNIT)

    assert raised.value.path == "throughput"
    assert raised.value.remedy == "give what was measured"


@pytest.mark.parametrize("card", [training_scorecard, measured_scorecard])
def test_parsed_json_is_no_record(card: Callable[..., object]) -> None:
    """All that is wrong is told, each with the function that makes a record of it."""
    with pytest.raises(RecordError) as raised:
        card({"steps": 1}, throughput=None, hardware={"peak_bw_gb_s": 1})

    assert raised.value.message == (
        "profile: {'steps': 1} is not a StepProfile; decode_step_profile makes one of "
        "JSON; hardware: {'peak_bw_gb_s': 1} is not a Hardware; decode_hardware makes one "
        "of JSON; throughput: None is not a number"
    )


def test_a_parsed_baseline_is_no_record() -> None:
    """It is refused like the other arguments, before its numbers are asked for."""
    base: Any = {"efficiency": 1}

    with pytest.raises(RecordError, match="decode_scorecard makes one") as raised:
        score(StepProfile(), baseline=base)

    assert raised.value.path == "baseline"


def test_sums_are_not_compensated() -> None:
    """Python 3.12's sum gives 2.0 where the files in the wild have 1.0."""
    assert added([1e100, 1.0, -1e100, 1.0]) == 1.0
    assert added([0.1] * 10) == 0.9999999999999999
    assert added([]) == 0.0


@given(
    phases=st.dictionaries(NAMES, TIMES, max_size=6),
    ops=st.dictionaries(NAMES, TIMES, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_a_file_changes_nothing(
    phases: dict[str, float], ops: dict[str, float], order: Random
) -> None:
    """Maps are read in the order of their names, to the last bit."""

    def shuffled(numbers: dict[str, float]) -> dict[str, float]:
        items = list(numbers.items())
        order.shuffle(items)
        return dict(items)

    def card(times: dict[str, float], work: dict[str, float]) -> TrainingScorecard:
        layers = (Layer(layer=0, fwd_ms=1.0, bwd_ms=2.0, ops=work),) * 2
        return score(replace(profile(**times), per_layer=layers))

    assert card(phases, ops) == card(shuffled(phases), shuffled(ops))


@pytest.mark.parametrize(
    ("throughput", "efficiency"),
    [(-5.0, 0.0), (0.0, 0.0), (100.0, 1.0), (1e308, 1.0), (60.0, 0.6)],
)
def test_efficiency_is_cut_to_one(throughput: float, efficiency: float) -> None:
    """A wrong work model cannot be seen in it: the other policy shows it."""
    assert score(profile(), throughput).efficiency == efficiency


def test_minus_zero_stays_what_it_is() -> None:
    """A clamp compares, and minus zero is not below zero."""
    assert math.copysign(1.0, score(profile(), -0.0).efficiency) == -1.0


@pytest.mark.parametrize(("bandwidth", "size"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 0.0)])
def test_no_peak_is_no_efficiency(bandwidth: float, size: float) -> None:
    """A peak that is zero, below it or NaN grades everything F."""
    hardware = Hardware(peak_bw_gb_s=bandwidth, bytes_per_token=size)
    card = training_scorecard(profile(), throughput=9.0, hardware=hardware)

    assert (card.efficiency, card.grade) == (0.0, Grade.F)


@given(
    one=st.floats(min_value=0, max_value=1e6),
    other=st.floats(min_value=0, max_value=1e6),
)
def test_more_throughput_is_never_graded_worse(one: float, other: float) -> None:
    """Of two runs on one machine the faster has the better grade, or the same."""
    low, high = sorted((one, other))
    grades = [score(profile(), each).grade for each in (low, high)]

    assert grades[0] <= grades[1]


@given(
    throughput=st.floats(min_value=0.1, max_value=1e3),
    power=st.integers(min_value=-20, max_value=20),
)
def test_the_unit_of_work_does_not_matter(throughput: float, power: int) -> None:
    """Twice the tokens of half the size are the same efficiency."""
    scale = 2.0**power
    hardware = replace(UNIT, bytes_per_token=UNIT.bytes_per_token / scale)
    scaled = training_scorecard(
        profile(), throughput=throughput * scale, hardware=hardware
    )

    assert scaled.efficiency == score(profile(), throughput).efficiency


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("h2d", True),
        ("grad_h2d", True),
        ("d2h", True),
        ("path2d2htable", True),
        ("H2D", False),
        ("memcpyHtoD", False),
    ],
)
def test_a_copy_is_known_by_a_part_of_its_name(name: str, copies: bool) -> None:
    """Case counts, and so does a word that only looks like it."""
    assert score(profile(**{name: 60.0})).transfer_fraction == (0.6 if copies else 0.0)


def test_a_phase_with_both_words_counts_once() -> None:
    """It is one phase, however it is named."""
    assert score(profile(h2d_d2h=20.0)).transfer_fraction == 0.2


def test_copies_are_told_by_percent_and_gaps_by_time() -> None:
    """The two shares of one file may contradict each other."""
    both = Phase(total_ms=10.0, pct=250.0, avg_ms=7.0)
    card = score(replace(profile(), phases={"h2d": both}))

    assert (card.transfer_fraction, card.launch_fraction) == (2.5, 0.9)


@pytest.mark.parametrize(
    ("step_ms", "phase_ms", "share"),
    [
        (100.0, None, 1.0),
        (0.0, 50.0, 0.0),
        (-1.0, 50.0, 0.0),
        (100.0, 130.0, 0.0),
        (100.0, -20.0, 1.2),
        (100.0, 70.0, 0.30000000000000004),
    ],
)
def test_what_is_in_no_phase_counts_as_launching(
    step_ms: float, phase_ms: float | None, share: float
) -> None:
    """So no phases at all are pure overhead, and a step of no time has none."""
    phases = {} if phase_ms is None else {"forward": phase_ms}
    card = score(profile(step_ms=step_ms, **phases))

    assert card.launch_fraction == share


def test_a_short_step_is_a_step() -> None:
    """Half a millisecond in no phase is launching as much as a long one."""
    assert score(profile(step_ms=0.5)).launch_fraction == 1.0
    assert score(profile(step_ms=0.5, forward=0.25)).launch_fraction == 0.5


def test_of_equal_operations_the_last_name_is_the_top_one() -> None:
    """A layer's longest operation and the list of all break ties in other ways."""
    card = score(one_layer(b=5.0, a=5.0, c=1.0))

    assert card.per_layer_summary[0].top_op == "b"
    assert [spot.name for spot in card.hotspot_ops] == ["a", "b", "c"]


def test_only_ten_operations_are_kept_and_shares_are_of_all() -> None:
    """What was cut off still counts in the total."""
    card = score(one_layer(**{f"op{n:02}": 1.0 for n in range(20)}))

    assert [spot.name for spot in card.hotspot_ops] == [f"op{n:02}" for n in range(10)]
    assert {spot.pct for spot in card.hotspot_ops} == {5.0}


def test_operations_that_cancel_have_no_share() -> None:
    """A total that is not above zero divides nothing."""
    card = score(one_layer(a=5.0, b=-5.0))

    assert [spot.pct for spot in card.hotspot_ops] == [0.0, 0.0]
    assert card.per_layer_summary[0].top_op_pct == 0.0


def test_the_overall_ratio_is_the_mean_of_those_above_zero() -> None:
    """A layer without one of its passes is left out."""
    passes = [(1.0, 2.0), (4.0, 4.0), (0.0, 9.0), (1.0, 0.0), (1.0, -3.0), (-1.0, 1.0)]
    layers = tuple(
        Layer(layer=at, fwd_ms=fwd, bwd_ms=bwd) for at, (fwd, bwd) in enumerate(passes)
    )
    card = score(replace(profile(), per_layer=layers))

    assert card.forward_backward_ratio == 1.5
    assert [each.ratio for each in card.per_layer_summary] == [2, 1, 0, 0, -3, 0]


def baseline(**fields: float) -> TrainingScorecard:
    """Return a scorecard of 100 tokens/s and 100 ms with full coverage."""
    card = score(profile(forward=95.0), 100.0)
    return replace(card, **{"wall_coverage": 0.9, **fields})


@pytest.mark.parametrize(
    ("now", "base", "severity"),
    [
        (27.0, 30.0, None),
        (math.nextafter(27.0, 0.0), 30.0, "warning"),
        (80.0, 100.0, "warning"),
        (2.4, 3.0, "critical"),
        (5.6, 7.0, "critical"),
        (0.0, 1.0, "critical"),
        (1.0, 0.0, None),
        (1.0, -4.0, None),
    ],
)
def test_throughput_may_fall_by_a_tenth(
    now: float, base: float, severity: str | None
) -> None:
    """The floats decide at the limit: 2.4 of 3.0 is more than a fifth less."""
    found = score(profile(), now, baseline=baseline(throughput_tok_s=base)).regressions
    flagged = [each.severity for each in found if each.metric == "throughput_tok_s"]

    assert flagged == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("now", "base", "severity"),
    [
        (110.0, 100.0, None),
        (1.1, 1.0, "warning"),
        (7.7, 7.0, "warning"),
        (120.0, 100.0, "warning"),
        (121.0, 100.0, "critical"),
        (0.0, 100.0, None),
        (100.0, 0.0, None),
        (0.9, 0.5, "critical"),
    ],
)
def test_a_step_may_take_a_tenth_more(
    now: float, base: float, severity: str | None
) -> None:
    """A step time of zero is skipped on either side."""
    found = score(
        profile(step_ms=now), 100.0, baseline=baseline(step_time_ms=base)
    ).regressions

    assert [each.severity for each in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("now", "base", "flagged"),
    [
        (0.85, 0.9, True),
        (0.90, 0.95, False),
        (0.05, 0.1, False),  # of these the difference is the limit to the last bit
        (0.0, 0.9, False),
        (0.5, 0.0, False),
    ],
)
def test_coverage_may_fall_by_five_points(
    now: float, base: float, flagged: bool
) -> None:
    """Its loss is absolute and never critical; a total loss is not seen."""
    steps = replace(profile(), wall_coverage=now)
    found = score(steps, 100.0, baseline=baseline(wall_coverage=base)).regressions

    assert [each.severity for each in found] == (["warning"] if flagged else [])


def test_regressions_stand_in_a_fixed_order() -> None:
    """Throughput, step time, coverage."""
    steps = replace(profile(step_ms=200.0), wall_coverage=0.1)
    found = score(steps, 1.0, baseline=baseline()).regressions

    assert [each.metric for each in found] == [
        "throughput_tok_s",
        "step_time_ms",
        "wall_coverage",
    ]


def test_limits_can_be_set() -> None:
    """The numbers of the rules are a record that a caller can replace."""
    policy = ReferencePolicy(
        bands=Bands(a=0.9, b=0.8, c=0.7, d=0.4), warning=0.01, hotspot_count=1
    )
    steps = one_layer(a=1.0, b=2.0)
    card = score(steps, 50.0, policy=policy, baseline=baseline(throughput_tok_s=51.0))

    assert card.grade is Grade.D
    assert [spot.name for spot in card.hotspot_ops] == ["b"]
    assert [each.metric for each in card.regressions] == ["throughput_tok_s"]
    assert score(steps).hotspot_ops[1].name == "a"
    assert ReferencePolicy() == REFERENCE
    patient = ReferencePolicy(
        bottleneck=replace(BOTTLENECK_LIMITS, launch_fraction=1.0)
    )
    assert score(profile()).bottleneck is Bottleneck.LAUNCH
    assert score(profile(), policy=patient).bottleneck is Bottleneck.MEMORY_BW


def test_what_is_not_finite_is_refused_with_all_its_fields() -> None:
    """Throughput and baseline are named in one message."""
    older = baseline(
        throughput_tok_s=math.nan, step_time_ms=-math.inf, wall_coverage=math.inf
    )
    with pytest.raises(RecordError) as raised:
        score(profile(), math.inf, baseline=older)

    assert raised.value.path == "throughput"
    assert "baseline.throughput_tok_s: nan" in raised.value.message
    assert "baseline.step_time_ms: -inf" in raised.value.message
    assert "baseline.wall_coverage: inf" in raised.value.message
    assert raised.value.remedy


def test_finite_numbers_may_overflow() -> None:
    """The other program gives infinity too; only what comes in must be finite."""
    tiny = Layer(layer=0, fwd_ms=1e-300, bwd_ms=1e300)
    card = score(replace(profile(), per_layer=(tiny,)))

    assert card.forward_backward_ratio == math.inf


def fired(card: TrainingScorecard) -> list[str]:
    """Return the ids of the rules that fired."""
    return [each.rule for each in card.recommendations]


@pytest.mark.parametrize(
    ("throughput", "phases", "rules"),
    [
        (39.0, {"h2d": 31.0, "forward": 69.0}, ["slow-transfer"]),
        (20.0, {"forward": 59.0}, ["slow-launch"]),
        (19.0, {"forward": 59.0}, ["slow-launch", "unexplained-time"]),
        (39.0, {"forward": 99.0}, ["slow-memory"]),
        (19.0, {"forward": 70.0}, ["slow-memory", "unexplained-time"]),
        (19.0, {"forward": 75.0}, ["slow-memory"]),
        (40.0, {"h2d": 90.0}, []),
        (90.0, {}, []),
    ],
)
def test_advice_is_for_bad_grades(
    throughput: float, phases: dict[str, float], rules: list[str]
) -> None:
    """C and worse get the bottleneck's; D and F a second where much is unexplained."""
    assert fired(score(profile(**phases), throughput)) == rules


@pytest.mark.parametrize(("share", "fires"), [(0.30, False), (0.31, True)])
def test_a_timeline_is_advised_above_a_share(share: float, fires: bool) -> None:
    """Not at 30 % of the step without a phase, but above."""
    steps = profile(forward=99.0)
    card = replace(score(steps, 10.0), launch_fraction=share)
    advice = recommendations(card, steps, rules=RULES)

    assert ("unexplained-time" in {each.rule for each in advice}) is fires


def test_slow_arithmetic_has_advice_of_its_own() -> None:
    """Its bands must reach above a half for that."""
    policy = ReferencePolicy(bands=Bands(a=0.9, b=0.8, c=0.5, d=0.4))
    card = score(profile(forward=99.0), 60.0, policy=policy)

    assert fired(card) == ["slow-compute"]


@pytest.mark.parametrize(("backward", "fires"), [(0.5, True), (1.0, False), (0, False)])
def test_a_fast_backward_pass_is_doubted_at_any_grade(
    backward: float, fires: bool
) -> None:
    """A ratio of zero means that none is known."""
    layer = Layer(layer=0, fwd_ms=1.0, bwd_ms=backward)
    card = score(replace(profile(forward=99.0), per_layer=(layer,)), 99.0)

    assert fired(card) == (["fast-backward"] if fires else [])


def test_advice_shows_what_made_it_fire() -> None:
    """Every rule has its own id, its condition in words, and numbers."""
    card = score(profile(forward=50.0), 5.0)
    first = card.recommendations[0]

    assert len({rule.id for rule in RULES}) == len(RULES)
    assert first.evidence == {"launch_fraction": 0.5}
    assert first.condition.startswith("grade C or worse")
    assert len(first.text) > 40


def test_rules_can_be_given() -> None:
    """A rule is data: an id, a condition, evidence and a text."""
    rule: Rule[TrainingScorecard] = Rule(
        id="few-steps",
        condition="fewer than ten steps",
        fires=lambda _, steps: steps.steps < 10,
        evidence=("efficiency",),
        text="Profile more steps.",
    )
    steps = replace(profile(), steps=3)

    assert fired(score(steps, rules=(rule,))) == ["few-steps"]
    assert recommendations(score(steps), replace(steps, steps=10), rules=(rule,)) == ()


def test_the_presets_have_names() -> None:
    """The two machines whose numbers others ship."""
    assert set(HARDWARE) == {"rtx-4060-laptop", "gb10"}


@pytest.mark.parametrize(
    "vector",
    [vector for vector in vectors() if vector["kind"] == "deserialize"],
    ids=lambda vector: vector["tag"],
)
def test_the_same_files_can_be_read(vector: dict[str, Any]) -> None:
    """What the other program's reader refuses, and nothing else, is refused."""
    decoders: dict[str, Callable[[object], object]] = {
        "StepProfilerInput": decode_step_profile,
        "ParityProfile": decode_parity_profile,
    }
    decode = decoders[vector["input"]["type"]]
    if "error" in vector["output"]:
        with pytest.raises(RecordError):
            decode(load_json(vector["input"]["text"]))
        return

    record = decode(load_json(vector["input"]["text"]))

    assert {name: getattr(record, name) for name in vector["output"]["ok"]} == vector[
        "output"
    ]["ok"]
