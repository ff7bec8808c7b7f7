"""The log of ptxas: the spills and barriers of a kernel, if they are certain."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from pytest_gpuperf.collect.translate import FOREIGN_BYTES, MAGIC_BYTES, foreign
from pytest_gpuperf.disk import read_regular
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.activity import InstructionMix, KernelResources
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode

_LARGEST_BYTES = 1_000_000_000  # 1,000 times the log of a large project.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # Written by PowerShell.


def log_text(log: str | os.PathLike[str]) -> str:
    """
    Return the text of a compiler's log.

    Args:
        log: The text, or the path of a file. A text is a `str` with at least one line
            break.

    Raises:
        CaptureFormatError: The file cannot be read, or is not text.
    """
    if _is_text(log):
        return str(log)
    text = os.fspath(log)
    try:
        content = read_regular(text, most_bytes=_LARGEST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CaptureFormatError(
            f"the compiler's log cannot be read ({reason})",
            remedy="name the file with the output of ptxas -v, or pass the text",
            path=text,
        ) from error
    known = foreign(content[:MAGIC_BYTES])
    if known is not None:
        raise CaptureFormatError(known.message, remedy=known.remedy, path=text)
    encoding = "utf-16" if content.startswith(_UTF_16) else "utf-8-sig"
    return content.decode(encoding, "replace")


def log_name(log: str | os.PathLike[str]) -> str:
    """Return the name of a compiler's log in messages."""
    return "the compiler's log" if _is_text(log) else os.fspath(log)


def _is_text(log: str | os.PathLike[str]) -> bool:
    return isinstance(log, str) and ("\n" in log or not log.strip())


@dataclass(slots=True, kw_only=True)
class LoggedKernel:
    """
    A kernel of a compilation, filled in line by line.

    Attributes:
        name: The mangled name.

        frame_bytes: Stack frame of the kernel itself [B], or None if not yet read.

        spills_bytes: Spill stores and loads of the kernel itself [B].

        registers_count: Registers per thread. None if the lines of the kernel are not
            complete, or not in the compiler's order.

        barriers_count: Barriers of a block, or None if an old compiler does not print them.

        cumulative_bytes: Stack of the kernel and all called functions [B], or None if not
            printed, because it is zero or the compiler is old.

        functions: Name, frame [B] and spills [B] of each function between this kernel and
            the next kernel of the compilation.

        target: The chip, as `sm_90a`.

        compilation: All kernels of the same compilation, with this one.
    """

    name: str
    target: str
    frame_bytes: int | None = None
    spills_bytes: int = 0
    registers_count: int | None = None
    barriers_count: int | None = None
    cumulative_bytes: int | None = None
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    compilation: list[LoggedKernel] = field(repr=False)

    @property
    def stack_bytes(self) -> int | None:
        """Stack of the kernel and all called functions [B], or None if unknown."""
        if self.cumulative_bytes is not None:
            return self.cumulative_bytes
        if any(frame_bytes for _, frame_bytes, _ in self.functions):
            return None
        return self.frame_bytes

    def may_have_stack(self, stack_bytes: int, parts: CodeParts) -> bool:
        """Return True if a stack [B] fits the frames of the kernel and its functions."""
        least_bytes = self.frame_bytes or 0
        if parts.apart:
            return stack_bytes >= least_bytes
        inside = parts.inside[self.name]
        own = (frame_bytes for name, frame_bytes, _ in self.functions if name in inside)
        return least_bytes <= stack_bytes <= least_bytes + sum(own)


class CompilerLog(Frozen, frozen=True, kw_only=True):
    """
    The log of some compilations.

    Attributes:
        kernels: All kernels of a name and target.

        functions: The largest spills of a function that is not a kernel [B], by name.
    """

    kernels: dict[tuple[str, str], list[LoggedKernel]]
    functions: dict[str, int]


_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# MSBuild numbers the projects that it compiles at the same time. A line without a number
# continues the line before.
_PROJECT = re.compile(r"\s*(\d+)>")
_UNIT = re.compile(r": \d+ bytes gmem")
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(\w+)'")
# nvlink, whose lines follow separate compilation, writes names in quotes.
_FUNCTION = re.compile(r"Function properties for ([^\s':]+)\s*$")
_FRAME = re.compile(
    r"(?<!\d)(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_REST_OF_FRAME = re.compile(r"\d bytes ")  # Of a line that was cut off before.
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_CUMULATIVE = re.compile(r"(?<!\d)(\d+) bytes cumulative stack size")
_MOST_DIGITS = 18  # A number of 18 digits fits into 64 bits.


def _whole(digits: str) -> int:
    """Parse a number of a log, and refuse a number that is too long for any compiler."""
    if len(digits) > _MOST_DIGITS:
        raise CaptureFormatError(
            f"holds a number of {len(digits)} digits",
            remedy="compile with -Xptxas -v and hand over all that it prints",
            path="the compiler's log",
        )
    return int(digits)


def read_ptxas_log(log: str, *, path: str = "the compiler's log") -> CompilerLog:
    """
    Parse the log of any number of compilations.

    Args:
        log: The output of nvcc, ptxas or a build tool. Other lines are ignored.

        path: The name of the log in messages.

    Raises:
        CaptureFormatError: The log names no kernel. The message names the tool that wrote
            the text, if it is known.
    """
    read = CompilerLog(kernels=defaultdict(list), functions=defaultdict(int))
    projects: dict[str, _Compilations] = defaultdict(lambda: _Compilations(read))
    current = projects[""]
    for line in _COLOUR.sub("", log).splitlines():
        if project := _PROJECT.match(line):
            current = projects[project[1]]
        current.take(line)
    if not read.kernels:
        message = "names no kernel"
        known = None if "ptxas" in log else foreign(log[:FOREIGN_BYTES].encode())
        if known is not None:
            message = f"{known.message}, and it {message}"
        raise CaptureFormatError(
            message,
            remedy="compile with -Xptxas -v and hand over all that it prints",
            path=path,
        )
    return read


class _Compilations:
    """
    The compilations of one stream of lines, one after the other.

    ptxas prints the memory of a compilation first. A kernel has three lines: its name, its
    properties, its registers. The properties of called functions follow. A kernel with
    other lines in between stays incomplete, because several compilers wrote at once.

    Args:
        log: The log to be filled.
    """

    def __init__(self, log: CompilerLog) -> None:
        self._log = log
        self._compilation: list[LoggedKernel] = []
        self._kernel: LoggedKernel | None = None
        # The function whose stack frame must be next.
        self._function: str | None = None

    def take(self, line: str) -> None:
        """Read the next line."""
        if _UNIT.search(line):
            self._kernel = self._function = None
            self._compilation = []
        elif entry := _ENTRY.search(line):
            name, target = entry.groups()
            kernel = LoggedKernel(
                name=name, target=target, compilation=self._compilation
            )
            self._compilation.append(kernel)
            self._log.kernels[name, target].append(kernel)
            self._kernel, self._function = kernel, None
        elif function := _FUNCTION.search(line):
            if self._function is None and self._may_describe(function[1]):
                self._function = function[1]
            else:
                self._drop()
        elif frame := _FRAME.search(line):
            if _REST_OF_FRAME.search(line, 0, frame.start()):
                self._drop()
            self._frame(_whole(frame[1]), _whole(frame[2]) + _whole(frame[3]))
        elif used := _USED.search(line):
            self._used(_whole(used[1]), used[2])
        elif self._function is not None and line.strip():
            self._drop()  # The frame is the rest of the same message.

    def _is_unfinished(self) -> bool:
        return self._kernel is not None and self._kernel.registers_count is None

    def _may_describe(self, name: str) -> bool:
        kernel = self._kernel
        if kernel is None or kernel.registers_count is not None:
            return True
        return kernel.frame_bytes is None and kernel.name == name

    def _frame(self, frame_bytes: int, spills_bytes: int) -> None:
        name, self._function = self._function, None
        if name is None:
            self._drop()
            return
        if self._kernel is not None and self._is_unfinished():
            self._kernel.frame_bytes = frame_bytes
            self._kernel.spills_bytes = spills_bytes
            return
        self._log.functions[name] = max(self._log.functions[name], spills_bytes)
        if self._kernel is not None:
            self._kernel.functions.append((name, frame_bytes, spills_bytes))

    def _used(self, registers_count: int, rest: str) -> None:
        kernel = self._kernel
        in_order = self._is_unfinished() and self._function is None
        if kernel is None or kernel.frame_bytes is None or not in_order:
            self._drop()
            return
        kernel.registers_count = registers_count
        if barriers := _BARRIERS.search(rest):
            kernel.barriers_count = _whole(barriers[1])
        if cumulative := _CUMULATIVE.search(rest):
            kernel.cumulative_bytes = _whole(cumulative[1])

    def _drop(self) -> None:
        """Forget the current kernel, because its lines are mixed with others."""
        if self._kernel is not None:
            self._kernel.registers_count = None
        self._kernel = self._function = None


class CodeParts(Frozen, frozen=True, kw_only=True):
    """
    The functions of a cubin, by its symbols.

    Attributes:
        inside: Names of the functions that were compiled as a part of a kernel, by kernel.

        apart: Names of the functions that several kernels may call.
    """

    inside: Mapping[str, frozenset[str]]
    apart: frozenset[str]


class CompilerFacts(TypedDict):
    """
    What a log says of a kernel of a binary, as fields of KernelResources.

    `barriers_count` is None if an old compiler does not print it, or if several
    compilations of the kernel have different numbers.
    """

    spills_bytes: int
    barriers_count: int | None


_OWN_LOG = "pass the log of the compilation that wrote the binary, or no log"


def facts_of(
    kernel: KernelResources, log: CompilerLog, parts: CodeParts
) -> CompilerFacts | Gap:
    """
    Return the facts of a log about a kernel, or a gap if the facts are uncertain.

    Args:
        kernel: A kernel of a binary.

        log: The log, which may name other compilations of the kernel, too.

        parts: The functions of the kernel's cubin.
    """
    matching = _matching(kernel, log, parts)
    if isinstance(matching, Gap):
        return matching
    name = kernel.demangled or kernel.name
    inside = parts.inside[kernel.name]
    spilled, *others = {
        each.spills_bytes
        + sum(n for called, _, n in each.functions if called in inside)
        for each in matching
    }
    if others:
        reason = (
            f"the compiler's log has {len(matching)} kernels {name} with "
            f"{kernel.registers_count} registers and different spills"
        )
        return _gap(reason, _OWN_LOG)
    if spilled and kernel.stack_bytes == 0:
        reason = (
            f"{name} spills {spilled} B in the compiler's log, and has no stack in the "
            "binary"
        )
        return _gap(reason, _OWN_LOG)
    barriers = {each.barriers_count for each in matching}
    barriers_count = barriers.pop() if len(barriers) == 1 else None
    return CompilerFacts(spills_bytes=spilled, barriers_count=barriers_count)


def _matching(
    kernel: KernelResources, log: CompilerLog, parts: CodeParts
) -> list[LoggedKernel] | Gap:
    """Return the compilations that may have written a kernel, or why there are none."""
    name = kernel.demangled or kernel.name
    logged = log.kernels.get((kernel.name, kernel.target))
    if not logged:
        reason = f"the compiler's log does not name {name} for {kernel.target}"
        return _gap(reason, "pass the log of the whole binary")
    inside = parts.inside.get(kernel.name)
    if inside is None:
        reason = f"the binary does not list the functions of {name}"
        return _gap(reason, "compile it again, or pass no log")
    complete = [each for each in logged if _is_complete(each, inside, parts)]
    if not complete:
        return _gap(
            f"the lines of {name} in the compiler's log are cut off, or mixed with those "
            "of another compilation",
            "pass them all, one compilation after the other (make --output-sync)",
        )
    matching = [each for each in complete if _matches(each, kernel, parts)]
    # A function that spills has a stack, which adds to the stack of the kernel.
    alone = all(each.frame_bytes == kernel.stack_bytes for each in matching)
    may_spill = any(log.functions.get(name, 1) for name in parts.apart)
    if parts.apart and (not matching or (may_spill and not alone)):
        reason = f"{name} may call functions that were compiled apart and spill"
        return _gap(reason, "compile without -rdc=true and -G, or pass no log")
    if not matching:
        first = complete[0]
        stack = f"a stack of {first.stack_bytes} B"
        if first.stack_bytes is None:
            stack = f"a stack frame of {first.frame_bytes} B"
        reason = (
            f"the compiler's log is from another build: {name} has "
            f"{first.registers_count} registers and {stack} in it, "
            f"and {kernel.registers_count} registers and {kernel.stack_bytes} B in the binary"
        )
        return _gap(reason, _OWN_LOG)
    return matching


def _gap(reason: str, remedy: str) -> Gap:
    return Gap(code=GapCode.NOT_STATED, reason=reason, remedy=remedy)


def _is_complete(
    logged: LoggedKernel, inside: frozenset[str], parts: CodeParts
) -> bool:
    listed = [name for name, _, _ in logged.functions if name in inside]
    if logged.registers_count is None or sorted(listed) != sorted(inside):
        return False
    if inside and not _is_of_one_compiler(logged, parts):
        return False
    stack_bytes = logged.stack_bytes
    return stack_bytes is None or logged.may_have_stack(stack_bytes, parts)


def _is_of_one_compiler(logged: LoggedKernel, parts: CodeParts) -> bool:
    """
    Return True if the compilation of a kernel has the kernels and functions of its cubin.

    A line about a function does not name its kernel. When compilers write at once, it may
    stand below a kernel of another compiler.
    """
    names = [each.name for each in logged.compilation]
    if {each.target for each in logged.compilation} != {logged.target}:
        return False
    if len({*names}) < len(names) or not parts.inside.keys() >= {*names}:
        return False
    known = frozenset[str]().union(*parts.inside.values())
    return all(
        {name for name, _, _ in each.functions} & known <= parts.inside[each.name]
        for each in logged.compilation
    )


def _matches(logged: LoggedKernel, kernel: KernelResources, parts: CodeParts) -> bool:
    if logged.registers_count != kernel.registers_count:
        return False
    if kernel.stack_bytes is None:
        return True
    if logged.cumulative_bytes is not None:
        return logged.cumulative_bytes == kernel.stack_bytes
    return logged.may_have_stack(kernel.stack_bytes, parts)


# The largest access to local memory of a thread [B].
_WIDEST_BYTES = 16


def unlike_code(kernel: KernelResources, mix: InstructionMix) -> Gap | None:
    """
    Return a gap if the spills of a log contradict the code, else None.

    Args:
        kernel: A kernel with the spills of a log.

        mix: The instructions of the kernel.
    """
    if kernel.spills_bytes is None or mix.counts is None:
        return None
    name = kernel.demangled or kernel.name
    accesses = mix.counts["local_load"] + mix.counts["local_store"]
    if mix.spills_bytes not in {None, kernel.spills_bytes}:
        own = f"spills {mix.spills_bytes} B"
    elif kernel.spills_bytes > accesses * _WIDEST_BYTES:
        own = f"has {accesses} accesses to local memory"
    else:
        return None
    return _gap(
        f"the compiler's log is from another build: {name} spills {kernel.spills_bytes} B "
        f"in it, and the code in the binary {own}",
        _OWN_LOG,
    )
