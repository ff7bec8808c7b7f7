"""Redirects Python's module search from one tree of a project to another.

The module runs in every Python process of a side, before the program and after the
`.pth` files of the environment. It uses only the standard library, because it is loaded
by its path, also in a Python that does not have the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

# Tables in which the finders of editable installs keep the folders of a project.
_MODULE_TABLES = ("MAPPING", "NAMESPACES")  # setuptools
_FINDER_TABLES = (
    "_redirections",  # editables, used by hatchling
    "known_source_files",  # scikit-build-core
)
# The level of a project that was built.
_BUILT = 2
# Parts of the names of finders that build on import.
_BUILDERS = ("mesonpy", "scikitbuild")


def inside(path: str, *folders: str) -> bool:
    """Return True if a path equals a folder, or lies below."""
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def moved(path: str, own_tree: str, other_tree: str, shared: Sequence[str]) -> str:
    """
    Translate a path in the other tree to the own tree. Any other path is unchanged.

    Args:
        path: An absolute path.

        own_tree: The root of the tree to search.

        other_tree: The root of the tree not to search.

        shared: Folders in the other tree that both sides use, such as an environment or
            the own tree.
    """
    real = os.path.realpath(path)
    if inside(real, other_tree) and not inside(real, *shared):
        return own_tree + real[len(other_tree) :]
    return path


def start(
    own_tree: str,
    other_tree: str,
    shared: Sequence[str],
    front: Sequence[str],
    level: int,
) -> None:
    """
    Redirect imports of a project to the own tree.

    Args:
        own_tree: The root of the own tree.

        other_tree: The root of the other side's tree.

        shared: See `moved`.

        front: The folders to search first.

        level: With level 2, the project was built into one of the folders, and finders
            that build the other tree on import are removed.
    """

    def move(path: Any) -> Any:  # noqa: ANN401 - a table of others holds anything
        is_path = isinstance(path, str) and os.path.isabs(path)  # noqa: PTH117 - a Path for each entry costs start-up
        return moved(path, own_tree, other_tree, shared) if is_path else path

    sys.path[:] = [move(entry) for entry in sys.path]
    for table in _tables():
        for name, value in table.items():
            is_list = isinstance(value, (list, tuple))
            table[name] = [*map(move, value)] if is_list else move(value)
    if level >= _BUILT:
        sys.meta_path[:] = [f for f in sys.meta_path if not _builds(f)]
    sys.path[:0] = [folder for folder in front if folder not in sys.path]


def editable_folders() -> tuple[tuple[str, str], ...]:
    """Return the names and folders in the finders of editable installations."""
    return tuple(
        (name, os.path.realpath(path))
        for table in _tables()
        for name, value in table.items()
        for path in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(path, str) and isinstance(name, str)
    )


def _tables() -> Iterator[dict[str, Any]]:
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        tables = [getattr(module, name, None) for name in _MODULE_TABLES]
        tables += [getattr(finder, name, None) for name in _FINDER_TABLES]
        yield from (table for table in tables if isinstance(table, dict))


def _builds(finder: object) -> bool:
    kind = finder if isinstance(finder, type) else type(finder)
    name = f"{kind.__module__} {kind.__name__}".lower()
    return any(builder in name for builder in _BUILDERS)
