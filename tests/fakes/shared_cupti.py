"""CUPTI 13.5 on a scripted device, with several subscribers, and a torch whose profiler is one.

NVIDIA's rules, by cupti_callbacks.h and cupti_activity.h of 13.5 and by what users of it
report: several subscribers are admitted if all allow it and the driver does; each has
records, labels and buffers of its own; a process that has used one family of functions is
refused the other with 14, for good. No GPU has been asked.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from fakes.binaries import elf
from fakes.cupti import FakeCupti

_ALLOW = 32  # of CUpti_SubscriberParams: where allowMultipleSubscribers lies
INVALID_PARAMETER, HELD, MIXED = 1, 39, 14
_CALLS = (
    *("activity_disable", "activity_enable", "activity_enable_driver_api"),
    *("activity_enable_runtime_api", "activity_get_num_dropped_records"),
    *("activity_pop_external_correlation_id", "activity_register_callbacks"),
    *("activity_push_external_correlation_id", "get_timestamp"),
)


class SharedCupti:
    """
    The functions of `cupti.cupti` 13.5.

    Args:
        real: The installed module, whose classes are filled.

        new_driver: Whether the driver is 610 or later, which admits several subscribers.

        lacking: The functions that the loaded libcupti lacks, by a part of their names.

        knows_several: Whether it knows the parameters of several subscribers.

    Attributes:
        families: The families of functions that the process has used.

        subscribers: The double of each subscriber's own records, by its handle.
    """

    def __init__(
        self,
        real: ModuleType,
        *,
        new_driver: bool = True,
        lacking: str | None = None,
        knows_several: bool = True,
    ) -> None:
        self.cuptiError = real.cuptiError
        self.SubscriberParams = real.SubscriberParams
        self.driver_api_trace_cbid = real.driver_api_trace_cbid
        self.runtime_api_trace_cbid = real.runtime_api_trace_cbid
        self.families: set[str] = set()
        self.subscribers: dict[int, FakeCupti] = {}
        self._real, self._new_driver = real, new_driver
        self._lacking, self._knows_several = lacking, knows_several
        self._alone = False
        self._handle = 100
        self._clock = FakeCupti(real)
        for name in _CALLS:
            setattr(self, name, self._of_process(name))
            setattr(self, f"{name}_v2", self._of_subscriber(name))

    def subscribe_v2(self, callback: object, userdata: object, address: int) -> int:
        """Subscribe; the byte at 32 says whether others may, too, if there is one."""
        size_bytes = ctypes.c_size_t.from_address(address).value
        is_longer = size_bytes > _ALLOW
        if is_longer and not self._knows_several:
            raise self.cuptiError(INVALID_PARAMETER)
        allows = is_longer and ctypes.c_uint8.from_address(address + _ALLOW).value == 1
        return self.admit(alone=not allows)

    def admit(self, *, alone: bool) -> int:
        """Admit a subscriber, or refuse it with 39."""
        if self.subscribers and (alone or self._alone):
            raise self.cuptiError(HELD)
        if not alone and not self._new_driver:
            raise self.cuptiError(HELD)
        self._alone = alone
        self._handle += 1
        self.subscribers[self._handle] = FakeCupti(self._real)
        self.subscribers[self._handle].now_ns = self._clock.now_ns
        return self._handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription."""
        del self.subscribers[handle]

    def activity_flush_all(self, flag: int) -> None:
        """Hand over the records of all subscribers."""
        for each in self.subscribers.values():
            each.activity_flush_all(flag)

    def use(self, family: str) -> None:
        """Use one family; 14 if the process has used the other."""
        if self.families - {family}:
            raise self.cuptiError(MIXED)
        self.families.add(family)

    # what the tested program does

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._all(lambda each: each.synchronize())

    def launch(self, name: str = "axpy", ns: int = 10_000) -> None:
        """Launch a kernel, which every subscriber sees."""
        self._all(lambda each: each.launch(name, ns))

    def _all(self, act: Callable[[FakeCupti], None]) -> None:
        begun_ns = self._clock.now_ns
        act(self._clock)
        for each in self.subscribers.values():
            each.now_ns = max(each.now_ns, begun_ns)
            act(each)
        ends = (each.now_ns for each in self.subscribers.values())
        self._clock.now_ns = max([self._clock.now_ns, *ends])

    def _of_process(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.use("process")
            (only,) = self.subscribers.values()
            return getattr(only, name)(*arguments)

        return call

    def _of_subscriber(self, name: str) -> Callable[..., Any]:
        def call(handle: int, *arguments: Any) -> Any:
            if self._lacking is not None and self._lacking in name:
                message = f"function {name}_v2 is not found"
                raise RuntimeError(message)
            self.use("subscriber")
            if name in {"activity_enable", "activity_disable"}:
                kind, config = arguments
                assert config == 0  # NULL
                arguments = (kind,)
            return getattr(self.subscribers[handle], name)(*arguments)

        return call


class FakeTorch(ModuleType):
    """
    A torch whose profiler subscribes to CUPTI at its first start, and never again.

    Args:
        cupti: The CUPTI of the process.

        folder: Where its library is written.

        several: Whether its library names the functions of a subscriber.

    Attributes:
        starts_count: Profiles that were begun.

        seen: The kernels of each profile.
    """

    def __init__(self, cupti: SharedCupti, folder: Path, *, several: bool) -> None:
        super().__init__("torch")
        self.__path__ = [str(folder)]
        self.profiler = self.autograd = self
        self.ProfilerActivity = SimpleNamespace(CUDA="cuda")
        self.starts_count = 0
        self.seen: list[list[str]] = []
        self._cupti, self._several = cupti, several
        self._handle: int | None = None
        self._is_profiler_enabled = False
        (folder / "lib").mkdir(parents=True)
        called = b"cuptiActivityEnable_v2" if several else b"cuptiActivityEnable"
        content = elf({".dynstr": b"\0cuptiSubscribe\0" + called + b"\0"})
        (folder / "lib" / "libtorch_cpu.so").write_bytes(content)

    @contextlib.contextmanager
    def profile(self, *, activities: list[str]) -> Iterator[None]:
        """
        Profile a block; without a subscription no kernel is seen, and nothing is said.

        A profile inside another one is refused, after it has taken the records of both.
        """
        assert activities == ["cuda"]
        if self._is_profiler_enabled:
            if self._handle is not None:
                self._cupti.subscribers[self._handle].enabled.clear()
            message = "Profiler is already enabled on this thread"
            raise RuntimeError(message)
        self._is_profiler_enabled = True
        records: list[Any] = []
        self.starts_count += 1
        if self.starts_count == 1:
            with contextlib.suppress(self._cupti.cuptiError):
                self._handle = self._cupti.admit(alone=not self._several)
        family = "subscriber" if self._several else "process"
        can_record = self._handle is not None
        if self._handle is not None:
            try:
                self._cupti.use(family)
            except self._cupti.cuptiError:
                can_record = False
            own = self._cupti.subscribers[self._handle]
            own.activity_register_callbacks(lambda: (1 << 20, 0), records.extend)
            if can_record:
                own.activity_enable(10)
        yield
        self._is_profiler_enabled = False
        if self._handle is not None:
            own = self._cupti.subscribers[self._handle]
            own.activity_flush_all(1)
            own.enabled.clear()
        self.seen.append([record.name for record in records])
