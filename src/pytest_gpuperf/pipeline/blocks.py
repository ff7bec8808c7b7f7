"""A block: fresh processes of both sides that measure the same tests in alternation."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.leases import exclusive, exclusive_machine
from pytest_gpuperf.collect.memory import fits_in_memory
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.collect.signals import ending
from pytest_gpuperf.collect.timing.sampling import SLOW_S
from pytest_gpuperf.config import Lock
from pytest_gpuperf.errors import CollectError, DeviceHeldError
from pytest_gpuperf.judge.against import Block, SideRun
from pytest_gpuperf.measure.references import reference_records
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Kind, Role
from pytest_gpuperf.pipeline.repeat import (
    ChildSpec,
    answers_in,
    empty_caches,
    last_lines,
)
from pytest_gpuperf.pipeline.side_process import LOADED_SO_FAR
from pytest_gpuperf.pipeline.turn_server import Connection, TurnServer
from pytest_gpuperf.report.display import about, some_of

if TYPE_CHECKING:
    from pytest_gpuperf.collect.leases import ProcessState
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import ChildAnswer, Measured
    from pytest_gpuperf.pipeline.command_line import Launch
    from pytest_gpuperf.pipeline.turn_server import Patience


# Processes in a pair, one of each side.
_PAIR = 2
# The purpose of the lock, shown by other runs that wait for the machine.
_TEST = "an A/B comparison"
# Processes in a block, two of each side.
_PROCESSES = 4
# Samples of a slow call. collect.timing.host takes no fewer.
_LEAST_SAMPLES = 3
_SECONDS_OF_MINUTE = 60
# Allows for process starts and for other tests measured in the same blocks.
_MARGIN = 1.5
# The pause between two blocks. Another run checks the lock every 0.05 s.
_BREAK_S = 0.1
# Lines of output shown of a failed process.
_SHOWN_LINES = 15
# Codes of an ended process that do not show which code it ran, for example on a full disk.
_UNPROVEN = frozenset({GapCode.NOT_STATED, GapCode.FAILED, GapCode.NO_OWN_CODE})
_NO_SOCKETS = Gap(
    code=GapCode.UNSUPPORTED,
    reason="this system has no Unix sockets, over which processes take turns",
    remedy="compare with a stored baseline, or run it on Linux or macOS",
)


class SideStart(Protocol):
    """The command that starts processes of a side."""

    @property
    def side(self) -> Side:
        """The side."""

    @property
    def folder(self) -> str:
        """The folder to start in."""

    @property
    def scratch(self) -> str:
        """A folder for all processes of the side, which lasts as long as the run."""

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the command line of a process that writes to `scratch`."""

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        """Return the whole environment of a process."""


class TwoSides(Protocol):
    """The two sides of a comparison."""

    @property
    def old(self) -> SideStart:
        """The revision."""

    @property
    def new(self) -> SideStart:
        """The working tree."""

    def proof(self, side: Side, scratch: str, *, so_far: bool = False) -> Gap | None:
        """
        Return the reason against comparing the values of a process, or None.

        Args:
            side: The side of the process.

            scratch: The scratch folder of the process.

            so_far: True for a process that did not end by itself. Only the files loaded
                before its last test then count.
        """


class BlockRequest(Frozen, frozen=True, kw_only=True):
    """
    The settings shared by all blocks of a comparison.

    Attributes:
        variable: The environment variable with the task file of a child.

        launch: Returns the start that a process must find, by its command line.

        refusal: Returns the reason to reject a process that was started differently, by
            its answer file, or None.

        patience: The time limits of silent processes, which adapt after each block.

        tell: Called with sentences about events, for example waiting for another run.

        waited: Called with the time a block waited for its turn [s], if it waited.

        at_once: Largest number of processes alive at once: 4, 2 or 1.

        fits: Returns True if memory holds this number of processes. If memory does not
            hold four, two are alive at once.

        fits_on_device: Returns True if the GPU's memory holds this number of processes.
            If it does not hold two either, one is alive at a time.

        keys: The keys of tests by id, for keys that differ from the id.
    """

    variable: str
    patience: Patience
    tell: Callable[[str], object]
    launch: Callable[[Sequence[str]], Launch | None] = lambda _: None
    refusal: Callable[[str], Gap | None] = lambda _: None
    waited: Callable[[float], object] = lambda _: None
    at_once: int = 4
    fits: Callable[[int], bool] = fits_in_memory
    fits_on_device: Callable[[int], bool] = lambda _: True
    keys: Mapping[str, str] = {}


def run_block(
    sides: TwoSides,
    test_ids: Sequence[str],
    index: int,
    *,
    site: Site,
    request: BlockRequest,
) -> Block | Gap:
    """
    Measure tests in two fresh processes of each side, with alternating turns.

    Args:
        sides: The commands that start processes of each side.

        test_ids: The tests, in the order to run them.

        index: The number of the block, from 0. Odd blocks begin with the old side.

        site: The site of the starting process.

        request: The settings shared by all blocks.

    Returns:
        The block, or the reason for its absence: a process ran files that do not belong
        to its side, this system has no Unix sockets, or the temporary folder is not
        writable.

    Raises:
        DeviceHeldError: Another run held the machine or the GPU for longer than the
            lock timeout.

        CollectorUnavailableError: The program of a side cannot be started.
    """
    if not hasattr(socket, "AF_UNIX"):
        return _NO_SOCKETS
    runs: list[SideRun] = []
    try:
        with (
            _alone(site, index, request),
            ScratchFolder("block") as folder,
        ):
            for members in _members(sides, index, folder, _at_once(request)):
                group = _Group(sides, members, test_ids, site, request)
                measured = group.measured()
                if isinstance(measured, Gap):
                    return measured
                runs += measured
    except OSError as error:
        return Gap(
            code=GapCode.FAILED,
            reason=f"a block cannot be run ({error})",
            remedy="make room in the temporary folder, or set TMPDIR to another",
        )
    return Block(index=index, runs=tuple(runs))


@contextlib.contextmanager
def _alone(site: Site, index: int, request: BlockRequest) -> Iterator[None]:
    config, device, timeout_s = site.config, site.device(), site.config.lock_timeout_s
    # Start times of waiting for other runs. The first is the start of the whole wait.
    waits_ns: list[int] = []

    def waiting(holder: ProcessState) -> None:
        waits_ns.append(site.clock.now_ns())
        request.tell(f"waiting for process {holder.pid} ({holder.test})")

    with contextlib.ExitStack() as held:
        if config.lock is Lock.EXCLUSIVE:
            if index:
                site.clock.sleep(_BREAK_S)
            try:
                held.enter_context(
                    exclusive_machine(test=_TEST, timeout_s=timeout_s, waiting=waiting)
                )
                if device is not None:
                    held.enter_context(
                        exclusive(device.uuid, test=_TEST, timeout_s=timeout_s)
                    )
            except DeviceHeldError:
                raise
            except CollectError as error:
                request.tell(f"other runs may disturb this one: {error.message}")
        if waits_ns:
            request.waited((site.clock.now_ns() - waits_ns[0]) / NS_PER_S)
        yield


def _at_once(request: BlockRequest) -> int:
    count, short = request.at_once, ""
    if count > _PAIR and not request.fits(count):
        count, short = _PAIR, f"memory does not hold {count} processes"
    while count > 1 and not request.fits_on_device(count):
        short = f"the GPU's memory does not hold {count} processes"
        count = _PAIR if count > _PAIR else 1
    if short:
        how = (
            "one process of each side runs at a time"
            if count > 1
            else "one process runs at a time"
        )
        request.tell(f"{short}: {how}")
    return count


class _Member(Frozen, frozen=True, kw_only=True):
    """
    A process to be started.

    Attributes:
        command: The command that starts the process.

        index: The number among the processes of its side, from 0.

        block: The number of the block, from 0, also used as the hash seed.

        caches: The cache folders of the side, by environment variable.

        scratch: The folder of the process.
    """

    command: SideStart
    index: int
    block: int
    caches: Mapping[str, str]
    scratch: str

    @property
    def name(self) -> str:
        """The name in sentences."""
        return f"{self.command.side.value} {self.index + 1}"


def _members(
    sides: TwoSides, index: int, folder: str, at_once: int
) -> Iterator[list[_Member]]:
    caches = {side: empty_caches(str(Path(folder, side.value))) for side in Side}
    # The new side goes first, so that its duration is known if the old side hangs.
    first, second = (sides.new, sides.old) if index % 2 == 0 else (sides.old, sides.new)
    places = ((first, 0), (second, 0), (second, 1), (first, 1))
    members = []
    for command, number in places:
        scratch = Path(folder, f"{command.side.value}-{number}")
        scratch.mkdir()
        members.append(
            _Member(
                command=command,
                index=number,
                block=index,
                caches=caches[command.side],
                scratch=str(scratch),
            )
        )
    for begin in range(0, len(members), at_once):
        yield members[begin : begin + at_once]


class _Group:
    """
    Processes that are alive at once.

    Args:
        sides: The two sides.

        members: The processes, in the order of a round.

        test_ids: The tests, in the order to run them.

        site: The site of the starting process.

        request: The settings shared by all blocks.
    """

    def __init__(
        self,
        sides: TwoSides,
        members: Sequence[_Member],
        test_ids: Sequence[str],
        site: Site,
        request: BlockRequest,
    ) -> None:
        self._sides = sides
        self._members = members
        self._test_ids = tuple(test_ids)
        self._keys = tuple(request.keys.get(test_id, test_id) for test_id in test_ids)
        self._site = site
        self._request = request

    def measured(self) -> list[SideRun] | Gap:
        """Return the result of every process, or the reason against comparing anything."""
        connections: dict[str, Connection] = {}
        with contextlib.ExitStack() as closing:
            for member in self._members:
                connections[member.name] = self._started(member, closing)
            sentences = TurnServer(
                connections,
                self._test_ids,
                clock=self._site.clock,
                patience=self._request.patience,
            ).serve()
        for sentence in sentences:
            self._request.tell(sentence)
        runs: list[SideRun] = []
        for member in self._members:
            run = self._run_of(member, connections[member.name])
            if isinstance(run, Gap):
                return run
            runs.append(run)
        return runs

    def _started(self, member: _Member, closing: contextlib.ExitStack) -> Connection:
        ours, theirs = socket.socketpair()
        closing.callback(ours.close)
        with theirs:
            argv = member.command.argv(member.scratch)
            loaded = Path(member.scratch, LOADED_SO_FAR)
            loaded.parent.mkdir()
            spec = ChildSpec(
                test_ids=self._test_ids,
                keys=self._keys,
                identity=replace(
                    self._site.identity,
                    writer=f"{member.name} of block {member.block + 1}",
                    role=Role.CONFIRM,
                    process_index=member.index + 1,
                    spool=None,
                    expected=member.command.scratch,
                ),
                out=_answers_file(member),
                turns=theirs.fileno(),
                loaded=str(loaded),
                launch=self._request.launch(argv),
            )
            spec_file = Path(member.scratch, "spec.json")
            spec_file.write_text(codec.to_text(spec), encoding="utf-8")
            process = self._site.runner.start(
                argv,
                log=_log_file(member),
                cwd=member.command.folder,
                env={
                    **member.command.environment(member.scratch, member.block),
                    **member.caches,
                    self._request.variable: str(spec_file),
                },
                descriptors=(theirs.fileno(),),
            )
        closing.callback(process.end)
        return Connection(process=process, side=member.command.side, socket=ours)

    def _run_of(self, member: _Member, connection: Connection) -> SideRun | Gap:
        """Return the result of a process, which is empty if its files cannot be checked."""
        side, fate = member.command.side, connection.fate
        exit_code = connection.process.exit_code or 0
        if not fate and exit_code < 0:
            fate = f"the process was ended by {ending(exit_code)}{connection.where}"
        refusal = self._request.refusal(_answers_file(member))
        if refusal is not None:
            return refusal
        answers = answers_in(_answers_file(member))
        gap, counted = None, self._test_ids
        if not fate:
            gap = self._sides.proof(side, member.scratch)
            if gap is not None and gap.code is GapCode.NOT_STATED:
                fate, gap = _left(connection, gap)
        if fate:
            counted, gap = self._before(member, connection)
        if gap is not None:
            return gap
        valid = [
            answers[test_id]
            for test_id in counted
            if test_id in answers and not answers[test_id].failure
        ]
        ended_in = connection.test_id if fate and not connection.is_outside else ""
        behind: Sequence[str] = ()
        if ended_in in self._test_ids:
            behind = self._test_ids[self._test_ids.index(ended_in) + 1 :]
        reason = fate
        if not fate:
            log = Path(_log_file(member)).read_bytes().decode("utf-8", "replace")
            reason = last_lines(log, _SHOWN_LINES)
        return SideRun(
            side=side,
            index=member.index,
            records=tuple(record for answer in valid for record in answer.records),
            references=reference_records(
                (samples for answer in valid for samples in answer.references),
                environment=self._site.environment,
                device=self._site.device(),
                role=Role.CONFIRM,
                process_index=member.index + 1,
            ),
            failures=self._failures(answers, reason, ended_in),
            ended_in=ended_in,
            not_reached=frozenset(behind),
            ended_outside=fate if connection.is_outside else "",
        )

    def _before(
        self, member: _Member, connection: Connection
    ) -> tuple[tuple[str, ...], Gap | None]:
        """
        Return the valid tests of an ended process, and the gap that voids the block or None.
        """
        if connection.is_outside or not connection.ended_tests:
            return (), None
        gap = self._sides.proof(member.command.side, member.scratch, so_far=True)
        if gap is not None and gap.code in _UNPROVEN:
            return (), None
        return tuple(connection.ended_tests), gap

    def _failures(
        self, answers: Mapping[str, ChildAnswer], reason: str, ended_in: str
    ) -> dict[str, str]:
        """
        Return reasons for missing values, by test.

        Args:
            answers: The answers of the process.

            reason: The reason for tests that were never reached.

            ended_in: The test in which the process was ended, or "".
        """
        failures: dict[str, str] = {}
        for test_id in self._test_ids:
            answer = answers.get(test_id)
            if answer is None or (test_id == ended_in and not answer.failure):
                failures[test_id] = reason
            elif answer.failure:
                failures[test_id] = answer.failure
            elif not answer.records and answer.unmeasured:
                failures[test_id] = answer.unmeasured[0].reason
        return failures


def _answers_file(member: _Member) -> str:
    return str(Path(member.scratch, "answers.jsonl"))


def _log_file(member: _Member) -> str:
    return str(Path(member.scratch, "log.txt"))


def _left(connection: Connection, gap: Gap) -> tuple[str, Gap | None]:
    """
    Locate the end of a process that ended without listing the loaded files.

    Returns:
        Inside a test, the fate of the process and None: the test is to blame, its
        earlier results may count, and other tests may be compared. Outside of tests, ""
        and the gap with the place.
    """
    where = connection.where
    if connection.is_outside:
        return "", replace(gap, reason=f"{gap.reason}: it ended{where}")
    exit_code = connection.process.exit_code
    return f"the process ended{where} (exit {exit_code}, as by os._exit)", None


class TimePlan(Frozen, frozen=True, kw_only=True):
    """
    The slow tests that fit into the budget of a comparison.

    Attributes:
        least_s: Shortest duration of these tests in the first blocks [s].

        left_out: Reasons for not comparing the other tests, by test id.
    """

    least_s: float = 0.0
    left_out: Mapping[str, Gap] = {}


def plan(
    tests: Mapping[str, Measured], *, budget_s: float, block_count: int
) -> TimePlan:
    """
    Return the tests with enough time for the first decision, preferring short tests.

    Args:
        tests: The measurements of the tests in the suite, by id.

        budget_s: Time limit of the comparison [s].

        block_count: Number of blocks before the first decision.
    """
    factor = _PROCESSES * block_count
    costs_s = {
        test_id: factor * least_process_s(measured)
        for test_id, measured in tests.items()
    }
    kept_s, left_out = 0.0, []
    for test_id in sorted(costs_s, key=costs_s.__getitem__):
        if kept_s + costs_s[test_id] > budget_s:
            left_out.append(test_id)
        else:
            kept_s += costs_s[test_id]
    if not left_out:
        return TimePlan(least_s=kept_s)
    wanted_s = _MARGIN * sum(costs_s.values())
    minutes = ceil(wanted_s / _SECONDS_OF_MINUTE)
    more_s = sum(costs_s[test_id] for test_id in left_out)
    it = "it is" if len(left_out) == 1 else "they are"
    gap = Gap(
        code=GapCode.INCOMPLETE,
        reason=f"{block_count} blocks of {some_of(left_out)} take {about(more_s)} or more,"
        f" and the budget is {about(budget_s)}: {it} not compared",
        remedy=f"give it more (--gpuperf-budget={minutes}min), or fewer calls (the "
        "marker's iterations=)",
    )
    return TimePlan(least_s=kept_s, left_out=dict.fromkeys(left_out, gap))


def affordable(
    test_ids: Sequence[str], *, block_count: int, test_s: float, left_s: float
) -> tuple[str, ...]:
    """
    Return as many of the first tests as there is time for, and at least one.

    Blocks of all tests that end before a look decide nothing, but blocks of some tests
    do.

    Args:
        test_ids: The tests, in order of priority.

        block_count: Number of blocks until the next look.

        test_s: Duration of a test in a block [s], or 0 if unknown.

        left_s: The rest of the budget [s].
    """
    cost_s = block_count * test_s
    if cost_s * len(test_ids) <= left_s:
        return tuple(test_ids)
    return tuple(test_ids[: max(1, int(left_s / cost_s))])


def least_process_s(measured: Measured) -> float:
    """Return the shortest time for the slow calls and blocks of a test in a process [s]."""
    return sum(map(_slow_s, measured.records))


def _slow_s(record: Record) -> float:
    """Return the shortest duration of a slow measurement [s], or 0 if not slow."""
    times = {e.metric: e for e in reversed(record.estimates) if e.kernel is None}
    time = times.get("time.wall") or times.get("time")
    if time is None or time.unit != "s" or time.value < SLOW_S:
        return 0.0
    # A block runs once. The length of a loop is not limited.
    if record.kind is not Kind.MEASURE:
        return time.value if record.kind is Kind.RANGE else 0.0
    samples_count = min(time.sample_count or 1, _LEAST_SAMPLES)
    first = times.get("time.first_call")
    # With fewer samples, the first call is a sample.
    warm_up_s = 0.0 if first is None or samples_count < _LEAST_SAMPLES else first.value
    return samples_count * time.value + warm_up_s
