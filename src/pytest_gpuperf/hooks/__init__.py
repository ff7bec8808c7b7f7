"""Room hooks: the pytest objects.

In: what pytest calls.
Out: calls of fixture and pipeline, and outcomes in pytest's own words.
Never: a measurement, a decision, arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from pytest_gpuperf.hooks.measuring import Measuring
    from pytest_gpuperf.pipeline.command_line import CommandLine

# The key in workeroutput of the number of test bodies run in a worker.
RAN = "gpuperf_ran"


def register(config: pytest.Config) -> Measuring | None:
    """
    Register the plugin objects of this process, and return the one that measures.

    A worker measures. A controller judges once a test has measured. The only process of
    a run does both. A child run measures and writes the results to a file.
    """
    if options.is_controller(config) and not options.is_active(config):
        from pytest_gpuperf.hooks.controller import Controller

        config.pluginmanager.register(Controller(config), "gpuperf-gate")
        return None
    # Imported here, because this is the first use of these packages.
    from pytest_gpuperf.model.frozen import collector_paused

    with collector_paused():  # A hundred modules are loaded, and none leaves garbage.
        return _register_measuring(config)


def _register_measuring(config: pytest.Config) -> Measuring:
    from pytest_gpuperf.hooks.identity import Identity
    from pytest_gpuperf.hooks.measuring import Leases, Measuring
    from pytest_gpuperf.measure.bench import bench_of
    from pytest_gpuperf.pipeline.memory import Memory

    manager = config.pluginmanager
    if options.is_child(config):
        from pytest_gpuperf.hooks.child import Child

        child = Child(config)
        manager.register(child, "gpuperf-child")
        bench = child.bench()
        measuring = Measuring(config, bench, Memory(bench.site.config), judging=False)
        manager.register(measuring, "gpuperf-measuring")
    elif hasattr(config, "workerinput"):
        measuring = Measuring.in_worker(config)
        manager.register(measuring, "gpuperf-measuring")
    else:
        from pytest_gpuperf.hooks.gate import Gate

        gate = Gate(config)
        manager.register(gate, "gpuperf-gate")
        measuring = Measuring(config, bench_of(gate.suite.site), gate.suite.memory)
        manager.register(measuring, "gpuperf-measuring")
    manager.register(Identity(config), "gpuperf-identity")
    manager.register(Leases(measuring.bench), "gpuperf-leases")
    return measuring


def refuse_each(config: pytest.Config) -> None:
    """
    Refuse `--dist each` with several workers in a run that measures.

    A run has one value per test, so the value of one machine would replace that of
    another.

    Raises:
        pytest.UsageError: The run uses `--dist each` with several workers.
    """
    if config.getoption("dist", default="no") != "each":
        return
    workers = config.pluginmanager.getplugin("dsession").nodemanager.specs
    if len(workers) > 1 and not config_of(config).disable:
        message = (
            f"gpuperf: --dist each would measure each test on {len(workers)} workers, and "
            "a run has one value of each: start pytest once for each machine, into one "
            "store (--gpuperf-baseline); or run the tests unmeasured (--gpuperf-disable)"
        )
        raise pytest.UsageError(message)


def worker_start(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Return the start of the run for an xdist worker, in builtins only."""
    return {
        options.WORKER_START: {
            "process": options.process_start(config),
            "folder": str(config.invocation_params.dir),
            "paths": [str(path) for path in config.getoption("file_or_dir") or ()],
            "own_basetemp": bool(config.getoption("basetemp", default=None)),
        }
    }


def command_line(config: pytest.Config) -> CommandLine:
    """Return the command line of the run, in any of its processes."""
    # Imported here, so that a waiting xdist controller loads neither.
    from pytest_gpuperf.config import JitCache
    from pytest_gpuperf.pipeline.command_line import CommandLine

    read = config_of(config)
    workerinput = getattr(config, "workerinput", None) or worker_start(config)
    start = workerinput[options.WORKER_START]
    launcher = options.launcher_in(config)
    args = start["process"]["args"]
    present = {
        "xdist": hasattr(config.option, "numprocesses") or "workerid" in workerinput,
        "cacheprovider": config.pluginmanager.hasplugin("cacheprovider"),
        "pytest_cov": hasattr(config.option, "no_cov"),
        "randomly": hasattr(config.option, "randomly_seed"),
    }
    return CommandLine(
        args=tuple(args[len(launcher.added) :]),
        others=options.without_ours(args[len(launcher.added) :]),
        folder=start["folder"],
        launcher=launcher,
        paths=tuple(start["paths"]),
        variable=options.CHILD_VARIABLE,
        plugins=frozenset(name for name, active in present.items() if active),
        own_basetemp=start["own_basetemp"],
        fresh_caches=read.jit_cache is JitCache.FRESH,
    )
