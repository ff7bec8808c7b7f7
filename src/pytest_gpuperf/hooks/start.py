"""How a run was started, for all who start processes like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuperf import options

if TYPE_CHECKING:
    import pytest

    from pytest_gpuperf.pipeline.repeat import CommandLine

__all__ = ["command_line", "worker_start"]

_START = (
    "gpuperf_start"  # in workerinput: a worker does not know how pytest was started
)


def worker_start(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Return how the run was started, for an xdist worker: builtins alone."""
    return {
        _START: {
            "args": [str(arg) for arg in config.invocation_params.args],
            "folder": str(config.invocation_params.dir),
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
    }
    return CommandLine(
        args=tuple(start["args"]),
        folder=start["folder"],
        variable=options.CHILD_VARIABLE,
        plugins=frozenset(name for name, active in present.items() if active),
        own_basetemp=start["own_basetemp"],
        fresh_caches=options.config_of(config).jit_cache is JitCache.FRESH,
    )
