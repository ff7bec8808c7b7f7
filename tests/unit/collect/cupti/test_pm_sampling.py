"""collect.cupti.pm_sampling: counters of a device as a time line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.libcupti import FakeCupti
from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.cupti.libcupti import Libcupti
from pytest_gpuperf.collect.cupti.pm_sampling import PmSampler
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    CountersBusyError,
    MeasureError,
)

ACTIVE, BYTES = "sm__cycles_active.avg", "dram__bytes.sum"
UNITS = {ACTIVE: "gpc_cycle", BYTES: "byte"}
SAMPLING = "cuptiPmSampling"
BEGIN_NS = 1_700_000_000_123_456_789  # a double cannot hold it to the nanosecond
STEP_NS = 100_000


def sampler(
    fake: FakeCupti, *, interval_s: float = 100e-6, device: int = 0
) -> PmSampler:
    """Return a sampler of all that the double has."""
    driver = FakeDriver()
    library = Libcupti(fake, path="the double", driver=lambda: driver)
    return PmSampler(
        tuple(fake.units),
        device=device,
        interval_s=interval_s,
        buffer_bytes=1 << 20,
        library=library,
    )


def with_samples(*numbers: float) -> FakeCupti:
    """Return a double whose buffer holds a sample for each number."""
    fake = FakeCupti(UNITS)
    fake.samples = [
        (
            BEGIN_NS + place * STEP_NS,
            BEGIN_NS + (place + 1) * STEP_NS,
            {ACTIVE: number, BYTES: 2 * number},
        )
        for place, number in enumerate(numbers)
    ]
    return fake


@given(st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=7))
def test_a_time_line_has_every_sample(numbers: list[float]) -> None:
    """However many images it takes to decode them, samples come in order, once each."""
    fake = with_samples(*numbers)

    timeline = sampler(fake).sample(lambda: None)

    assert timeline.values[ACTIVE] == tuple(numbers)
    assert timeline.values[BYTES] == tuple(2 * number for number in numbers)
    assert timeline.units == {ACTIVE: "cycle", BYTES: "byte"}
    assert timeline.origin_ns == BEGIN_NS
    assert timeline.starts_s == pytest.approx([1e-4 * n for n in range(len(numbers))])
    assert timeline.ends_s[-1] == pytest.approx(1e-4 * len(numbers))
    assert (timeline.source, timeline.tool) == ("cupti", "cupti 13.5")
    assert (timeline.void, timeline.notes) == (None, ())


def test_a_body_runs_while_the_device_is_sampled() -> None:
    """Enabled, configured and started before the body; stopped and read after it."""
    fake = with_samples(1.0)

    sampler(fake, device=2).sample(lambda: fake.calls.append("body"))

    calls = [call for call in fake.calls if call.startswith((SAMPLING, "body"))]
    assert calls == [
        f"{SAMPLING}Enable",
        f"{SAMPLING}SetConfig",
        f"{SAMPLING}GetCounterDataSize",
        f"{SAMPLING}Start",
        "body",
        f"{SAMPLING}Stop",
        f"{SAMPLING}CounterDataImageInitialize",
        f"{SAMPLING}DecodeData",
        f"{SAMPLING}GetCounterDataInfo",
        f"{SAMPLING}CounterDataGetSampleInfo",
        f"{SAMPLING}Disable",
    ]
    assert fake.configured["samplingInterval"] == STEP_NS
    assert fake.configured["hardwareBufferSize"] == 1 << 20
    assert (fake.configured["triggerMode"], fake.configured["hwBufferAppendMode"]) == (
        1,
        0,
    )


def test_more_than_one_pass_is_refused_before_the_device_is_touched() -> None:
    """The metrics that take too much by themselves are named."""
    fake = with_samples(1.0)
    fake.passes = lambda names: 19 if BYTES in names else 1

    with pytest.raises(MeasureError, match=rf"19 passes on GH100.*leave out {BYTES},"):
        sampler(fake)

    assert not [call for call in fake.calls if call.startswith(SAMPLING)]
    assert fake.open_count == 0


def test_metrics_that_do_not_fit_together_are_said_to() -> None:
    """Where each of them fits alone, none of them is to blame."""
    fake = with_samples(1.0)
    fake.passes = len

    with pytest.raises(
        MeasureError, match=r"2 metrics take 2 passes.*some of them at a"
    ):
        sampler(fake)


@pytest.mark.parametrize("chip", ["TU102", "TU117", "GA100"])
def test_a_chip_without_steps_of_time_is_refused(chip: str) -> None:
    """What is sampled in steps of a clock that moves is no time line."""
    with pytest.raises(CollectorUnavailableError, match=f"{chip} samples in steps of"):
        sampler(FakeCupti(UNITS, chip=chip))


@pytest.mark.parametrize("chip", ["GA102", "GH100", "GB202"])
def test_a_chip_with_steps_of_time_is_sampled(chip: str) -> None:
    """Ampere's consumer chips and all later ones have them."""
    fake = with_samples(1.0)
    fake._chip = chip.encode()

    assert sampler(fake).sample(lambda: None).values[ACTIVE] == (1.0,)


@pytest.mark.parametrize("sign", ["flag", "status"])
def test_an_overflow_is_void(sign: str) -> None:
    """A buffer that was too small makes the rest invalid, not smaller."""
    fake = with_samples(1.0, 2.0, 3.0)
    sampling = sampler(fake)
    if sign == "flag":
        fake.overflow = True
    sampling.start()
    if sign == "status":
        fake.status_after[f"{SAMPLING}DecodeData"] = 8

    timeline = sampling.stop()

    assert timeline.values[ACTIVE] == (1.0, 2.0)
    assert timeline.void is not None
    assert timeline.void.code == "samples-lost"
    assert "1 MiB overflowed" in timeline.void.text


@pytest.mark.parametrize("reason", [0, 3])
def test_decoding_that_stops_for_no_reason_is_void(reason: int) -> None:
    """Samples that were not decoded are not known not to be there."""
    fake = with_samples(1.0)
    fake.stop_reason = reason

    void = sampler(fake).sample(lambda: None).void

    assert void is not None
    assert void.code == "samples-undecoded"


def test_an_image_that_stays_full_is_void() -> None:
    """Decoding that gets nowhere is given up."""
    fake = with_samples(1.0, 2.0)
    fake.stop_reason = 1

    timeline = sampler(fake).sample(lambda: None)

    assert timeline.values[ACTIVE] == (1.0, 2.0)
    assert timeline.void is not None
    assert timeline.void.code == "samples-undecoded"


def test_unfinished_samples_are_a_note() -> None:
    """A sample that had only begun is left out, and that is said."""
    fake = with_samples(1.0)
    fake.unfinished_count = 2

    timeline = sampler(fake).sample(lambda: None)

    assert timeline.values[ACTIVE] == (1.0,)
    assert [note.code for note in timeline.notes] == ["unfinished-samples"]
    assert timeline.notes[0].text.startswith("2 samples were")


def test_a_body_shorter_than_the_interval_is_unmeasured() -> None:
    """No sample is an error with a reason, and never an empty line."""
    fake = FakeCupti(UNITS)

    with pytest.raises(CollectError, match="no sample was taken"):
        sampler(fake).sample(lambda: None)

    assert fake.calls[-1] == f"{SAMPLING}Disable"


def test_a_number_that_is_none_is_absent() -> None:
    """NaN and infinity never leave the room."""
    timeline = sampler(with_samples(1.0, math.nan, math.inf)).sample(lambda: None)

    assert timeline.values[ACTIVE] == (1.0, None, None)


def test_a_device_is_sampled_by_one_at_a_time() -> None:
    """7 says that somebody does, and what was enabled stays theirs."""
    fake = with_samples(1.0)
    first, second = sampler(fake), sampler(fake)
    first.start()

    with pytest.raises(CountersBusyError, match="being sampled already"):
        second.start()

    assert first.stop().values[ACTIVE] == (1.0,)


@pytest.mark.parametrize("call", ["SetConfig", "Start", "Stop", "DecodeData"])
def test_a_failure_gives_the_device_back(call: str) -> None:
    """What fails after Enable is followed by Disable."""
    fake = with_samples(1.0)
    fake.status_of[f"{SAMPLING}{call}"] = 999

    with pytest.raises(CollectError, match=f"{SAMPLING}{call}: 999"):
        sampler(fake).sample(lambda: None)

    assert fake.calls[-1] == f"{SAMPLING}Disable"


class BodyError(Exception):
    """What a body raises."""


@pytest.mark.parametrize("failing", [0, 999])
def test_what_a_body_raises_passes_through(failing: int) -> None:
    """The device is given back, and the body's own error is not hidden by ours."""
    fake = with_samples(1.0)
    sampling = sampler(fake)
    fake.status_of[f"{SAMPLING}Disable"] = failing

    def body() -> None:
        raise BodyError

    with pytest.raises(BodyError):
        sampling.sample(body)

    assert fake.calls[-1] == f"{SAMPLING}Disable"


def test_stopping_what_was_not_started_is_refused() -> None:
    """There is nothing to read."""
    with pytest.raises(CollectError, match="not being sampled"):
        sampler(with_samples(1.0)).stop()


def test_close_ends_what_runs() -> None:
    """Nothing is held after it, also where sampling had not been stopped."""
    fake = with_samples(1.0)
    sampling = sampler(fake)
    sampling.start()

    sampling.close()
    sampling.close()

    assert fake.open_count == 0


def test_limited_counters_are_a_note() -> None:
    """A GPU that gives some metrics only is used, and its reader is told."""
    fake = with_samples(1.0)
    fake.support = {"isSupported": 4}

    timeline = sampler(fake).sample(lambda: None)

    assert [note.code for note in timeline.notes] == ["limited-counters"]


def test_what_has_no_meaning_is_refused_at_once() -> None:
    """All mistakes of a request are one error, before a library is asked."""
    with pytest.raises(MeasureError, match=r"no metric.*; an interval of 0.0 s"):
        PmSampler((), interval_s=0.0)
