"""collect.syntax: a function that does the same has the same digest."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.collect.import_code import runs_alike
from pytest_gpuperf.collect.syntax import function_digest, lambda_digest

NUMBERS = iter(range(1_000))
TEST = '''
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_it(gpuperf, n, times=2):
    """It sorts."""
    data = [n, None, "x"]
    gpuperf.measure(sorted, data)  # a comment
'''


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """Return what imports a text as a module."""

    def imported(text: str) -> Any:
        path = tmp_path / f"module_{next(NUMBERS)}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    return imported


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[1, 2])", "[1, 2, 3])"),  # a case more
        ("# a comment", "# another"),
        ('"""It sorts."""', '"""It sorts well."""'),
        ("\n@pytest", "\nOTHER = 1\n\n\n@pytest"),
        ("[n, None,", "[\n        n,\n        None,"),
        ("gpuperf, n,", "gpuperf: object, n: int,"),
        ('"x"', "'x'"),
    ],
)
def test_layout_and_decorators_do_not_count(
    module: Any, before: str, after: str
) -> None:
    """Nor do comments, docstrings, annotations and the place in the file."""
    assert before in TEST
    first, second = (module(t).test_it for t in (TEST, TEST.replace(before, after)))
    assert function_digest(first) == function_digest(second) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("times=2", "times=3"),
        ("sorted", "list"),
        ("None", "True"),
        ('"x"', '"y"'),
        ('"x"]', '"x", "x"]'),
        ("gpuperf.measure(sorted, data)", "gpuperf.measure(sorted, [*data])"),
        ("    data =", "    assert n\n    data ="),
    ],
)
def test_work_and_defaults_count(module: Any, before: str, after: str) -> None:
    """Whatever changes what the function does is another digest."""
    assert before in TEST
    first, second = (module(t).test_it for t in (TEST, TEST.replace(before, after)))
    assert function_digest(first) != function_digest(second)


def test_wrappers_methods_and_local_functions_have_one(module: Any) -> None:
    """A decorator that uses functools.wraps is looked through."""
    made = module(
        "import functools\n"
        "def wrapped(f):\n"
        "    @functools.wraps(f)\n"
        "    def inner(*args):\n"
        "        return f(*args)\n"
        "    return inner\n"
        "@wrapped\n"
        "def test_a(): return 1\n"
        "class Test:\n"
        "    def test_a(self): return 2\n"
        "def make():\n"
        "    async def test_a(): return 3\n"
        "    return test_a\n"
    )
    several = (made.test_a, made.Test.test_a, made.make())
    digests = {function_digest(function) for function in several}
    assert len(digests) == 3
    assert None not in digests


def test_without_source_there_is_none(module: Any, tmp_path: Path) -> None:
    """Of a text, of C, of a file that is gone, broken, or too large."""
    names: dict[str, Any] = {}
    exec("def of_text(): pass", names)  # noqa: S102 - a function without a file
    gone = module("def f(): pass")
    Path(gone.__file__).unlink()
    broken = module("def f(): pass")
    Path(broken.__file__).write_text("def f(: pass", encoding="utf-8")
    large = module("def f(): pass\n" + "#" * (1 << 20))
    twice = module("def f(): return 1")
    Path(twice.__file__).write_text("#\ndef f(): return 1", encoding="utf-8")
    several = (
        names["of_text"],
        gone.f,
        broken.f,
        large.f,
        twice.f,
        len,
        None,
        object(),
    )
    assert [function_digest(function) for function in several] == [None] * 8


def test_a_cycle_of_wrappers_ends() -> None:
    """`__wrapped__` may be anything."""

    def test() -> None:
        """Nothing."""

    test.__wrapped__ = test  # type: ignore[attr-defined] # a decorator's mistake
    assert function_digest(test) is not None


def test_the_lambdas_of_a_line_are_told_apart_from_others(module: Any) -> None:
    """By their text, not by the line that they stand on."""
    one = module("f = lambda x: x + 1\n")
    moved = module("\n\nf = lambda x: (x  + 1)\n")
    other = module("f = lambda x: x + 2\n")
    digests = [lambda_digest(made.f.__code__) for made in (one, moved, other)]
    assert digests[0] == digests[1] != digests[2]
    two = module("f, g = lambda x: x, lambda y: y\n")
    assert "-" in (lambda_digest(two.f.__code__) or "")


def test_a_warning_of_the_parser_is_not_told_again(
    module: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """The import of the module has given it."""
    made = module('def f(): return "\\d"\n')
    recwarn.clear()
    assert function_digest(made.f) is not None
    assert not recwarn.list


def test_a_function_takes_few_calls(module: Any) -> None:
    """A module is parsed once, and each of its functions takes a handful of calls."""
    made = module("".join(f"def f{n}(): return [{n}, {n} + 1]\n" for n in range(50)))
    function_digest(made.f0)
    calls: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    first, again = made.f1, functools.partial(function_digest, made.f1)
    sys.setprofile(note)
    try:
        function_digest(first)
        again()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 6


MODULE = b"""
import pytest
import work

SIZE = 4
MARK = pytest.mark.gpuperf(limits="time <= 1 s")
VALUES = made(SIZE)


def made(n):
    return [n]


def helper():
    return 1


@pytest.mark.parametrize("n", [1, 2])
def test_it(gpuperf, n):
    gpuperf(helper)


class TestThem:
    @MARK
    def test_one(self):
        assert helper()


@work.wraps
def wrapped():
    return 2
"""


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        (b"gpuperf(helper)", b"gpuperf(helper, 2)", True),
        (b"return 1", b"return 2", True),
        (b"assert helper()", b"assert not helper()", True),
        (b"class TestThem:", b"def test_new():\n    pass\n\n\nclass TestThem:", True),
        (b"[1, 2]", b"[1, 2, 3]", True),
        (b"SIZE = 4", b"SIZE = 4  # of them", True),
        # The import runs these.
        (b"return [n]", b"return [n, n]", False),
        (b"return 2", b"return 3", False),
        (b"SIZE = 4", b"SIZE = 5", False),
        (b"import work", b"import work, other", False),
        (b"@work.wraps", b"@work.other", False),
        (b"[1, 2]", b"made(2)", False),
        (b"class TestThem:", b"class TestThem(Base):", False),
        (b"import work", b"import work\nwork.start()", False),
        (b"import work", b"import (", False),
    ],
)
def test_an_import_runs_what_is_outside_of_functions(
    old: bytes, new: bytes, *, alike: bool
) -> None:
    """And the functions that this code names: only other bodies may differ."""
    assert runs_alike(MODULE, MODULE.replace(old, new, 1)) is alike


UNNAMED = b"""
import pytest
import unittest
import work

SEEN = []
auto = pytest.fixture(autouse=True)


class Base:
    def __init_subclass__(cls):
        cls.follow("A")

    def follow(name):
        SEEN.append("B")


class Sub(Base):
    pass


class Item:
    def __set_name__(self, owner, name):
        SEEN.append("C")


class Meta(type):
    def __new__(cls, *args):
        SEEN.append("D")
        return super().__new__(cls, *args)

    def mro(cls):
        SEEN.append("E")
        return super().mro()


class Started(work.Base):
    def setup(self):
        SEEN.append("F")


class Made(metaclass=work.Meta):
    def setup(self):
        SEEN.append("G")


def __getattr__(name):
    SEEN.append("H")


def pytest_generate_tests(metafunc):
    SEEN.append("I")


@pytest.fixture(autouse=True)
def first():
    SEEN.append("J")


@auto
def second():
    SEEN.append("K")


def made():
    return inner()


def inner():
    return "L"


VALUE = made()


def name_of(value):
    return "M"


@pytest.mark.parametrize("n", [1, 2], ids=name_of)
def test_n(n):
    assert n != "1"


class Thing:
    def go(self):
        return "N"


VALUES = work.run(Thing)


def by_text():
    return "O"


OTHER = work.call("by_text")


class TestOld(unittest.TestCase):
    def test_it(self):
        assert "2"


def free():
    return "3"


@pytest.mark.parametrize("made", [free])
def test_free(made):
    assert made() != "4"


class TestNew:
    def test_it(self):
        assert "5"


@pytest.fixture
def third():
    return "6"
"""


@pytest.mark.parametrize("letter", "ABCDEFGHIJKLMNO")
def test_a_function_that_an_import_or_collection_may_call_counts(letter: str) -> None:
    """By Python, pytest, a base class, a called function or a text, without its name."""
    old = b'"%s"' % letter.encode()
    assert UNNAMED.count(old) == 1
    assert not runs_alike(UNNAMED, UNNAMED.replace(old, b'"other"'))


@pytest.mark.parametrize("digit", "123456")
def test_a_function_that_only_tests_call_does_not_count(digit: str) -> None:
    """Its body has no effect before the first test of its module."""
    old = b'"%s"' % digit.encode()
    assert UNNAMED.count(old) == 1
    assert runs_alike(UNNAMED, UNNAMED.replace(old, b'"other"'))


@pytest.mark.parametrize("reach", ["globals()", "eval('f' + 'ree()')", "vars()"])
def test_every_function_counts_where_an_import_may_compose_names(reach: str) -> None:
    """The names are not in the source."""
    old = f"VALUES = {reach}\n\n\ndef free():\n    return 3\n".encode()
    assert not runs_alike(old, old.replace(b"3", b"4"))


def test_a_digest_keeps_no_function(module: Any) -> None:
    """A function holds its module, and by that all of a pytest that runs in this process."""
    imported = module(TEST)
    function = weakref.ref(imported.test_it)
    assert function_digest(function()) is not None

    del imported
    gc.collect()

    assert function() is None
