"""Explanations of failed or undecided tests: the verdict and the next commands."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt

from pytest_gpuperf.judge.tally import has_drifted
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.checkout import is_of
from pytest_gpuperf.model.environment import TEST
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import (
    FAILING,
    BaselineSpan,
    Cause,
    Limit,
    NextCommand,
    Outcome,
    Reason,
    Verdict,
)
from pytest_gpuperf.report import display, sentences, words
from pytest_gpuperf.report.escape import escape, quoted
from pytest_gpuperf.report.lines import INDENT, STYLES, Line, shorten, wrapped

_NO_OPTIONS: Mapping[str, str] = {}
# A failure may be read in a log of unknown width.
_WIDTH = 100
# Characters that lists of failures show of a failure.
_FIRST_LINE = 120
# Characters of a test, metric or kernel name in a list.
_NAME_WIDTH = 60
# A shorter name does not tell tests apart.
_LEAST_NAME = 20
# Characters of the outcome before a test's name, and of a word after the name.
_LABEL_WIDTH = 20
_REPRODUCE, _ACCEPT = "reproduce", "accept"
# Lines with these prefixes are commands to type.
_COMMANDS = tuple(
    f"{word}:"
    for word in (
        *(_REPRODUCE, _ACCEPT, "if intended"),
        *("if removed", "if renamed", "to restore"),
    )
)
# The run's JSON file in a command, if the run wrote none.
RUN_FILE = "run.json"
# Measurements listed in a shared block. The rest is counted.
_SHOWN_NAMES = 8
# Changed facts listed on a line. The rest is counted.
_SHOWN_FACTS = 6
# An interval more than 10 times as wide as the value or the change bounds neither.
_WIDE = 10.0

# Options that decide what a run measures and how it judges.
_JUDGING = (
    "baseline",
    "against",
    "against-tests",
    "budget",
    "max-regression",
    "compare-across",
    "confirm",
    "confirm-by",
    "runs",
    "collectors",
    "replay",
    "strict",
)
# Options of an update, which changes only the store that is compared with.
_ACCEPTING = ("baseline", "compare-across", "runs", "collectors", "replay")

# Why an improvement fails its test.
_OF_RATCHET = " (gpuperf_ratchet fails the test until this is stored)"

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": le,
    "<": lt,
    ">=": ge,
    ">": gt,
    "==": eq,
}

_QUIET = frozenset({Outcome.BLIND, Outcome.UNCHANGED, Outcome.PASSED})

_OPEN = (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)
# Causes of an undecided change that only more sessions, processes or blocks decide.
_NEED_DATA = frozenset({None, Cause.FEW_SESSIONS, Cause.ONE_PROCESS})

# Outcomes with evidence that does not show the reason.
_UNDECIDED = frozenset(
    {Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE, Outcome.NEW, Outcome.UNMEASURED}
)


def explanation(
    verdict: Verdict,
    *,
    name: str,
    options: Mapping[str, str] | None = _NO_OPTIONS,
    width: int = _WIDTH,
) -> Iterator[Line]:
    """
    Yield the block of a verdict: numbers, reason and next commands.

    Args:
        verdict: The judgement.

        name: The measurement's name in the report.

        options: The plugin's options that were set. A command repeats the relevant options. None
            omits the commands, as when files are compared.

        width: Characters of a line. Commands are never broken.
    """
    implied = verdict.metric == "time" and verdict.change is not None
    has_numbers = verdict.limit is not None or verdict.estimate is not None
    subject = "" if implied else f" {_subject(verdict)}{'' if has_numbers else ':'}"
    called = shorten(name, max(_NAME_WIDTH, width - _LABEL_WIDTH))
    label = words.label(verdict.outcome, verdict.reason)
    tag = _origin(verdict) if verdict.outcome in FAILING else ""
    head = f"{label}{tag} {called}:{subject} {evidence(verdict)}"
    yield from wrapped(head, width=width, style=STYLES[verdict.outcome])
    yield from body(verdict, options, width)


def joint_explanation(
    verdicts: Sequence[Verdict], *, called: Sequence[str], width: int = _WIDTH
) -> Iterator[Line]:
    """
    Yield a single block for verdicts that share outcome, reason and remedy.

    Args:
        verdicts: The verdicts, >= 1.

        called: The names of their measurements in the report.

        width: Characters of a line.
    """
    first = verdicts[0]
    tests = display.plural(len(set(called)), "measurement")
    head = f"{words.label(first.outcome)} {tests}: {_reason(first)}"
    yield from wrapped(head, width=width, style=STYLES[first.outcome])
    for detail in first.detail:
        if all(detail in verdict.detail for verdict in verdicts):
            yield from wrapped(escape(detail), width=width, depth=1)
    if first.remedy:
        remedy = f"remedy: {escape(first.remedy)}"
        yield from wrapped(remedy, width=width, depth=1)
    texts = [shorten(name, _NAME_WIDTH) for name in called]
    if all(verdict.change is None for verdict in verdicts):
        yield from wrapped(display.listed(texts), width=width, depth=1)
        return
    for name, verdict in zip(texts[:_SHOWN_NAMES], verdicts, strict=False):
        text, change = name, verdict.change
        if change is not None:
            text += f": {_moved(verdict, change)}{_without(verdict, change)}"
            text += _launches(verdict)
            text += _detectable(verdict, change, (verdict.threshold or 0.0,))
        yield from wrapped(text, width=width, depth=1)
    if len(texts) > _SHOWN_NAMES:
        yield from wrapped(f"{len(texts) - _SHOWN_NAMES} more", width=width, depth=1)


def brief_explanation(verdict: Verdict, *, name: str, width: int = _WIDTH) -> str:
    """
    Return a line in place of the block of a change that fresh processes did not repeat.

    Such a change is most often noise.

    Args:
        verdict: The judgement.

        name: The measurement's name in the report.

        width: Characters of the line. A long name is shortened to fit.

    Returns:
        The line. "" if the change is decided or could have been detected, if all fresh
        processes are beyond the limit, or if more data would not help.
    """
    change, effects = verdict.change, verdict.confirmations
    is_open = (verdict.outcome, verdict.reason) == _OPEN
    if not (is_open and verdict.cause in _NEED_DATA and effects and change is not None):
        return ""
    effect, detectable = change.effect, change.detectable_effect
    if effect is None or detectable is None or abs(effect) > detectable:
        return ""
    limit, way = verdict.threshold or 0.0, math.copysign(1.0, effect)
    if all(way * again > limit for again in effects):
        return ""
    ends, processes = _again(verdict)
    subject = "" if verdict.metric == "time" else f" {_subject(verdict)}"
    label = words.label(verdict.outcome, verdict.reason)
    least = display.least(detectable, (limit,))
    rest = f":{subject} {ends} in {processes}, detectable: {least} (-v: more)"
    room = max(_LEAST_NAME, width - len(label) - len(rest) - 1)
    return f"{label} {shorten(name, room)}{rest}"


def longrepr_lines(
    verdict: Verdict,
    *,
    options: Mapping[str, str] = _NO_OPTIONS,
    width: int = _WIDTH,
) -> Iterator[Line]:
    """
    Yield the failure text of a test. JUnit takes the first line as message.

    Args:
        verdict: The judgement.

        options: The plugin's options that were set.

        width: Characters of a line, from the second on.
    """
    style = STYLES[verdict.outcome]
    # The reason of a skip is a single line.
    if verdict.outcome is Outcome.UNMEASURED:
        parts = (
            f"{_subject(verdict)}: {_reason(verdict)}",
            escape(verdict.remedy),
        )
        yield Line("; ".join(filter(None, parts)), style)
        return
    is_held = (
        verdict.outcome is Outcome.IMPROVED and options.get("gpuperf_ratchet") == "on"
    )
    head = first_line(verdict, why=_OF_RATCHET if is_held else "")
    yield Line(head, style)
    whole = evidence(verdict)
    if not head.endswith(whole):
        yield from wrapped(_rest(verdict, head, whole), width=width, depth=1)
    yield from body(verdict, options, width)


def first_line(verdict: Verdict, *, why: str = "") -> str:
    """
    Return a verdict as a single line of at most 120 characters.

    Args:
        verdict: The judgement.

        why: Why the outcome fails the test, in parentheses, or "" for an outcome that
            shows it.
    """
    head = f"{_subject(verdict)} {verdict.outcome.value}{_origin(verdict)}{why}: "
    text = head + evidence(verdict)
    # The rest goes to the next line.
    if len(text) > _FIRST_LINE:
        text = head + _brief_evidence(verdict)
    return text if len(text) <= _FIRST_LINE else f"{text[: _FIRST_LINE - 1]}…"


def _origin(verdict: Verdict) -> str:
    return "" if verdict.origin is None else f" ({verdict.origin.origin.value})"


def _brief_evidence(verdict: Verdict) -> str:
    """Return the numbers of a verdict without intervals and corrections."""
    change, estimate, limit = verdict.change, verdict.estimate, verdict.limit
    if limit is not None and estimate is not None:
        shown, _ = display.pair(
            estimate.value, limit.threshold, estimate.unit, is_limit=True
        )
        return f"{shown}, limit {_limit_text(limit)}"
    if change is None:
        return evidence(verdict)
    adjusted = " adjusted" if words.taken_out(change) else ""
    moved = f"{_moved(verdict, change)}{adjusted}"
    return f"{moved}{_launches(verdict)}{_allowed(verdict)}"


def _rest(verdict: Verdict, head: str, whole: str) -> str:
    change, limit = verdict.change, verdict.limit
    # The first line was cut.
    if not head.endswith(_brief_evidence(verdict)):
        return whole
    if limit is not None:
        return whole.replace(f", limit {_limit_text(limit)}", "", 1)
    if change is None:
        return whole
    measured, separator, moved = _moved(verdict, change).rpartition(": ")
    rest = whole.removeprefix(measured + separator) if moved else whole
    return rest.replace(_allowed(verdict), "", 1)


def _allowed(verdict: Verdict) -> str:
    """Return the largest change that passes, for use after the change, or "" without a limit."""
    if verdict.threshold is None:
        return ""
    return f", limit {display.exactly(verdict.threshold, 'fraction')}"


def fitted(text: str, *, width: int) -> Iterator[Line]:
    """
    Yield the failure text of a test as terminal lines. Commands are never broken.

    Args:
        text: A line per fact, indented by its place.

        width: Characters of a line.
    """
    for line in text.splitlines():
        plain = line.lstrip(" ")
        if plain.startswith(_COMMANDS):
            yield Line(line)
        else:
            depth = (len(line) - len(plain)) // len(INDENT)
            yield from wrapped(plain, width=width, depth=depth)


def evidence(verdict: Verdict) -> str:
    """Return the numbers of a verdict, and the reason if the numbers do not show it."""
    estimate, text = verdict.estimate, ""
    if verdict.limit is not None:
        text = _limit_evidence(verdict)
    elif verdict.change is not None:
        change, limit = verdict.change, verdict.threshold
        limits = () if limit is None else (limit, -limit)
        text = _moved(verdict, change)
        if change.low is not None and change.high is not None and not change.exact:
            ends = display.change_interval(change.low, change.high, limits=limits)
            width = change.high - change.low
            is_known = width <= _WIDE * max(1.0, abs(change.effect or 0.0))
            text += f" ({ends})" if is_known else " (interval unknown)"
        text += _without(verdict, change) + _launches(verdict)
        text += _allowed(verdict) or ", no limit"
        text += _detectable(verdict, change, limits)
    elif estimate is not None:
        text = display.value(estimate.value, estimate.unit)
    tells = verdict.reason is not Reason.CHILD_GAVE_NO_VALUE
    # Other kernels may be equally many.
    tells = tells and verdict.reason is not Reason.OTHER_KERNEL
    if verdict.outcome not in _UNDECIDED and text and tells:
        return text
    reason = _reason(verdict)
    return f"{text}: {reason}" if text else reason


def commands(verdict: Verdict, options: Mapping[str, str]) -> tuple[NextCommand, ...]:
    """
    Return the commands to type next for a verdict.

    Args:
        verdict: The judgement.

        options: The plugin's options that were set. A command repeats the relevant options.
    """
    if verdict.outcome is Outcome.UNMEASURED:
        return ()
    flags = _flags(options, _JUDGING)
    reproduce = _command(
        _REPRODUCE, verdict, options, flags, whole=_repeats_run(verdict)
    )
    if verdict.of_revision:  # Nothing can be stored.
        return (reproduce,)
    if verdict.outcome not in {Outcome.REGRESSED, Outcome.IMPROVED}:
        if not has_drifted(verdict):
            return (reproduce,)
        # The series starts anew, because an update keeps an unchanged value.
        run = options.get("gpuperf_json", RUN_FILE)
        test = f"--test={verdict.key.test_id}"
        argv = ("gpuperf", "baseline", "accept", store_name(options), run, test)
        return (reproduce, NextCommand(kind=_ACCEPT, argv=argv))
    update = _accepting_update(verdict)
    if options.get("gpuperf_update") in {"all", update}:  # It is already accepted.
        return (reproduce,)
    flags = (*_flags(options, _ACCEPTING), f"--gpuperf-update={update}")
    # A value of the test alone would begin a series that no run of the suite continues.
    whole = verdict.baseline is not None and verdict.baseline.of_suite
    return reproduce, _command(_ACCEPT, verdict, options, flags, whole=whole)


def _accepting_update(verdict: Verdict) -> str:
    # An update of improvements leaves out tests whose source changed.
    gained = verdict.outcome is Outcome.IMPROVED and not words.changed_test(verdict)
    return "improved" if gained else "all"


def command_text(command: NextCommand) -> str:
    """Return a command as typed into a shell, escaped for printing."""
    return escape(" ".join(map(quoted, command.argv)))


def completed(run: Run) -> Run:
    """
    Add sentences and next commands to the verdicts, except blind, unchanged and passed verdicts.
    """
    options = run.header.options
    verdicts = tuple(
        verdict
        if verdict.outcome in _QUIET
        else replace(
            verdict,
            sentence=sentences.sentence(verdict),
            commands=commands(verdict, options),
        )
        for verdict in run.verdicts
    )
    return replace(run, verdicts=verdicts)


def _reason(verdict: Verdict) -> str:
    """Return the reason as a fragment, or the tool's own text for an unmeasured metric."""
    if verdict.outcome is Outcome.UNMEASURED and verdict.detail:
        return escape(verdict.detail[0])
    sentence = sentences.sentence(verdict).rstrip(".")
    return f"{sentence[0].lower()}{sentence[1:]}"


def body(
    verdict: Verdict, options: Mapping[str, str] | None, width: int
) -> Iterator[Line]:
    """Yield the lines of `explanation` after the first."""
    is_unmeasured = verdict.outcome is Outcome.UNMEASURED
    # The first detail of an unmeasured metric is in the head.
    details = verdict.detail[1:] if is_unmeasured else verdict.detail
    texts = []
    if verdict.origin is not None:
        # Needed only where a value moved.
        from pytest_gpuperf.report.origins import origin

        texts.append(origin(verdict))
    texts += map(escape, details)
    texts += [
        sentences.in_suite(verdict),
        sentences.alone(verdict),
        sentences.drifted(verdict),
    ]
    texts += [_confirmed(verdict), sentences.blocks(verdict)]
    texts += [_baseline(verdict.baseline), words.changed_test(verdict)]
    if verdict.remedy:
        texts.append(f"remedy: {escape(verdict.remedy)}")
    for text in filter(None, texts):
        yield from wrapped(text, width=width, depth=1)
    typed = () if options is None else commands(verdict, options)
    why = ""
    # A drift is accepted for this test alone.
    moved = verdict.outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    accepts = moved and any(command.kind == _ACCEPT for command in typed)
    if typed and verdict.in_suite is not None:
        why = "the commands repeat this run: alone this test is not slower"
    elif typed and _repeats_run(verdict):
        why = "the commands repeat this run: no stored session has measured this test alone"
    elif accepts and verdict.baseline is not None and verdict.baseline.of_suite:
        moves = "changed" if _accepting_update(verdict) == "all" else "improved"
        why = f"accepting repeats this run, and accepts all that {moves} in it"
    yield from wrapped(why, width=width, depth=1)
    for command in typed:
        yield Line(f"    {command.kind + ':':<10} {command_text(command)}")
    started_by = (options or {}).get("started_by")
    if started_by is not None:
        yield Line(f"    pytest was started by: {escape(started_by)}")


def _subject(verdict: Verdict) -> str:
    kernel = verdict.estimate.kernel if verdict.estimate is not None else None
    if kernel is None and verdict.limit is not None:
        kernel = verdict.limit.kernel
    return shorten(words.metric_name(verdict.metric, kernel), _NAME_WIDTH)


def _limit_evidence(verdict: Verdict) -> str:
    limit, estimate = verdict.limit, verdict.estimate
    if limit is None or estimate is None:
        return "" if limit is None else f"limit {_limit_text(limit)}"
    shown, _ = display.pair(
        estimate.value, limit.threshold, estimate.unit, is_limit=True
    )
    if verdict.low is not None and verdict.high is not None:
        ends = display.interval(
            verdict.low, verdict.high, estimate.unit, limits=(limit.threshold,)
        )
        shown = f"{shown} ({ends})"
    text = f"{shown}, limit {_limit_text(limit)}"
    if verdict.outcome is not Outcome.FAILED or not limit.threshold:
        return text
    # A percentage of a percentage is misleading.
    if estimate.unit in {"fraction", "%"}:
        return text
    ratio = estimate.value / limit.threshold
    if ratio >= words.MANY_TIMES:
        return f"{text}, {ratio:.0f} times the limit"
    share = abs(estimate.value - limit.threshold) / abs(limit.threshold)
    return f"{text}, missed by {display.change(share, limits=(0.0,), signed=False)}"


def _limit_text(limit: Limit) -> str:
    written = escape(limit.text).split(" ")
    return " ".join(shorten(word, _NAME_WIDTH) for word in written)


def _without(verdict: Verdict, change: Change) -> str:
    """Return the value corrected for CPU speed and machine drift as text, or "" if uncorrected."""
    parts = words.taken_out(change)
    if not parts or change.adjusted is None:
        return ""
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    value = display.value(change.adjusted, unit)
    return f", {value} corrected for {' and '.join(parts)}"


def _launches(verdict: Verdict) -> str:
    """Return the launches behind a total of a captured report as text, or "" if equal."""
    if verdict.evidence is None or verdict.evidence.launches is None:
        return ""
    then, now = (display.value(n, "count") for n in verdict.evidence.launches)
    return f", launches {then} -> {now}"


def _moved(verdict: Verdict, change: Change) -> str:
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    current = change.measured
    if verdict.estimate is not None and not change.is_of_others:
        current = verdict.estimate.value  # As in the table.
    if change.effect == 0:
        return f"{display.value(current, unit)}, as before"
    now, was = display.pair(current, change.reference, unit)
    text = f"{now}, was {was}"
    if change.effect is None:
        return text
    limit = verdict.threshold
    limits = () if limit is None else (limit, -limit)
    return f"{text}: {display.change(change.effect, limits=(*limits, 0.0))}"


def _detectable(verdict: Verdict, change: Change, limits: Sequence[float]) -> str:
    """Return the smallest detectable change as text, or ""."""
    if change.detectable_effect is None or change.exact:
        return ""
    decided = verdict.outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    if decided and abs(change.effect or 0.0) < change.detectable_effect:
        # The change was found although it is below the detection limit, so the limit is
        # of no interest.
        return ""
    least = display.least(change.detectable_effect, limits)
    return f", smallest detectable change {least}"


def _confirmed(verdict: Verdict) -> str:
    effects = verdict.confirmations
    if not effects:
        return ""
    ends, processes = _again(verdict)
    if verdict.outcome in _UNDECIDED:
        return f"measured again in {processes} ({ends})"
    count = sum(_confirms(verdict, effect) for effect in effects)
    if count < len(effects):
        processes = f"{count} of {processes}"
    return f"confirmed in {processes} ({ends})"


def _again(verdict: Verdict) -> tuple[str, str]:
    effects, limit = verdict.confirmations, verdict.threshold
    limits = () if limit is None else (limit, -limit)
    low, high = min(effects), max(effects)
    ends = (
        display.change_interval(low, high, limits=limits)
        if low != high
        else display.change(low, limits=limits)
    )
    return ends, display.plural(len(effects), "fresh process", "fresh processes")


def _confirms(verdict: Verdict, effect: float) -> bool:
    if verdict.limit is not None:
        inside = _HOLDS[verdict.limit.operator](effect, 0.0)
        return inside is (verdict.outcome is Outcome.PASSED)
    change, limit = verdict.change, verdict.threshold or 0.0
    if change is None or verdict.outcome not in {Outcome.REGRESSED, Outcome.IMPROVED}:
        return True
    is_more = change.current > change.reference
    return effect > limit if is_more else effect < -limit


def _baseline(span: BaselineSpan | None) -> str:
    if span is None:
        return ""
    parts = [display.plural(span.session_count, "session")]
    parts.append(
        _range(display.date(span.first_unix_s), display.date(span.last_unix_s))
    )
    first, last = map(display.commit, (span.first_commit, span.last_commit))
    if first or last:
        noun = "commit" if first == last or not (first and last) else "commits"
        parts.append(f"{noun} {_range(first or last, last or first)}")
    text = f"baseline: {', '.join(parts)}"
    moved = display.listed(
        (
            escape(f"{name} {' -> '.join(display.moved_fact(name, *moved))}")
            for name, moved in sorted(span.moved.items())
            if name != TEST  # Printed on a separate line.
        ),
        most=_SHOWN_FACTS,
    )
    return f"{text}; since then {moved}" if moved else text


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def _command(
    kind: str,
    verdict: Verdict,
    options: Mapping[str, str],
    flags: tuple[str, ...],
    *,
    whole: bool,
) -> NextCommand:
    tests: tuple[str, ...] = (verdict.typed or from_root(verdict.key.test_id, options),)
    if whole:
        tests = _words(options.get("arguments", ""))
    start = _words(options.get("launcher", "pytest"))
    is_named = any(
        flag.startswith(("--gpuperf-baseline", "--gpuperf-against")) for flag in flags
    )
    if not is_named and verdict.change is not None and not verdict.of_revision:
        # An unnamed store never fails a test.
        flags = (f"--gpuperf-baseline={store_name(options)}", *flags)
    return NextCommand(kind=kind, argv=(*start, *tests, *flags))


@functools.lru_cache(maxsize=16)  # All commands of a run have the same two.
def _words(typed: str) -> tuple[str, ...]:
    return tuple(shlex.split(typed))


def _repeats_run(verdict: Verdict) -> bool:
    """
    Return True if only the whole run, and not the test alone, would give the verdict again.

    Alone, the test is not slower, or no stored session measured its time alone.
    """
    if verdict.of_revision or verdict.change is None:
        return False
    baseline = verdict.baseline
    return verdict.in_suite is not None or (
        baseline is not None and baseline.of_suite and not baseline.alone_count
    )


def from_root(path: str, options: Mapping[str, str]) -> str:
    """Return a path below the root relative to the folder in which pytest was started."""
    place = options.get("rootdir")
    return path if place is None else f"{place}/{path}"


def store_name(options: Mapping[str, str]) -> str:
    """Return the store of a run, or the default store, as typed on a command line."""
    return options.get("gpuperf_baseline") or from_root(".gpuperf", options)


def typed_command(*words: str) -> str:
    """Return a command as typed into a shell."""
    return escape(" ".join(map(quoted, words)))


def removal_lines(
    store: str, removed: Sequence[str], *, kept: Collection[str], new: Collection[str]
) -> tuple[str, str]:
    """
    Return the commands to type if tests were removed, and if the first test was renamed.

    Args:
        store: The store, as a person would write it.

        removed: Ids of stored tests that are no longer in the code.

        kept: Ids of the other stored tests.

        new: Ids of tests that are not in the store.
    """
    names = selecting(removed, kept=kept)
    tests = [f"--test={name}" for name in names[:_SHOWN_NAMES]]
    dropping = typed_command("gpuperf", "baseline", "drop", store, "all", *tests)
    old, nearest = "", list[str]()
    # A moved module is likelier than a renamed test.
    for modules in (True, False):
        old = selecting(removed, kept=kept, modules=modules)[0]
        added = selecting(new, kept=kept, modules=modules)
        alike = [n for n in added if n != old and ("::" in n) is ("::" in old)]
        nearest = get_close_matches(old, alike, n=1)
        if nearest:
            break
    pair = old, *(nearest or ["NEW"])
    renaming = typed_command("gpuperf", "baseline", "rename", store, *pair)
    return f"if removed: {dropping}", f"if renamed: {renaming}"


def selecting(
    test_ids: Iterable[str], *, kept: Collection[str], modules: bool = True
) -> list[str]:
    """
    Return the fewest pytest arguments that select some tests and no other test.

    Args:
        test_ids: Ids of the tests.

        kept: Ids of the other tests.

        modules: Whether an argument may be a module.
    """
    names: dict[str, None] = {}
    for test_id in test_ids:
        if any(is_of(test_id, name) for name in names):
            continue
        module, _, test = test_id.partition("::")
        function = f"{module}::{test.partition('[')[0]}"
        wide = (module, function) if modules else (function,)
        wider = (n for n in wide if not any(is_of(k, n) for k in kept))
        names[next(wider, test_id)] = None
    return [*names]


def _flags(options: Mapping[str, str], chosen: tuple[str, ...]) -> tuple[str, ...]:
    return _flags_of(tuple(options.items()), chosen)


@functools.lru_cache(maxsize=16)  # All commands of a run have the same options.
def _flags_of(
    options: tuple[tuple[str, str], ...], chosen: tuple[str, ...]
) -> tuple[str, ...]:
    values = {
        name.lstrip("-").replace("_", "-").removeprefix("gpuperf-"): text
        for name, text in options
    }
    return tuple(
        f"--gpuperf-{name}"
        if values[name] in {"", "True", "true"}
        else f"--gpuperf-{name}={values[name]}"
        for name in chosen
        if name in values and values[name] not in {"False", "false"}
    )
