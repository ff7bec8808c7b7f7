"""Read the options of a run into a Config, and collect their mistakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum
    from typing import TypeVar

    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.checkout import Checkout
    from pytest_gpuperf.model.roofline import Bands, DeclaredPeaks
    from pytest_gpuperf.model.shard import Shard

    _T = TypeVar("_T")
    _Word = TypeVar("_Word", bound=Enum)

# Of an index of a job. Kubernetes allows 100,000 pods.
_MOST_DIGITS = 6
# Default limit (docs/judging.md section 2).
_MAX_REGRESSION: float | None = 0.05
# Maximum number of sessions of a test that a store keeps.
_MOST_SESSIONS = 20
_ACROSS = "gpuperf_compare_across"
_READ: pytest.StashKey[Config] = pytest.StashKey()


def config_of(config: pytest.Config) -> Config:
    """
    Return the settings of the run. They are read once.

    Raises:
        pytest.UsageError: Values are wrong. The error lists all of them.
    """
    if _READ not in config.stash:
        config.stash[_READ] = _read(config)
    return config.stash[_READ]


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
    args = options.process_start(config)["args"]
    return any(arg == option or arg.startswith(f"{option}=") for arg in args)


class _OptionReader:
    """Reads the options and collects their mistakes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.mistakes: list[str] = []
        self._variable = config.stash.get(options.NAMED_BY, None)  # The store.
        place = _from_start(config, config.rootpath)
        self.texts = {} if place == "." else {"rootdir": place}
        # Name of the value being read, and base folder of its relative path.
        self._dest, self._folder = "", config.rootpath
        from pytest_gpuperf.config import LauncherUse, parse_word

        self.read("gpuperf_launcher", parse_word(LauncherUse), None)
        launcher = options.launcher_in(config)
        if launcher.shown:
            name = "launcher" if launcher.gap is None else "started_by"
            self.texts[name] = options.masked(launcher.shown)

    def _raw(self, dest: str) -> tuple[str | None, str]:
        """
        Return a value as text, or None if unset, with the option, ini value or variable
        that sets it.
        """
        flag = "--" + dest.replace("_", "-")
        if dest == "gpuperf_baseline":
            flag = self._variable or flag
        value = self.config.getoption(dest, default=None)
        if value is not None:
            self._folder = self.config.invocation_params.dir
            # argparse treats the value "--" as the end of options and returns an empty
            # list.
            return "--" if value == [] else str(value), flag
        self._folder = self.config.rootpath
        text = options.ini_text(self.config, dest)
        return (text, f"ini option {dest}") if text else (None, "")

    def read(self, dest: str, parse: Callable[[str], _T], default: _T) -> _T:
        """
        Return a parsed value, or the default if the value is unset or wrong.

        Mistakes are collected for `finish`.
        """
        text, place = self._raw(dest)
        if text is None:
            return default
        self._dest, self.texts[dest] = dest, options.masked(text)
        try:
            return parse(_not_empty(text, place))
        except ValueError as error:
            reason = str(error)
        except OSError as error:  # The path cannot be accessed.
            reason = f"it cannot be used ({error.strerror}); name another path"
        self.mistakes.append(f"{place}={options.masked(text)}: {reason}")
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
        Return True if a store is named for this run, but measuring is disabled elsewhere.

        The command line or the variable of the store names it. Elsewhere is the ini file
        or PYTEST_ADDOPTS, as opposed to the command line.
        """
        named = self._variable or _is_typed(self.config, "--gpuperf-baseline")
        aside = not _is_typed(self.config, "--gpuperf-disable")
        return self.flag("gpuperf_disable") and bool(named) and aside

    def path(self, text: str) -> str:
        """
        Resolve a path, from the start folder for an option or from the root for an ini
        value.
        """
        path = self._folder / text
        elsewhere = self._folder != self.config.invocation_params.dir
        if elsewhere and not Path(text).is_absolute():
            # Commands with this path are typed in the start folder.
            self.texts[self._dest] = options.masked(_from_start(self.config, path))
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
        folder = self.config.rootpath / options.DEFAULT_STORE
        found = str(folder) if named is None and folder.is_dir() else None
        return {
            "baseline": named or found,
            "baseline_named": named is not None,
            "baseline_variable": self._variable,
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

        count = os.environ.get(options.SHARD_COUNT, "")
        index = os.environ.get("JOB_COMPLETION_INDEX", "")
        if not (count and index.isdecimal() and len(index) < _MOST_DIGITS):
            return
        if Shard.read(f"{int(index) + 1}/{count}") is None:
            self.mistakes.append(
                f"{options.SHARD_COUNT}={options.masked(count)}: the job has the index {index}, counted "
                f"from 0; set {options.SHARD_COUNT} to the number of its completions"
            )

    def _store(self, text: str) -> str:
        if "://" in text:
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
        path = Path(self.path(text.partition("::")[0]))
        if path.suffix == ".py":
            message = "a test file; the option takes a value: a folder or a .json file"
            raise ValueError(message)
        from pytest_gpuperf.model.url import before_project, database_url

        url = database_url(text)
        if url is not None and not path.is_dir():
            message = f"the place of a database; write {options.masked(url)}"
            raise ValueError(message)
        before = "" if path.exists() else before_project(text)
        if before:
            message = f"only databases have projects; write {before}"
            raise ValueError(message)
        if path.is_file() and path.suffix.lower() != ".json":
            raise ValueError(_no_store(path))
        return self.path(text)

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


def _no_store(path: Path) -> str:
    """Return the message about a file that is no store, with its kind if that is known."""
    from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign

    try:
        with path.open("rb") as file:
            known = foreign(file.read(FOREIGN_BYTES))
    except OSError:
        known = None
    if known is None:
        return "a file without the .json suffix; name a folder or a .json file"
    return f"{known.message}; name a store that --gpuperf-update has written"


def _not_empty(text: str, place: str) -> str:
    """Return a value, or raise ValueError if it is empty, as from an unset variable."""
    if not text.strip():
        drop = "unset it" if place == options.STORE_VARIABLE else "drop the option"
        message = f"the value is empty; {drop}, or give it a value"
        raise ValueError(message)
    return text


def _peaks(text: str) -> DeclaredPeaks:
    from pytest_gpuperf.model.roofline import parse_peaks

    return _parsed(parse_peaks, text)


def _grades(text: str) -> Mapping[str, Bands]:
    from pytest_gpuperf.judge.grade import parse_grades

    return _parsed(parse_grades, text)


def _parsed(parse: Callable[[str], _T], text: str) -> _T:
    from pytest_gpuperf.errors import ConfigError

    try:
        return parse(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
