"""One metric of one measurement, now and in the baseline: what is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen
from pytest_gpuperf.model.metric import Better, Family, Metric
from pytest_gpuperf.model.record import BoundClass, Kind, RecordKey, Void
from pytest_gpuperf.model.sample import Estimate, Unmeasured

__all__ = [
    "NO_FACTS",
    "Case",
    "Confirmation",
    "Facts",
    "Policy",
    "Stored",
    "direction",
    "lacking_again",
]

Facts = Mapping[str, tuple[str, str]]
NO_FACTS: Facts = MappingProxyType({})
_FILES = frozenset({"binary", "ncu-report"})  # sources that say the same each time


class Policy(Frozen, frozen=True, kw_only=True):
    """
    The constants of the rule; docs/judging.md section 2 where nothing else is said.

    Attributes:
        alpha: Chance of a false alarm in a whole run.

        noise_threshold: A change too small to mean anything [fraction].

        power: How often the detectable effect is found.

        suspect_share: Share of its limit beyond which a change is suspected.

        suspect_p: How probable noise may be as a suspect's explanation.

        least_sessions: Stored sessions that a metric with noise needs.

        least_choice_runs: Confirming processes that a choice of kernels needs, where
            they disagree.

        least_controls: Controls whose median is taken for a shift; the median of fewer
            is one test's own noise.

        class_count: Tests of a class that show what a stored session moved together: as
            many as the controls that a class should have.

        selected: Whether suspects are confirmed. Between files of whole runs nothing was
            selected for being bad, so that nothing need be confirmed.
    """

    alpha: float = 0.01
    noise_threshold: float = 0.005
    power: float = 0.9
    suspect_share: float = 0.6
    suspect_p: float = 0.05
    least_sessions: int = 3
    least_choice_runs: int = 2
    least_controls: int = 3
    class_count: int = 8
    selected: bool = True


class Stored(BulkRecord, frozen=True, kw_only=True):
    """
    One stored session of a case.

    Attributes:
        value: Its values.

        session: When and where.

        choice: Hash of the kernels that ran; None: not known.
    """

    value: SessionValue
    session: Session
    choice: str | None = None


class Case(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one measurement, now and in the baseline.

    Attributes:
        key: The measurement.

        metric: The metric.

        limit: Largest change that passes [fraction]; None: it is only shown.

        estimate: The value now; None: there is none.

        current: The same with the value of each process; None: there is none.

        choice: Hash of the kernels that ran now; None: not known.

        stored: Comparable stored sessions from the same source, oldest first.

        differences: Hard facts on which all stored sessions differ: name to (then, now).

        other_sources: Sources of the stored sessions where none is now's.

        other_slug_exists: Whether another machine or GPU has stored sessions of it.

        unmeasured: Why there is no value; None: there is one, or nobody said.

        void: Why it must not be judged.

        bound_class: What moves with it when the machine moves.

        moved: Soft facts that differ from the newest session's: name to (then, now).

        kind: How it was measured; None: nobody said.
    """

    key: RecordKey
    metric: Metric
    limit: float | None
    estimate: Estimate | None
    current: SessionValue | None
    choice: str | None = None
    stored: tuple[Stored, ...] = ()
    differences: Facts = NO_FACTS
    other_sources: tuple[str, ...] = ()
    other_slug_exists: bool = False
    unmeasured: Unmeasured | None = None
    void: Void | None = None
    bound_class: BoundClass = BoundClass.HOST
    moved: Facts = NO_FACTS
    kind: Kind | None = None

    @property
    def name(self) -> tuple[RecordKey, str]:
        """What no other case of a run is called."""
        return self.key, self.metric.name

    @property
    def of_file(self) -> bool:
        """Whether the value was read from a file, which no fresh process can confirm."""
        return self.estimate is not None and self.estimate.source in _FILES

    @property
    def counts(self) -> bool:
        """Whether equal code gives equal values: a count, or what a file says."""
        counted = self.metric.exact or self.metric.family is Family.RESOURCE
        return counted or self.of_file


class Confirmation(Frozen, frozen=True, kw_only=True):
    """
    What fresh processes gave for one case.

    Attributes:
        run_values: The value of each process that gave one and was not void.

        half_widths: Half-width of each one's interval, relative; may be empty.

        choices: The choice of each, as many as `run_values`; empty: none is known.

        lost: The last lines of a process in which the test failed; empty: none.

        void: Why processes that gave a value are left out, and others could have none.

        control: Whether it was measured to see what the machine does, not suspected.
    """

    run_values: tuple[float, ...]
    half_widths: tuple[float, ...] = ()
    choices: tuple[str | None, ...] = ()
    lost: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    control: bool = False

    @property
    def made_choices(self) -> tuple[str | None, ...]:
        """The choice of each process that gave a value."""
        return self.choices or (None,) * len(self.run_values)


def lacking_again(unmeasured: Iterable[Unmeasured]) -> tuple[str, ...]:
    """Return why fresh processes could not have values, a sentence each."""
    told = (f"{u.metric} was not measured again: {u.reason}" for u in unmeasured)
    return tuple(dict.fromkeys(told))


def direction(metric: Metric) -> Better:
    """
    Return which way a metric gets better, for one that a person has gated by name.

    Without a direction of its own a share of a peak is better the higher it is, and all
    else (registers, shared memory, counters) the lower.
    """
    if metric.better is not Better.NEITHER:
        return metric.better
    return Better.HIGHER if metric.unit == "fraction" else Better.LOWER
