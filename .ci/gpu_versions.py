"""Print which frameworks and tools this Python has, and whether each sees a GPU."""

from __future__ import annotations

import importlib
import importlib.metadata
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
    "cupy": lambda cupy: cupy.cuda.runtime.getDeviceCount(),
    "numba.cuda": lambda cuda: cuda.is_available(),
    "jax": lambda jax: [str(each) for each in jax.devices()],
    "cupti.cupti": lambda cupti: cupti.get_timestamp() > 0,
}


def main() -> None:
    """Print one line a package, then one a framework."""
    for name in PACKAGES:
        print(f"{name:18} {_version(name)}")
    for name, sees in SEES.items():
        try:
            said = sees(importlib.import_module(name))
        except Exception as error:  # noqa: BLE001 - whatever one of them raises is told
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{name:18} sees a GPU: {said}")
    maps = Path("/proc/self/maps")
    mapped = maps.read_text("utf-8").split() if maps.exists() else []
    for path in sorted({each for each in mapped if "libcupti.so" in each}):
        print(f"{'libcupti':18} {path}")  # two of them are two CUPTIs: one sees nothing


def _version(name: str) -> str:
    """Return the version of a package; cupy has another name for each CUDA."""
    for each in (name, f"{name}-cuda13x", f"{name}-cuda12x"):
        try:
            return importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


if __name__ == "__main__":
    main()
