"""A CUPTI whose device is scripted; its records and errors are cupti-python's own classes.

It keeps CUPTI's rules: one subscriber; records of what is enabled alone; a label belongs to
the thread that pushed it and stands before the work and the record of a call, in this
order; a runtime's call has one record, of the driver's inside it there is none; records
come at a flush, complete ones alone; lost ones are counted until they are asked for.
tests/gold/gpu/records.jsonl has what libcupti 13.0 handed over on an H200.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_KEPT: list[Any] = []  # cupti-python 13.0.1 complains when a record of ours is freed
_OLD_NAME, _OLD_SIZE = 16, 24  # of CUpti_SubscriberParams: where they lie
_SIZES = (32, 40)  # of it, without and with allowMultipleSubscribers
_RUNTIME, _DRIVER = 5, 4
_RESOURCES = 3  # CUPTI_CB_DOMAIN_RESOURCE
LAUNCH_KERNEL, GRAPH_LAUNCH, MEMCPY, MEMSET = 307, 514, 277, 216  # driver's calls
RUNTIME_LAUNCH, RUNTIME_MEMCPY, RUNTIME_MEMSET = 211, 41, 51


@functools.cache
def newest(module: ModuleType, stem: str) -> Any:
    """Return the newest class of a record that a version of cupti-python has."""
    found = {
        int(match[1] or 0): match[0]
        for match in (re.fullmatch(stem + r"(\d*)", name) for name in dir(module))
        if match
    }
    return getattr(module, found[max(found)])


class FakeCupti:
    """
    The functions of `cupti.cupti` that the collector calls.

    Args:
        real: The real module, whose classes are filled.

        older: Whether it is as cupti-python 12.8, which subscribes without a name. That
            of `real` is so in any case.

    Attributes:
        now_ns: The clock.

        holder: Who has the subscription; None: nobody.

        refused: Status by function, or by function and first argument.

        enabled: Kinds that are recorded.

        calls_disabled: Calls that are not recorded although their kind is.

        lead_ns: From a call's return to the start of its work.

        inner_calls: Whether a runtime's call has a record of the driver's inside it, with
            the same id; libcupti 13.0 has none.

        lost_count: Records to be lost at the next flush.

        threads: Labels of each thread, by kind.

        events: The events of resources that are enabled.

        log: Functions that were called, in order.
    """

    def __init__(self, real: ModuleType, *, older: bool = False) -> None:
        self.real = real
        self.cuptiError = real.cuptiError
        if not older and hasattr(real, "subscribe_v2"):
            self.SubscriberParams = real.SubscriberParams
            self.subscribe_v2 = self._subscribe_v2
        self.driver_api_trace_cbid = real.driver_api_trace_cbid
        self.runtime_api_trace_cbid = real.runtime_api_trace_cbid
        self.now_ns = 1_700_000_000_000_000_000
        self.holder: str | bytes | None = None
        self.refused: dict[object, int] = {}
        self.enabled: set[int] = set()
        self.calls_disabled: set[tuple[int, int]] = set()
        self.inner_calls = False
        self.lead_ns = 1_500
        self.lost_count = 0
        self.events: set[int] = set()
        self.callback: Any = None
        self.threads: dict[str, dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.log: list[str] = []
        self._thread = "main"
        self._correlation = 0
        self._free_ns: dict[int, int] = defaultdict(int)  # each stream's
        self._pending: list[tuple[int, Any]] = []
        self._lost_count = 0
        self._classes = {
            stem: newest(real, f"Activity{stem}")
            for stem in (
                *("API", "ExternalCorrelation", "Kernel", "Memcpy", "MemcpyPtoP"),
                *("Memset", "Synchronization", "Memory", "Jit", "Overhead"),
                *("GraphTrace", "Marker"),
            )
        }

    # what the collector calls

    def _subscribe_v2(self, callback: object, userdata: object, address: int) -> int:
        self._called("subscribe_v2")
        size = ctypes.c_size_t.from_address(address).value
        if size not in _SIZES:
            raise self.cuptiError(1)
        if self.holder is not None:
            target = ctypes.c_void_p.from_address(address + _OLD_NAME).value
            room = ctypes.c_size_t.from_address(address + _OLD_SIZE).value
            name = self.holder
            name = name.encode() if isinstance(name, str) else name
            text = name[: room - 1] + b"\0"
            assert target is not None
            ctypes.memmove(target, text, len(text))
            raise self.cuptiError(39)
        self.holder = "CUPTI for gpuperf"
        self.callback = callback
        return 77

    def subscribe(self, callback: object, userdata: object) -> int:
        """Subscribe as cupti-python 12.8 does, without a name."""
        self._called("subscribe")
        assert callable(callback)
        if self.holder is not None:
            raise self.cuptiError(39)
        self.holder = "unnamed"
        self.callback = callback
        return 77

    def unsubscribe(self, subscriber: int) -> None:
        self._called("unsubscribe")
        assert subscriber == 77
        self.holder = None
        self.callback = None
        self.events.clear()

    def enable_callback(
        self, enable: int, subscriber: int, domain: int, event: int
    ) -> None:
        """Enable an event of the domain of resources."""
        self._called("enable_callback")
        assert (enable, subscriber, domain) == (1, 77, _RESOURCES)
        self.events.add(event)

    def activity_register_callbacks(
        self, requested: Callable[[], object], completed: Callable[[list[Any]], None]
    ) -> None:
        self._called("activity_register_callbacks")
        self.requested, self.completed = requested, completed

    def activity_enable(self, kind: int) -> None:
        self._called("activity_enable", kind)
        self.enabled.add(kind)
        self.calls_disabled = {each for each in self.calls_disabled if each[0] != kind}

    def activity_disable(self, kind: int) -> None:
        self._called("activity_disable", kind)
        self.enabled.discard(kind)

    def activity_enable_driver_api(self, cbid: int, enable: int) -> None:
        self._called("activity_enable_driver_api", cbid)
        self._switch((_DRIVER, cbid), enable)

    def activity_enable_runtime_api(self, cbid: int, enable: int) -> None:
        self._called("activity_enable_runtime_api", cbid)
        self._switch((_RUNTIME, cbid), enable)

    def activity_push_external_correlation_id(self, kind: int, label: int) -> None:
        self._called("activity_push_external_correlation_id")
        self.threads[self._thread][kind].append(label)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        self._called("activity_pop_external_correlation_id")
        stack = self.threads[self._thread][kind]
        if not stack:
            raise self.cuptiError(18)  # CUPTI_ERROR_QUEUE_EMPTY
        return stack.pop()

    def get_timestamp(self) -> int:
        self._called("get_timestamp")
        self.now_ns += 1
        return self.now_ns

    def activity_flush_all(self, flag: int) -> None:
        self._called("activity_flush_all")
        ready = [r for end, r in self._pending if end <= self.now_ns or flag]
        self._pending = [p for p in self._pending if not (p[0] <= self.now_ns or flag)]
        kept = ready[self.lost_count :]
        self._lost_count += len(ready) - len(kept)
        self.lost_count = 0
        if kept:
            assert self.requested() == (1 << 20, 0)
            half = len(kept) // 2  # buffers end anywhere
            for batch in (kept[:half], kept[half:]):
                self.completed(batch)

    def activity_get_num_dropped_records(
        self, context: int, stream: int, address: int
    ) -> None:
        self._called("activity_get_num_dropped_records")
        ctypes.c_size_t.from_address(address).value = self._lost_count
        self._lost_count = 0

    # what the tested program does

    @contextlib.contextmanager
    def thread(self, name: str) -> Iterator[None]:
        """Let another thread act."""
        before, self._thread = self._thread, name
        try:
            yield
        finally:
            self._thread = before

    def advance(self, ns: int) -> None:
        """Let time pass on the host."""
        self.now_ns += ns

    def load(self, module_id: int, cubin: bytes | None, *, event: int = 6) -> None:
        """
        Load a module, or unload it (7).

        The binding gave its callback these arguments of a libcupti that was written for it
        (cupti-python 13.4); the code is at its address during the call only.
        """
        if self.callback is None or event not in self.events:
            return
        content = ctypes.create_string_buffer(cubin or b"", len(cubin or b"") + 1)
        address = 0 if cubin is None else ctypes.addressof(content)
        module = (ctypes.c_size_t * 3)(module_id, len(cubin or b""), address)
        resource = (ctypes.c_size_t * 3)(1, 2, ctypes.addressof(module))
        data = self.real.ResourceData.from_ptr(ctypes.addressof(resource))
        self.callback(None, _RESOURCES, event, data)
        ctypes.memset(content, 0, len(content))

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        start = self.now_ns
        self.now_ns = max([start, *self._free_ns.values()])
        self._record("Synchronization", 38, start, start=start, end=self.now_ns, type=4)

    def wait(self, kind: int) -> None:
        """Wait for an event (1), or a stream (3), or let a stream wait (2)."""
        now_ns = self.now_ns
        self._record("Synchronization", 38, now_ns, start=now_ns, end=now_ns, type=kind)

    def launch(
        self,
        name: str = "_Z4axpyPf",
        ns: int = 10_000,
        *,
        cbid: int = LAUNCH_KERNEL,
        runtime: bool = False,
        stream: int = 7,
        block: int = 128,
        registers: int = 32,
        nodes: int = 1,
        device: int = 0,
        timed: bool = True,
        call_seen: bool = True,
    ) -> None:
        """Launch a kernel, or a graph of `nodes` kernels in one call."""
        with self._call(cbid, runtime=runtime, seen=call_seen) as correlation:
            begun = end = 0
            for _ in range(nodes):
                start, end = self._queued(stream, ns)
                begun = begun or start
                self._record(
                    "Kernel",
                    10 if 51 not in self.enabled or nodes == 1 else -1,
                    end,
                    start=start if timed else 0,
                    end=end if timed else 0,
                    correlation_id=correlation,
                    stream_id=stream,
                    device_id=device,
                    grid_x=8,
                    grid_y=2,
                    grid_z=1,
                    block_x=block,
                    block_y=1,
                    block_z=1,
                    registers_per_thread=registers,
                    static_shared_memory=512,
                    dynamic_shared_memory=1024,
                    local_memory_per_thread=16,
                    graph_id=3 if nodes > 1 else 0,
                    name=name,
                )
            if nodes > 1:
                self._record(
                    *("GraphTrace", 51, end),
                    start=begun,
                    end=end,
                    correlation_id=correlation,
                    graph_id=3,
                )

    def copy(
        self,
        direction: int,
        size: int,
        *,
        source: int = 2,
        target: int = 3,
        ns: int = 1_000,
        count: int = 1,
        runtime: bool = False,
    ) -> None:
        """Copy; peers (10) have a record of their own."""
        cbid = RUNTIME_MEMCPY if runtime else MEMCPY
        with self._call(cbid, runtime=runtime) as correlation:
            start, end = self._queued(7, ns)
            peer = direction == 10
            self._record(
                "MemcpyPtoP" if peer else "Memcpy",
                22 if peer else 1,
                end,
                start=start,
                end=end,
                correlation_id=correlation,
                copy_kind=direction,
                src_kind=source,
                dst_kind=target,
                bytes=size,
                **({} if peer else {"copy_count": count}),
            )

    def fill(
        self,
        size: int,
        ns: int = 2_000,
        *,
        cbid: int | None = None,
        runtime: bool = False,
    ) -> None:
        """Fill memory."""
        cbid = cbid or (RUNTIME_MEMSET if runtime else MEMSET)
        with self._call(cbid, runtime=runtime) as correlation:
            start, end = self._queued(7, ns)
            self._record(
                "Memset",
                2,
                end,
                start=start,
                end=end,
                correlation_id=correlation,
                bytes=size,
            )

    def allocate(self, size: int, *, kind: int = 3, operation: int = 1) -> None:
        """Allocate memory, or free it (2)."""
        self._record(
            "Memory",
            49,
            self.now_ns,
            timestamp=self.now_ns,
            bytes=size,
            memory_kind=kind,
            memory_operation_type=operation,
        )

    def compile(self, ns: int, *, operation: int = 3) -> None:
        """Compile PTX, or load (1) or store (2) what was compiled."""
        start = self.now_ns
        self.now_ns += ns
        self._record(
            "Jit",
            52,
            self.now_ns,
            start=start,
            end=self.now_ns,
            jit_operation_type=operation,
        )

    def cost(self, ns: int, kind: int = 1 << 16) -> None:
        """Take time of CUPTI's own."""
        start = self.now_ns
        self.now_ns += ns
        self._record(
            "Overhead",
            17,
            self.now_ns,
            start=start,
            end=self.now_ns,
            overhead_kind=kind,
        )

    def mark(self, number: int, flags: int, name: str = "", domain: str = "") -> None:
        """Begin (2) or end (4) an NVTX range."""
        self._record(
            "Marker",
            12,
            self.now_ns,
            timestamp=self.now_ns,
            id=number,
            flags_=flags,
            name=name,
            domain=domain,
        )

    def _switch(self, call: tuple[int, int], enable: int) -> None:
        """Switch one call; without its kind that is forgotten (libcupti 13.0, H200)."""
        if call[0] in self.enabled:
            (self.calls_disabled.discard if enable else self.calls_disabled.add)(call)

    def _called(self, name: str, argument: int | None = None) -> None:
        self.log.append(name)
        status = self.refused.get(name, self.refused.get((name, argument)))
        if status is not None:
            raise self.cuptiError(status)

    @contextlib.contextmanager
    def _call(
        self, cbid: int, *, runtime: bool = False, seen: bool = True
    ) -> Iterator[int]:
        """Call the driver, or the runtime; the block queues the work of its id."""
        self._correlation += 1
        correlation, start = self._correlation, self.now_ns
        self.now_ns += 2_500
        returned = self.now_ns
        kind = _RUNTIME if runtime else _DRIVER
        seen &= kind in self.enabled and (kind, cbid) not in self.calls_disabled
        for label_kind, stack in self.threads[self._thread].items() if seen else ():
            if stack:
                self._record(
                    "ExternalCorrelation",
                    39,
                    returned,
                    external_kind=label_kind,
                    external_id=stack[-1],
                    correlation_id=correlation,
                )
        yield correlation
        inner = [(_DRIVER, start + 500, LAUNCH_KERNEL)]
        calls = [(kind, start, cbid), *(inner if runtime and self.inner_calls else ())]
        for each, begun, number in calls if seen else ():
            self._record(
                "API",
                each,
                returned,
                start=begun,
                end=returned,
                cbid=number,
                correlation_id=correlation,
            )

    def _queued(self, stream: int, ns: int) -> tuple[int, int]:
        """Return start and end of work in a stream."""
        start = max(self.now_ns + self.lead_ns, self._free_ns[stream])
        self._free_ns[stream] = start + ns
        return start, start + ns

    def _record(self, stem: str, kind: int, ready_ns: int, **values: Any) -> None:
        """Put down a record, if its kind is enabled."""
        if kind not in self.enabled:
            return
        record = self._classes[stem]()
        record.kind = kind
        for name, value in values.items():
            setattr(record, name, value)
        _KEPT.append(record)
        self._pending.append((ready_ns, record))
