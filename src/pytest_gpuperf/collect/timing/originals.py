"""Copies of arguments, taken before the first call and put back after the last one.

Only values that a call may write are copied: arrays on the host and on a device,
buffers, and the builtin containers around them. Other objects are not copied. Most
tests never need a copy, so few functions are called to take one.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from io import IOBase
from operator import itemgetter, setitem
from typing import Any, TypeAlias

# Functions that put the parts of one argument back. Each writes the content that its
# part had before.
Original: TypeAlias = "Sequence[Callable[[], object]]"

# Limits for all copies of one measurement (docs/judging.md section 5). An array of 4096
# x 4096 single-precision numbers has 64 MiB.
_MIB = 1024**2
_MOST_HOST_BYTES = 64 * _MIB
_DEVICE_FRACTION = 0.1
# Levels of nested containers, the same as for reading their contents.
_MOST_DEPTH = 4
# Parts of one argument. Each takes a microsecond or two.
_MOST_PARTS = 100
_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})
# The name of an output in numpy, torch and cupy.
_OUTPUT = "argument out"
_NO_COPY = "it cannot be copied"

_Save: TypeAlias = "Callable[[Any], Callable[[], object]]"
# Size of a copy [B], whether it is on a device, the value, and the function that copies
# it.
_Part: TypeAlias = "tuple[int, bool, Any, _Save]"


class Originals:
    """
    The original contents of the arguments of one measurement, within a limit of memory.

    Args:
        free_device_bytes: Returns the free memory of the device in use [B], or None if
            unknown. Nothing on a device is then copied.
    """

    def __init__(self, free_device_bytes: Callable[[], int | None]) -> None:
        self._free_device_bytes = free_device_bytes
        self._host_left_bytes = _MOST_HOST_BYTES
        # None until it is needed.
        self._device_left_bytes: float | None = None
        # Two callables of a comparison have the same arguments, and one copy serves
        # both. The argument is kept with its copy, so that no other object gets its id.
        self._kept: dict[int, tuple[object, Original | str]] = {}

    def keep(self, given: Sequence[tuple[str, object, object]]) -> None:
        """
        Copy as many arguments as the memory limit allows.

        Nothing is allocated for an argument that does not fit. Arguments that are
        called an output come first, then small ones. Among equally large arguments the
        later comes first, because outputs tend to come last.

        Args:
            given: The place of each argument in words, the argument, and an unused
                value.
        """
        wanted: list[tuple[tuple[bool, int, int], object, list[_Part]]] = []
        for index, (name, value, _) in enumerate(given):
            if type(value) in _IMMUTABLE or id(value) in self._kept:
                continue
            self._kept[id(value)] = (value, _NO_COPY)
            parts = _parts_of(value)
            if parts:
                is_output = name.endswith(_OUTPUT)
                rank = (not is_output, sum(_sizes_bytes(parts)), -index)
                wanted.append((rank, value, parts))
        for _, value, parts in sorted(wanted, key=itemgetter(0)):
            self._kept[id(value)] = (value, self._copied(parts))

    def of(self, value: object) -> Original | str:
        """Return the original content of an argument, or the reason for a missing copy."""
        return self._kept[id(value)][1]

    def _copied(self, parts: Sequence[_Part]) -> Original | str:
        host_bytes, device_bytes = _sizes_bytes(parts)
        if host_bytes > self._host_left_bytes:
            return _too_large(host_bytes, f"{_MOST_HOST_BYTES // _MIB} MiB")
        if device_bytes:
            if self._device_left_bytes is None:
                free_bytes = self._free_device_bytes()
                if free_bytes is None:
                    return "the free memory of its device is not known"
                self._device_left_bytes = _DEVICE_FRACTION * free_bytes
            if device_bytes > self._device_left_bytes:
                limit = f"{_DEVICE_FRACTION:.0%} of the device's free memory"
                return _too_large(device_bytes, limit)
            self._device_left_bytes -= device_bytes
        self._host_left_bytes -= host_bytes
        return _saved(parts) or _NO_COPY


def copied(value: object) -> Original | None:
    """Return the current content of an argument of any size, or None if it cannot be copied."""
    return _saved(_parts_of(value))


def _saved(parts: Sequence[_Part]) -> Original | None:
    try:
        return [save(value) for _, _, value, save in parts]
    except Exception:  # noqa: BLE001 - each library has its own errors
        return None


def _sizes_bytes(parts: Iterable[_Part]) -> tuple[int, int]:
    """Return the sizes of all copies on the host and on the device [B]."""
    host_bytes = device_bytes = 0
    for size_bytes, on_device, _, _ in parts:
        if on_device:
            device_bytes += size_bytes
        else:
            host_bytes += size_bytes
    return host_bytes, device_bytes


def _too_large(size_bytes: int, limit: str) -> str:
    return (
        f"with its {size_bytes / _MIB:,.4g} MiB, copies of the arguments would take more"
        f" than {limit}"
    )


def _parts_of(value: object) -> list[_Part]:
    """Return the parts of an argument, or [] if there are none or too many."""
    parts: list[_Part] = []
    try:
        _add_parts(parts, set(), value, 0)
    except Exception:  # noqa: BLE001 - an array that does not even know its size
        return []
    return parts if len(parts) <= _MOST_PARTS else []


def _add_parts(parts: list[_Part], seen: set[int], value: Any, depth: int) -> None:  # noqa: ANN401 - any argument
    save = _SAVES.get(type(value))
    if save is not None:
        parts.append((sys.getsizeof(value), False, value, save))
    # A tuple cannot change itself, but may hold values that can.
    elif not isinstance(value, tuple):
        part = _library_part(value)
        if isinstance(value, IOBase) and value.seekable():
            part = (0, False, value, _save_position)  # Only the position is kept.
        if part is not None:
            parts.append(part)
        return
    if depth >= _MOST_DEPTH or type(value) in _FLAT:
        return
    # The keys of a dict are hashable, and so hold nothing that changes.
    items = value.values() if isinstance(value, dict) else value
    # Found without a loop: most lists hold nothing that changes.
    if _IMMUTABLE.issuperset(map(type, items)):
        return
    seen.add(id(value))
    for item in items:
        if type(item) not in _IMMUTABLE and id(item) not in seen:
            seen.add(id(item))
            _add_parts(parts, seen, item, depth + 1)
            if len(parts) > _MOST_PARTS:
                return


def _save_sequence(value: Any) -> Callable[[], object]:  # noqa: ANN401 - list, bytearray or array.array
    return partial(setitem, value, slice(None), value[:])


def _save_deque(value: deque[Any]) -> Callable[[], object]:
    saved = list(value)

    def put_back() -> None:
        value.clear()
        value.extend(saved)

    return put_back


def _save_hashed(value: Any) -> Callable[[], object]:  # noqa: ANN401 - a dict or a set
    saved = value.copy()

    def put_back() -> None:
        value.clear()
        value.update(saved)

    return put_back


# By exact type: a subclass may hold more than its items.
_SAVES: dict[type, _Save] = {
    list: _save_sequence,
    bytearray: _save_sequence,
    array: _save_sequence,
    deque: _save_deque,
    set: _save_hashed,
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _save_hashed),
}
# Types that hold nothing that can change.
_FLAT = frozenset({bytearray, array, set})


def _library_part(value: Any) -> _Part | None:  # noqa: ANN401 - any argument
    """
    Return an array, a tensor or a memoryview as a part, or None if read-only or another
    type. An array of numba is copied to the host.

    *Unverified on hardware:* arrays of cupy and numba.
    """
    kind = type(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and kind in {numpy.ndarray, numpy.memmap}:
        is_plain = value.flags.writeable and not value.dtype.hasobject
        return (value.nbytes, False, value, _save_numpy) if is_plain else None
    if kind is memoryview:
        return None if value.readonly else (value.nbytes, False, value, _save_view)
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor_type is not None and isinstance(value, tensor_type):
        size_bytes = value.numel() * value.element_size()
        return size_bytes, value.device.type != "cpu", value, _save_torch
    if not hasattr(kind, "__cuda_array_interface__"):
        return None
    size_bytes = int(value.size) * int(value.dtype.itemsize)
    if hasattr(value, "copy_to_device"):
        return size_bytes, False, value, _save_numba
    return (size_bytes, True, value, _save_cupy) if hasattr(value, "get") else None


def _save_numpy(value: Any) -> Callable[[], object]:  # noqa: ANN401 - another library's array
    numpy: Any = sys.modules["numpy"]
    return partial(setitem, value, ..., numpy.array(value, order="K", subok=False))


def _save_view(view: memoryview) -> Callable[[], object]:
    saved = view.tobytes()
    if not view.c_contiguous:
        return partial(setitem, view, slice(None), memoryview(saved).cast(view.format))  # type: ignore[call-overload] # any format that the view has

    def put_back() -> None:
        with view.cast("B") as flat:
            flat[:] = saved

    return put_back


def _save_position(file: Any) -> Callable[[], object]:  # noqa: ANN401 - bytes or text
    return partial(file.seek, file.tell())


def _save_torch(tensor: Any) -> Callable[[], object]:  # noqa: ANN401 - another library's array
    # Shares the memory, and is not part of a graph.
    bare = tensor.detach()
    return partial(bare.copy_, bare.clone())


def _save_cupy(value: Any) -> Callable[[], object]:  # noqa: ANN401 - another library's array
    return partial(setitem, value, ..., value.copy())


def _save_numba(value: Any) -> Callable[[], object]:  # noqa: ANN401 - another library's array
    return partial(value.copy_to_device, value.copy_to_host())
