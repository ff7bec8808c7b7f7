"""Digests of the syntax trees of functions: the same for any layout of the source."""

from __future__ import annotations

import ast
import functools
import os
import re
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
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Named = tuple[str, int]  # Name and first line of a function.
# Functions that Python or pytest call when a module is imported or collected.
_UNNAMED = re.compile(r"__\w+__|pytest_\w+|mro")
# Classes whose creation calls no method of a class below them.
_CALL_NO_METHODS = frozenset(
    {
        "object",
        "Exception",
        "unittest.TestCase",
        "TestCase",
        "torch.nn.Module",
        "nn.Module",
    }
)
# They give access to functions whose names are composed.
_REACHES_ALL = frozenset({"globals", "locals", "vars", "modules", "eval", "exec"})
# The arguments of parametrize, param and fixture with values, which pytest does not call.
_VALUES = frozenset({"argvalues", "params"})
_FIRST_VALUES = 2


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
        digest = blake3(_text(node).encode("utf-8", "surrogatepass")).hexdigest()
        found[named] = (*found.get(named, ()), digest[:_DIGEST_LENGTH])
    # A stack returns the lambdas of a line from right to left, or inside out.
    return {named: tuple(sorted(digests)) for named, digests in found.items()}


def runs_alike(old: bytes, new: bytes) -> bool:
    """
    Return True if the import and collection of two versions of a test module run alike.

    Bodies of functions do not count, unless this code may call the function. Other
    functions may also be new or gone.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            versions = [_Imported(ast.parse(source)) for source in (old, new)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    before, after = versions
    changed = {
        name
        for name in before.bodies.keys() | after.bodies.keys()
        if before.bodies.get(name) != after.bodies.get(name)
    }
    called = before.called() | after.called()
    return before.outside == after.outside and changed.isdisjoint(called)


class _Imported:
    """
    The code that the import and the collection of a module run.

    Args:
        tree: The module. The bodies of its functions are removed.

    Attributes:
        bodies: The text of each function by qualified name.

        outside: The text of the code without functions.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.bodies: dict[str, str] = {}
        # Names of marks and fixtures, with the values assigned to them.
        self._of_pytest: dict[str, str] = {}
        self._of_pytest |= {
            target.id: ast.unparse(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and self._is_of_pytest(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        # By qualified name of a function, the names that its body uses.
        self._uses: dict[str, set[str]] = {}
        # Functions that are called without being named, by Python, pytest or a base class.
        self._unnamed: set[str] = set()
        # The names that pytest calls while it collects, in decorators.
        self._named: set[str] = set()
        self._take(tree, "")
        self.outside = _text(tree)
        self._named |= _names_in(tree)

    def called(self) -> frozenset[str]:
        """Return the qualified names of the functions that may be called."""
        if not self._named.isdisjoint(_REACHES_ALL):
            return frozenset(self.bodies)
        called, named = set(self._unnamed), set(self._named)
        count = -1
        while count != len(called):
            count = len(called)
            named.update(*(self._uses[name] for name in called))
            # A named class may be handed to code that calls any of its methods.
            called |= {n for n in self.bodies if not named.isdisjoint(n.split("."))}
        return frozenset(called)

    def _take(
        self, node: ast.AST, prefix: str, *, has_other_base: bool = False
    ) -> None:
        for _, value in ast.iter_fields(node):
            several = value if isinstance(value, list) else [value]
            for child in [each for each in several if isinstance(each, ast.AST)]:
                decorators = getattr(child, "decorator_list", [])
                if not all(map(self._is_of_pytest, decorators)):
                    continue
                name = f"{prefix}{getattr(child, 'name', '')}"
                if not isinstance(child, _FUNCTIONS):
                    inner, other = prefix, has_other_base
                    if isinstance(child, ast.ClassDef):
                        # Other bases may call the methods of the class that is created.
                        bases = {ast.unparse(base) for base in child.bases}
                        other = bool(child.keywords) or not bases <= _CALL_NO_METHODS
                        inner = f"{name}."
                    self._take(child, inner, has_other_base=other)
                    continue
                self._add(name, child, is_unnamed=has_other_base)
                child.body = []
                defaults = [*child.args.defaults, *filter(None, child.args.kw_defaults)]
                nodes = [n for part in (*decorators, *defaults) for n in ast.walk(part)]
                calls = [n.func for n in nodes if isinstance(n, ast.Call)]
                if all(map(self._is_of_pytest, calls)):
                    several.remove(child)

    def _add(self, name: str, function: _Function, *, is_unnamed: bool) -> None:
        self.bodies[name] = self.bodies.get(name, "") + _text(function)
        uses = set().union(*map(_names_in, function.body))
        self._uses[name] = self._uses.get(name, set()) | uses
        texts = [ast.unparse(decorator) for decorator in function.decorator_list]
        texts += [self._of_pytest.get(text.partition("(")[0], "") for text in texts]
        is_autouse = any("autouse" in text for text in texts)
        if is_unnamed or is_autouse or _UNNAMED.fullmatch(function.name):
            self._unnamed.add(name)
        for decorator in function.decorator_list:
            for call in ast.walk(decorator):
                if isinstance(call, ast.Call):
                    called = [k.value for k in call.keywords if k.arg not in _VALUES]
                    for each in (*called, *call.args[_FIRST_VALUES:]):
                        self._named |= _names_in(each)

    def _is_of_pytest(self, node: ast.AST) -> bool:
        name = ast.unparse(node).partition("(")[0]
        return name.startswith("pytest.") or name in self._of_pytest


def _names_in(root: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(root):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _text(root: ast.AST) -> str:  # noqa: C901 - One loop, without calls for a node.
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
