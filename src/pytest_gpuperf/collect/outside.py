"""The code outside of a repository whose content no version of a package names.

    code = outside_code(root, environments, loaded)
    digests = {path: code_digest(path, root) for path in code}

Such code is on Python's path, in an editable installation, or was loaded from elsewhere.
The folders of Python's path count as a whole: a process may load any file there.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from pytest_gpuperf.collect.loaded_files import content_digest, digest_of
from pytest_gpuperf.collect.redirection import editable_folders, inside

# The standard library. Its module names never belong to a project.
_LIBRARY = os.path.realpath(Path(os.__file__).parent)
# Installed packages may lie inside the folder of the standard library.
_INSTALLED = ("site-packages", "dist-packages")
# Takes 1.5 s. A larger folder has no digest.
_MOST_FILES = 50_000


def is_of_library(path: str) -> bool:
    """Return True for a file or folder of the standard library."""
    return inside(path, _LIBRARY) and not _is_installed(path)


def import_places(root: str, environments: Iterable[str]) -> frozenset[str]:
    """
    Return the folders and archives outside of a repository from which Python imports.

    Those of the standard library, of installed packages and of commands are left out.

    Args:
        root: The root of the repository, a real path.

        environments: The environments of Python below the root.
    """
    entries = [*sys.path, *(path for _, path in editable_folders())]
    # Python's path has the folder of a command that started pytest.
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    folders.append(os.path.dirname(sys.executable))  # noqa: PTH120 - a text like the others
    commands = frozenset(map(os.path.realpath, folders))
    places = {
        place
        for place in (os.path.realpath(entry or ".") for entry in entries)
        if _is_outside(place, root, environments)
        and not _is_installed(place)
        and not is_of_library(place)
        and place not in commands
        and Path(place).exists()
    }
    return frozenset(p for p in places if not inside(p, *(places - {p})))


def outside_code(
    root: str, environments: Iterable[str], loaded: Iterable[str]
) -> frozenset[str]:
    """
    Return `import_places`, and the loaded files that lie in none of them.

    A file of an installed package is left out, because its version names its content.

    Args:
        root: The root of the repository, a real path.

        environments: The environments of Python below the root.

        loaded: The loaded modules and libraries, real paths.
    """
    places = import_places(root, environments)
    names = frozenset(
        line.partition("/")[0].partition(",")[0].partition(".")[0]
        for package in importlib.metadata.distributions()
        for record in ("RECORD", "installed-files.txt", "top_level.txt")
        for line in (package.read_text(record) or "").splitlines()
    )
    others = {
        path
        for path in loaded
        if _is_outside(path, root, environments)
        and not inside(path, *places)
        and not is_of_library(path)
        and not (_is_installed(path) and _name_in_packages(path) in names)
    }
    return places | others


def code_digest(path: str, root: str, *, before_unix_s: float = float("inf")) -> str:
    """
    Return the digest of a file, or of all files below a folder.

    Byte code, hidden files, environments and the repository are left out.

    Args:
        path: The file or folder, a real path.

        root: The root of the repository, a real path.

        before_unix_s: Files that changed later have no digest [s since the epoch].

    Returns:
        The digest, or "" if there is none or a folder has too many files.
    """
    lines: list[str] = []
    for file in _files_below(path, root) if Path(path).is_dir() else (path,):
        digest = content_digest(Path(file))
        if digest is None:
            if file == path:
                return ""
            # A broken link or a socket.
            continue
        if len(lines) == _MOST_FILES or Path(file).stat().st_mtime >= before_unix_s:
            return ""
        lines.append(f"{os.path.relpath(file, path)} {digest}")
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))


def _files_below(folder: str, root: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not inside(f"{place}/{name}", root)
            and not Path(place, name, "pyvenv.cfg").is_file()
        )
        for name in sorted(files):
            if not name.startswith(".") and not name.endswith(".pyc"):
                yield f"{place}/{name}"


def _is_outside(path: str, root: str, environments: Iterable[str]) -> bool:
    return not inside(path, root) or inside(path, *environments)


def _is_installed(path: str) -> bool:
    return any(folder in path for folder in _INSTALLED)


def _name_in_packages(path: str) -> str:
    parts = PurePath(path).parts
    at = max((i for i, part in enumerate(parts) if part in _INSTALLED), default=-1)
    return parts[min(at + 1, len(parts) - 1)].partition(".")[0]
