"""Declare the options, and tell cheaply what a run needs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.collect.launcher import Launcher
    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.collect.session import Revision

# Environment variable with the path of a child run's task file.
CHILD_VARIABLE = "PYTEST_GPUPERF_CHILD"
# Environment variable with the number of shards in a job of Kubernetes.
SHARD_COUNT = "GPUPERF_SHARDS"
# Environment variable with the store of a run, unless an option names one.
STORE_VARIABLE = "GPUPERF_BASELINE"
# Name of that variable, if it names the store of the run.
NAMED_BY = pytest.StashKey[str]()
# Path of the task file, set once a child run has begun.
CHILD_TASK = pytest.StashKey[str]()
# Files opened by tests, recorded if the run needs them (`watches_files`).
OPENED: pytest.StashKey[OpenedByTest] = pytest.StashKey()
# The revision of the project, read before files are watched, because git may read files.
REVISION: pytest.StashKey[Revision] = pytest.StashKey()
# Collected files, and other collectors (except directories) that failed. The bool is
# True if the collection passed.
COLLECTED = pytest.StashKey[list[tuple[pytest.Collector, bool]]]()
# Key in workerinput. Workers need this because they do not know how pytest was started.
WORKER_START = "gpuperf_start"
MARKER = (
    "gpuperf(limits, max_regression, min_grade, counters, records, work, group, cache, "
    "iterations, requires): measure this test, hold it to its limits and its baseline"
)


# Name without dashes, metavar (None for a flag) and help text of each option. Literals
# only, because every start of pytest declares these options, used or not.
_OPTIONS: tuple[tuple[str, str | None, str], ...] = (
    (
        "gpuperf-baseline",
        "PATH",
        "compare with this store: a folder, a .json file, a URL",
    ),
    (
        "gpuperf-baseline-fallback",
        "PATH",
        "compare with this snapshot while the server is away",
    ),
    ("gpuperf-update", "WHAT", "store what was measured: new, improved or all"),
    ("gpuperf-max-regression", "PERCENT", "largest increase of time (5 %), or off"),
    ("gpuperf-min-judged", "PERCENT", "fail when fewer tests were judged"),
    ("gpuperf-strict", None, "fail tests that could not be measured or decided"),
    ("gpuperf-compare-across", "FACTS", "compare although these facts differ"),
    ("gpuperf-shard", "I/N", "this run is shard I of N; selects no tests"),
    ("gpuperf-run-id", "TEXT", "name of the run, the same in all of its shards"),
    ("gpuperf-confirm", "N", "fresh processes that confirm suspects (5)"),
    (
        "gpuperf-confirm-by",
        "HOW",
        "suspects are decided by: fresh processes, against (their stored commit), auto",
    ),
    (
        "gpuperf-against",
        "REV",
        "compare with this revision, interleaved, on this machine",
    ),
    (
        "gpuperf-against-tests",
        "WHOSE",
        "tests changed since the revision: skip (same), or run today's on both sides (mine)",
    ),
    (
        "gpuperf-changed",
        None,
        "measure tests that use a file changed since their stored session",
    ),
    ("gpuperf-budget", "TIME", "time limit of a comparison with a revision (10min)"),
    ("gpuperf-runs", "N", "processes that measure every test (1)"),
    ("gpuperf-disable", None, "run bodies unmeasured"),
    ("gpuperf-collectors", "LIST", "auto, or: cupti, events, host, ncu, nvml…"),
    ("gpuperf-chip", "CHIP", "check counter names for this chip: GH100, sm_90; off"),
    ("gpuperf-ncu-replay", "HOW", "ncu repeats a kernel, the application or a range"),
    ("gpuperf-ncu-clocks", "HOW", "ncu leaves clocks alone (none), or base"),
    ("gpuperf-sort", "COLUMN", "sort the table: name, time, change, min, mean…"),
    ("gpuperf-columns", "LIST", "columns of the table: time, min, mean, ops…"),
    ("gpuperf-time-unit", "UNIT", "unit of the table's times: ns, us, ms, s or auto"),
    ("gpuperf-record", "DIR", "keep every reading of this run"),
    ("gpuperf-replay", "DIR", "judge a kept run; nothing is measured"),
    ("gpuperf-json", "FILE", "write the run as JSON; into a pipe: /dev/stderr"),
    ("gpuperf-html", "FILE", "write the run as one HTML page"),
    ("gpuperf-markdown", "FILE", "write the run as Markdown, for a comment"),
    ("gpuperf-csv", "FILE", "write a row for each test and metric"),
    ("gpuperf-annotations", None, "print failures as a GitHub job reads them"),
    ("gpuperf-junit-properties", None, "put values and verdicts into JUnit XML"),
    ("gpuperf-device", "GPU", "measure this GPU: an index, or a UUID"),
    ("gpuperf-lock", "HOW", "how processes share the GPU: exclusive, shared or off"),
    ("gpuperf-telemetry", "HZ", "sampling rate of the GPU's sensors [Hz], or off"),
)

# pyproject.toml may hold a number instead of a quoted text.
_TEXT: Any = str | int | float if pytest.version_tuple >= (9, 2) else "string"

# ini values without a command-line option, because they are decided once for a project
# or need several lines.
_INI = (
    ("gpuperf_sessions", "sessions of a test that --gpuperf-update=new stores (5)"),
    (
        "gpuperf_ratchet",
        "an improvement fails until it is stored: on, or off (default)",
    ),
    (
        "gpuperf_alone",
        "number of fresh processes that measure tests alone when a run stores (1)",
    ),
    ("gpuperf_build_command", "builds a side of --gpuperf-against, in its folder"),
    (
        "gpuperf_jit_cache",
        "compilation caches of confirming processes: fresh (default), or keep",
    ),
    (
        "gpuperf_launcher",
        "fresh processes run a script that started pytest again: replay",
    ),
    ("gpuperf_lock_timeout", "seconds to wait for a test that holds the GPU (600)"),
    ("gpuperf_ncu_timeout", "timeout of counting under ncu [s]"),
)
# ini values that are lists, with one item per line.
_INI_LISTS = (
    (
        "gpuperf_carry",
        "files that git ignores and both sides of --gpuperf-against need, one a line",
    ),
    (
        "gpuperf_peaks",
        "peaks of devices, as NVIDIA H200: fp8 1.5 PFLOP/s, l2 5.5 TB/s",
    ),
    (
        "gpuperf_grades",
        "lowest shares of the peak by grade, as memory: A 85%, B 70%, C 50%, D 25%",
    ),
)

_DESTS = tuple(name.replace("-", "_") for name, _, _ in _OPTIONS)
_NAMES = (*_DESTS, *(name for name, _ in (*_INI, *_INI_LISTS)))

DEFAULT_STORE = ".gpuperf"
_REPORTS = ("gpuperf_json", "gpuperf_html", "gpuperf_markdown", "gpuperf_csv")


def declare(parser: pytest.Parser) -> None:
    """Declare every option on the command line and as an ini value."""
    group = parser.getgroup("gpuperf", "GPU performance (pytest-gpuperf)")
    for dest, (name, metavar, text) in zip(_DESTS, _OPTIONS, strict=True):
        is_flag = metavar is None
        how = {"action": "store_true"} if is_flag else {"metavar": metavar}
        # argparse formats help texts, addini does not.
        how["help"] = text.replace("%", "%%")
        # The default is None instead of False, so that an absent flag does not hide the
        # ini value.
        group.addoption(f"--{name}", dest=dest, default=None, **how)
        kind: Any = "bool" if is_flag else _TEXT
        parser.addini(dest, f"{text} (--{name})", type=kind, default=None)
    for name, text in _INI:
        parser.addini(name, text, type=_TEXT, default=None)
    for name, text in _INI_LISTS:
        parser.addini(name, text, type="linelist", default=None)


def measures(item: pytest.Item) -> bool:
    """Return True if a test takes the fixture or carries the marker."""
    return (
        "gpuperf" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("gpuperf") is not None
    )


def take_store(config: pytest.Config) -> None:
    """
    Take the store that the environment names, unless an option names one.

    The variable is gone until the run ends. So no program that a test starts sees a
    password in it, and a pytest that a test starts is not compared with the store.
    """
    place = os.environ.pop(STORE_VARIABLE, None)
    if place is None:
        return
    config.add_cleanup(lambda: os.environ.update({STORE_VARIABLE: place}))
    if config.getoption("gpuperf_baseline") is None:
        config.option.gpuperf_baseline = place
        config.stash[NAMED_BY] = STORE_VARIABLE


def check_ini(config: pytest.Config) -> None:
    """
    Reject ini values with unknown names or wrong types.

    Raises:
        pytest.UsageError: The ini file has mistakes. The error lists all of them.
    """
    # pytest has no public function for this. A pytest without this one prints a warning
    # about unknown names.
    list_unknown = getattr(config, "_get_unknown_ini_keys", tuple)
    ours = sorted(name for name in list_unknown() if name.startswith("gpuperf_"))
    mistakes = []
    for name in ours:
        import difflib

        close = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.8)
        remedy = f"did you mean {close[0]}" if close else "pytest --help lists them"
        mistakes.append(f"{name} is not an option of pytest-gpuperf; {remedy}")
    for name in _NAMES:
        try:
            config.getini(name)
        except (TypeError, ValueError, pytest.UsageError) as error:
            mistakes.append(f"{name}: {error}; write {_ini_form(name)}")
    if mistakes:
        raise pytest.UsageError("\n".join(f"gpuperf: ini option {m}" for m in mistakes))


def _ini_form(name: str) -> str:
    if any(name == listed for listed, _ in _INI_LISTS):
        return 'a list, as ["..."]'
    options = zip(_DESTS, _OPTIONS, strict=True)
    is_flag = any(name == dest and metavar is None for dest, (_, metavar, _) in options)
    return "true or false" if is_flag else "it in quotes"


def is_configured(config: pytest.Config) -> bool:
    """Return True if any option is set, on the command line or in the ini file."""
    # Every start asks this, so pytest's own functions are called for ini values alone.
    given = vars(config.option)
    return any(
        given.get(name) is not None
        or (config.getini(name) is not None and ini_text(config, name) != "")
        for name in _NAMES
    )


def _is_set(config: pytest.Config, name: str) -> bool:
    given = config.getoption(name, default=None) is not None
    return given or ini_text(config, name) != ""


def ini_text(config: pytest.Config, name: str) -> str:
    """Return an ini value as text, with list items on separate lines, or "" if unset."""
    value = config.getini(name)
    if isinstance(value, list):
        return "\n".join(value)
    return "" if value is None else str(value)


def must_judge(config: pytest.Config) -> bool:
    """
    Return True if the gate is needed even in a run without any measuring test.

    That is the case if an option names a store, a minimum share of judged tests or a
    revision, and all tests are selected. A default store that was merely found gates
    nothing. A store that only the ini file names gates if it exists, because no test
    can be missing from a new store. A revision that only the ini file names gates if
    the command line has no paths, because tests under a path may never have measured
    anything. A run that only shows tests or stores values, a child run and a disabled
    plugin never need the gate.
    """
    switched = config.getoption("gpuperf_disable") or config.getini("gpuperf_disable")
    stores = _is_set(config, "gpuperf_update")
    if (
        switched
        or stores
        or is_child(config)
        or only_shows(config)
        or selects_part(config)
    ):
        return False
    store = ini_text(config, "gpuperf_baseline")
    if config.getoption("gpuperf_baseline") is None and store:
        path = store.removeprefix("sqlite:///").partition("#")[0]
        # Only a server knows whether it has sessions.
        return "://" in path or bool((config.rootpath / path).exists())
    if _is_set(config, "gpuperf_baseline") or _is_set(config, "gpuperf_min_judged"):
        return True
    paths = bool(config.getoption("file_or_dir", default=None))
    return config.getoption("gpuperf_against") is not None or (
        _is_set(config, "gpuperf_against") and not paths
    )


def watches_files(early_config: pytest.Config) -> bool:
    """
    Return True if a starting run will be compared with a revision, or stores its files.

    Child runs and xdist workers watch no files.
    """
    if CHILD_VARIABLE in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
        return False

    def is_set(name: str) -> bool:
        given = getattr(early_config.known_args_namespace, name, None)
        return bool(given or early_config.getini(name))

    stores = is_set("gpuperf_changed") and is_set("gpuperf_update")
    return stores or is_set("gpuperf_against")


def selects_part(config: pytest.Config) -> bool:
    """Return True if the command line deselects measured tests of its paths."""
    option, usual = config.option, config.getini("addopts")
    chosen = [getattr(option, "keyword", None)]
    if not selects_measured(config):
        chosen.append(getattr(option, "markexpr", None))
    # These options drop tests during collection, without calling a hook.
    chosen += [getattr(option, name, None) for name in ("lf", "testmon")]
    if any(value for value in chosen if value not in usual):
        # A selection that the ini file always makes is not a part.
        return True
    return any("::" in str(arg) for arg in config.args)


# Options that change the output, the place or the end of a run, but not the selected
# tests. The second pattern has the options that take their value from the next
# argument. Both are compiled only if a test measures.
_OF_OUTPUT = (
    r"-[qvslxrWpn]|-o$|(?:-o)?gpuperf_|--(?:quiet|verbose|tb|color|junit-?xml|junit-?prefix|durations|no-header"
    r"|no-summary|show|capture|html|report-log|numprocesses|dist|maxprocesses|cov|no-cov"
    r"|exitfirst|maxfail|basetemp|cache|log-|override-ini=gpuperf|full-trace)"
)
_WITH_VALUE = (
    r"-[rWpn]$|--(?:tb|color|junit-?xml|junit-?prefix|durations|capture|html|report-log"
    r"|numprocesses|dist|maxprocesses|maxfail|basetemp)$"
)


def selecting(config: pytest.Config) -> tuple[str, ...]:
    """
    Return the options and arguments that may select tests.

    They come from `addopts`, PYTEST_ADDOPTS and the command line.
    """
    usual = [*config.getini("addopts")]
    usual += shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    kept: list[str] = []
    is_value = False
    for argument in without_ours([*usual, *process_start(config)["args"]]):
        if is_value:
            is_value = False
        elif re.match(_OF_OUTPUT, argument):
            is_value = re.match(_WITH_VALUE, argument) is not None
        else:
            kept.append(argument)
    return tuple(kept)


def looked_into(config: pytest.Config) -> list[Path] | None:
    """
    Return the files and folders whose tests pytest runs, or None.

    None means that only a part of the tests is selected, or that a path does not exist.
    Paths from `testpaths` in the ini file stand for the whole project.
    """
    if selects_part(config) or getattr(config.option, "stepwise", False):
        return None
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        return [config.rootpath]
    paths = [config.invocation_params.dir / str(arg) for arg in config.args]
    return paths if all(path.exists() for path in paths) else None


def selects_measured(config: pytest.Config) -> bool:
    """Return True if `-m` selects exactly the tests that measure."""
    return str(getattr(config.option, "markexpr", "")).strip() == "gpuperf"


def is_active(config: pytest.Config) -> bool:
    """Return True if any option is set or the default store exists."""
    return is_configured(config) or (config.rootpath / DEFAULT_STORE).is_dir()


# Running pytest sessions of this process. A test may run pytest inside pytest.
_running: list[pytest.Config] = []


def process_start(config: pytest.Config) -> dict[str, Any]:
    """Return how the run was started, as builtins, in any process of the run."""
    from_controller: dict[str, Any] = getattr(config, "workerinput", {}).get(
        WORKER_START, {}
    )
    if from_controller:
        return dict(from_controller["process"])
    return {
        "argv": list(sys.orig_argv),
        "args": [str(arg) for arg in config.invocation_params.args],
        "sys_args": [str(arg) for arg in sys.argv[1:]],
        "executable": sys.executable or "",
        "is_nested": any(other is not config for other in _running),
        "is_interactive": hasattr(sys, "ps1"),
    }


def launcher_in(config: pytest.Config) -> Launcher:
    """Return the launcher that started pytest."""
    from pytest_gpuperf.collect.launcher import ProcessStart, launcher_of

    replays = ini_text(config, "gpuperf_launcher") != ""
    return launcher_of(ProcessStart(**process_start(config)), replays=replays)


def enter(config: pytest.Config) -> None:
    """Register a pytest session of this process until the session ends."""
    _running.append(config)
    config.add_cleanup(lambda: _running.remove(config))


def is_controller(config: pytest.Config) -> bool:
    """Return True if the process is the controller of xdist."""
    distributed = getattr(config.option, "dist", "no") != "no"
    return distributed and not hasattr(config, "workerinput")


def is_child(config: pytest.Config) -> bool:
    """
    Return True if the run measures for a parent run.

    A pytest that a test starts inside a child run is no child.
    """
    return CHILD_TASK in config.stash


def only_shows(config: pytest.Config) -> bool:
    """Return True if pytest only shows tests, fixtures or setups, and runs no test."""
    names = ("setuponly", "collectonly", "showfixtures", "show_fixtures_per_test")
    return any(getattr(config.option, name, False) for name in names)


def writes_reports(config: pytest.Config) -> bool:
    """Return True if the process writes a report file. Workers and child runs never do."""
    started = hasattr(config, "workerinput") or is_child(config)
    if started or only_shows(config):
        return False
    return any(
        config.getoption(name, default=None) not in {None, ""}
        or ini_text(config, name) != ""
        for name in _REPORTS
    )


def masked(text: str) -> str:
    """Return a text without the passwords of its URLs."""
    # Nearly all texts.
    if not any(part in text for part in ("@", "password=", "postgres")):
        return text
    from pytest_gpuperf.model import url

    return url.masked(text)


def without_ours(arguments: Sequence[str]) -> tuple[str, ...]:
    """Remove the options of the plugin from pytest's arguments, and mask credentials."""
    takes_value = {f"--{name}": metavar is not None for name, metavar, _ in _OPTIONS}
    others: list[str] = []
    # True if the argument is the value of the option before it.
    is_value = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if is_value or name in takes_value:
            is_value = not is_value and takes_value[name] and not equals
        else:
            others.append(masked(argument))
    return tuple(others)
