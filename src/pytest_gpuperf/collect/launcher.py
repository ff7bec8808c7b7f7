"""How Python was started to run pytest, and how to start another process in the same way.

A launcher prepares the process: coverage, a memory profiler, or a module of the project
that patches something and calls `pytest.main`. Measurements of a fresh process are
comparable with the suite only if the same launcher prepared the process.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.errors import SidesRefusedError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode

_SCRIPTS = ("pytest", "py.test")
# Letters of Python's options that end the options.
_ENDING = "cm"
# Letters of Python's options with a value.
_WITH_VALUE = "WX"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_PLAIN = "run pytest itself, as python -m pytest"
# Options of launchers that name an output file.
_OUTPUTS = (
    *("-o", "--output", "--outfile", "--output-file", "--output_file"),
    "--data-file",
)
# Launchers that create a file in the working folder unless an option names another
# file.
_OUTPUT_OF = {"memray": ("run", "-o", "memray.bin")}


class Launcher(Frozen, frozen=True, kw_only=True):
    """
    The program that starts pytest in a process of the run.

    Attributes:
        start: The command up to pytest's own arguments.

        shown: The command as a person types it, or "" for plain `pytest`.

        own: Number of words of `start` that are the launcher's own arguments, at the
            end.

        added: Arguments that the launcher puts before those that it passes to pytest.

        is_pytest: Whether Python runs pytest itself.

        gap: The reason that no other process may be started this way, or None.
    """

    start: tuple[str, ...]
    shown: str = ""
    own: int = 0
    added: tuple[str, ...] = ()
    is_pytest: bool = False
    gap: Gap | None = None

    def command(self, scratch: str) -> tuple[str, ...]:
        """Return `start`, changed so that the launcher's files are written to `scratch`."""
        if self.is_pytest or not self.own:
            return self.start
        head, own = self.start[: -self.own], self.start[-self.own :]
        words: list[str] = []
        for word in own:
            option, equals, value = word.partition("=")
            if words and words[-1] in _OUTPUTS:
                words.append(_below(scratch, word))
            elif equals and option in _OUTPUTS:
                words.append(f"{option}={_below(scratch, value)}")
            else:
                words.append(word)
        command, option, file = _OUTPUT_OF.get(Path(head[-1]).name, ("", "", ""))
        if command in words and not {option, "--output"}.intersection(words):
            place = words.index(command) + 1
            words[place:place] = [option, str(Path(scratch, file))]
        return (*head, *words)

    def check(self) -> None:
        """
        Check that other processes may be started with the launcher.

        Raises:
            SidesRefusedError: No other process may be started this way.
        """
        if self.gap is not None:
            raise SidesRefusedError(self.gap.reason, remedy=self.gap.remedy)


PYTEST = Launcher(start=(sys.executable, "-m", "pytest"), is_pytest=True)


class ProcessStart(NamedTuple):
    """
    The way in which a process was started, in builtins, so that it can be sent to xdist's workers.

    Attributes:
        argv: `sys.orig_argv`.

        args: The arguments that pytest received.

        sys_args: `sys.argv` without the first word.

        executable: `sys.executable`, or "" if the interpreter is embedded.

        is_nested: Whether a test of another pytest started this pytest in the same
            process.

        is_interactive: Whether the interpreter is interactive.
    """

    argv: Sequence[str]
    args: Sequence[str]
    sys_args: Sequence[str]
    executable: str
    is_nested: bool = False
    is_interactive: bool = False


class _Target(NamedTuple):
    """The thing that Python runs: `-m`, `-c`, `-`, a file, or nothing."""

    kind: str
    words: tuple[str, ...]


def launcher_of(process: ProcessStart, *, replays: bool = False) -> Launcher:
    """
    Return the launcher that started pytest in a process.

    Args:
        process: The way in which the process was started.

        replays: Whether the user allows running a script or `-c` again.
    """
    if process.is_nested:
        return PYTEST
    options, target, rest = _split(process.argv)
    python = (process.executable, *options)
    typed = ("python", *options)
    if _is_pytest(target):
        is_module = target.kind == "-m"
        words = target.words if is_module else (_absolute(target.words[0]),)
        shown = shlex.join((*typed, "-m", "pytest")) if options else ""
        return Launcher(start=(*python, *words), shown=shown, is_pytest=True)
    args, shared = process.args, 0
    while shared < min(len(rest), len(args)) and rest[-1 - shared] == args[-1 - shared]:
        shared += 1
    own = rest[: len(rest) - shared]
    is_script = target.kind == "file" and _is_installed(target.words[0])
    words = (_absolute(target.words[0]),) if is_script else target.words
    # A script is typed by its name, such as `coverage`.
    if is_script:
        typed = (*(typed if options else ()), Path(words[0]).name)
    else:
        typed = (*typed, *target.words)
    launcher = Launcher(
        start=(*python, *words, *own),
        shown=shlex.join((*typed, *own)),
        own=len(own),
        added=tuple(args[: len(args) - shared]),
    )
    gap = _refusal(process, target, launcher)
    if gap is None and target.kind != "-m" and not (is_script or replays):
        # The code after -c may be anything, of any length.
        if target.kind == "-c":
            launcher = replace(launcher, shown="python -c")
        gap = Gap(
            code=GapCode.OTHER_LAUNCHER,
            reason=f"pytest was started by `{launcher.shown}`, which is not run again",
            remedy=f"{_PLAIN}, or let each fresh process run it with the ini option "
            "gpuperf_launcher = replay",
        )
    return replace(launcher, gap=gap)


def _refusal(process: ProcessStart, target: _Target, launcher: Launcher) -> Gap | None:
    """Return the reason that no setting allows a launcher to be run again, or None."""
    if process.is_interactive or target.kind in {"", "-"} or not process.executable:
        reason = "pytest was called by an interactive or embedded Python"
        return Gap(code=GapCode.OTHER_LAUNCHER, reason=reason, remedy=_PLAIN)
    is_handed = len(launcher.added) < len(process.args) or not launcher.own
    # If pytest has no arguments, it was called without any, not with the launcher's own.
    if is_handed or not (process.args or process.sys_args):
        return None
    return unproven("other-arguments", launcher)


def unproven(code: str, launcher: Launcher) -> Gap:
    """
    Return the reason that a process started again by a launcher does not count.

    Args:
        code: The finding of the process: other-arguments, other-command, or twice.

        launcher: The launcher that should have started the process.
    """
    name = f"`{launcher.shown}`"
    reason, remedy = {
        "other-arguments": (
            f"{name} gives pytest other arguments than its own",
            "have it call pytest.main(sys.argv[1:]), or run python -m pytest",
        ),
        "other-command": (f"{name} starts Python in another way each time", _PLAIN),
        "twice": (f"{name} starts pytest more than once", _PLAIN),
    }[code]
    return Gap(code=GapCode.OTHER_LAUNCHER, reason=reason, remedy=remedy)


def _split(
    argv: Sequence[str],
) -> tuple[tuple[str, ...], _Target, tuple[str, ...]]:
    options: list[str] = []
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if word == "-" or not word.startswith("-"):
            rest.insert(0, word)
            break
        if word.startswith("--"):
            value = [rest.pop(0)] if word == _LONG_WITH_VALUE and rest else []
            options += [word, *value]
            continue
        letters = _ENDING + _WITH_VALUE
        place = next((n for n, sign in enumerate(word) if sign in letters), len(word))
        flags, letter = word[1:place], word[place : place + 1]
        value_text = word[place + 1 :]
        if letter and letter in _ENDING:
            options += [f"-{flags}"] if flags else []
            text = value_text or (rest.pop(0) if rest else "")
            return (
                tuple(options),
                _Target(f"-{letter}", (f"-{letter}", text)),
                tuple(rest),
            )
        options.append(word)
        if letter and not value_text and rest:
            options.append(rest.pop(0))
    if not rest:
        return tuple(options), _Target("", ()), ()
    kind = "-" if rest[0] == "-" else "file"
    return tuple(options), _Target(kind, (rest[0],)), tuple(rest[1:])


def _is_pytest(target: _Target) -> bool:
    if target.kind == "-m":
        return target.words[1] == "pytest"
    return target.kind == "file" and (
        Path(target.words[0]).name in _SCRIPTS and Path(target.words[0]).is_file()
    )


def _is_installed(path: str) -> bool:
    folders = {sysconfig.get_path("scripts"), os.path.dirname(sys.executable)}  # noqa: PTH120 - a string
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - links stay
    if os.path.realpath(folder) not in set(map(os.path.realpath, folders)):
        return False
    return bool(metadata.entry_points(group="console_scripts", name=name))


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - resolve() follows links


def _below(scratch: str, path: str) -> str:
    return str(Path(scratch, Path(path).name or "output"))
