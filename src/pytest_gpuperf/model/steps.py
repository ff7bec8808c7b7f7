"""A measured loop: steps, the spans inside them, and the loop's summary and profile.

A `Loop` with its spans stays in the process that measured. Its `StepSummary` is sent to
other processes. A `StepProfile` has milliseconds and percent, unlike other records,
because files of other tools have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import (
    Frozen,
    finite,
    not_finite,
    positive,
    refuse,
    stated,
)


class SpanKind(str, Enum):
    """Kind of work in a span of time."""

    DATA = "data"  # Waiting for the next batch.
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"  # Copies between host and device.
    OTHER = "other"


class SpanLevel(str, Enum):
    """Recorder method that made a span."""

    PHASE = "phase"
    LAYER = "layer"
    OPERATION = "operation"


class Waiting(str, Enum):
    """Synchronization with the device."""

    # Before and after each step. Spans show host time only.
    STEP = "step"
    # Also before and after each span. Spans are correct, but steps are slower.
    SPAN = "span"


# Complete names in lower case that imply a kind. Any other name means `other`.
_NAMES: dict[SpanKind, tuple[str, ...]] = {
    SpanKind.DATA: ("data", "dataloader", "data_loading", "load", "loader"),
    SpanKind.FORWARD: ("forward", "fwd", "loss", "prefill", "decode"),
    SpanKind.BACKWARD: ("backward", "bwd"),
    SpanKind.OPTIMIZER: ("optimizer", "optim", "clip", "update", "zero_grad"),
    SpanKind.COMMUNICATION: (
        "communication",
        "all_gather",
        "all_reduce",
        "all_to_all",
        "allgather",
        "allreduce",
        "broadcast",
        "reduce_scatter",
    ),
    SpanKind.TRANSFER: ("transfer", "h2d", "d2h", "host_to_device", "device_to_host"),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}


def kind_of(name: str) -> SpanKind | None:
    """
    Return the kind that a well-known name implies, or None for other names.

    Only complete names count: "grad_h2d_total" is unknown although "h2d" is known.

    Example:
        >>> kind_of("Backward").value, kind_of("backward_total")
        ('backward', None)
    """
    return _KINDS.get(name.lower())


class Span(Frozen, frozen=True, kw_only=True):
    """
    A named time span, in seconds since the loop began.

    Attributes:
        name: Name given by the test, or the number of a layer.

        kind: Kind of work.

        level: Recorder method that made the span.

        start_s: Start [s], >= 0.

        end_s: End [s], not before the start.

        parent: Index of the enclosing span among the step's spans, or None if only the
            step encloses it.

        layer: Number of the layer, from 0, or None outside of layers.

        thread: 0 for the thread of the steps, from 1 for the others.
    """

    name: str
    kind: SpanKind
    level: SpanLevel
    start_s: float
    end_s: float
    parent: int | None = None
    layer: int | None = None
    thread: int = 0

    def __post_init__(self) -> None:
        """Reject a negative layer, and times that are negative, reversed or not finite."""
        path = f"span[{self.name}]"
        _ordered(path, self.start_s, self.end_s)
        if self.layer is not None and self.layer < 0:
            message = f"{self.layer!r} is not a number of a layer"
            raise RecordError(message, path=f"{path}.layer")

    @property
    def duration_s(self) -> float:
        """Duration [s]."""
        return self.end_s - self.start_s


class Compiled(Frozen, frozen=True, kw_only=True):
    """
    Work of a just-in-time compiler during some steps.

    Attributes:
        count: Compiled graphs.

        graph_breaks_count: Places where a graph had to end early.

        time_s: Duration of compiling [s], or None if not reported.
    """

    count: int
    graph_breaks_count: int
    time_s: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are negative or not finite."""
        finite("compiled.time_s", self.time_s)
        if min(self.count, self.graph_breaks_count, self.time_s or 0) < 0:
            raise RecordError("less than nothing was compiled", path="compiled")


class Step(Frozen, frozen=True, kw_only=True):
    """
    A step, and the time since the preceding step.

    Attributes:
        index: Index of the step in the loop, from 0.

        begin_s: End of the preceding step, or start of the loop [s].

        start_s: Start of the step [s]. The time between `begin_s` and `start_s` is
            waiting.

        end_s: End of the step [s].

        units: Units of work, > 0.

        spans: Spans recorded between `begin_s` and `end_s`, parents before children.

        void: Why the step does not count, or None if the step counts.

        compiled: Compilations since the preceding step, or None if unknown.

        prepared: Whether the step loaded modules, or mostly waited, so that its time is
            not that of its work.
    """

    index: int
    begin_s: float
    start_s: float
    end_s: float
    units: float = 1.0
    spans: tuple[Span, ...] = ()
    void: str | None = None
    compiled: Compiled | None = None
    prepared: bool = False

    def __post_init__(self) -> None:
        """Reject steps that run backwards, and spans that are not inside their step."""
        path = f"steps[{self.index}]"
        _ordered(path, self.begin_s, self.start_s, self.end_s)
        positive(f"{path}.units", self.units)
        for place, span in enumerate(self.spans):
            first_s, last_s = self.begin_s, self.end_s
            if span.parent is not None:
                if not 0 <= span.parent < place:
                    message = f"{span.parent!r} is not a span before it"
                    raise RecordError(message, path=f"{path}.spans[{place}]")
                parent = self.spans[span.parent]
                if parent.thread != span.thread:
                    message = "it lies in a span of another thread"
                    raise RecordError(message, path=f"{path}.spans[{place}]")
                first_s, last_s = parent.start_s, parent.end_s
            if not first_s <= span.start_s <= span.end_s <= last_s:
                message = f"{span.name} does not lie in what it is part of"
                raise RecordError(message, path=f"{path}.spans[{place}]")

    @property
    def duration_s(self) -> float:
        """Duration of the step [s], without the time before."""
        return self.end_s - self.start_s

    @property
    def period_s(self) -> float:
        """
        Time between the ends of the preceding step and this one [s], as used for
        throughput.
        """
        return self.end_s - self.begin_s

    @property
    def wait_s(self) -> float:
        """Time between the end of the preceding step and the start [s]."""
        return self.start_s - self.begin_s


class Loop(Frozen, frozen=True, kw_only=True):
    """
    The recording of a loop.

    Attributes:
        unit: Name of a unit of work, as "token".

        units: Units of a step, unless the step states them.

        warmup_count: Steps at the beginning that do not count, >= 0.

        steps: The steps, in order.

        waiting: Synchronization with the device, or None if the process used no device.

        uncompiled_reason: Why compilations are unknown, or "" if they were observed.

        peak_memory_bytes: Peak of allocated device memory [B], or None if unknown.

        failure: Error that ended the loop early, or None.
    """

    unit: str
    units: float
    warmup_count: int
    steps: tuple[Step, ...]
    waiting: Waiting | None = None
    uncompiled_reason: str = ""
    peak_memory_bytes: int | None = None
    failure: str | None = None

    def __post_init__(self) -> None:
        """Reject steps that overlap."""
        positive("loop.units", self.units)
        ends = [0.0, *(step.end_s for step in self.steps)]
        for before_s, step in zip(ends, self.steps, strict=False):
            if step.begin_s < before_s:
                message = "it begins before the step before it has ended"
                raise RecordError(message, path=f"steps[{step.index}].begin_s")

    @property
    def counted(self) -> tuple[Step, ...]:
        """The steps that count: after warm-up, and not void."""
        return tuple(
            step for step in self.steps[self.warmup_count :] if step.void is None
        )


def _ordered(path: str, *times_s: float) -> None:
    """Reject times that are negative, not finite, or not in order [s]."""
    finite(path, *times_s)
    if list(times_s) != sorted(times_s) or times_s[0] < 0:
        listed = ", ".join(f"{time_s!r}" for time_s in times_s)
        raise RecordError(f"the times {listed} run backwards", path=path)


class PhaseTimes(Frozen, frozen=True, kw_only=True):
    """
    A phase over the steps that count.

    Attributes:
        name: Name of the phase.

        kind: Kind of work.

        own_s: Mean per step without nested phases [s].

        total_s: Mean per step including nested phases [s].

        p50_s: Median per step including nested phases [s].

        p95_s: 95th percentile per step including nested phases [s].

        calls_count: Number of entries in all of these steps.

        beside: Whether the phase ran in other threads, parallel to the steps.
    """

    name: str
    kind: SpanKind
    own_s: float
    total_s: float
    p50_s: float
    p95_s: float
    calls_count: int
    beside: bool = False

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        path = f"phases[{self.name}]"
        finite(path, self.own_s, self.total_s, self.p50_s, self.p95_s)


class OperationTimes(Frozen, frozen=True, kw_only=True):
    """
    An operation over the steps that count.

    Attributes:
        name: Name of the operation.

        own_s: Mean per step without nested operations [s].

        layer: Number of the layer, or None if recorded outside of layers.

        calls_count: Number of entries in all of these steps.
    """

    name: str
    own_s: float
    layer: int | None = None
    calls_count: int = 1

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite(f"operations[{self.name}].own_s", self.own_s)


class LayerTimes(Frozen, frozen=True, kw_only=True):
    """
    A layer over the steps that count.

    Attributes:
        layer: Number of the layer, from 0.

        forward_s: Mean forward time per step [s].

        backward_s: Mean backward time per step [s].
    """

    layer: int
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite(f"layers[{self.layer}]", self.forward_s, self.backward_s)


class StepSummary(Frozen, frozen=True, kw_only=True):
    """
    Summary of a measured loop. Means are over the steps that count.

    Attributes:
        unit: Name of a unit of work.

        units: Mean units per step.

        step_count: Recorded steps.

        counted_count: Steps that count.

        warmup_count: Steps for warming up.

        void_count: Void steps.

        step_s: Mean duration of a step [s].

        period_s: Mean time from the end of one step to the end of the next [s].

        wait_s: Mean time of waiting for data [s].

        data_was_recorded: Whether `wait_s` is from recorded data spans. If not, it is
            all the time between the steps.

        covered_fraction: Share of the period inside of recorded spans, or None if the
            steps have no spans.

        exposed_s: Mean time of communication without parallel computation [s], or None
            if unknown.

        waiting: Synchronization with the device, or None if no device was used.

        phases: The phases, the longest own time first.

        layers: The layers, by number.

        operations: The operations, the longest own time first.

        warmup_compiled: Compilations during warm-up.

        compiled: Compilations in the steps that count.

        recompiled_steps: Indices of the steps that count and compiled something.

        grade: Letter of the training scorecard, or None.

        efficiency_fraction: Efficiency behind the grade, or None.
    """

    unit: str
    units: float
    step_count: int
    counted_count: int
    warmup_count: int
    void_count: int
    step_s: float
    period_s: float
    wait_s: float
    data_was_recorded: bool
    covered_fraction: float | None = None
    exposed_s: float | None = None
    waiting: Waiting | None = None
    phases: tuple[PhaseTimes, ...] = ()
    layers: tuple[LayerTimes, ...] = ()
    operations: tuple[OperationTimes, ...] = ()
    warmup_compiled: Compiled | None = None
    compiled: Compiled | None = None
    recompiled_steps: tuple[int, ...] = ()
    grade: str | None = None
    efficiency_fraction: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite, and steps without duration."""
        positive("steps.units", self.units)
        positive("steps.period_s", self.period_s)
        finite("steps.step_s", self.step_s, self.wait_s, self.exposed_s)
        finite("steps.fraction", self.covered_fraction, self.efficiency_fraction)


class Phase(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """
    A phase of a step.

    Attributes:
        total_ms: Time of the phase, as counted by the file's writer [ms].

        pct: Share of the step, 0 to 100 [%].

        avg_ms: Mean time per step including nested phases [ms].

        kind: Kind of work, or None if the source does not state it.

        exclusive_ms: Mean time per step without nested phases [ms], or None if the
            source does not state it and no nesting is known.
    """

    total_ms: float
    pct: float
    avg_ms: float
    kind: SpanKind | None = None
    exclusive_ms: float | None = None

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        needed = {"total_ms": self.total_ms, "pct": self.pct, "avg_ms": self.avg_ms}
        optional = stated({"exclusive_ms": self.exclusive_ms})
        refuse(list(not_finite("phase", needed | optional)))


class Layer(Frozen, frozen=True, kw_only=True):
    """
    A layer of the model.

    Attributes:
        layer: Index of the layer, from 0.

        fwd_ms: Forward pass [ms].

        bwd_ms: Backward pass [ms].

        ops: Times of the operations [ms] by name.
    """

    layer: int
    fwd_ms: float
    bwd_ms: float
    ops: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        numbers = {"fwd_ms": self.fwd_ms, "bwd_ms": self.bwd_ms}
        refuse(
            [
                *not_finite("layer", numbers),
                *not_finite("layer.ops", self.ops),
            ]
        )


class DeviceTime(Frozen, frozen=True, kw_only=True):
    """
    Device activity in a mean step, from a trace. The three times add up to the step.

    Attributes:
        busy_ms: Time with activity, counting parallel activities once [ms].

        launching_ms: Idle time during a launching call of the host [ms].

        waiting_ms: Other idle time [ms].
    """

    busy_ms: float
    launching_ms: float
    waiting_ms: float

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        numbers = {
            "busy_ms": self.busy_ms,
            "launching_ms": self.launching_ms,
            "waiting_ms": self.waiting_ms,
        }
        refuse(list(not_finite("device", numbers)))


class StepProfile(Frozen, frozen=True, kw_only=True):
    """
    A profile of training steps.

    A field that the source does not have is zero or empty, as in files of other tools.
    `absent` distinguishes such a zero from a measured one.

    Attributes:
        steps: Profiled steps.

        avg_step_ms: Mean wall time of a step [ms].

        wall_coverage: Share of the wall time that the phases explain, 0 to 1.

        phases: Phases by name.

        per_layer: The model's layers, in order.

        bottleneck: The bottleneck according to the writer, or None if not stated.

        gemm_pct: Share of matrix products, 0 to 100 [%].

        total_ms: Wall time of all steps [ms].

        step_ms: Wall time of each step [ms], or empty if only the mean is known.

        device: Device activity in a mean step, or None without a trace.

        counters: Hardware counters of a mean step, by the standard names of
            `model.counters`, or empty if none were read.

        machine: The machine, as {"gpu": …, "driver": …}, or empty if the source does
            not state it.

        absent: Names of the fields that the source did not have.
    """

    steps: int = 0
    avg_step_ms: float = 0.0
    wall_coverage: float = 0.0
    phases: Mapping[str, Phase] = {}
    per_layer: tuple[Layer, ...] = ()
    bottleneck: str | None = None
    gemm_pct: float = 0.0
    total_ms: float = 0.0
    step_ms: tuple[float, ...] = ()
    device: DeviceTime | None = None
    counters: Mapping[str, float] = {}
    machine: Mapping[str, str] = {}
    absent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        numbers = {
            "steps": self.steps,
            "avg_step_ms": self.avg_step_ms,
            "wall_coverage": self.wall_coverage,
            "gemm_pct": self.gemm_pct,
            "total_ms": self.total_ms,
        }
        samples = {f"step_ms[{place}]": ms for place, ms in enumerate(self.step_ms)}
        refuse(
            [
                *not_finite("profile", numbers | samples),
                *not_finite("profile.counters", self.counters),
            ]
        )
