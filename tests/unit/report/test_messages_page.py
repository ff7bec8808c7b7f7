"""docs/messages.md: what it shows of each reason is what the program prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fakes import runs
from pytest_gpuperf.baseline.whole_text import decode
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.replay import read_recording
from pytest_gpuperf.collect.timing.contract import Contract
from pytest_gpuperf.collect.timing.same_work import SameWork
from pytest_gpuperf.config import Config
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.judge.against import Block, changed_test, look_at, same_files
from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import doubted, judge_limit
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.retests import with_suite
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.codec import decode_run, encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Note, Record, RecordKey, Void
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Cause, Reason, Verdict
from pytest_gpuperf.pipeline.memory import Memory
from pytest_gpuperf.report.explanation import (
    brief_explanation,
    explanation,
    longrepr_lines,
)
from pytest_gpuperf.report.rows import rows
from pytest_gpuperf.report.sentences import for_pytest
from pytest_gpuperf.report.summary import table_lines
from unit.judge.building import blocks_of, case, confirmation, estimate, stored

SHOWN = re.compile(r"^### (\S+)$.*?\n\n((?:    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[3] / "docs" / "messages.md"
_WIDTH = 86  # of the page, without its indent

US = 1e-6
OLD, NEW = "3f2a1c9d", "9be01d4c"  # choices of kernels
GEMM, GATHER = "test_gemm[4096]", "test_gather[64k]"
THEN = tuple(170 * US * (1 + part) for part in (0, 4e-3, -4e-3, 2e-3, -2e-3, 1e-3))
AGAIN = tuple(value * US for value in (183.0, 183.5, 182.6, 183.2, 183.0))


def block(verdict: Verdict, name: str = GEMM) -> str:
    """Return a verdict as the summary of a run shows it, without commands."""
    span = None
    if verdict.baseline is not None:
        count = verdict.baseline.session_count
        span = replace(runs.SPAN, session_count=count, moved={})
        if count == 1:
            span = replace(
                span, last_unix_s=span.first_unix_s, last_commit=span.first_commit
            )
    placed = replace(verdict, key=runs.key(name), baseline=span)
    shown = explanation(
        for_pytest(placed),  # the remedy names the newest commit
        name=name,
        options=None,
        width=_WIDTH,
    )
    return _text(shown)


def changed_void() -> Void:
    """Return why a measurement is void whose call changed its argument."""
    values = [3, 1, 2]
    contract = Contract(TimedCall(fn=list.sort, args=(values,)))
    values.sort()
    reason = "a call on the original content takes 26.8 times as long"
    void = contract.void(lambda _: SameWork(same=False, reason=reason))
    assert void is not None
    return void


def doubtful() -> Verdict:
    """Return the verdict on a limit that only the time of a cached result meets."""
    text = (
        "the first call took 85.3 times the median of the later calls, and changed"
        " parser.cache, so that they may find its work done; reset that in setup="
    )
    note = Note(code="less-work", text=text, doubt=True, full_s=2.1e-3)
    value = estimate(24.6 * US)
    key = runs.key(GEMM)
    record = Record(key=key, kind=Kind.MEASURE, estimates=(value,), notes=(note,))
    verdict = judge_limit(parse_limit("time <= 100 us"), record)
    return for_pytest(doubted(verdict, [record]))


def skip(verdict: Verdict) -> str:
    """Return a verdict as the reason of a skipped test."""
    return f"unmeasured: {_text(longrepr_lines(verdict))}"


def row(verdict: Verdict, name: str) -> str:
    """Return a verdict as a row of the table, below its heads."""
    assert verdict.estimate is not None
    key = runs.key(name)
    record = Record(key=key, kind=Kind.MEASURE, estimates=(verdict.estimate,))
    run = runs.run((record,), (replace(verdict, key=key),))
    return _text(table_lines(rows(run), width=_WIDTH))


def held(text: str, *estimates: Estimate, kind: Kind = Kind.MEASURE) -> Verdict:
    """Return the verdict of a limit."""
    record = Record(key=runs.key(GEMM), kind=kind, estimates=estimates)
    return for_pytest(judge_limit(parse_limit(text), record))


def judged(
    subject: Case, again: Confirmation | None = None, *, complete: bool = True
) -> Verdict:
    """Return the verdict of a change."""
    found = {} if again is None else {subject.name: again}
    (verdict,) = settle([subject], found, complete=complete)
    return for_pytest(verdict)


def _text(lines: Iterable[object]) -> str:
    """Return lines as one text."""
    return "\n".join(str(line).rstrip() for line in lines)


def slower_alone() -> Verdict:
    """Return the verdict of a test that takes twice as long alone, and always did."""
    subject = case(245 * US, [us * US for us in (221, 228, 232, 236, 242)])
    alone = [us * US for us in (482, 500, 516, 495, 505)]
    return judged(subject, confirmation(*alone))


def test_what_is_slower_alone_is_shown_as_it_is_printed() -> None:
    """A cause has no place of its own on the page: it stands where its rule is."""
    shown = block(slower_alone(), "test_normalize")
    judging = PAGE.with_name("judging.md")

    assert textwrap.indent(shown, "    ") in judging.read_text(encoding="utf-8")


def not_repeated(*, again_us: Iterable[float] = (9.3, 9.9, 9.6, 9.2, 9.7)) -> Verdict:
    """Return the verdict of a suspect that some fresh processes find within its limit."""
    subject = case(10.8 * US, [us * US for us in (9.0, 9.6, 8.6)])
    return judged(subject, confirmation(*[us * US for us in again_us]))


def test_what_fresh_processes_do_not_repeat_is_shown_as_it_is_printed() -> None:
    """A line, and a block where all of them are beyond the limit or the cause is known."""
    line = brief_explanation(not_repeated(), name=GATHER)
    repeated = not_repeated(again_us=(9.7, 9.9, 9.8, 9.9, 9.7))
    seen = replace(not_repeated(), cause=Cause.SEEN_BEFORE)

    assert f"\n`{line}`\n" in PAGE.read_text(encoding="utf-8")
    assert line.startswith(f"inconclusive {GATHER}: +1.6 … +9.3 % in 5 fresh processes")
    assert len(line) <= 100
    assert len(brief_explanation(not_repeated(), name=80 * "x")) == 100
    assert repeated.reason is Reason.NOT_SIGNIFICANT
    for verdict in (repeated, seen, slower_alone(), judged(case(180 * US, THEN))):
        assert brief_explanation(verdict, name=GATHER) == ""


def left_behind() -> Verdict:
    """Return the verdict of a test that another one makes slower, and nothing alone."""
    subject = case(340 * US, THEN)
    again = {subject.name: confirmation(*[value * US for value in (170.3, 169.8)])}
    (verdict,) = with_suite(
        settle([subject], again), [subject], first_look([subject]), strict=True
    )
    return for_pytest(verdict)


def beside(*blocks: Block) -> Verdict:
    """Return the verdict of a comparison with a revision that ends here."""
    (verdict,) = look_at(blocks, {"t": {"time": 0.05}}, final=True).verdicts
    return for_pytest(verdict)


NOISY = [(168, 175, 172, 190), (170, 166, 181, 169), (171, 180, 175, 183)] * 2
WILD = [(168, 245, 172, 190), (230, 166, 181, 239), (171, 180, 275, 183)] * 6
IMPORT_ERROR = "E   ImportError: cannot import name 'gemm' from 'linear'"


EXAMPLES: dict[Reason, Callable[[], str]] = {
    Reason.WITHIN_LIMIT: lambda: row(
        held("time <= 60 us", runs.time_of(41.2 * US)), "test_rmsnorm[8192]"
    ),
    Reason.BEYOND_LIMIT: lambda: block(
        held(
            'registers["rms*"] <= 64',
            runs.value_of("registers", 72, "count", kernel="rmsnorm"),
            kind=Kind.BINARY,
        ),
        "test_registers",
    ),
    Reason.STRADDLES_LIMIT: lambda: block(
        held("time <= 1.49 ms", estimate(1500 * US)), "test_attention"
    ),
    Reason.ABOVE_THE_ROOF: lambda: block(
        held("roofline.fraction >= 80 %", estimate(1.31, "roofline.fraction")),
        "test_copy",
    ),
    Reason.IN_DOUBT: lambda: block(doubtful(), "test_parse"),
    Reason.NOTHING_STORED: lambda: block(judged(case(183 * US, ()))),
    Reason.FINGERPRINT_DIFFERS: lambda: block(
        judged(
            case(183 * US, (), differences={"gpu_name": ("NVIDIA A100", "NVIDIA H200")})
        )
    ),
    Reason.OTHER_SOURCE: lambda: block(
        judged(case(183 * US, (), other_sources=("host",)))
    ),
    Reason.TOO_FEW_SESSIONS: lambda: block(judged(case(9.1 * US, (9 * US,))), GATHER),
    Reason.OTHER_KERNEL: lambda: block(
        judged(
            case(AGAIN[0], (), choice=NEW, stored=stored(THEN, choice=OLD)),
            confirmation(*AGAIN, choices=(NEW, NEW, NEW, OLD, OLD)),
        )
    ),
    Reason.SLOWER_THAN_LIMIT: lambda: block(
        judged(case(AGAIN[0], THEN), confirmation(*AGAIN))
    ),
    Reason.FASTER_THAN_LIMIT: lambda: block(
        judged(
            case(36 * US, [v * 41.2 / 170 for v in THEN]), confirmation(*[36 * US] * 5)
        ),
        "test_rmsnorm[8192]",
    ),
    Reason.NOT_CONFIRMED: lambda: block(judged(case(180 * US, THEN))),
    Reason.NOT_SIGNIFICANT: lambda: block(
        judged(case(9.54 * US, (9 * US, 9.6 * US, 8.6 * US))), GATHER
    ),
    Reason.SLOWER_IN_SUITE: lambda: block(left_behind()),
    Reason.NOT_DETECTABLE: lambda: row(
        judged(case(168 * US, [v * 1.2**n for n, v in enumerate(THEN[:3], -1)])),
        GEMM,
    ),
    Reason.WITHIN_NOISE: lambda: row(
        judged(case(168 * US, THEN)),
        GEMM,
    ),
    Reason.EQUAL: lambda: row(
        judged(case(64, (64, 64, 64), "registers")), "test_registers"
    ),
    Reason.INCOMPLETE_RUN: lambda: block(
        judged(case(AGAIN[0], THEN), confirmation(*AGAIN), complete=False)
    ),
    Reason.TOO_FEW_BLOCKS: lambda: block(
        beside(*blocks_of({"t": [[us * US for us in four] for four in NOISY]}))
    ),
    Reason.BLOCKS_DIFFER: lambda: block(
        beside(*blocks_of({"t": [[us * US for us in four] for four in WILD]}))
    ),
    Reason.SIDE_WITHOUT_VALUE: lambda: block(
        beside(
            *blocks_of(
                {"t": [(None, None, 183 * US, 183 * US)]},
                failures={Side.OLD: {"t": IMPORT_ERROR}},
            )
        )
    ),
    Reason.TEST_CHANGED: lambda: block(
        for_pytest(changed_test(RecordKey(test_id="t")))
    ),
    Reason.SAME_FILES: lambda: row(
        for_pytest(same_files(runs.key(GEMM), estimate(1680 * US), 0.05)), GEMM
    ),
    Reason.NOT_MEASURED: lambda: skip(held("registers <= 64", estimate(71 * US))),
    Reason.CHILD_GAVE_NO_VALUE: lambda: block(
        judged(
            case(AGAIN[0], THEN),
            confirmation(lost=("E   ImportError: No module named 'helper'",)),
        )
    ),
    Reason.VOID: lambda: block(
        judged(
            case(
                AGAIN[0],
                THEN,
                void=changed_void(),
            )
        )
    ),
}


def raised(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises."""
    with pytest.raises(GpuPerfError) as caught:
        call()
    return str(caught.value)


def wrapped(text: str) -> str:
    """Return a text as the page breaks it, where the program prints one line."""
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


WRONG = re.sub(
    rb'"value": ?[^,}\n]+', b'"value": "fast"', encode_run(runs.gpu_run()), count=1
)
# of the errors whose texts need no tool, no device and no process
ERRORS: dict[str, Callable[[], str]] = {
    "limit-syntax": lambda: raised(lambda: parse_limit("time <= 60 us or so")),
    "unknown-metric": lambda: wrapped(raised(lambda: parse_limit("tme <= 60 us"))),
    "unit": lambda: wrapped(raised(lambda: parse_limit("time <= 60 kB"))),
    "capture-format": lambda: wrapped(raised(lambda: read_recording("kept"))),
    "measure": lambda: wrapped(raised(lambda: TimedCall(fn=int, cache="hot"))),
    "record": lambda: wrapped(raised(lambda: decode_run(WRONG, path="run.json"))),
    "schema-version": lambda: wrapped(
        raised(
            lambda: decode_run(b'{"schema":"pytest-gpuperf/run/4"}', path="run.json")
        )
    ),
    "baseline-missing": lambda: wrapped(
        raised(Memory(Config(root=".", baseline=".gpuperf", baseline_named=True)).check)
    ),
    "baseline-corrupt": lambda: wrapped(
        raised(
            lambda: decode(
                b"{\n<<<<<<< HEAD\n",
                path=".gpuperf/nvidia-h200/tests/test_gemm.py.json",
                keyed_by="module",
            )
        )
    ),
    "perf-assertion": lambda: wrapped(
        next(iter(longrepr_lines(held("time <= 60 us", estimate(71 * US))))).text
    ),
}


def page() -> dict[str, str]:
    """Return the first example of each entry of the page."""
    text = PAGE.read_text("utf-8")
    return {
        name: textwrap.dedent(shown).rstrip("\n") for name, shown in SHOWN.findall(text)
    }


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_shown_as_it_is_printed(reason: Reason) -> None:
    """Whoever looks a message up finds the text that stands on the screen."""
    assert page()[reason.value] == EXAMPLES[reason]()


@pytest.mark.parametrize("slug", ERRORS)
def test_an_error_is_shown_as_it_is_printed(
    slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of an error that can be had without a tool is its example."""
    monkeypatch.chdir(tmp_path)  # where nothing is

    assert page()[slug] == ERRORS[slug]()
