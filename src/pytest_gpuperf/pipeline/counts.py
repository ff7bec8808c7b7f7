"""What was counted of tests, and how a process that dies is got over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.pipeline.captured import report_counters
from pytest_gpuperf.pipeline.counting import wanted_metrics, with_counters
from pytest_gpuperf.pipeline.repeat import Answer, Reached

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.work import Work
    from pytest_gpuperf.pipeline.seen import Again

__all__ = [
    "Counted",
    "CountedRange",
    "Counts",
    "Profile",
    "Profiled",
    "Refusal",
    "Wanted",
    "count",
    "isolate",
    "last_words",
    "without_counters",
]

_MOST_RESTARTS = 3  # of a group whose tests end their process, or that ncu refuses
_RANGE = "range"  # ncu's replay mode that counts a measurement as one thing
_SHOWN_LINES = 3  # of what a process said last
_ALONE = "run it by itself under ncu: pytest -k … --gpuperf-collectors=host,ncu"


class Refusal(Frozen, frozen=True, kw_only=True):
    """
    Why something was not counted.

    Attributes:
        reason: As a fragment.

        remedy: What to do about it, as a sentence.
    """

    reason: str
    remedy: str

    def of(self, wanted: Sequence[Wanted]) -> list[Counted]:
        """Return this refusal for each of some tests."""
        return [Counted(test_id=each.test_id, refusal=self) for each in wanted]


class Wanted(Frozen, frozen=True, kw_only=True):
    """
    A test that needs counters.

    Attributes:
        test_id: The test.

        path: Its file.

        metrics: What it asks for, as `wanted_metrics` says.

        counters: What that is made of on this chip, as `made_of` says.

        cache_control: What its markers say of caches.
    """

    test_id: str
    path: str
    metrics: tuple[str, ...]
    counters: tuple[str, ...]
    cache_control: str


class CountedRange(Frozen, frozen=True, kw_only=True):
    """
    What was counted of one measurement.

    Attributes:
        name: Its name inside the test.

        cache_control: What was done about caches.

        launches: Its kernels; empty: there was none.
    """

    name: str
    cache_control: str
    launches: tuple[CapturedLaunch, ...] = ()


class Counted(Frozen, frozen=True, kw_only=True):
    """
    What was counted of one test.

    Attributes:
        test_id: The test.

        ranges: Its measurements.

        refusal: Why others of it were not counted; None: it came to no other.

        tool_version: ncu's.

        replay_mode: How ncu repeated what it counted.

        clock_control: What it did about clocks.

        session_id: The session that counted.
    """

    test_id: str
    ranges: tuple[CountedRange, ...] = ()
    refusal: Refusal | None = None
    tool_version: str = ""
    replay_mode: str = "kernel"
    clock_control: str = "none"
    session_id: str = ""

    @property
    def complete(self) -> bool:
        """Whether it would be the same the next time."""
        every = (launch for each in self.ranges for launch in each.launches)
        return (
            self.refusal is None
            and all(each.launches for each in self.ranges)
            and all(launch.measured for launch in every)
        )


class Profiled(Frozen, frozen=True, kw_only=True):
    """
    One process that ran under ncu.

    Attributes:
        answers: What it said of its tests, by id.

        launches: What was profiled in each range, by the range's name; None: there is no
            report to read.

        refused: Why ncu counted nothing at all; None: it did, or the process ended.

        failure: The last lines of a process that ended before all of its tests had.

        hung: Whether it did not end.
    """

    answers: Mapping[str, Answer] = {}
    launches: Mapping[str, tuple[CapturedLaunch, ...]] | None = None
    refused: Refusal | None = None
    failure: str = ""
    hung: bool = False


Profile = Callable[[Sequence[Wanted], str], Profiled]


class Counts:
    """
    The counters of a run's tests.

    Args:
        found: What was counted, by test id.

        collectors: Those that were asked for by name.
    """

    def __init__(self, found: Iterable[Counted], *, collectors: Sequence[str]) -> None:
        self._found = {each.test_id: each for each in found}
        self._collectors = collectors

    def joined(
        self,
        record: Record,
        plan: Plan,
        _again: Again | None = None,
        *,
        work: Work | None,
        facts: Mapping[str, str],
    ) -> Record:
        """Return a record with the counters of the same measurement, or why it has none."""
        metrics = wanted_metrics(plan, self._collectors)
        counted = self._found.get(record.key.test_id)
        if not metrics or counted is None:
            return record
        found = _of_range(counted, record.key.name)
        if isinstance(found, Refusal):
            return without_counters(record, metrics, found)
        modes = {
            "tool_version": counted.tool_version,
            "replay_mode": counted.replay_mode,
            "cache_control": found.cache_control,
            "clock_control": counted.clock_control,
        }
        return with_counters(
            record,
            found.launches,
            metrics,
            work=work,
            facts={**facts, **modes},
            by_kernel=counted.replay_mode != _RANGE,
        )


def without_counters(
    record: Record, metrics: Sequence[str], refusal: Refusal
) -> Record:
    """Return a record that says why it has none of some counters."""
    missing = tuple(
        Unmeasured(metric=name, reason=refusal.reason, remedy=refusal.remedy)
        for name in metrics
        if not any(e.metric == name for e in record.estimates)
    )
    return replace(record, unmeasured=(*record.unmeasured, *missing))


def _of_range(counted: Counted, name: str) -> CountedRange | Refusal:
    """Return what was counted of a measurement, or why nothing was."""
    shown = f"the range {name!r}" if name else "the measurement"
    found = next((each for each in counted.ranges if each.name == name), None)
    if found is None:
        return counted.refusal or Refusal(
            reason=f"{shown} was not reached under ncu",
            remedy="let the test come to it in every process",
        )
    if not found.launches:
        return Refusal(
            reason=f"no kernel was launched in {shown} under ncu",
            remedy="see that the call works on the GPU",
        )
    failed = [launch.kernel for launch in found.launches if not launch.measured]
    if failed:
        reason = f"ncu could not profile a launch of {failed[0]} in {shown}"
        return Refusal(reason=reason, remedy=_ALONE)
    return found


def count(wanted: Sequence[Wanted], profile: Profile) -> list[Counted]:
    """
    Count all of some tests, those of one cache mode together.

    A measurement says only when it is reached what it does about caches; one that was in
    the wrong group is counted again in the other one.

    Args:
        wanted: The tests; each runs at most once a group.

        profile: Runs some tests under ncu, with a cache control.
    """
    found = {each.test_id: Counted(test_id=each.test_id) for each in wanted}
    tried: set[tuple[str, str]] = set()
    todo = list(dict.fromkeys(each.cache_control for each in wanted))
    groups = {mode: [w for w in wanted if w.cache_control == mode] for mode in todo}
    while todo:
        mode = todo.pop(0)
        group = groups.pop(mode)
        tried |= {(each.test_id, mode) for each in group}
        ended = isolate(group, lambda tests, mode=mode: profile(tests, mode))  # type: ignore[misc] # mypy gives a lambda's default no type
        for each in group:
            result = ended[each.test_id]
            found[each.test_id] = _both(found[each.test_id], result, mode)
            others = {r.cache_control for r in result.ranges} - {mode}
            for other in sorted(others):
                if (each.test_id, other) not in tried:
                    if other not in groups:
                        todo.append(other)
                    groups.setdefault(other, []).append(each)
    return list(found.values())


def _both(earlier: Counted, later: Counted, mode: str) -> Counted:
    """Return what two groups gave of a test: each its ranges with that cache mode."""
    own = tuple(each for each in later.ranges if each.cache_control == mode)
    return replace(
        later,
        ranges=(*earlier.ranges, *own),
        refusal=earlier.refusal or later.refusal,
    )


def isolate(
    wanted: Sequence[Wanted], run: Callable[[Sequence[Wanted]], Profiled]
) -> dict[str, Counted]:
    """
    Run tests together; where one ends or stops the process, the others go on without it.

    It is then tried alone, once, unless it stopped. After some restarts the rest is left.

    Args:
        wanted: The tests.

        run: Runs some of them in one process.
    """
    found: dict[str, Counted] = {}
    pending = list(wanted)
    for restarts in range(_MOST_RESTARTS + 1):
        profiled = run(pending)
        found |= _ended(pending, profiled)
        rest = [each for each in pending if each.test_id not in found]
        guilty, refusal = _guilty(rest, profiled)
        last = restarts == _MOST_RESTARTS
        if guilty and not last and not profiled.refused and not profiled.hung:
            found |= _alone(guilty, refusal, run) if len(pending) > 1 else {}
        lost = rest if last or not guilty else guilty
        for each in lost:
            found.setdefault(
                each.test_id, Counted(test_id=each.test_id, refusal=refusal)
            )
        pending = [each for each in rest if each.test_id not in found]
        if not pending:
            break
    return found


def _ended(wanted: Sequence[Wanted], profiled: Profiled) -> dict[str, Counted]:
    """Return the tests that came to their end in a process that could be read."""
    if profiled.refused is not None or profiled.launches is None:
        return {}
    return {
        each.test_id: _counted(each, answer, profiled.launches)
        for each in wanted
        if (answer := profiled.answers.get(each.test_id)) is not None and answer.ended
    }


def _counted(
    wanted: Wanted, answer: Answer, launches: Mapping[str, tuple[CapturedLaunch, ...]]
) -> Counted:
    """Return what was counted of a test that came to its end, of its own metrics."""
    own = frozenset(report_counters(wanted.metrics))
    by_name: dict[str, Reached] = {each.name: each for each in answer.reached}
    reason = f"the test does not pass under ncu: {last_words(answer.failure)}"
    refusal = Refusal(reason=reason, remedy=_ALONE)
    return Counted(
        test_id=answer.test_id,
        ranges=tuple(
            CountedRange(
                name=each.name,
                cache_control=each.cache_control,
                launches=tuple(_only(launch, own) for launch in launches[each.range])
                if each.range in launches
                else (),
            )
            for each in by_name.values()
        ),
        refusal=refusal if answer.failure else None,
    )


def _only(launch: CapturedLaunch, names: frozenset[str]) -> CapturedLaunch:
    """Return a launch without what was collected for other tests."""
    own = {name: value for name, value in launch.metrics.items() if name in names}
    return replace(launch, metrics=own)


def _guilty(rest: Sequence[Wanted], profiled: Profiled) -> tuple[list[Wanted], Refusal]:
    """Return the tests because of which others have no values, and what is said of it."""
    refused = profiled.refused
    if refused is not None:  # ncu counts nothing for one unknown name
        naming = [w for w in rest if any(name in refused.reason for name in w.counters)]
        return naming, refused
    begun = [
        each
        for each in rest
        if (answer := profiled.answers.get(each.test_id)) is not None
        and not answer.ended
    ]
    what = "did not end" if profiled.hung else "ended"
    reason = f"its process {what} under ncu: {last_words(profiled.failure)}"
    return begun[:1], Refusal(reason=reason, remedy=_ALONE)


def last_words(text: str) -> str:
    """Return the last lines of a text as one, for a reason stands in a line."""
    # a line of pytest's progress is as wide as the terminal, and mostly blank
    lines = [" ".join(words) for line in text.splitlines() if (words := line.split())]
    return " | ".join(lines[-_SHOWN_LINES:]) or "it said nothing"


def _alone(
    guilty: Sequence[Wanted],
    refusal: Refusal,
    run: Callable[[Sequence[Wanted]], Profiled],
) -> dict[str, Counted]:
    """Return what a test gives that is run by itself."""
    found = _ended(guilty, run(guilty))
    missing = (each for each in guilty if each.test_id not in found)
    return found | {
        each.test_id: Counted(test_id=each.test_id, refusal=refusal) for each in missing
    }
