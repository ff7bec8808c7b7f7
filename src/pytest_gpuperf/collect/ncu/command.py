"""A start of Nsight Compute, as a value that builds its argv."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import force_setattr

from pytest_gpuperf.collect.ncu.metrics import Metric, gather
from pytest_gpuperf.errors import GpuPerfError, MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import Mistake, no_number, refuse, shown

__all__ = ["Command", "Modes", "paired_modes"]

_SUFFIX = ".ncu-rep"
# the words that each option takes: Nsight Compute CLI 2026.1, "Command Line Options"
_CHOICES = {
    "replay_mode": ("kernel", "application", "range", "app-range"),
    "cache_control": ("all", "none"),
    "clock_control": ("none", "base", "boost", "force-boost", "reset"),
    "graph_profiling": ("node", "graph"),
    "target_processes": ("all", "application-only"),
    "kernel_name_base": ("function", "demangled", "mangled"),
}
_COUNTS = {"launch_skip": 0, "launch_count": 1}  # the least that each may be
# what a field is called on the command line, where it may stand in `opts` instead
_OPTIONS = {
    "replay_mode": ("--replay-mode",),
    "cache_control": ("--cache-control",),
    "clock_control": ("--clock-control",),
    "graph_profiling": ("--graph-profiling",),
    "target_processes": ("--target-processes",),
    "kernel_name": ("--kernel-name", "-k"),
    "kernel_name_base": ("--kernel-name-base",),
    "kernel_id": ("--kernel-id",),
    "launch_skip": ("--launch-skip", "-s"),
    "launch_count": ("--launch-count", "-c"),
}
# said by `output`
_OF_OUTPUT = {"--export", "-o", "--force-overwrite", "-f", "--log-file"}
# A file config.ncu-cfg in the folder or at home would change what is collected, and one
# of renamed kernels how they are called: the same test must mean the same everywhere.
_SAME_EVERYWHERE = (("--config-file", "off"), ("--rename-kernels", "off"))
_REMEDY = "correct the arguments of Command"


class Modes(NamedTuple):
    """
    The conditions under which ncu counts.

    Attributes:
        cache_control: "all": every pass starts with flushed caches; "none": as it comes.

        clock_control: "none": ncu leaves the clocks alone; "base" or "boost": it locks
            them.
    """

    cache_control: str
    clock_control: str


def paired_modes(cache: str, *, clocks: str = "free") -> Modes:
    """
    Return the conditions that pair with those of a test's own measurement.

    Args:
        cache: The test's cache mode: "cold", "warm", or "none" where nothing is done.

        clocks: What is declared of the clocks outside: "free", "locked" (somebody has
            locked them, and ncu must not touch that), "base" or "boost" (ncu is to
            lock them while it counts).

    Raises:
        MeasureError: There is no such mode.

    Example:
        >>> paired_modes("cold")
        Modes(cache_control='all', clock_control='none')
    """
    caches = {"cold": "all", "warm": "none", "none": "none"}
    policies = {"free": "none", "locked": "none", "base": "base", "boost": "boost"}
    wrong = [
        f"{name}: {value!r} is not one of {', '.join(known)}"
        for name, value, known in (
            ("cache", cache, caches),
            ("clocks", clocks, policies),
        )
        if value not in known
    ]
    if wrong:
        raise MeasureError("; ".join(wrong), remedy="give one of them")
    return Modes(caches[cache], policies[clocks])


class _Options(tuple[str, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """All options of a command, which remember what the caller had given."""

    given: tuple[str, ...]


class Command(Frozen, frozen=True, kw_only=True):
    """
    One start of ncu: what it profiles, what it asks for, and where the report goes.

    It is compared and hashed by value. An option that a field stands for may be in
    `opts` instead; it then becomes the field's value.

    Attributes:
        executable: The program to profile.

        output: The report; ncu appends `.ncu-rep` where the name does not end so.

        opts: Options of ncu; once built, all of them except the paths: the given ones
            first, then those that follow from the other fields.

        metrics: Metrics, or their names; None: what `opts` ask for, else ncu's own set.

        nvtx_includes: Expressions of NVTX ranges; only launches inside one of them are
            profiled. None: all are.

        args: Arguments of the program.

        env: Variables to set for ncu and the program, beside the inherited ones.

        ncu: The profiler, by name or path.

        replay_mode: How passes are repeated: "kernel", "application", "range" or
            "app-range".

        cache_control: "all": flush the caches before every pass; "none": do not.

        clock_control: "none", "base", "boost", "force-boost" or "reset"; ncu's own
            default differs between its versions, so it is always said.

        graph_profiling: "node": each kernel of a CUDA graph; "graph": the whole graph.

        target_processes: "all": the children of the program too; "application-only".

        nvtx_excludes: Expressions of NVTX ranges whose launches are left out; without
            includes: all launches but these.

        kernel_name: Profile only kernels of this name; `regex:` as ncu has it.

        kernel_name_base: What `kernel_name` is compared with: "function" (ncu's own
            default), "demangled" or "mangled".

        kernel_id: Profile only what `context:stream:name:invocation` says.

        launch_skip: Launches to let pass before the first that is profiled, >= 0.

        launch_count: Launches to profile, >= 1; None: all.

        timeout_s: How long all of it may take [s], > 0.

    References:
        https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html
    """

    executable: str | os.PathLike[str]
    output: str | os.PathLike[str]
    opts: Sequence[str] = ()
    metrics: Iterable[Metric | str] | None = None
    nvtx_includes: Iterable[str] | None = None
    args: Sequence[str | os.PathLike[str]] | None = None
    env: Mapping[str, str] | None = None
    ncu: str | os.PathLike[str] = "ncu"
    replay_mode: str = "kernel"
    cache_control: str = "all"
    clock_control: str = "none"
    graph_profiling: str = "node"
    target_processes: str = "all"
    nvtx_excludes: Iterable[str] = ()
    kernel_name: str | None = None
    kernel_name_base: str | None = None
    kernel_id: str | None = None
    launch_skip: int | None = None
    launch_count: int | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """
        Take what is given apart, and build all options of it.

        Raises:
            RecordError: Something is wrong; the message names all that is.
        """
        refuse([*_shape_mistakes(self)], remedy=_REMEDY)
        given = tuple(getattr(self.opts, "given", self.opts))
        for name in ("metrics", "nvtx_includes", "nvtx_excludes", "args"):
            value = getattr(self, name)
            force_setattr(self, name, None if value is None else tuple(value))
        force_setattr(self, "output", Path(self.output))
        if self.env is not None:
            force_setattr(self, "env", dict(self.env))
        refuse([*self._adopted(given), *_mistakes(self, given)], remedy=_REMEDY)
        names = gather(self.metrics or ())
        options = _Options((*given, *_generated(self, given, names)))
        options.given = given
        force_setattr(self, "opts", options)

    def __hash__(self) -> int:
        """Return the hash of all its fields but the metrics and the environment."""
        names = [n for n in self.__struct_fields__ if n not in {"metrics", "env"}]
        return hash(tuple(getattr(self, name) for name in names))

    @property
    def report(self) -> Path:
        """Where ncu puts the report."""
        text = os.fspath(self.output)
        return Path(text if text.endswith(_SUFFIX) else text + _SUFFIX)

    @property
    def log(self) -> Path:
        """Where ncu puts its log: the output's name, with `.log` behind it."""
        return Path(f"{os.fspath(self.output)}.log")

    @property
    def cmd(self) -> tuple[str, ...]:
        """The command line, for a process and never for a shell."""
        return (
            os.fspath(self.ncu),
            *self.opts,
            "--force-overwrite",
            "-o",
            os.fspath(self.output),
            "--log-file",
            os.fspath(self.log),
            os.fspath(self.executable),
            *(os.fspath(each) for each in self.args or ()),
        )

    def _adopted(self, given: Sequence[str]) -> Iterator[Mistake]:
        """Take the fields that options stand for; yield those that say two things."""
        names = reversed(self.__struct_fields__)
        defaults = dict(zip(names, reversed(self.__struct_defaults__), strict=False))
        for name, options in _OPTIONS.items():
            found = [value for option in options for value in _said(given, option)]
            if not found:
                continue
            value: object = found[-1]
            if name in _COUNTS:
                value = int(found[-1]) if found[-1].isdecimal() else found[-1]
            if getattr(self, name) not in {defaults[name], value}:
                text = f"{getattr(self, name)!r}, and opts say {value!r}"
                yield Mistake(path=name, text=text)
            force_setattr(self, name, value)


def _said(given: Sequence[str], option: str) -> list[str]:
    """Return the values that an option is given, behind `=` or as the next text."""
    return [
        each.partition("=")[2] if "=" in each else following
        for each, following in pairwise((*given, ""))
        if each.partition("=")[0] == option
    ]


def _generated(
    command: Command, given: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    """Yield the options that follow from the fields, those given left out."""
    yield from _unless_given(
        given, (("--print-summary", "per-kernel"), ("--warp-sampling-interval", "0"))
    )
    filters = [
        *(f"--nvtx-include={each}" for each in command.nvtx_includes or ()),
        *(f"--nvtx-exclude={each}" for each in command.nvtx_excludes),
    ]
    if filters:
        if "--nvtx" not in given:
            yield "--nvtx"
        yield from _unless_given(given, (("--print-nvtx-rename", "kernel"),))
        yield from filters
    if names:
        yield f"--metrics={','.join(names)}"
    fields = ((name, options[0]) for name, options in _OPTIONS.items())
    values = ((option, getattr(command, name)) for name, option in fields)
    yield from _unless_given(
        given, ((option, value) for option, value in values if value is not None)
    )
    yield from _unless_given(given, _SAME_EVERYWHERE)


def _unless_given(
    given: Sequence[str], options: Iterable[tuple[str, object]]
) -> Iterator[str]:
    """Yield options with their values, except those that the caller has given."""
    same = {option: options for options in _OPTIONS.values() for option in options}
    for option, value in options:
        if not any(_said(given, each) for each in same.get(option, (option,))):
            yield f"{option}={value}"


def _shape_mistakes(command: Command) -> Iterator[Mistake]:
    """Yield the mistakes that keep a command from being taken apart at all."""
    for name in ("executable", "output", "ncu"):
        value = getattr(command, name)
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            yield Mistake(path=name, text=f"{shown(value)} is no path")
    for name in ("opts", "metrics", "nvtx_includes", "nvtx_excludes", "args"):
        value = getattr(command, name)
        optional = value is None and name not in {"opts", "nvtx_excludes"}
        one_text = isinstance(value, (str, bytes))
        if not optional and (one_text or not isinstance(value, Iterable)):
            text = f"{shown(value)} is no tuple with an item for each"
            yield Mistake(path=name, text=text)
        elif name == "opts" and not (
            isinstance(value, Sequence) and all(isinstance(each, str) for each in value)
        ):
            yield Mistake(path=name, text=f"{shown(value)} does not hold texts alone")
    env: object = {} if command.env is None else command.env
    if not isinstance(env, Mapping) or not all(
        isinstance(each, str) for pair in env.items() for each in pair
    ):
        yield Mistake(path="env", text=f"{shown(env)} does not give texts by name")
    elif wrong := [name for name in env if not name or "=" in name]:
        yield Mistake(path="env", text=f"{shown(wrong)}: no variable is called so")


def _mistakes(command: Command, given: Sequence[str]) -> Iterator[Mistake]:
    """Yield all else that is wrong with a command."""
    yield from _path_mistakes(command)
    yield from _option_mistakes(given)
    yield from _metric_mistakes(command, given)
    for name, words in _CHOICES.items():
        value = getattr(command, name)
        if value is not None and value not in words:
            text = f"{shown(value)} is not one of {', '.join(words)}"
            yield Mistake(path=name, text=text)
    for name, least in _COUNTS.items():
        count = getattr(command, name)
        if count is not None and (type(count) is not int or count < least):
            text = f"{shown(count)} is no number of launches, {least} or more"
            yield Mistake(path=name, text=text)
    yield from _filter_mistakes(command)
    wrong = no_number(command.timeout_s)
    if wrong or command.timeout_s <= 0:
        text = wrong or f"{shown(command.timeout_s)} is not above zero"
        yield Mistake(path="timeout_s", text=text)


def _metric_mistakes(command: Command, given: Sequence[str]) -> Iterator[Mistake]:
    """Yield what is wrong with the metrics."""
    if command.metrics and _said(given, "--metrics"):
        yield Mistake(path="metrics", text="given, and opts have --metrics too")
    try:
        gather(command.metrics or ())
    except GpuPerfError as error:
        yield Mistake(path="metrics", text=error.message)


def _path_mistakes(command: Command) -> Iterator[Mistake]:
    """Yield what is wrong with the places."""
    output = os.fspath(command.output)
    if "%" in output:
        text = f"{shown(output)} has a %, which ncu replaces by what it stands for"
        yield Mistake(path="output", text=text)
    if Path(output).name in {"", ".."}:
        yield Mistake(path="output", text=f"{shown(output)} names a folder, no file")
    if os.fspath(command.executable).startswith("-"):
        text = f"{shown(command.executable)} would be an option of ncu"
        yield Mistake(path="executable", text=text)
    args: Sequence[object] = command.args or ()
    for index, each in enumerate(args):
        if not isinstance(each, (str, os.PathLike)):
            yield Mistake(path=f"args[{index}]", text=f"{shown(each)} is no text")


def _option_mistakes(given: Sequence[str]) -> Iterator[Mistake]:
    """Yield what is wrong with the given options."""
    for index, (before, each) in enumerate(pairwise(("", *given))):
        path = f"opts[{index}]"
        if not each:
            yield Mistake(path=path, text="it is empty")
        elif each.partition("=")[0] in _OF_OUTPUT:
            yield Mistake(path=path, text=f"{each}: it follows from output")
        elif not each.startswith("-") and ("=" in before or before[:1] != "-"):
            text = f"ncu would take {each!r} for the program"
            yield Mistake(path=path, text=text)


def _filter_mistakes(command: Command) -> Iterator[Mistake]:
    """Yield what is wrong with the filters."""
    for name in ("nvtx_includes", "nvtx_excludes"):
        for index, each in enumerate(getattr(command, name) or ()):
            # nothing but slashes ends NVIDIA's reader with an exception nobody catches
            if not isinstance(each, str) or not each.strip().strip("/"):
                text = f"{shown(each)} names no range"
                yield Mistake(path=f"{name}[{index}]", text=text)
    if command.nvtx_excludes and "range" in str(command.replay_mode):
        text = f"ncu has no excludes with replay_mode={command.replay_mode!r}"
        yield Mistake(path="nvtx_excludes", text=text)
    for name in ("kernel_name", "kernel_id"):
        value = getattr(command, name)
        if value is not None and (not isinstance(value, str) or not value):
            yield Mistake(path=name, text=f"{shown(value)} names no kernel")
    if command.kernel_name_base is not None and command.kernel_name is None:
        text = "given without kernel_name, which it is about"
        yield Mistake(path="kernel_name_base", text=text)
