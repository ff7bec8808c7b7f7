"""The words of a verdict: outcome, reason, evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import (
    FAILING,
    Cause,
    KernelChoice,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from pytest_gpuperf.report import display

__all__ = [
    "GIVE_HARDWARE",
    "NO_HARDWARE",
    "OUTCOMES",
    "REASONS",
    "change",
    "for_files",
    "for_pytest",
    "in_suite",
    "label",
    "noun",
    "sentence",
    "short",
]

OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.FAILED: "It was measured and missed its limit.",
        Outcome.REGRESSED: "It got worse than its baseline by more than is allowed.",
        Outcome.UNMEASURED: "It could not be measured, so nothing is known about it.",
        Outcome.INCONCLUSIVE: "It was measured, and the evidence decides nothing.",
        Outcome.INCOMPARABLE: "What is stored was measured under other conditions.",
        Outcome.NEW: "Nothing is stored to compare it with.",
        Outcome.IMPROVED: "It got better than its baseline by more than the limit.",
        Outcome.UNCHANGED: "It did not move by more than the limit.",
        Outcome.PASSED: "It was measured and keeps its limit.",
    }
)

REASONS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.WITHIN_LIMIT: "The whole interval lies within the limit.",
        Reason.BEYOND_LIMIT: "The whole interval lies beyond the limit.",
        Reason.STRADDLES_LIMIT: "The limit lies inside the interval of the value.",
        Reason.ABOVE_THE_ROOF: (
            "More was achieved than the roof allows: the data stay in a cache, or "
            "the declared work is wrong."
        ),
        Reason.NOT_MEASURED: "The metric could not be measured here.",
        Reason.CHILD_GAVE_NO_VALUE: (
            "The test gave no value when it ran alone in a fresh process."
        ),
        Reason.NOTHING_STORED: "The baseline holds no session of this measurement.",
        Reason.FINGERPRINT_DIFFERS: (
            "The baseline was measured on other hardware, or in another way."
        ),
        Reason.OTHER_SOURCE: (
            "The baseline was measured by another collector, and sources are never "
            "compared."
        ),
        Reason.VOID: "The measurement is void, so it is neither judged nor stored.",
        Reason.TOO_FEW_SESSIONS: (
            "The baseline has too few sessions to know how much they differ."
        ),
        Reason.OTHER_KERNEL: "Another kernel was chosen than in the baseline.",
        Reason.INCOMPLETE_RUN: (
            "The run ended early, and an incomplete run calls nothing regressed."
        ),
        Reason.SLOWER_THAN_LIMIT: (
            "It is worse than the baseline by more than the limit, and fresh processes "
            "confirm it."
        ),
        Reason.FASTER_THAN_LIMIT: (
            "It is better than the baseline by more than the limit, and fresh processes "
            "confirm it."
        ),
        Reason.NOT_CONFIRMED: (
            "It moved by more than the limit, and no fresh process confirmed it."
        ),
        Reason.NOT_SIGNIFICANT: (
            "It moved by more than the limit, and noise may explain that."
        ),
        Reason.SLOWER_IN_SUITE: (
            "Fresh processes find no regression, and in the suite it was worse by far."
        ),
        Reason.WITHIN_NOISE: "The change is no larger than the limit.",
        Reason.EQUAL: "It equals what is stored.",
    }
)

NO_HARDWARE = "what the hardware can do for a unit of work is not known"
GIVE_HARDWARE = (
    "pass hardware=Hardware(peak_bw_gb_s=…, bytes_per_token=…), or work=Work(bytes=…) "
    "of a step on a GPU whose peaks are known"
)
_WHEN_OVER = "measure it again when that is over"
_STORE = "store this session with --gpuperf-update=new"
_ALONE = "make the test pass when it runs alone"
_Case = tuple[Reason, "Cause | None"]

# what to do about a verdict of pytest; {}: what only the evidence knows
_IN_PYTEST: Mapping[_Case, str] = MappingProxyType(
    {
        (Reason.STRADDLES_LIMIT, None): (
            "let fresh processes confirm it (--gpuperf-confirm), or move the limit"
        ),
        (Reason.STRADDLES_LIMIT, Cause.STILL_STRADDLES): (
            "move the limit away from the value, or make the value steadier"
        ),
        (Reason.STRADDLES_LIMIT, Cause.NOTHING_USABLE): _WHEN_OVER,
        (Reason.STRADDLES_LIMIT, Cause.ENDED_EARLY): (
            "run all the selected tests to their end, so that fresh processes decide it"
        ),
        (Reason.ABOVE_THE_ROOF, None): (
            "check the declared work, or enlarge the data beyond the caches"
        ),
        (Reason.ABOVE_THE_ROOF, Cause.OF_A_LOOP): (
            "check hardware=, or the bytes that its work declares"
        ),
        (Reason.NOT_MEASURED, None): "measure it, or take its limit away",
        (Reason.NOT_MEASURED, Cause.NOTHING_TIMED): "time a call, and declare its work",
        (Reason.NOT_MEASURED, Cause.NO_HARDWARE): GIVE_HARDWARE,
        (Reason.NOT_MEASURED, Cause.ENDED_EARLY): "let the loop come to its end",
        (Reason.CHILD_GAVE_NO_VALUE, None): _ALONE,
        (Reason.NOTHING_STORED, None): _STORE,
        (Reason.FINGERPRINT_DIFFERS, None): (
            "store sessions {of_what} with --gpuperf-update=new, or judge all the same "
            "with --gpuperf-compare-across={facts}"
        ),
        (Reason.FINGERPRINT_DIFFERS, Cause.OTHER_MACHINE): _STORE,
        (Reason.OTHER_SOURCE, None): (
            "measure with that collector, or store sessions of this one with "
            "--gpuperf-update=new"
        ),
        (Reason.VOID, None): _WHEN_OVER,
        (Reason.TOO_FEW_SESSIONS, None): "store {sessions} with --gpuperf-update=new",
        (Reason.OTHER_KERNEL, None): (
            "pin the choice of the kernel, or store more sessions of it"
        ),
        (Reason.INCOMPLETE_RUN, None): "run all the selected tests to their end",
        (Reason.FASTER_THAN_LIMIT, None): "store it with --gpuperf-update=improved",
        (Reason.NOT_CONFIRMED, None): (
            "let fresh processes confirm it: name the store with --gpuperf-baseline, and "
            "leave --gpuperf-confirm above 0"
        ),
        (Reason.NOT_CONFIRMED, Cause.LOOKED_BETTER): (
            "confirm and store it with --gpuperf-update=improved"
        ),
        (Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE): _WHEN_OVER,
        (Reason.NOT_SIGNIFICANT, None): (
            "measure it in more processes with --gpuperf-runs=5"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.SHORT_LOOP): (
            "record more steps of the loop: {least} or more"
        ),
        (Reason.SLOWER_IN_SUITE, None): (
            "find the test after which it is slower, and let that one clean up; run it "
            "again if the machine was busy"
        ),
    }
)

# what to do about a verdict of `gpuperf compare`: files have no store, and no test that
# could be measured again; whatever the cause
_AMONG_FILES: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NOT_MEASURED: "name a run file that has it",
        Reason.NOTHING_STORED: "name an older run file that has it",
        Reason.FINGERPRINT_DIFFERS: "name older run files that agree in these facts",
        Reason.OTHER_SOURCE: "name older run files that measured it in the same way",
        Reason.TOO_FEW_SESSIONS: "name {files}",
        Reason.OTHER_KERNEL: "pin the choice of the kernel, or name more run files",
        Reason.NOT_CONFIRMED: "name more run files",
        Reason.NOT_SIGNIFICANT: "name more run files",
        Reason.VOID: _WHEN_OVER,
    }
)
_NOTHING = VerdictEvidence()
_HASH = 8  # characters of a choice of kernels that a reader needs to tell two apart


def for_pytest(verdict: Verdict) -> Verdict:
    """Return a verdict of judge with its evidence in words, and what to do in pytest."""
    remedy = _IN_PYTEST.get((verdict.reason, verdict.cause), "")
    return _worded(verdict, remedy)


def for_files(verdict: Verdict) -> Verdict:
    """Return the same for `gpuperf compare`, whose reader has other files."""
    return _worded(verdict, _AMONG_FILES.get(verdict.reason, ""))


def _worded(verdict: Verdict, remedy: str) -> Verdict:
    """Return a verdict with its detail and its remedy."""
    evidence = verdict.evidence or _NOTHING
    gap_remedy = evidence.gap.remedy if evidence.gap is not None else ""
    missing = evidence.least_count - _session_count(verdict)
    text = gap_remedy or remedy.format(
        # a peak may be another on the same machine
        of_what="with this peak"
        if [*evidence.differences] == ["peak"]
        else "of this machine",
        facts=",".join(evidence.differences),
        least=evidence.least_count,
        sessions=display.plural(missing, "more session"),
        files=display.plural(missing, "more run file"),
    )
    detail = tuple(_details(verdict, evidence))
    if not (text or detail):  # nearly all
        return verdict
    return replace(verdict, detail=detail, remedy=text)


def _details(verdict: Verdict, evidence: VerdictEvidence) -> Iterator[str]:
    """Yield the evidence besides numbers, a line each."""
    reason = verdict.reason
    if reason is Reason.NOT_MEASURED:
        yield _why_unmeasured(verdict, evidence)
    elif evidence.gap is not None:
        yield evidence.gap.reason
    yield from evidence.lines
    for gap in evidence.lacking:
        yield f"{gap.metric} was not measured again: {gap.reason}"
    yield from _compared(verdict, evidence)
    if reason is Reason.CHILD_GAVE_NO_VALUE and not evidence.lines:
        yield f"no fresh process measured {verdict.metric}"


def _compared(verdict: Verdict, evidence: VerdictEvidence) -> Iterator[str]:
    """Yield how what is stored differs from now, or that it is not enough."""
    for name, (then, now) in evidence.differences.items():
        yield f"{name}: {then} -> {now}"
    if evidence.stored_sources:
        yield f"stored: {', '.join(evidence.stored_sources)}"
    if evidence.kernels is not None:
        stored, run = evidence.kernels
        yield f"stored: {_kernels(stored)} sessions"
        yield f"now: {_kernels(run)} processes"
    if verdict.reason is Reason.TOO_FEW_SESSIONS:
        yield f"{_session_count(verdict)} of {evidence.least_count} sessions"
    if verdict.cause is Cause.OTHER_MACHINE:
        yield "only other machines have stored sessions"


def _session_count(verdict: Verdict) -> int:
    """Return how many stored sessions a verdict was held against."""
    return 0 if verdict.baseline is None else verdict.baseline.session_count


def _why_unmeasured(verdict: Verdict, evidence: VerdictEvidence) -> str:
    """Return why a value, or the grade of one, is not there."""
    if evidence.gap is not None:
        why = evidence.gap.reason
    elif verdict.cause is Cause.NO_HARDWARE:
        why = NO_HARDWARE
    elif verdict.cause is Cause.NOTHING_TIMED:
        why = "nothing was timed"
    else:
        why = f"{verdict.metric} was not measured"
    if not evidence.grade:
        return why
    loop = verdict.cause in {Cause.NO_HARDWARE, Cause.ENDED_EARLY}
    share = "the bandwidth bound" if loop else "the roof"
    return f'min_grade="{evidence.grade}" is a share of {share}: {why}'


def _kernels(most: KernelChoice) -> str:
    """Return what most of some sessions or processes ran."""
    name = (
        "unknown kernels" if most.choice is None else f"kernels {most.choice[:_HASH]}"
    )
    return f"{name} in {most.count} of {most.total_count}"


# two metrics that would be called the same
_NOUNS = {"dram.bytes": "dram traffic", "dram.fraction": "dram use"}


def label(outcome: Outcome) -> str:
    """Return an outcome as tables print it; in capitals what the eye must find."""
    return outcome.value.upper() if outcome in FAILING else outcome.value


def sentence(verdict: Verdict) -> str:
    """Return the sentence of a verdict's reason, with its direction where that is known."""
    text, moved = REASONS[verdict.reason], verdict.change
    if verdict.reason is not Reason.NOT_CONFIRMED or moved is None:
        return text
    if moved.p_worse is None or moved.p_better is None:
        return text
    way = "worse" if moved.p_worse < moved.p_better else "better"
    return text.replace("It moved by", f"It looked {way} by")


def change(verdict: Verdict) -> str:
    """Return a verdict's change in a cell's length, as `+7.9 %`; "" where it has none."""
    text = _moved(verdict)
    if verdict.metric == "time" or not text:
        return text
    return f"{display.escape(noun(verdict.metric))} {text}"


def in_suite(verdict: Verdict) -> str:
    """Return what the suite saw where it was worse than alone; "" where it was not."""
    suite, alone = verdict.in_suite, verdict.change
    if suite is None or alone is None or suite.effect is None:
        return ""
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    suite_text, alone_text = display.pair(suite.current, alone.current, unit)
    moved = display.change(suite.effect, limits=())
    metric = "" if verdict.metric == "time" else f"{noun(verdict.metric)} "
    return display.escape(
        f"{metric}{suite_text} in the suite, {moved}; {alone_text} alone: another test may have "
        "left something behind, or the machine was busy meanwhile"
    )


def short(reason: Reason) -> str:
    """Return a reason in a few words, as the last line prints it."""
    return reason.value.replace("-", " ")


def noun(metric: str) -> str:
    """
    Return a metric's name without the words that its unit says already.

    Example:
        >>> noun("stack_bytes"), noun("launches.count"), noun("dram__bytes.sum")
        ('stack', 'launches', 'dram__bytes.sum')
    """
    if metric in _NOUNS:
        return _NOUNS[metric]
    if "__" in metric:  # a hardware counter keeps its name
        return metric
    for tail in ("_bytes", ".bytes", ".count", "_fraction", ".fraction"):
        metric = metric.removesuffix(tail)
    return metric.removesuffix(".theoretical")


def _moved(verdict: Verdict) -> str:
    """Return how far a value moved; both values where nothing is relative."""
    moved, limit = verdict.change, verdict.threshold
    if moved is None:
        return ""
    if moved.effect is not None:
        limits = () if limit is None else (limit, -limit)
        return display.change(moved.effect, limits=limits)
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    now, then = display.pair(moved.current, moved.reference, unit)
    return f"{then} -> {now}"
