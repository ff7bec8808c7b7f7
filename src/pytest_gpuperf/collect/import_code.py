"""The code that the import and the collection of a module run: whether two versions run alike."""

from __future__ import annotations

import ast
import re
import warnings

from pytest_gpuperf.collect.syntax import text_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
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
        self.outside = text_of(tree)
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
        self.bodies[name] = self.bodies.get(name, "") + text_of(function)
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
