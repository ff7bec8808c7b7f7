"""CUPTI's activity functions: those of the process, or those of one subscriber.

Since CUPTI 13.2 a subscriber may have functions, labels and buffers of its own, next to
other subscribers. CUPTI answers 14 if a process uses both families. cupti-python has the
functions of a subscriber from 13.5 on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

# cupti-python ends the names of a subscriber's functions with this.
_OF_SUBSCRIBER = "_v2"
# No CUpti_ActivityConfig: all fields of a record.
_NO_CONFIG = 0


class ActivityCalls(NamedTuple):
    """
    The activity functions of cupti-python that a collector calls.

    Attributes:
        register: Takes the function that supplies buffers, and the one that gets records.

        enable: Takes a kind of record.

        disable: Takes a kind of record.

        enable_driver_call: Takes the number of a driver call, and 1 or 0.

        enable_runtime_call: Takes the number of a runtime call, and 1 or 0.

        push: Takes a kind of label and a label, for the calling thread.

        pop: Takes a kind of label.

        now_ns: Returns the time of the records' clock [ns].

        read_dropped: Takes a context, a stream (both 0), and the address of a size_t
            that receives the number of lost records.

        flush: Takes 1 to deliver incomplete records too, or 0.

        shared: Whether the functions belong to one of several subscribers.
    """

    register: Callable[[Callable[[], tuple[int, int]], Callable[..., None]], object]
    enable: Callable[[int], object]
    disable: Callable[[int], object]
    enable_driver_call: Callable[[int, int], object]
    enable_runtime_call: Callable[[int, int], object]
    push: Callable[[int, int], object]
    pop: Callable[[int], object]
    now_ns: Callable[[], int]
    read_dropped: Callable[[int, int, int], object]
    flush: Callable[[int], object]
    shared: bool = False


def has_subscriber_calls(cupti: Any) -> bool:  # noqa: ANN401 - an optional library
    """Return whether the module `cupti.cupti` has the functions of a subscriber."""
    return hasattr(cupti, f"activity_enable{_OF_SUBSCRIBER}")


def process_calls(cupti: Any) -> ActivityCalls:  # noqa: ANN401 - an optional library
    """Return the functions of CUPTI for the process, which serve a single user."""
    return ActivityCalls(
        register=cupti.activity_register_callbacks,
        enable=cupti.activity_enable,
        disable=cupti.activity_disable,
        enable_driver_call=cupti.activity_enable_driver_api,
        enable_runtime_call=cupti.activity_enable_runtime_api,
        push=cupti.activity_push_external_correlation_id,
        pop=cupti.activity_pop_external_correlation_id,
        now_ns=cupti.get_timestamp,
        read_dropped=cupti.activity_get_num_dropped_records,
        flush=cupti.activity_flush_all,
    )


def subscriber_calls(cupti: Any, subscriber: int) -> ActivityCalls:  # noqa: ANN401 - an optional library
    """
    Return the functions of a subscriber of several.

    Args:
        cupti: The module `cupti.cupti`, with the functions of a subscriber.

        subscriber: The handle of the subscription.
    """

    def own(name: str) -> partial[Any]:
        return partial(getattr(cupti, f"{name}{_OF_SUBSCRIBER}"), subscriber)

    # CUPTI 13.2 has a single clock.
    has_clock = hasattr(cupti, f"get_timestamp{_OF_SUBSCRIBER}")
    return ActivityCalls(
        register=own("activity_register_callbacks"),
        enable=_with_config(own("activity_enable")),
        disable=_with_config(own("activity_disable")),
        enable_driver_call=own("activity_enable_driver_api"),
        enable_runtime_call=own("activity_enable_runtime_api"),
        push=own("activity_push_external_correlation_id"),
        pop=own("activity_pop_external_correlation_id"),
        now_ns=own("get_timestamp") if has_clock else cupti.get_timestamp,
        read_dropped=own("activity_get_num_dropped_records"),
        # Flushes the buffers of all subscribers.
        flush=cupti.activity_flush_all,
        shared=True,
    )


def _with_config(function: Callable[[int, int], object]) -> Callable[[int], object]:
    def call(kind: int) -> object:
        return function(kind, _NO_CONFIG)

    return call
