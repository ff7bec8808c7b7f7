"""What cuobjdump takes out of a binary: cubins, and the resources of their kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, refusal
from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.model.activity import KernelResources

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
