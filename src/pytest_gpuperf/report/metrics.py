"""The metrics of chips and the required passes, in every form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.model.counters import (
    ChipEntry,
    MetricEntry,
    NameCheck,
    PassCost,
    ReplayGroup,
)
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    column,
    document,
    json_bytes,
    line_width,
    markdown_table,
    text_bytes,
    text_table,
    wrapped,
)


def chip_bytes(chips: Sequence[ChipEntry], form: str) -> bytes:
    """
    Return the chips as printed output [UTF-8].

    Args:
        chips: The chips.

        form: text, json or markdown. Text is as wide as the terminal.
    """
    if form == "json":
        entries = [
            {
                "name": chip.name,
                "capability": _capability(chip),
                "counters": chip.counter_count,
                "ratios": chip.ratio_count,
                "throughputs": chip.throughput_count,
            }
            for chip in chips
        ]
        return json_bytes(document("metrics chips", {"chips": entries}))
    columns = (
        column("chip", (chip.name for chip in chips)),
        column("capability", (_capability(chip) or "" for chip in chips), blank="-"),
        _numbers("counters", [chip.counter_count for chip in chips]),
        _numbers("ratios", [chip.ratio_count for chip in chips]),
        _numbers("throughputs", [chip.throughput_count for chip in chips]),
    )
    return _table(columns, form)


def entry_bytes(chip: str, entries: Sequence[MetricEntry], form: str) -> bytes:
    """
    Return metrics as a list [UTF-8], a line per metric.

    The forms are those of `chip_bytes`.
    """
    if form == "json":
        plain = {"chip": chip, "metrics": [_listed(entry) for entry in entries]}
        return json_bytes(document("metrics list", plain))
    columns = (
        column("metric", (escape(entry.base) for entry in entries)),
        column("kind", (entry.kind for entry in entries)),
        column("unit", (escape(entry.unit) for entry in entries)),
        column("description", (escape(entry.description) for entry in entries)),
    )
    return _table(columns, form)


def described_bytes(chip: str, entries: Sequence[MetricEntry], form: str) -> bytes:
    """
    Return metrics with endings, parts and passes [UTF-8].

    The forms are those of `chip_bytes`.
    """
    if form == "json":
        metrics = [
            {
                **_listed(entry),
                "endings": list(entry.endings),
                "made_of": list(entry.made_of),
                "passes": entry.passes,
            }
            for entry in entries
        ]
        plain = {"chip": chip, "metrics": metrics}
        return json_bytes(document("metrics describe", plain))
    if form == "markdown":
        return text_bytes(
            line for entry in entries for line in _described(entry, "- **{}**:")
        )
    return text_bytes(
        line.text
        for entry in entries
        for row in _described(entry, "{}:")
        for line in wrapped(row, width=line_width())
    )


def check_bytes(chip: str, checks: Sequence[NameCheck], form: str) -> bytes:
    """
    Return the check of metric names [UTF-8], a line per name.

    The forms are those of `chip_bytes`.
    """
    if form == "json":
        names = [
            {
                "name": check.name,
                "known": check.known,
                "kind": check.kind or None,
                "note": check.note,
                "suggestions": list(check.suggestions),
            }
            for check in checks
        ]
        all_known = all(check.known for check in checks)
        plain = {"chip": chip, "known": all_known, "names": names}
        return json_bytes(document("metrics check", plain))
    if form == "markdown":
        columns = (
            column("name", (escape(check.name) for check in checks)),
            column("is", (_kind(check) for check in checks)),
            column("note", (escape(check.explanation) for check in checks)),
        )
        return _table(columns, form)
    lines: list[Line] = []
    for check in checks:
        note = f": {escape(check.explanation)}" if check.note else ""
        text = f"{escape(check.name)}: {_kind(check)}{note}"
        lines += wrapped(text, width=line_width())
    return text_bytes(lines)


def cost_bytes(cost: PassCost, form: str) -> bytes:
    """
    Return the passes that metrics need together [UTF-8].

    The forms are those of `chip_bytes`.
    """
    if form == "json":
        plain = {
            "chip": cost.chip,
            "passes": cost.passes,
            "replays": cost.replays,
            "note": cost.note,
            "alone": dict(cost.alone),
            "refused": dict(cost.refused),
        }
        return json_bytes(document("metrics passes", plain))
    columns = (
        column("metric", (escape(name) for name in cost.names)),
        column(
            "passes alone",
            (
                "not for a kernel"
                if name in cost.refused
                else str(cost.alone.get(name, "not counted"))
                for name in cost.names
            ),
            right=True,
        ),
    )
    room = line_width()
    head = f"{cost.chip}: {_passes(cost)}"
    notes = [
        f"{escape(name)}: {escape(reason)}" for name, reason in cost.refused.items()
    ]
    notes += [cost.note]
    if form == "markdown":
        return text_bytes([head, "", *markdown_table(columns), "", *notes])
    lines = [line.text for text in notes for line in wrapped(text, width=room)]
    return text_bytes([head, *text_table(columns, width=room), *lines])


def replay_sentence(chip: str, groups: Sequence[ReplayGroup]) -> str:
    """
    Return the passes that a suite needs, as a sentence.

    Args:
        chip: The chip.

        groups: The tests, in groups that are collected together.
    """
    tests = sum(len(group.tests) for group in groups)
    names = {name for group in groups for name in group.cost.names}
    counted = f"{plural(len(names), 'counter')} of {plural(tests, 'test')}"
    passes = "; ".join(
        f"{plural(len(group.tests), 'test')} in {_passes(group.cost)}"
        for group in groups
    )
    return (
        f"gpuperf: {chip} counts {counted} in {plural(len(groups), 'group')}: {passes}"
    )


def _described(entry: MetricEntry, head: str) -> Iterator[str]:
    yield f"{head.format(escape(entry.name))} {escape(entry.description)}"
    unit = f", in {escape(entry.unit)}" if entry.unit else ""
    yield f"  a {entry.kind} of {escape(entry.hardware_unit)}{unit}"
    alone = (
        "not counted for a kernel"
        if entry.passes is None
        else f"{plural(entry.passes, 'pass', 'passes')} alone"
    )
    yield f"  {alone}"
    if entry.made_of:
        yield f"  the largest of {', '.join(map(escape, entry.made_of))}"
    # Most metrics have all endings with every roll-up, which is said shorter.
    endings = " ".join(entry.endings)
    pairs = [ending[1:].partition(".") for ending in entry.endings]
    rollups = dict.fromkeys(rollup for rollup, _, _ in pairs)
    rest = dict.fromkeys(rest for _, _, rest in pairs)
    if len(rest) != 1 and len(rollups) * len(rest) == len(pairs):
        more = ", alone or with" if "" in rest else ", with"
        listed = " ".join(f".{ending}" for ending in rest if ending)
        every = " ".join(f".{rollup}" for rollup in rollups)
        endings = f"{every}{more} one of {listed}"
    yield f"  endings: {endings}"


def _kind(check: NameCheck) -> str:
    if not check.known:
        return "not a counter" if check.kind == "gpuperf" else "unknown"
    return {"ncu": "computed by Nsight Compute", "base": "without an ending"}.get(
        check.kind, check.kind
    )


def _passes(cost: PassCost) -> str:
    passes = plural(cost.passes, "pass", "passes")
    if cost.replays is None:
        return f"{passes} and those that Nsight Compute adds"
    runs = plural(cost.replays, "run")
    return f"{passes} (about {runs} of each launch under Nsight Compute)"


def _capability(entry: ChipEntry) -> str | None:
    pair = entry.capability
    return None if pair is None else f"sm_{pair[0]}{pair[1]}"


def _listed(entry: MetricEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "base": entry.base,
        "kind": entry.kind,
        "unit": entry.unit or None,
        "hardware_unit": entry.hardware_unit,
        "description": entry.description,
    }


def _numbers(head: str, values: Sequence[int]) -> Column:
    return column(head, map(str, values), right=True)


def _table(columns: Sequence[Column], form: str) -> bytes:
    if form == "markdown":
        return text_bytes(markdown_table(columns))
    return text_bytes(text_table(columns, width=line_width()))
