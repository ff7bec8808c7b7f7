"""The command line: the arguments of each command and its function.

A command's function is named as "module:function" of this package and imported only when
it runs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_gpuperf.cli.output import (
    INTERRUPTED,
    PIPE_CLOSED,
    WRONG_USAGE,
    print_bytes,
    say,
)
from pytest_gpuperf.errors import UnitError

if TYPE_CHECKING:
    from typing import TypeAlias

    # what add_subparsers returns has no public name
    _Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - see above

__all__ = ["EXPORTS", "parse", "parser"]

_BEHIND = frozenset({"bisect", "compare"})  # they hand on what stands behind --

# what the exit codes of a command say, by its words; "" is the whole program
_CODES: Mapping[str, Mapping[int, str]] = {
    "": {
        1: "a limit failed, a change regressed, or a run that is verified lacks tests",
        3: "nothing could be decided, with --strict",
        INTERRUPTED: "interrupted; the codes of doctor are its own",
    },
    "compare": {
        1: "a limit failed or a change regressed",
        3: "nothing could be decided, with --strict",
        4: "the inputs cannot be read or compared, or nothing could be measured",
    },
    "bisect": {
        0: "the commit is named",
        1: "there is no regression",
        2: "wrong usage, as a test or metric that is not there",
        3: "undecided, or one of several",
        4: "nothing could be measured, as on a full disk",
    },
    "verify": {1: "the run was interrupted, or tests are missing"},
    "doctor": {
        0: "ready",
        1: "degraded: no GPU, or counters, launches, energy or memory cannot be measured",
        2: "blocked: a GPU whose time cannot be measured, or --measure-peaks failed; or "
        "wrong usage",
    },
    "scorecard": {1: "something is worse than in the baseline, or an invariant fails"},
    "parity": {
        1: "ours is slower",
        3: "nothing could be decided, with --strict",
    },
    "metrics": {1: "search finds none, or a name of check is not a metric"},
    "metrics search": {1: "no metric is found"},
    "metrics check": {1: "a name is not a metric"},
    "cache": {1: "verify found damaged entries"},
    "cache verify": {1: "there were damaged entries"},
}
_USUAL_CODES = {
    0: "good",
    2: "wrong usage, as an option that chooses nothing",
    4: "an input cannot be read, or the output cannot be written",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "what reads the output closed the pipe",
}

EXPORTS = (
    *("allure", "annotations", "bencher", "chrome-trace", "csv", "openmetrics"),
    *("pytest-benchmark", "pytorch"),
)
_MOST_DIGITS = 17  # of a float: more say nothing
_EXAMPLES = {  # by the words of a command; a test parses each of them
    "": "compare before.json after.json",
    "show": "report.ncu-rep --kernel 'gemm*' --details",
    "compare": "monday.json tuesday.json today.json --max-regression 5%",
    "report": "run.json -o report.html",
    "export": "run.json --to openmetrics -o metrics.txt",
    "bisect": "tests/test_gemm.py::test_gemm --good v1.2",
    "baseline": "list .gpuperf",
    "baseline list": ".gpuperf",
    "baseline show": ".gpuperf tests/test_gemm.py::test_gemm",
    "baseline drop": ".gpuperf 3",
    "baseline accept": ".gpuperf run.json --test tests/test_gemm.py::test_gemm",
    "verify": "run.json --expect-from .gpuperf",
    "doctor": "--format json",
    "scorecard": "step.json --throughput 210 --hardware 'NVIDIA H200,158e6'",
    "parity": "ours.json reference.json --policy measured",
    "utilization": "readings.txt --format csv",
    "metrics": "search dram bytes --chip sm_90",
    "metrics chips": "--format json",
    "metrics list": "--chip sm_90 --kind ratio",
    "metrics search": "dram bytes --chip sm_90",
    "metrics describe": "dram__bytes.sum --chip sm_90",
    "metrics check": "dram__bytes.sum,sm__cycles_elapsed.avg --chip sm_90",
    "metrics passes": "dram__bytes.sum lts__t_sectors.sum --chip sm_90",
    "cache": "info",
    "cache info": "--format json",
    "cache verify": "",
    "cache clear": "",
    "completion": "bash",
}
_EXAMPLE = "example: "  # before one
_UNKNOWN = "unknown arguments:"
_MOST_LAUNCHES = 1_000_000  # of one range of numbers: a report with so many is 2 GB


class _Lines(argparse.HelpFormatter):
    """Keeps the lines of a text, and commands whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each line alone, what is left of it below its words."""
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=" " * 5)
            if line.startswith(" ")
            else line
            if line.startswith(_EXAMPLE)  # it is copied, and may have quotes
            else super(_Lines, self)._fill_text(line, width, indent)
            for line in text.splitlines()
        )


class _Parser(argparse.ArgumentParser):
    """Ends an error with what to do instead, as every other error here."""

    _unknown: Sequence[str] = ()  # options that it does not have

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error and an example of the command; exit with 2."""
        self.print_usage(sys.stderr)
        unknown = [word for word in self._unknown if word not in message]
        if unknown:
            message = f"{message}; {_UNKNOWN} {', '.join(unknown)}"
        remedies = [_meant(word, self._long_options()) for word in self._unknown]
        remedies.append(f"see {self.prog} --help")
        if " " in self.prog:
            remedies.append(str(self.epilog).rpartition("\n")[2])  # the example
        remedy = "; ".join(filter(None, remedies))
        say([f"{self.prog}: error: {message}", f"    remedy: {remedy}"])
        self.exit(WRONG_USAGE)

    def parse_known_args(  # type: ignore[override] # argparse's has an overload for each kind of namespace
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """
        Parse the arguments of this command; what it does not take is its error.

        argparse would name the whole program, whose help does not have the options.
        """
        options = self._long_options()
        own: Iterable[str] = args or ()
        if self._subparsers is not None:  # what follows is of another parser
            own = itertools.takewhile(lambda word: word.startswith("-"), own)
        self._unknown = [
            word
            for word in (word.partition("=")[0] for word in own)
            if word.startswith("--") and not any(o.startswith(word) for o in options)
        ]
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"{_UNKNOWN} {', '.join(rest)}")
        return known, rest

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is not a choice, with the nearest ones."""
        if action.choices is None or value in action.choices:
            return
        choices = [*map(str, action.choices)]
        meant = _meant(str(value), choices)
        known = f"{value!r} is not one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, "; ".join(filter(None, (known, meant))))

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:  # noqa: ANN401 - as argparse has it
        """Return the value of an option or an argument; argparse loses "--" as a value."""
        if words == ["--"] and action.option_strings and action.nargs is None:
            message = f"{action.metavar} is missing or begins with a dash"
            raise argparse.ArgumentError(action, message)
        return super()._get_values(action, words)

    def _match_argument(self, action: argparse.Action, pattern: str) -> int:
        """Return how many words an option takes; one that lacks its value says of what."""
        try:
            return super()._match_argument(action, pattern)
        except argparse.ArgumentError:
            if action.nargs is not None or not action.option_strings:
                raise
            message = f"{action.metavar} is missing or begins with a dash"
            raise argparse.ArgumentError(action, message) from None

    def _long_options(self) -> list[str]:
        """Return the options that have a name."""
        return [name for name in self._option_string_actions if name.startswith("--")]


class _Joined(argparse.Action):
    """Joins the names of several arguments into one list."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002 - as argparse calls it
    ) -> None:
        """Store the joined names."""
        setattr(
            namespace, self.dest, [name for names in values or () for name in names]
        )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """
    Return the arguments of a command line; `options`: pytest's, from behind `--`.

    argparse would take those for more of the positional arguments, or for none.
    """
    end = [*argv, "--"].index("--")
    if not (argv and argv[0] in _BEHIND):
        return parser().parse_args(argv)
    arguments = parser().parse_args(argv[:end])
    arguments.options = [*argv[end + 1 :]]
    return arguments


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole: argparse.ArgumentParser = _Parser(
        prog="gpuperf",
        description="Show and compare what pytest-gpuperf and Nsight Compute measured.",
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
        _add_scorecard,
        _add_parity,
        _add_utilization,
        _add_metrics,
        _add_cache,
        _add_completion,
    ):
        add(commands, form)
    _explain(whole, "", "")
    for path, purpose, command in _commands(whole):
        _explain(command, path, purpose)
    return whole


def _explain(command: argparse.ArgumentParser, path: str, purpose: str) -> None:
    """Say in a command's help what it is for, its exit codes, and an example."""
    codes = {**_USUAL_CODES, **_CODES.get(path, {})}
    lines = [f" {code:>3} {codes[code]}" for code in sorted(codes)]
    words = " ".join(filter(None, (path, _EXAMPLES[path])))
    command.description = command.description or f"{purpose[:1].upper()}{purpose[1:]}."
    command.epilog = "\n".join(
        ["exit codes:", *lines, "", f"{_EXAMPLE}gpuperf {words}"]
    )
    command.formatter_class = _Lines


def completion(arguments: argparse.Namespace) -> int:
    """Print what makes a shell complete the command line."""
    words: dict[str, list[str]] = {"": []}
    values: dict[tuple[str, str], Sequence[str]] = {}  # by command and option
    for path, _, command in _commands(parser()):
        first, _, second = path.partition(" ")
        words["" if not second else first].append(second or first)
        own = words.setdefault(first, [])
        for action in command._actions:  # noqa: SLF001 - argparse has no other list of them
            options = [o for o in action.option_strings if o.startswith("--")]
            own += options
            if action.choices is not None and not isinstance(action.choices, Mapping):
                choices = [*map(str, action.choices)]
                values.update(((first, option), choices) for option in options)
                own += [] if options else choices
    script = (_fish if arguments.shell == "fish" else _bash)(words, values)
    return print_bytes(script.encode())


def _commands(
    root: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield every command with its words and purpose, before its own commands."""
    for action in root._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            purposes = {c.dest: c.help or "" for c in action._choices_actions}  # noqa: SLF001 - nor have these
            for name, command in action.choices.items():
                words = f"{path} {name}".lstrip()
                yield words, purposes[name], command
                yield from _commands(command, words)


def _bash(
    words: Mapping[str, Sequence[str]], values: Mapping[tuple[str, str], Sequence[str]]
) -> str:
    """Return a script for bash, and for zsh with its functions of bash."""
    cases = {f"'{name} {option}'": own for (name, option), own in values.items()}
    cases |= {f"'{name} '*": own for name, own in words.items() if name}
    lines = "\n".join(
        f"      {case}) words='{' '.join(dict.fromkeys(own))}' ;;"
        for case, own in cases.items()
    )
    return f"""\
[ -n "$ZSH_VERSION" ] && autoload -U +X bashcompinit && bashcompinit
_gpuperf() {{
  local words='{" ".join(words[""])}'
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local hidden='--*'
  # bash takes --format=json for three words
  [ "$word" = = ] && word=
  [ "$before" = = ] && before="${{COMP_WORDS[COMP_CWORD-2]}}"
  # a word that is not begun yet may be a file
  case "$word" in -*) hidden= ;; esac
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}} $before" in
{lines}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -X "$hidden" -- "$word"))
}}
complete -o default -F _gpuperf gpuperf
"""


def _fish(
    words: Mapping[str, Sequence[str]], values: Mapping[tuple[str, str], Sequence[str]]
) -> str:
    """Return a script for fish."""
    lines = [f"complete -c gpuperf -n __fish_use_subcommand -a '{' '.join(words[''])}'"]
    for name, options in words.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for option in dict.fromkeys(options if name else ()):
            word = f"-l {option[2:]}" if option.startswith("--") else f"-a {option}"
            if (name, option) in values:
                word = f"{word} -x -a '{' '.join(values[name, option])}'"
            lines.append(f"complete -c gpuperf {condition} {word}")
    return "\n".join(lines) + "\n"


def _add_show(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `show`."""
    show = commands.add_parser(
        "show",
        parents=[form],
        help="print a .ncu-rep capture, a run's JSON file, or the kernels of a binary",
    )
    show.add_argument(
        "file", metavar="FILE", type=_file, help="of a run - is standard input"
    )
    show.add_argument(
        "--launches",
        nargs="?",
        const=(),
        type=_launch_numbers,
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
    show.add_argument("--metrics", type=_metric_names, metavar="A,B", help="only these")
    _add_views(show)
    show.set_defaults(command="show:show")


def _add_views(show: argparse.ArgumentParser) -> None:
    """Add how the launches of a capture are shown."""
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
    show.add_argument("--top", type=_count, metavar="N", help="only so many kernels")


def _add_compare(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `compare`."""
    compare = commands.add_parser(
        "compare",
        parents=[form],
        help="show the last run beside older ones, or tests beside a revision; judge them",
    )
    compare.add_argument(
        "files",
        metavar="RUN",
        nargs="*",
        type=_file,
        help="a run's JSON file, a recording or a store; the last one is a run; or two "
        ".ncu-rep captures; with "
        "--against: tests, and pytest's options behind --",
    )
    compare.add_argument(
        "--against",
        metavar="REV",
        help="measure tests of this revision and of the working tree, by turns",
    )
    compare.add_argument(
        "--max-regression",
        type=_share,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="largest change for the worse that passes, as 5%%, or off (5%%)",
    )
    compare.add_argument(
        "--strict", action="store_true", help="exit 3 if nothing could be decided"
    )
    compare.add_argument(
        "--budget",
        type=_duration,
        metavar="TIME",
        help="longest time of --against (10min)",
    )
    compare.set_defaults(command="compare:compare")


def _add_report(commands: _Commands, _: argparse.ArgumentParser) -> None:
    """Add `report`."""
    report = commands.add_parser(
        "report",
        help="write runs or captures as one HTML page, or a run as Markdown or CSV",
        description="Write the last run as one HTML page that needs no network; the "
        "samples of the others are shown beside its own. Captures (.ncu-rep) are one "
        "page. A name that ends with .md or .csv makes Markdown, for a comment of at "
        "most 65,536 bytes, or CSV.",
    )
    report.add_argument(
        "runs",
        metavar="FILE",
        nargs="+",
        type=_file,
        help="a run's JSON file, - for standard input, or a .ncu-rep capture",
    )
    report.add_argument(
        "--output",
        "-o",
        metavar="REPORT",
        type=_file,
        required=True,
        help="the report; - for standard output",
    )
    report.add_argument(
        "--format",
        choices=("html", "markdown", "csv"),
        help="(by the end of REPORT; html)",
    )
    report.set_defaults(command="report:report")


def _add_export(commands: _Commands, _: argparse.ArgumentParser) -> None:
    """Add `export`."""
    export = commands.add_parser(
        "export",
        help="write a run in a format that another program reads",
    )
    export.add_argument(
        "file",
        metavar="RUN.json",
        type=_file,
        help="a file of --gpuperf-json, - for standard input; for chrome-trace a folder of --gpuperf-record, "
        "or a run that has one",
    )
    export.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    export.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        type=_file,
        default="-",
        help="the file; - for standard output (-)",
    )
    export.add_argument(
        "--digits",
        type=_digits,
        metavar="N",
        help="significant digits of openmetrics, 1 to 17 (3)",
    )
    export.set_defaults(command="report:export")


def _add_bisect(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `bisect`."""
    bisect = commands.add_parser(
        "bisect",
        parents=[form],
        help="find the commit that made a test slower; pytest's options behind --",
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
        type=_some_share,
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
        type=_duration,
        default="10min",
        metavar="TIME",
        help="longest time of one comparison (10min)",
    )
    bisect.add_argument(
        "--restart", action="store_true", help="forget an interrupted search"
    )
    bisect.set_defaults(command="against:bisect")


def _add_baseline(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `baseline` with its own commands."""
    baseline = commands.add_parser(
        "baseline", help="show and repair a store of sessions"
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
    listed = actions.add_parser(
        "list", parents=[form, store, tests], help="print its sessions"
    )
    listed.set_defaults(command="baseline:listed")
    show = actions.add_parser(
        "show", parents=[form, store], help="print the series of a test"
    )
    show.add_argument("test", metavar="ID", nargs="+", help="as pytest names it")
    show.add_argument("--metrics", type=_metric_names, metavar="A,B", help="only these")
    show.set_defaults(command="baseline:show")
    drop = actions.add_parser(
        "drop", parents=[form, store, tests], help="remove sessions"
    )
    drop.add_argument(
        "sessions", metavar="SESSION", nargs="+", help="its number or id in the list"
    )
    drop.set_defaults(command="baseline:drop")
    accept = actions.add_parser(
        "accept",
        parents=[form, store, tests],
        help="start the series of tests anew with the values of a run",
    )
    accept.add_argument(
        "run",
        metavar="RUN.json",
        nargs="?",
        type=_file,
        help="a file of --gpuperf-json; - for standard input",
    )
    accept.add_argument(
        "--edited", action="store_true", help="accept lines that were edited by hand"
    )
    accept.set_defaults(command="baseline:accept")


def _add_verify(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `verify`."""
    verify = commands.add_parser(
        "verify", parents=[form], help="check that a run came to its end"
    )
    verify.add_argument(
        "run",
        metavar="RUN.json",
        type=_file,
        help="a file of --gpuperf-json; - for standard input",
    )
    verify.add_argument(
        "--expect-from",
        metavar="STORE",
        help="check that no test of this baseline is missing, too",
    )
    verify.add_argument(
        "--machine",
        metavar="NAME",
        action="append",
        default=[],
        help="expect only what is stored for this machine; may be repeated (all)",
    )
    verify.set_defaults(command="baseline:verify")


def _add_doctor(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `doctor`."""
    doctor = commands.add_parser(
        "doctor",
        parents=[form],
        help="print what stops or bends measurements here, and the peaks of the GPUs",
    )
    doctor.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure the peaks of DRAM and matrix products and store them for this user",
    )
    doctor.set_defaults(command="machine:doctor")


def _add_scorecard(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `scorecard`."""
    scorecard = commands.add_parser(
        "scorecard", parents=[form], help="print the scorecard of a step profile"
    )
    scorecard.add_argument(
        "profile",
        metavar="PROFILE.json",
        type=_file,
        help="a step profile; - for standard input",
    )
    scorecard.add_argument(
        "--throughput", type=_rate, required=True, metavar="N", help="tokens/s"
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
    scorecard.set_defaults(command="scorecard:scorecard")


def _add_parity(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `parity`."""
    parity = commands.add_parser(
        "parity", parents=[form], help="compare the steps of two runtimes"
    )
    parity.add_argument(
        "ours",
        metavar="OURS.json",
        type=_file,
        help="our runtime's profile; - for standard input",
    )
    parity.add_argument(
        "reference",
        metavar="REFERENCE.json",
        type=_file,
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
    parity.set_defaults(command="scorecard:parity")


def _add_utilization(commands: _Commands, _: argparse.ArgumentParser) -> None:
    """Add `utilization`."""
    utilization = commands.add_parser(
        "utilization",
        help="print score, class, bottleneck and health of each GPU from recorded readings",
    )
    utilization.add_argument(
        "file",
        metavar="FILE",
        type=_file,
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
        type=_duration,
        default=1.0,
        metavar="TIME",
        help="between two readings, where the file has no times (1s)",
    )
    utilization.set_defaults(command="utilization:utilization")


def _add_completion(commands: _Commands, _: argparse.ArgumentParser) -> None:
    """Add `completion`."""
    command = commands.add_parser(
        "completion", help="print what makes a shell complete this command line"
    )
    command.add_argument(
        "shell",
        metavar="SHELL",
        choices=("bash", "zsh", "fish"),
        help="bash, zsh or fish",
    )
    command.set_defaults(command="arguments:completion")


def _add_cache(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `cache` with its own commands."""
    cache = commands.add_parser("cache", help="manage the cache of ncu's values")
    actions = cache.add_subparsers(metavar="ACTION", required=True)
    for name, words in (
        ("info", "print its contents"),
        ("verify", "read all entries and remove damaged ones"),
        ("clear", "remove all entries"),
    ):
        action = actions.add_parser(name, parents=[form], help=words)
        action.add_argument(
            "--folder",
            metavar="DIR",
            help="where it is ($GPUPERF_CACHE_DIR, or the user's cache folder)",
        )
        action.set_defaults(command=f"machine:{name}")


def _add_metrics(commands: _Commands, form: argparse.ArgumentParser) -> None:
    """Add `metrics` with its own commands."""
    metrics = commands.add_parser(
        "metrics", help="look up hardware counters, chips and passes, without a GPU"
    )
    within = metrics.add_subparsers(metavar="WHAT", required=True)
    chip = argparse.ArgumentParser(add_help=False)
    chip.add_argument(
        "--chip", metavar="CHIP", help="GH100, or sm_90 (the chip of this machine)"
    )
    chips = within.add_parser("chips", parents=[form], help="print every chip")
    chips.set_defaults(command="machine:chips")
    of_chip = [form, chip]
    listed = within.add_parser(
        "list", parents=of_chip, help="print every metric of a chip"
    )
    listed.add_argument("--kind", choices=("counter", "ratio", "throughput"))
    listed.set_defaults(command="machine:listed")
    search = within.add_parser("search", parents=of_chip, help="find metrics by words")
    search.add_argument("words", metavar="WORD", nargs="+")
    search.set_defaults(command="machine:search")
    for name, text in (
        ("describe", "print the description of metrics"),
        ("check", "say whether names are metrics"),
        ("passes", "print the passes that a kernel needs for metrics"),
    ):
        command = within.add_parser(name, parents=of_chip, help=text)
        command.add_argument(
            "names", metavar="NAME", nargs="+", type=_metric_names, action=_Joined
        )
        command.set_defaults(command=f"machine:{name}")


def _metric_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names of one argument."""
    names = tuple(filter(None, map(str.strip, text.split(","))))
    if not names:
        message = "no metric is named"
        raise argparse.ArgumentTypeError(message)
    return names


def _meant(word: str, known: Sequence[str]) -> str:
    """Return a remedy with the names that are spelled alike; "" where none is."""
    from difflib import get_close_matches

    alike = get_close_matches(word, known)
    return f"did you mean {', '.join(alike)}" if alike else ""


def _file(text: str) -> str:
    """Return the name of a file; an empty one is a variable that is not set."""
    if not text:
        message = "the name of the file is empty"
        raise argparse.ArgumentTypeError(message)
    return text


def _launch_numbers(text: str) -> tuple[int, ...]:
    """Return the launches of one argument, as `3-5,8`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            message = f"{text!r} are not launches as 3-5,8; name FILE before it"
            raise argparse.ArgumentTypeError(message)
        if last and int(last) < int(first):
            message = f"{part!r} runs backward: write {last}-{first}"
            raise argparse.ArgumentTypeError(message)
        if int(last or first) - int(first) >= _MOST_LAUNCHES:
            message = f"{text!r} are more than {_MOST_LAUNCHES} launches"
            raise argparse.ArgumentTypeError(message)
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _digits(text: str) -> int:
    """Return a number of significant digits."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DIGITS:
        message = f"{text!r} is not a whole number from 1 to {_MOST_DIGITS}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _count(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        message = f"{text!r} is not a whole number from 1 on"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _finite(text: str) -> float:
    """Return a number that is neither NaN nor infinite."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if number - number != 0:  # NaN or infinite; math is not imported here
        message = f"{text!r} is not a finite number"
        raise argparse.ArgumentTypeError(message)
    return number


def _rate(text: str) -> float:
    """Return a finite rate that is not negative."""
    number = _finite(text)
    if number < 0:
        message = f"{text!r} is below 0"
        raise argparse.ArgumentTypeError(message)
    return number


def _share(text: str) -> float | None:
    """Return the largest change that passes, from `5%` or `off`."""
    from pytest_gpuperf.model.quantity import parse_quantity

    if text == "off":
        return None
    try:
        quantity = parse_quantity(text)
    except UnitError:
        quantity = None
    if quantity is None or quantity.si != "fraction" or quantity.value < 0:
        message = f"{text!r} is not a share: write 5% or off"
        raise argparse.ArgumentTypeError(message)
    return quantity.value


def _some_share(text: str) -> float:
    """Return a share above 0."""
    share = _share(text)
    if not share:
        message = f"{text!r} is not a share above 0: write 5%"
        raise argparse.ArgumentTypeError(message)
    return share


def _duration(text: str) -> float:
    """Return a time with its unit [s]."""
    from pytest_gpuperf.config import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        message = f"{text!r}: {error}"
        raise argparse.ArgumentTypeError(message) from error
