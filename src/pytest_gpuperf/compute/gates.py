"""Voids and notes on a measurement from the GPU's sensors.

Void: something outside the test disturbed the GPU, so the measurement is not judged.
Capped: the driver's power or temperature limit held the clock down, which is normal for
large matrix products. The cap is a note, and a void only if the clock kept drifting.

References:
    docs/judging.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.telemetry import ClockReason, DeviceDeltas, Sharing

# docs/judging.md section 1: over the last half of the samples.
_DRIFT_FRACTION = 0.02
# A tenth of the half at each end is long enough for a median and short for a drift.
_ENDS = 10
_FEWEST = 3  # A single bad reading cannot move the median of three.

_VOID_REASONS = (
    ClockReason.HARDWARE_SLOWDOWN,
    ClockReason.HARDWARE_THERMAL,
    ClockReason.POWER_BRAKE,
)
# Code of the note that the board held a clock down within its normal limits.
CAPPED = "capped"
_CAPPING = (
    ClockReason.SOFTWARE_POWER_CAP,
    ClockReason.SOFTWARE_THERMAL,
    ClockReason.THERMAL,
    ClockReason.BOARD_LIMIT,
    ClockReason.SYNC_BOOST,
)
_REMEDIES = {
    ClockReason.HARDWARE_SLOWDOWN: "look at the board's power supply and cooling",
    ClockReason.HARDWARE_THERMAL: "cool the board before measuring on it",
    ClockReason.POWER_BRAKE: "ask who runs the machine about its power supply",
}


class Gates(Frozen, frozen=True, kw_only=True):
    """
    The usability of a measurement.

    Attributes:
        void: Why the measurement must be neither judged nor stored, or None if it is usable.

        notes: Remarks for the reader, including further reasons to void the measurement.
    """

    void: Void | None = None
    notes: tuple[Note, ...] = ()


def gates(deltas: DeviceDeltas, *, strict: bool = False) -> Gates:
    """
    Check a measurement for disturbances seen by the sensors.

    Args:
        deltas: Changes of the sensors around the measurement.

        strict: Whether to void a measurement on a GPU whose other users are not visible.

    Returns:
        The worst reason to void the measurement, and the notes.
    """
    voids: list[Void] = [*_disturbances(deltas)]
    notes: list[Note] = []
    if deltas.xids:
        codes = ", ".join(map(str, deltas.xids))
        text = f"the driver reported XID {codes}: see the kernel's log"
        notes.append(Note(code="xid", text=text))
    if deltas.pcie_replay_count:
        text = f"{deltas.pcie_replay_count} PCIe packets were replayed"
        notes.append(Note(code="pcie-replay", text=text))
    named: dict[str, list[str]] = {}
    for sensor, gap in deltas.silent.items():
        # A sensor that the GPU does not have is not worth a note.
        if gap.code is not GapCode.UNSUPPORTED:
            named.setdefault(gap.text, []).append(sensor)
    for reason, sensors in named.items():
        text = f"no reading of {', '.join(sensors)}: {reason}"
        notes.append(Note(code="sensor-silent", text=text))
    drift_void, capped = _capped(deltas)
    voids.extend(drift_void)
    notes.extend(capped)
    if deltas.idle_pids:
        pids = ", ".join(map(str, deltas.idle_pids))
        are_many = len(deltas.idle_pids) > 1
        text = (
            f"process{'es' * are_many} {pids} {'have' if are_many else 'has'} memory on"
            " the same GPU, and did not use it during the measurement"
        )
        notes.append(Note(code="idle-process", text=text))
    if deltas.sharing is Sharing.UNKNOWN:
        text = (
            "whether others computed on the GPU is not known:"
            f" {deltas.sharing_reason or 'no tool could see'}"
        )
        if strict:
            remedy = "measure outside a container, MIG or MPS, or without strict mode"
            voids.append(Void(code=VoidCode.USERS_UNKNOWN, reason=text, remedy=remedy))
        else:
            notes.append(Note(code=VoidCode.USERS_UNKNOWN.value, text=text))
    notes.extend(Note(code=void.code.value, text=void.text) for void in voids[1:])
    return Gates(void=voids[0] if voids else None, notes=tuple(notes))


def clock_drift_fraction(clocks_hz: Sequence[float]) -> float | None:
    """
    Return the movement of a clock over the last half of the readings.

    The medians of the first and the last tenth of that half are compared. Each median has at
    least three readings, so that jitter does not count as drift.

    Args:
        clocks_hz: Readings of the clock [Hz], in order, > 0.

    Returns:
        The later median over the earlier one, less 1. None with too few readings.

    Example:
        >>> clock_drift_fraction([2000.0] * 10 + [1000.0] * 10)
        0.0
    """
    half = clocks_hz[len(clocks_hz) // 2 :]
    size = max(_FEWEST, len(half) // _ENDS)
    if len(half) < 2 * size:
        return None
    first = median(half[:size])
    return median(half[-size:]) / first - 1.0 if first > 0 else None


def _disturbances(deltas: DeviceDeltas) -> Iterable[Void]:
    """Yield what disturbs any measurement, the worst first."""
    if deltas.lost is not None:
        reason = f"the GPU was lost: {deltas.lost.reason}"
        remedy = deltas.lost.remedy
        yield Void(code=VoidCode.DEVICE_LOST, reason=reason, remedy=remedy)
    moved = [
        f"{name} {change:+d}" for name, change in deltas.ecc_changes.items() if change
    ]
    if moved:
        yield Void(
            code=VoidCode.ECC_CHANGED,
            reason=f"memory errors were counted during the measurement ({', '.join(moved)})",
            remedy="run it again; if the errors come back, have the board tested",
        )
    for reason in _VOID_REASONS:
        if _held(deltas, reason):
            yield Void(
                code=VoidCode(reason.value.replace(" ", "-")),
                reason=f"{_cause(deltas, reason)} held the clock down",
                remedy=_REMEDIES[reason],
            )
    if deltas.sharing is Sharing.FOREIGN:
        pids = ", ".join(map(str, deltas.foreign_pids))
        are_many = len(deltas.foreign_pids) > 1
        computed = "may have computed" if deltas.use_unknown else "computed"
        yield Void(
            code=VoidCode.FOREIGN_PROCESS,
            reason=f"process{'es' * are_many} {pids} {computed} on the same GPU",
            remedy=f"end {'them' if are_many else 'it'}, or measure on another GPU",
        )


def _capped(deltas: DeviceDeltas) -> tuple[list[Void], list[Note]]:
    causes = [_cause(deltas, reason) for reason in _CAPPING if _held(deltas, reason)]
    if not causes:
        if deltas.throttled_s or deltas.lost is not None:
            return [], []
        text = (
            "this GPU does not count throttling time: its clock was checked only before and"
            " after"
        )
        return [], [Note(code="throttling-uncounted", text=text)]
    drift_fraction = clock_drift_fraction(deltas.ring_sm_clocks_hz)
    text = f"{' and '.join(causes)} held the clock down"
    if drift_fraction is None:
        return [], [Note(code=CAPPED, text=f"{text}; whether it drifted is not known")]
    moved = (
        f"the clock moved by {drift_fraction:+.1%} over the last half of the samples"
    )
    if abs(drift_fraction) > _DRIFT_FRACTION:
        drifted = Void(
            code=VoidCode.CLOCK_DRIFT,
            reason=f"{text} and {moved}",
            remedy="preheat for longer, or lock the clock below the cap",
        )
        return [drifted], []
    return [], [Note(code=CAPPED, text=f"{text}; {moved}")]


def _held(deltas: DeviceDeltas, reason: ClockReason) -> bool:
    kinds = {ClockReason.SOFTWARE_THERMAL, ClockReason.HARDWARE_THERMAL}
    if reason is ClockReason.THERMAL and kinds <= deltas.throttled_s.keys():
        return False  # The driver counts the two kinds separately.
    return reason in deltas.reasons or deltas.throttled_s.get(reason, 0.0) > 0


def _cause(deltas: DeviceDeltas, reason: ClockReason) -> str:
    held_s = deltas.throttled_s.get(reason, 0.0)
    return f"{reason.value} ({held_s:.3g} s)" if held_s > 0 else reason.value
