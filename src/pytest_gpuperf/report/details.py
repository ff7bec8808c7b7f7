"""One launch of a captured report in detail: what ncu's Details page shows first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.model.counters import CounterGap, LaunchDetails
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    evidence_text,
    limiter_text,
    plain_name,
    roof_text,
)
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    INDENT,
    Line,
    Style,
    line_width,
    text_bytes,
    wrapped,
)

__all__ = ["DetailedLaunch", "details_bytes"]

# ours: a boost clock varies by less, and a base clock is a tenth and more below it
_HELD_CLOCK = 0.95
_LABEL_WIDTH = 11  # of the longest label


class DetailedLaunch(Frozen, frozen=True, kw_only=True):
    """
    A launch with what names it.

    Attributes:
        device: The name of its GPU; "": not in the report.

        name: The kernel's whole name.

        index: Its number in its range.

        details: What the report has of it.
    """

    device: str
    name: str
    index: int
    details: LaunchDetails


def details_bytes(
    launches: Sequence[DetailedLaunch],
    form: str,
    *,
    remarks: Sequence[str] = (),
    width: int | None = None,
) -> bytes:
    """
    Return launches in detail as they are printed [UTF-8].

    Args:
        launches: The launches, >= 1.

        form: text or markdown.

        remarks: What stands below them, a sentence each.

        width: Characters of a line of text; None: the terminal's.
    """
    if form == "markdown":
        lines = [*_markdown(launches), *(f"\n{prose(remark)}" for remark in remarks)]
        return ("\n".join(lines) + "\n").encode()
    return text_bytes(_text(launches, remarks, line_width(width)))


def _text(
    launches: Sequence[DetailedLaunch], remarks: Sequence[str], width: int
) -> Iterator[Line]:
    """Yield launches as lines of a terminal."""
    device = ""
    for launch in launches:
        if launch.device != device:
            device = launch.device
            yield Line(escape(device), Style.TITLE)
        name = f"{escape(plain_name(launch.name))} (launch {launch.index})"
        yield from wrapped(name, width=width, style=Style.TITLE)
        for label, text in _facts(launch.details):
            padded = f"{label:{_LABEL_WIDTH}} "
            first, *rest = wrapped(text, width=width - len(INDENT) - len(padded))
            yield Line(f"{INDENT}{padded}{first}")
            for line in rest:
                yield Line(f"{INDENT}{' ' * len(padded)}{line.text.strip()}")
    for remark in remarks:
        yield from wrapped(escape(remark), width=width)


def _markdown(launches: Sequence[DetailedLaunch]) -> Iterator[str]:
    """Yield launches as lines of Markdown."""
    device = ""
    for launch in launches:
        if launch.device != device:
            device = launch.device
            yield from (f"### {prose(device)}", "")
        yield from (f"{code(plain_name(launch.name))} (launch {launch.index})", "")
        for label, text in _facts(launch.details):
            yield f"- **{label}** {prose(text)}"
        yield ""


def _facts(details: LaunchDetails) -> Iterator[tuple[str, str]]:
    """Yield what is known of a launch: a label and a text each."""
    facts = (
        ("time", _time(details)),
        ("clocks", _clocks(details)),
        ("launch", _launch(details)),
        ("occupancy", _occupancy(details)),
        ("throughput", _throughput(details)),
        ("memory", _memory(details)),
        *((f"{dtype} roof", text) for dtype, text in _rooflines(details)),
        ("limiter", _limiter(details)),
        ("stalls", _numbers((s.name, s.value) for s in details.stalls)),
        ("waiting at", escape(", ".join(details.sources))),
        *(("ncu's rule", escape(rule)) for rule in details.rules),
    )
    return ((label, text) for label, text in facts if text)


def _time(details: LaunchDetails) -> str:
    """Return the time of a launch."""
    time_s = details.analysis.duration_s
    return "" if time_s is None else display.value(time_s, "s")


def _clocks(details: LaunchDetails) -> str:
    """Return the clocks, and whether the one of the SMs was held down."""
    sm_hz, dram_hz = (
        details.values.get(name) for name in ("sm_clock_hz", "dram_clock_hz")
    )
    rated_hz = details.rated_clock_hz
    parts = [
        f"{name} {display.value(hertz, 'Hz')}"
        for name, hertz in (("SM", sm_hz), ("DRAM", dram_hz))
        if hertz
    ]
    if sm_hz is None or rated_hz is None:
        return ", ".join(parts)
    parts[0] += f" of {display.value(rated_hz, 'Hz')} rated"
    text = ", ".join(parts)
    if sm_hz < _HELD_CLOCK * rated_hz:
        text += (
            ": below its boost clock, as where ncu locks the base clock; outside ncu "
            "the time differs"
        )
    return text


def _launch(details: LaunchDetails) -> str:
    """Return how a kernel was launched."""
    derived = details.derived
    parts = [
        f"{name} {' x '.join(map(str, extent))}"
        for name, extent in (("grid", details.grid), ("block", details.block))
        if extent is not None
    ]
    if "registers" in derived:
        parts.append(f"{display.value(derived['registers'], 'count')} registers")
    if "shared_bytes" in derived:
        parts.append(f"{display.value(derived['shared_bytes'], 'bytes')} shared memory")
    if "waves" in derived:
        parts.append(f"{display.value(derived['waves'], 'count')} waves")
    return ", ".join(parts)


def _occupancy(details: LaunchDetails) -> str:
    """Return the achieved and the possible occupancy, and what allows no more."""
    derived, occupancy = details.derived, details.occupancy
    parts = [
        f"{word} {display.value(derived[name], 'fraction')}"
        for word, name in (
            ("achieved", "occupancy.achieved"),
            ("possible", "occupancy.theoretical"),
        )
        if name in derived
    ]
    text = ", ".join(parts)
    if occupancy is not None and occupancy.fraction < 1:
        blocks = display.plural(occupancy.active_blocks, "block")
        text += f" by {occupancy.limiter}: {blocks} on an SM"
    return text


def _throughput(details: LaunchDetails) -> str:
    """Return how busy the parts of the GPU were, of what they sustain."""
    values, derived = details.values, details.derived
    l1 = values.get(
        "l1_throughput_fraction", values.get("l1_active_throughput_fraction")
    )
    return _numbers(
        (
            ("compute", values.get("sm_throughput_fraction")),
            ("memory", values.get("memory_throughput_fraction")),
            ("DRAM", derived.get("dram.fraction")),
            ("L2", values.get("l2_throughput_fraction")),
            ("L1", l1),
            ("tensor", derived.get("tensor.fraction")),
        )
    )


def _memory(details: LaunchDetails) -> str:
    """Return the traffic of DRAM, the hit rates and what was needless."""
    values, derived = details.values, details.derived
    moved, time_s = derived.get("dram.bytes"), details.analysis.duration_s
    parts = []
    if moved is not None:
        rate = f" at {display.value(moved / time_s, 'bytes/s')}" if time_s else ""
        parts.append(f"{display.value(moved, 'bytes')} of DRAM{rate}")
    shares = (
        ("L1 hits", values.get("l1_hit_fraction")),
        ("L2 hits", derived.get("l2.hit_fraction")),
        ("uncoalesced", derived.get("global.uncoalesced_fraction")),
        ("bank conflicts", derived.get("shared.bank_conflict_fraction")),
    )
    return ", ".join(filter(None, (*parts, _numbers(shares))))


def _rooflines(details: LaunchDetails) -> Iterator[tuple[str, str]]:
    """Yield where a launch stands under the report's own roofs, by data type."""
    for dtype, roofline in details.rooflines.items():
        rate = display.value(roofline.achieved_flop_per_s, "FLOP/s")
        roof = display.value(roofline.attainable_flop_per_s, "FLOP/s")
        share = display.value(roofline.fraction, "fraction")
        intensity, ridge = (
            f"{number:.3g}"
            for number in (
                roofline.intensity_flop_per_byte,
                roofline.ridge_flop_per_byte,
            )
        )
        text = f"{rate}, {share} of the {roof} at {intensity} FLOP/B of DRAM "
        yield dtype, f"{text}({roofline.bound} side; ridge at {ridge})"


def _limiter(details: LaunchDetails) -> str:
    """Return what limits a launch with its numbers, or why that is not known."""
    limiter = details.analysis.limiter
    if isinstance(limiter, CounterGap):
        return f"n/a: {limiter.reason}"
    return f"{limiter_text(limiter)} ({evidence_text(limiter)})"


def _numbers(pairs: Iterable[tuple[str, float | None]]) -> str:
    """Return the shares that are known, each with its name."""
    return ", ".join(
        f"{roof_text(name)} {display.value(share, 'fraction')}"
        for name, share in pairs
        if share is not None
    )
