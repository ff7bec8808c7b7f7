"""The measuring equipment of one process: how it measures, and how it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.measure.observers import Observers
from pytest_gpuperf.measure.reading import Advise, FileReader, LookUp, Replay
from pytest_gpuperf.measure.site import Machine
from pytest_gpuperf.measure.timing import TimingMeasurer
from pytest_gpuperf.model.sample import CacheMode, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.loops import EndLoop
    from pytest_gpuperf.measure.references import References
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.measure.turns import TurnClient, Turns
    from pytest_gpuperf.model.record import Record, RecordKey
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["Bench", "Measurer", "Reader", "bench_of", "timed_call"]

_BUDGET_S = 1.0  # docs/judging.md section 5: for one metric


class Measurer(Protocol):
    """Runs what a test asks to have measured, and makes its records."""

    @property
    def turns(self) -> Turns | None:
        """The turns that tests take on the GPU; None: nobody is waited for."""

    @property
    def references(self) -> References | None:
        """The reference workloads of this process; None: it times nothing."""

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""

    def ensure(self) -> None:
        """
        Refuse to measure where something that was asked for by name is not possible.

        Raises:
            DeviceHeldError: Another process measured on the GPU all the time.

            ConfigError: A collector that was named refuses. No other stands in, and no
                test is skipped: a run without a value would end well.
        """

    def timed(
        self,
        key: RecordKey,
        request: TimedCall,
        /,
        *,
        plan: Plan,
        work: Work | None = None,
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and how to get what it returned."""

    def ranged(
        self, key: RecordKey, /, *, plan: Plan
    ) -> AbstractContextManager[Callable[[], Record]]:
        """Measure a block; what is yielded returns its record once it has ended."""

    def stepped(
        self,
        key: RecordKey,
        recorder: StepRecorder,
        /,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
    ) -> EndLoop:
        """Begin a loop, and return what ends it."""

    def compared(
        self, key: RecordKey, requests: tuple[TimedCall, TimedCall], /, *, plan: Plan
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of its two sides."""

    def close(self) -> None:
        """Let others have what was opened to look at the device."""


class Reader(Protocol):
    """Makes records of what a test gives it: binaries, reports and numbers."""

    def binary(
        self,
        key: RecordKey,
        source: object,
        *,
        plan: Plan,
        **facts: Any,  # noqa: ANN401 - as the binary's reader types them
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a binary's record, what looks into its code, and what names kernels."""

    def capture(
        self, key: RecordKey, path: str, /, *, launch_filter: LaunchFilter, plan: Plan
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a report's record, what looks up another counter, and what advises."""

    def number(
        self, key: RecordKey, values: Sequence[float], /, *, unit: str, better: str
    ) -> Record:
        """Return the record of a number of the user's own."""


class Bench:
    """
    The measuring equipment of one process of a run.

    Args:
        site: What the process has.

        measurer: Measures calls, blocks and loops.

        reader: Reads binaries, reports and numbers.

        placeholder: Makes a value that passes every comparison, by metric and
            measurement, where nothing is measured; None: values are measured.
    """

    def __init__(
        self,
        site: Site,
        measurer: Measurer,
        reader: Reader,
        *,
        placeholder: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.site = site
        self.measurer = measurer
        self.reader = reader
        self.placeholder = placeholder

    def need(self, collector: str) -> None:
        """
        Refuse a measurement whose collector was left out, or asked for in vain.

        Raises:
            CollectorUnavailableError: It was left out.

            GpuPerfError: As `Measurer.ensure`.
        """
        self.site.need(collector)
        self.measurer.ensure()


def bench_of(site: Site, *, turn_client: TurnClient | None = None) -> Bench:
    """
    Return the bench of a process: it measures, or replays what was recorded.

    Args:
        site: What the process has.

        turn_client: Asks for turns; None: the process waits for no other.
    """
    machine = Machine(site)
    reader = FileReader(site, machine)
    if site.config.disable or site.config.replay is not None:
        replay = Replay(site, machine, reader)
        return Bench(site, replay, replay)
    measurer = TimingMeasurer(site, machine, Observers(site), turn_client=turn_client)
    return Bench(site, measurer, reader)


def timed_call(
    plan: Plan,
    fn: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    setup: Callable[[], object] | None = None,
    inputs: Sequence[object] | None = None,
    check: Callable[[Any], object] | None = None,
    cache: str | None = None,
) -> TimedCall:
    """
    Return what is to be timed of a function.

    Raises:
        MeasureError: The cache mode is not one, or the arguments exclude each other.
    """
    return TimedCall(
        fn=fn,
        args=args,
        kwargs=kwargs,
        setup=setup,
        inputs=inputs,
        check=check,
        cache=(plan.cache or CacheMode.COLD) if cache is None else cache,
        iterations=plan.iterations,
        budget_s=_BUDGET_S,
    )
