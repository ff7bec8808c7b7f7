"""Pages that show what programs print, and code that a reader types as it stands."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.project import Project

DOCS = Path(__file__).resolve().parents[2] / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.skipif(
    not DOCS.is_dir(), reason="the documents are not beside the tests"
)


def page(name: str) -> str:
    """Return the text of a page."""
    return (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["exports.md", "help.md", "hooks.md"])
def test_a_page_shows_what_the_code_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what docs/tables.py writes: run that where a help or a docstring changed."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")  # tables.py sets it: it is put back
    tables = runpy.run_path(str(DOCS / "tables.py"))
    written: Callable[[str], str] = tables["_PAGES"][name]

    # where a line is broken differs between versions of Python
    assert written(page(name)).split() == page(name).split()


def test_a_page_without_its_part_is_refused() -> None:
    """A page whose marks were edited away is not left as it was."""
    tables = runpy.run_path(str(DOCS / "tables.py"))

    with pytest.raises(ValueError, match="no part 'hooks'"):
        tables["hooks_page"]("# Hooks\n")


def test_the_conftest_of_the_hooks_page_counts_verdicts(project: Project) -> None:
    """Copied into a project, it prints what the run was judged to be."""
    conftest, *others = PYTHON.findall(page("hooks.md"))
    assert not others
    project.write(conftest, "conftest.py")
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 2"], records=["x"])
        def test_x(gpuperf):
            gpuperf.record("x", 1.0, unit="1")
        """
    )
    ended = project.run()

    assert ended.ret == 0
    ended.stdout.fnmatch_lines(["verdicts: {'passed': 1}"])


def test_the_first_five_minutes_go_as_shown(project: Project) -> None:
    """The files of the page pass their limit, and make a baseline that lets them pass."""
    code, test, slower = PYTHON.findall(page("start.md"))
    project.write(code, "words.py")
    project.write(test, "test_words.py")
    typed = re.findall(r"^\$ pytest(.*)$", page("start.md"), re.MULTILINE)
    assert [each.split() for each in typed] == [
        [],
        ["--gpuperf-against=HEAD"],
        ["--gpuperf-against=HEAD"],
        ["--gpuperf-update=new"],
        ["--gpuperf-update=new"],
        ["--gpuperf-baseline=.gpuperf"],
    ]

    first = project.spawn()
    stored = [project.spawn(*each.split()) for each in typed[3:]]

    assert first.returncode == 0, first.stdout
    assert "judged 1 of 1: 1 passed its own assert" in first.stdout
    assert [each.returncode for each in stored] == [0, 0, 0], stored[-1].stdout
    counted: list[dict[str, int]] = []
    for text in (code, slower):
        words: dict[str, Callable[[str], dict[str, int]]] = {}
        exec(text, words)  # noqa: S102 - ours
        counted.append(words["count_words"]("one two one"))
    assert counted == [{"one": 2, "two": 1}] * 2
