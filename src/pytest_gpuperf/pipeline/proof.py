"""Prove from the loaded files that every side runs its own code.

No project layout is detected. Only the files reported by a process count. The module also
finds the tests that need no comparison, because they use no changed file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from pytest_gpuperf.collect.loaded_files import FileKind, LoadedFile, content_digest
from pytest_gpuperf.collect.opened_files import OpenedByTest, OpenedFile
from pytest_gpuperf.collect.outside import is_of_library
from pytest_gpuperf.collect.redirection import inside
from pytest_gpuperf.collect.worktree import Changes
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import FileList

# Suffixes of the sources of extension modules.
_SOURCES = (*(".c", ".cc", ".cpp", ".cu", ".cxx", ".f", ".f90", ".pyx", ".rs", ".zig"),)
_CODE = (
    *(".py", *_SOURCES, ".cl", ".cubin", ".cuh", ".fatbin", ".h", ".hip", ".hpp"),
    *(".metal", ".mojo", ".pxd", ".ptx", ".s"),
)
BUILD_REMEDY = "build both sides with the ini option gpuperf_build_command"
# With less space, a process cannot write the list of loaded files.
_LEAST_FREE_BYTES = 1 << 20
# Level 1 has already redirected the folders of editable installations.
_PATH_REMEDY = (
    "let the code that adds its folder to Python's path, such as a conftest.py, find the "
    "folder from its own __file__"
)
# Files that define what is installed or how the project is built. A change of such a
# file means a different environment, which the files used by tests do not show.
_INSTALLS = re.compile(
    r"""(?:^|/)(?:
    [^/]*requirements[^/]*\.(?:txt|in) | requirements/.* | [^/]*constraints[^/]*\.txt
    | [^/]*\.lock | [^/]*-lock\.\w+ | pylock(?:\.[^/]+)?\.toml | Pipfile | pixi\.toml
    | pyproject\.toml | setup\.(?:py|cfg) | MANIFEST\.in | hatch\w*\.(?:toml|py)
    | [^/]*environment[^/]*\.ya?ml | conda[^/]*\.ya?ml | meta\.yaml | conanfile\.\w+
    | CMakeLists\.txt | CMakePresets\.json | [^/]*\.cmake | meson[^/]*\.(?:build|options)
    | meson_options\.txt | (?:GNU)?[Mm]akefile | [^/]*\.mk | Cargo\.toml | build\.rs
    | BUILD(?:\.bazel)? | WORKSPACE(?:\.bazel)? | MODULE\.bazel | [^/]*Dockerfile[^/]*
    | flake\.nix | vcpkg\.json | \.python-version | \.gitattributes | \.gitmodules
    )$""",
    re.VERBOSE,
)
# Settings of pytest, read by every run.
_SETTINGS = frozenset(
    {
        *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
        *("pyproject.toml", "setup.cfg", "tox.ini"),
    }
)
# Sources of built files, and the built file may be anywhere.
_BUILT = (
    *(suffix for suffix in _CODE if suffix != ".py"),
    *(".capnp", ".cppm", ".cs", ".d", ".fbs", ".go", ".hs", ".in", ".ixx", ".j2"),
    *(".java", ".jinja", ".kt", ".l", ".m", ".ml", ".mm", ".nim", ".proto", ".scala"),
    *(".swift", ".thrift", ".tmpl", ".y"),
)
# Suffixes in site-packages that do not name a module.
_INSTALLATION = (".dist-info", ".egg-info", ".egg-link", ".pth")
_PROSE = (".md", ".rst", ".adoc")
_BYTE_CODE = "__pycache__"
# 1 MB of text in a store. A folder with more names is a set of data.
_MOST_NAMES = 20_000
# Names of what tools write for themselves, which is no input of a test. What compilers of
# kernels keep is made from the sources.
_OF_TOOLS = re.compile(
    r"""\.(?:git|benchmarks|cupy|hypothesis|idea|import_linter_cache
    |ipynb_checkpoints|mypy_cache|nv|pytest_cache|pytype|ruff_cache|triton|vscode
    |coverage(?:\..*)?|testmondata.*|DS_Store)
    |torch_extensions|torchinductor_.*""",
    re.VERBOSE,
)
# Folders with metadata of installed packages.
_METADATA = (".egg-info", ".dist-info")
_LISTS = re.compile(rb"\b(?:listdir|scandir|r?glob|iterdir|f?walk)\b")
_REPEAT = {
    Side.OLD: "let its tests write to another folder, such as tmp_path",
    Side.NEW: "leave the working tree as it is while it is measured, and run it again",
}


class Loaded(Frozen, frozen=True, kw_only=True):
    """
    The code loaded by the processes of a side.

    Attributes:
        modules: The name and the file, without links, of each module. Two processes may
            have found a module in two places.

        libraries: The mapped libraries that are not modules.
    """

    modules: frozenset[tuple[str, str]]
    libraries: frozenset[str] = frozenset()

    @staticmethod
    def of(files: Iterable[LoadedFile]) -> Loaded:
        """Create from the recorded files."""
        files = list(files)
        modules = {
            (file.name, file.path)
            for file in files
            if file.kind is FileKind.MODULE and file.name != "__main__"
        }
        libraries = {file.path for file in files if file.kind is FileKind.LIBRARY}
        return Loaded(
            modules=frozenset(modules),
            libraries=frozenset(libraries - {path for _, path in modules}),
        )

    @property
    def files(self) -> list[tuple[str, str]]:
        """All loaded files with the names used in messages, sorted."""
        libraries = ((Path(path).name, path) for path in self.libraries)
        return sorted([*self.modules, *libraries])


class Tree(Frozen, frozen=True, kw_only=True):
    """
    The files of a side.

    Attributes:
        root: The root of the tree, without links.

        tracked: The files that git tracks, relative to the root.

        built: The folder of the build, or "" if not built.
    """

    root: str
    tracked: frozenset[str]
    built: str = ""


class FileState(Frozen, frozen=True, kw_only=True):
    """
    The state of a file at some point in time.

    Attributes:
        size_bytes: Its size [B].

        mtime_ns: Its modification time [ns since the epoch].

        digest: The digest of the content, or None if the file cannot be read.
    """

    size_bytes: int
    mtime_ns: int
    digest: str | None

    @staticmethod
    def of(path: str) -> FileState:
        """Return the current state of a file."""
        try:
            state = Path(path).stat()
        except OSError:
            return FileState(size_bytes=0, mtime_ns=0, digest=None)
        return FileState(
            size_bytes=state.st_size,
            mtime_ns=state.st_mtime_ns,
            digest=content_digest(Path(path)),
        )


class Project:
    """
    A project with two sides, and the names of its modules.

    Args:
        old: The tree of the revision.

        new: The working tree.

        environments: Folders in the working tree that are not part of its code.

        scratch: The folder of the run, which contains the old tree.
    """

    def __init__(
        self, old: Tree, new: Tree, *, environments: tuple[str, ...], scratch: str
    ) -> None:
        self.trees = {Side.OLD: old, Side.NEW: new}
        self._environments = environments
        self._scratch = scratch
        self._roots = {
            s: _roots_by_stem(tree.tracked) for s, tree in self.trees.items()
        }

    def owner(self, path: str) -> Side | None:
        """Return the side that a file belongs to, or None."""
        for side, tree in self.trees.items():
            if tree.built and inside(path, tree.built):
                return side
        if inside(path, self.trees[Side.OLD].root):
            return Side.OLD
        is_new = inside(path, self.trees[Side.NEW].root)
        is_neither = inside(path, self._scratch, *self._environments)
        return Side.NEW if is_new and not is_neither else None

    def files_of(self, side: Side, loaded: Loaded) -> list[tuple[str, str]]:
        """Return the names and paths of loaded files that belong to a side."""
        return [file for file in loaded.files if self.owner(file[1]) is side]

    def modules_of(self, side: Side, loaded: Loaded) -> frozenset[tuple[str, str]]:
        """Return the modules of the project, from any place they were loaded from."""
        packages = {
            name
            for name, path in loaded.modules
            if Path(path).name.startswith("__init__.")
            and (self.owner(path) or self._import_roots(side, name, path))
        }
        within = tuple(f"{package}." for package in packages)
        return frozenset(
            (name, path)
            for name, path in loaded.modules
            if self.owner(path)
            or self._import_roots(side, name, path)
            or name.startswith(within)
        )

    def foreign(self, side: Side, loaded: Loaded) -> Gap | None:
        """Return a gap if a side loaded a file of the other side, else None."""
        for name, path in loaded.files:
            owner = self.owner(path)
            if owner and owner is not side:
                reason = (
                    f"the {side.value} side loaded {name} from {path}, a file of the "
                )
                is_source = path.endswith(".py")
                return Gap(
                    code=GapCode.FOREIGN_FILE,
                    reason=f"{reason}{owner.value} side",
                    remedy=_PATH_REMEDY if is_source else BUILD_REMEDY,
                )
        return None

    def shared(self, side: Side, loaded: Loaded) -> Gap | None:
        """
        Return a gap if a module of the project was loaded from outside both trees, else None.
        """
        for name, path in sorted(self.modules_of(side, loaded)):
            if self.owner(path) is None:
                reason = f"the {side.value} side loaded {name} from {path}, which both sides share"
                return Gap(code=GapCode.SHARED_FILE, reason=reason, remedy=BUILD_REMEDY)
        return None

    def without_code(
        self, side: Side, loaded: Loaded, differing: frozenset[str]
    ) -> Gap | None:
        """
        Return a gap if a side loaded no code of its own although the trees differ, else None.

        Args:
            side: The side.

            loaded: The code loaded by the side.

            differing: The files that differ between the trees, relative to the root.
        """
        own_files = self.files_of(side, loaded)
        has_code = any(not is_test_file(path) for _, path in own_files)
        if has_code or not differing:
            return None
        tests = set(filter(is_test_file, differing))
        others = differing.difference(tests)
        if tests and not any(path.endswith(".py") for path in others):
            return None  # The tests contain the measured code.
        reason = f"the {side.value} side loads no code of this repository"
        remedy = "put the code that is measured into a module of the repository"
        return Gap(code=GapCode.NO_OWN_CODE, reason=reason, remedy=remedy)

    def other_code(self, usual: Loaded, loaded: Loaded) -> tuple[tuple[str, str], ...]:
        """
        Return the modules that the new side loads differently from the user's own run.

        Args:
            usual: The code loaded by the user's run.

            loaded: The code loaded by the new side.

        Returns:
            Name and file, as in the user's run, of modules with different content. Only
            modules with a source in git are included, because a build may create the
            rest again.
        """
        places: dict[str, set[str]] = {}
        for name, path in self.files_of(Side.NEW, loaded):
            has_source = self._import_roots(Side.NEW, name, path)
            if has_source and path.endswith(".py") and not is_test_file(path):
                places.setdefault(name, set()).add(path)
        return tuple(
            (name, path)
            for name, path in sorted(usual.modules)
            if path not in (own := places.get(name, {path}))
            and content_digest(Path(path)) not in map(content_digest, map(Path, own))
        )

    def import_roots(self, loaded: Loaded) -> tuple[str, ...]:
        """
        Return the folders where the project's modules are found, relative to the tree's root.
        """
        roots: set[str] = set()
        root = self.trees[Side.NEW].root
        for name, path in loaded.modules:
            if is_test_file(path):  # pytest finds test files by path.
                continue
            if self.owner(path) is Side.NEW and inside(path, root):
                stem = _stem(name, path)
                place = Path(os.path.relpath(path, root))
                bare = f"/{place.with_name(place.name.partition('.')[0]).as_posix()}"
                if bare.endswith("/" + stem):
                    roots.add(bare[: -len(stem)].strip("/"))
            else:
                roots |= self._import_roots(Side.NEW, name, path)
        return tuple(sorted(roots))

    def _import_roots(self, side: Side, name: str, path: str) -> frozenset[str]:
        if is_of_library(path):
            return frozenset()
        return self._roots[side].get(_stem(name, path), frozenset())


def unrecorded(
    side: Side, folder: str, *, free_bytes: int, most_bytes: int | None = None
) -> Gap:
    """
    Return the gap of a process that wrote no list of loaded files, with a remedy.

    Args:
        side: The side of the process.

        folder: The folder the process writes to.

        free_bytes: The free space of that folder [B].

        most_bytes: The largest file that a process may write [B], or None for any size.
    """
    reason = (
        f"a process of the {side.value} side did not report the files that it loaded"
    )
    if free_bytes < _LEAST_FREE_BYTES:
        return Gap(
            code=GapCode.FAILED,
            reason=f"{reason}: {folder} is full",
            remedy="make room there, or set TMPDIR to another folder",
        )
    if most_bytes is not None and most_bytes < _LEAST_FREE_BYTES:
        return Gap(
            code=GapCode.FAILED,
            reason=f"{reason}: it may write no file of more than {most_bytes} bytes",
            remedy="raise that limit, which `ulimit -f` shows",
        )
    remedy = "let its tests, conftest.py and fixtures end without os._exit"
    return Gap(code=GapCode.NOT_STATED, reason=reason, remedy=remedy)


def edited(
    side: Side,
    own_files: Iterable[tuple[str, str]],
    states: Mapping[str, FileState],
    *,
    since_ns: int,
) -> Gap | None:
    """
    Return a gap if a file of a side was edited or deleted during the measurement, else None.

    Args:
        side: The side.

        own_files: The files of the side, with their names.

        states: Earlier states of the files, by path.

        since_ns: The time of these states [ns since the epoch], for files without a
            state.
    """
    for name, path in own_files:
        before, now = states.get(path), FileState.of(path)
        is_edited = now.mtime_ns > since_ns if before is None else now != before
        if is_edited and (before is None or now.digest != before.digest):
            did = "edited" if Path(path).exists() else "deleted"
            reason = f"{name} of the {side.value} side was {did} while it was measured"
            return Gap(
                code=GapCode.EDITED_FILE,
                reason=f"{reason}: {path}",
                remedy=_REPEAT[side],
            )
    return None


def modules_that_differ(
    own_files: Iterable[tuple[str, str]], differing: Iterable[str]
) -> tuple[str, ...]:
    """
    Return the names of loaded modules that differ, and the paths of other code that differs.

    Args:
        own_files: The files loaded by both sides, with their names.

        differing: The files and submodules that differ between the trees, relative to
            the root. Submodules end with a slash.
    """
    stems: dict[str, set[str]] = {}
    for name, path in own_files:
        stem = _stem(name, path)
        stems.setdefault(stem.rpartition("/")[2], set()).add(stem)
    names = set()
    for path in differing:
        if is_test_file(path) and not path.endswith("conftest.py"):
            continue
        # Other files are data, for example a stored baseline.
        if not path.endswith((*_CODE, ".so", ".pyd", "/")):
            continue
        bare = path.rpartition(".")[0]
        matches = {
            stem
            for stem in stems.get(bare.rpartition("/")[2], ())
            if f"/{bare}".endswith(f"/{stem}")
        }
        modules = {m.removesuffix("/__init__").replace("/", ".") for m in matches}
        names |= modules or {path}
    return tuple(sorted(names))


class UsedFiles(Frozen, frozen=True, kw_only=True):
    """
    The files used by the processes of a run, to find tests that use no changed file.

    Attributes:
        opened: The files opened by the end of each test.

        modules: The file of each test, relative to the root, by node id.

        loaded: The code loaded by this process.

        python_path: Python's path, on which a copy of the project may be installed.

        editable: The names and folders of editable installations.

        environments: Folders of the tree that are environments of Python.

        outputs: The store and the reports of the run, which no test uses as an input.
    """

    opened: OpenedByTest
    modules: Mapping[str, str]
    loaded: Loaded
    python_path: tuple[str, ...]
    editable: tuple[tuple[str, str], ...] = ()
    environments: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def installs(differing: Iterable[str]) -> tuple[str, ...]:
    """Return the changed files that define what is installed or how, sorted."""
    return tuple(sorted(path for path in differing if _INSTALLS.search(path)))


def same_tests(used: UsedFiles, changes: Changes) -> frozenset[str]:
    """
    Return the node ids of the tests that used no file changed since the revision.

    A test has used everything that was opened by its end, in any process of the run.
    Runs that are equal in everything they have looked at do the same work. Anything
    that cannot be seen counts as a difference: an installed copy of the project, a file
    that git ignores, a file that only the revision has.
    """
    opened = used.opened
    if not changes.differing:
        return frozenset(opened.ended)
    if opened.root != changes.root or not opened.is_known:
        return frozenset()
    usage = _Usage(used, changes)
    if _is_unseen(used, changes) or usage.may_look_for_others():
        return frozenset()
    first, names = usage.first_difference(), usage.names
    return frozenset(
        node_id
        for node_id, position in opened.ended.items()
        # A test that ran on another host has opened nothing here.
        if used.modules.get(node_id) in names and (first is None or position < first)
    )


def file_list(
    used: UsedFiles,
    ended: Mapping[str, int],
    surroundings: str,
    digests: Mapping[str, str],
    measured: Mapping[str, str],
) -> FileList:
    """
    Return the files used by a run as a session stores them.

    Args:
        used: The files used by the run.

        ended: The number of tests that had ended before a test, by key.

        surroundings: Digest of the interpreter, the installed packages and the GPU.

        digests: As in a `FileList`.

        measured: As in a `FileList`.
    """
    positions: dict[str, int] = {}
    for file, position in used.opened.positions.items():
        path = _relative(used, file.path)
        if path is not None:
            name = f"{path}/" if file.is_folder else path
            positions[name] = min(position, positions.get(name, position))
    # If the byte code of a module is in another place, its source was not opened.
    for _, module in used.loaded.files:
        path = _relative(used, module)
        if path is not None:
            positions.setdefault(path, 0)
    # The names that the opened folders had before the run.
    entries = {}
    for folder in used.opened.folders:
        path, names = _relative(used, folder), used.opened.names_in(folder)
        if path is not None and len(names) <= _MOST_NAMES:
            entries[f"{path}/"] = tuple(sorted(names))
    listed = (_relative(used, folder) for folder in used.opened.listed)
    return FileList(
        positions=positions,
        listed=tuple(sorted(path for path in listed if path is not None)),
        ended=ended,
        surroundings=surroundings,
        digests=digests,
        entries=entries,
        measured=measured,
    )


def names_changed(
    used: UsedFiles, changes: Changes, entries: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    """
    Return what has come to or gone from the folders that a stored session opened.

    Args:
        used: The files used by the session.

        changes: The changes since the commit.

        entries: As in a FileList.

    Returns:
        Relative paths. That of a folder as a whole ends with a slash: its names are not
        stored, or the commit has none of its files.
    """
    changed: set[str] = set()
    before = {
        p.as_posix() for path in changes.before for p in PurePosixPath(path).parents
    }
    for folder in used.opened.folders:
        path = _relative(used, folder)
        if path is None:
            continue
        if (stored := entries.get(f"{path}/")) is None:
            changed.add(f"{path}/")
            continue
        names: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(folder))  # noqa: PTH208 - only names are needed
        places = (f"{folder}/{name}" for name in names.symmetric_difference(stored))
        found = {inner for place in places if (inner := _relative(used, place))}
        changed |= found
        if found and path not in before:
            changed.add(f"{path}/")
    return frozenset(changed)


def used_names(used: UsedFiles) -> frozenset[str]:
    """Return the used files of the tree, relative to its root."""
    opened = (f.path for f in used.opened.positions if not f.is_folder)
    loaded = (path for _, path in used.loaded.files)
    names = (_relative(used, path) for path in (*opened, *loaded))
    return frozenset(name for name in names if name is not None)


def _relative(used: UsedFiles, path: str) -> str | None:
    """
    Return the path of a relevant file in the tree, or None.

    For byte code, the path of the source is returned.
    """
    root = used.opened.root
    if not inside(path, root) or inside(path, *used.environments, *used.outputs):
        return None
    place = PurePosixPath(os.path.relpath(path, root))
    if any(is_of_tools(p) or p.endswith(_METADATA) for p in place.parts):
        return None
    if place.name == _BYTE_CODE:
        return None
    if place.parent.name == _BYTE_CODE:
        stem = place.name.partition(".")[0]
        place = place.parent.parent / f"{stem}.py"
        return place.as_posix() if Path(root, place).is_file() else None
    return place.as_posix()


def is_of_tools(name: str) -> bool:
    """Return True if tools write a file or folder of this name for themselves."""
    return _OF_TOOLS.fullmatch(name) is not None


def without_tools(changes: Changes) -> Changes:
    """Return changes without the files that tools write for themselves."""

    def kept(paths: frozenset[str]) -> frozenset[str]:
        return frozenset(p for p in paths if not any(map(is_of_tools, p.split("/"))))

    return replace(
        changes,
        differing=kept(changes.differing),
        listed=kept(changes.listed),
        before=kept(changes.before),
    )


def _is_unseen(used: UsedFiles, changes: Changes) -> bool:
    root = Path(changes.root)
    for path in changes.differing:
        if _INSTALLS.search(path) or path.endswith(_BUILT):
            return True
        if PurePosixPath(path).name in _SETTINGS or (root / path).is_symlink():
            return True
        # A test that looks for a missing file opens nothing.
        if not os.path.lexists(root / path) and not path.endswith(_PROSE):
            return True
    if _are_prose(changes):
        return False
    # A copy of the project may be installed.
    own_names = {
        stem.partition("/")[0]
        for stem in _roots_by_stem(changes.listed)
        if not is_test_file(f"{stem}.py")
    }
    return not own_names.isdisjoint(_names_outside(used, changes.root))


def _names_outside(used: UsedFiles, root: str) -> Iterator[str]:
    def is_outside(path: str) -> bool:
        is_own = inside(path, root) and not inside(path, *used.environments)
        return not is_own and not is_of_library(path)

    for entry in filter(is_outside, map(os.path.realpath, used.python_path)):
        if Path(entry).is_dir():
            names = (n for n in os.listdir(entry) if not n.endswith(_INSTALLATION))  # noqa: PTH208 - only names are needed
            yield from (name.partition(".")[0] for name in names)
    found = (*used.loaded.modules, *used.editable)
    yield from (name.partition(".")[0] for name, path in found if is_outside(path))


class _Usage:
    """
    The changed files among the used files.

    Args:
        used: The files used by a run.

        changes: The changes between the revision and the working tree.
    """

    def __init__(self, used: UsedFiles, changes: Changes) -> None:
        self._used = used
        self._changes = changes
        self._folders = tuple(path for path in changes.differing if path.endswith("/"))
        self._same = frozenset(
            path
            for path in changes.listed - changes.differing
            if not path.startswith(self._folders)
        )
        self._is_prose = _are_prose(changes)
        self._before = {
            folder.as_posix()
            for path in changes.before
            for folder in PurePosixPath(path).parents
        }
        # The outermost parts of paths that are missing on one side, with their folders.
        self._one_sided: dict[str, str] = {}
        for path in changes.differing:
            part, place = PurePosixPath(path), Path(changes.root, path)
            if path.rstrip("/") in changes.before and os.path.lexists(place):
                continue
            while part.parent.as_posix() not in self._before or not (
                Path(changes.root, part.parent).is_dir()
            ):
                part = part.parent
            self._one_sided[part.as_posix()] = part.parent.as_posix()

    def first_difference(self) -> int | None:
        """
        Return the number of tests that ended before the first use of a changed file, or None.
        """
        positions = self._used.opened.positions
        differing = [at for file, at in positions.items() if self._differs(file)]
        opened = {_relative(self._used, file.path) for file in positions}
        for _, path in self._used.loaded.files:
            # If the byte code of a module is in another place, its source was not opened.
            name = _relative(self._used, path)
            if name not in opened and self._differs(OpenedFile(path)):
                return 0
        return min(differing, default=None)

    def may_look_for_others(self) -> bool:
        """
        Return True if used code may look for a file that exists on one side only.

        The existence of a file can be checked without opening it, by its name or in its
        folder.
        """
        if not self._one_sided:
            return False
        names = {
            name
            for place in self._one_sided
            for name in (PurePosixPath(place).name, PurePosixPath(place).stem)
        }
        named = re.compile(
            b"|".join(
                rb"(?<!\w)" + re.escape(os.fsencode(name)) + rb"(?!\w)"
                for name in names
            )
        )
        folders = frozenset(self._one_sided.values())
        listed = {_relative(self._used, folder) for folder in self._used.opened.listed}
        lists = not folders.isdisjoint(listed)
        for name in self.names:
            path = Path(self._changes.root, name)
            if path.name in _SETTINGS or not path.is_file():
                continue
            with contextlib.suppress(OSError):
                text = path.read_bytes()
                if named.search(text) or (lists and _LISTS.search(text)):
                    return True
        return False

    def _differs(self, file: OpenedFile) -> bool:
        path = _relative(self._used, file.path)
        if path is None:
            return False
        if file.is_folder:
            is_changed = path in self._one_sided.values()
            return is_changed or f"{path}/".startswith(self._folders)
        if path in self._same:
            return False
        # Files that git ignores may be generated, but not from prose.
        return path in self._changes.differing or not self._is_prose

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The used files of the tree, relative to its root."""
        return used_names(self._used)


def _are_prose(changes: Changes) -> bool:
    """
    Return True if all changed files are text for people and no source of a build.

    Text next to modules may be data of the package, such as prompts.
    """
    folders = {
        PurePosixPath(path).parent
        for path in changes.listed
        if path.endswith(".py") and PurePosixPath(path).name != "conf.py"  # Sphinx.
    }
    folders.discard(PurePosixPath())
    return all(
        path.endswith(_PROSE) and folders.isdisjoint(PurePosixPath(path).parents)
        for path in changes.differing
    )


def is_test_file(path: str) -> bool:
    """Return True if pytest, with default settings, collects a file by name."""
    name = PurePosixPath(path).name
    is_named = name.startswith("test_") or name.endswith("_test.py")
    return name == "conftest.py" or (is_named and name.endswith(".py"))


def _stem(name: str, path: str) -> str:
    stem = name.replace(".", "/")
    return stem + "/__init__" if Path(path).name.startswith("__init__.") else stem


def _roots_by_stem(tracked: frozenset[str]) -> dict[str, frozenset[str]]:
    """
    Return the import roots of all modules that the trees may have, by stem.

    A folder with an `__init__.py` is a package and not a root. A vendored copy inside a
    package has the name of a module of another project.
    """
    packages = {p.rpartition("/")[0] for p in tracked if p.endswith("__init__.py")}
    roots: dict[str, set[str]] = {}
    for path in tracked:
        if not path.endswith((".py", *_SOURCES)):
            continue
        parts = path.rpartition(".")[0].split("/")
        for index in range(len(parts)):
            root = "/".join(parts[:index])
            if root not in packages or not root:
                roots.setdefault("/".join(parts[index:]), set()).add(root)
    return {stem: frozenset(folders) for stem, folders in roots.items()}
