"""Grades of calls and loops by their share of the roof, and the readiness of a machine.

A grade is a limit in other words: `min_grade="B"` under the memory roof is
`roofline.fraction >= 70 %`, and is judged like that limit. A machine is ready, degraded or
blocked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from pytest_gpuperf.errors import ConfigError, RecordError, UnitError
from pytest_gpuperf.model.gap import (
    Concern,
    Condition,
    Finding,
    Obstacle,
    Readiness,
    Status,
)
from pytest_gpuperf.model.quantity import parse_quantity
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.roofline import TRAINING_BANDS, Attainment, Bands, Grade
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.verdict import Limit

GRADE = "scorecard.grade"
_RATE = "throughput"
# The concerns that need a GPU. Timing is the minimum.
_GPU_CONCERNS: tuple[Concern, ...] = (
    "timing",
    "counters",
    "launches",
    "energy",
    "memory",
)

# Simple kernels reach the memory roof. Even the best libraries do not reach the
# datasheet's roof of the tensor cores, so that roof has bands of its own, unless it was
# measured with such a library.
GRADES: Mapping[str, Bands] = MappingProxyType(
    {
        "memory": Bands(a=0.85, b=0.70, c=0.50, d=0.25),
        "compute": Bands(a=0.70, b=0.55, c=0.35, d=0.15),
        "compute_measured": Bands(a=0.90, b=0.75, c=0.50, d=0.25),
    }
)
# F is everything below D.
_LETTERS = tuple(Grade.__members__)[:-1]
_BAND = re.compile(r"\s*(?P<letter>\w+)\s+(?P<share>[^,]+?)\s*")
_EXAMPLE = "write memory: A 85%, B 70%, C 50%, D 25%"


def grade_of(attained: Attainment, grades: Mapping[str, Bands] | None = None) -> Grade:
    """
    Return the grade of a roofline result.

    Args:
        attained: The share of the roof that the call reached.

        grades: The thresholds of the grades, by roof. Missing roofs use the defaults.
    """
    return Grade.from_efficiency(attained.fraction, _bands(attained, grades))


def grade_limit(
    attained: Attainment, grade: str, grades: Mapping[str, Bands] | None = None
) -> Limit:
    """
    Return the limit that stands for a minimum grade under the roof of a call.

    Args:
        attained: The share of the roof that the call reached.

        grade: A, B, C, D or F.

        grades: The thresholds of the grades, by roof. Missing roofs use the defaults.
    """
    least = _bands(attained, grades).least(Grade(grade))
    return Limit(
        text=f'min_grade="{grade}" (roofline.fraction >= {least:g})',
        metric="roofline.fraction",
        operator=">=",
        threshold=least,
        unit="fraction",
    )


def rate_limit(record: Record, grade: str) -> Limit | None:
    """
    Return the minimum throughput of a loop for a grade, or None without a graded scorecard.

    The grade depends on the share of the throughput in the hardware bound. The noise of a
    grade is therefore that of the throughput, and fresh processes can decide it.

    Args:
        record: The record of the loop.

        grade: A, B, C, D or F.
    """
    rate = next((e for e in record.estimates if e.metric == _RATE), None)
    steps = record.steps
    if rate is None or steps is None or not steps.efficiency_fraction:
        return None
    share = TRAINING_BANDS.least(Grade(grade))
    least = share * rate.value / steps.efficiency_fraction
    digits = f"{least:.0f}" if least >= 1000 else f"{least:.4g}"  # noqa: PLR2004 - four
    bound = f"{share:g} x the bandwidth bound"
    return Limit(
        text=f'min_grade="{grade}" ({bound}, {_RATE} >= {digits} /s)',
        metric=_RATE,
        operator=">=",
        threshold=least,
        unit=rate.unit,
    )


def parse_grades(text: str) -> dict[str, Bands]:
    """
    Parse the thresholds of the grades, with one line per roof.

    Args:
        text: Lines such as `memory: A 85%, B 70%, C 50%, D 25%`, for `memory`, `compute` or
            `compute_measured`, the roof of a measured peak.

    Raises:
        ConfigError: The text has mistakes. All of them are listed, with their lines.

    Example:
        >>> parse_grades("memory: A 90%, B 80%, C 60%, D 30%")["memory"].b
        0.8
    """
    bands: dict[str, Bands] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            mistakes += [f"line {number}: {mistake}" for mistake in _read(line, bands)]
    if mistakes:
        raise ConfigError("; ".join(mistakes), remedy=_EXAMPLE)
    return bands


def _bands(attained: Attainment, grades: Mapping[str, Bands] | None) -> Bands:
    roof: str = attained.bound
    if roof == "compute" and attained.peak_label is SourceLabel.MEASURED:
        roof = "compute_measured"
    return {**GRADES, **(grades or {})}[roof]


def _read(line: str, bands: dict[str, Bands]) -> Iterator[str]:
    name, _, rest = line.partition(":")
    roof = name.strip()
    if roof not in GRADES:
        yield f"{roof!r} is not a roof: {', '.join(GRADES)}"
    if roof in bands:
        yield f"{roof} has a line already"
    shares: dict[str, float] = {}
    for part in rest.split(","):
        mistake = _read_share(part, shares)
        if mistake:
            yield mistake
            return
    missing = [letter for letter in _LETTERS if letter not in shares]
    if missing:
        yield f"{roof} lacks {', '.join(missing)}"
        return
    try:
        bands[roof] = Bands(**{k.lower(): share for k, share in shares.items()})
    except RecordError:
        yield f"the shares of {roof} do not fall from A to D"


def _read_share(part: str, shares: dict[str, float]) -> str:
    """Add the share of a grade to `shares`, and return the mistake, or ""."""
    match = _BAND.fullmatch(part)
    if match is None or match["letter"] not in _LETTERS:
        return f"{part.strip()!r} is not a grade with its share"
    letter = match["letter"]
    if letter in shares:
        return f"{letter} stands there twice"
    try:
        quantity = parse_quantity(match["share"])
    except UnitError as error:
        return f"{letter}: {error.message}"
    if quantity.si != "fraction" or quantity.value < 0:
        return f"{letter}: {match['share']} is not a share, as 85%"
    shares[letter] = quantity.value
    return ""


def host_condition(findings: Iterable[Finding]) -> Condition:
    """
    Return the readiness of a machine for host times, with or without a GPU.

    Args:
        findings: The findings on host times.
    """
    if any(finding.status is Status.STOPS for finding in findings):
        return Condition(
            state=Readiness.BLOCKED, obstacle=Obstacle.NO_TIMING, of_host=True
        )
    return Condition(state=Readiness.READY, of_host=True)


def condition_of(
    findings: Iterable[Finding], *, has_gpu: bool, has_peaks: bool = True
) -> Condition:
    """
    Return the readiness of a machine. Findings that only distort numbers do not matter.

    Args:
        findings: The findings on this machine.

        has_gpu: Whether the machine has a GPU.

        has_peaks: Whether all peaks that were to be measured have been measured.
    """
    if not has_peaks:
        return Condition(state=Readiness.BLOCKED, obstacle=Obstacle.PEAKS_FAILED)
    if not has_gpu:
        return Condition(state=Readiness.DEGRADED, obstacle=Obstacle.NO_GPU)
    stopped = {
        concern
        for finding in findings
        if finding.status is Status.STOPS
        for concern in finding.concerns
    }
    if "timing" in stopped:
        return Condition(state=Readiness.BLOCKED, obstacle=Obstacle.NO_TIMING)
    lost = tuple(concern for concern in _GPU_CONCERNS if concern in stopped)
    if lost:
        return Condition(state=Readiness.DEGRADED, obstacle=Obstacle.LOST, lost=lost)
    return Condition(state=Readiness.READY)
