"""NVIDIA Nsight Compute: profiling with it, and reading its reports.

In: names of metrics, and a program to profile or an existing report.
Out: the values that ncu measured, by launch, with its own names and units.
Never: a number of ours, a verdict, a report parsed in this process.
"""

from __future__ import annotations

# The process that reads a report starts 4 ms sooner without typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.cache import Cache
    from pytest_gpuperf.collect.ncu.command import Command
    from pytest_gpuperf.collect.ncu.factories import (
        L1TEXCache,
        L1TEXCacheGlobalLoad,
        L1TEXCacheGlobalLoadInstructions,
        L1TEXCacheGlobalLoadRequests,
        L1TEXCacheGlobalLoadSectorHits,
        L1TEXCacheGlobalLoadSectorMisses,
        L1TEXCacheGlobalLoadSectors,
        L1TEXCacheGlobalLoadWavefronts,
        L1TEXCacheGlobalStore,
        L1TEXCacheGlobalStoreInstructions,
        L1TEXCacheGlobalStoreRequests,
        L1TEXCacheGlobalStoreSectors,
        L1TEXCacheLocalStore,
        L1TEXCacheLocalStoreInstructions,
        LaunchBlock,
        LaunchGrid,
        WarpStall,
    )
    from pytest_gpuperf.collect.ncu.metrics import (
        Metric,
        MetricCorrelation,
        MetricCorrelationData,
        MetricCounter,
        MetricCounterRollUp,
        MetricCounterRollUpQuantity,
        MetricDeviceAttribute,
        MetricRatio,
        MetricRatioRollUp,
        MetricThroughput,
    )
    from pytest_gpuperf.collect.ncu.report import Report
    from pytest_gpuperf.collect.ncu.results import ProfilingMetrics, ProfilingResults
    from pytest_gpuperf.collect.ncu.session import Session

__all__ = [
    "Cache",
    "Command",
    "L1TEXCache",
    "L1TEXCacheGlobalLoad",
    "L1TEXCacheGlobalLoadInstructions",
    "L1TEXCacheGlobalLoadRequests",
    "L1TEXCacheGlobalLoadSectorHits",
    "L1TEXCacheGlobalLoadSectorMisses",
    "L1TEXCacheGlobalLoadSectors",
    "L1TEXCacheGlobalLoadWavefronts",
    "L1TEXCacheGlobalStore",
    "L1TEXCacheGlobalStoreInstructions",
    "L1TEXCacheGlobalStoreRequests",
    "L1TEXCacheGlobalStoreSectors",
    "L1TEXCacheLocalStore",
    "L1TEXCacheLocalStoreInstructions",
    "LaunchBlock",
    "LaunchGrid",
    "Metric",
    "MetricCorrelation",
    "MetricCorrelationData",
    "MetricCounter",
    "MetricCounterRollUp",
    "MetricCounterRollUpQuantity",
    "MetricDeviceAttribute",
    "MetricRatio",
    "MetricRatioRollUp",
    "MetricThroughput",
    "ProfilingMetrics",
    "ProfilingResults",
    "Report",
    "Session",
    "WarpStall",
]

# The modules of the public names, imported at first use. The other names belong to
# `metrics` or `factories`.
_MODULES = {
    "Cache": "cache",
    "Command": "command",
    "ProfilingMetrics": "results",
    "ProfilingResults": "results",
    "Report": "report",
    "Session": "session",
}


def __getattr__(name: str) -> object:
    """Return a public name from its module."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    rest = "metrics" if name.startswith("Metric") else "factories"
    module = _MODULES.get(name, rest)
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
