"""One process of a run: what it was told, what it has, what it computes with and keeps."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect import replay
from pytest_gpuperf.collect import session as sessions
from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.devices import (
    Chosen,
    DeviceQuery,
    choose_device,
    free_device_bytes,
    query_devices,
    same_device,
    with_driver_facts,
)
from pytest_gpuperf.collect.registry import (
    DEVICE_COLLECTORS,
    DEVICE_TIMERS,
    Choice,
    absent_collectors,
    choose,
    still_absent,
)
from pytest_gpuperf.collect.runner import ProcessRunner, Runner
from pytest_gpuperf.collect.runtime import DeviceRuntime, NoDevice, find_runtime
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Device, Environment, Host, Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Record, RecordKey, Role, Void, VoidCode
from pytest_gpuperf.model.roofline import DeclaredPeaks, Peaks
from pytest_gpuperf.model.run import Expected, HeaderNote
from pytest_gpuperf.model.sample import Source, Unmeasured

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_gpuperf.collect.traces import TraceKeeper
    from pytest_gpuperf.collect.translate.activity import LaunchSink
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.steps import Loop
    from pytest_gpuperf.model.work import Work

__all__ = ["Machine", "ProcessIdentity", "Site", "peaks_in_use"]

_REMARKS = "remarks.txt"  # in the folder that all processes of a run know


class ProcessIdentity(Frozen, frozen=True, kw_only=True):
    """
    Identity of this process within the run, passed from the controller.

    Attributes:
        session: The session that all of them belong to.

        writer: A name that no other of them has.

        role: What it measures for.

        process_index: 0 for the main process and its workers.

        spool: The folder for its readings; None: they are not kept.

        keeps_traces: Whether every launch is kept beside them.

        expected: The folder where a worker says what it will measure; None: no need.

        host: The controller's host, in an xdist worker; None: unknown.
        collects: Whether it only collects its tests, for the digests of their parameters.
    """

    session: Session
    writer: str = "main"
    role: Role = Role.MAIN
    process_index: int = 0
    spool: str | None = None
    keeps_traces: bool = False
    expected: str | None = None
    host: Host | None = None
    collects: bool = False


class Site:
    """
    What one process of a run has.

    Args:
        config: What the run was asked to do.

        identity: Which process of it this is.

        clock: Gives the time.

        runner: Starts tools.

        runtime: The device that tests may come to use.

        query: Returns the GPUs of this machine; called once, when they are first needed.

    Attributes:
        foreign_host: The host of an xdist worker that may not be its controller's; None:
            it is.
    """

    def __init__(
        self,
        config: Config,
        identity: ProcessIdentity,
        *,
        clock: Clock,
        runner: Runner,
        runtime: DeviceRuntime,
        query: Callable[[], DeviceQuery] = query_devices,
    ) -> None:
        self.config = config
        self.identity = identity
        self.clock = clock
        self.runner = runner
        self.runtime = runtime
        self._query = query
        self.expected = Expected()
        self.foreign_host: Host | None = None
        self.lost: dict[str, Gap] = {}  # what turned out to be of no use, by name
        self.ran_count = 0  # test bodies that ran in this process, measured or not
        self._own: frozenset[str] = frozenset()  # packages that this plugin has loaded
        self._recorder = (
            replay.Recorder(identity.spool, writer=identity.writer)
            if identity.spool
            else None
        )

    @classmethod
    def in_main(cls, config: Config, *, spool: str | None, expected: str) -> Self:
        """Return the main process, with a session that begins now."""
        session = sessions.new_session(SystemClock())
        keeps_traces = config.record is not None
        identity = ProcessIdentity(
            session=session, spool=spool, keeps_traces=keeps_traces, expected=expected
        )
        return cls.in_process(config, identity)

    @classmethod
    def in_process(cls, config: Config, identity: ProcessIdentity) -> Self:
        """Return this process, with the machine's own clock, tools and devices."""
        return cls(
            config,
            identity,
            clock=SystemClock(),
            runner=ProcessRunner(),
            runtime=find_runtime(),
        )

    @classmethod
    def in_worker(cls, config: Config, identity: ProcessIdentity) -> Self:
        """
        Return an xdist worker, from what its controller told it.

        On another host it may not have the folders of the run: then it keeps no samples,
        and does not say what it is going to measure.
        """
        folders = {
            name: folder
            for name in ("spool", "expected")
            if (folder := getattr(identity, name)) and Path(folder).is_dir()
        }
        identity = replace(identity, **{"spool": None, "expected": None, **folders})
        site = cls.in_process(config, identity)
        if site.host != identity.host:
            site.foreign_host = site.host
        return site

    def for_worker(self, name: str) -> str:
        """Return what a worker is told, as text: its identity in this run."""
        return codec.to_text(replace(self.identity, writer=name, host=self.host))

    # what there is

    def open_folders(self) -> None:
        """
        Read the recording to judge again, and make the one to keep.

        Raises:
            CaptureFormatError: The folder to replay holds no recording.

            ReportError: The folder to record into cannot be used.
        """
        recording = self.recording
        if recording is None and self.config.record is not None:
            replay.start_recording(self.config.record, self.session, self.environment)

    def prepare(self) -> None:
        """
        Open and read what the tests of this process need, before the first of them runs.

        While one runs, its file system may be a fake one, or out of descriptors.

        Raises:
            ReportError: The file for its readings cannot be written.
        """
        _ = self.absent, self.environment
        self.clock.waits_count()  # which loads a library of Python
        self.clock.load()  # which opens a file
        self.clock.conditions()  # which reads how the process was started
        if self._recorder is not None:
            self._recorder.open()

    def close(self) -> None:
        """Close the files of readings, traces and the machine's load."""
        self.clock.close()
        if self._recorder is not None:
            self._recorder.close()
        if "_traces" in vars(self) and self._traces is not None:  # else none was kept
            self._traces.close()

    @functools.cached_property
    def recording(self) -> replay.Recording | None:
        """
        The run that is judged again; None: this one measures.

        Raises:
            CaptureFormatError: The folder holds none.
        """
        where = self.config.replay
        return None if where is None else replay.read_recording(where)

    @functools.cached_property
    def devices(self) -> DeviceQuery:
        """The GPUs of this machine."""
        return self._query()

    @functools.cached_property
    def absent(self) -> Mapping[str, Gap]:
        """Why collectors cannot be used here, by name."""
        absent = absent_collectors(
            replaying=self.config.replay is not None,
            no_device_reason=None if self.device() else self.no_device_reason(),
        )
        unasked = not self.config.collectors  # whoever names it knows why
        if unasked and Source.NCU not in absent and self.device() is None:
            absent[Source.NCU] = Gap(
                code=GapCode.NO_DEVICE,
                reason=f"there is nothing to count: {self.no_device_reason()}",
                remedy="run it where there is a GPU, or name the collectors: "
                "--gpuperf-collectors=host,ncu",
            )
        return absent

    def choice(self, used: Collection[str] = ()) -> Choice:
        """
        Return which collectors are used, and why the others are not.

        Args:
            used: Sources of what was measured so far.
        """
        device = self.device()
        return choose(
            self.config.collectors,
            absent=still_absent(self.absent, used),
            lost=still_absent(self.lost, used),
            device_name=None if device is None else device.name,
            device_reason=self.chosen.reason,
        )

    @functools.cached_property
    def session(self) -> Session:
        """
        The session that measured: the recorded one where a run is judged again.

        Starts git, so not before a test has measured: an xdist controller knows only
        then whether any will.
        """
        if self.recording is not None:
            return self.recording.session
        config, expected = self.config, self.all_expected()
        keeps = config.update is not None or config.record or config.reports
        revision = sessions.read_git(self.runner, config.root, with_parent=bool(keeps))
        return replace(
            self.identity.session,
            commit=revision.commit,
            dirty=revision.dirty,
            branch=revision.branch or sessions.ci_branch(os.environ),
            parent=revision.parent,
            shard=self.shard(),
            collected=expected.collected,
            collected_count=expected.collected_count,
            selection=expected.selection,
        )

    def shard(self) -> str | None:
        """Return which part of the run's tests this is, as "3/8"; None: all of them."""
        return self.all_expected().shard or sessions.shard(os.environ)

    @functools.cached_property
    def host(self) -> Host:
        """The machine of this process."""
        return sessions.this_host()

    def session_of(self, host: Host | None) -> Session:
        """
        Return the session of a host; None: of the run's own.

        A session is of one machine: what xdist workers on another one measured has a session
        of its own.
        """
        if host is None or host.id == self.session.host:
            return self.session
        return replace(
            self.session,
            id=f"{self.session.id}-{host.id}",
            host=host.id,
            machine=host.machine,
            boot=host.boot,
        )

    def note_ran(self, count: int) -> None:
        """Add to the session how many test bodies ran; a recorded one knows already."""
        if self.recording is None:
            self.session = replace(self.session, ran_count=count)

    @property
    def environment(self) -> Environment:
        """Machine and software."""
        if self.recording is not None:
            return self.recording.environment
        return surroundings.environment(without=self._own)

    @functools.cached_property
    def chosen(self) -> Chosen:
        """
        The GPU that tests are to run on, and what CUDA calls it.

        Raises:
            ConfigError: The one that was asked for is not there any more.
        """
        name = None if self.config.replay is not None else self.config.device
        return choose_device(self.devices, name, os.environ)

    def device(self) -> Device | None:
        """Return the GPU that tests are to run on; None: there is none."""
        return self.chosen.device

    def free_device_bytes(self) -> int | None:
        """Return the GPU's memory that new processes can have [B]; None: not known."""
        device = self.device()
        return None if device is None else free_device_bytes(device.uuid)

    def device_name(self) -> str | None:
        """Return the device to put tensors on; None: there is none."""
        if self.recording is not None and self.device() is None:
            return "cpu"  # bodies run for their side effects; values are recorded ones
        return None if self.device() is None else f"cuda:{self.chosen.ordinal}"

    def no_device_reason(self) -> str:
        """Return why there is no GPU."""
        return self.chosen.reason or self.devices.reason or "no GPU"

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""
        if self.recording is not None:
            return None
        for name in requires:
            absence = self._lack(name)
            if absence is not None:
                return Unmeasured.of_metric(name, absence)
        return None

    def _lack(self, name: str) -> Gap | None:
        """Return why one requirement is not met; None where it is."""
        device = self.device()
        gaps = {**self.absent, **self.lost}
        if name in gaps:
            return gaps[name]
        collectors = self.config.collectors
        if collectors and name in DEVICE_COLLECTORS and name not in collectors:
            return Gap(
                code=GapCode.NOT_ASKED,
                reason=f"the {name} collector is not among those asked for",
                remedy=f"add {name} to --gpuperf-collectors",
            )
        if device is None:
            return Gap(
                code=GapCode.NO_DEVICE,
                reason=f"there is no GPU: {self.no_device_reason()}",
                remedy="run it on a machine with a GPU",
            )
        if name.startswith("sm_"):
            major, minor = device.compute_capability or (0, 0)
            if (chip := f"sm_{major}{minor}") != name.rstrip("a"):
                return Gap(
                    code=GapCode.UNSUPPORTED,
                    reason=f"this GPU is {chip}",
                    remedy=f"run it on an {name}",
                )
        return None

    def remark(self, about: str, *sentences: str) -> None:
        """Have the run say something of itself, once, whichever of its processes this is."""
        if self.identity.expected is not None and sentences:
            path = Path(self.identity.expected, _REMARKS)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{about}\t{text}\n" for text in sentences)

    def remarks(self) -> tuple[HeaderNote, ...]:
        """Return what the processes of this run had to say of it."""
        file = Path(self.identity.expected or "", _REMARKS)
        if self.identity.expected is None or not file.exists():
            return ()
        lines = dict.fromkeys(file.read_text(encoding="utf-8").splitlines())
        parted = (line.partition("\t") for line in lines)
        return tuple(HeaderNote(about=about, text=text) for about, _, text in parted)

    def told_lost(self) -> tuple[Unmeasured, ...]:
        """Return what turned out to be of no use here, as it travels."""
        return tuple(Unmeasured.of_metric(name, gap) for name, gap in self.lost.items())

    def learn_lost(self, lost: Sequence[Unmeasured]) -> None:
        """Note what turned out to be of no use in another process of the run."""
        for unmeasured in lost:
            self.lost.setdefault(unmeasured.metric, unmeasured)

    def may_change(self, *, has_limits: bool) -> bool:
        """Return whether the end of the run may change what is reported of a test."""
        config = self.config
        if config.disable or self.identity.role is not Role.MAIN:
            return False
        return (
            config.strict
            or config.against is not None
            or (config.baseline_named and config.baseline is not None)
            or config.update is not None
            or (has_limits and config.confirm > 0)
            or config.junit_waits
        )

    def expect(self, expected: Expected) -> None:
        """Take note of which tests are going to measure; a worker tells the controller."""
        self.expected = expected
        self._own = surroundings.not_loaded()  # from now on cupti-python may load it
        if self.identity.expected is not None:
            replay.write_expected(
                self.identity.expected, self.identity.writer, expected
            )

    def all_expected(self) -> Expected:
        """Return what the processes of the run are going to measure."""
        if self.expected.test_ids or self.identity.expected is None:
            return self.expected
        return replay.read_expected(self.identity.expected)

    def need(self, collector: str) -> None:
        """
        Refuse a measurement whose collector was left out by name.

        Raises:
            CollectorUnavailableError: It was.
        """
        collectors = self.config.collectors
        if collector == Source.HOST and not frozenset(DEVICE_TIMERS).isdisjoint(
            collectors
        ):
            return  # whatever times the device, the host's clock runs beside it
        if self.config.replay is None and collectors and collector not in collectors:
            message = f"the {collector} collector is not among those asked for"
            raise CollectorUnavailableError(
                message, remedy=f"add {collector} to --gpuperf-collectors"
            )

    @functools.cached_property
    def _traces(self) -> TraceKeeper | None:
        """What keeps the traces of this process; None: they are not kept."""
        identity = self.identity
        if identity.spool is None or not identity.keeps_traces:
            return None
        from pytest_gpuperf.collect.traces import TraceKeeper

        return TraceKeeper(
            identity.spool,
            writer=identity.writer,
            role=identity.role,
            process_index=identity.process_index,
        )

    @property
    def launch_sink(self) -> Callable[[], LaunchSink] | None:
        """What takes more launches than memory should hold; None: they are not kept."""
        return None if self._traces is None else self._traces.stream

    def keep_trace(self, record: Record, trace: Trace | None) -> Record:
        """
        Keep a measurement's whole trace where that is wanted.

        Args:
            record: With what the trace amounts to.

            trace: All that CUPTI saw; None: nothing.

        Returns:
            The record, with where the trace stands.

        Raises:
            ReportError: It cannot be written.
        """
        if self._traces is None or trace is None or record.activity is None:
            return record
        place = self._traces.keep(record.key, trace)
        return replace(record, activity=replace(record.activity, kept=place))

    def keep(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Keep readings where they are wanted; return them as they travel."""
        if self._recorder is not None:
            for record in records:
                self._recorder.keep(record)
        return tuple(replay.without_samples(record) for record in records)


_CPU = "cpu"


class Machine:
    """
    What the tests of one process compute with.

    Args:
        site: What the process has.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: tuple[Environment, Mapping[str, str], Maker] | None = None
        self._peaks: dict[str | None, Peaks] = {}  # by the device's UUID; None: the CPU

    def device(self) -> Device | None:
        """Return the GPU that tests work with now, or else are to run on."""
        query = self._site.devices
        devices = (*query.devices, *query.slices)
        if len(devices) < 2:  # noqa: PLR2004 - there is no other
            return self._site.device()
        used = None
        with contextlib.suppress(CollectError):  # one that has failed says so itself
            used = self._site.runtime.device_uuid()
        matching = (
            device for device in devices if used and same_device(device.uuid, used)
        )
        return next(matching, self._site.device())

    def misplaced(self) -> Void | None:
        """Return that a test worked with another GPU than was asked for; None: no."""
        name = self._site.config.device
        requested, used = self._site.device(), self.device()
        if name is None or requested is None or used is None:
            return None
        if same_device(requested.uuid, used.uuid):
            return None
        reason = (
            f"it ran on GPU {used.index} ({used.uuid}), and --gpuperf-device="
            f"{name} asked for GPU {requested.index} ({requested.uuid})"
        )
        return Void(
            code=VoidCode.OTHER_DEVICE,
            reason=reason,
            remedy="put its tensors on gpuperf.device",
        )

    def peaks(self) -> Peaks:
        """Return the roofs of what this process computes with now."""
        return self._peaks_of(self._site.runtime)

    def host_peaks(self) -> Peaks:
        """Return the roofs of the CPU."""
        return self._peaks_of(NoDevice())

    def _peaks_of(self, runtime: DeviceRuntime) -> Peaks:
        """Return the roofs of what a runtime computes with now."""
        uuid = runtime.device_uuid()
        if uuid not in self._peaks:
            declared = self._site.config.peaks
            self._peaks[uuid] = peaks_in_use(runtime, self._site.devices, declared)
        return self._peaks[uuid]

    def loop_roofs(
        self, loop: Loop, work: Work | None, hardware: Hardware | None
    ) -> tuple[Peaks | None, Hardware | None]:
        """
        Return the roofs of a loop, and what a scorecard must know of its hardware.

        Args:
            loop: What was recorded.

            work: What one step has to do; None: no roof is looked up.

            hardware: What the test says of the hardware; it goes before all else.
        """
        from pytest_gpuperf.compute.scorecard import hardware_of

        # a device that has just failed is not asked: what it says would hide why
        unasked = work is None or loop.failure is not None
        peaks = None if unasked else self.peaks()
        return peaks, hardware_of(work, loop.units, peaks, hardware)

    def loop_record(
        self,
        key: RecordKey,
        loop: Loop,
        *,
        work: Work | None,
        hardware: Hardware | None,
    ) -> tuple[Record, Hardware | None]:
        """Return the record of a loop, and what is known of its hardware."""
        from pytest_gpuperf.measure.assemble import loop_record

        peaks, ran_on = self.loop_roofs(loop, work, hardware)
        record = loop_record(
            self.maker(), key, loop, work=work, peaks=peaks, hardware=hardware
        )
        return record, ran_on

    def maker(self) -> Maker:
        """Return what makes records of this process now."""
        environment, device = self._site.environment, self.device()
        conditions = self._site.clock.conditions()
        if self._made is not None:
            made_in, made_under, maker = self._made
            # nothing was imported since, and no tracer came or went
            if (
                made_in is environment
                and maker.device is device
                and made_under == conditions
            ):
                return maker
        maker = Maker(
            facts=surroundings.known_facts(environment, device, conditions=conditions),
            soft_facts=surroundings.soft_facts(
                environment, device, workers_count=surroundings.workers_count()
            ),
            device=device,
            role=self._site.identity.role,
            process_index=self._site.identity.process_index,
            host=self._site.foreign_host,
            peaks=self.peaks,
            host_peaks=self.host_peaks,
            grades=self._site.config.grades,
        )
        self._made = environment, conditions, maker
        return maker


def peaks_in_use(
    runtime: DeviceRuntime, query: DeviceQuery, declared: DeclaredPeaks
) -> Peaks:
    """
    Return the peaks of what this process computes with now.

    That is the GPU of its current context, and the CPU where it has none: a machine's
    GPU says nothing of a function that does not use it.

    Args:
        runtime: Knows the GPU in use.

        query: The GPUs of this machine.

        declared: What a person declared, by the names of devices.
    """
    from pytest_gpuperf.collect.measured_peaks import StoredPeaks, stored_peaks
    from pytest_gpuperf.collect.peaks import cpu_peaks, find_peaks

    uuid = runtime.device_uuid()
    if uuid is None:
        return _named(cpu_peaks(declared.get(_CPU)), _CPU, declared)
    device = _device(uuid, query)
    if device is None:
        why = f"NVML does not list the GPU in use ({query.reason or uuid})"
        return Peaks(device=uuid, flop_per_s={}, bytes_per_s={}, unlisted=why)
    facts = with_driver_facts(device, runtime.facts_of(uuid))
    whole = device.uuid == uuid  # what was measured of a GPU is not its slice's
    measured = stored_peaks(device) if whole else StoredPeaks()
    peaks = find_peaks(
        facts, declared=declared.get(facts.name), measured=measured.values
    )
    if measured.reason:
        peaks = replace(peaks, notes=(*peaks.notes, f"{measured.reason}."))
    return _named(peaks, facts.name, declared)


def _device(uuid: str, query: DeviceQuery) -> Device | None:
    """Return the GPU in use; of a slice the GPU it belongs to, if only one is split."""
    for device in query.devices:
        if device.uuid == uuid:
            return device
    split = [device for device in query.devices if device.mig]
    return split[0] if len(split) == 1 else None


def _named(peaks: Peaks, name: str, declared: DeclaredPeaks) -> Peaks:
    """Return peaks with a note where a declaration is for other devices alone."""
    if not declared or name in declared:
        return peaks
    names = ", ".join(declared)
    note = f"gpuperf_peaks declares those of {names}, and this is {name}"
    return replace(peaks, notes=(*peaks.notes, note))
