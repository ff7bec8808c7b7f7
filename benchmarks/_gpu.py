"""What the benchmarks on a GPU share: the machine, known work, tables in Markdown."""

from __future__ import annotations

import importlib
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from _pairs import median_interval

from pytest_gpuperf.collect.devices import query_devices

Work = Callable[[], object]


def need_gpu(script: str) -> ModuleType:
    """Return torch on a GPU; end the script, and well, where there is none."""
    query = query_devices()
    if not query.devices:
        print(f"{script}: skipped, no GPU: {query.reason}")
        sys.exit(0)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        print(f"{script}: skipped, torch is not installed")
        sys.exit(0)
    if not torch.cuda.is_available():
        print(f"{script}: skipped, torch sees no GPU")
        sys.exit(0)
    return torch


def print_machine(torch: ModuleType) -> None:
    """Print what the figures below were measured on."""
    gpu = query_devices().devices[0]
    parts = [
        f"{gpu.name}, driver {gpu.driver_version}",
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
    ]
    ncu = shutil.which("ncu")
    if ncu is not None:
        said = subprocess.run(
            [ncu, "--version"], capture_output=True, text=True, check=False
        )
        parts.append(f"ncu: {said.stdout.strip().splitlines()[-1]}")
    print(f"Measured on: {'; '.join(parts)}.")


def known_work(torch: ModuleType) -> dict[str, Work]:
    """Return calls of four kinds: bound by arithmetic, by memory (twice), by launching."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(a)
    x = torch.ones(1 << 27, device="cuda")  # 512 MiB
    out = torch.empty_like(x)
    scalar = torch.empty((), device="cuda")
    small = torch.ones(1 << 20, device="cuda")
    return {
        "product, 4096³ bf16": lambda: torch.matmul(a, a, out=product),
        "sum of 512 MiB": lambda: torch.sum(x, dim=(0,), out=scalar),
        "copy of 512 MiB, plus 1": lambda: torch.add(x, 1, out=out),
        "small kernel, 4 MiB": lambda: small.add_(1),
    }


def print_rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print(f"\n### {title}\n")
    print(f"| {' | '.join(heads)} |")
    print(f"| {' | '.join('---' for _ in heads)} |")
    for row in rows:
        print_row(row)


def print_row(row: Sequence[str]) -> None:
    """Print a row of a table at once: a script that is ended has printed what it has."""
    print(f"| {' | '.join(row)} |", flush=True)


def spread(values: Sequence[float], scale: float = 1e6, digits: int = 2) -> str:
    """Return a median with an interval that holds it in 95 % of all cases."""
    if len(values) < 6:
        return f"{statistics.median(values) * scale:.{digits}f}" if values else "-"
    low, high = median_interval(values)
    middle = statistics.median(values)
    return f"{middle * scale:.{digits}f} [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


def first_line(why: str) -> str:
    """Return the first line of a message: a row of a table has one, CUDA's errors five."""
    return (why.splitlines() or [""])[0].replace("|", "/")


def said(failures: Mapping[str, str]) -> None:
    """Print what could not be measured, and why."""
    for name, why in failures.items():
        print(f"\n*{name}*: not measured: {why}")
