"""The command `show`: counters of a capture as JSON are the reader's bytes, unparsed.

The rest is in `records`, which takes 60 ms to import. Printing three metrics of 154
launches as JSON takes about five times as long.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.cli.output import (
    BINARIES,
    CAPTURE_START,
    GOOD,
    STANDARD_STREAM,
    print_bytes,
    start_of,
    told_on_terminals,
)
from pytest_gpuperf.collect.ncu.reading import MAGIC
from pytest_gpuperf.collect.ncu.text import capture_text, check_file
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import ConfigError, RecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pytest_gpuperf.collect.begun import BegunProcess
    from pytest_gpuperf.model.launch import CapturedLaunch

_FOLDER = (
    "name a file in it; of a recording show the launches (--launches), or judge it again: "
    "pytest --gpuperf-replay={0}"
)
_OTHERWISE = (
    "gpuperf show also takes a run's JSON file, a recording (--launches) and a compiled "
    "binary"
)
# The reader's JSON for a counter that a launch lacks.
_NO_VALUE = b'"value":null'


def show(arguments: argparse.Namespace) -> int:
    """Print a capture, a run, the shards of a run, or a binary."""
    arguments.file, *others = arguments.files
    if others:
        return _show_shards(arguments)
    if not start_of(arguments.file).startswith(BINARIES):
        for option in ("block", "target"):
            if getattr(arguments, option) is not None:
                message = f"--{option} is for binaries, and {arguments.file} is not one"
                raise ConfigError(message, remedy="drop it")
        return _show_measured(arguments)
    chosen = (arguments.metrics, arguments.nvtx, arguments.exclude, arguments.launches)
    views = (arguments.list, arguments.details, arguments.sort)
    if any(value not in (None, []) for value in chosen) or any(views):
        message = f"{arguments.file} is a binary: it has kernels and no launches"
        raise ConfigError(message, remedy="choose kernels with --kernel")
    from pytest_gpuperf.cli.records import show_binary

    return show_binary(
        arguments.file,
        arguments.format,
        pattern=arguments.kernel,
        block=arguments.block,
        target=arguments.target,
        top=arguments.top,
    )


def _show_shards(arguments: argparse.Namespace) -> int:
    not_taken = {
        "--kernel": arguments.kernel,
        "--nvtx": arguments.nvtx,
        "--exclude": arguments.exclude,
        "--launches": arguments.launches is not None,
        "--list": arguments.list,
        "--details": arguments.details,
        "--sort": arguments.sort,
        "--top": arguments.top,
        "--block": arguments.block,
        "--target": arguments.target,
    }
    given = [name for name, value in not_taken.items() if value]
    if given:
        message = (
            f"{len(arguments.files)} files were named, and {', '.join(given)} takes one"
        )
        raise ConfigError(message, remedy="name one file, or drop the option")
    from pytest_gpuperf.cli.records import show_run

    return show_run(arguments.files, arguments.format, arguments.metrics)


def _show_measured(arguments: argparse.Namespace) -> int:
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    # The name decides only if the first bytes are those of neither a run nor a capture.
    start = start_of(file).lstrip()
    if start.startswith((b"{", MAGIC)):
        is_run = start.startswith(b"{")
    else:
        is_run = file == STANDARD_STREAM or file.endswith(".json")
    if arguments.launches == ():
        if metrics is not None:
            message = "--launches and --metrics exclude each other"
            raise ConfigError(message, remedy="drop one of them")
        from pytest_gpuperf.cli.records import show_launches

        return show_launches(file, form, is_run=is_run)
    if os.path.isdir(file):  # noqa: PTH112 - pathlib is not imported on this path
        message = "it is a folder"
        raise RecordError(message, path=file, remedy=_FOLDER.format(file))
    if is_run:
        views = (arguments.list, arguments.details, arguments.sort, arguments.top)
        if any(_filters(arguments).values()) or any(views):
            message = (
                "--kernel, --nvtx, --exclude, --launches, --list, --details, --sort and "
                "--top are for captures"
            )
            raise ConfigError(message, remedy=f"drop them: {file} is a run")
        from pytest_gpuperf.cli.records import show_run

        return show_run([file], form, metrics)
    _refuse_views(arguments)
    check_file(os.path.abspath(file), otherwise=_OTHERWISE)  # noqa: PTH100 - links stay as they are
    filters = _filters(arguments)
    if any(filters.values()):
        return _show_chosen(arguments, filters)
    if metrics is not None:
        return _show_metrics(file, form, metrics, arguments.begun)
    # The needed module is imported while another process reads the capture. This saves
    # a tenth of the time for 154 launches, and more for a shorter report.
    needed = "measure.captured" if form == "json" else "cli.records"
    runner = ProcessRunner(
        lambda: import_module(f"pytest_gpuperf.{needed}"), begun=arguments.begun
    )
    with told_on_terminals(f"reading {file}"):
        text = capture_text(file, runner=runner)
    if form == "json":
        return print_bytes(_capture_json(text))
    from pytest_gpuperf.cli.records import show_capture

    return show_capture(arguments, text)


def _show_chosen(arguments: argparse.Namespace, filters: Mapping[str, Any]) -> int:
    file = arguments.file
    from pytest_gpuperf.cli.records import chosen_places, show_chosen

    places = chosen_places(file, filters)
    if arguments.format != "json" or arguments.metrics is not None:
        return show_chosen(arguments, places)
    with told_on_terminals(f"reading {file}"):
        text = capture_text(file, runner=ProcessRunner())
    return print_bytes(_capture_json(text, places))


def _filters(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "kernels": arguments.kernel,
        "includes": arguments.nvtx,
        "excludes": arguments.exclude,
        "indices": arguments.launches,
    }


def _refuse_views(arguments: argparse.Namespace) -> None:
    """Refuse combined options if some would be ignored."""
    given = {
        "--details": arguments.details,
        "--metrics": arguments.metrics is not None,
        "--list": arguments.list,
        "--sort": arguments.sort,
        "--top": arguments.top,
    }
    views = [name for name, value in given.items() if value]
    together = ({"--metrics", "--list"}, {"--sort", "--top"})
    if len(views) > 1 and not any(pair.issuperset(views) for pair in together):
        message = f"{', '.join(views)}: only one of them says what is shown"
        remedy = "--sort and --top arrange kernels, the others show launches: drop some"
        raise ConfigError(message, remedy=remedy)


def _show_metrics(
    file: str, form: str, metrics: tuple[str, ...], begun: BegunProcess | None
) -> int:
    """Print some metrics of a capture. Counters as JSON are the reader's own bytes."""
    if form != "json" or any("__" not in name for name in metrics):
        from pytest_gpuperf.cli.records import show_metrics

        return show_metrics(file, form, metrics)
    with told_on_terminals(f"reading {file}"):
        content = capture_text(file, runner=ProcessRunner(begun=begun), metrics=metrics)
    print_bytes(CAPTURE_START + content[1:])
    if _NO_VALUE in content:
        from pytest_gpuperf.cli.records import say_what_lacks

        say_what_lacks(file, metrics)
    return GOOD


def _capture_json(text: bytes, places: set[tuple[int, int]] | None = None) -> bytes:
    """
    Return a capture as JSON with an analysis of the counters.

    Args:
        text: The capture, as its reader wrote it. Each launch stays as it is.

        places: The range and index of the requested launches, or None for all.
    """
    import msgspec

    from pytest_gpuperf.model.launch import CapturedLaunch

    decoder = msgspec.json.Decoder(CapturedLaunch)
    document = dict[str, list[dict[str, list[msgspec.Raw]]]]
    ranges = []
    for number, section in enumerate(
        msgspec.json.decode(text, type=document)["ranges"]
    ):
        launches = []
        for raw in section["launches"]:
            launch = decoder.decode(raw)
            if places is None or (number, launch.index) in places:
                launches.append(_explained(bytes(raw), launch))
        ranges.append(b'{"launches":[%b]}' % b",".join(launches))
    return CAPTURE_START + b'"ranges":[%b]}\n' % b",".join(ranges)


def _explained(raw: bytes, launch: CapturedLaunch) -> bytes:
    if not launch.measured:
        return raw[:-1] + b',"analysis":null,"derived":{}}'
    import msgspec

    from pytest_gpuperf.measure.captured import details
    from pytest_gpuperf.model.metric import METRICS

    explained = details(launch)
    added = {
        "analysis": explained.analysis,
        "derived": {
            name: {"value": value, "unit": METRICS[name].unit}
            for name, value in explained.derived.items()
        },
        "clocks": {
            "sm_hz": explained.values.get("sm_clock_hz"),
            "dram_hz": explained.values.get("dram_clock_hz"),
            "rated_hz": explained.rated_clock_hz,
        },
        "rooflines": explained.rooflines,
    }
    return raw[:-1] + b"," + msgspec.json.encode(added)[1:]
