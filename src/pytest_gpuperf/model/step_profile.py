"""Where the time of a training step goes.

Milliseconds and percent, unlike every other record: files in the wild are written so.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import not_finite, refuse, stated
from pytest_gpuperf.model.steps import SpanKind

__all__ = ["DeviceTime", "Layer", "Phase", "StepProfile"]


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

        device: What the device did in a mean step; None: nobody traced it.

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
