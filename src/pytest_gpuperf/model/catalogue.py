"""What a chip can count, and what counting costs."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["ChipEntry", "MetricEntry", "NameCheck", "PassCost", "ReplayGroup"]


class ChipEntry(Frozen, frozen=True, kw_only=True):
    """
    A chip whose metrics are known.

    Attributes:
        name: As NVIDIA's tools spell it: `GH100`.

        capability: Its compute capability; None: no source that we read says it.

        counter_count: Its counters.

        ratio_count: Its ratios.

        throughput_count: Its throughputs.
    """

    name: str
    capability: tuple[int, int] | None
    counter_count: int
    ratio_count: int
    throughput_count: int


class MetricEntry(Frozen, frozen=True, kw_only=True):
    """
    A metric of a chip.

    Attributes:
        name: As it was asked for.

        base: Without an ending.

        kind: counter, ratio or throughput.

        description: A phrase in NVIDIA's words.

        hardware_unit: The part of the chip that counts.

        unit: What the number is counted in; "" where it has no unit.

        endings: What may follow the base.

        made_of: The counters and throughputs of which a throughput is the largest.

        passes: Passes that it takes alone; None: it cannot be had of a kernel, or nobody
            asked.
    """

    name: str
    base: str
    kind: str
    description: str
    hardware_unit: str
    unit: str
    endings: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()
    passes: int | None = None


class NameCheck(Frozen, frozen=True, kw_only=True):
    """
    Whether a name is a metric of a chip.

    Attributes:
        name: As it was asked for.

        known: Whether Nsight Compute can be asked for it on this chip.

        kind: counter, ratio, throughput, base (a metric without an ending) or ncu (a
            name that Nsight Compute makes itself); gpuperf, which is known to no chip,
            for a metric of ours; "" where it is unknown.

        note: A sentence: why it is unknown, or what is to be known of it.

        suggestions: Names that may have been meant, best first.
    """

    name: str
    known: bool
    kind: str
    note: str = ""
    suggestions: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The note with what may have been meant."""
        if not self.suggestions:
            return self.note
        return f"{self.note}; did you mean {', '.join(self.suggestions)}"


class PassCost(Frozen, frozen=True, kw_only=True):
    """
    In how many passes a kernel gives metrics.

    Attributes:
        chip: Whose.

        names: The metrics.

        passes: Passes that the hardware's counters need, >= 0.

        replays: How often Nsight Compute is expected to run each launch, >= 1; None:
            nothing says.

        note: A sentence on how sure that is.

        alone: Passes of each metric that the hardware counts.

        refused: Why metrics cannot be had of a kernel, by name.
    """

    chip: str
    names: tuple[str, ...]
    passes: int
    replays: int | None
    note: str
    alone: Mapping[str, int] = {}
    refused: Mapping[str, str] = {}


class ReplayGroup(Frozen, frozen=True, kw_only=True):
    """
    Tests whose metrics are collected together.

    Attributes:
        tests: The tests.

        cost: What the metrics of all of them take together.
    """

    tests: tuple[str, ...]
    cost: PassCost
