"""CUPTI's constants, and CUPTI's activity records sorted by kind.

Records are read by field name. All versions of a class have these names, because newer
classes only add fields. The class is that of the binding, and the record that of the loaded
libcupti: a field that an older libcupti lacks is read from the memory behind the record, so
that its version decides whether the field counts. cupti-python before 13.3 keeps a record as a numpy array.
Reading a field of such an array takes 3 us, and reading a kernel 80 us, so that all
fields of a record are unpacked at once.

References:
    cupti_activity.h of CUDA 12.0 to 13.5. cupti_driver_cbid.h and cupti_runtime_cbid.h of
    CUDA 13.0 to 13.5.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec

KINDS = {  # CUpti_ActivityKind
    "MEMCPY": 1,
    "MEMSET": 2,
    "DRIVER": 4,
    "RUNTIME": 5,
    "CONCURRENT_KERNEL": 10,
    "MARKER": 12,
    "OVERHEAD": 17,
    "MEMCPY2": 22,
    "SYNCHRONIZATION": 38,
    "EXTERNAL_CORRELATION": 39,
    "MEMORY2": 49,
    "GRAPH_TRACE": 51,
    "JIT": 52,
}
# CUpti_driver_api_trace_cbid: cuLaunch, Grid, GridAsync; cuLaunchKernel, _ptsz;
# cuLaunchCooperativeKernel, _ptsz, MultiDevice; cuGraphLaunch, _ptsz; cuLaunchKernelEx,
# _ptsz
DRIVER_LAUNCHES = frozenset(
    {115, 116, 117, 307, 442, 477, 478, 480, 514, 515, 652, 653}
)
# CUpti_runtime_api_trace_cbid: cudaLaunch, _ptsz; cudaLaunchKernel, _ptsz;
# cudaLaunchCooperativeKernel, _ptsz, MultiDevice; cudaGraphLaunch, _ptsz;
# cudaLaunchKernelExC, _ptsz; __cudaLaunchKernel, _ptsz
RUNTIME_LAUNCHES = frozenset(
    {13, 213, 211, 214, 269, 270, 272, 311, 312, 430, 431, 505, 506}
)
_LAUNCHES = {KINDS["DRIVER"]: DRIVER_LAUNCHES, KINDS["RUNTIME"]: RUNTIME_LAUNCHES}
_CALLS = frozenset(_LAUNCHES)
COPIES = frozenset({KINDS["MEMCPY"], KINDS["MEMCPY2"]})
KERNEL, FILL, GRAPH = (
    KINDS["CONCURRENT_KERNEL"],
    KINDS["MEMSET"],
    KINDS["GRAPH_TRACE"],
)
_LABEL = KINDS["EXTERNAL_CORRELATION"]
_WORK = COPIES | {KERNEL, FILL, GRAPH}

DIRECTIONS = {  # CUpti_ActivityMemcpyKind; an array is device memory
    1: "host_to_device",
    2: "device_to_host",
    3: "host_to_device",
    4: "device_to_host",
    5: "device_to_device",
    6: "device_to_device",
    7: "device_to_device",
    8: "device_to_device",
    9: "host_to_host",
    10: "peer_to_peer",
}
MEMORY = {  # CUpti_ActivityMemoryKind
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "device_static",
    7: "managed_static",
}
WAITS = {1: "event", 2: "stream_wait", 3: "stream", 4: "context"}
OVERHEADS = {  # CUpti_ActivityOverheadKind
    1: "driver_compiler",
    1 << 16: "buffer_flush",
    2 << 16: "instrumentation",
    3 << 16: "resource",
    4 << 16: "module_loading",
    5 << 16: "lazy_function_loading",
    6 << 16: "command_buffer_full",
    7 << 16: "buffer_request",
    8 << 16: "unified_memory_start",
}
# CUPTI_ACTIVITY_JIT_OPERATION_COMPILE. 1 and 2 load from and store to a cache.
COMPILE = 3
ALLOCATION = 1  # CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
# Static memory of a loaded module, which the program did not allocate.
STATIC = frozenset({6, 7})
RANGE_START, RANGE_END = 2, 4  # CUPTI_ACTIVITY_FLAG_MARKER_*
# The API version of CUDA 12.8. A copy of an older libcupti ends before copyCount: the only
# field that is read and that not all libraries from 12.0 on write.
COPY_COUNT_SINCE = 26

_T = TypeVar("_T")
Batches = Iterable[Sequence[Any]]  # As delivered by CUPTI. Records have no type.


# The fields that are read, of all kinds of records.
_FIELDS = frozenset(
    [
        "kind",
        "start",
        "end",
        "timestamp",
        "correlation_id",
        "external_kind",
        "external_id",
        "cbid",
        "name",
        "domain",
        "id",
        "flags_",
        "type",
        "bytes",
        "copy_kind",
        "src_kind",
        "dst_kind",
        "copy_count",
        "memory_kind",
        "memory_operation_type",
        "jit_operation_type",
        "overhead_kind",
        "grid_x",
        "grid_y",
        "grid_z",
        "block_x",
        "block_y",
        "block_z",
        "registers_per_thread",
        "static_shared_memory",
        "dynamic_shared_memory",
        "local_memory_per_thread",
        "device_id",
        "stream_id",
        "graph_id",
    ]
)
_TEXTS = frozenset({"name", "domain"})
# The classes of records whose texts are read.
_NAMED = ("ActivityKernel", "ActivityMarker")
# numpy's name of a number type -> the code of struct.
_CODES = {
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "uint32": "I",
    "int32": "i",
    "uint64": "Q",
    "int64": "q",
}


def let_go(things: list[_T]) -> Iterator[_T]:
    """Yield the items of a list in order, and remove every yielded item from the list."""
    things.reverse()
    while things:
        yield things.pop()


def quick(batches: Batches) -> Iterator[Any]:
    """Yield records, or objects with the same fields, that are fast to read."""
    readers: dict[type, Callable[[Any], Any] | None] = {}
    # By address, which all launches of a kernel share.
    texts: dict[int, str] = {0: ""}
    for record in chain.from_iterable(batches):
        kind = type(record)
        if kind not in readers:
            readers[kind] = _reader(record, texts)
        read = readers[kind]
        yield record if read is None else read(record)


def _reader(record: Any, texts: dict[int, str]) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a record has no type
    """Return a function that unpacks records of a class, or None if fields are fast to read."""
    data = getattr(record, "_data", None)
    if data is None:
        return None
    named = type(record).__name__.startswith(_NAMED)
    fields = sorted(
        (offset, name, str(number))
        for name, (number, offset, *_) in data.dtype.fields.items()
        if name in (_FIELDS if named else _FIELDS - _TEXTS)
    )
    pieces, end = ["<"], 0
    for offset, _, number in fields:
        pieces.append(f"{offset - end}x{_CODES[number]}")
        end = offset + struct.calcsize(_CODES[number])
    unpack = struct.Struct("".join(pieces)).unpack_from
    names = [name for _, name, _ in fields]
    make = msgspec.defstruct("Record", names)
    places = [place for place, name in enumerate(names) if name in _TEXTS]

    def read(wrapped: Any) -> Any:  # noqa: ANN401 - a record has no type
        values = list(unpack(wrapped._data.tobytes()))  # noqa: SLF001 - of versions that will not change
        for place in places:
            address = values[place]
            if address not in texts:
                texts[address] = ctypes.string_at(address).decode("utf-8", "replace")
            values[place] = texts[address]
        return make(*values)

    return read


class Sorted:
    """
    The records of several batches, sorted by kind.

    Args:
        batches: Lists of records, as delivered by CUPTI.

        label_kind: The kind of external ids that are labels.
    """

    def __init__(self, batches: Batches, label_kind: int) -> None:
        # The label, and the start of the outermost call [ns], by correlation id.
        self.labels: dict[int, int] = {}
        self.calls: dict[int, int] = {}
        # The correlation ids of calls that launch kernels.
        self.launching: set[int] = set()
        self.work: dict[int, list[Any]] = {kind: [] for kind in _WORK}
        self.rest: dict[int, list[Any]] = {}
        labels, calls, launching, work = (
            self.labels,
            self.calls,
            self.launching,
            self.work,
        )
        for record in quick(batches):
            kind = record.kind
            if kind in work:
                work[kind].append(record)
            elif kind == _LABEL:
                if record.external_kind == label_kind:
                    labels[record.correlation_id] = record.external_id
            elif kind in _CALLS:
                # A runtime call and its inner driver call share a correlation id.
                called, start = record.correlation_id, record.start
                if start < calls.get(called, start + 1):
                    calls[called] = start
                if record.cbid in _LAUNCHES[kind]:
                    launching.add(called)
            else:
                self.rest.setdefault(kind, []).append(record)

    def of_kind(self, name: str) -> list[Any]:
        """Return the records of a kind that is neither work nor a call."""
        return self.rest.get(KINDS[name], [])
