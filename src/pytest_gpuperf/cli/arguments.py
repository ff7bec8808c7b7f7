"""The command line: the arguments of each command, its exit codes and its function.

A command's function is named as "module:function" of this folder and imported only when
the command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import INTERRUPTED, print_bytes
from pytest_gpuperf.cli.parser import (
    CommandParser,
    JoinedNames,
    add_command,
    completion_script,
    count,
    digits,
    duration,
    explain,
    file_name,
    launch_numbers,
    metric_names,
    rate,
    share,
    some_share,
)

if TYPE_CHECKING:
    from pytest_gpuperf.cli.parser import Commands

# These commands pass on the arguments after "--".
_BEHIND = frozenset({"bisect", "compare"})
_UNDECIDED = {3: "nothing could be decided, with --strict"}

EXPORTS = (
    *("allure", "annotations", "bencher", "chrome-trace", "csv", "openmetrics"),
    *("pytest-benchmark", "pytorch"),
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """
    Parse a command line.

    For `bisect` and `compare`, everything after `--` is kept in `options` for pytest.
    It is split off first, because argparse would mix it with the positional arguments.
    """
    if argv[:1] == ["explain"]:  # The dashes of an option to explain are not our own.
        argv = [a.lstrip("-") if a.startswith("--gpuperf") else a for a in argv]
    end = [*argv, "--"].index("--")
    if not (argv and argv[0] in _BEHIND):
        return parser().parse_args(argv)
    arguments = parser().parse_args(argv[:end])
    arguments.options = [*argv[end + 1 :]]
    return arguments


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole: argparse.ArgumentParser = CommandParser(
        prog="gpuperf",
        description="Show and compare what pytest-gpuperf and Nsight Compute measured.",
    )
    explain(
        whole,
        "compare before.json after.json",
        {
            1: "a limit failed, a change regressed, or a run that is verified lacks tests",
            **_UNDECIDED,
            INTERRUPTED: "interrupted; the codes of doctor are its own",
        },
    )
    whole.set_defaults(command=None)
    whole.add_argument("--version", action="store_true", help="print it")
    commands = whole.add_subparsers(metavar="COMMAND")
    form = argparse.ArgumentParser(add_help=False)
    form.add_argument(
        "--format", choices=("text", "json", "markdown"), default="text", help="(text)"
    )
    for add in (
        _add_show,
        _add_compare,
        _add_report,
        _add_export,
        _add_bisect,
        _add_baseline,
        _add_verify,
        _add_doctor,
        _add_explain,
        _add_scorecard,
        _add_parity,
        _add_utilization,
        _add_metrics,
        _add_cache,
        _add_completion,
    ):
        add(commands, form)
    return whole


def completion(arguments: argparse.Namespace) -> int:
    """Print a script that makes a shell complete the command line."""
    return print_bytes(completion_script(parser(), arguments.shell).encode())


def _add_show(commands: Commands, form: argparse.ArgumentParser) -> None:
    show = add_command(
        commands,
        "show",
        "print a .ncu-rep capture, a run's JSON file, or the kernels of a binary",
        example="report.ncu-rep --kernel 'gemm*' --details",
        parents=[form],
        function="show:show",
    )
    show.add_argument(
        "file", metavar="FILE", type=file_name, help="of a run - is standard input"
    )
    show.add_argument(
        "--launches",
        nargs="?",
        const=(),
        type=launch_numbers,
        metavar="3-5,8",
        help="these launches of a capture; without numbers every kernel launch, of a "
        "folder of --gpuperf-record or a run with one",
    )
    show.add_argument(
        "--kernel",
        metavar="PATTERN",
        help="launches of a capture, or kernels of a binary, by name",
    )
    show.add_argument(
        "--block",
        type=int,
        metavar="THREADS",
        help="threads of a block, for the occupancy of a binary's kernels",
    )
    for option, words in (
        ("--nvtx", "launches of a capture inside such an NVTX range, as forward/"),
        ("--exclude", "no launches inside such an NVTX range"),
    ):
        show.add_argument(
            option, action="append", default=[], metavar="RANGE", help=words
        )
    show.add_argument("--metrics", type=metric_names, metavar="A,B", help="only these")
    _add_views(show)


def _add_views(show: argparse.ArgumentParser) -> None:
    show.add_argument(
        "--list",
        action="store_true",
        help="each launch of a capture; without it more than ten are summed by kernel",
    )
    show.add_argument(
        "--details",
        action="store_true",
        help="clocks, occupancy, throughput, rooflines, stalls and ncu's advice of each "
        "launch, as a single one is shown",
    )
    show.add_argument(
        "--sort",
        choices=("total", "count", "median", "longest", "name"),
        help="the order of the kernels of a capture (total)",
    )
    show.add_argument(
        "--top",
        type=count,
        metavar="N",
        help="show only the first N kernels of each range",
    )


def _add_compare(commands: Commands, form: argparse.ArgumentParser) -> None:
    compare = add_command(
        commands,
        "compare",
        "compare the last run with older runs, or tests with a revision, and judge",
        example="monday.json tuesday.json today.json --max-regression 5%",
        codes={
            1: "a limit failed or a change regressed",
            **_UNDECIDED,
            4: "the inputs cannot be read or compared, or nothing could be measured",
        },
        parents=[form],
        function="compare:compare",
    )
    compare.add_argument(
        "files",
        metavar="RUN",
        nargs="*",
        type=file_name,
        help="a run's JSON file, a recording or a store; the last one is a run; or two "
        ".ncu-rep captures; with "
        "--against: tests, and pytest's options behind --",
    )
    compare.add_argument(
        "--against",
        metavar="REV",
        help="measure tests of this revision and of the working tree, interleaved",
    )
    compare.add_argument(
        "--max-regression",
        type=share,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="largest change for the worse that passes, as 5%%, or off (5%%)",
    )
    compare.add_argument(
        "--strict", action="store_true", help="exit 3 if nothing could be decided"
    )
    compare.add_argument(
        "--budget",
        type=duration,
        metavar="TIME",
        help="longest time of --against (10min)",
    )


def _add_report(commands: Commands, _: argparse.ArgumentParser) -> None:
    report = add_command(
        commands,
        "report",
        "write runs or captures as one HTML page, or a run as Markdown or CSV",
        example="run.json -o report.html",
        function="report:report",
    )
    report.description = (
        "Write the last run as one HTML page that needs no network; the samples of the "
        "others are shown beside its own. Captures (.ncu-rep) are one page. A name that "
        "ends with .md or .csv makes Markdown, for a comment of at most 65,536 bytes, or "
        "CSV."
    )
    report.add_argument(
        "runs",
        metavar="FILE",
        nargs="+",
        type=file_name,
        help="a run's JSON file, - for standard input, or a .ncu-rep capture",
    )
    report.add_argument(
        "--output",
        "-o",
        metavar="REPORT",
        type=file_name,
        required=True,
        help="the report; - for standard output",
    )
    report.add_argument(
        "--format",
        choices=("html", "markdown", "csv"),
        help="(by the end of REPORT; html)",
    )


def _add_export(commands: Commands, _: argparse.ArgumentParser) -> None:
    export = add_command(
        commands,
        "export",
        "write a run in a format that another program reads",
        example="run.json --to openmetrics -o metrics.txt",
        function="report:export",
    )
    export.add_argument(
        "file",
        metavar="RUN.json",
        type=file_name,
        help="a file of --gpuperf-json, - for standard input; for chrome-trace a folder of --gpuperf-record, "
        "or a run that has one",
    )
    export.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    export.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        type=file_name,
        default="-",
        help="the file; - for standard output (-)",
    )
    export.add_argument(
        "--digits",
        type=digits,
        metavar="N",
        help="significant digits of openmetrics, 1 to 17 (3)",
    )


def _add_bisect(commands: Commands, form: argparse.ArgumentParser) -> None:
    bisect = add_command(
        commands,
        "bisect",
        "find the commit that made a test slower; pytest's options behind --",
        example="tests/test_gemm.py::test_gemm --good v1.2",
        codes={
            0: "the commit is named",
            1: "there is no regression",
            2: "wrong usage, as a test or metric that is not there",
            3: "undecided, or one of several",
            4: "nothing could be measured, as on a full disk",
        },
        parents=[form],
        function="bisection:bisect",
    )
    bisect.add_argument("test", metavar="TEST", help="one test, as pytest names it")
    bisect.add_argument("--good", metavar="REV", required=True, help="a fast revision")
    bisect.add_argument(
        "--bad", metavar="REV", default="HEAD", help="a later, slow one (HEAD)"
    )
    bisect.add_argument(
        "--metric", metavar="NAME", default="time", help="what got worse (time)"
    )
    bisect.add_argument(
        "--max-regression",
        type=some_share,
        default="5%",
        metavar="SHARE",
        help="the smallest change that counts (5%%)",
    )
    bisect.add_argument(
        "--tests",
        choices=("same", "mine"),
        default="same",
        help="skip commits whose test differs (same), or run each one's on both sides",
    )
    bisect.add_argument(
        "--build", metavar="COMMAND", help="builds a commit, in its folder"
    )
    bisect.add_argument(
        "--carry",
        metavar="FILE",
        action="append",
        default=[],
        help="a file that git ignores and a commit needs; may be repeated",
    )
    bisect.add_argument(
        "--budget",
        type=duration,
        default="10min",
        metavar="TIME",
        help="longest time of one comparison (10min)",
    )
    bisect.add_argument(
        "--restart", action="store_true", help="forget an interrupted search"
    )


def _add_baseline(commands: Commands, form: argparse.ArgumentParser) -> None:
    baseline = add_command(
        commands,
        "baseline",
        "show and repair a store of sessions",
        example="list .gpuperf",
    )
    actions = baseline.add_subparsers(metavar="ACTION", required=True)
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("store", metavar="STORE", help="a folder, or a .json file")
    tests = argparse.ArgumentParser(add_help=False)
    tests.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="ID",
        help="only this test, class or module, as pytest names it; may be repeated",
    )
    add_command(
        actions,
        "list",
        "print its sessions",
        example=".gpuperf",
        parents=[form, store, tests],
        function="baseline:listed",
    )
    show = add_command(
        actions,
        "show",
        "print the series of a test",
        example=".gpuperf tests/test_gemm.py::test_gemm",
        parents=[form, store],
        function="baseline:show",
    )
    show.add_argument("test", metavar="ID", nargs="+", help="as pytest names it")
    show.add_argument("--metrics", type=metric_names, metavar="A,B", help="only these")
    drop = add_command(
        actions,
        "drop",
        "remove sessions",
        example=".gpuperf 3",
        parents=[form, store, tests],
        function="baseline:drop",
    )
    drop.add_argument(
        "sessions",
        metavar="SESSION",
        nargs="+",
        help="its number or id in the list; all: every one",
    )
    _add_accept(actions, [form, store, tests])
    _add_rename(actions, [form, store])
    add_command(
        actions,
        "restore",
        "put back what a run dropped with tests that were gone",
        example=".gpuperf",
        parents=[form, store, tests],
        function="baseline:restore",
    )


def _add_rename(actions: Commands, parents: Sequence[argparse.ArgumentParser]) -> None:
    rename = add_command(
        actions,
        "rename",
        "give tests that were renamed their sessions",
        example=".gpuperf tests/test_gemm.py::test_old tests/test_gemm.py::test_new",
        parents=parents,
        function="baseline:rename",
    )
    rename.add_argument(
        "old",
        metavar="OLD",
        help="the test, class, module or folder as it was called, as pytest names it",
    )
    rename.add_argument("new", metavar="NEW", help="what it is called now")


def _add_accept(actions: Commands, parents: Sequence[argparse.ArgumentParser]) -> None:
    accept = add_command(
        actions,
        "accept",
        "start the series of tests anew with the values of a run",
        example=".gpuperf run.json --test tests/test_gemm.py::test_gemm",
        parents=parents,
        function="baseline:accept",
    )
    accept.add_argument(
        "run",
        metavar="RUN.json",
        nargs="?",
        type=file_name,
        help="a file of --gpuperf-json; - for standard input",
    )
    accept.add_argument(
        "--edited", action="store_true", help="accept lines that were edited by hand"
    )


def _add_verify(commands: Commands, form: argparse.ArgumentParser) -> None:
    verify = add_command(
        commands,
        "verify",
        "check that a run came to its end",
        example="run.json --expect-from .gpuperf",
        codes={1: "the run was interrupted, or tests are missing"},
        parents=[form],
        function="verification:verify",
    )
    verify.add_argument(
        "run",
        metavar="RUN.json",
        type=file_name,
        help="a file of --gpuperf-json; - for standard input",
    )
    verify.add_argument(
        "--expect-from",
        metavar="STORE",
        help="check that no test of this baseline is missing, too",
    )
    verify.add_argument(
        "--allow-removed",
        action="store_true",
        help="pass a run without stored tests that are no longer in the code",
    )
    verify.add_argument(
        "--machine",
        metavar="NAME",
        action="append",
        default=[],
        help="expect only what is stored for this machine; may be repeated (all)",
    )


def _add_doctor(commands: Commands, form: argparse.ArgumentParser) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "check what prevents or distorts measurements on this machine, and print GPU peaks",
        example="--format json",
        codes={
            0: "ready; with --for=host: the host's times can be measured",
            1: "degraded: no GPU, or counters, launches, energy or memory cannot be "
            "measured",
            2: "blocked: a GPU whose time cannot be measured, or --measure-peaks failed; "
            "or wrong usage",
        },
        parents=[form],
        function="machine:doctor",
    )
    doctor.add_argument(
        "--for",
        dest="whose",
        choices=("gpu", "host"),
        default="gpu",
        help="what shall be measured: host leaves out what concerns GPUs alone (gpu)",
    )
    doctor.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure the peaks of DRAM and matrix products and store them for this user",
    )


def _add_explain(commands: Commands, form: argparse.ArgumentParser) -> None:
    page = add_command(
        commands,
        "explain",
        "print what the documentation says about a reason, error, metric, option or word",
        example="not-significant roofline.fraction --gpuperf-strict",
        parents=[form],
        function="explanations:explain",
    )
    page.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="as a message prints it; an option with or without its dashes",
    )


def _add_scorecard(commands: Commands, form: argparse.ArgumentParser) -> None:
    scorecard = add_command(
        commands,
        "scorecard",
        "print the scorecard of a step profile",
        example="step.json --throughput 210 --hardware 'NVIDIA H200,158e6'",
        codes={1: "something is worse than in the baseline, or an invariant fails"},
        parents=[form],
        function="scorecard:scorecard",
    )
    scorecard.add_argument(
        "profile",
        metavar="PROFILE.json",
        type=file_name,
        help="a step profile; - for standard input",
    )
    scorecard.add_argument(
        "--throughput", type=rate, required=True, metavar="N", help="tokens/s"
    )
    scorecard.add_argument(
        "--hardware",
        required=True,
        metavar="NAME|FILE.json|GB/S,BYTES|GPU,BYTES",
        help="peak bandwidth, and bytes moved per token; a GPU's name stands for its "
        "bandwidth, as 'NVIDIA H200,158e6'",
    )
    scorecard.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="SCORECARD.json",
        help="an older scorecard; several, oldest first, give the spread of sessions",
    )
    scorecard.add_argument(
        "--invariant",
        action="append",
        default=[],
        metavar='"A / B between X and Y"',
        help="a condition that the step must meet; may be repeated",
    )
    scorecard.add_argument(
        "--policy",
        choices=("reference", "measured"),
        default="reference",
        help="the rules; measured reports unknowns as unknown (reference)",
    )


def _add_parity(commands: Commands, form: argparse.ArgumentParser) -> None:
    parity = add_command(
        commands,
        "parity",
        "compare the steps of two runtimes",
        example="ours.json reference.json --policy measured",
        codes={1: "ours is slower", **_UNDECIDED},
        parents=[form],
        function="scorecard:parity",
    )
    parity.add_argument(
        "ours",
        metavar="OURS.json",
        type=file_name,
        help="our runtime's profile; - for standard input",
    )
    parity.add_argument(
        "reference",
        metavar="REFERENCE.json",
        type=file_name,
        help="the one that ours should match; - for standard input",
    )
    parity.add_argument(
        "--policy",
        choices=("reference", "measured"),
        default="reference",
        help="the rules: each operation alone, or weighed by time (reference)",
    )
    parity.add_argument(
        "--strict", action="store_true", help="exit 3 if nothing could be decided"
    )


def _add_utilization(commands: Commands, _: argparse.ArgumentParser) -> None:
    utilization = add_command(
        commands,
        "utilization",
        "print score, class, bottleneck and health of each GPU from recorded readings",
        example="readings.txt --format csv",
        function="utilization:utilization",
    )
    utilization.add_argument(
        "file",
        metavar="FILE",
        type=file_name,
        help="what dcgmi dmon, dcgm-exporter or nvidia-smi --format=csv printed, a run's "
        "JSON file or a recording; - for standard input",
    )
    utilization.add_argument(
        "--format",
        choices=("text", "json", "csv", "markdown"),
        default="text",
        help="csv has a row for each reading (text)",
    )
    utilization.add_argument(
        "--weights",
        default="ai",
        metavar="ai|hpc|mem|A,B,C,D",
        help="what the score weighs: a preset, or weights of SM, tensor, DRAM and "
        "graphics (ai)",
    )
    utilization.add_argument(
        "--interval",
        type=duration,
        default=1.0,
        metavar="TIME",
        help="between two readings, where the file has no times (1s)",
    )


def _add_completion(commands: Commands, _: argparse.ArgumentParser) -> None:
    shell = add_command(
        commands,
        "completion",
        "print what makes a shell complete this command line",
        example="bash",
        function="arguments:completion",
    )
    shell.add_argument(
        "shell",
        metavar="SHELL",
        choices=("bash", "zsh", "fish"),
        help="bash, zsh or fish",
    )


def _add_cache(commands: Commands, form: argparse.ArgumentParser) -> None:
    cache = add_command(
        commands,
        "cache",
        "manage the cache of ncu's values",
        example="info",
        codes={1: "verify found damaged entries"},
    )
    actions = cache.add_subparsers(metavar="ACTION", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument(
        "--folder",
        metavar="DIR",
        help="where it is ($GPUPERF_CACHE_DIR, or the user's cache folder)",
    )
    for name, purpose, example, codes in (
        ("info", "print its contents", "--format json", {}),
        (
            "verify",
            "read all entries and remove damaged ones",
            "",
            {1: "there were damaged entries"},
        ),
        ("clear", "remove all entries", "", {}),
    ):
        add_command(
            actions,
            name,
            purpose,
            example=example,
            codes=codes,
            parents=[form, folder],
            function=f"machine:{name}",
        )


def _add_metrics(commands: Commands, form: argparse.ArgumentParser) -> None:
    metrics = add_command(
        commands,
        "metrics",
        "look up hardware counters, chips and passes, without a GPU",
        example="search dram bytes --chip sm_90",
        codes={1: "search finds none, or a name of check is not a metric"},
    )
    within = metrics.add_subparsers(metavar="WHAT", required=True)
    chip = argparse.ArgumentParser(add_help=False)
    chip.add_argument(
        "--chip", metavar="CHIP", help="GH100, or sm_90 (the chip of this machine)"
    )
    add_command(
        within,
        "chips",
        "print every chip",
        example="--format json",
        parents=[form],
        function="machine:chips",
    )
    listed = add_command(
        within,
        "list",
        "print every metric of a chip",
        example="--chip sm_90 --kind ratio",
        parents=[form, chip],
        function="machine:listed",
    )
    listed.add_argument("--kind", choices=("counter", "ratio", "throughput"))
    search = add_command(
        within,
        "search",
        "find metrics by words",
        example="dram bytes --chip sm_90",
        codes={1: "no metric is found"},
        parents=[form, chip],
        function="machine:search",
    )
    search.add_argument("words", metavar="WORD", nargs="+")
    _add_lookups(within, [form, chip])


def _add_lookups(within: Commands, parents: Sequence[argparse.ArgumentParser]) -> None:
    for name, purpose, example, codes in (
        ("describe", "print the description of metrics", "dram__bytes.sum", {}),
        (
            "check",
            "say whether names are metrics",
            "dram__bytes.sum,sm__cycles_elapsed.avg",
            {1: "a name is not a metric"},
        ),
        (
            "passes",
            "print the passes that a kernel needs for metrics",
            "dram__bytes.sum lts__t_sectors.sum",
            {},
        ),
    ):
        command = add_command(
            within,
            name,
            purpose,
            example=f"{example} --chip sm_90",
            codes=codes,
            parents=parents,
            function=f"machine:{name}",
        )
        command.add_argument(
            "names", metavar="NAME", nargs="+", type=metric_names, action=JoinedNames
        )
