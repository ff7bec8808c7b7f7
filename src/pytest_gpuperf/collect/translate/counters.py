"""Standard names of the counters of every GPU generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.counters import PIPES, STALLS, CounterMode, LaunchCounters
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.launch import KERNEL, CapturedLaunch, CapturedValue
from pytest_gpuperf.model.quantity import counter_unit

# Counters that describe a launch. For a range or a graph, ncu reports the values of one of
# the kernels.
_OF_LAUNCH = ("launch__", "sm__maximum_warps_")
_PERCENT = 100.0  # Nsight Compute writes fractions in percent.
# No counter of a real launch counts as much. Sums and products of smaller numbers are finite.
_TOO_LARGE = 1e100
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
_ACTIVE = "avg.pct_of_peak_sustained_active"

Capabilities = frozenset[tuple[int, int]]

# GB202 counts DRAM traffic by operation. GB10B and GB20B share the host's memory and have
# no DRAM counters (base metrics of libnvperf_host 2026.3, chip by chip).
_BY_OPERATION: Capabilities = frozenset({(12, 0)})
_NO_DRAM: Capabilities = frozenset({(11, 0), (12, 1)})
# On AD10x NVIDIA replaced the counter of the tensor pipe, and ncu's sections request only
# the new counter.
_TENSOR_V2: Capabilities = frozenset({(8, 9)})

CAPABILITY = (
    "device__attribute_compute_capability_major",
    "device__attribute_compute_capability_minor",
)


class Spelling(Frozen, frozen=True, kw_only=True):
    """
    A name of Nsight Compute for a standard counter.

    Attributes:
        counter: Nsight Compute's name.

        per: The divisor that gives the standard unit.

        only: The compute capabilities that have the counter, or None for all but `never`.

        never: The compute capabilities that lack the counter.
    """

    counter: str
    per: float = 1.0
    only: Capabilities | None = None
    never: Capabilities = frozenset()

    def fits(self, capability: tuple[int, int] | None) -> bool:
        """Return True if a chip has the counter. For None, a common chip is assumed."""
        if capability is None:
            return self.only is None
        if self.only is not None:
            return capability in self.only
        return capability not in self.never


def _plain(*counters: str) -> tuple[Spelling, ...]:
    return tuple(Spelling(counter=counter) for counter in counters)


def _percent(*counters: str) -> tuple[Spelling, ...]:
    return tuple(Spelling(counter=counter, per=_PERCENT) for counter in counters)


def _dram(counter: str, per: float = 1.0) -> Spelling:
    return Spelling(counter=counter, per=per, never=_NO_DRAM)


def _dram_bytes(direction: str) -> tuple[Spelling, ...]:
    return (
        Spelling(
            counter=f"dram__bytes_{direction}.sum", never=_NO_DRAM | _BY_OPERATION
        ),
        Spelling(counter=f"dram__bytes_op_{direction}.sum", only=_BY_OPERATION),
        _dram(f"dram__{direction}_bytes"),
    )


def _tensor(ending: str) -> tuple[Spelling, ...]:
    return (
        Spelling(
            counter=f"sm__pipe_tensor_cycles_active_v2.{ending}",
            per=_PERCENT,
            only=_TENSOR_V2,
        ),
        Spelling(counter=f"sm__pipe_tensor_cycles_active.{ending}", per=_PERCENT),
    )


# The counters of a pipe without their roll-up, best first.
_STEMS = {
    "issue": ("sm__issue_active", "sm__inst_executed"),
    "alu": ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"),
    "aluheavy": ("sm__pipe_aluheavy_cycles_active",),  # GB20x: the busier half of alu.
    "fma": ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma"),
    "fmaheavy": ("sm__pipe_fmaheavy_cycles_active",),
    "fp16": ("sm__inst_executed_pipe_fp16",),
    "fp64": ("sm__pipe_fp64_cycles_active", "sm__inst_executed_pipe_fp64"),
    "xu": ("sm__inst_executed_pipe_xu",),
    "adu": ("sm__inst_executed_pipe_adu",),
    "cbu": ("sm__inst_executed_pipe_cbu_pred_on_any",),
    "uniform": ("sm__inst_executed_pipe_uniform",),
    "tma": ("sm__pipe_tma_cycles_active", "sm__inst_executed_pipe_tma"),
}
_BLOCK_LIMITS = {
    "registers": "registers",
    "shared": "shared_mem",
    "warps": "warps",
    "blocks": "blocks",
    "barriers": "barriers",
}
# The letter of a data type in the name of an operation.
_LETTERS = {"fp32": "f", "fp64": "d"}
# The sampler uses the plural for this stall reason.
_SAMPLED = {"no_instruction": "no_instructions"}


# Reports of 2019 state no units. The counters of the table have these names only there.
_SHARED_MEMORY = "launch__shared_mem_"
_UNSTATED = {
    "gpu__time_duration": "ns",
    "gpc__frequency": "hz",
    "dram__read_bytes": "byte",
    "dram__write_bytes": "byte",
}

SPELLINGS: Mapping[str, tuple[Spelling, ...]] = {
    "duration_s": _plain(
        "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration"
    ),
    "grid_blocks_count": _plain("launch__grid_size"),
    "block_threads_count": _plain("launch__block_size"),
    "registers_count": _plain("launch__registers_per_thread"),
    "static_shared_bytes": _plain("launch__shared_mem_per_block_static"),
    "dynamic_shared_bytes": _plain("launch__shared_mem_per_block_dynamic"),
    "waves_count": _plain("launch__waves_per_multiprocessor"),
    "sm_count": _plain(
        "launch__sm_count", "device__attribute_multiprocessor_count"
    ),
    **{
        f"{ours}_limit_blocks_count": _plain(f"launch__occupancy_limit_{theirs}")
        for ours, theirs in _BLOCK_LIMITS.items()
    },
    "sm_active_cycles_count": _plain("sm__cycles_active.avg"),
    "sm_elapsed_cycles_count": _plain(
        "sm__cycles_elapsed.avg", "sm__cycles_elapsed.max", "gpc__cycles_elapsed.max"
    ),
    "sm_clock_hz": _plain(
        "sm__cycles_elapsed.avg.per_second",
        "smsp__cycles_elapsed.avg.per_second",
        "gpc__cycles_elapsed.avg.per_second",
        "gpc__frequency",
    ),
    "warps_active_fraction": _percent(f"sm__warps_active.{_ACTIVE}"),
    "warps_possible_fraction": _percent("sm__maximum_warps_per_active_cycle_pct"),
    "dram_bytes": (_dram("dram__bytes.sum"),),
    "dram_read_bytes": _dram_bytes("read"),
    "dram_write_bytes": _dram_bytes("write"),
    "dram_peak_bytes_per_cycle_ratio": (_dram("dram__bytes.sum.peak_sustained"),),
    "dram_throughput_fraction": (
        _dram(f"gpu__dram_throughput.{_ELAPSED}", _PERCENT),
        _dram(f"dram__throughput.{_ELAPSED}", _PERCENT),
        _dram(f"dram__cycles_active.{_ELAPSED}", _PERCENT),
    ),
    "dram_clock_hz": (_dram("dram__cycles_elapsed.avg.per_second"),),
    "l2_throughput_fraction": _percent(f"lts__throughput.{_ELAPSED}"),
    "l2_hit_sectors_count": _plain("lts__t_sectors_lookup_hit.sum"),
    "l2_miss_sectors_count": _plain("lts__t_sectors_lookup_miss.sum"),
    "l2_hit_fraction": _percent("lts__t_sector_hit_rate.pct"),
    "l1_throughput_fraction": _percent(f"l1tex__throughput.{_ELAPSED}"),
    "l1_active_throughput_fraction": _percent(f"l1tex__throughput.{_ACTIVE}"),
    "l1_hit_fraction": _percent("l1tex__t_sector_hit_rate.pct"),
    "lsu_pipe_fraction": _percent(f"sm__inst_executed_pipe_lsu.{_ELAPSED}"),
    "memory_throughput_fraction": _percent(
        f"gpu__compute_memory_throughput.{_ELAPSED}"
    ),
    "sm_throughput_fraction": _percent(f"sm__throughput.{_ELAPSED}"),
    "tensor_pipe_fraction": _tensor(_ELAPSED),
    "tensor_active_pipe_fraction": _tensor(_ACTIVE),
    **{
        f"{dtype}_{op}_per_cycle_ratio": _plain(
            f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum.per_cycle_elapsed"
        )
        for dtype, letter in _LETTERS.items()
        for op in ("add", "mul", "fma")
    },
    **{
        f"{dtype}_peak_fma_per_cycle_ratio": _plain(
            f"sm__sass_thread_inst_executed_op_{letter}fma_pred_on.sum.peak_sustained"
        )
        for dtype, letter in _LETTERS.items()
    },
    **{
        f"{pipe}_pipe_fraction": _percent(*(f"{stem}.{_ELAPSED}" for stem in _STEMS[pipe]))
        for pipe in PIPES
    },
    "instructions_count": _plain(
        "smsp__inst_executed.sum", "sm__inst_executed.sum", "inst_executed"
    ),
    **{
        f"global_{word}_{what}_count": _plain(
            f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
        )
        for word, op in (("load", "ld"), ("store", "st"))
        for what in ("sectors", "requests")
    },
    "global_sectors_count": _plain("memory_l2_theoretical_sectors_global"),
    "global_ideal_sectors_count": _plain("memory_l2_theoretical_sectors_global_ideal"),
    "shared_wavefronts_count": _plain("memory_l1_wavefronts_shared"),
    "shared_ideal_wavefronts_count": _plain("memory_l1_wavefronts_shared_ideal"),
    "shared_pipe_wavefronts_count": _plain(
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
    ),
    "shared_conflicts_count": _plain(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
    ),
    **{
        f"stall_{reason}_ratio": _plain(
            f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        )
        for reason in STALLS
    },
    **{
        f"stall_{reason}_samples_count": _plain(
            f"smsp__pcsamp_warps_issue_stalled_{_SAMPLED.get(reason, reason)}"
        )
        for reason in STALLS
    },
}  # fmt: skip


# The SI unit by the last word of a standard name.
_SCALED = {"bytes": "bytes", "s": "s", "hz": "Hz"}


def standard_counters(
    launch: CapturedLaunch,
    names: Iterable[str] | None = None,
    *,
    mode: CounterMode = CounterMode(),  # noqa: B008 - frozen
) -> LaunchCounters:
    """
    Return the counters of a profiled launch, by standard names and in SI units.

    Args:
        launch: The launch with the tool's own names and units.

        names: The standard counters to return, or None for all.

        mode: How the tool read the counters, if known.

    Returns:
        The counters that the tool reported in a known unit. Counters that describe a launch
        are left out for a range or a graph.
    """
    values: dict[str, float] = {}
    for name in SPELLINGS if names is None else names:
        si = _SCALED.get(name.rpartition("_")[2])
        for spelling in SPELLINGS.get(name, ()):
            if launch.workload != KERNEL and describes_launch(spelling.counter):
                continue
            number = number_of(launch, spelling.counter)
            if number is None:
                continue
            if si is None:
                values[name] = number / spelling.per
                break
            unit = counter_unit(
                _unit(launch.metrics[spelling.counter], spelling.counter)
            )
            if unit is not None and unit.si == si:
                values[name] = unit.to_si(number)
                break
    return LaunchCounters(values=values, mode=mode)


def _unit(counted: CapturedValue, counter: str) -> str:
    """Return the tool's unit of a counter, or "" if neither stated nor known by the name."""
    by_name = "byte" if counter.startswith(_SHARED_MEMORY) else ""
    return counted.unit or _UNSTATED.get(counter, by_name)


def unusable(launch: CapturedLaunch, names: Iterable[str]) -> Gap | None:
    """
    Return why a counter of a launch gives no number, or None for counters that it lacks.

    Args:
        launch: A launch that was measured.

        names: Counters by standard names, whose values need a unit, or by the tool's own
            names.
    """
    names = tuple(names)
    known = standard_counters(launch, names).values
    for name in names:
        si = _SCALED.get(name.rpartition("_")[2]) if name in SPELLINGS else None
        spellings = () if name in known else SPELLINGS.get(name, _plain(name))
        for spelling in spellings:
            gap = _unusable(launch, spelling.counter, si)
            if gap is not None:
                return gap
    return None


def _unusable(launch: CapturedLaunch, counter: str, si: str | None) -> Gap | None:
    counted = launch.metrics.get(counter)
    if counted is None or counted.unit is None:
        return None
    has = f"launch {launch.index} has {counter}"
    if isinstance(counted.value, str):
        remedy = "choose a counter that is a number"
        return Gap(code=GapCode.NOT_DEFINED, reason=f"{has} as a text", remedy=remedy)
    if number_of(launch, counter) is None:
        reason = f"{has} without a value"
        return Gap(code=GapCode.NOT_STATED, reason=reason, remedy="profile again")
    unit = counter_unit(_unit(counted, counter))
    if si is None or (unit is not None and unit.si == si):
        return None
    how = f"in {counted.unit}, which is not a unit of {si}"
    return Gap(
        code=GapCode.UNIT_MISMATCH if counted.unit else GapCode.NOT_STATED,
        reason=f"{has} {how if counted.unit else 'without a unit'}",
        remedy="ask for that counter by its own name",
    )


def describes_launch(counter: str) -> bool:
    """Return True if a counter describes the launch itself, not the work that was done."""
    return counter.startswith(_OF_LAUNCH)


def vendor_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return all vendor counters behind standard names, for any chip, without duplicates."""
    counters = (s.counter for name in names for s in SPELLINGS.get(name, ()))
    return tuple(dict.fromkeys((*counters, *CAPABILITY)))


def spelled(name: str, launch: CapturedLaunch) -> str | None:
    """
    Return the vendor counter to collect for a standard counter on the chip of a launch.

    Args:
        name: A standard name.

        launch: A launch that ran on the chip.

    Returns:
        The counter, or None if the chip has none or the name is unknown.
    """
    capability = capability_of(launch)
    fitting = (s for s in SPELLINGS.get(name, ()) if s.fits(capability))
    return next((spelling.counter for spelling in fitting), None)


def number_of(launch: CapturedLaunch, name: str) -> float | None:
    """Return a number of a launch, or None if the launch has none of that name."""
    value = launch.metrics.get(name)
    if value is None or not isinstance(value.value, (int, float)):
        return None
    return float(value.value) if abs(value.value) < _TOO_LARGE else None


def capability_of(launch: CapturedLaunch) -> tuple[int, int] | None:
    """Return the compute capability of the GPU that ran a launch, or None if not reported."""
    major, minor = (number_of(launch, name) for name in CAPABILITY)
    return None if major is None or minor is None else (int(major), int(minor))


# The weight of a launch in a mean rate.
DURATION = "gpu__time_duration.sum"
_NAME = "device__attribute_display_name"


def duration_counter(launch: CapturedLaunch) -> str:
    """Return the counter of a launch's time by the name in its report."""
    names = (spelling.counter for spelling in SPELLINGS["duration_s"])
    return next((n for n in names if number_of(launch, n) is not None), DURATION)


class Captured(Frozen, frozen=True, kw_only=True):
    """
    One counter over several launches.

    Attributes:
        values: One value for each launch that has the counter [unit].

        weights: The durations of the launches if all have one, else empty.

        unit: The tool's own unit.

        absent_count: Number of launches that lack the counter.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    unit: str
    absent_count: int


def captured_values(counter: str, launches: Sequence[CapturedLaunch]) -> Captured:
    """
    Return a counter of several launches, by the tool's name and in the tool's unit.

    Args:
        counter: The tool's name of the counter.

        launches: Launches that were measured.
    """
    numbers = [
        (number, _unit(launch.metrics[counter], counter))
        for launch in launches
        if (number := number_of(launch, counter)) is not None
    ]
    weights = [number_of(launch, duration_counter(launch)) for launch in launches]
    durations = [weight for weight in weights if weight is not None]
    return Captured(
        values=tuple(number for number, _ in numbers),
        weights=tuple(durations) if len(durations) == len(launches) else (),
        unit=(numbers[0][1] if numbers else "") or "count",
        absent_count=len(launches) - len(numbers),
    )


def captured_facts(launch: CapturedLaunch) -> dict[str, str]:
    """Return fingerprint facts about the device of a launch."""
    facts = {}
    name = launch.metrics.get(_NAME)
    if name is not None and isinstance(name.value, str):
        facts["gpu_name"] = name.value
    capability = capability_of(launch)
    if capability is not None:
        facts["compute_capability"] = "{}.{}".format(*capability)
    return facts


def needed_counters(
    counters: Iterable[str], standard: Iterable[str] = ()
) -> tuple[str, ...]:
    """
    Return the counters to read from a report, without duplicates.

    Args:
        counters: Counters by the tool's own names.

        standard: Counters by standard names.
    """
    names = vendor_names((*standard, "duration_s"))
    return tuple(dict.fromkeys((*counters, *names, _NAME)))


def kernel_values(kernel: KernelResources) -> dict[str, tuple[float | None, str]]:
    """Return the metrics of a compiled kernel with units, by name."""
    shared = kernel.shared_bytes + (kernel.dynamic_shared_bytes or 0)
    values: dict[str, tuple[float | None, str]] = {
        "registers": (kernel.registers_count, "count"),
        "stack_bytes": (kernel.stack_bytes, "bytes"),
        "spills_bytes": (kernel.spills_bytes, "bytes"),
        "shared_bytes": (shared, "bytes"),
    }
    amd_only = {
        "scalar_registers": kernel.scalar_registers_count,
        "accumulation_registers": kernel.accumulation_registers_count,
        "scalar_spills": kernel.scalar_spills_count,
    }
    values |= {n: (v, "count") for n, v in amd_only.items() if v is not None}
    return values
