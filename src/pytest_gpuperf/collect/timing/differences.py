"""Results of two functions that should do the same: do they differ by more than rounding?"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.model.record import Note

# Members of a result that are compared, and levels of containers.
_MOST_MEMBERS = 100
_MOST_LEVELS = 3
# Relative differences that another order of rounding explains, by the bytes of a number.
_ROUNDING = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_ZERO = 1e-6  # A difference from zero has no relative size.
_NUMBERS = (bool, int, float, complex)
# Converting a number takes 20 ns.
_MOST_CONVERTED = 1_000_000


class Tolerance(NamedTuple):
    """
    Differences of numbers that rounding explains.

    Attributes:
        relative: To the larger number.

        absolute: To zero, and of sums whose parts cancel.
    """

    relative: float = _ROUNDING[8]
    absolute: float = _ZERO

    def wider(self, absolute: float) -> Tolerance:
        """Return the tolerance for numbers next to larger ones."""
        return self._replace(absolute=max(self.absolute, absolute))


def tolerance_for(given: Iterable[object]) -> Tolerance:
    """Return the tolerance of results whose numbers may be sums of the arguments."""
    sums = [
        sum(map(abs, filter(math.isfinite, _numbers(each) or ())), 0.0)
        for each in given
    ]
    return Tolerance(absolute=max(_ZERO, sys.float_info.epsilon * max(sums, default=0)))


def differ(
    a: object,
    b: object,
    tolerance: Tolerance = Tolerance(),  # noqa: B008 - it cannot change
    *,
    levels: int = _MOST_LEVELS,
) -> bool:
    """
    Return True if two results are known to differ by more than rounding.

    Lists, tuples and arrays are alike, and so are texts with the same JSON. False for
    results that cannot be compared, and where one function returns None because it writes
    to an argument.
    """
    if a is None or b is None or a is b:
        return False
    if type(a) is not type(b):
        a, b = _as_builtin(a), _as_builtin(b)
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return not _close(complex(a), complex(b), tolerance)
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [(value, b.get(key)) for key, value in a.items()]
        return a.keys() != b.keys() or _any_differ(pairs, tolerance, levels)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return _items_differ(a, b, tolerance, levels)
    return type(a) is type(b) and _values_differ(a, b, tolerance, levels)


def _values_differ(a: Any, b: Any, tolerance: Tolerance, levels: int) -> bool:  # noqa: ANN401 - results of one type
    if isinstance(a, (set, frozenset)):
        numbers, others = _numbers(a), _numbers(b)
        if numbers is None or others is None:
            return bool(a != b)
        return _items_differ(sorted(numbers), sorted(others), tolerance, levels)
    if isinstance(a, str):
        # Bytes may be a compressed or encrypted form of the same.
        return a != b and _documents_differ(a, b, tolerance)
    return _arrays_differ(a, b)


def _as_builtin(value: Any) -> Any:  # noqa: ANN401 - a result
    is_numpy = type(value).__module__ == "numpy" and hasattr(value, "tolist")
    return value.tolist() if is_numpy and value.size <= _MOST_CONVERTED else value


def _numbers(value: Any) -> list[Any] | None:  # noqa: ANN401 - a result or an argument
    """Return the numbers in a flat container, or None if it has anything else."""
    value = _as_builtin(value)
    if not isinstance(value, (set, frozenset, list, tuple)):
        return None
    return [*value] if all(isinstance(v, (int, float)) for v in value) else None


def _documents_differ(a: str, b: str, tolerance: Tolerance) -> bool:
    if not a.lstrip()[:1] == b.lstrip()[:1] in {"{", "["}:
        return True
    try:
        return differ(json.loads(a), json.loads(b), tolerance)
    except ValueError:
        return True


def _close(a: complex, b: complex, tolerance: Tolerance) -> bool:
    if a == b:
        return True
    largest = max(abs(a), abs(b))
    most = max(tolerance.relative * largest, tolerance.absolute)
    # A NaN differs from nothing.
    return largest != math.inf and not abs(a - b) > most


def _items_differ(
    a: Sequence[Any], b: Sequence[Any], tolerance: Tolerance, levels: int
) -> bool:
    if len(a) != len(b):
        return True
    if not _any_differ([*zip(a, b, strict=True)], tolerance, levels):
        return False
    try:
        if list(a) == sorted(a) or list(b) == sorted(b):
            return True
        # Sets and pools give the same items in any order.
        return Counter(a) != Counter(b)
    except Exception:  # noqa: BLE001 - of items that cannot be ordered or hashed
        return True


def _any_differ(
    pairs: Sequence[tuple[Any, Any]], tolerance: Tolerance, levels: int
) -> bool:
    pairs = pairs[:: len(pairs) // _MOST_MEMBERS + 1]
    numbers = [abs(v) for v in chain(*pairs) if isinstance(v, (float, complex))]
    largest = max((v for v in numbers if math.isfinite(v)), default=0.0)
    wider = tolerance.wider(tolerance.relative * largest)
    return levels > 0 and any(differ(*pair, wider, levels=levels - 1) for pair in pairs)


def are_one_set(a: object, b: object, given: Iterable[object]) -> bool:
    """
    Return True for two lists of the same items, one in the order of a set.

    The order of a set may look sorted. A result that is an argument as it was is no set.
    """
    if not (isinstance(a, list) and isinstance(b, list)):
        return False
    try:
        items = {*a}
        is_of_set = [*items] == a or [*{*b}] == b
        is_same = len(items) == len(a) == len(b) and items == {*b}
    except Exception:  # noqa: BLE001 - of items that cannot be hashed
        return False
    return (
        is_of_set
        and is_same
        and not any(each in (a, b) for each in given if isinstance(each, list))
    )


def _arrays_differ(a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of any library
    library: Any = sys.modules.get(type(a).__module__.partition(".")[0])
    if not hasattr(a, "shape") or not hasattr(library, "allclose"):
        return False
    if a.shape != b.shape:
        return True
    if a.dtype != b.dtype:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return not _is_close(library, a, b)
    except Exception:  # noqa: BLE001 - each library has its own errors
        return False


def _is_close(library: Any, a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of a library
    dtype = a.dtype
    is_float = getattr(dtype, "kind", "") in {"f", "c"}
    if not (is_float or getattr(dtype, "is_floating_point", False)):
        return bool((a == b).all())
    sizes = abs(a[library.isfinite(a)])
    largest = float(sizes.max()) if len(sizes) else 0.0
    most = _ROUNDING[sizes.dtype.itemsize]
    return bool(library.allclose(a, b, rtol=most, atol=most * largest, equal_nan=True))


def differing(
    requests: Sequence[TimedCall], timings: Sequence[Timing]
) -> tuple[Note, ...]:
    """Return a doubt if two functions return different results for the same inputs."""
    if any(request.setup or len(request.inputs or "1") > 1 for request in requests):
        return ()
    codes = {note.code for timing in timings for note in timing.notes}
    a, b = (timing.result for timing in timings)
    if "outputs-differ" in codes or not differ(a, b):
        return ()
    given = [v for r in requests for v in (*r.args, *r.kwargs.values())]
    # Looked at last, because arguments may be large.
    if are_one_set(a, b, given) or not differ(a, b, tolerance_for(given)):
        return ()
    text = "the two functions return different results, so they may do different work"
    return (Note(code="sides-differ", text=text, doubt=True),)
