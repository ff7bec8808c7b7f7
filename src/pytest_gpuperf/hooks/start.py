"""How a run was started, for all who start processes like it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuperf import options

if TYPE_CHECKING:
    import pytest

    from pytest_gpuperf.pipeline.repeat import CommandLine

__all__ = ["command_line", "start_of", "worker_start"]

_START = (
    "gpuperf_start"  # in workerinput: a worker does not know how pytest was started
)
_SCRIPTS = ("pytest", "py.test")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python


def worker_start(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Return how the run was started, for an xdist worker: builtins alone."""
    return {
        _START: {
            "args": [str(arg) for arg in config.invocation_params.args],
            "folder": str(config.invocation_params.dir),
            "start": start_of(sys.orig_argv),
            "paths": [str(path) for path in config.getoption("file_or_dir") or ()],
            "own_basetemp": bool(config.getoption("basetemp", default=None)),
        }
    }


def command_line(config: pytest.Config) -> CommandLine:
    """Return how the run was started, whichever of its processes this is."""
    # an xdist controller that waits loads neither
    from pytest_gpuperf.config import JitCache
    from pytest_gpuperf.pipeline.repeat import CommandLine

    workerinput = getattr(config, "workerinput", None) or worker_start(config)
    start = workerinput[_START]
    present = {
        "xdist": hasattr(config.option, "numprocesses") or "workerid" in workerinput,
        "cacheprovider": config.pluginmanager.hasplugin("cacheprovider"),
        "pytest_cov": hasattr(config.option, "no_cov"),
        "randomly": hasattr(config.option, "randomly_seed"),
    }
    return CommandLine(
        args=tuple(start["args"]),
        folder=start["folder"],
        start=tuple(start["start"]),
        paths=tuple(start["paths"]),
        variable=options.CHILD_VARIABLE,
        plugins=frozenset(name for name, active in present.items() if active),
        own_basetemp=start["own_basetemp"],
        fresh_caches=options.config_of(config).jit_cache is JitCache.FRESH,
    )


def start_of(argv: Sequence[str]) -> list[str]:
    """
    Return the part of a command line that makes Python run pytest.

    `python -m pytest` puts the folder on Python's path, the script `pytest` does not; the
    options of the interpreter stand before either.
    """
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "-m":
        index += 2 if argv[index] in _WITH_VALUE else 1
    interpreter, word = (
        [sys.executable, *argv[1:index]],
        "".join(argv[index : index + 1]),
    )
    if list(argv[index : index + 2]) == ["-m", "pytest"]:
        return [*interpreter, "-m", "pytest"]
    if Path(word).name in _SCRIPTS and Path(word).is_file():
        return [*interpreter, str(Path(word).absolute())]
    return [sys.executable, "-m", "pytest"]
