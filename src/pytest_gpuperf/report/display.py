"""Numbers and names as people read them.

Only this module multiplies by 100, and writes microseconds or gigabytes. A number is never rounded
past its limit: it gets more digits until it shows the right side.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING

from pytest_gpuperf.model.environment import TEST
from pytest_gpuperf.model.quantity import KiB, counter_unit
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    from pytest_gpuperf.model.telemetry import UtilizationWindow

# Sensors of a time line, in order: name and unit by the field of a CanonicalRecord.
SENSORS = {
    "sm_clock_hz": ("SM clock", "Hz"),
    "power_watts": ("power", "W"),
    "temperature_celsius": ("temperature", "°C"),
    "sm_active_fraction": ("SM active", "fraction"),
    "tensor_active_fraction": ("tensor active", "fraction"),
    "dram_active_fraction": ("DRAM active", "fraction"),
    "gpu_busy_fraction": ("GPU busy", "fraction"),
}

# From here on, seconds are too fine for a waiting time.
_MINUTES_FROM_S = 120
_NAMED = 3  # Tests or files named in a sentence.
# Classes shown in a line about utilization. The rest is a single part.
_SHOWN_CLASSES = 3
_COMMIT_DIGITS = 7  # As in git.
# A larger factor is easier to read than a percentage.
_DOUBLED = 2.0
# From here on, a factor needs no decimal.
_ROUND_FACTOR = 10.0
# A larger factor is useless to a reader.
_MOST_FACTOR = 1000
# A half-width whose text needs no decimals [%], and further digits that may round it
# either way.
_LEAST_QUICK, _MOST_QUICK = 0.01, 90.0
_UNSURE = frozenset({"4999", "5000", "0000", "9999"})
_DIGITS = 3  # Significant digits of a measured value.
# Significant digits of a limit. People write fewer, computed limits have more.
_LIMIT_DIGITS = 6
# Values with a smaller relative difference differ by rounding, not by measurement.
_SAME_SHARE = 1e-9
# The shortest text of a float has at most 17 digits, so nothing is rounded here.
_ALL_DIGITS = 18
# The last decimal of a change in percent, and the decimals of one between two texts.
_QUANTUM, _TIE_DECIMALS = 0.001, 4
# Outside this range, 1.23e-09 is shorter than the zeros.
_PLAIN_EXPONENTS = range(-4, 16)

# [B]. Only limits are written in KiB, and from a MiB on they are decimal.
_KIB = int(KiB)

# Every float written out has fewer digits.
_WIDE = Context(prec=1100)

Prefixes = tuple[tuple[str, int], ...]

_LARGE = (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15))


def _prefixed(unit: str, *exponents: int) -> Prefixes:
    letters = {-3: "m", **{exponent: letter for letter, exponent in _LARGE}}
    return tuple((letters[exponent] + unit, exponent) for exponent in exponents)


# Spellings with powers of ten, from small to large, by SI unit.
_SPELLINGS: dict[str, Prefixes] = {
    "s": (("ns", -9), ("us", -6), ("ms", -3), ("s", 0)),
    "bytes": _prefixed("B", 0, 3, 6, 9, 12, 15),
    "bytes/s": _prefixed("B/s", 0, 3, 6, 9, 12, 15),
    "FLOP": _prefixed("FLOP", 0, 3, 6, 9, 12, 15),
    "FLOP/s": _prefixed("FLOP/s", 0, 3, 6, 9, 12, 15),
    "fraction": (("%", -2),),
    "count": (("", 0),),
    "ratio": (("x", 0),),
    "J": _prefixed("J", -3, 0, 3),
    "W": _prefixed("W", -3, 0, 3),
    "Hz": _prefixed("Hz", 0, 3, 6, 9),
}

# Units of facts by the suffix of their names, and the patterns of a number and a peak.
_OF_FACTS = {"_bytes": "bytes", "_hz": "Hz", "_watts": "W"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PEAK = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e\+?\d+)?) G(FLOP/s|B/s)")
_GIGA = 1e9

_FINE = {"s": ("us", 6), "fraction": ("%", 2), "J": ("mJ", 3)}

# Units of bytes in Nsight Compute. These are converted, because nine digits are unreadable.
_BYTES = re.compile(r"[KMGT]?byte(?:/[mun]?s(?:econd)?)?|B(?:/s)?")

# Trailing zeros of these units show the precision. In other units, a value that needs
# no rounding needs no zeros either: 40 B, not 40.0 B.
_MEASURED = frozenset({"s", "bytes/s", "FLOP/s", "fraction", "J", "W", "Hz"})

# Units whose texts `_quickly` writes, which are the most frequent.
_QUICK = frozenset({"s", "bytes/s", "FLOP/s", "J", "W", "Hz"})


def value(
    number: float, unit: str, *, digits: int = _DIGITS, limits: Iterable[float] = ()
) -> str:
    """
    Return a value with its unit, as 41.2 us or 1.07 GB.

    Args:
        number: The value in `unit`, finite.

        unit: An SI unit, or a tool's unit of bytes, which is converted. Any other unit is written
            unchanged, with the number unconverted.

        digits: Significant digits, >= 1. Whole numbers keep all digits, rates do not.

        limits: Numbers that the text must stay on the right side of. A fraction also keeps to its
            side of 0 and 1.

    Example:
        >>> value(0.0000412, "s"), value(0.99996, "fraction"), value(76.8, "Mbyte")
        ('41.2 us', '99.996 %', '76.8 MB')
        >>> value(95697.3, "sample/s"), value(95697.0, "sample")
        ('95700 sample/s', '95697 sample')
    """
    several = (*limits,)
    if not several and (text := _quickly(number, unit, digits)):
        return text
    unit, (exact, *bounds) = _in_si(unit, number, *several)
    if unit == "fraction":
        bounds += [Decimal(0), Decimal(1)]
    sides = [(bound, exact.compare(bound)) for bound in bounds]
    for more in range(digits, _ALL_DIGITS):
        rounded = _rounded(exact, unit, more)
        if all(rounded.compare(bound) == side for bound, side in sides):
            return _written(rounded, unit, exact)
    return _written(exact, unit, exact)


def signed(number: float, unit: str) -> str:
    """Return a difference of two values with its sign, as +12.8 us, or "" for no difference."""
    if not number:
        return ""
    return f"{'-' if number < 0 else '+'}{value(abs(number), unit)}"


def in_fine_unit(number: float, unit: str) -> tuple[float, str]:
    """
    Return a value in a fixed unit per quantity, for programs that show only 3 decimals.

    Example:
        >>> in_fine_unit(2.5e-6, "s"), in_fine_unit(64.0, "bytes")
        ((2.5, 'us'), (64.0, 'bytes'))
    """
    spelling, exponent = _FINE.get(unit, (unit, 0))
    return float(Decimal(repr(number)).scaleb(exponent)), spelling


def time_in(number_s: float, unit: str | None) -> str:
    """
    Return a time in a requested unit.

    Args:
        number_s: The time [s].

        unit: ns, us, ms or s, or None to choose a suitable unit.

    Example:
        >>> time_in(0.0000412, "ms"), time_in(0.0000412, None)
        ('0.0412 ms', '41.2 us')
    """
    if unit is None:
        return value(number_s, "s")
    exponent = dict(_SPELLINGS["s"])[unit]
    rounded = _rounded(_exact(number_s), "s", _DIGITS)
    return f"{rounded.scaleb(-exponent, context=_WIDE):f} {unit}"


@functools.lru_cache(maxsize=1024)  # Limits and ticks of axes repeat.
def exactly(number: float, unit: str) -> str:
    """
    Return a number written by a person, with all its digits.

    Example:
        >>> exactly(60e-6, "s"), exactly(0.05, "fraction")
        ('60 us', '5 %')
    """
    unit, (exact,) = _in_si(unit, number)
    return _in_kib(exact, unit) or _bare(exact, unit)


def verbatim(number: float, unit: str) -> str:
    """
    Return a number of a tool with the tool's own unit, unconverted.

    Args:
        number: The number of the tool. Whole numbers keep their digits, others have six.

        unit: The unit in the tool's spelling.
    """
    exact = _exact(number)
    rounded = _rounded(exact, "", _LIMIT_DIGITS)
    return f"{_bare(rounded, '')} {escape(unit)}".rstrip()


def pair(
    number: float, reference: float, unit: str, *, is_limit: bool = False
) -> tuple[str, str]:
    """
    Return two values in a common unit, with enough digits to show which is larger.

    A value that differs from an older one by less than 1e-9 of it is shown as equal.

    Args:
        number: A value, in `unit`.

        reference: An older value, or a limit.

        unit: The unit of both.

        is_limit: Whether `reference` is a limit, to be shown as it was written.

    Example:
        >>> pair(60.0001e-6, 60e-6, "s", is_limit=True)
        ('60.0001 us', '60 us')
    """
    is_same = math.isclose(number, reference, rel_tol=_SAME_SHARE)
    if not (is_limit or is_same):
        texts = (_quickly(n, unit, _DIGITS) for n in (number, reference))
        quick, quick_reference = texts
        # Values that are rounded apart are in their order.
        if quick and quick_reference and quick != quick_reference:
            return quick, quick_reference
    unit, (left, right) = _in_si(unit, number, reference)
    kib = _in_kib(left, unit), _in_kib(right, unit)
    if is_limit and all(kib):
        return kib
    if not is_limit and is_same:
        # The values are equal except for rounding errors.
        left = right
    shown, shown_reference = left, right
    for digits in range(_DIGITS, _ALL_DIGITS):
        shown = _rounded(left, unit, digits)
        reference_digits = max(digits, _LIMIT_DIGITS) if is_limit else digits
        shown_reference = _rounded(right, unit, reference_digits)
        if shown.compare(shown_reference) == left.compare(right):
            break
    reference_text = (
        _bare(shown_reference, unit)
        if is_limit
        else _written(shown_reference, unit, right)
    )
    return _written(shown, unit, left), reference_text


def interval(
    low: float, high: float, unit: str, *, limits: Iterable[float] = ()
) -> str:
    """
    Return both ends of an interval, as 61.1 … 61.5 us.

    Args:
        low: The lower end, in `unit`.

        high: The upper end.

        unit: The unit of both.

        limits: Numbers that each end must stay on the right side of.
    """
    unit, (left_end, right_end, *bounds) = _in_si(unit, low, high, *limits)
    ends = left_end, right_end
    shown = ends
    for digits in range(_DIGITS, _ALL_DIGITS):
        shown = _rounded(ends[0], unit, digits), _rounded(ends[1], unit, digits)
        keeps_order = shown[0].compare(shown[1]) == ends[0].compare(ends[1])
        if keeps_order and all(
            rounded.compare(bound) == end.compare(bound)
            for bound in bounds
            for rounded, end in zip(shown, ends, strict=True)
        ):
            break
    left, right = (
        _written(rounded, unit, end) for rounded, end in zip(shown, ends, strict=True)
    )
    number, _, name = left.partition(" ")
    return f"{number if name == right.partition(' ')[2] else left} … {right}"


def spread(estimate: Estimate) -> str:
    """
    Return the half-width of a value's interval, as ±0.3 %, or "" without an interval.

    The longer half counts. It has a single digit, or two if the first digit is a 1. Large numbers
    have commas: ±2,500 %.
    """
    if estimate.low is None or estimate.high is None or estimate.value == 0:
        return ""
    if text := _quick_spread(estimate.value, estimate.low, estimate.high):
        return text
    centre = _exact(estimate.value)
    reach = max(centre - _exact(estimate.low), _exact(estimate.high) - centre)
    share = abs(reach / centre)
    first = str(share.normalize().as_tuple().digits[0])
    digits = 2 if first == "1" else 1
    number, _, name = _bare(_rounded(share, "fraction", digits), "fraction").partition(
        " "
    )
    return f"±{int(number):,} {name}" if number.isdigit() else f"±{number} {name}"


def _quick_spread(value: float, low: float, high: float) -> str:
    """
    Return the text of `spread` without decimals, or "" of one that needs them.

    That is one near a tie or another first digit, or not from 0.01 to 90 %.
    """
    percent = 100 * max(value - low, high - value) / abs(value)
    if not _LEAST_QUICK <= percent < _MOST_QUICK:
        return ""
    mantissa, _, power = f"{percent:.9e}".partition("e")
    exponent = int(power)
    digits = max(2 if mantissa[0] == "1" else 1, exponent + 1)
    rest = mantissa.replace(".", "")[digits:]
    if rest[:4] in _UNSURE or mantissa[2:6] in _UNSURE:
        return ""
    number = f"{percent:.{digits - 1 - exponent}f}"
    return f"±{number.rstrip('0').rstrip('.') if '.' in number else number} %"


def change(effect: float, *, limits: Iterable[float] = (), signed: bool = True) -> str:
    """
    Return a relative change, as +7.9 %.

    Args:
        effect: The change: 0.05 is 5 % more.

        limits: Changes that the text must stay on the right side of.

        signed: Whether a plus is written.
    """
    return f"{_percent(effect, limits, signed=signed)} %"


def least(effect: float, limits: Iterable[float] = ()) -> str:
    """
    Return the smallest detectable change, as a factor if larger than a doubling.

    Example:
        >>> least(0.244), least(2.31), least(191979.64)
        ('24.4 %', '3.3 x', '1000 x')
    """
    factor = 1 + effect
    if factor <= _DOUBLED:
        return change(effect, limits=limits, signed=False)
    if factor > _MOST_FACTOR:
        return f"{_MOST_FACTOR} x"
    return f"{factor:.1f} x" if factor < _ROUND_FACTOR else f"{factor:.0f} x"


def change_interval(low: float, high: float, *, limits: Iterable[float] = ()) -> str:
    """Return both ends of a change's interval, as +7.1 … +8.6 %."""
    bounds = tuple(limits)
    left, right = (_percent(end, bounds, signed=True) for end in (low, high))
    return f"{left} … {right} %"


def whole_percent(fraction: float) -> str:
    """
    Return a fraction in whole percent. A small fraction is never shown as 0.

    Example:
        >>> whole_percent(0.254), whole_percent(0.002)
        ('25 %', 'under 1 %')
    """
    return "under 1 %" if fraction < 0.01 else f"{fraction:.0%}".replace("%", " %")  # noqa: PLR2004 - 1 %


def points(difference: float) -> str:
    """
    Return the difference of two fractions in percentage points.

    Example:
        >>> points(-0.0526)
        '-5.3 points'
    """
    return f"{100 * difference:+.1f} points"


def typed_percent(share: float) -> str:
    """Return a fraction as CSS and options write it, in percent with two decimals."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def commit(name: str | None) -> str:
    """Return a commit shortened like git does, escaped for printing, or "" without a commit."""
    return escape(name or "")[:_COMMIT_DIGITS]


def extent(numbers: tuple[int, int, int]) -> str:
    """
    Return a grid or a block as text, without trailing dimensions of 1.

    Example:
        >>> extent((1024, 4, 1)), extent((256, 1, 1))
        ('1024x4', '256')
    """
    x, y, z = numbers
    return "x".join(map(str, (x, y, z) if z > 1 else (x, y) if y > 1 else (x,)))


def fact_label(name: str) -> str:
    """
    Return the display name of a fact, without the unit.

    Example:
        >>> fact_label("max_sm_clock_hz")
        'max sm clock'
    """
    return name.removesuffix(next(filter(name.endswith, _OF_FACTS), "")).replace(
        "_", " "
    )


def fact(name: str, text: str) -> str:
    """
    Return the value of a fact as people read it.

    Args:
        name: The fact's name. Its last word may be a unit.

        text: The value, as a record has it.

    Example:
        >>> fact("gpu_memory_bytes", "150754820096")
        '151 GB'
        >>> fact("peak", "bf16 989170 GFLOP/s (estimated)")
        'bf16 989 TFLOP/s (estimated)'
    """
    suffix = next(filter(name.endswith, _OF_FACTS), None)
    if suffix is not None and _NUMBER.fullmatch(text):
        return value(float(text), _OF_FACTS[suffix])
    return _PEAK.sub(lambda peak: value(float(peak[1]) * _GIGA, peak[2]), text)


def moved_fact(name: str, was: str, now: str) -> tuple[str, str]:
    """Return two values of a fact as people read them, or unchanged if both would look alike."""
    if name == TEST:  # A digest is unreadable.
        return "another source", "this source"
    shown = fact(name, was), fact(name, now)
    return (was, now) if shown[0] == shown[1] else shown


def board(uuid: str) -> str:
    """
    Return the beginning of a GPU's UUID, which `--gpuperf-device` accepts.

    Example:
        >>> board("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
        'GPU-00010203'
    """
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest.partition('-')[0]}" if rest else uuid


def date(unix_s: float) -> str:
    """Return the day of a time since the epoch [s], in UTC, or "?" if out of range."""
    return _in_utc(unix_s, "%Y-%m-%d")


def moment(unix_s: float) -> str:
    """Return the minute of a time since the epoch [s], in UTC, or "?" if out of range."""
    return _in_utc(unix_s, "%Y-%m-%d %H:%M UTC")


def second(unix_s: float) -> str:
    """Return the second of a time since the epoch [s], in UTC, or "?" if out of range."""
    return _in_utc(unix_s, "%Y-%m-%d %H:%M:%S UTC")


def about(duration_s: float) -> str:
    """Return a waiting time, rounded to seconds or minutes."""
    if duration_s < _MINUTES_FROM_S:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with a noun, as 1 session or 5 processes."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def some_of(names: Sequence[str]) -> str:
    """
    Return the first few names, and the number of further names.

    Example:
        >>> some_of(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def utilization_lines(windows: Sequence[UtilizationWindow]) -> list[str]:
    """
    Return a line per GPU: the score, and the classes of its time, longest first.

    Args:
        windows: The utilization of each GPU. The GPU is named if there are several.

    Example:
        >>> from pytest_gpuperf.model.telemetry import UtilizationWindow
        >>> utilization_lines(
        ...     [
        ...         UtilizationWindow(
        ...             gpu_index=0,
        ...             gpu_uuid="",
        ...             duration_s=2.0,
        ...             reading_count=20,
        ...             class_s={"compute-heavy": 1.5, "idle": 0.5},
        ...             incomplete_s=0.0,
        ...             unobserved_s=0.0,
        ...             real_util=48.2,
        ...             real_util_p50=61.0,
        ...             real_util_p95=64.0,
        ...         )
        ...     ]
        ... )
        ['utilization 48 of 100 (p50 61, p95 64): 75 % compute-heavy, 25 % idle']
    """
    numbered = len(windows) > 1
    lines = []
    for window in windows:
        head = f"GPU {window.gpu_index} utilization" if numbered else "utilization"
        if window.reading_count == 0 or window.duration_s <= 0:
            lines.append(f"{head} n/a: no reading during the test")
            continue
        score = "n/a"
        if window.real_util is not None:
            ends = {"p50": window.real_util_p50, "p95": window.real_util_p95}
            known = [
                f"{name} {end:.0f}" for name, end in ends.items() if end is not None
            ]
            score = f"{window.real_util:.0f} of 100"
            score += f" ({', '.join(known)})" if known else ""
        parts = (
            f"{whole_percent(part_s / window.duration_s)} {escape(label)}"
            for label, part_s in utilization_parts(window, most_classes=_SHOWN_CLASSES)
        )
        lines.append(f"{head} {score}: {', '.join(parts)}")
    return lines


def utilization_parts(
    window: UtilizationWindow, *, most_classes: int | None = None
) -> list[tuple[str, float]]:
    """
    Return the classes of a GPU's time, the longest first, unobserved time last.

    Args:
        window: The utilization of the GPU.

        most_classes: Number of classes with a separate part, or None for all classes.

    Returns:
        Name and length [s] of each part that is not empty.
    """
    classes = sorted(window.class_s.items(), key=lambda part: (-part[1], part[0]))
    shown = classes[:most_classes]
    rest = classes[len(shown) :]
    parts = [
        *shown,
        (f"{len(rest)} other classes", sum(part_s for _, part_s in rest)),
        ("without SM, tensor or DRAM activity", window.incomplete_s),
        ("not observed", window.unobserved_s),
    ]
    return [part for part in parts if part[1] > 0]


@functools.lru_cache(maxsize=1024)  # All tests have the same sessions.
def _in_utc(unix_s: float, form: str) -> str:
    try:
        utc = datetime.datetime.fromtimestamp(unix_s, tz=datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "?"
    return utc.strftime(form)


def _exact(number: float) -> Decimal:
    """Return the shortest decimal that reads back as the same float. The order is kept."""
    return Decimal(repr(float(number))) + 0  # Adding 0 turns minus zero into zero.


# A page shows most values several times. Equal numbers of other types need decimals.
@functools.lru_cache(maxsize=512, typed=True)
def _quickly(number: float, unit: str, digits: int) -> str:
    """
    Return the text of `value` without decimals, or "" of a value that needs them.

    Most values are times and rates that are no whole numbers. A float is formatted by its
    exact value and a decimal by its shortest text, which only a tie rounds otherwise.
    """
    if unit not in _QUICK or type(number) is not float or not number:
        return ""
    # A tie: the shortest text lies between two rounded ones. Another digit tells most.
    if f"{number:.{digits}e}".partition("e")[0][-1] == "5":
        text = repr(number).partition("e")[0].lstrip("-").replace(".", "").strip("0")
        if len(text) == digits + 1 and text[-1] == "5":
            return ""
    mantissa, _, power = f"{number:.{digits - 1}e}".partition("e")
    exponent = int(power)
    name, least = _SPELLINGS[unit][0]
    for name_of, least_of in _SPELLINGS[unit]:
        if least_of <= exponent:
            name, least = name_of, least_of
    whole = exponent - least + 1  # Digits before the point.
    if not 0 < whole <= digits:
        return ""
    sign = "-" if mantissa[0] == "-" else ""
    plain = mantissa.lstrip("-").replace(".", "")
    point = "." if whole < digits else ""
    return f"{sign}{plain[:whole]}{point}{plain[whole:]} {name}"


def _in_si(unit: str, *numbers: float) -> tuple[str, list[Decimal]]:
    """Convert numbers in a tool's unit of bytes to the SI unit. Other units stay unchanged."""
    exact = [_exact(number) for number in numbers]
    scale = counter_unit(unit) if _BYTES.fullmatch(unit) else None
    if scale is None:
        return unit, exact
    factor = _exact(scale.factor)
    return scale.si, [_WIDE.multiply(number, factor) for number in exact]


def _in_kib(number: Decimal, unit: str) -> str:
    """Return a limit of shared memory in whole KiB as text, or "" if it is no such number."""
    if unit != "bytes" or not _KIB <= number < _KIB**2 or number % _KIB:
        return ""
    return f"{int(number) // _KIB} KiB"


def _rounded(number: Decimal, unit: str, digits: int) -> Decimal:
    """Round a number to significant digits. Digits before the point are all kept."""
    if number == 0:
        return Decimal(0)
    first = _WIDE.plus(number.normalize(_context(digits)))
    _, exponent = _spelling(first, unit)
    if first.adjusted() - exponent not in _PLAIN_EXPONENTS:
        return first
    places = max(0, digits - 1 - (first.adjusted() - exponent))
    if unit not in _SPELLINGS and unit.endswith("/s"):  # A rate without prefixes.
        places = digits - 1 - first.adjusted()
    elif unit not in _SPELLINGS and number == number.to_integral_value():
        places = 0
    return number.quantize(Decimal(1).scaleb(exponent - places), context=_WIDE)


@functools.cache
def _context(digits: int) -> Context:
    return Context(prec=digits)


def _spelling(number: Decimal, unit: str) -> tuple[str, int]:
    spellings = _SPELLINGS.get(unit) or ((escape(unit), 0),)
    if number == 0:
        return min(spellings, key=lambda spelling: abs(spelling[1]))
    fitting = [spelling for spelling in spellings if spelling[1] <= number.adjusted()]
    return fitting[-1] if fitting else spellings[0]


def _written(rounded: Decimal, unit: str, number: Decimal) -> str:
    """Return a rounded number with its unit. Trailing zeros show the precision."""
    if number == 0 or (rounded == number and unit not in _MEASURED):
        return _bare(rounded, unit)
    return _spelled(rounded, unit)


def _bare(number: Decimal, unit: str) -> str:
    return _spelled(number.normalize(_WIDE), unit)


def _spelled(number: Decimal, unit: str) -> str:
    name, exponent = _spelling(number, unit)
    scaled = number.scaleb(-exponent, context=_WIDE)
    small = number == 0 or scaled.adjusted() in _PLAIN_EXPONENTS
    text = f"{scaled:f}" if small else f"{scaled:e}"
    return f"{text} {name}".rstrip()


def _percent(effect: float, limits: Iterable[float], *, signed: bool) -> str:
    """Return a change in percent, with one decimal at most unless the limits require more."""
    limits = (*limits,)
    if text := _quick_percent(effect, limits):
        return text if signed else text.lstrip("+")
    exact = _exact(effect).scaleb(2, context=_WIDE)
    sides = [
        (bound, exact.compare(bound))
        for bound in (_exact(limit).scaleb(2, context=_WIDE) for limit in limits)
    ]
    shown = exact
    for places in range(0 if abs(exact) >= 100 else 1, 340):  # noqa: PLR2004 - percent; below the smallest float
        shown = exact.quantize(Decimal(1).scaleb(-places), context=_WIDE)
        if all(shown.compare(bound) == side for bound, side in sides):
            break
    if shown == 0:
        return f"{abs(shown):f}"
    return f"{shown:+f}" if signed else f"{shown:f}"


def _quick_percent(effect: float, limits: Iterable[float]) -> str:
    """
    Return the text of `_percent` with its sign, or "" of a change that needs decimals.

    That is one near 0, a limit or a tie, or beyond 100 %.
    """
    if type(effect) is not float or not _QUANTUM < abs(effect) < 1:
        return ""
    if any(abs(effect - limit) <= _QUANTUM for limit in limits):
        return ""
    text = repr(effect).partition(".")[2]
    if len(text) == _TIE_DECIMALS and text[-1] == "5":
        return ""
    whole, tenth = divmod(int(f"{abs(effect):.3f}".replace(".", "")), 10)
    return f"{'-' if effect < 0 else '+'}{whole}.{tenth}"


_SHOWN_NAMES = 8


def listed(texts: Iterable[str], *, most: int = _SHOWN_NAMES) -> str:
    """Join distinct texts, and count the texts beyond `most`."""
    shown = list(dict.fromkeys(texts))
    if len(shown) > most:
        shown[most:] = [f"{len(shown) - most} more"]
    return ", ".join(shown)
