"""The device's time of samples, by CUPTI's records of what ran in them.

*Unverified on hardware*, as the collector is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pytest_gpuperf.collect.cupti.activity import (
    ActivityCollector,
    Sink,
    ended_children_s,
)
from pytest_gpuperf.collect.cupti.presence import CLOSED, failed, lost, overfull
from pytest_gpuperf.collect.translate.activity import read_samples
from pytest_gpuperf.model.record import Void

__all__ = ["ActivityTimer"]

_SAMPLES = 4  # CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1; CUSTOM0 labels windows
_BETWEEN = 0  # the label of what is submitted between samples
# records after which they are read: three of CUPTI's buffers, 20 MiB as cupti-python 13.4
# holds them, 0.2 s to read (benchmarks/activity_speed.py)
_MANY_RECORDS = 90_000


class ActivityTimer:
    """
    Times samples from the first start to the last end of anything on the device.

    A `DeviceTimer` that is also `Sequenced`, `Holding` and a `Witness`. Its samples are
    labelled, so that windows and samples may lie in each other. Of a sample that was read
    its span is kept, and of the last one what it launched.

    Args:
        collector: An open one.

        many_count: Records of several samples that it does not hold unread.
    """

    name = "cupti"

    def __init__(
        self, collector: ActivityCollector, *, many_count: int = _MANY_RECORDS
    ) -> None:
        self._collector = collector
        self._many_count = many_count
        self._sink: Sink | None = None
        self._failure: Void | None = None
        self._dropped_before = 0
        self._first = 0  # the label of the first sample that was not read yet
        self._label = 0
        self._begins_ns: list[int] = []  # of each sample since
        self._ended: list[bool] = []  # likewise; false: it raised
        self._spans_s: list[float | None] = []  # of samples not taken yet
        self._sequence: bytes | None = None  # of the last one
        self._places: dict[object, int] = {}  # what was launched, by what it is
        self._heard = self._worked = False  # of the set
        self._ended_before_s = 0.0

    def begin(self) -> None:
        """Label what this thread submits from now on."""
        if self._failure is not None:
            return
        if not self._collector.is_open:
            self._failure = CLOSED
            return
        try:
            if self._sink is None:
                self._begin_set()
            self._abandon()
            cupti = self._collector.library
            self._label += 1
            cupti.activity_push_external_correlation_id(_SAMPLES, self._label)
            self._begins_ns.append(cupti.get_timestamp())
        except self._collector.failures as error:
            self._give_up(failed(error))

    def end(self) -> None:
        """Take the label away."""
        if self._failure is not None:
            self._spans_s.append(None)
            return
        cupti = self._collector.library
        try:
            cupti.activity_pop_external_correlation_id(_SAMPLES)
            self._ended.append(True)
        except self._collector.failures as error:
            self._give_up(failed(error))
            self._spans_s.append(None)

    def taken(self) -> Sequence[float | None]:
        """Return the span of each sample since it was last asked [s]."""
        self._drain()
        spans_s, self._spans_s = self._spans_s, []
        return spans_s

    def sequence(self) -> object:
        """Return what the last sample launched, in order; None: it is not known."""
        self._drain()
        return self._sequence

    def holds_much(self) -> bool:
        """Return whether so many records are held that they should be read."""
        return self._sink is not None and len(self._sink) >= self._many_count

    def saw_nothing(self) -> bool:
        """
        Return whether nothing ran on the device in any sample so far.

        That CUPTI hands over records at all shows in those of our own waits and flushes:
        where none came, nothing is known. Nor is it beside child processes.
        """
        idle = self._failure is None and self._heard and not self._worked
        return idle and self._collector.childless_since(self._ended_before_s)

    def refusal(self) -> Void | None:
        """Return why no sample of the set may be used, and end the set."""
        refused = self._failure
        if self._sink is not None:
            dropped_count = self._collector.dropped_count - self._dropped_before
            if refused is None and dropped_count:
                refused = lost(dropped_count)
            self._collector.leave(self._sink)
            with contextlib.suppress(*self._collector.failures):
                self._collector.library.activity_pop_external_correlation_id(_SAMPLES)
        self._sink = self._failure = self._sequence = None
        self._places = {}
        self._heard = self._worked = False
        return refused

    def _begin_set(self) -> None:
        """Listen, and label what is submitted between samples as nobody's."""
        collector = self._collector
        collector.flush()
        self._dropped_before = collector.dropped_count
        self._sink = collector.listen()
        self._first = self._label + 1
        self._ended_before_s = ended_children_s()
        collector.library.activity_push_external_correlation_id(_SAMPLES, _BETWEEN)

    def _abandon(self) -> None:
        """Take the label of a sample away that raised."""
        if len(self._begins_ns) > len(self._ended):
            self._collector.library.activity_pop_external_correlation_id(_SAMPLES)
            self._ended.append(False)

    def _drain(self) -> None:
        """Read what was recorded since the last time, on an idle device."""
        if self._sink is None or self._failure is not None:
            return
        collector = self._collector
        try:
            self._abandon()
            if not self._ended:
                return
            collector.flush()
        except collector.failures as error:
            self._give_up(failed(error))
            return
        if self._sink.full:
            self._give_up(overfull(collector.most_count))
            return
        self._heard = self._heard or len(self._sink) > 0
        found = read_samples(
            self._sink.taken(),
            label_kind=_SAMPLES,
            first=self._first,
            begins_ns=self._begins_ns,
            places=self._places,
        )
        self._worked = self._worked or any(each.sequence for each in found)
        good = [each for each, ended in zip(found, self._ended, strict=True) if ended]
        self._spans_s += [each.span_s for each in good]
        self._sequence = good[-1].sequence if good else None
        self._first = self._label + 1
        self._begins_ns, self._ended = [], []

    def _give_up(self, void: Void) -> None:
        """Give the set up, and hold nothing of it; each sample of it has no time."""
        self._failure = void
        self._spans_s += [None] * sum(self._ended)
        self._begins_ns, self._ended = [], []
        self._sequence = None
        if self._sink is not None:
            self._collector.leave(self._sink)
            self._sink.clear()
