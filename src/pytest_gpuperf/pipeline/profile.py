"""Count hardware counters of tests under Nsight Compute, or find cached values."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.loaded_files import FileRecording, LoadedFile
from pytest_gpuperf.collect.ncu.catalogue import Catalogue
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.launches import read_capture
from pytest_gpuperf.collect.ncu.nvtx import DOMAIN, INCLUDE
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.collect.ncu.store import (
    EntryStore,
    FileSets,
    chosen_environment,
    device_fields,
    is_own,
    key_of,
    telling_options,
)
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.collect.translate.counters import DURATION
from pytest_gpuperf.config import Config, NcuReplay
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
    GpuPerfError,
    NothingProfiledError,
    RecordError,
    UnknownCounterError,
)
from pytest_gpuperf.measure.captured import report_counters
from pytest_gpuperf.measure.counters import CountedTest, NcuCounters
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.isolation import (
    CounterRequest,
    ProfilerRun,
    count,
    refuse_all,
    said_last,
)
from pytest_gpuperf.pipeline.repeat import ChildRun, run_child
from pytest_gpuperf.report.display import plural

if TYPE_CHECKING:
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.counters import PassCost
    from pytest_gpuperf.model.environment import Device
    from pytest_gpuperf.model.launch import CapturedLaunch

# Enough for the imports of a framework, compilation and all passes of its kernels.
_LEAST_S = 600.0
# Time per test, if the tests together need more than that.
_TEST_S = 60.0
# 6 h, which is 36 of the shortest starts. A hung application replay must fail during the night.
_LONGEST_S = 21_600.0
# The value of --gpuperf-chip that switches the check off.
_NO_CHIP = "off"


class Timeout(Frozen, frozen=True, kw_only=True):
    """
    The time limit of a whole ncu command.

    Attributes:
        timeout_s: The limit [s], > 0.

        why: The reason for the limit, as a fragment, or "" if the number says it all.
    """

    timeout_s: float
    why: str = ""


def _predicted(chip: str, names: Sequence[str]) -> PassCost:
    return Catalogue(chip).cost(names)


def timeout_of(
    config: Config,
    names: Sequence[str],
    test_count: int,
    *,
    device: Device | None = None,
    predicted: Callable[[str, Sequence[str]], PassCost] = _predicted,
) -> Timeout:
    """
    Return the time limit for counting, multiplied by the starts of an application replay.

    Args:
        config: The settings of the run. A timeout set there takes precedence.

        names: The counters.

        test_count: The number of tests in the process, >= 1.

        device: The GPU, or None if unknown.

        predicted: Returns the cost of counters on a chip.
    """
    if config.ncu_timeout_s:
        return Timeout(timeout_s=config.ncu_timeout_s)
    once_s = max(_LEAST_S, _TEST_S * test_count)
    if config.ncu_replay is not NcuReplay.APPLICATION:
        return Timeout(timeout_s=once_s)
    chip = None if config.chip == _NO_CHIP else config.chip
    if device is not None and device.compute_capability is not None:
        chip = "sm_{}{}".format(*device.compute_capability)
    starts, unsure = _starts(chip, names, predicted)
    why = f"{once_s:g} s for each of {plural(starts, 'start')}"
    if once_s * starts > _LONGEST_S:
        why += f", limited to {_LONGEST_S:g} s in all"
    return Timeout(timeout_s=min(once_s * starts, _LONGEST_S), why=why + unsure)


def _starts(
    chip: str | None,
    names: Sequence[str],
    predicted: Callable[[str, Sequence[str]], PassCost],
) -> tuple[int, str]:
    """
    Return the number of program starts, one per pass, and a remark if the number is a guess.
    """
    why = "the chip is not known"
    if chip is not None:
        try:
            cost = predicted(chip, names)
        except GpuPerfError as error:
            why = error.message
        else:
            if cost.replays is not None:
                return cost.replays, ""
            why = cost.note
    # One start per counter, although most need fewer, and one more for ncu itself.
    return len(
        names
    ) + 1, f"; estimated, because the number of passes is unknown ({why})"


_NAME = "ncu"
# Repeated if another profiler uses the counters for a moment.
_ATTEMPTS = 3
_VERSION_TIMEOUT_S = 30.0
_VERSION = re.compile(r"^Version (\S+)", re.MULTILINE)


def refused(site: Site) -> Gap | None:
    """
    Return the reason against starting a process under ncu, or None if a process may start.
    """
    collectors = site.config.collectors
    if collectors and _NAME not in collectors:
        return Gap(
            code=GapCode.NOT_ASKED,
            reason="--gpuperf-collectors leaves ncu out",
            remedy="add ncu, or cupti, to --gpuperf-collectors",
        )
    if _NAME in site.absent:
        return site.absent[_NAME]
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        return Gap(
            code=GapCode.UNSUPPORTED,
            reason=f"a job of {size} ranks is not started again under ncu: a replayed "
            "kernel would wait for the other ranks for ever",
            remedy="profile the job from outside, and read it with gpuperf.capture",
        )
    return None


def counted(
    site: Site,
    command: CommandLine,
    requests: Sequence[CounterRequest],
    *,
    announce: Callable[[int], None] = lambda _: None,
    in_block: bool = False,
) -> NcuCounters:
    """
    Return the counters of some tests, cached or counted now.

    Several processes may request the same counters: xdist workers, or the processes of
    a side in a comparison. One of these counts and the others wait. A process that
    measures again to confirm also counts again, because cached values are the ones to
    confirm.

    Args:
        site: The site of this process.

        command: The command line of the run.

        requests: The tests.

        announce: Called with the number of tests to be counted.

        in_block: True if this process is part of a block. The sides of a block are
            counted once.
    """
    collectors = site.config.collectors
    refusal = refused(site) or command.launcher.gap
    if refusal is not None:
        return NcuCounters(refuse_all(requests, refusal), collectors=collectors)
    ncu = _Ncu(site, command)

    def fill(missing: Sequence[CounterRequest]) -> list[CountedTest]:
        announce(len(missing))
        by = {"tool_version": ncu.version, **ncu.modes}
        by["session_id"] = site.identity.session.id
        return [replace(test, **by) for test in count(missing, ncu.profile)]

    if site.identity.role is not Role.MAIN and not in_block:
        return NcuCounters(fill(requests), collectors=collectors)
    try:
        store = EntryStore()
        cache = CountCache(
            site,
            requests,
            store,
            identity=ncu.identity(),
            files=ncu.files,
            # The files of a block are in folders that no other run has.
            keeps=not in_block,
        )
        results = cache.filled(fill)
        first, *rest = store.remarks or ("",)
        more = [f"and {len(rest)} more entries"] if len(rest) > 1 else rest
        # Errors of the cache cost time but do not change results.
        remarks = (f"ncu's cache: {remark}" for remark in (first, *more) if remark)
        site.remark("ncu-cache", *remarks)
    except GpuPerfError as error:  # Raised around counting, not by a test.
        results = refuse_all(requests, Gap.of(error))
    return NcuCounters(results, collectors=collectors)


class _Ncu:
    """Nsight Compute at a site, with its version."""

    def __init__(self, site: Site, command: CommandLine) -> None:
        self.site = site
        self.command = command
        self.path = shutil.which(_NAME) or _NAME
        self.version = ""  # Unknown.
        # Counting will report the same error.
        with contextlib.suppress(CollectError):
            finished = site.runner.run(
                (self.path, "--version"), timeout_s=_VERSION_TIMEOUT_S
            )
            match = _VERSION.search(finished.stdout.decode("utf-8", "replace"))
            self.version = match[1] if match else ""
        # The files used by each test, or None if a process did not report its files.
        self.files: dict[str, frozenset[LoadedFile] | None] = {}
        self.modes = {
            "replay_mode": site.config.ncu_replay.value,
            "clock_control": site.config.ncu_clocks.value,
        }

    def identity(self) -> dict[str, object]:
        """Return the named conditions, apart from files, that all counters depend on."""
        more = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        return {
            "python": (sys.implementation.cache_tag, sys.version),
            "ncu": (self.path, self.version),
            "modes": self.modes,
            "options": telling_options((*more, *self.command.args)),
            "environment": chosen_environment(os.environ),
            "device": device_fields(self.site.device()),
        }

    def profile(
        self, requests: Sequence[CounterRequest], cache_control: str
    ) -> ProfilerRun:
        """Run some tests in a process under ncu."""
        metrics = tuple(
            dict.fromkeys(m for request in requests for m in request.metrics)
        )
        counters = (name for request in requests for name in request.counters)
        collect = tuple(dict.fromkeys((*counters, DURATION)))
        launches: dict[str, tuple[CapturedLaunch, ...]] | None = None
        files: tuple[LoadedFile, ...] | None = None
        errors: list[GpuPerfError] = []

        def start(
            argv: tuple[str, ...], scratch: str, env: Mapping[str, str]
        ) -> Finished:
            nonlocal launches, files
            root = Path(self.site.config.root)
            recording = FileRecording(Path(scratch, "loaded"), root)
            env = {**env, **recording.variables(env)}
            try:
                report, finished = self._run(
                    argv, scratch, env, collect, cache_control, len(requests)
                )
                files = recording.files(argv[1:])
                launches = self._read(report, metrics)
            except NothingProfiledError as error:
                launches = {}
                tail = error.log_tail.encode()
                return Finished(error.argv, error.exit_code or 0, tail, b"")
            except GpuPerfError as error:
                errors.append(error)
                if isinstance(error, CollectError):
                    raise
                # The command cannot be built.
                raise CollectorUnavailableError(
                    error.message, remedy=error.remedy
                ) from error
            return finished

        identity = replace(self.site.identity, spool=None, expected=None)
        ids = [request.test_id for request in requests]
        ran = run_child(
            self.command, ids, identity, start=start, cache_control=cache_control
        )
        self._note_files(ran, files)
        error = errors[0] if errors else None
        return ProfilerRun(
            answers=ran.answers,
            launches=launches,
            refused=ran.refusal or _refusal(error, ran.answers),
            unknown=error.counter if isinstance(error, UnknownCounterError) else "",
            failure=ran.failure,
            hung=isinstance(error, CollectorTimeoutError),
        )

    def _note_files(self, ran: ChildRun, files: tuple[LoadedFile, ...] | None) -> None:
        files = files and tuple(file for file in files if is_own(file))
        for test_id, answer in ran.answers.items():
            earlier = self.files.get(test_id, frozenset())
            if answer.ended:
                self.files[test_id] = (
                    None if files is None or earlier is None else earlier.union(files)
                )

    def _run(
        self,
        argv: tuple[str, ...],
        scratch: str,
        env: Mapping[str, str],
        collect: tuple[str, ...],
        cache_control: str,
        test_count: int,
    ) -> tuple[Path, Finished]:
        config, device = self.site.config, self.site.device()
        timeout = timeout_of(config, collect, test_count, device=device)
        options: tuple[str, ...] = ()
        if config.device is not None and device is not None:
            options = ("--devices", str(self.site.chosen.ordinal))
        command = Command(
            executable=argv[0],
            args=argv[1:],
            output=str(Path(scratch, "counters")),
            metrics=collect,
            opts=options,
            nvtx_includes=(INCLUDE,),
            ncu=self.path,
            replay_mode=self.modes["replay_mode"],
            cache_control=cache_control,
            clock_control=self.modes["clock_control"],
            timeout_s=timeout.timeout_s,
        )
        session = Session(
            command=command,
            runner=self.site.runner,
            program_may_fail=True,
            device="0" if device is None else device.uuid,
            lock_timeout_s=config.lock_timeout_s,
            timeout_why=timeout.why,
        )
        finished = session.run(cwd=self.command.folder, env=env, retries=_ATTEMPTS)
        return command.written(), finished

    def _read(
        self, report: Path, metrics: Sequence[str]
    ) -> dict[str, tuple[CapturedLaunch, ...]]:
        counters = report_counters(metrics)
        capture = read_capture(report, runner=self.site.runner, metrics=counters)
        by_range: dict[str, list[CapturedLaunch]] = {}
        for launch in capture.launches:
            for name in launch.nvtx.get(DOMAIN, ()):
                by_range.setdefault(name, []).append(launch)
        return {name: tuple(launches) for name, launches in by_range.items()}


def _refusal(
    error: GpuPerfError | None, answers: Mapping[str, ChildAnswer]
) -> Gap | None:
    """
    Return the reason why ncu did not count, or None if ncu counted or a test prevented that.
    """
    if error is None or isinstance(error, CollectorTimeoutError):
        return None
    # ncu ends the program if a counter name is unknown.
    named = isinstance(error, UnknownCounterError)
    begun = any(not answer.ended for answer in answers.values())
    died = isinstance(error, (CollectorFailedError, CaptureFormatError))
    if died and begun and not named:
        return None
    if named or not isinstance(error, CollectorFailedError):
        return Gap.of(error)
    reason = f"{error.message}: {said_last(error.log_tail)}"
    return replace(Gap.of(error), reason=reason)


_LOCK = "counting"
# In the folder of the run, so that no other run reads the file.
_REFUSALS = "not-counted.jsonl"
# The longest wait for another run that counts, which has its own time limits.
_LONGEST_WAIT_S = 86_400.0
# The file in a cache entry.
_COUNTED = "counted.json"
# Files that pytest reads in the folders above a test. A new file changes the test.
_SETTINGS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_TEST_FILE = re.compile(r"test_\w+\.py|\w+_test\.py")


class CountCache:
    """
    The counters from this run and earlier runs.

    Args:
        site: The site of this process.

        requests: The tests.

        store: The entries.

        identity: The named conditions, apart from files, that all counters depend on.

        files: The files used by the processes that counted a test, by test id, or None
            if a process did not report its files. Filled while tests are counted.

        keeps: True if later runs may find the entries. Otherwise only processes of this
            run may.
    """

    def __init__(
        self,
        site: Site,
        requests: Sequence[CounterRequest],
        store: EntryStore,
        *,
        identity: Mapping[str, object],
        files: Mapping[str, frozenset[LoadedFile] | None],
        keeps: bool = True,
    ) -> None:
        self._site = site
        self._requests = requests
        self._store = store
        self._identity = identity
        self._files = files
        self._keeps = keeps
        folder = site.identity.expected
        self._refusals = None if folder is None else Path(folder, _REFUSALS)
        self._root = Path(site.config.root).resolve()
        self._words = functools.cache(_words)
        self._identities = {}
        for path in {Path(test.path) for test in requests}:
            place = path.resolve()
            folders = [f for f in place.parents if f.is_relative_to(self._root)]
            paths = (folder / name for folder in folders for name in _SETTINGS)
            names = (os.path.relpath(p, self._root) for p in paths if p.exists())
            settings = (os.path.relpath(place, self._root), *names)
            self._identities[str(path)] = key_of({**identity, "settings": settings})
        self._since_unix_s = store.now_unix_s()

    def filled(
        self, fill: Callable[[Sequence[CounterRequest]], list[CountedTest]]
    ) -> list[CountedTest]:
        """Return cached counters, and count the rest in one process at a time."""
        counted = self._cached(self._requests)
        if len(counted) == len(self._requests):
            return list(counted.values())
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._store.lock(_LOCK, timeout_s=_LONGEST_WAIT_S))
            except CollectorTimeoutError as error:
                missing = [r for r in self._requests if r.test_id not in counted]
                return [*counted.values(), *refuse_all(missing, Gap.of(error))]
            except CollectError as error:
                # Without the lock, other processes may count the same tests.
                self._store.remark(str(error))
            missing = [r for r in self._requests if r.test_id not in counted]
            # The process that held the lock may have counted these tests.
            counted |= self._cached(missing)
            if self._refusals is not None and self._refusals.exists():
                # Results of this run that are not in the cache.
                lines = self._refusals.read_bytes().splitlines()
                every = (codec.from_text(line, CountedTest) for line in lines)
                refused = {test.test_id: test for test in every}
                ids = (request.test_id for request in missing)
                counted |= {each: refused[each] for each in ids if each in refused}
            missing = [r for r in missing if r.test_id not in counted]
            self._since_unix_s = self._store.now_unix_s()
            fresh = fill(missing) if missing else []
            self._keep(missing, fresh)
            return [*counted.values(), *fresh]

    def _cached(self, requests: Sequence[CounterRequest]) -> dict[str, CountedTest]:
        # A run that updates a baseline accepts only its own counters.
        accepts_all = self._site.config.update is None
        session_id = self._site.identity.session.id
        cached: dict[str, CountedTest] = {}
        sets = self._sets()
        states: dict[str, tuple[str, ...]] = {}
        for request in requests:
            if request.path not in states:
                states[request.path] = sets.states(self._identities[request.path])
            for state in states[request.path]:
                content = self._store.get("values", self._key(request, state))
                if content is None:
                    continue
                # Written by another version of the plugin.
                with contextlib.suppress(RecordError):
                    counted = codec.from_text(content.files[_COUNTED], CountedTest)
                    if accepts_all or counted.session_id == session_id:
                        cached[request.test_id] = counted
        return cached

    def _keep(
        self, requests: Sequence[CounterRequest], fresh: Sequence[CountedTest]
    ) -> None:
        """
        Cache the counters that would be the same again.

        All other results go to the file shared by the processes of this run.
        """
        by_id = {request.test_id: request for request in requests}
        sets = self._sets()

        @functools.cache
        def state_of(path: str, files: frozenset[LoadedFile]) -> str | None:
            identity, used = self._identities[path], self._files_of(path, files)
            return sets.add(identity, used, since_unix_s=self._since_unix_s)

        for counted in fresh:
            text = codec.to_text(counted).encode()
            is_kept = (
                self._keeps
                and counted.complete
                and self._is_kept(by_id[counted.test_id], text, state_of)
            )
            if not is_kept and self._refusals is not None:
                with self._refusals.open("ab") as file:
                    file.write(text + b"\n")

    def _is_kept(
        self,
        test: CounterRequest,
        text: bytes,
        state_of: Callable[[str, frozenset[LoadedFile]], str | None],
    ) -> bool:
        """Cache the counters of a test, and return False if that was impossible."""
        files = self._files.get(test.test_id)
        if files is None:
            self._store.remark(
                "a process ended early, so the files that it loaded are not known: its "
                "tests are counted again in the next run"
            )
            return False
        try:
            state = state_of(test.path, files)
            if state is not None:
                self._store.put("values", self._key(test, state), {_COUNTED: text})
        except CollectError as error:
            self._store.remark(str(error))
            return False
        return state is not None

    def _sets(self) -> FileSets:
        return FileSets(self._store, self._root, os.environ)

    def _files_of(self, path: str, files: Iterable[LoadedFile]) -> list[LoadedFile]:
        """
        Return the files of a process without the modules of other tests.

        pytest imports all test modules. They stay if a file of the project mentions one
        of them.
        """
        test_path = os.path.realpath(path)
        paths = {file: Path(file.path) for file in files}
        other_tests = {
            file
            for file, place in paths.items()
            if _TEST_FILE.fullmatch(place.name) and file.path != test_path
        }
        names = {os.fsencode(paths[file].stem) for file in other_tests}
        remaining = [file for file in paths if file not in other_tests]
        texts = (paths[f] for f in remaining if paths[f].is_relative_to(self._root))
        is_named = any(not names.isdisjoint(self._words(text)) for text in texts)
        return list(paths) if is_named else remaining

    def _key(self, test: CounterRequest, state: str) -> str:
        fields = {
            "identity": self._identities[test.path],
            "files": state,
            "test": test.test_id,
            "metrics": (test.metrics, test.counters),
            "cache": test.cache_control,
        }
        return key_of(fields)


def _words(path: Path) -> frozenset[bytes]:
    text = path.read_bytes() if path.suffix == ".py" and path.exists() else b""
    return frozenset(re.findall(rb"\w+", text))
