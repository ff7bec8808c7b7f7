"""The table of datasheets, and which of its cards a GPU is."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpuperf.model.device import Device
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.sample import SourceLabel

__all__ = ["Card", "Figure", "GpuTable", "load_table", "without_slice"]

_FILE = Path(__file__).parents[1] / "gpu_table.json"
_PREFIX = "NVIDIA "  # newer drivers put it before names that older ones spell without
_SLICE = " MIG "
# What a driver reports over what the sheet prints: less where the OS or ECC takes some,
# more where a printed GB means 2^30 bytes (A100) or spares are left in (B300: 297/270).
_LEAST_MEMORY, _MOST_MEMORY = 0.93, 1.12
_SAME_BANDWIDTH = 0.03  # H200: 4917 by its clocks, 4800 on its sheet


class Figure(Frozen, frozen=True, kw_only=True):
    """
    One number of the table.

    Attributes:
        value: The number, in the unit that its key in the table names.

        label: Datasheet, or estimated.

        title: Where it was printed, or how it was inferred.
    """

    value: float
    label: SourceLabel
    title: str


class Card(Frozen, frozen=True, kw_only=True):
    """
    One GPU of the table.

    Attributes:
        names: As drivers spell it.

        rates: Its table of rates.

        figures: Figure by the table's key, as "dram_gb_s".

        tflop_s: Peak by data type [1e12 FLOP/s].

        settled_by: "memory" or "bandwidth": what must be known and agree, because
            another board has the same name; None: the name is enough.

        soc: Whether it shares its memory with a CPU.

        note: What a reader should know of its figures; "": nothing.
    """

    names: tuple[str, ...]
    rates: str
    figures: Mapping[str, Figure]
    tflop_s: Mapping[str, Figure]
    settled_by: str | None
    soc: bool
    note: str

    def value(self, key: str) -> float | None:
        """Return a number of the card; None: the table does not say."""
        figure = self.figures.get(key)
        return None if figure is None else figure.value


class GpuTable(Frozen, frozen=True, kw_only=True):
    """
    What is printed of GPUs.

    Attributes:
        cards: One for each board.

        rates: Multiply-adds of a multiprocessor per clock, by table and data type.

        tensor_clock_scale: Clock of tensor rates over the boost clock, by compute
            capability; 1 where it is not listed.
    """

    cards: tuple[Card, ...]
    rates: Mapping[str, Mapping[str, int]]
    tensor_clock_scale: Mapping[str, float]

    def named(self, name: str) -> tuple[Card, ...]:
        """Return the cards of a name, whether or not a driver writes NVIDIA before it."""
        plain = _plain(name)
        return tuple(card for card in self.cards if plain in map(_plain, card.names))

    def card_of(self, device: Device) -> tuple[Card | None, str]:
        """
        Return the card that a GPU is, by its whole name and all that is known beside it.

        Args:
            device: The GPU; of a slice of one, the name before " MIG " counts.

        Returns:
            The card and ""; or None and the reason, as a sentence without its end.
        """
        name = without_slice(device.name)
        named = self.named(name)
        if not named:
            return None, f"the table of datasheets has no {name!r}"
        for card in named:
            if not _contradictions(card, device) and _settled(card, device):
                return card, ""
        wrong = "; ".join(filter(None, (_contradictions(c, device) for c in named)))
        if wrong:
            return None, f"no board of the table that is named {name!r} fits: {wrong}"
        return None, (
            f"several boards are named {name!r}, and the {named[0].settled_by} "
            "that tells them apart is not known"
        )


@functools.cache
def load_table() -> GpuTable:
    """Return the table that the package brings."""
    loaded = json.loads(_FILE.read_text(encoding="utf-8"))
    sources = loaded["sources"]
    return GpuTable(
        cards=tuple(_card(row, sources) for row in loaded["gpus"]),
        rates=loaded["rates"],
        tensor_clock_scale={
            capability: scale
            for capability, (scale, _) in loaded["tensor_clock_scale"].items()
        },
    )


def without_slice(name: str) -> str:
    """Return the name of the GPU that a slice belongs to; of a whole GPU its own."""
    return name.partition(_SLICE)[0]


def _plain(name: str) -> str:
    """Return a name as all drivers spell it."""
    return name.removeprefix(_PREFIX)


def _card(row: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]) -> Card:
    """Return a card from its row in the file."""

    def figure(cell: tuple[float, str]) -> Figure:
        value, source = cell
        said = sources[source]
        return Figure(
            value=value, label=SourceLabel(said["label"]), title=said["title"]
        )

    return Card(
        names=tuple(row["names"]),
        rates=row["rates"],
        figures={k: figure(v) for k, v in row.items() if _is_figure(v)},
        tflop_s={k: figure(v) for k, v in row["tflop_s"].items()},
        settled_by=row.get("settled_by"),
        soc=row.get("soc", False),
        note=row.get("note", ""),
    )


def _is_figure(cell: object) -> bool:
    """Return whether a cell of a row is a number with its source."""
    return isinstance(cell, list) and not isinstance(cell[0], str)


def _contradictions(card: Card, device: Device) -> str:
    """Return what is known of a GPU and says that it is not this card; "": nothing."""
    facts = []
    # a slice has its own multiprocessors and memory; a power mode switches a SoC's off
    if device.mig_profile is None and not card.soc:
        facts.append(("multiprocessors", device.sm_count, card.value("sm_count")))
        facts.append(("bits of bus", device.memory_bus_bits, card.value("bus_bits")))
    wrong = [
        f"it has {found} {what}, the sheet says {printed:g}"
        for what, found, printed in facts
        if found is not None and printed is not None and found != printed
    ]
    if device.mig_profile is None and _memory_fits(card, device) is False:
        gb = (device.memory_bytes or 0) / 1e9
        printed = card.value("memory_gb") or 0.0
        wrong.append(f"it has {gb:.1f} GB of memory, the sheet says {printed:g}")
    if card.settled_by == "bandwidth" and _bandwidth_fits(card, device) is False:
        wrong.append("its memory is clocked for another bandwidth")
    return " and ".join(wrong)


def _settled(card: Card, device: Device) -> bool:
    """Return whether what tells a card from others of its name is known."""
    if card.settled_by == "memory":
        return _memory_fits(card, device) is not None
    if card.settled_by == "bandwidth":
        return _bandwidth_fits(card, device) is not None
    return True


def _memory_fits(card: Card, device: Device) -> bool | None:
    """Return whether a GPU's memory is what the sheet says; None: not known."""
    printed = card.value("memory_gb")
    if device.memory_bytes is None or printed is None:
        return None
    return _LEAST_MEMORY <= device.memory_bytes / (printed * 1e9) <= _MOST_MEMORY


def _bandwidth_fits(card: Card, device: Device) -> bool | None:
    """Return whether a GPU's clocks give the sheet's bandwidth; None: not known."""
    clock_hz, bus_bits = device.max_memory_clock_hz, device.memory_bus_bits
    printed = card.value("dram_gb_s")
    if clock_hz is None or bus_bits is None or printed is None:
        return None
    found = 2 * clock_hz * bus_bits / 8
    return abs(found / (printed * 1e9) - 1) <= _SAME_BANDWIDTH
