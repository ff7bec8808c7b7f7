"""Names of kernels as their sources write them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping, Sequence

from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CollectError

_TOOLS = ("cu++filt", "c++filt")
_DEMANGLE_TIMEOUT_S = 20.0
_CLOSED_BY = {"<": ">", "(": ")"}


def demangled_names(
    names: Sequence[str], *, runner: Runner, tools: Sequence[str] = _TOOLS
) -> Mapping[str, str]:
    """
    Demangle names, if a demangler is available.

    Args:
        names: Mangled names.

        runner: Starts the demangler.

        tools: Programs to try, best first. The first program on PATH is used.

    Returns:
        The demangled name by mangled name. Empty if no demangler is on PATH or if the
        demangler fails, because a measurement must not be lost for a name.
    """
    # The programs read a name from each line.
    distinct = sorted({name for name in names if "\n" not in name})
    tool = next((path for name in tools if (path := shutil.which(name))), None)
    if tool is None or not distinct:
        return {}
    text = "\n".join(distinct) + "\n"
    try:
        finished = runner.run(
            [tool], timeout_s=_DEMANGLE_TIMEOUT_S, stdin=text.encode()
        )
    except CollectError:
        return {}
    lines = finished.stdout.decode("utf-8", "replace").splitlines()
    if finished.exit_code or len(lines) != len(distinct):
        return {}
    return dict(zip(distinct, lines, strict=True))


def native_demangler(library: str = "libstdc++.so.6") -> Callable[[str], str | None]:
    """
    Return a demangler that runs in this process.

    A name that is not mangled (Triton's, or declared `extern "C"`) is returned unchanged.

    Args:
        library: The C++ runtime with `__cxa_demangle`, as named by the loader.

    Returns:
        A function that demangles a name. It returns None if the library is missing or
        cannot demangle the name.
    """
    try:
        demangle = ctypes.CDLL(library)["__cxa_demangle"]
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError, TypeError):  # Windows has no CDLL(None).
        return lambda name: None if name.startswith("_Z") else name
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.argtypes = [ctypes.c_void_p]

    def readable(name: str) -> str | None:
        if not name.startswith("_Z"):
            return name
        text = demangle(name.encode(), None, None, None)
        if not text:
            return None
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            free(text)

    return readable


def base_name(name: str) -> str:
    """
    Return a kernel's name without namespaces, template arguments and parameters.

    Args:
        name: A name in the spelling of a demangler.

    Example:
        >>> base_name("void at::native::fill<4, std::array<char*, 1> >(int, float)")
        'fill'
        >>> base_name("void fill<(a>b)>(int)")
        'fill'
    """
    open_brackets: list[str] = []
    letters = []
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter == "(" and not open_brackets:  # The parameters begin here.
            break
        if letter in _CLOSED_BY:
            open_brackets.append(_CLOSED_BY[letter])
        elif not open_brackets:
            letters.append(letter)
        elif letter == ")" and letter in open_brackets:
            # The `<` of `a < b` inside the parentheses opened no bracket.
            while open_brackets.pop() != ")":
                pass
        elif letter == open_brackets[-1]:
            open_brackets.pop()
    words = "".join(letters).split()
    return (words[-1].rpartition("::")[2] if words else "") or name
