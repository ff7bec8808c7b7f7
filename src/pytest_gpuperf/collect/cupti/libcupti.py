"""libcupti in this process: found, loaded and called."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_gpuperf.collect.cupti import refusal
from pytest_gpuperf.collect.cupti.structs import (
    CALLS,
    CAUSES,
    LEAST_VERSION,
    RANGE_API,
    size_bytes,
)
from pytest_gpuperf.collect.loaded import LoadedLibrary
from pytest_gpuperf.collect.runtime import driver_library, raise_failure
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

__all__ = ["Context", "Libcupti", "find_libraries", "first_usable", "load"]

_NAMES = ("libcupti.so.13", "libcupti.so.12")  # as a loader knows them, newest first
_WINDOWS_NAME = "cupti64.dll"  # the real ones bear a date: on Windows none is found
_REMEDY = "pip install 'pytest-gpuperf[cupti]', which brings it"
_OF_CUDA = (
    10_000  # from 13.0 on a version is major, minor, update; before it was counted
)

_CLOCK_STATUS = "cuptiClockControlGetStatus"
_CLOCK_STATES = {  # CUpti_ClockControl_Status
    1: "unlocked",
    2: "locked",
    3: "locked to a floor",
    4: "boost enabled",
    5: "boost disabled",
}


class Context(Frozen, frozen=True, kw_only=True):
    """
    A CUDA context that is current in a thread.

    Attributes:
        handle: Its address.

        device: The ordinal of its device in this process.
    """

    handle: int
    device: int


def find_libraries() -> Iterator[Path]:
    """Yield where a libcupti lies, the best first: wheels come before toolkits."""
    with contextlib.suppress(ValueError):  # a package that was made in this process
        spec = importlib.util.find_spec("nvidia")
        for folder in (spec and spec.submodule_search_locations) or ():
            for package in ("cu13", "cuda_cupti"):
                for name in _NAMES:
                    yield from Path(folder).glob(f"{package}/lib/{name}")
    for toolkit in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        for name in _NAMES:
            yield from toolkit.glob(f"extras/CUPTI/lib64/{name}")
            yield from toolkit.glob(f"lib64/{name}")


@functools.cache
def load() -> Libcupti:
    """
    Return the libcupti of this process.

    One that is loaded already is taken, as torch has it: a second one would know only
    half of what is done.

    Raises:
        CollectorUnavailableError: There is none, or none that loads and is known.
    """
    for name in _NAMES:
        there = LoadedLibrary(name, windows_name=_WINDOWS_NAME)()
        if there is not None:
            return Libcupti(there, path=name)
    return first_usable(find_libraries())


def first_usable(paths: Iterable[Path]) -> Libcupti:
    """
    Return the first libcupti that loads, says its version, and is known.

    Raises:
        CollectorUnavailableError: There is none; what is wrong with each is said.
    """
    reasons = []
    for path in paths:
        try:
            return Libcupti(ctypes.CDLL(str(path)), path=str(path))
        except (OSError, CollectorUnavailableError) as error:
            reasons.append(f"{path}: {getattr(error, 'message', error)}")
    message = "; ".join(reasons) or "libcupti is not installed: nothing can be counted"
    raise CollectorUnavailableError(message, remedy=_REMEDY)


class Libcupti:
    """
    A loaded libcupti.

    Clocks are never locked from here: what others have done to them is asked for.

    *Unverified on hardware.*

    Args:
        library: Its functions, as ctypes has them.

        path: What was loaded, for messages.

        driver: Returns the CUDA driver library if it is loaded, None while it is not.

    Attributes:
        path: As it was given.

        version: Its API version, as 130400, or 26 of CUDA 12.8.

    Raises:
        CollectorUnavailableError: Its structures are older than those that are known, or
            it says nothing, as from 13.3 on without a driver.
    """

    def __init__(
        self,
        library: Any,  # noqa: ANN401 - a ctypes library has no type
        *,
        path: str,
        driver: Callable[[], Any | None] | None = None,
    ) -> None:
        self.path = path
        self._library = library
        self._driver = driver_library() if driver is None else driver
        version = ctypes.c_uint32()
        status = int(library.cuptiGetVersion(ctypes.byref(version)))
        if status:  # from 13.3 on it answers nothing without a driver
            raise refusal.failure("cuptiGetVersion", status)
        self.version = version.value
        if self.version < LEAST_VERSION:
            message = f"{path} is of API version {self.version}, before CUDA 12.8"
            raise CollectorUnavailableError(message, remedy=_REMEDY)

    @property
    def name(self) -> str:
        """Tool and version, as facts of counters have it: "cupti 13.4"."""
        major, rest = divmod(self.version, _OF_CUDA)
        return f"cupti {major}.{rest // 100}" if major else f"cupti API {self.version}"

    def ask(self, function: str, **given: Any) -> tuple[int, Any]:  # noqa: ANN401 - a structure's fields are of any type
        """
        Call a function of structs.CALLS.

        Args:
            function: Its name.

            **given: Fields of its parameters, by the headers' names.

        Returns:
            Its status and its parameters, filled.
        """
        size = size_bytes(function, self.version)
        parameters = CALLS[function](size, None, **given)
        called = getattr(self._library, function, None)
        if called is None:
            return refusal.NO_FUNCTION, parameters
        return int(called(ctypes.byref(parameters))), parameters

    def call(self, function: str, **given: Any) -> Any:  # noqa: ANN401 - see `ask`
        """
        Call a function that must not fail; the arguments are those of `ask`.

        Raises:
            CollectError: It did, for a reason that the error tells with a remedy.
        """
        status, parameters = self.ask(function, **given)
        if status:
            raise refusal.failure(function, status)
        return parameters

    def has_driver(self) -> bool:
        """Return whether somebody has loaded the CUDA driver."""
        return self._driver() is not None

    def context(self) -> Context:
        """
        Return the CUDA context of this thread.

        Raises:
            CollectorUnavailableError: It has none: nobody has used the GPU here.
        """
        driver = self._driver()
        handle, device = ctypes.c_void_p(), ctypes.c_int()
        if driver is not None:
            for function, found in (
                ("cuCtxGetCurrent", handle),
                ("cuCtxGetDevice", device),
            ):
                status = int(getattr(driver, function)(ctypes.byref(found)))
                if status:
                    raise_failure(driver, function, status)
                if handle.value is None:
                    break
        if handle.value is None:
            message = "this thread has no CUDA context, and counters are those of one"
            remedy = "use the GPU once before counting, in the same thread"
            raise CollectorUnavailableError(message, remedy=remedy)
        return Context(handle=handle.value, device=device.value)

    def chip(self, device: int) -> str:
        """Return the chip of a device, as `GH100`; the profiler is started first."""
        self.call("cuptiProfilerInitialize")
        said = self.call("cuptiDeviceGetChipName", deviceIndex=device)
        name: str = (said.pChipName or b"").decode()
        return name

    def require_support(self, device: int) -> tuple[Note, ...]:
        """
        See that a device can count.

        Whether this user may is not asked: that shows only when counting begins.

        Args:
            device: Its ordinal.

        Returns:
            A note where it gives a limited set of metrics.

        Raises:
            CollectorUnavailableError: It cannot; every cause is named.
        """
        self.call("cuptiProfilerInitialize")
        said = self.call("cuptiProfilerDeviceSupported", cuDevice=device, api=RANGE_API)
        # a cause that an older version does not know stays 0, which is UNKNOWN
        levels = {name: getattr(said, name) for name in ("isSupported", *CAUSES)}
        refused = refusal.unsupported(levels)
        if refused is not None:
            raise refused
        text = refusal.limited(levels)
        return () if text is None else (Note(code="limited-counters", text=text),)

    def clock_state(self, context: Context) -> str | None:
        """
        Return what was done to the clock of a context's device, as `locked`.

        Returns:
            None: this version or this system does not say.
        """
        asked = getattr(self._library, _CLOCK_STATUS, None)
        state = ctypes.c_int()
        if asked is None:
            return None
        asked(ctypes.c_void_p(context.handle), ctypes.byref(state))
        return _CLOCK_STATES.get(state.value)  # where it fails, the state stays 0
