"""A measured loop: its steps, the spans inside them, their summary and profile.

A `Loop` with its spans stays in the process that measured; its `StepSummary` travels. A
`StepProfile` has milliseconds and percent, unlike other records: files in the wild do.
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

__all__ = [
    "Compiled",
    "DeviceTime",
    "Layer",
    "LayerTimes",
    "Loop",
    "OperationTimes",
    "Phase",
    "PhaseTimes",
    "Span",
    "SpanKind",
    "SpanLevel",
    "Step",
    "StepProfile",
    "StepSummary",
    "Waiting",
    "kind_of",
]


class SpanKind(str, Enum):
    """What a span of time was spent on."""

    DATA = "data"  # waiting for the next batch
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"  # copies between host and device
    OTHER = "other"


class SpanLevel(str, Enum):
    """Which call of the recorder made a span."""

    PHASE = "phase"
    LAYER = "layer"
    OPERATION = "operation"


class Waiting(str, Enum):
    """When the device was waited for."""

    STEP = "step"  # before and after each step: spans are the host's alone
    SPAN = "span"  # before and after each span too: right spans, a slower step


# whole names, in lower case, that need no kind=; any other name is `other`
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
    Return what a well-known name is spent on; None: it is not a well-known name.

    The whole name counts: "grad_h2d_total" is not known because "h2d" is.

    Example:
        >>> kind_of("Backward").value, kind_of("backward_total")
        ('backward', None)
    """
    return _KINDS.get(name.lower())


class Span(Frozen, frozen=True, kw_only=True):
    """
    A named piece of time, in seconds since the loop began.

    Attributes:
        name: What the test calls it; a layer's is its number.

        kind: What it was spent on.

        level: Which call of the recorder made it.

        start_s: When it began [s], >= 0.

        end_s: When it ended [s], not before it began.

        parent: The place, among the step's spans, of the one that it lies in; None: it
            lies in the step alone.

        layer: The number of its layer, from 0; None: it belongs to none.

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
        """Refuse a time that is none, or that runs backwards."""
        path = f"span[{self.name}]"
        _ordered(path, self.start_s, self.end_s)
        if self.layer is not None and self.layer < 0:
            message = f"{self.layer!r} is not a number of a layer"
            raise RecordError(message, path=f"{path}.layer")

    @property
    def duration_s(self) -> float:
        """How long it took [s]."""
        return self.end_s - self.start_s


class Compiled(Frozen, frozen=True, kw_only=True):
    """
    What a just-in-time compiler did during some steps.

    Attributes:
        count: Graphs that were compiled.

        graph_breaks_count: Places where a graph had to end early.

        time_s: Time that it took [s]; None: it was not told.
    """

    count: int
    graph_breaks_count: int
    time_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is negative or not finite."""
        finite("compiled.time_s", self.time_s)
        if min(self.count, self.graph_breaks_count, self.time_s or 0) < 0:
            raise RecordError("less than nothing was compiled", path="compiled")


class Step(Frozen, frozen=True, kw_only=True):
    """
    One step, and the time since the step before it.

    Attributes:
        index: Its place in the loop, from 0.

        begin_s: When the step before it ended, or the loop began [s].

        start_s: When it started [s]: what lies before is waiting.

        end_s: When it ended [s].

        units: The units of work that it did, > 0.

        spans: What was recorded between `begin_s` and `end_s`; a parent stands before
            its children.

        void: Why it does not count; None: it does.

        compiled: What was compiled since the step before; None: not known.
    """

    index: int
    begin_s: float
    start_s: float
    end_s: float
    units: float = 1.0
    spans: tuple[Span, ...] = ()
    void: str | None = None
    compiled: Compiled | None = None

    def __post_init__(self) -> None:
        """Refuse a step that runs backwards, or spans that do not lie in it."""
        path = f"steps[{self.index}]"
        _ordered(path, self.begin_s, self.start_s, self.end_s)
        positive(f"{path}.units", self.units)
        for place, span in enumerate(self.spans):
            outer = self._outer(place, span)
            if not outer[0] <= span.start_s <= span.end_s <= outer[1]:
                message = f"{span.name} does not lie in what it is part of"
                raise RecordError(message, path=f"{path}.spans[{place}]")

    def _outer(self, place: int, span: Span) -> tuple[float, float]:
        """Return between which times a span must lie."""
        if span.parent is None:
            return self.begin_s, self.end_s
        if not 0 <= span.parent < place:
            message = f"{span.parent!r} is not a span before it"
            raise RecordError(message, path=f"steps[{self.index}].spans[{place}]")
        parent = self.spans[span.parent]
        if parent.thread != span.thread:
            message = "it lies in a span of another thread"
            raise RecordError(message, path=f"steps[{self.index}].spans[{place}]")
        return parent.start_s, parent.end_s

    @property
    def duration_s(self) -> float:
        """How long the step took [s], what lies before it left out."""
        return self.end_s - self.start_s

    @property
    def period_s(self) -> float:
        """From the end of the step before to its own [s]: what throughput is made of."""
        return self.end_s - self.begin_s

    @property
    def wait_s(self) -> float:
        """From the end of the step before to its start [s]."""
        return self.start_s - self.begin_s


class Loop(Frozen, frozen=True, kw_only=True):
    """
    All that was recorded of one loop.

    Attributes:
        unit: What a unit of work is called, as "token".

        units: Units of a step, where the step does not say.

        warmup_count: Steps at the beginning that do not count, >= 0.

        steps: The steps, in their order.

        waiting: When the device was waited for; None: this process used none.

        uncompiled_reason: Why it is not known what was compiled; "": it was seen.

        peak_memory_bytes: The most device memory that was allocated at once [B]; None:
            not known.

        failure: What ended the loop early; None: it came to its end.
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
        """Refuse steps that overlap."""
        positive("loop.units", self.units)
        ends = [0.0, *(step.end_s for step in self.steps)]
        for before_s, step in zip(ends, self.steps, strict=False):
            if step.begin_s < before_s:
                message = "it begins before the step before it has ended"
                raise RecordError(message, path=f"steps[{step.index}].begin_s")

    @property
    def counted(self) -> tuple[Step, ...]:
        """The steps that count: warmed up, and not void."""
        return tuple(
            step for step in self.steps[self.warmup_count :] if step.void is None
        )


def _ordered(path: str, *times_s: float) -> None:
    """Refuse times before the beginning, or in a wrong order."""
    finite(path, *times_s)
    if list(times_s) != sorted(times_s) or times_s[0] < 0:
        listed = ", ".join(f"{time_s!r}" for time_s in times_s)
        raise RecordError(f"the times {listed} run backwards", path=path)


class PhaseTimes(Frozen, frozen=True, kw_only=True):
    """
    One phase over the steps that count.

    Attributes:
        name: Its name.

        kind: What it is spent on.

        own_s: Mean of a step, the phases inside it left out [s].

        total_s: Mean of a step, with all that lies inside it [s].

        p50_s: Median of a step, with all that lies inside it [s].

        p95_s: 95th percentile of a step, likewise [s].

        calls_count: How often it was entered in all of them.

        beside: Whether it ran in other threads, beside the steps.
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
        """Refuse what is not finite."""
        path = f"phases[{self.name}]"
        finite(path, self.own_s, self.total_s, self.p50_s, self.p95_s)


class OperationTimes(Frozen, frozen=True, kw_only=True):
    """
    One operation over the steps that count.

    Attributes:
        name: Its name.

        own_s: Mean of a step, the operations inside it left out [s].

        layer: The number of its layer; None: it was recorded outside of layers.

        calls_count: How often it was entered in all of them.
    """

    name: str
    own_s: float
    layer: int | None = None
    calls_count: int = 1

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite(f"operations[{self.name}].own_s", self.own_s)


class LayerTimes(Frozen, frozen=True, kw_only=True):
    """
    One layer over the steps that count.

    Attributes:
        layer: Its number, from 0.

        forward_s: Mean of a step [s].

        backward_s: Mean of a step [s].
    """

    layer: int
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite(f"layers[{self.layer}]", self.forward_s, self.backward_s)


class StepSummary(Frozen, frozen=True, kw_only=True):
    """
    What a measured loop amounts to; means are over the steps that count.

    Attributes:
        unit: What a unit of work is called.

        units: Mean units of a step.

        step_count: Steps that were recorded.

        counted_count: Those that count.

        warmup_count: Those that were for warming up.

        void_count: Those that were kept out.

        step_s: Mean time of a step [s].

        period_s: Mean time from the end of one step to the end of the next [s].

        wait_s: Mean time of waiting for data [s].

        data_was_recorded: Whether `wait_s` is of recorded data spans; if not, it is all
            the time between the steps.

        covered_fraction: Share of the period that lies in some recorded span; None:
            nothing was recorded in the steps.

        exposed_s: Mean time of communication beside which nothing was computed [s];
            None: not known.

        waiting: When the device was waited for; None: no device was used.

        phases: The phases, the longest own time first.

        layers: The layers, by number.

        operations: The operations, the longest own time first.

        warmup_compiled: What was compiled while warming up.

        compiled: What was compiled in the steps that count.

        recompiled_steps: Places of the steps that count and compiled something.

        grade: The letter of the training scorecard; None: it has none.

        efficiency_fraction: What the grade is made of; None: it has none.
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
        """Refuse what is not finite, or steps that took no time."""
        positive("steps.units", self.units)
        positive("steps.period_s", self.period_s)
        finite("steps.step_s", self.step_s, self.wait_s, self.exposed_s)
        finite("steps.fraction", self.covered_fraction, self.efficiency_fraction)


class Phase(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """
    One phase of a step.

    Attributes:
        total_ms: Its time, as its writer counted it [ms].

        pct: Its share of the step, 0 to 100 [%].

        avg_ms: Its mean time in a step, with the phases nested in it [ms].

        kind: What it spends its time on; None: the source did not say.

        exclusive_ms: Its mean time in a step, without the phases nested in it [ms];
            None: the source did not say, and nothing is known to be nested.
    """

    total_ms: float
    pct: float
    avg_ms: float
    kind: SpanKind | None = None
    exclusive_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
        needed = {"total_ms": self.total_ms, "pct": self.pct, "avg_ms": self.avg_ms}
        optional = stated({"exclusive_ms": self.exclusive_ms})
        refuse(list(not_finite("phase", needed | optional)))


class Layer(Frozen, frozen=True, kw_only=True):
    """
    One layer of the model.

    Attributes:
        layer: Its place, from 0.

        fwd_ms: Its forward pass [ms].

        bwd_ms: Its backward pass [ms].

        ops: Time of each of its operations [ms] by name.
    """

    layer: int
    fwd_ms: float
    bwd_ms: float
    ops: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
        numbers = {"fwd_ms": self.fwd_ms, "bwd_ms": self.bwd_ms}
        refuse(
            [
                *not_finite("layer", numbers),
                *not_finite("layer.ops", self.ops),
            ]
        )


class DeviceTime(Frozen, frozen=True, kw_only=True):
    """
    What the device did in a mean step, as a trace shows it; together, the step.

    Attributes:
        busy_ms: In which it worked, whatever worked side by side counted once [ms].

        launching_ms: In which it idled and the host was in a call that launches [ms].

        waiting_ms: In which it idled otherwise [ms].
    """

    busy_ms: float
    launching_ms: float
    waiting_ms: float

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
        numbers = {
            "busy_ms": self.busy_ms,
            "launching_ms": self.launching_ms,
            "waiting_ms": self.waiting_ms,
        }
        refuse(list(not_finite("device", numbers)))


class StepProfile(Frozen, frozen=True, kw_only=True):
    """
    A profile of training steps.

    A field that its source does not have is zero or empty, as files in the wild mean
    it; `absent` tells such a zero from one that was measured.

    Attributes:
        steps: Steps that were profiled.

        avg_step_ms: Mean wall time of a step [ms].

        wall_coverage: Share of the wall time that the phases explain, 0 to 1.

        phases: Phases by name.

        per_layer: The model's layers, in its order.

        bottleneck: What the writer took for the bottleneck; None: it did not say.

        gemm_pct: Share of matrix products, 0 to 100 [%].

        total_ms: Wall time of all steps [ms].

        step_ms: Wall time of each step [ms]; empty: only the mean is known.

        device: What the device did in a mean step; None: it was not traced.

        counters: What hardware counters say of a mean step, by the standard names of
            `model.counters`; empty: none were read.

        machine: What it ran on, as {"gpu": …, "driver": …}; empty: the source did not
            say.

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
        """Refuse what is not a finite number."""
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
