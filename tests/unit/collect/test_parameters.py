"""collect.parameters: equal parameters have one digest in every process."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
import types
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.parameters import parameters_digest


def digest(value: object, *checkout: str) -> str | None:
    """The digest of one parameter."""
    return parameters_digest({"x": value}, checkout)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
HASHABLE = SCALARS | st.tuples(SCALARS, SCALARS)
VALUES = st.recursive(
    SCALARS | st.frozensets(HASHABLE, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_an_equal_value_has_an_equal_digest(value: object) -> None:
    """Whatever the order in which sets and dicts were filled."""
    assert digest(value) == digest(_turned(value))
    assert len(digest(value) or "") == 16


def _turned(value: object) -> object:
    """The same value, its sets and dicts filled the other way round."""
    if isinstance(value, list):
        return [_turned(v) for v in value]
    if isinstance(value, dict):
        return {k: _turned(v) for k, v in reversed(value.items())}
    if isinstance(value, frozenset):
        return frozenset(reversed([*value]))
    return value


@given(st.lists(SCALARS, max_size=5), st.lists(SCALARS, max_size=5))
def test_other_scalars_have_another_digest(first: Any, second: Any) -> None:
    """1, True and 1.0 are three parameters, although they are equal."""
    alike = repr(first) == repr(second)
    assert (digest(first) == digest(second)) is alike


class Kind(enum.Enum):
    FAST = 1
    SLOW = 2


class Mode(enum.IntFlag):
    A = 1
    B = 2


class Plain:
    def __init__(self, n: int) -> None:
        self.n = n
        self.other = object()


class Slotted:
    __slots__ = ("__hidden", "n", "unset")

    def __init__(self, n: int) -> None:
        self.n = n
        self.__hidden = [n]


@dataclasses.dataclass
class Shape:
    n: int
    cache: object = dataclasses.field(default=None, compare=False)


class Pair(NamedTuple):
    a: int
    b: object


class Struct(msgspec.Struct):
    n: int


class Addressed:
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"<Addressed {self.n} at {hex(id(self))}>"


class Word(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{hex(id(self))}>"


class Array:
    """What any library's array looks like."""

    dtype = "float32"

    def __init__(self, *shape: int, device: str = "cpu") -> None:
        self._shape, self._device = shape, device

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def __setitem__(self, key: object, value: object) -> None:
        """An array, not a scalar."""

    def __repr__(self) -> str:
        pytest.fail("an array must not be printed")


def local(n: int) -> Any:
    def work() -> int:
        return n

    return work


MAKERS = [
    Plain,
    Slotted,
    Shape,
    Struct,
    Addressed,
    Array,
    local,
    lambda n: Word("a" * n),
    lambda n: Pair(n, Plain(n)),
    lambda n: functools.partial(sorted, key=local(n)),
    lambda n: lambda: n,
    lambda n: Plain(n).__init__,  # type: ignore[misc] # a bound method
    lambda n: [Kind.FAST, Kind.SLOW][n % 2],
    lambda n: Mode(n % 4),
    lambda n: [int, float][n % 2],
    lambda n: [json, os][n % 2],
    lambda n: [sorted, min][n % 2],
    bytearray,
    lambda n: memoryview(bytes(n)),
    lambda n: PurePosixPath(f"a/{n}"),
    lambda n: collections.deque([n]),
    lambda n: collections.Counter([n]),
    range,
    lambda n: "x" * (n + 1_000_000),
    lambda n: bytes(n + 2_000_000),
    lambda n: 10 ** (5_000 + n),
    lambda n: types.SimpleNamespace(n=n),
    lambda n: list[[int, str][n % 2]],  # type: ignore[misc] # made as it runs
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_value_is_known_by_what_it_is(make: Any) -> None:
    """One made anew, at another address, is the same; one of other content is not."""
    kept = make(2)
    assert digest(kept) == digest(make(2))
    assert digest(kept) != digest(make(3))


def test_a_field_that_does_not_compare_does_not_count() -> None:
    """A cache or a time that a dataclass leaves out of its own comparison."""
    assert digest(Shape(1, cache=1)) == digest(Shape(1, cache=2))


def test_a_list_and_a_tuple_are_two_things() -> None:
    """So are a subclass and its base, and two enums of one value."""
    values: list[object] = [
        [1],
        (1,),
        {1},
        Pair(1, 2),
        (1, 2),
        Word("a"),
        "a",
        1,
        Mode.A,
    ]
    assert len({digest(value) for value in values}) == len(values)


class Raises:
    def __repr__(self) -> str:
        raise SystemExit


class Huge:
    def __init__(self, end: str = "") -> None:
        self.end = end

    def __repr__(self) -> str:
        return "x" * 1_000_000 + self.end


def test_a_repr_that_raises_leaves_the_type() -> None:
    """pytest.skip or SystemExit in it end no test."""
    assert digest(Raises()) == digest(Raises())
    assert digest(Raises()) != digest(Huge())


def test_the_text_is_bounded() -> None:
    """What follows 64 kB of a repr or of a container does not count."""
    assert digest(Huge()) == digest(Huge("more"))
    long = [*range(100_000)]
    assert digest(long) == digest([*long[:-1], 0])
    assert digest(long) != digest(long[:-1])
    assert digest({*long}) == digest({*reversed(long)})
    assert digest({n: n for n in long}) == digest({n: n for n in reversed(long)})


def test_sets_are_left_out_as_a_whole_where_no_room_is_left() -> None:
    """Which of their members had room would depend on the seed of hashes."""
    members = [f"{n:0>900}" for n in range(200)]
    assert digest({*members}) == digest({*reversed(members)})


def test_cycles_and_depth_end() -> None:
    """A list in itself, an object that knows itself, and 10,000 lists in one another."""
    cycle: list[object] = [1]
    cycle.append(cycle)
    owner = Plain(1)
    owner.other = owner
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert digest(cycle) == digest(cycle)
    assert digest(owner) == digest(owner)
    assert digest(deep) == digest(deep)


def test_a_shared_list_is_no_cycle() -> None:
    """The same list twice is as good as two equal ones."""
    shared = [1]
    assert digest([shared, shared]) == digest([[1], [1]])


def test_paths_are_relative_to_the_checkout(tmp_path: Path) -> None:
    """In paths, in texts and in what a repr says, under any spelling of the folder."""
    for make in (Path, str, open_repr, lambda p: [Path(p)]):
        one = digest(make("/one/data/a"), "/one", "/uno")
        other = digest(make("/two/data/a"), "/two")
        spelled = digest(make("/uno/data/a"), "/one", "/uno")
        outside = digest(make("/two/data/a"), "/one")
        assert one == other == spelled != outside


def open_repr(path: str) -> object:
    """Something whose repr has a path, as an open file's."""
    return types.MappingProxyType({"name": path})


def test_arrays_are_known_by_shape_type_and_device() -> None:
    """Their contents are not read, and a device has no number."""
    assert digest(Array(2, 3)) == digest(Array(2, 3))
    assert digest(Array(2, 3)) != digest(Array(3, 2))


def test_numpy_is_known_by_protocol() -> None:
    """Arrays by shape, scalars by value; types and functions by name."""
    np = pytest.importorskip("numpy")
    assert digest(np.zeros(3)) == digest(np.ones(3))
    assert digest(np.zeros(3)) != digest(np.zeros(3, "f4"))
    assert digest(np.float32(1)) != digest(np.float32(2))
    assert digest(np.int64(1)) != digest(np.int64(2))
    assert digest(np.float32) != digest(np.float64)
    assert digest(np.add) != digest(np.multiply)
    assert digest(np.random.default_rng(1)) == digest(np.random.default_rng(1))


@pytest.mark.parametrize("package", ["torch", "jaxlib.xla", "cupy.cuda"])
def test_a_device_has_no_number(package: str) -> None:
    """Which GPU of several is free differs between runs."""

    def device(kind: str, index: int) -> object:
        cls = type(
            "Device",
            (),
            {"__module__": package, "__repr__": lambda self: f"{kind}:{index}"},
        )
        made = cls()
        if package == "torch":
            made.type, made.index = kind, index
        return made

    assert digest(device("cuda", 0)) == digest(device("cuda", 1))
    assert digest(device("cuda", 0)) != digest(device("cpu", 0))


def test_names_count_and_their_order_does_not() -> None:
    """Nothing has a digest where there are no parameters."""
    assert parameters_digest({}) is None
    assert parameters_digest({"a": 1, "b": 2}) == parameters_digest({"b": 2, "a": 1})
    assert parameters_digest({"a": 1, "b": 2}) != parameters_digest({"a": 2, "b": 1})


PROGRAM = """
import dataclasses, functools, pathlib, sys
from pytest_gpuperf.collect.parameters import parameters_digest

@dataclasses.dataclass(frozen=True)
class Shape:
    n: int

class Plain:
    def __init__(self):
        self.names = {"a", "bb", "ccc"}

    def method(self):
        pass

values = {
    "set": {"a", "b", "c", ("d", None), Shape(3)},
    "dict": {frozenset("xyz"): {"k", "l"}, Shape(1): 2},
    "plain": [Plain(), Plain().method, object(), lambda x: x + 1],
    "partial": functools.partial(sorted, key=len),
    "path": pathlib.Path("a"),
    "type": Plain,
}
print(parameters_digest(values))
"""


def test_processes_agree() -> None:
    """Whatever the seed of their hashes and wherever their objects lie."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in range(1, 4)
    }
    assert len(digests) == 1
    assert digests != {"None\n"}
