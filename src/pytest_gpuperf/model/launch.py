"""Launches of a report, with the metrics that a profiler measured, in its own units."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_gpuperf.model.frozen import Frozen

KERNEL = "kernel"  # The workload of a launch. Ranges and graphs are counted as a whole.
# The name of the unnamed NVTX domain in reports.
DEFAULT_DOMAIN = "<default domain>"
# The metric of a report that holds the GPU's name.
_DEVICE = "device__attribute_display_name"


class NvtxDomain(Frozen, frozen=True, kw_only=True, array_like=True):
    """
    The ranges of one NVTX domain that were open when a kernel was launched.

    Attributes:
        name: The domain.

        stack: Its push/pop ranges, outermost first.

        started: Its start/end ranges, in the order of the report.
    """

    name: str
    stack: tuple[str, ...] = ()
    started: tuple[str, ...] = ()


class ProfiledLaunch(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """
    One profiled launch.

    Attributes:
        index: Its place in the range, from 0.

        kernel: The function's base name, shared by the instances of a template.

        demangled: The whole demangled name, control characters and all.

        measured: False if profiling this launch failed, so that its metrics are
            meaningless.

        workload: `kernel`, or another profiled workload, as `range` and `graph`.

        domains: The open NVTX ranges by domain. Empty if ncu ran without `--nvtx`, or
            if only their names were read.
    """

    index: int
    kernel: str
    demangled: str
    measured: bool
    workload: str = KERNEL
    domains: tuple[NvtxDomain, ...] = ()

    @property
    def name(self) -> str:
        """The whole demangled name, or the base name if the report has no other."""
        return self.demangled or self.kernel


class CapturedValue(Frozen, frozen=True, kw_only=True):
    """
    One metric of one launch, as in the report.

    Attributes:
        value: The number or the text, or None if absent, NaN or infinite.

        unit: The unit as the report spells it, maybe empty, or None if the launch has
            no such metric.
    """

    value: int | float | str | None
    unit: str | None


class CapturedLaunch(ProfiledLaunch, frozen=True, kw_only=True):
    """
    One profiled launch with its metrics.

    Attributes:
        index: As in `ProfiledLaunch`, like the next five.

        kernel: The function's base name.

        demangled: The whole demangled name.

        measured: False if profiling this launch failed.

        workload: `kernel`, or another profiled workload.

        domains: The open NVTX ranges by domain.

        nvtx: The names of the open NVTX ranges by domain: the push/pop stack, outermost
            first, then the start/end ranges. Empty if ncu ran without `--nvtx`.

        metrics: Values by the report's name. A requested metric that is absent has
            None.
    """

    nvtx: Mapping[str, tuple[str, ...]]
    metrics: Mapping[str, CapturedValue]

    @property
    def device(self) -> str:
        """The name of the GPU, or "" if the report does not have it."""
        name = self.metrics.get(_DEVICE)
        return "" if name is None or name.value is None else str(name.value)


class CapturedRange(Frozen, frozen=True, kw_only=True):
    """
    Launches that ran in one context, in the order of the report.

    Attributes:
        launches: At least one, or none if none of them was chosen.
    """

    launches: tuple[CapturedLaunch, ...]


class Capture(Frozen, frozen=True, kw_only=True):
    """
    A whole report.

    Attributes:
        ranges: At least one.
    """

    ranges: tuple[CapturedRange, ...]

    @property
    def launches(self) -> list[CapturedLaunch]:
        """The launches of all ranges, in the order of the report."""
        return [launch for _, launch in self.placed]

    @property
    def placed(self) -> list[tuple[int, CapturedLaunch]]:
        """The launches of all ranges, with the number of the range from 0."""
        return [
            (number, launch)
            for number, captured in enumerate(self.ranges)
            for launch in captured.launches
        ]

    @property
    def counters(self) -> set[str]:
        """The names of the metrics that have a value in any launch."""
        return {
            name
            for launch in self.launches
            for name, counter in launch.metrics.items()
            if counter.value is not None
        }

    def mapped(
        self, change: Callable[[int, CapturedLaunch], CapturedLaunch | None]
    ) -> Capture:
        """
        Return a copy with other launches. A range may become empty.

        Args:
            change: Returns the new launch for the number of a range and a launch, or
                None to leave the launch out.
        """
        ranges = []
        for number, captured in enumerate(self.ranges):
            changed = (change(number, launch) for launch in captured.launches)
            launches = tuple(launch for launch in changed if launch is not None)
            ranges.append(CapturedRange(launches=launches))
        return Capture(ranges=tuple(ranges))
