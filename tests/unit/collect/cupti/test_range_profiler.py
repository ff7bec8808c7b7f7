"""collect.cupti.range_profiler: counters of kernels and ranges, in process."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.libcupti import FakeCupti
from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.cupti.libcupti import (
    GREW,
    Libcupti,
    find_libraries,
    first_usable,
    load,
)
from pytest_gpuperf.collect.cupti.metric_host import MetricHost, ncu_unit
from pytest_gpuperf.collect.cupti.range_profiler import (
    Counted,
    Ranged,
    RangeProfiler,
    kernel_replay_error,
)
from pytest_gpuperf.collect.translate.counters import captured_values, standard_counters
from pytest_gpuperf.errors import (
    CollectError,
    CollectorUnavailableError,
    MeasureError,
    UnknownMetricError,
)
from pytest_gpuperf.model.counters import CounterMode
from pytest_gpuperf.model.launch import CapturedLaunch

BYTES, HITS = "dram__bytes.sum", "lts__t_sector_hit_rate.pct"
UNITS = {BYTES: "byte", HITS: "percent"}
RANGE = "cuptiRangeProfiler"


def loaded(fake: FakeCupti) -> Libcupti:
    """Return the double as a library in use, on device 3."""
    driver = FakeDriver(context=0x1000)
    return Libcupti(fake, path="the double", driver=lambda: driver)


def profiler(
    fake: FakeCupti, *, max_ranges: int = 8, cache: str = "none"
) -> RangeProfiler:
    """Return a profiler of all that the double has."""
    return RangeProfiler(
        tuple(fake.units),
        synchronize=lambda: fake.calls.append("synchronize"),
        max_ranges=max_ranges,
        cache=cache,
        library=loaded(fake),
    )


def kernels(fake: FakeCupti, *numbers: float, **options: object) -> Counted:
    """Return what is counted of a body that launches a kernel for each number."""

    def body() -> None:
        for number in numbers:
            fake.launch({BYTES: number, HITS: 50.0})

    return profiler(fake, **options).count_kernels(body)  # type: ignore[arg-type] # as given


def real_libraries() -> Iterator[Libcupti]:
    """Yield the installed libraries that answer without a driver."""
    for path in find_libraries():
        with contextlib.suppress(CollectorUnavailableError):
            yield Libcupti(ctypes.CDLL(str(path)), path=str(path), driver=lambda: None)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8)
)
def test_each_kernel_has_its_own_numbers(numbers: list[float]) -> None:
    """A body's kernels come back in their order, each number under its metric."""
    counted = kernels(FakeCupti(UNITS), *numbers)

    assert [each.name for each in counted.ranges] == [
        str(n) for n in range(len(numbers))
    ]
    assert [each.metrics[BYTES].value for each in counted.ranges] == numbers
    assert {each.metrics[HITS].unit for each in counted.ranges} == {"%"}


def test_kernels_are_replayed_and_the_body_is_not() -> None:
    """Automatic ranges with kernel replay, in one run that waits before it ends."""
    fake = FakeCupti(UNITS, passes=7)

    counted = kernels(fake, 1.0)

    assert (fake.configured["range"], fake.configured["replayMode"]) == (1, 2)
    ran = [call for call in fake.calls if call.startswith(RANGE) or call[0] == "s"]
    assert ran == [
        f"{RANGE}Enable",
        f"{RANGE}GetCounterDataSize",
        f"{RANGE}CounterDataImageInitialize",
        f"{RANGE}SetConfig",
        f"{RANGE}Start",
        "synchronize",
        f"{RANGE}Stop",
        f"{RANGE}DecodeData",
        f"{RANGE}GetCounterDataInfo",
        f"{RANGE}CounterDataGetRangeInfo",
        f"{RANGE}Disable",
    ]
    assert counted.passes_count == 7


@given(st.integers(min_value=1, max_value=5))
def test_a_body_runs_until_all_passes_are_counted(passes: int) -> None:
    """Configured once, the body runs until libcupti has all metrics of all ranges."""
    fake = FakeCupti(UNITS, passes=passes)
    runs: list[None] = []

    def body(ranged: Ranged) -> None:
        runs.append(None)
        with ranged("forward"):
            fake.launch({BYTES: 1.0, HITS: 10.0})
            fake.launch({BYTES: 2.0, HITS: 20.0})
        fake.launch({BYTES: 99.0})  # in no range
        with ranged("backward"):
            fake.launch({BYTES: 4.0, HITS: 40.0})

    counted = profiler(fake).count_ranges(body)

    assert len(runs) == passes == counted.passes_count
    assert (fake.configured["range"], fake.configured["replayMode"]) == (2, 3)
    found = [(r.name, [v.value for v in r.metrics.values()]) for r in counted.ranges]
    assert found == [("forward", [3.0, 30.0]), ("backward", [4.0, 40.0])]


def test_a_result_says_how_it_was_counted() -> None:
    """Tool, replay, cache and clock mode go into what two results must share."""
    counted = kernels(FakeCupti(UNITS, version=130401), 1.0, cache="all")

    assert counted.source == "cupti"
    assert counted.mode == CounterMode(replay="kernel", cache="all", clock="none")
    assert counted.facts() == {
        "tool_version": "cupti 13.4",
        "replay_mode": "kernel",
        "cache_control": "all",
        "clock_control": "none",
    }


def test_ranges_are_a_source_beside_ncu() -> None:
    """A range reads like a launch of Nsight Compute, in its units."""
    counted = kernels(FakeCupti(UNITS), 1000.0, 24.0)

    launches = [
        CapturedLaunch(
            index=int(each.name),
            kernel=each.name,
            demangled="",
            measured=True,
            nvtx={},
            metrics=each.metrics,
        )
        for each in counted.ranges
    ]
    captured = captured_values(BYTES, launches)
    standard = standard_counters(launches[0], mode=counted.mode)

    assert (captured.values, captured.unit) == ((1000.0, 24.0), "byte")
    assert standard.values["dram_bytes"] == 1000.0
    assert standard.values["l2_hit_fraction"] == 0.5
    assert standard.mode.replay == "kernel"


@pytest.mark.parametrize(
    ("said", "unit"),
    [
        ("byte", "byte"),
        ("byte/second", "byte/second"),
        ("percent", "%"),
        ("nanosecond", "nsecond"),
        ("instruction/gpc_cycle", "inst/cycle"),
        ("gpc_cycle/second", "cycle/second"),
        ("unitless", ""),
    ],
)
def test_units_are_written_as_ncu_writes_them(said: str, unit: str) -> None:
    """A limit on a counter reads the same whichever tool has counted it."""
    assert ncu_unit(said) == unit


def test_caches_are_emptied_where_the_library_can() -> None:
    """The size and the field of 13.4 are passed to 13.4, and to none before."""
    newer = FakeCupti(UNITS, version=GREW[f"{RANGE}Enable"])

    assert kernels(newer, 1.0, cache="all").notes == ()
    assert newer.enabled == {"ctx": 0x1000, "cacheControlMode": 1}
    assert kernels(newer, 1.0).mode.cache == "none"
    assert newer.enabled["cacheControlMode"] == 0


def test_caches_that_cannot_be_emptied_are_a_note() -> None:
    """An older library counts with caches as they are, and says so."""
    counted = kernels(FakeCupti(UNITS, version=130001), 1.0, cache="all")

    assert counted.mode.cache == "none"
    assert [note.code for note in counted.notes] == ["cache-control"]
    assert "cupti 13.0" in counted.notes[0].text


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (2, "locked"),
        (3, "locked to a floor"),
        (4, "boost enabled"),
        (5, "boost disabled"),
    ],
)
def test_a_held_clock_is_a_note(state: int, said: str) -> None:
    """What others have done to the clock is said; nothing is done to it from here."""
    fake = FakeCupti(UNITS)
    fake.clock = [state]

    counted = kernels(fake, 1.0)

    assert [note.code for note in counted.notes] == ["clock-held"]
    assert f"the clock is {said} by another tool" in counted.notes[0].text
    assert counted.void is None
    assert not [call for call in fake.calls if call.endswith(("Lock", "Unlock"))]


def test_a_clock_that_moved_meanwhile_is_void() -> None:
    """Passes at two clocks are two experiments."""
    fake = FakeCupti(UNITS)
    fake.clock = [1, 2]

    void = kernels(fake, 1.0).void

    assert void is not None
    assert (void.code, "unlocked before counting and locked after" in void.text) == (
        "clock-control-moved",
        True,
    )


@pytest.mark.parametrize("version", [26, 130001, 130301])
def test_a_library_that_cannot_tell_the_clock_is_taken(version: int) -> None:
    """Before 13.4 nobody says what was done to the clock."""
    fake = FakeCupti(UNITS, version=version)

    counted = kernels(fake, 1.0)

    assert (counted.void, counted.notes) == (None, ())
    assert "cuptiClockControlGetStatus" not in fake.calls


def test_a_clock_that_the_system_does_not_tell_is_not_known() -> None:
    """27 of the clock's status is not a reason not to count."""
    fake = FakeCupti(UNITS)
    fake.status_of["cuptiClockControlGetStatus"] = 27

    assert kernels(fake, 1.0).void is None


def test_dropped_ranges_void_the_result() -> None:
    """A part of what ran is not less of it, but another thing."""
    counted = kernels(FakeCupti(UNITS), 1.0, 2.0, 3.0, max_ranges=2)

    assert len(counted.ranges) == 2
    assert counted.void is not None
    assert counted.void.code == "dropped-ranges"
    assert "1 range was dropped: the limit was 2" in counted.void.text


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_none_is_absent(number: float) -> None:
    """NaN and infinity never leave the room; a metric without any number is a note."""
    counted = kernels(FakeCupti(UNITS), number)

    assert counted.ranges[0].metrics[BYTES].value is None
    assert [note.code for note in counted.notes] == ["absent-counters"]
    assert BYTES in counted.notes[0].text
    assert HITS not in counted.notes[0].text


def test_a_stored_zero_is_not_an_absent_value() -> None:
    """0 is a number."""
    counted = kernels(FakeCupti(UNITS), 0.0)

    assert counted.ranges[0].metrics[BYTES].value == 0.0
    assert counted.notes == ()


def test_limited_counters_are_a_note() -> None:
    """A GPU that gives some metrics only is used, and its reader is told."""
    fake = FakeCupti(UNITS)
    fake.support = {"isSupported": 4, "sku": 4}

    counted = kernels(fake, 1.0)

    assert [note.code for note in counted.notes] == ["limited-counters"]
    assert "(sku)" in counted.notes[0].text


def test_a_body_without_kernels_is_unmeasured() -> None:
    """Nothing counted is an error with a reason, and never a zero."""
    with pytest.raises(CollectError, match="launched no kernel"):
        kernels(FakeCupti(UNITS))


def test_a_body_without_ranges_is_unmeasured() -> None:
    """The same of ranges."""
    fake = FakeCupti(UNITS)

    with pytest.raises(CollectError, match="began no range"):
        profiler(fake).count_ranges(lambda _: fake.launch({BYTES: 1.0}))


def test_passes_that_do_not_end_are_given_up() -> None:
    """A body is not run for ever."""
    fake = FakeCupti(UNITS, passes=3)
    counting = profiler(fake)
    fake.passes = 100
    runs: list[None] = []

    def body(ranged: Ranged) -> None:
        runs.append(None)
        with ranged("forward"):
            fake.launch({BYTES: 1.0})

    with pytest.raises(CollectError, match="6 runs of the body did not complete 3"):
        counting.count_ranges(body)

    assert len(runs) == 6
    assert fake.calls[-1] == f"{RANGE}Disable"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("forward", "backward", "began backward, and the first run forward"),
        ("forward", "", "began no range, and the first run forward"),
        ("", "backward", "began backward, and the first run no range"),
    ],
)
def test_ranges_that_change_from_run_to_run_are_refused(
    first: str, second: str, said: str
) -> None:
    """What is counted in one pass belongs to the range of another that has its name."""
    fake = FakeCupti(UNITS, passes=3)
    names = iter([first, second])

    def body(ranged: Ranged) -> None:
        name = next(names)
        if name:
            with ranged(name):
                fake.launch({BYTES: 1.0})

    with pytest.raises(MeasureError, match=f"run 2 of the body {said}"):
        profiler(fake).count_ranges(body)

    assert fake.calls[-1] == f"{RANGE}Disable"


@pytest.mark.parametrize(
    ("inner", "said"), [(True, "is inside another range"), (False, "began twice")]
)
def test_a_range_that_would_not_be_counted_is_refused(inner: bool, said: str) -> None:
    """No range is left out, and no two are taken for one, without a word."""
    fake = FakeCupti(UNITS)

    def body(ranged: Ranged) -> None:
        with ranged("forward"):
            if inner:
                ranged("attention").__enter__()
        with ranged("forward"):
            pass

    with pytest.raises(MeasureError, match=said):
        profiler(fake).count_ranges(body)


def test_a_range_may_follow_one_that_raised() -> None:
    """A body that handles its own error goes on."""
    fake = FakeCupti(UNITS)

    def body(ranged: Ranged) -> None:
        with contextlib.suppress(BodyError), ranged("first"):
            raise BodyError
        with ranged("second"):
            fake.launch({BYTES: 1.0, HITS: 1.0})

    counted = profiler(fake).count_ranges(body)

    assert [each.name for each in counted.ranges] == ["first", "second"]


def test_kernels_that_lack_a_pass_are_void() -> None:
    """Metrics that had no turn are not zero."""
    fake = FakeCupti(UNITS, passes=2)
    fake.replays = False

    void = kernels(fake, 1.0).void

    assert void is not None
    assert (void.code, "all of 2 passes" in void.text) == ("passes-missing", True)


class BodyError(Exception):
    """What a body raises."""


@pytest.mark.parametrize("failing", [0, 999])
@pytest.mark.parametrize("where", ["kernels", "range"])
def test_what_a_body_raises_passes_through(where: str, failing: int) -> None:
    """The GPU is given back, and the body's own error is not hidden by ours."""
    fake = FakeCupti(UNITS)
    counting = profiler(fake)
    fake.status_of[f"{RANGE}Disable"] = failing
    fake.status_of[f"{RANGE}PopRange"] = failing

    def body() -> None:
        raise BodyError

    def ranged_body(ranged: Ranged) -> None:
        with ranged("forward"):
            raise BodyError

    count = {
        "kernels": lambda: counting.count_kernels(body),
        "range": lambda: counting.count_ranges(ranged_body),
    }
    with pytest.raises(BodyError):
        count[where]()

    assert fake.calls[-1] == f"{RANGE}Disable"
    assert (f"{RANGE}PopRange" in fake.calls) == (where == "range")


def test_an_end_that_fails_is_said() -> None:
    """What is not given back would refuse the next one."""
    fake = FakeCupti(UNITS)
    fake.status_of[f"{RANGE}Disable"] = 999

    with pytest.raises(CollectorUnavailableError, match=f"{RANGE}Disable: 999"):
        kernels(fake, 1.0)


def test_one_profiler_counts_again() -> None:
    """The configuration outlives what it was made for, until it is closed."""
    fake = FakeCupti(UNITS)
    counting = profiler(fake)

    first = counting.count_kernels(lambda: fake.launch({BYTES: 1.0}))
    counting.close()
    counting.close()

    assert first.ranges[0].metrics[BYTES].value == 1.0
    assert fake.open_count == 0


@pytest.mark.parametrize("size", ["2", "16"])
def test_kernel_replay_is_refused_to_a_rank(size: str) -> None:
    """A kernel that waits for other ranks would wait for ever when it runs again."""
    refused = kernel_replay_error({"WORLD_SIZE": size}, launches_graphs=False)

    assert refused is not None
    assert f"WORLD_SIZE is {size}" in refused.message
    assert "ranges" in refused.remedy


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "?"}])
def test_kernel_replay_is_for_one_process(environment: dict[str, str]) -> None:
    """A single process waits for nobody."""
    assert kernel_replay_error(environment, launches_graphs=False) is None


def test_kernel_replay_is_refused_to_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would be one range of many kernels; nothing is enabled for it."""
    fake = FakeCupti(UNITS)

    with pytest.raises(MeasureError, match="CUDA graph"):
        profiler(fake).count_kernels(lambda: None, launches_graphs=True)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(MeasureError, match="WORLD_SIZE is 8"):
        profiler(fake).count_kernels(lambda: None)

    assert f"{RANGE}Enable" not in fake.calls


def test_what_has_no_meaning_is_refused_at_once() -> None:
    """All mistakes of a request are one error, before a library is asked."""
    with pytest.raises(MeasureError) as caught:
        RangeProfiler((), synchronize=lambda: None, max_ranges=0, cache="cold")

    for mistake in ("metrics is empty", "max_ranges=0", "'cold'"):
        assert mistake in caught.value.message


@pytest.mark.parametrize("driver", [FakeDriver(context=None), None])
def test_counters_are_those_of_a_context(driver: FakeDriver | None) -> None:
    """A thread that has not used the GPU, or a process that has not, is told to."""
    library = Libcupti(
        FakeCupti(UNITS, version=130101), path="the double", driver=lambda: driver
    )

    with pytest.raises(CollectorUnavailableError, match="no CUDA context"):
        RangeProfiler((BYTES,), synchronize=lambda: None, library=library)


def test_a_driver_that_nobody_started_has_no_context() -> None:
    """CUPTI's binding loads it: no kernel is to blame."""
    driver = FakeDriver()
    driver.failing["cuCtxGetCurrent"] = 3
    library = Libcupti(FakeCupti(UNITS), path="the double", driver=lambda: driver)

    with pytest.raises(CollectorUnavailableError, match="no CUDA context"):
        library.context()


def test_a_driver_that_fails_is_named() -> None:
    """An error of the driver is the driver's."""
    driver = FakeDriver()
    driver.failing["cuCtxGetCurrent"] = 700
    library = Libcupti(FakeCupti(UNITS), path="the double", driver=lambda: driver)

    with pytest.raises(CollectError, match="cuCtxGetCurrent failed"):
        library.context()


def test_an_older_library_than_the_known_ones_is_refused() -> None:
    """What was not compared with its headers is not called."""
    with pytest.raises(CollectorUnavailableError, match="API version 25, older"):
        loaded(FakeCupti(UNITS, version=25))


@pytest.mark.parametrize(
    ("version", "name"),
    [(26, "cupti API 26"), (130001, "cupti 13.0"), (130500, "cupti 13.5")],
)
def test_a_library_says_its_name(version: int, name: str) -> None:
    """The version is a fact of every counter."""
    assert loaded(FakeCupti(UNITS, version=version)).name == name


@pytest.mark.parametrize(("version", "refused"), [(130101, False), (130200, True)])
def test_no_library_from_13_2_on_is_asked_without_a_driver(
    version: int, refused: bool
) -> None:
    """13.2 would crash, and later ones answer nothing."""
    library = Libcupti(
        FakeCupti(UNITS, version=version), path="the double", driver=lambda: None
    )

    def prepare() -> MetricHost:
        return MetricHost(library, "GH100", (BYTES,))

    if refused:
        with pytest.raises(CollectorUnavailableError, match="without a CUDA driver"):
            prepare()
    else:
        assert prepare().passes_count == 1


def test_a_library_that_is_loaded_is_the_one() -> None:
    """A second copy would know only half; one that says nothing is said to."""
    found = list(find_libraries())
    if not found:
        pytest.skip("libcupti is not installed (pip install nvidia-cuda-cupti)")
    ctypes.CDLL(str(found[-1]))

    def answer() -> str:
        try:
            return "the same" if load() is load() else "another one"
        except CollectorUnavailableError as error:
            return error.message

    assert answer() == "the same" or "cuptiGetVersion: 999 UNKNOWN" in answer()


def test_a_library_that_does_not_load_says_why(tmp_path: Path) -> None:
    """Each that was tried is named with what is wrong with it."""
    paths = [tmp_path / "absent.so", tmp_path / "text.so"]
    paths[1].write_text("no library")

    with pytest.raises(CollectorUnavailableError) as caught:
        first_usable(paths)
    with pytest.raises(CollectorUnavailableError, match="libcupti is not installed"):
        first_usable([])

    assert caught.value.message.count("; ") == 1
    assert all(f"{path}: " in caught.value.message for path in paths)


def test_a_library_that_does_not_say_its_version_is_refused() -> None:
    """From 13.3 on libcupti says nothing without a driver: no layout fits it then."""
    fake = FakeCupti(UNITS)
    fake.status_of["cuptiGetVersion"] = 999

    with pytest.raises(CollectorUnavailableError, match="cuptiGetVersion: 999"):
        loaded(fake)


def test_the_real_host_half_answers_without_a_driver() -> None:
    """The classes that drive the double drive NVIDIA's library too, as far as it goes."""
    library = next((each for each in real_libraries() if each.version < 130200), None)
    if library is None:
        pytest.skip("no libcupti up to 13.1 is here, which answers without a driver")
    throughput = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

    host = MetricHost(library, "GH100", (BYTES, throughput, HITS))

    assert host.passes_count > 1
    assert host.units() == {BYTES: "byte", throughput: "%", HITS: "%"}
    host.close()
    with pytest.raises(UnknownMetricError, match=r"'nope.sum'"):
        MetricHost(library, "GH100", ("nope.sum", BYTES))
