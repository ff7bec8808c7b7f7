"""What a run was asked to do, free of pytest; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.limit import Limit
    from pytest_gpuperf.model.roofline import DeclaredPeaks
    from pytest_gpuperf.model.work import Work

__all__ = ["COLLECTORS", "Config", "JitCache", "Plan", "Update"]

# what --gpuperf-collectors may name, best first
COLLECTORS = (
    *("replay", "cupti", "events", "host"),
    *("ncu", "nvml", "binary", "ncu-report"),
)


class Update(str, Enum):
    """What --gpuperf-update stores."""

    NEW = "new"
    IMPROVED = "improved"
    ALL = "all"


class JitCache(str, Enum):
    """Whether confirming processes compile and tune anew."""

    FRESH = "fresh"
    KEEP = "keep"


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
    ncu_timeout_s: float | None = None
    disable: bool = False
    collectors: tuple[str, ...] = ()
    chip: str | None = None
    record: str | None = None
    replay: str | None = None
    json: str | None = None
    junit_properties: bool = False
    given: Mapping[str, str] = {}
    peaks: DeclaredPeaks = MappingProxyType({})
    grades: Mapping[str, Bands] = {}


class Plan(Frozen, frozen=True, kw_only=True):
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
