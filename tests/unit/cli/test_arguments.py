"""cli.arguments: every command's help, its example, and what a shell completes."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys

import pytest

from fakes import runs
from pytest_gpuperf import cli
from pytest_gpuperf.cli.arguments import parse
from pytest_gpuperf.model.codec import decode_run, encode_run

BASH = shutil.which("bash") or ""
COMMANDS = (
    *("show", "compare", "report", "bisect", "verify", "doctor", "scorecard"),
    *("parity", "utilization", "completion"),
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


@pytest.mark.skipif(not BASH, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpuperf utili", "utilization"),
        ("gpuperf show --det", "--details"),
        ("gpuperf baseline acc", "accept"),
        ("gpuperf nonsense --x", ""),
    ],
)
def test_bash_completes_commands_and_options(
    words: str, expected: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The script is what `eval` takes; where it knows nothing, files are completed."""
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
