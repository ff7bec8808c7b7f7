"""Counter values of a call: which are wanted, and what was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.translate.counters import SPELLINGS, captured_facts
from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.compute.limiter import LIMITING
from pytest_gpuperf.measure.captured import (
    capture_values,
    kernel_analyses,
    report_counters,
)
from pytest_gpuperf.model.child import ChildAnswer, ProfiledRange
from pytest_gpuperf.model.counters import DECLARED_BYTES
from pytest_gpuperf.model.fingerprint import family_facts, family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.observers import MeasuredCall
    from pytest_gpuperf.model.environment import Device
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.work import Work

__all__ = [
    "AS_IT_COMES",
    "COUNT",
    "HERE",
    "SOURCE",
    "Counted",
    "CountedRange",
    "Counts",
    "Profile",
    "Profiled",
    "Refusal",
    "Wanted",
    "cache_control_of",
    "count",
    "isolate",
    "last_words",
    "limiting_counters",
    "made_of",
    "may_count_here",
    "wanted_metrics",
    "with_counters",
    "without_counters",
]

SOURCE, HERE = "ncu", "cupti"  # another process counts, or this one
COUNT = "launches.count"
AS_IT_COMES = paired_modes("none").cache_control  # of a range, a loop, a whole test
_UNCOUNTED = {  # by source: why it does not say how many kernels were launched
    SOURCE: Unmeasured(
        metric=COUNT,
        reason="ncu counts a whole range as one (--gpuperf-ncu-replay=range)",
        remedy="count it with --gpuperf-ncu-replay=kernel, or with cupti",
    ),
    HERE: Unmeasured(
        metric=COUNT,
        reason="a CUDA graph may be one of the ranges that CUPTI counts in",
        remedy="have CUPTI see launches: `gpuperf doctor` says why it does not",
    ),
}


def wanted_metrics(plan: Plan, collectors: Sequence[str]) -> tuple[str, ...]:
    """
    Return what a test needs a profiler for; empty: nothing.

    Counters are needed where they are declared or named by a limit. What counters become
    (`dram.bytes`) may as well come from a report that the test reads, so it alone starts
    nothing unless what counts, ncu or CUPTI, was asked for by name.

    Args:
        plan: What its markers ask for.

        collectors: Those that were asked for by name; empty: none were.
    """
    named = plan.judged
    counters = (*plan.counters, *(name for name in named if is_counter(name)))
    if not counters and not {SOURCE, HERE} & {*collectors}:
        return ()
    # CUPTI that is asked for sees launches without counting anything
    seen = not counters and SOURCE not in collectors
    derived = (n for n in named if n in FORMULAS or (n == COUNT and not seen))
    return tuple(dict.fromkeys((*counters, *derived)))


def may_count_here(collectors: Sequence[str], device: Device | None) -> bool:
    """
    Return whether this process may count itself: CUPTI is not left out, and a GPU there.

    Whether it can shows only when a test uses the GPU.
    """
    return (not collectors or HERE in collectors) and device is not None


def cache_control_of(plan: Plan) -> str:
    """Return what to do about caches, as far as a test's markers tell."""
    if not plan.uses_fixture:
        return AS_IT_COMES
    return paired_modes(plan.cache or "cold").cache_control


def _has_all(_: str) -> bool:
    """Return that a tool lacks no counter of the chip."""
    return False


def made_of(
    metrics: Sequence[str],
    capability: tuple[int, int] | None,
    *,
    lacks: Callable[[str], bool] = _has_all,
) -> tuple[str, ...]:
    """
    Return the counters that metrics are made of, each once: no more than are needed, and
    none that the chip lacks, for ncu refuses them all where it lacks one.

    Args:
        metrics: Counters by their own names, and metrics of the catalogue.

        capability: The chip's compute capability; None: not known.

        lacks: Whether what counts does not know a counter, although the chip has it.
    """
    own = [name for name in metrics if name not in METRICS and not lacks(name)]
    ways = (_way(name, capability, lacks) for name in metrics if name in FORMULAS)
    return tuple(dict.fromkeys((*own, *(counter for way in ways for counter in way))))


def limiting_counters(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """
    Return the counters that say what limits a kernel, and no more than that takes.

    Args:
        capability: The chip's compute capability; None: not known.
    """
    found = (
        next((s.counter for s in SPELLINGS.get(name, ()) if s.fits(capability)), None)
        for name in LIMITING
    )
    return tuple(counter for counter in found if counter is not None)


def _way(
    metric: str, capability: tuple[int, int] | None, lacks: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the counters of the first way to a metric that is there; empty: none is."""
    for way in FORMULAS[metric].ways:
        needs = [need for need in way.needs if need != DECLARED_BYTES]
        spelled = [
            next(
                (
                    s.counter
                    for s in SPELLINGS.get(need, ())
                    if s.fits(capability) and not lacks(s.counter)
                ),
                "",
            )
            for need in needs
        ]
        if all(spelled):
            return tuple(spelled)
    return ()


def with_counters(
    record: Record,
    launches: Sequence[CapturedLaunch],
    metrics: Sequence[str],
    *,
    work: Work | None,
    facts: Mapping[str, str],
    source: str = SOURCE,
    by_kernel: bool = True,
) -> Record:
    """
    Return a record with what was counted of the same call, made once more.

    Its time stays what it is: a profiler's clocks and caches are not those of a run.

    Args:
        record: What this process measured.

        launches: The kernels of one call, >= 1, each measured.

        metrics: What the test asks for: those without a value become *unmeasured*.

        work: What one call has to do.

        facts: Hard facts of this process and of the profile.

        source: What counted: SOURCE or HERE.

        by_kernel: Whether the launches are those of kernels with a name.
    """
    estimates, gaps = capture_values(launches, metrics, work)
    others = [
        name
        for name, metric in METRICS.items()
        if metric.family is Family.COUNTER and name in FORMULAS and name not in metrics
    ]
    besides, _ = capture_values(launches, others, work)  # as far as they are there
    counted = [
        replace(e, source=source)
        for e in (*estimates, *(e for e in besides if e.metric != COUNT))
    ]
    if not by_kernel:  # one result for all that was launched
        counted = [e for e in counted if e.kernel is None]
    if not by_kernel or source == HERE:
        counted = [e for e in counted if e.metric != COUNT]
        gaps = (*gaps, *(_UNCOUNTED[source] for name in metrics if name == COUNT))
    known = {**captured_facts(launches[0]), **facts}
    families = {family_of(e.metric, source) for e in counted}
    own = {family.value: family_facts(family, known) for family in sorted(families)}
    return replace(
        record,
        estimates=(*record.estimates, *counted),
        unmeasured=(*record.unmeasured, *(_collected(gap, source) for gap in gaps)),
        facts={**record.facts, **own},
        analyses=kernel_analyses(launches) if by_kernel else (),
    )


def _collected(gap: Unmeasured, source: str) -> Unmeasured:
    """Return a gap in what was collected for the test: the advice is not to collect it."""
    if not gap.remedy.startswith("collect it"):
        return gap
    reason = f"{source} gave no value of it for this call"
    remedy = "see that this GPU has it: gpuperf metrics check"
    if "." not in gap.metric:  # most names stand for a value only with one
        remedy = f"write an ending behind it (dram__bytes.sum has one), or {remedy}"
    return replace(gap, reason=reason, remedy=remedy)


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

    answers: Mapping[str, ChildAnswer] = {}
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
        _call: MeasuredCall | None = None,
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
    wanted: Wanted,
    answer: ChildAnswer,
    launches: Mapping[str, tuple[CapturedLaunch, ...]],
) -> Counted:
    """Return what was counted of a test that came to its end, of its own metrics."""
    own = frozenset(report_counters(wanted.metrics))
    by_name: dict[str, ProfiledRange] = {each.name: each for each in answer.reached}
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
