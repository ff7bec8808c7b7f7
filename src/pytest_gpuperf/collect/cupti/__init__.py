"""Room collect.cupti: NVIDIA's profiling libraries, called in this process.

In: libcupti and libnvperf_host, as installed by a package or a toolkit.
Out: the counters of a chip, the passes they take, readings, and errors with a remedy.
Never: a judgement, a process, an answer that the library did not give.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.profiler_host import (
        MetricCollectionScope,
        MetricProperties,
        MetricType,
        ProfilerHost,
        ProfilerType,
        get_max_num_hardware_metrics_per_pass,
        get_metrics_in_single_pass_set,
        get_num_of_passes,
        get_single_pass_sets,
        get_supported_chips,
    )

__all__ = [
    "MetricCollectionScope",
    "MetricProperties",
    "MetricType",
    "ProfilerHost",
    "ProfilerType",
    "get_max_num_hardware_metrics_per_pass",
    "get_metrics_in_single_pass_set",
    "get_num_of_passes",
    "get_single_pass_sets",
    "get_supported_chips",
]

# Public name -> the module that defines it.
_PLACES = dict.fromkeys(__all__, "profiler_host")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    """Import the module of a public name on first access."""
    if name not in _PLACES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
