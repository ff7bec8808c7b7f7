"""Peaks of a device: measured, declared, or from its datasheet, each with its source.

An unknown GPU never gets the figures of another GPU, and every peak has a source.
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

_FILE = Path(__file__).with_name("gpu_table.json")
# Newer drivers add this prefix to names.
_PREFIX = "NVIDIA "
_SLICE = " MIG "
# Reported memory over printed memory. It is less if the OS or ECC reserves some, and
# more if a printed GB is 2^30 bytes (A100) or the sheet leaves out spares (B300:
# 297/270).
_LEAST_MEMORY, _MOST_MEMORY = 0.93, 1.12
# H200: 4917 from its clocks, 4800 on its sheet.
_SAME_BANDWIDTH = 0.03


class TableFigure(Frozen, frozen=True, kw_only=True):
    """
    One number of the table.

    Attributes:
        value: The number, in the unit of its key in the table.

        label: Datasheet or estimated.

        title: The publication, or the method by which the number was inferred.
    """

    value: float
    label: SourceLabel
    title: str


class Card(Frozen, frozen=True, kw_only=True):
    """
    One GPU of the table.

    Attributes:
        names: The names that drivers report.

        rates: The key of the table of rates.

        figures: Figures by the key of the table, such as "dram_gb_s".

        tflop_s: Peak by data type [1e12 FLOP/s].

        settled_by: "memory" or "bandwidth", which must be known and agree because
            another board has the same name, or None if the name is sufficient.

        soc: Whether the GPU shares its memory with a CPU.

        note: A note on the figures for the reader, or "".
    """

    names: tuple[str, ...]
    rates: str
    figures: Mapping[str, TableFigure]
    tflop_s: Mapping[str, TableFigure]
    settled_by: str | None
    soc: bool
    note: str

    def value(self, key: str) -> float | None:
        """Return a number of the card, or None if not listed."""
        figure = self.figures.get(key)
        return None if figure is None else figure.value


class GpuTable(Frozen, frozen=True, kw_only=True):
    """
    The figures of datasheets.

    Attributes:
        cards: A card for each board.

        rates: Multiply-adds of a multiprocessor per clock, by table and data type.

        tensor_clock_scale: Clock of tensor rates over the boost clock, by compute
            capability. 1 if not listed.
    """

    cards: tuple[Card, ...]
    rates: Mapping[str, Mapping[str, int]]
    tensor_clock_scale: Mapping[str, float]

    def named(self, name: str) -> tuple[Card, ...]:
        """Return the cards of a name, with or without the prefix NVIDIA."""
        plain = _plain(name)
        return tuple(card for card in self.cards if plain in map(_plain, card.names))

    def card_of(self, device: Device) -> tuple[Card | None, str]:
        """
        Find the card of a GPU by full name and other known properties.

        Args:
            device: The GPU. For a slice, the part of the name before " MIG " counts.

        Returns:
            The card and "", or None and the reason, as a sentence without its final
            stop.
        """
        name = _without_slice(device.name)
        named = self.named(name)
        if not named:
            return None, f"the table of datasheets has no {name!r}"
        tests = {"memory": _memory_fits, "bandwidth": _bandwidth_fits}
        for card in named:
            fits = tests.get(card.settled_by or "")
            is_settled = fits is None or fits(card, device) is not None
            if is_settled and not _contradictions(card, device):
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
    """Load the table that is part of the package."""
    loaded = json.loads(_FILE.read_text(encoding="utf-8"))
    sources = loaded["sources"]

    def figure(cell: list[Any]) -> TableFigure:
        value, source = cell
        source_row = sources[source]
        return TableFigure(
            value=value,
            label=SourceLabel(source_row["label"]),
            title=source_row["title"],
        )

    cards = (
        Card(
            names=tuple(row["names"]),
            rates=row["rates"],
            figures={
                key: figure(cell)
                for key, cell in row.items()
                if isinstance(cell, list) and not isinstance(cell[0], str)
            },
            tflop_s={dtype: figure(cell) for dtype, cell in row["tflop_s"].items()},
            settled_by=row.get("settled_by"),
            soc=row.get("soc", False),
            note=row.get("note", ""),
        )
        for row in loaded["gpus"]
    )
    return GpuTable(
        cards=tuple(cards),
        rates=loaded["rates"],
        tensor_clock_scale={
            capability: scale
            for capability, (scale, _) in loaded["tensor_clock_scale"].items()
        },
    )


def _without_slice(name: str) -> str:
    return name.partition(_SLICE)[0]


def _plain(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _contradictions(card: Card, device: Device) -> str:
    """Return the properties of a GPU that contradict a card, or ""."""
    facts = []
    # A slice has its own multiprocessors and memory, and a power mode switches off
    # parts of a SoC.
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


def _memory_fits(card: Card, device: Device) -> bool | None:
    """Return True if a GPU's memory matches the sheet, or None if unknown."""
    printed = card.value("memory_gb")
    if device.memory_bytes is None or printed is None:
        return None
    return _LEAST_MEMORY <= device.memory_bytes / (printed * 1e9) <= _MOST_MEMORY


def _bandwidth_fits(card: Card, device: Device) -> bool | None:
    """Return True if a GPU's clocks give the sheet's bandwidth, or None if unknown."""
    clock_hz, bus_bits = device.max_memory_clock_hz, device.memory_bus_bits
    printed = card.value("dram_gb_s")
    if clock_hz is None or bus_bits is None or printed is None:
        return None
    bytes_per_s = 2 * clock_hz * bus_bits / 8
    return abs(bytes_per_s / (printed * 1e9) - 1) <= _SAME_BANDWIDTH


_PLAIN_UNITS = frozenset({"fp64", "fp64_tensor", "fp32", "fp16_vector"})
# Integrated GPUs, whose reported memory clocks and widths are meaningless.
_SOC_CAPABILITIES = frozenset({(7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
# Names whose tensor cores run at the full rate, according to the professional
# whitepapers.
_FULL_RATE = re.compile(r"Quadro RTX|RTX A\d{3,4}\b|Ada Generation|RTX PRO \d{4}\b")
# Names whose tensor cores run at the GeForce rate. A D marks a cut-down board.
_GEFORCE = re.compile(r"GeForce RTX (?!.*\bD\b)")
_PROFILE = re.compile(r"\d+g\.(?P<gb>\d+)gb")
# The same for every GPU that can be split. The four slices of an A30 count double.
_MEMORY_SLICES = 8
# Tolerance for a rounded clock or power limit.
_NEAR = 0.99

_Layer = Mapping[str, Peak]


class _Share(Frozen, frozen=True, kw_only=True):
    """A slice's share of multiprocessors and memory, or None if unknown."""

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
    Find the peaks of a GPU, with labels and sources.

    Args:
        device: The GPU, with all properties that could be read.

        declared: Declared peaks: FLOP/s by data type, B/s by level of memory.

        measured: Peaks measured on the GPU, in the same units.

    Returns:
        A Peak for every data type and level of memory. An unknown peak is unavailable,
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
        split = "the GPU is split into slices, and the slice in use is unknown"
        layers: tuple[_Layer, ...] = (
            measured_layer,
            declared_layer,
            _all_unknown(split),
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
    notes = [
        f"{field} is declared, but the {chosen[field].label.value} value is used"
        for field, peak in declared_layer.items()
        if chosen[field] is not peak
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
    return Peaks(
        device=name,
        flop_per_s={field: chosen[field] for field in DTYPE_BYTES},
        bytes_per_s={level: chosen[level] for level in LEVELS},
        unlisted=f"it is not one of {', '.join(DTYPE_BYTES)}",
        l2_bytes=l2_bytes,
        notes=notes,
    )


def _strongest(layers: tuple[_Layer, ...]) -> dict[str, Peak]:
    """Return the strongest peak of every field, by label. The first wins among equals."""
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
    return {
        field: Peak(value=value, label=label, source=source)
        for field, value in (values or {}).items()
    }


def _detected(device: Device, card: Card | None, share: _Share) -> _Layer:
    """
    Return the bandwidth from the device's memory clock and bus width, if both are meaningful.
    """
    clock_hz, bus_bits = device.max_memory_clock_hz, device.memory_bus_bits
    if clock_hz is None or bus_bits is None or share.memory is None:
        return {}
    is_soc = device.compute_capability in _SOC_CAPABILITIES
    if is_soc or device.integrated or (card is not None and card.soc):
        return {}
    # The driver's memory clock is half the data rate, for HBM and GDDR alike.
    bytes_per_s = 2 * clock_hz * bus_bits / 8
    source = f"2 x {clock_hz / 1e6:g} MHz x {bus_bits} bit, from the driver"
    peak = Peak(value=bytes_per_s, label=SourceLabel.DETECTED, source=source)
    return {"dram": _scaled(peak, share.memory, share)}


def _printed(card: Card, device: Device, share: _Share) -> _Layer:
    layer: dict[str, Peak] = {}
    printed = card.figures.get("dram_gb_s")
    if printed is not None and share.memory is not None:
        peak = Peak(
            value=printed.value * 1e9, label=printed.label, source=printed.title
        )
        layer["dram"] = _scaled(peak, share.memory, share)
    # A power mode switches off multiprocessors of a SoC.
    is_cut = card.soc and device.sm_count not in {None, card.value("sm_count")}
    if share.compute is None or is_cut:
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
    Return the rates per clock that follow from a GPU's name, or {} if none do.

    The compute capability is not enough, because cut-down boards share it (H20 and H800
    with the H100).
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
    elif has_rates:
        # The chip does not compute this type, or its rate is not published.
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
    return {field: _unknown(why) for field in (*DTYPE_BYTES, *LEVELS)}


def _unknown(why: str) -> Peak:
    return Peak(value=None, label=SourceLabel.UNAVAILABLE, source=why)


def _scaled(peak: Peak, part: float, share: _Share) -> Peak:
    if not share.text or peak.value is None:
        return peak
    return replace(
        peak,
        value=peak.value * part,
        label=SourceLabel.ESTIMATED,
        source=f"{peak.source}, scaled to the slice {share.text}",
    )


def _share(device: Device, card: Card | None) -> _Share:
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


def _l2_bytes(device: Device, card: Card | None, share: _Share) -> int | None:
    """Return the size of the L2 [B] from the driver, else from the table, or None."""
    if device.l2_bytes is not None:
        return device.l2_bytes
    printed = None if card is None else card.value("l2_mib")
    if printed is None or share.memory is None:
        return None
    return int(printed * 2**20 * share.memory)


def _capability(device: Device) -> str:
    return ".".join(map(str, device.compute_capability or ()))


def _notes(device: Device, card: Card | None) -> list[str]:
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
