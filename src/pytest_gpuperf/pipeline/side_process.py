"""The processes of one side: what builds it, how others start, what they load and collect.

What was built into a folder is kept between runs, by the content of its sources and what
it was built with: a revision that is compared again is not compiled again.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect import loaded_files, redirection
from pytest_gpuperf.collect.loaded_files import content_digest, digest_of
from pytest_gpuperf.collect.runner import ending, signal_name
from pytest_gpuperf.collect.scratch import user_cache
from pytest_gpuperf.errors import (
    CollectorFailedError,
    CollectorTimeoutError,
    RecordError,
    SidesRefusedError,
)
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.pipeline.proof import Loaded
from pytest_gpuperf.pipeline.repeat import (
    ChildSpec,
    CommandLine,
    empty_caches,
    last_lines,
    launch_refusal,
    own_coverage,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner
    from pytest_gpuperf.collect.worktree import Repository
    from pytest_gpuperf.measure.site import ProcessIdentity

__all__ = [
    "LISTING_VARIABLE",
    "LOADED_SO_FAR",
    "ROOT_VARIABLE",
    "Builder",
    "CollectedTest",
    "CollectedTests",
    "Collection",
    "SideCommand",
    "build_in_place",
    "cache_folder",
    "collect",
    "project_folder",
    "root_folder",
]

LISTING_VARIABLE = "PYTEST_GPUPERF_LISTING"  # the file to write the tests to
ROOT_VARIABLE = "PYTEST_GPUPERF_ROOT"  # the file to write pytest's root folder to
_PLUGIN = "pytest_gpuperf.hooks.listing"
_SHOWN_LINES = 10  # of what a process printed that did not do what it was started for
# whoever sends these is not the side's own code; others, as SIGSEGV, are of a crash
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
_ENDED_REMEDY = "see what ended it, as a lack of memory, and run it again"
_USAGE_ERROR = 4  # pytest.ExitCode
_SHELL_SIGNALS = 128  # a POSIX shell adds it to the signal that ended its command
# of an error that pytest or a program that it calls tells
_ERROR = re.compile(r"E {2,}|.*error: ", re.IGNORECASE)
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
# of git's hooks, of xdist and of coverage, which belong to the parent; and what makes
# Python wait for a person or print
_DROPPED = (
    *("GIT_", "PYTEST_XDIST_", "PYTEST_CURRENT_TEST", "COV_CORE_", "COVERAGE_PROCESS_"),
    *("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME"),
)
_BOOT = "boot"  # in a process's folder: its sitecustomize, and what it recorded
LOADED_SO_FAR = "so-far/loaded.json"  # there, too: what it has loaded before each test
# what takes back options that spoil times, by the plugin that has them
_UNDO = {
    "pytest_cov": ("--no-cov",),  # tracing is not what is measured
    "randomly": ("--randomly-seed=1",),  # the same data on both sides
}


class SideCommand(Frozen, frozen=True, kw_only=True):
    """
    How a process of one side is started.

    Attributes:
        side: Which side.

        folder: The folder to start it in.

        command: How the parent was started.

        tree: The root of its own tree, without links.

        other_tree: The root of the other side's tree.

        environments: Folders of the other tree that are for both sides.

        scratch: A folder of its own, which lasts as long as the run.

        front: The folders in which Python looks first, where cwd is not enough.

        level: As `Sides.level`.

        has_overlay: Whether Python is started in an environment of the process's own, on
            top of the user's: it reaches programs that get no environment variables.
    """

    side: Side
    folder: str
    command: CommandLine
    tree: str
    other_tree: str
    environments: tuple[str, ...]
    scratch: str
    front: tuple[str, ...] = ()
    level: int = 0
    has_overlay: bool = False

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """
        Return the command of a process.

        Args:
            scratch: Its own folder, which exists; one for each process.

            extra: More arguments of pytest.
        """
        command = self.command
        undo = [w for n, words in _UNDO.items() if n in command.plugins for w in words]
        args = tuple(mapped for arg in command.args if (mapped := self._argument(arg)))
        end = args.index("--") if "--" in args else len(args)
        args = (*args[:end], *undo, *extra, *args[end:])
        # without a folder of its own, pytest would clear those of the user's last runs
        command = replace(command, args=args, own_basetemp=True)
        launcher = command.launcher
        start = tuple(map(self._moved, launcher.start[1:]))
        launcher = replace(launcher, start=(launcher.start[0], *start))
        command = replace(command, launcher=launcher)
        python, *words = command.for_child(scratch)
        if self.has_overlay:
            python = str(_overlay_python(scratch))
        return (python, *words)

    def environment(self, scratch: str, hash_seed: int) -> dict[str, str]:
        """
        Return the environment of a process, to which the caller adds its own variables.

        The process writes which files it loaded below `scratch`, where its caches of
        compiled kernels are, too.

        Args:
            scratch: Its own folder, as for `argv`.

            hash_seed: Of Python's hashes, 0 to 4294967295: one for a whole block.
        """
        inherited = self.inherited()
        paths = inherited.pop("PYTHONPATH", "")
        if paths:  # an empty entry is the folder where Python is started
            moved_paths = (self._moved(path or ".") for path in paths.split(os.pathsep))
            inherited["PYTHONPATH"] = os.pathsep.join(moved_paths)
        moved = (self.tree, self.other_tree, self.environments, self.front, self.level)
        first = [(redirection.__file__, moved)] if self.level else []
        recording = loaded_files.FileRecording(Path(scratch, _BOOT), None, first=first)
        if self.has_overlay:
            _make_overlay(scratch)
        return {
            **inherited,
            **empty_caches(scratch),
            **own_coverage(self.command, scratch),
            **recording.variables(inherited),
            # a build of minutes, which must be of the own sources, and once is enough
            "TORCH_EXTENSIONS_DIR": str(Path(self.scratch, "torch_extensions")),
            "PWD": self.folder,
            "PYTHONHASHSEED": str(hash_seed),
        }

    @staticmethod
    def inherited() -> dict[str, str]:
        """Return the parent's environment without what belongs to the parent alone."""
        return {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}

    def has(self, argument: str) -> bool:
        """Return whether this side has the file that an argument names, if it names one."""
        path = argument.partition("::")[0]
        if not Path(self.command.folder, path).exists():
            return (
                True  # the name of a module (--pyargs), which its own Python looks for
            )
        return Path(self.folder, self._moved(path)).exists()

    def loaded(self, scratch: str, *, so_far: bool = False) -> Loaded:
        """
        Return what a process and those that it started have loaded.

        Args:
            scratch: Its own folder, as for `argv`.

            so_far: Whether it did not come to its end by itself, and counts up to where
                it has said what it has loaded.

        Returns:
            Nothing where it has not said so.
        """
        recorded = loaded_files.read(Path(scratch, _BOOT))
        if so_far:
            stored = loaded_files.read(Path(scratch, LOADED_SO_FAR).parent)
            recorded, is_said = recorded + stored, bool(stored)
        else:
            is_said = any(_own_base(scratch) in argv for argv, _ in recorded)
        files = (file for _, files in recorded for file in files)
        return Loaded.of(files if is_said else ())

    def _argument(self, arg: str) -> str:
        """Return an argument for this side; "": it names a test file that is not there."""
        if arg in self.command.paths:  # which tests of a file run is said by their ids
            return self._moved(arg.partition("::")[0]) if self.has(arg) else ""
        name, equals, value = arg.rpartition("=")
        return name + equals + self._moved(value)

    def _moved(self, path: str) -> str:
        """Return a path of the other tree in the own one, if it is there."""
        if not Path(path).is_absolute() or self.side is Side.NEW:
            return path
        place = redirection.moved(path, self.tree, self.other_tree, self.environments)
        return place if Path(place).exists() else path


def _own_base(scratch: str) -> str:
    """Return the argument by which a process is known among those that it starts."""
    return f"--basetemp={scratch}/base"


def _overlay_python(scratch: str) -> Path:
    """Return the interpreter of a process's own environment."""
    return Path(scratch, "environment", "bin", Path(sys.executable).name)


def _make_overlay(scratch: str) -> None:
    """Make an environment that has the packages of this one, and our sitecustomize."""
    python = _overlay_python(scratch)
    folder = python.parents[1]
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    site_packages = Path(
        sysconfig.get_path(
            "purelib", scheme, vars={"base": str(folder), "platbase": str(folder)}
        )
    )
    site_packages.mkdir(parents=True)
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    settings = Path(sys.prefix, "pyvenv.cfg")
    home = Path(os.path.realpath(sys.executable)).parent
    text = settings.read_text("utf-8") if settings.is_file() else f"home = {home}\n"
    (folder / "pyvenv.cfg").write_text(text, encoding="utf-8")
    places = [
        place
        for place in (*site.getsitepackages(), site.getusersitepackages())
        if place in sys.path
    ]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    (site_packages / "user.pth").write_text("".join(lines), encoding="utf-8")
    shutil.copy(Path(scratch, _BOOT, "sitecustomize.py"), site_packages)


class CollectedTest(Frozen, frozen=True, kw_only=True):
    """
    A test that was collected.

    Attributes:
        test_id: The test.

        key: Its key, by which the tests of two sides are matched.

        source: The digest of its own source.

        measures: Whether it uses the plugin.
    """

    test_id: str
    source: str
    measures: bool
    key: str = ""


class CollectedTests(Frozen, frozen=True, kw_only=True):
    """
    What a process has collected.

    Attributes:
        tests: In the order to run them.

        failures: Why something could not be collected, by its id.

        is_import_error: Whether each of them is an import that found nothing.
    """

    tests: tuple[CollectedTest, ...]
    failures: Mapping[str, str] = {}
    is_import_error: bool = True


class Collection(Frozen, frozen=True, kw_only=True):
    """
    What a side collects.

    Attributes:
        tests: Those that were collected, by the id by which the caller knows them.

        loaded: The code that was loaded for it.

        failure: What the side did not do, to follow its name; "": it is complete.

        is_import_error: Whether that is because imports found nothing, or not known.

        is_usage_error: Whether pytest did not take its arguments, as the name of a file.
    """

    tests: Mapping[str, CollectedTest]
    loaded: Loaded
    failure: str = ""
    is_import_error: bool = True
    is_usage_error: bool = False


def collect(
    command: SideCommand,
    identity: ProcessIdentity,
    runner: Runner,
    *,
    timeout_s: float,
    names: Mapping[str, str] | None = None,
) -> Collection:
    """
    Collect the tests of a side, in a process of its own.

    Args:
        command: The side's.

        identity: This process's.

        runner: Starts the side's.

        timeout_s: How long it may take [s].

        names: The ids by which the caller knows tests, by their keys; other tests are
            known by their keys.

    Raises:
        SidesRefusedError: There is no room for its files, or it was ended from outside.

        CollectError: It did not start, or did not end.
    """
    with tempfile.TemporaryDirectory(dir=command.scratch, prefix="collect-") as scratch:
        listing = Path(scratch, "listing.json")
        finished = _list_tests(command, identity, runner, listing, timeout_s=timeout_s)
        loaded = command.loaded(scratch)
        listed = _listed(listing)
    if listed is None:
        _check_end(finished, command)
        said = _last_error(finished.log_tail)
        return Collection(
            tests={},
            loaded=loaded,
            failure=f"collected nothing ({ending(finished.exit_code)}): {said}",
            is_usage_error=finished.exit_code == _USAGE_ERROR,
        )
    failures = (
        f"cannot collect {name}: {text}" for name, text in listed.failures.items()
    )
    return Collection(
        tests={
            (names or {}).get(key := t.key or t.test_id, key): t for t in listed.tests
        },
        loaded=loaded,
        failure=next(failures, ""),
        is_import_error=listed.is_import_error,
    )


def _list_tests(
    command: SideCommand,
    identity: ProcessIdentity,
    runner: Runner,
    listing: Path,
    *,
    timeout_s: float,
) -> Finished:
    """Run a side's process that writes its tests to a file, in a folder of its own."""
    scratch = str(listing.parent)
    spec = Path(scratch, "spec.json")
    argv = command.argv(scratch, ("-p", _PLUGIN, "--collect-only", "-q"))
    child = ChildSpec(
        test_ids=(),
        identity=replace(identity, writer="collect", spool=None, expected=None),
        out=str(Path(scratch, "answers.jsonl")),
        launch=command.command.launch(argv),
    )
    spec.write_text(codec.to_text(child), encoding="utf-8")
    environment = {
        **command.environment(scratch, 0),
        command.command.variable: str(spec),
        LISTING_VARIABLE: str(listing),
    }
    try:
        finished = runner.run(
            argv, timeout_s=timeout_s, cwd=command.folder, env=environment
        )
    except CollectorTimeoutError as error:
        side, remedy = command.side.value, "find out what its imports wait for"
        message = f"the {side} side did not collect its tests within {timeout_s:.3g} s"
        raise CollectorTimeoutError(message, remedy=remedy) from error
    refusal = launch_refusal(command.command, child.out)
    if refusal is not None:
        raise SidesRefusedError(refusal.reason, remedy=refusal.remedy)
    return finished


def _listed(listing: Path) -> CollectedTests | None:
    """Return what a process listed; None: it wrote nothing, or not all of it."""
    try:
        return codec.from_text(listing.read_bytes(), CollectedTests)
    except (FileNotFoundError, RecordError):
        return None


def root_folder(
    command: CommandLine, scratch: str, runner: Runner, *, timeout_s: float
) -> str | None:
    """
    Return the folder that pytest's test ids are relative to; None: pytest does not start.

    Args:
        command: How pytest is started.

        scratch: A folder for what it writes, which exists.

        runner: Starts it.

        timeout_s: How long it may take [s].

    Raises:
        CollectError: It did not start, or did not end.
    """
    file = Path(scratch, "root")
    options = replace(command, args=("-p", _PLUGIN, *command.args))
    runner.run(
        options.for_child(scratch),
        timeout_s=timeout_s,
        cwd=command.folder,
        env={**SideCommand.inherited(), ROOT_VARIABLE: str(file)},
    )
    return os.fsdecode(file.read_bytes()) if file.is_file() else None


def _last_error(text: str) -> str:
    """Return the last line that tells of an error; where none does, the last lines."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if _ERROR.match(line)]
    if errors:
        return errors[-1].removeprefix("E  ").strip()
    return last_lines(text, _SHOWN_LINES, in_a_sentence=True)


def _check_end(finished: Finished, command: SideCommand) -> None:
    """Refuse if a process had no room to write in, or was ended from outside."""
    text = os.strerror(errno.ENOSPC)
    if text.encode() in finished.stdout + finished.stderr:
        message = f"a process could not write below {command.scratch} ({text})"
        remedy = "make room there, or set TMPDIR to another folder"
        raise SidesRefusedError(message, remedy=remedy)
    if _signal_of(finished) in _FROM_OUTSIDE:
        side, name = command.side.value, _signal_of(finished)
        message = f"{name} ended the {side} side while it collected its tests"
        raise SidesRefusedError(message, remedy=_ENDED_REMEDY)


def _signal_of(finished: Finished) -> str:
    """Return the name of the signal that ended a process; "": it ended by itself."""
    return "" if finished.exit_code >= 0 else signal_name(-finished.exit_code)


def cache_folder() -> Path:
    """Return the folder of the built sides, in this user's cache."""
    return user_cache("sides")


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

        CollectError: It did not end, or was ended from outside.
    """
    finished = runner.run(
        ("/bin/sh", "-c", text),
        timeout_s=timeout_s,
        cwd=command.tree,
        env={**command.inherited(), "PWD": command.tree},
    )
    if finished.exit_code > _SHELL_SIGNALS:  # a shell's word for its command's signal
        finished = finished._replace(exit_code=_SHELL_SIGNALS - finished.exit_code)
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

            CollectError: A process did not start, did not end, or was ended from outside.
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
    """Refuse a build that failed; one that was ended from outside shows nothing."""
    side, name = command.side.value, _signal_of(finished)
    if name in _FROM_OUTSIDE:
        message = f"{name} ended the build of the {side} side in {command.tree}"
        raise CollectorFailedError(
            message,
            remedy=f"{_ENDED_REMEDY}; a build of fewer jobs at once needs less",
            argv=finished.argv,
            exit_code=finished.exit_code,
            log_tail=finished.log_tail,
        )
    if finished.exit_code:
        text = last_lines(finished.log_tail, _SHOWN_LINES, in_a_sentence=True)
        end = f" ({ending(finished.exit_code)})" if name else ""
        message = f"the {side} side cannot be built in {command.tree}{end}: {text}"
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
