"""Rules of collect.timing.{contents,contract}: what a repeated call must keep."""

from __future__ import annotations

import array
import asyncio
import contextlib
import functools
import io
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from pytest_gpuperf.collect.base import TimedCall, arguments
from pytest_gpuperf.collect.timing.contents import (
    contents,
    digest,
    holdings,
    scalar_bytes,
)
from pytest_gpuperf.collect.timing.contract import (
    Contract,
    refuse_function,
    refuse_result,
)
from pytest_gpuperf.errors import MeasureError


def nothing(*_: object) -> None:
    """Do nothing."""


def codes(
    request: TimedCall, samples: tuple[float, ...] = (), output: object = None
) -> list[str]:
    """Return the codes of the notes on a measurement."""
    return [note.code for note in Contract(request).notes(samples, output)]


def test_a_task_that_is_done_has_done_its_work() -> None:
    """One that is not has done none yet."""

    async def call() -> tuple[object, object]:
        done, later = (asyncio.ensure_future(asyncio.sleep(0, n)) for n in range(2))
        await done
        later.cancel()
        return done, asyncio.get_running_loop().create_future()

    done, pending = asyncio.run(call())

    refuse_result(nothing, done)
    with pytest.raises(MeasureError, match="awaitable"):
        refuse_result(nothing, pending)


def test_a_long_row_in_many_places_is_read_once_in_a_while() -> None:
    """All of its 400 million numbers would take the machine's memory."""
    rows = [[0.5] * 4000] * 100_000
    (content,) = contents(rows, "rows")
    data = content.read()

    assert data is not None
    assert len(data) < 50e6


MUTABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2.5, "a"], lambda x: x.append(3)),
    "nested list": (lambda: [[1], [2]], lambda x: x[1].append(3)),
    "dict": (lambda: {"a": 1}, lambda x: x.update(a=2)),
    "set": (lambda: {1, 2}, lambda x: x.add(3)),
    "tuple of lists": (lambda: ([1], [2]), lambda x: x[0].clear()),
    "bytearray": (lambda: bytearray(b"abc"), lambda x: x.extend(b"d")),
    "memoryview": (
        lambda: memoryview(bytearray(b"abcdef")),
        lambda x: x.__setitem__(5, 0),
    ),
    "strided memoryview": (
        lambda: memoryview(bytearray(b"abcdef"))[::2],
        lambda x: x.__setitem__(2, 0),
    ),
    "memoryview by columns": (
        lambda: memoryview(cast("Any", np.ones((2, 3), order="F"))),
        lambda x: x.__setitem__((1, 2), 0.0),
    ),
    "array.array": (lambda: array.array("d", [1, 2]), lambda x: x.append(3)),
    "numpy array": (lambda: np.arange(6.0), lambda x: x.__setitem__(5, 0)),
    "numpy view": (lambda: np.arange(6.0)[::2], lambda x: x.__setitem__(2, 0)),
    "numpy transposed": (lambda: np.ones((2, 3)).T, lambda x: x.__setitem__((2, 1), 0)),
    "numpy scalar array": (lambda: np.array(1.0), lambda x: x.fill(2)),
    "numpy dates": (
        lambda: np.array(["2026-01-01"], "M8[D]"),
        lambda x: x.__setitem__(0, np.datetime64("2027-01-01")),
    ),
    "list of arrays": (lambda: [nothing, np.ones(2)], lambda x: x[1].fill(2)),
    "dict of arrays": (lambda: {"w": np.ones(2), "f": nothing}, lambda x: x["w"].fill(2)),
    "large array": (lambda: np.zeros(5 * 1024**2), lambda x: x[1000:2000].fill(2)),
    "large bytearray": (
        lambda: bytearray(33 * 1024**2),
        lambda x: x.__setitem__(slice(100, 200), b"a" * 100),
    ),
    "deque": (lambda: deque([1, 2]), lambda x: x.clear()),
    "large deque": (lambda: deque(range(3_000_000)), lambda x: x.clear()),
    "counter": (lambda: Counter("ab"), lambda x: x.update(a=2)),
    "ordered dict": (lambda: OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    "list of objects": (lambda: [nothing, nothing], lambda x: x.pop()),
    "deque of objects": (lambda: deque([nothing]), lambda x: x.clear()),
    "dict of objects": (lambda: {1: nothing}, lambda x: x.clear()),
    "set of objects": (lambda: {nothing}, lambda x: x.clear()),
    "large list": (lambda: [0] * 3_000_000, lambda x: x.__setitem__(slice(9), [1] * 9)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MUTABLE)
@pytest.mark.parametrize("how", ["args", "kwargs", "inputs"])
def test_a_changed_input_voids_the_measurement(kind: str, how: str) -> None:
    """Whatever can be read and changed between the two looks makes it void."""
    make, change = MUTABLE[kind]
    value = make()
    request = {
        "args": TimedCall(fn=nothing, args=(1, value)),
        "kwargs": TimedCall(fn=nothing, kwargs={"x": value}),
        "inputs": TimedCall(fn=nothing, inputs=[None, (1, value)]),
    }[how]
    contract = Contract(request)

    assert contract.void() is None

    change(value)
    void = contract.void()

    assert void is not None
    assert void.code == "mutates-its-inputs"
    assert {"args": "argument 1", "kwargs": "argument x", "inputs": "inputs[1] argument 1"}[how] in void.text  # fmt: skip
    assert "setup=" in void.text


def test_with_setup_inputs_may_change() -> None:
    """Arguments that are made anew for every call are not looked at."""
    value = [1]
    contract = Contract(TimedCall(fn=nothing, args=(value,), setup=lambda: None))
    value.append(2)

    assert contract.void() is None


def test_what_cannot_change_is_not_looked_at() -> None:
    """Numbers, texts and other objects have no content."""
    found = [
        list(contents(x, "x")) for x in (1, 2.5, "a", b"a", None, nothing, range(9))
    ]

    assert found == [[]] * 7


def test_lists_are_not_followed_for_ever() -> None:
    """A list that holds itself, and something unreadable, ends."""
    loop: list[object] = [nothing]
    loop.append(loop)

    found = list(contents(loop, "x"))

    assert {(content.kind, digest(content)) for content in found} == {
        ("list", digest(found[0]))
    }
    assert len(found) == len("xxxx") + 1


class Reader:
    """An iterator of somebody's own."""

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        return 1


def numbers() -> Iterator[int]:
    """Yield a number."""
    yield 1


async def numbers_later() -> AsyncIterator[int]:
    """Yield a number, later."""
    yield 1


class Pipe(io.RawIOBase):
    """A file that does not know where it is."""

    def readable(self) -> bool:
        return True


ONCE: dict[str, Callable[[], object]] = {
    "zip": lambda: zip([1], [2], strict=True),
    "map": lambda: map(str, [1]),
    "generator": numbers,
    "async_generator": numbers_later,
    "Reader": Reader,
    "Pipe": Pipe,
}


@pytest.mark.parametrize("kind", ONCE)
@pytest.mark.parametrize(
    ("request_of", "place"),
    [
        (lambda x: TimedCall(fn=nothing, args=(1, x)), "argument 1"),
        (lambda x: TimedCall(fn=nothing, kwargs={"it": x}), "argument it"),
        (lambda x: TimedCall(fn=nothing, args=([1, x],)), "argument 0[1]"),
        (lambda x: TimedCall(fn=nothing, args=((x,),)), "argument 0[0]"),
        (lambda x: TimedCall(fn=nothing, args=({"a": x},)), "argument 0['a']"),
        (lambda x: TimedCall(fn=nothing, inputs=[1, (x,)]), "inputs[1] argument 0"),
        (lambda x: TimedCall(fn=functools.partial(nothing, x)), "bound argument 0"),
    ],
)
def test_what_is_gone_through_once_is_no_input(
    kind: str, request_of: Callable[[object], TimedCall], place: str
) -> None:
    """What cannot tell if a call took of it: named with its place, type and a remedy."""
    void = Contract(request_of(ONCE[kind]())).void()

    assert void is not None
    assert void.code == "uses-up-its-inputs"
    assert void.text.startswith(f"{place} ({kind}) can be read only once")
    assert "give setup= (of measure or compare) that returns a fresh one" in void.text


def opened(mode: str, content: str = "1\n2\n") -> Callable[[Path], Any]:
    """Return what opens a file with some content."""

    def make(folder: Path) -> Any:
        path = folder / "file"
        path.write_text(content)
        return path.open(mode)

    return make


SOURCES: dict[str, tuple[Callable[[Path], Any], Callable[[Any], object]]] = {
    "list_iterator": (lambda _: iter([1]), next),
    "range_iterator": (lambda _: iter(range(3)), next),
    "repeat": (lambda _: itertools.repeat(1, 2), next),
    "StringIO": (lambda _: io.StringIO("1"), lambda x: x.read()),
    "BytesIO": (lambda _: io.BytesIO(b"1"), lambda x: x.read()),
    "TextIOWrapper": (opened("r"), lambda x: x.read()),
    "BufferedReader": (opened("rb"), lambda x: x.read(1)),
    "BufferedRandom": (opened("rb+"), lambda x: x.read()),
    "FileIO": (lambda _: io.FileIO(__file__), lambda x: x.read()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_knows_how_far_it_was_read_voids_once_it_was(
    kind: str, tmp_path: Path
) -> None:
    """Nothing is lost as long as no call takes of it; and looking takes nothing."""
    make, take = SOURCES[kind]
    with contextlib.ExitStack() as held:
        source = make(tmp_path)
        if isinstance(source, io.IOBase):
            held.enter_context(source)
        contract = Contract(TimedCall(fn=nothing, args=(source,)))

        assert contract.void() is None

        take(source)
        void = contract.void()

    assert void is not None
    assert void.code == "uses-up-its-inputs"
    assert void.text.startswith(f"argument 0 ({kind}) can be read only once")


def test_looking_at_a_file_takes_nothing_of_it(tmp_path: Path) -> None:
    """Its position, and what comes next, are as they were."""
    for mode, first, rest in (("r+", "1", "\n2\n"), ("rb+", b"1", b"\n2\n")):
        with opened(mode)(tmp_path) as file:
            assert file.read(1) == first
            Contract(TimedCall(fn=nothing, args=(file,)))
            assert file.read() == rest


def test_a_text_file_that_is_looped_over_does_not_know_where_it_is(
    tmp_path: Path,
) -> None:
    """It cannot say that nothing was taken, so it was."""
    with opened("r")(tmp_path) as file:
        contract = Contract(TimedCall(fn=nothing, args=(file,)))
        next(file)
        for looked in (contract, Contract(TimedCall(fn=nothing, args=(file,)))):
            void = looked.void()
            assert void is not None
            assert void.code == "uses-up-its-inputs"


@pytest.mark.parametrize(
    "make",
    [
        lambda _: io.StringIO(),
        lambda _: io.BytesIO(),
        opened("w"),
        opened("w+"),
        opened("wb+"),
        opened("a+"),
        lambda folder: (folder / "file").open("w+", encoding="utf-16"),
    ],
)
def test_a_sink_takes_what_every_call_writes(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    """One that can be read, too, has nothing that a call could use up."""
    with make(tmp_path) as sink:
        contract = Contract(TimedCall(fn=nothing, args=("text", sink)))
        for _ in range(3):
            sink.write(b"x" if "b" in getattr(sink, "mode", "") or isinstance(sink, io.BytesIO) else "x")  # fmt: skip
        assert contract.void() is None
        again = Contract(TimedCall(fn=sink.write))
        assert again.void() is None


def test_a_sink_is_left_as_it_was(tmp_path: Path) -> None:
    """To see that nothing is to be read writes nothing, not even a mark of order."""
    path = tmp_path / "file"
    with path.open("w+", encoding="utf-16") as sink:
        Contract(TimedCall(fn=nothing, args=(sink,)))
        sink.write("a")
        Contract(TimedCall(fn=nothing, args=(sink,)))
        sink.write("b")

    assert path.read_bytes() == "ab".encode("utf-16")


def test_bytes_that_are_no_text_are_something_to_be_read(tmp_path: Path) -> None:
    """A file that cannot be read as what it is opened for is not an empty one."""
    path = tmp_path / "file"
    path.write_bytes(b"\xff")
    with path.open("r+", encoding="utf-8") as file:
        contract = Contract(TimedCall(fn=nothing, args=(file,)))
        assert contract.void() is None
        file.seek(0, io.SEEK_END)
        assert contract.void() is not None


@pytest.mark.parametrize(
    "endless",
    [itertools.repeat(1), itertools.count(), itertools.cycle([1])],
    ids=["repeat", "count", "cycle"],
)
def test_what_never_ends_is_not_used_up(endless: Iterator[int]) -> None:
    """The next call finds as many items as the one before."""
    contract = Contract(TimedCall(fn=endless.__next__, args=(endless,)))
    next(endless)

    assert contract.void() is None


def test_an_iterator_that_setup_makes_is_an_input() -> None:
    """Fresh ones are what the remedy asks for."""
    request = TimedCall(fn=sum, setup=lambda: (iter([1]),))

    assert Contract(request).void() is None


def test_an_iterator_is_named_and_not_touched() -> None:
    """Nothing is taken from it, and nobody is told that it could not be read."""
    values = iter([1, 2])
    request = TimedCall(fn=nothing, args=(values, open))

    assert codes(request) == []
    assert list(values) == [1, 2]


def test_a_file_is_used_up_by_reading_alone(tmp_path: Path) -> None:
    """One that only takes what is written is not looked at, open or closed."""
    path = tmp_path / "file"
    with path.open("w") as sink:
        assert Contract(TimedCall(fn=nothing, args=(sink,))).void() is None
    assert Contract(TimedCall(fn=nothing, args=(sink,))).void() is None
    path.write_text("1")
    with path.open() as source:
        contract = Contract(TimedCall(fn=nothing, args=(source,)))
        source.read()
        void = contract.void()

    assert void is not None
    assert void.text.startswith("argument 0 (TextIOWrapper)")


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        ([3, 1], "sort", lambda x: x.sort()),
        (deque([1]), "pop", lambda x: x.pop()),
        (np.array([3, 1]), "sort", lambda x: x.sort()),
        (Counter("a"), "elements", lambda x: x.clear()),
    ],
)
def test_the_object_of_a_method_is_an_input(
    owner: Any, name: str, change: Callable[[Any], object]
) -> None:
    """What a bound method works on must stay the same, too."""
    contract = Contract(TimedCall(fn=functools.partial(getattr(owner, name))))

    assert contract.void() is None

    change(owner)
    void = contract.void()

    assert void is not None
    kind = type(owner).__name__
    assert void.text.startswith(f"the object of {name} ({kind}) changed between")


def test_the_method_of_an_iterator_uses_it_up() -> None:
    """Also a method that is written in C; an object with attributes is not looked at."""
    ones = iter([1])
    contract = Contract(TimedCall(fn=ones.__next__))
    next(ones)
    void = contract.void()

    assert void is not None
    assert void.text.startswith("the object of __next__ (list_iterator) can be read")
    assert Contract(TimedCall(fn=Path().exists)).void() is None


def test_an_array_of_objects_is_said_to_be_unread() -> None:
    """What has content that cannot be read is named in a note, never passed over."""
    request = TimedCall(fn=nothing, args=(np.array([nothing], dtype=object),))

    assert codes(request) == ["unread-inputs"]


class FakeDeviceArray:
    """An array on a device, as cupy (`get`) and numba (`copy_to_host`) have it."""

    itemsize = 8
    __cuda_array_interface__: dict[str, object] = {}  # noqa: RUF012 - as cupy writes it

    def __init__(self, method: str) -> None:
        self.values = np.arange(3.0)
        if method:
            setattr(self, method, lambda: self.values)


@pytest.mark.parametrize("method", ["get", "copy_to_host"])
def test_an_array_on_a_device_is_fetched(method: str) -> None:
    """A copy on the host stands for an array on the device."""
    value = FakeDeviceArray(method)
    contract = Contract(TimedCall(fn=nothing, args=(value,)))
    value.values[1] = 9

    assert contract.void() is not None


def test_an_array_on_a_device_that_cannot_be_fetched_is_unread() -> None:
    """Without a way to the host, it is said that nothing is known."""
    request = TimedCall(fn=nothing, args=(FakeDeviceArray(""),))

    assert codes(request) == ["unread-inputs"]


class FakeTensor:
    """A tensor with the methods of torch that are used to read it."""

    def __init__(self, values: Any, *, sparse: bool = False) -> None:
        self.values = np.asarray(values)
        self.sparse = sparse

    def element_size(self) -> int:
        return self.values.itemsize

    def numel(self) -> int:
        return self.values.size

    def detach(self) -> FakeTensor:
        return self

    contiguous = cpu = detach

    def reshape(self, *shape: int) -> FakeTensor:
        if self.sparse:
            message = "sparse tensors do not have strides"
            raise RuntimeError(message)
        return FakeTensor(self.values.reshape(*shape))

    def __getitem__(self, key: slice) -> FakeTensor:
        return FakeTensor(self.values[key])

    def view(self, dtype: Any) -> FakeTensor:
        return FakeTensor(self.values.view(dtype))

    def numpy(self) -> Any:
        return self.values


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a torch with FakeTensor for its tensors among the loaded modules."""
    torch = type("torch", (), {"Tensor": FakeTensor, "uint8": np.uint8})
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)


@pytest.mark.usefixtures("fake_torch")
def test_a_tensor_is_read() -> None:
    """A torch tensor that changed voids the measurement; an equal one does not."""
    tensor = FakeTensor(np.arange(6.0).reshape(2, 3))
    contract = Contract(TimedCall(fn=nothing, args=(tensor,)))

    assert contract.void() is None

    tensor.values[1, 2] = 0

    assert contract.void() is not None


@pytest.mark.usefixtures("fake_torch")
def test_a_tensor_that_cannot_be_read_is_said() -> None:
    """Sparse and fake tensors have no bytes to look at."""
    request = TimedCall(fn=nothing, args=(FakeTensor(np.ones(3), sparse=True),))

    assert codes(request) == ["unread-inputs"]


@pytest.mark.parametrize(
    ("value", "constant"),
    [
        (np.zeros(100), True),
        (np.full((3, 4), 7, dtype=np.int8), True),
        (np.full(100_000, 2.5), True),
        (np.arange(100.0), False),
        (np.array([1.0]), False),
        (np.array([]), False),
        (bytearray(10), True),
        (bytearray(b"ab"), False),
        (array.array("i", [3, 3, 3]), True),
        ([0, 0, 0], False),
        ([np.zeros(3), nothing], True),
    ],
)
def test_constant_arrays_are_noted(value: object, constant: bool) -> None:
    """An array of one value draws less power; a list of numbers is not such a thing."""
    request = TimedCall(fn=nothing, args=(value,))

    assert codes(request) == (["constant-input"] if constant else [])


@pytest.mark.parametrize(
    ("first", "last", "differ"),
    [
        (1, 1, False),
        (1, 2, True),
        (1, 1.0, True),
        ("a", "a", False),
        (np.float64(1), np.float64(2), True),
        (np.ones(3), np.ones(3), False),
        (np.ones(3), np.zeros(3), True),
        ([np.ones(3), 1], [np.ones(3), 2], True),
        (None, None, False),
        (nothing, print, False),
        ([nothing], [print], False),
        ([np.ones(3), iter([1])], [np.zeros(3), iter([1])], True),
        (iter([1]), iter([2]), False),
    ],
)
def test_differing_outputs_are_noted(first: object, last: object, differ: bool) -> None:
    """Arrays and scalars are compared; other outputs are not."""
    contract = Contract(TimedCall(fn=nothing))
    contract.first_output(first)
    notes = contract.notes((), last)

    assert [note.code for note in notes] == (["outputs-differ"] if differ else [])


@pytest.mark.parametrize(
    "request_",
    [
        TimedCall(fn=nothing, setup=lambda: None),
        TimedCall(fn=nothing, inputs=[1, 2]),
    ],
)
def test_outputs_of_other_inputs_may_differ(request_: TimedCall) -> None:
    """With setup or a pool, calls need not give the same."""
    contract = Contract(request_)
    contract.first_output(1)

    assert contract.notes((), 2) == ()


def test_a_pool_of_one_is_the_same_input() -> None:
    """A single item of the pool is compared like plain arguments."""
    contract = Contract(TimedCall(fn=nothing, inputs=[1]))
    contract.first_output(1)

    assert [note.code for note in contract.notes((), 2)] == ["outputs-differ"]


@pytest.mark.parametrize(
    ("samples", "trend"),
    [
        (tuple(1 + 0.01 * i for i in range(20)), True),
        (tuple(1 - 0.01 * i for i in range(20)), True),
        ((1.0, 1.1) * 10, False),
        ((1.0,) * 20, False),
        (tuple(1 + 0.0001 * i for i in range(20)), False),
        ((1.0, 2.0, 3.0), False),
    ],
)
def test_a_trend_is_noted(samples: tuple[float, ...], trend: bool) -> None:
    """Both directions count; a drift below 2 % and alternating samples do not."""
    assert codes(TimedCall(fn=nothing), samples) == (["trend"] if trend else [])


@pytest.mark.parametrize(
    ("first_s", "usual_s", "noted"),
    [
        (20e-3, 50e-9, True),
        (1.1e-3, 10e-6, True),
        (1.1e-3, 11e-6, False),
        (1e-3, 1e-9, False),
        (None, 1e-9, False),
    ],
)
def test_a_long_first_call_is_noted(
    first_s: float | None, usual_s: float, noted: bool
) -> None:
    """More than 1 ms and more than 100 times the others: information, no verdict."""
    contract = Contract(TimedCall(fn=nothing))
    notes = contract.notes((usual_s,) * 20, None, first_s)

    assert [note.code for note in notes] == (["long-first-call"] if noted else [])
    assert contract.notes((), None, first_s) == ()


def test_a_long_first_call_is_told_in_times_of_the_others() -> None:
    """With what it may mean."""
    (note,) = Contract(TimedCall(fn=nothing)).notes((1e-6,) * 20, None, 0.02)

    assert note.text == (
        "the first call took 20,000 times the median of the later calls: its work may be"
        " cached, or its input consumed"
    )


class Stream:
    """What a test may drain: by attributes of all kinds that can be emptied."""

    __slots__ = ("__dict__", "slot", "unfilled")

    def __init__(self) -> None:
        self.items = [1, 2]
        self.left = iter([1, 2])
        self.later = numbers()
        self.log: list[int] = []
        self.slot = {1: nothing}
        self.size = 2

    def drain(self, name: str = "items") -> None:
        """Empty one."""
        held = getattr(self, name)
        if isinstance(held, Iterator):
            list(held)
        else:
            held.clear()


def used_up(contract: Contract, first_s: float | None, output: object = None) -> str:
    """Return the text of the note that work was used up; "": there is none."""
    notes = contract.notes((1e-5,) * 20, output, first_s)
    assert all(note.doubt is (note.code == "used-up") for note in notes)
    return next((note.text for note in notes if note.code == "used-up"), "")


@pytest.mark.parametrize("name", ["items", "left", "later", "slot"])
@pytest.mark.parametrize(
    "request_of",
    [
        lambda stream: TimedCall(fn=stream.drain),
        lambda stream: TimedCall(fn=functools.partial(stream.drain, "items")),
        lambda stream: TimedCall(fn=functools.partial(nothing, stream)),
        lambda stream: TimedCall(fn=nothing, args=(stream,)),
        lambda stream: TimedCall(fn=nothing, kwargs={"x": stream}),
        lambda stream: TimedCall(fn=nothing, inputs=[(1,), (2, stream)]),
    ],
)
def test_an_object_that_the_first_call_emptied_is_told(
    name: str, request_of: Callable[[Stream], TimedCall]
) -> None:
    """Where that call took far longer as well: each is not evidence by itself."""
    stream = Stream()
    contract = Contract(request_of(stream))

    assert used_up(contract, 1e-3) == ""

    stream.drain(name)

    assert used_up(contract, 1e-3) == (
        "the first call took 100 times the median of the later calls, and"
        f" Stream.{name} is now empty: it may have consumed its input; give setup= (of"
        " measure or compare) that returns a fresh object"
    )
    assert used_up(contract, 1e-4) == ""
    assert used_up(contract, None) == ""
    assert contract.void() is None


class Unbound:
    """A proxy of something that is not there now."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override] # as proxies do
        raise RuntimeError("nothing is bound")

    @property  # type: ignore[misc] # likewise
    def __class__(self) -> type:
        raise RuntimeError("nothing is bound")


class Endless(list[int]):
    """A list that does not know how long it is."""

    def __len__(self) -> int:
        raise RuntimeError("nobody knows")


class Rows:
    """A sequence of the old kind, likewise."""

    __len__ = Endless.__len__

    def __getitem__(self, _: int) -> int:
        return 0


@pytest.mark.parametrize(
    "held",
    [lambda: mock.Mock(spec=list), Unbound, Endless, lambda: iter(cast("Any", Rows()))],
)
def test_no_code_of_what_an_object_holds_is_run(held: Callable[[], object]) -> None:
    """To look for what was emptied asks nobody who may not want to answer."""
    stream = Stream()
    stream.items = held()  # type: ignore[assignment] # what a user may put there
    contract = Contract(TimedCall(fn=nothing, args=(stream,)))

    assert used_up(contract, 1e-3) == ""


def test_a_proxy_of_nothing_may_be_an_argument_of_a_method() -> None:
    """Neither its attributes nor its class are asked for."""
    assert holdings(Unbound()) == []


def test_a_variable_around_the_function_may_be_emptied() -> None:
    """It is told as an attribute is."""
    values = iter([1, 2])
    contract = Contract(TimedCall(fn=lambda: sum(values)))
    list(values)

    assert "<lambda>.values is now empty" in used_up(contract, 1e-3)


def test_with_setup_an_object_may_be_emptied() -> None:
    """It is fresh for each call."""
    stream = Stream()
    contract = Contract(TimedCall(fn=nothing, args=(stream,), setup=Stream))
    stream.drain()

    assert used_up(contract, 1e-3) == ""


@pytest.mark.parametrize(
    ("very_first", "first", "last", "told"),
    [
        (10, 0, 0, True),
        (np.arange(3), np.zeros(3), np.zeros(3), True),
        (0, 0, 0, False),
        (10, 11, 12, False),
        (10, 11, 11.5, False),
        (object(), 0, 0, False),
        (10, object(), object(), False),
        (None, None, None, False),
    ],
)
def test_a_result_that_no_later_call_returns_is_told(
    very_first: object, first: object, last: object, told: bool
) -> None:
    """What is kept returns the same; what differs from call to call says nothing."""
    contract = Contract(TimedCall(fn=nothing))
    contract.very_first_output(very_first)
    contract.first_output(first)

    text = used_up(contract, 1e-3, last)

    assert ("and its output differs from all later ones" in text) is told


def test_what_a_device_returns_first_is_not_fetched() -> None:
    """Its first call compiles, and is not evidence."""
    contract = Contract(TimedCall(fn=nothing))
    contract.very_first_output(10, on_device=True)
    contract.first_output(0)

    assert used_up(contract, 1e-3, 0) == ""


def test_a_pool_returns_different_results_by_right() -> None:
    """The first call had other arguments."""
    contract = Contract(TimedCall(fn=nothing, inputs=[1, 2]))
    contract.very_first_output(10)
    contract.first_output(0)

    assert used_up(contract, 1e-3, 0) == ""


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (None, (1,), {"a": 2}),
        ((3, 4), (3, 4), {"a": 2}),
        ((), (), {"a": 2}),
        (((3,), {"b": 4}), (3,), {"a": 2, "b": 4}),
        (5, (5,), {"a": 2}),
        ([5, 6], ([5, 6],), {"a": 2}),
    ],
)
def test_what_setup_returns_are_arguments(
    given: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """A tuple, (tuple, dict), one argument, or nothing."""
    own = (1,) if given is None else ()
    request = TimedCall(fn=nothing, args=own, kwargs={"a": 2})

    assert arguments(request, given) == (args, kwargs)


@pytest.mark.parametrize("source", ["setup", "inputs"])
@pytest.mark.parametrize("given", [(), (3,), ((), {"b": 4}), 5])
def test_no_positional_argument_is_dropped(source: str, given: object) -> None:
    """It is refused beside those that setup or inputs give; beside None it is kept."""
    how = {"setup": lambda: given} if source == "setup" else {"inputs": [given]}
    request = TimedCall(fn=nothing, args=(1,), **how)

    with pytest.raises(MeasureError, match=f"both {source} and positional"):
        arguments(request, given)


async def coroutine() -> None:
    """Do nothing, later."""


def generator() -> Iterator[int]:
    """Yield nothing yet."""
    yield 1


async def async_generator() -> AsyncIterator[int]:
    """Yield nothing yet, later."""
    yield 1


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (coroutine, "asyncio.run"),
        (functools.partial(coroutine), "asyncio.run"),
        (generator, "list"),
        (async_generator, "list"),
        (3, "the function itself"),
    ],
)
def test_a_function_that_does_no_work_is_refused(fn: object, remedy: str) -> None:
    """Before anything is called, and with what to do."""
    with pytest.raises(MeasureError) as caught:
        refuse_function(fn)

    assert remedy in caught.value.remedy


@pytest.mark.parametrize("fn", [coroutine, generator, async_generator])
def test_a_result_that_is_still_to_be_worked_for_is_refused(
    fn: Callable[[], object],
) -> None:
    """A plain function that returns one does no work either; no warning is left."""
    with pytest.raises(MeasureError):
        refuse_result(nothing, fn())


class Promise:
    """An awaitable of somebody's own."""

    def __await__(self) -> Iterator[None]:
        yield


def test_any_awaitable_is_refused() -> None:
    """Coroutines are not the only ones."""
    with pytest.raises(MeasureError, match="Promise"):
        refuse_result(Promise, Promise())


def test_a_plain_function_is_let_through() -> None:
    """Whatever else it returns."""
    refuse_function(nothing)
    refuse_result(nothing, [1])


@pytest.mark.parametrize("verdict", [None, True, np.True_, 1])
def test_a_check_may_accept(verdict: object) -> None:
    """Nothing, or something true, is consent."""
    Contract(TimedCall(fn=nothing, check=lambda _: verdict)).first_output(1)


@pytest.mark.parametrize("verdict", [False, np.False_, 0])
def test_a_check_may_refuse(verdict: object) -> None:
    """A false value fails the test, as an assert would."""
    contract = Contract(TimedCall(fn=nothing, check=lambda _: verdict))

    with pytest.raises(AssertionError, match="check refused the last timed output"):
        contract.last_output(1)


def test_equal_contents_have_equal_digests() -> None:
    """A digest depends on the values, not on who else holds a reference to them."""
    word = str(b"spam!", "ascii")
    held = [word, word, 3.5]
    fresh = [str(b"spam!", "ascii"), str(b"spam!", "ascii"), 3.5]

    assert [digest(x) for x in contents(held, "")] == [
        digest(x) for x in contents(fresh, "")
    ]


def test_scalars_are_plain_numbers_and_texts() -> None:
    """What is neither has no bytes of this kind."""
    assert scalar_bytes(nothing) is None
    assert scalar_bytes([1]) is None
    assert scalar_bytes(1.5) is not None


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: TimedCall(fn=nothing, cache="tepid"),
        lambda: TimedCall(fn=nothing, iterations=0),
        lambda: TimedCall(fn=nothing, setup=nothing, inputs=[1]),
        lambda: TimedCall(fn=nothing, inputs=[]),
    ],
)
def test_a_request_without_meaning_is_refused(
    request_of: Callable[[], TimedCall],
) -> None:
    """Each with a remedy, when it is made."""
    with pytest.raises(MeasureError) as caught:
        request_of()

    assert caught.value.remedy
