"""Read the plan of a test from its markers, and check its counters against the chip."""

from __future__ import annotations

import difflib
import functools
import os
import re
import reprlib
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.base import CACHE_REMEDY, cache_mistake
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import ConfigError, GpuPerfError, LimitSyntaxError
from pytest_gpuperf.model.frozen import has_lone_surrogate
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.sample import CacheMode, Source
from pytest_gpuperf.model.work import Work
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuperf.collect.ncu.catalogue import Catalogue
    from pytest_gpuperf.model.verdict import Limit

TEST_ID = pytest.StashKey[str]()
PLAN = pytest.StashKey[Plan]()

_KEYWORDS = (
    "limits",
    "max_regression",
    "min_grade",
    "counters",
    "work",
    "group",
    "cache",
    "iterations",
    "requires",
    "records",
)
# Keywords that add up. For other keywords the closest marker wins.
_ADDED_UP = ("limits", "counters", "records")
_GRADES = tuple(Grade.__members__)
_REQUIREMENTS = ("gpu", Source.CUPTI, Source.EVENTS, Source.NCU, Source.NVML)
_CHIP = re.compile(r"sm_\d{2,3}a?")
# A whole limit, or a docstring that quotes a limit.
_NOT_A_NAME = re.compile(r"[<>=\n]")
# The marker keeps a test out of a plugin's threads, which would share the fixture.
_UNSAFE = "thread_unsafe"
# Metrics that need repeated calls.
_TIMED = {"time", "throughput", "mfu", "roofline"}


def read_markers(
    report: pytest.CollectReport, measuring: Sequence[pytest.Item]
) -> None:
    """
    Give every test its plan, or turn the report into an error if markers are wrong.

    The error lists all mistakes of the report's tests.
    """
    mistakes: list[str] = []
    has_threads = _knows_unsafe_threads(measuring[0].config)
    for item in measuring:
        # Taken before loadgroup appends the name of the group.
        item.stash[TEST_ID] = item.nodeid
        if item.get_closest_marker("gpuperf") is None:
            # So that `-m gpuperf` selects the test.
            item.add_marker("gpuperf")
        if has_threads:
            item.add_marker(_UNSAFE)
        reader = _MarkerReader(item)
        item.stash[PLAN] = plan = reader.plan()
        mistakes += [f"{item.nodeid}: {text}" for text in reader.mistakes]
        if plan.counters or any(is_counter(limit.metric) for limit in plan.limits):
            mistakes += mistakes_of(item, plan)
    if mistakes:
        report.outcome = "failed"
        report.result = []
        # Every parameter set of a function repeats the same mistakes.
        report.longrepr = "\n".join(dict.fromkeys(mistakes))


def _knows_unsafe_threads(config: pytest.Config) -> bool:
    """
    Return True if a plugin such as pytest-run-parallel registered the thread_unsafe marker.
    """
    return any(
        re.split(r"[:(]", line)[0] == _UNSAFE for line in config.getini("markers")
    )


class _MarkerReader:
    """Read the markers of a test and collect the mistakes in them."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.mistakes: list[str] = []
        # Names that the test may record.
        self.metrics: frozenset[str] = frozenset()

    def plan(self) -> Plan:
        """Return the plan of the markers, without wrong values."""
        keywords = self._merged()
        recorded = self._checked(keywords, "records", _records) or frozenset()
        if _NAMING & keywords.keys():
            self.metrics = _constants(self.item) | recorded
        uses_fixture = "gpuperf" in getattr(self.item, "fixturenames", ())
        plan = Plan(
            limits=self._limits(keywords.get("limits", ())),
            max_regression=self._checked(keywords, "max_regression", self._regressions)
            or {},
            min_grade=self._checked(keywords, "min_grade", _grade),
            counters=self._checked(keywords, "counters", _counters) or (),
            work=self._checked(keywords, "work", _work),
            group=self._checked(keywords, "group", _text),
            cache=self._checked(keywords, "cache", _cache),
            iterations=self._checked(keywords, "iterations", _iterations),
            requires=self._checked(keywords, "requires", _requirements) or (),
            uses_fixture=uses_fixture,
        )
        if not uses_fixture:
            self._refuse_time(plan, keywords)
        return plan

    def _merged(self) -> dict[str, Any]:
        """Merge the keywords of all markers. The closest marker wins, and lists add up."""
        keywords: dict[str, Any] = {}
        for marker in self.item.iter_markers("gpuperf"):
            if marker.args:
                self.mistakes.append(
                    "the gpuperf marker takes keywords only: write "
                    f"limits=[{_shown(marker.args[0])}]"
                )
            for keyword, value in marker.kwargs.items():
                if keyword not in _KEYWORDS:
                    self.mistakes.append(_unknown_keyword(keyword))
                elif keyword in _ADDED_UP:
                    keywords[keyword] = (*keywords.get(keyword, ()), *_listed(value))
                else:
                    keywords.setdefault(keyword, value)
        return keywords

    def _limits(self, texts: Sequence[object]) -> tuple[Limit, ...]:
        if not texts:
            return ()
        from pytest_gpuperf.judge.grammar import parse_limit

        limits = []
        for text in _once(texts):
            if not isinstance(text, str):
                self.mistakes.append(
                    f"a limit is text, as 'time <= 60 us': {_shown(text)}"
                )
                continue
            try:
                limits.append(parse_limit(text, names=self.metrics))
            except GpuPerfError as error:
                why = _error_text(error).removeprefix(f"{escape(text.strip())}: ")
                self.mistakes.append(f"limit {text!r}: {why}")
        return tuple(limits)

    def _regressions(self, value: object) -> dict[str, float | None]:
        """Return the largest accepted changes [fraction] by metric."""
        if not isinstance(value, (str, dict)):
            raise _wrong(
                f"{_shown(value)} is not text", 'write "5 %", "off" or {"time": "5 %"}'
            )
        from pytest_gpuperf.judge.grammar import parse_max_regression

        return dict(parse_max_regression(value, names=self.metrics))

    def _checked(
        self, keywords: dict[str, Any], keyword: str, read: Callable[[Any], Any]
    ) -> Any:  # noqa: ANN401 - each reader's own type
        """Return the parsed value of a keyword, or None if absent or wrong."""
        if keywords.get(keyword) is None:
            return None
        try:
            return read(keywords[keyword])
        except GpuPerfError as error:
            self.mistakes.append(f"{keyword}: {_error_text(error)}")
            return None

    def _refuse_time(self, plan: Plan, keywords: dict[str, Any]) -> None:
        """Collect a mistake for limits on time in a test without the fixture."""
        timed = [escape(lim.text) for lim in plan.limits if _is_timed(lim.metric)]
        if any(map(_is_timed, plan.max_regression)):
            timed.append(f"max_regression={_timed_gates(keywords['max_regression'])}")
        if plan.min_grade is not None:
            timed.append(f"min_grade={_shown(keywords['min_grade'])}")
        if timed:
            self.mistakes.append(
                f"{', '.join(timed)}: a single call of a test cannot time it; take the"
                " gpuperf fixture and measure the call, as gpuperf.measure(fn)"
            )


def _is_timed(metric: str) -> bool:
    return metric.partition(".")[0] in _TIMED


def _timed_gates(value: str | dict[str, str]) -> str:
    if isinstance(value, str):
        return _shown(value)
    return _shown({name: text for name, text in value.items() if _is_timed(name)})


def _unknown_keyword(keyword: str) -> str:
    close = difflib.get_close_matches(keyword, _KEYWORDS, n=1)
    hint = f"did you mean {close[0]}" if close else f"it has {', '.join(_KEYWORDS)}"
    return f"the gpuperf marker has no keyword {keyword!r}; {hint}"


def _listed(value: object) -> tuple[object, ...]:
    """Return a value as a tuple. A text becomes a tuple of one."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (value,)


def _once(texts: Sequence[object]) -> list[object]:
    """Return the texts without duplicates, followed by values of other types."""
    texts_alone = dict.fromkeys(text for text in texts if isinstance(text, str))
    return [*texts_alone, *(text for text in texts if not isinstance(text, str))]


# Keywords that name metrics.
_NAMING = frozenset({"limits", "max_regression"})


def _constants(item: pytest.Item) -> frozenset[str]:
    function = getattr(item, "function", None)
    code = getattr(function, "__code__", None)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    texts = (*_texts(code), *_texts(tuple(parameters.values())))
    return frozenset(text for text in texts if not _NOT_A_NAME.search(text))


def _texts(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for part in constant:
            yield from _texts(part)
    elif isinstance(constant, CodeType):
        yield from _texts(constant.co_consts)


def _wrong(message: str, remedy: str) -> ConfigError:
    return ConfigError(message, remedy=remedy)


def _shown(value: object) -> str:
    """Return a short repr of any value, even if its own repr raises."""
    return repr(value) if type(value) is str else reprlib.repr(value)


def _error_text(error: GpuPerfError) -> str:
    if not isinstance(error, LimitSyntaxError):
        return escape(str(error))
    caret = " " * len(escape(error.text[: error.column])) + "^"
    shown = (error.message, f"    {error.text}", f"    {caret}", error.remedy)
    return "\n".join(map(escape, shown))


def _grade(value: object) -> str:
    if not isinstance(value, str) or value not in _GRADES:
        raise _wrong(
            f"{_shown(value)} is not a grade", f"write one of {', '.join(_GRADES)}"
        )
    return value


def _counters(values: tuple[object, ...]) -> tuple[str, ...]:
    wrong = [v for v in values if not (isinstance(v, str) and is_counter(v))]
    if wrong:
        listed = ", ".join(_shown(value) for value in wrong)
        raise _wrong(f"{listed}: not a counter name", "write it as dram__bytes.sum")
    return tuple(str(value) for value in dict.fromkeys(values))


def _work(value: object) -> Work:
    if not isinstance(value, Work):
        raise _wrong(
            f"{_shown(value)} is not a Work", "write Work(bytes=…) or Work(flop=…)"
        )
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{_shown(value)} is not text", "write a heading in quotes")
    if has_lone_surrogate(value):
        raise _wrong(
            f"{value!r} contains a lone surrogate", "write a heading in quotes"
        )
    if value and not value.strip():
        raise _wrong(f"{value!r} is blank", "write a heading, or leave it out")
    return value


def _cache(value: object) -> CacheMode:
    if why := cache_mistake(value):
        raise _wrong(why, CACHE_REMEDY)
    return CacheMode(value)


def _iterations(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(
            f"{_shown(value)} is not a number of samples", "write a whole number >= 1"
        )
    return value


def _records(values: tuple[object, ...]) -> frozenset[str]:
    wrong = [v for v in values if not isinstance(v, str) or not v or v in METRICS]
    if wrong:
        listed = ", ".join(_shown(value) for value in wrong)
        raise _wrong(
            f"{listed}: not a name that gpuperf.record takes",
            'write the name that is passed to record: "ttft"',
        )
    return frozenset(str(value) for value in values)


def _requirements(value: object) -> tuple[str, ...]:
    requirements = _listed(value)
    wrong = [
        requirement
        for requirement in requirements
        if not isinstance(requirement, str)
        or (requirement not in _REQUIREMENTS and not _CHIP.fullmatch(requirement))
    ]
    if wrong:
        listed = ", ".join(_shown(requirement) for requirement in wrong)
        allowed = ", ".join((*_REQUIREMENTS, "sm_90"))
        raise _wrong(f"{listed}: not a known requirement", f"write {allowed}…")
    return tuple(str(requirement) for requirement in requirements)


_CHECK = pytest.StashKey["ChipCheck"]()
_OFF = "off"


def mistakes_of(item: pytest.Item, plan: Plan) -> list[str]:
    """
    Return a message per counter of a test that the chip does not have.

    Args:
        item: The test.

        plan: The plan of the test's markers.
    """
    config = item.config
    if options.is_child(config):  # The parent process has checked the counters.
        return []
    check = config.stash.get(_CHECK, None)
    if check is None:
        settings = options.config_of(config)
        # A replayed run can be judged on any machine and needs no GPU.
        device = settings.device if settings.replay is None else None
        load = functools.partial(_catalogue, device=device)
        check = config.stash[_CHECK] = ChipCheck(settings.chip, load)
        config.pluginmanager.register(check, "gpuperf-chip")
    return check.mistakes(item.nodeid, plan)


def _catalogue(chip: str | None, device: str | None = None) -> Catalogue | None:
    """Return the catalogue of a chip, or None if no chip is named and there is no GPU."""
    if chip is None:
        from pytest_gpuperf.collect.cupti.chips import chip_measured

        chip = chip_measured(query_devices(), device, os.environ)
    if chip is None:
        return None
    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

    return Catalogue(chip)


class ChipCheck:
    """
    Check the counters of collected tests against a chip.

    Args:
        chip: The value of --gpuperf-chip, or None for the chip of the measured GPU.

        load: Returns the catalogue of a chip, or of the measured GPU's chip.
    """

    def __init__(
        self,
        chip: str | None,
        load: Callable[[str | None], Catalogue | None] = _catalogue,
    ) -> None:
        # By test id.
        self._counters: dict[str, tuple[str, ...]] = {}
        # A mistake in the option, reported for every file.
        self._mistake: str | None = None
        # The reason why nothing is checked, reported once.
        self._unchecked: str | None = None
        self._catalogue: Catalogue | None = None
        try:
            self._catalogue = None if chip == _OFF else load(chip)
        except GpuPerfError as error:
            if chip is None:
                self._unchecked = f"gpuperf: counters are not checked: {error}"
            else:
                self._mistake = f"--gpuperf-chip={chip}: {error}"

    def mistakes(self, test_id: str, plan: Plan) -> list[str]:
        """Return messages for unknown counters, or remember the counters if all are known."""
        if self._catalogue is None:
            return [] if self._mistake is None else [escape(self._mistake)]
        limited = [limit.metric for limit in plan.limits if is_counter(limit.metric)]
        wrong: list[str] = []
        for name in dict.fromkeys((*plan.counters, *limited)):
            checked = self._catalogue.check(name)
            if not checked.known or (checked.kind == "base" and name in limited):
                wrong.append(
                    f"{test_id}: counter {name!r}: {escape(checked.explanation)}"
                )
        if not wrong:
            self._counters[test_id] = (*plan.counters, *limited)
        return wrong

    @pytest.hookimpl
    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Report the number of passes needed to count the selected tests."""
        if self._unchecked is not None:
            return [escape(self._unchecked)]
        selected = {item.nodeid for item in items}
        counters = {
            test: names for test, names in self._counters.items() if test in selected
        }
        if self._catalogue is None or not counters:
            return []
        from pytest_gpuperf.report.metrics import replay_sentence

        groups = self._catalogue.grouped(counters)
        return [escape(replay_sentence(self._catalogue.chip, groups))]
