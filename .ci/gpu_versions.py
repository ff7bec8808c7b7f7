"""Print which frameworks and tools this Python has, and whether each sees a GPU.

    python .ci/gpu_versions.py [FRAMEWORK]

Each framework is asked in a process of its own: two users of CUDA in one can hang, and the
first import on a new machine can take long.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGES = (
    *("pytest", "torch", "triton", "cupy", "numba", "numba-cuda", "jax", "jaxlib"),
    *("cupti-python", "nvidia-cuda-cupti", "cuda-bindings", "nvidia-ml-py"),
    *("ncu-report", "nvtx", "msgspec", "blake3", "numpy", "scipy"),
)
SEES: dict[str, Callable[[Any], object]] = {
    "torch": lambda torch: torch.cuda.is_available(),
    "cupti.cupti": lambda cupti: cupti.get_timestamp() > 0,
    "cupy": lambda cupy: cupy.cuda.runtime.getDeviceCount(),
    "numba.cuda": lambda cuda: cuda.is_available(),
    "jax": lambda jax: [str(device) for device in jax.devices()],
}
FIELDS = (
    *("name", "driver_version", "memory.total", "clocks.sm", "power.limit"),
    *("compute_mode", "mig.mode.current"),
)
TOOLS = (
    (
        "nvidia-smi",
        "--format=csv",
        f"--query-gpu={','.join(FIELDS)}",
    ),
    ("ncu", "--version"),
    ("nvcc", "--version"),
)
LONGEST_S = 30.0


def main() -> None:
    """Print the tools, one line a package, and what each framework answers."""
    if len(sys.argv) > 1:
        _print_framework(sys.argv[1])
        return
    print(f"Python {sys.version}")
    for argv in TOOLS:
        if shutil.which(argv[0]) is None:
            print(f"no {argv[0]} on PATH")
        else:
            _run(argv)
    for name in PACKAGES:
        print(f"{name:18} {_version(name)}")
    for name in SEES:
        _run((sys.executable, __file__, name))


def _run(argv: tuple[str, ...]) -> None:
    """Run a command; what it does must not cost the others."""
    sys.stdout.flush()
    try:
        subprocess.run(argv, timeout=LONGEST_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{argv[-1]:18} {error}")


def _print_framework(name: str) -> None:
    """Print whether a framework sees a GPU, and the libcupti that came with it."""
    try:
        answer = SEES[name](importlib.import_module(name))
    except Exception as error:  # noqa: BLE001 - whatever one of them raises is told
        answer = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
    print(f"{name:18} sees a GPU: {answer}")
    maps = Path("/proc/self/maps")
    mapped = maps.read_text("utf-8").split() if maps.exists() else []
    for path in sorted({part for part in mapped if "libcupti.so" in part}):
        print(f"{'libcupti':18} {path}")  # two of them are two CUPTIs: one sees nothing


def _version(name: str) -> str:
    """Return the version of a package; cupy has another name for each CUDA."""
    for variant in (name, f"{name}-cuda13x", f"{name}-cuda12x"):
        try:
            return importlib.metadata.version(variant)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


if __name__ == "__main__":
    main()
