"""The device's time of samples, by CUPTI's records of what ran in them; PYTEST_DONT_REWRITE.

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
from pytest_gpuperf.collect.cupti.presence import CLOSED, failed, lost
from pytest_gpuperf.collect.translate.activity import Sampled, read_samples
from pytest_gpuperf.model.record import Void

__all__ = ["ActivityTimer"]

_SAMPLES = 4  # CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1; CUSTOM0 labels windows
_BETWEEN = 0  # the label of what is submitted between samples


class ActivityTimer:
    """
    Times samples from the first start to the last end of anything on the device.

    A `DeviceTimer` that is also `Sequenced` and a `Witness`. Its samples are labelled, so that windows
    and samples may lie in each other.

    Args:
        collector: An open one.
    """

    name = "cupti"

    def __init__(self, collector: ActivityCollector) -> None:
        self._collector = collector
        self._sink: Sink | None = None
        self._failure: Void | None = None
        self._dropped_before = 0
        self._first = 0  # the label of the first sample that was not read yet
        self._label = 0
        self._begins_ns: list[int] = []  # of each sample since
        self._ended: list[bool] = []  # likewise; false: it raised
        self._read: list[Sampled | None] = []  # of samples not taken yet
        self._last: Sampled | None = None
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
            self._fail(error)

    def end(self) -> None:
        """Take the label away."""
        if self._failure is not None:
            self._read.append(None)
            return
        cupti = self._collector.library
        try:
            cupti.activity_pop_external_correlation_id(_SAMPLES)
            self._ended.append(True)
        except self._collector.failures as error:
            self._fail(error)
            self._read.append(None)

    def taken(self) -> Sequence[float | None]:
        """Return the span of each sample since it was last asked [s]."""
        self._drain()
        spans = [None if each is None else each.span_s for each in self._read]
        self._read.clear()
        return spans

    def sequence(self) -> object:
        """Return what the last sample launched, in order; None: it is not known."""
        self._drain()
        return None if self._last is None else self._last.sequence

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
        self._sink = self._failure = self._last = None
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
            self._fail(error)
            return
        batches = list(self._sink)
        self._sink.clear()
        found = read_samples(
            batches,
            label_kind=_SAMPLES,
            first=self._first,
            begins_ns=self._begins_ns,
        )
        self._heard = self._heard or any(batches)
        self._worked = self._worked or any(each.sequence for each in found)
        self._read += [s for s, ended in zip(found, self._ended, strict=True) if ended]
        self._last = self._read[-1] if self._read else None
        self._first = self._label + 1
        self._begins_ns, self._ended = [], []

    def _fail(self, error: Exception) -> None:
        """Give the set up; each sample of it has no time."""
        if self._failure is None:
            self._failure = failed(error)
            self._read += [None] * sum(self._ended)
            self._begins_ns, self._ended = [], []
            self._last = None
