"""collect.cupti.call_counter: one more call of what was timed, counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.libcupti import FakeCupti
from fakes.runtime import FakeDriver, FakeRuntime
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.cupti.call_counter import Call, CallCounter, CountedCall
from pytest_gpuperf.collect.cupti.libcupti import Libcupti
from pytest_gpuperf.errors import CollectError, MeasureError
from pytest_gpuperf.model.activity import KernelShape, Launches, Trace
from pytest_gpuperf.model.gap import Gap, GapCode

BYTES = "dram__bytes.sum"
RANGE = "cuptiRangeProfiler"


@pytest.fixture(autouse=True)
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is not a rank of a job, and nothing is attached to it."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)


class Machine:
    """A GPU that counts, and what is launched on it."""

    def __init__(self, *, passes: int = 1) -> None:
        self.fake = FakeCupti(passes=passes)
        self.runtime = FakeRuntime(FakeClock())
        driver = FakeDriver(context=0x1000)
        library = Libcupti(self.fake, path="the double", driver=lambda: driver)
        self.counter = CallCounter(self.runtime, library=library)

    def launch(self, size: float) -> None:
        """Launch a kernel that moves so many bytes."""
        self.fake.launch({BYTES: size})

    def count(
        self,
        fn: Callable[..., object],
        *args: object,
        trace: Trace | None = None,
        time_s: float = 1e-3,
        setup: Callable[[], object] | None = None,
        inputs: Sequence[object] | None = None,
        cache: str = "warm",
        iterations: int | None = None,
    ) -> CountedCall | Gap:
        """Count a call."""
        request = TimedCall(
            fn=fn,
            args=args,
            setup=setup,
            inputs=inputs,
            cache=cache,
            iterations=iterations,
        )
        call = Call(request=request, time_s=time_s, trace=trace)
        return self.counter.count(call, (BYTES,))


def seen(*kernels: tuple[str, int], graph: int = 0) -> Trace:
    """Return what CUPTI saw of kernels: the name and the moment of the call of each."""
    names = list(dict.fromkeys(name for name, _ in kernels))
    count = len(kernels)
    shapes = tuple(
        KernelShape(
            name=name,
            grid=(1, 1, 1),
            block=(32, 1, 1),
            registers_count=8,
            shared_bytes=0,
            dynamic_shared_bytes=0,
            stack_bytes=0,
        )
        for name in names
    )
    launches = Launches(
        shapes=shapes,
        shape=array("I", [names.index(name) for name, _ in kernels]),
        start_ns=array("Q", [1] * count),
        end_ns=array("Q", [2] * count),
        call_ns=array("Q", [moment for _, moment in kernels]),
        device=array("I", [0] * count),
        stream=array("I", [7] * count),
        graph=array("I", [graph] * count),
    )
    return Trace(begun_ns=0, ended_ns=9, launches=launches)


def values(counted: CountedCall | Gap) -> list[float | None]:
    """Return what was counted in each range."""
    assert isinstance(counted, CountedCall), counted
    return [each.metrics[BYTES].value for each in counted.counted.ranges]


@given(st.permutations([("a", 10), ("b", 20), ("c", 30)]))
def test_kernels_are_named_in_the_order_of_their_launches(
    kernels: list[tuple[str, int]],
) -> None:
    """Records come in the order in which kernels ended; ranges in that of launches."""
    machine = Machine()

    def body() -> None:
        for size in (1.0, 2.0, 3.0):
            machine.launch(size)

    counted = machine.count(body, trace=seen(*kernels))

    assert values(counted) == [1.0, 2.0, 3.0]
    assert isinstance(counted, CountedCall)
    assert counted.names == ("a", "b", "c")


@pytest.mark.parametrize(
    "trace",
    [None, seen(("a", 10)), seen(("a", 10), ("b", 0)), seen(("a", 10), ("b", 10))],
    ids=["unseen", "another-count", "a-call-unseen", "one-moment"],
)
def test_kernels_that_may_be_mistaken_have_no_name(trace: Trace | None) -> None:
    """No number is given to a kernel that may not be its own."""
    machine = Machine()

    def body() -> None:
        for size in (1.0, 2.0):
            machine.launch(size)

    counted = machine.count(body, trace=trace)

    assert values(counted) == [1.0, 2.0]
    assert isinstance(counted, CountedCall)
    assert counted.names == ()


def test_a_call_is_made_once_whatever_the_passes() -> None:
    """Its kernels are run again, and not what launches them."""
    machine = Machine(passes=7)
    made: list[int] = []

    def body() -> None:
        made.append(1)
        machine.launch(1.0)

    assert values(machine.count(body, iterations=3)) == [1.0]
    assert made == [1]
    assert machine.fake.open_count == 0


def test_a_graph_is_called_once_a_pass_with_the_same_arguments() -> None:
    """Of a pool the first ones; what prepares them is not counted."""
    machine = Machine(passes=3)
    given_: list[object] = []

    def body(size: float) -> None:
        given_.append(size)
        machine.launch(size)

    graph = seen(("a", 10), graph=3)
    counted = machine.count(body, trace=graph, inputs=[(4.0,), (5.0,)])

    assert values(counted) == [4.0]
    assert given_ == [4.0] * 3
    assert isinstance(counted, CountedCall)
    assert (counted.names, counted.counted.mode.replay) == ((), "user")

    def prepared() -> tuple[float]:
        machine.launch(1000.0)
        return (6.0,)

    assert values(machine.count(body, trace=graph, setup=prepared)) == [6.0]


def test_very_many_kernels_are_counted_together() -> None:
    """A range of its own for each would take more memory than they are worth."""
    machine = Machine()
    many = seen(*((f"k{n % 3}", n + 1) for n in range(5000)))

    def body() -> None:
        for _ in range(3):
            machine.launch(1.0)

    assert values(machine.count(body, trace=many)) == [3.0]


def test_what_is_fixed_is_not_called_once_a_pass() -> None:
    """Processes of a job have to call equally often."""
    machine = Machine(passes=3)
    refused = machine.count(
        machine.launch, 1.0, trace=seen(("a", 1), graph=3), iterations=10
    )

    assert isinstance(refused, Gap)
    assert "fixes the number of calls" in refused.reason
    assert machine.fake.calls == []


@pytest.mark.parametrize(
    ("cache", "events", "mode"), [("cold", ["flush"], 1), ("warm", [], 0)]
)
def test_caches_are_those_of_the_timed_calls(
    cache: str, events: list[str], mode: int
) -> None:
    """A cold call begins with a flush, and each pass with caches that are emptied."""
    machine = Machine()
    machine.count(machine.launch, 1.0, cache=cache)

    assert [each for each in machine.runtime.events if each == "flush"] == events
    assert machine.fake.enabled["cacheControlMode"] == mode


def test_passes_that_take_too_long_are_not_begun() -> None:
    """A test is not held up for minutes by what it declares."""
    machine = Machine(passes=40)
    refused = machine.count(machine.launch, 1.0, time_s=2.0)

    assert isinstance(refused, Gap)
    assert refused.reason.startswith("its 40 passes take 80 s or more")
    assert f"{RANGE}Start" not in machine.fake.calls
    assert machine.fake.open_count == 0


def test_what_is_void_is_no_number() -> None:
    """A clock that moved meanwhile makes of the passes several experiments."""
    machine = Machine()
    machine.fake.clock = [1, 2]
    refused = machine.count(machine.launch, 1.0)

    assert refused == Gap(
        code=GapCode.VOID,
        reason="the clock was unlocked before counting and locked after it",
        remedy="do not change the clock while it counts",
    )


class OutOfMemoryError(RuntimeError):
    """As torch and cupy call it."""


def raising(error: BaseException) -> Callable[[], object]:
    """Return a function that raises."""

    def body() -> object:
        raise error

    return body


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyboardInterrupt(),
        CollectError("of the test's own", remedy="x"),
        MeasureError("likewise", remedy="x"),
    ],
)
@pytest.mark.parametrize("graph", [0, 3], ids=["kernels", "whole"])
def test_what_a_call_raises_is_its_own(error: BaseException, graph: int) -> None:
    """It passes through, also where it looks like an error of CUPTI's."""
    machine = Machine()
    machine.fake.status_of["cuptiProfilerHostDeinitialize"] = 999  # does not hide it

    for how in ({"fn": raising(error)}, {"fn": int, "setup": raising(error)}):
        with pytest.raises(type(error)) as caught:
            machine.count(**how, trace=seen(("a", 1), graph=graph))
        assert caught.value is error


def test_a_call_that_has_no_room_meanwhile_is_not_at_fault() -> None:
    """Its timed calls had room: kernels that are run again take a copy."""
    refused = Machine().count(raising(OutOfMemoryError()))

    assert isinstance(refused, Gap)
    assert "too little memory for the call" in refused.reason


CALLED = (  # from libcupti's first call to its last
    "cuptiProfilerInitialize",
    "cuptiProfilerHostInitialize",
    f"{RANGE}Enable",
    f"{RANGE}SetConfig",
    f"{RANGE}Start",
    f"{RANGE}Stop",
    f"{RANGE}DecodeData",
    f"{RANGE}Disable",
    "cuptiProfilerHostDeinitialize",
)


@pytest.mark.parametrize("status", [7, 35, 999])
@pytest.mark.parametrize("function", CALLED)
def test_what_libcupti_answers_is_never_raised(function: str, status: int) -> None:
    """Why nothing was counted is said with the call, and with a remedy."""
    machine = Machine()
    machine.fake.status_of[function] = status
    refused = machine.count(machine.launch, 1.0)

    assert isinstance(refused, Gap)
    assert f"({function}: {status} " in refused.reason
    assert refused.remedy


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WORLD_SIZE", "8", "(WORLD_SIZE is 8)"),
        ("NSYS_PROFILING_SESSION_ID", "1", "Nsight Systems is attached"),
    ],
)
def test_a_rank_and_an_attached_tool_are_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    """The one would hang, and of the other CUPTI has one user."""
    monkeypatch.setenv(variable, value)
    machine = Machine()
    refused = machine.count(machine.launch, 1.0)

    assert isinstance(refused, Gap)
    assert said in refused.reason
    assert machine.fake.calls == []
