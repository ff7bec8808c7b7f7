"""What the program of a command is, down to the files that its arguments name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu.key import (
    PASSED_OVER,
    Digests,
    Field,
    Gathered,
    chosen_environment,
    device_fields,
)
from pytest_gpuperf.collect.ncu.libraries import library_fields
from pytest_gpuperf.collect.ncu.sources import PYTHON, project_files, python_fields
from pytest_gpuperf.errors import CollectorUnavailableError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.command import Command
    from pytest_gpuperf.model.environment import Device

__all__ = ["argument_fields", "command_fields", "interpreters", "resolved", "scripts"]

_MOST_LISTED = 10_000  # files of a folder that an argument names: 50 ms
_TOO_MUCH = "too much"
_SCRIPT_START = 256  # bytes that Linux reads of a line behind "#!" (BINPRM_BUF_SIZE)


def command_fields(
    command: Command,
    *,
    ncu_version: str,
    cwd: Path,
    env: Mapping[str, str],
    digests: Digests,
    device: Device | None = None,
) -> tuple[dict[str, Field], tuple[str, ...]]:
    """
    Return what a command's report depends on, and what could not be looked at.

    Where report and log go is no part of it.

    Args:
        command: The command.

        ncu_version: What `ncu --version` says.

        cwd: The folder it is started in.

        env: The whole environment it is started in.

        digests: What digests files.

        device: The GPU; None: not known.

    Raises:
        CollectorUnavailableError: There is no such program.
    """
    search = env.get("PATH")
    program = resolved(command.executable, cwd, search)
    programs = (program, *interpreters(program, search))
    given = [os.fspath(each) for each in command.args or ()]
    arguments = argument_fields(given, cwd, digests)
    options = argument_fields(command.opts, cwd, digests)
    libraries = [library_fields(e, env=env, digests=digests) for e in programs]
    fields: dict[str, Field] = {
        "ncu": ncu_version,
        "options": options.fields,
        "program": tuple(digests.of(each) for each in programs),
        "arguments": arguments.fields,
        "cwd": os.fspath(cwd),
        "environment": chosen_environment(env),
        "own_environment": {
            name: value
            for name, value in (command.env or {}).items()
            if name not in PASSED_OVER
        },
        "device": device_fields(device),
        "libraries": tuple(each.fields for each in libraries),
    }
    started = [*scripts(given, cwd), *(p for p in programs if p.suffix in PYTHON)]
    if started:
        fields["files"] = project_files(started, root=cwd, digests=digests)
    if started or any(each.name.startswith("python") for each in programs):
        fields |= python_fields(digests, programs)
    gathered = (arguments, options, *libraries)
    remarks = (remark for each in gathered for remark in each.remarks)
    return fields, tuple(dict.fromkeys(remarks))


def scripts(arguments: Sequence[str], cwd: Path) -> Iterator[Path]:
    """Yield the Python files that arguments name: `t.py`, `t.py::test`, a folder, `-m t`."""
    for before, each in pairwise(("", *arguments)):
        place = cwd / each.partition("::")[0]
        if before == "-m":
            module = cwd.joinpath(*each.split("."))
            yield from (Path(f"{module}.py"), module / "__main__.py")
        elif place.suffix in PYTHON:
            yield place
        elif each and _is_folder(place):
            yield from islice(place.rglob("*.py"), _MOST_LISTED)


def resolved(executable: str | os.PathLike[str], cwd: Path, search: str | None) -> Path:
    """
    Return the file that a command starts.

    Args:
        executable: A path, relative to the folder it is started in, or a bare name.

        cwd: The folder it is started in.

        search: The value of PATH, for a bare name.

    Raises:
        CollectorUnavailableError: There is no such program.
    """
    name = os.fspath(executable)
    bare = os.path.dirname(name) == ""  # noqa: PTH120 - Path("./x") would drop the "./"
    place = name if bare else str(cwd / name)
    # an entry of PATH may be relative, and is so to that folder
    folders = (search or os.defpath).split(os.pathsep)
    where = os.pathsep.join(str(cwd / folder) for folder in folders)
    found = shutil.which(place, path=where)
    if found is None:
        message = f"{name} is no program that can be started"
        raise CollectorUnavailableError(
            message, remedy="name an executable file, or put it on PATH"
        )
    return Path(found)


def interpreters(program: Path, search: str | None) -> Iterator[Path]:
    """Yield the programs behind the "#!" of a script; none for a binary."""
    try:
        with program.open("rb") as stream:
            start = stream.read(_SCRIPT_START)
    except OSError:
        return
    if not start.startswith(b"#!"):
        return
    for word in os.fsdecode(start[2:].split(b"\n")[0]).split():
        found = shutil.which(word, path=search)
        if found is not None:  # the others are its options
            yield Path(found)


def argument_fields(arguments: Iterable[str], cwd: Path, digests: Digests) -> Gathered:
    """
    Return arguments, each with the content of the file or folder that it names.

    Args:
        arguments: As they are given; of `--option=FILE` the file is looked at too.

        cwd: The folder that relative names start from.

        digests: What digests files.
    """
    fields: list[Field] = []
    remarks: list[str] = []
    for each in arguments:
        content = _content_of(each, cwd, digests)
        if content == _TOO_MUCH:
            content = os.urandom(16)  # nobody has that key again
            remarks.append(
                f"{each} is a folder of more than {_MOST_LISTED} files: whether they "
                "changed is not known, so nothing is found in the cache"
            )
        fields.append((each, content))
    return Gathered(fields=fields, remarks=tuple(remarks))


def _content_of(argument: str, cwd: Path, digests: Digests) -> Field:
    """Return what stands behind an argument; None: it names nothing."""
    for name in (argument, argument.partition("=")[2], argument.partition("::")[0]):
        if not name or "\0" in name:
            continue
        place = cwd / name
        if (digest := digests.of(place)) is not None:
            return digest
        if _is_folder(place):
            return _listing(place)
    return None


def _is_folder(place: Path) -> bool:
    """Return whether a text names a folder; one that can be no name does not."""
    try:
        return place.is_dir()
    except (OSError, ValueError):  # too long, or with a zero in it
        return False


def _listing(folder: Path) -> Field:
    """Return the files of a folder by name, size and time: it may hold a data set."""
    found: dict[str, Field] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not _is_byproduct(each)]
        for name in names:
            path = Path(place, name)
            with contextlib.suppress(OSError):  # removed meanwhile
                seen = path.stat()
                key = path.relative_to(folder).as_posix()
                found[key] = (seen.st_size, seen.st_mtime_ns)
        if len(found) > _MOST_LISTED:
            return _TOO_MUCH
    return found


def _is_byproduct(name: str) -> bool:
    """Return whether a folder holds what running tests leaves behind."""
    return name == "__pycache__" or name.startswith(".")
