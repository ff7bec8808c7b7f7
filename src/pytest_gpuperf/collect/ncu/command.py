"""The command line of one Nsight Compute run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import force_setattr

from pytest_gpuperf.collect.ncu.metrics import Metric, gather
from pytest_gpuperf.errors import GpuPerfError, MeasureError
from pytest_gpuperf.model.frozen import Frozen, Mistake, no_number, refuse, shown
from pytest_gpuperf.model.sample import CacheMode

_SUFFIX = ".ncu-rep"
# The values of each option (Nsight Compute CLI 2026.1, "Command Line Options").
_CHOICES = {
    "replay_mode": ("kernel", "application", "range", "app-range"),
    "cache_control": ("all", "none"),
    "clock_control": ("none", "base", "boost", "force-boost", "reset"),
    "graph_profiling": ("node", "graph"),
    "target_processes": ("all", "application-only"),
    "kernel_name_base": ("function", "demangled", "mangled"),
}
# The least value of each count.
_COUNTS = {"launch_skip": 0, "launch_count": 1}
# The options of each field, which may be in `opts` instead.
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
# Options that are set by `output`.
_OUTPUT_OPTIONS = {"--export", "-o", "--force-overwrite", "-f", "--log-file"}
# A config.ncu-cfg in the folder or at home would change the collected metrics, and a
# file of renamed kernels their names. A test must collect the same everywhere.
_FIXED_OPTIONS = (("--config-file", "off"), ("--rename-kernels", "off"))
# An ncu without one of these options has nothing to switch off, or prints another
# summary. 2024.1 renames no kernels. 2022.3 has no configuration file, and counts each
# node of a graph.
_SPARE_OPTIONS = frozenset(
    {
        "--rename-kernels=off",
        "--config-file=off",
        "--graph-profiling=node",
        "--print-summary=per-kernel",
        "--print-nvtx-rename=kernel",
        "--warp-sampling-interval=0",
    }
)
_REMEDY = "correct the arguments of Command"


class Modes(NamedTuple):
    """
    The conditions under which ncu counts.

    Attributes:
        cache_control: "all" if ncu flushes the caches before every pass, or "none".

        clock_control: "base" or "boost" if ncu locks the clocks, or "none".
    """

    cache_control: str
    clock_control: str


def paired_modes(cache: str, *, clocks: str = "free") -> Modes:
    """
    Return the conditions of ncu that match the measurement of a test.

    Args:
        cache: The CacheMode of the test: COLD, WARM or UNTOUCHED.

        clocks: The declared state of the clocks: "free", "locked" (locked outside of
            ncu), "base" or "boost" (ncu locks them while it counts).

    Raises:
        MeasureError: A mode is unknown.

    Example:
        >>> paired_modes(CacheMode.COLD)
        Modes(cache_control='all', clock_control='none')
    """
    caches = {
        CacheMode.COLD: "all",
        CacheMode.WARM: "none",
        CacheMode.UNTOUCHED: "none",
    }
    policies = {"free": "none", "locked": "none", "base": "base", "boost": "boost"}
    mistakes = [
        f"{name}: {value!r} is not one of {', '.join(choices)}"
        for name, value, choices in (
            ("cache", cache, caches),
            ("clocks", clocks, policies),
        )
        if value not in choices
    ]
    if mistakes:
        raise MeasureError("; ".join(mistakes), remedy="give one of them")
    return Modes(caches[CacheMode(cache)], policies[clocks])


class _Options(tuple[str, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """All options of a command, with the caller's own options in `from_caller`."""

    from_caller: tuple[str, ...]


class Command(Frozen, frozen=True, kw_only=True):
    """
    One run of ncu: the program, the metrics and the report.

    Commands are compared and hashed by value. A field's option may be in `opts`
    instead. It then becomes the field's value.

    Attributes:
        executable: The program to profile.

        output: The report. ncu appends `.ncu-rep` if the name lacks it.

        opts: Options of ncu. Once built, all of them except the paths: the caller's
            first, then those of the other fields.

        metrics: Metrics, or their names. None means those in `opts`, else ncu's default
            set.

        nvtx_includes: Expressions of NVTX ranges. Only launches inside one of them are
            profiled. None profiles all launches.

        args: Arguments of the program.

        env: Variables to set for ncu and the program, in addition to the inherited
            ones.

        ncu: The profiler, by name or path.

        replay_mode: How passes are repeated: "kernel", "application", "range" or
            "app-range".

        cache_control: "all" to flush the caches before every pass, or "none".

        clock_control: "none", "base", "boost", "force-boost" or "reset". Always passed,
            because the default differs between versions of ncu.

        graph_profiling: "node" for each kernel of a CUDA graph, or "graph" for the
            whole graph.

        target_processes: "all" to include the children of the program, or
            "application-only".

        nvtx_excludes: Expressions of NVTX ranges whose launches are not profiled.

        kernel_name: Profile only kernels of this name. A `regex:` prefix works as in
            ncu.

        kernel_name_base: The name that `kernel_name` is compared with: "function"
            (ncu's own default), "demangled" or "mangled".

        kernel_id: Profile only launches that match `context:stream:name:invocation`.

        launch_skip: Launches to skip before the first that is profiled, >= 0.

        launch_count: Launches to profile, >= 1, or None for all.

        timeout_s: Timeout of the whole run [s], > 0.

        left_out: Options of ours, not of `opts`, that are not passed: some of
            `spare_options`, if this ncu does not have them.

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
    left_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        """
        Check the fields and build all options.

        Raises:
            RecordError: Fields are wrong. The message names all of them.
        """
        refuse([*_shape_mistakes(self)], remedy=_REMEDY)
        options = tuple(getattr(self.opts, "from_caller", self.opts))
        for name in ("metrics", "nvtx_includes", "nvtx_excludes", "args"):
            value = getattr(self, name)
            force_setattr(self, name, None if value is None else tuple(value))
        force_setattr(self, "output", Path(self.output))
        if self.env is not None:
            force_setattr(self, "env", dict(self.env))
        refuse([*self._adopted(options), *_mistakes(self, options)], remedy=_REMEDY)
        names = gather(self.metrics or ())
        generated = (
            option
            for option in _generated(self, options, names)
            if option.partition("=")[0] not in self.left_out
        )
        all_options = _Options((*options, *generated))
        all_options.from_caller = options
        force_setattr(self, "opts", all_options)

    def __hash__(self) -> int:
        """Return the hash of all fields except the metrics and the environment."""
        names = [n for n in self.__struct_fields__ if n not in {"metrics", "env"}]
        return hash(tuple(getattr(self, name) for name in names))

    @property
    def report(self) -> Path:
        """The path of the report."""
        text = os.fspath(self.output)
        return Path(text if text.endswith(_SUFFIX) else text + _SUFFIX)

    def written(self, folder: Path | str = "") -> Path:
        """
        Return the path of the report that ncu has written.

        ncu 2026.3 compresses it, and appends `z` to its name.

        Args:
            folder: The folder where ncu ran.
        """
        report = Path(folder, self.report)
        compressed = report.with_name(f"{report.name}z")
        return compressed if compressed.exists() and not report.exists() else report

    @property
    def log(self) -> Path:
        """The path of ncu's log: the output's name with `.log` appended."""
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
            *(os.fspath(argument) for argument in self.args or ()),
        )

    @property
    def spare_options(self) -> frozenset[str]:
        """Options of ours that ncu can do without and still count the same."""
        own = self.opts[len(self.opts.from_caller) :]  # type: ignore[attr-defined] # __post_init__ makes them
        return frozenset(o.partition("=")[0] for o in _SPARE_OPTIONS.intersection(own))

    def _adopted(self, opts: Sequence[str]) -> Iterator[Mistake]:
        """Set fields from options, and yield a mistake if both are given."""
        names = reversed(self.__struct_fields__)
        defaults = dict(zip(names, reversed(self.__struct_defaults__), strict=False))
        for name, options in _OPTIONS.items():
            values = [value for option in options for value in _values_of(opts, option)]
            if not values:
                continue
            value: object = values[-1]
            if name in _COUNTS:
                value = int(values[-1]) if values[-1].isdecimal() else values[-1]
            if getattr(self, name) not in {defaults[name], value}:
                text = f"{getattr(self, name)!r}, and opts have {value!r}"
                yield Mistake(path=name, text=text)
            force_setattr(self, name, value)


def _values_of(opts: Sequence[str], option: str) -> list[str]:
    return [
        text.partition("=")[2] if "=" in text else following
        for text, following in pairwise((*opts, ""))
        if text.partition("=")[0] == option
    ]


def _generated(
    command: Command, opts: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    yield from _unless_present(
        opts, (("--print-summary", "per-kernel"), ("--warp-sampling-interval", "0"))
    )
    filters = [
        *(f"--nvtx-include={expression}" for expression in command.nvtx_includes or ()),
        *(f"--nvtx-exclude={expression}" for expression in command.nvtx_excludes),
    ]
    if filters:
        if "--nvtx" not in opts:
            yield "--nvtx"
        yield from _unless_present(opts, (("--print-nvtx-rename", "kernel"),))
        yield from filters
    if names:
        yield f"--metrics={','.join(names)}"
    fields = ((name, options[0]) for name, options in _OPTIONS.items())
    values = ((option, getattr(command, name)) for name, option in fields)
    yield from _unless_present(
        opts, ((option, value) for option, value in values if value is not None)
    )
    yield from _unless_present(opts, _FIXED_OPTIONS)


def _unless_present(
    opts: Sequence[str], options: Iterable[tuple[str, object]]
) -> Iterator[str]:
    same = {option: options for options in _OPTIONS.values() for option in options}
    for option, value in options:
        if not any(
            _values_of(opts, spelling) for spelling in same.get(option, (option,))
        ):
            yield f"{option}={value}"


def _shape_mistakes(command: Command) -> Iterator[Mistake]:
    for name in ("executable", "output", "ncu"):
        value = getattr(command, name)
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            yield Mistake(path=name, text=f"{shown(value)} is not a path")
    for name in ("opts", "metrics", "nvtx_includes", "nvtx_excludes", "args"):
        value = getattr(command, name)
        optional = value is None and name not in {"opts", "nvtx_excludes"}
        one_text = isinstance(value, (str, bytes))
        if not optional and (one_text or not isinstance(value, Iterable)):
            text = f"{shown(value)} is not a tuple of single items"
            yield Mistake(path=name, text=text)
        elif name == "opts" and not (
            isinstance(value, Sequence) and all(isinstance(text, str) for text in value)
        ):
            yield Mistake(path=name, text=f"{shown(value)} is not a list of texts")
    env: object = {} if command.env is None else command.env
    if not isinstance(env, Mapping) or not all(
        isinstance(text, str) for pair in env.items() for text in pair
    ):
        yield Mistake(path="env", text=f"{shown(env)} is not a mapping of texts")
    elif invalid_names := [name for name in env if not name or "=" in name]:
        yield Mistake(
            path="env", text=f"{shown(invalid_names)} are not names of variables"
        )


def _mistakes(command: Command, opts: Sequence[str]) -> Iterator[Mistake]:
    yield from _word_mistakes(command, opts)
    if command.metrics and _values_of(opts, "--metrics"):
        yield Mistake(path="metrics", text="set, and opts have --metrics too")
    try:
        gather(command.metrics or ())
    except GpuPerfError as error:
        yield Mistake(path="metrics", text=error.message)
    for name, words in _CHOICES.items():
        value = getattr(command, name)
        if value is not None and value not in words:
            text = f"{shown(value)} is not one of {', '.join(words)}"
            yield Mistake(path=name, text=text)
    for name, least in _COUNTS.items():
        count = getattr(command, name)
        if count is not None and (type(count) is not int or count < least):
            text = f"{shown(count)} is not a number of launches >= {least}"
            yield Mistake(path=name, text=text)
    yield from _filter_mistakes(command)
    problem = no_number(command.timeout_s)
    if problem or command.timeout_s <= 0:
        text = problem or f"{shown(command.timeout_s)} is not above zero"
        yield Mistake(path="timeout_s", text=text)


def _word_mistakes(command: Command, opts: Sequence[str]) -> Iterator[Mistake]:
    output = os.fspath(command.output)
    if "%" in output:
        text = f"{shown(output)} has a %, which ncu expands as a macro"
        yield Mistake(path="output", text=text)
    if Path(output).name in {"", ".."}:
        yield Mistake(path="output", text=f"{shown(output)} is a folder, not a file")
    if os.fspath(command.executable).startswith("-"):
        text = f"{shown(command.executable)} would be an option of ncu"
        yield Mistake(path="executable", text=text)
    args: Sequence[object] = command.args or ()
    for index, argument in enumerate(args):
        if not isinstance(argument, (str, os.PathLike)):
            yield Mistake(path=f"args[{index}]", text=f"{shown(argument)} is not text")
    for index, (before, option) in enumerate(pairwise(("", *opts))):
        path = f"opts[{index}]"
        if not option:
            yield Mistake(path=path, text="it is empty")
        elif option.partition("=")[0] in _OUTPUT_OPTIONS:
            yield Mistake(path=path, text=f"{option}: it follows from output")
        elif not option.startswith("-") and ("=" in before or before[:1] != "-"):
            text = f"ncu would take {option!r} for the program"
            yield Mistake(path=path, text=text)


def _filter_mistakes(command: Command) -> Iterator[Mistake]:
    for name in ("nvtx_includes", "nvtx_excludes"):
        for index, expression in enumerate(getattr(command, name) or ()):
            # An expression of slashes only crashes NVIDIA's reader with an uncaught
            # exception.
            if not isinstance(expression, str) or not expression.strip().strip("/"):
                text = f"{shown(expression)} names no range"
                yield Mistake(path=f"{name}[{index}]", text=text)
    if command.nvtx_excludes and "range" in str(command.replay_mode):
        text = f"ncu has no excludes with replay_mode={command.replay_mode!r}"
        yield Mistake(path="nvtx_excludes", text=text)
    for name in ("kernel_name", "kernel_id"):
        value = getattr(command, name)
        if value is not None and (not isinstance(value, str) or not value):
            yield Mistake(path=name, text=f"{shown(value)} names no kernel")
    if command.kernel_name_base is not None and command.kernel_name is None:
        text = "given without kernel_name"
        yield Mistake(path="kernel_name_base", text=text)
