"""What energy, power and counters of one call come from.

A timed sample is followed by a flush and a wait; the board's slow counters would see
mostly these. So calls follow each other without a gap, apart from those that are timed.

*Unverified on hardware:* how often the counter of energy moves.

References:
    docs/judging.md, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.nvml.deltas import GPM_GAP_S, Deltas
from pytest_gpuperf.collect.nvml.library import Board
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.sensors import DeviceDeltas, SecondPass

__all__ = ["second_pass"]

_PREHEAT_S = 1.0  # docs/judging.md section 5: 1 to 2 s
_ENERGY_PASS_S = 2.0  # docs/judging.md section 5
_GPM_PASS_S = 0.5  # docs/judging.md section 5
_LONGEST_PASS_S = 10.0  # docs/judging.md section 5: of a metric
_BATCH_S = 0.02  # work between two looks at the counter: no longer than its period
_IDLE_S = 0.5  # as long as the counter needs


class _Step(NamedTuple):
    """Where the counter of energy moved."""

    calls: int
    now_ns: int
    joules: float


def second_pass(
    fn: Callable[[], object],
    deltas: Deltas,
    clock: Clock,
    synchronize: Callable[[], None],
    *,
    energy: bool = True,
    gpm: bool = False,
    preheat_s: float = _PREHEAT_S,
) -> SecondPass:
    """
    Call without a gap until energy, power and GPM of a call are known.

    First the device idles, so that what it draws then is known; then it is preheated. The
    counter of energy moves in steps: calls and time are counted from one step to another.

    Args:
        fn: One call, its arguments bound; its caches stay as they come.

        deltas: Of the GPU it works on; opened with GPM where that is asked for.

        clock: The time.

        synchronize: Waits for the device.

        energy: Whether energy and power are asked for: at least 2 s. A board without
            the counter gives the mean of the driver's samples as power, and no energy.

        gpm: Whether GPM is: at least 0.5 s.

        preheat_s: How long to call before [s], >= 0.

    Returns:
        What was found, and why for what was not.
    """
    board = deltas.board
    synchronize()
    idle_watts = _idle_watts(board, clock) if energy else None
    batch = _batch(fn, clock, synchronize, preheat_s)
    deltas.begin()
    least_s = max(_ENERGY_PASS_S if energy else 0.0, _GPM_PASS_S if gpm else GPM_GAP_S)
    start_ns = clock.now_ns()
    steps: list[_Step] = []
    known = board.energy_joules() if energy else None
    calls = 0
    while board.lost is None:
        for _ in range(batch):
            fn()
        synchronize()
        calls += batch
        now_ns = clock.now_ns()
        joules = board.energy_joules() if known is not None else None
        if joules is not None and joules != known:
            steps.append(_Step(calls=calls, now_ns=now_ns, joules=joules))
            known = joules
        elapsed_s = (now_ns - start_ns) / NS_PER_S
        if known is not None and elapsed_s < _LONGEST_PASS_S:
            elapsed_s = _span_s(steps)
        if elapsed_s > least_s and calls > batch:
            break
    return _passed(deltas.end(), steps, idle_watts, energy=energy, gpm=gpm)


def _span_s(steps: Sequence[_Step]) -> float:
    """Return the time from the first to the last step [s]."""
    return (steps[-1].now_ns - steps[0].now_ns) / NS_PER_S if steps else 0.0


def _passed(
    found: DeviceDeltas,
    steps: Sequence[_Step],
    idle_watts: float | None,
    *,
    energy: bool,
    gpm: bool,
) -> SecondPass:
    """Return a pass as a record."""
    missing: dict[str, Gap] = {}
    span_s = _span_s(steps)
    calls = steps[-1].calls - steps[0].calls if steps else 0
    joules = steps[-1].joules - steps[0].joules if steps else 0.0
    good = span_s >= _ENERGY_PASS_S and joules > 0 and found.lost is None
    watts = joules / span_s if good else None
    if energy and watts is None and found.ring_power_watts and found.lost is None:
        watts = fmean(found.ring_power_watts)
    if energy and not good:
        reason = f"its counter moved too seldom in {found.duration_s:.3g} s"
        missing["energy"] = (
            found.lost or found.silent.get("energy") or _unstated(reason)
        )
    if gpm and not found.gpm:
        reason = found.gpm_reason or "these sensors were opened without it"
        missing["GPM"] = found.lost or found.silent.get("GPM") or _unstated(reason)
    return SecondPass(
        calls_count=calls if good else 0,
        duration_s=span_s if good else found.duration_s,
        energy_joules=joules / calls if good else None,
        power_watts=watts,
        idle_power_watts=idle_watts,
        deltas=found,
        missing=missing,
    )


def _batch(
    fn: Callable[[], object],
    clock: Clock,
    synchronize: Callable[[], None],
    preheat_s: float,
) -> int:
    """Preheat the device; return how many calls keep it busy between two looks."""
    start_ns, batch = clock.now_ns(), 1
    while True:
        began_ns = clock.now_ns()
        for _ in range(batch):
            fn()
        synchronize()
        ended_ns = clock.now_ns()
        took_s = (ended_ns - began_ns) / NS_PER_S
        if took_s < _BATCH_S / 2:
            batch *= 2
        elif ended_ns - start_ns >= preheat_s * NS_PER_S:
            return batch


def _idle_watts(board: Board, clock: Clock) -> float | None:
    """Return what the board draws while nothing runs [W]."""
    before, start_ns = board.energy_joules(), clock.now_ns()
    if before is None:
        return None
    clock.sleep(_IDLE_S)
    after, elapsed_s = board.energy_joules(), (clock.now_ns() - start_ns) / NS_PER_S
    return (
        (after - before) / elapsed_s if after is not None and after > before else None
    )


def _unstated(reason: str) -> Gap:
    """Return why a sensor without an error of NVML's has no value."""
    return Gap(code=GapCode.NOT_STATED, reason=reason, remedy="measure on another GPU")
