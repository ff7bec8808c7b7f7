"""Notices: what a run prints next to its report, and why it fails without a verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_gpuperf.config import ConfirmBy
from pytest_gpuperf.model.change import Progress
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import selecting, typed_command
from pytest_gpuperf.report.rows import names, short_id

ALONE_INTERRUPTED = (
    "gpuperf: Ctrl-C ended the process that measures tests alone; what the suite measured "
    "is stored without it"
)
# A shorter rest is not shown, because "0 s left" looks stuck.
_LEAST_LEFT_S = 1.0
# A shorter wait needs no warning.
_LONG_S = 10.0
# A command names at most 8 tests.
_MOST_TYPED = 8


def held_line(
    count: int,
    confirm: int | None,
    revision: str | None = None,
    confirm_by: ConfirmBy = ConfirmBy.FRESH,
    *,
    expected_s: float = 0.0,
) -> str:
    """
    Return the line that announces the decision on postponed tests.

    Args:
        count: Number of postponed tests.

        confirm: Number of fresh processes that measure suspects again, or None if noise explains no
            suspect.

        revision: The revision that the tests are compared with, or None.

        confirm_by: How suspects are decided.

        expected_s: Expected time of these processes [s], estimated from the times of the tests.
    """
    text = f"gpuperf: deciding {display.plural(count, 'test')} at the end of the run"
    if revision is not None:
        revision = escape(revision)
        text += f", by a comparison with {revision} in alternating fresh processes"
    if confirm is None:
        return text
    processes = display.plural(confirm, "fresh process", "fresh processes")
    takes = ""
    if expected_s >= _LONG_S:
        takes = f", which takes about {display.about(expected_s)}"
    if confirm_by is ConfirmBy.FRESH:
        again = f"; {processes} will measure suspected times and counts again{takes}"
        return text + again if confirm else text
    text += "; suspects are compared with the commit of their newest session"
    if confirm_by is ConfirmBy.AGAINST:
        return text
    text += " where that is possible"
    return f"{text}, else measured again by {processes}{takes}" if confirm else text


def slow_line(key: RecordKey, count: int, round_s: float) -> str:
    """
    Return the line that announces the repetition of a slow call.

    Args:
        key: The measurement.

        count: Number of rounds to come.

        round_s: Time of the first round [s]: one call, or one call of each side.
    """
    name = names([key])[key]
    more = f"{count} more take" if count > 1 else "one more takes"
    took = f"the first call took {display.value(round_s, 's')}"
    return f"gpuperf: {name}: {took}; {more} about {display.about(count * round_s)}"


def comparison_line(progress: Progress) -> str:
    """Return the progress of a comparison with a revision, as a line."""
    head = f"gpuperf: against {escape(progress.revision)}"
    if progress.text:
        return f"{head}: {escape(progress.text)}"
    left, left_s = "", progress.left_s
    if progress.open_count and left_s is not None and left_s >= _LEAST_LEFT_S:
        left = f", about {display.about(left_s)} left"
    if not progress.looked:
        tests = display.plural(progress.open_count, "test")
        number = f"block {progress.block_count + 1} of at most {progress.most_blocks}"
        return f"{head}: {number}, {tests} open{left}"
    decided = progress.test_count - progress.open_count
    blocks = display.plural(progress.block_count, "block")
    return (
        f"{head}: {blocks} in {display.about(progress.elapsed_s)}, "
        f"{decided} of {display.plural(progress.test_count, 'test')} decided{left}"
    )


def side_by_side(workers_count: int) -> str:
    """Return the line about host times that xdist workers measured side by side."""
    return (
        f"{workers_count} xdist workers measured host times at the same time; -n0 measures "
        "them one after another"
    )


def measured_elsewhere(test_count: int) -> str:
    """Return the line about tests that no process started here can measure again."""
    tests = display.plural(test_count, "test")
    return (
        f"{tests} not measured again for --gpuperf-runs: measured on another machine, or "
        "under other conditions, than this process has; start pytest on each machine itself"
    )


def positional_ids(parts: Mapping[str, str]) -> str:
    """
    Return the line about test ids that count positions.

    Args:
        parts: The part of the id that counts positions, by test id.
    """
    shown = escape(next(iter(parts.values())))
    more = ", …" if len(parts) > 1 else ""
    ids = "id contains" if len(parts) == 1 else "ids contain"
    return (
        f"{len(parts)} test {ids} a position ({shown}{more}), which moves if parameters are "
        "added: name the parameters with ids="
    )


def changed_tests(names: Sequence[str]) -> str:
    """Return the line about improved tests with a source that differs from the stored sessions."""
    return (
        "the test itself changed since the stored sessions, so it is stored only by "
        f"--gpuperf-update=all: {escape(display.some_of(names))}"
    )


def doubted_gains(names: Sequence[str]) -> str:
    """Return the line about improvements that the machine may have caused."""
    return (
        "the machine may have made these faster, so they are stored only by "
        f"--gpuperf-update=all: {escape(display.some_of(names))}"
    )


def unstored_gains(names: Sequence[str], command: str) -> str:
    """
    Return the line about improvements that the baseline does not have.

    Args:
        names: The improved measurements.

        command: The command that stores them.
    """
    shown = escape(display.some_of(names))
    return (
        f"improved, but not stored: {shown}; a slowdown back to the old level would pass; "
        f"to store it: {escape(command)}"
    )


def unsteady_parameters(test_ids: Sequence[str]) -> str:
    """Return the line about tests with parameters that differ between processes."""
    tests = "this test" if len(test_ids) == 1 else f"these {len(test_ids)} tests"
    return (
        f"parameters differ in each process, so those of {tests} are not compared: "
        f"{escape(display.some_of(test_ids))}"
    )


def all_changed(why: str) -> str:
    """Return the line of --gpuperf-changed about a run that measured every test."""
    return f"every test was measured: {escape(why)}"


def installed_packages(paths: Sequence[str]) -> str:
    """Return the line about differing files that declare installed packages."""
    verb = "differs" if len(paths) == 1 else "differ"
    names = escape(display.some_of(paths))
    return f"{names} {verb}; both sides ran with the installed packages"


def nothing_stored(reason: str) -> str:
    """Return the line of a run that stored nothing, with the reason."""
    return f"nothing was stored: {reason}"


def stored_line(
    changes: Mapping[str, Sequence[object]],
    place: str,
    barred_count: int,
    slower_count: int = 0,
    *,
    otherwise: str,
) -> str:
    """
    Return the line about the stored measurements and the store.

    Args:
        changes: Stored sessions by GPU, chip or host.

        place: The store.

        barred_count: Number of measurements that must not be stored.

        slower_count: Number of measurements with a metric that is left out, because it was slower
            in the suite than alone.

        otherwise: The reason for storing nothing, if no measurement is left out.
    """
    count = sum(map(len, changes.values()))
    barred = display.plural(barred_count, "measurement")
    parts = [f"{barred} (failed, xfailed, regressed or void)"] if barred_count else []
    if slower_count:
        slower = display.plural(slower_count, "measurement")
        parts.append(
            f"{slower} slower in the suite than alone (--gpuperf-update=all stores it)"
        )
    left_out = ", ".join(parts)
    if not count:
        return nothing_stored(left_out or otherwise)
    stored = display.plural(count, "measurement")
    folders = ", ".join(sorted(changes))
    text = escape(f"stored {stored} in {place} ({folders})")
    return f"{text}; not stored: {left_out}" if left_out else text


def dropped_lines(
    removed: Sequence[str],
    session_count: int,
    place: str,
    *,
    kept: Collection[str],
) -> Iterator[str]:
    """
    Yield the tests that a run dropped from the store, and the restore command.

    Args:
        removed: Ids of the dropped tests, which are no longer in the code.

        session_count: Number of sessions that had measured them.

        place: The store.

        kept: Ids of the tests of the run.
    """
    tests = display.plural(len(removed), "test")
    sessions = display.plural(session_count, "session")
    names = ", ".join(map(escape, removed))
    yield f"dropped {tests} with {sessions}, no longer in the code: {names}"
    chosen = [f"--test={name}" for name in selecting(removed, kept=kept)]
    if len(chosen) > _MOST_TYPED:
        # Without names, the command restores everything that was dropped last.
        chosen = []
    command = typed_command("gpuperf", "baseline", "restore", place, *chosen)
    yield f"to restore: {command}"


def not_dropped_lines(
    doubted: Sequence[str], place: str, *, kept: Collection[str]
) -> Iterator[str]:
    """
    Yield the tests that a run did not drop, and the drop command.

    Args:
        doubted: Ids of the tests, which are not in this code and may belong to another project.

        place: The store.

        kept: Ids of the tests of the run.
    """
    tests = display.plural(len(doubted), "test")
    yield (
        f"not dropped: {tests} of the baseline may belong to another project, because no "
        f"session measured them together with a test of this run: {listed(doubted)}"
    )
    chosen = [f"--test={name}" for name in selecting(doubted, kept=kept)]
    typed = ("gpuperf", "baseline", "drop", place, "all", *chosen[:_MOST_TYPED])
    yield f"if removed: {typed_command(*typed)}"


def alone_line(
    count: int, process_count: int, *, failed_count: int, elapsed_s: float
) -> str:
    """
    Return the line about the time spent on measuring tests alone.

    Args:
        count: Number of tests.

        process_count: Number of fresh processes. Each of them ran all the tests.

        failed_count: Number of tests that failed or were skipped there.

        elapsed_s: Total time [s].
    """
    tests = display.plural(count, "test")
    processes = display.plural(process_count, "fresh process", "fresh processes")
    failed = f", {failed_count} gave no value" if failed_count else ""
    took = display.value(elapsed_s, "s")
    return f"gpuperf: measured {tests} alone, in {processes}{failed}: {took}"


def not_alone_line(reason: str) -> str:
    """Return the line of a session that is stored without values of tests alone."""
    text = escape(reason)
    return f"gpuperf: no test was measured alone for this session: {text}"


def company_line(count: int, others: Sequence[int]) -> str:
    """
    Return the line of a run with far fewer, or far more, tests than stored sessions.

    Args:
        count: Number of tests in this run.

        others: Numbers of tests in these stored sessions.
    """
    least, most = min(others), max(others)
    ran = display.plural(most, "test")
    if least != most:
        ran = f"{least} to {ran}"
    sessions = display.plural(len(others), "stored session")
    return (
        f"gpuperf: this run ran {display.plural(count, 'test')}, but {sessions} ran {ran}: "
        "only sessions with about as many tests (at least half) are compared"
    )


def twins_line(name: str, first: str, second: str) -> str:
    """
    Return the line about two tests with the same name, and the remedy.

    Args:
        name: The name that pytest gives to both tests.

        first: The first test, as typed on a command line.

        second: The second test, as typed on a command line.
    """
    files = [text.partition("::")[0] for text in (first, second)]
    both = f"{escape(first)} and {escape(second)}"
    if files[0] == files[1]:
        remedy = "give each of them an id of its own"
    else:
        upwards = max(file.split("/").count("..") for file in files)
        folder = "/".join([".."] * upwards) or "."
        remedy = f"start pytest with --rootdir={folder}, so that their ids name folders"
    return f"gpuperf: two tests are called {name}: {both}; {remedy}"


def overruled_line(verdict: Verdict) -> str:
    """Return the failure of a run in which a plugin turned a failing test into a passed test."""
    decided = decided_line(verdict)
    return f"{decided}, and another plugin reported the test as passed; the run fails"


def undecided_line(test_ids: Sequence[str]) -> str:
    """Return the failure of a run that `pytest.exit` ended with 0 before a decision."""
    tests = listed(map(short_id, test_ids))
    return (
        f"the run was ended with exit status 0 before fresh processes had decided {tests}, "
        "which looked worse; the run fails: end it with another status, or run all tests"
    )


def status_line(reason: str) -> str:
    """Return the failure of a run for which a plugin had set the exit status to 0."""
    return f"gpuperf: a plugin set the exit status to 0, and it is 1: {reason}"


def ended_line(test_id: str) -> str:
    """
    Return the failure of a process that ended by `os._exit(0)`.

    Args:
        test_id: The test that ended the process, or "" if something other than a test did.
    """
    ended = f"{escape(test_id) or 'something'} ended pytest by os._exit(0)"
    return f"gpuperf: {ended}; nothing was judged, so the exit status is 1"


def decided_line(verdict: Verdict) -> str:
    """Return the outcome of a test as a line."""
    outcome = f"{escape(verdict.metric)} {verdict.outcome.value}"
    return f"{short_id(verdict.key.test_id)}: {outcome}"


def lost_lines(tests: Sequence[str], remedy: str) -> str:
    """Return the failure of a run that cannot read the baseline of some tests."""
    named = listed(map(short_id, tests))
    return (
        f"damaged lines of the baseline belong to tests of this run: {named}; {remedy}"
    )


def none_began(count: int, gap: Unmeasured) -> str:
    """Return the failure of a run with fresh processes that began no test."""
    fresh = "the fresh process" if count == 1 else f"each of {count} fresh processes"
    return (
        f"{fresh} began no test, so what had to be measured again was not decided: "
        f"{gap.text}"
    )
