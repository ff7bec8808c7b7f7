"""Peaks of a device: measured, declared, or from its datasheet, each with its source.

There are no other GPU's figures for one that is not known, and no peak without a source.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.roofline import LEVELS, Peak, Peaks, weakest
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.work import DTYPE_BYTES

__all__ = [
    "Card",
    "GpuTable",
    "TableFigure",
    "cpu_peaks",
    "find_peaks",
    "load_table",
]

_FILE = Path(__file__).with_name("gpu_table.json")
_PREFIX = "NVIDIA "  # a prefix that newer drivers add to a name
_SLICE = " MIG "
# Reported over printed memory: less where the OS or ECC reserves some, more where a
# printed GB is 2^30 bytes (A100) or the sheet leaves out spares (B300: 297/270).
_LEAST_MEMORY, _MOST_MEMORY = 0.93, 1.12
_SAME_BANDWIDTH = 0.03  # H200: 4917 by its clocks, 4800 on its sheet


class TableFigure(Frozen, frozen=True, kw_only=True):
    """
    One number of the table.

    Attributes:
        value: The number, in the unit of its key in the table.

        label: Datasheet, or estimated.

        title: Its publication, or how it was inferred.
    """

    value: float
    label: SourceLabel
    title: str


class Card(Frozen, frozen=True, kw_only=True):
    """
    One GPU of the table.

    Attributes:
        names: Its names in drivers.

        rates: Its table of rates.

        figures: Figure by the table's key, as "dram_gb_s".

        tflop_s: Peak by data type [1e12 FLOP/s].

        settled_by: "memory" or "bandwidth": must be known and agree, because another
            board has the same name; None: the name is enough.

        soc: Whether it shares its memory with a CPU.

        note: A note on its figures for the reader; "": none.
    """

    names: tuple[str, ...]
    rates: str
    figures: Mapping[str, TableFigure]
    tflop_s: Mapping[str, TableFigure]
    settled_by: str | None
    soc: bool
    note: str

    def value(self, key: str) -> float | None:
        """Return a number of the card; None: not in the table."""
        figure = self.figures.get(key)
        return None if figure is None else figure.value


class GpuTable(Frozen, frozen=True, kw_only=True):
    """
    The figures of datasheets.

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
        """Return the cards of a name, with or without NVIDIA before it."""
        plain = _plain(name)
        return tuple(card for card in self.cards if plain in map(_plain, card.names))

    def card_of(self, device: Device) -> tuple[Card | None, str]:
        """
        Return the card of a GPU, by its whole name and its other known properties.

        Args:
            device: The GPU; of a slice of one, the name before " MIG " counts.

        Returns:
            The card and ""; or None and the reason, as a sentence without its end.
        """
        name = _without_slice(device.name)
        named = self.named(name)
        if not named:
            return None, f"the table of datasheets has no {name!r}"
        for card in named:
            if not _contradictions(card, device) and _settled(card, device):
                return card, ""
        differences = "; ".join(
            filter(None, (_contradictions(c, device) for c in named))
        )
        if differences:
            return (
                None,
                f"no board named {name!r} in the table matches: {differences}",
            )
        return None, (
            f"several boards are named {name!r}, and the {named[0].settled_by} "
            "that distinguishes them is unknown"
        )


@functools.cache
def load_table() -> GpuTable:
    """Return the table of the package."""
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


def _without_slice(name: str) -> str:
    """Return the name of the whole GPU, without the profile of a slice."""
    return name.partition(_SLICE)[0]


def _plain(name: str) -> str:
    """Return a name without the prefix of newer drivers."""
    return name.removeprefix(_PREFIX)


def _card(row: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]) -> Card:
    """Return a card from its row in the file."""

    def figure(cell: tuple[float, str]) -> TableFigure:
        value, source = cell
        source_row = sources[source]
        return TableFigure(
            value=value,
            label=SourceLabel(source_row["label"]),
            title=source_row["title"],
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
    """Return the properties in which a GPU differs from a card; "": none."""
    facts = []
    # a slice has its own multiprocessors and memory; a power mode switches a SoC's off
    if device.mig_profile is None and not card.soc:
        facts.append(("multiprocessors", device.sm_count, card.value("sm_count")))
        facts.append(
            ("bits of memory bus", device.memory_bus_bits, card.value("bus_bits"))
        )
    differences = [
        f"it has {actual} {what}, the datasheet says {printed:g}"
        for what, actual, printed in facts
        if actual is not None and printed is not None and actual != printed
    ]
    if device.mig_profile is None and _memory_fits(card, device) is False:
        gb = (device.memory_bytes or 0) / 1e9
        printed = card.value("memory_gb") or 0.0
        differences.append(
            f"it has {gb:.1f} GB of memory, the datasheet says {printed:g}"
        )
    if card.settled_by == "bandwidth" and _bandwidth_fits(card, device) is False:
        differences.append("its memory is clocked for another bandwidth")
    return " and ".join(differences)


def _settled(card: Card, device: Device) -> bool:
    """Return whether the property that distinguishes boards of one name is known."""
    if card.settled_by == "memory":
        return _memory_fits(card, device) is not None
    if card.settled_by == "bandwidth":
        return _bandwidth_fits(card, device) is not None
    return True


def _memory_fits(card: Card, device: Device) -> bool | None:
    """Return whether a GPU's memory matches the sheet; None: unknown."""
    printed = card.value("memory_gb")
    if device.memory_bytes is None or printed is None:
        return None
    return _LEAST_MEMORY <= device.memory_bytes / (printed * 1e9) <= _MOST_MEMORY


def _bandwidth_fits(card: Card, device: Device) -> bool | None:
    """Return whether a GPU's clocks give the sheet's bandwidth; None: unknown."""
    clock_hz, bus_bits = device.max_memory_clock_hz, device.memory_bus_bits
    printed = card.value("dram_gb_s")
    if clock_hz is None or bus_bits is None or printed is None:
        return None
    bytes_per_s = 2 * clock_hz * bus_bits / 8
    return abs(bytes_per_s / (printed * 1e9) - 1) <= _SAME_BANDWIDTH


_PLAIN_UNITS = frozenset({"fp64", "fp64_tensor", "fp32", "fp16_vector"})
# integrated GPUs, whose reported memory clocks and widths are meaningless
_SOC_CAPABILITIES = frozenset({(7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
# names whose tensor cores run at the full rate, by the professional whitepapers
_FULL_RATE = re.compile(r"Quadro RTX|RTX A\d{3,4}\b|Ada Generation|RTX PRO \d{4}\b")
# names whose tensor cores run at the GeForce rate; a D is a cut-down board
_GEFORCE = re.compile(r"GeForce RTX (?!.*\bD\b)")
_PROFILE = re.compile(r"\d+g\.(?P<gb>\d+)gb")
_MEMORY_SLICES = 8  # of every GPU that can be split; an A30's four count double
_SPLIT = "the GPU is split into slices, and the slice in use is unknown"
_NEAR = 0.99  # tolerance for a rounded clock or power limit

_Layer = Mapping[str, Peak]


class _Share(Frozen, frozen=True, kw_only=True):
    """The share of multiprocessors and memory that a slice has; None: unknown."""

    compute: float | None = 1.0
    memory: float | None = 1.0
    text: str = ""


def find_peaks(
    device: Device,
    *,
    declared: Mapping[str, float] | None = None,
    measured: Mapping[str, float] | None = None,
) -> Peaks:
    """
    Return the peaks of a GPU, each with its label and its source.

    Args:
        device: The GPU, with all properties that could be read.

        declared: Declared peaks: FLOP/s by data type, B/s by level of memory.

        measured: Peaks measured on it, likewise.

    Returns:
        A Peak for every data type and level of memory; an unknown one is unavailable,
        with the reason as its source.
    """
    table = load_table()
    card, no_card_reason = table.card_of(device)
    share = _share(device, card)
    measured_layer = _layer_of(measured, SourceLabel.MEASURED, "measured on this GPU")
    declared_layer = _layer_of(
        declared, SourceLabel.DECLARED, "declared (gpuperf_peaks)"
    )
    if device.mig and device.mig_profile is None:
        layers: tuple[_Layer, ...] = (
            measured_layer,
            declared_layer,
            _all_unknown(_SPLIT),
        )
    else:
        layers = (
            _detected(device, card, share),
            measured_layer,
            declared_layer,
            {} if card is None else _printed(card, device, share),
            _estimated(device, card, table),
            _unavailable(
                device, no_card_reason, has_rates=bool(_rates(device, card, table))
            ),
        )
    chosen = _strongest(layers)
    overruled = [
        field for field in declared_layer if chosen[field] is not declared_layer[field]
    ]
    notes = [
        f"{field} is declared, but the {chosen[field].label.value} value is used"
        for field in overruled
    ]
    return _peaks(
        device.name,
        chosen,
        l2_bytes=_l2_bytes(device, card, share),
        notes=(*notes, *_notes(device, card)),
    )


def cpu_peaks(declared: Mapping[str, float] | None = None) -> Peaks:
    """
    Return the declared peaks of the host's processor.

    Args:
        declared: FLOP/s by data type, B/s by level of memory.
    """
    declared_layer = _layer_of(
        declared, SourceLabel.DECLARED, "declared (gpuperf_peaks)"
    )
    why = "the peaks of a CPU must be declared"
    return _peaks("cpu", _strongest((declared_layer, _all_unknown(why))), l2_bytes=0)


def _peaks(
    name: str,
    chosen: _Layer,
    *,
    l2_bytes: int | None = None,
    notes: tuple[str, ...] = (),
) -> Peaks:
    """Return peaks of computing and of memory from one layer."""
    return Peaks(
        device=name,
        flop_per_s={field: chosen[field] for field in DTYPE_BYTES},
        bytes_per_s={level: chosen[level] for level in LEVELS},
        unlisted=f"it is not one of {', '.join(DTYPE_BYTES)}",
        l2_bytes=l2_bytes,
        notes=notes,
    )


def _strongest(layers: tuple[_Layer, ...]) -> dict[str, Peak]:
    """Return the peak with the strongest label of each field, the first among equals."""
    chosen: dict[str, Peak] = {}
    for layer in layers:
        for field, peak in layer.items():
            best = chosen.setdefault(field, peak)
            if weakest(best.label, peak.label) is not peak.label:
                chosen[field] = peak
    return chosen


def _layer_of(
    values: Mapping[str, float] | None, label: SourceLabel, source: str
) -> dict[str, Peak]:
    """Return measured or declared values as peaks."""
    return {
        field: Peak(value=value, label=label, source=source)
        for field, value in (values or {}).items()
    }


def _detected(device: Device, card: Card | None, share: _Share) -> _Layer:
    """Return the bandwidth of the live device, from clock and bus width."""
    clock_hz, bus_bits = device.max_memory_clock_hz, device.memory_bus_bits
    if clock_hz is None or bus_bits is None or share.memory is None:
        return {}
    if _is_soc(device, card):
        return {}
    # the driver's memory clock is half the data rate, for HBM and GDDR alike
    bytes_per_s = 2 * clock_hz * bus_bits / 8
    source = f"2 x {clock_hz / 1e6:g} MHz x {bus_bits} bit, from the driver"
    peak = Peak(value=bytes_per_s, label=SourceLabel.DETECTED, source=source)
    return {"dram": _scaled(peak, share.memory, share)}


def _printed(card: Card, device: Device, share: _Share) -> _Layer:
    """Return the peaks of the datasheet."""
    layer: dict[str, Peak] = {}
    printed = card.figures.get("dram_gb_s")
    if printed is not None and share.memory is not None:
        peak = Peak(
            value=printed.value * 1e9, label=printed.label, source=printed.title
        )
        layer["dram"] = _scaled(peak, share.memory, share)
    if share.compute is None or _switched_off(card, device):
        return layer
    boost = card.value("boost_mhz")
    tensor = card.value("tensor_mhz") or boost
    for dtype, figure in card.tflop_s.items():
        clock_mhz = boost if dtype in _PLAIN_UNITS else tensor
        peak = Peak(
            value=figure.value * 1e12,
            label=figure.label,
            source=figure.title,
            clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        )
        layer[dtype] = _scaled(peak, share.compute, share)
    return layer


def _estimated(device: Device, card: Card | None, table: GpuTable) -> _Layer:
    """Return rates times the live device's own clock and multiprocessors."""
    clock_hz, sm_count = device.rated_clock_hz, device.sm_count
    if clock_hz is None or sm_count is None or device.compute_capability is None:
        return {}
    capability = _capability(device)
    scale = table.tensor_clock_scale.get(capability, 1.0)
    layer = {}
    for dtype, rate in _rates(device, card, table).items():
        at_hz = clock_hz * (1.0 if dtype in _PLAIN_UNITS else scale)
        source = (
            f"2 x {sm_count} multiprocessors x {rate} FMA per clock x "
            f"{at_hz / 1e6:.0f} MHz"
        )
        layer[dtype] = Peak(
            value=2 * sm_count * rate * at_hz,
            label=SourceLabel.ESTIMATED,
            source=source,
            clock_hz=at_hz,
        )
    return layer


def _rates(device: Device, card: Card | None, table: GpuTable) -> Mapping[str, int]:
    """
    Return the rates per clock that follow from a GPU's name; empty if none do.

    The compute capability is not enough: cut-down boards share it (H20 and H800 with the
    H100).
    """
    name, capability = _without_slice(device.name), _capability(device)
    cards = table.named(name) if card is None else (card,)
    if cards:
        key = cards[0].rates
    elif _GEFORCE.search(name):
        key = f"{capability}-geforce"
    else:
        key = capability if _FULL_RATE.search(name) else ""
    return table.rates.get(key, {})


def _unavailable(device: Device, no_card_reason: str, *, has_rates: bool) -> _Layer:
    """Return the reason for each field that no other layer has."""
    missing = [
        what
        for what, fact in (
            ("the number of its multiprocessors", device.sm_count),
            ("its rated clock", device.rated_clock_hz),
            ("its compute capability", device.compute_capability),
        )
        if fact is None
    ]
    if missing:
        no_rate = f"{' and '.join(missing)} could not be read"
    elif has_rates:  # the chip computes none of this type, or nobody says how many
        capability = _capability(device)
        no_rate = (
            f"no rate of this data type is known for compute capability {capability}"
        )
    else:
        no_rate = "its rate for this data type does not follow from its name"
    why = no_card_reason or "its datasheet does not list it"
    layer = _all_unknown(f"{why}, and {no_rate}")
    no_dram = "its memory clock and bus width are missing or meaningless"
    layer["dram"] = _unknown(f"{why}, and {no_dram}")
    for level in ("l2", "l1"):
        layer[level] = _unknown(f"no datasheet lists the bandwidth of {level.upper()}")
    return layer


def _all_unknown(why: str) -> dict[str, Peak]:
    """Return every field as unknown."""
    return {field: _unknown(why) for field in (*DTYPE_BYTES, *LEVELS)}


def _unknown(why: str) -> Peak:
    """Return an unknown peak."""
    return Peak(value=None, label=SourceLabel.UNAVAILABLE, source=why)


def _scaled(peak: Peak, part: float, share: _Share) -> Peak:
    """Return a peak scaled to a slice; unchanged for a whole GPU."""
    if not share.text or peak.value is None:
        return peak
    return replace(
        peak,
        value=peak.value * part,
        label=SourceLabel.ESTIMATED,
        source=f"{peak.source}, scaled to the slice {share.text}",
    )


def _share(device: Device, card: Card | None) -> _Share:
    """Return the share of its GPU that a device has."""
    profile = device.mig_profile
    if profile is None:
        return _Share()
    whole_sm = None if card is None else card.value("sm_count")
    whole_gb = None if card is None else card.value("memory_gb")
    match = _PROFILE.match(profile)
    compute = memory = None
    if whole_sm is not None and device.sm_count is not None:
        compute = device.sm_count / whole_sm
    if whole_gb is not None and match is not None:
        slices = round(int(match["gb"]) / (whole_gb / _MEMORY_SLICES))
        memory = min(slices, _MEMORY_SLICES) / _MEMORY_SLICES
    return _Share(compute=compute, memory=memory, text=profile)


def _switched_off(card: Card, device: Device) -> bool:
    """Return whether a SoC uses fewer multiprocessors than its sheet lists."""
    return card.soc and device.sm_count not in {None, card.value("sm_count")}


def _is_soc(device: Device, card: Card | None) -> bool:
    """Return whether a GPU shares its memory with a CPU."""
    if device.integrated or (card is not None and card.soc):
        return True
    return device.compute_capability in _SOC_CAPABILITIES


def _l2_bytes(device: Device, card: Card | None, share: _Share) -> int | None:
    """Return the size of the L2 from the driver, else from the table."""
    if device.l2_bytes is not None:
        return device.l2_bytes
    printed = None if card is None else card.value("l2_mib")
    if printed is None or share.memory is None:
        return None
    return int(printed * 2**20 * share.memory)


def _capability(device: Device) -> str:
    """Return the compute capability as text; "": unknown."""
    return ".".join(map(str, device.compute_capability or ()))


def _notes(device: Device, card: Card | None) -> list[str]:
    """Return the notes on the peaks of a board."""
    if card is None:
        return []
    notes = [card.note] if card.note else []
    watts, printed_watts = device.power_limit_watts, card.value("power_w")
    if watts is not None and printed_watts and watts < _NEAR * printed_watts:
        notes.append(
            f"Its power limit is {watts:g} W, the datasheet's is {printed_watts:g} W: "
            "its clocks may stay below those that the peaks assume."
        )
    boost_mhz = card.value("boost_mhz")
    if device.rated_clock_hz is not None and boost_mhz is not None:
        ratio = device.rated_clock_hz / (boost_mhz * 1e6)
        if not _NEAR <= ratio <= 1 / _NEAR:
            notes.append(
                f"This board is rated {device.rated_clock_hz / 1e6:g} MHz, the datasheet's "
                f"peaks assume {boost_mhz:g} MHz."
            )
    return notes
