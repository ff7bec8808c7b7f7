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
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.pipeline.repeat import last_lines

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.launches import CapturedLaunch

__all__ = [
    "CounterRequest",
    "Profile",
    "ProfilerRun",
    "count",
    "isolate",
    "refuse_all",
    "said_last",
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


def refuse_all(requests: Sequence[CounterRequest], refusal: Gap) -> list[CountedTest]:
    """Return that no test of some was counted, each for the same reason."""
    return [CountedTest(test_id=r.test_id, refusal=refusal) for r in requests]


def count(requests: Sequence[CounterRequest], profile: Profile) -> list[CountedTest]:
    """
    Count all of some tests, those of one cache mode together.

    A measurement says only when it is reached what it does about caches; one that was in
    the wrong group is counted again in the other one.

    Args:
        requests: The tests; each runs at most once a group.

        profile: Runs some tests under ncu, with a cache control.
    """
    counted = {r.test_id: CountedTest(test_id=r.test_id) for r in requests}
    tried: set[tuple[str, str]] = set()
    groups: dict[str, list[CounterRequest]] = {}  # by cache mode, the next one first
    for request in requests:
        groups.setdefault(request.cache_control, []).append(request)
    while groups:
        mode = next(iter(groups))
        group = groups.pop(mode)
        tried |= {(request.test_id, mode) for request in group}
        ended = isolate(group, lambda tests, mode=mode: profile(tests, mode))  # type: ignore[misc] # mypy gives a lambda's default no type
        for request in group:
            result = ended[request.test_id]
            counted[request.test_id] = _merged(counted[request.test_id], result, mode)
            modes = {r.cache_control for r in result.ranges} - {mode}
            for mode_reached in sorted(modes):
                if (request.test_id, mode_reached) not in tried:
                    groups.setdefault(mode_reached, []).append(request)
    return list(counted.values())


def _merged(earlier: CountedTest, later: CountedTest, mode: str) -> CountedTest:
    """Return what two groups gave of a test: each its ranges with that cache mode."""
    ranges = tuple(r for r in later.ranges if r.cache_control == mode)
    return replace(
        later,
        ranges=(*earlier.ranges, *ranges),
        refusal=earlier.refusal or later.refusal,
    )


def isolate(
    requests: Sequence[CounterRequest],
    run: Callable[[Sequence[CounterRequest]], ProfilerRun],
) -> dict[str, CountedTest]:
    """
    Run tests together; where one ends or stops the process, the others go on without it.

    It is then tried alone, once, unless it stopped. After some restarts the rest is left.

    Args:
        requests: The tests.

        run: Runs some of them in one process.
    """
    counted: dict[str, CountedTest] = {}
    pending = list(requests)
    for restarts in range(_MOST_RESTARTS + 1):
        profiled = run(pending)
        counted |= _ended(pending, profiled)
        rest = [request for request in pending if request.test_id not in counted]
        culprits, refusal = _culprits(rest, profiled)
        last = restarts == _MOST_RESTARTS
        if culprits and not last and not profiled.refused and not profiled.hung:
            counted |= _isolated(culprits, refusal, run) if len(pending) > 1 else {}
        lost = rest if last or not culprits else culprits
        for request in lost:
            counted.setdefault(
                request.test_id, CountedTest(test_id=request.test_id, refusal=refusal)
            )
        pending = [request for request in rest if request.test_id not in counted]
        if not pending:
            break
    return counted


def _ended(
    requests: Sequence[CounterRequest], profiled: ProfilerRun
) -> dict[str, CountedTest]:
    """Return the tests that came to their end in a process that could be read."""
    if profiled.refused is not None or profiled.launches is None:
        return {}
    return {
        request.test_id: _counted(request, answer, profiled.launches)
        for request in requests
        if (answer := profiled.answers.get(request.test_id)) is not None
        and answer.ended
    }


def _counted(
    request: CounterRequest,
    answer: ChildAnswer,
    launches: Mapping[str, tuple[CapturedLaunch, ...]],
) -> CountedTest:
    """Return what was counted of a test that came to its end, of its own metrics."""
    counters = frozenset(report_counters(request.metrics))
    by_name = {reached.name: reached for reached in answer.reached}
    reason = f"the test does not pass under ncu: {said_last(answer.failure)}"
    refusal = Gap(code=GapCode.COLLECTOR_FAILED, reason=reason, remedy=PROFILE_ALONE)
    return CountedTest(
        test_id=answer.test_id,
        ranges=tuple(
            RangeLaunches(
                name=reached.name,
                cache_control=reached.cache_control,
                launches=tuple(
                    _own_metrics(launch, counters)
                    for launch in launches.get(reached.range, ())
                ),
            )
            for reached in by_name.values()
        ),
        refusal=refusal if answer.failure else None,
    )


def _own_metrics(launch: CapturedLaunch, names: frozenset[str]) -> CapturedLaunch:
    """Return a launch without what was collected for other tests."""
    metrics = {name: value for name, value in launch.metrics.items() if name in names}
    return replace(launch, metrics=metrics)


def _culprits(
    rest: Sequence[CounterRequest], profiled: ProfilerRun
) -> tuple[list[CounterRequest], Gap]:
    """Return the tests because of which others have no values, and what is said of it."""
    refused = profiled.refused
    if refused is not None:  # ncu counts nothing for one unknown name
        return [r for r in rest if profiled.unknown in r.counters], refused
    begun = [
        request
        for request in rest
        if (answer := profiled.answers.get(request.test_id)) is not None
        and not answer.ended
    ]
    code, what = GapCode.COLLECTOR_FAILED, "ended"
    if profiled.hung:
        code, what = GapCode.COLLECTOR_TIMEOUT, "did not end"
    reason = f"its process {what} under ncu: {said_last(profiled.failure)}"
    return begun[:1], Gap(code=code, reason=reason, remedy=PROFILE_ALONE)


def said_last(text: str) -> str:
    """Return the last lines of a text as one line."""
    return last_lines(text, _SHOWN_LINES, in_a_sentence=True)


def _isolated(
    requests: Sequence[CounterRequest],
    refusal: Gap,
    run: Callable[[Sequence[CounterRequest]], ProfilerRun],
) -> dict[str, CountedTest]:
    """Return what a test gives that is run by itself."""
    counted = _ended(requests, run(requests))
    missing = (request for request in requests if request.test_id not in counted)
    return counted | {
        request.test_id: CountedTest(test_id=request.test_id, refusal=refusal)
        for request in missing
    }
