"""What a run says in the terminal; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.model.device import Device
from pytest_gpuperf.model.run import Header, Run
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.assertion import assert_lines, estimate_lines
from pytest_gpuperf.report.explanation import (
    explanation,
    joint_explanation,
    longrepr_lines,
    longrepr_text,
)
from pytest_gpuperf.report.lines import STYLES, Line, Style, wrapped
from pytest_gpuperf.report.rows import Row, columns, names, rows
from pytest_gpuperf.report.tables import shorten, text_table
from pytest_gpuperf.report.tally import PRECEDENCE, Tally, tally, worst

__all__ = [
    "EXPLAINED",
    "Line",
    "Style",
    "Tally",
    "assert_lines",
    "estimate_lines",
    "explanation_lines",
    "header_lines",
    "judged_line",
    "longrepr_lines",
    "longrepr_text",
    "run_lines",
    "summary",
    "table_lines",
    "tally",
    "title",
    "worst",
]

# which verdicts get a block of their own
EXPLAINED = frozenset(
    {Outcome.FAILED, Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE}
)

_WIDTH = 100
_MANY_ROWS = 40  # a longer table hides what matters
_MANY_ALIKE = 3  # more verdicts of one reason share a block
_LOUD = frozenset({Outcome.FAILED, Outcome.REGRESSED})
_QUIET = frozenset({Outcome.UNCHANGED, Outcome.PASSED, None})
_RULES = 4  # characters of the rules that pytest writes around the title
_LEAST_FACT = 12  # of a shortened fact in the title: less of it says nothing
_SHOWN_REASONS = 2  # of one outcome in the last line; more are counted
_JUDGED_ORDER = ("failed", "regressed", "improved", "unchanged", "passed")
_OPEN_ORDER = ("inconclusive", "unmeasured", "incomparable", "new")


def run_lines(
    run: Run, *, commands: bool = True, width: int = _WIDTH, verbose: bool = False
) -> Iterator[Line]:
    """
    Yield all that a run says: header, table, explanations, how much was judged.

    Args:
        run: The run, judged.

        commands: Whether a block says how to reproduce and accept what it shows.

        width: Characters of a line.

        verbose: Whether to say what is usually left out.
    """
    yield Line(title(run, width=width), Style.TITLE)
    yield from summary(run, commands=commands, width=width, verbose=verbose)


def title(run: Run, *, width: int = _WIDTH) -> str:
    """Return the head of a run's section: what it was measured on and with."""
    return next(header_lines(run.header, device=_device(run), width=width)).text


def summary(
    run: Run, *, commands: bool = True, width: int = _WIDTH, verbose: bool = False
) -> Iterator[Line]:
    """Yield all that a run says below its title; the arguments are `run_lines`'."""
    head = header_lines(run.header, device=_device(run), width=width, verbose=verbose)
    yield from itertools.islice(head, 1, None)
    yield from table_lines(run, width=width, verbose=verbose)
    yield from explanation_lines(run, commands=commands, width=width)
    yield judged_line(run)


def header_lines(
    header: Header,
    *,
    device: Device | None = None,
    width: int = _WIDTH,
    verbose: bool = False,
) -> Iterator[Line]:
    """
    Yield what was measured on and with; the first line is the section's title.

    Args:
        header: The run's header.

        device: The GPU that was used; None: none was.

        width: Characters of a line.

        verbose: Whether every collector that was not used leaves its sentence.
    """
    facts = _with_gpu(header, device) if device else _without_gpu(header)
    if "gpuperf_disable" in header.options:
        facts = ("disabled", *facts)
    known = [display.escape(fact) for fact in facts if fact]
    yield Line(_title(known, width - _RULES), Style.TITLE)
    for sentence in header.sentences if verbose else ():
        text = display.escape(sentence)
        yield from wrapped(text, width=width, depth=1, style=Style.FAINT)


def table_lines(
    run: Run, *, width: int = _WIDTH, verbose: bool = False
) -> Iterator[Line]:
    """
    Yield the table: a line for each measurement, below it what has no column.

    Args:
        run: The run, judged.

        width: Characters of a line; test names are shortened, then columns dropped.

        verbose: Whether a long table shows what passed, and rows show all metrics.
    """
    every = rows(run)
    shown = [row for row in every if row.outcome not in _QUIET]
    if verbose or len(every) <= _MANY_ROWS:
        shown = list(every)
    called = names(row.key for row in every)
    heads, *lines = text_table(columns(shown, called), width=width) or ("",)
    if shown:
        yield Line(heads, Style.FAINT)
    for row, text in zip(shown, lines, strict=True):
        style = Style.PLAIN if row.outcome is None else STYLES[row.outcome]
        yield Line(text, style)
        yield from _below(row, width, verbose=verbose)
    if len(shown) < len(every):
        hidden = display.plural(len(every) - len(shown), "row")
        yield Line(f"{hidden} passed or unchanged, shown with -v", Style.FAINT)


def explanation_lines(
    run: Run,
    *,
    outcomes: frozenset[Outcome] = EXPLAINED,
    commands: bool = True,
    width: int = _WIDTH,
) -> Iterator[Line]:
    """
    Yield a block for each verdict that needs one, the gravest last: nearest to the prompt.

    Failures have a block each; many others that share their reason have one together.

    Args:
        run: The run, judged.

        outcomes: Which verdicts get a block.

        commands: Whether a block says how to reproduce and accept what it shows.

        width: Characters of a line; commands are never broken.
    """
    called = names(row.key for row in rows(run))
    groups: dict[tuple[Outcome, Reason, str], list[Verdict]] = {}
    for verdict in run.verdicts:
        if verdict.outcome in outcomes:
            shared = (verdict.outcome, verdict.reason, verdict.remedy)
            groups.setdefault(shared, []).append(verdict)
    for shared in sorted(groups, key=lambda each: -PRECEDENCE.index(each[0])):
        alike = groups[shared]
        if shared[0] not in _LOUD and len(alike) > _MANY_ALIKE:
            several = [called[verdict.key] for verdict in alike]
            yield from joint_explanation(alike, called=several, width=width)
            continue
        for verdict in alike:
            yield from explanation(
                verdict,
                name=called[verdict.key],
                options=run.header.options if commands else None,
                width=width,
            )


def judged_line(run: Run) -> Line:
    """Return the last line: how many tests were judged, and why the others were not."""
    counted = tally(run)
    decided = [_counted(counted, name) for name in _JUDGED_ORDER]
    undecided = [_counted(counted, name) for name in _OPEN_ORDER]
    undecided = _unlimited(counted, run.header.options, undecided)
    if counted.missing_count:
        undecided.append(f"{counted.missing_count} never reported")
    if run.header.completeness.interrupted:
        undecided.append(display.escape(run.header.completeness.interrupted))
    parts = (", ".join(filter(None, some)) for some in (decided, undecided))
    text = "; ".join(filter(None, parts))
    head = f"judged {counted.judged_count} of {counted.expected_count}"
    style = Style.BAD if not counted.judged_count else _gravest(counted)
    return Line(f"{head}: {text}" if text else head, style)


def _unlimited(
    counted: Tally, options: Mapping[str, str], undecided: list[str]
) -> list[str]:
    """Return what was not decided, with the tests that nothing could decide."""
    count = counted.unlimited_count
    if (
        "gpuperf_disable" in options
    ):  # whatever a test says of it: one reason, said once
        count += len(counted.of(Outcome.UNMEASURED))
        undecided = [_counted(counted, n) for n in _OPEN_ORDER if n != "unmeasured"]
        why = "disabled"
    elif options.get("gpuperf_max_regression", "").strip() == "off":
        why = "only shown"
    else:
        why = "without marker limit or baseline"
    return [*undecided, f"{count} {why}"] if count else undecided


def _title(facts: list[str], width: int) -> str:
    """Return the title; where it is too long, its longest facts lose their middle."""
    head = "gpuperf: "
    if len(head + ", ".join(facts)) > width:  # why there is no GPU is told with -v
        facts = [fact.partition(": ")[0] for fact in facts]
    while len(text := head + ", ".join(facts)) > width and facts:
        longest = max(facts, key=len)
        left = max(_LEAST_FACT, len(longest) - (len(text) - width))
        if left >= len(longest):
            return shorten(text, width)
        facts = [shorten(f, left) if f == longest else f for f in facts]
    return text


def _device(run: Run) -> Device | None:
    """Return the GPU of a run; None: none was used."""
    return next((each.device for each in run.records if each.device), None)


def _gravest(counted: Tally) -> Style:
    """Return the style of the worst verdict."""
    if not counted.verdicts:
        return Style.DOUBT
    return STYLES[worst(counted.verdicts.values()).outcome]


def _with_gpu(header: Header, device: Device) -> tuple[str, ...]:
    """Return the facts of a machine with a GPU."""
    driver = f"driver {device.driver_version}" if device.driver_version else ""
    return (device.name, driver, *header.collectors)


def _without_gpu(header: Header) -> tuple[str, ...]:
    """Return the facts of a machine whose GPU was not used, and why it has none."""
    environment = header.environment
    why = (each for each in header.sentences if each.startswith("no GPU"))
    return (
        *header.collectors,
        _brief_cpu(environment.cpu_model or ""),
        f"python {environment.python_minor}",
        ": ".join(next(why, "").partition(";")[0].split(": ")[:2]),
    )


def _brief_cpu(model: str) -> str:
    """Return a processor's name without trade marks and its nominal clock."""
    plain = re.sub(r"\((?:R|TM|tm|r)\)|\bCPU\b|@.*|\d+-Core Processor", "", model)
    return " ".join(plain.split())


def _below(row: Row, width: int, *, verbose: bool) -> Iterator[Line]:
    """Yield what a row's columns have no room for."""
    if verbose or not row.time:
        others = ", ".join(row.others())
        yield from wrapped(others, width=width, depth=1)
    if row.record is None:
        return
    if row.record.void is not None:
        text = f"void: {display.escape(row.record.void.text)}"
        yield from wrapped(text, width=width, depth=1, style=Style.DOUBT)
    for note in row.record.notes if verbose else ():
        text = f"note: {display.escape(note.text)}"
        yield from wrapped(text, width=width, depth=1, style=Style.FAINT)


def _counted(counted: Tally, name: str) -> str:
    """Return how many tests have an outcome, and what the reader should know of it."""
    verdicts = counted.of(Outcome(name))
    if not verdicts:
        return ""
    if name == "unchanged":
        aside = _blind(verdicts)
    else:
        aside = _why(verdicts) if name in _OPEN_ORDER[:3] else ""
    return f"{len(verdicts)} {name}{f' ({aside})' if aside else ''}"


def _blind(verdicts: Sequence[Verdict]) -> str:
    """Return how many unchanged tests could not have seen a change of the limit's size."""
    limits = [
        verdict.threshold
        for verdict in verdicts
        if verdict.change is not None
        and verdict.threshold is not None
        and (verdict.change.detectable_effect or 0.0) > verdict.threshold
    ]
    if not limits:
        return ""
    same = len(set(limits)) == 1
    below = display.exactly(limits[0], "fraction") if same else "their limits"
    return f"{len(limits)} blind below {below}"


def _why(verdicts: Sequence[Verdict]) -> str:
    """Return why tests were not judged, the most frequent reason first."""
    reasons = Counter(
        display.escape(verdict.detail[0])
        if verdict.outcome is Outcome.UNMEASURED and verdict.detail
        else words.short(verdict.reason)
        for verdict in verdicts
    )
    if len(reasons) == 1:
        return next(iter(reasons))
    most = reasons.most_common(_SHOWN_REASONS)
    texts = [f"{count} {reason}" for reason, count in most]
    if len(reasons) > _SHOWN_REASONS:
        texts.append(f"{len(verdicts) - sum(count for _, count in most)} others")
    return ", ".join(texts)
