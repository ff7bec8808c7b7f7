"""docs/reference.md: the page names all there is, and nothing that there is not."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_gpuperf
from pytest_gpuperf import hookspecs, options
from pytest_gpuperf.cli.arguments import parser
from pytest_gpuperf.fixture.gpuperf import GpuPerf
from pytest_gpuperf.hooks import keywords
from pytest_gpuperf.model.roofline import Grade

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
VARIABLE = re.compile(r'"(GPUPERF_[A-Z_]+)"')


@pytest.fixture(name="tables")
def tables_() -> dict[str, dict[str, list[str]]]:
    """Return each table by its first head: the other cells by the first one."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    tables: dict[str, dict[str, list[str]]] = {}
    head = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| "):
            head = ""
            continue
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        if not head:
            head = first
            tables[head] = {}
        elif first != "---":
            tables[head][first.strip("`")] = others
    return tables


def commands(
    whole: argparse.ArgumentParser, path: str = "gpuperf"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command that does something, with its parser."""
    within = [
        action
        for action in whole._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    for action in within:
        for name, command in action.choices.items():
            yield from commands(command, f"{path} {name}")
    if not within:
        yield path, whole


def arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options and arguments that a command has of its own."""
    for action in command._actions:
        if action.dest not in {"help", "format"}:
            yield (
                action.option_strings[0]
                if action.option_strings
                else (str(action.metavar))
            )


def test_every_option_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """With its ini value and what it takes, in the order of pytest's own help."""
    assert [
        (option, cells[0], cells[1]) for option, cells in tables["option"].items()
    ] == [
        (f"--{name}", metavar or "", f"`{name.replace('-', '_')}`")
        for name, metavar, _ in options._OPTIONS
    ]


def test_every_ini_value_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """Those that stand in the ini file alone."""
    of_ini = (*options._INI, *options._INI_LISTS)
    assert [*tables["ini value"]] == [name for name, _ in of_ini]


def test_every_keyword_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """In the order in which a mistake lists them."""
    assert [*tables["keyword"]] == [*keywords._KEYWORDS]


def test_every_call_of_the_fixture_is_told(
    tables: dict[str, dict[str, list[str]]],
) -> None:
    """Each public name with its own keywords, in the order of its signature."""
    told = {
        re.split(r"[(`]", call.removeprefix("gpuperf"))[0].lstrip("."): cells[0]
        for call, cells in tables["call"].items()
    }
    public = {
        name: member
        for name, member in vars(GpuPerf).items()
        if name == "__call__" or not name.startswith("_")
    }

    assert {*told} == {"" if name == "__call__" else name for name in public}
    for name, member in public.items():
        if isinstance(member, property) or name == "__call__":
            continue
        keywords = [
            each.name
            for each in inspect.signature(member).parameters.values()
            if each.kind is each.KEYWORD_ONLY
        ]
        assert re.findall(r"`(\w+)`", told[name]) == keywords, name


def test_what_can_be_required_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """Each word, in the row of its keyword; grades in theirs."""
    for word in keywords._REQUIREMENTS:
        assert f'`"{word}"`' in tables["keyword"]["requires"][0]
    for grade in Grade.__members__:
        assert f'`"{grade}"`' in tables["keyword"]["min_grade"][0]


def test_every_hook_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """With its arguments, as it is specified."""
    for hook in hookspecs.__all__:
        names = inspect.signature(getattr(hookspecs, hook)).parameters
        assert re.findall(r"`(\w+)`", tables["hook"][hook][0]) == [*names]
    assert {*tables["hook"]} == {*hookspecs.__all__}


def test_every_variable_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """Those that the package names."""
    folder = Path(pytest_gpuperf.__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    named = {name for text in texts for name in VARIABLE.findall(text)}

    assert set(tables["variable"]) == named


def test_every_command_is_told(tables: dict[str, dict[str, list[str]]]) -> None:
    """In the order of its help, with each argument and option, and with exit codes."""
    told = tables["command"]
    there = dict(commands(parser()))

    assert [*told] == [*there]
    for name, command in there.items():
        listed, _, codes = told[name]
        named = set(re.findall(r"--[\w-]+", listed))
        wanted = [*arguments(command)]
        assert {word for word in wanted if word.startswith("-")} == named, name
        assert all(word in listed for word in wanted), name
        assert codes.startswith("0"), name


def test_doctors_exit_codes_are_those_of_its_help(
    tables: dict[str, dict[str, list[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    """The page, the help and the command say the same three words."""
    codes = tables["command"]["gpuperf doctor"][2]
    said = re.findall(r"(\d): (\w+)", codes)
    with pytest.raises(SystemExit):
        parser().parse_args(["doctor", "--help"])
    helped = re.findall(r"(\d) (ready|degraded|blocked)", capfd.readouterr().out)

    assert said == helped == [("0", "ready"), ("1", "degraded"), ("2", "blocked")]
