"""Demangled names of kernels."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping, Sequence

from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CollectError

__all__ = ["base_name", "demangled_names", "native_demangler"]

_TOOLS = ("cu++filt", "c++filt")
_TIMEOUT_S = 20.0
_CLOSED_BY = {"<": ">", "(": ")"}


def demangled_names(
    names: Sequence[str], *, runner: Runner, tools: Sequence[str] = _TOOLS
) -> Mapping[str, str]:
    """
    Return demangled names, if a demangler is available.

    Args:
        names: Mangled names.

        runner: Starts the demangler.

        tools: Programs to try, best first; the first on PATH is used.

    Returns:
        Demangled by mangled name; empty where no demangler is on PATH or it fails: a
        name is not worth losing a measurement.
    """
    distinct = sorted(set(names))
    tool = next((path for name in tools if (path := shutil.which(name))), None)
    if tool is None or not distinct:
        return {}
    text = "\n".join(distinct) + "\n"
    try:
        finished = runner.run([tool], timeout_s=_TIMEOUT_S, stdin=text.encode())
    except CollectError:
        return {}
    lines = finished.stdout.decode("utf-8", "replace").splitlines()
    if finished.exit_code or len(lines) != len(distinct):
        return {}
    return dict(zip(distinct, lines, strict=True))


def native_demangler(library: str = "libstdc++.so.6") -> Callable[[str], str | None]:
    """
    Return a demangler that runs in this process.

    A name that is not mangled (Triton's, one declared `extern "C"`) is returned as it is.

    Args:
        library: The C++ runtime that has `__cxa_demangle`, as the loader names it.

    Returns:
        A function of a name; it returns None where the library is missing or cannot
        demangle the name.
    """
    try:
        demangle = ctypes.CDLL(library)["__cxa_demangle"]
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError, TypeError):  # Windows has no CDLL(None)
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
        name: As a demangler writes it.

    Example:
        >>> base_name("void at::native::fill<4, std::array<char*, 1> >(int, float)")
        'fill'
        >>> base_name("void fill<(a>b)>(int)")
        'fill'
    """
    open_brackets: list[str] = []
    letters = []
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter == "(" and not open_brackets:  # its parameters
            break
        if letter in _CLOSED_BY:
            open_brackets.append(_CLOSED_BY[letter])
        elif not open_brackets:
            letters.append(letter)
        elif letter == ")" and letter in open_brackets:
            while open_brackets.pop() != ")":  # a < b inside it opened nothing
                pass
        elif letter == open_brackets[-1]:
            open_brackets.pop()
    words = "".join(letters).split()
    return (words[-1].rpartition("::")[2] if words else "") or name
