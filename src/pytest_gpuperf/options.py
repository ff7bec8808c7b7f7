"""Read the command line and the ini file into a Config. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from enum import Enum
    from typing import TypeVar

    from pytest_gpuperf.collect.launcher import Launcher
    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.collect.session import Revision
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.checkout import Checkout
    from pytest_gpuperf.model.roofline import Bands, DeclaredPeaks
    from pytest_gpuperf.model.shard import Shard

    _T = TypeVar("_T")
    _Word = TypeVar("_Word", bound=Enum)

# Environment variable with the path of a child run's task file.
CHILD_VARIABLE = "PYTEST_GPUPERF_CHILD"
# Environment variable with the number of shards in a job of Kubernetes.
SHARD_COUNT = "GPUPERF_SHARDS"
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


class _Option(NamedTuple):
    """One option: name without dashes, metavar, help text."""

    name: str
    metavar: str | None  # None for a flag.
    text: str


# Literals only, because every start of pytest declares these options, used or not.
_OPTIONS = (
    _Option(
        "gpuperf-baseline",
        "PATH",
        "compare with this store: a folder, a .json file, a URL",
    ),
    _Option(
        "gpuperf-baseline-fallback",
        "PATH",
        "compare with this snapshot while the server is away",
    ),
    _Option("gpuperf-update", "WHAT", "store what was measured: new, improved or all"),
    _Option(
        "gpuperf-max-regression", "PERCENT", "largest increase of time (5 %), or off"
    ),
    _Option("gpuperf-min-judged", "PERCENT", "fail when fewer tests were judged"),
    _Option("gpuperf-strict", None, "fail what could not be measured or decided"),
    _Option("gpuperf-compare-across", "FACTS", "compare although these facts differ"),
    _Option("gpuperf-shard", "I/N", "this run is shard I of N; selects no tests"),
    _Option("gpuperf-run-id", "TEXT", "name of the run, the same in all of its shards"),
    _Option("gpuperf-confirm", "N", "fresh processes that confirm suspects (5)"),
    _Option(
        "gpuperf-confirm-by",
        "HOW",
        "suspects are decided by: fresh processes, against (their stored commit), auto",
    ),
    _Option(
        "gpuperf-against",
        "REV",
        "compare with this revision, interleaved, on this machine",
    ),
    _Option(
        "gpuperf-against-tests",
        "WHOSE",
        "tests changed since the revision: skip (same), or run today's on both sides (mine)",
    ),
    _Option(
        "gpuperf-changed",
        None,
        "measure tests that use a file changed since their stored session",
    ),
    _Option(
        "gpuperf-budget", "TIME", "time limit of a comparison with a revision (10min)"
    ),
    _Option("gpuperf-runs", "N", "processes that measure every test (1)"),
    _Option("gpuperf-disable", None, "run bodies unmeasured"),
    _Option("gpuperf-collectors", "LIST", "auto, or: cupti, events, host, ncu, nvml…"),
    _Option(
        "gpuperf-chip", "CHIP", "check counter names for this chip: GH100, sm_90; off"
    ),
    _Option(
        "gpuperf-ncu-replay", "HOW", "ncu repeats a kernel, the application or a range"
    ),
    _Option("gpuperf-ncu-clocks", "HOW", "ncu leaves clocks alone (none), or base"),
    _Option("gpuperf-sort", "COLUMN", "sort the table: name, time, change, min, mean…"),
    _Option("gpuperf-columns", "LIST", "columns of the table: time, min, mean, ops…"),
    _Option(
        "gpuperf-time-unit", "UNIT", "unit of the table's times: ns, us, ms, s or auto"
    ),
    _Option("gpuperf-record", "DIR", "keep every reading of this run"),
    _Option("gpuperf-replay", "DIR", "judge a kept run; nothing is measured"),
    _Option("gpuperf-json", "FILE", "write the run as JSON; into a pipe: /dev/stderr"),
    _Option("gpuperf-html", "FILE", "write the run as one HTML page"),
    _Option("gpuperf-markdown", "FILE", "write the run as Markdown, for a comment"),
    _Option("gpuperf-csv", "FILE", "write a row for each test and metric"),
    _Option("gpuperf-annotations", None, "print failures as a GitHub job reads them"),
    _Option("gpuperf-junit-properties", None, "put values and verdicts into JUnit XML"),
    _Option("gpuperf-device", "GPU", "measure this GPU: an index, or a UUID"),
    _Option(
        "gpuperf-lock", "HOW", "how processes share the GPU: exclusive, shared or off"
    ),
    _Option(
        "gpuperf-telemetry", "HZ", "sampling rate of the GPU's sensors [Hz], or off"
    ),
)

_ACROSS = "gpuperf_compare_across"
# Of an index of a job. Kubernetes allows 100,000 pods.
_MOST_DIGITS = 6
# Default limit (docs/judging.md section 2).
_MAX_REGRESSION: float | None = 0.05
# Maximum number of sessions of a test that a store keeps.
_MOST_SESSIONS = 20

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
        "fresh processes in which a run that stores measures tests alone (1)",
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
    ("gpuperf_grades", "least shares of grades, as memory: A 85%, B 70%, C 50%, D 25%"),
)

_DEFAULT_STORE = ".gpuperf"
_REPORTS = ("gpuperf_json", "gpuperf_html", "gpuperf_markdown", "gpuperf_csv")


def declare(parser: pytest.Parser) -> None:
    """Declare every option on the command line and as an ini value."""
    group = parser.getgroup("gpuperf", "GPU performance (pytest-gpuperf)")
    for option in _OPTIONS:
        dest = _dest(option)
        # argparse formats help texts, addini does not.
        text = option.text.replace("%", "%%")
        is_flag = option.metavar is None
        how = {"action": "store_true"} if is_flag else {"metavar": option.metavar}
        # The default is None instead of False, so that an absent flag does not hide the
        # ini value.
        group.addoption(f"--{option.name}", dest=dest, default=None, help=text, **how)
        kind: Any = "bool" if is_flag else _TEXT
        parser.addini(dest, f"{option.text} (--{option.name})", type=kind, default=None)
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
    mistakes = [_unknown_name(name) for name in ours]
    remedies = dict.fromkeys(_names(), "it in quotes")
    remedies |= {_dest(o): "true or false" for o in _OPTIONS if o.metavar is None}
    remedies |= {name: 'a list, as ["..."]' for name, _ in _INI_LISTS}
    for name, remedy in remedies.items():
        try:
            config.getini(name)
        except (TypeError, ValueError, pytest.UsageError) as error:
            mistakes.append(f"{name}: {error}; write {remedy}")
    if mistakes:
        raise pytest.UsageError("\n".join(f"gpuperf: ini option {m}" for m in mistakes))


def _unknown_name(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _names(), n=1, cutoff=0.8)
    remedy = f"did you mean {close[0]}" if close else "pytest --help lists them"
    return f"{name} is not an option of pytest-gpuperf; {remedy}"


def is_configured(config: pytest.Config) -> bool:
    """Return True if any option is set, on the command line or in the ini file."""
    return any(_is_set(config, name) for name in _names())


def _names() -> list[str]:
    return [
        *map(_dest, _OPTIONS),
        *(name for name, _ in (*_INI, *_INI_LISTS)),
    ]


def _dest(option: _Option) -> str:
    return option.name.replace("-", "_")


def _is_set(config: pytest.Config, name: str) -> bool:
    given = config.getoption(name, default=None) is not None
    return given or _ini_text(config, name) != ""


def _ini_text(config: pytest.Config, name: str) -> str:
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
    store = _ini_text(config, "gpuperf_baseline")
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
    return is_configured(config) or (config.rootpath / _DEFAULT_STORE).is_dir()


def config_of(config: pytest.Config) -> Config:
    """Return the settings of the run. They are read once, by `_read`."""
    read: Config | None = getattr(config, _READ, None)
    if read is None:
        read = _read(config)
        setattr(config, _READ, read)
    return read


# Running pytest sessions of this process. A test may run pytest inside pytest.
_running: list[pytest.Config] = []
# An attribute, because a StashKey[Config] would import Config at plugin start.
_READ = "_gpuperf_config"


def _read(config: pytest.Config) -> Config:
    """
    Read the settings of the run. The command line wins over the ini file.

    Raises:
        pytest.UsageError: Values are wrong. The error lists all of them.
    """
    from pytest_gpuperf import config as texts

    reader, usual = _OptionReader(config), texts.USUAL_COLUMNS
    count = texts.parse_count
    of_a_day = count(1, texts.DAY_S)
    read = texts.Config(
        root=str(config.rootpath),
        **reader.stores(),
        update=reader.read("gpuperf_update", texts.parse_word(texts.Update), None),
        ratchet=reader.word("gpuperf_ratchet", texts.Ratchet.OFF),
        sessions=reader.read("gpuperf_sessions", count(1, _MOST_SESSIONS), 5),
        alone=reader.read("gpuperf_alone", count(0), 1),
        max_regression=reader.read(
            "gpuperf_max_regression", texts.parse_regression, _MAX_REGRESSION
        ),
        min_judged=reader.read("gpuperf_min_judged", texts.parse_share, None),
        strict=reader.flag("gpuperf_strict"),
        compare_across=reader.read(_ACROSS, texts.parse_facts, frozenset()),
        shard=reader.shard(),
        run_id=reader.read("gpuperf_run_id", texts.parse_run_id, None),
        confirm=reader.read("gpuperf_confirm", count(0), 5),
        runs=reader.read("gpuperf_runs", count(1), 1),
        confirm_by=reader.word("gpuperf_confirm_by", texts.ConfirmBy.FRESH),
        against=reader.read("gpuperf_against", texts.parse_revision, None),
        against_tests=reader.word("gpuperf_against_tests", texts.AgainstTests.SAME),
        changed=reader.flag("gpuperf_changed"),
        build_command=reader.read("gpuperf_build_command", str.strip, None),
        carry=reader.read("gpuperf_carry", texts.parse_carry, ()),
        budget_s=reader.read("gpuperf_budget", texts.parse_duration, 600.0),
        jit_cache=reader.word("gpuperf_jit_cache", texts.JitCache.FRESH),
        ncu_replay=reader.word("gpuperf_ncu_replay", texts.NcuReplay.KERNEL),
        ncu_clocks=reader.word("gpuperf_ncu_clocks", texts.NcuClocks.NONE),
        ncu_timeout_s=reader.read("gpuperf_ncu_timeout", of_a_day, None),
        disable=reader.flag("gpuperf_disable"),
        disabled_aside=reader.is_disabled_aside(),
        collectors=reader.read("gpuperf_collectors", texts.parse_collectors, ()),
        chip=reader.read("gpuperf_chip", str.strip, None),
        sort=reader.read("gpuperf_sort", texts.parse_sort, None),
        columns=reader.read("gpuperf_columns", texts.parse_columns, usual),
        time_unit=reader.read("gpuperf_time_unit", texts.parse_time_unit, None),
        record=reader.read("gpuperf_record", reader.path, None),
        replay=reader.read("gpuperf_replay", reader.existing_folder, None),
        json=reader.read("gpuperf_json", reader.writable_file, None),
        html=reader.read("gpuperf_html", reader.html_file, None),
        markdown=reader.read("gpuperf_markdown", reader.writable_file, None),
        csv=reader.read("gpuperf_csv", reader.writable_file, None),
        annotations=reader.flag("gpuperf_annotations"),
        junit_properties=reader.flag("gpuperf_junit_properties"),
        device=reader.read("gpuperf_device", reader.device, None),
        lock=reader.word("gpuperf_lock", texts.Lock.EXCLUSIVE),
        lock_timeout_s=reader.read("gpuperf_lock_timeout", of_a_day, 600.0),
        telemetry=reader.read("gpuperf_telemetry", texts.parse_hertz, None),
        peaks=reader.read("gpuperf_peaks", _peaks, {}),
        grades=reader.read("gpuperf_grades", _grades, {}),
        option_texts=reader.texts,
        checkout=_checkout(config),
    )
    reader.finish(read)
    return read


def _is_typed(config: pytest.Config, option: str) -> bool:
    """Return True if an option is on the command line itself, not in PYTEST_ADDOPTS."""
    args = process_start(config)["args"]
    return any(arg == option or arg.startswith(f"{option}=") for arg in args)


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

    replays = _ini_text(config, "gpuperf_launcher") != ""
    return launcher_of(ProcessStart(**process_start(config)), replays=replays)


def enter(config: pytest.Config) -> None:
    """Register a pytest session of this process until the session ends."""
    _running.append(config)
    config.add_cleanup(lambda: _running.remove(config))


class _OptionReader:
    """Reads the options and collects their mistakes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.mistakes: list[str] = []
        place = _from_start(config, config.rootpath)
        self.texts = {} if place == "." else {"rootdir": place}
        # Name of the value being read, and base folder of its relative path.
        self._dest, self._folder = "", config.rootpath
        from pytest_gpuperf.config import LauncherUse, parse_word

        self.read("gpuperf_launcher", parse_word(LauncherUse), None)
        launcher = launcher_in(config)
        if launcher.shown:
            name = "launcher" if launcher.gap is None else "started_by"
            self.texts[name] = masked(launcher.shown)

    def _raw(self, dest: str) -> tuple[str | None, str]:
        """
        Return a value as text, or None if unset, with the option or ini value that sets
        it.
        """
        flag = "--" + dest.replace("_", "-")
        value = self.config.getoption(dest, default=None)
        if value is not None:
            self._folder = self.config.invocation_params.dir
            # argparse treats the value "--" as the end of options and returns an empty
            # list.
            return "--" if value == [] else str(value), flag
        self._folder = self.config.rootpath
        text = _ini_text(self.config, dest)
        return (text, f"ini option {dest}") if text else (None, "")

    def read(self, dest: str, parse: Callable[[str], _T], default: _T) -> _T:
        """
        Return a parsed value, or the default if the value is unset or wrong.

        Mistakes are collected for `finish`.
        """
        text, place = self._raw(dest)
        if text is None:
            return default
        self._dest, self.texts[dest] = dest, masked(text)
        try:
            return parse(_not_empty(text))
        except ValueError as error:
            reason = str(error)
        except OSError as error:  # The path cannot be accessed.
            reason = f"it cannot be used ({error.strerror}); name another path"
        self.mistakes.append(f"{place}={masked(text)}: {reason}")
        return default

    def word(self, dest: str, default: _Word) -> _Word:
        """Return a value of an Enum. The default determines the Enum."""
        from pytest_gpuperf.config import parse_word

        return self.read(dest, parse_word(type(default)), default)

    def flag(self, dest: str) -> bool:
        """Return True if a flag is set."""
        text, _ = self._raw(dest)
        if text == "True":
            self.texts[dest] = "true"
        return text == "True"

    def is_disabled_aside(self) -> bool:
        """
        Return True if a store is typed, but measuring is disabled elsewhere.

        Elsewhere is the ini file or PYTEST_ADDOPTS, as opposed to the command line.
        """
        return (
            self.flag("gpuperf_disable")
            and _is_typed(self.config, "--gpuperf-baseline")
            and not _is_typed(self.config, "--gpuperf-disable")
        )

    def path(self, text: str) -> str:
        """
        Resolve a path, from the start folder for an option or from the root for an ini
        value.
        """
        path = self._folder / text
        elsewhere = self._folder != self.config.invocation_params.dir
        if elsewhere and not Path(text).is_absolute():
            # Commands with this path are typed in the start folder.
            self.texts[self._dest] = masked(_from_start(self.config, path))
        return str(path)

    def existing_folder(self, text: str) -> str:
        """Return the path of an existing folder."""
        path = self.path(text)
        if not Path(path).is_dir():
            message = "the folder does not exist; record one with --gpuperf-record"
            raise ValueError(message)
        return path

    def writable_file(self, text: str) -> str:
        """Return the path of a file that can be created, or "-" for standard output."""
        if text == "-":
            return text
        path = self.path(text)
        if Path(path).is_dir():
            message = "the path is a folder; name a file"
            raise ValueError(message)
        if not Path(path).parent.is_dir():
            message = "its folder does not exist; create it first"
            raise ValueError(message)
        return path

    def html_file(self, text: str) -> str:
        """Return the path of a file that can be created, after checking for Jinja2."""
        from importlib.util import find_spec

        path = self.writable_file(text)
        if find_spec("jinja2") is None:
            message = "Jinja2 is not installed; pip install 'pytest-gpuperf[html]'"
            raise ValueError(message)
        return path

    def device(self, text: str) -> str:
        """Return a GPU that exists and is visible to CUDA. A replay accepts any GPU."""
        from pytest_gpuperf.collect.devices import choose_device, query_devices
        from pytest_gpuperf.config import parse_device
        from pytest_gpuperf.errors import ConfigError

        device = parse_device(text)
        if self._raw("gpuperf_replay")[0] is None:
            try:
                choose_device(query_devices(), device, os.environ)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return device

    def stores(self) -> dict[str, Any]:
        """Return the fields of the store, and of the store that stands in for it."""
        named = self.read("gpuperf_baseline", self._store, None)
        folder = self.config.rootpath / _DEFAULT_STORE
        found = str(folder) if named is None and folder.is_dir() else None
        return {
            "baseline": named or found,
            "baseline_named": named is not None,
            "baseline_fallback": self.read(
                "gpuperf_baseline_fallback", self._store, None
            ),
        }

    def shard(self) -> Shard | None:
        """Return the shard that our option or those of pytest-split name, or None."""
        from pytest_gpuperf.config import parse_shard
        from pytest_gpuperf.model.shard import Shard

        named: Shard | None = self.read("gpuperf_shard", parse_shard, None)
        group, splits = (self.config.getoption(n, None) for n in ("group", "splits"))
        split = Shard.of(group, splits)
        if named and split and named != split:
            self.mistakes.append(
                f"--gpuperf-shard={named}: pytest-split runs group {group} of {splits}; "
                "drop --gpuperf-shard"
            )
        if named is None:
            self._check_shard_count()
        return named or split

    def _check_shard_count(self) -> None:
        """Check the number of shards in a job of Kubernetes, where only we have it."""
        from pytest_gpuperf.model.shard import Shard

        count = os.environ.get(SHARD_COUNT, "")
        index = os.environ.get("JOB_COMPLETION_INDEX", "")
        if not (count and index.isdecimal() and len(index) < _MOST_DIGITS):
            return
        if Shard.read(f"{int(index) + 1}/{count}") is None:
            self.mistakes.append(
                f"{SHARD_COUNT}={masked(count)}: the job has the index {index}, counted "
                f"from 0; set {SHARD_COUNT} to the number of its completions"
            )

    def _store(self, text: str) -> str:
        if "://" in text:
            return self._url(text)
        path = Path(self.path(text.partition("::")[0]))
        if path.suffix == ".py":
            message = "a test file; the option takes a value: a folder or a .json file"
            raise ValueError(message)
        from pytest_gpuperf.model.url import before_project, sqlite_url

        before = "" if path.exists() else before_project(text)
        if before:
            message = f"only databases have projects; write {before}"
            raise ValueError(message)
        url = sqlite_url(text)
        if url is not None and not path.is_dir():
            message = f"the file of a database; write {url}"
            raise ValueError(message)
        if path.is_file() and path.suffix.lower() != ".json":
            message = "a file without the .json suffix; name a folder or a .json file"
            raise ValueError(message)
        return self.path(text)

    def _url(self, text: str) -> str:
        """Return the URL of a store. A relative file is resolved as a path is."""
        from pytest_gpuperf.model.url import sqlite_file

        start, root = self.config.invocation_params.dir, self.config.rootpath
        file = sqlite_file(text)
        # A store resolves a relative file against the root, as do we for most runs.
        if start == root or file is None or Path(file).expanduser().is_absolute():
            return text
        path = self._folder / file
        if self._folder != start:
            self.texts[self._dest] = f"sqlite:///{_from_start(self.config, path)}"
        return f"sqlite:///{path.as_posix()}"

    def finish(self, read: Config) -> None:
        """Check for conflicting options, and raise all mistakes as one error."""
        if read.record and read.replay:
            self.mistakes.append(
                "--gpuperf-record and --gpuperf-replay exclude each other: "
                "drop one of them"
            )
        if read.collectors and not read.replay:
            from pytest_gpuperf.collect.registry import refusals

            self.mistakes += refusals(read.collectors)
        if read.against is not None and (read.replay or read.disable):
            option = "--gpuperf-replay" if read.replay else "--gpuperf-disable"
            self.mistakes.append(
                f"--gpuperf-against measures, and {option} does not: drop one of them"
            )
        if read.disable and (read.update or read.record):
            self.mistakes.append(
                "--gpuperf-disable measures nothing to store or record: drop it, or "
                "drop --gpuperf-update and --gpuperf-record"
            )
        writers: dict[str, list[str]] = {}
        for form in ("json", "html", "markdown", "csv"):
            path = getattr(read, form)
            if path not in {None, os.devnull}:
                place = os.path.realpath(path)
                writers.setdefault(place, []).append(f"--gpuperf-{form}")
        self.mistakes += [
            f"{' and '.join(options)} name one file: give each report its own"
            for options in writers.values()
            if len(options) > 1
        ]
        if self.mistakes:
            raise pytest.UsageError("\n".join(f"gpuperf: {m}" for m in self.mistakes))


def _checkout(config: pytest.Config) -> Checkout:
    from pytest_gpuperf.collect.checkout import checkout_of

    start = config.invocation_params.dir
    paths = [start / str(arg).partition("::")[0] for arg in config.args]
    tests = [path for path in paths if path.exists()]  # The others are package names.
    return checkout_of(config.rootpath, start, tests)


def _from_start(config: pytest.Config, path: Path) -> str:
    try:
        return os.path.relpath(path, config.invocation_params.dir)
    except ValueError:  # The path is on another drive.
        return str(path)


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
        or _ini_text(config, name) != ""
        for name in _REPORTS
    )


def masked(text: str) -> str:
    """Return a text without the passwords of its URLs."""
    if "@" not in text and "password=" not in text:  # Nearly all texts.
        return text
    from pytest_gpuperf.model import url

    return url.masked(text)


def without_ours(arguments: Sequence[str]) -> tuple[str, ...]:
    """Remove the options of the plugin from pytest's arguments, and mask credentials."""
    takes_value = {
        f"--{option.name}": option.metavar is not None for option in _OPTIONS
    }
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


def _not_empty(text: str) -> str:
    """Return a value, or raise ValueError if it is empty, as from an unset variable."""
    if not text.strip():
        message = "the value is empty; drop the option, or give it a value"
        raise ValueError(message)
    return text


def _peaks(text: str) -> DeclaredPeaks:
    from pytest_gpuperf.model.roofline import parse_peaks

    return _parsed(parse_peaks, text)


def _grades(text: str) -> Mapping[str, Bands]:
    from pytest_gpuperf.judge.grade import parse_grades

    return _parsed(parse_grades, text)


def _parsed(parse: Callable[[str], _T], text: str) -> _T:
    """Return a parsed value. A ConfigError is raised as a ValueError."""
    from pytest_gpuperf.errors import ConfigError

    try:
        return parse(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
