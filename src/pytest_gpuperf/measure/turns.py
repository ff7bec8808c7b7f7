"""Turns: on a GPU that other processes use, and among processes that measure the same tests.

A turn on a GPU is a whole test: what its fixtures give the GPU would disturb another's
samples. Processes that measure the same tests take turns sample by sample: another process
shares them out (pipeline/turn_server says by which rule), this one asks over a socket and
waits for one byte.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Container, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.devices import bare_uuid
from pytest_gpuperf.collect.leases import (
    Presence,
    ProcessActivity,
    ProcessState,
    descends_from,
    exclusive,
)
from pytest_gpuperf.collect.runtime import driver_library
from pytest_gpuperf.config import Lock
from pytest_gpuperf.errors import CollectError, ConfigError, DeviceHeldError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.record import Note, Void, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.telemetry import DeviceDeltas, Sharing

if TYPE_CHECKING:
    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.measure.site import Site

__all__ = [
    "GO",
    "OVER",
    "OtherUsers",
    "Stage",
    "TurnClient",
    "TurnRequest",
    "Turns",
    "without_siblings",
]

_NAME = "lock"  # no collector, but lost by name as they are
# who may come to use a GPU once it is loaded; the driver is loaded later
_FRAMEWORKS = frozenset(
    {
        *("cuda.bindings", "cupy", "jax", "numba.cuda", "paddle", "pycuda"),
        *("tensorflow", "torch", "triton", "warp"),
    }
)


class OtherUsers(Frozen, frozen=True, kw_only=True):
    """
    Who else was on the GPU during a test.

    Attributes:
        deltas: What its sensors counted: whoever waited for a turn does not share it.

        void: Why the test must not be judged; None: it may be.

        notes: What its reader should know.
    """

    deltas: DeviceDeltas | None
    void: Void | None = None
    notes: tuple[Note, ...] = ()


class Turns:
    """
    The turns of one process.

    Args:
        site: This process; a collector that fails is noted there as lost.

        modules: What this process has imported.

        driver: Returns the driver library if it is loaded; None: as this process has it.

        in_block: Whether its parent has started others that measure the same tests, and
            holds the GPU for all of them: they take turns, and are one user.

    Attributes:
        refusal: Why the test that runs now has no turn; None: it has, or needs none.
    """

    def __init__(
        self,
        site: Site,
        *,
        modules: Container[str] = sys.modules,
        driver: Callable[[], object] | None = None,
        in_block: bool = False,
    ) -> None:
        self.refusal: Unmeasured | None = None
        self._site = site
        self._in_block = in_block
        self._parent = os.getppid()
        self._runtime = site.runtime
        self._modules = modules
        self._driver = driver or driver_library()
        self._test: str | None = None  # that runs now, and measures
        self._turn = contextlib.ExitStack()
        self._device: str | None = None  # whose turn this process has
        self._since_ns = 0  # and since when
        self._present: dict[str, Presence] = {}  # by the device's UUID

    @contextlib.contextmanager
    def measuring(self, test_id: str) -> Iterator[None]:
        """Hold the GPU's lock while a test runs that measures, if its process may use one."""
        self._test = test_id
        try:
            if self._may_use_device():
                self._try_to_take()
            yield
        finally:
            self._give_back()
            self._test = self.refusal = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Announce a test that measures nothing, and may use the GPU."""
        self._say(ProcessActivity.WORKING)
        try:
            yield
        finally:
            self._say(ProcessActivity.QUIET)

    def ensure(self) -> None:
        """
        Lock the GPU that is in use by now, which a test has chosen after it began.

        Raises:
            DeviceHeldError: A test of another process had it all the time.

            ConfigError: Taking turns was asked for by name, and is not possible.
        """
        if self._test is None or not self._may_use_device():
            return
        if self._device is None or bare_uuid(self._device) != bare_uuid(self._uuid()):
            self._give_back()  # who kept one while waiting for another might wait for ever
            self._take()
        absence = self._site.lost.get(_NAME)
        if absence is not None and "gpuperf_lock" in self._site.config.option_texts:
            how = self._site.config.lock.value
            message = (
                f"--gpuperf-lock={how} was asked for and refuses: {absence.reason}"
            )
            raise ConfigError(message, remedy=absence.remedy)

    def other_users(self, deltas: DeviceDeltas | None) -> OtherUsers:
        """
        Return who else was on the GPU during this test.

        Args:
            deltas: What its sensors counted; None: they were not read.
        """
        if self._test is None or _NAME in self._site.lost:
            return OtherUsers(deltas=deltas)
        if self._device is None:
            text = (
                "the GPU came into use without a turn: others may have measured on it"
            )
            return OtherUsers(deltas=deltas, notes=(Note(code="no-turn", text=text),))
        present = self._present[self._device]
        users = [
            user
            for user in present.other_processes()
            if not (present.is_local(user) and self._is_sibling(user.pid))
        ]
        if self._in_block:
            deltas = without_siblings(deltas)
        rivals = [user for user in users if self._measured(user)]
        idle = {
            user.pid
            for user in users
            if user.activity is ProcessActivity.QUIET
            and user.since_ns <= self._since_ns
            and present.is_local(user)
        }
        return OtherUsers(
            deltas=_without(deltas, idle), void=_void(rivals) if rivals else None
        )

    def close(self) -> None:
        """Withdraw what this process has announced to others."""
        self._give_back()
        for present in self._present.values():
            present.close()
        self._present.clear()

    def _may_use_device(self) -> bool:
        """Return whether this process uses a GPU, or has loaded a library that may use one."""
        loaded = any(name in self._modules for name in _FRAMEWORKS)
        return loaded or self._driver() is not None or self._runtime.active()

    def _uuid(self) -> str:
        """Return the GPU in use, or the one that tests are to run on."""
        device = self._site.device()
        return self._runtime.device_uuid() or ("" if device is None else device.uuid)

    def _try_to_take(self) -> None:
        """Take a turn; note why there is none."""
        try:
            self._take()
        except DeviceHeldError as error:
            self.refusal = Unmeasured.of_metric("time", Gap.of(error))

    def _take(self) -> None:
        """Take a turn; where nothing can be locked, note that and go on without."""
        if _NAME in self._site.lost:
            return
        config, uuid, test = self._site.config, self._uuid(), self._test or ""
        try:
            if uuid not in self._present:  # before it waits
                self._present[uuid] = Presence(uuid, self._site.clock)
            if config.lock is Lock.EXCLUSIVE and not self._in_block:
                lease = exclusive(uuid, test=test, timeout_s=config.lock_timeout_s)
                self._turn.enter_context(lease)
            self._present[uuid].publish(ProcessActivity.MEASURING, test)
        except DeviceHeldError:
            raise
        except CollectError as error:
            self._lose(error)
        else:
            self._device, self._since_ns = uuid, self._site.clock.now_ns()

    def _give_back(self) -> None:
        """Release the GPU's lock."""
        if self._device is not None:
            self._say(ProcessActivity.QUIET)  # before the next may have it
        self._turn.close()
        self._device = None

    def _say(self, activity: ProcessActivity) -> None:
        """Announce on each GPU what this process does."""
        try:
            for present in self._present.values():
                present.publish(activity)
        except CollectError as error:
            self._lose(error)

    def _lose(self, error: CollectError) -> None:
        """Note why no turns can be taken; what is measured nevertheless may be noisy."""
        reason = f"no turns are taken on the GPU: {error.message}"
        self._site.lost[_NAME] = replace(Gap.of(error), reason=reason)

    def _is_sibling(self, pid: int) -> bool:
        """Return whether a process belongs to the block that this one belongs to."""
        return self._in_block and descends_from(self._parent, pid)

    def _measured(self, user: ProcessState) -> bool:
        """Return whether another process has measured since this turn began."""
        ended_ns = user.measured_ns
        still = user.activity is ProcessActivity.MEASURING
        return still or (ended_ns is not None and ended_ns > self._since_ns)


def without_siblings(deltas: DeviceDeltas | None) -> DeviceDeltas | None:
    """Return what sensors counted, without processes that the parent has started."""
    if deltas is None:
        return None
    parent = os.getppid()
    siblings = {pid for pid in deltas.foreign_pids if descends_from(parent, pid)}
    return _without(deltas, siblings)


def _without(deltas: DeviceDeltas | None, idle: set[int]) -> DeviceDeltas | None:
    """Return what sensors counted, without processes that are known to have idled."""
    if deltas is None or deltas.sharing is not Sharing.FOREIGN:
        return deltas
    left = tuple(pid for pid in deltas.foreign_pids if pid not in idle)
    sharing = Sharing.FOREIGN if left else Sharing.ALONE
    return replace(deltas, sharing=sharing, foreign_pids=left)


def _void(rivals: list[ProcessState]) -> Void:
    """Return the void of a measurement beside which other processes measured on the GPU."""
    named = ", ".join(f"process {rival.pid} ({rival.test})" for rival in rivals)
    return Void(
        code=VoidCode.FOREIGN_PROCESS,
        reason=f"{named} measured on the same GPU",
        remedy="take turns: --gpuperf-lock=exclusive",
    )


GO, OVER = b"g", b"o"  # the answers: go on; no sample more of this measurement
# docs/judging.md section 3: much shorter than the spells in which a core is slow, much
# longer than what it costs to change places
_TURN_NS = 15_000_000


class Stage(str, Enum):
    """What a process asks for."""

    BEGIN = "begin"  # to prepare a measurement, while all others wait
    TURN = "turn"  # to take samples
    ENOUGH = "enough"  # likewise; it has enough, and others may not
    ALONE = "alone"  # to finish what belongs to the measurement, while all others wait
    END = "end"  # to go on when all others have measured it
    TEST = "test"  # nothing: it only tells which test it runs from now on


class TurnRequest(Frozen, frozen=True, kw_only=True):
    """
    What a process tells the one that shares out turns.

    Attributes:
        stage: What it asks for.

        test_id: The test that it runs; with BEGIN and TEST alone. With TEST "": none any
            more.

        name: What is to be measured in it; with BEGIN alone.
    """

    stage: Stage
    test_id: str = ""
    name: str = ""


class TurnClient:
    """
    The turns of this process.

    Args:
        descriptor: The file descriptor of a stream socket, as this process got it.

        clock: Gives the time.

    Raises:
        OSError: The descriptor is not open: it was another process's.
    """

    def __init__(self, descriptor: int, clock: Clock) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what tests start has no part in this
        # a pytest that a test runs in this process may close its own
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._now_ns = clock.now_ns
        self._test_id = ""
        self._open: object | None = None  # the measurement that is made now
        self._inner_count = 0  # measurements inside it
        self._turn_ends_ns = 0

    def begin_test(self, test_id: str) -> None:
        """Tell the server which test runs now; an open measurement of the last one ends."""
        self._test_id = test_id
        self._inner_count = 0
        if self._open is not None:
            self._open = None
            self._ask(Stage.END)
        self._tell(test_id)

    def end_tests(self) -> None:
        """Tell the server that the last test has run: what follows is of the session."""
        self._tell("")

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """
        Measure in the block while others wait, and go on when all have measured it.

        A measurement inside another one is part of it, and asks for nothing.

        Args:
            name: What is measured in the test that runs now.

        Raises:
            CollectError: Nobody shares out turns any more.
        """
        if self._open is not None:
            self._inner_count += 1
            try:
                yield
            finally:
                self._inner_count = max(self._inner_count - 1, 0)
            return
        self._ask(Stage.BEGIN, test_id=self._test_id, name=name)
        self._turn_ends_ns = 0
        self._open = opened = object()
        try:
            yield
        finally:
            if self._open is opened:
                self._open = None
                self._ask(Stage.END)

    def take_turn(self, enough: bool) -> bool:  # noqa: FBT001 - as a sampler calls it
        """
        Wait until a sample may be taken, unless the turn of this process lasts.

        Args:
            enough: Whether it has as many samples as it needs; where others have not, it
                takes more, so that all meet the same machine.

        Returns:
            Whether to take one; False: all processes have enough.
        """
        if not self._takes_part:
            return not enough
        if self._now_ns() < self._turn_ends_ns:
            return True
        goes_on = self._ask(Stage.ENOUGH if enough else Stage.TURN) == GO
        self._turn_ends_ns = self._now_ns() + _TURN_NS
        return goes_on

    def alone(self) -> None:
        """Wait until no other process takes samples of this measurement, or works on it."""
        if self._takes_part:
            self._ask(Stage.ALONE)

    def close(self) -> None:
        """Close the connection: this process asks for nothing any more."""
        self._socket.close()

    @property
    def _takes_part(self) -> bool:
        """Whether what is measured now is not a part of another measurement."""
        return self._open is not None and not self._inner_count

    def _ask(self, stage: Stage, *, test_id: str = "", name: str = "") -> bytes:
        """Ask for something, and return the answer when it comes."""
        request = TurnRequest(stage=stage, test_id=test_id, name=name)
        try:
            self._send(request)
            answer = self._socket.recv(1)
        except OSError:
            answer = b""
        if not answer:
            message = "the process that shares out turns has ended"
            raise CollectError(message, remedy="run the comparison again")
        return answer

    def _tell(self, test_id: str) -> None:
        """Tell which test runs from now on."""
        with contextlib.suppress(OSError):  # who asks for a turn finds out
            self._send(TurnRequest(stage=Stage.TEST, test_id=test_id))

    def _send(self, request: TurnRequest) -> None:
        """Write a request: a line."""
        self._socket.sendall(codec.to_text(request).encode() + b"\n")
