"""Finds the folder of a project: the nearest folder with .git, else pytest's root folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.model.checkout import Checkout

# Number of tests that are checked, out of hundreds on a command line. Each test costs some
# system calls.
_LOOKED_AT = 20


def git_folder(path: str | Path) -> Path | None:
    """Return the nearest folder at or above a path that has .git, or None."""
    place = Path(os.path.realpath(path))
    return next((f for f in (place, *place.parents) if (f / ".git").exists()), None)


def below_workspace(root: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """
    Return a checkout relative to the base of GitHub's annotations, or None.

    The base is the workspace of the job, else the repository, for which the result is
    "". Outside of both, the result is None.
    """
    workspace = variables.get("GITHUB_WORKSPACE")
    if workspace:
        below = _relative(Path(root), Path(os.path.realpath(workspace)))
        if below is not None:
            return below
    return None if git_folder(root) is None else ""


def checkout_of(
    rootdir: str | Path, start: str | Path, tests: Sequence[str | Path] = ()
) -> Checkout:
    """
    Return the checkout of a session.

    Candidates are the repositories of pytest's root folder, of the folder where pytest
    was started, and of the tests. If there are none, they are the root folder itself
    and the folder where pytest was started. The first candidate that contains a test is
    used, because a configuration file may lie elsewhere.

    Args:
        rootdir: pytest's root folder.

        start: The folder where pytest was started.

        tests: Files and folders of tests. If empty, the tests below `start`.
    """
    base = Path(os.path.realpath(rootdir))
    tests = tests[:_LOOKED_AT]
    targets = [Path(os.path.realpath(path)) for path in tests or (start,)]
    found = [folder for p in (rootdir, start, *targets) if (folder := git_folder(p))]
    found = found or [base, Path(os.path.realpath(start))]
    holding = (f for f in found if any(p.is_relative_to(f) for p in targets))
    root = next(holding, found[0])
    spelled = [
        Path(os.path.normpath(path))
        for path in (rootdir, start, os.environ.get("PWD", ""), *tests)
        if Path(path).is_absolute()
    ]
    spellings = [
        folder.as_posix()
        for path in spelled
        for folder in (path, *path.parents)
        if os.path.realpath(folder) == str(root)
    ]
    # pytest writes text into ids as ASCII.
    escaped = [
        text.encode("unicode_escape").decode("ascii")
        for text in (root.as_posix(), *spellings)
    ]
    others = dict.fromkeys((*spellings, *escaped))
    others.pop(root.as_posix(), None)
    return Checkout(
        root=root.as_posix(), spellings=tuple(others), rootdir=_relative(base, root)
    )


def _relative(path: Path, folder: Path) -> str | None:
    """Return a path relative to a folder, "" for the folder itself, or None if not below."""
    if not path.is_relative_to(folder):
        return None
    below = path.relative_to(folder).as_posix()
    return "" if below == "." else below
