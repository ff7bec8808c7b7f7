"""Profile tests together, and separate a test that ends the process."""

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
    from pytest_gpuperf.model.launch import CapturedLaunch

# Restarts of a group whose tests end the process, or that ncu refuses.
_MOST_RESTARTS = 3
# Lines shown of a process's last output.
_SHOWN_LINES = 3


class CounterRequest(Frozen, frozen=True, kw_only=True):
    """
    A test that needs counters.

    Attributes:
        test_id: The test.

        path: The file of the test.

        metrics: The requested metrics, from `counter_metrics`.

        counters: The counters that these metrics are made of on this chip, from
            `made_of`.

        cache_control: The cache control in the test's markers.
    """

    test_id: str
    path: str
    metrics: tuple[str, ...]
    counters: tuple[str, ...]
    cache_control: str


class ProfilerRun(Frozen, frozen=True, kw_only=True):
    """
    A process that ran under ncu.

    Attributes:
        answers: The answers for tests, by id.

        launches: The profiled launches of each range, by the name of the range, or None
            without a readable report.

        refused: The reason why ncu counted nothing at all, or None if it did or the
            process ended.

        unknown: The unknown counter that made ncu refuse, or "" for a different reason.

        failure: The last lines of a process that ended before the end of all tests.

        hung: True if the process did not end.
    """

    answers: Mapping[str, ChildAnswer] = {}
    launches: Mapping[str, tuple[CapturedLaunch, ...]] | None = None
    refused: Gap | None = None
    unknown: str = ""
    failure: str = ""
    hung: bool = False


Profile = Callable[[Sequence[CounterRequest], str], ProfilerRun]


def refuse_all(requests: Sequence[CounterRequest], refusal: Gap) -> list[CountedTest]:
    """Return all tests as not counted, with the same reason."""
    return [CountedTest(test_id=r.test_id, refusal=refusal) for r in requests]


def count(requests: Sequence[CounterRequest], profile: Profile) -> list[CountedTest]:
    """
    Count some tests, grouped by cache mode.

    The cache mode of a measurement is known only when it is reached. A measurement in
    the wrong group is counted again in the right group.

    Args:
        requests: The tests. Each runs at most once per group.

        profile: Runs some tests under ncu, with a cache control.
    """
    counted = {r.test_id: CountedTest(test_id=r.test_id) for r in requests}
    tried: set[tuple[str, str]] = set()
    # By cache mode, the next group first.
    groups: dict[str, list[CounterRequest]] = {}
    for request in requests:
        groups.setdefault(request.cache_control, []).append(request)
    while groups:
        mode = next(iter(groups))
        group = groups.pop(mode)
        tried |= {(request.test_id, mode) for request in group}
        ended = isolate(group, lambda tests, mode=mode: profile(tests, mode))  # type: ignore[misc] # mypy gives a lambda's default no type
        for request in group:
            earlier, result = counted[request.test_id], ended[request.test_id]
            # Each group adds ranges of its cache mode.
            ranges = (r for r in result.ranges if r.cache_control == mode)
            counted[request.test_id] = replace(
                result,
                ranges=(*earlier.ranges, *ranges),
                refusal=earlier.refusal or result.refusal,
            )
            modes = {r.cache_control for r in result.ranges} - {mode}
            for mode_reached in sorted(modes):
                if (request.test_id, mode_reached) not in tried:
                    groups.setdefault(mode_reached, []).append(request)
    return list(counted.values())


def isolate(
    requests: Sequence[CounterRequest],
    run: Callable[[Sequence[CounterRequest]], ProfilerRun],
) -> dict[str, CountedTest]:
    """
    Run tests together, and go on without a test that ends or hangs the process.

    Such a test is tried once alone, unless it hung. After some restarts the rest is
    given up.

    Args:
        requests: The tests.

        run: Runs some of the tests in a process.
    """
    counted: dict[str, CountedTest] = {}
    pending = list(requests)
    for restarts in range(_MOST_RESTARTS + 1):
        profiled = run(pending)
        counted |= _ended(pending, profiled)
        rest = [request for request in pending if request.test_id not in counted]
        culprits, refusal = _culprits(rest, profiled)
        last = restarts == _MOST_RESTARTS
        final = last or profiled.refused or profiled.hung
        if culprits and len(pending) > 1 and not final:
            counted |= _ended(culprits, run(culprits))
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
                    replace(
                        launch,
                        metrics={
                            metric: value
                            for metric, value in launch.metrics.items()
                            if metric in counters
                        },
                    )
                    for launch in launches.get(reached.range, ())
                ),
            )
            for reached in by_name.values()
        ),
        refusal=refusal if answer.failure else None,
    )


def _culprits(
    rest: Sequence[CounterRequest], profiled: ProfilerRun
) -> tuple[list[CounterRequest], Gap]:
    refused = profiled.refused
    if refused is not None:  # A single unknown name stops all counting.
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
