"""NVIDIA's command-line tools: finding them, parsing their output and kernel names."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.errors import (
    CollectError,
    CollectorFailedError,
    CollectorUnavailableError,
)
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import Frozen


class Tool(Frozen, frozen=True, kw_only=True):
    """
    A tool that reads binaries.

    Attributes:
        name: The name of the executable.

        wheel: The PyPI package that contains the tool.
    """

    name: str
    wheel: str


CUOBJDUMP = Tool(name="cuobjdump", wheel="nvidia-cuda-cuobjdump")
NVDISASM = Tool(name="nvdisasm", wheel="nvidia-cuda-nvdisasm")


def on_path(tool: Tool) -> str | None:
    """Return the path of a tool on PATH, or None."""
    return shutil.which(tool.name)


def in_wheel(tool: Tool) -> str | None:
    """Return the path of a tool in PyPI's wheel, or None."""
    try:
        files = importlib.metadata.files(tool.wheel) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in {tool.name, f"{tool.name}.exe"}:
            return shutil.which(str(file.locate()))
    return None


def in_triton(tool: Tool) -> str | None:
    """Return the path of a tool in Triton, without importing Triton, or None."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    return shutil.which(tool.name, path=str(folder))


def in_toolkit(tool: Tool) -> str | None:
    """Return the path of a tool in the CUDA toolkit from the environment, or None."""
    homes = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    folders = [str(Path(home) / "bin") for home in homes if home]
    return shutil.which(tool.name, path=os.pathsep.join(folders)) if folders else None


_PLACES = (on_path, in_wheel, in_triton, in_toolkit)


def find_tool(
    tool: Tool, places: Sequence[Callable[[Tool], str | None]] = _PLACES
) -> str:
    """
    Return the path of a tool.

    Args:
        tool: The tool to find.

        places: The places to search, in this order: PATH, PyPI's wheel, Triton, the toolkit
            of CUDA_HOME or CUDA_PATH.

    Raises:
        CollectorUnavailableError: The tool is in none of these places.
    """
    for place in places:
        if path := place(tool):
            return path
    raise CollectorUnavailableError(
        f"{tool.name} is not on PATH, in PyPI's wheel, in Triton or in CUDA_HOME",
        remedy='run: pip install "pytest-gpuperf[binary]"',
    )


# What NVIDIA's tools write before a reason.
_PREFIX = re.compile(r"^\w+ (?:fatal|error|warning)\s*:\s*")


def last_line(finished: Finished) -> str:
    """Return the last line of a tool's output, or the exit status if there is none."""
    lines = finished.log_tail.rstrip(".").splitlines()
    return lines[-1] if lines else f"no output, exit status {finished.exit_code}"


def refusal(
    tool: Tool, finished: Finished, what: str = "it", *, newer_helps: bool = True
) -> CollectorFailedError:
    """
    Build the exception for a failed tool, with the last line of the tool's output.

    Args:
        tool: The tool.

        finished: The process.

        what: What the tool cannot read.

        newer_helps: Whether a newer version of the tool may read it.
    """
    # The tool may have read a copy, whose name says nothing.
    reason = last_line(finished).removesuffix(f" in '{finished.argv[-1]}'")
    reason = _PREFIX.sub("", reason)
    update = f", or update it (pip install -U {tool.wheel})" if newer_helps else ""
    return CollectorFailedError(
        f"{tool.name} cannot read {what}: {reason}",
        remedy=f"put the {tool.name} of the toolkit that compiled it on PATH{update}",
        argv=finished.argv,
        exit_code=finished.exit_code,
        log_tail=finished.log_tail,
    )


_TIMEOUT_S = 120.0
_EXTRACTED = re.compile(
    r"^Extracting ELF file\s+\d+: (.+\.(sm_\w+)\.cubin)\s*$", re.MULTILINE
)
_FUNCTION = re.compile(r"^\s*Function (.+):\s*\n(.*)$", re.MULTILINE)
_NO_NAME_HAS = "\0"  # Names of ELF end with it.
_USAGE = re.compile(r"([A-Z]+)(?:\[\d+\])?:(\w+)")
_NO_DEVICE_CODE = ("does not contain device code", "Invalid fatbin header")


def extract_cubins(
    tool: str, image: Path, *, into: Path, runner: Runner, target: str | None = None
) -> tuple[Finished, Mapping[Path, str]]:
    """
    Write the cubins of a binary to separate files.

    Args:
        tool: The path of cuobjdump.

        image: A cubin, or a file that may contain cubins.

        into: The folder to write to. It is created.

        runner: Starts the tool.

        target: Extract the code for this chip, and perhaps for chips with the same number,
            or None to extract all code.

    Returns:
        The finished process, and the target of each written file, in the order of writing.
    """
    into.mkdir()
    chosen = () if target is None else ("-arch", target)
    path = image.resolve()
    if not (path.name.isascii() and path.name.isprintable()):
        # The names of the written files contain this name, and are read from the output.
        link = into / "image"
        link.symlink_to(path)
        path = link
    argv = [tool, *chosen, "-xelf", "all", str(path)]
    finished = runner.run(argv, timeout_s=_TIMEOUT_S, cwd=str(into))
    text = finished.stdout.decode("utf-8", "replace")
    written = {into / Path(name).name: of for name, of in _EXTRACTED.findall(text)}
    return finished, written


def compiled_kernels(
    tool: str, cubin: Path, target: str, *, runner: Runner, names: Iterable[str] = ()
) -> tuple[KernelResources, ...]:
    """
    Return the resources of every kernel in a cubin, as cuobjdump prints them.

    Args:
        tool: The path of cuobjdump.

        cubin: A file written by `extract_cubins`.

        target: The chip of the file.

        runner: Starts the tool.

        names: The names of the functions, for those that contain a line break.

    Raises:
        CollectorFailedError: The tool failed, or its output has an unknown format.
    """
    argv = [tool, "-res-usage", str(cubin)]
    finished = runner.run(argv, timeout_s=_TIMEOUT_S)
    if finished.exit_code:
        raise refusal(CUOBJDUMP, finished)
    text = finished.stdout.decode("utf-8", "replace")
    for name in names:
        if "\n" in name:
            text = text.replace(name, name.replace("\n", _NO_NAME_HAS))
    kernels = (
        _kernel(name.replace(_NO_NAME_HAS, "\n"), line, target, finished)
        for name, line in _FUNCTION.findall(text)
    )
    return tuple(kernel for kernel in kernels if kernel is not None)


def holds_no_device_code(finished: Finished) -> bool:
    """Return True if the tool reports a file without device code."""
    return any(words in finished.log_tail for words in _NO_DEVICE_CODE)


def _kernel(
    name: str, line: str, target: str, finished: Finished
) -> KernelResources | None:
    """Return the resources of a kernel, or None for a function called by kernels."""
    numbers: dict[str, int | None] = {"LOCAL": 0}
    for key, text in _USAGE.findall(line):
        value = int(text) if text.isdigit() else None
        held = numbers.get(key, 0)
        numbers[key] = None if value is None or held is None else held + value
    # Every kernel has a constant bank for parameters.
    if "CONSTANT" not in numbers:
        return None
    registers_count, shared_bytes = numbers.get("REG"), numbers.get("SHARED")
    constant_bytes = numbers["CONSTANT"]
    if registers_count is None or shared_bytes is None or constant_bytes is None:
        raise refusal(CUOBJDUMP, finished)
    stack_bytes, local_bytes = numbers.get("STACK"), numbers["LOCAL"]
    return KernelResources(
        name=name,
        demangled=None,
        target=target,
        registers_count=registers_count,
        stack_bytes=(
            None
            if stack_bytes is None or local_bytes is None
            else stack_bytes + local_bytes
        ),
        shared_bytes=shared_bytes,
        constant_bytes=constant_bytes,
    )


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
