"""NVIDIA's command-line tools: finding them, and the errors of those that fail."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_gpuperf.collect.environment import installed
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.errors import CollectorFailedError, CollectorUnavailableError
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
    spec = installed("triton")
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
