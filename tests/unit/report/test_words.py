"""report.words, report.sentences: every outcome, reason and case has its words, for each surface."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import runs
from pytest_gpuperf.model.change import AgainstEvidence, Change
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    Clue,
    KernelChoice,
    LeftOut,
    Origin,
    OriginEvidence,
    Outcome,
    Reason,
    SeenValue,
    Verdict,
    VerdictEvidence,
)
from pytest_gpuperf.report import origins, sentences, words


def test_every_reason_and_outcome_has_a_sentence() -> None:
    """The lists of model and of report agree."""
    assert set(sentences.REASONS) == set(Reason)
    assert set(sentences.OUTCOMES) == set(Outcome)


@pytest.mark.parametrize(
    "sentence", [*sentences.REASONS.values(), *sentences.OUTCOMES.values()]
)
def test_a_sentence_is_one_sentence(sentence: str) -> None:
    """It begins with a capital, ends with its only full stop, and is short."""
    assert sentence[0].isupper()
    assert sentence.index(".") == len(sentence) - 1
    assert len(sentence) <= 110


def test_no_two_reasons_say_the_same() -> None:
    """A reader can tell reasons apart."""
    assert len(set(sentences.REASONS.values())) == len(Reason)


def test_what_fails_is_loud() -> None:
    """The eye finds failures in a long table."""
    loud = {outcome for outcome in Outcome if words.label(outcome).isupper()}

    assert loud == {Outcome.FAILED, Outcome.REGRESSED}
    assert words.short(Reason.TOO_FEW_SESSIONS) == "too few sessions"


@pytest.mark.parametrize(
    ("metric", "noun"),
    [
        ("stack_bytes", "stack"),
        ("launches.count", "launches"),
        ("dram.bytes", "dram traffic"),
        ("dram.fraction", "dram use"),
        ("l2.hit_fraction", "l2.hit"),
        ("occupancy.theoretical", "theoretical occupancy"),
        ("occupancy.achieved", "achieved occupancy"),
        ("dram__bytes.sum", "dram__bytes.sum"),
        ("ttft", "ttft"),
    ],
)
def test_a_noun_leaves_out_what_the_unit_says(metric: str, noun: str) -> None:
    """`stack 0 B`, not `stack_bytes 0 B`; a counter keeps its name."""
    assert words.noun(metric) == noun


def test_no_two_nouns_are_the_same() -> None:
    """What stands in a row says which metric it is, whatever its unit."""
    called = [words.noun(name) for name in METRICS]

    assert len(set(called)) == len(called)


def test_what_the_suite_saw_is_said_where_it_was_worse_alone() -> None:
    """Both values beside each other, behind the metric where it is not the time."""
    moved, alone = runs.change(0.99, 20.1e-3), runs.change(0.0, 10.1e-3)
    plain = runs.changed("t", Outcome.UNCHANGED, Reason.WITHIN_NOISE, alone)
    told = replace(plain, in_suite=moved)

    assert sentences.in_suite(plain) == ""
    assert sentences.in_suite(told).startswith(
        "20.1 ms in the suite (+99.0 %), 10.1 ms "
    )
    assert sentences.in_suite(replace(told, metric="ttft")).startswith(
        "ttft 20.1 ms in "
    )


def of_alone(outcome: Outcome, cause: Cause | None, **evidence: Any) -> Verdict:
    """A test of 245 us in the suite, where it was 232 us, and of 500 us alone."""
    change = Change(
        effect=0.056,
        current=245e-6,
        reference=232e-6,
        session_count=5,
        run_count=5,
        fresh=True,
    )
    return Verdict(
        key=runs.key("test_a"),
        metric="time",
        outcome=outcome,
        reason=Reason.NOT_CONFIRMED,
        cause=cause,
        estimate=runs.time_of(245e-6),
        change=change,
        alone=replace(change, effect=1.155, current=500e-6),
        evidence=VerdictEvidence(**evidence) if evidence else None,
    )


def test_a_test_that_is_another_alone_says_both_values() -> None:
    """In a line where it is no change, and as the evidence where it may be one."""
    same = of_alone(Outcome.UNCHANGED, None)
    open_ = sentences.for_pytest(of_alone(Outcome.INCONCLUSIVE, Cause.OTHER_ALONE))
    part = sentences.for_pytest(
        of_alone(Outcome.INCONCLUSIVE, Cause.OTHER_ALONE, ran=(1, 40))
    )
    shifted = sentences.for_pytest(
        of_alone(Outcome.INCONCLUSIVE, Cause.OTHER_ALONE, lines=("2 others moved",))
    )

    assert sentences.alone(same) == (
        "alone 500 us, in the suite 245 us (was 232 us): slower alone; no change"
    )
    assert sentences.alone(open_) == ""
    assert open_.detail == (
        (
            "245 us in the suite (+5.6 %), 500 us alone (+116 %): alone it is slower than in "
            "the suite, so the fresh processes do not tell whether it changed"
        ),
    )
    assert part.detail == (
        (
            "245 us in the suite (+5.6 %), 500 us alone (+116 %): this run ran 1 of 40 "
            "tests, and how long it takes alone is not known well enough"
        ),
    )
    assert shifted.detail == (
        (
            "245 us in the suite (+5.6 %), 500 us alone (+116 %): perhaps equal by "
            "chance: no stored session measured it alone"
        ),
        "2 others moved",
    )


def verdict(
    reason: Reason,
    cause: Cause | None = None,
    *,
    sessions: int = 0,
    outcome: Outcome = Outcome.INCONCLUSIVE,
    against: AgainstEvidence | None = None,
    **evidence: Any,
) -> Verdict:
    """Return a verdict as judge gives it, without a word."""
    return Verdict(
        key=runs.key("test_a"),
        metric="time",
        outcome=outcome,
        reason=reason,
        cause=cause,
        baseline=replace(runs.SPAN, session_count=sessions) if sessions else None,
        evidence=VerdictEvidence(**evidence) if evidence else None,
        against=against,
    )


UNLIKE = Unmeasured(
    metric="the test",
    code=GapCode.OTHER_LAUNCHER,
    reason="pytest was started by `x`",
    remedy="run pytest itself",
)
HOT = Void(code=VoidCode.HARDWARE_THERMAL, reason="it was hot")
BUSY = Void(
    code=VoidCode.FOREIGN_PROCESS,
    reason="another program used the GPU",
    remedy="end {it}",
)
GAP = Unmeasured(metric="time", reason="another program holds it", remedy="wait")
OLD, NEW = "0123456789abcdef", "fedcba9876543210"
STORE = "store this session with --gpuperf-update=new"
PLAINLY = (
    "measure without a tracer or profiler, and set variables that change all code, such "
    "as PYTHONMALLOC, before pytest starts"
)
OVER = "measure it again when that is over"
PIN = "pin the kernel, for example in the autotuning configuration"
BY_REVISION = "compare it with a revision on this machine (--gpuperf-against=9be01d4)"
ALIKE = "most tests of its class moved by the same amount, because of a shared change or the machine"
ON_ITS_MACHINE = (
    "start pytest on that machine by itself, without an xdist worker; one store holds the "
    "sessions of all machines"
)
BY_ANY_REVISION = BY_REVISION.replace("9be01d4", "REV")

BESIDE = AgainstEvidence(block_count=0)

# reason, cause and evidence; what stands below the verdict; what to do in pytest, and
# with files
CASES: list[tuple[Verdict, tuple[str, ...], str, str]] = [
    (
        verdict(Reason.STRADDLES_LIMIT),
        (),
        "decide it in fresh processes (--gpuperf-confirm), or move the limit",
        "",
    ),
    (
        replace(verdict(Reason.STRADDLES_LIMIT), assumed=True),
        (sentences.USUAL_INTERVAL,),
        "decide it in fresh processes (--gpuperf-confirm), or move the limit",
        "",
    ),
    (
        verdict(Reason.STRADDLES_LIMIT, Cause.STILL_STRADDLES),
        (),
        "move the limit away from the value, or reduce the noise",
        "",
    ),
    (
        verdict(Reason.STRADDLES_LIMIT, Cause.STRADDLES_LAUNCH),
        (),
        'time it by cupti, or several calls at once (cache="warm"), or move the limit',
        "",
    ),
    (
        verdict(Reason.STRADDLES_LIMIT, Cause.NOTHING_USABLE, lacking=(GAP,)),
        ("time was not measured again: another program holds it",),
        "wait",
        "wait",
    ),
    (
        verdict(Reason.STRADDLES_LIMIT, Cause.ENDED_EARLY),
        (),
        "run all the selected tests to their end, so that fresh processes decide it",
        "",
    ),
    (
        verdict(Reason.ABOVE_THE_ROOF),
        (),
        "correct the declared work, or use data larger than the caches",
        "",
    ),
    (
        verdict(Reason.ABOVE_THE_ROOF, Cause.OF_A_LOOP),
        (),
        "check hardware=, or the bytes that its work declares",
        "",
    ),
    (
        verdict(Reason.NOT_MEASURED, gap=GAP),
        ("another program holds it",),
        "wait",
        "wait",
    ),
    (
        verdict(
            Reason.NOT_MEASURED,
            gap=Gap(code=GapCode.NOT_SAMPLED, reason="no sensor was", remedy=""),
        ),
        ("no sensor was",),
        "use a GPU, and run pytest with --gpuperf-telemetry=10",
        "name a run file that has it",
    ),
    (
        verdict(Reason.NOT_MEASURED),
        ("time was not measured",),
        "measure it, or remove its limit",
        "name a run file that has it",
    ),
    (
        verdict(Reason.NOT_MEASURED, Cause.NO_HARDWARE, grade="B"),
        (
            (
                'min_grade="B" is a fraction of the bandwidth bound: the peak bandwidth '
                "or the bytes of a unit of work are not known"
            ),
        ),
        words.GIVE_HARDWARE,
        "name a run file that has it",
    ),
    (
        verdict(
            Reason.NOT_MEASURED,
            Cause.ENDED_EARLY,
            gap=replace(GAP, reason="it was left", remedy=""),
            grade="A",
        ),
        ('min_grade="A" is a fraction of the bandwidth bound: it was left',),
        "let the loop run to its end",
        "name a run file that has it",
    ),
    (
        verdict(Reason.NOT_MEASURED, Cause.NOTHING_TIMED, grade="C"),
        ('min_grade="C" is a fraction of the roof: nothing was timed',),
        "time a call, and declare its work",
        "name a run file that has it",
    ),
    (
        verdict(Reason.CHILD_GAVE_NO_VALUE, lines=("boom", "exit 1")),
        ("boom", "exit 1"),
        "make the test pass when it runs alone",
        "",
    ),
    (
        verdict(Reason.CHILD_GAVE_NO_VALUE),
        ("no fresh process measured time",),
        "make the test pass when it runs alone",
        "",
    ),
    (
        verdict(Reason.NOTHING_STORED),
        (),
        STORE,
        "name an older run file that has it",
    ),
    (
        verdict(
            Reason.FINGERPRINT_DIFFERS,
            differences={"driver": ("1", "2"), "gpu_name": ("L4", "H200")},
        ),
        ("driver: 1 -> 2", "gpu_name: L4 -> H200"),
        (
            "store sessions of this machine with --gpuperf-update=new, compare "
            f"anyway with --gpuperf-compare-across=driver,gpu_name, or {BY_ANY_REVISION}"
        ),
        "name older run files that agree in these facts",
    ),
    (
        verdict(Reason.FINGERPRINT_DIFFERS, differences={"peak": ("{3}", "4")}),
        ("peak: {3} -> 4",),
        (
            "store sessions with this peak with --gpuperf-update=new, compare "
            f"anyway with --gpuperf-compare-across=peak, or {BY_ANY_REVISION}"
        ),
        "name older run files that agree in these facts",
    ),
    (
        verdict(
            Reason.FINGERPRINT_DIFFERS, Cause.OTHER_MACHINE, machines=("l40s", "a100")
        ),
        ("only other machines have stored sessions: l40s, a100",),
        f"{STORE}, or {BY_ANY_REVISION}",
        "name older run files that agree in these facts",
    ),
    (
        verdict(Reason.OTHER_SOURCE, stored_sources=("events", "host")),
        ("stored: events, host",),
        (
            "measure with that collector (--gpuperf-collectors=events,host), or store "
            "sessions of this one with --gpuperf-update=new"
        ),
        "name older run files that measured it in the same way",
    ),
    (
        verdict(Reason.VOID, gap=replace(GAP, remedy="")),
        ("another program holds it",),
        OVER,
        OVER,
    ),
    (
        verdict(Reason.TOO_FEW_SESSIONS, sessions=1, least_count=3),
        ("1 of 3 sessions stored",),
        f"store 2 more sessions with --gpuperf-update=new, or {BY_REVISION}",
        "name 2 more run files",
    ),
    (
        verdict(Reason.TOO_FEW_SESSIONS, sessions=2, least_count=3),
        ("2 of 3 sessions stored",),
        f"store 1 more session with --gpuperf-update=new, or {BY_REVISION}",
        "name 1 more run file",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            kernels=(
                KernelChoice(choice=OLD, count=5, total_count=6),
                KernelChoice(choice=NEW, count=2, total_count=3),
            ),
        ),
        (
            "stored: kernels 01234567 in 5 of 6 sessions",
            "now: kernels fedcba98 in 2 of 3 processes",
        ),
        f"{PIN}, store more sessions, or {BY_ANY_REVISION}",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            kernels=(
                KernelChoice(
                    choice=OLD, count=5, total_count=6, names=("gemm_128", "axpy")
                ),
                KernelChoice(
                    choice=NEW,
                    count=2,
                    total_count=3,
                    names=("a", "axpy", "b", "c", "d" * 99),
                ),
            ),
        ),
        (
            "stored: gemm_128, and 1 kernel of both, in 5 of 6 sessions",
            "now: a, b, c, 1 more, and 1 kernel of both, in 2 of 3 processes",
        ),
        f"{PIN}, store more sessions, or {BY_ANY_REVISION}",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            kernels=(
                KernelChoice(choice=OLD, count=5, total_count=6, names=("a", "b")),
                KernelChoice(choice=NEW, count=3, total_count=3, names=("a",)),
            ),
        ),
        (
            "stored: b, and 1 kernel of both, in 5 of 6 sessions",
            "now: kernels fedcba98 (no other name) in 3 of 3 processes",
        ),
        f"{PIN}, store more sessions, or {BY_ANY_REVISION}",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            kernels=(
                KernelChoice(choice=OLD, count=5, total_count=6, names=("a", "b")),
                KernelChoice(choice=NEW, count=3, total_count=3, names=("b", "a")),
            ),
        ),
        (
            "stored: kernels 01234567 (the same names) in 5 of 6 sessions",
            "now: kernels fedcba98 (the same names) in 3 of 3 processes",
        ),
        f"{PIN}, store more sessions, or {BY_ANY_REVISION}",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            kernels=(
                KernelChoice(choice=None, count=6, total_count=6),
                KernelChoice(choice=NEW, count=3, total_count=3),
            ),
        ),
        (
            "stored: unknown kernels in 6 of 6 sessions",
            "now: kernels fedcba98 in 3 of 3 processes",
        ),
        f"{PIN}, store more sessions, or {BY_ANY_REVISION}",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(Reason.INCOMPLETE_RUN),
        (),
        "run all the selected tests to their end",
        "",
    ),
    (
        verdict(Reason.FASTER_THAN_LIMIT, outcome=Outcome.IMPROVED),
        (),
        "store it with --gpuperf-update=improved",
        "",
    ),
    (
        verdict(Reason.NOT_CONFIRMED),
        (),
        (
            "confirm it in fresh processes: name the store with --gpuperf-baseline, and "
            f"keep --gpuperf-confirm above 0; or {BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.OTHER_ALONE),
        (),
        (
            "run the whole suite again; if it is still undecided, store more sessions "
            "with --gpuperf-update=new (each times some tests alone), or "
            f"{BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.LOOKED_BETTER),
        (),
        "confirm and store it with --gpuperf-update=improved",
        "name more run files",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE, lines=("it was hot",)),
        ("it was hot",),  # as earlier versions wrote it
        OVER,
        "name more run files",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.OTHER_LAUNCHER, lacking=(UNLIKE,)),
        ("the test was not measured again: pytest was started by `x`",),
        "run pytest itself",
        "run pytest itself",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE, voids=(HOT, HOT, BUSY)),
        ("it was hot", "another program used the GPU"),
        "end {it}",  # what a tool wrote is not filled in
        "end {it}",
    ),
    (
        verdict(
            Reason.NOT_CONFIRMED,
            Cause.NOTHING_USABLE,
            lacking=(replace(GAP, remedy="set it up in a conftest.py"),),
        ),
        ("time was not measured again: another program holds it",),
        "set it up in a conftest.py",
        "set it up in a conftest.py",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE, voids=(HOT,)),
        ("it was hot",),
        OVER,
        "name more run files",
    ),
    (
        verdict(
            Reason.NOT_CONFIRMED,
            Cause.NOTHING_USABLE,
            voids=(Void(code=VoidCode.OTHER_TRACER, reason=""),),
            differences={"tracer": ("coverage", "none")},
        ),
        (
            "fresh processes ran with other tracers or modes than the suite",
            "tracer: coverage -> none",
        ),
        PLAINLY,
        PLAINLY,
    ),
    (
        verdict(
            Reason.NOT_CONFIRMED,
            Cause.MEASURED_ELSEWHERE,
            voids=(Void(code=VoidCode.OTHER_MACHINE, reason=""),),
            differences={"machine": ("h100-3", "head-1")},
        ),
        (
            "an xdist worker measured it on another machine than the fresh processes",
            "machine: h100-3 -> head-1",
        ),
        ON_ITS_MACHINE,
        ON_ITS_MACHINE,
    ),
    (
        verdict(Reason.STRADDLES_LIMIT, Cause.MEASURED_ELSEWHERE),
        (),
        ON_ITS_MACHINE,
        "",
    ),
    (
        verdict(
            Reason.NOT_CONFIRMED,
            Cause.NOTHING_USABLE,
            voids=(
                Void(code=VoidCode.OTHER_DEVICE, reason=""),
                Void(code=VoidCode.OTHER_FACTS, reason=""),
            ),
        ),
        (
            "fresh processes used another GPU than the suite",
            "fresh processes measured under other conditions than the suite",
        ),
        "choose one GPU for all processes; make the conditions equal",
        "choose one GPU for all processes; make the conditions equal",
    ),
    (
        verdict(Reason.INCOMPLETE_RUN, voids=(BUSY,)),
        ("another program used the GPU",),
        "run all the selected tests to their end",
        "",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT),
        (),
        BY_ANY_REVISION,
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.CLOCK_MOVED),
        (),
        (
            "lock the clock (sudo nvidia-smi --lock-gpu-clocks, see gpuperf doctor), and "
            f"store new sessions; or {BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.SAME_COMMIT),
        (),
        (
            "run the suite again later; if it stays so, look at what no commit has "
            "(libraries, environment variables, the machine), or store the new level "
            "with --gpuperf-update=all"
        ),
        "name more run files",
    ),
    (
        verdict(
            Reason.NOT_SIGNIFICANT,
            Cause.SEEN_BEFORE,
            alike=tuple(
                SeenValue(
                    session_id=f"s{n}",
                    started_unix_s=86400.0 * n,
                    value=n,
                    alone=n == 2,
                )
                for n in range(1, 5)
            ),
        ),
        (
            (
                "seen before: 2 alone on 1970-01-03, 3 on 1970-01-04, 4 on 1970-01-05, and "
                "1 more"
            ),
        ),
        (
            "find the cause of the different times, such as threads, a disk or a "
            f"cache; or {BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.SHARED_MOVE),
        (ALIKE,),
        f"store sessions of a calmer machine, or {BY_ANY_REVISION}",
        "name more run files",
    ),
    (
        verdict(Reason.NOT_CONFIRMED, Cause.SHARED_MOVE),
        (ALIKE,),
        (
            "name the store with --gpuperf-baseline, so that fresh processes measure some "
            f"of these tests again, or {BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.FEW_SESSIONS),
        (),
        f"store more sessions with --gpuperf-update=new, or {BY_ANY_REVISION}",
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.ONE_PROCESS),
        (),
        f"measure it in more processes with --gpuperf-runs=5, or {BY_ANY_REVISION}",
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.NOISY_MACHINE),
        (),
        (
            "sessions of this machine differ too much for a stored baseline: "
            f"measure where nothing else runs, or {BY_ANY_REVISION}"
        ),
        "name more run files",
    ),
    (
        verdict(
            Reason.NOT_SIGNIFICANT,
            left_out=LeftOut(session_id="s0", started_unix_s=86_400.0, ratio=3.04),
        ),
        ("left out: the session of 1970-01-02, 3.0 x the others",),
        BY_ANY_REVISION,
        "name more run files",
    ),
    (
        verdict(
            Reason.NOT_SIGNIFICANT,
            left_out=LeftOut(session_id="s0", started_unix_s=86_400.0, ratio=None),
        ),
        ("left out: the session of 1970-01-02; the others are 0",),
        BY_ANY_REVISION,
        "name more run files",
    ),
    (
        verdict(
            Reason.NOT_SIGNIFICANT,
            left_out=LeftOut(session_id="s0", started_unix_s=86_400.0, ratio=-2e200),
        ),
        ("left out: the session of 1970-01-02, -2.0e+200 x the others",),
        BY_ANY_REVISION,
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.OF_NOTHING),
        (
            (
                "the mean of the stored values is 0: a change counts if each of them is 0 and no "
                "fresh process gives a 0"
            ),
        ),
        (
            f'limit the number itself, for example limits="retries <= 3", or {BY_ANY_REVISION}'
        ),
        "name more run files",
    ),
    (
        verdict(Reason.NOT_SIGNIFICANT, Cause.SHORT_LOOP, least_count=30),
        (),
        f"record 30 or more steps of the loop, or {BY_ANY_REVISION}",
        "name more run files",
    ),
    (
        verdict(Reason.SLOWER_IN_SUITE),
        (),
        (
            "find the test that slows it down, and make it clean up; if the machine was busy, run the suite again"
        ),
        "",
    ),
    (
        verdict(
            Reason.OTHER_KERNEL,
            Cause.KERNEL_PER_SIDE,
            against=BESIDE,
            kernels=(
                KernelChoice(choice=OLD, count=8, total_count=8),
                KernelChoice(choice=NEW, count=7, total_count=7),
            ),
        ),
        (
            "revision: kernels 01234567 in 8 of 8 processes",
            "now: kernels fedcba98 in 7 of 7 processes",
        ),
        f"{PIN}; if the change picks another one on purpose, limit its time",
        "pin the kernel, or name more run files",
    ),
    (
        verdict(
            Reason.SIDE_WITHOUT_VALUE,
            Cause.OLD_SIDE,
            against=BESIDE,
            lines=("E boom",),
            lacking=(GAP,),
        ),
        (
            "the revision gave no value",
            "E boom",
            "time was not measured: another program holds it",
        ),
        "name a revision in which the test runs",
        "",
    ),
    (
        verdict(Reason.SIDE_WITHOUT_VALUE, Cause.NEW_SIDE, against=BESIDE),
        ("the working tree gave no value",),
        "make the test pass when it runs alone",
        "",
    ),
    (
        verdict(
            Reason.SIDE_WITHOUT_VALUE,
            Cause.NEVER_TOGETHER,
            against=BESIDE,
            lines=("E in use",),
        ),
        ("it never gave a value on both sides at the same time", "E in use"),
        "let several processes run it at once, for example with a free port or tmp_path",
        "",
    ),
    (
        verdict(
            Reason.SIDE_WITHOUT_VALUE,
            Cause.NOT_REACHED,
            against=BESIDE,
            lines=("the process sent nothing for 30 s in t.py::test_a, and was ended",),
            ended_in="t.py::test_a",
        ),
        (
            "the processes were ended in an earlier test",
            "the process sent nothing for 30 s in t.py::test_a, and was ended",
        ),
        "let t.py::test_a, which runs before it, finish, or deselect it",
        "",
    ),
    (
        verdict(Reason.SIDE_WITHOUT_VALUE, Cause.BOTH_SIDES, against=BESIDE),
        ("neither side gave a value",),
        "make the test pass when it runs alone",
        "",
    ),
    (
        verdict(Reason.TEST_CHANGED, against=BESIDE),
        (),
        "run today's tests on both sides with --gpuperf-against-tests=mine",
        "",
    ),
    (
        verdict(Reason.BLOCKS_DIFFER, Cause.BLOCKS_SPENT, against=BESIDE),
        (),
        (
            "measure it on a quieter machine, or set a wider limit, such as "
            "--gpuperf-max-regression=10%"
        ),
        "",
    ),
    (
        verdict(
            Reason.BLOCKS_DIFFER,
            Cause.BLOCKS_HOPELESS,
            against=AgainstEvidence(block_count=8, decidable_limit=0.143),
        ),
        (),
        (
            "measure it on a quieter machine, or set a limit of 14.3 % or more "
            "(max_regression)"
        ),
        "",
    ),
    (
        verdict(
            Reason.BLOCKS_DIFFER,
            Cause.BLOCKS_HOPELESS,
            against=AgainstEvidence(block_count=8, decidable_limit=443.68),
        ),
        (),
        (
            "run it alone on an idle machine, do more work in a call, or fix the number of "
            "threads (OMP_NUM_THREADS)"
        ),
        "",
    ),
    (
        verdict(Reason.TOO_FEW_BLOCKS, Cause.BEFORE_FIRST_LOOK, against=BESIDE),
        (),
        "give it a longer --gpuperf-budget, such as 30min (the default is 10min)",
        "",
    ),
    (
        verdict(Reason.TOO_FEW_BLOCKS, Cause.ENDED_EARLY, against=BESIDE),
        (),
        "give it a longer --gpuperf-budget, such as 30min (the default is 10min)",
        "",
    ),
    (
        verdict(Reason.TOO_FEW_BLOCKS, Cause.STOPPED, against=BESIDE),
        (),
        "run it again, to its end",
        "",
    ),
]

# the same of reasons that a baseline has, too
OF_REVISION = [
    (
        verdict(
            Reason.FINGERPRINT_DIFFERS, against=BESIDE, differences={"gpu": ("a", "b")}
        ),
        "compare anyway with --gpuperf-compare-across=gpu",
        "The revision was measured on other hardware, or in another way.",
    ),
    (
        verdict(Reason.OTHER_SOURCE, against=BESIDE, stored_sources=("host",)),
        "name one collector for both sides with --gpuperf-collectors",
        (
            "The revision was measured by another collector, and values of different "
            "collectors are not compared."
        ),
    ),
    (
        verdict(Reason.OTHER_KERNEL, against=BESIDE),
        PIN,
        "The two sides never ran the same kernels.",
    ),
    (
        verdict(Reason.OTHER_KERNEL, Cause.KERNEL_PER_SIDE, against=BESIDE),
        f"{PIN}; if the change picks another one on purpose, limit its time",
        "Each side always ran a kernel of its own.",
    ),
    (
        verdict(Reason.VOID, against=BESIDE),
        OVER,
        sentences.REASONS[Reason.VOID],
    ),
    (
        verdict(Reason.SLOWER_THAN_LIMIT, against=BESIDE, outcome=Outcome.REGRESSED),
        "",
        "It is worse than the revision by more than the limit.",
    ),
    (
        verdict(Reason.FASTER_THAN_LIMIT, against=BESIDE, outcome=Outcome.IMPROVED),
        "",
        "It is better than the revision by more than the limit.",
    ),
    (
        verdict(Reason.EQUAL, against=BESIDE, outcome=Outcome.UNCHANGED),
        "",
        "It equals the value of the revision.",
    ),
]


@pytest.mark.parametrize(("judged", "remedy", "sentence"), OF_REVISION)
def test_nothing_is_stored_of_a_revision(
    judged: Verdict, remedy: str, sentence: str
) -> None:
    """Neither sentence nor remedy speaks of a baseline or of sessions."""
    assert sentences.for_pytest(judged).remedy == remedy
    assert sentences.sentence(judged) == sentence
    # a baseline whose suspect a revision decided keeps its own words
    both = replace(judged, baseline=runs.SPAN, cause=None)
    assert sentences.sentence(both) == sentences.REASONS[judged.reason]


def test_a_verdict_of_blocks_says_what_the_same_code_differed_by() -> None:
    """Its own null; where there is none, the blocks alone."""
    said = [
        sentences.blocks(verdict(Reason.EQUAL, against=against))
        for against in (
            None,
            BESIDE,
            AgainstEvidence(block_count=1),
            AgainstEvidence(block_count=8, null_fraction=0.0083),
        )
    ]

    assert said == ["", "", "1 block", "8 blocks; noise floor ±0.8 %"]


@pytest.mark.parametrize(("judged", "detail", "in_pytest", "with_files"), CASES)
def test_a_verdict_says_what_to_do_where_it_is_read(
    judged: Verdict, detail: tuple[str, ...], in_pytest: str, with_files: str
) -> None:
    """Options are pytest's, files the command's; the evidence is the same for both."""
    told, compared = sentences.for_pytest(judged), sentences.for_files(judged)

    assert (told.detail, told.remedy) == (detail, in_pytest)
    assert (compared.detail, compared.remedy) == (detail, with_files)
    assert "--gpuperf" not in compared.remedy
    assert replace(told, detail=(), remedy="") == judged


def test_a_verdict_is_put_into_words_once_or_twice_alike() -> None:
    """The limits of a test are told in its own report, and again at the end."""
    for judged, *_ in CASES:
        told = sentences.for_pytest(judged)
        assert sentences.for_pytest(told) == told


@pytest.mark.parametrize(("outcome", "reason"), sorted(words.PLAIN))
def test_what_is_decided_well_needs_no_words(outcome: Outcome, reason: Reason) -> None:
    """Most verdicts of a run are these, which never load the sentences."""
    good = verdict(reason, outcome=outcome)

    assert words.is_plain(good)
    assert sentences.for_pytest(good) is good


def test_what_has_a_remedy_is_not_plain() -> None:
    """The sentences of every other verdict are looked up."""
    for judged, remedy, *_ in CASES:
        assert not (remedy and words.is_plain(judged))


@pytest.mark.parametrize("cause", Cause)
def test_every_case_of_a_reason_has_words_of_its_own(cause: Cause) -> None:
    """A code that changes nothing for a reader is not a code."""
    remedies = {(judged.reason, judged.cause): remedy for judged, _, remedy, _ in CASES}
    own = [(reason, text) for (reason, each), text in remedies.items() if each is cause]

    assert own
    for reason, text in own:
        usual = remedies.get((reason, None))
        assert usual != text


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (Cause.FEW_SESSIONS, "store more sessions with --gpuperf-update=new"),
        (None, ""),
    ],
)
def test_a_run_that_compares_with_a_revision_is_not_sent_there(
    cause: Cause | None, remedy: str
) -> None:
    """What it says of its store as well names what was not done yet."""
    undecided = verdict(Reason.NOT_SIGNIFICANT, cause)

    assert sentences.for_pytest(undecided, compared=True).remedy == remedy


def test_a_clock_that_moved_is_the_reason() -> None:
    """Noise is not: the change may well be significant."""
    judged = verdict(Reason.NOT_SIGNIFICANT, Cause.CLOCK_MOVED)

    assert sentences.sentence(judged) == (
        "It is slower by more than the limit, but not in cycles: the clock moved."
    )


ONE: dict[str, Any] = {"session_count": 3, "run_count": 1}
BOARDS = {"gpu_uuid": ("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "MIG-1")}


def slower(outcome: Outcome, clue: Clue, shift: float = 0.07) -> Verdict:
    """Return a verdict of another GPU than in the baseline."""
    return replace(
        verdict(Reason.NOT_DETECTABLE, sessions=3, outcome=outcome),
        baseline=replace(runs.SPAN, moved=BOARDS),
        change=Change(
            effect=0.03,
            current=1.1,
            reference=1.0,
            session_count=3,
            run_count=1,
            machine_shift=shift,
        ),
        origin=OriginEvidence(origin=Origin.MACHINE, clue=clue, names=("gpu_uuid",)),
    )


def test_another_gpu_is_named_with_the_one_before() -> None:
    """By as much of its name as `--gpuperf-device` needs, and by what is taken out."""
    text = (
        "another GPU than in the baseline (MIG-1, not GPU-00010203): other tests and "
        "reference workloads are slower on it, and"
    )
    undecided = slower(Outcome.INCONCLUSIVE, Clue.OTHER_BOARD)
    others = [slower(Outcome.BLIND, Clue.OTHER_BOARD, shift) for shift in (0.05, 0.09)]

    assert origins.origin(undecided) == f"cause: machine: {text} +7.0 % is taken out"
    assert origins.other_board(*others) == f"{text} up to +9.0 % is taken out"
    assert not origins.other_board(slower(Outcome.BLIND, Clue.WITHIN_SPREAD))
    assert not origins.other_board()


def test_another_commit_is_not_all_that_differs() -> None:
    """The driver differs too, and the controls took its part out."""
    failed = slower(Outcome.REGRESSED, Clue.OTHER_COMMIT)
    alone = replace(
        failed, origin=OriginEvidence(origin=Origin.CODE, clue=Clue.OTHER_COMMIT)
    )

    assert origins.origin(failed).endswith(
        "the commit differs; so does gpu_uuid, but other tests are as fast"
    )
    assert origins.origin(alone).endswith("and nothing else that is recorded")
