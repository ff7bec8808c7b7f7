"""What the reading process writes of launches, as records."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "FocusMetric",
    "LaunchAdvice",
    "MetricFacts",
    "NvtxDomain",
    "ReportedLaunch",
    "RuleResult",
    "StallLine",
    "decode_advice",
    "decode_launches",
]

# rules link parts of their text: @url:TEXT:TARGET@, and @section:TARGET:TEXT@ like all
# others; a target may hold colons (a source line has file and number)
_LINK = re.compile(
    r"@url:(?P<url>[^:@]*):[^@]*@|@(?:section|sass|source):[^@]*:(?P<other>[^:@]*)@"
)


class MetricFacts(Frozen, frozen=True, array_like=True):
    """
    What a report says of one of its metrics.

    Attributes:
        unit: As the report spells it, maybe empty.

        kind: How it is stored, as `double`; `unknown` where it has no value.

        type: `counter`, `ratio`, `throughput` or `other`.

        subtype: As `pct_of_peak_sustained_elapsed`; None: the plain quantity.

        rollup: How it is made of its instances, as `sum`; None: it is not.
    """

    unit: str
    kind: str
    type: str
    subtype: str | None
    rollup: str | None

    @property
    def is_additive(self) -> bool:
        """Whether the values of two launches add up to one of both."""
        return (self.type, self.subtype, self.rollup) == ("counter", None, "sum")


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


class ReportedLaunch(Frozen, frozen=True, kw_only=True):
    """
    One profiled launch with the metrics that were asked for.

    Attributes:
        index: Its place in the range, from 0.

        kernel: The function's base name; templates share it.

        demangled: The whole demangled name, control characters and all.

        mangled: The name in the binary.

        workload: `kernel`, or what else was profiled as one, as `range` and `graph`.

        nvtx: The open NVTX ranges by domain; none where ncu ran without `--nvtx`.

        measured: False: profiling this launch failed, and its metrics mean nothing.

        values: By the report's name; None: absent, NaN or infinite. What the report
            stores as a floating-point number and is integral, is an integer.

        facts: What each metric is; None: the launch has no such metric.

        correlated: Values by opcode or address; None: the metric has none.
    """

    index: int
    kernel: str
    demangled: str
    mangled: str
    workload: str
    nvtx: tuple[NvtxDomain, ...]
    measured: bool
    values: Mapping[str, int | float | str | None]
    facts: Mapping[str, MetricFacts | None]
    correlated: Mapping[str, MetricCorrelationData | None]

    @property
    def key(self) -> str:
        """The launch's name in a tree, as `axpy-0`."""
        return f"{self.kernel}-{self.index}"


class FocusMetric(Frozen, frozen=True, array_like=True):
    """
    A number that a rule is about.

    Attributes:
        name: A metric's name, or a description.

        value: In the tool's own unit; None: not a number.

        info: What the rule says of it, as `0.889 < 1.000`.
    """

    name: str
    value: float | None
    info: str


class RuleResult(Frozen, frozen=True, kw_only=True):
    """
    What one of ncu's rules found.

    Attributes:
        rule: The rule's identifier, as `SOLBottleneck`.

        name: Its name, as `Bottleneck`.

        section: The identifier of its section, as `SpeedOfLight`.

        level: `none`, `ok`, `optimization`, `warning` or `error`.

        title: The heading of the message, maybe empty.

        message: The message with ncu's own links in it; `text` is without.

        speedup_fraction: What it estimates could be gained; None: it does not.

        speedup_scope: `global`, of the kernel's time; `local`, of one unit's use.

        focus: The numbers that it is about.
    """

    rule: str
    name: str
    section: str
    level: str
    title: str
    message: str
    speedup_fraction: float | None
    speedup_scope: str | None
    focus: tuple[FocusMetric, ...]

    @property
    def text(self) -> str:
        """The message as a reader needs it, links replaced by their text."""
        return _LINK.sub(lambda link: link["url"] or link["other"] or "", self.message)


class StallLine(Frozen, frozen=True, kw_only=True):
    """
    Where the warps of a launch waited most, from ncu's samples.

    Attributes:
        file: The source file, as it was compiled; None: compiled without line numbers.

        line: The line in it, from 1; None: as above.

        sass: Its machine instruction with most samples; None: not in the report.

        reason: What most of them waited for, as `long_scoreboard`.

        samples_count: How many samples found a warp waiting there, > 0.

        samples_fraction: Of all samples that found one waiting.
    """

    file: str | None
    line: int | None
    sass: str | None
    reason: str
    samples_count: int
    samples_fraction: float


class LaunchAdvice(Frozen, frozen=True, kw_only=True):
    """
    What a report advises about one launch.

    Attributes:
        rules: What ncu's rules found; empty where none was asked for.

        stall: None: the launch has no samples.
    """

    rules: tuple[RuleResult, ...]
    stall: StallLine | None


_Value = int | float | str | None


class _Correlated(Frozen, frozen=True, kw_only=True):
    value: _Value
    pairs: list[tuple[int | str | None, _Value]] | None = None


class _Written(Frozen, frozen=True, kw_only=True):
    """A launch as it is written: without what is as in the launch before."""

    index: int
    kernel: str
    demangled: str
    mangled: str
    workload: str
    nvtx: tuple[NvtxDomain, ...]
    measured: bool
    values: list[_Value]
    names: list[str] | None = None
    facts: list[MetricFacts | None] | None = None
    correlated: dict[str, _Correlated | None] = msgspec.field(default_factory=dict)


class _Range(Frozen, frozen=True, kw_only=True):
    launches: list[_Written]


class _Report(Frozen, frozen=True, kw_only=True):
    ranges: list[_Range]


def decode_launches(text: bytes) -> tuple[tuple[ReportedLaunch, ...], ...]:
    """
    Return the launches of each range.

    Args:
        text: An answer of the form `extract.LAUNCHES`.

    Raises:
        RecordError: A metric has two values for one opcode or address.
    """
    names: list[str] = []
    facts: list[MetricFacts | None] = []
    by_name: Mapping[str, MetricFacts | None] = {}
    ranges = []
    for each in msgspec.json.decode(text, type=_Report).ranges:
        launches = []
        for launch in each.launches:
            if launch.names is not None or launch.facts is not None:
                names = names if launch.names is None else launch.names
                facts = facts if launch.facts is None else launch.facts
                by_name = dict(zip(names, facts, strict=True))
            launches.append(_launch(launch, names, by_name))
        ranges.append(tuple(launches))
    return tuple(ranges)


def decode_advice(text: bytes) -> LaunchAdvice:
    """
    Return what a report advises about one launch.

    Args:
        text: An answer of the form `extract.ADVICE`.
    """
    return msgspec.json.decode(text, type=LaunchAdvice)


def _launch(
    launch: _Written, names: list[str], facts: Mapping[str, MetricFacts | None]
) -> ReportedLaunch:
    return ReportedLaunch(
        index=launch.index,
        kernel=launch.kernel,
        demangled=launch.demangled,
        mangled=launch.mangled,
        workload=launch.workload,
        nvtx=launch.nvtx,
        measured=launch.measured,
        values=dict(zip(names, launch.values, strict=True)),
        facts=facts,
        correlated={n: _data(found) for n, found in launch.correlated.items()},
    )


def _data(found: _Correlated | None) -> MetricCorrelationData | None:
    """Return a metric by opcode or address; a place without a number is no place."""
    if found is None or found.pairs is None:
        return None
    pairs = [(at, value) for at, value in found.pairs if at is not None]
    if len(dict(pairs)) != len(pairs):
        message = "an opcode or an address comes twice"
        raise RecordError(message, path="correlated")
    correlated = {at: value for at, value in pairs if value is not None}
    # a few name the parts of the machine, one by one: their values are texts
    return MetricCorrelationData(correlated=correlated, value=found.value)  # type: ignore[arg-type] # see above
