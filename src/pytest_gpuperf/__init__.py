"""A pytest plugin that fails a test if its kernel got slower, and explains why.
PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

# The process that reads a report starts 4 ms sooner without typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytest_gpuperf.errors import (
        GpuPerfError,
        MetricUnavailableError,
        PerfAssertionError,
    )
    from pytest_gpuperf.fixture import Figure, GpuPerf, Pair, Perf
    from pytest_gpuperf.model.quantity import (
        GB,
        MB,
        GiB,
        KiB,
        MiB,
        kB,
        mJ,
        ms,
        ns,
        s,
        us,
    )
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = [
    "GB",
    "MB",
    "Figure",
    "GiB",
    "GpuPerf",
    "GpuPerfError",
    "Hardware",
    "KiB",
    "MetricUnavailableError",
    "MiB",
    "Pair",
    "Perf",
    "PerfAssertionError",
    "Work",
    "__version__",
    "kB",
    "mJ",
    "ms",
    "ns",
    "s",
    "us",
]

__version__ = "0.1.0"  # The build reads the version from this line.

# Where a public name is that is no quantity.
_ROOMS = {
    "GpuPerfError": "errors",
    "MetricUnavailableError": "errors",
    "PerfAssertionError": "errors",
    "Figure": "fixture",
    "GpuPerf": "fixture",
    "Pair": "fixture",
    "Perf": "fixture",
    "Hardware": "model.scorecard",
    "Work": "model.work",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    room = _ROOMS.get(name, "model.quantity")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
