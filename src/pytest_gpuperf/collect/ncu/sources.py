"""The project files that a test or a script runs, found without running them.

Imports are followed through the source text, as far as they stay in the project: what is
installed counts by its own list of files, and Python by its version.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.ncu.key import Digests, Field

__all__ = [
    "PYTHON",
    "installed",
    "plugins",
    "project_files",
    "python_fields",
]

_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
PYTHON = frozenset({".py", ".pyw"})
_C_LIKE = frozenset({".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ptx"})
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_IMPORTERS = frozenset({"__import__", "import_module", "importorskip"})
_PLUGINS = "pytest_plugins"  # a conftest names modules in it
_LONGEST_NAME = 255  # characters of a text that may name a file
# where pytest and the tools around it look for options
_SETTINGS = ("pyproject.toml", "pytest.ini", ".pytest.ini", "setup.cfg", "tox.ini")
# options that a settings file gives: `-p module`, in TOML also as two texts of a list
_PLUGIN_OPTION = re.compile(
    rb"""(?<![\w-])-p(?:["']\s*,\s*["']|[ \t]*)([A-Za-z_][\w.]*)(?![\w.:])"""
)
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(os.__file__).resolve().parent  # Python's own modules: its version
_RECORDS = ("RECORD", "METADATA", "PKG-INFO")  # the first one that is there


class _Mentions(NamedTuple):
    """What a source text may need: modules by level and name, and texts."""

    modules: tuple[tuple[int, str], ...] = ()
    texts: tuple[str, ...] = ()


def python_fields(digests: Digests, programs: Iterable[Path] = ()) -> dict[str, Field]:
    """
    Return a Python and what is installed for it.

    Args:
        digests: What digests files.

        programs: The interpreters that are started; none: this process's.
    """
    mine = Path(sys.executable)
    others = [each for each in programs if each != mine]
    prefixes = [each.parent.parent for p in others for each in (p, p.resolve())]
    folders = [
        str(folder)
        for prefix in dict.fromkeys(prefixes)
        for name in _INSTALLED
        for folder in sorted(prefix.glob(f"lib/python3*/{name}"))
    ]
    if not others:
        return {
            "python": (sys.implementation.cache_tag, sys.version),
            "installed": installed(sys.path, digests),
        }
    return {"installed": installed(folders, digests)}


def installed(folders: Iterable[str], digests: Digests) -> dict[str, Field]:
    """
    Return the distributions in some folders, each with the digest of its list of files.

    That list holds the digests of the files themselves, so another build of the same
    version is told apart.
    """
    found: dict[str, Field] = {}
    for folder in dict.fromkeys(folders):
        for name in _names(Path(folder or ".")):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            place = Path(folder, name)
            records = (digests.of(place / each) for each in _RECORDS)
            digest = next((each for each in records if each is not None), None)
            found.setdefault(name, digest or digests.of(place))
    return found


def project_files(
    files: Iterable[Path], *, root: Path, digests: Digests, modules: Iterable[str] = ()
) -> dict[str, Field]:
    """
    Return files and all that they need of the project, by path, each with its digest.

    Followed are imports (also those by name: `import_module`, `importorskip`,
    `pytest_plugins`), the packages around a module, every conftest between it and the
    root, `#include "…"`, and texts that name a file beside the module or in the root.
    A name that is put together while the program runs is not seen.

    Args:
        files: Where to start.

        root: The project's folder. Outside of it only what Python finds as sources is
            followed: in a folder of its path, or by an editable install's import hook.

        digests: What digests files.

        modules: Modules that are loaded besides: plugins.
    """
    walk = _Walk(root.resolve(), digests)
    for file in files:
        walk.add(file.resolve(), given=True)
    walk.add_modules(modules)
    for name in _SETTINGS:
        walk.add(walk.root / name)
    return walk.found()


def plugins(args: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the modules that a pytest loads as plugins before it looks for tests.

    Args:
        args: Its arguments; those of its ini file are found there.

        env: Its environment.
    """
    named = env.get("PYTEST_PLUGINS", "").split(",")
    for option, following in pairwise((*args, "")):
        if option.startswith("-p"):
            named.append(option[2:] or following)
    return tuple(dict.fromkeys(name for name in named if name and ":" not in name))


class _Walk:
    """One walk through a project, from file to file."""

    def __init__(self, root: Path, digests: Digests) -> None:
        self.root = root
        self._digests = digests
        self._waiting: list[Path] = []
        self._seen: set[Path] = set()
        self._listed: dict[Path, frozenset[str]] = {}
        self._hooked: dict[str, tuple[Path, ...]] = {}
        found = [Path(each).resolve() for each in sys.path if each]
        own = [each for each in found if not each.is_relative_to(_STANDARD)]
        # as far as nothing in them is installed
        self._roots: tuple[Path, ...] = (root, *own)
        self._folders = [root, root / "src", *filter(self._is_ours, own)]

    def add_modules(self, names: Iterable[str]) -> None:
        """Look at modules, as far as they are of the project."""
        for name in names:
            for folder in self._folders:
                for path in self._module(folder, name.split(".")):
                    self.add(path)
            for path in self._imported(name.split(".")):
                self.add(path)

    def add(self, path: Path, *, given: bool = False) -> None:
        """Look at a file, if it is one of the project or was given."""
        if path not in self._seen and (given or self._is_ours(path)):
            self._seen.add(path)
            self._waiting.append(path)

    def found(self) -> dict[str, Field]:
        """Return all files with their digests, after following them to the end."""
        digests: dict[str, Field] = {}
        while self._waiting:
            path = self._waiting.pop()
            digest = self._digests.of(path)
            if digest is None:
                continue
            digests[self._name(path)] = digest
            for each in self._needed(path, _mentions(path, digest)):
                self.add(each)
        return digests

    def _name(self, path: Path) -> str:
        """Return a path as a key has it: the project may lie anywhere."""
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return path.as_posix()

    def _is_ours(self, path: Path) -> bool:
        """Return whether a path belongs to the project, not to an environment in it."""
        return any(map(path.is_relative_to, self._roots)) and not any(
            part in path.parts for part in _INSTALLED
        )

    def _needed(self, path: Path, mentions: _Mentions) -> Iterator[Path]:
        """Yield what a file needs."""
        if path.suffix in PYTHON:
            yield from self._around(path)
        folders = [_top(path, self._names), *self._folders]
        for level, name in mentions.modules:
            start = [path.parents[level - 1]] if 0 < level <= len(path.parents) else []
            parts = [part for part in name.split(".") if part]
            for folder in dict.fromkeys(start if level else folders):
                yield from self._module(folder, parts)
            if parts and not level:
                yield from self._imported(parts)
        for text in mentions.texts:
            for folder in (path.parent, self.root):
                place = Path(os.path.normpath(folder / text))
                if place.name in self._names(place.parent) and place.is_file():
                    yield place.resolve()

    def _around(self, path: Path) -> Iterator[Path]:
        """Yield the packages around a module and the conftests above it."""
        packaged = True
        for folder in path.parents:
            if not folder.is_relative_to(self.root):
                break
            names = self._names(folder)
            packaged = packaged and "__init__.py" in names
            if packaged:
                yield folder / "__init__.py"
            if "conftest.py" in names:
                yield folder / "conftest.py"

    def _module(self, folder: Path, parts: Sequence[str]) -> Iterator[Path]:
        """Yield the files of a module and of the packages on the way to it."""
        for part in parts:
            names = self._names(folder)
            yield from (folder / f"{part}{s}" for s in _SUFFIXES if part + s in names)
            if part not in names:
                return
            folder /= part
            if "__init__.py" in self._names(folder):
                yield folder / "__init__.py"

    def _imported(self, parts: Sequence[str]) -> Iterator[Path]:
        """Yield the files of a module that Python's import hooks find, if it is ours."""
        for place in self._places(parts[0]):
            if not place.is_dir():
                yield place
                continue
            if "__init__.py" in self._names(place):
                yield place / "__init__.py"
            yield from self._module(place, parts[1:])

    def _places(self, name: str) -> tuple[Path, ...]:
        """Return where Python finds a module, unless it is installed."""
        if name not in self._hooked:
            self._hooked[name] = tuple(
                each
                for each in _located(name)
                if not each.is_relative_to(_STANDARD)
                and not any(part in each.parts for part in _INSTALLED)
            )
            self._roots += tuple(e for e in self._hooked[name] if not self._is_ours(e))
        return self._hooked[name]

    def _names(self, folder: Path) -> frozenset[str]:
        """Return what a folder holds, listed once a walk."""
        if folder not in self._listed:
            self._listed[folder] = _names(folder)
        return self._listed[folder]


def _names(folder: Path) -> frozenset[str]:
    """Return what a folder holds; nothing where it cannot be listed."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names are all that is asked
    except OSError:
        return frozenset()


def _located(name: str) -> tuple[Path, ...]:
    """Return the file of a module or the folders of a package, which is not imported."""
    try:
        spec = find_spec(name)
    except (AttributeError, ImportError, ValueError):
        return ()  # it was made in this process, or a hook is broken
    if spec is None:
        return ()
    files = [spec.origin] if spec.has_location and spec.origin else []
    return tuple(
        Path(each).resolve() for each in spec.submodule_search_locations or files
    )


def _top(path: Path, names: object) -> Path:
    """Return the folder from which a module is imported: the first without a package."""
    folder = path.parent
    while "__init__.py" in names(folder) and folder != folder.parent:  # type: ignore[operator]
        folder = folder.parent
    return folder


# by digest: the same text mentions the same
_KNOWN: dict[tuple[str, str], _Mentions] = {}


def _mentions(path: Path, digest: str) -> _Mentions:
    """Return what a file mentions; nothing where it is no source text that is known."""
    known = _KNOWN.get((path.suffix, digest))
    if known is not None:
        return known
    try:
        if path.suffix in PYTHON:
            found = _of_python(ast.parse(path.read_bytes()))
        elif path.name in _SETTINGS:
            names = _PLUGIN_OPTION.findall(path.read_bytes())
            found = _Mentions(modules=tuple((0, name.decode()) for name in names))
        elif path.suffix in _C_LIKE:
            names = _INCLUDE.findall(path.read_bytes())
            found = _Mentions(texts=tuple(os.fsdecode(name) for name in names))
        else:
            found = _Mentions()
    except (OSError, SyntaxError, ValueError, RecursionError):
        found = _Mentions()  # it cannot run either
    return _KNOWN.setdefault((path.suffix, digest), found)


def _of_python(tree: ast.AST) -> _Mentions:
    """Return what a module mentions."""
    modules: dict[tuple[int, str], None] = {}
    texts: dict[str, None] = {}
    for node in ast.walk(tree):
        for level, name in _imported(node):
            modules[level, name] = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if len(text) <= _LONGEST_NAME and _may_be_a_file(text):
                texts[text] = None
    return _Mentions(modules=tuple(modules), texts=tuple(texts))


def _may_be_a_file(text: str) -> bool:
    """Return whether a text looks like the name of a file."""
    return ("." in text or "/" in text) and text.isprintable()


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the modules that a node may import, by level and name."""
    if isinstance(node, ast.Import):
        yield from ((0, each.name) for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        # what is taken from a package may be a module of it
        yield from ((node.level, f"{base}.{each.name}") for each in node.names)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _IMPORTERS:
            yield from ((0, text) for text in _strings(node))
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(getattr(target, "id", "") == _PLUGINS for target in targets):
            yield from ((0, text) for text in _strings(node))


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield all texts below a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
