"""One range profiler object of libcupti, call by call."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from pytest_gpuperf.collect.cupti.host import HostHalf
from pytest_gpuperf.collect.cupti.libcupti import Context, Libcupti
from pytest_gpuperf.collect.cupti.structs import RANGE, metric_names
from pytest_gpuperf.errors import CollectError, MeasureError

__all__ = ["RangeSession"]

_OUTERMOST = 1  # the level of ranges that is counted; those inside of others are not
_DELIMITER = b"/"  # between the names of nested ranges


class RangeSession:
    """
    A range profiler object, from its making to its end.

    *Unverified on hardware.*

    Args:
        library: The libcupti.

        host: What is counted.

        context: Whose work is counted.

        max_ranges: Room for so many ranges, >= 1.

        cache: structs.NO_CACHES or ALL_CACHES.

    Attributes:
        clock: What was done to the device's clock before; None: not known.

        image: What was counted, once it is decoded.

        names: Of the ranges of this run of the body, in order.
    """

    def __init__(
        self,
        library: Libcupti,
        host: HostHalf,
        context: Context,
        max_ranges: int,
        cache: int,
    ) -> None:
        self._library = library
        self._host = host
        self._max_ranges = max_ranges
        self.clock = library.clock_state(context)
        new = {"cacheControlMode": cache} if cache else {}  # 0 is what older ones do
        self._object = library.call(
            f"{RANGE}Enable", ctx=context.handle, **new
        ).pRangeProfilerObject
        self.image = ctypes.create_string_buffer(1)
        self.names: list[str] = []
        self._is_inside = False

    def make_room(self) -> None:
        """Set the memory aside into which ranges are decoded."""
        names = metric_names(self._host.metrics)
        size = self._call(
            "GetCounterDataSize",
            pMetricNames=names,
            numMetrics=len(names),
            maxNumOfRanges=self._max_ranges,
            maxNumRangeTreeNodes=self._max_ranges,
        ).counterDataSize
        self.image = ctypes.create_string_buffer(size)
        self._call(
            "CounterDataImageInitialize",
            counterDataSize=size,
            pCounterData=ctypes.addressof(self.image),
        )

    def configure(self, kind: int, replay: int) -> None:
        """Say what is counted; in this process, libcupti itself keeps the passes."""
        self._call(
            "SetConfig",
            configSize=len(self._host.image),
            pConfig=ctypes.addressof(self._host.image),
            counterDataImageSize=len(self.image),
            pCounterDataImage=ctypes.addressof(self.image),
            range=kind,
            replayMode=replay,
            maxRangesPerPass=self._max_ranges,
            numNestingLevels=_OUTERMOST,
            minNestingLevel=_OUTERMOST,
            passIndex=0,
            targetNestingLevel=_OUTERMOST,
        )

    def start(self) -> None:
        """Begin to count a run of the body."""
        self.names = []
        self._call("Start")

    def stop(self) -> bool:
        """End a run of the body; return whether it was the last one needed."""
        return bool(self._call("Stop").isAllPassSubmitted)

    @contextlib.contextmanager
    def ranged(self, name: str) -> Iterator[None]:
        """
        Count what runs inside as one range.

        Raises:
            MeasureError: It lies in another one, or one of this name ran before.
        """
        if self._is_inside or name in self.names:
            raise _ambiguous(name, is_inside=self._is_inside)
        self._call("PushRange", pRangeName=name.encode())
        self.names.append(name)
        self._is_inside = True
        try:
            yield
        except BaseException:  # which is not hidden by what the end of the range says
            with contextlib.suppress(CollectError):
                self._call("PopRange")
            raise
        finally:
            self._is_inside = False
        self._call("PopRange")

    def decode(self) -> int:
        """Fetch what the hardware has counted; return how many ranges were dropped."""
        return int(self._call("DecodeData").numOfRangeDropped)

    def ranges_count(self) -> int:
        """Return how many ranges were counted."""
        return int(self._image_call("GetCounterDataInfo").numTotalRanges)

    def name(self, index: int) -> str:
        """Return the name of a range."""
        said = self._image_call(
            "CounterDataGetRangeInfo", rangeIndex=index, rangeDelimiter=_DELIMITER
        )
        return (said.rangeName or str(index).encode()).decode()

    def disable(self) -> None:
        """End it."""
        self._call("Disable")

    def _call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        """Call a function of this object."""
        return self._library.call(
            f"{RANGE}{function}", pRangeProfilerObject=self._object, **given
        )

    def _image_call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see Libcupti.ask
        """Call a function about what was counted."""
        return self._library.call(
            f"{RANGE}{function}",
            pCounterDataImage=ctypes.addressof(self.image),
            counterDataImageSize=len(self.image),
            **given,
        )


def _ambiguous(name: str, *, is_inside: bool) -> MeasureError:
    """Return the error for a range that would not be counted by itself."""
    if is_inside:
        message = f"range {name!r} lies in another one, and only the outer is counted"
        return MeasureError(message, remedy="end the one before the other begins")
    message = f"range {name!r} was begun twice in one run of the body"
    return MeasureError(message, remedy="give each range a name of its own")
