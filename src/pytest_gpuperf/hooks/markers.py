"""The markers of a test, merged and checked, as its Plan."""

from __future__ import annotations

import difflib
import re
import reprlib
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.collect.base import CACHE_REMEDY, cache_mistake
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import ConfigError, GpuPerfError, LimitSyntaxError
from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.metric import METRICS, is_counter
from pytest_gpuperf.model.mistakes import has_lone_surrogate
from pytest_gpuperf.model.work import Work
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuperf.model.verdict import Limit

__all__ = ["PLAN", "TEST_ID", "read_markers"]

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
_ADDED_UP = ("limits", "counters", "records")  # of the others the closest marker wins
_GRADES = tuple(Grade.__members__)
_REQUIREMENTS = ("gpu", "cupti", "events", "ncu", "nvml")
_CHIP = re.compile(r"sm_\d{2,3}a?")
_NO_NAME = re.compile(r"[<>=\n]")  # a whole limit, or a docstring that quotes one
_MARKS = {
    "time",
    "throughput",
    "mfu",
    "roofline",
}  # what the call of a test as one range cannot give


def read_markers(
    report: pytest.CollectReport, measuring: Sequence[pytest.Item]
) -> None:
    """
    Give every test its plan; turn the report into an error where markers are wrong.

    All mistakes of the report's tests are told at once.
    """
    mistakes: list[str] = []
    for item in measuring:
        item.stash[TEST_ID] = item.nodeid  # before loadgroup appends the group's name
        if item.get_closest_marker("gpuperf") is None:
            item.add_marker("gpuperf")  # so that -m gpuperf selects it
        reader = _Reader(item)
        item.stash[PLAN] = plan = reader.plan()
        mistakes += [f"{item.nodeid}: {text}" for text in reader.mistakes]
        if plan.counters or any(is_counter(limit.metric) for limit in plan.limits):
            from pytest_gpuperf.hooks import chip

            mistakes += chip.mistakes_of(item, plan)
    if mistakes:
        report.outcome = "failed"
        report.result = []
        # parameters repeat their function's mistakes
        report.longrepr = "\n".join(dict.fromkeys(mistakes))


class _Reader:
    """Reads the markers of one test and keeps their mistakes."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.mistakes: list[str] = []
        self.known: frozenset[str] = frozenset()  # what the test may call a metric

    def plan(self) -> Plan:
        """Return what the markers ask for; what is wrong in them is left out."""
        said = self._merged()
        recorded = self._checked(said, "records", _records) or frozenset()
        if _NAMING & said.keys():
            self.known = _constants(self.item) | recorded
        uses_fixture = "gpuperf" in getattr(self.item, "fixturenames", ())
        plan = Plan(
            limits=self._limits(said.get("limits", ())),
            max_regression=self._checked(said, "max_regression", self._regressions)
            or {},
            min_grade=self._checked(said, "min_grade", _grade),
            counters=self._checked(said, "counters", _counters) or (),
            work=self._checked(said, "work", _work),
            group=self._checked(said, "group", _text),
            cache=self._checked(said, "cache", _cache),
            iterations=self._checked(said, "iterations", _iterations),
            requires=self._checked(said, "requires", _requirements) or (),
            uses_fixture=uses_fixture,
        )
        if not uses_fixture:
            self._refuse_time(plan)
        return plan

    def _merged(self) -> dict[str, Any]:
        """Return the keywords of all markers: the closest wins, lists add up."""
        said: dict[str, Any] = {}
        for marker in self.item.iter_markers("gpuperf"):
            if marker.args:
                self.mistakes.append(
                    "the gpuperf marker takes keywords alone: write "
                    f"limits=[{_shown(marker.args[0])}]"
                )
            for keyword, value in marker.kwargs.items():
                if keyword not in _KEYWORDS:
                    self.mistakes.append(_unknown_keyword(keyword))
                elif keyword in _ADDED_UP:
                    said[keyword] = (*said.get(keyword, ()), *_listed(value))
                else:
                    said.setdefault(keyword, value)
        return said

    def _limits(self, texts: Sequence[object]) -> tuple[Limit, ...]:
        """Return the limits that parse; the others are mistakes."""
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
                limits.append(parse_limit(text, known=self.known))
            except GpuPerfError as error:
                why = _told(error).removeprefix(f"{escape(text.strip())}: ")
                self.mistakes.append(f"limit {text!r}: {why}")
        return tuple(limits)

    def _regressions(self, value: object) -> dict[str, float | None]:
        """Return the largest changes by metric."""
        if not isinstance(value, (str, dict)):
            raise _wrong(
                f"{_shown(value)} is no text", 'write "5 %", "off" or {"time": "5 %"}'
            )
        from pytest_gpuperf.judge.grammar import parse_max_regression

        return dict(parse_max_regression(value, known=self.known))

    def _checked(
        self, said: dict[str, Any], keyword: str, read: Callable[[Any], Any]
    ) -> Any:  # noqa: ANN401 - each reader's own type
        """Return a keyword's value as its reader sees it; None where it is not there."""
        if said.get(keyword) is None:
            return None
        try:
            return read(said[keyword])
        except GpuPerfError as error:
            self.mistakes.append(f"{keyword}: {_told(error)}")
            return None

    def _refuse_time(self, plan: Plan) -> None:
        """Note limits on time, which the call of a test as one range cannot have."""
        timed = [limit.text for limit in plan.limits if _is_timed(limit.metric)]
        timed += [name for name in plan.max_regression if _is_timed(name)]
        timed += ["min_grade"] if plan.min_grade is not None else []
        if timed:
            self.mistakes.append(
                f"{escape(', '.join(timed))}: one call of a test is no measurement of time; "
                "take the gpuperf fixture and measure the function with it"
            )


def _is_timed(metric: str) -> bool:
    """Return whether a metric needs many calls."""
    return metric.partition(".")[0] in _MARKS


def _unknown_keyword(keyword: str) -> str:
    """Return the message for a keyword that the marker does not have."""
    close = difflib.get_close_matches(keyword, _KEYWORDS, n=1)
    hint = f"did you mean {close[0]}" if close else f"it has {', '.join(_KEYWORDS)}"
    return f"the gpuperf marker has no keyword {keyword!r}; {hint}"


def _listed(value: object) -> tuple[object, ...]:
    """Return one text, or several, as a tuple."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (value,)


def _once(texts: Sequence[object]) -> list[object]:
    """Return each text once; what is no text may have no hash, and stays."""
    texts_alone = dict.fromkeys(text for text in texts if isinstance(text, str))
    return [*texts_alone, *(text for text in texts if not isinstance(text, str))]


_NAMING = frozenset({"limits", "max_regression"})  # keywords that name metrics


def _constants(item: pytest.Item) -> frozenset[str]:
    """Return a test's own texts: what `record("ttft", …)` may call a metric."""
    function = getattr(item, "function", None)
    code = getattr(function, "__code__", None)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    texts = (*_texts(code), *_texts(tuple(parameters.values())))
    return frozenset(text for text in texts if not _NO_NAME.search(text))


def _texts(constant: object) -> Iterator[str]:
    """Yield the strings in a constant: a function's code may hold more functions."""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for each in constant:
            yield from _texts(each)
    elif isinstance(constant, CodeType):
        yield from _texts(constant.co_consts)


def _wrong(message: str, remedy: str) -> ConfigError:
    """Return the error for a keyword's value."""
    return ConfigError(message, remedy=remedy)


def _shown(value: object) -> str:
    """Return the short text of anything, also of what raises when it is asked for it."""
    return repr(value) if type(value) is str else reprlib.repr(value)


def _told(error: GpuPerfError) -> str:
    """Return an error's text, in which foreign text can do nothing to a terminal."""
    if not isinstance(error, LimitSyntaxError):
        return escape(str(error))
    caret = " " * len(escape(error.text[: error.column])) + "^"
    shown = (error.message, f"    {error.text}", f"    {caret}", error.remedy)
    return "\n".join(map(escape, shown))


def _grade(value: object) -> str:
    """Return a grade."""
    if not isinstance(value, str) or value not in _GRADES:
        raise _wrong(
            f"{_shown(value)} is no grade", f"write one of {', '.join(_GRADES)}"
        )
    return value


def _counters(values: tuple[object, ...]) -> tuple[str, ...]:
    """Return names of hardware counters."""
    wrong = [v for v in values if not (isinstance(v, str) and is_counter(v))]
    if wrong:
        listed = ", ".join(_shown(value) for value in wrong)
        raise _wrong(f"{listed}: no counter's name", "write it as dram__bytes.sum")
    return tuple(str(value) for value in dict.fromkeys(values))


def _work(value: object) -> Work:
    """Return declared work."""
    if not isinstance(value, Work):
        raise _wrong(
            f"{_shown(value)} is no Work", "write Work(bytes=…) or Work(flop=…)"
        )
    return value


def _text(value: object) -> str:
    """Return a heading."""
    if not isinstance(value, str):
        raise _wrong(f"{_shown(value)} is no text", "write a heading in quotes")
    if has_lone_surrogate(value):
        raise _wrong(f"{value!r} holds half a character", "write a heading in quotes")
    return value


def _cache(value: object) -> str:
    """Return a cache mode."""
    if why := cache_mistake(value):
        raise _wrong(why, CACHE_REMEDY)
    return str(value)


def _iterations(value: object) -> int:
    """Return a fixed number of samples."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(
            f"{_shown(value)} is no number of samples", "write a whole number >= 1"
        )
    return value


def _records(values: tuple[object, ...]) -> frozenset[str]:
    """Return names that a helper or a fixture of the test gives to `record`."""
    wrong = [v for v in values if not isinstance(v, str) or not v or v in METRICS]
    if wrong:
        listed = ", ".join(_shown(value) for value in wrong)
        raise _wrong(
            f"{listed}: no name of a number of your own",
            'write what is given to record: "ttft"',
        )
    return frozenset(str(value) for value in values)


def _requirements(value: object) -> tuple[str, ...]:
    """Return what a test needs."""
    wanted = _listed(value)
    wrong = [
        w
        for w in wanted
        if not isinstance(w, str) or (w not in _REQUIREMENTS and not _CHIP.fullmatch(w))
    ]
    if wrong:
        listed = ", ".join(_shown(w) for w in wrong)
        known = ", ".join((*_REQUIREMENTS, "sm_90"))
        raise _wrong(f"{listed}: nothing that can be required", f"write {known}…")
    return tuple(str(w) for w in wanted)
