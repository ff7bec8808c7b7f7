"""Rules of model.reference_json: the JSON of other tools."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.codec import (
    decode_hardware,
    decode_parity_profile,
    decode_scorecard,
    decode_step_profile,
    encode_scorecard,
    encode_step_profile,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.reference_json import load_json
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.scorecard import Bottleneck, Hotspot, Recommendation
from pytest_gpuperf.model.steps import Layer, Phase, SpanKind, StepProfile

PHASE = {"total_ms": 4, "pct": 40.0, "avg_ms": 4}
LAYER = {"layer": 0, "fwd_ms": 1, "bwd_ms": 2.5}
PARITY: dict[str, Any] = {
    "runtime": "ours",
    "throughput_tok_s": 1,
    "step_time_ms": 2.0,
    "kernel_launches_per_step": 3,
    "ops": {"gemm": 1},
}
SCORECARD: dict[str, Any] = {
    "grade": "B",
    "efficiency": 0.5,
    "bottleneck": "memory_bw",
    "throughput_tok_s": 50,
    "step_time_ms": 100,
    "forward_backward_ratio": 2.0,
    "wall_coverage": 0.9,
    "per_layer_summary": [
        {**LAYER, "ratio": 2.5, "top_op": "gemm", "top_op_pct": 60.0},
    ],
    "hotspot_ops": [["gemm", 3, 60.0], ["add", 2.0, 40.0]],
    "regressions": [{"metric": "step_time_ms", "delta": 0.3, "severity": "critical"}],
    "recommendations": ["Do less."],
}
TIMES = st.floats(min_value=0, max_value=1e9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
PHASES = st.builds(
    Phase,
    total_ms=TIMES,
    pct=TIMES,
    avg_ms=TIMES,
    kind=st.none() | st.sampled_from(SpanKind),
    exclusive_ms=st.none() | TIMES,
)
LAYERS = st.builds(
    Layer,
    layer=st.integers(0, 2**64 - 1),
    fwd_ms=TIMES,
    bwd_ms=TIMES,
    ops=st.dictionaries(NAMES, TIMES, max_size=3),
)
PROFILES = st.builds(
    StepProfile,
    steps=st.integers(0, 2**64 - 1),
    avg_step_ms=TIMES,
    wall_coverage=TIMES,
    phases=st.dictionaries(NAMES, PHASES, max_size=3),
    per_layer=st.lists(LAYERS, max_size=3).map(tuple),
    bottleneck=st.none() | NAMES,
    gemm_pct=TIMES,
    total_ms=TIMES,
    step_ms=st.lists(TIMES, max_size=4).map(tuple),
)


def refused(decode: Callable[[object], object], obj: object) -> str:
    """Return the message with which an object is refused."""
    with pytest.raises(RecordError) as raised:
        decode(obj)
    assert raised.value.remedy
    return raised.value.message


def test_every_field_of_a_step_profile_may_be_missing() -> None:
    """It is zero then, as others mean it, and known to be missing."""
    profile = decode_step_profile({})

    assert replace(profile, absent=frozenset()) == StepProfile()
    assert profile.absent == {
        "steps",
        "avg_step_ms",
        "wall_coverage",
        "phases",
        "per_layer",
        "bottleneck",
        "gemm_pct",
        "total_ms",
    }
    assert "steps" not in decode_step_profile({"steps": 0}).absent


@given(PROFILES)
def test_a_profile_reads_back_as_it_was_written(profile: StepProfile) -> None:
    """Nothing is lost on the way through a file."""
    text = json.dumps(encode_step_profile(profile))

    assert decode_step_profile(load_json(text), ours=True) == profile


def test_what_was_missing_stays_missing() -> None:
    """A zero that nobody measured is not written as one that was."""
    profile = decode_step_profile({"steps": 3})

    assert encode_step_profile(profile) == {"steps": 3}


def test_only_our_own_policy_reads_our_own_fields() -> None:
    """Others ignore them, so they may hold anything there."""
    obj = {"phases": {"load": {**PHASE, "kind": 7}}, "step_ms": "many"}
    good = {"phases": {"load": {**PHASE, "kind": "data"}}, "step_ms": [1, 2]}

    assert decode_step_profile(obj).phases["load"].kind is None
    message = refused(lambda each: decode_step_profile(each, ours=True), obj)
    assert "phases.load.kind: 7 is not a text" in message
    assert "step_ms: 'many' is not a list" in message
    profile = decode_step_profile(good, ours=True)
    assert profile.phases["load"].kind is SpanKind.DATA
    assert profile.step_ms == (1.0, 2.0)


def test_unknown_fields_are_let_through() -> None:
    """A newer writer may say more."""
    hardware = decode_hardware({"peak_bw_gb_s": 1, "bytes_per_token": 2, "sm": None})

    assert hardware.bytes_per_token == 2.0
    assert decode_step_profile({"new": {"a": [None]}}) == decode_step_profile({})


def test_whole_numbers_stand_for_floats() -> None:
    """JSON has one kind of number."""
    hardware = decode_hardware({"peak_bw_gb_s": 1, "bytes_per_token": 2**60})

    assert hardware.peak_bw_gb_s == 1.0
    assert isinstance(hardware.bytes_per_token, float)


@pytest.mark.parametrize(
    "wrong", [None, True, "1", [], {}, float("nan"), float("inf"), 10**400]
)
def test_what_is_no_finite_number_is_none(wrong: object) -> None:
    """Null and true are none either, though Python counts true as 1."""
    message = refused(decode_step_profile, {"avg_step_ms": wrong})

    assert message.startswith("avg_step_ms: ")


@pytest.mark.parametrize("wrong", [-1, 1.5, 2.0, -0.0, True, None, 2**64, "1"])
def test_a_count_is_whole_and_has_no_sign(wrong: object) -> None:
    """64 bits wide; 2.0 is not a count."""
    assert "steps: " in refused(decode_step_profile, {"steps": wrong})
    assert decode_step_profile({"steps": 2**64 - 1}).steps == 2**64 - 1


def test_all_mistakes_of_a_file_are_told() -> None:
    """With their places, however deep they stand."""
    obj = {
        "steps": -1,
        "phases": {"h2d": {"pct": None, "avg_ms": 1}, "loss": 3},
        "per_layer": [LAYER, {"layer": 1, "fwd_ms": 1, "ops": {"gemm": "x"}}],
        "bottleneck": 5,
    }

    assert refused(decode_step_profile, obj).split("; ") == [
        "steps: -1 is not a whole number from 0",
        "phases.h2d.total_ms: it is missing",
        "phases.h2d.pct: null is not a number",
        "phases.loss: 3 is not an object",
        "per_layer[1].bwd_ms: it is missing",
        "per_layer[1].ops.gemm: 'x' is not a number",
        "bottleneck: 5 is not a text",
    ]


@pytest.mark.parametrize(
    ("decode", "obj"),
    [
        (decode_step_profile, {"steps": 3}),
        (decode_hardware, {"peak_bw_gb_s": 1, "bytes_per_token": 2}),
        (decode_scorecard, SCORECARD),
        (decode_parity_profile, PARITY),
    ],
)
def test_the_text_of_an_object_is_read_too(
    decode: Callable[[object], object], obj: object
) -> None:
    """As `load_json` reads it: NaN is none, and no field is there twice."""
    text = json.dumps(obj)
    name = next(iter(json.loads(text)))

    assert decode(text) == decode(text.encode()) == decode(obj)
    assert refused(decode, '{"a": NaN}').startswith("it is not JSON")
    assert refused(decode, b"\xff").startswith("it is not JSON")
    twice = text[:-1] + f', "{name}": 1}}'
    assert f"{name}: it is there twice" in refused(decode, twice)


@pytest.mark.parametrize("obj", [None, [], '"x"', 1])
def test_only_an_object_is_a_record(obj: object) -> None:
    """A list of fields without their names is not read, and misses none."""
    assert refused(decode_hardware, obj).endswith(" is not an object")


@pytest.mark.parametrize("name", sorted(PARITY))
def test_parity_needs_all_of_its_fields(name: str) -> None:
    """None of them has a default."""
    rest = {key: value for key, value in PARITY.items() if key != name}

    assert refused(decode_parity_profile, rest) == f"{name}: it is missing"
    assert decode_parity_profile(PARITY).ops == {"gemm": 1.0}


@pytest.mark.parametrize("name", sorted(SCORECARD))
def test_a_scorecard_needs_all_of_its_fields(name: str) -> None:
    """A baseline with a hole would compare with nothing."""
    rest = {key: value for key, value in SCORECARD.items() if key != name}

    assert refused(decode_scorecard, rest) == f"{name}: it is missing"


def test_a_scorecard_reads_back_as_it_was_written() -> None:
    """The texts of its advice are kept; what made them fire is not in the file."""
    scorecard = decode_scorecard(SCORECARD)

    assert encode_scorecard(scorecard) == SCORECARD
    assert scorecard.bottleneck is Bottleneck.MEMORY_BW
    assert scorecard.hotspot_ops[0] == Hotspot(name="gemm", ms=3.0, pct=60.0)
    assert scorecard.recommendations == (Recommendation(text="Do less."),)


def test_numbers_of_numpy_are_written_as_builtins() -> None:
    """A profile that a program made of arrays is a file like any other."""
    profile = StepProfile(steps=np.int64(3), avg_step_ms=np.float64(2.5))  # type: ignore[arg-type] # an int to any reader
    plain = encode_step_profile(profile)

    assert {type(plain["steps"]), type(plain["avg_step_ms"])} == {int, float}
    assert (plain["steps"], plain["avg_step_ms"]) == (3, 2.5)


def test_the_grade_of_a_file_is_any_text() -> None:
    """It is never read by a comparison; a known letter becomes a grade."""
    assert decode_scorecard(SCORECARD).grade is Grade.B
    assert decode_scorecard({**SCORECARD, "grade": "S+"}).grade == "S+"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bottleneck", "gpu", "'gpu' is not one of its values"),
        ("hotspot_ops", [["gemm", 3]], "2 values where there must be 3"),
        ("hotspot_ops", [{"name": "x"}], "an object is not a list"),
        ("hotspot_ops", [[1, 2, 3]], "hotspot_ops[0][0]: 1 is not a text"),
        ("efficiency", None, "null is not a number"),
        ("recommendations", [1], "recommendations[0]: 1 is not a text"),
        ("per_layer_summary", {}, "an object is not a list"),
    ],
)
def test_a_wrong_scorecard_is_refused(field: str, value: object, message: str) -> None:
    """One that holds NaN was written with null, and cannot be read again."""
    assert message in refused(decode_scorecard, {**SCORECARD, field: value})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"avg_step_ms":NaN}',
        '{"a":-Infinity}',
        b"\xff{}",
        "[" * 100_000,
        "{}x",
    ],
    ids=["open", "nan", "infinity", "not-utf8", "deep", "more"],
)
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    """NaN and Infinity are words of Python's reader alone."""
    with pytest.raises(RecordError, match=r"f\.json: it is not JSON"):
        load_json(text, path="f.json")
    with pytest.raises(RecordError, match=r"f\.json: it is empty"):
        load_json("\n", path="f.json")


def test_a_field_that_is_there_twice_is_refused() -> None:
    """Nobody knows which of them was meant."""
    text = '{"steps": 1, "steps": 1, "phases": {"a": {"pct": 1, "pct": 2}}}'
    message = refused(decode_step_profile, load_json(text))

    assert message.startswith("steps: it is there twice")
    assert "phases.a.pct: it is there twice" in message


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    """In a map of names, and among fields that nobody reads."""
    text = '{"x": 1, "x": 2, "per_layer": [{"layer": 0, "fwd_ms": 1, "bwd_ms": 1,'
    layers = decode_step_profile(load_json(text + '"ops": {"a": 1, "a": 2}}]}'))

    assert layers.per_layer[0].ops == {"a": 2.0}


def test_minus_zero_is_no_count() -> None:
    """It is a float with a sign, and one as a time."""
    assert refused(decode_step_profile, load_json('{"steps": -0}'))
    assert decode_step_profile(load_json('{"total_ms": -0}')).total_ms == 0.0


def test_half_a_character_is_refused() -> None:
    """A lone surrogate cannot be written as UTF-8 again."""
    text = '{"bottleneck": "\\ud800", "phases": {"\\udc00": {}}}'
    message = refused(decode_step_profile, load_json(text))

    assert message.count("contains a lone surrogate") == 2


def test_a_number_beyond_all_floats_is_refused() -> None:
    """Python reads 1e400 as infinity."""
    assert "is not a finite number" in refused(
        decode_step_profile, load_json('{"total_ms": 1e400}')
    )


def test_codec_has_the_names_and_loads_them_late() -> None:
    """A measured run imports the codec and has no use for scorecards."""
    program = (
        "import sys; from pytest_gpuperf.model import codec; "
        "late = 'pytest_gpuperf.model.reference_json'; "
        "assert late not in sys.modules; codec.decode_scorecard; "
        "assert late in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    for name in codec.__all__:
        assert getattr(codec, name)
    with pytest.raises(AttributeError, match="no attribute 'decode_nothing'"):
        codec.decode_nothing  # noqa: B018 - reading it is the test
