"""What a loop is held against: the peaks of its device; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from pytest_gpuperf.compute.roofline import declared_roofline
from pytest_gpuperf.errors import MissingPeakError
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, SourceLabel, Unmeasured
from pytest_gpuperf.model.scorecard import Hardware
from pytest_gpuperf.model.step_summary import StepSummary
from pytest_gpuperf.model.work import Work

__all__ = ["hardware_of", "peaks_of", "utilisation_of"]

_GB = 1e9  # bytes


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
    if given is not None or work is None or work.bytes is None or peaks is None:
        return given
    memory = peaks.of_memory("dram")
    if memory.value is None:
        return None
    flop_per_s = None if work.dtype is None else peaks.of_dtype(work.dtype).value
    return Hardware(
        peak_bw_gb_s=memory.value / _GB,
        bytes_per_token=work.bytes / units,
        peak_flop_per_s=flop_per_s,
        flop_per_token=None if work.flop is None else work.flop / units,
        source=memory.label.value,
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
    if work is None or work.flop is None:
        remedy = 'pass work=Work(flop=…, dtype="bf16"), the FLOP of one step'
        return _gap("the test declares no FLOP of a step", remedy)
    if summary is None:
        return _gap("no step counts", "let a step come to its end")
    known = peaks_of(work, peaks, hardware)
    if known is None:
        remedy = "declare it: hardware=Hardware(peak_flop_per_s=…, …)"
        return _gap("the peak of this device is not known", remedy)
    alone = Work(flop=work.flop, dtype=work.dtype, label=work.label)
    try:
        found = declared_roofline(alone, summary.period_s, known)
    except MissingPeakError as error:
        return _gap(error.reason, error.remedy)
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


def _gap(reason: str, remedy: str) -> Unmeasured:
    """Return why there is no utilisation."""
    return Unmeasured(metric="mfu", reason=reason, remedy=remedy)
