"""The command `inventory`, and `compare` of two builds of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import (
    exists,
    exit_code,
    print_table,
    told_on_terminals,
)
from pytest_gpuperf.collect.binary.listing import numbered
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.disk import write_whole
from pytest_gpuperf.errors import ConfigError, ReportError
from pytest_gpuperf.judge.builds import code_changes, code_passes, unknown_spills
from pytest_gpuperf.judge.files import FailOn
from pytest_gpuperf.measure.inventory import Build, read_baseline, spills_gap
from pytest_gpuperf.model.inventory import (
    Fate,
    KernelChange,
    ListedKernel,
    inventory_text,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.builds import (
    NEW_AND_WORSE,
    WORSE,
    change_columns,
    change_facts,
    change_notes,
    change_summary,
    inventory_columns,
    spill_lines,
)
from pytest_gpuperf.report.kernels import unknown_occupancy

if TYPE_CHECKING:
    import argparse

# Rows of a table. JSON has all kernels.
_MOST_ROWS = 40
_INSTRUCTIONS = frozenset({Fate.BETTER, Fate.MOVED, Fate.WORSE})


def compare_code(files: Sequence[str], arguments: argparse.Namespace) -> int:
    """Compare the kernels of two builds, and fail if one is worse."""
    if len(files) != 2:  # noqa: PLR2004 - then and now
        message = f"{len(files)} binaries were named, and two are compared"
        raise ConfigError(
            message, remedy="name the older one first, then the newer one"
        )
    fail_on = _fail_on(arguments)
    runner = ProcessRunner()
    builds = []
    for path in files:
        with told_on_terminals(f"reading {path}"):
            builds.append(
                Build(
                    [path],
                    runner=runner,
                    target=arguments.target,
                    block=arguments.block,
                    keeps_code=True,
                )
            )
    was, now = builds
    changes = code_changes(
        was.kernels,
        now.kernels,
        unread_then=was.unread_chips,
        unread_now=now.unread_chips,
    )
    with told_on_terminals("reading instructions"):
        changes, remarks = _with_instructions(was, now, changes)
    if arguments.block is not None:
        both = (*was.kernels, *now.kernels)
        unknown = unknown_occupancy((k.target, k.occupancy) for k in both)
        remarks += [unknown] if unknown else []
    title = f"{files[0]} -> {files[1]}"
    return _print_changes(
        changes,
        arguments.format,
        title=title,
        remarks=[*dict.fromkeys([*was.unread, *now.unread]), *remarks],
        command="compare BINARY BINARY",
        fail_on=fail_on,
    )


def _with_instructions(
    was: Build, now: Build, changes: list[KernelChange]
) -> tuple[list[KernelChange], list[str]]:
    pairs = [
        (change.was.digest, change.now.digest)
        for change in changes
        if change.was is not None
        and change.now is not None
        and change.fate in _INSTRUCTIONS
    ]
    # A new name must not hide a spill.
    new_ones = unknown_spills(changes)
    if not (pairs or new_ones):
        return changes, []
    old, old_gaps = was.with_instructions({before for before, _ in pairs})
    new, gaps = now.with_instructions({*(after for _, after in pairs), *new_ones})
    new_gaps: list[str] = []
    if gaps and new_ones:  # They are less code than all that changed.
        new, new_gaps = now.with_instructions(new_ones)
    changes = code_changes(
        old, new, unread_then=was.unread_chips, unread_now=now.unread_chips
    )
    unknown = spills_gap(changes, new_gaps)
    return changes, [*dict.fromkeys((*old_gaps, *gaps)), *unknown]


def inventory(arguments: argparse.Namespace) -> int:
    """List the kernels of libraries, and compare them with a baseline."""
    baseline, form = arguments.baseline, arguments.format
    if baseline is None and (arguments.update or arguments.fail_on):
        option = "--update" if arguments.update else "--fail-on"
        message = f"{option} needs a baseline"
        raise ConfigError(message, remedy="name a file with --baseline, or drop it")
    fail_on = _fail_on(arguments)
    if arguments.update and arguments.target is not None:
        message = "--update writes all chips, and --target chooses one"
        raise ConfigError(message, remedy="drop one of them")
    is_first = arguments.update and not exists(baseline)
    old = (
        ()
        if baseline is None or is_first
        else read_baseline(baseline, target=arguments.target)
    )
    with told_on_terminals(f"reading {', '.join(arguments.libraries)}"):
        build = Build(
            arguments.libraries, runner=ProcessRunner(), target=arguments.target
        )
    title = ", ".join(arguments.libraries)
    if baseline is None or is_first:
        return _print_list(build, form, title=title, written_to=baseline)
    with told_on_terminals("reading instructions"):
        changes, gaps = build.changes_since(old)
    remarks = [*build.unread, *gaps]
    if arguments.update:
        remarks += _updated(baseline, build, changes)
        fail_on = FailOn.NEVER
    elif not code_passes(changes, fail_on):
        remarks.append(f"to accept it, run the command with --update: {baseline}")
    return _print_changes(
        changes,
        form,
        title=f"{baseline} -> {title}",
        remarks=remarks,
        command="inventory --baseline",
        fail_on=fail_on,
    )


def _print_list(build: Build, form: str, *, title: str, written_to: str | None) -> int:
    """Print the kernels of a build, and write them to a file if it is named."""
    import msgspec

    kernels = build.kernels
    remarks = [*spill_lines(kernels), *build.unread]
    if written_to is not None:
        remarks.append(f"written to {written_to}")
        _write(written_to, kernels)
    return print_table(
        form,
        "inventory",
        {"kernels": [*map(msgspec.to_builtins, kernels)], "remarks": remarks},
        title=f"{title}: {display.plural(len(kernels), 'kernel')}",
        table=inventory_columns(kernels),
        remarks=remarks,
    )


def _updated(baseline: str, build: Build, changes: Sequence[KernelChange]) -> list[str]:
    """Write a baseline anew, and return what was done. Nothing is known of unread code."""
    kept = [c.was for c in changes if c.fate is Fate.UNREAD and c.was is not None]
    _write(baseline, numbered([*build.kernels, *kept]))
    done = [f"{baseline} is updated"]
    if kept:
        lines = display.plural(len(kept), "line")
        done.append(f"{lines} of kernels that are not read stay in it")
    return done


def _fail_on(arguments: argparse.Namespace) -> FailOn:
    fail_on = FailOn(arguments.fail_on or FailOn.WORSE)
    if fail_on is FailOn.SLOWER:
        message = "--fail-on slower: a binary has no times"
        raise ConfigError(message, remedy="write worse, any or never")
    return fail_on


def _write(path: str, kernels: Sequence[ListedKernel]) -> None:
    try:
        write_whole(Path(path), inventory_text(kernels))
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror or error})"
        raise ReportError(message, remedy="write elsewhere, or free space") from error


def _print_changes(
    changes: Sequence[KernelChange],
    form: str,
    *,
    title: str,
    remarks: Sequence[str],
    command: str,
    fail_on: FailOn,
) -> int:
    table, left_out = change_columns(changes, form, top=_MOST_ROWS)
    more = [f"{left_out} more kernels; --format=json has all"] if left_out else []
    below = [*more, *change_notes(changes), change_summary(changes), *remarks]
    print_table(
        form,
        command,
        {
            "fail_on": fail_on.value,
            "changes": [change_facts(change) for change in changes],
            "remarks": [*remarks],
        },
        title=title,
        table=table,
        remarks=below,
        red=(NEW_AND_WORSE, WORSE),
    )
    return exit_code(passes=code_passes(changes, fail_on))
