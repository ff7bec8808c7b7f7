"""Turns on a GPU shared with other processes, and among processes that measure the same tests.

A turn on a GPU lasts a whole test, because the work of its fixtures on the GPU would
disturb the samples of another test. Processes that measure the same tests alternate sample
by sample: another process assigns the turns (see pipeline/turn_server for the rule), and
this process sends requests over a socket and waits for one byte.
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

# Not a collector, but reported as lost in the same way.
_NAME = "lock"
# These libraries may use a GPU once they are loaded. The driver is loaded later.
_FRAMEWORKS = frozenset(
    {
        *("cuda.bindings", "cupy", "jax", "numba.cuda", "paddle", "pycuda"),
        *("tensorflow", "torch", "triton", "warp"),
    }
)


class OtherUsers(Frozen, frozen=True, kw_only=True):
    """
    The other users of the GPU during a test.

    Attributes:
        deltas: The counts of the sensors. Processes that waited for a turn do not count as
            sharing the GPU.

        void: The reason why the test must not be judged, or None.

        notes: Notes for readers of the record.
    """

    deltas: DeviceDeltas | None
    void: Void | None = None
    notes: tuple[Note, ...] = ()


class Turns:
    """
    The turns of one process.

    Args:
        site: The site of this process. Failing collectors are noted there as lost.

        modules: The modules imported by this process.

        driver: Returns the driver library if it is loaded, or None to search this process.

        in_block: Whether the parent has started several processes that measure the same
            tests, and holds the GPU for all of them. They alternate and count as one user.

    Attributes:
        refusal: The reason why the current test has no turn, or None if it has one or needs
            none.
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
        # The current test, if it measures.
        self._test: str | None = None
        self._turn = contextlib.ExitStack()
        # The GPU of the current turn ...
        self._device: str | None = None
        self._since_ns = 0  # ... and its start.
        # By the UUID of the device.
        self._present: dict[str, Presence] = {}

    @contextlib.contextmanager
    def measuring(self, test_id: str) -> Iterator[None]:
        """Hold the GPU lock during a test that measures, if the process may use a GPU."""
        self._test = test_id
        try:
            if self._may_use_device():
                try:
                    self._take()
                except DeviceHeldError as error:
                    self.refusal = Unmeasured.of_metric("time", Gap.of(error))
            yield
        finally:
            self._give_back()
            self._test = self.refusal = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Announce a test that measures nothing but may use the GPU."""
        self._say(ProcessActivity.WORKING)
        try:
            yield
        finally:
            self._say(ProcessActivity.QUIET)

    def ensure(self) -> None:
        """
        Lock the GPU now in use. The test may have chosen it after the start.

        Raises:
            DeviceHeldError: Another process held the GPU until the lock timed out.

            ConfigError: A lock was requested by name and is not possible.
        """
        if self._test is None or not self._may_use_device():
            return
        if self._device is None or bare_uuid(self._device) != bare_uuid(self._uuid()):
            # A process that kept a GPU while waiting for another GPU might wait
            # forever.
            self._give_back()
            self._take()
        absence = self._site.lost.get(_NAME)
        if absence is not None and "gpuperf_lock" in self._site.config.option_texts:
            how = self._site.config.lock.value
            message = f"--gpuperf-lock={how} cannot be used: {absence.reason}"
            raise ConfigError(message, remedy=absence.remedy)

    def other_users(self, deltas: DeviceDeltas | None) -> OtherUsers:
        """
        Return the other users of the GPU during the current test.

        Args:
            deltas: The counts of the sensors, or None if not read.
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
            if not (
                self._in_block
                and present.is_local(user)
                and descends_from(self._parent, user.pid)
            )
        ]
        if self._in_block:
            deltas = without_siblings(deltas)
        rivals = [
            user
            for user in users
            if user.activity is ProcessActivity.MEASURING
            or (user.measured_ns is not None and user.measured_ns > self._since_ns)
        ]
        idle = {
            user.pid
            for user in users
            if user.activity is ProcessActivity.QUIET
            and user.since_ns <= self._since_ns
            and present.is_local(user)
        }
        void = None
        if rivals:
            named = ", ".join(f"process {user.pid} ({user.test})" for user in rivals)
            void = Void(
                code=VoidCode.FOREIGN_PROCESS,
                reason=f"{named} measured on the same GPU",
                remedy="take turns: --gpuperf-lock=exclusive",
            )
        return OtherUsers(deltas=_without(deltas, idle), void=void)

    def close(self) -> None:
        """Withdraw everything announced to other processes."""
        self._give_back()
        for present in self._present.values():
            present.close()
        self._present.clear()

    def _may_use_device(self) -> bool:
        loaded = any(name in self._modules for name in _FRAMEWORKS)
        return loaded or self._driver() is not None or self._runtime.active()

    def _uuid(self) -> str:
        """Return the UUID of the GPU in use, or of the selected GPU, or ""."""
        device = self._site.device()
        return self._runtime.device_uuid() or ("" if device is None else device.uuid)

    def _take(self) -> None:
        """
        Take a turn. If locking is impossible, note the reason and continue without a lock.

        Raises:
            DeviceHeldError: Another process held the GPU until the lock timed out.
        """
        if _NAME in self._site.lost:
            return
        config, uuid, test = self._site.config, self._uuid(), self._test or ""
        try:
            if uuid not in self._present:  # Before waiting.
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
        if self._device is not None:
            self._say(ProcessActivity.QUIET)  # Before another process gets the lock.
        self._turn.close()
        self._device = None

    def _say(self, activity: ProcessActivity) -> None:
        try:
            for present in self._present.values():
                present.publish(activity)
        except CollectError as error:
            self._lose(error)

    def _lose(self, error: CollectError) -> None:
        reason = f"no turns are taken on the GPU: {error.message}"
        self._site.lost[_NAME] = replace(Gap.of(error), reason=reason)


def without_siblings(deltas: DeviceDeltas | None) -> DeviceDeltas | None:
    """Remove processes started by the parent from the counts of sensors."""
    if deltas is None:
        return None
    parent = os.getppid()
    siblings = {pid for pid in deltas.foreign_pids if descends_from(parent, pid)}
    return _without(deltas, siblings)


def _without(deltas: DeviceDeltas | None, idle: set[int]) -> DeviceDeltas | None:
    if deltas is None or deltas.sharing is not Sharing.FOREIGN:
        return deltas
    left = tuple(pid for pid in deltas.foreign_pids if pid not in idle)
    sharing = Sharing.FOREIGN if left else Sharing.ALONE
    return replace(deltas, sharing=sharing, foreign_pids=left)


# The answers: continue, or take no more samples in this measurement.
GO, OVER = b"g", b"o"
# Much shorter than the periods in which a core is slow, and much longer than the cost
# of switching processes (docs/judging.md section 3).
_TURN_NS = 15_000_000


class Stage(str, Enum):
    """The requests of a process."""

    BEGIN = "begin"  # Prepare a measurement while all others wait.
    TURN = "turn"  # Take samples.
    # Take samples. This process has enough, but other processes may not.
    ENOUGH = "enough"
    # Finish the measurement while all others wait.
    ALONE = "alone"
    END = "end"  # Continue when all others have measured.
    # Not a request, only the id of the test that runs from now on.
    TEST = "test"


class TurnRequest(Frozen, frozen=True, kw_only=True):
    """
    A request to the process that assigns turns.

    Attributes:
        stage: The request.

        test_id: The test that runs. Only with BEGIN and TEST. "" with TEST means that no
            further test runs.

        name: The measurement within the test. Only with BEGIN.
    """

    stage: Stage
    test_id: str = ""
    name: str = ""


class TurnClient:
    """
    The client side of turn-taking in this process.

    Args:
        descriptor: The file descriptor of a stream socket, as passed to this process.

        clock: The clock.

    Raises:
        OSError: The descriptor is not open, because it belonged to another process.
    """

    def __init__(self, descriptor: int, clock: Clock) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what tests start has no part in this
        # A pytest started by a test in this process may close its own descriptor.
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._now_ns = clock.now_ns
        self._test_id = ""
        self._open: object | None = None  # The current measurement.
        self._inner_count = 0  # Measurements inside it.
        self._turn_ends_ns = 0

    def begin_test(self, test_id: str) -> None:
        """Report the running test to the server. An open measurement of the last test ends."""
        self._test_id = test_id
        self._inner_count = 0
        if self._open is not None:
            self._open = None
            self._ask(Stage.END)
        self._tell(test_id)

    def end_tests(self) -> None:
        """Report the end of the last test to the server. The rest belongs to the session."""
        self._tell("")

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """
        Measure in the block while other processes wait, and return when all have measured.

        A measurement inside another measurement is part of it and sends no requests.

        Args:
            name: The measurement within the current test.

        Raises:
            CollectError: The process that assigns turns has ended.
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
        Wait until a sample may be taken, unless the current turn still lasts.

        Args:
            enough: Whether the process has as many samples as it needs. If other processes
                do not, it takes more, so that all of them meet the same machine.

        Returns:
            True to take a sample, or False if all processes have enough.
        """
        if not self._takes_part:
            return not enough
        if self._now_ns() < self._turn_ends_ns:
            return True
        goes_on = self._ask(Stage.ENOUGH if enough else Stage.TURN) == GO
        self._turn_ends_ns = self._now_ns() + _TURN_NS
        return goes_on

    def alone(self) -> None:
        """Wait until no other process samples or works on the current measurement."""
        if self._takes_part:
            self._ask(Stage.ALONE)

    def close(self) -> None:
        """Close the connection. No requests follow."""
        self._socket.close()

    @property
    def _takes_part(self) -> bool:
        return self._open is not None and not self._inner_count

    def _ask(self, stage: Stage, *, test_id: str = "", name: str = "") -> bytes:
        """
        Send a request and return the answer.

        Raises:
            CollectError: The process that assigns turns has ended.
        """
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
        with contextlib.suppress(OSError):  # The next request reports the error.
            self._send(TurnRequest(stage=Stage.TEST, test_id=test_id))

    def _send(self, request: TurnRequest) -> None:
        self._socket.sendall(codec.to_text(request).encode() + b"\n")
