"""The paths of NVIDIA's command-line tools."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.errors import CollectorFailedError, CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["CUOBJDUMP", "NVDISASM", "Tool", "find_tool", "refusal"]


class Tool(Frozen, frozen=True, kw_only=True):
    """
    A tool that reads binaries.

    Attributes:
        name: As it is started.

        wheel: The package of PyPI that brings it.
    """

    name: str
    wheel: str


CUOBJDUMP = Tool(name="cuobjdump", wheel="nvidia-cuda-cuobjdump")
NVDISASM = Tool(name="nvdisasm", wheel="nvidia-cuda-nvdisasm")


def on_path(tool: Tool) -> str | None:
    """Return the path of a tool on PATH."""
    return shutil.which(tool.name)


def in_wheel(tool: Tool) -> str | None:
    """Return the path of a tool in PyPI's wheel."""
    try:
        files = importlib.metadata.files(tool.wheel) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in {tool.name, f"{tool.name}.exe"}:
            return shutil.which(str(file.locate()))
    return None


def in_triton(tool: Tool) -> str | None:
    """Return the path of a tool in Triton, without importing Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    return shutil.which(tool.name, path=str(folder))


def in_toolkit(tool: Tool) -> str | None:
    """Return the path of a tool in the CUDA toolkit that the environment names."""
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
        tool: Which one.

        places: Where to look, in this order: on PATH, in PyPI's wheel, in Triton, in
            the toolkit that CUDA_HOME or CUDA_PATH names.

    Raises:
        CollectorUnavailableError: It is in none of them.
    """
    for place in places:
        if path := place(tool):
            return path
    raise CollectorUnavailableError(
        f"{tool.name} is not on PATH, in PyPI's wheel, in Triton or in CUDA_HOME",
        remedy='run: pip install "pytest-gpuperf[binary]"',
    )


def refusal(tool: Tool, finished: Finished) -> CollectorFailedError:
    """Return the error of a failed tool, with the tool's output."""
    words = finished.log_tail or f"no output, exit status {finished.exit_code}"
    return CollectorFailedError(
        f"{tool.name} cannot read it: {words}",
        remedy=f"put the {tool.name} of the toolkit that compiled it on PATH, "
        f"or update it (pip install -U {tool.wheel})",
        argv=finished.argv,
        exit_code=finished.exit_code,
        log_tail=finished.log_tail,
    )
