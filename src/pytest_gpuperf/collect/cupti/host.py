"""The host half of a libcupti: what to count, and values of what was counted.

The same copy of the library makes the configuration, counts, and evaluates; that is why
NVIDIA's own binding, which loads a copy of its choice, does not stand here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.collect.cupti import refusal
from pytest_gpuperf.collect.cupti.libcupti import Libcupti
from pytest_gpuperf.collect.cupti.structs import HOST, RANGE_PROFILER, metric_names
from pytest_gpuperf.errors import (
    CollectorUnavailableError,
    ConfigError,
    GpuPerfError,
    UnknownMetricError,
)
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["CounterValue", "HostHalf", "ncu_unit"]

# From 13.2 on the host half needs a driver: 13.2 crashes without one, later ones refuse.
_NEEDS_DRIVER = 130200

# words of libcupti's units, as Nsight Compute writes them
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


class HostHalf:
    """
    What prepares the counting of metrics on a chip, and makes values of the counts.

    Args:
        library: The libcupti that also counts.

        chip: As `GH100`.

        metrics: Full names, as `dram__bytes.sum`; each once, >= 1 of them.

    Attributes:
        metrics: As they were given.

        image: The configuration that tells a device to count them.

        passes_count: In how many passes it does, >= 1.

    Raises:
        UnknownMetricError: The chip lacks one; ConfigError: it lacks several.

        CollectError: This libcupti cannot prepare it; the error says why.
    """

    def __init__(self, library: Libcupti, chip: str, metrics: Sequence[str]) -> None:
        if library.version >= _NEEDS_DRIVER and not library.has_driver():
            message = f"{library.path} prepares no counters without a CUDA driver"
            raise CollectorUnavailableError(
                message,
                remedy="count on a machine with a GPU; gpuperf metrics passes answers "
                "without one",
            )
        self.metrics = tuple(dict.fromkeys(metrics))
        self._library = library
        self._chip = chip
        self._names = metric_names(self.metrics)
        self._object: int | None = library.call(
            f"{HOST}Initialize",
            profilerType=RANGE_PROFILER,
            pChipName=chip.encode(),
        ).pHostObject
        try:
            self.image, self.passes_count = self._prepared()
        except GpuPerfError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of what libcupti holds; it may be called again."""
        held, self._object = self._object, None
        if held is not None:
            self._library.call(f"{HOST}Deinitialize", pHostObject=held)

    def units(self) -> dict[str, str]:
        """Return the unit of each metric, as Nsight Compute writes it."""
        said = {name: self._call("GetMetricProperties", name) for name in self.metrics}
        return {
            name: ncu_unit((each.pDimUnit or b"").decode())
            for name, each in said.items()
        }

    def values(
        self, counted: ctypes.Array[ctypes.c_char], index: int, units: Mapping[str, str]
    ) -> dict[str, CounterValue]:
        """
        Return what one range counted.

        Args:
            counted: The image into which it was decoded.

            index: Which of them, from 0.

            units: The unit of each metric.
        """
        numbers = (ctypes.c_double * len(self.metrics))()
        self._library.call(
            f"{HOST}EvaluateToGpuValues",
            pHostObject=self._object,
            pCounterDataImage=ctypes.addressof(counted),
            counterDataImageSize=len(counted),
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

    def _prepared(self) -> tuple[ctypes.Array[ctypes.c_char], int]:
        """Return the configuration, and in how many passes it counts."""
        own = {"pHostObject": self._object}
        add = f"{HOST}ConfigAddMetrics"
        named = {"ppMetricNames": self._names, "numMetrics": len(self._names)}
        status, _ = self._library.ask(add, **own, **named)
        if status:
            raise self._unknown() or refusal.failure(add, status)
        size = self._library.call(f"{HOST}GetConfigImageSize", **own).configImageSize
        image = ctypes.create_string_buffer(size)
        given = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
        self._library.call(f"{HOST}GetConfigImage", **own, **given)
        passes = self._library.call(f"{HOST}GetNumOfPasses", **given).numOfPasses
        return image, int(passes)

    def _unknown(self) -> ConfigError | None:
        """Return the error that names every metric the chip lacks; None: it has all."""
        asked = f"{HOST}GetMetricProperties"
        unknown = [
            name
            for name in self.metrics
            if self._library.ask(
                asked, pHostObject=self._object, pMetricName=name.encode()
            )[0]
            in {refusal.INVALID_METRIC_NAME, refusal.INVALID_PARAMETER}
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

    def _call(self, function: str, name: str) -> Any:  # noqa: ANN401 - a structure's fields are of any type
        """Call a function about one metric."""
        return self._library.call(
            f"{HOST}{function}", pHostObject=self._object, pMetricName=name.encode()
        )


def ncu_unit(text: str) -> str:
    """
    Return a unit of libcupti as Nsight Compute writes it.

    Example:
        >>> ncu_unit("instruction/gpc_cycle")
        'inst/cycle'
    """
    return "/".join(_word(part) for part in text.split("/"))


def _word(text: str) -> str:
    """Return one word of a unit; cycles are cycles, whoever's clock counts them."""
    return "cycle" if text.endswith("cycle") else _WORDS.get(text, text)
