"""The settings of a run and the plan of a test, without pytest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, SupportsFloat, TypeGuard, TypeVar

from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model.checkout import Checkout
from pytest_gpuperf.model.environment import HARD_FACTS
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, has_lone_surrogate
from pytest_gpuperf.model.quantity import parse_quantity
from pytest_gpuperf.model.sample import COLLECTORS, CacheMode
from pytest_gpuperf.model.shard import Shard

if TYPE_CHECKING:
    from pytest_gpuperf.model.roofline import Bands, DeclaredPeaks
    from pytest_gpuperf.model.verdict import Limit
    from pytest_gpuperf.model.work import Work

_METRIC = attrgetter("metric")
_Word = TypeVar("_Word", bound=Enum)

_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
# A longer name is a mistake, such as the content of a file. Sessions store it.
_LONGEST_RUN_ID = 200
# A longer timeout makes no sense.
DAY_S = 86_400
# Limit of collect.nvml_sampler. At higher rates, sensors repeat their values.
_HIGHEST_HZ = 100.0


class Update(str, Enum):
    """What --gpuperf-update stores."""

    NEW = "new"
    IMPROVED = "improved"
    ALL = "all"


class JitCache(str, Enum):
    """Compilation caches of confirming processes."""

    FRESH = "fresh"
    KEEP = "keep"


class LauncherUse(str, Enum):
    """How fresh processes use a script that has started pytest."""

    REPLAY = "replay"


class Ratchet(str, Enum):
    """Whether an improvement that is not stored fails its test."""

    OFF = "off"
    ON = "on"


class AgainstTests(str, Enum):
    """Version of a test's source that both sides of --gpuperf-against run."""

    SAME = "same"  # A test whose source differs is not compared.
    MINE = "mine"  # Both sides run the source of the working tree.


class ConfirmBy(str, Enum):
    """How suspects against a stored baseline are decided."""

    FRESH = "fresh"  # By fresh processes of the working tree.
    AGAINST = "against"  # By alternating the working tree and the stored commit.
    AUTO = "auto"  # Like AGAINST where that is possible.


class Lock(str, Enum):
    """How processes that measure share a GPU."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    OFF = "off"


class NcuReplay(str, Enum):
    """How Nsight Compute replays kernels, by its own names."""

    KERNEL = "kernel"
    APPLICATION = "application"
    RANGE = "range"


class NcuClocks(str, Enum):
    """How Nsight Compute treats clocks while it counts, by its own names."""

    NONE = "none"
    BASE = "base"


# Columns of the table: the default columns, and the statistics of samples that
# pytest-benchmark shows.
USUAL_COLUMNS = (
    *(
        "time",
        "spread",
        "baseline",
        "revision",
        "verdict",
        "roofline",
        "grade",
        "bound",
    ),
)
STATISTICS = (
    *("min", "max", "mean", "stddev", "median", "iqr", "outliers", "ops", "rounds"),
    "iterations",
)
COLUMNS = (*USUAL_COLUMNS, *STATISTICS)
SORTS = (
    *("name", "fullname", "time", "change", "verdict"),
    *(name for name in STATISTICS if name != "outliers"),
)
TIME_UNITS = ("auto", "ns", "us", "ms", "s")


class Config(Frozen, frozen=True, kw_only=True):
    """
    The options of one run, read from the command line, the ini file and defaults.

    Attributes:
        root: The project's root folder.

        baseline: The store to compare with, or None.

        baseline_fallback: The store to compare with while the named server is away, or
            None.

        baseline_variable: The environment variable that names the store, or None.

        baseline_named: Whether an option names the store. A default store only shows
            changes.

        update: The values to store, or None to store nothing.

        ratchet: Whether a confirmed improvement fails its test until it is stored.

        sessions: Stored sessions of a series up to which `new` adds a session, >= 1.

        alone: Fresh processes in which a run that stores measures tests alone, >= 0.

        max_regression: Largest increase of `time` that passes [fraction]. With None,
            changes are only shown.

        min_judged: Share of the tests that must be judged [fraction], or None for any.

        strict: Whether unmeasured and undecided tests fail.

        compare_across: Hard facts that may differ.

        shard: The part of the run's tests that an option names, or None.

        run_id: The name of the run, or None for that of the CI system or scheduler.

        confirm: Fresh processes that confirm suspects, >= 0.

        runs: Processes that measure every test, >= 1.

        confirm_by: How suspects are decided.

        against: The revision to compare the working tree with, or None.

        against_tests: Version of a test's source that both sides run.

        changed: Whether only tests are measured that use a file that has changed since a
            stored session.

        build_command: Command that builds a side, run in its folder. With None, the
            package's own build runs if it needs a build.

        carry: Files that git ignores and the other side needs, as patterns relative to
            the root of the repository.

        budget_s: Time limit of the comparison with a revision [s], > 0.

        jit_cache: Whether each confirming process has fresh compilation and autotuning
            caches, so that kernels are chosen again.

        ncu_replay: How ncu replays kernels.

        ncu_clocks: How ncu treats clocks while it counts.

        ncu_timeout_s: Timeout of counting under ncu [s], > 0. With None, it is computed
            from the number of tests and passes.

        disable: Whether test bodies run unmeasured.

        disabled_aside: Whether PYTEST_ADDOPTS or the ini file disables measuring
            although the command line names a store.

        collectors: The requested collectors, or empty for the best available ones.

        chip: The chip for which counter names are checked at collection, "off" for no
            check, or None for the chip of this machine's GPU.

        record: The folder for readings, or None to record nothing.

        replay: The recording to judge again, or None to measure.

        json: The JSON file to write, or None.

        html: The HTML report to write, or None.

        markdown: The Markdown report to write, or None.

        csv: The CSV file to write, or None.

        columns: The columns of the table, in order.

        sort: The sort key of the rows, or None for the order of the tests.

        time_unit: The unit of times in the table, or None to choose a unit for each
            time.

        annotations: Whether failures are printed as commands of a GitHub runner.

        junit_properties: Whether JUnit gets values and verdicts as properties.

        device: The GPU to measure, by its index or the beginning of its UUID. With
            None, it is the first GPU visible to CUDA.

        lock: How the process shares the GPU with other runs.

        lock_timeout_s: Time to wait for a test that holds the GPU [s], > 0.

        telemetry: Sampling rate of the sensors of the GPU in use [Hz], > 0 and <= 100,
            or None for no sampling.

        option_texts: The options that were set, as text with credentials masked. Also
            `rootdir`, relative to the folder in which pytest was started, if the two
            differ, and `launcher`, the program that starts pytest, or `started_by` if
            that program is not run again.

        peaks: Declared peaks by device and field [B/s or FLOP/s].

        grades: Lower bounds of grades by roof. Absent roofs have the plugin's defaults.

        checkout: The folder of the project. Keys of tests are relative to it.
    """

    root: str
    baseline: str | None = None
    baseline_named: bool = False
    baseline_variable: str | None = None
    baseline_fallback: str | None = None
    update: Update | None = None
    ratchet: Ratchet = Ratchet.OFF
    sessions: int = 5
    alone: int = 1
    max_regression: float | None = 0.05
    min_judged: float | None = None
    strict: bool = False
    compare_across: frozenset[str] = frozenset()
    shard: Shard | None = None
    run_id: str | None = None
    confirm: int = 5
    runs: int = 1
    confirm_by: ConfirmBy = ConfirmBy.FRESH
    against: str | None = None
    against_tests: AgainstTests = AgainstTests.SAME
    changed: bool = False
    build_command: str | None = None
    carry: tuple[str, ...] = ()
    budget_s: float = 600.0
    jit_cache: JitCache = JitCache.FRESH
    ncu_replay: NcuReplay = NcuReplay.KERNEL
    ncu_clocks: NcuClocks = NcuClocks.NONE
    ncu_timeout_s: float | None = None
    disable: bool = False
    disabled_aside: bool = False
    collectors: tuple[str, ...] = ()
    chip: str | None = None
    record: str | None = None
    replay: str | None = None
    json: str | None = None
    html: str | None = None
    markdown: str | None = None
    csv: str | None = None
    columns: tuple[str, ...] = USUAL_COLUMNS
    sort: str | None = None
    time_unit: str | None = None
    annotations: bool = False
    junit_properties: bool = False
    device: str | None = None
    lock: Lock = Lock.EXCLUSIVE
    lock_timeout_s: float = 600.0
    telemetry: float | None = None
    option_texts: Mapping[str, str] = {}
    peaks: DeclaredPeaks = MappingProxyType({})
    grades: Mapping[str, Bands] = {}
    checkout: Checkout = Checkout(root="")

    @property
    def junit_waits(self) -> bool:
        """True if JUnit gets verdicts on changes, known only at the end of the run."""
        return self.junit_properties and (
            self.baseline is not None or self.update is not None
        )

    @property
    def needs_references(self) -> bool:
        """True if reference workloads are compared, stored or written to a file."""
        uses = (self.baseline, self.update, self.against, self.json, self.record)
        return any(use is not None for use in uses)

    @property
    def confirms_better(self) -> bool:
        """True if improvements are confirmed, because they are stored, or fail their tests."""
        return self.fails_better or self.update in {Update.IMPROVED, Update.ALL}

    @property
    def fails_better(self) -> bool:
        """True if an improvement that is not stored fails its test."""
        stores = self.update in {Update.IMPROVED, Update.ALL}
        return self.ratchet is Ratchet.ON and self.baseline_named and not stores

    @property
    def names_limit(self) -> bool:
        """True if an option or the ini file sets `max_regression`."""
        return "gpuperf_max_regression" in self.option_texts

    @property
    def shows_samples(self) -> bool:
        """True if the table shows statistics of samples other than the median."""
        return not frozenset(STATISTICS).isdisjoint((*self.columns, self.sort))

    @property
    def reports(self) -> Mapping[str, str]:
        """Requested report files by format. The path "-" is standard output."""
        paths = {
            "json": self.json,
            "html": self.html,
            "markdown": self.markdown,
            "csv": self.csv,
        }
        return {form: path for form, path in paths.items() if path is not None}


class Plan(BulkRecord, frozen=True, kw_only=True):
    """
    The requests of a test's markers, merged.

    Attributes:
        limits: Bounds on metrics of the test.

        max_regression: Largest change by metric [fraction]. With None as a value, a
            change is only shown. If empty, the run's setting applies to `time`.

        min_grade: The lowest grade that passes, or None for any.

        counters: Hardware counters that the test reads.

        work: The work of one call, unless the test declares it.

        group: A heading in reports.

        cache: COLD or WARM, or None for the default of the measuring method.

        iterations: A fixed number of samples, or None to sample until the interval is
            narrow enough.

        requires: Requirements that must be available before the body runs.

        uses_fixture: Whether the test takes the fixture. Without the fixture, its call
            is one range.

        accept: Codes of doubts about the work of its calls that are accepted.

        make: Returns new arguments from a seed, or None.

        reference: Returns the right result for the same arguments, or None.
    """

    limits: tuple[Limit, ...] = ()
    max_regression: Mapping[str, float | None] = {}
    min_grade: str | None = None
    counters: tuple[str, ...] = ()
    work: Work | None = None
    group: str | None = None
    cache: CacheMode | None = None
    iterations: int | None = None
    requires: tuple[str, ...] = ()
    uses_fixture: bool = True
    accept: tuple[str, ...] = ()
    make: Callable[[int], object] | None = None
    reference: Callable[..., object] | None = None

    @property
    def judged(self) -> tuple[str, ...]:
        """Metrics that decide about the test, without repetition."""
        limited = map(_METRIC, self.limits)
        return tuple(dict.fromkeys((*limited, *self.max_regression)))


def _parse_percent(text: str) -> float:
    """Return "5 %" as 0.05. The percent sign is required."""
    if re.fullmatch(f"{_NUMBER}%\\s*", text) is None:
        message = "write a percentage, as 5%"
        raise ValueError(message)
    return parse_quantity(text).value


def parse_share(text: str) -> float:
    """Return a percentage of all tests. The percent sign may be left out from 1 on."""
    is_bare = re.fullmatch(r"\s*[1-9]\d*\s*", text) is not None
    share = _parse_percent(f"{text.strip()}%" if is_bare else text)
    if share > 1:
        message = "a share of the tests is at most 100%"
        raise ValueError(message)
    return share


def parse_regression(text: str) -> float | None:
    """Return a percentage, or None for "off"."""
    if text.strip() == "off":
        return None
    try:
        return _parse_percent(text)
    except ValueError:
        message = "write a percentage of 0 or more, as 5%, or off"
        raise ValueError(message) from None


def parse_shard(text: str) -> Shard:
    """Return the shard that a text as 3/8 names."""
    shard = Shard.read(text)
    if shard is None:
        message = (
            "write the number of this shard, from 1, and how many there are, as 3/8"
        )
        raise ValueError(message)
    return shard


def parse_run_id(text: str) -> str:
    """Return the name of a run. Line breaks and other control characters are rejected."""
    name = text.strip()
    if not name.isprintable() or len(name) > _LONGEST_RUN_ID:
        message = (
            f"write at most {_LONGEST_RUN_ID} printable characters on one line, as 4711"
        )
        raise ValueError(message)
    return name


def parse_revision(text: str) -> str:
    """Return the name of a revision. Names that git could read as options are rejected."""
    name = text.strip()
    if name.startswith("-") or "\0" in name:
        message = "a revision does not begin with a dash; write a name, as origin/main"
        raise ValueError(message)
    return name


def parse_duration(text: str) -> float:
    """Return a time [s]. The unit is required."""
    message = "write a time above 0 and at most a day with its unit, as 10min or 90s"
    try:
        quantity = parse_quantity(text, si="s")
    except UnitError:
        raise ValueError(message) from None
    if quantity.si != "s" or not 0 < quantity.value <= DAY_S:
        raise ValueError(message)
    return quantity.value


def parse_carry(text: str) -> tuple[str, ...]:
    """Return the patterns of files to carry to the other side, one per line."""
    patterns = tuple(line.strip() for line in text.splitlines() if line.strip())
    wrong = [p for p in patterns if PurePath(p).is_absolute() or ".." in p.split("/")]
    if wrong:
        message = f"{wrong[0]} is outside the repository; write paths below its root"
        raise ValueError(message)
    return patterns


def parse_hertz(text: str) -> float | None:
    """Return a sampling rate [Hz], or None for "off"."""
    if text.strip() == "off":
        return None
    match = re.fullmatch(_NUMBER, text)
    if match is None or not 0 < float(match[1]) <= _HIGHEST_HZ:
        message = (
            f"write samples per second, above 0 and at most {_HIGHEST_HZ:g}, or off"
        )
        raise ValueError(message)
    return float(match[1])


def parse_device(text: str) -> str:
    """Return the index of a GPU, or the beginning of the UUID of a GPU or MIG instance."""
    if not re.fullmatch(r"\d{1,3}|(GPU|MIG)-[\w/-]+", text.strip(), re.IGNORECASE):
        message = "write an index, as 0, or a UUID, as GPU-1c8e… or MIG-…"
        raise ValueError(message)
    return text.strip()


def parse_count(least: int, most: int = 9999) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        # At most ten digits, because a longer number could take long to parse.
        if not (re.fullmatch(r"\s*\d{1,10}\s*", text) and least <= int(text) <= most):
            message = f"write a whole number from {least} to {most}"
            raise ValueError(message)
        return int(text)

    return parse


def _names(text: str, allowed: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [name for name in names if name not in allowed]
    if wrong or not names:
        # Half of the characters are enough among many names: cpu is meant for cpu_model.
        # A few names are better listed than guessed: cuda is not ncu.
        cutoff = 0.5 if len(allowed) > 2 * len(COLLECTORS) else 0.6
        alike = (get_close_matches(name, allowed, n=3, cutoff=cutoff) for name in wrong)
        close = dict.fromkeys(name for names in alike for name in names)
        hint = "did you mean" if close else "write some of"
        message = (
            f"{', '.join(wrong) or 'nothing'} is not a {what}; {hint} "
            f"{', '.join(close or allowed)}"
        )
        raise ValueError(message)
    return names


def parse_collectors(text: str) -> tuple[str, ...]:
    """Return the requested collectors, or an empty tuple for auto."""
    names = _names(text, ("auto", *COLLECTORS), "collector")
    return () if names == ("auto",) else tuple(n for n in names if n != "auto")


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of the table."""
    return _names(text, COLUMNS, "column")


def parse_sort(text: str) -> str:
    """Return the sort key of the rows of the table."""
    return _one_of(text, SORTS)


def parse_time_unit(text: str) -> str | None:
    """Return the unit of times, or None for "auto"."""
    unit = _one_of(text, TIME_UNITS)
    return None if unit == "auto" else unit


def _one_of(text: str, allowed: tuple[str, ...]) -> str:
    if text.strip() not in allowed:
        message = f"write {', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ValueError(message)
    return text.strip()


_SHORT_FACTS = {"driver": "driver_branch"}  # Common names.


def parse_facts(text: str) -> frozenset[str]:
    """Return the hard facts that may differ."""
    facts = sorted({name for names in HARD_FACTS.values() for name in names})
    names = _names(text, (*facts, *_SHORT_FACTS), "fact")
    return frozenset(_SHORT_FACTS.get(name, name) for name in names)


def parse_word(kind: type[_Word]) -> Callable[[str], _Word]:
    """Return a parser of the values of an Enum."""

    def parse(text: str) -> _Word:
        try:
            return kind(text.strip())
        except ValueError:
            *words, last = (member.value for member in kind)
            message = f"write {', '.join(words)} or {last}"
            raise ValueError(message) from None

    return parse


# What the marker, the fixture and its loops say of a wrong value.
NO_WORK = "is not a Work"
WORK_REMEDY = "write Work(bytes=…) or Work(flop=…)"


def text_mistake(value: object, kind: str = "a string") -> str:
    """
    Return the problem with a text as a fragment, or "" if it can be encoded.

    Args:
        value: The argument.

        kind: The expected kind of text, as in "is not a string".
    """
    if not isinstance(value, str):
        return f"is not {kind}"
    return "contains a lone surrogate" if has_lone_surrogate(value) else ""


def is_whole(value: object, *, least: int) -> TypeGuard[int]:
    """Return True for a whole number of at least `least`. True and False are no numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def number_of(value: object) -> float:
    """
    Convert a number of any library.

    Raises:
        TypeError: The value is not a number. An array may also raise a ValueError.

        OverflowError: The number is too large.
    """
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, SupportsFloat):
        raise TypeError
    return float(value)
