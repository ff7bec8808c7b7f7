"""The known chips, by name and compute capability, and the metrics of each chip.

libnvperf_host answers for a virtual device, so that neither a GPU nor a driver is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.chip_limits import target_capability
from pytest_gpuperf.collect.cupti.nvperf import (
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
from pytest_gpuperf.collect.devices import (
    DeviceQuery,
    choose_device,
    query_devices,
)
from pytest_gpuperf.collect.listed_devices import (
    ORDER_REMEDY,
    UNORDERED,
    order_is_known,
)
from pytest_gpuperf.errors import ConfigError, UnknownMetricError
from pytest_gpuperf.model.counters import ChipEntry
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.model.environment import Device

# "CUDA GPU Compute Capability" (developer.nvidia.com), with the chips of the boards there.
# No source was found for GB10C, GB20C and GR100.
CAPABILITIES = {
    (7, 5): ("TU102", "TU104", "TU106", "TU116", "TU117"),
    (8, 0): ("GA100",),
    (8, 6): ("GA102", "GA103", "GA104", "GA106", "GA107"),
    (8, 7): ("GA10B",),
    (8, 9): ("AD102", "AD103", "AD104", "AD106", "AD107"),
    (9, 0): ("GH100",),
    (10, 0): ("GB100", "GB102"),
    (10, 3): ("GB110", "GB112"),
    (11, 0): ("GB10B",),
    (12, 0): ("GB202", "GB203", "GB205", "GB206", "GB207"),
    (12, 1): ("GB20B",),
}
_SUGGESTED = 3  # The default of difflib.


def chip_entries(source: Library | None = None) -> tuple[ChipEntry, ...]:
    """
    Return all chips with known metrics, oldest first.

    Args:
        source: The library to ask, or None for the installed library.
    """
    library = source or load()
    of_chip = {chip: pair for pair, chips in CAPABILITIES.items() for chip in chips}
    return tuple(
        ChipEntry(
            name=chip,
            capability=of_chip.get(chip),
            counter_count=len(metrics.names(MetricType.COUNTER)),
            ratio_count=len(metrics.names(MetricType.RATIO)),
            throughput_count=len(metrics.names(MetricType.THROUGHPUT)),
        )
        for chip in library.chips()
        for metrics in (evaluator(chip, library),)
    )


def chip_measured(
    query: DeviceQuery, device: str | None, environment: Mapping[str, str]
) -> str | None:
    """
    Return the chip of the GPU that runs the tests, or None without a GPU.

    Args:
        query: The GPUs of this machine.

        device: The value of --gpuperf-device, or None if not given.

        environment: The environment variables of this process.

    Raises:
        ConfigError: There is no such GPU, or the GPU or its chip is ambiguous.
    """
    chosen = choose_device(query, device, environment).device
    if chosen is None:
        return None
    if device is None and not order_is_known(query.devices, environment):
        remedy = f"{ORDER_REMEDY}, or name the chip: --gpuperf-chip=GH100"
        raise ConfigError(UNORDERED, remedy=remedy)
    # A MIG instance has the chip of its GPU.
    devices = (chosen, *(gpu for gpu in query.devices if gpu.index == chosen.index))
    capable = [gpu for gpu in devices if gpu.compute_capability is not None]
    if not capable:
        message = f"NVML does not report the compute capability of GPU {chosen.index}"
        raise ConfigError(message, remedy="name its chip: --gpuperf-chip=GH100")
    return chip_here(capable)


def chip_named(text: str, source: Library | None = None) -> str:
    """
    Return a chip by name, in upper or lower case, or by compute capability.

    Args:
        text: `GH100`, `gh100`, or `sm_90` if all chips of that capability have the same
            metrics.

        source: The library to ask, or None for the installed library.

    Raises:
        ConfigError: There is no such chip, or there are several that differ.
    """
    library = source or load()
    chips = library.chips()
    folded = text.strip().casefold()
    chip = {name.casefold(): name for name in chips}.get(folded)
    if chip is not None:
        return chip
    capability = target_capability(folded)
    if capability is None:
        close = difflib.get_close_matches(text.upper(), chips, n=_SUGGESTED)
        suggestion = f"did you mean {', '.join(close)}; " if close else ""
        message = f"{text!r} is not a chip that the installed libnvperf_host knows"
        remedy = (
            f"{suggestion}write a name that gpuperf metrics chips prints, or a compute "
            "capability, as sm_90"
        )
        raise ConfigError(message, remedy=remedy)
    return chip_of_capability(capability, library)


def chip_here(devices: Sequence[Device] | None = None) -> str | None:
    """
    Return the chip of the first GPU of the machine, or None without a GPU.

    Args:
        devices: The GPUs, or None to ask NVML.

    Raises:
        ConfigError: The GPU's compute capability stands for no chip, or for several.
    """
    gpus = query_devices().devices if devices is None else devices
    capability = gpus[0].compute_capability if gpus else None
    return None if capability is None else chip_of_capability(capability)


def chip_of_capability(
    capability: tuple[int, int], source: Library | None = None
) -> str:
    """
    Return the chip that stands for a compute capability.

    Args:
        capability: Major and minor number.

        source: The library to ask, or None for the installed library.

    Raises:
        ConfigError: No chip has the capability, or several chips with different metrics do.
    """
    library = source or load()
    chips = [c for c in CAPABILITIES.get(capability, ()) if c in library.chips()]
    target = f"sm_{capability[0]}{capability[1]}"
    if not chips:
        message = f"the installed libnvperf_host knows no chip of {target}"
        raise ConfigError(message, remedy="name one that gpuperf metrics chips prints")
    evaluators = [evaluator(chip, library) for chip in chips]
    if any(len({e.names(kind) for e in evaluators}) > 1 for kind in MetricType):
        message = f"the chips of {target} do not have the same metrics"
        raise ConfigError(message, remedy=f"name one: {', '.join(chips)}")
    return chips[0]


# A frame is drawn and a region is declared. A kernel has neither, and CUPTI does not list
# these endings.
_NOT_OF_KERNELS = ("_frame", "_region")
# Indexed by MetricType.
_DEFAULT_ENDING = (".sum", ".ratio", ".avg.pct_of_peak_sustained_elapsed")


class MetricType(IntEnum):
    """The kind of number of a metric, with the numbers of NVIDIA's libraries."""

    COUNTER = 0
    RATIO = 1
    THROUGHPUT = 2


class Properties(Frozen, frozen=True, kw_only=True):
    """
    The library's description of a metric.

    Attributes:
        base: The name without an ending.

        kind: The kind of number.

        description: A phrase in NVIDIA's words.

        hardware_unit: The part of the chip that counts, as `dram`.

        unit: The unit of the metric with this ending, as `byte/second`, or "" without a
        unit.

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
    Return the evaluator of a chip's metrics. Evaluators are cached for the process.

    Args:
        chip: The chip in the spelling of the library, as `GH100`.

        library: The library, or None to use `load`.

    Raises:
        ConfigError: The library does not know the chip.

        CollectorUnavailableError: There is no library.
    """
    return Evaluator(library or load(), chip)


class Evaluator:
    """
    The metrics of a chip: names, endings, properties and passes.

    Args:
        library: The library.

        chip: The chip in the spelling of the library.
    """

    def __init__(self, library: Library, chip: str) -> None:
        self._library = library
        self._chip = chip.encode()
        status, size = library.ask(
            f"{CUDA_EVALUATOR}CalculateScratchBufferSize", pChipName=self._chip
        )
        if status in {UNSUPPORTED_GPU, INVALID_ARGUMENT}:
            message = f"{chip!r} is not a chip that {library.path} knows"
            remedy = f"name one of {', '.join(library.chips())}"
            raise ConfigError(message, remedy=remedy)
        # The library uses this memory as long as the evaluator is in use.
        self._scratch = ctypes.create_string_buffer(size.scratchBufferSize)
        self._handle = library.call(
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
        """Return the endings of metrics of a kind, as `.sum.per_second`."""
        answer = self._call("GetSupportedSubmetrics", metricType=kind)
        numbers = answer.pSupportedSubmetrics[: answer.numSupportedSubmetrics]
        parts = [
            f".{part}" if part else ""
            for part in (SUBMETRICS[number] for number in numbers)
            if not any(word in part for word in _NOT_OF_KERNELS)
        ]
        if kind is MetricType.RATIO:
            return tuple(parts)
        return tuple(f".{rollup}{part}" for rollup in ROLLUPS for part in parts)

    def accepts(self, name: str) -> bool:
        """Return True if a name with an ending is a metric of the chip."""
        return self._request(name) is not None

    def kind(self, name: str) -> MetricType | None:
        """Return the kind of a metric, with or without an ending, or None if unknown."""
        place = self._place(name)
        return place and place[0]

    def base(self, name: str) -> str | None:
        """Return a metric without ending, even if the ending is wrong, or None if unknown."""
        place = self._place(name)
        return None if place is None else self.names(place[0])[place[1]]

    def properties(self, name: str) -> Properties:
        """
        Return the properties of a metric.

        Args:
            name: The name of the metric, with or without an ending.

        Raises:
            UnknownMetricError: The chip has no such metric, or not with this ending.
        """
        place = self._place(name)
        if place is None:
            raise self._unknown(name)
        kind, index = place
        base = self.names(kind)[index]
        request = self._request(name)
        if request is None:
            if name != base:
                raise self._unknown(name)
            request = self._request(base + _DEFAULT_ENDING[kind])
        answer = self._call(f"Get{_PROPERTIES[kind]}Properties", index=index)
        hardware = self._call("HwUnitToString", hwUnit=answer.hwUnit & 0xFFFFFFFF)
        made_of: tuple[str, ...] = ()
        if kind is MetricType.THROUGHPUT:
            counters = self.names(MetricType.COUNTER)
            throughputs = self.names(MetricType.THROUGHPUT)
            inner = answer.pSubThroughputIndices[: answer.numSubThroughputs]
            made_of = (
                *(counters[n] for n in answer.pCounterIndices[: answer.numCounters]),
                *(throughputs[n] for n in inner),
            )
        return Properties(
            base=base,
            kind=kind,
            description=(answer.pDescription or b"").decode(),
            hardware_unit=(hardware.pHwUnitName or b"").decode(),
            unit=self._unit(request) if request is not None else "",
            made_of=made_of,
        )

    def passes(self, names: Sequence[str]) -> int:
        """
        Return the number of passes in which a kernel gives all metrics together, >= 0.

        Raises:
            UnknownMetricError: The chip lacks one of the metrics.

            CollectError: One of the metrics is not available for a kernel.
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
        """Return the image that makes a device count the metrics. Raises the errors of `passes`."""
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

    def _call(self, function: str, **fields: Any) -> Any:  # noqa: ANN401 - see `Library.ask`
        name = f"{EVALUATOR}{function}"
        return self._library.call(name, pMetricsEvaluator=self._handle, **fields)

    def _place(self, name: str) -> tuple[MetricType, int] | None:
        status, answer = self._library.ask(
            f"{EVALUATOR}GetMetricTypeAndIndex",
            pMetricsEvaluator=self._handle,
            pMetricName=name.encode(),
        )
        return None if status else (MetricType(answer.metricType), answer.metricIndex)

    def _request(self, name: str) -> EvalRequest | None:
        request = EvalRequest()
        status, _ = self._library.ask(
            f"{EVALUATOR}ConvertMetricNameToMetricEvalRequest",
            pMetricsEvaluator=self._handle,
            pMetricName=name.encode(),
            pMetricEvalRequest=ctypes.pointer(request),
            metricEvalRequestStructSize=_REQUEST_BYTES,
        )
        return None if status else request

    def _unknown(self, name: str) -> UnknownMetricError:
        chip = self._chip.decode()
        remedy = f"look for it: gpuperf metrics search --chip={chip} WORD"
        return UnknownMetricError(name, remedy=remedy)

    def _unit(self, request: EvalRequest) -> str:
        """Return a metric's unit, as `instruction/gpc_cycle`, or "" without a unit."""
        fields = {
            "pMetricEvalRequest": ctypes.pointer(request),
            "metricEvalRequestStructSize": _REQUEST_BYTES,
            "dimUnitFactorStructSize": _FACTOR_BYTES,
        }
        count = self._call("GetMetricDimUnits", **fields).numDimUnits
        factors = (DimUnitFactor * count)()
        self._call("GetMetricDimUnits", pDimUnits=factors, numDimUnits=count, **fields)
        above = [self._power(factor) for factor in factors if factor.exponent > 0]
        below = [self._power(factor) for factor in factors if factor.exponent < 0]
        text = "/".join(["*".join(above) or "1", *below]) if above or below else ""
        return "" if text == "unitless" else text

    def _power(self, factor: DimUnitFactor) -> str:
        answer = self._call("DimUnitToString", dimUnit=factor.dimUnit)
        power = abs(factor.exponent)
        name: str = answer.pSingularName.decode()
        return f"{name}^{power}" if power > 1 else name

    def _raw_requests(self, name: str) -> ctypes.Array[RawMetricRequest]:
        """Return requests for the hardware counters of a metric. The counter names are hashes."""
        request = self._request(name)
        if request is None:
            raise self._unknown(name)
        fields = {
            "pMetricEvalRequests": ctypes.pointer(request),
            "numMetricEvalRequests": 1,
            "metricEvalRequestStructSize": _REQUEST_BYTES,
            "metricEvalRequestStrideSize": ctypes.sizeof(EvalRequest),
        }
        sizes = self._call("GetMetricRawDependencies", **fields)
        required = (ctypes.c_char_p * sizes.numRawDependencies)()
        optional = (ctypes.c_char_p * sizes.numOptionalRawDependencies)()
        self._call(
            "GetMetricRawDependencies",
            ppRawDependencies=required,
            numRawDependencies=len(required),
            ppOptionalRawDependencies=optional,
            numOptionalRawDependencies=len(optional),
            **fields,
        )
        requests = (
            RawMetricRequest(
                structSize=_RAW_BYTES, pMetricName=raw, isolated=1, keepInstances=1
            )
            for raw in required
        )
        return (RawMetricRequest * len(required))(*requests)

    @contextlib.contextmanager
    def _scheduled(self, names: Sequence[str]) -> Iterator[Any]:
        requests_by_metric = [self._raw_requests(name) for name in names]
        call = self._library.call
        config = call(
            CREATE_CONFIG, activityKind=ACTIVITY_PROFILER, pChipName=self._chip
        ).pRawMetricsConfig
        try:
            call(f"{RAW_CONFIG}BeginPassGroup", pRawMetricsConfig=config)
            # One call for each metric, as in CUPTI. With one call for all metrics, one list
            # in twenty has a pass more or less than in CUPTI.

            for requests in filter(len, requests_by_metric):
                call(
                    f"{RAW_CONFIG}AddMetrics",
                    pRawMetricsConfig=config,
                    pRawMetricRequests=requests,
                    numMetricRequests=len(requests),
                )
            call(f"{RAW_CONFIG}EndPassGroup", pRawMetricsConfig=config)
            yield config
        finally:
            call(f"{RAW_CONFIG}Destroy", pRawMetricsConfig=config)


_PROPERTIES = ("Counter", "RatioMetric", "ThroughputMetric")  # Indexed by MetricType.
_REQUEST_BYTES = struct_size(EvalRequest)
_FACTOR_BYTES = struct_size(DimUnitFactor)
_RAW_BYTES = struct_size(RawMetricRequest)
