"""compute.gates: what sensors mean for a measurement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.gates import clock_drift_fraction, gates
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.telemetry import ClockReason, DeviceDeltas, Sharing

ALL_COUNTED = dict.fromkeys(ClockReason, 0.0)
LOST = Gap(code=GapCode.DEVICE_LOST, reason="it fell off", remedy="restart")


def around(**more: Any) -> DeviceDeltas:
    """Return the deltas of a quiet test, but for what is given."""
    quiet: dict[str, Any] = {
        "gpu_uuid": "GPU-1",
        "gpu_index": 0,
        "duration_s": 1.0,
        "throttled_s": ALL_COUNTED,
        "sharing": Sharing.ALONE,
    }
    return DeviceDeltas(**(quiet | more))


def counted(reason: ClockReason, held_s: float = 0.25) -> dict[ClockReason, float]:
    return ALL_COUNTED | {reason: held_s}


def codes(deltas: DeviceDeltas, **more: Any) -> tuple[str | None, list[str]]:
    found = gates(deltas, **more)
    void = None if found.void is None else found.void.code
    return void, [note.code for note in found.notes]


def test_quiet() -> None:
    """A test that nothing disturbed is neither void nor noted."""
    assert codes(around()) == (None, [])


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ClockReason.HARDWARE_SLOWDOWN, "hardware-slowdown"),
        (ClockReason.HARDWARE_THERMAL, "hardware-thermal-slowdown"),
        (ClockReason.POWER_BRAKE, "power-brake"),
    ],
)
@pytest.mark.parametrize("counter", [True, False])
def test_hardware_is_void(reason: ClockReason, code: str, counter: bool) -> None:
    """What the hardware itself did to the clock voids, counted or only seen."""
    deltas = (
        around(throttled_s=counted(reason))
        if counter
        else around(reasons=frozenset({reason}))
    )
    assert codes(deltas) == (code, [])


@pytest.mark.parametrize(
    "reason",
    [
        ClockReason.SOFTWARE_POWER_CAP,
        ClockReason.SOFTWARE_THERMAL,
        ClockReason.BOARD_LIMIT,
        ClockReason.SYNC_BOOST,
    ],
)
def test_capped_is_kept(reason: ClockReason) -> None:
    """A limit of the driver's is kept with a note while the clock stays."""
    clocks = [1980e6] * 20 + [1500e6] * 40
    deltas = around(throttled_s=counted(reason))
    assert codes(replace(deltas, ring_sm_clocks_hz=tuple(clocks))) == (None, ["capped"])


def test_capped_and_drifting() -> None:
    """A capped test is void when the clock drifts by more than 2 % at its end."""
    capped = around(throttled_s=counted(ClockReason.SOFTWARE_POWER_CAP))
    slow = [1500e6 * (1 - 0.03 * i / 100) for i in range(200)]
    slower = [1500e6 * (1 - 0.01 * i / 100) for i in range(200)]
    assert codes(replace(capped, ring_sm_clocks_hz=tuple(slow))) == ("clock-drift", [])
    assert codes(replace(capped, ring_sm_clocks_hz=tuple(slower))) == (None, ["capped"])


def test_drift_without_a_cap() -> None:
    """A clock that drifts while nothing holds it down is not a reason to void."""
    slow = [1500e6 * (1 - 0.03 * i / 100) for i in range(200)]
    assert codes(replace(around(), ring_sm_clocks_hz=tuple(slow))) == (None, [])


def test_unknown_drift() -> None:
    """Where no clock is known, the note says that the drift is not."""
    deltas = around(throttled_s=counted(ClockReason.SOFTWARE_POWER_CAP))
    found = gates(deltas)
    assert found.void is None
    assert "not known" in found.notes[0].text


def test_thermal_of_an_old_driver() -> None:
    """A thermal counter that does not tell who held the clock down caps, no more."""
    only = {ClockReason.THERMAL: 0.5}
    assert codes(around(throttled_s=only)) == (None, ["capped"])


def test_thermal_is_not_counted_twice() -> None:
    """Where both kinds are counted, their sum says nothing of its own."""
    split = counted(ClockReason.HARDWARE_THERMAL) | {ClockReason.THERMAL: 0.25}
    assert codes(around(throttled_s=split)) == ("hardware-thermal-slowdown", [])


def test_nothing_counts_throttling() -> None:
    """A GPU without these counters is said to be one."""
    assert codes(around(throttled_s={})) == (None, ["throttling-uncounted"])


def test_device_lost_comes_first() -> None:
    """A lost GPU is the reason, whatever else happened; the rest is noted."""
    deltas = around(
        lost=LOST, throttled_s=counted(ClockReason.POWER_BRAKE), silent={"energy": LOST}
    )
    void, notes = codes(deltas)
    assert void == "device-lost"
    assert "power-brake" in notes


@pytest.mark.parametrize("change", [1, -3])
def test_ecc_change(change: int) -> None:
    """Counts of memory errors that moved void, reset ones too; zeros do not."""
    assert codes(around(ecc_changes={"corrected errors": change}))[0] == "ecc-changed"
    assert codes(around(ecc_changes={"corrected errors": 0})) == (None, [])


def test_foreign_process() -> None:
    """A process of somebody else's that is known voids, and is named."""
    found = gates(around(sharing=Sharing.FOREIGN, foreign_pids=(7, 9)))
    assert found.void is not None
    assert found.void.code == "foreign-process"
    assert "processes 7, 9" in found.void.text


def test_nobody_knows_who_shares_it() -> None:
    """Others that cannot be seen are said to be so, and void in strict mode only."""
    deltas = around(sharing=Sharing.UNKNOWN, sharing_reason="this is a container")
    assert codes(deltas) == (None, ["company-unknown"])
    assert codes(deltas, strict=True) == ("company-unknown", [])


def test_silent_sensors() -> None:
    """One reason is one note, whatever it silences; what a board lacks is not news."""
    barred, absent = GapCode.COUNTER_PERMISSION, GapCode.UNSUPPORTED
    silent = {
        sensor: Gap(code=code, reason=reason, remedy="do")
        for sensor, code, reason in (
            ("a", barred, "r4"),
            ("b", barred, "r4"),
            ("c", GapCode.TEMPORARY, "r10"),
            ("d", absent, "r3"),
        )
    }
    found = gates(around(silent=silent))
    assert found.void is None
    assert [note.text for note in found.notes] == [
        "no reading of a, b: r4; do",
        "no reading of c: r10; do",
    ]


def test_xid_and_replay() -> None:
    """What the driver reports without judging the machine is noted."""
    assert codes(around(xids=(13,), pcie_replay_count=2)) == (
        None,
        ["xid", "pcie-replay"],
    )


@given(st.floats(1e6, 3e9), st.integers(6, 400), st.floats(-0.5, 0.5))
def test_drift_of_a_line(clock_hz: float, count: int, share: float) -> None:
    """A straight drift over the last half is found, at most a tenth too small."""
    half = [clock_hz * (1 + share * i / (count - 1)) for i in range(count)]
    found = clock_drift_fraction([clock_hz] * count + half)
    assert found is not None
    if count >= 60:
        assert abs(found) <= abs(share) * 1.001 + 1e-9
        assert abs(found) >= abs(share) * 0.85 / (1 + abs(share)) - 1e-9


@given(st.lists(st.floats(1e6, 3e9), max_size=11))
def test_too_few_clocks(clocks: list[float]) -> None:
    """A half of fewer than two medians says nothing of a drift."""
    assert len(clocks) > 10 or clock_drift_fraction(clocks) is None


def test_one_bad_reading() -> None:
    """One reading out of line at the end is not drift."""
    assert clock_drift_fraction([1980e6] * 99 + [345e6]) == 0.0


def void_text(deltas: DeviceDeltas, **more: Any) -> str:
    """Return why a measurement is void."""
    void = gates(deltas, **more).void
    assert void is not None
    return void.text


def noted(deltas: DeviceDeltas, **more: Any) -> dict[str, str]:
    """Return the notes of a measurement, by code."""
    return {note.code: note.text for note in gates(deltas, **more).notes}


def test_what_befell_the_gpu_says_what_to_do() -> None:
    """A lost GPU, memory errors of each kind, and what the hardware did, with its time."""
    errors = {"corrected": 2, "uncorrected": -1, "retired": 0}
    brake = around(throttled_s=counted(ClockReason.POWER_BRAKE))
    seen = around(reasons=frozenset({ClockReason.HARDWARE_THERMAL}), throttled_s={})

    assert void_text(around(lost=LOST)) == "the GPU was lost: it fell off; restart"
    assert void_text(around(ecc_changes=errors)) == (
        "memory errors were counted during the measurement (corrected +2, uncorrected -1); run it"
        " again; if the errors come back, have the board tested"
    )
    assert void_text(brake) == (
        f"{ClockReason.POWER_BRAKE.value} (0.25 s) held the clock down;"
        " ask who runs the machine about its power supply"
    )
    assert void_text(seen) == (
        f"{ClockReason.HARDWARE_THERMAL.value} held the clock down;"
        " cool the board before measuring on it"
    )


def test_a_second_reason_to_void_is_noted_in_its_own_words() -> None:
    """The reader of a lost GPU learns who else was on it."""
    deltas = around(lost=LOST, sharing=Sharing.FOREIGN, foreign_pids=(7,))

    assert noted(deltas)["foreign-process"] == (
        "process 7 computed on the same GPU; end it, or measure on another GPU"
    )


def test_several_others_are_they() -> None:
    """All of them are to be ended."""
    assert void_text(around(sharing=Sharing.FOREIGN, foreign_pids=(7, 9))) == (
        "processes 7, 9 computed on the same GPU; end them, or measure on another GPU"
    )


def test_who_cannot_be_seen_is_said_with_the_reason() -> None:
    """Where anybody knows it; strict mode adds what to do."""
    told = "whether others computed on the GPU is not known:"
    container = around(sharing=Sharing.UNKNOWN, sharing_reason="a container")
    silent = around(sharing=Sharing.UNKNOWN)

    assert noted(container)["company-unknown"] == f"{told} a container"
    assert noted(silent)["company-unknown"] == f"{told} no tool could see"
    assert void_text(container, strict=True) == (
        f"{told} a container; measure outside a container, MIG or MPS, or without"
        " strict mode"
    )


def test_a_cap_says_how_long_and_how_far() -> None:
    """Two caps are both named; a drift beyond 2 % says what to do."""
    power, board = ClockReason.SOFTWARE_POWER_CAP, ClockReason.BOARD_LIMIT
    both = around(throttled_s=counted(power) | {board: 0.002})
    capped = f"{power.value} (0.25 s) and {board.value} (0.002 s) held the clock down"
    fell = "the clock moved by -50.0% over the last half of the samples"

    assert noted(replace(both, ring_sm_clocks_hz=tuple([2e9] * 20)))["capped"] == (
        f"{capped}; the clock moved by +0.0% over the last half of the samples"
    )
    assert void_text(
        replace(both, ring_sm_clocks_hz=tuple([2e9] * 25 + [1e9] * 5))
    ) == (f"{capped} and {fell}; preheat for longer, or lock the clock below the cap")


def test_a_gpu_that_counts_nothing_says_what_was_looked_at() -> None:
    """Two moments are not the time between them."""
    assert noted(around(throttled_s={}))["throttling-uncounted"] == (
        "this GPU does not count throttling time: its clock was checked only before and"
        " after"
    )


def test_what_the_driver_reports_is_told_in_full() -> None:
    """All codes, how many packets, and that a sensor is silent."""
    silent = {"a": Gap(code=GapCode.TEMPORARY, reason="r", remedy="do")}
    told = noted(around(xids=(13, 31), pcie_replay_count=2, silent=silent))

    assert told == {
        "xid": "the driver reported XID 13, 31: see the kernel's log",
        "pcie-replay": "2 PCIe packets were replayed",
        "sensor-silent": "no reading of a: r; do",
    }


@pytest.mark.parametrize(
    "kind", [ClockReason.SOFTWARE_THERMAL, ClockReason.HARDWARE_THERMAL]
)
def test_one_kind_of_thermal_limit_is_not_the_sum(kind: ClockReason) -> None:
    """Where but one of them is counted, the sum may be of the other."""
    deltas = around(throttled_s={kind: 0.0, ClockReason.THERMAL: 0.5})

    assert codes(deltas) == (None, ["capped"])
