"""What a measurement is held against: the peaks of what it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import MissingPeakError, RecordError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.roofline import Attainment, Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, SourceLabel, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.steps import StepSummary
    from pytest_gpuperf.model.work import Work

__all__ = [
    "Roof",
    "hardware_of",
    "held_against",
    "peak_fact",
    "peaks_of",
    "utilisation_of",
]

_FRACTION, _INTENSITY = "roofline.fraction", "roofline.intensity"
_AT_CLOCK = "roofline.at_clock_fraction"
_GIGA = 1e9
_UNSEEN = (
    "whether it used the GPU is not known: its process does, no record of CUPTI's tells,"
    " and the GPU was idle when the call returned"
)
_SAY = (
    'install pytest-gpuperf[cupti]; or write requires="gpu" if it does, and run it alone'
    " if it does not"
)


class Roof(Frozen, frozen=True, kw_only=True):
    """
    What a record says of the roof of its measurement.

    Attributes:
        attained: How much of it was reached; None: not known.

        estimates: Fraction and intensity, as far as they are known.

        unmeasured: Why they are not, as far as they are not.
    """

    attained: Attainment | None = None
    estimates: tuple[Estimate, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()


_UNDECLARED = Roof(  # of most measurements
    unmeasured=tuple(
        Unmeasured(metric=metric, reason="the test declares no work", remedy=remedy)
        for metric, remedy in (
            (_FRACTION, "pass work=Work(bytes=…) or Work(flop=…, dtype=…)"),
            (_INTENSITY, "pass work=Work(bytes=…, flop=…, dtype=…)"),
            (_AT_CLOCK, "pass work=Work(bytes=…) or Work(flop=…, dtype=…)"),
        )
    )
)


def held_against(
    work: Work | None,
    time: Estimate,
    peaks: Peaks | None,
    *,
    warm: bool,
    grades: Mapping[str, Bands],
    clock_hz: float | None = None,
    use_unknown: bool = False,
) -> Roof:
    """
    Return how much of its roof a measurement reached, or why that is not known.

    Args:
        work: What a call has to do; None: the test does not say.

        time: How long it took, with its interval.

        peaks: The roofs of what it ran on; None: not known.

        warm: Whether its data may have been in the caches.

        grades: Where grades begin, by roof; those not named are the plugin's own.

        clock_hz: The multiprocessor clock during the calls [Hz]; None: not measured.

        use_unknown: Whether nobody knows if it used the device: then it has no roof.
    """
    if work is None:
        return _UNDECLARED
    fraction, attained = (
        (_gap(_FRACTION, _UNSEEN, _SAY), None)
        if use_unknown
        else _fraction(work, time, peaks, warm=warm, clock_hz=clock_hz)
    )
    found = (fraction, _intensity(work, time.source), _at_clock(fraction, attained))
    # what cannot be deserves no A
    if attained is not None and not attained.above_the_roof:
        from pytest_gpuperf.judge.grade import grade_of

        attained = replace(attained, grade=grade_of(attained, grades).value)
    return Roof(
        attained=attained,
        estimates=tuple(each for each in found if isinstance(each, Estimate)),
        unmeasured=tuple(each for each in found if isinstance(each, Unmeasured)),
    )


def peak_fact(peaks: Peaks | None, name: str | None) -> dict[str, str]:
    """
    Return what a share is a share of, as `dram 3350 GB/s (datasheet)`.

    Args:
        peaks: The roofs of what it ran on; None: not known.

        name: The level of memory or the data type; None: there is no share.

    Returns:
        One fact with its name; none where the peak is not known.
    """
    if peaks is None or name is None:
        return {}
    memory = name in peaks.bytes_per_s
    peak = peaks.of_memory(name) if memory else peaks.of_dtype(name)
    if peak.value is None:
        return {}
    unit = "GB/s" if memory else "GFLOP/s"
    return {"peak": f"{name} {peak.value / _GIGA:.6g} {unit} ({peak.label.value})"}


def hardware_of(
    work: Work | None,
    units: float,
    peaks: Peaks | None,
    given: Hardware | None,
) -> Hardware | None:
    """
    Return what a scorecard must know of the hardware; None: it is not known.

    Args:
        work: What one step has to do.

        units: Units of a step: they stand for the scorecard's tokens.

        peaks: The roofs of the device.

        given: What the test says; it goes before all else.
    """
    from pytest_gpuperf.model.scorecard import Hardware

    if given is not None or work is None or work.bytes is None or peaks is None:
        return given
    memory = peaks.of_memory("dram")
    if memory.value is None:
        return None
    arithmetic = None if work.dtype is None else peaks.of_dtype(work.dtype)
    sources = {"peak_bw_gb_s": memory.label.value}
    if arithmetic is not None and arithmetic.value is not None:
        sources["peak_flop_per_s"] = arithmetic.label.value
    return Hardware(
        peak_bw_gb_s=memory.value / _GIGA,
        bytes_per_token=work.bytes / units,
        peak_flop_per_s=None if arithmetic is None else arithmetic.value,
        flop_per_token=None if work.flop is None else work.flop / units,
        source=work.label.value,
        sources=sources,
    )


def utilisation_of(
    summary: StepSummary | None,
    work: Work | None,
    peaks: Peaks | None,
    hardware: Hardware | None,
) -> Estimate | Unmeasured:
    """
    Return how much of the arithmetic's peak the declared work of a step reached.

    The time is a step's mean period, so that waiting for data lowers it.

    Args:
        summary: The loop; None: no step of it counts.

        work: What one step has to do.

        peaks: The roofs of the device; None: not known.

        hardware: What the test says; it goes before what is known of the device.
    """
    from pytest_gpuperf.compute.roofline import declared_roofline
    from pytest_gpuperf.model.work import Work

    if work is None or work.flop is None:
        remedy = 'pass work=Work(flop=…, dtype="bf16"), the FLOP of one step'
        return _gap("mfu", "the test declares no FLOP of a step", remedy)
    if summary is None:
        return _gap("mfu", "no step counts", "let a step come to its end")
    known = peaks_of(work, peaks, hardware)
    if known is None:
        remedy = "declare it: hardware=Hardware(peak_flop_per_s=…, …)"
        return _gap("mfu", "the peak of this device is not known", remedy)
    alone = Work(flop=work.flop, dtype=work.dtype, label=work.label)
    try:
        found = declared_roofline(alone, summary.period_s, known)
    except MissingPeakError as error:
        return _gap("mfu", error.reason, error.remedy)
    return Estimate(
        metric="mfu",
        value=found.fraction,
        unit="fraction",
        source="host",
        label=found.label,
        sample_count=summary.counted_count,
    )


def peaks_of(
    work: Work, peaks: Peaks | None, hardware: Hardware | None
) -> Peaks | None:
    """Return the peaks that a loop is held against: what its test says goes first."""
    return _declared_peaks(work, hardware) or peaks


def _fraction(
    work: Work,
    time: Estimate,
    peaks: Peaks | None,
    *,
    warm: bool,
    clock_hz: float | None,
) -> tuple[Estimate | Unmeasured, Attainment | None]:
    """Return the fraction of the roof with what it was made of, or why there is none."""
    if peaks is None:
        reason = "the peaks of this device are not known"
        return _gap(_FRACTION, reason, "run it on a GPU"), None
    from pytest_gpuperf.compute.roofline import declared_roofline

    try:
        found = declared_roofline(work, time.value, peaks, warm=warm, clock_hz=clock_hz)
    except MissingPeakError as error:
        said = (error.reason, *(note.rstrip(".") for note in peaks.notes))
        return _gap(_FRACTION, "; ".join(said), error.remedy), None
    except RecordError as error:  # a time of zero: no clock is that fine
        return _gap(_FRACTION, error.message, "measure more of it"), None
    fraction = Estimate(
        metric=_FRACTION,
        value=found.fraction,
        unit="fraction",
        source=time.source,
        label=found.label,
        low=_at(found, time, time.high),
        high=_at(found, time, time.low),
        sample_count=time.sample_count,
    )
    return fraction, found


def _at_clock(
    fraction: Estimate | Unmeasured, attained: Attainment | None
) -> Estimate | Unmeasured:
    """Return the fraction under the roof of the clock that was read, or why not."""
    if isinstance(fraction, Unmeasured) or attained is None:
        return replace(fraction, metric=_AT_CLOCK)
    at_clock = attained.at_clock_fraction
    if at_clock is None:
        remedy = "hold the test to roofline.fraction"
        return _gap(_AT_CLOCK, attained.at_clock_reason, remedy)
    low, high = (
        None if end is None else at_clock * (end / attained.fraction)
        for end in (fraction.low, fraction.high)
    )
    return replace(fraction, metric=_AT_CLOCK, value=at_clock, low=low, high=high)


def _intensity(work: Work, source: str) -> Estimate | Unmeasured:
    """Return the intensity of declared work, which needs no peak."""
    if work.flop is None or work.bytes is None:
        missing = "FLOP" if work.flop is None else "bytes"
        remedy = "declare both: Work(flop=…, bytes=…, dtype=…)"
        return _gap(_INTENSITY, f"the declared work has no {missing}", remedy)
    try:
        return Estimate(
            metric=_INTENSITY,
            value=work.flop / work.bytes,
            unit="FLOP/B",
            source=source,
            label=work.label,
        )
    except RecordError as error:  # more FLOP for a byte than a float holds
        return _gap(_INTENSITY, error.message, "check the declared work")


def _at(found: Attainment, time: Estimate, other_s: float | None) -> float | None:
    """Return the fraction at another time: it falls as the time grows."""
    return None if not other_s else found.fraction * (time.value / other_s)


def _gap(metric: str, reason: str, remedy: str) -> Unmeasured:
    """Return why a figure is not known."""
    return Unmeasured(metric=metric, reason=reason, remedy=remedy)


def _declared_peaks(work: Work, hardware: Hardware | None) -> Peaks | None:
    """Return the peak that a test declares; None: it declares none."""
    if hardware is None or hardware.peak_flop_per_s is None or work.dtype is None:
        return None
    peak = Peak(
        value=hardware.peak_flop_per_s,
        label=SourceLabel.DECLARED,
        source="the test's hardware=",
    )
    return Peaks(
        device="declared",
        flop_per_s={work.dtype: peak},
        bytes_per_s={},
        unlisted="it is not declared",
    )
