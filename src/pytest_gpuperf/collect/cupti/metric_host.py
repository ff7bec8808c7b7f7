"""The metric host of libcupti: it configures counters, and computes values of them.

The same copy of libcupti makes the configuration, counts, and evaluates; NVIDIA's own
binding loads a copy of its choice, and is not used for this reason.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

from pytest_gpuperf.collect.cupti.libcupti import (
    HOST,
    RANGE_PROFILER,
    Libcupti,
    metric_names,
)
from pytest_gpuperf.collect.cupti.statuses import (
    INVALID_METRIC_NAME,
    INVALID_PARAMETER,
    failure,
)
from pytest_gpuperf.errors import (
    CollectorUnavailableError,
    ConfigError,
    GpuPerfError,
    UnknownMetricError,
)
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["CounterValue", "MetricHost", "ncu_unit"]

# from 13.2 on the host needs a driver: 13.2 crashes without one, later versions refuse
_NEEDS_DRIVER = 130200

# words of libcupti's units in Nsight Compute's spelling
_WORDS = {
    "percent": "%",
    "nanosecond": "nsecond",
    "instruction": "inst",
    "unitless": "",
}


class CounterValue(Frozen, frozen=True, kw_only=True):
    """
    One counter of one range.

    Attributes:
        value: The number; None: it was not counted, or is not finite.

        unit: Its unit as Nsight Compute writes it: `byte`, `%`, `inst/cycle`; "": none.
    """

    value: float | None
    unit: str


class MetricHost:
    """
    Configures the counters of metrics on a chip, and computes the metrics of the counts.

    Args:
        library: The libcupti that also counts.

        chip: As `GH100`.

        metrics: Full names, as `dram__bytes.sum`; each once, >= 1 of them.

    Attributes:
        metrics: Their full names.

        image: The configuration image that makes a device count them.

        passes_count: The passes in which it does, >= 1.

    Raises:
        UnknownMetricError: The chip lacks one; ConfigError: it lacks several.

        CollectError: This libcupti cannot configure them.
    """

    def __init__(self, library: Libcupti, chip: str, metrics: Sequence[str]) -> None:
        if library.version >= _NEEDS_DRIVER and not library.has_driver():
            message = f"{library.path} cannot configure counters without a CUDA driver"
            raise CollectorUnavailableError(
                message,
                remedy="count on a machine with a GPU; gpuperf metrics passes answers "
                "without one",
            )
        self.metrics = tuple(dict.fromkeys(metrics))
        self._library = library
        self._chip = chip
        self._names = metric_names(self.metrics)
        self._handle: int | None = library.call(
            f"{HOST}Initialize",
            profilerType=RANGE_PROFILER,
            pChipName=chip.encode(),
        ).pHostObject
        try:
            self.image, self.passes_count = self._configured()
        except GpuPerfError:
            self.close()
            raise

    def close(self) -> None:
        """Free what libcupti holds; it may be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.call(f"{HOST}Deinitialize", pHostObject=handle)

    def units(self) -> dict[str, str]:
        """Return the unit of each metric, as Nsight Compute writes it."""
        return {name: ncu_unit(self._unit(name)) for name in self.metrics}

    def values(
        self, image: ctypes.Array[ctypes.c_char], index: int, units: Mapping[str, str]
    ) -> dict[str, CounterValue]:
        """
        Return the metrics of one range.

        Args:
            image: The decoded counter data.

            index: The range, from 0.

            units: The unit of each metric.
        """
        numbers = (ctypes.c_double * len(self.metrics))()
        self._library.call(
            f"{HOST}EvaluateToGpuValues",
            pHostObject=self._handle,
            pCounterDataImage=ctypes.addressof(image),
            counterDataImageSize=len(image),
            rangeIndex=index,
            ppMetricNames=self._names,
            numMetrics=len(self._names),
            pMetricValues=numbers,
        )
        return {
            name: CounterValue(
                value=number if math.isfinite(number) else None, unit=units[name]
            )
            for name, number in zip(self.metrics, numbers, strict=True)
        }

    def _configured(self) -> tuple[ctypes.Array[ctypes.c_char], int]:
        """Return the configuration image and its number of passes."""
        host = {"pHostObject": self._handle}
        add = f"{HOST}ConfigAddMetrics"
        metrics = {"ppMetricNames": self._names, "numMetrics": len(self._names)}
        status, _ = self._library.ask(add, **host, **metrics)
        if status:
            raise self._unknown() or failure(add, status)
        size = self._library.call(f"{HOST}GetConfigImageSize", **host).configImageSize
        image = ctypes.create_string_buffer(size)
        buffer = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
        self._library.call(f"{HOST}GetConfigImage", **host, **buffer)
        passes = self._library.call(f"{HOST}GetNumOfPasses", **buffer).numOfPasses
        return image, int(passes)

    def _unknown(self) -> ConfigError | None:
        """Return the error for the metrics that the chip lacks; None: it has all."""
        function = f"{HOST}GetMetricProperties"
        unknown = [
            name
            for name in self.metrics
            if self._library.ask(
                function, pHostObject=self._handle, pMetricName=name.encode()
            )[0]
            in {INVALID_METRIC_NAME, INVALID_PARAMETER}
        ]
        remedy = (
            f"look for it: gpuperf metrics search --chip={self._chip} WORD, and give its"
            " ending too, as .sum"
        )
        if len(unknown) == 1:
            return UnknownMetricError(unknown[0], remedy=remedy)
        listed = ", ".join(map(repr, unknown))
        message = f"unknown metrics {listed} of {self._chip}"
        return ConfigError(message, remedy=remedy) if unknown else None

    def _unit(self, name: str) -> str:
        """Return a metric's unit in libcupti's spelling."""
        properties = self._library.call(
            f"{HOST}GetMetricProperties",
            pHostObject=self._handle,
            pMetricName=name.encode(),
        )
        return (properties.pDimUnit or b"").decode()


def ncu_unit(text: str) -> str:
    """
    Return a unit of libcupti as Nsight Compute writes it.

    Example:
        >>> ncu_unit("instruction/gpc_cycle")
        'inst/cycle'
    """
    return "/".join(_word(part) for part in text.split("/"))


def _word(text: str) -> str:
    """Return one word of a unit; the clock of a cycle is left out."""
    return "cycle" if text.endswith("cycle") else _WORDS.get(text, text)
