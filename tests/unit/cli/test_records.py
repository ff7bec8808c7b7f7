"""cli.records: what a person asked to see, and what is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fakes import runs
from pytest_gpuperf.cli.records import absent_from_run, selected
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.launch import (
    Capture,
    CapturedLaunch,
    CapturedRange,
    CapturedValue,
)
from pytest_gpuperf.model.metric import METRICS

REGISTERS = "launch__registers_per_thread"
HIT = "lts__t_sectors_lookup_hit.sum"
MISS = "lts__t_sectors_lookup_miss.sum"


def launch(
    index: int, counters: dict[str, float | None], *, measured: bool = True
) -> CapturedLaunch:
    return CapturedLaunch(
        index=index,
        kernel="kernel",
        demangled="kernel()",
        nvtx={},
        measured=measured,
        metrics={
            name: CapturedValue(value=value, unit="")
            for name, value in counters.items()
        },
    )


def report(*launches: CapturedLaunch) -> Callable[[Sequence[str] | None], Capture]:
    """Return a reader of a report that gives what it is asked for."""

    def read(names: Sequence[str] | None) -> Capture:
        def kept(one: CapturedLaunch) -> CapturedLaunch:
            metrics = {
                name: found
                for name, found in one.metrics.items()
                if names is None or name in names
            }
            return CapturedLaunch(
                index=one.index,
                kernel=one.kernel,
                demangled=one.demangled,
                nvtx={},
                measured=one.measured,
                metrics=metrics,
            )

        return Capture(ranges=(CapturedRange(launches=tuple(map(kept, launches))),))

    return read


def test_each_launch_has_its_own_value() -> None:
    """A metric of the catalogue stands beside counters, in its own unit."""
    read = report(launch(0, {REGISTERS: 34}), launch(1, {REGISTERS: 64}))
    capture, told = selected(read, ["registers", REGISTERS])
    (launches,) = (each.launches for each in capture.ranges)

    assert [one.metrics["registers"].value for one in launches] == [34, 64]
    assert {one.metrics["registers"].unit for one in launches} == {"count"}
    assert launches[0].metrics[REGISTERS].unit == ""
    assert told == ()


def test_a_launch_that_was_not_measured_has_no_metric() -> None:
    """Its counters mean nothing."""
    read = report(launch(0, {REGISTERS: 34}, measured=False))
    capture, told = selected(read, ["registers"])

    assert "registers" not in capture.ranges[0].launches[0].metrics
    assert told == ()


def test_what_cannot_be_made_says_what_to_collect() -> None:
    """Once, however many launches lack it."""
    _, told = selected(report(launch(0, {}), launch(1, {})), ["registers"])

    (text,) = told
    assert text == (
        "registers n/a: no launch in the report has it; collect it: "
        f"ncu --metrics {REGISTERS}"
    )


def test_a_launch_for_which_a_metric_is_undefined_is_told() -> None:
    """Also where the other launches have it."""
    read = report(launch(0, {HIT: 1.0, MISS: 1.0}), launch(1, {HIT: 0.0, MISS: 0.0}))
    capture, (told,) = selected(read, ["l2.hit_fraction"])

    assert capture.ranges[0].launches[0].metrics["l2.hit_fraction"].value == 0.5
    assert "l2.hit_fraction n/a: nothing was looked up" in told


def test_a_mistyped_counter_finds_its_neighbours() -> None:
    """Of the whole report and of the catalogue."""
    read = report(launch(0, {HIT: 1.0, MISS: 1.0}))
    _, told = selected(read, [HIT[:-4], "registesr", "zzz"])

    collect = f"collect it: ncu --metrics {HIT[:-4]}"
    assert told == (
        f"not in this capture: {HIT[:-4]}; did you mean {HIT}? if not, {collect}",
        "not in this capture: registesr; did you mean registers, scalar_registers?",
        "not in this capture: zzz",
    )


def test_a_counter_without_a_value_is_in_the_capture() -> None:
    """ncu writes one that it could not count as NaN, which is not a mistyped name."""
    read = report(launch(0, {REGISTERS: None, HIT: 1.0, MISS: 1.0}))
    _, told = selected(read, [REGISTERS, "registers", HIT])

    why = f"n/a: launch 0 has {REGISTERS} without a value; profile again"
    assert set(told) == {f"{REGISTERS} {why}", f"registers {why}"}


def test_a_name_of_nothing_is_refused() -> None:
    """Beside a known one it is a remark; a counter may only not have been collected."""
    read = report(launch(0, {HIT: 1.0, MISS: 1.0}))

    with pytest.raises(ConfigError, match="did you mean registers"):
        selected(read, ["registesr", "zzz"])
    assert selected(read, ["zzz", HIT])[1] == ("not in this capture: zzz",)


def test_a_counter_that_was_not_collected_says_how() -> None:
    """It is not a misspelt metric of the catalogue, which would be made of it."""
    _, told = selected(report(launch(0, {REGISTERS: 34})), ["dram__bytes.sum"])

    assert told == (
        "not in this capture: dram__bytes.sum; collect it: ncu --metrics dram__bytes.sum",
    )


def test_a_report_is_read_once() -> None:
    """What says how its launches compare is read with the counters that are named."""
    readings: list[Sequence[str] | None] = []

    def read(names: Sequence[str] | None) -> Capture:
        readings.append(names)
        return report(launch(0, {REGISTERS: 34}))(names)

    selected(read, [REGISTERS])

    ((first, *others),) = [names or () for names in readings]
    assert first == REGISTERS
    assert "gpu__time_duration.sum" in others


def test_a_run_says_what_it_does_not_have() -> None:
    """What is judged without a value is there all the same."""
    assert absent_from_run(runs.gpu_run(), ["time", "registers"]) == ()
    (told,) = absent_from_run(runs.gpu_run(), ["tme"])
    assert told == "not in this run: tme; did you mean time?"


def test_only_counters_have_two_underscores() -> None:
    """The command asks the catalogue only for other names."""
    assert not [name for name in METRICS if "__" in name]
