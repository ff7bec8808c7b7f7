"""Build a side of a comparison, start its processes, and collect its tests.

Builds are kept between runs, keyed by the content of their sources and by the build
tools. A revision that is compared again is not built again.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect import loaded_files, redirection
from pytest_gpuperf.collect.loaded_files import content_digest, digest_of
from pytest_gpuperf.collect.scratch import user_cache
from pytest_gpuperf.collect.signals import ending, signal_name
from pytest_gpuperf.errors import (
    CollectorFailedError,
    CollectorTimeoutError,
    RecordError,
    SidesRefusedError,
)
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.proof import Loaded
from pytest_gpuperf.pipeline.repeat import (
    ChildSpec,
    empty_caches,
    last_lines,
    launch_refusal,
    own_coverage,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runner import Finished, Runner
    from pytest_gpuperf.collect.worktree import Repository
    from pytest_gpuperf.measure.site import ProcessIdentity

# The file to write the tests to.
LISTING_VARIABLE = "PYTEST_GPUPERF_LISTING"
# The file to write pytest's root folder to.
ROOT_VARIABLE = "PYTEST_GPUPERF_ROOT"
_PLUGIN = "pytest_gpuperf.hooks.listing"
# Lines of output shown of a failed process.
_SHOWN_LINES = 10
# Signals sent from outside. Other signals, such as SIGSEGV, come from a crash of the code.
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
_ENDED_REMEDY = "find out what ended it, for example a lack of memory, and run it again"
# The value in pytest.ExitCode.
_USAGE_ERROR = 4
# A POSIX shell adds this number to the signal that ended its command.
_SHELL_SIGNALS = 128
# Matches a line in which pytest or a called program reports an error.
_ERROR = re.compile(r"E {2,}|.*error: ", re.IGNORECASE)
# Tables of a pyproject.toml that can be built.
_TABLES = ("[build-system]", "[project]", "[tool.poetry]")
# Builds. A build of CUDA sources may take 100 MB.
_MOST_CACHED = 8
# A copy has no .git folder for these tools to read a version from. The version does not
# affect the measurement.
_VERSIONS = {
    "SETUPTOOLS_SCM_PRETEND_VERSION": "0",
    "PBR_VERSION": "0",
    "POETRY_DYNAMIC_VERSIONING_BYPASS": "0",
}
# Prefixes of environment variables read by compilers and build backends.
_COMPILERS = (
    *("CARGO", "CC", "CFLAGS", "CMAKE", "CPPFLAGS", "CUDA", "CXX", "FC", "LDFLAGS"),
    *("MESON", "NVCC", "PATH", "RUST", "SKBUILD", "TORCH_"),
)
_REMEDY = (
    "build both sides with the ini option gpuperf_build_command, or install what the "
    "build needs into this environment"
)
# Prefixes of variables of git hooks, xdist and coverage, which apply to the parent only,
# and variables that make Python wait for a user or print.
_DROPPED = (
    *("GIT_", "PYTEST_XDIST_", "PYTEST_CURRENT_TEST", "COV_CORE_", "COVERAGE_PROCESS_"),
    *("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME"),
)
# In the folder of a process, the subfolder with its sitecustomize and its recording.
_BOOT = "boot"
# Also in the folder of a process: the code loaded so far, written before each test.
LOADED_SO_FAR = "so-far/loaded.json"
# Arguments that undo options that distort times, by plugin.
_UNDO = {
    "pytest_cov": ("--no-cov",),  # Tracing would slow down the code.
    "randomly": ("--randomly-seed=1",),  # The same data on both sides.
}


class SideCommand(Frozen, frozen=True, kw_only=True):
    """
    The command that starts processes of a side.

    Attributes:
        side: The side.

        folder: The folder to start in.

        command: The command line of the parent.

        tree: The root of this side's tree, without links.

        other_tree: The root of the other side's tree.

        environments: Folders of the other tree shared by both sides.

        scratch: A folder of the side, which lasts as long as the run.

        front: The folders in which Python looks first, if the current folder is not
            enough.

        level: As `Sides.level`.

        has_overlay: True if Python is started in a separate environment of the process,
            on top of the user's. This reaches programs that get no environment
            variables.
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
        Return the command line of a process.

        Args:
            scratch: The folder of the process, which exists. Every process has a
                different folder.

            extra: Additional arguments of pytest.
        """
        command = self.command
        undo = [w for n, words in _UNDO.items() if n in command.plugins for w in words]
        args = tuple(mapped for arg in command.args if (mapped := self._argument(arg)))
        end = args.index("--") if "--" in args else len(args)
        args = (*args[:end], *undo, *extra, *args[end:])
        # Without a separate folder, pytest would remove the folders of the user's last runs.
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
        Return the environment of a process, to be extended by the caller.

        The process writes the list of loaded files below `scratch`. Its caches of
        compiled kernels are there, too.

        Args:
            scratch: The folder of the process, as for `argv`.

            hash_seed: The seed of Python's hashes, 0 to 4294967295. A whole block has
                the same seed.
        """
        inherited = self.inherited()
        paths = inherited.pop("PYTHONPATH", "")
        if paths:  # An empty entry means the folder where Python is started.
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
            # A build may take minutes and must use this side's sources. Once is enough.
            "TORCH_EXTENSIONS_DIR": str(Path(self.scratch, "torch_extensions")),
            "PWD": self.folder,
            "PYTHONHASHSEED": str(hash_seed),
        }

    @staticmethod
    def inherited() -> dict[str, str]:
        """Return the parent's environment without variables that apply to the parent only."""
        return {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}

    def has(self, argument: str) -> bool:
        """
        Return True if the file named by an argument exists on the side, or no file is named.
        """
        path = argument.partition("::")[0]
        if not Path(self.command.folder, path).exists():
            # The name of a module (--pyargs), which Python looks for on each side.
            return True
        return Path(self.folder, self._moved(path)).exists()

    def loaded(self, scratch: str, *, so_far: bool = False) -> Loaded:
        """
        Return the code loaded by a process and its child processes.

        Args:
            scratch: The folder of the process, as for `argv`.

            so_far: True for a process that did not end by itself. The list written
                before its last test then replaces the list written at the end.

        Returns:
            Nothing if the process wrote no list.
        """
        recorded = loaded_files.read(Path(scratch, _BOOT))
        if so_far:
            stored = loaded_files.read(Path(scratch, LOADED_SO_FAR).parent)
            recorded, is_said = recorded + stored, bool(stored)
        else:
            own_base = f"--basetemp={scratch}/base"
            is_said = any(own_base in argv for argv, _ in recorded)
        files = (file for _, files in recorded for file in files)
        return Loaded.of(files if is_said else ())

    def _argument(self, arg: str) -> str:
        """Return an argument for the side, or "" if the argument names a missing test file."""
        # Test ids select the tests within a file, so only the file is passed.
        if arg in self.command.paths:
            return self._moved(arg.partition("::")[0]) if self.has(arg) else ""
        name, equals, value = arg.rpartition("=")
        return name + equals + self._moved(value)

    def _moved(self, path: str) -> str:
        """
        Return the path in this side's tree for a path of the other tree, if it exists there.
        """
        if not Path(path).is_absolute() or self.side is Side.NEW:
            return path
        place = redirection.moved(path, self.tree, self.other_tree, self.environments)
        return place if Path(place).exists() else path


def _overlay_python(scratch: str) -> Path:
    return Path(scratch, "environment", "bin", Path(sys.executable).name)


def _make_overlay(scratch: str) -> None:
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
    A collected test.

    Attributes:
        test_id: The test.

        key: The key used to match the tests of two sides.

        source: The digest of the test's own source.

        measures: True if the test uses the plugin.
    """

    test_id: str
    source: str
    measures: bool
    key: str = ""


class CollectedTests(Frozen, frozen=True, kw_only=True):
    """
    The collected tests of a process.

    Attributes:
        tests: The tests, in the order to run them.

        failures: The reasons for failed collections, by node id.

        is_import_error: True if every failure is an import that found nothing.
    """

    tests: tuple[CollectedTest, ...]
    failures: Mapping[str, str] = {}
    is_import_error: bool = True


class Collection(Frozen, frozen=True, kw_only=True):
    """
    The collected tests of a side.

    Attributes:
        tests: The collected tests, by the id the caller uses.

        loaded: The code loaded during the collection.

        failure: The failure as a verb phrase to follow the name of the side, or "" if
            complete.

        is_import_error: True if imports that found nothing are the reason, or the
            reason is unknown.

        is_usage_error: True if pytest rejected the arguments, for example the name of a
            file.
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
    Collect the tests of a side in a separate process.

    Args:
        command: The command of the side.

        identity: The identity of this process.

        runner: Starts the process.

        timeout_s: Time limit of the process [s].

        names: The ids the caller uses for tests, by key. Other tests get their keys as
            ids.

    Raises:
        SidesRefusedError: There is no space for its files, or a signal from outside
            ended the process.

        CollectError: The process did not start or did not end.
    """
    with tempfile.TemporaryDirectory(dir=command.scratch, prefix="collect-") as scratch:
        listing = Path(scratch, "listing.json")
        finished = _list_tests(command, identity, runner, listing, timeout_s=timeout_s)
        loaded = command.loaded(scratch)
        listed = None
        # A process that ended early has left no list, or part of one.
        with contextlib.suppress(FileNotFoundError, RecordError):
            listed = codec.from_text(listing.read_bytes(), CollectedTests)
    if listed is None:
        text = os.strerror(errno.ENOSPC)
        if text.encode() in finished.stdout + finished.stderr:
            message = f"a process could not write below {command.scratch} ({text})"
            remedy = "make room there, or set TMPDIR to another folder"
            raise SidesRefusedError(message, remedy=remedy)
        if _signal_of(finished) in _FROM_OUTSIDE:
            side, name = command.side.value, _signal_of(finished)
            message = f"{name} ended the {side} side while it collected its tests"
            raise SidesRefusedError(message, remedy=_ENDED_REMEDY)
        said = last_lines(finished.log_tail, _SHOWN_LINES, in_a_sentence=True)
        lines = [line.strip() for line in finished.log_tail.splitlines()]
        errors = [line for line in lines if _ERROR.match(line)]
        if errors:
            said = errors[-1].removeprefix("E  ").strip()
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


def root_folder(
    command: CommandLine, scratch: str, runner: Runner, *, timeout_s: float
) -> str | None:
    """
    Return the folder that pytest's test ids are relative to, or None if pytest does not start.

    Args:
        command: The command line of pytest.

        scratch: An existing folder for the files of the process.

        runner: Starts the process.

        timeout_s: Time limit of the process [s].

    Raises:
        CollectError: The process did not start or did not end.
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


def _signal_of(finished: Finished) -> str:
    return "" if finished.exit_code >= 0 else signal_name(-finished.exit_code)


def cache_folder() -> Path:
    """Return the folder of built sides in the cache of the user."""
    return user_cache("sides")


def build_in_place(
    text: str, command: SideCommand, runner: Runner, *, timeout_s: float
) -> None:
    """
    Build a side in its own tree.

    Args:
        text: A shell command, run in the root of the tree.

        command: The command of the side.

        runner: Starts the build.

        timeout_s: Time limit of the build [s].

    Raises:
        SidesRefusedError: The build failed.

        CollectError: The build did not end, or a signal from outside ended it.
    """
    finished = runner.run(
        ("/bin/sh", "-c", text),
        timeout_s=timeout_s,
        cwd=command.tree,
        env={**command.inherited(), "PWD": command.tree},
    )
    # The shell reports the signal that ended its command in this way.
    if finished.exit_code > _SHELL_SIGNALS:
        finished = finished._replace(exit_code=_SHELL_SIGNALS - finished.exit_code)
    _check(finished, command, "correct the ini option gpuperf_build_command")


class Builder:
    """
    Build sides into separate folders.

    Args:
        repository: The repository of the working tree.

        carry: The carried files, relative to the root.

        runner: Starts the builds.

        timeout_s: Time limit of a build [s].

        cache: The folder that keeps builds between runs.
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
        Build a side or take it from the cache, and return its folder.

        Raises:
            SidesRefusedError: The side cannot be built.

            CollectError: A process did not start, did not end, or was ended by a signal
                from outside.
        """
        source, site = Path(command.scratch, "source"), Path(command.scratch, "site")
        files = self._copied(command.tree, source)
        folder = source / (project_folder(command.tree, command.folder) or "")
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
        entry = self._cache / digest_of(
            "\n".join(parts).encode("utf-8", "surrogateescape")
        )
        if entry.is_dir():
            shutil.copytree(entry, site)
            # Another run may have removed the entry.
            with contextlib.suppress(OSError):
                os.utime(entry)
        else:
            self._install(command, folder, site)
            _keep(entry, site)
        return os.path.realpath(site)

    def _copied(self, tree: str, target: Path) -> list[str]:
        """
        Copy the files that git would add, and return the paths.

        A build leaves files behind, and would find the files of an earlier build in the
        tree.
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
        if importlib.util.find_spec("pip") is not None:
            installer: tuple[str, ...] = (sys.executable, "-m", "pip", "install")
        elif shutil.which("uv") is not None:
            # Without --python, uv would look for an environment by itself.
            installer = ("uv", "pip", "install", "--python", sys.executable)
        else:
            message = "there is no pip in this environment to build the sides with"
            raise SidesRefusedError(
                message,
                remedy="install pip, or set the ini option gpuperf_build_command",
            )
        argv = (*installer, "-q", "--no-deps", "--no-build-isolation", "--no-index")
        finished = self._runner.run(
            (*argv, "--target", str(site), str(folder)),
            timeout_s=self._timeout_s,
            cwd=str(folder),
            env={
                **_VERSIONS,
                **command.inherited(),
                "PWD": str(folder),
                "TMPDIR": command.scratch,  # uv leaves files in this folder.
            },
        )
        _check(finished, command, _REMEDY)


def project_folder(tree: str, folder: str) -> str | None:
    """
    Return the folder of a tree that can be built, relative to the root, or None.

    The nearest such folder is used, searching upwards from the start folder of the
    tests.
    """
    place = Path(folder)
    while place.is_relative_to(tree):
        settings = place / "pyproject.toml"
        text = settings.read_text("utf-8", "replace") if settings.is_file() else ""
        if (place / "setup.py").is_file() or any(table in text for table in _TABLES):
            return os.path.relpath(place, tree)
        place = place.parent
    return None


def _check(finished: Finished, command: SideCommand, remedy: str) -> None:
    """
    Raise an error for a failed build.

    A build ended by a signal from outside gets a different error, because that says
    nothing about the code.
    """
    side, name = command.side.value, _signal_of(finished)
    if name in _FROM_OUTSIDE:
        message = f"{name} ended the build of the {side} side in {command.tree}"
        raise CollectorFailedError(
            message,
            remedy=f"{_ENDED_REMEDY}; a build with fewer parallel jobs needs less",
            argv=finished.argv,
            exit_code=finished.exit_code,
            log_tail=finished.log_tail,
        )
    if finished.exit_code:
        text = last_lines(finished.log_tail, _SHOWN_LINES, in_a_sentence=True)
        end = f" ({ending(finished.exit_code)})" if name else ""
        message = f"the {side} side cannot be built in {command.tree}{end}: {text}"
        raise SidesRefusedError(message, remedy=remedy)


def _keep(entry: Path, site: Path) -> None:
    """Keep a build in the cache if there is space, and remove the oldest builds."""
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
