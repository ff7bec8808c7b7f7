"""What a measured loop amounts to."""

from __future__ import annotations

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import finite, positive
from pytest_gpuperf.model.steps import Compiled, SpanKind, Waiting

__all__ = ["LayerTimes", "OperationTimes", "PhaseTimes", "StepSummary"]


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
