"""The bytes inside arrays, buffers and lists, whoever made them; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import marshal
import sys
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from io import IOBase
from itertools import islice
from typing import Any

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Content", "contents", "digest", "scalar_bytes"]

# More than this of one array is looked at by evenly spaced elements: a change of a region
# is seen, a change of a single element may not be. 16 MiB: 10 ms to copy and to hash.
_MOST_BYTES = 16 * 1024**2
_MOST_ITEMS = 1_000_000  # the same for a list
_MOST_DEPTH = 4  # of lists in lists
_MARSHAL = 2  # the last format in which equal values have equal bytes
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_FIXED = (tuple, frozenset)  # of them, what never has more or fewer items


class Content(Frozen, frozen=True, kw_only=True):
    """
    Something whose content can be read again later.

    Attributes:
        place: Where it was found, as "argument 0".

        kind: Its type's name.

        read: Returns its bytes now, of large ones a part; None: they cannot be had.

        element_bytes: Size of an element of an array [B]; 0: it is no array.

        once: Whether it can be gone through only once, so that nobody may look into it.
    """

    place: str
    kind: str
    read: Callable[[], bytes | memoryview | None]
    element_bytes: int = 0
    once: bool = False


def contents(value: object, place: str, *, depth: int = 0) -> Iterator[Content]:
    """
    Yield what can be read of a value: arrays, buffers, lists of them and of numbers.

    Iterators, generators and files that can be read are named, and not touched.

    A plain number or text, and any other object, has nothing that could change and yields
    nothing.

    Args:
        value: Any object.

        place: What to call it.

        depth: How many lists it is in.
    """
    if isinstance(value, _PLAIN):
        return
    kind = type(value).__name__
    if isinstance(value, _CONTAINERS):
        yield from _container_contents(value, place, depth)
        return
    for library_reader in (_buffer, _numpy_array, _torch_tensor, _device_array):
        found = library_reader(value)
        if found is not None:
            read, size = found
            yield Content(place=place, kind=kind, read=read, element_bytes=size)
            return
    if _is_used_up(value):
        yield Content(place=place, kind=kind, read=lambda: None, once=True)


def digest(content: Content) -> bytes | None:
    """Return a hash of the content as it is now; None: it cannot be read."""
    from blake3 import blake3

    data = content.read()
    return None if data is None else blake3(data).digest()


def scalar_bytes(value: object) -> bytes | None:
    """Return a plain number or text as bytes; None: it is neither."""
    if isinstance(value, _PLAIN) or type(value).__module__ == "numpy":
        return _marshalled(value)
    return None


_Found = tuple[Callable[[], "bytes | memoryview | None"], int]


def _container_contents(value: Any, place: str, depth: int) -> Iterator[Content]:  # noqa: ANN401 - any builtin container
    """Yield a container as one if all in it is plain, else its size and what is in it."""
    kind = type(value).__name__
    if _marshalled(value) is not None:
        yield Content(place=place, kind=kind, read=lambda: _marshalled(value))
        return
    if not isinstance(value, _FIXED):
        yield Content(place=place, kind=kind, read=lambda: b"%d" % len(value))
    if depth >= _MOST_DEPTH:
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in pairs:
        yield from contents(item, f"{place}[{key!r}]", depth=depth + 1)


def _marshalled(value: Any) -> bytes | None:  # noqa: ANN401 - marshal says what it takes
    """Return builtins as bytes; None: there is something else among them."""
    if isinstance(value, (list, deque)):
        value = list(islice(value, 0, None, len(value) // _MOST_ITEMS + 1))
    elif isinstance(value, dict) and type(value) is not dict:
        value = dict(value)  # marshal takes no OrderedDict, Counter or defaultdict
    try:
        return marshal.dumps(value, _MARSHAL)
    except ValueError:
        return None


def _is_used_up(value: object) -> bool:
    """Return whether what a call takes of a value is not there for the next one."""
    if isinstance(value, IOBase):
        return not value.closed and value.readable()
    return isinstance(value, (Iterator, AsyncIterator))


def _buffer(value: object) -> _Found | None:
    """Return how to read a bytearray, a memoryview or an array.array."""
    if not isinstance(value, (bytearray, memoryview, array)):
        return None
    view = value if isinstance(value, memoryview) else None
    size = view.itemsize if view else getattr(value, "itemsize", 1)

    def read() -> bytes:
        # a copy: a view that we keep would forbid a bytearray to grow
        with memoryview(value) as now:
            flat = now.cast("B") if now.contiguous else memoryview(now.tobytes())
            return _thinned(flat, size)

    return read, size


def _thinned(flat: memoryview, size: int) -> bytes:
    """Return bytes, or of many those of evenly spaced elements."""
    step = flat.nbytes // _MOST_BYTES + 1
    if step == 1:
        return flat.tobytes()
    return b"".join(flat[offset :: step * size].tobytes() for offset in range(size))


def _numpy_array(value: Any) -> _Found | None:  # noqa: ANN401 - another library's object
    """Return how to read a numpy array."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    return (lambda: _numpy_bytes(numpy, value)), value.itemsize


def _numpy_bytes(numpy: Any, value: Any) -> memoryview | None:  # noqa: ANN401 - another library's objects
    """Return the bytes of a numpy array; None: it holds Python objects."""
    if value.dtype.hasobject:
        return None
    step = value.nbytes // _MOST_BYTES + 1
    flat = numpy.asarray(value).ravel(order="K")[::step]
    return memoryview(numpy.ascontiguousarray(flat).view(numpy.uint8))


def _torch_tensor(value: Any) -> _Found | None:  # noqa: ANN401 - another library's object
    """Return how to read a torch tensor, wherever it lives."""
    torch: Any = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is None or not isinstance(value, tensor_type):
        return None
    return (lambda: _torch_bytes(torch, value)), value.element_size()


def _torch_bytes(torch: Any, value: Any) -> bytes | None:  # noqa: ANN401 - another library's objects
    """Return the bytes of a tensor; None: sparse, fake or on a device without memory."""
    try:
        step = value.numel() * value.element_size() // _MOST_BYTES + 1
        flat = value.detach().reshape(-1)[::step].contiguous()
        return bytes(flat.view(torch.uint8).cpu().numpy())
    except (RuntimeError, TypeError, ValueError):
        return None


def _device_array(value: Any) -> _Found | None:  # noqa: ANN401 - another library's object
    """Return how to read an array of cupy or numba; *unverified on hardware*."""
    if not hasattr(type(value), "__cuda_array_interface__"):
        return None
    fetch = getattr(value, "get", None) or getattr(value, "copy_to_host", None)
    if fetch is None:
        return (lambda: None), 0

    def read() -> memoryview | None:
        numpy: Any = sys.modules.get("numpy")
        return None if numpy is None else _numpy_bytes(numpy, fetch())

    return read, int(getattr(value, "itemsize", 0))
