"""cli.arguments, cli.parser: every command's help, its example, and what a shell completes."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import runs
from pytest_gpuperf import cli
from pytest_gpuperf.cli.arguments import parse
from pytest_gpuperf.model.codec import decode_run, encode_run

ROOT = Path(__file__).parents[3]
BASH = shutil.which("bash") or ""
COMMANDS = (
    *("show", "compare", "report", "bisect", "verify", "doctor", "scorecard"),
    "merge",
    *("parity", "utilization", "completion", "export", "baseline", "metrics", "cache"),
    *(f"baseline {action}" for action in ("list", "show", "drop", "accept")),
    *(f"metrics {what}" for what in ("chips", "list", "search", "describe", "check")),
    *("metrics passes", "cache info", "cache verify", "cache clear"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_that_it_takes(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In its help, behind the options; typed as it stands it is understood."""
    with pytest.raises(SystemExit) as caught:
        parse([*command.split(), "--help"])
    text = " ".join(capfd.readouterr().out.split())
    example = text.partition("example: gpuperf ")[2]

    assert caught.value.code == 0
    assert example.startswith(command)
    assert parse(shlex.split(example)).command


def help_of(command: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints as its help."""
    with pytest.raises(SystemExit):
        parse([*command.split(), "--help"])
    return capfd.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_says_what_it_is_for(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A sentence behind the usage, before the arguments."""
    _, purpose, *_ = help_of(command, capfd).split("\n\n")

    assert purpose[0].isupper()
    assert purpose.endswith(".")


def test_every_command_says_its_exit_codes(capfd: pytest.CaptureFixture[str]) -> None:
    """Those of reference.md, beside 2, 4, 130 and 141, which each of them has."""
    table = (ROOT / "docs" / "reference.md").read_text("utf-8")
    rows = re.findall(r"^\| `gpuperf ([a-z ]+)` .*\| (.*) \|$", table, re.MULTILINE)
    found = {command: help_of(command, capfd) for command, _ in rows}

    assert {command: codes(text) for command, text in found.items()} == {
        command: {2, 4, 130, 141, *map(int, re.findall(r"(?:^|; )(\d)", told))}
        for command, told in rows
    }
    assert codes(help_of("", capfd)) == {*range(5), 130, 141}


def codes(text: str) -> set[int]:
    """Return the exit codes of a help."""
    listed = text.partition("exit codes:\n")[2].partition("\n\n")[0]
    return {int(code) for code in re.findall(r"^ +(\d+) \w", listed, re.MULTILINE)}


@pytest.mark.skipif(not BASH, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpuperf utili", "utilization"),
        ("gpuperf show --det", "--details"),
        ("gpuperf baseline acc", "accept"),
        ("gpuperf show --sort co", "count"),
        ("gpuperf report a.json --format = ma", "markdown"),
        ("gpuperf export --to pyt", "pytest-benchmark pytorch"),
        ("gpuperf parity --policy =", "reference measured"),
        ("gpuperf show ''", ""),
        ("gpuperf completion ''", "bash zsh fish"),
        ("gpuperf nonsense --x", ""),
    ],
)
def test_bash_completes_commands_options_and_their_values(
    words: str, expected: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """
    The script is what `eval` takes; bash splits words at an equals sign.

    Where it knows nothing, and where no option was begun, files are completed.
    """
    assert cli.main(["completion", "bash"]) == 0
    script = capfdbinary.readouterr().out.decode()
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _gpuperf; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        [BASH, "-c", f"{script}\n{ask}"],
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
    )

    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_fish_has_the_same_words(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """An option with its long name, a command of a command as an argument."""
    assert cli.main(["completion", "fish"]) == 0
    script = capfdbinary.readouterr().out.decode().splitlines()

    seen = "-n '__fish_seen_subcommand_from"
    assert f"complete -c gpuperf {seen} show' -l details" in script
    assert f"complete -c gpuperf {seen} cache' -a verify" in script
    kinds = "counter ratio throughput"
    assert f"complete -c gpuperf {seen} metrics' -l kind -x -a '{kinds}'" in script


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        ("merge", "see gpuperf merge --help; example: gpuperf merge shard-1.json"),
        ("metrics list --kind=x", "see gpuperf metrics list --help; example: gpuperf"),
        ("cache", "see gpuperf cache --help; example: gpuperf cache info"),
        ("nonsense", "see gpuperf --help\n"),
    ],
)
def test_a_wrong_command_line_has_a_remedy(
    typed: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What to type instead, below what is wrong; it ends with 2."""
    with pytest.raises(SystemExit) as caught:
        parse(typed.split())

    assert caught.value.code == 2
    assert f"\n    remedy: {remedy}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *("compare --against", "compare --against -x", "compare --against=-- t.py"),
        *("bisect t --good", "bisect t --good --bad HEAD"),
    ],
)
def test_an_option_without_its_value_says_what_it_lacks(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not how many arguments were expected: a dash begins another option."""
    with pytest.raises(SystemExit) as caught:
        parse(words.split())

    assert caught.value.code == 2
    assert ": REV is missing or begins with a dash\n" in capfd.readouterr().err


def test_a_budget_is_of_a_comparison_with_a_revision(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Files are compared at once: no time ends that."""
    assert parse(["compare", "--against=HEAD", "--budget=3min"]).budget == 180.0
    assert cli.main(["compare", "--budget=3min", "a.json", "b.json"]) == 2
    assert "--against" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "message", "remedy"),
    [
        (["utilisation"], "gpuperf: error: argument COMMAND", "mean utilization\n"),
        (["show", "a", "--fromat=json"], "show: error: unknown", "mean --format;"),
        (["show", "a", "--format=jsn"], "--format: 'jsn' is not one of", "mean json\n"),
        (["export", "a", "--too=csv"], "required: --to; unknown", "mean --to;"),
        (["baseline", "lst", "a"], "baseline: error: argument ACTION", "mean list\n"),
        (["verify", "a", "b"], "verify: error: unknown arguments: b", "see gpuperf"),
        (["show", ""], "argument FILE: the name of the file is empty", "see gpuperf"),
        (["show", "a", "--launches=5-3"], "'5-3' runs backward: write 3-5", "see"),
    ],
)
def test_a_misspelt_word_is_named_with_the_right_one(
    typed: list[str], message: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that it was typed for, beside what else is wrong."""
    with pytest.raises(SystemExit):
        parse(typed)
    said = capsys.readouterr().err

    assert message in said
    assert remedy in said


def test_a_dash_is_standard_input(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run as of a profile; where it is closed, that is said."""
    run = encode_run(runs.gpu_run())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(run)))
    assert cli.main(["show", "-", "--format=json"]) == 0
    assert decode_run(capfdbinary.readouterr().out) == runs.gpu_run()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert cli.main(["scorecard", "-", "--throughput=1", "--hardware=gb10"]) == 4
    assert b"it has none of" in capfdbinary.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["show", "-"]) == 4
    assert b"standard input is closed" in capfdbinary.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_one_line_that_can_be_copied(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow the terminal is; above it are the exit codes of every command."""
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit):
        parse([*command.split(), "--help"])
    *above, example = capfd.readouterr().out.splitlines()

    assert example.startswith(f"example: gpuperf {command}")
    assert " 130 interrupted" in "\n".join(above)
    assert " 141 the output pipe" in "\n".join(above)
