"""Scorecards of training steps as people read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from pytest_gpuperf.compute.advice import LAUNCH_FRACTION
from pytest_gpuperf.compute.scorecard import REFERENCE, ReferencePolicy
from pytest_gpuperf.model.measured_scorecard import MeasuredScorecard
from pytest_gpuperf.model.scorecard import TrainingScorecard
from pytest_gpuperf.report.lines import Column
from pytest_gpuperf.report.measured_scorecard import advice_listing, measured_sheet
from pytest_gpuperf.report.sheet import (
    Item,
    Listing,
    Sheet,
    Table,
    fixed,
    sheet_markdown,
    sheet_text,
)

__all__ = ["scorecard_bytes", "scorecard_sheet"]


def scorecard_bytes(
    scorecard: TrainingScorecard | MeasuredScorecard,
    form: str,
    *,
    policy: ReferencePolicy = REFERENCE,
    width: int | None = None,
) -> bytes:
    """
    Return a scorecard as it is printed [UTF-8].

    Args:
        scorecard: The scorecard, of either policy.

        form: text, json or markdown. A number that is not finite is null in JSON.

        policy: The limits that no printed number may seem to pass.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "json":
        from pytest_gpuperf.model.codec import encode_scorecard, to_text

        if isinstance(scorecard, TrainingScorecard):
            return f"{to_text(encode_scorecard(scorecard))}\n".encode()
        return f"{to_text(scorecard)}\n".encode()
    sheet = scorecard_sheet(scorecard, policy)
    if form == "markdown":
        return sheet_markdown(sheet).encode()
    columns = shutil.get_terminal_size((100, 24)).columns
    return sheet_text(sheet, width=width or columns).encode()


def scorecard_sheet(
    scorecard: TrainingScorecard | MeasuredScorecard,
    policy: ReferencePolicy = REFERENCE,
) -> Sheet:
    """Return a scorecard as a page."""
    if isinstance(scorecard, MeasuredScorecard):
        return measured_sheet(scorecard)
    return _training(scorecard, policy)


def _training(card: TrainingScorecard, policy: ReferencePolicy) -> Sheet:
    """Return a scorecard by the rules in the wild as a page."""
    bands = policy.bands
    limits = (bands.a, bands.b, bands.c, bands.d, policy.bottleneck.compute_utilization)
    peak = card.peak_throughput_tok_s
    of_peak = "" if peak is None else f" of {fixed(peak, 0)}"
    facts = [
        ("grade", str(card.grade)),
        ("efficiency", fixed(card.efficiency, 1, limits=limits, percent=True)),
        ("bottleneck", card.bottleneck.value),
        ("throughput", f"{fixed(card.throughput_tok_s, 0)}{of_peak} tok/s"),
        ("step time", f"{fixed(card.step_time_ms, 1)} ms"),
        ("backward / forward", fixed(card.forward_backward_ratio, 2, limits=[0, 1])),
        ("wall coverage", fixed(card.wall_coverage, 1, limits=[0, 1], percent=True)),
    ]
    worse = tuple(
        Item(
            name=each.metric,
            text=f"{_change(each.delta, each.metric, policy)}, {each.severity}",
            strong=True,
        )
        for each in card.regressions
    )
    return Sheet(
        title="Training scorecard",
        facts=(*facts, *_shares(card, policy)),
        tables=(_hotspots(card), _layers(card)),
        listings=(
            Listing(heading="Regressions", items=worse),
            advice_listing(card.recommendations),
        ),
    )


def _shares(
    card: TrainingScorecard, policy: ReferencePolicy
) -> Iterator[tuple[str, str]]:
    """Yield the shares that chose the bottleneck; a file does not have them."""
    copies, rest = card.transfer_fraction, card.launch_fraction
    limits = policy.bottleneck
    if copies is not None:
        most = limits.transfer_fraction
        yield "in copies", fixed(copies, 1, limits=[most], percent=True)
    if rest is not None:
        most = limits.launch_fraction
        yield (
            "in no phase",
            fixed(rest, 1, limits=[most, LAUNCH_FRACTION], percent=True),
        )


def _change(delta: float, metric: str, policy: ReferencePolicy) -> str:
    """Return a change with its sign; that of the coverage is a difference."""
    limits = (policy.warning, policy.critical, policy.coverage)
    both = [sign * limit for limit in limits for sign in (1, -1)]
    text = fixed(delta, 1, limits=both, percent=True)
    points = " of the wall time" if metric == "wall_coverage" else ""
    return f"{'+' if delta > 0 else ''}{text}{points}"


def _hotspots(card: TrainingScorecard) -> Table:
    """Return the longest operations as a table."""
    spots = card.hotspot_ops
    return Table(
        columns=(
            Column(head="operation", cells=tuple(s.name for s in spots), shrinks=True),
            Column(head="ms", cells=tuple(fixed(s.ms, 2) for s in spots), right=True),
            Column(
                head="share",
                cells=tuple(f"{fixed(s.pct, 1)} %" for s in spots),
                right=True,
            ),
        ),
        names=frozenset({"operation"}),
    )


def _layers(card: TrainingScorecard) -> Table:
    """Return the layers as a table."""
    layers = card.per_layer_summary
    return Table(
        columns=(
            Column(head="layer", cells=tuple(str(s.layer) for s in layers), right=True),
            Column(
                head="forward ms",
                cells=tuple(fixed(s.fwd_ms, 2) for s in layers),
                right=True,
            ),
            Column(
                head="backward ms",
                cells=tuple(fixed(s.bwd_ms, 2) for s in layers),
                right=True,
            ),
            Column(
                head="ratio",
                cells=tuple(fixed(s.ratio, 2, limits=[1]) for s in layers),
                right=True,
            ),
            Column(
                head="longest operation",
                cells=tuple(s.top_op for s in layers),
                shrinks=True,
            ),
            Column(
                head="of the layer",
                cells=tuple(
                    f"{fixed(s.top_op_pct, 1)} %" if s.top_op_pct else ""
                    for s in layers
                ),
                right=True,
            ),
        ),
        names=frozenset({"longest operation"}),
    )
