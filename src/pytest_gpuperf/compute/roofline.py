"""The roofline: a device's attainable rate, and the share that a call reached."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_gpuperf.compute.derive import needed_counters, value_of
from pytest_gpuperf.errors import MissingPeakError, RecordError, WeakSourceError
from pytest_gpuperf.model.counters import COUNTED_DTYPES, CounterGap
from pytest_gpuperf.model.frozen import Frozen, no_number, replace, shown
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.roofline import (
    Attainment,
    Bound,
    Peak,
    Peaks,
    Roofline,
    TimeBound,
    weakest,
)
from pytest_gpuperf.model.sample import (
    UNDECLARED,
    Estimate,
    SourceLabel,
    Unmeasured,
    unmeasured,
)
from pytest_gpuperf.model.work import Work

__all__ = [
    "ROOFLINE_COUNTERS",
    "Roof",
    "Roofline",
    "counted_roofline",
    "counted_rooflines",
    "declared_roofline",
    "peak_fact",
    "roof_of",
    "roofline",
    "roofline_gap",
    "time_bound",
]

# Replaces 0 bytes, which are allowed, in a check for numbers above 0.
_NO_BYTES = 1.0
# Warm data smaller than twice the L2 may be read without going to DRAM.
_FEW_L2 = 2
_DECLARE = (
    "declare it in the ini file (gpuperf_peaks = cpu: dram 20 GB/s, or a GPU's name in "
    "place of cpu), or measure a GPU's: gpuperf doctor --measure-peaks"
)
_COLD = 'measure it cold (cache="cold"), so that its data come from DRAM'
_FRACTION, _INTENSITY = "roofline.fraction", "roofline.intensity"
_AT_CLOCK = "roofline.at_clock_fraction"
_GIGA = 1e9
# A lower share of the tensor pipe is the start or end of a kernel.
_TENSOR_USED = 0.01
ROOFLINE_COUNTERS = (
    "duration_s",
    *needed_counters(
        (
            *("dram.bytes", "dram.peak_bytes_per_s", "tensor.fraction"),
            *(f"{dtype}.flop_per_s" for dtype in COUNTED_DTYPES),
            *(f"{dtype}.peak_flop_per_s" for dtype in COUNTED_DTYPES),
        )
    ),
)
_USE_UNKNOWN = (
    "whether it used the GPU is not known: its process does, no record of CUPTI's tells,"
    " and the GPU was idle when the call returned"
)
_SAY_USE = (
    'install pytest-gpuperf[cupti]; or write requires="gpu" if it does, and run it alone'
    " if it does not"
)


class Roof(Frozen, frozen=True, kw_only=True):
    """
    The roofline metrics of a record.

    Attributes:
        attained: The roofline result, or None if unknown.

        estimates: Fraction, intensity and fraction at the measured clock, as far as known.

        unmeasured: The unknown metrics, with reasons.
    """

    attained: Attainment | None = None
    estimates: tuple[Estimate, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()


def roofline(
    *,
    flop: float,
    bytes_moved: float,
    time_s: float,
    peak_flop_per_s: float | None,
    peak_bytes_per_s: float | None,
) -> Roofline:
    """
    Return the share of a device's roof that a call reached.

    All arguments are checked before the calculation.

    Args:
        flop: Floating-point operations of the call [FLOP], > 0.

        bytes_moved: Bytes that the call moves [B], >= 0. With 0 bytes the intensity is
            infinite, and no memory bounds the call.

        time_s: Time of the call [s], > 0.

        peak_flop_per_s: The device's peak of the data type [FLOP/s], > 0, or None if unknown.

        peak_bytes_per_s: The device's peak of the memory [B/s], > 0, or None if unknown.

    Returns:
        The roofline. `bound` is "memory" below the ridge and "compute" from the ridge on, and
        `fraction` is never clamped.

    Raises:
        MissingPeakError: A peak is None. `fields` names each missing peak.

        RecordError: A number is out of its range or not finite, and all such numbers are
            named. Or the numbers are so far apart that no float holds the result.

    Example:
        >>> roofline(
        ...     flop=1e9,
        ...     bytes_moved=1e8,
        ...     time_s=1e-3,
        ...     peak_flop_per_s=1e13,
        ...     peak_bytes_per_s=2e11,
        ... ).fraction
        0.5

    References:
        Williams, Waterman, Patterson: Roofline (2009), https://doi.org/10.1145/1498765.1498785.
    """
    if peak_flop_per_s is None or peak_bytes_per_s is None:
        peaks = {
            "peak_flop_per_s": peak_flop_per_s,
            "peak_bytes_per_s": peak_bytes_per_s,
        }
        fields = tuple(name for name, value in peaks.items() if value is None)
        verb = "is" if len(fields) == 1 else "are"
        reason = f"{' and '.join(fields)} of this device {verb} not known"
        raise MissingPeakError(fields, reason=reason, remedy=_DECLARE)
    none_moved = not no_number(bytes_moved) and bytes_moved == 0
    _in_range(
        flop=flop,
        bytes_moved=_NO_BYTES if none_moved else bytes_moved,
        time_s=time_s,
        peak_flop_per_s=peak_flop_per_s,
        peak_bytes_per_s=peak_bytes_per_s,
    )
    intensity = flop / bytes_moved if bytes_moved else math.inf
    ridge = peak_flop_per_s / peak_bytes_per_s
    below = intensity < ridge
    attainable = peak_bytes_per_s * intensity if below else peak_flop_per_s
    _in_range(ridge_flop_per_byte=ridge, attainable_flop_per_s=attainable)
    achieved = flop / time_s
    return Roofline(
        intensity_flop_per_byte=intensity,
        ridge_flop_per_byte=ridge,
        bound="memory" if below else "compute",
        attainable_flop_per_s=attainable,
        achieved_flop_per_s=achieved,
        achieved_bytes_per_s=bytes_moved / time_s,
        fraction=achieved / attainable,
    )


def counted_rooflines(values: Mapping[str, float]) -> dict[str, Roofline]:
    """
    Return the rooflines of a launch by counters alone, by data type.

    Roofs and clocks come from the report: the rates that the chip sustains at the clocks of
    the profile. Operations of tensor cores are not counted.

    Args:
        values: Standard counters of the launch, in SI units.

    Returns:
        A roofline for each data type with operations. Empty if a counter is missing.
    """
    moved, peak_bytes, time_s = (
        value_of("dram.bytes", values),
        value_of("dram.peak_bytes_per_s", values),
        values.get("duration_s"),
    )
    if moved is None or not peak_bytes or not time_s:
        return {}
    rooflines = {}
    for dtype in COUNTED_DTYPES:
        rate = value_of(f"{dtype}.flop_per_s", values)
        peak = value_of(f"{dtype}.peak_flop_per_s", values)
        if rate and peak:
            rooflines[dtype] = roofline(
                flop=rate * time_s,
                bytes_moved=moved,
                time_s=time_s,
                peak_flop_per_s=peak,
                peak_bytes_per_s=peak_bytes,
            )
    return rooflines


def counted_roofline(values: Mapping[str, float]) -> Attainment | None:
    """
    Return the roofline result of a launch by counted FLOP and DRAM traffic.

    The data type with the largest used share of its peak is taken.

    Args:
        values: Standard counters of the launch, those of ROOFLINE_COUNTERS.

    Returns:
        The fraction of the roof. None if a counter is missing, if no FLOP or no traffic was
        counted, or if tensor cores computed, as their FLOP are not in these counters.
    """
    counted = counted_rooflines(values)
    if (
        roofline_gap(values) is not None
        or not counted
        or not value_of("dram.bytes", values)
    ):
        return None
    peaks = {dtype: value_of(f"{dtype}.peak_flop_per_s", values) for dtype in counted}
    used = {
        d: counted[d].achieved_flop_per_s / (peak or 1) for d, peak in peaks.items()
    }
    dtype = max(used, key=used.__getitem__)
    standing = counted[dtype]
    return Attainment(
        fraction=standing.fraction,
        bound=standing.bound,
        roof="dram" if standing.bound == "memory" else dtype,
        label=SourceLabel.MEASURED,
        peak_label=SourceLabel.MEASURED,
        source="what the chip sustains at the clocks of the profile, as it was counted",
        intensity_flop_per_byte=standing.intensity_flop_per_byte,
        peak_flop_per_s=peaks[dtype],
        peak_bytes_per_s=value_of("dram.peak_bytes_per_s", values),
        dtype=dtype,
    )


def roofline_gap(values: Mapping[str, float]) -> CounterGap | None:
    """Return why counted FLOP give no roofline, or None if nothing speaks against a roofline."""
    tensor = value_of("tensor.fraction", values) or 0.0
    if tensor <= _TENSOR_USED:
        return None
    return CounterGap(
        code=GapCode.NOT_COLLECTED,
        reason="tensor cores computed: their FLOP and data type are not counted",
        remedy="limit tensor.fraction instead",
    )


def declared_roofline(
    work: Work,
    time_s: float,
    peaks: Peaks,
    *,
    warm: bool = False,
    clock_hz: float | None = None,
    least: SourceLabel | None = None,
) -> Attainment:
    """
    Return the share of the roof that a call with declared work reached.

    Bytes alone are compared with the bandwidth of the memory, FLOP alone with the peak of
    their data type, and both with the roofline of the two.

    Args:
        work: The declared work of the call.

        time_s: Time of the call [s], > 0.

        peaks: The roofs of the device.

        warm: Whether the data may still have been in the caches. Bytes below twice the size of
            the L2 are then compared with the L2's bandwidth, never DRAM's. If DRAM would already
            feed the compute peak, that peak is the roof, and neither the L2's size nor its
            bandwidth must be known.

        clock_hz: Multiprocessor clock during the call [Hz], > 0, or None if not measured.

        least: The weakest accepted label, or None to accept any.

    Returns:
        The fraction, with the weakest label of all inputs.

    Raises:
        MissingPeakError: A needed peak, or the size of the L2, is not known.

        RecordError: A number is out of its range.

        WeakSourceError: The label is weaker than `least`.
    """
    _in_range(time_s=time_s, clock_hz=1.0 if clock_hz is None else clock_hz)
    level = _level(work, peaks, warm=warm)
    compute, memory = _roofs(work, peaks, level)
    fraction, bound = _reached(work, time_s, compute, memory)
    used = {"memory": memory, "compute": compute}
    roof = used[bound]
    attained = Attainment(
        fraction=fraction,
        bound=bound,
        roof=level if bound == "memory" else work.dtype or "",
        label=weakest(work.label, *(peak.label for peak in used.values() if peak)),
        peak_label=roof.label if roof else SourceLabel.UNAVAILABLE,
        source=roof.source if roof else "",
        intensity_flop_per_byte=(
            None if work.flop is None or work.bytes is None else work.flop / work.bytes
        ),
        peak_flop_per_s=compute.value if compute else None,
        peak_bytes_per_s=memory.value if memory else None,
        dtype=work.dtype if compute else None,
    )
    reason = ""
    if compute is None:
        reason = (
            "the declared work has no FLOP, and memory does not follow the SM clock"
        )
    elif compute.clock_hz is None:
        reason = f"the clock of the compute peak is not known ({compute.source})"
    elif clock_hz is None:
        reason = "the SM clock was not read during the call"
    else:
        scale = clock_hz / compute.clock_hz
        scaled = replace(compute, value=(compute.value or 0.0) * scale)
        at_clock, _ = _reached(work, time_s, scaled, memory)
        attained = replace(attained, at_clock_fraction=at_clock)
    attained = replace(attained, at_clock_reason=reason)
    if least is not None and weakest(attained.label, least) is not least:
        raise WeakSourceError(
            "roofline.fraction",
            label=attained.label.value,
            least=least.value,
            remedy=_DECLARE,
        )
    return attained


def time_bound(work: Work, peaks: Peaks) -> TimeBound:
    """
    Return the least possible time of a call with declared work.

    The bound is meant for comparison with a time. An efficiency calculated from the bound
    would only show which of its two parts is larger.

    Args:
        work: The declared work of the call.

        peaks: The roofs of the device.

    Returns:
        max(FLOP over peak, bytes over bandwidth) [s], estimated.

    Raises:
        MissingPeakError: A needed peak is not known.
    """
    compute, memory = _roofs(work, peaks, "dram")
    computing = _quotient(work.flop, compute)
    moving = _quotient(work.bytes, memory)
    return TimeBound(
        time_s=max(computing, moving),
        bound="memory" if moving > computing else "compute",
    )


def roof_of(
    work: Work | None,
    time: Estimate,
    peaks: Peaks | None,
    *,
    warm: bool,
    clock_hz: float | None = None,
    use_unknown: bool = False,
) -> Roof:
    """
    Return the share of the roof that a measurement reached, or the reason for no share.

    Args:
        work: The declared work of a call, or None if the test declares none.

        time: Time of a call, with its interval.

        peaks: The roofs of the device, or None if unknown.

        warm: Whether the data may have been in the caches.

        clock_hz: Multiprocessor clock during the calls [Hz], or None if not measured.

        use_unknown: Whether the use of the device is unknown, so that there is no roof.
    """
    if work is None:
        return Roof(unmeasured=UNDECLARED)
    fraction, attained = (
        (unmeasured(_FRACTION, GapCode.NOT_STATED, _USE_UNKNOWN, _SAY_USE), None)
        if use_unknown
        else _fraction_estimate(work, time, peaks, warm=warm, clock_hz=clock_hz)
    )
    at_clock: Estimate | Unmeasured
    if isinstance(fraction, Unmeasured) or attained is None:
        at_clock = replace(fraction, metric=_AT_CLOCK)
    elif attained.at_clock_fraction is None:
        reason, remedy = attained.at_clock_reason, "hold the test to roofline.fraction"
        at_clock = unmeasured(_AT_CLOCK, GapCode.MISSING_PEAK, reason, remedy)
    else:
        value = attained.at_clock_fraction
        low, high = (
            None if end is None else value * (end / attained.fraction)
            for end in (fraction.low, fraction.high)
        )
        at_clock = replace(fraction, metric=_AT_CLOCK, value=value, low=low, high=high)
    figures = (fraction, _intensity_estimate(work, time.source), at_clock)
    return Roof(
        attained=attained,
        estimates=tuple(figure for figure in figures if isinstance(figure, Estimate)),
        unmeasured=tuple(
            figure for figure in figures if isinstance(figure, Unmeasured)
        ),
    )


def peak_fact(peaks: Peaks | None, name: str | None) -> dict[str, str]:
    """
    Return the peak behind a share, as `dram 3350 GB/s (datasheet)`.

    Args:
        peaks: The roofs of the device, or None if unknown.

        name: Memory level or data type, or None if there is no share.

    Returns:
        One fact with its name, or an empty dict if the peak is unknown.
    """
    if peaks is None or name is None:
        return {}
    memory = name in peaks.bytes_per_s
    peak = peaks.of_memory(name) if memory else peaks.of_dtype(name)
    if peak.value is None:
        return {}
    unit = "GB/s" if memory else "GFLOP/s"
    return {"peak": f"{name} {peak.value / _GIGA:.6g} {unit} ({peak.label.value})"}


def _in_range(**numbers: float) -> None:
    """Raise a RecordError that names all numbers not finite and above zero."""
    wrong = [
        f"{name}={shown(value)} is not a finite number above zero"
        for name, value in numbers.items()
        if no_number(value) or not value > 0
    ]
    if wrong:
        remedy = "check their units: FLOP, bytes and seconds"
        raise RecordError("; ".join(wrong), path="roofline", remedy=remedy)


def _level(work: Work, peaks: Peaks, *, warm: bool) -> str:
    """
    Return the memory level with the peak that bounds declared bytes.

    Raises:
        MissingPeakError: The data are warm, and the size of the L2 is not known.
    """
    if not warm or work.bytes is None:
        return "dram"
    if work.flop is not None and work.dtype is not None:
        compute = peaks.of_dtype(work.dtype).value
        memory = peaks.of_memory("dram").value
        if (
            compute is not None
            and memory is not None
            and work.flop / work.bytes >= compute / memory
        ):
            return "dram"  # It already feeds the compute peak.
    if peaks.l2_bytes is None:
        reason = "the size of the L2, which may hold the data, is not known"
        raise MissingPeakError(("l2_bytes",), reason=reason, remedy=_COLD)
    return "l2" if work.bytes < _FEW_L2 * peaks.l2_bytes else "dram"


def _roofs(work: Work, peaks: Peaks, level: str) -> tuple[Peak | None, Peak | None]:
    """
    Return the compute and memory peaks that work needs, None if not needed.

    Raises:
        MissingPeakError: A needed peak is not known.
    """
    compute = memory = None
    if work.flop is not None:
        compute = peaks.of_dtype(work.dtype or "")
    if work.bytes is not None:
        memory = peaks.of_memory(level)
    needed = {
        "peak_flop_per_s": (work.dtype or "compute", compute),
        "peak_bytes_per_s": (level, memory),
    }
    missing = {
        field: f"the {name} peak is not known: {peak.source}"
        for field, (name, peak) in needed.items()
        if peak is not None and peak.value is None
    }
    if missing:
        reason = "; ".join(missing.values())
        raise MissingPeakError(tuple(missing), reason=reason, remedy=_DECLARE)
    return compute, memory


def _reached(
    work: Work, time_s: float, compute: Peak | None, memory: Peak | None
) -> tuple[float, Bound]:
    if work.flop is not None and work.bytes is not None:
        standing = roofline(
            flop=work.flop,
            bytes_moved=work.bytes,
            time_s=time_s,
            peak_flop_per_s=compute.value if compute else None,
            peak_bytes_per_s=memory.value if memory else None,
        )
        return standing.fraction, standing.bound
    if work.flop is None:
        return _quotient(work.bytes, memory) / time_s, "memory"
    return _quotient(work.flop, compute) / time_s, "compute"


def _quotient(amount: float | None, peak: Peak | None) -> float:
    """Return the time of an amount at the peak [s], or 0 without an amount or a peak."""
    if amount is None or peak is None or peak.value is None:
        return 0.0
    return amount / peak.value


def _fraction_estimate(
    work: Work,
    time: Estimate,
    peaks: Peaks | None,
    *,
    warm: bool,
    clock_hz: float | None,
) -> tuple[Estimate | Unmeasured, Attainment | None]:
    if peaks is None:
        reason = "the peaks of this device are not known"
        return unmeasured(_FRACTION, GapCode.NO_DEVICE, reason, "run it on a GPU"), None
    try:
        attained = declared_roofline(
            work, time.value, peaks, warm=warm, clock_hz=clock_hz
        )
    except MissingPeakError as error:
        reasons = (error.reason, *(note.rstrip(".") for note in peaks.notes))
        return unmeasured(
            _FRACTION, GapCode.MISSING_PEAK, "; ".join(reasons), error.remedy
        ), None
    except RecordError as error:  # The clock is too coarse and measured a time of 0.
        return unmeasured(
            _FRACTION, GapCode.NOT_DEFINED, error.message, "measure more of it"
        ), None
    fraction = Estimate(
        metric=_FRACTION,
        value=attained.fraction,
        unit="fraction",
        source=time.source,
        label=attained.label,
        low=_fraction_at(attained, time, time.high),
        high=_fraction_at(attained, time, time.low),
        sample_count=time.sample_count,
    )
    return fraction, attained


def _intensity_estimate(work: Work, source: str) -> Estimate | Unmeasured:
    if work.flop is None or work.bytes is None:
        missing = "FLOP" if work.flop is None else "bytes"
        remedy = "declare both: Work(flop=…, bytes=…, dtype=…)"
        return unmeasured(
            _INTENSITY,
            GapCode.NOT_DECLARED,
            f"the declared work has no {missing}",
            remedy,
        )
    try:
        return Estimate(
            metric=_INTENSITY,
            value=work.flop / work.bytes,
            unit="FLOP/B",
            source=source,
            label=work.label,
        )
    except RecordError as error:  # The FLOP per byte exceed a float.
        return unmeasured(
            _INTENSITY, GapCode.NOT_DEFINED, error.message, "check the declared work"
        )


def _fraction_at(
    attained: Attainment, time: Estimate, other_s: float | None
) -> float | None:
    """Return the fraction at a different time [s], or None without a time above 0."""
    return None if not other_s else attained.fraction * (time.value / other_s)
