"""Rules of collect.launcher: how Python was told to run pytest, and how it is again."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.collect.launcher import (
    PYTEST,
    Launcher,
    ProcessStart,
    launcher_of,
    unproven,
)
from pytest_gpuperf.model.gap import GapCode

# Every environment with these tests has this command. Who starts pytest so is not asked.
INSTALLED = str(Path(sysconfig.get_path("scripts"), "gpuperf"))


def found(
    *argv: str,
    args: Sequence[str] = ("-q",),
    sys_args: Sequence[str] | None = None,
    replays: bool = False,
    executable: str = "/bin/python",
    is_interactive: bool = False,
) -> Launcher:
    """Return the launcher of a process that was started by some words."""
    process = ProcessStart(
        argv=("python", *argv),
        args=args,
        sys_args=args if sys_args is None else sys_args,
        executable=executable,
        is_interactive=is_interactive,
    )
    return launcher_of(process, replays=replays)


@pytest.mark.parametrize(
    ("argv", "start", "shown"),
    [
        (["-m", "pytest", "-q"], ["-m", "pytest"], ""),
        (["-mpytest", "-q"], ["-m", "pytest"], ""),
        (
            ["-X", "dev", "-m", "pytest", "-q"],
            ["-X", "dev", "-m", "pytest"],
            "python -X dev -m pytest",
        ),
        (["-IOm", "pytest", "-q"], ["-IO", "-m", "pytest"], "python -IO -m pytest"),
        (
            ["-Wm", "-bXdev", "-m", "pytest", "-q"],
            ["-Wm", "-bXdev", "-m", "pytest"],
            "python -Wm -bXdev -m pytest",
        ),
        (
            ["--check-hash-based-pycs", "always", "-m", "pytest", "-q"],
            ["--check-hash-based-pycs", "always", "-m", "pytest"],
            "python --check-hash-based-pycs always -m pytest",
        ),
        (["-B", "SCRIPT", "-q"], ["-B", "SCRIPT"], "python -B -m pytest"),
        (["--", "SCRIPT", "-q"], ["SCRIPT"], ""),
    ],
)
def test_pytest_itself_is_started_with_the_options_of_the_interpreter(
    tmp_path: Path, argv: list[str], start: list[str], shown: str
) -> None:
    """`-m` puts the folder on Python's path, the script does not; `-W -m` names no module."""
    script = tmp_path / "pytest"
    script.touch()

    def with_script(words: list[str]) -> tuple[str, ...]:
        return tuple(word.replace("SCRIPT", str(script)) for word in words)

    launcher = found(*with_script(argv))

    assert launcher.start == ("/bin/python", *with_script(start))
    assert (launcher.shown, launcher.is_pytest, launcher.gap) == (shown, True, None)


@pytest.mark.parametrize(
    ("argv", "args", "start", "added"),
    [
        ("-m prepared -q tests", "-q tests", "-m prepared", ""),
        ("-m prepared", "", "-m prepared", ""),
        ("-m prepared tests", "-v -p plugin tests", "-m prepared", "-v -p plugin"),
        ("-m prepared", "-v tests", "-m prepared", "-v tests"),
        ("-m coverage run -m pytest -q", "-q", "-m coverage run -m pytest", ""),
        ("-m coverage run -m pytest", "", "-m coverage run -m pytest", ""),
        ("-O -m memray run -m pytest x", "x", "-O -m memray run -m pytest", ""),
    ],
)
def test_a_module_that_hands_on_arguments_is_run_again(
    argv: str, args: str, start: str, added: str
) -> None:
    """What stands before pytest's own arguments is the launcher's."""
    launcher = found(*argv.split(), args=args.split())

    assert launcher.start == ("/bin/python", *start.split())
    assert launcher.added == tuple(added.split())
    assert (launcher.shown, launcher.gap) == (f"python {start}", None)


def test_a_command_of_an_installed_package_is_run_again() -> None:
    """As `coverage run`: a script by its file, written by the installer."""
    launcher = found(INSTALLED, "run", "-m", "pytest", "-q")
    module = found(str(Path(INSTALLED).with_name("nothing")), "-q")

    assert launcher.gap is None
    assert launcher.start[1:] == (INSTALLED, "run", "-m", "pytest")
    assert launcher.shown == "gpuperf run -m pytest"
    assert module.gap is not None


@pytest.mark.parametrize("argv", ["run.py", "-c code", "-Bc code"])
def test_a_script_is_run_again_by_the_users_leave_alone(argv: str) -> None:
    """It may do whatever it likes besides: ini option gpuperf_launcher."""
    refused = found(*argv.split(), "-q")
    allowed = found(*argv.split(), "-q", replays=True)

    assert refused.gap is not None
    assert refused.gap.code is GapCode.OTHER_LAUNCHER
    assert f"`{refused.shown}`" in refused.gap.reason
    assert "gpuperf_launcher = replay" in refused.gap.remedy
    assert allowed.gap is None
    assert allowed.start[-1] == argv.rsplit(maxsplit=1)[-1]


@pytest.mark.parametrize(
    ("argv", "args", "sys_args"),
    [
        ("-m runner --fast", "-v tests", "--fast"),
        ("-m ipykernel_launcher -f x.json", "", "-f x.json"),
        ("run.py --all", "tests", "--all"),
    ],
)
def test_a_launcher_that_hands_on_nothing_is_not_run_again(
    argv: str, args: str, sys_args: str
) -> None:
    """A child could be told nothing by its arguments."""
    launcher = found(
        *argv.split(), args=args.split(), sys_args=sys_args.split(), replays=True
    )

    assert launcher.gap == unproven("other-arguments", launcher)
    assert "pytest.main(sys.argv[1:])" in launcher.gap.remedy


@pytest.mark.parametrize(
    "start",
    [
        {"is_interactive": True},
        {"executable": ""},
        {"argv": ()},
        {"argv": ("-",)},
        {"argv": ("-i",)},
    ],
)
def test_a_python_that_somebody_talks_to_is_not_run_again(
    start: dict[str, object],
) -> None:
    """A notebook, a shell, a program that embeds Python, text from a pipe."""
    argv: Sequence[str] = start.pop("argv", ("-m", "IPython"))  # type: ignore[assignment] # of this test
    launcher = found(*argv, args=("-q",), replays=True, **start)  # type: ignore[arg-type] # names of its fields

    assert launcher.gap is not None
    assert launcher.gap.remedy == "run pytest itself, as python -m pytest"


def test_a_pytest_that_a_test_calls_is_started_as_pytest() -> None:
    """The words of the outer one say nothing of it."""
    process = ProcessStart(
        argv=("python", "-c", "x"),
        args=("-q",),
        sys_args=(),
        executable="/bin/python",
        is_nested=True,
    )

    assert launcher_of(process) == PYTEST
    assert PYTEST.start == (sys.executable, "-m", "pytest")


@pytest.mark.parametrize(
    ("argv", "own"),
    [
        (
            "-m coverage run --data-file=cov/data -m pytest",
            "run --data-file=/s/data -m pytest",
        ),
        ("-m cProfile -o out.prof -m pytest", "-o /s/out.prof -m pytest"),
        ("-m memray run -o /data/m.bin -m pytest", "run -o /s/m.bin -m pytest"),
        ("-m memray run -q -m pytest", "run -o /s/memray.bin -q -m pytest"),
        ("-m coverage run --branch -m pytest", "run --branch -m pytest"),
    ],
)
def test_what_a_launcher_writes_goes_to_the_childs_folder(argv: str, own: str) -> None:
    """The user's own file must be that of the suite."""
    launcher = found(*argv.split(), "-q")

    assert " ".join(launcher.command("/s")[3:]) == own
    assert " ".join(launcher.start[1:]) == argv
