"""Limits as text into Limit records.

    limit    ::= metric kernel? operator quantity
    metric   ::= a name of model.metric | an ncu counter | a name given to record()
    kernel   ::= '["' pattern '"]'                  (or with single quotes; fnmatch)
    operator ::= "<=" | "<" | ">=" | ">" | "=="
    quantity ::= number unit?                       (see model.quantity)

Spaces may stand between the parts. The whole text must parse.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pytest_gpuperf.errors import (
    ConfigError,
    LimitSyntaxError,
    UnitError,
    UnknownMetricError,
)
from pytest_gpuperf.model.metric import LISTED, METRICS, Family, is_counter, metric_of
from pytest_gpuperf.model.quantity import Quantity, parse_quantity
from pytest_gpuperf.model.verdict import Limit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_KERNEL = re.compile(r"""\[\s*(?P<quote>["'])(?P<pattern>.*?)(?P=quote)\s*\]""")
_OPERATOR = re.compile(r"[<>=!~]+|[^\s\w.+\-]+")
_NUMBER = re.compile(r"[-+]?[0-9_.]*(?:[eE][-+]?[0-9]+)?\s*")
_OPERATORS = ("<=", "<", ">=", ">", "==")
# Frequent misspellings of an operator.
_MEANT = MappingProxyType({"=": "==", "=<": "<=", "=>": ">=", "===": "=="})
# Suggested instead of == for values that are never equal.
_NEAR = "<= or >="
# Characters that Unicode does not fold to ASCII.
_LOOKALIKES = MappingProxyType(
    {"≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "−": "-", "–": "-", "·": "*"}
)
# The micro sign and the Greek letter are both accepted.
_MICRO = frozenset("\u00b5\u03bc")
# A bare number is unambiguous, because the name of the metric implies the unit.
_UNITLESS = frozenset({"count", "fraction", "bytes", "ratio", "1/s", "FLOP/B"})
_EXAMPLES = MappingProxyType(
    {
        "s": "60 us",
        "J": "5 mJ",
        "W": "300 W",
        "1/s": "a bare number: throughput >= 1000",
        "bytes": "2 MB",
        "count": "a bare number",
        "fraction": "80 %",
        "ratio": "a bare number",
    }
)
# Units for any kind of work or thing.
_BARE = frozenset({"1/s", "count", "ratio"})
_CHANGE = 'write "5 %", "off" or {"time": "5 %"}'
# Values of these families never equal a number.
_NOISY = frozenset({Family.DEVICE_TIME, Family.HOST_TIME})
# Characters. A longer text is not a misspelled name.
_SHORT = 40
# Prefix of the time of a loop's phase.
_PHASE = "phase."


def parse_limit(text: str, names: Collection[str] = ()) -> Limit:
    """
    Parse a limit.

    Args:
        text: The whole limit, such as "time <= 60 us".

        names: Names passed to `record`, as far as the source of the test or `records` of
            the marker shows. Valid in addition to the catalogue and counters.

    Raises:
        LimitSyntaxError: The text does not parse. The column is the end of the valid part.

        UnknownMetricError: The metric is unknown.

        UnitError: The unit does not fit the metric, or a required unit is missing.

    Example:
        >>> limit = parse_limit('registers["rmsnorm*"] <= 64')
        >>> limit.metric, limit.kernel, limit.operator, limit.threshold
        ('registers', 'rmsnorm*', '<=', 64.0)
    """
    start = len(text) - len(text.lstrip())
    metric, place = _metric(text, start, names)
    kernel, place = _kernel(text, place)
    operator, place = _operator(text, place, metric)
    quantity = _quantity(text, place, metric)
    _check_unit(text, metric, quantity)
    _check_possible(text, place, metric, kernel, operator, quantity.value)
    return Limit(
        text=text.strip(),
        metric=metric,
        operator=operator,
        threshold=quantity.value,
        unit=quantity.si,
        kernel=kernel,
    )


def parse_max_regression(
    limits: str | Mapping[str, str], names: Collection[str] = ()
) -> Mapping[str, float | None]:
    """
    Parse the largest change that passes, by metric.

    Args:
        limits: "5 %" or "off" for `time`, or one such text per metric.

        names: Names that a test passes to `record`.

    Returns:
        Fractions by metric, or None for a metric that is only shown.

    Raises:
        ConfigError: The limits have mistakes. All of them are reported at once.

    Example:
        >>> dict(parse_max_regression({"time": "5 %", "registers": "off"}))
        {'time': 0.05, 'registers': None}
    """
    allowed: dict[str, float | None] = {}
    mistakes: list[tuple[str, str]] = []
    for metric, text in (
        {"time": limits} if isinstance(limits, str) else limits
    ).items():
        try:
            _check_text(metric)
            _check_known(metric, names)
            allowed[metric] = _fraction(text)
        except (ConfigError, UnitError) as error:
            mistakes.append((f"{metric}: {error.message}", error.remedy))
    if mistakes:
        earlier = [f"{message}; {remedy}" for message, remedy in mistakes[:-1]]
        message, remedy = mistakes[-1]
        raise ConfigError("; ".join((*earlier, message)), remedy=remedy)
    return MappingProxyType(allowed)


def _check_text(metric: object) -> None:
    if not isinstance(metric, str):
        raise ConfigError("a metric is named by text", remedy=_CHANGE)


def _fraction(text: object) -> float | None:
    """Return the fraction of a percentage, or None for "off"."""
    if not isinstance(text, str):
        message = f"{text!r} is not text"
        raise ConfigError(message, remedy="put it in quotes, with its %")
    if text.strip().lower() == "off":
        return None
    try:
        quantity = parse_quantity(text)
    except UnitError as error:
        raise ConfigError(error.message, remedy=_CHANGE) from error
    if quantity.si != "fraction":
        raise ConfigError(f"{text!r} is not a percentage", remedy=_CHANGE)
    if quantity.value < 0:
        message = f"{text!r} is negative"
        raise ConfigError(message, remedy="write how much worse it may get")
    return quantity.value


def _metric(text: str, start: int, names: Collection[str]) -> tuple[str, int]:
    recorded = max((k for k in names if _begins(text, start, k)), key=len, default="")
    # A name chosen by the test may contain any character.
    if recorded:
        return recorded, start + len(recorded)
    match = _NAME.match(text, start)
    name = match.group() if match else ""
    if not name:
        _refuse_lookalike(text, start, start + 1)
        message = "a limit begins with a metric"
        raise _syntax(message, "write it as: time <= 60 us", text, start)
    _refuse_lookalike(text, start, start + len(name) + 1)
    _check_known(name, names)
    return name, start + len(name)


def _begins(text: str, start: int, name: str) -> bool:
    if not name or not text.startswith(name, start):
        return False
    following = text[start + len(name) :].lstrip()
    return following == "" or following[0] in "[<>=!"


def _check_known(name: str, names: Collection[str]) -> None:
    if name in METRICS or is_counter(name) or name in names:
        return
    of_test = [k for k in names if len(k) <= _SHORT]
    # `steps.phase("forward")` records the metric `phase.forward`.
    if name.startswith(_PHASE):
        of_test = [f"{_PHASE}{k}" for k in of_test]
    metrics = [*METRICS, *of_test]
    close = tuple(difflib.get_close_matches(name, metrics, n=3, cutoff=0.5))
    meant = f"did you mean {', '.join(close)}" if close else LISTED
    recorded = f"where a helper of the test records it, write records=[{name!r}]"
    raise UnknownMetricError(name, remedy=f"{meant}; {recorded}", close_matches=close)


def _kernel(text: str, start: int) -> tuple[str | None, int]:
    """Return the kernel pattern, or None, and the index after the pattern."""
    place = _skip(text, start)
    if not text.startswith("[", place):
        return None, place
    match = _KERNEL.match(text, place)
    if match is None:
        message = "the kernel's pattern stands in quotes and brackets"
        raise _syntax(message, 'write it as: registers["rmsnorm*"] <= 64', text, place)
    if not match["pattern"]:
        message = "the kernel's pattern is empty"
        raise _syntax(message, 'write "*" for any kernel', text, place)
    return match["pattern"], _skip(text, match.end())


def _operator(text: str, place: int, metric: str) -> tuple[str, int]:
    match = _OPERATOR.match(text, place)
    symbol = match.group() if match else ""
    noisy = metric in METRICS and METRICS[metric].family in _NOISY
    if symbol not in _OPERATORS:
        _refuse_lookalike(text, place, place + max(1, len(symbol)))
        wrong = symbol or text[place:].strip().partition(" ")[0]
        message = (
            f"{wrong!r} is not an operator" if wrong else "the operator is missing"
        )
        meant = _MEANT.get(symbol)
        if noisy and meant == "==":
            meant = _NEAR
        remedy = f"write {meant}" if meant else f"write one of {' '.join(_OPERATORS)}"
        raise _syntax(message, remedy, text, place)
    if symbol == "==" and noisy:
        message = f"{metric} is measured with noise and never equals a number"
        raise _syntax(message, f"write {_NEAR}", text, place)
    return symbol, _skip(text, place + len(symbol))


def _quantity(text: str, place: int, metric: str) -> Quantity:
    rest = text[place:].rstrip()
    if not rest:
        message = "the number is missing"
        raise _syntax(message, "write a number and a unit: 60 us", text, place)
    _refuse_lookalike(text, place, len(text), but=_MICRO)
    after = place  # Where the unit stands, or the number if it is none.
    match = _NUMBER.match(text, place)
    if match is not None and any(c.isdigit() for c in match.group()):
        after = match.end()
        unit, _, trailing = text[after:].strip().partition(" ")
        if unit[:1].isdigit() or unit.startswith(","):
            message = "a number has no spaces and no commas in it"
            raise _syntax(message, "write 1_000 or 1e3", text, after)
        if trailing:
            message = f"{trailing.strip()!r} stands after the limit"
            column = text.rindex(trailing.strip())
            raise _syntax(
                message, 'give each limit its own text: limits=["…", "…"]', text, column
            )
    expected = METRICS[metric].unit if metric in METRICS else None
    try:
        return parse_quantity(rest, si=expected)
    except UnitError as error:
        remedy = error.remedy
        if expected in _BARE:
            remedy = f"write it as {_EXAMPLES[expected]}"
        raise _syntax(error.message, remedy, text, after) from error


def _check_unit(text: str, metric: str, quantity: Quantity) -> None:
    expected = METRICS[metric].unit if metric in METRICS else None
    # The unit of a counter, or of a number recorded by the test, is known only from the
    # record.
    if expected is None:
        return
    value = quantity.value
    if quantity.si is not None and quantity.si != expected:
        message = f"{metric} is in {expected}, the limit in {quantity.si}"
        remedy = f"write it as {_EXAMPLES.get(expected, f'a number of {expected}')}"
    elif quantity.si is None and expected not in _UNITLESS:
        message = f"{metric} needs a unit"
        # The number is the writer's; its unit can only be guessed.
        unit = _EXAMPLES.get(expected, expected).rpartition(" ")[2]
        remedy = f"write its unit, as {value:g} {unit}"
    elif quantity.si is None and expected == "fraction" and value > 1:
        message = f"{value:g} is more than the whole of {metric}"
        remedy = f"write {value:g} %, or a fraction up to 1"
    else:
        return
    raise UnitError(message, path=text.strip(), remedy=remedy)


def _check_possible(
    text: str,
    place: int,
    metric: str,
    kernel: str | None,
    operator: str,
    threshold: float,
) -> None:
    """Refuse a limit that cannot be checked, or that no value breaks or keeps."""
    catalogued = metric_of(metric)
    if kernel is not None and not catalogued.per_kernel:
        message = f"{metric} is not known of each kernel"
        remedy = 'leave the brackets out; registers["rmsnorm*"] belongs to a kernel'
        # A name chosen by the test may contain a "[".
        after = text.index(metric) + len(metric)
        raise _syntax(message, remedy, text, text.index("[", after))
    if catalogued.never_negative and (
        threshold < 0 or (threshold == 0 and operator in {"<", ">="})
    ):
        message = f"{metric} is never below zero"
        raise _syntax(message, "write a number above zero", text, place)
    if operator == "==" and catalogued.whole and not threshold.is_integer():
        message = f"{metric} is a whole number and never equals {threshold:g}"
        raise _syntax(message, "write a whole number", text, place)


def _refuse_lookalike(
    text: str, start: int, end: int, *, but: Collection[str] = ()
) -> None:
    for column, character in enumerate(text[start:end], start):
        if character.isascii() or character in but:
            continue
        name = unicodedata.name(character, f"U+{ord(character):04X}")
        plain = _LOOKALIKES.get(character) or unicodedata.normalize("NFKC", character)
        remedy = f"write {plain!r}" if plain.isascii() else "write it in ASCII"
        message = f"{character!r} ({name.lower()}) is not a character of a limit"
        raise _syntax(message, remedy, text, column)


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _syntax(message: str, remedy: str, text: str, column: int) -> LimitSyntaxError:
    return LimitSyntaxError(message, remedy=remedy, text=text, column=column)
