"""The sides of a comparison, built: in place by a command, or into folders of their own.

What was built into a folder is kept between runs, by the content of its sources and what
it was built with: a revision that is compared again is not compiled again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.loaded_files import content_digest, digest_of
from pytest_gpuperf.errors import SidesRefusedError
from pytest_gpuperf.pipeline.side_process import last_lines

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner
    from pytest_gpuperf.collect.worktree import Repository
    from pytest_gpuperf.pipeline.side_process import SideCommand

__all__ = ["Builder", "build_in_place", "cache_folder", "project_folder"]

_TABLES = ("[build-system]", "[project]", "[tool.poetry]")  # of a pyproject.toml
_MOST_CACHED = 8  # builds; one of CUDA sources may be 100 MB
# a copy has no .git, from which these tools read the version; it is not what is measured
_VERSIONS = {
    "SETUPTOOLS_SCM_PRETEND_VERSION": "0",
    "PBR_VERSION": "0",
    "POETRY_DYNAMIC_VERSIONING_BYPASS": "0",
}
# what compilers and build backends read, by the beginning of its name
_COMPILERS = (
    *("CARGO", "CC", "CFLAGS", "CMAKE", "CPPFLAGS", "CUDA", "CXX", "FC", "LDFLAGS"),
    *("MESON", "NVCC", "PATH", "RUST", "SKBUILD", "TORCH_"),
)
_REMEDY = (
    "build both sides with the ini option gpuperf_build_command, or install what the "
    "build needs into this environment"
)


def cache_folder() -> Path:
    """Return the folder of the built sides, in this user's cache."""
    from platformdirs import user_cache_path

    return user_cache_path("pytest-gpuperf", appauthor=False) / "sides"


def build_in_place(
    text: str, command: SideCommand, runner: Runner, *, timeout_s: float
) -> None:
    """
    Build a side in its own tree.

    Args:
        text: A shell command; it is run in the root of the tree.

        command: The side's.

        runner: Starts it.

        timeout_s: How long it may take [s].

    Raises:
        SidesRefusedError: It fails.

        CollectError: It did not end.
    """
    finished = runner.run(
        ("/bin/sh", "-c", text),
        timeout_s=timeout_s,
        cwd=command.tree,
        env={**command.inherited(), "PWD": command.tree},
    )
    _check(finished, command, "correct the ini option gpuperf_build_command")


class Builder:
    """
    Builds sides into folders of their own.

    Args:
        repository: The working tree's.

        carry: The carried files, relative to the root.

        runner: Starts the builds.

        timeout_s: How long each may take [s].

        cache: Where what was built is kept between runs.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        carry: Sequence[str],
        runner: Runner,
        timeout_s: float,
        cache: Path,
    ) -> None:
        self._repository = repository
        self._carry = tuple(carry)
        self._runner = runner
        self._timeout_s = timeout_s
        self._cache = cache

    def build(self, command: SideCommand) -> str:
        """
        Build a side, or take it from the cache; return the folder that holds it.

        Raises:
            SidesRefusedError: It cannot be built.

            CollectError: A process did not start, or did not end.
        """
        source, site = Path(command.scratch, "source"), Path(command.scratch, "site")
        files = self._copied(command.tree, source)
        folder = source / (project_folder(command.tree, command.folder) or "")
        entry = self._cache / self._key(source, files, folder)
        if not _copy_entry(entry, site):
            self._install(command, folder, site)
            _keep(entry, site)
        return os.path.realpath(site)

    def _copied(self, tree: str, target: Path) -> list[str]:
        """
        Copy what git would add, and return it.

        A build leaves files behind, and would find those of an earlier one.
        """
        repository = self._repository.within(tree)
        files = [*repository.listed(), *self._carry]
        for path in files:
            source = Path(tree, path)
            if source.is_file():
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / path)
        return sorted(files)

    def _install(self, command: SideCommand, folder: Path, site: Path) -> None:
        """Install a project's sources into a folder."""
        argv = (*_installer(), "-q", "--no-deps", "--no-build-isolation", "--no-index")
        finished = self._runner.run(
            (*argv, "--target", str(site), str(folder)),
            timeout_s=self._timeout_s,
            cwd=str(folder),
            env={
                **_VERSIONS,
                **command.inherited(),
                "PWD": str(folder),
                "TMPDIR": command.scratch,  # uv leaves files there
            },
        )
        _check(finished, command, _REMEDY)

    @staticmethod
    def _key(source: Path, files: Iterable[str], folder: Path) -> str:
        """Return what a build depends on: sources, interpreter, tools, settings."""
        purelib = Path(sysconfig.get_path("purelib"))
        settings = {k: v for k, v in os.environ.items() if k.startswith(_COMPILERS)}
        parts = [
            *(f"{path} {content_digest(source / path)}" for path in files),
            os.path.relpath(folder, source),
            sys.version,
            sysconfig.get_platform(),
            sys.prefix,
            str(content_digest(purelib)),
            repr(sorted(settings.items())),
        ]
        return digest_of("\n".join(parts).encode("utf-8", "surrogateescape"))


def project_folder(tree: str, folder: str) -> str | None:
    """
    Return the folder of a tree that can be built, relative to its root.

    It is the nearest one, from the folder where the tests are started upwards; None:
    there is none.
    """
    place = Path(folder)
    while place.is_relative_to(tree):
        settings = place / "pyproject.toml"
        text = settings.read_text("utf-8", "replace") if settings.is_file() else ""
        if (place / "setup.py").is_file() or any(table in text for table in _TABLES):
            return os.path.relpath(place, tree)
        place = place.parent
    return None


def _installer() -> tuple[str, ...]:
    """Return the command that installs a project into this environment's folders."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install")
    if shutil.which("uv") is not None:  # which would look for an environment by itself
        return ("uv", "pip", "install", "--python", sys.executable)
    message = "there is no pip in this environment to build the sides with"
    raise SidesRefusedError(
        message, remedy="install pip, or set the ini option gpuperf_build_command"
    )


def _check(finished: Finished, command: SideCommand, remedy: str) -> None:
    """Refuse a build that failed."""
    if finished.exit_code:
        message = (
            f"the {command.side.value} side cannot be built in {command.tree}: "
            f"{last_lines(finished)}"
        )
        raise SidesRefusedError(message, remedy=remedy)


def _copy_entry(entry: Path, site: Path) -> bool:
    """Copy a cached build; return whether there is one."""
    if not entry.is_dir():
        return False
    shutil.copytree(entry, site)
    with contextlib.suppress(OSError):  # another run may have removed it since
        os.utime(entry)
    return True


def _keep(entry: Path, site: Path) -> None:
    """Keep a build in the cache, as far as there is room; the oldest go."""
    with contextlib.suppress(OSError, shutil.Error):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix="new-") as staging:
            shutil.copytree(site, Path(staging, "site"))
            Path(staging, "site").replace(entry)
        entries = [
            path for path in entry.parent.iterdir() if len(path.name) == len(entry.name)
        ]
        entries.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for old in entries[_MOST_CACHED:]:
            shutil.rmtree(old, ignore_errors=True)
