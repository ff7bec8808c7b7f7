"""Machine, GPUs and session of a run, and the facts that comparable values must share."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from pytest_gpuperf.model.frozen import Frozen, finite, replace
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.sample import CacheMode, Source


class Environment(Frozen, frozen=True, kw_only=True):
    """
    Machine and software of one process, from an allow-list, never from os.environ.

    Attributes:
        cpu_model: Name of the processor, or None if the system does not report it.

        core_count: Logical cores that the process may use.

        python_minor: "3.12".

        platform: "linux", "win32", "darwin".

        versions: Version by package name, for packages that affect speed.
    """

    cpu_model: str | None
    core_count: int | None
    python_minor: str
    platform: str
    versions: Mapping[str, str] = {}


class Session(Frozen, frozen=True, kw_only=True):
    """
    One pytest start on one host, the unit of evidence.

    Attributes:
        id: A unique id of the session.

        started_unix_s: Start, since the epoch [s].

        host: A short hash of host and boot. No host name is kept.

        commit: Revision of the project, or None outside a repository.

        dirty: Whether the working tree differed from `commit`, or None if unknown.

        parent: First parent of `commit`, or None if unknown.

        branch: The branch according to git or the CI system, or None if unknown.

        machine: Label of the machine, or a hash of machine id and host name that
            outlives a boot. None if unknown, as in a container without a label.

        boot: A hash of the boot, or None if unknown.

        run: The CI run of the session, or None outside of CI runs.

        shard: Part of the run's tests, as "3/8", or None for all of them.

        collected: A digest of the ids of all collected tests, before deselection, or
            None if unknown.

        collected_count: Number of collected tests.

        ran_count: Test bodies that ran in the session's process, measured or not. With
            several xdist workers, the mean over the workers. None if unknown.

        selection: A digest of the pytest options and arguments that select tests,
            without output options. None if unknown.

        unknown: Fields of a later version, as names and JSON texts. They are kept when
            a store is rewritten.
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
        """Reject numbers that are not finite."""
        finite("session.started_unix_s", self.started_unix_s)


class Host(Frozen, frozen=True, kw_only=True):
    """
    The machine of a process, and the part that the process may use.

    Processes with equal hosts are interchangeable.

    Attributes:
        id: A short hash of host and boot, as in a Session.

        machine: Label of the machine, or a hash that outlives a boot, or None if
            unknown.

        boot: A hash of the boot, or None if unknown.

        cpu_model: Name of the processor, or None if the system does not report it.

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
        """A text that identifies the host."""
        return f"{self.id}/{self.core_count}/{self.python_minor}"

    @property
    def facts(self) -> dict[str, str]:
        """Known facts of the host, by fact name."""
        facts = {
            "machine": self.machine,
            "boot": self.boot,
            "cpu_model": self.cpu_model,
            "core_count": self.core_count,
            "python_minor": self.python_minor,
        }
        return {name: str(fact) for name, fact in facts.items() if fact is not None}


def session_on(session: Session, host: Host | None) -> Session:
    """
    Return the session of a host, or the given session for None and for its own host.

    A session belongs to one machine, so measurements on another have one of their own.
    """
    if host is None or host.id == session.host:
        return session
    return replace(
        session,
        id=f"{session.id}-{host.id}",
        host=host.id,
        machine=host.machine,
        boot=host.boot,
    )


class Device(Frozen, frozen=True, kw_only=True):
    """
    A GPU, described by facts that do not change while tests run.

    Attributes:
        index: Index in the driver's order, from 0.

        uuid: Permanent id, as `GPU-…`.

        name: Name of the product.

        memory_bytes: Total memory [B], or None if the GPU has no memory of its own or
            the driver does not report it.

        sm_count: Number of multiprocessors.

        compute_capability: Major and minor number.

        mig: Whether the GPU is split into instances.

        ecc: Whether memory errors are corrected.

        max_sm_clock_hz: Maximum clock of the multiprocessors [Hz].

        max_memory_clock_hz: Maximum clock of the memory [Hz].

        power_limit_watts: The board's default power limit [W].

        enforced_power_limit_watts: The power limit in force [W], regardless of its
            origin.

        application_sm_clock_hz: Application clock of the multiprocessors [Hz], as set
            by `nvidia-smi -ac`. A range set by `nvidia-smi -lgc` cannot be read.

        application_memory_clock_hz: Application clock of the memory [Hz].

        driver_version: As the driver writes it.

        vendor: `nvidia`, `amd`, `intel` or `apple`, or torch's name of the backend.

        rated_clock_hz: The board's rated boost clock according to the CUDA driver [Hz].
            On many boards, it is well below `max_sm_clock_hz`, the top of the clock
            range.

        memory_bus_bits: Width of the memory bus.

        l2_bytes: Size of the L2 cache [B].

        integrated: Whether the GPU shares its memory with a CPU.

        mig_profile: The instance's profile, as "1g.10gb", or None for a whole GPU.

        architecture: The instruction set, as its vendor writes it, such as "gfx942", or
            None of a GPU with a compute capability.

        runtime_version: The version of the runtime that torch was built for, such as
            ROCm's, or None of a GPU whose driver is known.
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
    architecture: str | None = None
    runtime_version: str | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite(
            "device.power_limit_watts",
            self.power_limit_watts,
            self.enforced_power_limit_watts,
        )


class ChipLimits(Frozen, frozen=True, kw_only=True):
    """
    Capacity of a multiprocessor of one compute capability. Of an AMD GPU: of a compute
    unit, or of a work group processor of RDNA.

    Attributes:
        compute_capability: Major and minor number, of an AMD GPU those of the target.

        registers_per_sm_count: 32-bit registers of a multiprocessor.

        max_registers_per_thread_count: Maximum registers per thread.

        max_registers_per_block_count: Maximum registers per block.

        register_allocation_count: Registers are allocated to a warp in multiples of
            this number.

        warp_allocation_count: The launch check rounds a block's warps up to multiples
            of this number (the parts of a multiprocessor).

        max_warps_per_sm_count: Maximum resident warps of a multiprocessor.

        max_blocks_per_sm_count: Maximum resident blocks of a multiprocessor.

        max_threads_per_block_count: Maximum threads per block.

        max_barriers_per_sm_count: Barriers of all resident blocks, or None if they
            never limit the number of blocks.

        shared_per_sm_bytes: Shared memory of a multiprocessor at its largest setting
            [B].

        max_shared_per_block_bytes: Maximum shared memory that a block may request after
            opting in [B].

        reserved_shared_per_block_bytes: Shared memory taken by the driver from every
            block [B].

        shared_allocation_bytes: Shared memory is allocated to a block in multiples of
            this size [B].

        warp_size_count: Threads per warp.

        scalar_registers_per_part_count: Scalar registers of all warps in a part, or None
            if they never limit the number of warps.

        scalar_allocation_count: Scalar registers are allocated to a warp in multiples of
            this number.
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
    scalar_registers_per_part_count: int | None = None
    scalar_allocation_count: int = 1


# Version of the method for timing and counting on a device.
DEVICE_METHOD = "device/1"
# The peak to which a share refers. It does not affect the time itself.
_PEAK = "peak"
_CACHE = "cache_mode"
# Conditions that affect the speed of all code. They are absent in a plain process.
# Traces lines, calls or allocations. Also a sanitizer or a debugger.
TRACER = "tracer"
# An allocator other than the system's, or its settings.
ALLOCATOR = "allocator"
PYTHON_MODE = "python_mode"  # As -O, dev mode, a debug build.
CONDITIONS = (TRACER, ALLOCATOR, PYTHON_MODE)
# Values of the test's parameters, for every family, and the definition of a loop's
# step.
PARAMETERS = "parameters"
# The test function, among the soft facts that changed.
TEST = "test"
# A fact that one of two records does not have.
UNKNOWN = "unknown"
# Soft fact: the processes that shared the tests, and the cores.
WORKERS = "xdist_workers"
# Soft fact: the UUID of the GPU.
BOARD = "gpu_uuid"
# Label or hash of the machine that holds the GPU, named if another GPU measured.
MACHINE = "machine"
# Soft facts of the machine that may change its speed.
SOFT_MACHINE_FACTS = frozenset({"driver", BOARD, MACHINE, "platform"})
# Soft facts that differ between any two sessions.
STATE_FACTS = frozenset({"sm_clock", "temperature"})
# Other collectors that record the same calls. On an H200, event times were 20 to 60 us
# longer when CUPTI was also recording.
TIMED_BESIDE = "timed_beside"
# The session with fewer tests must have run this share of the other session's tests.
# Otherwise, neither shows how fast a test is in the other's process.
_LEAST_COMPANY = 0.5
# Values of facts that are absent in a plain process.
_NOT_THERE = {**dict.fromkeys(CONDITIONS, "none"), TIMED_BESIDE: "none"}
# Cache modes of a device. Without a device, there is no such mode.
_FLUSHED = frozenset({CacheMode.COLD, CacheMode.WARM})
_GPU_NAME = "gpu_name"
_POWER_LIMIT, _ENFORCED = "power_limit_watts", "enforced_power_limit_watts"
_SET_LIMITS = (_ENFORCED, "application_sm_clock_hz", "application_memory_clock_hz")
# Facts of a GPU that torch alone knows.
_OF_TORCH = ("gpu_architecture", "gpu_runtime")
# Maps a fallback fact to the better fact that replaces it.
_SUPERSEDED = {_POWER_LIMIT: _ENFORCED}
# Facts of a host time if the call used a device.
_OF_A_DEVICE = (_GPU_NAME, _CACHE)
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
# Facts of a number recorded by the test. The value holds its direction.
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
    *_OF_TORCH,
    "device_method",
    TIMED_BESIDE,
    _CACHE,
    PARAMETERS,
    "work",
    _PEAK,
)
# Facts that differ on another machine, or with another part of this machine.
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
        *_OF_TORCH,
    }
)
_COUNTER = (*_DEVICE, "tool_version", "replay_mode", "cache_control", "clock_control")

# Names of the facts that count, by family. Their values are in the record.
HARD_FACTS: Mapping[Family, tuple[str, ...]] = {
    Family.DEVICE_TIME: _DEVICE,
    Family.RESOURCE: ("compute_capability", PARAMETERS),
    Family.COUNTER: _COUNTER,
    Family.HOST_TIME: _HOST,
    Family.RECORDED: _RECORDED,
}
_BY_HOST = frozenset({Family.HOST_TIME, Family.RECORDED})
# Facts without a field in earlier store formats, with the first version that has the
# field.
_SINCE: Mapping[str, int] = dict.fromkeys(
    (*_SET_LIMITS, UNIT, ALLOCATOR, PYTHON_MODE), 3
)


@functools.lru_cache(maxsize=4096)  # Called for each value of a run.
def family_of(metric: str, source: str) -> Family:
    """
    Return the family of facts that two values of a metric must share.

    A device time taken by the host's clock is a host time. A name that is not in the
    catalogue is a metric recorded by a test, unless it is a counter.
    """
    if metric not in METRICS:
        return Family.COUNTER if is_counter(metric) else Family.RECORDED
    family = METRICS[metric].family
    if source == Source.HOST and family is Family.DEVICE_TIME:
        return Family.HOST_TIME
    return family


def family_facts(family: Family, facts: Mapping[str, str]) -> dict[str, str]:
    """
    Return the known facts of one family.

    The host time of a call that uses a device depends on the device, so the GPU's name
    and the cache mode count. For a call without a device, neither counts.
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

    A peak counts only for metrics that are a share of it, because the time of a call
    does not depend on the peak. Collectors that recorded the same calls count only for
    event times.

    Args:
        facts: Facts of a whole record, by family.

        metric: Name of the metric.

        source: The collector that gave the value.
    """
    family = family_of(metric, source)
    hard_facts = facts.get(family, {})  # A Family is its text.
    if "method" in hard_facts and "device_method" in HARD_FACTS[family]:
        # Stored before device methods had their own fact. They have not changed since.
        shared = {name: fact for name, fact in hard_facts.items() if name != "method"}
        hard_facts = {**shared, "device_method": DEVICE_METHOD}
    without = set()
    if metric not in METRICS or METRICS[metric].bound != _PEAK:
        without.add(_PEAK)
    if source != Source.EVENTS:
        without.add(TIMED_BESIDE)
    if without.isdisjoint(hard_facts):
        return hard_facts
    return {name: fact for name, fact in hard_facts.items() if name not in without}


def differences(
    now: Mapping[str, str],
    then: Mapping[str, str],
    *,
    across: Iterable[str] = (),
) -> dict[str, tuple[str, str]]:
    """
    Return the facts that differ between two records.

    Args:
        now: Facts of the current record.

        then: Facts of the earlier record.

        across: Names of facts that may differ.

    Returns:
        Old and new value by name. A missing value is "unknown", or "none" if its
        absence means a plain process.
    """
    if now == then:  # The common case, checked for every stored session.
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
    Return the facts that differ between a current and a stored value.

    Facts without a field in the stored format were not stored, so they do not count as
    different.

    Args:
        now: Facts of the current value.

        then: Facts of the stored value.

        version: The format version in which the stored value was first written.

        across: Names of facts that may differ.

    Returns:
        See `differences`.
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
    Return True if two sessions ran about as many tests, so that their values compare.

    Everything that ran before a test in its process (imports, caches, the allocator)
    affects its time, and a partial run leaves out most of that. A session without a
    known number of tests was stored before tests were counted. Such a session compares
    with all others.

    Example:
        >>> whole, part = (
        ...     Session(id=name, started_unix_s=0.0, host="h", ran_count=count)
        ...     for name, count in (("whole", 40), ("part", 19))
        ... )
        >>> same_company(whole, part)
        False
    """
    return same_count(one.ran_count, other.ran_count)


# A run has few sessions, and asks for each of them in each test.
@functools.lru_cache(maxsize=1024)
def same_count(one: int | None, other: int | None) -> bool:
    """Return True if two numbers of tests make the same company (`same_company`)."""
    if one is None or other is None:
        return True
    return min(one, other) >= _LEAST_COMPANY * max(one, other)


def _said(facts: Mapping[str, str], name: str) -> str:
    return facts.get(name, _NOT_THERE.get(name, UNKNOWN))


# A run has few distinct texts and calls this for each test.
@functools.lru_cache(maxsize=256)
def slug(text: str) -> str:
    """
    Convert a text to a folder name: lower case, letters, digits and dashes.

    Example:
        >>> slug("NVIDIA H200 (141 GB)")
        'nvidia-h200-141-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
