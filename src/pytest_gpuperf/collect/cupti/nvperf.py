"""libnvperf_host: its binary interface, and names and passes of counters with no GPU.

Structures and numbers are those of nvperf_host.h, nvperf_cuda_host.h and nvperf_target.h,
which the wheel nvidia-cuda-cupti ships. A structure's size is where its last field ends,
without the padding behind it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    ConfigError,
    UnknownMetricError,
)
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    pass

__all__ = [
    "ACTIVITY_PROFILER",
    "CALLS",
    "CREATE_CONFIG",
    "CUDA_EVALUATOR",
    "EVALUATOR",
    "INVALID_ARGUMENT",
    "LIBRARY_VARIABLE",
    "RAW_CONFIG",
    "ROLLUPS",
    "SIZES",
    "SUBMETRICS",
    "UNSUPPORTED_GPU",
    "DimUnitFactor",
    "EvalRequest",
    "Evaluator",
    "Library",
    "MetricType",
    "Properties",
    "RawMetricRequest",
    "evaluator",
    "find_libraries",
    "load",
    "struct_size",
]

LIBRARY_VARIABLE = "GPUPERF_NVPERF_HOST"  # a library to take instead of all others
_NAME = "libnvperf_host.so"
_REMEDY = "pip install 'pytest-gpuperf[cupti]', which brings it"
_LACKING = frozenset({3, 4, 5, 6, 7})  # this library cannot; another version might

_FUNCTION_NOT_FOUND = 5  # NVPA_Status, nvperf_common.h
INVALID_ARGUMENT = 8
UNSUPPORTED_GPU = 14
_STATUS = {  # the same; those that a host library can answer
    1: "ERROR",
    2: "INTERNAL_ERROR",
    3: "NOT_INITIALIZED",
    4: "NOT_LOADED",
    _FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    6: "NOT_SUPPORTED",
    7: "NOT_IMPLEMENTED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    10: "DRIVER_NOT_LOADED",
    11: "OUT_OF_MEMORY",
    UNSUPPORTED_GPU: "UNSUPPORTED_GPU",
    15: "INSUFFICIENT_DRIVER_VERSION",
    17: "INSUFFICIENT_PRIVILEGE",
    20: "RESOURCE_UNAVAILABLE",
    22: "INSUFFICIENT_SPACE",
}

ROLLUPS = ("avg", "max", "min", "sum")  # NVPW_RollupOp
SUBMETRICS = (  # NVPW_Submetric
    "",
    "peak_sustained",
    "peak_sustained_active",
    "peak_sustained_active.per_second",
    "peak_sustained_elapsed",
    "peak_sustained_elapsed.per_second",
    "peak_sustained_frame",
    "peak_sustained_frame.per_second",
    "peak_sustained_region",
    "peak_sustained_region.per_second",
    "per_cycle_active",
    "per_cycle_elapsed",
    "per_cycle_in_frame",
    "per_cycle_in_region",
    "per_second",
    "pct_of_peak_sustained_active",
    "pct_of_peak_sustained_elapsed",
    "pct_of_peak_sustained_frame",
    "pct_of_peak_sustained_region",
    "max_rate",
    "pct",
    "ratio",
)
ACTIVITY_PROFILER = 1  # NVPA_ACTIVITY_KIND_PROFILER, nvperf_common.h


class _Parameters(ctypes.Structure):
    """How every call begins: its size, and a pointer that stays NULL."""

    _fields_: ClassVar = [("structSize", c_size_t), ("pPriv", c_void_p)]


def _parameters(*fields: tuple[str, Any]) -> type[_Parameters]:
    """Return the parameters of a call."""
    return type("_Call", (_Parameters,), {"_fields_": list(fields)})


def struct_size(structure: type[ctypes.Structure]) -> int:
    """Return a structure's size as the headers count it: to the end of its last field."""
    every = [
        name
        for each in structure.__mro__
        for name, *_ in vars(each).get("_fields_", ())
    ]
    ends = (getattr(structure, name) for name in every)
    return max(int(end.offset + end.size) for end in ends)


class EvalRequest(ctypes.Structure):
    """NVPW_MetricEvalRequest."""

    _fields_: ClassVar = [
        ("metricIndex", c_size_t),
        ("metricType", c_uint8),
        ("rollupOp", c_uint8),
        ("submetric", ctypes.c_uint16),
    ]


class DimUnitFactor(ctypes.Structure):
    """NVPW_DimUnitFactor."""

    _fields_: ClassVar = [("dimUnit", c_uint32), ("exponent", ctypes.c_int8)]


class RawMetricRequest(_Parameters):
    """NVPA_RawMetricRequest."""

    _fields_: ClassVar = [
        ("pMetricName", c_char_p),
        ("isolated", c_uint8),
        ("keepInstances", c_uint8),
    ]


EVALUATOR = "NVPW_MetricsEvaluator_"
CUDA_EVALUATOR = "NVPW_CUDA_MetricsEvaluator_"
RAW_CONFIG = "NVPW_RawMetricsConfig_"
CREATE_CONFIG = "NVPW_CUDA_RawMetricsConfig_Create_V2"

_ME = ("pMetricsEvaluator", c_void_p)
_CONFIG = ("pRawMetricsConfig", c_void_p)
_CHIP = ("pChipName", c_char_p)
_AVAILABLE = ("pCounterAvailabilityImage", c_void_p)
_REQUESTS = ("pMetricEvalRequests", POINTER(EvalRequest))
_INDEX = ("index", c_size_t)
_SAID = ("pDescription", c_char_p)
CALLS = {  # function: the fields of its parameters, in the headers' order
    "NVPW_InitializeHost": _parameters(),
    "NVPW_GetSupportedChipNames": _parameters(
        ("ppChipNames", POINTER(c_char_p)), ("numChipNames", c_size_t)
    ),
    "NVPW_Config_GetNumPasses_V2": _parameters(
        ("pConfig", c_void_p), ("numPasses", c_size_t)
    ),
    f"{CUDA_EVALUATOR}CalculateScratchBufferSize": _parameters(
        _CHIP, _AVAILABLE, ("scratchBufferSize", c_size_t)
    ),
    f"{CUDA_EVALUATOR}Initialize": _parameters(
        ("pScratchBuffer", c_void_p),
        ("scratchBufferSize", c_size_t),
        _CHIP,
        _AVAILABLE,
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        _ME,
    ),
    f"{EVALUATOR}GetMetricNames": _parameters(
        _ME,
        ("metricType", c_uint8),
        ("pMetricNames", c_void_p),
        ("pMetricNameBeginIndices", POINTER(c_size_t)),
        ("numMetrics", c_size_t),
    ),
    f"{EVALUATOR}GetMetricTypeAndIndex": _parameters(
        _ME,
        ("pMetricName", c_char_p),
        ("metricType", c_uint8),
        ("metricIndex", c_size_t),
    ),
    f"{EVALUATOR}ConvertMetricNameToMetricEvalRequest": _parameters(
        _ME,
        ("pMetricName", c_char_p),
        ("pMetricEvalRequest", POINTER(EvalRequest)),
        ("metricEvalRequestStructSize", c_size_t),
    ),
    f"{EVALUATOR}HwUnitToString": _parameters(
        _ME, ("hwUnit", c_uint32), ("pHwUnitName", c_char_p)
    ),
    f"{EVALUATOR}GetCounterProperties": _parameters(
        _ME, _INDEX, _SAID, ("hwUnit", c_uint32)
    ),
    f"{EVALUATOR}GetRatioMetricProperties": _parameters(
        _ME, _INDEX, _SAID, ("hwUnit", ctypes.c_uint64)
    ),
    f"{EVALUATOR}GetThroughputMetricProperties": _parameters(
        _ME,
        _INDEX,
        _SAID,
        ("hwUnit", c_uint32),
        ("numCounters", c_size_t),
        ("pCounterIndices", POINTER(c_size_t)),
        ("numSubThroughputs", c_size_t),
        ("pSubThroughputIndices", POINTER(c_size_t)),
    ),
    f"{EVALUATOR}GetSupportedSubmetrics": _parameters(
        _ME,
        ("metricType", c_uint8),
        ("pSupportedSubmetrics", POINTER(ctypes.c_uint16)),
        ("numSupportedSubmetrics", c_size_t),
    ),
    f"{EVALUATOR}GetMetricRawDependencies": _parameters(
        _ME,
        _REQUESTS,
        ("numMetricEvalRequests", c_size_t),
        ("metricEvalRequestStructSize", c_size_t),
        ("metricEvalRequestStrideSize", c_size_t),
        ("ppRawDependencies", POINTER(c_char_p)),
        ("numRawDependencies", c_size_t),
        ("ppOptionalRawDependencies", POINTER(c_char_p)),
        ("numOptionalRawDependencies", c_size_t),
    ),
    f"{EVALUATOR}DimUnitToString": _parameters(
        _ME,
        ("dimUnit", c_uint32),
        ("pSingularName", c_char_p),
        ("pPluralName", c_char_p),
    ),
    f"{EVALUATOR}GetMetricDimUnits": _parameters(
        _ME,
        ("pMetricEvalRequest", POINTER(EvalRequest)),
        ("metricEvalRequestStructSize", c_size_t),
        ("pDimUnits", POINTER(DimUnitFactor)),
        ("numDimUnits", c_size_t),
        ("dimUnitFactorStructSize", c_size_t),
    ),
    CREATE_CONFIG: _parameters(("activityKind", c_int), _CHIP, _AVAILABLE, _CONFIG),
    f"{RAW_CONFIG}Destroy": _parameters(_CONFIG),
    f"{RAW_CONFIG}BeginPassGroup": _parameters(_CONFIG, ("maxPassCount", c_size_t)),
    f"{RAW_CONFIG}AddMetrics": _parameters(
        _CONFIG,
        ("pRawMetricRequests", POINTER(RawMetricRequest)),
        ("numMetricRequests", c_size_t),
    ),
    f"{RAW_CONFIG}EndPassGroup": _parameters(_CONFIG),
    f"{RAW_CONFIG}GetNumPasses_V2": _parameters(_CONFIG, ("numPasses", c_size_t)),
    f"{RAW_CONFIG}GenerateConfigImage": _parameters(
        _CONFIG, ("mergeAllPassGroups", c_uint8)
    ),
    f"{RAW_CONFIG}GetConfigImage": _parameters(
        _CONFIG,
        ("bytesAllocated", c_size_t),
        ("pBuffer", c_void_p),
        ("bytesCopied", c_size_t),
    ),
}
SIZES = {function: struct_size(parameters) for function, parameters in CALLS.items()}


def find_libraries() -> Iterator[str]:
    """
    Yield where a libnvperf_host lies, the best first.

    The wheels come before the toolkits: they are what a project has pinned.
    """
    for package, pattern in (
        ("nvidia", f"cu*/lib/{_NAME}"),
        ("nvidia", f"cuda_cupti/lib/{_NAME}"),
        ("ncu_report", _NAME),
    ):
        for folder in _folders(package):
            yield from _newest_first(Path(folder), pattern)
    yield from _newest_first(Path("/usr/local"), f"cuda*/extras/CUPTI/lib64/{_NAME}")
    yield from _newest_first(Path("/opt/nvidia/nsight-compute"), f"*/host/*/{_NAME}")


def _folders(package: str) -> Sequence[str]:
    """Return the folders of a package, which is not imported; none: it is not there."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # it was made in this process, and lies nowhere
        return ()
    return (spec and spec.submodule_search_locations) or ()


def _newest_first(folder: Path, pattern: str) -> list[str]:
    """Return the files of a pattern, those of higher versions first."""
    return sorted(map(str, folder.glob(pattern)), reverse=True)


@functools.cache
def load() -> Library:
    """
    Return what $GPUPERF_NVPERF_HOST names, else the first that loads: once in a process.

    Raises:
        CollectorUnavailableError: There is none that loads, or none where it is named.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        try:
            return Library(named)
        except CollectError as error:
            installed = next(find_libraries(), None)
            other = f"take {installed}" if installed else _REMEDY
            message = f"{LIBRARY_VARIABLE} is {named}: {error.message}"
            remedy = f"set it to the path of a {_NAME}, or unset it and {other}"
            raise CollectorUnavailableError(message, remedy=remedy) from error
    reasons: list[str] = []
    for found in find_libraries():
        try:
            return Library(found)
        except CollectError as error:
            reasons.append(error.message)
    message = "; ".join(reasons) or f"{_NAME} is not installed: no chip can be asked"
    raise CollectorUnavailableError(message, remedy=_REMEDY)


class Library:
    """
    A loaded libnvperf_host.

    Attributes:
        path: The file that was loaded.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            message = f"{_NAME} does not load ({error})"
            raise CollectorUnavailableError(message, remedy=_REMEDY) from error
        self.call("NVPW_InitializeHost")

    def ask(self, function: str, **given: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of the library.

        Args:
            function: Its name.

            **given: Fields of its parameters, by the headers' names.

        Returns:
            Its status and its parameters, filled.
        """
        parameters = CALLS[function](SIZES[function], None, **given)
        try:
            called = getattr(self._library, function)
        except AttributeError:
            return _FUNCTION_NOT_FOUND, parameters
        return called(ctypes.byref(parameters)), parameters

    def call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see above
        """
        Call a function that must not fail; the arguments are those of `ask`.

        Raises:
            CollectorUnavailableError: This version of the library cannot.

            CollectError: It could, and did not.
        """
        status, parameters = self.ask(function, **given)
        if status:
            said = _STATUS.get(status, "a status that its headers do not name")
            message = f"{function} of {self.path} answers {status} ({said})"
            if status in _LACKING:
                raise CollectorUnavailableError(message, remedy=_REMEDY)
            raise CollectError(message, remedy="ask for less, or try another version")
        return parameters

    def chips(self) -> tuple[str, ...]:
        """Return the chips that this version knows, as `GH100`, oldest first."""
        answer = self.call("NVPW_GetSupportedChipNames")
        return tuple(
            answer.ppChipNames[place].decode() for place in range(answer.numChipNames)
        )

    def passes_of(self, image: bytes) -> int:
        """Return how many passes a configuration image asks for, >= 0."""
        buffer = ctypes.create_string_buffer(image, len(image))
        answer = self.call(
            "NVPW_Config_GetNumPasses_V2", pConfig=ctypes.addressof(buffer)
        )
        return int(answer.numPasses)


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
            message = f"{chip!r} is not a chip that {library.path} knows"
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
