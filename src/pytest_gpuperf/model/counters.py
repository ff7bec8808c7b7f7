"""Hardware counters: names, values, analysis, and what a chip has.

Each tool and each GPU generation has other names for the same quantity; these are the
ones that every formula is written in. The unit is the last word of a name.
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

__all__ = [
    "COUNTED_DTYPES",
    "DECLARED_BYTES",
    "PIPES",
    "STALLS",
    "STANDARD",
    "AdvisedLaunch",
    "Analysis",
    "Bound",
    "BoundSide",
    "ChipEntry",
    "CounterGap",
    "CounterMode",
    "Evidence",
    "KernelAnalysis",
    "LaunchAdvice",
    "LaunchCounters",
    "LaunchDetails",
    "Limiter",
    "LimiterName",
    "MetricEntry",
    "NameCheck",
    "PassCost",
    "ReplayGroup",
    "RuleResult",
    "StallLine",
    "merged",
    "mode_conflict",
]

DECLARED_BYTES = "declared_bytes"  # of `Work`: no counter, but part of a formula

# pipelines of a multiprocessor; what each one does stands in docs/metrics.md
PIPES = (
    "issue", "alu", "aluheavy", "fma", "fmaheavy", "fp16", "fp64", "xu", "adu", "cbu",
    "uniform", "tma",
)  # fmt: skip

# data types whose operations the SMs count by instruction; tensor work is not in them
COUNTED_DTYPES = ("fp32", "fp64")

# why a resident warp did not issue; each chip has most of them. `selected`, the cycles
# in which it did issue, is none of them.
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
    How counters were read: numbers of two modes are two experiments.

    Attributes:
        replay: `kernel`, `application`, `range`…; None: the source did not say.

        cache: `all`: the caches were emptied before each pass; `none`; None: not said.

        clock: `base`, `boost`, `none`…; None: not said.
    """

    replay: str | None = None
    cache: str | None = None
    clock: str | None = None


class LaunchCounters(Frozen, frozen=True, kw_only=True):
    """
    What is known of one launch.

    Attributes:
        values: Numbers by the names of STANDARD, in SI units; what was not collected is
            not in it.

        mode: How they were read.
    """

    values: Mapping[str, float]
    mode: CounterMode = CounterMode()

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("counters.values", *self.values.values())


def mode_conflict(first: CounterMode, second: CounterMode) -> str | None:
    """
    Return why counters of two modes may not meet in one formula; None: they may.

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
    Return the counters of one launch that was profiled twice; the first one's win.

    Raises:
        RecordError: They were read in different modes.
    """
    conflict = mode_conflict(first.mode, second.mode)
    if conflict is not None:
        raise RecordError(
            conflict, path="counters.mode", remedy="collect them in one mode"
        )
    return replace(first, values={**second.values, **first.values})


class LimiterName(str, Enum):
    """The kinds of limiter, in the order in which they are looked for."""

    LAUNCH = "launch"
    SYNCHRONIZATION = "synchronization"
    TRANSFER = "transfer"
    DRAM = "dram"
    L2 = "l2"
    L1 = "l1"
    MEMORY = "memory"  # one of them, and the counters do not say which
    TENSOR = "tensor"
    PIPE = "pipe"
    GRID = "grid too small"
    LATENCY = "latency"


class BoundSide(str, Enum):
    """The side of the machine that is busier."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Evidence(Frozen, frozen=True, kw_only=True):
    """
    One number that a decision rests on.

    Attributes:
        name: What it measures: a roof (`dram`, `l2`, a pipe), `waves`, `occupancy`…

        value: The number.

        unit: Its unit.
    """

    name: str
    value: float
    unit: str = "fraction"

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite(f"evidence[{self.name}]", self.value)


class Limiter(Frozen, frozen=True, kw_only=True, tag="limiter"):
    """
    What keeps a kernel from being faster, and why we think so.

    Attributes:
        name: Its kind.

        detail: Which pipe, or the stall that takes the most; None: there is no more to
            say, or it was not collected.

        evidence: The numbers that decided, the deciding one first.
    """

    name: LimiterName
    detail: str | None = None
    evidence: tuple[Evidence, ...] = ()


class CounterGap(Gap, frozen=True, kw_only=True, tag="unknown"):
    """
    Why the counters of some launches do not say what was asked.

    Attributes:
        code: What kind of gap it is.

        reason: Why, as a fragment.

        remedy: What to do about it, as a sentence; "": collect what is missing.

        missing: Counters that would say it, by standard names; empty: all are there.
    """

    code: GapCode = GapCode.UNSPECIFIED  # files of earlier versions have none
    remedy: str = ""
    missing: tuple[str, ...] = ()


class Bound(Frozen, frozen=True, kw_only=True):
    """
    The roof that a kernel comes closest to, reached or not.

    Attributes:
        side: Whether it is one of memory or one of computing.

        roof: `dram`, `l2`, `l1`, `tensor`, or a pipe.

        fraction: How much of that roof was used, 0 to 1 and, where counters of several
            passes differ, a little more.
    """

    side: BoundSide
    roof: str
    fraction: float

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("bound.fraction", self.fraction)


class Analysis(Frozen, frozen=True, kw_only=True):
    """
    What the counters of one launch say together.

    Attributes:
        duration_s: Time of the kernel as it was profiled [s]; None: not collected.

        bound: The roof it comes closest to; None: none was collected, or none is near.

        limiter: What limits it, or why the counters do not say.

        roofline: Where it stands by the FLOP and bytes that were counted; None: they were
            not, or tensor cores computed, whose FLOP these counters do not hold.

        roofline_gap: Why it has no such place, where tensor cores computed; None: they
            did not.
    """

    limiter: Limiter | CounterGap
    duration_s: float | None = None
    bound: Bound | None = None
    roofline: Attainment | None = None
    roofline_gap: CounterGap | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("analysis.duration_s", self.duration_s)


# rules link parts of their text: @url:TEXT:TARGET@, and @section:TARGET:TEXT@ like all
# others; a target may hold colons (a source line has file and number)
_LINK = r"@url:(?P<url>[^:@]*):[^@]*@|@(?:section|sass|source):[^@]*:(?P<other>[^:@]*)@"


class RuleResult(Frozen, frozen=True, kw_only=True):
    """
    The result of one of ncu's rules.

    Attributes:
        rule: The rule's identifier, as `SOLBottleneck`.

        name: Its name, as `Bottleneck`.

        section: The identifier of its section, as `SpeedOfLight`.

        level: `none`, `ok`, `optimization`, `warning` or `error`.

        title: The heading of the message, maybe empty.

        message: The message with ncu's links; `text` is without.

        speedup_fraction: The estimated gain; None: not estimated.

        speedup_scope: `global`, of the kernel's time; `local`, of one unit's use.
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
        """The message with links replaced by their text."""
        return re.sub(_LINK, lambda at: at["url"] or at["other"] or "", self.message)


class StallLine(Frozen, frozen=True, kw_only=True):
    """
    A source line where the warps of a launch waited, from ncu's samples.

    Attributes:
        file: The source file, as it was compiled; None: compiled without line numbers.

        line: The line in it, from 1; None: as above.

        sass: Its machine instruction with most samples; None: not in the report.

        reason: The most frequent stall reason, as `long_scoreboard`.

        samples_count: Samples of waiting warps at this line, > 0.

        samples_fraction: Their share of all samples of waiting warps.
    """

    file: str | None
    line: int | None
    sass: str | None
    reason: str
    samples_count: int
    samples_fraction: float


class LaunchAdvice(Frozen, frozen=True, kw_only=True):
    """
    A report's advice on one launch.

    Attributes:
        rules: The results of ncu's rules; empty if none was collected.

        stalls: The lines where warps waited most, the most first; empty: the launch has
            no samples.
    """

    rules: tuple[RuleResult, ...]
    stalls: tuple[StallLine, ...] = ()


class AdvisedLaunch(Frozen, frozen=True, kw_only=True):
    """
    A launch of a report that failed comparisons, with what explains its values.

    Attributes:
        kernel: Its kernel's base name.

        index: Its place in its range.

        failed: Its values that failed, by metric or counter in their own units; empty:
            it was chosen for its length.

        analysis: What its counters say together.

        advice: The report's own advice: the rules that advise something, the largest
            gain first.
    """

    kernel: str
    index: int
    failed: tuple[Evidence, ...]
    analysis: Analysis
    advice: LaunchAdvice


class LaunchDetails(Frozen, frozen=True, kw_only=True):
    """
    What a report has of one launch, as a person reads it first.

    Attributes:
        analysis: What its counters say together.

        values: Its standard counters, in SI units.

        derived: Metrics of the catalogue by name, in their units.

        grid: Blocks by x, y and z; None: the report does not say.

        block: Threads of a block by x, y and z; None: as above.

        rated_clock_hz: The highest clock that the driver states for the SMs [Hz]; None:
            not in the report.

        occupancy: The theoretical one with its limit; None: not collected.

        whole: What was counted as one, `range` or `graph`; None: a kernel.

        rooflines: Where it stands under the roofs that the report itself has, by data
            type.

        stalls: The shares of the stalls that cost time, the longest first.

        advice: The report's own advice: the rules that advise something, the largest
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
    What the counters of a kernel's longest launch say of it.

    Attributes:
        kernel: Its name as the driver spells it.

        demangled: The same as people read it.

        launches_count: Its launches, >= 1.

        total_s: Time of all of them [s]; None: one was not timed.

        analysis: What the counters of the longest one say.
    """

    kernel: str
    demangled: str
    launches_count: int
    analysis: Analysis
    total_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite(f"analysis[{self.kernel}].total_s", self.total_s)


class ChipEntry(Frozen, frozen=True, kw_only=True):
    """
    A chip whose metrics are known.

    Attributes:
        name: As NVIDIA's tools spell it: `GH100`.

        capability: Its compute capability; None: no source that we read says it.

        counter_count: Its counters.

        ratio_count: Its ratios.

        throughput_count: Its throughputs.
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
        name: As it was asked for.

        base: Without an ending.

        kind: counter, ratio or throughput.

        description: A phrase in NVIDIA's words.

        hardware_unit: The part of the chip that counts.

        unit: What the number is counted in; "" where it has no unit.

        endings: What may follow the base.

        made_of: The counters and throughputs of which a throughput is the largest.

        passes: Passes that it takes alone; None: it cannot be had of a kernel, or nobody
            asked.
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
    Whether a name is a metric of a chip.

    Attributes:
        name: As it was asked for.

        known: Whether Nsight Compute can be asked for it on this chip.

        kind: counter, ratio, throughput, base (a metric without an ending) or ncu (a
            name that Nsight Compute makes itself); gpuperf, which is known to no chip,
            for a metric of ours; "" where it is unknown.

        note: A sentence: why it is unknown, or what is to be known of it.

        suggestions: Names that may have been meant, best first.
    """

    name: str
    known: bool
    kind: str
    note: str = ""
    suggestions: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """The note with what may have been meant."""
        if not self.suggestions:
            return self.note
        return f"{self.note}; did you mean {', '.join(self.suggestions)}"


class PassCost(Frozen, frozen=True, kw_only=True):
    """
    In how many passes a kernel gives metrics.

    Attributes:
        chip: Whose.

        names: The metrics.

        passes: Passes that the hardware's counters need, >= 0.

        replays: How often Nsight Compute is expected to run each launch, >= 1; None:
            nothing says.

        note: A sentence on how sure that is.

        alone: Passes of each metric that the hardware counts.

        refused: Why metrics cannot be had of a kernel, by name.
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
    Tests whose metrics are collected together.

    Attributes:
        tests: The tests.

        cost: What the metrics of all of them take together.
    """

    tests: tuple[str, ...]
    cost: PassCost
