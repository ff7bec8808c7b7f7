"""A double of libcupti's profiling calls, on the real structures, called by address."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gpuperf.collect.cupti.libcupti import CALLS, size_bytes

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_IMAGE_BYTES = 1 << 16  # room for what a test counts, as JSON
_KERNELS = 1  # CUpti_ProfilerRange
_SUPPORTED = 3

INVALID_PARAMETER, INVALID_OPERATION, INVALID_METRIC_NAME = 1, 7, 17

Numbers = Mapping[str, float]


class FakeCupti:
    """
    A libcupti whose GPU launches what a test tells it to.

    Each function is a C function pointer that takes the address of its parameters. One
    that is called out of order, or with the size of another version, answers as the real
    one does: 7, or 1.

    Attributes:
        units: Metric: its unit; all that the chip has.

        passes: In how many passes it counts what it is asked for.

        status_of: Function: what it answers instead of working.

        status_after: Function: what it answers when it has worked.

        support: Cause: its verdict; what is not in it is supported.

        clock: The states of the clock, one for each time it is asked for; then the last.

        replays: Whether it runs a kernel in every pass.

        calls: Functions in the order in which they were called.

        configured: What the last SetConfig got.

        enabled: What Enable got.

        sets: Single-pass set: its metrics, where the version has such sets.

        host_set: The set that the last host was made for; None: none.

        open_count: Objects that were made and not given back.
    """

    def __init__(
        self,
        units: Mapping[str, str] | None = None,
        *,
        version: int = 130500,
        passes: int = 1,
        chip: str = "GH100",
    ) -> None:
        self.units = dict(units or {"dram__bytes.sum": "byte"})
        self.passes: int | Callable[[tuple[str, ...]], int] = passes
        self.status_of: dict[str, int] = {}
        self.status_after: dict[str, int] = {}
        self.support: dict[str, int] = {}
        self.clock = [1]
        self.replays = True
        self.calls: list[str] = []
        self.configured: dict[str, int] = {}
        self.enabled: dict[str, int] = {}
        self.sets: dict[str, list[str]] = {}
        self.host_set: str | None = None
        self.open_count = 0
        self._version = version
        self._chip = chip.encode()
        self._kept: list[object] = []
        self._metrics: tuple[str, ...] = ()
        self._decoded: list[tuple[str, Numbers]] = []
        self._counting = False
        self._pushed: str | None = None
        self._inside: dict[str, float] = {}
        self._pass_index = 0
        self._max_ranges = 0
        self._dropped_count = 0

    def launch(self, numbers: Numbers) -> None:
        """Run a kernel on the GPU, of which these numbers would be counted."""
        if not self._counting:
            return
        if self.configured["range"] == _KERNELS:
            self._store(str(len(self._decoded)), dict(numbers))
        elif self._pushed is not None:
            for name, number in numbers.items():
                self._inside[name] = self._inside.get(name, 0.0) + number

    def __getattr__(self, function: str) -> Any:
        if function == "cuptiGetVersion":
            return self._get_version
        if function == "cuptiClockControlGetStatus" and self._version >= 130400:
            return self._clock_status
        handler = getattr(type(self), f"_{function}", None)
        if handler is None:
            raise AttributeError(function)

        def called(address: int) -> int:
            self.calls.append(function)
            parameters = CALLS[function].from_address(address)
            if parameters.structSize != size_bytes(function, self._version):
                return INVALID_PARAMETER
            if parameters.pPriv is not None:
                return INVALID_PARAMETER
            if function in self.status_of:
                return self.status_of[function]
            return handler(self, parameters) or self.status_after.get(function, 0)

        pointer = _CALL(called)
        self._kept.append(pointer)
        return pointer

    def _get_version(self, found: Any) -> int:
        status = self.status_of.get("cuptiGetVersion", 0)
        found._obj.value = 0 if status else self._version
        return status

    def _clock_status(self, context: ctypes.c_void_p, found: Any) -> int:
        self.calls.append("cuptiClockControlGetStatus")
        status = self.status_of.get("cuptiClockControlGetStatus", 0)
        if not status:
            found._obj.value = self.clock.pop(0) if self.clock[1:] else self.clock[0]
        return status

    def _text(self, text: bytes) -> bytes:
        self._kept.append(text)
        return text

    # ------------------------------------------------------------ device

    def _cuptiProfilerInitialize(self, p: Any) -> None: ...

    def _cuptiProfilerDeviceSupported(self, p: Any) -> None:
        names = [
            name for name, _ in type(p)._fields_ if name not in {"cuDevice", "api"}
        ]
        for name in names:
            if name != "sku" or self._version >= 130100:
                setattr(p, name, self.support.get(name, _SUPPORTED))

    def _cuptiDeviceGetChipName(self, p: Any) -> None:
        p.pChipName = self._text(self._chip)

    # -------------------------------------------------------------- host

    def _cuptiProfilerHostInitialize(self, p: Any) -> None:
        assert p.pChipName == self._chip
        p.pHostObject = 0x10
        name = p.pSinglePassMetricSetName
        self.host_set = None if name is None else name.decode()
        self.open_count += 1

    def _cuptiProfilerHostDeinitialize(self, p: Any) -> None:
        self.open_count -= 1

    def _cuptiProfilerHostGetSinglePassSets(self, p: Any) -> None:
        if p.ppSinglePassSets:
            for place, name in enumerate(self.sets):
                p.ppSinglePassSets[place] = self._text(name.encode())
        p.numOfSinglePassSets = len(self.sets)

    def _cuptiProfilerHostGetMetricsInSinglePassSet(self, p: Any) -> int:
        names = self.sets.get(p.pSinglePassSetName.decode())
        if names is None:
            return INVALID_PARAMETER
        text = b"".join(name.encode() + b"\0" for name in names)
        if p.pMetricsBuffer:
            ctypes.memmove(p.pMetricsBuffer, text, p.metricsBufferSize)
            place = 0
            for number, name in enumerate(names):
                p.pMetricsIndicesBuffer[number] = place
                place += len(name) + 1
        p.numOfMetricsInSinglePassSet, p.metricsBufferSize = len(names), len(text)
        return 0

    def _cuptiProfilerHostGetMetricProperties(self, p: Any) -> int:
        name = p.pMetricName.decode()
        bases = {each.partition(".")[0] for each in self.units}
        if name not in self.units and name not in bases:
            return INVALID_METRIC_NAME
        p.pDimUnit = self._text(self.units.get(name, "").encode())
        return 0

    def _cuptiProfilerHostConfigAddMetrics(self, p: Any) -> int:
        names = tuple(p.ppMetricNames[n].decode() for n in range(p.numMetrics))
        if not set(names) <= set(self.units):
            return INVALID_PARAMETER
        self._metrics = names
        return 0

    def _cuptiProfilerHostGetConfigImageSize(self, p: Any) -> None:
        p.configImageSize = len(self._config())

    def _cuptiProfilerHostGetConfigImage(self, p: Any) -> None:
        ctypes.memmove(p.pConfigImage, self._config(), p.configImageSize)

    def _cuptiProfilerHostGetNumOfPasses(self, p: Any) -> None:
        assert ctypes.string_at(p.pConfigImage, p.configImageSize) == self._config()
        p.numOfPasses = self._passes()

    def _cuptiProfilerHostEvaluateToGpuValues(self, p: Any) -> None:
        _, numbers = self._read(p)[p.rangeIndex]
        for place in range(p.numMetrics):
            name = p.ppMetricNames[place].decode()
            p.pMetricValues[place] = numbers.get(name, math.nan)

    def _config(self) -> bytes:
        return json.dumps(self._metrics).encode()

    def _passes(self) -> int:
        return (
            self.passes if isinstance(self.passes, int) else self.passes(self._metrics)
        )

    # ------------------------------------------------------------ ranges

    def _cuptiRangeProfilerEnable(self, p: Any) -> None:
        mode = p.cacheControlMode if self._version >= 130400 else 0
        self.enabled = {"ctx": p.ctx, "cacheControlMode": mode}
        p.pRangeProfilerObject = 0x20
        self.open_count += 1
        self._decoded, self._pushed = [], None
        self._pass_index = self._dropped_count = 0

    def _cuptiRangeProfilerDisable(self, p: Any) -> None:
        self._counting = False
        self.open_count -= 1

    def _cuptiRangeProfilerGetCounterDataSize(self, p: Any) -> int:
        if p.maxNumRangeTreeNodes < p.maxNumOfRanges:
            return INVALID_PARAMETER
        self._max_ranges = p.maxNumOfRanges
        p.counterDataSize = _IMAGE_BYTES
        return 0

    def _cuptiRangeProfilerCounterDataImageInitialize(self, p: Any) -> None:
        self._write(p.pCounterData, p.counterDataSize, [])

    def _cuptiRangeProfilerSetConfig(self, p: Any) -> int:
        assert ctypes.string_at(p.pConfig, p.configSize) == self._config()
        names = [name for name, _ in type(p)._fields_]
        self.configured = {name: getattr(p, name) for name in names}
        return 0 if (p.passIndex, self._pass_index) == (0, 0) else INVALID_PARAMETER

    def _cuptiRangeProfilerStart(self, p: Any) -> int:
        if not self.configured or self._counting:
            return INVALID_OPERATION
        self._counting = True
        return 0

    def _cuptiRangeProfilerStop(self, p: Any) -> int:
        if not self._counting or self._pushed is not None:
            return INVALID_OPERATION
        self._counting = False
        self._pass_index += 1
        p.passIndex = self._pass_index
        p.targetNestingLevel = 1
        replayed = self.configured["range"] == _KERNELS and self.replays
        p.isAllPassSubmitted = replayed or self._pass_index >= self._passes()
        return 0

    def _cuptiRangeProfilerPushRange(self, p: Any) -> int:
        if not self._counting:
            return INVALID_OPERATION
        self._pushed, self._inside = p.pRangeName.decode(), {}
        return 0

    def _cuptiRangeProfilerPopRange(self, p: Any) -> int:
        if self._pushed is None:
            return INVALID_OPERATION
        name, self._pushed = self._pushed, None
        turn = {  # each pass counts some of the metrics
            metric: self._inside[metric]
            for place, metric in enumerate(self._metrics)
            if metric in self._inside and place % self._passes() == self._pass_index
        }
        before = dict(self._decoded)
        if name in before:
            self._decoded[list(before).index(name)] = (name, {**before[name], **turn})
        else:
            self._store(name, turn)
        return 0

    def _cuptiRangeProfilerDecodeData(self, p: Any) -> None:
        address = self.configured["pCounterDataImage"]
        self._write(address, self.configured["counterDataImageSize"], self._decoded)
        p.numOfRangeDropped = self._dropped_count

    def _cuptiRangeProfilerGetCounterDataInfo(self, p: Any) -> None:
        p.numTotalRanges = len(self._read(p))

    def _cuptiRangeProfilerCounterDataGetRangeInfo(self, p: Any) -> None:
        assert p.rangeDelimiter == b"/"
        p.rangeName = self._text(self._read(p)[p.rangeIndex][0].encode())

    def _store(self, name: str, numbers: Numbers) -> None:
        if len(self._decoded) < self._max_ranges:
            self._decoded.append((name, numbers))
        else:
            self._dropped_count += 1

    def _write(self, address: int, size: int, rows: Any) -> None:
        content = json.dumps(rows).encode() + b"\0"
        assert len(content) <= size
        ctypes.memmove(address, content, len(content))

    def _read(self, p: Any) -> Any:
        assert p.counterDataImageSize == _IMAGE_BYTES
        return json.loads(ctypes.string_at(p.pCounterDataImage))
