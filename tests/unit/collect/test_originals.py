"""Rules of collect.timing.originals: which arguments are copied, and how they are put back."""

from __future__ import annotations

import array
import sys
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from fakes.arrays import CupyArray, NumbaArray, Tensor, fake_torch
from pytest_gpuperf.collect.timing.contents import contents, digest
from pytest_gpuperf.collect.timing.originals import Originals, copied

MIB = 1024**2
LIMITED = "copies of the arguments would take more than"
Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - what a test may give


def kept(*values: object, free_bytes: int | None = None) -> Originals:
    """Return the copies of some arguments, named as positional ones."""
    originals = Originals(lambda: free_bytes)
    originals.keep([(f"argument {i}", value, None) for i, value in enumerate(values)])
    return originals


def put_back(originals: Originals, value: object) -> None:
    """Put the original content of an argument back."""
    original = originals.of(value)
    assert not isinstance(original, str), original
    for write in original:
        write()


def reads(value: object) -> list[bytes | None]:
    """Return what can be read of a value."""
    return [digest(content) for content in contents(value, "x")]


def shrunk(value: Any) -> None:
    """Take an item of a container out."""
    value.pop()


def nested(value: Any) -> None:
    """Change what is inside, and what it is in."""
    value["a"][0].append(3)
    del value["b"]


CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [3, 1, 2], lambda x: x.sort()),
    "list of objects": (lambda: [len, max], shrunk),
    "dict": (lambda: {"a": 1}, lambda x: x.update(a=2, b=3)),
    "dict emptied": (lambda: {"b": 1, "a": 2}, lambda x: x.clear()),
    "ordered dict": (lambda: OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    "defaultdict": (lambda: defaultdict(list, a=[1]), lambda x: x["b"].append(1)),
    "counter": (lambda: Counter("aab"), lambda x: x.update("ab")),
    "set": (lambda: {1, 2}, lambda x: x.add(3)),
    "deque": (lambda: deque([1, 2]), lambda x: x.rotate()),
    "bounded deque": (lambda: deque([1, 2], maxlen=2), lambda x: x.append(3)),
    "bytearray": (lambda: bytearray(b"abc"), lambda x: x.extend(b"d")),
    "array.array": (lambda: array.array("d", [1, 2]), lambda x: x.append(3)),
    "memoryview": (
        lambda: memoryview(bytearray(b"abcdef")),
        lambda x: x.__setitem__(5, 0),
    ),
    "memoryview of numbers": (
        lambda: memoryview(bytearray(96)).cast("d", (3, 4)),
        lambda x: x.__setitem__((1, 2), 1.0),
    ),
    "strided memoryview": (
        lambda: memoryview(array.array("i", range(6)))[::2],
        lambda x: x.__setitem__(2, 0),
    ),
    "numpy array": (lambda: np.arange(6.0), lambda x: x.fill(2)),
    "numpy view": (lambda: np.arange(6.0)[::2], lambda x: x.fill(2)),
    "numpy transposed": (lambda: np.ones((2, 3)).T, lambda x: x.__setitem__((2, 1), 0)),
    "numpy scalar array": (lambda: np.array(1.0), lambda x: x.fill(2)),
    "numpy records": (
        lambda: np.zeros(3, [("a", "i4"), ("b", "f8")]),
        lambda x: x["b"].fill(2),
    ),
    "nested": (lambda: {"a": [[1, 2]], "b": 3}, nested),
    "arrays in a list": (lambda: [np.ones(2), len], lambda x: x[0].fill(2)),
    "arrays in a tuple": (lambda: (np.ones(2), 1), lambda x: x[0].fill(2)),
    "arrays in a named tuple": (lambda: Pair([1], 2), lambda x: x.left.append(1)),
    "one list twice": (lambda: [[1]] * 2, lambda x: x[1].append(1)),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_an_argument_is_put_back_in_place(kind: str) -> None:
    """Content and order are those before the first call, in the same object."""
    make, change = CHANGED[kind]
    value, untouched = make(), make()
    then = reads(value)
    originals = kept(value)
    change(value)
    assert reads(value) != then

    for _ in range(2):  # the copy itself is left as it is
        put_back(originals, value)
        assert reads(value) == then
        if not isinstance(value, (np.ndarray, memoryview)):
            assert repr(value) == repr(untouched)
        change(value)


def test_what_is_in_a_list_twice_stays_one_object() -> None:
    """A copy holds the items themselves, not copies of them."""
    inner = [1]
    value = [inner, inner]
    originals = kept(value)
    inner.append(2)
    value.clear()
    put_back(originals, value)

    assert value[0] is value[1] is inner
    assert inner == [1]


def test_views_of_one_buffer_are_put_back_together() -> None:
    """Arrays that overlap have the content that their memory had."""
    memory = np.arange(10)
    views = (memory[:6], memory[4:], memory)
    originals = kept(*views)
    memory.fill(7)
    for view in views:
        put_back(originals, view)

    assert memory.tolist() == list(range(10))


def test_a_mapped_file_is_put_back(tmp_path: Path) -> None:
    """Its array writes into the file."""
    mapped = np.memmap(tmp_path / "m", dtype="u1", mode="w+", shape=(4,))
    originals = kept(mapped)
    mapped[:] = 3
    put_back(originals, mapped)

    assert mapped.tolist() == [0] * 4


class MyList(list[int]):
    """A list of somebody's own."""


def read_only() -> Any:
    """Return an array that cannot be written."""
    value = np.zeros(3)
    value.flags.writeable = False
    return value


class Sizeless:
    """An array of a device that does not know its size."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}

    @property
    def size(self) -> int:
        raise RuntimeError("the device is gone")


NOT_COPIED: dict[str, Callable[[], Any]] = {
    "a list of one's own": lambda: MyList([1]),
    "a read-only array": read_only,
    "an array of objects": lambda: np.array([[1], None], object),
    "a masked array": lambda: np.ma.masked_array([1, 2], [False, True]),
    "a read-only view": lambda: memoryview(b"abc"),
    "an object": mock.Mock,
    "a text": lambda: "text",
    "an array without a size": Sizeless,
    "too many lists": lambda: [[i] for i in range(1000)],
}


@pytest.mark.parametrize("kind", NOT_COPIED)
def test_what_cannot_be_copied_says_so(kind: str) -> None:
    """Copies are of what can be put back completely; nothing raises."""
    value = NOT_COPIED[kind]()
    originals = kept(value, [1])

    if not isinstance(value, str):  # which never changes
        assert originals.of(value) == "it cannot be copied"


def test_a_copy_that_raises_is_none() -> None:
    """As where memory runs out between two arrays."""
    array_ = CupyArray([1])
    with mock.patch.object(CupyArray, "copy", side_effect=MemoryError):
        originals = kept(array_, free_bytes=MIB)

    assert originals.of(array_) == "it cannot be copied"


def test_a_list_that_holds_itself_ends() -> None:
    """Each part is copied once."""
    loop: list[object] = [len]
    loop.append(loop)
    originals = kept(loop)
    loop.clear()
    put_back(originals, loop)

    assert loop == [len, loop]


# ---------------------------------------------------------------- the limit


def test_beyond_the_limit_nothing_is_allocated() -> None:
    """The size is known before a copy is made."""
    large = np.zeros(2_000_000_000, "u1")
    items: list[int] = [0] * (9 * MIB)
    tracemalloc.start()
    try:
        originals = kept(large, items, [large])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < MIB
    assert originals.of(large) == f"with its 1,907 MiB, {LIMITED} 64 MiB"
    assert isinstance(originals.of(items), str)


def test_small_arguments_are_copied_beside_a_large_one() -> None:
    """What does not fit costs no other argument its copy."""
    large, small = bytearray(65 * MIB), bytearray(2)
    originals = kept(large, small)

    assert isinstance(originals.of(large), str)
    assert not isinstance(originals.of(small), str)


def test_of_equally_large_arguments_the_last_is_copied_first() -> None:
    """Outputs tend to come last."""
    first, last = bytearray(40 * MIB), bytearray(40 * MIB)
    originals = kept(first, last)

    assert isinstance(originals.of(first), str)
    assert not isinstance(originals.of(last), str)


def test_what_is_called_out_is_copied_first() -> None:
    """A smaller input that fits beside nothing else leaves it the room."""
    out, small = bytearray(60 * MIB), bytearray(10 * MIB)
    originals = Originals(lambda: None)
    originals.keep([("argument 0", small, None), ("argument out", out, None)])

    assert not isinstance(originals.of(out), str)
    assert isinstance(originals.of(small), str)


def test_arguments_of_two_functions_are_copied_once() -> None:
    """A comparison gives both sides the same arguments, and the limit holds for both."""
    value = bytearray(40 * MIB)
    originals = kept(value)
    original = originals.of(value)
    originals.keep([("argument 0", value, None)])

    assert originals.of(value) is original


# --------------------------------------------------------------- the device


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is loaded."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch())


DEVICE = {
    "torch": (Tensor, ["detach", "clone", "copy_"]),
    "cupy": (CupyArray, ["copy", "setitem"]),
    "numba": (NumbaArray, ["copy_to_host", "copy_to_device"]),
}


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("library", DEVICE)
def test_an_array_of_a_device_is_put_back(library: str) -> None:
    """By the methods of its own library."""
    kind, calls = DEVICE[library]
    value: Any = kind(np.arange(4.0))
    originals = kept(value, free_bytes=MIB)
    value.memory.fill(7)
    put_back(originals, value)

    assert value.memory.tolist() == [0, 1, 2, 3]
    assert value.calls[: len(calls)] == calls


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("kind", [Tensor, CupyArray])
@pytest.mark.parametrize(
    ("free_bytes", "reason"),
    [
        (160 * MIB, ""),
        (159 * MIB, f"with its 16 MiB, {LIMITED} 10% of the device's free memory"),
        (None, "the free memory of its device is not known"),
    ],
)
def test_copies_take_a_tenth_of_the_free_device_memory(
    kind: type[Any], free_bytes: int | None, reason: str
) -> None:
    """What does not fit is not allocated, nor where the free memory is not known."""
    value = kind(np.zeros(2 * MIB))
    original = kept(value, free_bytes=free_bytes).of(value)

    assert (original if isinstance(original, str) else "") == reason
    assert bool(value.calls) is not bool(reason)


def test_what_a_call_has_written_is_copied_whatever_its_size() -> None:
    """The limit is of the copies that last; this one is of what has one."""
    value = bytearray(65 * MIB)
    content = copied(value)
    value[0] = 1
    assert content is not None
    for write in content:
        write()

    assert value[0] == 0
    with mock.patch.object(CupyArray, "copy", side_effect=MemoryError):
        assert copied(CupyArray([1])) is None


@pytest.mark.usefixtures("torch")
def test_a_tensor_of_the_host_takes_none_of_the_device() -> None:
    """It counts as any other array of the host."""
    value = Tensor(np.arange(4.0), device="cpu")
    original = kept(value).of(value)

    assert not isinstance(original, str)


def test_free_memory_is_asked_for_once_and_only_for_a_device() -> None:
    """A test of the host asks no driver."""
    ask = mock.Mock(return_value=80 * MIB)
    originals = Originals(ask)
    originals.keep([("argument 0", np.ones(3), None)])
    assert ask.call_count == 0

    arrays = [CupyArray(np.ones(MIB // 2)) for _ in range(3)]  # 4 MiB each
    originals.keep([("argument 0", each, None) for each in arrays])
    assert ask.call_count == 1
    assert [isinstance(originals.of(each), str) for each in arrays] == [True, False, False]  # fmt: skip
