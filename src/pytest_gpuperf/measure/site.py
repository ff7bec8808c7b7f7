"""One process of a run: its configuration, tools and devices, and the records it keeps."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect import session as sessions
from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.devices import (
    Chosen,
    DeviceQuery,
    choose_device,
    query_devices,
    same_device,
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
from pytest_gpuperf.model.environment import (
    Device,
    Environment,
    Host,
    Session,
    session_on,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import (
    Record,
    RecordKey,
    Role,
    Void,
    VoidCode,
    without_samples,
)
from pytest_gpuperf.model.run import Expected, HeaderNote
from pytest_gpuperf.model.sample import Source, Unmeasured
from pytest_gpuperf.model.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_gpuperf.collect.replay import Recorder, Recording
    from pytest_gpuperf.collect.traces import TraceKeeper
    from pytest_gpuperf.collect.translate.activity import LaunchSink
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.roofline import Peaks
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.steps import Loop
    from pytest_gpuperf.model.work import Work

# In a folder known to all processes of a run.
_REMARKS = "remarks.txt"
# Of the process that judges.
_MAIN = "main"
# What a process that has not collected expects.
_NOTHING = Expected()


class ProcessIdentity(Frozen, frozen=True, kw_only=True):
    """
    Identity of this process within the run, passed from the controller.

    Attributes:
        session: The session shared by all processes of the run.

        writer: A name unique among the processes of the run.

        role: The purpose of the measurements of this process.

        process_index: 0 for the main process and its workers.

        spool: The folder for readings, or None to keep no readings.

        keeps_traces: Whether every launch is kept next to the readings.

        expected: The folder in which a worker announces its measurements, or None.

        host: The controller's host in an xdist worker, or None if unknown.

        collects: Whether the process only collects its tests, for the digests of their
            parameters.
    """

    session: Session
    writer: str = _MAIN
    role: Role = Role.MAIN
    process_index: int = 0
    spool: str | None = None
    keeps_traces: bool = False
    expected: str | None = None
    host: Host | None = None
    collects: bool = False


class Site:
    """
    Configuration, clock, tools and devices of one process.

    Args:
        config: The configuration of the run.

        identity: The identity of this process within the run.

        clock: The clock.

        runner: Starts tools.

        runtime: The device that tests may come to use.

        query: Returns the GPUs of this machine. Called once, when they are first needed.

    Attributes:
        foreign_host: The host of an xdist worker that may run on another host than its
            controller. None if both share a host.

        revision: The revision of the project, or None to read it with the session.
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
        self.expected = _NOTHING
        self._in_worker = identity.writer != _MAIN
        self.foreign_host: Host | None = None
        self.revision: sessions.Revision | None = None
        # Collectors (and the lock) that failed, by name.
        self.lost: dict[str, Gap] = {}
        # Test bodies that ran in this process, measured or not.
        self.ran_count = 0
        # Packages loaded by this plugin.
        self._own: frozenset[str] = frozenset()
        self._recorder: Recorder | None = None
        if identity.spool:
            # Most runs keep no samples.
            from pytest_gpuperf.collect.replay import Recorder

            self._recorder = Recorder(identity.spool, writer=identity.writer)

    @classmethod
    def in_main(cls, config: Config, *, spool: str | None, expected: str) -> Self:
        """Create the site of the main process, with a session that begins now."""
        session = sessions.new_session(SystemClock(), config.run_id)
        keeps_traces = config.record is not None
        identity = ProcessIdentity(
            session=session, spool=spool, keeps_traces=keeps_traces, expected=expected
        )
        return cls.in_process(config, identity)

    @classmethod
    def in_process(cls, config: Config, identity: ProcessIdentity) -> Self:
        """Create the site of a process, with the real clock, tools and devices."""
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
        Create the site of an xdist worker, from the identity sent by the controller.

        A worker on another host may not have the folders of the run. It then keeps no
        samples and does not announce its measurements.
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
        """Return the identity of a worker as text."""
        return codec.to_text(replace(self.identity, writer=name, host=self.host))

    # Resources of the process.

    def open_folders(self) -> None:
        """
        Read the recording to judge again, or create the recording to keep.

        Raises:
            CaptureFormatError: The folder to replay contains no recording.

            ReportError: The folder to record into cannot be used.
        """
        recording = self.recording
        if recording is None and self.config.record is not None:
            from pytest_gpuperf.collect.replay import start_recording

            start_recording(self.config.record, self.session, self.environment)

    def prepare(self) -> None:
        """
        Open and read all files that the tests need, before the first test runs.

        During a test the file system may be a fake, or out of descriptors.

        Raises:
            ReportError: The file for the readings cannot be written.
        """
        _ = self.absent, self.environment
        self.clock.waits_count()  # Loads a library of Python.
        # Each opens a file.
        self.clock.load()
        self.clock.bytes_read()
        self.clock.conditions()  # Reads the way the process was started.
        if self._recorder is not None:
            self._recorder.open()

    def close(self) -> None:
        """Close the files of readings, traces and the clock."""
        self.clock.close()
        if self._recorder is not None:
            self._recorder.close()
        # The property is only set if a trace was kept.
        if "_traces" in vars(self) and self._traces is not None:
            self._traces.close()

    @functools.cached_property
    def recording(self) -> Recording | None:
        """
        The run to judge again, or None for a run that measures.

        Raises:
            CaptureFormatError: The folder contains no recording.
        """
        where = self.config.replay
        if where is None:
            return None
        from pytest_gpuperf.collect.replay import read_recording

        return read_recording(where)

    @functools.cached_property
    def devices(self) -> DeviceQuery:
        """The GPUs of the machine."""
        return self._query()

    @functools.cached_property
    def absent(self) -> Mapping[str, Gap]:
        """The reasons why collectors cannot be used here, by name."""
        absent = absent_collectors(
            replaying=self.config.replay is not None,
            no_device_reason=None if self.device() else self.no_device_reason(),
        )
        unasked = not self.config.collectors  # A named collector needs no advice.
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
        Return the collectors in use, and the reasons why the rest are not used.

        Args:
            used: Sources of the values measured so far.
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
        The session that measured, or the recorded session if a run is judged again.

        Starts git, so the session must not be requested before a test has measured. An
        xdist controller does not know any earlier if a test will measure.
        """
        if self.recording is not None:
            return self.recording.session
        config, expected = self.config, self.all_expected()
        revision = self.revision
        if revision is None:
            keeps = config.update is not None or config.record or config.reports
            revision = sessions.read_git(
                self.runner, config.root, with_parent=bool(keeps)
            )
        return replace(
            self.identity.session,
            commit=revision.commit,
            dirty=revision.dirty,
            branch=revision.branch or sessions.ci_branch(os.environ),
            parent=revision.parent,
            shard=None if (shard := self.shard()) is None else str(shard),
            collected=expected.collected,
            collected_count=expected.collected_count,
            selection=expected.selection,
        )

    def shard(self) -> Shard | None:
        """Return the part of the tests in the run, or None for all tests."""
        if self.recording is not None:
            return Shard.read(self.recording.session.shard)
        return sessions.shard_of_run(self.config.shard)

    def shard_count(self) -> int:
        """Return the number of shards of the run, or 1 for a run without shards."""
        shard = self.shard()
        return 1 if shard is None else shard.count

    @functools.cached_property
    def host(self) -> Host:
        """The machine of the process."""
        return sessions.this_host()

    def session_of(self, host: Host | None) -> Session:
        """
        Return the session of a host, or the session of the run for None.

        Measurements of xdist workers on another machine have a session of their own.
        """
        return session_on(self.session, host)

    def note_ran(self, count: int) -> None:
        """
        Store the number of test bodies that ran in the session, unless the run is a replay.
        """
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
        The GPU selected for tests, with the CUDA name.

        Raises:
            ConfigError: The requested GPU no longer exists.
        """
        name = None if self.config.replay is not None else self.config.device
        return choose_device(self.devices, name, os.environ)

    def device(self) -> Device | None:
        """Return the GPU selected for tests, or None."""
        return self.chosen.device

    def free_device_bytes(self) -> int | None:
        """Return the GPU memory available to new processes [B], or None if unknown."""
        device = self.device()
        if device is None:
            return None
        from pytest_gpuperf.collect.listed_devices import free_device_bytes

        return free_device_bytes(device.uuid)

    def device_name(self) -> str | None:
        """
        Return the device name for tensors, such as "cuda:0", or None without a device.

        A replay without a device returns "cpu".
        """
        # In a replay, bodies run for their side effects only. The values are the recorded
        # ones.
        if self.recording is not None and self.device() is None:
            return "cpu"
        return None if self.device() is None else f"cuda:{self.chosen.ordinal}"

    def no_device_reason(self) -> str:
        """Return the reason why there is no GPU."""
        return self.chosen.reason or self.devices.reason or "no GPU"

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return the gap of the first unmet requirement of a test, or None."""
        if self.recording is not None:
            return None
        collectors = self.config.collectors
        for name in requires:
            device = self.device()
            capability = None if device is None else device.compute_capability
            major, minor = capability or (0, 0)
            chip = f"sm_{major}{minor}"
            gaps = {**self.absent, **self.lost}
            if name in gaps:
                absence = gaps[name]
            elif collectors and name in DEVICE_COLLECTORS and name not in collectors:
                absence = Gap(
                    code=GapCode.NOT_ASKED,
                    reason=f"the {name} collector is not among those asked for",
                    remedy=f"add {name} to --gpuperf-collectors",
                )
            elif device is None:
                absence = Gap(
                    code=GapCode.NO_DEVICE,
                    reason=f"there is no GPU: {self.no_device_reason()}",
                    remedy="run it on a machine with a GPU",
                )
            elif name.startswith("sm_") and chip != name.rstrip("a"):
                absence = Gap(
                    code=GapCode.UNSUPPORTED,
                    reason=f"this GPU is {chip}",
                    remedy=f"run it on an {name}",
                )
            else:
                continue
            return Unmeasured.of_metric(name, absence)
        return None

    def remark(self, about: str, *sentences: str) -> None:
        """Add a remark to the run, from any process. Repeated remarks are shown once."""
        if self.identity.expected is not None and sentences:
            path = Path(self.identity.expected, _REMARKS)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{about}\t{text}\n" for text in sentences)

    def remarks(self) -> tuple[HeaderNote, ...]:
        """Return the remarks of all processes of the run."""
        file = Path(self.identity.expected or "", _REMARKS)
        if self.identity.expected is None or not file.exists():
            return ()
        lines = dict.fromkeys(file.read_text(encoding="utf-8").splitlines())
        parted = (line.partition("\t") for line in lines)
        return tuple(HeaderNote(about=about, text=text) for about, _, text in parted)

    def told_lost(self) -> tuple[Unmeasured, ...]:
        """Return the collectors (and the lock) that failed in the process, ready to be sent."""
        if not self.lost:
            return ()
        return tuple(Unmeasured.of_metric(name, gap) for name, gap in self.lost.items())

    def learn_lost(self, lost: Sequence[Unmeasured]) -> None:
        """Note the collectors that failed elsewhere in the run."""
        for unmeasured in lost:
            self.lost.setdefault(unmeasured.metric, unmeasured)

    def may_change(self, *, has_limits: bool) -> bool:
        """Return True if the end of the run may change the report of a test."""
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
        """
        Set the tests that are going to measure.

        A worker also reports them to the controller.
        """
        self.expected = expected
        # From now on cupti-python may load it.
        self._own = surroundings.not_loaded()
        if self.identity.expected is not None and self._in_worker:
            from pytest_gpuperf.collect.expected import write_expected

            write_expected(self.identity.expected, self.identity.writer, expected)

    def all_expected(self) -> Expected:
        """Return the tests that all processes of the run are going to measure."""
        # A main process that collects has no workers.
        is_alone = self.expected is not _NOTHING and not self._in_worker
        if is_alone or self.expected.test_ids or self.identity.expected is None:
            return self.expected
        from pytest_gpuperf.collect.expected import read_expected

        return read_expected(self.identity.expected)

    def need(self, collector: str) -> None:
        """
        Check that a collector was not left out by name.

        Raises:
            CollectorUnavailableError: The collector was left out.
        """
        collectors = self.config.collectors
        if collector == Source.HOST and not frozenset(DEVICE_TIMERS).isdisjoint(
            collectors
        ):
            # Next to any timer of the device, the host's clock also runs.
            return
        if self.config.replay is None and collectors and collector not in collectors:
            message = f"the {collector} collector is not among those asked for"
            raise CollectorUnavailableError(
                message, remedy=f"add {collector} to --gpuperf-collectors"
            )

    @functools.cached_property
    def _traces(self) -> TraceKeeper | None:
        """The store for the traces of the process, or None if traces are not kept."""
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
        """Factory of a sink for launches that do not fit into memory, or None if not kept."""
        return None if self._traces is None else self._traces.stream

    def keep_trace(self, record: Record, trace: Trace | None) -> Record:
        """
        Keep the whole trace of a measurement, if requested.

        Args:
            record: The record, with the summary of the trace.

            trace: The full trace of CUPTI, or None.

        Returns:
            The record, with the location of the trace.

        Raises:
            ReportError: The trace cannot be written.
        """
        if self._traces is None or trace is None or record.activity is None:
            return record
        place = self._traces.keep(record.key, trace)
        return replace(record, activity=replace(record.activity, kept=place))

    def keep(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Keep the readings of records if requested, and return the records without samples."""
        if self._recorder is not None:
            for record in records:
                self._recorder.keep(record)
        return tuple(map(without_samples, records))


class Machine:
    """
    The devices that the tests of one process compute with.

    Args:
        site: Configuration, clock and devices of the process.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: tuple[Environment, Mapping[str, str], Maker] | None = None
        # By the UUID of the device, or its name if NVML does not know it; None for the
        # CPU.
        self._peaks: dict[str | None, Peaks] = {}

    def device(self, *, in_use: bool = True) -> Device | None:
        """
        Return the GPU that tests use now, or else the selected GPU.

        Args:
            in_use: False if no device was in use a moment ago.
        """
        known_by_torch = self._site.runtime.own_device() if in_use else None
        if known_by_torch is not None:
            return known_by_torch
        query = self._site.devices
        if len(query.devices) + len(query.slices) < 2:  # noqa: PLR2004 - there is no other
            return self._site.device()
        devices = (*query.devices, *query.slices)
        used = None
        # A failed runtime reports the error itself.
        with contextlib.suppress(CollectError):
            used = self._site.runtime.device_uuid()
        matching = (
            device for device in devices if used and same_device(device.uuid, used)
        )
        return next(matching, self._site.device())

    def misplaced(self) -> Void | None:
        """Return a void if the test used a GPU other than `--gpuperf-device`, else None."""
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
        """Return the roofs of the device in use."""
        return self._peaks_of(self._site.runtime)

    def host_peaks(self) -> Peaks:
        """Return the roofs of the CPU."""
        return self._peaks_of(NoDevice())

    def _peaks_of(self, runtime: DeviceRuntime) -> Peaks:
        own = runtime.own_device()
        uuid = runtime.device_uuid() if own is None else own.name
        if uuid not in self._peaks:
            declared = self._site.config.peaks
            from pytest_gpuperf.collect.measured_peaks import peaks_in_use

            self._peaks[uuid] = peaks_in_use(runtime, self._site.devices, declared)
        return self._peaks[uuid]

    def loop_roofs(
        self, loop: Loop, work: Work | None, hardware: Hardware | None
    ) -> tuple[Peaks | None, Hardware | None]:
        """
        Return the roofs of a loop, and the hardware facts for the scorecard.

        Args:
            loop: The recorded loop.

            work: The work of one step, or None to look up no roof.

            hardware: The hardware as declared by the test. Overrides all other sources.
        """
        from pytest_gpuperf.compute.scorecard import hardware_of

        # A device that has just failed is not queried, because its error would hide the
        # cause.
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
        """Return the record of a loop, and the known facts of the hardware."""
        from pytest_gpuperf.measure.loop_record import loop_record

        peaks, ran_on = self.loop_roofs(loop, work, hardware)
        record = loop_record(
            self.maker(), key, loop, work=work, peaks=peaks, hardware=hardware
        )
        return record, ran_on

    def maker(self, *, in_use: bool = True) -> Maker:
        """
        Return the maker of records for the current environment and device.

        Args:
            in_use: As for `device`.
        """
        environment, device = self._site.environment, self.device(in_use=in_use)
        conditions = self._site.clock.conditions()
        if self._made is not None:
            made_in, made_under, maker = self._made
            # Nothing was imported, and no tracer started or stopped, since the last
            # call.
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
