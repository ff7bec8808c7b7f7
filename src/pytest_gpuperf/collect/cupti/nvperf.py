"""libnvperf: names and passes of counters, with no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.cupti.library import (
    ACTIVITY_PROFILER,
    CREATE_CONFIG,
    CUDA_EVALUATOR,
    EVALUATOR,
    INVALID_ARGUMENT,
    RAW_CONFIG,
    ROLLUPS,
    SUBMETRICS,
    UNSUPPORTED_GPU,
    DimUnitFactor,
    EvalRequest,
    Library,
    RawMetricRequest,
    load,
    struct_size,
)
from pytest_gpuperf.errors import (
    ConfigError,
    UnknownMetricError,
)
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    pass

__all__ = [
    "Evaluator",
    "MetricType",
    "Properties",
    "evaluator",
]

# A frame is drawn and a region is declared: a kernel has neither, and CUPTI lists none.
_NOT_OF_KERNELS = ("_frame", "_region")
_DEFAULT_ENDING = (
    ".sum",
    ".ratio",
    ".avg.pct_of_peak_sustained_elapsed",
)  # by MetricType


class MetricType(IntEnum):
    """What kind of number a metric is, as NVIDIA's libraries number the kinds."""

    COUNTER = 0
    RATIO = 1
    THROUGHPUT = 2


class Properties(Frozen, frozen=True, kw_only=True):
    """
    What the library says of a metric.

    Attributes:
        base: Its name without an ending.

        kind: What kind of number it is.

        description: A phrase in NVIDIA's words.

        hardware_unit: The part of the chip that counts: `dram`.

        unit: What a number with this ending is counted in: `byte/second`; "" where it
            has no unit.

        made_of: The counters and throughputs of which a throughput is the largest.
    """

    base: str
    kind: MetricType
    description: str
    hardware_unit: str
    unit: str
    made_of: tuple[str, ...] = ()


@functools.cache
def evaluator(chip: str, library: Library | None = None) -> Evaluator:
    """
    Return what answers for a chip, made once in this process.

    Args:
        chip: As the library spells it: `GH100`.

        library: Whom to ask; None: the one that `load` finds.

    Raises:
        ConfigError: The library does not know the chip.

        CollectorUnavailableError: There is no library.
    """
    return Evaluator(library or load(), chip)


class Evaluator:
    """
    What a chip can count.

    It stands on a virtual device: neither a GPU nor a driver is asked.
    """

    def __init__(self, library: Library, chip: str) -> None:
        self._library = library
        self._chip = chip.encode()
        status, size = library.ask(
            f"{CUDA_EVALUATOR}CalculateScratchBufferSize", pChipName=self._chip
        )
        if status in {UNSUPPORTED_GPU, INVALID_ARGUMENT}:
            message = f"{chip!r} is no chip that {library.path} knows"
            remedy = f"name one of {', '.join(library.chips())}"
            raise ConfigError(message, remedy=remedy)
        # the library works in this memory for as long as the evaluator is asked
        self._scratch = ctypes.create_string_buffer(size.scratchBufferSize)
        self._me = library.call(
            f"{CUDA_EVALUATOR}Initialize",
            pScratchBuffer=ctypes.addressof(self._scratch),
            scratchBufferSize=size.scratchBufferSize,
            pChipName=self._chip,
        ).pMetricsEvaluator
        self._names: dict[MetricType, tuple[str, ...]] = {}

    def names(self, kind: MetricType) -> tuple[str, ...]:
        """Return the metrics of a kind, without endings, in the library's order."""
        if kind not in self._names:
            answer = self._call("GetMetricNames", metricType=kind)
            begins = answer.pMetricNameBeginIndices[: answer.numMetrics]
            self._names[kind] = tuple(
                ctypes.string_at(answer.pMetricNames + begin).decode()
                for begin in begins
            )
        return self._names[kind]

    def endings(self, kind: MetricType) -> tuple[str, ...]:
        """Return what may follow a metric of a kind, as `.sum.per_second`."""
        answer = self._call("GetSupportedSubmetrics", metricType=kind)
        found = [
            SUBMETRICS[each]
            for each in answer.pSupportedSubmetrics[: answer.numSupportedSubmetrics]
        ]
        parts = [
            f".{part}" if part else ""
            for part in found
            if not any(word in part for word in _NOT_OF_KERNELS)
        ]
        if kind is MetricType.RATIO:
            return tuple(parts)
        return tuple(f".{rollup}{part}" for rollup in ROLLUPS for part in parts)

    def accepts(self, name: str) -> bool:
        """Return whether a name with its ending is a metric of this chip."""
        return self._request(name) is not None

    def kind(self, name: str) -> MetricType | None:
        """Return the kind of a metric, with or without an ending; None: it is unknown."""
        found = self._place(name)
        return found and found[0]

    def base(self, name: str) -> str | None:
        """Return a metric without its ending, right or wrong; None: it is unknown."""
        found = self._place(name)
        return None if found is None else self.names(found[0])[found[1]]

    def properties(self, name: str) -> Properties:
        """
        Return what is known of a metric.

        Args:
            name: Its name, with an ending or without.

        Raises:
            UnknownMetricError: The chip has no such metric, or not with this ending.
        """
        found = self._place(name)
        kind, place = found or (None, 0)
        base = "" if kind is None else self.names(kind)[place]
        request = self._request(name)
        if kind is None or (request is None and name != base):
            raise self._unknown(name)
        if request is None:
            request = self._request(base + _DEFAULT_ENDING[kind])
        answer = self._call(f"Get{_PROPERTIES[kind]}Properties", index=place)
        hardware = self._call("HwUnitToString", hwUnit=answer.hwUnit & 0xFFFFFFFF)
        return Properties(
            base=base,
            kind=kind,
            description=(answer.pDescription or b"").decode(),
            hardware_unit=(hardware.pHwUnitName or b"").decode(),
            unit=self._unit(request) if request is not None else "",
            made_of=self._made_of(answer) if kind is MetricType.THROUGHPUT else (),
        )

    def passes(self, names: Sequence[str]) -> int:
        """
        Return in how many passes a kernel gives these metrics together, >= 0.

        Raises:
            UnknownMetricError: The chip has not all of them.

            CollectError: One of them cannot be had of a kernel.
        """
        if not names:
            return 0
        with self._scheduled(names) as config:
            return int(
                self._library.call(
                    f"{RAW_CONFIG}GetNumPasses_V2", pRawMetricsConfig=config
                ).numPasses
            )

    def config_image(self, names: Sequence[str]) -> bytes:
        """Return what tells a device to count these metrics; errors as `passes`."""
        get = f"{RAW_CONFIG}GetConfigImage"
        with self._scheduled(names) as config:
            self._library.call(
                f"{RAW_CONFIG}GenerateConfigImage", pRawMetricsConfig=config
            )
            size_bytes = self._library.call(get, pRawMetricsConfig=config).bytesCopied
            buffer = ctypes.create_string_buffer(size_bytes)
            self._library.call(
                get,
                pRawMetricsConfig=config,
                bytesAllocated=size_bytes,
                pBuffer=ctypes.addressof(buffer),
            )
        return buffer.raw

    def _call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see `ask`
        """Call a function of this evaluator."""
        name = f"{EVALUATOR}{function}"
        return self._library.call(name, pMetricsEvaluator=self._me, **given)

    def _place(self, name: str) -> tuple[MetricType, int] | None:
        """Return a metric's kind and its place among those; None: it is unknown."""
        status, answer = self._library.ask(
            f"{EVALUATOR}GetMetricTypeAndIndex",
            pMetricsEvaluator=self._me,
            pMetricName=name.encode(),
        )
        return None if status else (MetricType(answer.metricType), answer.metricIndex)

    def _request(self, name: str) -> EvalRequest | None:
        """Return a metric as the library numbers it; None: it is none."""
        request = EvalRequest()
        status, _ = self._library.ask(
            f"{EVALUATOR}ConvertMetricNameToMetricEvalRequest",
            pMetricsEvaluator=self._me,
            pMetricName=name.encode(),
            pMetricEvalRequest=ctypes.pointer(request),
            metricEvalRequestStructSize=_REQUEST_BYTES,
        )
        return None if status else request

    def _unknown(self, name: str) -> UnknownMetricError:
        """Return the error for a name that is none."""
        chip = self._chip.decode()
        remedy = f"look for it: gpuperf metrics search --chip={chip} WORD"
        return UnknownMetricError(name, remedy=remedy)

    def _made_of(self, answer: Any) -> tuple[str, ...]:  # noqa: ANN401 - see `ask`
        """Return what a throughput is the largest of."""
        counters = self.names(MetricType.COUNTER)
        throughputs = self.names(MetricType.THROUGHPUT)
        return (
            *(counters[answer.pCounterIndices[n]] for n in range(answer.numCounters)),
            *(
                throughputs[answer.pSubThroughputIndices[n]]
                for n in range(answer.numSubThroughputs)
            ),
        )

    def _unit(self, request: EvalRequest) -> str:
        """Return what a metric is counted in, as `instruction/gpc_cycle`."""
        given = {
            "pMetricEvalRequest": ctypes.pointer(request),
            "metricEvalRequestStructSize": _REQUEST_BYTES,
            "dimUnitFactorStructSize": _FACTOR_BYTES,
        }
        count = self._call("GetMetricDimUnits", **given).numDimUnits
        factors = (DimUnitFactor * count)()
        self._call("GetMetricDimUnits", pDimUnits=factors, numDimUnits=count, **given)
        above = [self._power(each) for each in factors if each.exponent > 0]
        below = [self._power(each) for each in factors if each.exponent < 0]
        text = "/".join(["*".join(above) or "1", *below]) if above or below else ""
        return "" if text == "unitless" else text

    def _power(self, factor: DimUnitFactor) -> str:
        """Return one factor of a unit."""
        said = self._call("DimUnitToString", dimUnit=factor.dimUnit)
        power = abs(factor.exponent)
        name: str = said.pSingularName.decode()
        return f"{name}^{power}" if power > 1 else name

    def _needed(self, name: str) -> ctypes.Array[RawMetricRequest]:
        """Return what the hardware has to count for a metric; the names are hashes."""
        request = self._request(name)
        if request is None:
            raise self._unknown(name)
        given = {
            "pMetricEvalRequests": ctypes.pointer(request),
            "numMetricEvalRequests": 1,
            "metricEvalRequestStructSize": _REQUEST_BYTES,
            "metricEvalRequestStrideSize": ctypes.sizeof(EvalRequest),
        }
        sizes = self._call("GetMetricRawDependencies", **given)
        needed = (ctypes.c_char_p * sizes.numRawDependencies)()
        optional = (ctypes.c_char_p * sizes.numOptionalRawDependencies)()
        self._call(
            "GetMetricRawDependencies",
            ppRawDependencies=needed,
            numRawDependencies=len(needed),
            ppOptionalRawDependencies=optional,
            numOptionalRawDependencies=len(optional),
            **given,
        )
        requests = (
            RawMetricRequest(
                structSize=_RAW_BYTES, pMetricName=raw, isolated=1, keepInstances=1
            )
            for raw in needed
        )
        return (RawMetricRequest * len(needed))(*requests)

    @contextlib.contextmanager
    def _scheduled(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield a configuration in which the passes of these metrics are laid out."""
        needed = [self._needed(name) for name in names]
        ask = self._library.call
        config = ask(
            CREATE_CONFIG, activityKind=ACTIVITY_PROFILER, pChipName=self._chip
        ).pRawMetricsConfig
        try:
            ask(f"{RAW_CONFIG}BeginPassGroup", pRawMetricsConfig=config)
            # one call for each metric: so does CUPTI, and in one call for all of them
            # one list in twenty comes out a pass away from what it says
            for requests in filter(len, needed):
                ask(
                    f"{RAW_CONFIG}AddMetrics",
                    pRawMetricsConfig=config,
                    pRawMetricRequests=requests,
                    numMetricRequests=len(requests),
                )
            ask(f"{RAW_CONFIG}EndPassGroup", pRawMetricsConfig=config)
            yield config
        finally:
            ask(f"{RAW_CONFIG}Destroy", pRawMetricsConfig=config)


_PROPERTIES = ("Counter", "RatioMetric", "ThroughputMetric")  # by MetricType
_REQUEST_BYTES = struct_size(EvalRequest)
_FACTOR_BYTES = struct_size(DimUnitFactor)
_RAW_BYTES = struct_size(RawMetricRequest)
