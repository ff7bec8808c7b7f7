"""Whose files a process has loaded: the proof that a side runs its own.

No layout of a project is detected: what counts is the files that a process reports. And
which tests need no comparison, since they use no file that differs from the revision.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from pytest_gpuperf.collect.loaded_files import FileKind, LoadedFile, content_digest
from pytest_gpuperf.collect.opened_files import OpenedByTest, OpenedFile
from pytest_gpuperf.collect.redirection import inside
from pytest_gpuperf.collect.worktree import Changes
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode

__all__ = [
    "BUILD_REMEDY",
    "FileState",
    "Loaded",
    "Project",
    "Tree",
    "UsedFiles",
    "edited",
    "installs",
    "is_test_file",
    "modules_that_differ",
    "same_tests",
    "unrecorded",
]

_SOURCES = (  # of an extension module, whose file has another suffix
    *(".c", ".cc", ".cpp", ".cu", ".cxx", ".f", ".f90", ".pyx", ".rs", ".zig"),
)
_CODE = (
    *(".py", *_SOURCES, ".cl", ".cubin", ".cuh", ".fatbin", ".h", ".hip", ".hpp"),
    *(".metal", ".mojo", ".pxd", ".ptx", ".s"),
)
_LIBRARY = os.path.realpath(Path(os.__file__).parent)  # its names are nobody's
_INSTALLED = ("site-packages", "dist-packages")  # may lie in that folder
BUILD_REMEDY = "build both sides with the ini option gpuperf_build_command"
_LEAST_FREE_BYTES = 1 << 20  # with less a process cannot write what it has loaded
_PATH_REMEDY = (  # level 1 has moved what editable installations name
    "let what adds its folder to Python's path, as a conftest.py, find it from its own "
    "__file__"
)
# of a file that says what is installed or how the project is built: another one means
# another environment, which the files of tests do not show
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
_SETTINGS = frozenset(  # of pytest, which every run reads
    {
        *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
        *("pyproject.toml", "setup.cfg", "tox.ini"),
    }
)
_BUILT = (  # from which something else is built, which may lie anywhere
    *(suffix for suffix in _CODE if suffix != ".py"),
    *(".capnp", ".cppm", ".cs", ".d", ".fbs", ".go", ".hs", ".in", ".ixx", ".j2"),
    *(".java", ".jinja", ".kt", ".l", ".m", ".ml", ".mm", ".nim", ".proto", ".scala"),
    *(".swift", ".thrift", ".tmpl", ".y"),
)
_INSTALLATION = (".dist-info", ".egg-info", ".egg-link", ".pth")  # names no module
_PROSE = (".md", ".rst", ".adoc")
_BYTE_CODE = "__pycache__"
_NO_INPUTS = frozenset({".git", ".pytest_cache"})  # what git and pytest keep
_METADATA = (".egg-info", ".dist-info")  # of what is installed
_LISTS = re.compile(rb"\b(?:listdir|scandir|r?glob|iterdir|f?walk)\b")
_REPEAT = {
    Side.OLD: "let its tests write to another folder, as that of tmp_path",
    Side.NEW: "leave the working tree as it is while it is measured, and run it again",
}


class Loaded(Frozen, frozen=True, kw_only=True):
    """
    The code that the processes of one side have loaded.

    Attributes:
        modules: The name and the file, without links, of each module; two processes may
            have found a module in two places.

        libraries: The mapped libraries that are not modules.
    """

    modules: frozenset[tuple[str, str]]
    libraries: frozenset[str] = frozenset()

    @staticmethod
    def of(files: Iterable[LoadedFile]) -> Loaded:
        """Return what a recording of files says."""
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
        """Every file with what messages call it, in order."""
        libraries = ((Path(path).name, path) for path in self.libraries)
        return sorted([*self.modules, *libraries])


class Tree(Frozen, frozen=True, kw_only=True):
    """
    The files of one side.

    Attributes:
        root: The root of its tree, without links.

        tracked: What git has of it, relative to the root.

        built: The folder that it was built into; "": none.
    """

    root: str
    tracked: frozenset[str]
    built: str = ""


class FileState(Frozen, frozen=True, kw_only=True):
    """
    What a file was like.

    Attributes:
        size_bytes: Its size [B].

        mtime_ns: When it was changed [ns since the epoch].

        digest: Of its content; None: it cannot be read.
    """

    size_bytes: int
    mtime_ns: int
    digest: str | None

    @staticmethod
    def of(path: str) -> FileState:
        """Return what a file is like now."""
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
        old: The revision's tree.

        new: The working tree.

        environments: Folders in the working tree that are not code of it.

        scratch: The run's folder, which the old tree lies in.
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
        """Return the side that a file belongs to; None: neither."""
        for side, tree in self.trees.items():
            if tree.built and inside(path, tree.built):
                return side
        if inside(path, self.trees[Side.OLD].root):
            return Side.OLD
        is_new = inside(path, self.trees[Side.NEW].root)
        is_neither = inside(path, self._scratch, *self._environments)
        return Side.NEW if is_new and not is_neither else None

    def files_of(self, side: Side, loaded: Loaded) -> list[tuple[str, str]]:
        """Return what was loaded of a side's own files, with its name."""
        return [file for file in loaded.files if self.owner(file[1]) is side]

    def modules_of(self, side: Side, loaded: Loaded) -> frozenset[tuple[str, str]]:
        """Return the modules that are the project's, wherever they were loaded from."""
        packages = {
            name
            for name, path in loaded.modules
            if Path(path).name.startswith("__init__.")
            and (self.owner(path) or self._import_roots(side, name, path))
        }
        return frozenset(
            (name, path)
            for name, path in loaded.modules
            if self.owner(path)
            or self._import_roots(side, name, path)
            or any(parent in packages for parent in _parents(name))
        )

    def foreign(self, side: Side, loaded: Loaded) -> Gap | None:
        """Return that a side loaded a file of the other one; None: it has not."""
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
        """Return that a module of the project is of neither tree; None: there is none."""
        for name, path in sorted(self.modules_of(side, loaded)):
            if self.owner(path) is None:
                reason = (
                    f"the {side.value} side loaded {name} from {path}, which both share"
                )
                return Gap(code=GapCode.SHARED_FILE, reason=reason, remedy=BUILD_REMEDY)
        return None

    def without_code(
        self, side: Side, loaded: Loaded, differing: frozenset[str]
    ) -> Gap | None:
        """
        Return that a side loaded no code of its own, though it differs; None: it has.

        Args:
            side: The side.

            loaded: What it loaded.

            differing: The files that differ between the trees, relative to the root.
        """
        own_files = self.files_of(side, loaded)
        has_code = any(not is_test_file(path) for _, path in own_files)
        if has_code or not differing:
            return None
        tests = set(filter(is_test_file, differing))
        others = differing.difference(tests)
        if tests and not any(path.endswith(".py") for path in others):
            return None  # what is measured stands in the tests
        reason = f"the {side.value} side loads no code of this repository"
        remedy = "put the code that is measured into a module of the repository"
        return Gap(code=GapCode.NO_OWN_CODE, reason=reason, remedy=remedy)

    def other_code(self, usual: Loaded, loaded: Loaded) -> tuple[tuple[str, str], ...]:
        """
        Return which modules the new side does not load as the user's own run does.

        Args:
            usual: What that run loads.

            loaded: What the new side loads.

        Returns:
            Name and file, in the user's own run, of those whose content is another one.
            Only what git has the source of: a build may make the rest anew.
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
        """Return where the project's modules are found, relative to the tree's root."""
        roots: set[str] = set()
        root = self.trees[Side.NEW].root
        for name, path in loaded.modules:
            if is_test_file(path):  # pytest finds them by their path
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
        """Return where a side's tree has a file that could be a module of that name."""
        is_installed = any(folder in path for folder in _INSTALLED)
        if inside(path, _LIBRARY) and not is_installed:
            return frozenset()
        return self._roots[side].get(_stem(name, path), frozenset())


def unrecorded(
    side: Side, folder: str, *, free_bytes: int, most_bytes: int | None = None
) -> Gap:
    """
    Return that a process did not say what it has loaded, and what may help.

    Args:
        side: Its side.

        folder: The folder that it writes to.

        free_bytes: The room that is left there [B].

        most_bytes: The largest file that a process may write [B]; None: any.
    """
    reason = f"a process of the {side.value} side did not say what it has loaded"
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
    Return that a side's file has changed or gone while it was measured; None: none has.

    Args:
        side: The side.

        own_files: Its files, with their names.

        states: What they were like, by path.

        since_ns: When that was [ns since the epoch], for files without a state.
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
    Return what differs: loaded modules by their names, other files with code by path.

    Args:
        own_files: The files that both sides have loaded, with their names.

        differing: The files and submodules that differ between the trees, relative to
            the root; submodules end with a slash.
    """
    stems: dict[str, set[str]] = {}
    for name, path in own_files:
        stem = _stem(name, path)
        stems.setdefault(stem.rpartition("/")[2], set()).add(stem)
    names = set()
    for path in differing:
        if is_test_file(path) and not path.endswith("conftest.py"):
            continue
        if not path.endswith((*_CODE, ".so", ".pyd", "/")):  # a stored baseline, data
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
    What the processes of a run have used, to say which tests use nothing that differs.

    Attributes:
        opened: What was opened by the end of each test.

        modules: The file of each test, relative to the root, by node id.

        loaded: What this process has loaded.

        python_path: Python's path, where a copy of the project may be installed.

        editable: The names and folders of editable installations.

        environments: Folders of the tree that are environments of Python.

        baseline: The store of the run, which is no file of a test; None: there is none.
    """

    opened: OpenedByTest
    modules: Mapping[str, str]
    loaded: Loaded
    python_path: tuple[str, ...]
    editable: tuple[tuple[str, str], ...] = ()
    environments: tuple[str, ...] = ()
    baseline: str | None = None


def installs(differing: Iterable[str]) -> tuple[str, ...]:
    """Return the files among some that say what is installed, or how, in order."""
    return tuple(sorted(path for path in differing if _INSTALLS.search(path)))


def same_tests(used: UsedFiles, changes: Changes) -> frozenset[str]:
    """
    Return the node ids of the tests that used no file that differs from the revision.

    What a test has used is all that was opened by its end, whichever process of the run
    opened it. A run that is equal in all that it has looked at does the same work. What
    cannot be seen counts as a difference: an installed copy of the project, a file that
    git ignores, a file that the revision alone has.
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
        # one that ran on another host has opened nothing here
        if used.modules.get(node_id) in names and (first is None or position < first)
    )


def _is_unseen(used: UsedFiles, changes: Changes) -> bool:
    """Return whether a difference may have an effect that no opened file shows."""
    root = Path(changes.root)
    for path in changes.differing:
        if _INSTALLS.search(path) or path.endswith(_BUILT):
            return True
        if PurePosixPath(path).name in _SETTINGS or (root / path).is_symlink():
            return True
        # a test that looks for a file in vain opens nothing
        if not os.path.lexists(root / path) and not path.endswith(_PROSE):
            return True
    return not _are_prose(changes) and _is_installed(used, changes)


def _is_installed(used: UsedFiles, changes: Changes) -> bool:
    """Return whether Python finds a module of the project outside of its tree, too."""
    own_names = {
        stem.partition("/")[0]
        for stem in _roots_by_stem(changes.listed)
        if not is_test_file(f"{stem}.py")
    }
    return not own_names.isdisjoint(_names_outside(used, changes.root))


def _names_outside(used: UsedFiles, root: str) -> Iterator[str]:
    """Yield the names of modules and packages that Python finds outside of a tree."""

    def is_outside(path: str) -> bool:
        is_own = inside(path, root) and not inside(path, *used.environments)
        is_python = inside(path, _LIBRARY) and not any(n in path for n in _INSTALLED)
        return not is_own and not is_python

    for entry in filter(is_outside, map(os.path.realpath, used.python_path)):
        if Path(entry).is_dir():
            names = (n for n in os.listdir(entry) if not n.endswith(_INSTALLATION))  # noqa: PTH208 - only names are needed
            yield from (name.partition(".")[0] for name in names)
    found = (*used.loaded.modules, *used.editable)
    yield from (name.partition(".")[0] for name, path in found if is_outside(path))


class _Usage:
    """
    Which of the used files differ.

    Args:
        used: What a run has used.

        changes: What differs between the revision and the working tree.
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
        # the folder in which a name is missing on one side, and that name
        self._one_sided = dict(
            self._missing(path.rstrip("/"))
            for path in changes.differing
            if path.rstrip("/") not in changes.before
            or not os.path.lexists(Path(changes.root, path))
        )

    def first_difference(self) -> int | None:
        """Return how many tests had ended before a file was used that differs, or None."""
        positions = self._used.opened.positions
        differing = [at for file, at in positions.items() if self._differs(file)]
        opened = {self._relative(file.path) for file in positions}
        for _, path in self._used.loaded.files:
            # nothing was opened of a module whose byte code lies elsewhere
            if self._differs(OpenedFile(path)) and self._relative(path) not in opened:
                return 0
        return min(differing, default=None)

    def may_look_for_others(self) -> bool:
        """
        Return whether used code may look for a file that one side alone has.

        That a file exists can be seen without opening it, by its name or in its folder.
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
        listed = {self._relative(folder) for folder in self._used.opened.listed}
        lists = not folders.isdisjoint(listed)
        return any(
            named.search(text) or (lists and _LISTS.search(text))
            for text in self._texts()
        )

    def _missing(self, path: str) -> tuple[str, str]:
        """Return the outermost part of a path that a side does not have, and its folder."""
        part = PurePosixPath(path)
        while part.parent.as_posix() not in self._before or not (
            Path(self._changes.root, part.parent).is_dir()
        ):
            part = part.parent
        return part.as_posix(), part.parent.as_posix()

    def _differs(self, file: OpenedFile) -> bool:
        """Return whether a used file or folder is not the same in the revision."""
        path = self._relative(file.path)
        if path is None:
            return False
        if file.is_folder:
            is_changed = path in self._one_sided.values()
            return is_changed or f"{path}/".startswith(self._folders)
        if path in self._same:
            return False
        # what git ignores may be generated, though from no prose
        return path in self._changes.differing or not self._is_prose

    @property
    def names(self) -> frozenset[str]:
        """The used files of the tree, relative to its root."""
        opened = (f.path for f in self._used.opened.positions if not f.is_folder)
        loaded = (path for _, path in self._used.loaded.files)
        names = map(self._relative, (*opened, *loaded))
        return frozenset(name for name in names if name is not None)

    def _texts(self) -> Iterator[bytes]:
        """Yield the content of each file of the project that was used, but settings."""
        for name in self.names:
            path = Path(self._changes.root, name)
            if path.name not in _SETTINGS and path.is_file():
                with contextlib.suppress(OSError):
                    yield path.read_bytes()

    def _relative(self, path: str) -> str | None:
        """Return the path in the tree of a file that may matter; for byte code its source."""
        root, used = self._changes.root, self._used
        outside = (*used.environments, *filter(None, (used.baseline,)))
        if not inside(path, root) or inside(path, *outside):
            return None
        place = PurePosixPath(os.path.relpath(path, root))
        if any(p in _NO_INPUTS or p.endswith(_METADATA) for p in place.parts):
            return None
        if place.name == _BYTE_CODE:
            return None
        if place.parent.name == _BYTE_CODE:
            stem = place.name.partition(".")[0]
            place = place.parent.parent / f"{stem}.py"
            return place.as_posix() if Path(root, place).is_file() else None
        return place.as_posix()


def _are_prose(changes: Changes) -> bool:
    """
    Return whether all that differs is text for people, from which nothing is built.

    Text beside modules may be data of their package, such as prompts.
    """
    folders = {
        PurePosixPath(path).parent
        for path in changes.listed
        if path.endswith(".py") and PurePosixPath(path).name != "conf.py"  # of Sphinx
    }
    folders.discard(PurePosixPath())
    return all(
        path.endswith(_PROSE) and folders.isdisjoint(PurePosixPath(path).parents)
        for path in changes.differing
    )


def is_test_file(path: str) -> bool:
    """Return whether pytest finds a file by its name, with its own settings."""
    name = PurePosixPath(path).name
    is_named = name.startswith("test_") or name.endswith("_test.py")
    return name == "conftest.py" or (is_named and name.endswith(".py"))


def _stem(name: str, path: str) -> str:
    """Return what a module's file is called below its import root, without suffix."""
    stem = name.replace(".", "/")
    return stem + "/__init__" if Path(path).name.startswith("__init__.") else stem


def _parents(name: str) -> Iterator[str]:
    """Yield the packages that a module lies in."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _roots_by_stem(tracked: frozenset[str]) -> dict[str, frozenset[str]]:
    """
    Return the import roots of each module that the trees may have, by its stem.

    A folder with an `__init__.py` is a package, not a root: what it vendors has the name
    of another project's module.
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
