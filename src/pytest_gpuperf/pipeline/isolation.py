"""Tests that are profiled together, and alone where one ends its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.measure.captured import report_counters
from pytest_gpuperf.measure.counters import (
    PROFILE_ALONE,
    CountedTest,
    RangeLaunches,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.run import ChildAnswer, ProfiledRange

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.launches import CapturedLaunch

__all__ = [
    "CounterRequest",
    "Profile",
    "ProfilerRun",
    "count",
    "isolate",
    "last_words",
    "refuse_all",
]

_MOST_RESTARTS = 3  # of a group whose tests end their process, or that ncu refuses
_SHOWN_LINES = 3  # of what a process said last


class CounterRequest(Frozen, frozen=True, kw_only=True):
    """
    A test that needs counters.

    Attributes:
        test_id: The test.

        path: Its file.

        metrics: What it asks for, as `counter_metrics` says.

        counters: What that is made of on this chip, as `made_of` says.

        cache_control: What its markers say of caches.
    """

    test_id: str
    path: str
    metrics: tuple[str, ...]
    counters: tuple[str, ...]
    cache_control: str


class ProfilerRun(Frozen, frozen=True, kw_only=True):
    """
    One process that ran under ncu.

    Attributes:
        answers: What it said of its tests, by id.

        launches: What was profiled in each range, by the range's name; None: there is no
            report to read.

        refused: Why ncu counted nothing at all; None: it did, or the process ended.

        unknown: The counter that ncu does not know, for which it refused; "": another
            reason.

        failure: The last lines of a process that ended before all of its tests had.

        hung: Whether it did not end.
    """

    answers: Mapping[str, ChildAnswer] = {}
    launches: Mapping[str, tuple[CapturedLaunch, ...]] | None = None
    refused: Gap | None = None
    unknown: str = ""
    failure: str = ""
    hung: bool = False


Profile = Callable[[Sequence[CounterRequest], str], ProfilerRun]


def refuse_all(wanted: Sequence[CounterRequest], refusal: Gap) -> list[CountedTest]:
    """Return that no test of some was counted, each for the same reason."""
    return [CountedTest(test_id=each.test_id, refusal=refusal) for each in wanted]


def count(wanted: Sequence[CounterRequest], profile: Profile) -> list[CountedTest]:
    """
    Count all of some tests, those of one cache mode together.

    A measurement says only when it is reached what it does about caches; one that was in
    the wrong group is counted again in the other one.

    Args:
        wanted: The tests; each runs at most once a group.

        profile: Runs some tests under ncu, with a cache control.
    """
    found = {each.test_id: CountedTest(test_id=each.test_id) for each in wanted}
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


def _both(earlier: CountedTest, later: CountedTest, mode: str) -> CountedTest:
    """Return what two groups gave of a test: each its ranges with that cache mode."""
    own = tuple(each for each in later.ranges if each.cache_control == mode)
    return replace(
        later,
        ranges=(*earlier.ranges, *own),
        refusal=earlier.refusal or later.refusal,
    )


def isolate(
    wanted: Sequence[CounterRequest],
    run: Callable[[Sequence[CounterRequest]], ProfilerRun],
) -> dict[str, CountedTest]:
    """
    Run tests together; where one ends or stops the process, the others go on without it.

    It is then tried alone, once, unless it stopped. After some restarts the rest is left.

    Args:
        wanted: The tests.

        run: Runs some of them in one process.
    """
    found: dict[str, CountedTest] = {}
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
                each.test_id, CountedTest(test_id=each.test_id, refusal=refusal)
            )
        pending = [each for each in rest if each.test_id not in found]
        if not pending:
            break
    return found


def _ended(
    wanted: Sequence[CounterRequest], profiled: ProfilerRun
) -> dict[str, CountedTest]:
    """Return the tests that came to their end in a process that could be read."""
    if profiled.refused is not None or profiled.launches is None:
        return {}
    return {
        each.test_id: _counted(each, answer, profiled.launches)
        for each in wanted
        if (answer := profiled.answers.get(each.test_id)) is not None and answer.ended
    }


def _counted(
    wanted: CounterRequest,
    answer: ChildAnswer,
    launches: Mapping[str, tuple[CapturedLaunch, ...]],
) -> CountedTest:
    """Return what was counted of a test that came to its end, of its own metrics."""
    own = frozenset(report_counters(wanted.metrics))
    by_name: dict[str, ProfiledRange] = {each.name: each for each in answer.reached}
    reason = f"the test does not pass under ncu: {last_words(answer.failure)}"
    refusal = Gap(code=GapCode.COLLECTOR_FAILED, reason=reason, remedy=PROFILE_ALONE)
    return CountedTest(
        test_id=answer.test_id,
        ranges=tuple(
            RangeLaunches(
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


def _guilty(
    rest: Sequence[CounterRequest], profiled: ProfilerRun
) -> tuple[list[CounterRequest], Gap]:
    """Return the tests because of which others have no values, and what is said of it."""
    refused = profiled.refused
    if refused is not None:  # ncu counts nothing for one unknown name
        return [w for w in rest if profiled.unknown in w.counters], refused
    begun = [
        each
        for each in rest
        if (answer := profiled.answers.get(each.test_id)) is not None
        and not answer.ended
    ]
    code, what = GapCode.COLLECTOR_FAILED, "ended"
    if profiled.hung:
        code, what = GapCode.COLLECTOR_TIMEOUT, "did not end"
    reason = f"its process {what} under ncu: {last_words(profiled.failure)}"
    return begun[:1], Gap(code=code, reason=reason, remedy=PROFILE_ALONE)


def last_words(text: str) -> str:
    """Return the last lines of a text as one, for a reason stands in a line."""
    # a line of pytest's progress is as wide as the terminal, and mostly blank
    lines = [" ".join(words) for line in text.splitlines() if (words := line.split())]
    return " | ".join(lines[-_SHOWN_LINES:]) or "it said nothing"


def _alone(
    guilty: Sequence[CounterRequest],
    refusal: Gap,
    run: Callable[[Sequence[CounterRequest]], ProfilerRun],
) -> dict[str, CountedTest]:
    """Return what a test gives that is run by itself."""
    found = _ended(guilty, run(guilty))
    missing = (each for each in guilty if each.test_id not in found)
    return found | {
        each.test_id: CountedTest(test_id=each.test_id, refusal=refusal)
        for each in missing
    }
