"""The likely origin of a worsening: code, method, machine or noise."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.compute.kernels import account, named, totals_of, usual_choice
from pytest_gpuperf.judge.case import NO_FACTS, Facts, same_code, same_commit
from pytest_gpuperf.model.environment import (
    BOARD,
    SOFT_MACHINE_FACTS,
    STATE_FACTS,
    TEST,
    UNKNOWN,
    WORKERS,
    Session,
    family_of,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.metric import METRICS, Better, Family
from pytest_gpuperf.model.record import Record, Role, StoredRecord
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.verdict import (
    BaselineSpan,
    Cause,
    Clue,
    Origin,
    OriginEvidence,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

# Causes of an undecided verdict that already tell the origin.
_OF_CAUSES = {
    Cause.CLOCK_MOVED: (Origin.MACHINE, Clue.CLOCK),
    Cause.NOISY_MACHINE: (Origin.MACHINE, Clue.NOISY_MACHINE),
    Cause.SAME_COMMIT: (Origin.MACHINE, Clue.SAME_COMMIT),
    Cause.SEEN_BEFORE: (Origin.NOISE, Clue.SEEN_BEFORE),
    Cause.SHARED_MOVE: (Origin.MACHINE, Clue.SHARED_MOVE),
}
# Between two trees that were measured side by side.
_OF_SIDES = {
    Sameness.CHANGED: Clue.MACHINE_CODE,
    Sameness.SAME_CODE: Clue.DATA_OR_SHAPE,
    Sameness.SAME: Clue.SAME_ON_BOTH_SIDES,
}
_OF_DEVICE = frozenset({Family.DEVICE_TIME, Family.COUNTER})
# Reasons of a worsening that more data may decide.
_OPEN = frozenset({Reason.NOT_SIGNIFICANT, Reason.NOT_CONFIRMED, Reason.BLOCKS_DIFFER})

_WORSE = frozenset({Outcome.REGRESSED, Outcome.INCONCLUSIVE})
# A value may be among these because its worsening was taken for the machine's.
_CORRECTED = frozenset({Outcome.BLIND, Outcome.UNCHANGED})


class Background(Frozen, frozen=True, kw_only=True):
    """
    What is known about the code of a measurement, then and now.

    Attributes:
        session: The session that measured, or None if unknown.

        stored: The stored sessions that were compared.

        code: Whether the kernels have the machine code of all these sessions. None if
            unknown.
    """

    session: Session | None = None
    stored: tuple[Session, ...] = ()
    code: Sameness | None = None

    @property
    def is_same_commit(self) -> bool:
        """True if the run and all stored sessions had the same, unmodified files."""
        return same_commit(self.session, self.stored)

    @property
    def is_other_commit(self) -> bool:
        """True if the run is known to have had other files than a stored session."""
        now = self.session
        if now is None or now.commit is None:
            return False
        others = (s.commit not in {None, now.commit} for s in self.stored)
        return bool(now.dirty) or any(others)


def background_of(
    record: Record,
    sessions: Sequence[StoredRecord],
    span: BaselineSpan,
    session: Session | None,
) -> Background:
    """
    Return the background of a verdict.

    Args:
        record: The record of the main process.

        sessions: The stored sessions of the measurement.

        span: The sessions that were compared.

        session: The session that measured, or None if unknown.
    """
    held = [
        s
        for s in sessions
        if span.first_unix_s <= s.session.started_unix_s <= span.last_unix_s
    ]
    return Background(
        session=session,
        stored=tuple(s.session for s in held),
        code=same_code([record], held),
    )


def with_origin(verdict: Verdict, background: Background) -> Verdict:
    """Add the likely origin to a verdict about a worsening, if the evidence shows one."""
    if verdict.change is None or verdict.outcome not in _WORSE | _CORRECTED:
        return verdict
    if verdict.outcome is not Outcome.REGRESSED:
        found = _of_board(verdict)
        if found is None and verdict.outcome is Outcome.INCONCLUSIVE:
            found = _of_undecided(verdict)
    elif verdict.of_revision:
        found = _of_revision(verdict)
    else:
        found = _of_files(verdict, background) or _of_commits(verdict, background)
    return verdict if found is None else replace(verdict, origin=found)


def _moved(verdict: Verdict) -> Facts:
    return NO_FACTS if verdict.baseline is None else verdict.baseline.moved


def _of_board(verdict: Verdict) -> OriginEvidence | None:
    change, sides = verdict.change, _moved(verdict).get(BOARD, (UNKNOWN,))
    if change is None or UNKNOWN in sides or _family(verdict) not in _OF_DEVICE:
        return None
    shift, metric = change.machine_shift, METRICS.get(verdict.metric)
    if shift is None or not change.reference or metric is None:
        return None
    sign = -1 if metric.better is Better.HIGHER else 1
    worsening = sign * (change.measured / change.reference - 1)
    is_explained = sign * shift >= abs(change.effect or 0.0)
    if not is_explained or worsening <= (verdict.threshold or 0.0):
        return None
    return OriginEvidence(origin=Origin.MACHINE, clue=Clue.OTHER_BOARD, names=(BOARD,))


def _of_undecided(verdict: Verdict) -> OriginEvidence | None:
    cause, code = verdict.cause, verdict.reason
    if cause in _OF_CAUSES:
        origin, clue = _OF_CAUSES[cause]
        return OriginEvidence(origin=origin, clue=clue)
    # Alone and in the suite, the test had two values, and both are sure.
    if code not in _OPEN or cause is Cause.OTHER_ALONE:
        return None
    if cause is Cause.LOOKED_BETTER:
        return None
    repeated = verdict.confirmations
    is_noise = repeated or code is not Reason.NOT_CONFIRMED
    clue = Clue.NOT_REPEATED if repeated else Clue.WITHIN_SPREAD
    return OriginEvidence(origin=Origin.NOISE, clue=clue) if is_noise else None


def _of_revision(verdict: Verdict) -> OriginEvidence:
    change, against = verdict.change, verdict.against
    null = None if against is None else against.null_fraction
    if change is not None and null is not None and abs(change.effect or 0.0) < null:
        return OriginEvidence(origin=Origin.NOISE, clue=Clue.WITHIN_NULL)
    code = None if against is None else against.code
    clue = Clue.OTHER_FILES if code is None else _OF_SIDES[code]
    if clue is Clue.SAME_ON_BOTH_SIDES and not _is_of_kernels(verdict):
        clue = Clue.OTHER_FILES
    return OriginEvidence(origin=Origin.CODE, clue=clue)


def _of_files(verdict: Verdict, background: Background) -> OriginEvidence | None:
    moved = _moved(verdict)
    if TEST in moved:
        return OriginEvidence(origin=Origin.METHOD, clue=Clue.TEST_CHANGED)
    # A package that only one of the runs had loaded shows no other version.
    known = {name for name, sides in moved.items() if UNKNOWN not in sides}
    settings = known - SOFT_MACHINE_FACTS - STATE_FACTS
    # They share the cores, and change neither a count nor the machine code.
    is_count = _family(verdict) in {Family.RESOURCE, Family.RECORDED}
    if is_count or background.code in {Sameness.CHANGED, Sameness.SAME_CODE}:
        settings -= {WORKERS}
    if settings:
        names = tuple(sorted(settings))
        return OriginEvidence(origin=Origin.METHOD, clue=Clue.SETTINGS, names=names)
    if background.code is Sameness.CHANGED:
        return OriginEvidence(origin=Origin.CODE, clue=Clue.MACHINE_CODE)
    if background.code is Sameness.SAME_CODE:
        return OriginEvidence(origin=Origin.CODE, clue=Clue.DATA_OR_SHAPE)
    if background.code is Sameness.SAME and _is_of_kernels(verdict):
        return OriginEvidence(origin=Origin.MACHINE, clue=Clue.SAME_MACHINE_CODE)
    return None


def _is_of_kernels(verdict: Verdict) -> bool:
    """Return True if the value depends on kernels alone, and the same kernels ran."""
    evidence = verdict.evidence
    if evidence is not None and evidence.kernels is not None:
        return False
    return _family(verdict) in _OF_DEVICE


def _family(verdict: Verdict) -> Family | None:
    value = verdict.estimate
    return None if value is None else family_of(value.metric, value.source)


def _of_commits(verdict: Verdict, background: Background) -> OriginEvidence | None:
    change = verdict.change
    moved = _moved(verdict)
    facts = tuple(sorted(moved.keys() & SOFT_MACHINE_FACTS))
    family = _family(verdict)
    if change is None:
        return None
    # The machine changes no count. An autotuner may choose other kernels.
    by_tuner = verdict.reason is Reason.OTHER_KERNEL
    if change.exact and family is Family.RESOURCE and not by_tuner:
        return OriginEvidence(origin=Origin.CODE, clue=Clue.EXACT)
    # A number that a test records may come from anywhere.
    if background.is_same_commit and family is not Family.RECORDED:
        return OriginEvidence(origin=Origin.MACHINE, clue=Clue.SAME_COMMIT, names=facts)
    if not background.is_other_commit:
        return None
    shift = change.machine_shift
    is_steady = shift is not None and abs(shift) < abs(change.effect or 0.0)
    # Both may be the origin, unless other tests show that the machine is as before.
    if (facts or shift is not None) and not is_steady:
        return None
    return OriginEvidence(origin=Origin.CODE, clue=Clue.OTHER_COMMIT, names=facts)


def with_kernels(
    verdict: Verdict, records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> Verdict:
    """
    Add the kernels of then and now to a verdict, with their times.

    Args:
        verdict: The verdict on a change.

        records: All records of the same measurement. If there are fresh processes, only
            they count.

        sessions: The stored sessions of the same measurement.
    """
    evidence = verdict.evidence or VerdictEvidence()
    moved = verdict.outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    if verdict.of_revision or not (moved or evidence.kernels is not None):
        return verdict
    deciding = [record for record in records if record.role is Role.CONFIRM] or records
    then, now = evidence.kernels or (
        usual_choice([session.choice for session in sessions]),
        usual_choice([record.choice for record in deciding]),
    )
    if None in {then.choice, now.choice}:
        return verdict
    kernels = evidence.kernels
    if then.choice != now.choice:
        kernels = (
            named(then, _known(then.choice, records, sessions)),
            named(now, _known(now.choice, records, sessions)),
        )
    own_number = verdict.estimate is not None and verdict.estimate.source == Source.USER
    found = None
    if not own_number:
        found = account(
            [session.kernels for session in sessions if session.choice == then.choice],
            totals_of(deciding, now.choice),
        )
    if kernels is None and found is None:
        return verdict
    return replace(verdict, evidence=replace(evidence, kernels=kernels, account=found))


def _known(
    choice: str | None, records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> Sequence[Sequence[KernelTotal]]:
    seen = totals_of(records, choice)
    return seen or [one.kernels for one in sessions if one.choice == choice]
