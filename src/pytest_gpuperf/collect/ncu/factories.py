"""Common metrics by readable names.

`L1TEXCache.GlobalLoad.Sectors.create()` is the metric that counts the sectors of global
loads. A metric unpacks to itself, so that `*...create()` is one metric too.
`LaunchBlock.create()` yields several metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import ClassVar

from pytest_gpuperf.collect.ncu.metrics import (
    Metric,
    MetricCounter,
    MetricCounterRollUp,
    MetricName,
    MetricRatio,
    Sub,
)
from pytest_gpuperf.errors import ConfigError

_SUM: tuple[Sub, ...] = (MetricCounterRollUp.SUM,)
_CACHE = "L1/TEX cache"


class ChipUnit(str, Enum):
    """The unit of the chip that counts a metric."""

    L1TEX = "l1tex"
    SM = "sm"
    SMSP = "smsp"


class _Access:
    """
    One kind of access to memory.

    Attributes:
        NAME: Its name in results, behind that of the cache.

        op: The ending of its counters' names.
    """

    NAME: ClassVar[str]
    op: ClassVar[str]


class _GlobalLoad(_Access):
    """Loads from global memory."""

    NAME = "global load"
    op = "global_op_ld"


class _GlobalStore(_Access):
    """Stores to global memory."""

    NAME = "global store"
    op = "global_op_st"


class _LocalStore(_Access):
    """Stores to local memory, including spilled registers."""

    NAME = "local store"
    op = "local_op_st"


class _Instructions:
    """Warp instructions with the access."""

    access: ClassVar[type[_Access]]

    @classmethod
    def create(
        cls,
        *,
        unit: ChipUnit | str = ChipUnit.SMSP,
        mode: str | None = "sass",
        subs: tuple[Sub, ...] = _SUM,
    ) -> MetricCounter:
        """
        Return the metric.

        Args:
            unit: The unit that counts the instructions: "smsp" or "sm".

            mode: "sass" to count by patching the code, or None to count in hardware.

            subs: Its roll-ups.

        Raises:
            ConfigError: The unit or the mode is not allowed.
        """
        _one_of("unit", unit, ("smsp", "sm"))
        _one_of("mode", mode, ("sass", None))
        memory, _, op = cls.access.op.partition("_op_")
        name = MetricName(
            unit=ChipUnit(unit).value,
            stage=mode,
            quantity="inst",
            qualifier=f"executed_op_{memory}_{op}",
        )
        # Results of 1.0.x have the key with the blank, even without a mode.
        pretty = f"{_CACHE} {cls.access.NAME} instructions {mode or ''}"
        return MetricCounter(str(name), pretty, subs)


class _Counted:
    """Counts of the cache's pipeline for the access."""

    access: ClassVar[type[_Access]]
    quantity: ClassVar[str]
    stage: ClassVar[str] = "t"

    @classmethod
    def create(cls, *, subs: tuple[Sub, ...] = _SUM) -> MetricCounter:
        """Return the metric with the given roll-ups."""
        return cls._metric(subs, None)

    @classmethod
    def _metric(cls, subs: tuple[Sub, ...], suffix: str | None) -> MetricCounter:
        lookup = f"_lookup_{suffix}" if suffix else ""
        name = MetricName(
            unit=ChipUnit.L1TEX.value,
            stage=cls.stage,
            quantity=cls.quantity,
            qualifier=f"pipe_lsu_mem_{cls.access.op}{lookup}",
        )
        words = (_CACHE, cls.access.NAME, cls.quantity, suffix)
        return MetricCounter(str(name), " ".join(w for w in words if w), subs)


class _Sectors(_Counted):
    """Sectors of 32 bytes. `suffix` selects hits or misses."""

    quantity = "sectors"

    @classmethod
    def create(
        cls, *, suffix: str | None = None, subs: tuple[Sub, ...] = _SUM
    ) -> MetricCounter:
        """
        Return the metric.

        Args:
            suffix: "hit", "miss", or None for all.

            subs: Its roll-ups.

        Raises:
            ConfigError: The suffix is not allowed.
        """
        _one_of("suffix", suffix, ("hit", "miss", None))
        return cls._metric(subs, suffix)


class _SectorsThat(_Counted):
    """Sectors with a look-up that hit, or missed."""

    quantity = "sectors"
    suffix: ClassVar[str]

    @classmethod
    def create(cls, *, subs: tuple[Sub, ...] = _SUM) -> MetricCounter:
        """Return the metric with the given roll-ups."""
        return cls._metric(subs, cls.suffix)


class L1TEXCache:
    """The L1 and texture cache: instructions, requests, sectors and wavefronts."""

    NAME = _CACHE

    class GlobalLoad:
        """Loads from global memory."""

        NAME = _GlobalLoad.NAME

        class Instructions(_Instructions):
            """Warp instructions."""

            access = _GlobalLoad

        class Requests(_Counted):
            """Requests to the cache, one for each warp instruction."""

            access = _GlobalLoad
            quantity = "requests"

        class Sectors(_Sectors):
            """Sectors that the requests touch."""

            access = _GlobalLoad

        class SectorHits(_SectorsThat):
            """Sectors that were in the cache."""

            access = _GlobalLoad
            suffix = "hit"

        class SectorMisses(_SectorsThat):
            """Sectors that were not in the cache."""

            access = _GlobalLoad
            suffix = "miss"

        class Wavefronts(_Counted):
            """Passes through the cache's data stage."""

            access = _GlobalLoad
            quantity = "wavefronts"
            stage = "t_output"

    class GlobalStore:
        """Stores to global memory."""

        NAME = _GlobalStore.NAME

        class Instructions(_Instructions):
            """Warp instructions."""

            access = _GlobalStore

        class Requests(_Counted):
            """Requests to the cache, one for each warp instruction."""

            access = _GlobalStore
            quantity = "requests"

        class Sectors(_Sectors):
            """Sectors that the requests touch."""

            access = _GlobalStore

    class LocalStore:
        """Stores to local memory, including spilled registers."""

        NAME = _LocalStore.NAME

        class Instructions(_Instructions):
            """Warp instructions."""

            access = _LocalStore


# The same classes by flat names.
L1TEXCacheGlobalLoad = L1TEXCache.GlobalLoad
L1TEXCacheGlobalLoadInstructions = L1TEXCacheGlobalLoad.Instructions
L1TEXCacheGlobalLoadRequests = L1TEXCacheGlobalLoad.Requests
L1TEXCacheGlobalLoadSectorHits = L1TEXCacheGlobalLoad.SectorHits
L1TEXCacheGlobalLoadSectorMisses = L1TEXCacheGlobalLoad.SectorMisses
L1TEXCacheGlobalLoadSectors = L1TEXCacheGlobalLoad.Sectors
L1TEXCacheGlobalLoadWavefronts = L1TEXCacheGlobalLoad.Wavefronts
L1TEXCacheGlobalStore = L1TEXCache.GlobalStore
L1TEXCacheGlobalStoreInstructions = L1TEXCacheGlobalStore.Instructions
L1TEXCacheGlobalStoreRequests = L1TEXCacheGlobalStore.Requests
L1TEXCacheGlobalStoreSectors = L1TEXCacheGlobalStore.Sectors
L1TEXCacheLocalStore = L1TEXCache.LocalStore
L1TEXCacheLocalStoreInstructions = L1TEXCacheLocalStore.Instructions


class _LaunchSize:
    """A size of the launch in some of its three dimensions."""

    prefix: ClassVar[str]
    PREFIX: ClassVar[str]

    @classmethod
    def create(cls, dims: Iterable[str] = ("x", "y", "z")) -> Iterator[Metric]:
        """
        Return the metrics of the given dimensions.

        Args:
            dims: Some of "x", "y" and "z". An empty value means all three.

        Raises:
            ConfigError: A dimension is not allowed.
        """
        chosen = tuple(dims) or ("x", "y", "z")
        for dim in chosen:
            _one_of("dims", dim, ("x", "y", "z"))
        return (Metric(f"{cls.prefix}{dim}") for dim in chosen)


class LaunchBlock(_LaunchSize):
    """Threads of a block."""

    prefix = PREFIX = "launch__block_dim_"


class LaunchGrid(_LaunchSize):
    """Blocks of the grid."""

    prefix = PREFIX = "launch__grid_dim_"


class _Stall:
    """A reason why resident warps did not issue."""

    reason: ClassVar[str]

    @classmethod
    def create(cls) -> MetricRatio:
        """Return the metric: warps that wait for this reason, per issuing cycle."""
        waiting = f"stalled_{cls.reason}_per_issue_active"
        return MetricRatio(f"smsp__average_warps_issue_{waiting}")


class WarpStall:
    """Reasons for which resident warps wait."""

    class LGThrottle(_Stall):
        """The queue of local and global accesses is full."""

        reason = "lg_throttle"

    class LongScoreboard(_Stall):
        """A value from local, global, texture or surface memory is not there yet."""

        reason = "long_scoreboard"

    class MIOThrottle(_Stall):
        """The queue of the memory input and output instructions is full."""

        reason = "mio_throttle"

    class ShortScoreboard(_Stall):
        """A value from shared memory or a slow arithmetic unit is not there yet."""

        reason = "short_scoreboard"


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a ConfigError if `value` is not an allowed choice."""
    if value not in allowed:
        message = f"{name}={value!r} is not an allowed value"
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ConfigError(message, remedy=f"write one of: {listed}")
