"""What must hold of a training step whatever its speed.

A limit says how fast a step has to be; an invariant says what its parts have to do with
each other: where it fails, the model or the timing is not what it is taken for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.measured_scorecard import (
    UNATTRIBUTED,
    Invariant,
    InvariantResult,
    MeasuredScorecard,
)
from pytest_gpuperf.model.mistakes import Mistake, refuse
from pytest_gpuperf.model.step_profile import Phase, StepProfile
from pytest_gpuperf.model.steps import SpanKind
from pytest_gpuperf.model.verdict import Outcome

__all__ = ["QUANTITIES", "checked", "parse_invariant"]

_KINDS = (*(kind.value for kind in SpanKind), UNATTRIBUTED)  # [ms]
_DEVICE = ("busy", "launching", "waiting")  # [ms]
_NUMBERS = (
    "throughput",
    "efficiency",
    "bandwidth_fraction",
    "compute_fraction",
    "coverage",
    "backward_forward_ratio",
    "layer_ratio_low",
    "layer_ratio_median",
    "layer_ratio_high",
)
_STEP = "step"  # [ms]
QUANTITIES = (_STEP, *_KINDS, *_DEVICE, *_NUMBERS)
_NAMED = ("phase", "op", "counter")  # each with a name behind it: phase["loss"] [ms]
_ALL = (*QUANTITIES, *(f'{kind}["…"]' for kind in _NAMED))

_QUANTITY = r'[a-z_]+(?:\["[^"]+"\])?'
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s*%)?"
_INVARIANT = re.compile(
    rf"\s*(?P<part>{_QUANTITY})(?:\s*/\s*(?P<whole>{_QUANTITY}))?\s*"
    rf"(?:\bbetween\s+(?P<low>{_NUMBER})\s+and\s+(?P<high>{_NUMBER})"
    rf"|>=\s*(?P<least>{_NUMBER})|<=\s*(?P<most>{_NUMBER}))\s*"
)
_ONE = re.compile(r'(?P<kind>[a-z_]+)\["(?P<name>[^"]+)"\]')
_EXAMPLE = 'write it as "backward / forward between 1.5 and 3"'


def parse_invariant(text: str) -> Invariant:
    """
    Read an invariant.

    Args:
        text: A quantity, or one over another, and its bounds: `between X and Y`,
            `>= X` or `<= Y`. Quantities are those of `QUANTITIES`, `phase["loss"]`,
            `op["softmax"]` and `counter["dram_bytes"]`; a bound may be in percent.

    Raises:
        RecordError: It is none, or asks for a quantity that there is not.

    Example:
        >>> invariant = parse_invariant("backward / forward between 1.5 and 3")
        >>> invariant.part, invariant.whole, invariant.low, invariant.high
        ('backward', 'forward', 1.5, 3.0)
    """
    found = _INVARIANT.fullmatch(text)
    if found is None:
        message = f"{text!r} is no invariant"
        raise RecordError(message, path="invariants", remedy=_EXAMPLE)
    invariant = Invariant(
        name=" ".join(text.split()),
        part=found["part"],
        whole=found["whole"],
        low=_bound(found["low"] or found["least"]),
        high=_bound(found["high"] or found["most"]),
    )
    refuse(list(_unknown(invariant)), remedy=_EXAMPLE)
    return invariant


def checked(
    invariants: Sequence[Invariant | str],
    scorecard: MeasuredScorecard,
    profile: StepProfile,
) -> tuple[InvariantResult, ...]:
    """
    Return whether invariants hold of a step; what cannot be known is unmeasured.

    Args:
        invariants: Made, or as text that `parse_invariant` reads.

        scorecard: The step's scorecard.

        profile: What it was made from.

    Raises:
        RecordError: One is none, or asks for a quantity that there is not; all of the
            mistakes are named.
    """
    mistakes: list[Mistake] = []
    known: list[Invariant] = []
    for place, each in enumerate(invariants):
        try:
            invariant = parse_invariant(each) if isinstance(each, str) else each
        except RecordError as error:
            path = f"invariants[{place}]"
            mistakes.append(Mistake(path=path, text=error.message))
            continue
        if invariant is each:
            mistakes += _unknown(invariant)
        known.append(invariant)
    refuse(mistakes, remedy=_EXAMPLE)
    if not known:
        return ()
    values = _values(scorecard, profile)
    return tuple(_held(invariant, values) for invariant in known)


def _held(invariant: Invariant, values: Mapping[str, float | None]) -> InvariantResult:
    """Return whether one invariant holds."""
    value, why = _ratio(invariant, values)
    if value is None:
        outcome = Outcome.UNMEASURED
    else:
        low = -math.inf if invariant.low is None else invariant.low
        high = math.inf if invariant.high is None else invariant.high
        outcome = Outcome.PASSED if low <= value <= high else Outcome.FAILED
    return InvariantResult(
        name=invariant.name,
        outcome=outcome,
        value=value,
        low=invariant.low,
        high=invariant.high,
        why=why,
    )


def _ratio(
    invariant: Invariant, values: Mapping[str, float | None]
) -> tuple[float | None, str]:
    """Return what is held against the bounds, or why it is not known."""
    names = [name for name in (invariant.part, invariant.whole) if name is not None]
    lacking = [name for name in names if values.get(name) is None]
    if lacking:
        return None, f"{' and '.join(lacking)}: not in the profile"
    part, *whole = (values[name] or 0.0 for name in names)
    if not whole:
        return part, ""
    if whole[0] <= 0:
        return None, f"{invariant.whole} is {whole[0]!r}"
    ratio = part / whole[0]
    return (ratio, "") if math.isfinite(ratio) else (None, "no float holds the ratio")


def _values(
    scorecard: MeasuredScorecard, profile: StepProfile
) -> dict[str, float | None]:
    """Return every quantity that a step has, by the name that asks for it."""
    values: dict[str, float | None] = {s.kind: s.ms for s in scorecard.shares}
    values |= {name: getattr(scorecard, name) for name in _NUMBERS}
    if scorecard.step is not None:
        values[_STEP] = scorecard.step.median_ms or scorecard.step.mean_ms
    if scorecard.device is not None:
        device = scorecard.device
        values |= {name: getattr(device, f"{name}_ms") for name in _DEVICE}
    phases = profile.phases.items()
    values |= {f'phase["{name}"]': _own_ms(phase) for name, phase in phases}
    values |= {f'op["{each.name}"]': each.ms for each in scorecard.operations}
    values |= {f'counter["{name}"]': v for name, v in profile.counters.items()}
    return values


def _own_ms(phase: Phase) -> float:
    """Return a phase's time in a step without those nested in it [ms]."""
    return phase.avg_ms if phase.exclusive_ms is None else phase.exclusive_ms


def _unknown(invariant: Invariant) -> Iterator[Mistake]:
    """Yield the quantities of an invariant that there are not."""
    for name in (invariant.part, invariant.whole):
        if name is None or name in QUANTITIES:
            continue
        one = _ONE.fullmatch(name)
        if one is None or one["kind"] not in _NAMED:
            text = f"{name} is no quantity of a step; there are {', '.join(_ALL)}"
            yield Mistake(path=invariant.name, text=text)


def _bound(text: str | None) -> float | None:
    """Return a bound; None where there is none."""
    if text is None:
        return None
    number, percent, _ = text.partition("%")
    return float(number) / 100 if percent else float(number)
