"""What a run was made on: machine, GPUs, session."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen, finite

__all__ = ["ChipLimits", "Device", "Environment", "Session"]


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
    """

    id: str
    started_unix_s: float
    host: str
    commit: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("session.started_unix_s", self.started_unix_s)


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

        power_limit_watts: The board's default power limit [W]; the one in force is a
            fact of a run.

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
    driver_version: str | None = None
    vendor: str = "nvidia"
    rated_clock_hz: int | None = None
    memory_bus_bits: int | None = None
    l2_bytes: int | None = None
    integrated: bool | None = None
    mig_profile: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("device.power_limit_watts", self.power_limit_watts)


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

        max_threads_per_sm_count: Resident threads of a multiprocessor.

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
    max_threads_per_sm_count: int
    max_blocks_per_sm_count: int
    max_threads_per_block_count: int
    max_barriers_per_sm_count: int | None
    shared_per_sm_bytes: int
    max_shared_per_block_bytes: int
    reserved_shared_per_block_bytes: int
    shared_allocation_bytes: int
    warp_size_count: int
