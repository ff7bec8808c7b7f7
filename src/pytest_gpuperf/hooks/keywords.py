"""The keywords of a test's markers: its limits, its work and how it is measured."""

from __future__ import annotations

import difflib
import re
import reprlib
from types import CodeType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.base import CACHE_REMEDY, cache_mistake
from pytest_gpuperf.config import (
    NO_WORK,
    WORK_REMEDY,
    Plan,
    is_whole,
    text_mistake,
)
from pytest_gpuperf.errors import ConfigError, GpuPerfError, LimitSyntaxError
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.model.record import WORK_DOUBTS
from pytest_gpuperf.model.sample import CacheMode, Source
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytest

    from pytest_gpuperf.model.verdict import Limit
    from pytest_gpuperf.model.work import Work

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
    "accept",
    "make",
    "reference",
)
# Keywords that add up. For other keywords the closest marker wins.
_ADDED_UP = ("limits", "counters", "records", "accept")
_REQUIREMENTS = ("gpu", Source.CUPTI, Source.EVENTS, Source.NCU, Source.NVML)
_CHIP = re.compile(r"sm_\d{2,3}a?")
# A whole limit, or a docstring that quotes a limit.
_NOT_A_NAME = re.compile(r"[<>=\n]")
# Metrics that need repeated calls.
_TIMED = {"time", "throughput", "mfu", "roofline"}


def read_keywords(
    item: pytest.Item, marks: Sequence[pytest.Mark]
) -> tuple[Plan, bool, list[str]]:
    """
    Read the markers of a test, at least one of which has arguments.

    Args:
        item: The test.

        marks: Its markers, the closest first.

    Returns:
        The plan without wrong values, whether it depends on the parameters of the test,
        and the mistakes in the markers.
    """
    reader = _KeywordReader(item)
    plan = reader.plan(marks)
    return plan, reader.names_metrics, reader.mistakes


class _KeywordReader:
    """Read the keywords of a test's markers and collect the mistakes in them."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.mistakes: list[str] = []
        # Whether the names of metrics, and so the plan, depend on the test's parameters.
        self.names_metrics = False
        # Names that the test may record.
        self.metrics: frozenset[str] = frozenset()

    def plan(self, marks: Sequence[pytest.Mark]) -> Plan:
        """Return the plan of the markers, without wrong values."""
        keywords = self._merged(marks)
        recorded: frozenset[str] = frozenset()
        if "records" in keywords:
            recorded = self._checked(keywords, "records", _records) or recorded
        if _NAMING & keywords.keys():
            self.names_metrics = True
            code = getattr(getattr(self.item, "function", None), "__code__", None)
            parameters = getattr(getattr(self.item, "callspec", None), "params", {})
            texts = (*_texts(code), *_texts(tuple(parameters.values())))
            self.metrics = recorded.union(t for t in texts if not _NOT_A_NAME.search(t))
        uses_fixture = "gpuperf" in getattr(self.item, "fixturenames", ())
        asked: dict[str, Any] = {}
        if "limits" in keywords:
            asked["limits"] = self._limits(keywords["limits"])
        if "max_regression" in keywords:
            gates = self._checked(keywords, "max_regression", self._regressions)
            asked["max_regression"] = gates or {}
        for keyword, read in _READERS.items():
            if keyword in keywords:
                value = self._checked(keywords, keyword, read)
                if value is not None:
                    asked[keyword] = value
        plan = Plan(**asked, uses_fixture=uses_fixture)
        if not uses_fixture:
            self._refuse_time(plan, keywords)
        return plan

    def _merged(self, marks: Sequence[pytest.Mark]) -> dict[str, Any]:
        keywords: dict[str, Any] = {}
        for marker in marks:
            if marker.args:
                self.mistakes.append(
                    "the gpuperf marker takes keywords only: write "
                    f"limits=[{_shown(marker.args[0])}]"
                )
            for keyword, value in marker.kwargs.items():
                if keyword not in _KEYWORDS:
                    close = difflib.get_close_matches(keyword, _KEYWORDS, n=1)
                    hint = f"it has {', '.join(_KEYWORDS)}"
                    if close:
                        hint = f"did you mean {close[0]}"
                    self.mistakes.append(
                        f"the gpuperf marker has no keyword {keyword!r}; {hint}"
                    )
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
        alone = dict.fromkeys(text for text in texts if isinstance(text, str))
        # A value of another type may not be hashable.
        others = (text for text in texts if not isinstance(text, str))
        for text in (*alone, *others):
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
            remedy = 'write "5 %", "off" or {"time": "5 %"}'
            raise ConfigError(f"{_shown(value)} is not text", remedy=remedy)
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
        timed = [escape(lim.text) for lim in plan.limits if _is_timed(lim.metric)]
        if any(map(_is_timed, plan.max_regression)):
            gates = keywords["max_regression"]
            if not isinstance(gates, str):
                gates = {name: text for name, text in gates.items() if _is_timed(name)}
            timed.append(f"max_regression={_shown(gates)}")
        if plan.min_grade is not None:
            timed.append(f"min_grade={_shown(keywords['min_grade'])}")
        if timed:
            self.mistakes.append(
                f"{', '.join(timed)}: a single call of a test cannot time it; take the"
                " gpuperf fixture and measure the call, as gpuperf.measure(fn)"
            )


def _is_timed(metric: str) -> bool:
    return metric.partition(".")[0] in _TIMED


def _listed(value: object) -> tuple[object, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (value,)


# Keywords that name metrics.
_NAMING = frozenset({"limits", "max_regression"})


def _texts(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for part in constant:
            yield from _texts(part)
    elif isinstance(constant, CodeType):
        yield from _texts(constant.co_consts)


def _shown(value: object) -> str:
    """Return a short repr of any value, even if its own repr raises."""
    return repr(value) if type(value) is str else reprlib.repr(value)


def _error_text(error: GpuPerfError) -> str:
    if not isinstance(error, LimitSyntaxError):
        return escape(str(error))
    caret = " " * len(escape(error.text[: error.column])) + "^"
    shown = (error.message, f"    {error.text}", f"    {caret}", error.remedy)
    return "\n".join(map(escape, shown))


def _refuse(wrong: Sequence[object], why: str, remedy: str) -> None:
    if wrong:
        listed = ", ".join(map(_shown, wrong))
        raise ConfigError(f"{listed}: {why}", remedy=remedy)


def _grade(value: object) -> str:
    # Few tests have a least grade.
    from pytest_gpuperf.model.roofline import Grade

    if not isinstance(value, str) or value not in Grade.__members__:
        remedy = f"write one of {', '.join(Grade.__members__)}"
        raise ConfigError(f"{_shown(value)} is not a grade", remedy=remedy)
    return value


def _counters(values: tuple[object, ...]) -> tuple[str, ...]:
    wrong = [v for v in values if not (isinstance(v, str) and is_counter(v))]
    _refuse(wrong, "not a counter name", "write it as dram__bytes.sum")
    return tuple(str(value) for value in dict.fromkeys(values))


def _work(value: object) -> Work:
    # Few tests declare work.
    from pytest_gpuperf.model.work import Work

    if not isinstance(value, Work):
        raise ConfigError(f"{_shown(value)} {NO_WORK}", remedy=WORK_REMEDY)
    return value


def _text(value: object) -> str:
    why = text_mistake(value, "text")
    if why or not isinstance(value, str):
        raise ConfigError(f"{_shown(value)} {why}", remedy="write a heading in quotes")
    if value and not value.strip():
        remedy = "write a heading, or leave it out"
        raise ConfigError(f"{value!r} is blank", remedy=remedy)
    return value


def _cache(value: object) -> CacheMode:
    if why := cache_mistake(value):
        raise ConfigError(why, remedy=CACHE_REMEDY)
    return CacheMode(value)


def _iterations(value: object) -> int:
    if not is_whole(value, least=1):
        message = f"{_shown(value)} is not a number of samples"
        raise ConfigError(message, remedy="write a whole number >= 1")
    return value


def _records(values: tuple[object, ...]) -> frozenset[str]:
    wrong = [v for v in values if not isinstance(v, str) or not v or v in METRICS]
    remedy = 'write the name that is passed to record: "ttft"'
    _refuse(wrong, "not a name that gpuperf.record takes", remedy)
    return frozenset(str(value) for value in values)


def _function(value: object) -> Callable[..., object]:
    if not callable(value):
        remedy = "give a function, not its result"
        raise ConfigError(f"{_shown(value)} cannot be called", remedy=remedy)
    return value


def _accepted(values: tuple[object, ...]) -> tuple[str, ...]:
    wrong = [v for v in values if not isinstance(v, str) or v not in WORK_DOUBTS]
    allowed = ", ".join(sorted(WORK_DOUBTS))
    _refuse(wrong, "not a doubt that can be accepted", f"write {allowed}")
    return tuple(str(value) for value in dict.fromkeys(values))


def _requirements(value: object) -> tuple[str, ...]:
    requirements = _listed(value)
    wrong = [
        requirement
        for requirement in requirements
        if not isinstance(requirement, str)
        or (requirement not in _REQUIREMENTS and not _CHIP.fullmatch(requirement))
    ]
    allowed = ", ".join((*_REQUIREMENTS, "sm_90"))
    _refuse(wrong, "not a known requirement", f"write {allowed}…")
    return tuple(str(requirement) for requirement in requirements)


# The keywords that need no other keyword to be read, in the order of their mistakes.
_READERS: dict[str, Callable[[Any], object]] = {
    "min_grade": _grade,
    "counters": _counters,
    "work": _work,
    "group": _text,
    "cache": _cache,
    "iterations": _iterations,
    "requires": _requirements,
    "accept": _accepted,
    "make": _function,
    "reference": _function,
}
