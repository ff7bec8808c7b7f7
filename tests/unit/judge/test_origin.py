"""judge.origin: where a worsening likely comes from."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.judge.origin import Background, background_of, with_origin
from pytest_gpuperf.model.change import AgainstEvidence, Change
from pytest_gpuperf.model.environment import TEST, Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import CodeIdentity, Sameness
from pytest_gpuperf.model.record import SessionValue, StoredRecord
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import (
    BaselineSpan,
    Cause,
    Clue,
    KernelChoice,
    Origin,
    OriginEvidence,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import KEY, record

CHANGE = Change(effect=0.3, current=1.3, reference=1.0, session_count=3, run_count=1)
TIME = Estimate(metric="time", value=1.3, unit="s", source="cupti")
DRIVER = {"driver": ("580.1", "590.2")}


def at(commit: str | None, number: int = 0, **fields: Any) -> Session:
    """Return a session of a commit."""
    given: dict[str, Any] = {"host": "h", "dirty": False}
    return Session(
        id=f"s{number}", started_unix_s=number, commit=commit, **(given | fields)
    )


OTHER_COMMIT = Background(session=at("b", 9), stored=(at("a"), at("a", 1)))
SAME_COMMIT = Background(session=at("a", 9), stored=(at("a"), at("a", 1)))


def verdict(
    moved: dict[str, tuple[str, str]] | None = None,
    change: Change | None = CHANGE,
    **fields: Any,
) -> Verdict:
    """Return a regression beside a baseline."""
    span = BaselineSpan(
        session_count=3, first_unix_s=0.0, last_unix_s=1.0, moved=moved or {}
    )
    given: dict[str, Any] = {
        "outcome": Outcome.REGRESSED,
        "reason": Reason.SLOWER_THAN_LIMIT,
        "estimate": TIME,
        "threshold": 0.05,
        "baseline": span,
    }
    return Verdict(key=KEY, metric="time", change=change, **(given | fields))


def found(
    given: Verdict, background: Background = OTHER_COMMIT
) -> tuple[Origin, Clue] | None:
    """Return origin and clue."""
    origin = with_origin(given, background).origin
    return None if origin is None else (origin.origin, origin.clue)


def test_a_changed_test_is_the_method() -> None:
    """The test itself comes first, because all else follows from it."""
    changed = replace(OTHER_COMMIT, code=Sameness.CHANGED)

    assert found(verdict({TEST: ("a", "b")}), changed) == (
        Origin.METHOD,
        Clue.TEST_CHANGED,
    )


def test_a_package_is_the_method_and_is_named() -> None:
    """Another compiler makes other machine code, and its name is the better answer."""
    changed = replace(OTHER_COMMIT, code=Sameness.CHANGED)
    given = verdict({"triton": ("3.4", "3.9"), "temperature": ("about 40", "about 50")})

    assert with_origin(given, changed).origin == OriginEvidence(
        origin=Origin.METHOD, clue=Clue.SETTINGS, names=("triton",)
    )


def test_a_package_that_one_run_did_not_load_is_no_other_version() -> None:
    """A part of the suite may import less, and nothing was installed for that."""
    for sides in (("2.4.6", "unknown"), ("unknown", "2.4.6")):
        assert found(verdict({"numpy": sides})) == (Origin.CODE, Clue.OTHER_COMMIT)
        both = verdict({"numpy": sides, "torch": ("2.9", "2.10")})
        origin = with_origin(both, OTHER_COMMIT).origin
        assert origin is not None
        assert origin.names == ("torch",)


def test_workers_change_times_alone() -> None:
    """They share the cores, and make no other code and no other count."""
    workers = {"xdist_workers": ("1", "2")}
    changed = replace(OTHER_COMMIT, code=Sameness.CHANGED)
    recorded = Estimate(metric="loss", value=1.3, unit="1", source="user")

    assert found(verdict(workers)) == (Origin.METHOD, Clue.SETTINGS)
    assert found(verdict(workers), changed) == (Origin.CODE, Clue.MACHINE_CODE)
    assert found(verdict(workers, estimate=recorded), Background()) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Sameness.CHANGED, (Origin.CODE, Clue.MACHINE_CODE)),
        (Sameness.SAME_CODE, (Origin.CODE, Clue.DATA_OR_SHAPE)),
        (Sameness.SAME, (Origin.MACHINE, Clue.SAME_MACHINE_CODE)),
    ],
)
def test_machine_code_decides_over_commit_and_driver(
    code: Sameness, expected: tuple[Origin, Clue]
) -> None:
    """What the kernels are is known better than what a commit or a driver may do."""
    assert found(verdict(DRIVER), replace(OTHER_COMMIT, code=code)) == expected


def test_the_same_machine_code_says_nothing_of_the_host() -> None:
    """A host time depends on host code, and other kernels are another call."""
    same = replace(OTHER_COMMIT, code=Sameness.SAME)
    of_host = verdict(estimate=replace(TIME, source="host"))
    kernels = (
        KernelChoice(choice="A", count=3, total_count=3),
        KernelChoice(choice="B", count=1, total_count=1),
    )
    others = verdict(evidence=VerdictEvidence(kernels=kernels))

    assert found(of_host, same) == (Origin.CODE, Clue.OTHER_COMMIT)
    assert found(others, same) == (Origin.CODE, Clue.OTHER_COMMIT)


def test_equal_files_leave_the_machine() -> None:
    """With one clean commit then and now, no code can be the origin."""
    assert found(verdict(), SAME_COMMIT) == (Origin.MACHINE, Clue.SAME_COMMIT)
    dirty_now = replace(SAME_COMMIT, session=at("a", 9, dirty=True))
    dirty_then = replace(SAME_COMMIT, stored=(at("a"), at("a", 1, dirty=True)))
    unknown = replace(SAME_COMMIT, session=at(None, 9))
    mixed = replace(SAME_COMMIT, stored=(at("0"), at("a", 1)))

    assert found(verdict(), dirty_now) == (Origin.CODE, Clue.OTHER_COMMIT)
    assert found(verdict(), dirty_then) is None
    assert found(verdict(), unknown) is None
    # The mean is partly of an older commit.
    assert found(verdict(), mixed) == (Origin.CODE, Clue.OTHER_COMMIT)


def test_a_driver_and_a_commit_are_told_apart_by_the_controls() -> None:
    """With both changed, other tests that stayed as fast show that it is the code."""
    steady = replace(CHANGE, machine_shift=0.01)
    shifted = replace(CHANGE, machine_shift=0.5)

    assert found(verdict(DRIVER)) is None
    assert found(verdict(DRIVER, steady)) == (Origin.CODE, Clue.OTHER_COMMIT)
    assert found(verdict(DRIVER, shifted)) is None
    assert found(verdict({}, shifted)) is None
    assert found(verdict({}, steady)) == (Origin.CODE, Clue.OTHER_COMMIT)


def test_a_count_is_of_the_code() -> None:
    """No machine changes an exact number, whatever is known of commits."""
    exact = replace(CHANGE, exact=True)
    registers = Estimate(metric="registers", value=32.0, unit="count", source="binary")
    counted = verdict({}, exact, estimate=registers)

    assert found(counted, Background()) == (Origin.CODE, Clue.EXACT)
    assert found(counted, SAME_COMMIT) == (Origin.CODE, Clue.EXACT)


def test_a_recorded_number_may_come_from_anywhere() -> None:
    """With equal files, it may be of data, and so no cause is named."""
    exact = replace(CHANGE, exact=True)
    recorded = Estimate(metric="loss", value=1.3, unit="1", source="user")
    own = verdict({}, exact, estimate=recorded)

    assert found(own, SAME_COMMIT) is None
    assert found(own) == (Origin.CODE, Clue.OTHER_COMMIT)


def test_side_by_side_the_code_is_left() -> None:
    """A comparison with a revision takes the machine out, down to its own null."""
    against = AgainstEvidence(block_count=4, null_fraction=0.02)
    wide = replace(against, null_fraction=0.4)

    assert found(verdict(against=against, baseline=None)) == (
        Origin.CODE,
        Clue.OTHER_FILES,
    )
    assert found(verdict(against=wide, baseline=None)) == (
        Origin.NOISE,
        Clue.WITHIN_NULL,
    )


@pytest.mark.parametrize(
    ("reason", "cause", "again", "expected"),
    [
        (Reason.NOT_SIGNIFICANT, None, (), (Origin.NOISE, Clue.WITHIN_SPREAD)),
        (Reason.NOT_SIGNIFICANT, None, (0.01,), (Origin.NOISE, Clue.NOT_REPEATED)),
        (Reason.NOT_CONFIRMED, None, (), None),  # Nothing was measured again.
        (Reason.NOT_CONFIRMED, Cause.OTHER_ALONE, (0.3,), None),
        (
            Reason.NOT_SIGNIFICANT,
            Cause.CLOCK_MOVED,
            (),
            (Origin.MACHINE, Clue.CLOCK),
        ),
        (
            Reason.NOT_CONFIRMED,
            Cause.SHARED_MOVE,
            (),
            (Origin.MACHINE, Clue.SHARED_MOVE),
        ),
        (
            Reason.NOT_SIGNIFICANT,
            Cause.SEEN_BEFORE,
            (0.3,),
            (Origin.NOISE, Clue.SEEN_BEFORE),
        ),
        (Reason.TOO_FEW_SESSIONS, None, (), None),
        (Reason.INCOMPLETE_RUN, None, (), None),
    ],
)
def test_an_undecided_change_is_noise_or_machine(
    reason: Reason,
    cause: Cause | None,
    again: tuple[float, ...],
    expected: tuple[Origin, Clue] | None,
) -> None:
    """It is never called the code's, and without data there is no answer."""
    given = verdict(
        outcome=Outcome.INCONCLUSIVE, reason=reason, cause=cause, confirmations=again
    )
    assert found(given, replace(OTHER_COMMIT, code=Sameness.CHANGED)) == expected


@pytest.mark.parametrize(
    "outcome", [Outcome.IMPROVED, Outcome.UNCHANGED, Outcome.BLIND, Outcome.FAILED]
)
def test_only_a_worsening_has_an_origin(outcome: Outcome) -> None:
    """Nothing is to be blamed for the others."""
    assert found(verdict(outcome=outcome)) is None


BOARD = {"gpu_uuid": ("GPU-1-2", "GPU-3-4")}


def corrected(shift: float | None, **fields: Any) -> Verdict:
    """Return a verdict about a time that was 10 % longer on another GPU, all told."""
    left = 1.1 / (1 + (shift or 0.0)) - 1
    change = replace(CHANGE, effect=left, current=1.1, machine_shift=shift)
    given = {"outcome": Outcome.BLIND, "reason": Reason.NOT_DETECTABLE, **fields}
    return verdict(given.pop("moved", BOARD), change, **given)


@pytest.mark.parametrize("outcome", [Outcome.BLIND, Outcome.UNCHANGED])
def test_another_gpu_is_named_where_the_others_are_slower_on_it(
    outcome: Outcome,
) -> None:
    """Also where that was taken out, as nothing else says why the value is higher."""
    given = corrected(0.07, outcome=outcome)

    assert with_origin(given, Background()).origin == OriginEvidence(
        origin=Origin.MACHINE, clue=Clue.OTHER_BOARD, names=("gpu_uuid",)
    )


def test_another_gpu_comes_before_noise() -> None:
    """It is known to be another one, and the controls are slower on it."""
    undecided = {"outcome": Outcome.INCONCLUSIVE, "reason": Reason.NOT_SIGNIFICANT}

    assert found(corrected(0.07, **undecided)) == (Origin.MACHINE, Clue.OTHER_BOARD)
    assert found(corrected(0.02, **undecided)) == (Origin.NOISE, Clue.WITHIN_SPREAD)


@pytest.mark.parametrize(
    ("shift", "fields"),
    [
        (0.04, {}),  # The others explain less than half.
        (None, {}),  # There are too few others.
        (0.07, {"threshold": 0.2}),  # Nobody would have been told of it.
        (0.07, {"moved": {}}),
        (0.07, {"moved": {"gpu_uuid": ("unknown", "GPU-3-4")}}),
        (0.07, {"estimate": replace(TIME, source="host")}),
        (-0.5, {}),  # The others are faster.
    ],
)
def test_another_gpu_is_named_only_with_evidence(
    shift: float | None, fields: dict[str, Any]
) -> None:
    """Boards of one kind are alike as a rule."""
    assert found(corrected(shift, **fields)) is None


def test_a_rate_is_worse_where_it_is_less() -> None:
    """A roofline's share of the device falls by what a time rises."""
    share = replace(TIME, metric="roofline.fraction", unit="1")
    less = replace(CHANGE, effect=-0.02, current=0.9, machine_shift=-0.08)
    given = verdict(BOARD, less, outcome=Outcome.BLIND, estimate=share)

    assert found(replace(given, metric="roofline.fraction")) == (
        Origin.MACHINE,
        Clue.OTHER_BOARD,
    )


def code(*words: str) -> str:
    """Return a stored identity."""
    return str(CodeIdentity(code=words[0], shape=words[1], data=words[2]))


@pytest.mark.parametrize(
    ("now", "stored", "expected"),
    [
        (code("a", "b", "c"), [code("a", "b", "c")] * 2, Sameness.SAME),
        (code("a", "b", "c"), [code("a", "b", "c"), None], None),
        (code("a", "b", "c"), [None, code("a", "b", "d")], Sameness.SAME_CODE),
        # The older session belongs to the mean as well.
        (
            code("a", "b", "c"),
            [code("x", "b", "c"), code("a", "b", "c")],
            Sameness.CHANGED,
        ),
        (None, [code("a", "b", "c")], None),
        (code("a", "b", "c"), ["0.old"], None),
    ],
)
def test_all_compared_sessions_must_have_the_code(
    now: str | None, stored: list[str | None], expected: Sameness | None
) -> None:
    """Only sessions in the span count, and a session without a digest proves nothing."""
    value = SessionValue(metric="time", unit="s", source="cupti", run_values=(1.0,))
    sessions = [
        StoredRecord(
            key=KEY, session=at("a", number), values=(value,), code_digest=digest
        )
        for number, digest in enumerate([*stored, code("z", "z", "z")])
    ]
    span = BaselineSpan(
        session_count=len(stored), first_unix_s=0.0, last_unix_s=len(stored) - 1.0
    )
    given = replace(record(TIME), code_digest=now)
    background = background_of(given, sessions, span, at("b", 9))

    assert background.code is expected
    assert [s.id for s in background.stored] == [f"s{n}" for n in range(len(stored))]


def test_code_is_compared_inside_the_choice_of_kernels() -> None:
    """What an autotuner chose in another session is not in the mean that is compared."""
    value = SessionValue(metric="time", unit="s", source="cupti", run_values=(1.0,))
    sessions = [
        StoredRecord(
            key=KEY,
            session=at("a", number),
            values=(value,),
            choice=choice,
            code_digest=code(choice, "b", "c"),
        )
        for number, choice in enumerate("AAB")
    ]
    span = BaselineSpan(session_count=3, first_unix_s=0.0, last_unix_s=2.0)

    def of(choice: str) -> Sameness | None:
        given = replace(record(TIME), choice=choice, code_digest=code(choice, "b", "c"))
        return background_of(given, sessions, span, at("b", 9)).code

    assert of("A") is Sameness.SAME
    # One session is too few to compare with, so all are.
    assert of("B") is Sameness.CHANGED


@pytest.mark.parametrize(
    ("code", "source", "expected"),
    [
        (None, "cupti", Clue.OTHER_FILES),
        (Sameness.CHANGED, "cupti", Clue.MACHINE_CODE),
        (Sameness.SAME_CODE, "cupti", Clue.DATA_OR_SHAPE),
        (Sameness.SAME, "cupti", Clue.SAME_ON_BOTH_SIDES),
        (Sameness.SAME, "host", Clue.OTHER_FILES),
    ],
)
def test_a_comparison_with_a_revision_names_the_machine_code(
    code: Sameness | None, source: str, expected: Clue
) -> None:
    """The machine is out of it: the origin is the code, of the kernels or of the host."""
    given = verdict(
        baseline=None,
        estimate=replace(TIME, source=source),
        against=AgainstEvidence(block_count=4, code=code),
    )

    assert found(given) == (Origin.CODE, expected)
