"""A scorecard, or the parity of two runtimes, as text, JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal

from pytest_gpuperf.compute.advice import LAUNCH_FRACTION
from pytest_gpuperf.compute.scorecard import REFERENCE
from pytest_gpuperf.model.codec import encode_scorecard, to_text
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.parity import MeasuredParity, ParityComparison
from pytest_gpuperf.model.reference_json import encode_parity
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import (
    Basis,
    Decision,
    InvariantResult,
    MeasuredScorecard,
    Recommendation,
    StepTime,
    TrainingScorecard,
)
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    column,
    line_width,
    markdown_table,
    text_table,
    wrapped,
)

# Enough places for the smallest float.
_MOST_PLACES = 340
# Largest log ratio shown. e to this power is still a float.
_MOST_LOG = 700.0


class _SheetTable(Frozen, frozen=True, kw_only=True):
    """
    One table.

    Attributes:
        columns: The columns. Their cells are foreign text.

        names: Headings of columns with names, which are code in Markdown.
    """

    columns: tuple[Column, ...]
    names: frozenset[str] = frozenset()


class _SheetItem(Frozen, frozen=True, kw_only=True):
    """
    One point of a list.

    Attributes:
        text: A sentence, which may be foreign text.

        name: The subject, or "" for none.

        strong: Whether to emphasize the point.
    """

    text: str
    name: str = ""
    strong: bool = False


class _SheetList(Frozen, frozen=True, kw_only=True):
    """
    A list under a heading.

    Attributes:
        heading: The heading.

        items: The points.
    """

    heading: str
    items: tuple[_SheetItem, ...]


class _Sheet(Frozen, frozen=True, kw_only=True):
    """
    A page. Empty parts are not shown.

    Attributes:
        title: The title.

        facts: Labels with values. The first value is strong.

        tables: The tables.

        listings: The lists.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[_SheetTable, ...] = ()
    listings: tuple[_SheetList, ...] = ()


def _sheet_text(sheet: _Sheet, *, width: int) -> str:
    """
    Return a page as text for a terminal.

    Args:
        sheet: The page.

        width: Characters of a line.
    """
    longest = max(len(label) for label, _ in sheet.facts)
    facts = [f"{label:{longest}}  {escape(fact)}" for label, fact in sheet.facts]
    blocks = [[escape(sheet.title)], facts]
    for table in sheet.tables:
        safe = [_mapped(column, escape) for column in table.columns]
        blocks.append(list(text_table(safe, width=width)))
    for listing in sheet.listings:
        lines = []
        for item in listing.items:
            text = f"{item.name}: {item.text}" if item.name else item.text
            lines += [w.text for w in wrapped(escape(text), width=width, depth=1)]
        blocks.append([listing.heading, *lines] if lines else [])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _sheet_markdown(sheet: _Sheet) -> str:
    """Return a page as Markdown, with markup in names and texts escaped."""
    (first, grade), *rest = sheet.facts
    facts = [(first, f"**{prose(grade)}**")]
    facts += [(label, prose(fact)) for label, fact in rest]
    columns = (
        Column(head="quantity", cells=tuple(label for label, _ in facts)),
        Column(head="value", cells=tuple(fact for _, fact in facts)),
    )
    blocks = [[f"## {prose(sheet.title)}"], list(markdown_table(columns))]
    for table in sheet.tables:
        safe = [
            _mapped(column, code if column.head in table.names else prose)
            for column in table.columns
        ]
        if any(column.cells for column in safe):
            blocks.append(list(markdown_table(safe)))
    for listing in sheet.listings:
        points = []
        for item in listing.items:
            text = prose(item.text)
            if item.name:
                text = f"{code(item.name)}: {text}"
            elif item.strong:
                text = f"**{text}**"
            points.append(f"- {text}")
        if points:
            blocks += [[f"### {prose(listing.heading)}"], points]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _mapped(column: Column, safe: Callable[[str], str]) -> Column:
    return replace(column, cells=tuple(safe(cell) for cell in column.cells))


def fixed(
    number: float, places: int, *, limits: Iterable[float] = (), percent: bool = False
) -> str:
    """
    Return a number with fixed decimals, or with more if the text would cross a limit.

    Args:
        number: The number. Infinity and NaN are written as words.

        places: Digits behind the point.

        limits: Numbers that the text must stay on the right side of.

        percent: Whether a fraction is shown in percent.

    Example:
        >>> fixed(0.125, 2), fixed(0.5999, 1, limits=[0.6], percent=True)
        ('0.12', '59.99 %')
    """
    sides = [(Decimal(repr(float(limit))), limit) for limit in limits]
    text = ""
    for more in range(places, _MOST_PLACES + 1):
        text = f"{number:.{more}%}" if percent else f"{number:.{more}f}"
        if not math.isfinite(number):
            break
        shown = Decimal(text.removesuffix("%"))
        if percent:
            shown = shown.scaleb(-2)
        if all(_side(shown, exact) == _side(number, limit) for exact, limit in sides):
            break
    return text.replace("%", " %")  # As everywhere in a report.


def _side(number: Decimal | float, limit: Decimal | float) -> int:
    return (number > limit) - (number < limit)


_NOT_KNOWN = "n/a"
_ABOVE_ONE = "above 1 ours is slower, or launches more"
_SHOWN_OPERATIONS = 10  # The rest is one row.
_BASES = {
    Basis.MEANS: "one value each, noise unknown",
    Basis.SESSIONS: "one value each",
}


def _advice_listing(recommendations: tuple[Recommendation, ...]) -> _SheetList:
    items = []
    for advice in recommendations:
        numbers = ", ".join(
            f"{name.replace('_', ' ')} {fixed(number, 3)}"
            for name, number in advice.evidence.items()
        )
        text = f"{advice.text} ({numbers})" if numbers else advice.text
        items.append(_SheetItem(name=advice.rule, text=text))
    return _SheetList(heading="Advice", items=tuple(items))


def _measured_sheet(card: MeasuredScorecard) -> _Sheet:
    limiter = card.bottleneck
    evidence = ", ".join(
        f"{e.name} {display.value(e.value, e.unit)}" for e in card.evidence
    )
    ends = card.layer_ratio_low, card.layer_ratio_median, card.layer_ratio_high
    ratios = " … ".join(fixed(end, 2) for end in ends if end is not None)
    shares = [(s.kind, s.ms, fixed(s.fraction, 1, percent=True)) for s in card.shares]
    facts = (
        ("grade", _NOT_KNOWN if card.grade is None else str(card.grade)),
        ("efficiency", _labelled(card, "efficiency")),
        ("bottleneck", _NOT_KNOWN if limiter is None else limiter.value),
        *((("evidence", evidence),) if evidence else ()),
        ("throughput", _number(card.throughput, 0, f" {card.unit}/s")),
        ("step time", _step_time(card.step)),
        ("backward / forward", _number(card.backward_forward_ratio, 2)),
        ("layer ratios", ratios or _NOT_KNOWN),
        ("bandwidth used", _labelled(card, "bandwidth_fraction")),
        ("arithmetic used", _labelled(card, "compute_fraction")),
        ("in phases", _percent(card.coverage, limits=[1])),
        *_device(card),
    )
    return _Sheet(
        title="Training scorecard, measured policy",
        facts=facts,
        tables=(_time_table("time in", shares, is_named=False), _operations(card)),
        listings=(
            _SheetList(
                heading="Against the baseline",
                items=tuple(map(_decision, card.decisions)),
            ),
            _SheetList(
                heading="Invariants",
                items=tuple(map(_invariant, card.invariants)),
            ),
            _advice_listing(card.recommendations),
            _SheetList(
                heading="Unknown",
                items=tuple(_SheetItem(text=note) for note in card.notes),
            ),
        ),
    )


def _labelled(card: MeasuredScorecard, name: str) -> str:
    label = card.sources.get(name, SourceLabel.MEASURED)
    suffix = "" if label is SourceLabel.MEASURED else f" ({label.value})"
    return f"{_percent(getattr(card, name), limits=[1])}{suffix}"


def _device(card: MeasuredScorecard) -> tuple[tuple[str, str], ...]:
    device = card.device
    if device is None:
        return ()
    parts = {
        "device busy": device.busy_ms,
        "idle, launching": device.launching_ms,
        "idle, waiting": device.waiting_ms,
    }
    return tuple((name, f"{fixed(ms, 2)} ms") for name, ms in parts.items())


def _invariant(invariant: InvariantResult) -> _SheetItem:
    outcome = invariant.outcome
    bounds = [bound for bound in (invariant.low, invariant.high) if bound is not None]
    value = invariant.value
    text = invariant.why if value is None else fixed(value, 3, limits=bounds)
    passed = outcome is Outcome.PASSED
    word = outcome.value if passed else outcome.value.upper()
    return _SheetItem(name=invariant.name, text=f"{word}; {text}", strong=not passed)


def _percent(number: float | None, limits: list[float]) -> str:
    if number is None:
        return _NOT_KNOWN
    return fixed(number, 1, limits=limits, percent=True)


def _number(number: float | None, places: int, unit: str = "") -> str:
    return _NOT_KNOWN if number is None else f"{fixed(number, places)}{unit}"


def _step_time(step: StepTime | None) -> str:
    if step is None:
        return _NOT_KNOWN
    if step.median_ms is None or step.p95_ms is None:
        return f"{fixed(step.mean_ms, 2)} ms (mean)"
    interval = ""
    if step.low_ms is not None and step.high_ms is not None:
        interval = f" ({fixed(step.low_ms, 2)} … {fixed(step.high_ms, 2)})"
    steps = display.plural(step.count, "step")
    return (
        f"{fixed(step.median_ms, 2)} ms{interval}, p95 {fixed(step.p95_ms, 2)} ms, "
        f"{steps}"
    )


def _operations(card: MeasuredScorecard) -> _SheetTable:
    shown = card.operations[:_SHOWN_OPERATIONS]
    rest = card.operations[_SHOWN_OPERATIONS:]
    rows = [(o.name, o.ms, o.fraction) for o in shown]
    if rest:
        left = sum(o.ms for o in rest), sum(o.fraction or 0 for o in rest)
        rows.append((f"{len(rest)} others", *left))
    return _time_table(
        "operation",
        [
            (name, ms, "" if share is None else fixed(share, 1, percent=True))
            for name, ms, share in rows
        ],
    )


def _time_table(
    head: str, rows: Sequence[tuple[str, float, str]], *, is_named: bool = True
) -> _SheetTable:
    """
    Return a table of times.

    Args:
        head: The heading of the labels.

        rows: Label, time [ms] and share of each row.

        is_named: Whether the labels are names, which may be long.
    """
    labels, times, shares = zip(*rows, strict=True) if rows else ((),) * 3
    return _SheetTable(
        columns=(
            Column(head=head, cells=labels, shrinks=is_named),
            column("ms", (fixed(ms, 2) for ms in times), right=True),
            column("share", shares, right=True),
        ),
        names=frozenset({head} if is_named else ()),
    )


def _decision(decision: Decision) -> _SheetItem:
    outcome = decision.outcome
    worse = outcome in {Outcome.REGRESSED, Outcome.UNMEASURED}
    parts = [outcome.value.upper() if worse else outcome.value]
    if decision.log_ratio:
        limits = [] if decision.tolerance is None else [decision.tolerance]
        size = math.expm1(min(abs(decision.log_ratio), _MOST_LOG))
        way = "worse" if decision.log_ratio > 0 else "better"
        parts.append(f"{fixed(size, 1, limits=limits, percent=True)} {way}")
    if decision.now is not None and decision.base is not None:
        parts.append(f"{fixed(decision.now, 2)}, was {fixed(decision.base, 2)}")
    if decision.log_ratio is not None and decision.basis in _BASES:
        parts.append(_BASES[decision.basis])
    if decision.noise_fraction is not None:
        noise = fixed(decision.noise_fraction, 1, percent=True)
        parts.append(f"spread of sessions {noise}")
    parts += [decision.why] if decision.why else []
    parts += [f"also {metric}" for metric in decision.shared_by]
    return _SheetItem(name=decision.metric, text="; ".join(parts), strong=worse)


def scorecard_bytes(
    scorecard: TrainingScorecard | MeasuredScorecard,
    form: str,
    *,
    width: int | None = None,
) -> bytes:
    """
    Return a scorecard as printed output [UTF-8].

    Args:
        scorecard: The scorecard, of either policy.

        form: text, json or markdown. A number that is not finite is null in JSON.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    if form == "json":
        if isinstance(scorecard, TrainingScorecard):
            return f"{to_text(encode_scorecard(scorecard))}\n".encode()
        return f"{to_text(scorecard)}\n".encode()
    if isinstance(scorecard, MeasuredScorecard):
        sheet = _measured_sheet(scorecard)
    else:
        sheet = _training(scorecard)
    if form == "markdown":
        return _sheet_markdown(sheet).encode()
    return _sheet_text(sheet, width=line_width(width)).encode()


def _training(card: TrainingScorecard) -> _Sheet:
    bands, least = REFERENCE.bands, REFERENCE.bottleneck.compute_utilization
    limits = (bands.a, bands.b, bands.c, bands.d, least)
    peak = card.peak_throughput_tok_s
    of_peak = "" if peak is None else f" of {fixed(peak, 0)}"
    efficiency = fixed(card.efficiency, 1, limits=limits, percent=True)
    facts = [
        ("grade", str(card.grade) if card.impossible is None else _NOT_KNOWN),
        ("efficiency", efficiency if card.impossible is None else "impossible"),
        ("bottleneck", card.bottleneck.value),
        ("throughput", f"{fixed(card.throughput_tok_s, 0)}{of_peak} tok/s"),
        ("step time", f"{fixed(card.step_time_ms, 1)} ms"),
        ("backward / forward", fixed(card.forward_backward_ratio, 2, limits=[0, 1])),
        ("wall coverage", fixed(card.wall_coverage, 1, limits=[0, 1], percent=True)),
    ]
    spots = [(s.name, s.ms, f"{fixed(s.pct, 1)} %") for s in card.hotspot_ops]
    tolerances = (REFERENCE.warning, REFERENCE.critical, REFERENCE.coverage)
    signed = [sign * limit for limit in tolerances for sign in (1, -1)]
    worse = []
    for r in card.regressions:
        change = fixed(r.delta, 1, limits=signed, percent=True)
        sign = "+" if r.delta > 0 else ""
        # The change of the coverage is a difference.
        points = " of the wall time" if r.metric == "wall_coverage" else ""
        text = f"{sign}{change}{points}, {r.severity}"
        worse.append(_SheetItem(name=r.metric, text=text, strong=True))
    return _Sheet(
        title="Training scorecard",
        facts=(*facts, *_shares(card)),
        tables=(_time_table("operation", spots), _layers(card)),
        listings=(
            _SheetList(
                heading="Impossible",
                items=tuple(_SheetItem(text=t) for t in (card.impossible,) if t),
            ),
            _SheetList(heading="Regressions", items=tuple(worse)),
            _advice_listing(card.recommendations),
        ),
    )


def _shares(card: TrainingScorecard) -> Iterator[tuple[str, str]]:
    """Yield the fractions that decided the bottleneck. A scorecard from a file has none."""
    copies, rest = card.transfer_fraction, card.launch_fraction
    limits = REFERENCE.bottleneck
    if copies is not None:
        most = limits.transfer_fraction
        yield "in copies", fixed(copies, 1, limits=[most], percent=True)
    if rest is not None:
        most = limits.launch_fraction
        yield (
            "in no phase",
            fixed(rest, 1, limits=[most, LAUNCH_FRACTION], percent=True),
        )


def _layers(card: TrainingScorecard) -> _SheetTable:
    layers = card.per_layer_summary
    return _SheetTable(
        columns=(
            column("layer", (str(s.layer) for s in layers), right=True),
            column("forward ms", (fixed(s.fwd_ms, 2) for s in layers), right=True),
            column("backward ms", (fixed(s.bwd_ms, 2) for s in layers), right=True),
            column(
                "ratio", (fixed(s.ratio, 2, limits=[1]) for s in layers), right=True
            ),
            Column(
                head="longest operation",
                cells=tuple(s.top_op for s in layers),
                shrinks=True,
            ),
            column(
                "of the layer",
                (f"{fixed(s.top_op_pct, 1)} %" if s.top_op_pct else "" for s in layers),
                right=True,
            ),
        ),
        names=frozenset({"longest operation"}),
    )


def parity_bytes(
    comparison: ParityComparison | MeasuredParity,
    form: str,
    *,
    width: int | None = None,
) -> bytes:
    """
    Return the comparison of two runtimes as printed output [UTF-8].

    Args:
        comparison: The comparison, by either policy.

        form: text, json or markdown. A number that is not finite is null in JSON.

        width: Characters of a line of text, or None for the width of the terminal, 100 without a
            terminal.
    """
    if form == "json":
        if isinstance(comparison, ParityComparison):
            return f"{to_text(encode_parity(comparison))}\n".encode()
        return f"{to_text(comparison)}\n".encode()
    if isinstance(comparison, ParityComparison):
        gaps = [(g.op, g.ours_ms, g.reference_ms, g.ratio) for g in comparison.top_gaps]
        sheet = _Sheet(
            title=_runtimes(comparison),
            facts=(
                ("parity", "yes" if comparison.parity_achieved else "no"),
                ("throughput ratio", fixed(comparison.throughput_ratio, 2, limits=[1])),
                ("launch ratio", fixed(comparison.launch_ratio, 2, limits=[1])),
            ),
            tables=(_gap_table(gaps),),
            listings=(
                _SheetList(heading="Ratios", items=(_SheetItem(text=_ABOVE_ONE),)),
            ),
        )
    else:
        sheet = _measured_parity(comparison)
    if form == "markdown":
        return _sheet_markdown(sheet).encode()
    return _sheet_text(sheet, width=line_width(width)).encode()


def _measured_parity(comparison: MeasuredParity) -> _Sheet:
    answers = {True: "yes", False: "no", None: "unknown"}
    gaps = [(g.op, g.ours_ms, g.reference_ms, g.ratio) for g in comparison.gaps]
    alone = (
        ("Only in ours", comparison.ours_only),
        ("Only in the reference", comparison.reference_only),
    )
    return _Sheet(
        title=f"{_runtimes(comparison)}, measured policy",
        facts=(
            ("parity", answers[comparison.achieved]),
            ("throughput ratio", _number(comparison.throughput_ratio, 2)),
            ("time of shared operations", _number(comparison.matched_ratio, 2)),
            ("launch ratio", _number(comparison.launch_ratio, 2)),
            ("shared, of ours", _percent(comparison.ours_overlap, limits=[1])),
            (
                "shared, of the reference",
                _percent(comparison.reference_overlap, limits=[1]),
            ),
        ),
        tables=(_gap_table(gaps),),
        listings=(
            _SheetList(
                heading="Why",
                items=tuple(_SheetItem(text=reason) for reason in comparison.reasons),
            ),
            *(
                _SheetList(
                    heading=heading,
                    items=tuple(
                        _SheetItem(name=name, text=f"{fixed(ms, 2)} ms")
                        for name, ms in operations.items()
                    ),
                )
                for heading, operations in alone
            ),
            _SheetList(heading="Ratios", items=(_SheetItem(text=_ABOVE_ONE),)),
        ),
    )


def _runtimes(comparison: ParityComparison | MeasuredParity) -> str:
    return f"Parity of {comparison.ours_runtime} with {comparison.reference_runtime}"


def _gap_table(gaps: Sequence[tuple[str, float, float, float | None]]) -> _SheetTable:
    """Return the table of operations in both runtimes: name, both times [ms] and ratio."""
    names, ours, reference, ratios = zip(*gaps, strict=True) if gaps else ((),) * 4
    return _SheetTable(
        columns=(
            Column(head="operation", cells=names, shrinks=True),
            column("ours ms", (fixed(n, 2) for n in ours), right=True),
            column("reference ms", (fixed(n, 2) for n in reference), right=True),
            column("ratio", (_number(n, 2) for n in ratios), right=True),
        ),
        names=frozenset({"operation"}),
    )
