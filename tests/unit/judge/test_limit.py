"""The rules of judge/limit and judge/selection: one limit, one record, four verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.spread import Z_95, Spread, process_spread
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import doubted, judge_limit
from pytest_gpuperf.judge.look import straddles
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Note, Record, Void, VoidCode
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import (
    KEY,
    case,
    confirmation,
    estimate,
    gap_of,
    of_sessions,
    record,
)

US = 1e-6
Z = 2.5758293035489004  # two-sided 99 %


def judged(text: str, *estimates: Estimate, **fields: object) -> Verdict:
    """The verdict of a limit on a record of some estimates."""
    known = {e.metric for e in estimates}
    return judge_limit(parse_limit(text, names=known), record(*estimates, **fields))


def by_events(value: float, text: str, *, note: bool = True) -> Verdict:
    """The verdict on a time by events that holds up to 10 us of the launch."""
    held = Note(code="holds-launch", text="up to 10 us are the host's launch")
    return judged(
        text,
        estimate(value, source="events"),
        estimate(10 * US, "time.host", source="host"),
        notes=(held,) if note else (),
    )


@pytest.mark.parametrize(
    ("code", "full_us", "doubt", "outcome"),
    [
        ("less-work", 900, True, Outcome.INCONCLUSIVE),
        ("less-work", 600, True, Outcome.IMPROVED),
        ("less-work", 900, False, Outcome.IMPROVED),
        ("lazy-result", None, True, Outcome.INCONCLUSIVE),
        ("background-work", None, True, Outcome.IMPROVED),
    ],
)
def test_an_improvement_of_doubtful_work_is_undecided(
    code: str, full_us: float | None, outcome: Outcome, *, doubt: bool
) -> None:
    """Unless a call with all the work is faster than the baseline, too."""
    one = case(500 * US, [900 * US] * 3)
    (verdict,) = settle([one], {one.name: confirmation(*[500 * US] * 5)})
    full_s = None if full_us is None else full_us * US
    note = Note(code=code, text="it is doubtful", doubt=doubt, full_s=full_s)
    told = doubted(verdict, [record(estimate(500 * US), notes=(note,))])

    assert verdict.outcome is Outcome.IMPROVED
    assert told.outcome is outcome
    assert (told.reason is Reason.IN_DOUBT) == (outcome is Outcome.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("metric", "limit", "outcome"),
    [
        ("time", "1 ms", Outcome.PASSED),
        ("time", "80 us", Outcome.INCONCLUSIVE),
        ("time.with_gc", "1 ms", Outcome.PASSED),
        ("time.with_gc", "80 us", Outcome.INCONCLUSIVE),
        ("time.p95", "1 ms", Outcome.INCONCLUSIVE),
    ],
)
def test_a_limit_that_a_call_with_its_garbage_keeps_is_passed(
    metric: str, limit: str, outcome: Outcome
) -> None:
    """The metric of garbage is not in doubt because of the garbage that it has."""
    note = Note(code="leaves-garbage", text="garbage", doubt=True, full_s=90 * US)
    measured = record(estimate(65 * US, metric), notes=(note,))
    verdict = judge_limit(parse_limit(f"{metric} <= {limit}", names={metric}), measured)

    assert verdict.outcome is Outcome.PASSED
    assert doubted(verdict, [measured]).outcome is outcome


@pytest.mark.parametrize(
    ("value_us", "limit_us", "note", "outcome", "cause"),
    [
        (15, 20, True, Outcome.PASSED, None),
        (15, 8, True, Outcome.INCONCLUSIVE, Cause.STRADDLES_LAUNCH),
        (15, 8, False, Outcome.FAILED, None),
        (15, 4, True, Outcome.FAILED, None),
        (9, 1, True, Outcome.INCONCLUSIVE, Cause.STRADDLES_LAUNCH),
        (15, 15.1, True, Outcome.INCONCLUSIVE, None),
    ],
)
def test_the_launch_that_a_time_may_hold_is_in_the_interval(
    value_us: float,
    limit_us: float,
    outcome: Outcome,
    cause: Cause | None,
    *,
    note: bool,
) -> None:
    """A limit fails by the device's time alone; fresh processes would hold it as well."""
    verdict = by_events(value_us * US, f"time <= {limit_us} us", note=note)

    assert (verdict.outcome, verdict.cause) == (outcome, cause)
    assert verdict.low is not None
    assert verdict.low >= 0
    assert straddles(verdict) is (outcome is Outcome.INCONCLUSIVE and cause is None)


def test_five_processes_do_not_decide_what_the_launch_may_be() -> None:
    """All of them hold it, however far they are beyond the limit."""
    held = Note(code="holds-launch", text="up to 10 us are the host's launch")
    again = [record(estimate(15 * US, source="events"), notes=(held,))] * 5
    known = {"time", "time.host"}
    verdict = judge_limit(
        parse_limit("time <= 8 us", names=known),
        record(
            estimate(15 * US, source="events"),
            estimate(10 * US, "time.host", source="host"),
            notes=(held,),
        ),
        retest=retest(again),
    )

    assert (verdict.outcome, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Cause.STRADDLES_LAUNCH,
    )


@given(
    value_us=st.floats(1, 99), limit_us=st.floats(0.01, 200), held_us=st.floats(0, 150)
)
def test_what_is_above_a_limit_without_any_launch_fails(
    value_us: float, limit_us: float, held_us: float
) -> None:
    """Only the part that may be launch is in doubt, however large it is."""
    held = Note(code="holds-launch", text="a part may be the host's launch")
    verdict = judged(
        f"time <= {limit_us!r} us",
        estimate(value_us * US, source="events"),
        estimate(held_us * US, "time.host", source="host"),
        notes=(held,),
    )
    low_us = value_us * math.exp(-Z * 0.015) - min(held_us, value_us)
    if abs(low_us - limit_us) > 1e-9:
        assert (verdict.outcome is Outcome.FAILED) is (low_us > limit_us)


@pytest.mark.parametrize(
    ("again_us", "outcome"), [(30, Outcome.FAILED), (20, Outcome.INCONCLUSIVE)]
)
def test_processes_far_beyond_a_limit_decide_it_without_their_launch(
    again_us: float, outcome: Outcome
) -> None:
    """Five of them, as without a launch, and however much the sessions differ."""
    held = Note(code="holds-launch", text="up to 10 us are the host's launch")
    first = record(
        estimate(15 * US, source="events"),
        estimate(10 * US, "time.host", source="host"),
        notes=(held,),
    )
    again = [record(estimate(again_us * US, source="events"), notes=(held,))] * 5
    verdict = judge_limit(
        parse_limit("time <= 12 us", names={"time", "time.host"}),
        first,
        spread=Spread(fraction=2.0),
        retest=retest(again),
    )

    assert verdict.outcome is outcome


def retest(records: Iterable[Record]) -> Retest:
    """What fresh processes gave."""
    return Retest(records=tuple(records))


@pytest.mark.parametrize(
    ("value", "outcome", "reason"),
    [
        (57 * US, Outcome.PASSED, Reason.WITHIN_LIMIT),
        (60 * US * math.exp(-Z * 0.015) * 0.9999, Outcome.PASSED, Reason.WITHIN_LIMIT),
        (
            60 * US * math.exp(-Z * 0.015) * 1.0001,
            Outcome.INCONCLUSIVE,
            Reason.STRADDLES_LIMIT,
        ),
        (60 * US, Outcome.INCONCLUSIVE, Reason.STRADDLES_LIMIT),
        (
            60 * US * math.exp(Z * 0.015) * 0.9999,
            Outcome.INCONCLUSIVE,
            Reason.STRADDLES_LIMIT,
        ),
        (60 * US * math.exp(Z * 0.015) * 1.0001, Outcome.FAILED, Reason.BEYOND_LIMIT),
        (64 * US, Outcome.FAILED, Reason.BEYOND_LIMIT),
    ],
)
def test_the_interval_decides(value: float, outcome: Outcome, reason: Reason) -> None:
    """Wholly within passes, wholly beyond fails, else inconclusive: prior 1.5 %."""
    verdict = judged("time <= 60 us", estimate(value))

    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert verdict.low == pytest.approx(value * math.exp(-Z * 0.015))
    assert verdict.high == pytest.approx(value * math.exp(Z * 0.015))
    assert verdict.cause is None
    assert (verdict.key, verdict.metric) == (KEY, "time")
    assert verdict.limit == parse_limit("time <= 60 us")


@pytest.mark.parametrize(
    ("spread", "assumed"), [(None, True), (Spread(fraction=0.015), False)]
)
def test_an_assumed_interval_says_so(spread: Spread | None, *, assumed: bool) -> None:
    """Whoever reads the JSON can tell a prior from what sessions differ by."""
    limit = parse_limit("time <= 60 us")
    verdict = judge_limit(limit, record(estimate(60 * US)), spread=spread)

    assert verdict.assumed is assumed
    assert verdict.low is not None


def test_a_point_is_not_an_assumed_interval() -> None:
    """What is compared exactly has no interval at all."""
    assert not judged("registers == 64", estimate(64, "registers", unit="")).assumed


def test_a_lower_bound_is_its_mirror() -> None:
    """At least 80 % passes above, fails below, and straddles in between."""
    text = "roofline.fraction >= 80 %"
    assert judged(text, estimate(0.85, "roofline.fraction")).outcome is Outcome.PASSED
    assert judged(text, estimate(0.75, "roofline.fraction")).outcome is Outcome.FAILED
    straddling = judged(text, estimate(0.80, "roofline.fraction"))
    assert straddling.outcome is Outcome.INCONCLUSIVE


def test_equality_is_of_points() -> None:
    """An interval equals nothing: a number of one's own is met or not."""
    limit = parse_limit("loss == 2", names={"loss"})
    spread = of_sessions(0.05, 4)

    def verdict(value: float) -> Verdict:
        found = record(estimate(value, "loss", source="user"), kind=Kind.RECORD)
        return judge_limit(limit, found, spread=spread)

    assert (verdict(2.0).outcome, verdict(2.0).low) == (Outcome.PASSED, None)
    assert verdict(2.001).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("text", "value", "outcome"),
    [
        ("registers <= 64", 64.0, Outcome.PASSED),
        ("registers < 64", 64.0, Outcome.FAILED),
        ("registers >= 64", 64.0, Outcome.PASSED),
        ("registers > 64", 64.0, Outcome.FAILED),
        ("registers == 64", 64.0, Outcome.PASSED),
        ("registers == 64", 65.0, Outcome.FAILED),
        ("registers <= 64", 65.0, Outcome.FAILED),
    ],
)
def test_counts_are_compared_as_points(
    text: str, value: float, outcome: Outcome
) -> None:
    """A count has no spread; the operators differ at the limit itself."""
    verdict = judged(text, estimate(value, "registers"))

    assert verdict.outcome is outcome
    assert verdict.low is None


def test_host_time_has_the_wider_prior() -> None:
    """What the host's clock measured differs by 5 %: also `time` itself."""
    value = 55 * US
    by_host = judged("time <= 60 us", estimate(value, source="host"))
    by_device = judged("time <= 60 us", estimate(value))
    wall = judged("time.wall <= 60 us", estimate(value, "time.wall"))

    assert by_device.outcome is Outcome.PASSED
    assert by_host.outcome is wall.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("text", "source", "fraction"),
    [
        ("time <= 1 s", "cupti", 0.015),
        ("dram__bytes.sum <= 1", "cupti", 0.015),
        ("time <= 1 s", "host", 0.05),
    ],
)
def test_a_prior_is_of_who_measured(text: str, source: str, fraction: float) -> None:
    """Counters are taken on the device, so its spread is theirs."""
    metric = parse_limit(text).metric
    verdict = judged(text, estimate(1.0, metric, source=source))

    assert verdict.high == pytest.approx(math.exp(Z * fraction))


def test_a_spread_without_bounds_stays_a_number() -> None:
    """An interval of nine orders of magnitude says nothing, and is still one."""
    limit, wide = parse_limit("time <= 1 s"), Spread(fraction=1e6)
    verdict = judge_limit(limit, record(estimate(1.0)), spread=wide)

    assert (verdict.low, verdict.high) == pytest.approx((1e-9, 1e9))


@pytest.mark.parametrize("kind", [Kind.BINARY, Kind.CAPTURE])
def test_what_was_read_and_not_measured_is_a_point(kind: Kind) -> None:
    """A file has no spread: a captured time is compared as it stands."""
    verdict = judged("time <= 60 us", estimate(59.9 * US), kind=kind)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.low is None


def test_numbers_of_the_users_own_are_points_until_sessions_are_stored() -> None:
    """Nothing is assumed of a recorded number; a baseline gives it a spread."""
    value = estimate(0.99, "ttft", unit="s", source="user")
    limit = parse_limit("ttft <= 1 s", names={"ttft"})
    known = of_sessions(0.05, 4)

    plain = judge_limit(limit, record(value, kind=Kind.RECORD))
    spread = judge_limit(limit, record(value, kind=Kind.RECORD), spread=known)

    assert plain.outcome is Outcome.PASSED
    assert spread.outcome is Outcome.INCONCLUSIVE


def test_the_baselines_spread_replaces_the_prior() -> None:
    """Sessions that differ little narrow the interval, few of them widen it again."""
    value = record(estimate(59 * US))
    limit = parse_limit("time <= 60 us")

    def outcome(fraction: float, dof: int) -> Outcome:
        spread = of_sessions(fraction, dof)
        return judge_limit(limit, value, spread=spread).outcome

    assert outcome(0.002, 30) is Outcome.PASSED
    assert outcome(0.002, 1) is Outcome.INCONCLUSIVE
    assert outcome(0.02, 30) is Outcome.INCONCLUSIVE


def test_what_samples_leave_open_is_the_least_spread() -> None:
    """A value known to 10 % cannot be decided by a prior of 1.5 %."""
    wide = estimate(54 * US, low=48 * US, high=60 * US)
    verdict = judged("time <= 60 us", wide)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    known_to = 6 / 54 / Z_95
    assert verdict.high == pytest.approx(54 * US * math.exp(Z * known_to))
    assert verdict.low == pytest.approx(54 * US / math.exp(Z * known_to))


def test_what_samples_leave_open_does_not_depend_on_the_unit() -> None:
    """A value of 1 has a half-width as any other."""
    verdict = judged("time <= 2 s", estimate(1.0, low=0.9, high=1.1))

    assert verdict.high == pytest.approx(math.exp(Z * 0.1 / Z_95))


def test_a_comparison_brings_its_own_interval() -> None:
    """A speedup is judged by its ends; without them by the prior."""
    whole = estimate(1.5, "speedup", low=1.35, high=1.65)
    assert judged("speedup >= 1.3", whole, kind=Kind.COMPARE).outcome is Outcome.PASSED
    assert judged("speedup >= 1.4", whole, kind=Kind.COMPARE).low == 1.35
    bare = estimate(1.31, "speedup")
    verdict = judged("speedup >= 1.3", bare, kind=Kind.COMPARE)
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_what_the_store_shows_of_processes_widens_a_comparison() -> None:
    """Its own spread takes the place of the usual one, which the ends hold already."""
    usual = Z * process_spread("host")
    one = estimate(
        1.5,
        "speedup",
        source="host",
        low=1.5 * math.exp(-math.hypot(usual, 0.03)),
        high=1.5 * math.exp(math.hypot(usual, 0.04)),
    )
    seen = Spread(fraction=0.1)
    limit, subject = parse_limit("speedup >= 1.3"), record(one, kind=Kind.COMPARE)

    assert judge_limit(limit, subject).outcome is Outcome.PASSED
    verdict = judge_limit(limit, subject, spread=seen)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.low == pytest.approx(1.5 * math.exp(-math.hypot(0.1 * Z, 0.03)))
    assert verdict.high == pytest.approx(1.5 * math.exp(math.hypot(0.1 * Z, 0.04)))


@pytest.mark.parametrize(("count", "outcome"), [(2, "inconclusive"), (3, "passed")])
def test_a_comparison_in_several_processes_needs_no_guess(
    count: int, outcome: str
) -> None:
    """From three on they show by themselves what processes differ by."""
    subject = estimate(1.5, "speedup", low=1.2, high=1.8)
    again = [estimate(v, "speedup", low=1.2, high=1.8) for v in (1.5, 1.51, 1.49)]
    records = [record(e, kind=Kind.COMPARE) for e in again[:count]]
    verdict = judge_limit(
        parse_limit("speedup >= 1.3"),
        record(subject, kind=Kind.COMPARE),
        retest=retest(records),
    )

    assert verdict.outcome.value == outcome


def test_above_the_roof_is_no_pass() -> None:
    """More than 105 % of the roof is a wrong work model, whatever the limit."""
    text = "roofline.fraction >= 80 %"
    at_the_edge = judged(text, estimate(1.05, "roofline.fraction"))
    above = judged(text, estimate(1.0501, "roofline.fraction"))
    below = judged("roofline.fraction <= 90 %", estimate(1.2, "roofline.fraction"))

    strictly = judged("roofline.fraction > 80 %", estimate(1.0501, "roofline.fraction"))

    assert at_the_edge.outcome is Outcome.PASSED
    assert strictly.reason is Reason.ABOVE_THE_ROOF
    assert above.cause is None
    assert (above.outcome, above.reason) == (
        Outcome.INCONCLUSIVE,
        Reason.ABOVE_THE_ROOF,
    )
    assert below.outcome is Outcome.FAILED


def test_a_void_record_is_inconclusive() -> None:
    """A measurement that must not be judged is not, with its reason."""
    void = Void(code=VoidCode.HARDWARE_THERMAL, reason="the GPU was too hot")
    verdict = judged("time <= 60 us", estimate(90 * US), void=void)

    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.VOID)
    assert gap_of(verdict) == ("the GPU was too hot", "")
    assert (verdict.key, verdict.metric) == (KEY, "time")
    assert verdict.limit == parse_limit("time <= 60 us")


def test_a_void_record_says_what_to_do() -> None:
    """What its sentence tells to do is the remedy, with a value and without one."""
    void = Void(
        code=VoidCode.MUTATES_ITS_INPUTS,
        reason="argument 0 (list) changed: other work",
        remedy="give setup= that",
    )
    verdict = judged("time <= 60 us", estimate(90 * US), void=void)
    without = judged("time <= 60 us", void=void)

    assert gap_of(verdict) == (
        "argument 0 (list) changed: other work",
        "give setup= that",
    )
    assert gap_of(without) == gap_of(verdict)


def test_a_void_record_without_a_value_is_unmeasured() -> None:
    """Why nothing was measured is why nothing is decided."""
    verdict = judged(
        "time <= 60 us",
        void=Void(code=VoidCode.HARDWARE_THERMAL, reason="the GPU was too hot"),
    )

    assert verdict.outcome is Outcome.UNMEASURED
    assert gap_of(verdict) == ("the GPU was too hot", "")


def test_a_missing_metric_is_unmeasured_with_its_own_reason() -> None:
    """The record says why a metric is missing, and what to do."""
    gap = Unmeasured(metric="energy", reason="NVML is busy", remedy="run it alone")
    verdict = judged("energy <= 5 J", estimate(1.0), unmeasured=(gap,))

    assert verdict.outcome is Outcome.UNMEASURED
    assert verdict.reason is Reason.NOT_MEASURED
    assert gap_of(verdict) == ("NVML is busy", "run it alone")
    assert (verdict.key, verdict.metric) == (KEY, "energy")
    assert verdict.limit == parse_limit("energy <= 5 J")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("energy <= 5 J", "gpuperf doctor"),
        ("time.wall <= 5 s", "gpuperf explain time.wall"),
        ("registers <= 5", "gpuperf.binary or gpuperf.capture"),
        ("dram.bytes <= 5", "gpuperf.capture"),
        ("speedup >= 5", "gpuperf.compare"),
        ("dram__bytes.sum <= 5", "counters="),
        ("ttft <= 5 s", "gpuperf.record"),
    ],
)
def test_a_missing_metric_without_a_reason_says_what_to_do(
    text: str, remedy: str
) -> None:
    """There is a remedy for metrics, counters and recorded numbers."""
    verdict = judge_limit(parse_limit(text, names={"ttft"}), record())
    assert verdict.outcome is Outcome.UNMEASURED
    assert remedy in gap_of(verdict)[1]


def test_a_comparison_points_to_its_sides() -> None:
    """It has the speedup alone; a time is one of the sides'."""
    verdict = judged("time <= 5 s", estimate(2.0, "speedup"), kind=Kind.COMPARE)

    assert gap_of(verdict)[1] == "ask one of its sides, as pair.a.time"


def test_the_best_source_is_judged() -> None:
    """Of several sources the one nearest to the device counts."""
    verdict = judged(
        "time <= 60 us", estimate(90 * US, source="host"), estimate(50 * US)
    )
    assert verdict.outcome is Outcome.PASSED
    assert verdict.estimate is not None
    assert verdict.estimate.source == "cupti"


@pytest.mark.parametrize(
    ("text", "worst"),
    [
        ('registers["rms*"] <= 64', 70.0),
        ('registers["rms*"] >= 64', 40.0),
        ('registers["rms*"] == 64', 40.0),
        ('registers["rms_b"] <= 64', 40.0),
        ('registers["void gemm<*>"] <= 64', 99.0),
    ],
)
def test_the_worst_matching_kernel_is_judged(text: str, worst: float) -> None:
    """A pattern fits names and what they demangle to; the worst of them counts."""
    kernels = [("rms_a", 70.0), ("rms_b", 40.0), ("_Z4gemm", 99.0)]
    demangled = KernelResources(
        name="_Z4gemm",
        demangled="void gemm<float>",
        target="sm_90",
        registers_count=99,
        stack_bytes=0,
        shared_bytes=0,
        constant_bytes=0,
    )
    verdict = judged(
        text,
        *(estimate(value, "registers", kernel=name) for name, value in kernels),
        estimate(99.0, "registers"),
        kernels=(demangled,),
    )
    assert verdict.estimate is not None
    assert verdict.estimate.value == worst


def test_a_pattern_that_fits_no_kernel_lists_those_there_are() -> None:
    """No kernel fits: it fails, a renamed one too; patterns know upper case."""
    found = [estimate(1.0, "registers", kernel=f"k{number}") for number in range(12)]
    verdict = judged('registers["K*"] <= 64', *found)

    assert verdict.outcome is Outcome.FAILED
    reason, remedy = gap_of(verdict)
    assert reason == 'no kernel fits "K*"'
    assert remedy.endswith("fits one of k0, k1, k2, k3, k4, 7 more")


def test_a_metric_that_is_not_known_by_kernel() -> None:
    """A pattern on a value that only the whole record has says to leave it away."""
    whole = estimate(5.0, "registers", unit="count")
    verdict = judged('registers["k*"] <= 64', whole)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "without a kernel" in gap_of(verdict)[1]


def test_a_metric_that_is_known_by_kernel_only() -> None:
    """One kernel alone stands for the whole; of several one must be named."""
    one = estimate(5.0, "dram__bytes.sum", unit="byte", kernel="a")
    other = estimate(6.0, "dram__bytes.sum", unit="byte", kernel="b")

    alone = judged("dram__bytes.sum <= 7", one)
    several = judged("dram__bytes.sum <= 7", one, other)

    assert alone.estimate == one
    assert several.outcome is Outcome.UNMEASURED
    assert 'dram__bytes.sum["a"]' in gap_of(several)[1]


def test_the_recorded_reason_of_a_missing_whole_comes_first() -> None:
    """What whoever measured says of a metric is told, though kernels have a value."""
    known = [estimate(64.0, "registers", kernel=name) for name in ("a", "b")]
    gap = Unmeasured(metric="registers", reason="c was not read", remedy="link it")
    verdict = judged("registers <= 64", *known, unmeasured=(gap,))

    assert gap_of(verdict) == ("c was not read", "link it")


@pytest.mark.parametrize(
    ("text", "value", "unit", "expected"),
    [
        ("dram__bytes.sum <= 2 kB", 1.5, "Kbyte", 1500.0),
        ("dram__bytes.sum <= 2", 1.5, "Kbyte", 1.5),
        ("gpu__time_duration.sum <= 2 us", 1500.0, "nsecond", 1.5 * US),
        ("gpu__time_duration.sum <= 2 us", 1500.0, "ns", 1.5 * US),
        ("sm__x.pct <= 90 %", 80.0, "%", 0.8),
        ("launch__registers_per_thread <= 64 count", 60.0, "register/thread", 60.0),
    ],
)
def test_a_counter_is_judged_in_its_limits_unit(
    text: str, value: float, unit: str, expected: float
) -> None:
    """A limit in bytes gets bytes; a bare number is in the counter's own unit."""
    name = parse_limit(text).metric
    found = estimate(value, name, unit=unit, source="ncu-report", low=value, high=value)
    verdict = judged(text, found, kind=Kind.CAPTURE)

    assert verdict.outcome is Outcome.PASSED
    assert verdict.estimate is not None
    assert verdict.estimate.value == pytest.approx(expected)
    assert verdict.estimate.low == pytest.approx(expected)


def test_a_counter_in_another_dimension_is_unmeasured() -> None:
    """A tool says the unit with the value only: no failure, and both units are told."""
    found = estimate(5.0, "l2__x.sum", unit="sector")
    verdict = judged("l2__x.sum <= 60 us", found)

    assert verdict.outcome is Outcome.UNMEASURED
    assert gap_of(verdict)[0] == "l2__x.sum is in sector, its limit in s"


@pytest.mark.parametrize(
    ("text", "unit"), [("ttft <= 5 MB", "s"), ("ttft >= 2 s", "frame")]
)
def test_a_limit_in_another_unit_than_was_recorded_is_a_mistake(
    text: str, unit: str
) -> None:
    """Both were written by one author: an error with a remedy, not a missing value."""
    found = estimate(0.1, "ttft", unit=unit, source="recorded")

    with pytest.raises(UnitError, match=f"ttft is in {unit}, its limit in") as caught:
        judged(text, found, kind=Kind.RECORD)

    assert f"write the limit in {unit}" in caught.value.remedy
    assert caught.value.path == parse_limit(text, names={"ttft"}).text


def test_another_number_than_the_recorded_one_is_unmeasured() -> None:
    """A record of one number says nothing of another: its lack is not a mistake."""
    found = estimate(0.1, "ttft", unit="s", source="recorded")
    verdict = judged("energy <= 1 J", found, kind=Kind.RECORD)

    assert verdict.outcome is Outcome.UNMEASURED


def again(*values: float, **fields: object) -> list[Record]:
    """Records of fresh processes."""
    return [record(estimate(value * US), **fields) for value in values]


def test_confirming_processes_decide_alone() -> None:
    """The first value was measured again for what it was: it has no part in it."""
    limit = parse_limit("time <= 60 us")
    first = record(estimate(61 * US))
    values = (55.0, 55.5, 54.5, 55.2, 54.8)
    verdict = judge_limit(limit, first, retest=retest(again(*values)))

    assert verdict.outcome is Outcome.PASSED
    assert verdict.estimate is not None
    assert verdict.estimate.value == pytest.approx(55 * US)
    assert verdict.confirmations == pytest.approx([v / 60 - 1 for v in values])


def test_confirming_processes_narrow_the_interval_as_far_as_sessions_allow() -> None:
    """Averaging takes the processes' share of the spread away, and no more."""
    limit = parse_limit("time <= 60 us")
    spread = Spread(fraction=0.02)
    agreeing = again(*[58.0] * 5)
    scattered = again(57.0, 59.0, 58.0, 57.0, 59.0)

    alone = judge_limit(limit, record(estimate(58 * US)), spread=spread)
    still = judge_limit(limit, agreeing[0], spread=spread, retest=retest(agreeing))
    averaged = judge_limit(limit, agreeing[0], spread=spread, retest=retest(scattered))

    def width(verdict: Verdict) -> float:
        assert verdict.low is not None
        assert verdict.high is not None
        return verdict.high - verdict.low

    assert width(still) == pytest.approx(width(alone))
    assert width(averaged) < 0.9 * width(alone)
    between_runs = statistics.variance(map(math.log, (57, 59, 58, 57, 59)))
    left = math.sqrt(0.02**2 - between_runs + between_runs / 5)
    assert width(averaged) == pytest.approx(2 * 58 * US * math.sinh(Z * left))


@pytest.mark.parametrize(
    ("text", "values", "outcome"),
    [
        ("loss <= 1000", (2000.0, 1900.0, 1501.0, 2100.0, 2000.0), Outcome.FAILED),
        ("loss <= 1000", (2000.0,) * 4, Outcome.INCONCLUSIVE),
        ("loss <= 1000", (2000.0,) * 4 + (1500.0,), Outcome.INCONCLUSIVE),
        ("loss <= 1000", (500.0,) * 5, Outcome.INCONCLUSIVE),
        ("loss >= 1000", (500.0, 600.0, 666.0, 500.0, 500.0), Outcome.FAILED),
        ("loss >= 1000", (500.0,) * 4 + (667.0,), Outcome.INCONCLUSIVE),
        ("loss <= 1000", (0.6, 3.0, 30.0, 99.0, 11.0), Outcome.PASSED),
        ("loss <= 1000", (0.6, 3.0, 30.0, 100.0, 11.0), Outcome.INCONCLUSIVE),
        ("loss >= 1000", (10001.0,) * 5, Outcome.PASSED),
        ("loss >= 1000", (10001.0,) * 4 + (10000.0,), Outcome.INCONCLUSIVE),
    ],
)
def test_what_is_far_off_in_every_process_is_decided(
    text: str, values: tuple[float, ...], outcome: Outcome
) -> None:
    """Five processes, beyond by half of the limit or within a tenth of it."""
    limit = parse_limit(text, names={"loss"})
    several = [record(estimate(value, "loss", source="user")) for value in values]
    verdict = judge_limit(
        limit, several[0], spread=of_sessions(0.9, 4), retest=retest(several)
    )

    assert verdict.outcome is outcome
    if outcome is not Outcome.INCONCLUSIVE:
        assert verdict.cause is None
    if outcome is Outcome.FAILED:
        assert verdict.reason is Reason.BEYOND_LIMIT
        assert (verdict.low, verdict.high) == (min(values), max(values))


@pytest.mark.parametrize("value", [1.7e308, -1.7e308])
def test_the_largest_number_has_an_interval(value: float) -> None:
    """It ends where numbers do, in one process and in several."""
    limit = parse_limit("loss <= 2", names={"loss"})
    largest = estimate(value, "loss", source="user")
    wide = of_sessions(0.5, 4)
    expected = Outcome.FAILED if value > 0 else Outcome.PASSED
    found = [
        judge_limit(limit, record(largest), spread=wide),
        judge_limit(
            limit,
            record(largest),
            spread=wide,
            retest=retest([record(largest)] * 3),
        ),
    ]

    assert [verdict.outcome for verdict in found] == [expected] * 2
    assert all(abs(known_end(v.low)) + abs(known_end(v.high)) > 0 for v in found)


def known_end(end: float | None) -> float:
    """An end of an interval, which must be there."""
    assert end is not None
    return end


def test_two_confirming_processes_have_a_spread() -> None:
    """And it takes at most half of the sessions' variance away, as of two it may."""
    limit = parse_limit("time <= 60 us")
    two = again(50.0, 66.0)
    verdict = judge_limit(
        limit, two[0], spread=Spread(fraction=0.04), retest=retest(two)
    )
    between_runs = math.log(66 / 50) ** 2 / 2

    assert verdict.high == pytest.approx(
        58 * US * math.exp(Z * math.sqrt(between_runs / 2))
    )


def test_a_kth_of_the_sessions_variance_always_remains() -> None:
    """However much of it the processes account for."""
    limit = parse_limit("time <= 60 us")
    shift = 0.03 / math.sqrt(2)  # two logarithms that far apart: 0.03 between runs
    two = again(55 * math.exp(-shift), 55 * math.exp(shift))
    verdict = judge_limit(
        limit, two[0], spread=Spread(fraction=0.03), retest=retest(two)
    )

    assert verdict.high is not None
    assert verdict.estimate is not None
    assert verdict.high == pytest.approx(
        verdict.estimate.value * math.exp(Z * 0.03 / math.sqrt(2))
    )


def test_confirming_processes_bring_their_samples() -> None:
    """Their intervals are averaged as their values are; one without has none for all."""
    limit = parse_limit("time <= 60 us")
    one = estimate(40 * US, low=38 * US, high=44 * US, sample_count=10)
    other = estimate(42 * US, low=41 * US, high=45 * US, sample_count=30)
    bare = estimate(41 * US, sample_count=5)

    def together(*found: Estimate) -> Estimate:
        records = [record(each) for each in found]
        verdict = judge_limit(limit, record(bare), retest=retest(records))
        assert verdict.estimate is not None
        return verdict.estimate

    both = together(one, other)
    assert both.value == pytest.approx(41 * US)
    assert both.low == pytest.approx(39.5 * US)
    assert both.high == pytest.approx(44.5 * US)
    assert both.sample_count == 40
    some = together(one, bare)
    assert (some.low, some.high, some.sample_count) == (None, None, 15)


def test_what_the_samples_of_several_processes_leave_open_is_their_mean() -> None:
    """More processes do not make a wide interval wider."""
    limit = parse_limit("time <= 60 us")
    wide = [record(estimate(54 * US, low=48 * US, high=60 * US))] * 3
    one = judge_limit(limit, wide[0])
    several = judge_limit(limit, wide[0], retest=retest(wide))

    assert several.high == pytest.approx(one.high)


def test_confirming_values_of_another_source_do_not_count() -> None:
    """A host's time says nothing of a device's."""
    by_host = record(estimate(90 * US, source="host"))
    nothing = record()
    verdict = judge_limit(
        parse_limit("time <= 60 us"), *again(50), retest=retest([by_host, nothing])
    )

    assert (verdict.outcome, verdict.confirmations) == (Outcome.PASSED, ())


def test_confirming_values_of_zero_have_no_logarithm() -> None:
    """The sessions' spread is taken then, and a limit of 0 has nothing beyond it."""
    zero = parse_limit("time <= 0 s")
    verdict = judge_limit(zero, *again(0.0), retest=retest(again(0.0, 0.0)))
    unit = judge_limit(
        parse_limit("time <= 1 s"), *again(1.0), retest=retest(again(2e6))
    )

    assert (verdict.outcome, verdict.confirmations) == (Outcome.PASSED, ())
    assert unit.confirmations == pytest.approx([1.0])


def test_confirming_processes_that_still_straddle() -> None:
    """What five processes cannot decide stays inconclusive, with another remedy."""
    limit = parse_limit("time <= 60 us")
    verdict = judge_limit(limit, *again(60), retest=retest(again(*[60.0] * 5)))

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.cause is Cause.STILL_STRADDLES


def test_void_confirming_processes_do_not_count() -> None:
    """Without a usable process the first value decides as before."""
    limit = parse_limit("time <= 60 us")
    void = Void(code=VoidCode.HARDWARE_THERMAL, reason="hot")
    verdict = judge_limit(limit, *again(60), retest=retest(again(1, 1, void=void)))

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.confirmations == ()


def test_a_child_that_gave_no_value_fails() -> None:
    """A test that gives no value alone is failed, with its last lines."""
    limit = parse_limit("time <= 60 us")
    verdict = judge_limit(limit, *again(60), retest=Retest(failure="boom\nexit 1"))

    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason is Reason.CHILD_GAVE_NO_VALUE
    assert verdict.evidence == VerdictEvidence(lines=("boom", "exit 1"))
    assert (verdict.key, verdict.metric, verdict.limit) == (KEY, "time", limit)
    assert verdict.estimate == estimate(60 * US)


def test_a_machine_that_measures_nothing_again_decides_nothing() -> None:
    """What could not be had in a fresh process is said; the limit stays undecided."""
    limit = parse_limit("time <= 60 us")
    busy = Unmeasured(metric="time", reason="another program holds it", remedy="wait")
    first, *_ = again(60)
    verdict = judge_limit(limit, first, retest=Retest(unmeasured=(busy,)))

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.cause is Cause.NOTHING_USABLE
    assert verdict.evidence == VerdictEvidence(lacking=(busy,))
    beyond, *_ = again(90)
    assert (
        judge_limit(limit, beyond, retest=Retest(unmeasured=(busy,))).outcome
        is Outcome.FAILED
    )


RANK = {Outcome.PASSED: 0, Outcome.INCONCLUSIVE: 1, Outcome.FAILED: 2}


@given(
    st.floats(1e-9, 1e3),
    st.floats(1.0, 10.0),
    st.floats(1e-4, 0.5),
    st.sampled_from(["<=", "<"]),
)
def test_getting_worse_never_helps(
    value: float, factor: float, fraction: float, operator: str
) -> None:
    """A larger value never turns failed into inconclusive, nor that into passed."""
    limit = parse_limit(f"time {operator} 1 s")
    spread = Spread(fraction=fraction)
    better = judge_limit(limit, record(estimate(value)), spread=spread)
    worse = judge_limit(limit, record(estimate(value * factor)), spread=spread)

    assert RANK[better.outcome] <= RANK[worse.outcome]


@given(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(value: float, factor: float) -> None:
    """Value and limit in another unit give the same verdict."""
    plain = parse_limit("ttft <= 1 s", names={"ttft"})
    scaled = replace(plain, threshold=plain.threshold * factor)
    spread = Spread(fraction=0.01)
    one = judge_limit(
        plain, record(estimate(value, "ttft", unit="s", source="user")), spread=spread
    )
    other = judge_limit(
        scaled,
        record(estimate(value * factor, "ttft", unit="s", source="user")),
        spread=spread,
    )
    if not math.isclose(value, 1, rel_tol=0.05):  # at the ends roundings may differ
        assert one.outcome is other.outcome


def test_of_an_unknown_phase_the_recorded_ones_are_named() -> None:
    """A name that was mistyped, or that another branch of the loop has."""
    phases = [estimate(1.0, metric=f"phase.{name}") for name in ("forward", "backward")]
    limit = parse_limit("phase.forwrad <= 1 s", names={"phase.forwrad"})
    verdict = judge_limit(limit, record(*phases, kind=Kind.STEPS))

    assert verdict.outcome is Outcome.UNMEASURED
    assert gap_of(verdict)[1] == (
        "name one that the loop recorded: phase.forward, phase.backward"
    )
