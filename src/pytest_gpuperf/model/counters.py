"""Hardware counters: names, values, analysis, and the metrics of a chip.

Each tool and each GPU generation has other names for the same quantity. All formulas
use the names of this module. The unit is the last word of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import Occupancy
from pytest_gpuperf.model.frozen import Frozen, finite, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.roofline import Attainment, Roofline

# A field of `Work` that is not a counter, but part of a formula.
DECLARED_BYTES = "declared_bytes"

# Pipelines of a multiprocessor, described in docs/metrics.md.
PIPES = (
    "issue", "alu", "aluheavy", "fma", "fmaheavy", "fp16", "fp64", "xu", "adu", "cbu",
    "uniform", "tma",
)  # fmt: skip

# Data types whose operations the SMs count by instruction, without tensor work.
COUNTED_DTYPES = ("fp32", "fp64")

# Reasons why a resident warp did not issue. Each chip has most of them. `selected`, for
# cycles with an issue, is not a stall.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss",
    "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle",
    "misc", "no_instruction", "not_selected", "short_scoreboard", "sleeping",
    "tex_throttle", "wait", "warpgroup_arrive",
)  # fmt: skip

_MEANINGS = {
    "duration_s": "time of the kernel alone, as it was profiled",
    "grid_blocks_count": "blocks of the launch",
    "block_threads_count": "threads of a block",
    "registers_count": "registers of a thread",
    "static_shared_bytes": "shared memory of a block that is compiled in",
    "dynamic_shared_bytes": "shared memory of a block asked for at launch",
    "waves_count": "times that the grid fills the device",
    "sm_count": "multiprocessors that the launch could use",
    "registers_limit_blocks_count": "blocks on an SM that the registers allow",
    "shared_limit_blocks_count": "blocks on an SM that the shared memory allows",
    "warps_limit_blocks_count": "blocks on an SM that the warp slots allow",
    "blocks_limit_blocks_count": "blocks on an SM that the chip allows",
    "barriers_limit_blocks_count": "blocks on an SM that the barriers allow",
    "sm_active_cycles_count": "cycles with a warp on the SM, mean over SMs",
    "sm_elapsed_cycles_count": "cycles from the first to the last of the kernel",
    "sm_clock_hz": "clock of the SMs while it ran",
    "dram_clock_hz": "clock of the DRAM while it ran",
    "warps_active_fraction": "resident warps of an active SM, of those that it holds",
    "warps_possible_fraction": "warps that fit an SM, of those that it holds",
    "dram_bytes": "bytes read from and written to DRAM",
    "dram_read_bytes": "bytes read from DRAM",
    "dram_write_bytes": "bytes written to DRAM",
    "dram_peak_bytes_per_cycle_ratio": "bytes that the DRAM moves in a cycle, at most",
    "dram_throughput_fraction": "DRAM traffic, of the most that it sustains",
    "l2_throughput_fraction": "busiest part of the L2 cache, of what it sustains",
    "l2_hit_sectors_count": "sectors that were looked up in the L2 cache and found",
    "l2_miss_sectors_count": "sectors that were looked up there and not found",
    "l2_hit_fraction": "sectors found, of those looked up",
    "l1_throughput_fraction": "busiest part of the L1 cache, of what it sustains",
    "l1_active_throughput_fraction": "the same, of the cycles with a warp on the SM",
    "l1_hit_fraction": "sectors found in the L1 cache, of those looked up",
    "lsu_pipe_fraction": "load and store instructions, of what the L1 cache takes",
    "memory_throughput_fraction": "busiest part of all memory, of what it sustains",
    "sm_throughput_fraction": "busiest part of the SMs, of what it sustains",
    "tensor_pipe_fraction": "tensor pipe, of the most that it sustains",
    "tensor_active_pipe_fraction": "the same, of the cycles with a warp on the SM",
    "instructions_count": "warp instructions executed",
    "global_load_sectors_count": "sectors that global loads looked up in L1",
    "global_load_requests_count": "global load instructions that reached L1",
    "global_store_sectors_count": "sectors that global stores looked up in L1",
    "global_store_requests_count": "global store instructions that reached L1",
    "global_sectors_count": "sectors of all global accesses, by their addresses",
    "global_ideal_sectors_count": "the fewest sectors that could hold what they need",
    "shared_wavefronts_count": "passes of all shared accesses, by their addresses",
    "shared_ideal_wavefronts_count": "the fewest passes that could serve them",
    "shared_pipe_wavefronts_count": "passes of shared memory, as the pipe counted them",
    "shared_conflicts_count": "of these, lost to bank conflicts",
    DECLARED_BYTES: "bytes that a call has to move, as the test declares",
}

STANDARD: Mapping[str, str] = MappingProxyType(
    {
        **_MEANINGS,
        **{
            f"{dtype}_{op}_per_cycle_ratio": f"{dtype} {op} of all threads, a cycle"
            for dtype in COUNTED_DTYPES
            for op in ("add", "mul", "fma")
        },
        **{
            f"{dtype}_peak_fma_per_cycle_ratio": f"the most {dtype} fma, a cycle"
            for dtype in COUNTED_DTYPES
        },
        **{f"{pipe}_pipe_fraction": f"{pipe}, of what it sustains" for pipe in PIPES},
        **{f"stall_{s}_ratio": f"warps stalled by {s}, an issue" for s in STALLS},
        **{f"stall_{s}_samples_count": f"samples stalled by {s}" for s in STALLS},
    }
)


class CounterMode(Frozen, frozen=True, kw_only=True):
    """
    How counters were collected. Values of different modes are different experiments.

    Attributes:
        replay: `kernel`, `application`, `range`…, or None if the source does not state
            it.

        cache: `all` if the caches were emptied before each pass, `none`, or None if not
            stated.

        clock: `base`, `boost`, `none`…, or None if not stated.
    """

    replay: str | None = None
    cache: str | None = None
    clock: str | None = None


class LaunchCounters(Frozen, frozen=True, kw_only=True):
    """
    Known counters of one launch.

    Attributes:
        values: Values by the names of STANDARD, in SI units. Counters that were not
            collected are absent.

        mode: How the counters were collected.
    """

    values: Mapping[str, float]
    mode: CounterMode = CounterMode()

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("counters.values", *self.values.values())


def mode_conflict(first: CounterMode, second: CounterMode) -> str | None:
    """
    Return why counters of two modes cannot be combined in a formula, or None if they
    can.

    Example:
        >>> mode_conflict(CounterMode(cache="all"), CounterMode(cache="none"))
        'counters of cache mode all and none are not mixed'
    """
    for name in CounterMode.__struct_fields__:
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            modes = " and ".join(text or "unknown" for text in (ours, theirs))
            return f"counters of {name} mode {modes} are not mixed"
    return None


def merged(first: LaunchCounters, second: LaunchCounters) -> LaunchCounters:
    """
    Merge the counters of a launch that was profiled twice. The first values win.

    Raises:
        RecordError: The counters were collected in different modes.
    """
    conflict = mode_conflict(first.mode, second.mode)
    if conflict is not None:
        raise RecordError(
            conflict, path="counters.mode", remedy="collect them in one mode"
        )
    return replace(first, values={**second.values, **first.values})


class LimiterName(str, Enum):
    """The kinds of limiter, in the order of the checks."""

    LAUNCH = "launch"
    SYNCHRONIZATION = "synchronization"
    TRANSFER = "transfer"
    DRAM = "dram"
    L2 = "l2"
    L1 = "l1"
    MEMORY = "memory"  # DRAM, L2 or L1, but the counters do not show which.
    TENSOR = "tensor"
    PIPE = "pipe"
    GRID = "grid too small"
    LATENCY = "latency"


class BoundSide(str, Enum):
    """The busier side of the machine."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Evidence(Frozen, frozen=True, kw_only=True):
    """
    A number behind a decision.

    Attributes:
        name: Name of the quantity: a roof (`dram`, `l2`, a pipe), `waves`, `occupancy`…

        value: The number.

        unit: Unit of the number.
    """

    name: str
    value: float
    unit: str = "fraction"

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite(f"evidence[{self.name}]", self.value)


class Limiter(Frozen, frozen=True, kw_only=True, tag="limiter"):
    """
    The reason why a kernel is not faster, with evidence.

    Attributes:
        name: The kind of limiter.

        detail: The pipe, or the longest stall, or None if there is none or it was not
            collected.

        evidence: The numbers that decided, the deciding one first.
    """

    name: LimiterName
    detail: str | None = None
    evidence: tuple[Evidence, ...] = ()


class CounterGap(Gap, frozen=True, kw_only=True, tag="unknown"):
    """
    The reason why the counters of some launches do not give an answer.

    Attributes:
        code: The kind of gap.

        reason: The reason, as a fragment.

        remedy: The remedy as a sentence, or "" for collecting the missing counters.

        missing: Standard names of the counters that would give an answer, or empty if
            all are there.
    """

    code: GapCode = GapCode.UNSPECIFIED  # Files of earlier versions have no code.
    remedy: str = ""
    missing: tuple[str, ...] = ()


class Bound(Frozen, frozen=True, kw_only=True):
    """
    The roof that a kernel comes closest to, reached or not.

    Attributes:
        side: The side of the roof, memory or compute.

        roof: `dram`, `l2`, `l1`, `tensor`, or a pipe.

        fraction: Used share of the roof, 0 to 1. Slightly more is possible if counters
            of several passes differ.
    """

    side: BoundSide
    roof: str
    fraction: float

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("bound.fraction", self.fraction)


class Analysis(Frozen, frozen=True, kw_only=True):
    """
    Joint interpretation of one launch's counters.

    Attributes:
        duration_s: Duration of the kernel as profiled [s], or None if not collected.

        bound: The closest roof, or None if no roof was collected or none is near.

        limiter: The limiter, or why the counters do not show it.

        roofline: Position under the roofs from counted FLOP and bytes. None if they
            were not counted, or if tensor cores computed, because these counters
            exclude tensor FLOP.

        roofline_gap: Why there is no position if tensor cores computed, else None.
    """

    limiter: Limiter | CounterGap
    duration_s: float | None = None
    bound: Bound | None = None
    roofline: Attainment | None = None
    roofline_gap: CounterGap | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("analysis.duration_s", self.duration_s)


# Links in texts of rules are @url:TEXT:TARGET@ or, for all other kinds, as
# @section:TARGET:TEXT@. A target may contain colons (a source line has file and
# number).
_LINK = r"@url:(?P<url>[^:@]*):[^@]*@|@(?:section|sass|source):[^@]*:(?P<other>[^:@]*)@"


class RuleResult(Frozen, frozen=True, kw_only=True):
    """
    The result of a rule of ncu.

    Attributes:
        rule: Identifier of the rule, as `SOLBottleneck`.

        name: Name of the rule, as `Bottleneck`.

        section: Identifier of its section, as `SpeedOfLight`.

        level: `none`, `ok`, `optimization`, `warning` or `error`.

        title: Heading of the message, may be empty.

        message: The message with ncu's links. See `text` for the message without links.

        speedup_fraction: The estimated gain, or None if not estimated.

        speedup_scope: `global` for the kernel's time, `local` for one unit's use.
    """

    rule: str
    name: str
    section: str
    level: str
    title: str
    message: str
    speedup_fraction: float | None
    speedup_scope: str | None

    @property
    def text(self) -> str:
        """The message with links replaced by text."""
        return re.sub(_LINK, lambda at: at["url"] or at["other"] or "", self.message)


class StallLine(Frozen, frozen=True, kw_only=True):
    """
    A source line with waiting warps of a launch, from ncu's samples.

    Attributes:
        file: The source file at compile time, or None if compiled without line numbers.

        line: The line, from 1, or None if compiled without line numbers.

        sass: The line's machine instruction with most samples, or None if not in the
            report.

        reason: The most frequent stall reason, as `long_scoreboard`.

        samples_count: Samples of waiting warps at this line, > 0.

        samples_fraction: Share of all samples of waiting warps.
    """

    file: str | None
    line: int | None
    sass: str | None
    reason: str
    samples_count: int
    samples_fraction: float


class LaunchAdvice(Frozen, frozen=True, kw_only=True):
    """
    The advice of a report for one launch.

    Attributes:
        rules: The results of ncu's rules, or empty if none was collected.

        stalls: The lines with most waiting warps, the most first, or empty without
            samples.
    """

    rules: tuple[RuleResult, ...]
    stalls: tuple[StallLine, ...] = ()


class AdvisedLaunch(Frozen, frozen=True, kw_only=True):
    """
    A launch of a report that failed comparisons, with an explanation of its values.

    Attributes:
        kernel: Base name of the kernel.

        index: Index of the launch in its range.

        failed: The failed values, by metric or counter in their own units. Empty if the
            launch was chosen for its duration.

        analysis: Joint interpretation of the counters.

        advice: The report's own advice, only rules with a recommendation, the largest
            gain first.
    """

    kernel: str
    index: int
    failed: tuple[Evidence, ...]
    analysis: Analysis
    advice: LaunchAdvice


class LaunchDetails(Frozen, frozen=True, kw_only=True):
    """
    The most important data of one launch in a report.

    Attributes:
        analysis: Joint interpretation of the counters.

        values: Standard counters, in SI units.

        derived: Metrics of the catalogue by name, in their units.

        grid: Blocks by x, y and z, or None if not in the report.

        block: Threads of a block by x, y and z, or None if not in the report.

        rated_clock_hz: The highest SM clock according to the driver [Hz], or None if
            not in the report.

        occupancy: The theoretical occupancy with its limit, or None if not collected.

        whole: `range` or `graph` if that was counted as a whole, or None for a kernel.

        rooflines: Positions under the report's own roofs, by data type.

        stalls: Shares of the stalls that cost time, the longest first.

        advice: The report's own advice, only rules with a recommendation, the largest
            gain first.
    """

    analysis: Analysis
    values: Mapping[str, float]
    derived: Mapping[str, float]
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    rated_clock_hz: float | None = None
    occupancy: Occupancy | None = None
    whole: str | None = None
    rooflines: Mapping[str, Roofline] = {}
    stalls: tuple[Evidence, ...] = ()
    advice: LaunchAdvice = LaunchAdvice(rules=())


class KernelAnalysis(Frozen, frozen=True, kw_only=True):
    """
    Analysis of a kernel, from the counters of its longest launch.

    Attributes:
        kernel: Name as the driver spells it.

        demangled: The readable name.

        launches_count: Number of launches, >= 1.

        total_s: Time of all launches [s], or None if one was not timed.

        analysis: Interpretation of the longest launch's counters.
    """

    kernel: str
    demangled: str
    launches_count: int
    analysis: Analysis
    total_s: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite(f"analysis[{self.kernel}].total_s", self.total_s)


class ChipEntry(Frozen, frozen=True, kw_only=True):
    """
    A chip with known metrics.

    Attributes:
        name: As NVIDIA's tools spell it: `GH100`.

        capability: Compute capability, or None if no source states it.

        counter_count: Number of counters.

        ratio_count: Number of ratios.

        throughput_count: Number of throughputs.
    """

    name: str
    capability: tuple[int, int] | None
    counter_count: int
    ratio_count: int
    throughput_count: int


class MetricEntry(Frozen, frozen=True, kw_only=True):
    """
    A metric of a chip.

    Attributes:
        name: The requested name.

        base: The name without an ending.

        kind: counter, ratio or throughput.

        description: A phrase in NVIDIA's words.

        hardware_unit: The part of the chip that counts.

        unit: Unit of the number, or "" for none.

        endings: Possible endings after the base.

        made_of: The counters and throughputs whose maximum is the throughput.

        passes: Passes for the metric alone, or None if the metric is unavailable for
            kernels, or if the passes were not computed.
    """

    name: str
    base: str
    kind: str
    description: str
    hardware_unit: str
    unit: str
    endings: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()
    passes: int | None = None


class NameCheck(Frozen, frozen=True, kw_only=True):
    """
    Result of looking up a name among the metrics of a chip.

    Attributes:
        name: The requested name.

        known: Whether Nsight Compute accepts the name for the chip.

        kind: counter, ratio, throughput, base (a metric without an ending), ncu (a name
            that Nsight Compute computes itself), gpuperf (a metric of the plugin, known
            to no chip), or "" if unknown.

        note: A sentence: why the name is unknown, or what to know about it.

        suggestions: Similar names, best first.
    """

    name: str
    known: bool
    kind: str
    note: str = ""
    suggestions: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """The note with the suggestions."""
        if not self.suggestions:
            return self.note
        return f"{self.note}; did you mean {', '.join(self.suggestions)}"


class PassCost(Frozen, frozen=True, kw_only=True):
    """
    Number of passes in which a kernel's metrics are collected.

    Attributes:
        chip: The chip.

        names: The metrics.

        passes: Passes that the hardware's counters need, >= 0.

        replays: Expected runs of each launch under Nsight Compute, >= 1, or None if
            unknown.

        note: A sentence on the certainty of the numbers.

        alone: Passes of each metric that the hardware counts.

        refused: Metrics that are unavailable for kernels, with reasons.
    """

    chip: str
    names: tuple[str, ...]
    passes: int
    replays: int | None
    note: str
    alone: Mapping[str, int] = {}
    refused: Mapping[str, str] = {}


class ReplayGroup(Frozen, frozen=True, kw_only=True):
    """
    Tests with metrics collected together.

    Attributes:
        tests: The tests.

        cost: Passes for the metrics of all tests together.
    """

    tests: tuple[str, ...]
    cost: PassCost
