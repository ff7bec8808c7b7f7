"""How the interpreter of a run was told to run pytest, and how to tell another one.

A launcher prepares the process: coverage, a profiler of memory, a module of the project
that patches something and calls `pytest.main`. What a fresh process measures is comparable
with the suite only if the same launcher prepared it.
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

__all__ = ["PYTEST", "Launcher", "ProcessStart", "launcher_of", "unproven"]

_SCRIPTS = ("pytest", "py.test")
_ENDING = "cm"  # letters of Python's options that end them
_WITH_VALUE = "WX"  # letters of those that have a value
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_HANDING = "have it call pytest.main(sys.argv[1:]), or run python -m pytest"
_PLAIN = "run pytest itself, as python -m pytest"
# Options of launchers that name a file to write.
_OUTPUTS = (
    *("-o", "--output", "--outfile", "--output-file", "--output_file"),
    "--data-file",
)
# Launchers that open a file in the folder at their start, unless they are told where.
_OUTPUT_OF = {"memray": ("run", "-o", "memray.bin")}


class Launcher(Frozen, frozen=True, kw_only=True):
    """
    What starts pytest in a process of the run.

    Attributes:
        start: The command up to pytest's own arguments.

        shown: The same as a person types it; "": plainly, as `pytest`.

        own: Words of `start` that are the launcher's own arguments: the last ones.

        added: Arguments that it puts before those that it hands to pytest.

        is_pytest: Whether pytest itself is what Python runs.

        gap: Why no other process may be started so; None: it may.
    """

    start: tuple[str, ...]
    shown: str = ""
    own: int = 0
    added: tuple[str, ...] = ()
    is_pytest: bool = False
    gap: Gap | None = None

    def command(self, scratch: str) -> tuple[str, ...]:
        """Return the start of a command that writes the launcher's files to `scratch`."""
        if self.is_pytest or not self.own:
            return self.start
        head, own = self.start[: -self.own], self.start[-self.own :]
        return (*head, *_redirected(own, Path(head[-1]).name, scratch))

    def check(self) -> None:
        """
        Refuse if no other process may be started so.

        Raises:
            SidesRefusedError: None may.
        """
        if self.gap is not None:
            raise SidesRefusedError(self.gap.reason, remedy=self.gap.remedy)


PYTEST = Launcher(start=(sys.executable, "-m", "pytest"), is_pytest=True)


class ProcessStart(NamedTuple):
    """
    How a process was started, in builtins: it travels to xdist's workers.

    Attributes:
        argv: `sys.orig_argv`.

        args: The arguments that pytest got.

        sys_args: `sys.argv` without its first word.

        executable: `sys.executable`; "": the interpreter is embedded.

        is_nested: Whether a test of another pytest started this one, in its process.

        is_interactive: Whether a person types into it.
    """

    argv: Sequence[str]
    args: Sequence[str]
    sys_args: Sequence[str]
    executable: str
    is_nested: bool = False
    is_interactive: bool = False


class _Target(NamedTuple):
    """What Python was told to run: `-m`, `-c`, `-`, a file, or nothing."""

    kind: str
    words: tuple[str, ...]


def launcher_of(process: ProcessStart, *, replays: bool = False) -> Launcher:
    """
    Return what started pytest in a process.

    Args:
        process: How it was started.

        replays: Whether the user lets a script or `-c` be run again.
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
    shared = _shared(rest, process.args)
    own = rest[: len(rest) - shared]
    is_script = target.kind == "file" and _is_installed(target.words[0])
    words = (_absolute(target.words[0]),) if is_script else target.words
    if is_script:  # typed by its name, as `coverage`
        typed = (*(typed if options else ()), Path(words[0]).name)
    else:
        typed = (*typed, *target.words)
    launcher = Launcher(
        start=(*python, *words, *own),
        shown=shlex.join((*typed, *own)),
        own=len(own),
        added=tuple(process.args[: len(process.args) - shared]),
    )
    gap = _refusal(process, target, launcher)
    if gap is None and target.kind != "-m" and not (is_script or replays):
        if target.kind == "-c":  # nobody knows what is written there, or how much
            launcher = replace(launcher, shown="python -c")
        gap = Gap(
            code=GapCode.OTHER_LAUNCHER,
            reason=f"pytest was started by `{launcher.shown}`, which is not run again",
            remedy=f"{_PLAIN}, or let each fresh process run it with the ini option "
            "gpuperf_launcher = replay",
        )
    return replace(launcher, gap=gap)


def _refusal(process: ProcessStart, target: _Target, launcher: Launcher) -> Gap | None:
    """Return why a launcher cannot be run again, whatever the user allows; None: it can."""
    if process.is_interactive or target.kind in {"", "-"} or not process.executable:
        reason = "pytest was called by an interactive or embedded Python"
        return Gap(code=GapCode.OTHER_LAUNCHER, reason=reason, remedy=_PLAIN)
    is_handed = len(launcher.added) < len(process.args) or not launcher.own
    # Without arguments pytest must have been called so: not from the launcher's own.
    if is_handed or not (process.args or process.sys_args):
        return None
    return unproven("other-arguments", launcher)


def unproven(code: str, launcher: Launcher) -> Gap:
    """
    Return why a process that was started by a launcher again does not count.

    Args:
        code: What the process found: other-arguments, other-command, or twice.

        launcher: What was to start it.
    """
    name = f"`{launcher.shown}`"
    reason, remedy = {
        "other-arguments": (
            f"{name} gives pytest other arguments than its own",
            _HANDING,
        ),
        "other-command": (f"{name} starts Python in another way each time", _PLAIN),
        "twice": (f"{name} starts pytest more than once", _PLAIN),
    }[code]
    return Gap(code=GapCode.OTHER_LAUNCHER, reason=reason, remedy=remedy)


def _split(
    argv: Sequence[str],
) -> tuple[tuple[str, ...], _Target, tuple[str, ...]]:
    """Return the interpreter's options, what it runs, and the words behind that."""
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
        flags, letter, value_text = _letters(word)
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


def _letters(word: str) -> tuple[str, str, str]:
    """Return the flags of a word, its letter with a value ("": none), and the value."""
    for index, letter in enumerate(word[1:], start=1):
        if letter in _ENDING + _WITH_VALUE:
            return word[1:index], letter, word[index + 1 :]
    return word[1:], "", ""


def _is_pytest(target: _Target) -> bool:
    """Return whether Python was told to run pytest itself."""
    if target.kind == "-m":
        return target.words[1] == "pytest"
    return target.kind == "file" and (
        Path(target.words[0]).name in _SCRIPTS and Path(target.words[0]).is_file()
    )


def _is_installed(path: str) -> bool:
    """Return whether a file is the command of an installed package, as `coverage`."""
    folders = {sysconfig.get_path("scripts"), os.path.dirname(sys.executable)}  # noqa: PTH120 - a string
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - links stay
    if os.path.realpath(folder) not in set(map(os.path.realpath, folders)):
        return False
    return bool(metadata.entry_points(group="console_scripts", name=name))


def _shared(rest: Sequence[str], args: Sequence[str]) -> int:
    """Return how many words at the end of a command are the last arguments of pytest."""
    count = 0
    while count < min(len(rest), len(args)) and rest[-1 - count] == args[-1 - count]:
        count += 1
    return count


def _absolute(path: str) -> str:
    """Return a path from the root; links stay."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve() follows links


def _redirected(own: Sequence[str], name: str, scratch: str) -> tuple[str, ...]:
    """Return a launcher's own arguments with the files that it writes below a folder."""
    words: list[str] = []
    for word in own:
        option, equals, value = word.partition("=")
        if words and words[-1] in _OUTPUTS:
            words.append(_below(scratch, word))
        elif equals and option in _OUTPUTS:
            words.append(f"{option}={_below(scratch, value)}")
        else:
            words.append(word)
    command, option, file = _OUTPUT_OF.get(name, ("", "", ""))
    if command in words and not {option, "--output"}.intersection(words):
        place = words.index(command) + 1
        words[place:place] = [option, str(Path(scratch, file))]
    return tuple(words)


def _below(scratch: str, path: str) -> str:
    """Return a file of the same name in another folder."""
    return str(Path(scratch, Path(path).name or "output"))
