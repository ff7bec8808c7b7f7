"""A parser of commands: its errors and help, its completion, the types of its values."""

from __future__ import annotations

import argparse
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from pytest_gpuperf.cli.output import INTERRUPTED, PIPE_CLOSED, WRONG_USAGE, say
from pytest_gpuperf.errors import UnitError

_USUAL_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "good",
        2: "usage error, such as a filter that matches nothing",
        4: "an input cannot be read, or the output cannot be written",
        INTERRUPTED: "interrupted",
        PIPE_CLOSED: "the output pipe was closed",
    }
)
# The text before an example.
_EXAMPLE = "example: "
_UNKNOWN = "unknown arguments:"
# Digits of a float. More digits carry no information.
_MOST_DIGITS = 17
_ANY_WIDTH = 80  # Of a text that is not printed.
_MOST_THREADS = 1024  # Of a block, on every chip of NVIDIA and AMD.
# Limit of one range of numbers. A report with this many launches is 2 GB.
_MOST_LAUNCHES = 1_000_000


class _Lines(argparse.HelpFormatter):
    """Keeps the line breaks of a text, and never wraps a command."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap every line separately, with a hanging indent for lines that begin with a space."""
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=" " * 5)
            if line.startswith(" ")
            else line
            # An example is copied, and may have quotes, so it is not wrapped.
            if line.startswith(_EXAMPLE)
            else super(_Lines, self)._fill_text(line, width, indent)
            for line in text.splitlines()
        )


class CommandParser(argparse.ArgumentParser):
    """Adds a remedy to an error, like all other errors of the command line."""

    # Options that the parser does not have.
    _unknown: Sequence[str] = ()

    def __init__(self, **how: Any) -> None:  # noqa: ANN401 - as argparse has it
        # argparse formats each argument that is added, to check its metavar. Without a
        # width each format would ask the terminal, with modules that take 3 ms.
        # `explain` sets the formatter that prints.
        checks = partial(argparse.HelpFormatter, width=_ANY_WIDTH)
        super().__init__(**{"formatter_class": checks, **how})

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error and an example of the command, and exit with 2."""
        self.print_usage(sys.stderr)
        unknown = [word for word in self._unknown if word not in message]
        if unknown:
            message = f"{message}; {_UNKNOWN} {', '.join(unknown)}"
        remedies = [_meant(word, self._long_options()) for word in self._unknown]
        remedies.append(f"see {self.prog} --help")
        if " " in self.prog:
            # The last line is the example.
            remedies.append(str(self.epilog).rpartition("\n")[2])
        remedy = "; ".join(filter(None, remedies))
        say([f"{self.prog}: error: {message}", f"    remedy: {remedy}"])
        self.exit(WRONG_USAGE)

    def parse_known_args(  # type: ignore[override] # argparse's has an overload for each kind of namespace
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """
        Parse the arguments of a command, and report unknown arguments as errors of the
        command.

        argparse would name the whole program, whose help does not have the options.
        """
        options = self._long_options()
        own: Iterable[str] = args or ()
        # The words after a command belong to another parser.
        if self._subparsers is not None:
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
        if action.choices is None or value in action.choices:
            return
        choices = [*map(str, action.choices)]
        meant = _meant(str(value), choices)
        known = f"{value!r} is not one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, "; ".join(filter(None, (known, meant))))

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:  # noqa: ANN401 - as argparse has it
        """Return the value of an option or an argument. argparse loses "--" as a value."""
        if words == ["--"] and action.option_strings and action.nargs is None:
            message = f"{action.metavar} is missing or begins with a dash"
            raise argparse.ArgumentError(action, message)
        return super()._get_values(action, words)

    def _match_argument(self, action: argparse.Action, pattern: str) -> int:
        """Return the number of words that an option takes. An error names the missing value."""
        try:
            return super()._match_argument(action, pattern)
        except argparse.ArgumentError:
            if action.nargs is not None or not action.option_strings:
                raise
            message = f"{action.metavar} is missing or begins with a dash"
            raise argparse.ArgumentError(action, message) from None

    def _long_options(self) -> list[str]:
        return [name for name in self._option_string_actions if name.startswith("--")]


def explain(
    command: argparse.ArgumentParser, example: str, codes: Mapping[int, str]
) -> None:
    """Add the meaning of exit codes and an example to the help of a command."""
    meanings = {**_USUAL_CODES, **codes}
    lines = [f" {code:>3} {meanings[code]}" for code in sorted(meanings)]
    words = " ".join(filter(None, (command.prog, example)))
    command.epilog = "\n".join(["exit codes:", *lines, "", f"{_EXAMPLE}{words}"])
    command.formatter_class = _Lines


def _meant(word: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    alike = get_close_matches(word, known)
    return f"did you mean {', '.join(alike)}" if alike else ""


def completion_script(whole: argparse.ArgumentParser, shell: str) -> str:
    """
    Return a script that makes a shell complete a command line.

    Args:
        whole: The parser of all commands.

        shell: bash, zsh or fish.
    """
    words: dict[str, list[str]] = {"": []}
    values: dict[tuple[str, str], Sequence[str]] = {}  # By command and option.
    for path, command in _commands(whole):
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
    return (_fish if shell == "fish" else _bash)(words, values)


def _commands(
    root: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in root._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            for name, command in action.choices.items():
                words = f"{path} {name}".lstrip()
                yield words, command
                yield from _commands(command, words)


def _bash(
    words: Mapping[str, Sequence[str]], values: Mapping[tuple[str, str], Sequence[str]]
) -> str:
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
    lines = [f"complete -c gpuperf -n __fish_use_subcommand -a '{' '.join(words[''])}'"]
    for name, options in words.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for option in dict.fromkeys(options if name else ()):
            word = f"-l {option[2:]}" if option.startswith("--") else f"-a {option}"
            if (name, option) in values:
                word = f"{word} -x -a '{' '.join(values[name, option])}'"
            lines.append(f"complete -c gpuperf {condition} {word}")
    return "\n".join(lines) + "\n"


def metric_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names in an argument."""
    names = tuple(filter(None, map(str.strip, text.split(","))))
    if not names:
        raise argparse.ArgumentTypeError("no metric is named")
    return names


def file_name(text: str) -> str:
    """Return the name of a file, and refuse "", which comes from a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return text


def launch_numbers(text: str) -> tuple[int, ...]:
    """Return the launches in an argument, as `3-5,8`."""
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


def digits(text: str) -> int:
    """Return a number of significant digits."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_DIGITS:
        message = f"{text!r} is not a whole number from 1 to {_MOST_DIGITS}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def count(text: str) -> int:
    """Return a whole number >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def threads(text: str) -> int:
    """Return the threads of a block, which no chip takes more than 1,024 of."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
        message = f"{text!r} is not a whole number from 1 to {_MOST_THREADS}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def rate(text: str) -> float:
    """Return a finite rate that is not negative."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    # NaN or infinite. math is not imported here.
    if number - number != 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return number


def share(text: str) -> float | None:
    """Return the largest change that passes, from `5%`, or None from `off`."""
    from pytest_gpuperf.model.quantity import parse_quantity

    if text == "off":
        return None
    try:
        quantity = parse_quantity(text)
    except UnitError:
        quantity = None
    if quantity is None or quantity.si != "fraction" or quantity.value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write 5% or off")
    return quantity.value


def some_share(text: str) -> float:
    """Return a share above 0."""
    least = share(text)
    if not least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0: write 5%")
    return least


def duration(text: str) -> float:
    """Return a time given with a unit [s]."""
    from pytest_gpuperf.config import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
