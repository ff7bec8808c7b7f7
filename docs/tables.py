"""
Write what the code determines into the pages beside this file.

    python docs/tables.py

metrics.md gets the catalogue of metrics, help.md what `--help` prints, hooks.md the
hooks with their docstrings, exports.md the schemas of what commands print as JSON.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pytest_gpuperf import hookspecs
from pytest_gpuperf.cli.arguments import parser
from pytest_gpuperf.model.metric import METRICS, Metric, is_compiled
from pytest_gpuperf.model.sample import COLLECTORS
from pytest_gpuperf.report.lines import SCHEMAS

_FOLDER = Path(__file__).parent
_HEAD = "| metric | unit | better | meaning | measured by |"
_BEGIN = "<!-- written by tables.py: {} -->"
_END = "<!-- end of it -->"
_GROUP = "GPU performance (pytest-gpuperf)"  # of our options, in pytest's help
_WIDTH = 88  # of a line of help, in columns
_BOTH_NAMES = re.compile(r"(--?[\w-]+) ([^\s,]+), (--?[\w-]+) \2")  # before 3.13


def page(text: str, metrics: Iterable[Metric] = tuple(METRICS.values())) -> str:
    """
    Return metrics.md with its table of metrics made anew.

    Args:
        text: The page.

        metrics: The rows, in their order; instructions of compiled code are left out.
    """
    before, _, rest = text.partition(_HEAD)
    after = rest[rest.index("\n\n") :]
    return before + "\n".join(_table(metrics)) + after


def help_page(text: str) -> str:
    """Return help.md with the help of pytest's options and of each command."""
    text = _between(text, "options", _fenced(_options()))
    helps = (f"### {path}\n\n{_fenced(each)}" for path, each in _helps())
    return _between(text, "commands", "\n\n".join(helps))


def hooks_page(text: str) -> str:
    """Return hooks.md with each hook: how it is called, and its docstring."""
    hooks = (getattr(hookspecs, name) for name in hookspecs.__all__)
    return _between(text, "hooks", "\n\n".join(map(_hook, hooks)))


def exports_page(text: str) -> str:
    """Return exports.md with the schema of each command's JSON."""
    rows = (f"| `gpuperf {command}` | `{name}` |" for command, name in SCHEMAS.items())
    head = ("| command | `schema` |", "| --- | --- |")
    return _between(text, "schemas", "\n".join((*head, *rows)))


def _between(text: str, name: str, new: str) -> str:
    """Return a page whose part of that name is another text."""
    before, begin, rest = text.partition(_BEGIN.format(name))
    _, end, after = rest.partition(_END)
    if not (begin and end):
        message = f"the page has no part {name!r}"
        raise ValueError(message)
    return f"{before}{begin}\n\n{new}\n\n{end}{after}"


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the lines of the table of metrics."""
    yield _HEAD
    yield "|---|---|---|---|---|"
    for metric in metrics:
        if not is_compiled(metric.name):
            cells = (metric.unit, metric.better.value, metric.meaning, _sources(metric))
            yield f"| `{metric.name}` | {' | '.join(map(str, cells))} |"


def _sources(metric: Metric) -> str:
    """Return the collectors that measure a metric."""
    every = {
        *metric.counted_by,
        *(s for names in metric.sources.values() for s in names),
    }
    return ", ".join(name for name in COLLECTORS if name in every)


def _fenced(text: str) -> str:
    """Return a text as a block that keeps its lines."""
    return f"```text\n{text.strip()}\n```"


def _options() -> str:
    """Return what `pytest --help` prints of our options."""
    argv = [sys.executable, "-m", "pytest", "--help", "-c", os.devnull]
    columns = {**os.environ, "COLUMNS": str(_WIDTH)}
    done = subprocess.run(argv, env=columns, capture_output=True, text=True, check=True)
    _, begin, rest = done.stdout.partition(f"{_GROUP}:\n")
    return begin + rest[: re.search(r"^\S", rest, re.MULTILINE).start()]


def _helps() -> Iterator[tuple[str, str]]:
    """Yield the words of every command that does something, and its help."""
    os.environ["COLUMNS"] = str(_WIDTH)  # where argparse takes its width from
    yield from _of(parser(), "gpuperf")


def _of(command: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, str]]:
    """Yield a command and those below it."""
    yield path, _BOTH_NAMES.sub(r"\1, \3 \2", command.format_help())
    for action in command._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action.choices, dict):
            for name, each in action.choices.items():
                yield from _of(each, f"{path} {name}")


def _hook(function: Callable[..., object]) -> str:
    """Return a hook as a part of a page: a heading, a signature, its docstring."""
    summary, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
    names = ", ".join(inspect.signature(function).parameters)
    call = f"def {function.__name__}({names}): ..."
    parts = [f"### {function.__name__}", f"```text\n{call}\n```", summary]
    return "\n\n".join((*parts, *map(_section, rest.split("\n\n"))))


def _section(paragraph: str) -> str:
    """Return a paragraph of a docstring, an argument or a result as an item."""
    lines = paragraph.splitlines()
    head = lines[0].removesuffix(":") if lines[0] in {"Args:", "Returns:"} else ""
    text = " ".join(textwrap.dedent("\n".join(lines[bool(head) :])).split())
    if head != "Returns" and paragraph.startswith(("Args:", " ")):
        name, _, meaning = text.partition(": ")
        return f"- `{name}`: {meaning}"
    return f"Returns: {text}" if head else text


_PAGES = {
    "metrics.md": page,
    "help.md": help_page,
    "hooks.md": hooks_page,
    "exports.md": exports_page,
}

if __name__ == "__main__":
    for name, written in _PAGES.items():
        place = _FOLDER / name
        place.write_text(written(place.read_text(encoding="utf-8")), encoding="utf-8")
