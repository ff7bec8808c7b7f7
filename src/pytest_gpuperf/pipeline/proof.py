"""Whose files a process has loaded: the proof that a side runs its own.

No layout of a project is detected: what counts is the files that a process reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from pytest_gpuperf.collect.loaded_files import FileKind, LoadedFile, content_digest
from pytest_gpuperf.collect.redirection import inside
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode

__all__ = [
    "BUILD_REMEDY",
    "FileState",
    "Loaded",
    "Project",
    "Tree",
    "edited",
    "is_test_file",
    "modules_that_differ",
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
