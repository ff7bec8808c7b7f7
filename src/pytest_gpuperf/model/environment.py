"""What a run was made on: machine, GPUs, session; and what two must share to be compared."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from pytest_gpuperf.model.frozen import Frozen, finite
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.sample import CacheMode, Source

__all__ = [
    "ALLOCATOR",
    "BETTER",
    "CONDITIONS",
    "DEVICE_METHOD",
    "HARD_FACTS",
    "MACHINE_FACTS",
    "PARAMETERS",
    "PYTHON_MODE",
    "TEST",
    "TRACER",
    "UNIT",
    "ChipLimits",
    "Device",
    "Environment",
    "Host",
    "Session",
    "differences",
    "differences_from_stored",
    "facts_of",
    "family_facts",
    "family_of",
    "same_company",
    "slug",
]


class Environment(Frozen, frozen=True, kw_only=True):
    """
    The machine and the software of one process; an allow-list, never os.environ.

    Attributes:
        cpu_model: The processor's name; None where the system does not say.

        core_count: Logical cores that this process may use.

        python_minor: "3.12".

        platform: "linux", "win32", "darwin".

        versions: Version by package name, of the packages that change speed.
    """

    cpu_model: str | None
    core_count: int | None
    python_minor: str
    platform: str
    versions: Mapping[str, str] = {}


class Session(Frozen, frozen=True, kw_only=True):
    """
    One pytest start on one host: the unit of evidence.

    Attributes:
        id: A name that no other session has.

        started_unix_s: When it began, since the epoch [s].

        host: A short hash of host and boot; no host name is kept.

        commit: The revision of the project; None outside a repository.

        dirty: Whether the working tree differed from `commit`; None: unknown.

        parent: The first parent of `commit`; None: unknown.

        branch: The branch, or what the CI system calls it; None: unknown.

        machine: The machine's label, or a hash of machine id and host name that
            outlives a boot; None: unknown, as in a container without a label.

        boot: A hash of the boot; None: unknown.

        run: The CI run that the session is part of; None: it is no part of one.

        shard: Which part of the run's tests, as "3/8"; None: all of them.

        collected: A digest of the ids of all tests that were collected, before any was
            deselected; None: unknown.

        collected_count: How many these are.

        ran_count: Test bodies that ran in the session's process, measured or not; of
            several xdist workers their mean. None: unknown.

        selection: A digest of pytest's options and arguments, but for those of output,
            which select the tests; None: unknown.

        unknown: Fields of a later version, as names and JSON texts: kept when a store
            is rewritten.
    """

    id: str
    started_unix_s: float
    host: str
    commit: str | None = None
    dirty: bool | None = None
    parent: str | None = None
    branch: str | None = None
    machine: str | None = None
    boot: str | None = None
    run: str | None = None
    shard: str | None = None
    collected: str | None = None
    collected_count: int | None = None
    ran_count: int | None = None
    selection: str | None = None
    unknown: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("session.started_unix_s", self.started_unix_s)


class Host(Frozen, frozen=True, kw_only=True):
    """
    The machine that a process runs on, and what it may use of it.

    Two processes whose hosts are equal can stand for each other.

    Attributes:
        id: A short hash of host and boot, as in a Session.

        machine: The machine's label, or a hash that outlives a boot; None: unknown.

        boot: A hash of the boot; None: unknown.

        cpu_model: The processor's name; None where the system does not say.

        core_count: Logical cores that the process may use.

        python_minor: "3.12".
    """

    id: str
    machine: str | None = None
    boot: str | None = None
    cpu_model: str | None = None
    core_count: int | None = None
    python_minor: str = ""

    @property
    def key(self) -> str:
        """A text that no other host has."""
        return f"{self.id}/{self.core_count}/{self.python_minor}"

    @property
    def facts(self) -> dict[str, str]:
        """What is known of it, by the names of facts."""
        facts = {
            "machine": self.machine,
            "boot": self.boot,
            "cpu_model": self.cpu_model,
            "core_count": self.core_count,
            "python_minor": self.python_minor,
        }
        return {name: str(fact) for name, fact in facts.items() if fact is not None}


class Device(Frozen, frozen=True, kw_only=True):
    """
    One GPU, by facts that do not change while tests run.

    Attributes:
        index: Its place in the driver's own order, from 0.

        uuid: Its name for life, as `GPU-…`.

        name: The product's name.

        memory_bytes: All of its memory [B]; None where it has none of its own or
            the driver did not say.

        sm_count: Multiprocessors.

        compute_capability: Major and minor number.

        mig: Whether it is split into instances.

        ecc: Whether its memory is error corrected.

        max_sm_clock_hz: The highest clock of its multiprocessors [Hz].

        max_memory_clock_hz: The highest clock of its memory [Hz].

        power_limit_watts: The board's default power limit [W].

        enforced_power_limit_watts: The power limit in force [W], whoever set it.

        application_sm_clock_hz: The clock that the driver is to hold the multiprocessors
            at [Hz], as set by `nvidia-smi -ac`; a range of `nvidia-smi -lgc` cannot be
            read.

        application_memory_clock_hz: The same of the memory [Hz].

        driver_version: As the driver writes it.

        vendor: `nvidia`.

        rated_clock_hz: The board's rated boost clock [Hz], as the CUDA driver says: on
            many boards well below `max_sm_clock_hz`, the top of their range.

        memory_bus_bits: Width of the memory bus.

        l2_bytes: Size of the L2 cache [B].

        integrated: Whether it shares its memory with a CPU.

        mig_profile: The slice of a GPU that it is, as "1g.10gb"; None: a whole one.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    sm_count: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig: bool | None = None
    ecc: bool | None = None
    max_sm_clock_hz: int | None = None
    max_memory_clock_hz: int | None = None
    power_limit_watts: float | None = None
    enforced_power_limit_watts: float | None = None
    application_sm_clock_hz: int | None = None
    application_memory_clock_hz: int | None = None
    driver_version: str | None = None
    vendor: str = "nvidia"
    rated_clock_hz: int | None = None
    memory_bus_bits: int | None = None
    l2_bytes: int | None = None
    integrated: bool | None = None
    mig_profile: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite(
            "device.power_limit_watts",
            self.power_limit_watts,
            self.enforced_power_limit_watts,
        )


class ChipLimits(Frozen, frozen=True, kw_only=True):
    """
    What a multiprocessor of one compute capability can hold.

    Attributes:
        compute_capability: Major and minor number.

        registers_per_sm_count: 32-bit registers of a multiprocessor.

        max_registers_per_thread_count: The most a thread may use.

        max_registers_per_block_count: The most a block may use.

        register_allocation_count: Registers are given to a warp in this unit.

        warp_allocation_count: The launch check rounds a block's warps up to this unit
            (the parts of a multiprocessor).

        max_warps_per_sm_count: Resident warps of a multiprocessor.

        max_blocks_per_sm_count: Resident blocks of a multiprocessor.

        max_threads_per_block_count: The largest block.

        max_barriers_per_sm_count: Barriers of all resident blocks; None: they never
            limit the number of blocks.

        shared_per_sm_bytes: Shared memory of a multiprocessor at its largest setting
            [B].

        max_shared_per_block_bytes: The most a block may ask for after opting in [B].

        reserved_shared_per_block_bytes: Taken by the driver from every block [B].

        shared_allocation_bytes: Shared memory is given to a block in this unit [B].

        warp_size_count: Threads of a warp.
    """

    compute_capability: tuple[int, int]
    registers_per_sm_count: int
    max_registers_per_thread_count: int
    max_registers_per_block_count: int
    register_allocation_count: int
    warp_allocation_count: int
    max_warps_per_sm_count: int
    max_blocks_per_sm_count: int
    max_threads_per_block_count: int
    max_barriers_per_sm_count: int | None
    shared_per_sm_bytes: int
    max_shared_per_block_bytes: int
    reserved_shared_per_block_bytes: int
    shared_allocation_bytes: int
    warp_size_count: int


DEVICE_METHOD = "device/1"  # of timing on a device and of counting there
_PEAK = "peak"  # what a share is a share of; it says nothing of the time itself
_CACHE = "cache_mode"
# What changes how fast all code runs. Each is left out in a plain process.
TRACER = "tracer"  # follows lines, calls or allocations; a sanitizer, a debugger
ALLOCATOR = "allocator"  # another one than the system's, or its settings
PYTHON_MODE = "python_mode"  # as -O, dev mode, a debug build
CONDITIONS = (TRACER, ALLOCATOR, PYTHON_MODE)
# the values of the test's parameters, of every family; and what one step of a loop is
PARAMETERS = "parameters"
# the test function, among the soft facts that moved
TEST = "test"
# what records the same calls: an H200's events were longer by 20 to 60 us beside CUPTI
BESIDE = "timed_beside"
# of the tests that one session ran, the other must have run this share, or neither says
# how fast a test is in the other's process
_LEAST_COMPANY = 0.5
# facts that are left out where there is nothing to name
_NOT_THERE = {**dict.fromkeys(CONDITIONS, "none"), BESIDE: "none"}
# of a device; a host alone has no such mode
_FLUSHED = frozenset({CacheMode.COLD, CacheMode.WARM})
_GPU_NAME = "gpu_name"
_POWER_LIMIT, _ENFORCED = "power_limit_watts", "enforced_power_limit_watts"
_SET_LIMITS = (_ENFORCED, "application_sm_clock_hz", "application_memory_clock_hz")
# by a fact that counts where nothing better is known: what counts in its place
_SUPERSEDED = {_POWER_LIMIT: _ENFORCED}
_OF_A_DEVICE = (_GPU_NAME, _CACHE)  # of a host's time, where the call used a device
_HOST = (
    "cpu_model",
    "core_count",
    "python_minor",
    "method",
    *CONDITIONS,
    *_OF_A_DEVICE,
    PARAMETERS,
    _PEAK,
)
# of a number that the test itself records; its value has the direction
UNIT, BETTER = "unit", "better"
_RECORDED = (*_HOST, UNIT, BETTER)
_DEVICE = (
    _GPU_NAME,
    "gpu_memory_bytes",
    "sm_count",
    "mig",
    "mps_share",
    "ecc",
    "max_sm_clock_hz",
    "max_memory_clock_hz",
    _POWER_LIMIT,
    *_SET_LIMITS,
    "driver_branch",
    "device_method",
    BESIDE,
    _CACHE,
    PARAMETERS,
    "work",
    _PEAK,
)
# what another machine, or a part of this one, would give
MACHINE_FACTS = frozenset(
    {
        "cpu_model",
        "core_count",
        _GPU_NAME,
        "gpu_memory_bytes",
        "sm_count",
        "compute_capability",
        "mig",
        "mps_share",
        "ecc",
        "max_sm_clock_hz",
        "max_memory_clock_hz",
        _POWER_LIMIT,
        *_SET_LIMITS,
        "driver_branch",
    }
)
_COUNTER = (*_DEVICE, "tool_version", "replay_mode", "cache_control", "clock_control")

# by family: the names of the facts that count; the record says what each of them is
HARD_FACTS: Mapping[Family, tuple[str, ...]] = {
    Family.DEVICE_TIME: _DEVICE,
    Family.RESOURCE: ("compute_capability", PARAMETERS),
    Family.COUNTER: _COUNTER,
    Family.HOST_TIME: _HOST,
    Family.RECORDED: _RECORDED,
}
_BY_HOST = frozenset({Family.HOST_TIME, Family.RECORDED})
# facts that earlier formats of a store had no field for: the first version that has one
_SINCE: Mapping[str, int] = dict.fromkeys(
    (*_SET_LIMITS, UNIT, ALLOCATOR, PYTHON_MODE), 3
)


@functools.lru_cache(maxsize=4096)  # asked for each value of a run
def family_of(metric: str, source: str) -> Family:
    """
    Return which facts two values of a metric must share.

    A device time that the host's clock took is a host time; a name that no catalogue has
    is one of the user's own.
    """
    if metric not in METRICS:
        return Family.COUNTER if is_counter(metric) else Family.RECORDED
    family = METRICS[metric].family
    if source == Source.HOST and family is Family.DEVICE_TIME:
        return Family.HOST_TIME
    return family


def family_facts(family: Family, facts: Mapping[str, str]) -> dict[str, str]:
    """
    Return the facts of one family that are known; unknown ones are left out.

    The host's time of a call that uses a device is the device's in part: its name and the
    cache mode count. Of a call that uses none neither does.
    """
    hard_facts = {name: facts[name] for name in HARD_FACTS[family] if name in facts}
    if family in _BY_HOST and hard_facts.get(_CACHE) not in _FLUSHED:
        for name in _OF_A_DEVICE:
            hard_facts.pop(name, None)
    return hard_facts


def facts_of(
    facts: Mapping[str, Mapping[str, str]], metric: str, source: str
) -> Mapping[str, str]:
    """
    Return the facts that two values of a metric must share.

    A peak counts for the metrics that are a share of it: the time that a call took is
    the same whatever it is held against. What was timed beside a value counts for events.

    Args:
        facts: Those of a whole record, by family.

        metric: The metric's name.

        source: The collector that gave its value.
    """
    family = family_of(metric, source)
    hard_facts = facts.get(family.value, {})
    if "method" in hard_facts and "device_method" in HARD_FACTS[family]:
        # stored before devices had a method of their own, which has not changed since
        shared = {name: fact for name, fact in hard_facts.items() if name != "method"}
        hard_facts = {**shared, "device_method": DEVICE_METHOD}
    of_peak = metric in METRICS and METRICS[metric].bound == _PEAK
    without = {_PEAK: not of_peak, BESIDE: source != Source.EVENTS}
    if not any(left and name in hard_facts for name, left in without.items()):
        return hard_facts
    return {name: fact for name, fact in hard_facts.items() if not without.get(name)}


def differences(
    now: Mapping[str, str],
    then: Mapping[str, str],
    *,
    across: Iterable[str] = (),
) -> dict[str, tuple[str, str]]:
    """
    Return the facts on which two records disagree.

    Args:
        now: Facts of the one.

        then: Facts of the other.

        across: Names of facts that are allowed to differ.

    Returns:
        By name, what it was and what it is; "unknown" where a side does not say, "none"
        where it was a plain process.
    """
    if now == then:  # as a rule, and this is asked for every stored session
        return {}
    allowed = set(across)
    return {
        name: (_said(then, name), _said(now, name))
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name) and name not in allowed
    }


def differences_from_stored(
    now: Mapping[str, str],
    then: Mapping[str, str],
    *,
    version: int,
    across: Iterable[str] = (),
) -> dict[str, tuple[str, str]]:
    """
    Return the facts on which a value of today and a stored one disagree.

    What the format of the store had no field for was not stored, which is no difference.

    Args:
        now: Facts of the value.

        then: Facts of the stored one.

        version: The version of the format that the stored one was first written in.

        across: Names of facts that are allowed to differ.

    Returns:
        As `differences` does.
    """
    if now == then:
        return {}
    unstored = (
        name for name, first in _SINCE.items() if version < first and name not in then
    )
    replaced = (old for old, new in _SUPERSEDED.items() if new in now and new in then)
    return differences(now, then, across={*across, *unstored, *replaced})


def same_company(one: Session, other: Session) -> bool:
    """
    Return whether two sessions ran about as many tests, so that their values compare.

    What ran before a test in its process (imports, caches, the allocator) is part of its
    time, and a run of a part leaves out most of it. A session that does not know how many
    tests it ran was stored before they were counted: it compares with all.

    Example:
        >>> whole, part = (
        ...     Session(id=name, started_unix_s=0.0, host="h", ran_count=count)
        ...     for name, count in (("whole", 40), ("part", 19))
        ... )
        >>> same_company(whole, part)
        False
    """
    if one.ran_count is None or other.ran_count is None:
        return True
    fewer, more = sorted((one.ran_count, other.ran_count))
    return fewer >= _LEAST_COMPANY * more


def _said(facts: Mapping[str, str], name: str) -> str:
    """Return a fact, or the word for its absence."""
    return facts.get(name, _NOT_THERE.get(name, "unknown"))


@functools.lru_cache(maxsize=256)  # a run has few, and asks for each test
def slug(text: str) -> str:
    """
    Return a text as the name of a folder: lower case, letters, digits and dashes.

    Example:
        >>> slug("NVIDIA H200 (141 GB)")
        'nvidia-h200-141-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
