"""The contents of values that a call takes or returns, read so that nothing is consumed."""

from __future__ import annotations

import gc
import marshal
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sized,
)
from contextlib import suppress
from io import IOBase
from itertools import count, cycle, islice, repeat
from operator import length_hint
from types import (
    CellType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, cast

from blake3 import blake3

from pytest_gpuperf.model.frozen import Frozen

# A larger array is sampled at evenly spaced elements. A change of a region is seen, but
# a change of a single element may not be. 16 MiB take 10 ms to copy and to hash.
_MOST_BYTES = 16 * 1024**2
# The limit of a list.
_MOST_ITEMS = 1_000_000
# Levels of nested lists.
_MOST_DEPTH = 4
# The last format in which equal values have equal bytes.
_MARSHAL = 2
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_SIZED = frozenset({*_CONTAINERS, bytearray, bytes, str})
# Each object of Python 3.10 has a `__dict__`, and reading it costs nothing later.
_HAS_DICT = sys.version_info < (3, 11)
# Containers that can lose items.
_EMPTIED = frozenset({list, dict, set, deque})
_SAMPLES: tuple[Iterable[object], ...] = (
    *([], (), {}, {}.values(), {}.items(), set(), deque(), b"", bytearray()),
    *(range(0), range(1 << 70), "", "\u00e9", reversed([]), repeat(None, 0)),
)
# Iterators that know the number of items left without running the user's code.
_COUNTED = frozenset(type(iter(sample)) for sample in _SAMPLES)


class Content(Frozen, frozen=True, kw_only=True):
    """
    A value whose content can be read again later.

    Attributes:
        place: The place of the value, as "argument 0".

        kind: The name of its type.

        read: Returns its bytes now, or a part of them if the value is large, or None if
            they cannot be read. For a one-pass value, returns its position.

        element_bytes: Size of an element of an array [B], or 0 if it is not an array.

        once: Whether it can be read only once, so that nothing is consumed.
    """

    place: str
    kind: str
    read: Callable[[], bytes | memoryview | None]
    element_bytes: int = 0
    once: bool = False


def contents(value: object, place: str, *, depth: int = 0) -> Iterator[Content]:
    """
    Yield the readable contents of a value: arrays, buffers, lists of them and of
    numbers.

    Iterators, generators and readable files are yielded without consuming anything.
    Endless iterators (`itertools.repeat` without times, `cycle`, `count`) are not
    yielded, nor is a file for writing and reading with nothing left to read.

    A plain number or text, and any other object, cannot change and yields nothing.

    Args:
        value: Any object.

        place: The name of its place.

        depth: The number of containers around it.
    """
    if isinstance(value, _PLAIN):
        return
    kind = type(value).__name__
    if isinstance(value, _CONTAINERS):
        # A plain container is a single content. Otherwise its size and items are.
        if marshalled(value) is not None:
            yield Content(place=place, kind=kind, read=lambda: marshalled(value))
            return
        if not isinstance(value, (tuple, frozenset)):
            yield Content(
                place=place,
                kind=kind,
                read=lambda: b"%d" % base_of(value).__len__(value),
            )
        base = base_of(value)
        is_table = issubclass(base, dict)
        pairs = base.items(value) if is_table else enumerate(base.__iter__(value))
        for key, item in pairs if depth < _MOST_DEPTH else ():
            yield from contents(item, f"{place}[{key!r}]", depth=depth + 1)
        return
    for library_reader in (_buffer, _numpy_array, _torch_tensor, _device_array):
        reader = library_reader(value)
        if reader is not None:
            read, size = reader
            yield Content(place=place, kind=kind, read=read, element_bytes=size)
            return
    progress = _progress(value)
    if progress is not None:
        yield Content(place=place, kind=kind, read=progress, once=True)


def digest(content: Content) -> bytes | None:
    """Return a hash of the current content, or None if unreadable."""
    data = content.read()
    return None if data is None else blake3(data).digest()


def scalar_bytes(value: object) -> bytes | None:
    """Return a plain number or text as bytes, or None for other values."""
    if type(value) in _PLAIN:  # The usual result.
        plain: Any = value
        return marshal.dumps(plain, _MARSHAL)
    if isinstance(value, _PLAIN) or type(value).__module__ == "numpy":
        return marshalled(value)
    return None


_Reader = tuple[Callable[[], "bytes | memoryview | None"], int]


def marshalled(value: Any) -> bytes | None:  # noqa: ANN401 - marshal says what it takes
    """Return builtins as bytes, or None if any other type is included."""
    if isinstance(value, (list, deque)):
        items = base_of(value).__iter__(value)
        base = base_of(value)
        count: int = base.__len__(value)
        # One long row may be there a thousand times.
        if _SIZED.issuperset(map(type, base.__iter__(value))):
            count += sum(map(len, base.__iter__(value)))
        value = list(islice(items, 0, None, count // _MOST_ITEMS + 1))
    elif isinstance(value, dict) and type(value) is not dict:
        # marshal does not accept OrderedDict, Counter or defaultdict.
        value = dict(base_of(value).items(value))
    try:
        return marshal.dumps(value, _MARSHAL)
    except ValueError:
        return None


def base_of(value: object) -> Any:  # noqa: ANN401 - a builtin class, whose items are of any
    """Return the builtin class of a container, whose own code may wait or count."""
    bases = (OrderedDict, *_CONTAINERS)  # A dict does not know the order of the first.
    return next((base for base in bases if isinstance(value, base)), type(value))


def holdings(owner: object) -> list[tuple[object, int]]:
    """
    Return what the attributes of an object hold, with the number of items left.

    The attributes of a function are the variables of its closure. Containers are
    counted, and so are iterators that know their length. An unfinished generator counts
    1. A module, a plain value and a container have no attributes that a call would
    empty. No code of the object's class runs, so a proxy is not resolved.
    """
    if type(owner) is FunctionType and not (owner.__closure__ or owner.__dict__):
        return []  # The usual function.
    if issubclass(type(owner), (ModuleType, *_PLAIN, *_CONTAINERS)):
        return []
    values = (
        attributes(owner).values() if type(owner) is FunctionType else held_by(owner)
    )
    held = [(value, items_left(value)) for value in values]
    return [(value, items) for value, items in held if items is not None]


def held_by(owner: object) -> list[object]:
    """Return what the attributes of an object hold, in no order."""
    if _HAS_DICT:
        return [*attributes(owner).values()]
    # Until Python 3.12, an object whose `__dict__` was read is slower from then on.
    found = gc.get_referents(owner)
    return found + [v for d in found if type(d) is dict for v in d.values()]


def items_left(value: object) -> int | None:
    """Return the number of items in a container, an iterator or a generator, else None."""
    if type(value) in _EMPTIED:
        return len(cast("Sized", value))
    if type(value) is GeneratorType:
        return int(value.gi_frame is not None)
    return _items_left(value)


def attributes(owner: object) -> dict[str, object]:
    """Return the attributes of an object, or the variables of a function's closure."""
    found: dict[str, object] = {}
    if type(owner) is FunctionType:
        cells = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True)
        found |= {
            name: cell.cell_contents for name, cell in cells if cell != CellType()
        }
    for kind in type(owner).__mro__:
        members = vars(kind)
        if type(members.get("__dict__")) is GetSetDescriptorType:
            found |= members["__dict__"].__get__(owner)
        for name, member in members.items() if "__slots__" in members else ():
            if type(member) is MemberDescriptorType:
                # The slot is not filled.
                with suppress(AttributeError):
                    found[name] = member.__get__(owner)
    return found


def _progress(value: object) -> Callable[[], bytes | None] | None:
    """Return a reader of the position of a file or an iterator, or None if it cannot be used up."""
    if isinstance(value, IOBase):
        if value.closed or not value.readable():
            return None
        if value.writable() and not _has_more(value):
            return None
        return lambda: _number(_position(value))
    if not isinstance(value, (Iterator, AsyncIterator)):
        return None
    unlimited = isinstance(value, repeat) and length_hint(value, -1) < 0
    if unlimited or isinstance(value, (count, cycle)):
        return None
    return lambda: _number(_items_left(value))


def _position(file: Any) -> int | None:  # noqa: ANN401 - bytes or text
    try:
        return int(file.tell()) if file.seekable() else None
    # A text file in the middle of a loop, or a file closed since.
    except (OSError, ValueError):
        return None


def _has_more(file: Any) -> bool:  # noqa: ANN401 - bytes or text
    """Return True if a file has content after the position, which is left unchanged."""
    position = _position(file)
    if position is None:
        return True
    try:
        more = file.read(1)
    # The file cannot be read now, or is not text.
    except (OSError, ValueError):
        more = None
    file.seek(position)
    return more is None or len(more) > 0


def _items_left(value: object) -> int | None:
    if type(value) not in _COUNTED:
        return None
    left = length_hint(value, -1)
    return None if left < 0 else left


def _number(value: int | None) -> bytes | None:
    return None if value is None else b"%d" % value


def _buffer(value: object) -> _Reader | None:
    if not isinstance(value, (bytearray, memoryview, array)):
        return None
    view = value if isinstance(value, memoryview) else None
    size = view.itemsize if view else getattr(value, "itemsize", 1)

    def read() -> bytes:
        # A copy, because a view held here would stop a bytearray from growing.
        with memoryview(value) as now:
            flat = now.cast("B") if now.c_contiguous else memoryview(now.tobytes())
            step = flat.nbytes // _MOST_BYTES + 1
            if step == 1:
                return flat.tobytes()
            # Evenly spaced elements, a byte of each at a time.
            bytes_at = (flat[at :: step * size].tobytes() for at in range(size))
            return b"".join(bytes_at)

    return read, size


def _numpy_array(value: Any) -> _Reader | None:  # noqa: ANN401 - another library's object
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    return (lambda: _numpy_bytes(numpy, value)), value.itemsize


def _numpy_bytes(numpy: Any, value: Any) -> memoryview | None:  # noqa: ANN401 - another library's objects
    """Return the bytes of a numpy array, or None if it holds Python objects."""
    if value.dtype.hasobject:
        return None
    step = value.nbytes // _MOST_BYTES + 1
    flat = numpy.asarray(value).ravel(order="K")[::step]
    return memoryview(numpy.ascontiguousarray(flat).view(numpy.uint8))


def _torch_tensor(value: Any) -> _Reader | None:  # noqa: ANN401 - another library's object
    torch: Any = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is None or not isinstance(value, tensor_type):
        return None
    return (lambda: _torch_bytes(torch, value)), value.element_size()


def _torch_bytes(torch: Any, value: Any) -> bytes | None:  # noqa: ANN401 - another library's objects
    """Return the bytes of a tensor, or None if sparse, fake or on a device without memory."""
    try:
        step = value.numel() * value.element_size() // _MOST_BYTES + 1
        flat = value.detach().reshape(-1)[::step].contiguous()
        return bytes(flat.view(torch.uint8).cpu().numpy())
    except (RuntimeError, TypeError, ValueError):
        return None


def _device_array(value: Any) -> _Reader | None:  # noqa: ANN401 - another library's object
    """
    Return a reader of an array of cupy or numba.

    H200: arrays of cupy 14.2 are read. *Unverified on hardware:* arrays of numba.
    """
    if not hasattr(type(value), "__cuda_array_interface__"):
        return None
    fetch = getattr(value, "get", None) or getattr(value, "copy_to_host", None)
    if fetch is None:
        return (lambda: None), 0

    def read() -> memoryview | None:
        numpy: Any = sys.modules.get("numpy")
        return None if numpy is None else _numpy_bytes(numpy, fetch())

    return read, int(getattr(value, "itemsize", 0))
