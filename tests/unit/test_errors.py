"""errors: the tree, its drawing and the page that explains it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from itertools import groupby
from pathlib import Path

import pytest

import pytest_gpuperf
from pytest_gpuperf import errors
from pytest_gpuperf.errors import GpuPerfError, LimitSyntaxError, RecordError
from pytest_gpuperf.model.verdict import Outcome, Reason

PACKAGE = Path(pytest_gpuperf.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "messages.md"

CLASSES: list[type[BaseException]] = [
    thing
    for thing in vars(errors).values()
    if isinstance(thing, type)
    and issubclass(thing, BaseException)
    and thing.__module__ == errors.__name__
]


def named(kind: type[BaseException]) -> str:
    return kind.__name__


def slug_of(kind: type[BaseException]) -> str:
    return str(vars(kind)["slug"])


@functools.cache
def called() -> frozenset[str]:
    """Return all that the package calls by a plain name, errors itself left out."""
    return frozenset(
        node.func.id
        for path in PACKAGE.rglob("*.py")
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )


def drawn() -> dict[str, tuple[str, str]]:
    """Return what the drawing says: by name, the parent and the remark."""
    lines = (errors.__doc__ or "").splitlines()
    line = re.compile(r"(?P<branch>[│├└─ ]*)(?P<name>\w+Error)(?:\((?P<base>\w+)\))? +")
    found: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for text in lines:
        match = line.match(text)
        if match is None:
            continue
        depth = len(match["branch"]) // 4
        above[depth:] = [match["name"]]
        parent = above[depth - 1] if depth else match["base"]
        remark = text[match.end() :] + f" ({match['base'] or ''})"
        found[match["name"]] = (parent, remark)
    return found


def test_the_drawing_is_the_tree() -> None:
    """Each class stands once in the drawing, under its first base."""
    tree = {named(kind): named(kind.__bases__[0]) for kind in CLASSES}

    assert {name: parent for name, (parent, _) in drawn().items()} == tree


@pytest.mark.parametrize("kind", CLASSES, ids=named)
def test_the_drawing_names_every_base(kind: type[BaseException]) -> None:
    """A second base, by which others may catch an error, is drawn beside its name."""
    remark = drawn()[named(kind)][1]

    assert all(named(base) in remark for base in kind.__bases__[1:])


@pytest.mark.parametrize("kind", CLASSES, ids=named)
def test_what_an_error_carries_is_drawn_and_explained(
    kind: type[BaseException],
) -> None:
    """The attributes that its constructor sets, in its docstring and in the drawing."""
    own = vars(kind).get("__init__")
    carried = (
        set(re.findall(r"self\.(\w+) =", inspect.getsource(own))) if own else set()
    )
    text = inspect.cleandoc(kind.__doc__ or "")  # from 3.13 on it comes dedented
    explained = set(re.findall(r"^ {4}(\w+): ", text, re.MULTILINE))

    assert carried <= explained
    assert set(re.findall(r"(?<!\w)\.(\w+)", drawn()[named(kind)][1])) == (
        explained if kind is GpuPerfError else carried
    )


@pytest.mark.parametrize("kind", CLASSES, ids=named)
def test_an_error_is_named_and_explained(kind: type[BaseException]) -> None:
    """It has a slug of its own, made of its name, and a docstring of its own."""
    words = re.findall(r"[A-Z][a-z]+", named(kind).removesuffix("Error"))
    expected = "-".join(words).lower() if kind is not GpuPerfError else "gpuperf"

    assert slug_of(kind) == expected
    first_line = vars(kind)["__doc__"].strip().splitlines()[0]
    assert re.fullmatch(r"[A-Z].*[.:].*", first_line)


def test_slugs_and_reasons_are_one_set_of_names() -> None:
    """No two entries of the page share an anchor."""
    names = [slug_of(kind) for kind in CLASSES] + [reason.value for reason in Reason]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_every_public_name_is_there() -> None:
    """`__all__` is the tree, and the address that remedies name."""
    assert errors.__all__ == ["SITE", *sorted(map(named, CLASSES))]


@pytest.mark.parametrize("kind", CLASSES, ids=named)
def test_every_error_is_raised(kind: type[BaseException]) -> None:
    """A class that nobody makes, and that is not a family, is a promise not kept."""
    assert named(kind) in called() or kind.__subclasses__()


def test_an_error_ends_with_what_to_do() -> None:
    """The text is the message and the remedy; both can be read alone."""
    error = GpuPerfError("it is broken", remedy="mend it")

    assert str(error) == "it is broken; mend it"
    assert (error.message, error.remedy) == ("it is broken", "mend it")


def test_a_limit_that_does_not_parse_is_pointed_at() -> None:
    """The caret stands under the column."""
    error = LimitSyntaxError("odd", remedy="write it", text="time ! 3", column=5)

    assert str(error).splitlines() == ["odd", "    time ! 3", "         ^", "write it"]


def test_a_record_error_is_a_value_error() -> None:
    """Whoever checks values catches it without knowing us; it always has a remedy."""
    error = RecordError("wrong", path="")

    assert isinstance(error, ValueError)
    assert str(error) == "wrong; check the program that wrote it"
    assert RecordError("wrong", path="a.b", remedy="x").message == "a.b: wrong"


TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
ENTRIES: dict[str, str] = dict(
    re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
)
NAMES = [*map(slug_of, CLASSES), *(reason.value for reason in Reason)]


@pytest.mark.skipif(not TEXT, reason="an installed copy has no docs folder")
class TestPage:
    """docs/messages.md has one entry for each name."""

    def test_the_lists_agree(self) -> None:
        """An entry for every slug and every reason, once, and for nothing else."""
        headings = re.findall(r"^### (.*)$", TEXT, re.MULTILINE)

        assert sorted(headings) == sorted(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_an_entry_has_three_parts(self, name: str) -> None:
        """What it means, what you will see, what to do: text, an example, text."""
        blocks = ENTRIES[name].strip("\n").split("\n\n")
        is_example = [block.startswith("    ") for block in blocks]

        assert [key for key, _ in groupby(is_example)] == [False, True, False]

    def test_links_lead_somewhere(self) -> None:
        """Every anchor that the page links to is a heading of it."""
        headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
        anchors = {heading.lower().replace(" ", "-") for heading in headings}
        links = re.findall(r"\]\(#([^)]*)\)", TEXT)

        assert links
        assert set(links) <= anchors

    def test_outcomes_are_called_what_they_are(self) -> None:
        """A verdict that an entry speaks of is one that there is."""
        spoken = re.findall(r"verdict is\s+\*(\w+)\*", TEXT)

        assert spoken
        assert set(spoken) <= {outcome.value for outcome in Outcome}

    def test_options_are_spelt_as_they_are(self) -> None:
        """Every option that the page names is declared somewhere in the package."""
        declared = "".join(
            path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")
        )
        named_here = set(re.findall(r"--gpuperf-[a-z-]+[a-z]", TEXT))

        assert named_here
        assert not {option for option in named_here if option not in declared}
