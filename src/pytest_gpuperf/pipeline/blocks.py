"""A block: fresh processes of both sides that measure the same tests by turns."""

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
from pytest_gpuperf.collect.runner import ending
from pytest_gpuperf.collect.scratch import ScratchFolder
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
    from pytest_gpuperf.pipeline.repeat import Launch
    from pytest_gpuperf.pipeline.turn_server import Patience


__all__ = [
    "BlockRequest",
    "SideStart",
    "TimePlan",
    "TwoSides",
    "affordable",
    "least_process_s",
    "plan",
    "run_block",
]

_PAIR = 2  # one of each side
_TEST = "an A/B comparison"  # what it needs the machine for, as waiting runs name it
_PROCESSES = 4  # of a block: two of each side
_LEAST_SAMPLES = 3  # of a slow call; collect.timing.host takes no fewer
_SECONDS_OF_MINUTE = 60
_MARGIN = 1.5  # processes start, and other tests are measured beside
_BREAK_S = 0.1  # between two blocks: another run looks at the lock every 0.05 s
_SHOWN_LINES = 15  # of what a failed process printed
# of a process that was ended: nothing shows whose code it ran, as on a full disk
_UNPROVEN = frozenset({GapCode.NOT_STATED, GapCode.FAILED, GapCode.NO_OWN_CODE})
_NO_SOCKETS = Gap(
    code=GapCode.UNSUPPORTED,
    reason="this system has no Unix sockets, over which processes take turns",
    remedy="compare with a stored baseline, or run it on Linux or macOS",
)


class SideStart(Protocol):
    """How a process of one side is started."""

    @property
    def side(self) -> Side:
        """Whose files it runs."""

    @property
    def folder(self) -> str:
        """Where it is started."""

    @property
    def scratch(self) -> str:
        """A folder of all its processes, which lasts as long as the run."""

    def argv(self, scratch: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """Return its command line; what it writes goes to `scratch`."""

    def environment(self, scratch: str, hash_seed: int) -> Mapping[str, str]:
        """Return its whole environment."""


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
        Return why the values of a process must not be compared; None: they may.

        Args:
            side: Its side.

            scratch: Its scratch folder.

            so_far: Whether it did not come to its end by itself, and what it has loaded
                before its last test counts.
        """


class BlockRequest(Frozen, frozen=True, kw_only=True):
    """
    How all blocks of a comparison are run.

    Attributes:
        variable: The environment variable that names a child's file.

        launch: Returns what a process of a command must find of its own start.

        refusal: Returns why a process does not count that was started otherwise, by the
            file that it answers in; None: it counts.

        patience: How long a process may work without being heard of; it learns from each
            block.

        tell: Takes sentences about what happens, as that another run is waited for.

        waited: Told how long a block has waited for its turn [s], where it did.

        at_once: Processes that are alive at once, at most: 4, 2 or 1.

        fits: Returns whether memory holds so many processes; two are alive at once where
            it does not hold four.

        fits_on_device: Returns whether the GPU's memory does; where it does not hold two
            either, one is alive at once.

        keys: The keys of tests by their ids, where they are not the ids.
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
    Measure tests in two fresh processes of each side, which take turns.

    Args:
        sides: How a process of each is started.

        test_ids: The tests, in the order to run them.

        index: The number of the block, from 0; odd ones begin with the old side.

        site: The process that starts them.

        request: What all blocks have in common.

    Returns:
        The block; or why there is none: a process ran other files than its side's, this
        system has no Unix sockets, or the temporary folder cannot be written.

    Raises:
        DeviceHeldError: Another run held the machine or the GPU all the time.

        CollectorUnavailableError: A side's program cannot be started.
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
    """Lock the machine and the GPU, where that was not switched off."""
    config, device, timeout_s = site.config, site.device(), site.config.lock_timeout_s
    waits_ns: list[int] = []  # when a holder was first waited for

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
                request.tell(
                    f"other runs are not kept from disturbing this one: {error.message}"
                )
        if waits_ns:
            request.waited((site.clock.now_ns() - waits_ns[0]) / NS_PER_S)
        yield


def _at_once(request: BlockRequest) -> int:
    """Return how many processes are to be alive at once."""
    count, short = request.at_once, ""
    if count > _PAIR and not request.fits(count):
        count, short = _PAIR, f"memory does not hold {count} processes"
    while count > 1 and not request.fits_on_device(count):
        short = f"the GPU's memory does not hold {count} processes"
        count = _PAIR if count > _PAIR else 1
    if short:
        how = "one of each side takes turns" if count > 1 else "one runs after another"
        request.tell(f"{short}: {how}")
    return count


class _Member(Frozen, frozen=True, kw_only=True):
    """
    A process that is to be started.

    Attributes:
        command: How.

        index: Its number among those of its side.

        block: The number of the block, from 0; the seed of its hashes, too.

        caches: Of its side, by environment variable.

        scratch: Its folder.
    """

    command: SideStart
    index: int
    block: int
    caches: Mapping[str, str]
    scratch: str

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return f"{self.command.side.value} {self.index + 1}"


def _members(
    sides: TwoSides, index: int, folder: str, at_once: int
) -> Iterator[list[_Member]]:
    """Yield the processes that are alive at once, in the order of their first round."""
    caches = {side: empty_caches(str(Path(folder, side.value))) for side in Side}
    # the new side first: how long it takes is known when the old one hangs
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
        sides: What they are of.

        members: The processes, in the order of a round.

        test_ids: The tests, in the order to run them.

        site: The process that starts them.

        request: What all blocks have in common.
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
        """Return what each process measured, or why nothing may be compared."""
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
        """Start a process; it has ended when `closing` has."""
        ours, theirs = socket.socketpair()
        closing.callback(ours.close)
        with theirs:
            argv = member.command.argv(member.scratch)
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
                loaded=_loaded_file(member),
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
        """Return what a process measured; nothing where its files cannot be checked."""
        side, fate = member.command.side, _fate(connection)
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
        return SideRun(
            side=side,
            index=member.index,
            records=tuple(record for answer in valid for record in answer.records),
            references=self._references(member, valid),
            failures=self._failures(answers, fate or _tail(member), ended_in),
            ended_in=ended_in,
            not_reached=self._behind(ended_in),
            ended_outside=fate if connection.is_outside else "",
        )

    def _before(
        self, member: _Member, connection: Connection
    ) -> tuple[tuple[str, ...], Gap | None]:
        """Return which tests count of a process that was ended, or why none may."""
        if connection.is_outside or not connection.ended_tests:
            return (), None
        gap = self._sides.proof(member.command.side, member.scratch, so_far=True)
        if gap is not None and gap.code in _UNPROVEN:
            return (), None
        return tuple(connection.ended_tests), gap

    def _behind(self, ended_in: str) -> frozenset[str]:
        """Return the tests that come after one; "": none."""
        if ended_in not in self._test_ids:
            return frozenset()
        return frozenset(self._test_ids[self._test_ids.index(ended_in) + 1 :])

    def _failures(
        self, answers: Mapping[str, ChildAnswer], reason: str, ended_in: str
    ) -> dict[str, str]:
        """
        Return why tests gave no value, by test.

        Args:
            answers: What the process answered.

            reason: Why it did not reach the others.

            ended_in: The test in which it was ended; "": none.
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

    def _references(
        self, member: _Member, answers: Sequence[ChildAnswer]
    ) -> tuple[Record, ...]:
        """Return what a process timed of reference workloads."""
        return reference_records(
            (samples for answer in answers for samples in answer.references),
            environment=self._site.environment,
            role=Role.CONFIRM,
            process_index=member.index + 1,
        )


def _answers_file(member: _Member) -> str:
    """Return the file that a process answers in."""
    return str(Path(member.scratch, "answers.jsonl"))


def _loaded_file(member: _Member) -> str:
    """Return the file in which a process says what it has loaded so far, in a folder."""
    file = Path(member.scratch, LOADED_SO_FAR)
    file.parent.mkdir()
    return str(file)


def _log_file(member: _Member) -> str:
    """Return the file that takes what a process prints."""
    return str(Path(member.scratch, "log.txt"))


def _fate(connection: Connection) -> str:
    """Return why a process did not end by itself; "": it did."""
    exit_code = connection.process.exit_code or 0
    if connection.fate or exit_code >= 0:
        return connection.fate
    return f"the process was ended by {ending(exit_code)}{connection.where}"


def _left(connection: Connection, gap: Gap) -> tuple[str, Gap | None]:
    """
    Return where a process ended that did not say what it has loaded.

    Returns:
        Its fate, which a test is to blame for: what it measured before that may count, and
        others may be compared. Outside of tests the finding, with the place.
    """
    where = connection.where
    if connection.is_outside:
        return "", replace(gap, reason=f"{gap.reason}: it ended{where}")
    exit_code = connection.process.exit_code
    return f"the process ended{where} (exit {exit_code}, as by os._exit)", None


def _tail(member: _Member) -> str:
    """Return the last lines that a process printed."""
    text = Path(_log_file(member)).read_bytes().decode("utf-8", "replace")
    return last_lines(text, _SHOWN_LINES)


class TimePlan(Frozen, frozen=True, kw_only=True):
    """
    The slow tests that the budget of a comparison holds.

    Attributes:
        least_s: What those that it holds take in the first blocks at least [s].

        left_out: Why each of the others is not compared, by test id.
    """

    least_s: float = 0.0
    left_out: Mapping[str, Gap] = {}


def plan(
    tests: Mapping[str, Measured], *, budget_s: float, block_count: int
) -> TimePlan:
    """
    Return which tests have time for the first decision, the shortest first.

    Args:
        tests: What the tests measured in the suite, by id.

        budget_s: How long the comparison may take [s].

        block_count: Blocks that the first decision takes.
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
    Return the first of some tests, as many as there is time for, and at least one.

    Blocks of all tests that end before a look decide nothing; blocks of some do.

    Args:
        test_ids: The tests, those first that are to be decided.

        block_count: The blocks until the next look.

        test_s: What a test takes in a block [s]; 0: not known.

        left_s: What is left of the budget [s].
    """
    cost_s = block_count * test_s
    if cost_s * len(test_ids) <= left_s:
        return tuple(test_ids)
    return tuple(test_ids[: max(1, int(left_s / cost_s))])


def least_process_s(measured: Measured) -> float:
    """Return what the slow calls and blocks of a test take in one process, at least [s]."""
    return sum(map(_slow_s, measured.records))


def _slow_s(record: Record) -> float:
    """Return what a slow measurement takes at least [s]; 0 where it is not slow."""
    times = {e.metric: e for e in reversed(record.estimates) if e.kernel is None}
    time = times.get("time.wall") or times.get("time")
    if time is None or time.unit != "s" or time.value < SLOW_S:
        return 0.0
    if record.kind is not Kind.MEASURE:  # a block runs once; a loop is as long as it is
        return time.value if record.kind is Kind.RANGE else 0.0
    samples_count = min(time.sample_count or 1, _LEAST_SAMPLES)
    first = times.get("time.first_call")
    # with fewer, the first call is one of them
    warm_up_s = 0.0 if first is None or samples_count < _LEAST_SAMPLES else first.value
    return samples_count * time.value + warm_up_s
