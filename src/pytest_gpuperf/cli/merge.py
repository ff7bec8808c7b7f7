"""The command `merge`, and the files of shards in place of the file of one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.cli.output import (
    GOOD,
    STANDARD_STREAM,
    WORSE,
    each,
    name_of,
    print_table,
    read_run,
    refuse_replacing,
    say,
)
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.pipeline import merging
from pytest_gpuperf.report import display
from pytest_gpuperf.report.explanation import typed_command
from pytest_gpuperf.report.runs import write_output

if TYPE_CHECKING:
    import argparse

_T = TypeVar("_T")


def merge(arguments: argparse.Namespace) -> int:
    """
    Write the union of the runs of shards, and name what is missing.

    Raises:
        ConfigError: The output is one of the inputs.

        RecordError: A file is not a run, or the runs do not belong together.

        ReportError: The file cannot be written.
    """
    refuse_replacing(arguments.output, arguments.files)
    runs = each(arguments.files, read_run)
    merged = _merged(zip(arguments.files, runs, strict=True))
    write_output(arguments.output, encode_run(merged.run))
    count = len(merged.numbers) + len(merged.missing)
    shards = f"{len(merged.numbers)} of {display.plural(count, 'shard')}"
    tests = display.plural(len(merged.run.test_ids), "test")
    remarks = [
        f"merged {shards}: {tests}" if count else f"the run has no shards: {tests}"
    ]
    remarks += [*merged.faults, *merged.remarks]
    if arguments.output == STANDARD_STREAM:
        say(f"gpuperf: {remark}" for remark in remarks)
    else:
        print_table(
            arguments.format,
            "merge",
            {
                "complete": not merged.faults,
                "run": merged.run.header.session.run,
                "shards": [*merged.numbers],
                "missing": [*merged.missing],
                "measured_count": len(merged.run.test_ids),
                "remarks": remarks,
            },
            title=arguments.output,
            remarks=remarks,
        )
    return WORSE if merged.faults else GOOD


def one_run(paths: Sequence[str]) -> Run:
    """
    Return the run of a file, or the union of the runs of shards.

    Raises:
        ConfigError: The files belong to several runs.

        RecordError: A file is not a run, or the runs do not belong together.
    """
    runs = each(paths, read_run)
    runs = [run for _, run in with_merged_shards(zip(paths, runs, strict=True))]
    if len(runs) > 1:
        message = f"{len(runs)} runs were named, and one is taken"
        remedy = (
            "name one, or the shards of one run; gpuperf compare takes several runs"
        )
        if all(merging.shard_of(run) and not run.header.session.run for run in runs):
            merging_them = typed_command(
                "gpuperf", "merge", *paths, "-o", "merged.json"
            )
            remedy = (
                "these shards do not name their run: name it with --gpuperf-run-id, or"
                f" merge them first: {merging_them}"
            )
        raise ConfigError(message, remedy=remedy)
    return runs[0]


def with_merged_shards(named: Iterable[tuple[str, _T]]) -> list[tuple[str, _T | Run]]:
    """
    Return inputs with the shards of each run merged. Missing shards are named on standard error.

    Shards belong to one run if they name the same run and number of shards. The merged
    run takes the place of its last shard.

    Args:
        named: Inputs by their names. Those that are not runs are returned unchanged.

    Raises:
        RecordError: Shards of one run do not belong together.
    """
    inputs = [*named]
    keys = [_key_of(value) for _, value in inputs]
    result: list[tuple[str, _T | Run]] = []
    for place, (name, value) in enumerate(inputs):
        group = [
            (other, run)
            for (other, run), key in zip(inputs, keys, strict=True)
            if isinstance(run, Run) and key is not None and key == keys[place]
        ]
        if len({run.header.session.id for _, run in group}) < 2:  # noqa: PLR2004 - nothing to merge
            result.append((name, value))
        elif keys[place] not in keys[place + 1 :]:
            merged = _merged(group)
            names = display.listed(name_of(name) for name, _ in group)
            texts = (*merged.faults, *merged.remarks)
            say(f"gpuperf: {names}: {text}" for text in texts)
            result.append((name, merged.run))
    return result


def _key_of(value: object) -> tuple[str, int] | None:
    """Return the run and the number of shards of a shard, or None for other inputs."""
    shard = merging.shard_of(value) if isinstance(value, Run) else None
    if not isinstance(value, Run) or shard is None:
        return None
    run_id = value.header.session.run
    return None if run_id is None else (run_id, shard.count)


def _merged(named: Iterable[tuple[str, Run]]) -> merging.MergedRun:
    return merging.merge(
        [merging.ShardFile(name=name_of(name), run=run) for name, run in named]
    )
