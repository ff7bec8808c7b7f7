"""Digests of the syntax trees of functions: the same for any layout of the source."""

from __future__ import annotations

import ast
import functools
import os
import warnings
from pathlib import Path
from types import CodeType, FunctionType
from weakref import ref

from blake3 import blake3

_DIGEST_LENGTH = 16  # Hexadecimal digits.
_MAX_BYTES = 1 << 20  # A larger source file takes seconds to parse.
_MAX_WRAPPERS = 100  # Decorators around a function. A cycle of them has no end.
_LAMBDA = "<lambda>"
# Annotations change no work, and `ctx` follows from the place of a node.
_NO_WORK = frozenset(
    {"annotation", "returns", "type_comment", "type_params", "ctx", "kind"}
)
# The name of a test is in its id, and the decorators hold the cases of other ids.
_NOT_OF_A_ROOT = frozenset({"name", "decorator_list"})

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Named = tuple[str, int]  # Name and first line of a function.


def function_digest(function: object) -> str | None:
    """
    Return the digest of a function's syntax tree, or None if the source is unknown.

    The docstring, decorators and annotations are left out. Defaults are included.
    """
    for _ in range(_MAX_WRAPPERS):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return _digest_of(ref(function)) if isinstance(function, FunctionType) else None


def lambda_digest(code: CodeType) -> str | None:
    """Return the digest of all lambdas that begin on a line, or None if unknown."""
    several = _functions_of(code).get((_LAMBDA, code.co_firstlineno))
    return None if several is None else "-".join(several)


# All cases of a parametrized test share a function. The cache holds no function, which would
# keep its module, and by that all of a pytest that has run in this process.
@functools.lru_cache(maxsize=4096)
def _digest_of(function: ref[FunctionType]) -> str | None:
    code = function().__code__  # type: ignore[union-attr] # The caller holds it.
    several = _functions_of(code).get((code.co_name, code.co_firstlineno), ())
    return several[0] if len(several) == 1 else None


def _functions_of(code: CodeType) -> dict[_Named, tuple[str, ...]]:
    try:
        stat = os.stat(code.co_filename)  # noqa: PTH116 - A Path takes more calls.
    except (OSError, ValueError):
        # The code was compiled from a text, or the file is gone.
        return {}
    if stat.st_size > _MAX_BYTES:
        return {}
    return _functions_in(code.co_filename, stat.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _functions_in(file: str, _: int) -> dict[_Named, tuple[str, ...]]:
    """Return the digests of the functions of a file, or {} if the file cannot be parsed."""
    try:
        source = Path(file).read_bytes()
        with warnings.catch_warnings():
            # The import of the module has already shown the warnings.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[_Named, tuple[str, ...]] = {}
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        for field in node._fields:  # Not ast.walk, which makes a call for each node.
            child = getattr(node, field, None)
            several = child if isinstance(child, list) else (child,)
            nodes += [each for each in several if isinstance(each, ast.AST)]
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            continue
        if isinstance(node, ast.Lambda):
            named = _LAMBDA, node.lineno
        else:  # A code object begins with the first decorator.
            decorators = node.decorator_list
            named = node.name, (decorators[0] if decorators else node).lineno
        digest = blake3(text_of(node).encode("utf-8", "surrogatepass")).hexdigest()
        found[named] = (*found.get(named, ()), digest[:_DIGEST_LENGTH])
    # A stack returns the lambdas of a line from right to left, or inside out.
    return {named: tuple(sorted(digests)) for named, digests in found.items()}


def text_of(root: ast.AST) -> str:  # noqa: C901 - One loop, without calls for a node.
    """
    Return a tree as text, without positions and without docstrings.

    A loop, because `ast.dump` makes a few Python calls for each node. Empty fields are
    left out: later versions of Python have more of them.
    """
    parts: list[str] = []
    pending: list[object] = [root]
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.AST):
            parts.append(str(node))
            continue
        parts.append(f"{type(node).__name__}(")
        pending.append(")")
        if isinstance(node, (ast.Constant, ast.MatchSingleton)):
            pending.append(repr(node.value))
            continue
        for field in reversed(node._fields):
            child = getattr(node, field, None)
            if field in _NO_WORK or (node is root and field in _NOT_OF_A_ROOT):
                continue
            if isinstance(child, list):
                pending += [
                    each if isinstance(each, ast.AST) else repr(each)
                    for each in reversed(child)
                ]
                if field == "body" and child and _is_docstring(node, child[0]):
                    pending.pop()
            elif isinstance(child, ast.AST):
                pending.append(child)
            elif child is not None:
                pending.append(repr(child))
            if child is not None and child != []:
                pending.append(f" {field}=")
    return "".join(parts)


def _is_docstring(node: ast.AST, first: object) -> bool:
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
        and isinstance(node, (*_FUNCTIONS, ast.ClassDef))
    )
