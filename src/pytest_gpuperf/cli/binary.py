"""The command `show` for compiled kernels: what each takes of each chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import print_table
from pytest_gpuperf.collect.binary.read import Cubin, read_cubins, read_mixes
from pytest_gpuperf.collect.devices import chip_limits, target_capability
from pytest_gpuperf.collect.ncu.nvtx import few
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.compute.derive import kernel_occupancy
from pytest_gpuperf.errors import CaptureFormatError, CollectError
from pytest_gpuperf.fixture.values import matches
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import kernel_name, plain_name
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.lines import Column

if TYPE_CHECKING:
    from pytest_gpuperf.collect.binary.instructions import InstructionMix
    from pytest_gpuperf.model.activity import KernelResources, Occupancy

__all__ = ["show_binary"]

_KIB = 1024
_NAME_WIDTH = 60  # a template's whole name fills a screen
_MOST_CLASSES = 2  # of instructions in a row: the most frequent ones
_ALL = "compiled"  # the class of every instruction
# of cubins whose code is read: nvdisasm reads them whole, 1 MB (130 kernels) in some 5 s
_MOST_BYTES = 2_000_000
_MOST_ROWS = (
    40  # kernels of a library, the ones with most registers; --top asks for more
)


class _KernelRow(Frozen, frozen=True, kw_only=True):
    """A kernel compiled for one chip; what is None is not known."""

    kernel: KernelResources
    mix: InstructionMix | None
    occupancy: Occupancy | None

    @property
    def name(self) -> str:
        """Its readable name."""
        return self.kernel.demangled or self.kernel.name

    @property
    def spills_bytes(self) -> int | None:
        """Spilled registers of a thread [B], where its code tells them."""
        return None if self.mix is None else self.mix.spills_bytes

    @property
    def classes(self) -> Mapping[str, int]:
        """The instructions that it has, by class; the most frequent first."""
        counts = (self.mix and self.mix.counts) or {}
        present = {
            name: counts[name] for name in INSTRUCTION_CLASSES if counts.get(name)
        }
        return dict(sorted(present.items(), key=lambda item: -item[1]))


def show_binary(
    file: str,
    form: str,
    *,
    pattern: str | None,
    block: int | None,
    top: int | None = None,
) -> int:
    """
    Print the kernels of a cubin, fatbin or library.

    Args:
        file: The file.

        form: text, json or markdown.

        pattern: Names of kernels, with `*`, `?` and `[]`; None: all.

        block: Threads of a block, for the occupancy; None: not known.

        top: The most kernels in a table; None: some 40, where no pattern chooses any.

    Raises:
        CollectError: It cannot be read, or no kernel fits the pattern.
    """
    runner = ProcessRunner()
    cubins = read_cubins(file, runner=runner, block=block)
    chosen = _matching(cubins, pattern, file)
    count = sum(len(cubin.kernels) for cubin in chosen)
    remarks = []
    mixes: Sequence[InstructionMix | None] = [None] * count
    size_bytes = sum(len(cubin.content) for cubin in chosen)
    if size_bytes > _MOST_BYTES:
        limit, size = (display.value(n, "bytes") for n in (_MOST_BYTES, size_bytes))
        remarks.append(
            f"instructions and spills n/a: the kernels' cubins have {size}, and only "
            f"{limit} are read; choose kernels of few chips with --kernel"
        )
    else:
        try:
            mixes = read_mixes(chosen, runner=runner)
        except CollectError as error:
            remarks.append(f"instructions and spills n/a: {error}")
    kernels = [kernel for cubin in chosen for kernel in cubin.kernels]
    rows = [
        _KernelRow(kernel=kernel, mix=mix, occupancy=_occupancy(kernel))
        for kernel, mix in zip(kernels, mixes, strict=True)
    ]
    remarks.append(
        "occupancy n/a: give the threads of a block with --block"
        if block is None
        else "shared and occupancy are without what a launch asks for, as Triton's do"
    )
    most = top or (_MOST_ROWS if pattern is None else count)
    listed = rows
    if len(rows) > most and form != "json":
        listed = sorted(rows, key=lambda row: -row.kernel.registers_count)[:most]
        remarks.insert(
            0,
            f"{len(rows) - most} more kernels with fewer registers or as many: --top=N "
            "shows more, --kernel chooses, --format=json has all",
        )
    return print_table(
        form,
        title=f"{file}: {display.plural(count, 'kernel')}",
        table=_columns(listed, form),
        remarks=remarks,
        content={"kernels": [_content(row) for row in rows], "remarks": remarks},
    )


def _matching(
    cubins: Sequence[Cubin], pattern: str | None, file: str
) -> tuple[Cubin, ...]:
    """Return cubins with the kernels that fit a pattern."""
    if pattern is None:
        return tuple(cubins)
    chosen = tuple(
        Cubin(content=cubin.content, kernels=kernels)
        for cubin in cubins
        if (
            kernels := tuple(
                k for k in cubin.kernels if matches(k.name, pattern, k.demangled)
            )
        )
    )
    if not chosen:
        message = f"no kernel fits {pattern!r}"
        remedy = f"there are {few(_names_like(pattern, cubins))}"
        raise CaptureFormatError(message, remedy=remedy, path=file)
    return chosen


def _names_like(pattern: str, cubins: Sequence[Cubin]) -> list[str]:
    """Return the kernels of cubins as they are written, what is spelled alike first."""
    word = pattern.strip("*?").casefold()
    full = (escape(k.demangled or k.name) for cubin in cubins for k in cubin.kernels)
    names = dict.fromkeys(kernel_name(plain_name(n), _NAME_WIDTH) for n in full)
    return sorted(names, key=lambda name: word not in name.casefold())


def _occupancy(kernel: KernelResources) -> Occupancy | None:
    """Return the occupancy of a kernel on the chip that it is compiled for."""
    capability = target_capability(kernel.target)
    limits = None if capability is None else chip_limits(capability)
    return None if limits is None else kernel_occupancy(kernel, limits)


def _columns(rows: Sequence[_KernelRow], form: str) -> tuple[Column, ...]:
    """Return the table of some kernels; a column without any value is left out."""

    def column(
        head: str, text: Callable[[_KernelRow], str], *, right: bool = True
    ) -> Column:
        return Column(head=head, cells=tuple(map(text, rows)), right=right, blank="n/a")

    spelled = display.code if form == "markdown" else str
    full = [escape(row.name) for row in rows]
    plain = [plain_name(name) for name in full]
    # overloads differ by their parameters alone
    are_told_apart = len(set(plain)) == len(set(full))
    names = tuple(
        spelled(kernel_name(name, _NAME_WIDTH))
        for name in (plain if are_told_apart else full)
    )
    columns = (
        Column(head="kernel", cells=names, shrinks=True),
        column("chip", lambda row: row.kernel.target, right=False),
        column("registers", lambda row: str(row.kernel.registers_count)),
        column("stack", lambda row: _bytes(row.kernel.stack_bytes)),
        column("spills", lambda row: _bytes(row.spills_bytes)),
        column("shared", lambda row: _kib(row.kernel.shared_bytes)),
        column("occupancy", _occupancy_text, right=False),
        column("code", lambda row: str(row.classes.get(_ALL, ""))),
        column("most of it", _classes_text, right=False),
    )
    return tuple(column for column in columns if any(column.cells))


def _bytes(number: int | None) -> str:
    """Return a number of bytes; "" where it is not known."""
    return "" if number is None else f"{number} B"


def _kib(number: int) -> str:
    """Return shared memory as its limits are written: in KiB."""
    return f"{number // _KIB} KiB" if number and not number % _KIB else f"{number} B"


def _occupancy_text(row: _KernelRow) -> str:
    """Return the occupancy of a kernel with what limits it."""
    if row.occupancy is None:
        return ""
    share = display.value(row.occupancy.fraction, "fraction")
    return (
        share if row.occupancy.fraction == 1 else f"{share} by {row.occupancy.limiter}"
    )


def _classes_text(row: _KernelRow) -> str:
    """Return the most frequent classes of instructions of a kernel."""
    if row.mix is not None and row.mix.doubt is not None:
        return f"n/a: {row.mix.doubt}"
    classes = [
        f"{name} {count}"
        for name, count in row.classes.items()
        # without the widths of accesses, which their class has already
        if name != _ALL and not name.rpartition("_")[2].isdecimal()
    ]
    return ", ".join(classes[:_MOST_CLASSES])


def _content(row: _KernelRow) -> dict[str, object]:
    """Return a kernel as JSON."""
    kernel, occupancy = row.kernel, row.occupancy
    return {
        "kernel": kernel.name,
        "demangled": kernel.demangled,
        "target": kernel.target,
        "registers_count": kernel.registers_count,
        "stack_bytes": kernel.stack_bytes,
        "spills_bytes": row.spills_bytes,
        "shared_bytes": kernel.shared_bytes,
        "constant_bytes": kernel.constant_bytes,
        "occupancy_fraction": None if occupancy is None else occupancy.fraction,
        "occupancy_limiter": None if occupancy is None else occupancy.limiter,
        "instructions": None if row.mix is None else row.mix.counts,
    }
