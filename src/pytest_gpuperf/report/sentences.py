"""The sentences of a verdict: reason, evidence, remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pytest_gpuperf.model.environment import BETTER, PARAMETERS, UNIT
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.model.verdict import (
    FAILING,
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.words import (
    GIVE_HARDWARE,
    NO_HARDWARE,
    changed_test,
    gap_remedy,
    noun,
    same_code,
)

OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.FAILED: "It was measured and missed its limit, or an assert of the test.",
        Outcome.REGRESSED: "It is worse than its baseline by more than the limit.",
        Outcome.UNMEASURED: "It could not be measured.",
        Outcome.INCONCLUSIVE: "It was measured, but the evidence is not enough to decide.",
        Outcome.INCOMPARABLE: "The stored values were measured under other conditions.",
        Outcome.NEW: "Nothing is stored to compare it with.",
        Outcome.IMPROVED: "It is better than its baseline by more than the limit.",
        Outcome.BLIND: "A change of this size would not be found here.",
        Outcome.UNCHANGED: "It did not change by more than the limit.",
        Outcome.PASSED: "It was measured and meets its limit.",
    }
)

REASONS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.WITHIN_LIMIT: "The whole interval lies within the limit.",
        Reason.BEYOND_LIMIT: "The whole interval lies beyond the limit.",
        Reason.STRADDLES_LIMIT: "The limit lies inside the interval of the value.",
        Reason.ABOVE_THE_ROOF: (
            "The value is above the roof: the data fit in a cache, or the declared work "
            "is wrong."
        ),
        Reason.IN_DOUBT: "The calls may not have done the work that the test means.",
        Reason.NOT_MEASURED: "The metric could not be measured here.",
        Reason.CHILD_GAVE_NO_VALUE: (
            "The test gave no value when it ran alone in a fresh process."
        ),
        Reason.NOTHING_STORED: "The baseline holds no session of this measurement.",
        Reason.FINGERPRINT_DIFFERS: (
            "The baseline was measured on other hardware, or in another way."
        ),
        Reason.OTHER_SOURCE: (
            "The baseline was measured by another collector, and values of different "
            "collectors are not compared."
        ),
        Reason.VOID: "The measurement is void, so it is neither judged nor stored.",
        Reason.TOO_FEW_SESSIONS: (
            "The baseline has too few sessions to estimate their spread."
        ),
        Reason.OTHER_KERNEL: "The kernels are not those of the baseline.",
        Reason.INCOMPLETE_RUN: (
            "The run ended early, and an incomplete run reports no regression."
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
            "It changed by more than the limit, and no fresh process measured it again."
        ),
        Reason.NOT_SIGNIFICANT: (
            "It changed by more than the limit, but the change is not significant."
        ),
        Reason.SLOWER_IN_SUITE: (
            "Fresh processes find no regression, but it was much worse in the suite."
        ),
        Reason.SIDE_WITHOUT_VALUE: (
            "A side gave no value, so there is nothing to compare."
        ),
        Reason.TEST_CHANGED: (
            "The source of the test is not that of the revision, so it may do other work."
        ),
        Reason.SAME_FILES: "It used no file that differs from the revision.",
        Reason.TOO_FEW_BLOCKS: (
            "The blocks do not show whether it changed by more than the limit."
        ),
        Reason.BLOCKS_DIFFER: (
            "The blocks differ too much to show whether it changed by more than the limit."
        ),
        Reason.NOT_DETECTABLE: (
            "The change is within the limit, and only one far beyond it would be found."
        ),
        Reason.WITHIN_NOISE: "The change is within the limit.",
        Reason.EQUAL: "It equals the stored value.",
    }
)

# Sentences of a comparison with a revision, in which nothing is stored.
_OF_REVISION: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.FINGERPRINT_DIFFERS: (
            "The revision was measured on other hardware, or in another way."
        ),
        Reason.OTHER_SOURCE: (
            "The revision was measured by another collector, and values of different "
            "collectors are not compared."
        ),
        Reason.OTHER_KERNEL: "The two sides never ran the same kernels.",
        Reason.SLOWER_THAN_LIMIT: (
            "It is worse than the revision by more than the limit."
        ),
        Reason.FASTER_THAN_LIMIT: (
            "It is better than the revision by more than the limit."
        ),
        Reason.EQUAL: "It equals the value of the revision.",
    }
)

# By the only fact that differs.
_OF_FACTS: Mapping[str, str] = MappingProxyType(
    {
        PARAMETERS: "The {side} was measured with other parameters.",
        UNIT: "The number of the {side} has another unit.",
        BETTER: "The number of the {side} gets better in another direction.",
    }
)
_WHEN_OVER = "measure it again when that is over"
_STORE = "store this session with --gpuperf-update=new"
_ALONE = "make the test pass when it runs alone"
_ON_ITS_MACHINE = (
    "start pytest on that machine by itself, without an xdist worker; one store holds the "
    "sessions of all machines"
)

_BY_REVISION = "compare it with a revision on this machine (--gpuperf-against={commit})"
_Case = tuple[Reason, "Cause | None"]

# Remedies of pytest's verdicts. Fields in braces are filled in from the evidence.
_IN_PYTEST: Mapping[_Case, str] = MappingProxyType(
    {
        (Reason.STRADDLES_LIMIT, None): (
            "decide it in fresh processes (--gpuperf-confirm), or move the limit"
        ),
        (Reason.STRADDLES_LIMIT, Cause.STILL_STRADDLES): (
            "move the limit away from the value, or reduce the noise"
        ),
        (Reason.STRADDLES_LIMIT, Cause.STRADDLES_LAUNCH): (
            'time it by cupti, or several calls at once (cache="warm"), or move the limit'
        ),
        (Reason.STRADDLES_LIMIT, Cause.NOTHING_USABLE): _WHEN_OVER,
        (Reason.STRADDLES_LIMIT, Cause.MEASURED_ELSEWHERE): _ON_ITS_MACHINE,
        (Reason.STRADDLES_LIMIT, Cause.ENDED_EARLY): (
            "run all the selected tests to their end, so that fresh processes decide it"
        ),
        (Reason.ABOVE_THE_ROOF, None): (
            "correct the declared work, or use data larger than the caches"
        ),
        (Reason.ABOVE_THE_ROOF, Cause.OF_A_LOOP): (
            "check hardware=, or the bytes that its work declares"
        ),
        (Reason.IN_DOUBT, None): (
            "let each call do the whole work, or accept the doubt by its code in the marker "
            "(accept=)"
        ),
        (Reason.NOT_MEASURED, None): "measure it, or remove its limit",
        (Reason.NOT_MEASURED, Cause.NOTHING_TIMED): "time a call, and declare its work",
        (Reason.NOT_MEASURED, Cause.NO_HARDWARE): GIVE_HARDWARE,
        (Reason.NOT_MEASURED, Cause.ENDED_EARLY): "let the loop run to its end",
        (Reason.CHILD_GAVE_NO_VALUE, None): _ALONE,
        (Reason.NOTHING_STORED, None): _STORE,
        (Reason.FINGERPRINT_DIFFERS, None): (
            "store sessions {of_what} with --gpuperf-update=new, compare anyway with "
            f"--gpuperf-compare-across={{facts}}, or {_BY_REVISION}"
        ),
        (
            Reason.FINGERPRINT_DIFFERS,
            Cause.OTHER_MACHINE,
        ): f"{_STORE}, or {_BY_REVISION}",
        (Reason.OTHER_SOURCE, None): (
            "measure with that collector (--gpuperf-collectors={sources}), or store "
            "sessions of this one with --gpuperf-update=new"
        ),
        (Reason.VOID, None): _WHEN_OVER,
        (Reason.TOO_FEW_SESSIONS, None): (
            f"store {{sessions}} with --gpuperf-update=new, or {_BY_REVISION}"
        ),
        (Reason.OTHER_KERNEL, None): (
            "pin the kernel, for example in the autotuning configuration, store more "
            f"sessions, or {_BY_REVISION}"
        ),
        (Reason.INCOMPLETE_RUN, None): "run all the selected tests to their end",
        (Reason.FASTER_THAN_LIMIT, None): "store it with --gpuperf-update=improved",
        (Reason.NOT_CONFIRMED, None): (
            "confirm it in fresh processes: name the store with --gpuperf-baseline, and "
            f"keep --gpuperf-confirm above 0; or {_BY_REVISION}"
        ),
        (Reason.NOT_CONFIRMED, Cause.LOOKED_BETTER): (
            "confirm and store it with --gpuperf-update=improved"
        ),
        (Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE): _WHEN_OVER,
        (Reason.NOT_CONFIRMED, Cause.MEASURED_ELSEWHERE): _ON_ITS_MACHINE,
        (Reason.NOT_CONFIRMED, Cause.OTHER_ALONE): (
            "run the whole suite again; if it is still undecided, store more sessions with "
            f"--gpuperf-update=new (each times some tests alone), or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, None): _BY_REVISION,
        (Reason.NOT_SIGNIFICANT, Cause.FEW_SESSIONS): (
            f"store more sessions with --gpuperf-update=new, or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.ONE_PROCESS): (
            f"measure it in more processes with --gpuperf-runs=5, or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.NOISY_MACHINE): (
            "sessions of this machine differ too much for a stored baseline: "
            f"measure where nothing else runs, or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.SEEN_BEFORE): (
            "find the cause of the different times, such as threads, a disk or a cache; "
            f"or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.SAME_COMMIT): (
            "run the suite again later; if it stays so, look at what no commit has "
            "(libraries, environment variables, the machine), or store the new level "
            "with --gpuperf-update=all"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.SHARED_MOVE): (
            f"store sessions of a calmer machine, or {_BY_REVISION}"
        ),
        (Reason.NOT_CONFIRMED, Cause.SHARED_MOVE): (
            "name the store with --gpuperf-baseline, so that fresh processes measure some "
            f"of these tests again, or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.CLOCK_MOVED): (
            "lock the clock (sudo nvidia-smi --lock-gpu-clocks, see gpuperf doctor), and "
            f"store new sessions; or {_BY_REVISION}"
        ),
        (Reason.NOT_SIGNIFICANT, Cause.OF_NOTHING): (
            f'limit the number itself, for example limits="retries <= 3", or {_BY_REVISION}'
        ),
        (Reason.NOT_SIGNIFICANT, Cause.SHORT_LOOP): (
            f"record {{least}} or more steps of the loop, or {_BY_REVISION}"
        ),
        (Reason.NOT_DETECTABLE, None): (
            "store more sessions with --gpuperf-update=new, measure where nothing else "
            f"runs, or {_BY_REVISION}"
        ),
        (Reason.SLOWER_IN_SUITE, None): (
            "find the test that slows it down, and make it clean up; if the machine "
            "was busy, run the suite again"
        ),
    }
)

# Reasons and remedies of voids found by judge, which has no texts.
_OF_VOIDS: Mapping[VoidCode, tuple[str, str]] = MappingProxyType(
    {
        VoidCode.OTHER_TRACER: (
            "fresh processes ran with other tracers or modes than the suite",
            (
                "measure without a tracer or profiler, and set variables that change all "
                "code, such as PYTHONMALLOC, before pytest starts"
            ),
        ),
        VoidCode.OTHER_MACHINE: (
            "an xdist worker measured it on another machine than the fresh processes",
            _ON_ITS_MACHINE,
        ),
        VoidCode.OTHER_DEVICE: (
            "fresh processes used another GPU than the suite",
            "choose one GPU for all processes",
        ),
        VoidCode.OTHER_FACTS: (
            "fresh processes measured under other conditions than the suite",
            "make the conditions equal",
        ),
    }
)

# Remedies of a comparison with a revision. For cases missing here, _IN_PYTEST is used.
_ON_BOTH_SIDES: Mapping[_Case, str] = MappingProxyType(
    {
        (Reason.FINGERPRINT_DIFFERS, None): (
            "compare anyway with --gpuperf-compare-across={facts}"
        ),
        (Reason.OTHER_SOURCE, None): (
            "name one collector for both sides with --gpuperf-collectors"
        ),
        (Reason.OTHER_KERNEL, None): (
            "pin the kernel, for example in the autotuning configuration"
        ),
        (Reason.OTHER_KERNEL, Cause.KERNEL_PER_SIDE): (
            "pin the kernel, for example in the autotuning configuration; if the change picks "
            "another one on purpose, limit its time"
        ),
        # Nothing is stored, so nothing needs updating.
        (Reason.FASTER_THAN_LIMIT, None): "",
        (Reason.SIDE_WITHOUT_VALUE, Cause.OLD_SIDE): (
            "name a revision in which the test runs"
        ),
        (Reason.SIDE_WITHOUT_VALUE, Cause.NEW_SIDE): _ALONE,
        (Reason.SIDE_WITHOUT_VALUE, Cause.BOTH_SIDES): _ALONE,
        (Reason.SIDE_WITHOUT_VALUE, Cause.NOT_REACHED): (
            "let {ended_in}, which runs before it, finish, or deselect it"
        ),
        (Reason.SIDE_WITHOUT_VALUE, Cause.NEVER_TOGETHER): (
            "let several processes run it at once, for example with a free port or tmp_path"
        ),
        (Reason.TEST_CHANGED, None): (
            "run today's tests on both sides with --gpuperf-against-tests=mine"
        ),
        (Reason.TOO_FEW_BLOCKS, Cause.BEFORE_FIRST_LOOK): (
            "give it a longer --gpuperf-budget, such as 30min (the default is 10min)"
        ),
        (Reason.BLOCKS_DIFFER, Cause.BLOCKS_SPENT): (
            "measure it on a quieter machine, or set a wider limit, such as "
            "--gpuperf-max-regression=10%"
        ),
        (Reason.BLOCKS_DIFFER, Cause.BLOCKS_HOPELESS): "{quieter}",
        (Reason.TOO_FEW_BLOCKS, Cause.ENDED_EARLY): (
            "give it a longer --gpuperf-budget, such as 30min (the default is 10min)"
        ),
        (Reason.TOO_FEW_BLOCKS, Cause.STOPPED): "run it again, to its end",
    }
)

# Remedies of `gpuperf compare` for every cause. Run files have no store, and no test
# that could be measured again.
_AMONG_FILES: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NOT_MEASURED: "name a run file that has it",
        Reason.NOTHING_STORED: "name an older run file that has it",
        Reason.FINGERPRINT_DIFFERS: "name older run files that agree in these facts",
        Reason.OTHER_SOURCE: "name older run files that measured it in the same way",
        Reason.TOO_FEW_SESSIONS: "name {files}",
        Reason.OTHER_KERNEL: "pin the kernel, or name more run files",
        Reason.NOT_CONFIRMED: "name more run files",
        Reason.NOT_SIGNIFICANT: "name more run files",
        Reason.NOT_DETECTABLE: "name more run files",
        Reason.VOID: _WHEN_OVER,
    }
)
_NEVER_AGAIN = "and no fresh process measured it again"

_WITHOUT_FRESH: Mapping[Cause | None, str] = {
    Cause.NOTHING_USABLE: "and no value of fresh processes counts",
    Cause.OTHER_LAUNCHER: "and no fresh process can be started as the suite was",
    Cause.MEASURED_ELSEWHERE: (
        "and it can only be confirmed on the machine that measured it"
    ),
}
_NOTHING = VerdictEvidence()

# The newest sessions that were as slow as now. The rest is only counted.
_SHOWN_SESSIONS = 3

_OF_CAUSES = {
    Cause.SHARED_MOVE: (
        "most tests of its class moved by the same amount, because of a shared change or "
        "the machine"
    ),
    Cause.OLD_SIDE: "the revision gave no value",
    Cause.NEW_SIDE: "the working tree gave no value",
    Cause.BOTH_SIDES: "neither side gave a value",
    Cause.NOT_REACHED: "the processes were ended in an earlier test",
    Cause.NEVER_TOGETHER: "it never gave a value on both sides at the same time",
    Cause.OF_NOTHING: (
        "the mean of the stored values is 0: a change counts if each of them is 0 and no "
        "fresh process gives a 0"
    ),
}
USUAL_INTERVAL = "the interval is the usual one for such a value: fewer than 3 comparable sessions are stored"

# Sentences of causes outside the code.
_OF_OTHERS: Mapping[Cause | None, str] = {
    Cause.OTHER_ALONE: (
        "It changed by more than the limit, but fresh processes do not confirm it."
    ),
    Cause.CLOCK_MOVED: (
        "It is slower by more than the limit, but not in cycles: the clock moved."
    ),
    Cause.SAME_COMMIT: (
        "It changed by more than the limit, but the code did not: the stored sessions "
        "measured the same commit."
    ),
    Cause.SEEN_BEFORE: (
        "It changed by more than the limit, but stored sessions were like that, too."
    ),
}

# A wider limit would find nothing that a user does not see anyway.
_USEFUL_LIMIT = 0.5

# A larger factor is printed as a power of ten.
_MOST_TIMES = 1e6

# Parameter digests, as created by collect.parameters.
_DIGEST = re.compile(r"[0-9a-f]{16}")

# By the only facts that differ. These facts can vary on the same machine.
_WHICH = {
    "allocator": "with this allocator",
    "peak": "with this peak",
    "python_mode": "in this mode of Python",
    "tracer": "with this tracer",
    PARAMETERS: "with these parameters",
    UNIT: "in this unit",
    BETTER: "with this direction",
}


def for_pytest(verdict: Verdict, *, compared: bool = False) -> Verdict:
    """
    Return a verdict with its evidence in words and a remedy for pytest.

    Args:
        verdict: The judgement.

        compared: Whether the run already compares with a revision.
    """
    case = verdict.reason, verdict.cause
    remedy = _IN_PYTEST.get(case, "")
    # The set of kernels is a fact then. The block has the command to accept it.
    if verdict.reason is Reason.OTHER_KERNEL and verdict.outcome in FAILING:
        remedy = ""
    if verdict.of_revision:
        remedy = _ON_BOTH_SIDES.get(case, remedy)
    elif compared:
        for joint in (", or ", "; or ", ""):
            remedy = remedy.replace(f"{joint}{_BY_REVISION}", "")
    if verdict.evidence is not None and verdict.evidence.gap is not None:
        remedy = gap_remedy(verdict.evidence.gap) or remedy
    if changed_test(verdict):  # The test may be the reason.
        remedy = remedy.replace("--gpuperf-update=improved", "--gpuperf-update=all")
    return _worded(verdict, remedy)


def blocks(verdict: Verdict) -> str:
    """
    Return the number of blocks behind a verdict and the noise of equal code, or "" without blocks.
    """
    against = verdict.against
    if against is None or not against.block_count:
        return ""
    text = display.plural(against.block_count, "block")
    if against.null_fraction is None:
        return text
    return f"{text}; {same_code(against.null_fraction)}"


def for_files(verdict: Verdict) -> Verdict:
    """Return a verdict with its evidence in words and a remedy for `gpuperf compare`."""
    return _worded(verdict, _AMONG_FILES.get(verdict.reason, ""))


def _void_words(void: Void) -> tuple[str, str]:
    measured = void.reason, void.remedy
    return measured if void.reason else _OF_VOIDS.get(void.code, measured)


def _worded(verdict: Verdict, remedy: str) -> Verdict:
    evidence = verdict.evidence or _NOTHING
    text = ""
    if evidence.gap is not None:
        text = evidence.gap.remedy
    elif verdict.cause in _WITHOUT_FRESH:
        remedies = [_void_words(void)[1] for void in evidence.voids]
        remedies += [gap.remedy for gap in evidence.lacking]
        text = "; ".join(filter(None, dict.fromkeys(remedies)))
    if remedy and not text:
        text = _filled(remedy, verdict, evidence)
    detail = tuple(_details(verdict, evidence))
    # Nearly all verdicts have neither detail nor remedy.
    if not (text or detail):
        return verdict
    return replace(verdict, detail=detail, remedy=text)


def _filled(remedy: str, verdict: Verdict, evidence: VerdictEvidence) -> str:
    missing = evidence.least_count - _session_count(verdict)
    span, against = verdict.baseline, verdict.against
    limit = None if against is None else against.decidable_limit
    quieter = (
        "run it alone on an idle machine, do more work in a call, or fix the number of "
        "threads (OMP_NUM_THREADS)"
    )
    if limit is not None and limit <= _USEFUL_LIMIT:
        least = display.change(limit, signed=False)
        quieter = (
            f"measure it on a quieter machine, or set a limit of {least} or more "
            "(max_regression)"
        )
    return remedy.format(
        of_what=_WHICH.get(",".join(evidence.differences), "of this machine"),
        facts=",".join(evidence.differences),
        sources=",".join(evidence.stored_sources),
        least=evidence.least_count,
        sessions=display.plural(missing, "more session"),
        files=display.plural(missing, "more run file"),
        commit=display.commit(None if span is None else span.last_commit) or "REV",
        quieter=quieter,
        ended_in=escape(evidence.ended_in),
    )


def _details(verdict: Verdict, evidence: VerdictEvidence) -> Iterator[str]:
    reason = verdict.reason
    if reason is Reason.NOT_MEASURED:
        yield _why_unmeasured(verdict, evidence)
    elif evidence.gap is not None:
        yield evidence.gap.reason
    if verdict.cause in _OF_CAUSES:
        yield _OF_CAUSES[verdict.cause]
    if text := _other_alone(verdict):
        yield text
    yield from evidence.lines
    yield from dict.fromkeys(_void_words(void)[0] for void in evidence.voids)
    if reason is Reason.STRADDLES_LIMIT and verdict.assumed:
        yield USUAL_INTERVAL
    again = "" if verdict.of_revision else " again"
    for gap in evidence.lacking:
        yield f"{gap.metric} was not measured{again}: {gap.reason}"
    yield from _compared(verdict, evidence)
    if evidence.alike:
        unit = "" if verdict.estimate is None else verdict.estimate.unit
        shown = evidence.alike[-_SHOWN_SESSIONS:]
        texts = [
            f"{display.value(seen.value, unit)}{' alone' if seen.alone else ''} on "
            f"{display.date(seen.started_unix_s)}"
            for seen in shown
        ]
        count = len(evidence.alike) - len(shown)
        more = f", and {count} more" if count else ""
        yield f"seen before: {', '.join(texts)}{more}"
    if evidence.account is not None:
        # Imported here for the reason given in `_compared`.
        from pytest_gpuperf.report.kernels import account_lines

        yield from account_lines(evidence.account, verdict)
    if reason is Reason.CHILD_GAVE_NO_VALUE and not evidence.lines:
        yield f"no fresh process measured {verdict.metric}"


def _compared(verdict: Verdict, evidence: VerdictEvidence) -> Iterator[str]:
    for name, values in evidence.differences.items():
        text = " -> ".join(display.moved_fact(name, *values))
        # Digests of parameters are unreadable.
        if name == PARAMETERS and all(map(_DIGEST.fullmatch, values)):
            text = "other values under the same id"
        yield f"{name}: {text}"
    side, of_what = "stored", "sessions"
    if verdict.of_revision:
        side, of_what = "revision", "processes"
    if evidence.stored_sources:
        yield f"{side}: {', '.join(evidence.stored_sources)}"
    if evidence.kernels is not None:
        # Imported only for kernels, because the module loads the code for captured
        # reports, which few runs need.
        from pytest_gpuperf.report.kernels import choice_text

        old, new = evidence.kernels
        yield f"{side}: {choice_text(old, new)} {of_what}"
        yield f"now: {choice_text(new, old)} processes"
    if verdict.reason is Reason.TOO_FEW_SESSIONS:
        yield f"{_session_count(verdict)} of {evidence.least_count} sessions stored"
    if evidence.left_out is not None:
        day = display.date(evidence.left_out.started_unix_s)
        ratio = evidence.left_out.ratio
        others = "; the others are 0"
        if ratio is not None:
            times = f"{ratio:.1f}" if abs(ratio) < _MOST_TIMES else f"{ratio:.1e}"
            others = f", {times} x the others"
        yield f"left out: the session of {day}{others}"
    if verdict.cause is Cause.OTHER_MACHINE:
        names = f": {', '.join(evidence.machines)}" if evidence.machines else ""
        yield f"only other machines have stored sessions{names}"


def _session_count(verdict: Verdict) -> int:
    return 0 if verdict.baseline is None else verdict.baseline.session_count


def _why_unmeasured(verdict: Verdict, evidence: VerdictEvidence) -> str:
    if evidence.gap is not None:
        reason = evidence.gap.reason
    elif verdict.cause is Cause.NO_HARDWARE:
        reason = NO_HARDWARE
    elif verdict.cause is Cause.NOTHING_TIMED:
        reason = "nothing was timed"
    else:
        reason = f"{verdict.metric} was not measured"
    if not evidence.grade:
        return reason
    loop = verdict.cause in {Cause.NO_HARDWARE, Cause.ENDED_EARLY}
    bound = "the bandwidth bound" if loop else "the roof"
    return f'min_grade="{evidence.grade}" is a fraction of {bound}: {reason}'


def sentence(verdict: Verdict) -> str:
    """Return the sentence for a verdict's reason, with the direction of the change if known."""
    sides = {**REASONS, **_OF_REVISION} if verdict.of_revision else REASONS
    text, moved = sides[verdict.reason], verdict.change
    if verdict.reason is Reason.FINGERPRINT_DIFFERS:
        facts = ",".join((verdict.evidence or _NOTHING).differences)
        side = "revision" if verdict.of_revision else "baseline"
        text = _OF_FACTS.get(facts, text).format(side=side)
    if verdict.of_revision:
        if verdict.cause is Cause.KERNEL_PER_SIDE:
            return "Each side always ran a kernel of its own."
        if verdict.cause is Cause.BEFORE_FIRST_LOOK and verdict.evidence is not None:
            return f"A decision needs {verdict.evidence.least_count} blocks."
        return text
    if verdict.cause in _OF_OTHERS:
        return _OF_OTHERS[verdict.cause]
    if verdict.reason is not Reason.NOT_CONFIRMED:
        return text
    why = _WITHOUT_FRESH.get(verdict.cause, _NEVER_AGAIN)
    text = text.replace(_NEVER_AGAIN, why)
    if moved is not None and None not in {moved.p_worse, moved.p_better}:
        way = "worse" if (moved.p_worse or 0) < (moved.p_better or 0) else "better"
        text = text.replace("It changed by", f"It looked {way} by")
    return text


def in_suite(verdict: Verdict) -> str:
    """Return the sentence about a value that was worse in the suite than alone, or ""."""
    suite, alone = verdict.in_suite, verdict.change
    if suite is None or alone is None or suite.effect is None:
        return ""
    # The evidence has both values.
    if verdict.cause is Cause.OTHER_ALONE:
        return ""
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    suite_text, alone_text = display.pair(suite.measured, alone.measured, unit)
    moved = display.change(suite.effect, limits=())
    return escape(
        f"{_of_metric(verdict)}{suite_text} in the suite ({moved}), {alone_text} alone: "
        "another test may have left state behind, or the machine was busy"
    )


def drifted(verdict: Verdict) -> str:
    """Return the sentence about a drift of the stored sessions, or ""."""
    drift = None if verdict.change is None else verdict.change.drift
    if drift is None:
        return ""
    moved = display.change(drift.effect, limits=())
    # A larger step has a verdict of its own.
    quiet = verdict.outcome in {Outcome.UNCHANGED, Outcome.BLIND}
    steps = ", in steps below the limit" if quiet else ""
    return escape(
        f"{_of_metric(verdict)}drifted {moved} since {display.date(drift.since_unix_s)} "
        f"({display.plural(drift.session_count, 'session')}){steps}: gpuperf history shows "
        "where"
    )


def alone(verdict: Verdict) -> str:
    """Return the sentence about an unchanged value that differs between suite and alone, or ""."""
    alone, estimate = verdict.alone, verdict.estimate
    same = verdict.outcome in {Outcome.UNCHANGED, Outcome.BLIND}
    if not same or alone is None or estimate is None:
        return ""
    alone_text, suite_text = display.pair(alone.measured, estimate.value, estimate.unit)
    was, _ = display.pair(alone.reference, estimate.value, estimate.unit)
    return escape(
        f"{_of_metric(verdict)}alone {alone_text}, in the suite {suite_text} (was {was}): "
        f"{_way_alone(verdict)} alone; no change"
    )


def _of_metric(verdict: Verdict) -> str:
    return "" if verdict.metric == "time" else f"{noun(verdict.metric)} "


def _way_alone(verdict: Verdict) -> str:
    alone, estimate = verdict.alone, verdict.estimate
    if alone is None or estimate is None or alone.measured == estimate.value:
        return "no different"
    is_more = alone.measured > estimate.value
    if verdict.metric == "time" or estimate.unit == "s":
        return "slower" if is_more else "faster"
    return "more" if is_more else "less"


def _other_alone(verdict: Verdict) -> str:
    """Return the values of suite and fresh processes if they contradict each other, or ""."""
    alone, estimate, moved = verdict.alone, verdict.estimate, verdict.change
    is_open = verdict.cause is Cause.OTHER_ALONE
    if not is_open or alone is None or estimate is None or moved is None:
        return ""
    suite_text, alone_text = display.pair(estimate.value, alone.measured, estimate.unit)
    effect = estimate.value / moved.reference if moved.reference else 1.0
    effect /= (1 + (moved.core_shift or 0.0)) * (1 + (moved.machine_shift or 0.0))
    values = (
        f"{suite_text} in the suite ({display.change(effect - 1, limits=())}), "
        f"{alone_text} alone ({display.change(alone.effect or 0.0, limits=())})"
    )
    evidence = verdict.evidence or _NOTHING
    if evidence.lines:
        return f"{values}: perhaps equal by chance: no stored session measured it alone"
    ran = evidence.ran
    if ran is not None:
        return (
            f"{values}: this run ran {ran[0]} of {display.plural(ran[1], 'test')}, and "
            "how long it takes alone is not known well enough"
        )
    return (
        f"{values}: alone it is {_way_alone(verdict)} than in the suite, so the fresh "
        "processes do not tell whether it changed"
    )
