"""use_is_known of collect.timing.readings: what shows, without CUPTI, that a measurement used the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.timing.readings import lies_on_device, use_is_known
from pytest_gpuperf.model.frozen import replace

US = 1e-6
# a call that has returned to an idle device, by the host's clock
WAITED = Timing(samples=(105 * US,) * 3, source="host", returned=(100 * US,) * 3)
WENT_ON = replace(WAITED, returned=(20 * US,) * 3)


class Array:
    """An array as the array standard knows it."""

    def __init__(self, device_type: int) -> None:
        self.device_type = device_type

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0


class NumbaArray:
    """An array that says where it lies by the older protocol alone."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class Broken:
    """An array that does not say where it lies."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError


class Pending:
    """What jax returns: it is still being computed."""

    def block_until_ready(self) -> None:
        """Wait."""


@pytest.mark.parametrize(
    ("timing", "known"),
    [
        (WAITED, False),
        (WENT_ON, True),
        (replace(WAITED, unused=True), True),
        (replace(WAITED, source="cupti", other_samples={"host": WAITED.samples}), True),
        (
            replace(WAITED, source="events", other_samples={"cupti": WAITED.samples}),
            True,
        ),
        (
            replace(WAITED, source="events", other_samples={"host": WAITED.samples}),
            False,
        ),
        (
            replace(WENT_ON, source="events", other_samples={"host": WENT_ON.samples}),
            True,
        ),
        (replace(WENT_ON, source="events"), False),
        (replace(WAITED, returned=()), False),
    ],
)
def test_what_was_timed_tells(timing: Timing, known: bool) -> None:
    """CUPTI knows, both ways; a device that goes on was used; an idle one says nothing."""
    assert use_is_known(timing, ()) is known


def test_one_long_wait_is_no_sign() -> None:
    """It may have been another process's turn on the core: the usual call is meant."""
    once = replace(WAITED, samples=(900 * US, 105 * US, 105 * US))

    assert not use_is_known(once, ())


def test_calls_of_a_batch_are_waited_for_together() -> None:
    """Each of ten is said to have a tenth of the wait."""
    batch = Timing(
        samples=(16 * US,), source="host", returned=(10 * US,), iterations_count=10
    )

    assert use_is_known(batch, ())
    assert not use_is_known(replace(batch, iterations_count=1), ())


def test_what_is_still_being_computed_is_no_sign() -> None:
    """jax computes on the CPU in the same way."""
    assert not use_is_known(replace(WENT_ON, result=(Pending(),)), ())
    assert use_is_known(replace(WENT_ON, result=[Pending(), Array(2)]), ())


@pytest.mark.parametrize("needed", ["gpu", "events", "sm_90"])
def test_what_a_test_requires_it_uses(needed: str) -> None:
    """Its author has said so."""
    assert use_is_known(WAITED, (needed,))


def closed_over(value: object) -> Callable[[], object]:
    """Return a function that has a variable from around it."""
    return lambda: (value, None)[1]


@pytest.mark.parametrize("device_type", [1, 2])
@pytest.mark.parametrize(
    "asked",
    [
        lambda array: TimedCall(fn=print, args=(1, array)),
        lambda array: TimedCall(fn=print, kwargs={"file": array}),
        lambda array: TimedCall(fn=print, inputs=[(array,), (array,)]),
        lambda array: TimedCall(fn=print, args=([array, array],)),
        lambda array: TimedCall(fn=print, args=({"x": array},)),
        lambda array: TimedCall(fn=closed_over(array)),
    ],
)
def test_where_arrays_lie_tells(
    asked: Callable[[Array], TimedCall], device_type: int
) -> None:
    """In arguments, in the pool of them, and in variables around the function."""
    request = asked(Array(device_type))

    assert use_is_known(WAITED, (), request) is (device_type == 2)


@pytest.mark.parametrize("device_type", [1, 2])
def test_a_result_tells(device_type: int) -> None:
    """What lies on the device was made there."""
    assert use_is_known(replace(WAITED, result=Array(device_type)), ()) is (
        device_type == 2
    )


def test_a_variable_without_a_value_tells_nothing() -> None:
    """A function may be called before a name around it has one."""

    def made() -> Callable[[], object]:
        def inner() -> object:
            return late

        found = TimedCall(fn=inner)
        assert not use_is_known(WAITED, (), found)
        late = 1
        return inner

    made()


@pytest.mark.parametrize(
    ("value", "on_device"),
    [
        (Array(1), False),  # kDLCPU
        (Array(3), False),  # kDLCUDAHost: pinned memory of the host
        (Array(11), False),  # kDLROCMHost
        *((Array(device_type), True) for device_type in (2, 8, 10, 13, 14)),
        (NumbaArray(), True),
        (Broken(), False),
        (Array, False),  # the class is not an array
        (None, False),
        ("text", False),
        (partial(print, Array(2)), False),
    ],
)
def test_an_array_says_where_it_lies(value: object, on_device: bool) -> None:
    """By the array standard, or by CUDA's own protocol; memory of the host is not a sign."""
    assert lies_on_device(value) is on_device


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=80))
def test_one_member_of_the_first_is_enough(types: list[int]) -> None:
    """A list of arrays is looked through; a long one is data, and only its beginning."""
    members = [Array(each) for each in types]

    assert lies_on_device(members) is (2 in types[:64])
    assert lies_on_device(tuple(members)) is (2 in types[:64])
    assert lies_on_device(dict(enumerate(members))) is (2 in types[:64])


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_a_real_array_of_the_host_is_none_of_a_device(module: str) -> None:
    """Both frameworks speak the protocol."""
    framework = pytest.importorskip(module, reason=f"{module} is not installed")
    array = framework.ones(3)

    assert hasattr(type(array), "__dlpack_device__")
    assert not lies_on_device(array)
