"""What a run was asked to do, free of pytest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.model.frozen import BulkRecord, Frozen
from pytest_gpuperf.model.quantity import parse_quantity

if TYPE_CHECKING:
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.roofline import DeclaredPeaks
    from pytest_gpuperf.model.verdict import Limit
    from pytest_gpuperf.model.work import Work

__all__ = [
    "COLLECTORS",
    "Config",
    "JitCache",
    "Lock",
    "NcuClocks",
    "NcuReplay",
    "Plan",
    "Update",
    "parse_collectors",
    "parse_count",
    "parse_device",
    "parse_facts",
    "parse_hertz",
    "parse_percent",
    "parse_regression",
    "parse_share",
    "parse_word",
]

_Word = TypeVar("_Word", bound=Enum)

# what --gpuperf-collectors may name, best first
COLLECTORS = (
    *("replay", "cupti", "events", "host"),
    *("ncu", "nvml", "binary", "ncu-report"),
)
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_HIGHEST_HZ = 100.0  # of collect.nvml_sampler: above that, sensors repeat themselves


class Update(str, Enum):
    """What --gpuperf-update stores."""

    NEW = "new"
    IMPROVED = "improved"
    ALL = "all"


class JitCache(str, Enum):
    """Whether confirming processes compile and tune anew."""

    FRESH = "fresh"
    KEEP = "keep"


class Lock(str, Enum):
    """How processes that measure share a GPU."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    OFF = "off"


class NcuReplay(str, Enum):
    """How Nsight Compute repeats what it counts: by its own names."""

    KERNEL = "kernel"
    APPLICATION = "application"
    RANGE = "range"


class NcuClocks(str, Enum):
    """What Nsight Compute does about clocks while it counts: by its own names."""

    NONE = "none"
    BASE = "base"


class Config(Frozen, frozen=True, kw_only=True):
    """
    The options of one run, read from the command line, the ini file and defaults.

    Attributes:
        root: The project's root folder.

        baseline: The store to compare with; None: there is none.

        baseline_named: Whether a person named it; one that was found only shows.

        update: What to store; None: nothing.

        max_regression: Largest rise of `time` that passes [fraction]; None: only shown.

        min_judged: Share of the tests that must be judged [fraction]; None: any.

        strict: Whether what could not be decided fails.

        compare_across: Hard facts that may differ.

        confirm: Fresh processes that confirm suspects, >= 0.

        runs: Processes that measure every test, >= 1.

        jit_cache: Whether each process that confirms has compilation and autotuning
            caches of its own, so that choices are drawn anew.

        ncu_replay: How ncu repeats what it counts.

        ncu_clocks: What ncu does about clocks while it counts.

        ncu_timeout_s: How long counting may take under ncu [s], > 0; None: as the number
            of tests says.

        disable: Whether bodies run unmeasured.

        collectors: What was asked for; empty: the best that is there.

        chip: The chip for which names of counters are checked while collecting; "off":
            for none; None: for that of this machine's GPU.

        record: The folder to keep readings in; None: they are not kept.

        replay: The folder to judge again; None: measure.

        json: The file to write the run to; None: none.

        junit_properties: Whether JUnit gets values and verdicts as properties.

        device: The GPU to measure, by its index or the beginning of its UUID; None: the
            first that CUDA shows.

        lock: How this process shares the GPU with others that measure.

        lock_timeout_s: How long to wait for one test that has the GPU [s], > 0.

        telemetry: How often the sensors of the GPU in use are sampled while tests are
            measured [Hz], > 0 and <= 100; None: they are not.

        given: The options that a person set, as text, credentials masked; `rootdir` where
            it is not the folder in which pytest was started, seen from there.

        peaks: Declared peak by device and field [B/s or FLOP/s].

        grades: Where grades begin, by roof; those not named are the plugin's own.
    """

    root: str
    baseline: str | None = None
    baseline_named: bool = False
    update: Update | None = None
    max_regression: float | None = 0.05
    min_judged: float | None = None
    strict: bool = False
    compare_across: frozenset[str] = frozenset()
    confirm: int = 5
    runs: int = 1
    jit_cache: JitCache = JitCache.FRESH
    ncu_replay: NcuReplay = NcuReplay.KERNEL
    ncu_clocks: NcuClocks = NcuClocks.NONE
    ncu_timeout_s: float | None = None
    disable: bool = False
    collectors: tuple[str, ...] = ()
    chip: str | None = None
    record: str | None = None
    replay: str | None = None
    json: str | None = None
    junit_properties: bool = False
    device: str | None = None
    lock: Lock = Lock.EXCLUSIVE
    lock_timeout_s: float = 600.0
    telemetry: float | None = None
    given: Mapping[str, str] = {}
    peaks: DeclaredPeaks = MappingProxyType({})
    grades: Mapping[str, Bands] = {}


class Plan(BulkRecord, frozen=True, kw_only=True):
    """
    What the markers of one test ask for, the closest first.

    Attributes:
        limits: Bounds on its metrics.

        max_regression: Largest change by metric [fraction]; None as a value: only shown;
            empty: what the run says, for `time`.

        min_grade: The lowest grade that passes; None: any.

        counters: Hardware counters that the test reads.

        work: The work of one call, where the test does not say it itself.

        group: A heading in reports.

        cache: "cold" or "warm"; None: the measuring method's own.

        iterations: A fixed number of samples; None: until the value is known.

        requires: What must be there before the body runs.

        uses_fixture: Whether the test takes the fixture; if not, its call is one range.
    """

    limits: tuple[Limit, ...] = ()
    max_regression: Mapping[str, float | None] = {}
    min_grade: str | None = None
    counters: tuple[str, ...] = ()
    work: Work | None = None
    group: str | None = None
    cache: str | None = None
    iterations: int | None = None
    requires: tuple[str, ...] = ()
    uses_fixture: bool = True

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics that the test is judged by, each once."""
        limited = (limit.metric for limit in self.limits)
        return tuple(dict.fromkeys((*limited, *self.max_regression)))


def parse_percent(text: str) -> float:
    """Return "5 %" as 0.05; only a percentage is meant here, so the sign is required."""
    if re.fullmatch(f"{_NUMBER}%\\s*", text) is None:
        message = "write a percentage, as 5%"
        raise ValueError(message)
    return parse_quantity(text).value


def parse_share(text: str) -> float:
    """Return a percentage of all tests."""
    share = parse_percent(text)
    if share > 1:
        message = "there are no more than 100% of the tests"
        raise ValueError(message)
    return share


def parse_regression(text: str) -> float | None:
    """Return a percentage, or None for "off"."""
    if text.strip() == "off":
        return None
    try:
        return parse_percent(text)
    except ValueError:
        message = "write a percentage, as 5%, or off"
        raise ValueError(message) from None


def parse_hertz(text: str) -> float | None:
    """Return how often to sample [1/s], or None for "off"."""
    if text.strip() == "off":
        return None
    match = re.fullmatch(_NUMBER, text)
    if match is None or not 0 < float(match[1]) <= _HIGHEST_HZ:
        message = (
            f"write samples a second, more than 0 and at most {_HIGHEST_HZ:g}, or off"
        )
        raise ValueError(message)
    return float(match[1])


def parse_device(text: str) -> str:
    """Return the index of a GPU, or the beginning of the UUID of one or of a part."""
    if not re.fullmatch(r"\d{1,3}|(GPU|MIG)-[\w/-]+", text.strip(), re.IGNORECASE):
        message = "write an index, as 0, or a UUID, as GPU-1c8e… or MIG-…"
        raise ValueError(message)
    return text.strip()


def parse_count(least: int, most: int = 9999) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        # ten digits are enough for any of them, and no number that takes long to read
        if not (re.fullmatch(r"\s*\d{1,10}\s*", text) and least <= int(text) <= most):
            message = f"write a whole number from {least} to {most}"
            raise ValueError(message)
        return int(text)

    return parse


def _names(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return names of a list that are all known."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        message = f"{', '.join(wrong) or 'nothing'} is no {what}; there are {', '.join(known)}"
        raise ValueError(message)
    return names


def parse_collectors(text: str) -> tuple[str, ...]:
    """Return the collectors that were asked for; empty for auto."""
    names = _names(text, ("auto", *COLLECTORS), "collector")
    return () if names == ("auto",) else tuple(n for n in names if n != "auto")


def parse_facts(text: str) -> frozenset[str]:
    """Return the facts that may differ."""
    from pytest_gpuperf.model.fingerprint import HARD_FACTS

    known = sorted({name for names in HARD_FACTS.values() for name in names})
    return frozenset(_names(text, tuple(known), "fact"))


def parse_word(kind: type[_Word]) -> Callable[[str], _Word]:
    """Return a reader of the words of an Enum."""

    def parse(text: str) -> _Word:
        try:
            return kind(text.strip())
        except ValueError:
            *words, last = (each.value for each in kind)
            message = f"write {', '.join(words)} or {last}"
            raise ValueError(message) from None

    return parse
