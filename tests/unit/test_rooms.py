"""The house: every module stands alone, every room says what it is for."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

import pytest_gpuperf

PACKAGE = Path(pytest_gpuperf.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# folders with modules of their own, the package itself left out
ROOMS = sorted({path.parent for path in FILES} - {PACKAGE})
STATIONS = [room for room in ROOMS if room.parent == PACKAGE]
NO_ROOM = {"utils", "helpers", "common", "core", "misc", "util", "tools", "base"}
# Lines of code of a module that one other imports. Less is a slice of that module.
LEAST_LINES = 60
# Such modules that are a noun of their own, each with its reason.
SMALL_NOUNS = {
    "__main__": "python looks for the command under this name",
    "hookspecs": "a public face: other plugins read it",
    "plugin": "the entry point: all that the import hook of pytest reads",
    "cli/early": "what is imported before the rest of the command",
    "collect/expected": "a file of each process, apart from the recordings that few runs keep",
    "collect/load": "a file of the system that stays open, and its format",
    "collect/timing/made_arguments": "calls with other arguments, which few markers ask for",
    "collect/timing/swallowing": "a trace of one more call, which few functions need",
}
LONGEST_FUNCTION = 60
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
REFUSAL = "PYTEST_DONT_REWRITE"  # pytest leaves a module alone whose docstring holds it


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has, its docstring left out."""
    count = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return count
    first = function.body[0]
    return count - ((first.end_lineno or 0) - first.lineno + 1)


@pytest.mark.parametrize("room", STATIONS, ids=name)
def test_a_room_says_what_it_is_for(room: Path) -> None:
    """Its docstring is its design note: what comes in, what goes out, what never does."""
    lines = docstring(room / "__init__.py").splitlines()

    assert re.fullmatch(rf"Room {room.name}: .+\.", lines[0] if lines else "")
    for word in ("In", "Out", "Never"):
        (said,) = (line for line in lines if line.startswith(f"{word}:"))
        assert len(said) > len(word) + 10


def test_only_what_pytest_loads_early_keeps_it_from_rewriting() -> None:
    """The finder of `plugin` takes every other module out of pytest's hands."""
    early = {
        str(path.relative_to(PACKAGE)) for path in FILES if REFUSAL in docstring(path)
    }

    assert early == {"__init__.py", "plugin.py"}


def test_no_room_is_for_anything() -> None:
    """What a room holds can be told from its name; every folder is a package."""
    assert not {room.name for room in ROOMS} & NO_ROOM
    assert all((room / "__init__.py").exists() for room in ROOMS)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_module_loads_where_there_is_no_posix(path: Path) -> None:
    """What Windows does not have is imported where it is used."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }

    assert not imported & {"fcntl", "grp", "pwd", "resource", "termios"}


def importers() -> dict[str, set[str]]:
    """Return the modules that import each module, by dotted name."""
    names = {".".join((PACKAGE.name, *name(path).split("/"))) for path in FILES}
    found: dict[str, set[str]] = {dotted: set() for dotted in names}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for alias in node.names:
                for dotted in (f"{node.module}.{alias.name}", node.module):
                    if dotted in found:
                        found[dotted].add(name(path))
    return found


def lines_of_code(text: str) -> int:
    """Return the number of lines that hold code: no docstring, comment or blank line."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    filled = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(filled - docstrings)


def test_a_line_of_code_is_one_that_runs() -> None:
    """What only readers see makes no module larger."""
    text = '"""What it is."""\n\n# Why.\ndef f():\n    """Return 1."""\n    return (\n        1\n    )\n'

    assert lines_of_code(text) == 4


def test_no_module_is_a_slice_of_the_one_that_imports_it() -> None:
    """A small module that at most one other imports is a noun, or goes home."""
    found = importers()
    small = {
        name(path)
        for path in FILES
        if path.name != "__init__.py"
        and lines_of_code(path.read_text(encoding="utf-8")) < LEAST_LINES
        and len(found[".".join((PACKAGE.name, *name(path).split("/")))]) < 2
    }

    assert small == SMALL_NOUNS.keys()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_function_can_be_read_at_once(path: Path) -> None:
    """No function is long."""
    text = path.read_text(encoding="utf-8")
    functions = {
        node.name: lines_of(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert not {n: lines for n, lines in functions.items() if lines > LONGEST_FUNCTION}


# of Nsight Compute's results: other programs know them by these names
THEIRS = {"Metric", "Session"}


def test_a_class_name_stands_for_one_thing() -> None:
    """A reader who knows a name from one module is not misled by another."""
    names = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )

    assert {name for name, count in names.items() if count > 1} == THEIRS


SENTENCES = {"message", "reason", "remedy", "text"}  # attributes that people read
READING = {"startswith", "endswith", "find", "index", "count", "partition"}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer"}
FOR_PEOPLE = {
    ("hooks/outcomes", "self.text.partition('\\n')")
}  # it draws the first line


def is_sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def reads_a_sentence(node: ast.AST) -> bool:
    """Return whether an expression looks into a sentence, or compares it."""
    if isinstance(node, ast.Compare):
        parts = (node.left, *node.comparators)
        by_value = not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        # a verdict's reason is a code: it is compared by identity, as codes are
        return by_value and any(map(is_sentence, parts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        looked_into = method in READING and is_sentence(node.func.value)
        return looked_into or (method in PATTERNS and any(map(is_sentence, node.args)))
    return False


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_branches_on_a_sentence(path: Path) -> None:
    """Rewording a message changes no behaviour: programs branch on codes alone."""
    found = {
        (name(path), ast.unparse(node))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if reads_a_sentence(node)
    }

    assert found <= FOR_PEOPLE


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("gap.remedy.startswith('collect it')", True),
        ("name in error.message", True),
        ("gap.reason == NOWHERE", True),
        ("PATTERN.search(error.message)", True),
        ("void.text.partition('; ')", True),
        ("verdict.reason is Reason.VOID", False),
        ("gap.code is GapCode.VOID", False),
        ("print(gap.reason)", False),
    ],
)
def test_the_search_finds_what_reads_a_sentence(text: str, *, reads: bool) -> None:
    """The rule above is about something."""
    (node,) = (each for each in ast.parse(text).body if isinstance(each, ast.Expr))

    assert reads_a_sentence(node.value) == reads


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_gap_has_a_code(path: Path) -> None:
    """Only a file of an earlier version has a gap without one."""
    made = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"CounterGap", "Gap", "Unmeasured"}
    )

    assert [
        ast.unparse(n) for n in made if "code" not in {k.arg for k in n.keywords}
    ] == []
