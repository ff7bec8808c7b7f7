"""The command line: the arguments of each command, its exit codes and its function."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_gpuperf.cli.output import INTERRUPTED, print_bytes
from pytest_gpuperf.cli.parser import (
    CommandParser,
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
    threads,
)

EXPORTS = (
    *("allure", "annotations", "bencher", "chrome-trace", "csv", "openmetrics"),
    *("pytest-benchmark", "pytorch"),
)


class _Command(NamedTuple):
    """One command: words, purpose, arguments of an example, function, own exit codes."""

    words: str
    purpose: str
    example: str
    # "module:function" of this folder, imported only when the command runs. A command
    # of commands has their metavar instead.
    function: str
    codes: Mapping[int, str] = MappingProxyType({})
    description: str | None = None  # None if the purpose says all.


class _Argument(NamedTuple):
    """
    One argument: names and metavar as `--output,-o FILE`, the rest in argparse's words.

    Without a metavar and choices it is a flag.
    """

    names: str
    help: str | None
    type: Callable[[str], object] | None = None
    choices: tuple[str, ...] | None = None
    default: object = None
    nargs: str | None = None
    const: object = None
    required: bool | None = None  # argparse refuses False for a positional argument.
    action: str | None = None
    dest: str | None = None


_UNDECIDED = {3: "nothing could be decided, with --strict"}

# Arguments of several commands.
_FORMAT = _Argument(
    "--format",
    "output format (text)",
    choices=("text", "json", "markdown"),
    default="text",
)
_METRICS = _Argument("--metrics A,B", "show only these metrics", metric_names)
_STRICT = _Argument("--strict", "exit 3 if nothing could be decided")
_STORE = _Argument("store STORE", "a folder, a .json file, or the URL of a database")
_TESTS = _Argument(
    "--test ID",
    "only this test, class or module, as pytest names it; may be repeated",
    action="append",
)
_FOLDER = _Argument(
    "--folder DIR",
    "the cache ($GPUPERF_CACHE_DIR, or a folder in the user's cache folder)",
)
_CHIP = _Argument("--chip CHIP", "a chip, as GH100 or sm_90 (the chip of this machine)")
_NAMES = _Argument("names NAME", None, metric_names, nargs="+")

# Every command, and below it its arguments in the order of its help.
_ROWS: tuple[_Command | _Argument, ...] = (
    _Command(
        "show",
        "print a .ncu-rep capture, a run's JSON file, or the kernels of a binary",
        "report.ncu-rep --kernel 'gemm*' --details",
        "show:show",
    ),
    _FORMAT,
    _Argument(
        "files FILE",
        "of a run - is standard input; several are the shards of one run",
        file_name,
        nargs="+",
    ),
    _Argument(
        "--launches 3-5,8",
        "with numbers, only these launches of a capture; without numbers, every kernel "
        "launch of a recording (--gpuperf-record), or of a run with one",
        launch_numbers,
        nargs="?",
        const=(),
    ),
    _Argument(
        "--kernel PATTERN",
        "only launches of a capture, or kernels of a binary, with a matching name",
    ),
    _Argument(
        "--block THREADS",
        "threads of a block, for the occupancy of a binary's kernels",
        threads,
    ),
    _Argument("--target CHIP", "only kernels of a binary for this chip, as sm_90a"),
    _Argument(
        "--nvtx RANGE",
        "only launches of a capture inside this NVTX range, as forward/",
        action="append",
    ),
    _Argument(
        "--exclude RANGE",
        "no launches of a capture inside this NVTX range",
        action="append",
    ),
    _METRICS,
    _Argument(
        "--list",
        "list each launch of a capture; by default, more than ten are summed by kernel",
    ),
    _Argument(
        "--details",
        "show clocks, occupancy, throughput, rooflines, stalls and ncu's advice of each "
        "launch, as by default of a single launch",
    ),
    _Argument(
        "--sort",
        "the order of the kernels of a capture (total)",
        choices=("total", "count", "median", "longest", "name"),
    ),
    _Argument("--top N", "show only the first N kernels of each range", count),
    _Command(
        "compare",
        "compare the last run with older runs, or tests with a revision, and judge",
        "monday.json tuesday.json today.json --max-regression 5%",
        "compare:compare",
        {
            1: "a limit failed or a change regressed",
            **_UNDECIDED,
            4: "the inputs cannot be read or compared, or nothing could be measured",
        },
    ),
    _FORMAT,
    _Argument(
        "files RUN",
        "a run's JSON file, a recording or a store; the last one is a run; the shards of "
        "a run count as one; or two "
        ".ncu-rep captures; or two binaries with kernels, or folders of them; with "
        "--against: tests, and options for pytest after --",
        file_name,
        nargs="*",
    ),
    _Argument(
        "--against REV",
        "measure tests of this revision and of the working tree, interleaved",
    ),
    _Argument(
        "--max-regression SHARE",
        "largest change for the worse that passes, as 5%%, or off (5%%)",
        share,
        default=argparse.SUPPRESS,
    ),
    _Argument(
        "--fail-on",
        "what gives exit code 1 for two captures: a kernel that is slower at the same "
        "clock, a metric that is worse, any difference, or nothing (worse); for two "
        "binaries: a kernel that is worse, any difference, or nothing (worse)",
        choices=("slower", "worse", "any", "never"),
    ),
    _Argument("--target CHIP", "only kernels of two binaries for this chip, as sm_90a"),
    _Argument(
        "--block THREADS",
        "threads of a block, to compare the occupancy of two binaries' kernels",
        threads,
    ),
    _Argument(
        "--total",
        "compare totals of two captures instead of means per launch, if a kernel has "
        "different numbers of launches",
    ),
    _STRICT,
    _Argument("--budget TIME", "longest time of --against (10min)", duration),
    _Command(
        "inventory",
        "list every kernel of libraries, and compare with a file that git keeps",
        "libkernels.so --baseline kernels.jsonl",
        "builds:inventory",
        {1: "a kernel is worse than in the baseline, or differs with --fail-on=any"},
    ),
    _FORMAT,
    _Argument(
        "libraries LIB",
        "a library, cubin, fatbin or code object, or a folder of them",
        file_name,
        nargs="+",
    ),
    _Argument("--baseline FILE", "the kernels to compare with", file_name),
    _Argument("--update", "write the baseline; exit 0"),
    _Argument("--target CHIP", "only kernels for this chip, as sm_90a"),
    _Argument(
        "--fail-on",
        "what gives exit code 1: a kernel that is worse, any difference, or nothing "
        "(worse)",
        choices=("worse", "any", "never"),
    ),
    _Command(
        "report",
        "write runs or captures as one HTML page, or a run as Markdown or CSV",
        "run.json -o report.html",
        "report:report",
        description="Write the last run as one HTML page that needs no network; the "
        "samples of the others are shown next to its own. Captures (.ncu-rep) are one "
        "page. A name that ends with .md or .csv makes Markdown, for a comment of at "
        "most 65,536 bytes, or CSV.",
    ),
    _Argument(
        "runs FILE",
        "a run's JSON file, - for standard input, or a .ncu-rep capture; the shards of a "
        "run count as one",
        file_name,
        nargs="+",
    ),
    _Argument(
        "--output,-o REPORT",
        "the report; - for standard output",
        file_name,
        required=True,
    ),
    _Argument(
        "--format",
        "output format (by the suffix of REPORT; html)",
        choices=("html", "markdown", "csv"),
    ),
    _Command(
        "merge",
        "write the shards of a run as one run, and name missing shards",
        "shard-1.json shard-2.json -o run.json",
        "merge:merge",
        {
            1: "a shard is missing, or did not come to its end",
            4: "a file cannot be read, the runs do not belong together, or the output "
            "cannot be written",
        },
    ),
    _FORMAT,
    _Argument("files RUN.json", "a file of --gpuperf-json", file_name, nargs="+"),
    _Argument(
        "--output,-o FILE",
        "the run of the whole suite; - for standard output",
        file_name,
        required=True,
    ),
    _Command(
        "export",
        "write a run in a format that another program reads",
        "run.json --to openmetrics -o metrics.txt",
        "report:export",
    ),
    _Argument(
        "files RUN.json",
        "a file of --gpuperf-json, - for standard input; several are the shards of one "
        "run; for chrome-trace a folder of --gpuperf-record, or a run that has one",
        file_name,
        nargs="+",
    ),
    _Argument("--to", "the format", choices=EXPORTS, required=True),
    _Argument(
        "--output,-o FILE",
        "the file; - for standard output (-)",
        file_name,
        default="-",
    ),
    _Argument("--digits N", "significant digits of openmetrics, 1 to 17 (3)", digits),
    _Command(
        "bisect",
        "find the commit that made a test slower; options for pytest follow after --",
        "tests/test_gemm.py::test_gemm --good v1.2",
        "bisection:bisect",
        {
            0: "the commit is named",
            1: "there is no regression",
            2: "usage error, such as a test or a metric that does not exist",
            3: "undecided, or one of several",
            4: "nothing could be measured, as on a full disk",
        },
    ),
    _FORMAT,
    _Argument("test TEST", "one test, as pytest names it"),
    _Argument("--good REV", "a revision in which the test is fast", required=True),
    _Argument(
        "--bad REV", "a later revision in which the test is slow (HEAD)", default="HEAD"
    ),
    _Argument("--metric NAME", "the metric that got worse (time)", default="time"),
    _Argument(
        "--max-regression SHARE",
        "the smallest change that counts (5%%)",
        some_share,
        default="5%",
    ),
    _Argument(
        "--tests",
        "skip commits with another source of the test (same), or run each commit's test on "
        "both sides (mine)",
        choices=("same", "mine"),
        default="same",
    ),
    _Argument("--build COMMAND", "a command that builds a commit, run in its folder"),
    _Argument(
        "--carry FILE",
        "a file that git ignores and each commit needs; may be repeated",
        action="append",
    ),
    _Argument(
        "--budget TIME",
        "longest time of one comparison (10min)",
        duration,
        default="10min",
    ),
    _Argument("--restart", "forget an interrupted search"),
    _Command(
        "history",
        "show when the tests of a store got slower, and since which commit",
        "tests/test_gemm.py::test_gemm --baseline .gpuperf",
        "history:history",
        {1: "a test is slower, with --fail-on=slower"},
    ),
    _FORMAT,
    _Argument(
        "tests TEST",
        "a test, class or module, as pytest names it (all tests that changed)",
        nargs="*",
    ),
    _Argument(
        "--baseline STORE",
        "a folder, a .json file, or the URL of a database ($GPUPERF_BASELINE, or .gpuperf)",
    ),
    _METRICS,
    _Argument(
        "--output,-o PAGE", "write an HTML page; - for standard output", file_name
    ),
    _Argument("--since DAY", "no changes before this day, as 2026-05-31"),
    _Argument(
        "--all-branches",
        "also sessions of other branches than main (or master, or the one with most)",
    ),
    _Argument(
        "--fail-on",
        "what gives exit code 1: a test that is slower and was not accepted, or nothing "
        "(never)",
        choices=("slower", "never"),
        default="never",
    ),
    _Command(
        "baseline", "show and repair a store of sessions", "list .gpuperf", "ACTION"
    ),
    _Command("baseline list", "print its sessions", ".gpuperf", "baseline:listed"),
    *(_FORMAT, _STORE, _TESTS),
    _Command(
        "baseline show",
        "print the series of a test",
        ".gpuperf tests/test_gemm.py::test_gemm",
        "baseline:show",
    ),
    *(_FORMAT, _STORE),
    _Argument("test ID", "as pytest names it", nargs="+"),
    _METRICS,
    _Command("baseline drop", "remove sessions", ".gpuperf 3", "baseline:drop"),
    *(_FORMAT, _STORE, _TESTS),
    _Argument(
        "sessions SESSION", "its number or id in the list; all: every one", nargs="+"
    ),
    _Command(
        "baseline accept",
        "start the series of tests anew with the values of a run",
        ".gpuperf run.json --test tests/test_gemm.py::test_gemm",
        "baseline:accept",
    ),
    *(_FORMAT, _STORE, _TESTS),
    _Argument(
        "run RUN.json",
        "a file of --gpuperf-json; - for standard input",
        file_name,
        nargs="?",
    ),
    _Argument("--edited", "accept lines that were edited by hand"),
    _Command(
        "baseline rename",
        "give tests that were renamed their sessions",
        ".gpuperf tests/test_gemm.py::test_old tests/test_gemm.py::test_new",
        "baseline:rename",
    ),
    *(_FORMAT, _STORE),
    _Argument(
        "old OLD",
        "the test, class, module or folder as it was called, as pytest names it",
    ),
    _Argument("new NEW", "what it is called now"),
    _Command(
        "baseline restore",
        "put back what a run dropped with tests that were gone",
        ".gpuperf",
        "baseline:restore",
    ),
    *(_FORMAT, _STORE, _TESTS),
    _Command(
        "baseline copy",
        "copy the sessions that count into another store",
        "postgresql://db.example/perf sqlite:///snapshot.db",
        "copies:copy",
    ),
    *(_FORMAT, _STORE),
    _Argument("target TARGET", "the other store, which is created if it is missing"),
    _Argument(
        "--machine SLUG",
        "only sessions of this kind of machine; may be repeated",
        action="append",
        dest="machines",
    ),
    _Argument(
        "--newest N", "only the newest N sessions of each test (all that count)", count
    ),
    _Command(
        "baseline import",
        "store results of pytest-benchmark and nvbench",
        ".gpuperf benchmark.json",
        "copies:imported",
    ),
    *(_FORMAT, _STORE),
    _Argument("files FILE", "a JSON file of the other tool", nargs="+"),
    _Command(
        "baseline send",
        "store the sessions that runs could not store while a database was away",
        "postgresql://db.example/perf",
        "copies:send",
    ),
    *(_FORMAT, _STORE),
    _Argument(
        "files FILE", "a file that a run has kept (all in .gpuperf-unsent)", nargs="*"
    ),
    _Command(
        "baseline migrate",
        "create the tables of a database, as its owner",
        "postgresql://db.example/perf",
        "copies:migrate",
    ),
    *(_FORMAT, _STORE),
    _Command(
        "baseline prune",
        "remove old sessions of a database, as its owner",
        "postgresql://db.example/perf --sessions 60",
        "copies:prune",
    ),
    *(_FORMAT, _STORE),
    _Argument(
        "--sessions N",
        "newest sessions of each series that stay (60)",
        count,
        default=60,
    ),
    _Argument("--dry-run", "only count what would be removed"),
    _Command(
        "baseline grants",
        "print the statements that let roles of PostgreSQL store or read",
        "",
        "copies:grants",
    ),
    _Argument("--schema NAME", "the schema of the tables (gpuperf)", default="gpuperf"),
    _Command(
        "verify",
        "check that a run came to its end",
        "run.json --expect-from .gpuperf",
        "verification:verify",
        {1: "the run was interrupted, or tests or shards are missing"},
    ),
    _FORMAT,
    _Argument(
        "run RUN.json",
        "a file of --gpuperf-json; - for standard input",
        file_name,
        nargs="?",
    ),
    _Argument(
        "--run-id TEXT",
        "in place of RUN.json: check that every shard of this run is in the store",
    ),
    _Argument(
        "--expect-from STORE", "check that no test of this baseline is missing, too"
    ),
    _Argument(
        "--allow-removed",
        "pass a run without stored tests that are no longer in the code",
    ),
    _Argument(
        "--machine NAME",
        "expect only what is stored for this machine; may be repeated (all)",
        action="append",
    ),
    _Command(
        "doctor",
        "check what prevents or distorts measurements on this machine, and print GPU peaks",
        "--format json",
        "machine:doctor",
        {
            0: "ready; with --for=host: the host's times can be measured",
            1: "degraded: no GPU, or counters, launches, energy or memory cannot be "
            "measured",
            2: "blocked: a GPU whose time cannot be measured, or --measure-peaks failed; "
            "or a usage error",
        },
    ),
    _FORMAT,
    _Argument(
        "--for",
        "what shall be measured: host leaves out what concerns GPUs alone (gpu)",
        choices=("gpu", "host"),
        default="gpu",
        dest="whose",
    ),
    _Argument(
        "--measure-peaks",
        "measure the peaks of DRAM and matrix products and store them for this user",
    ),
    _Command(
        "explain",
        "print what the documentation says about a reason, error, metric, option or word",
        "not-significant roofline.fraction --gpuperf-strict",
        "explanations:explain",
    ),
    _FORMAT,
    _Argument(
        "names NAME",
        "as a message prints it; an option with or without its dashes",
        nargs="+",
    ),
    _Command(
        "scorecard",
        "print the scorecard of a step profile",
        "step.json --throughput 210 --hardware 'NVIDIA H200,158e6'",
        "scorecard:scorecard",
        {1: "something is worse than in the baseline, or an invariant fails"},
    ),
    _FORMAT,
    _Argument(
        "profile PROFILE.json", "a step profile; - for standard input", file_name
    ),
    _Argument("--throughput N", "tokens/s", rate, required=True),
    _Argument(
        "--hardware NAME|FILE.json|GB/S,BYTES|GPU,BYTES",
        "peak bandwidth, and bytes moved per token; a GPU's name stands for its "
        "bandwidth, as 'NVIDIA H200,158e6'",
        required=True,
    ),
    _Argument(
        "--baseline SCORECARD.json",
        "an older scorecard; several, oldest first, give the spread of sessions",
        action="append",
    ),
    _Argument(
        '--invariant "A / B between X and Y"',
        "a condition that the step must meet; may be repeated",
        action="append",
    ),
    _Argument(
        "--policy",
        "the rules; measured reports unknowns as unknown (reference)",
        choices=("reference", "measured"),
        default="reference",
    ),
    _Command(
        "parity",
        "compare the steps of two runtimes",
        "ours.json reference.json --policy measured",
        "scorecard:parity",
        {1: "ours is slower", **_UNDECIDED},
    ),
    _FORMAT,
    _Argument(
        "ours OURS.json", "our runtime's profile; - for standard input", file_name
    ),
    _Argument(
        "reference REFERENCE.json",
        "the one that ours should match; - for standard input",
        file_name,
    ),
    _Argument(
        "--policy",
        "the rules: each operation alone, or weighed by time (reference)",
        choices=("reference", "measured"),
        default="reference",
    ),
    _STRICT,
    _Command(
        "utilization",
        "print score, class, bottleneck and health of each GPU from recorded readings",
        "readings.txt --format csv",
        "utilization:utilization",
    ),
    _Argument(
        "file FILE",
        "what dcgmi dmon, dcgm-exporter, nvidia-smi dmon or nvidia-smi --format=csv "
        "printed, a run's JSON file or a recording; - for standard input",
        file_name,
    ),
    _Argument(
        "--format",
        "output format; csv has a row for each reading (text)",
        choices=("text", "json", "csv", "markdown"),
        default="text",
    ),
    _Argument(
        "--weights ai|hpc|mem|A,B,C,D",
        "weights of the score: a preset, or those of SM, tensor, DRAM and graphics (ai)",
        default="ai",
    ),
    _Argument(
        "--interval TIME",
        "time between two readings, if the file has no times (1s)",
        duration,
        default=1.0,
    ),
    _Command(
        "metrics",
        "look up hardware counters, chips and passes, without a GPU",
        "search dram bytes --chip sm_90",
        "WHAT",
        {1: "search finds none, or a name of check is not a metric"},
    ),
    _Command("metrics chips", "print every chip", "--format json", "machine:chips"),
    _FORMAT,
    _Command(
        "metrics list",
        "print every metric of a chip",
        "--chip sm_90 --kind ratio",
        "machine:listed",
    ),
    *(_FORMAT, _CHIP),
    _Argument("--kind", None, choices=("counter", "ratio", "throughput")),
    _Command(
        "metrics search",
        "find metrics by words",
        "dram bytes --chip sm_90",
        "machine:search",
        {1: "no metric is found"},
    ),
    *(_FORMAT, _CHIP),
    _Argument("words WORD", None, nargs="+"),
    _Command(
        "metrics describe",
        "print the description of metrics",
        "dram__bytes.sum --chip sm_90",
        "machine:describe",
    ),
    *(_FORMAT, _CHIP, _NAMES),
    _Command(
        "metrics check",
        "say whether names are metrics",
        "dram__bytes.sum,sm__cycles_elapsed.avg --chip sm_90",
        "machine:check",
        {1: "a name is not a metric"},
    ),
    *(_FORMAT, _CHIP, _NAMES),
    _Command(
        "metrics passes",
        "print the passes that a kernel needs for metrics",
        "dram__bytes.sum lts__t_sectors.sum --chip sm_90",
        "machine:passes",
    ),
    *(_FORMAT, _CHIP, _NAMES),
    _Command(
        "cache",
        "manage the cache of ncu's values",
        "info",
        "ACTION",
        {1: "verify found damaged entries"},
    ),
    _Command("cache info", "print its contents", "--format json", "machine:info"),
    *(_FORMAT, _FOLDER),
    _Command(
        "cache verify",
        "read all entries and remove damaged ones",
        "",
        "machine:verify",
        {1: "there were damaged entries"},
    ),
    *(_FORMAT, _FOLDER),
    _Command("cache clear", "remove all entries", "", "machine:clear"),
    *(_FORMAT, _FOLDER),
    _Command(
        "completion",
        "print a shell completion script",
        "bash",
        "arguments:completion",
    ),
    _Argument("shell SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """
    Parse a command line.

    For `bisect` and `compare`, everything after `--` is kept in `options` for pytest.
    It is split off first, because argparse would mix it with the positional arguments.
    """
    if argv[:1] == ["explain"]:  # The dashes of an option to explain are not our own.
        argv = [a.lstrip("-") if a.startswith("--gpuperf") else a for a in argv]
    named = parser(argv[0] if argv else "")
    if not (argv and argv[0] in {"bisect", "compare"}):
        return named.parse_args(argv)
    end = [*argv, "--"].index("--")
    arguments = named.parse_args(argv[:end])
    arguments.options = [*argv[end + 1 :]]
    return arguments


def parser(first: str = "") -> argparse.ArgumentParser:
    """
    Return the parser of all commands, or of one command if a command line begins with it.

    To build all of them takes 10 ms longer.

    Args:
        first: The first word of the command line.
    """
    command: argparse.ArgumentParser = CommandParser(
        prog="gpuperf",
        description="Show and compare what pytest-gpuperf and Nsight Compute measured.",
    )
    codes = {
        1: "a limit failed, a change regressed, or verify found that tests are missing",
        **_UNDECIDED,
        INTERRUPTED: "interrupted; doctor has exit codes of its own",
    }
    explained = [(command, "compare before.json after.json", codes)]
    command.set_defaults(command=None)
    command.add_argument("--version", action="store_true", help="print the version")
    whole = command
    commands = {"": command.add_subparsers(metavar="COMMAND", prog=command.prog)}
    for row in _rows_of(first) or _ROWS:
        if isinstance(row, _Argument):
            names, _, metavar = row.names.partition(" ")
            how: dict[str, Any] = {
                k: v for k, v in row._asdict().items() if v is not None
            }
            del how["names"]
            if metavar:
                how["metavar"] = metavar
            elif row.choices is None:
                how["action"] = "store_true"
            if row.action == "append":
                how["default"] = []
            command.add_argument(*names.split(","), **how)
            continue
        above, _, word = row.words.rpartition(" ")
        about = row.description or f"{row.purpose[:1].upper()}{row.purpose[1:]}."
        command = commands[above].add_parser(word, help=row.purpose, description=about)
        explained.append((command, row.example, {**row.codes}))
        if ":" in row.function:
            command.set_defaults(command=row.function)
        else:
            commands[word] = command.add_subparsers(
                metavar=row.function, prog=command.prog, required=True
            )
    for each, example, meanings in explained:
        explain(each, example, meanings)
    return whole


def _rows_of(first: str) -> list[_Command | _Argument]:
    """Return the rows of a command and of the commands below it."""
    rows, is_inside = [], False
    for row in _ROWS:
        if isinstance(row, _Command):
            is_inside = row.words.split()[0] == first
        if is_inside:
            rows.append(row)
    return rows


def completion(arguments: argparse.Namespace) -> int:
    """Print a script that makes a shell complete the command line."""
    return print_bytes(completion_script(parser(), arguments.shell).encode())
