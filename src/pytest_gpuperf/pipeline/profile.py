"""Run the tests whose counters are wanted under Nsight Compute."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu import key as keys
from pytest_gpuperf.collect.ncu import sources
from pytest_gpuperf.collect.ncu.cache import Values
from pytest_gpuperf.collect.ncu.capture import CapturedLaunch, read_capture
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.ranges import DOMAIN, INCLUDE
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.config import NcuReplay
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
    GpuPerfError,
    NothingProfiledError,
    RecordError,
)
from pytest_gpuperf.measure.captured import report_counters
from pytest_gpuperf.measure.counters import (
    Counted,
    Counts,
    Profiled,
    Refusal,
    Wanted,
    count,
    last_words,
)
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.child import ChildAnswer
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.pipeline.repeat import CommandLine, run_child
from pytest_gpuperf.report.display import plural

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.key import Field
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.counters import PassCost
    from pytest_gpuperf.model.environment import Device

__all__ = ["Patience", "counted", "patience", "refused"]

_LEAST_S = 600.0  # the imports of a framework, compilation, all passes of its kernels
_TEST_S = 60.0  # and for each test
_LONGEST_S = 21_600.0  # 36 starts of the least: whoever waits for a whole night is told
_NO_CHIP = "off"  # of the option: nothing is checked for a chip


class Patience(Frozen, frozen=True, kw_only=True):
    """
    How long all of a command of ncu may take.

    Attributes:
        timeout_s: So long [s], > 0.

        why: How that came to be, as a fragment; "" where the number says it all.
    """

    timeout_s: float
    why: str = ""


def _predicted(chip: str, names: Sequence[str]) -> PassCost:
    """Return what counters cost on a chip."""
    from pytest_gpuperf.collect.ncu.catalogue import Catalogue

    return Catalogue(chip).cost(names)


def patience(
    config: Config,
    names: Sequence[str],
    test_count: int,
    *,
    device: Device | None = None,
    predicted: Callable[[str, Sequence[str]], PassCost] = _predicted,
) -> Patience:
    """
    Return how long counting may take: under application replay, so many starts more.

    Args:
        config: What was asked for; a time in it is all there is.

        names: The counters.

        test_count: The tests of the process, >= 1.

        device: The GPU; None: not known.

        predicted: Returns what counters cost on a chip.
    """
    if config.ncu_timeout_s:
        return Patience(timeout_s=config.ncu_timeout_s)
    once_s = max(_LEAST_S, _TEST_S * test_count)
    if config.ncu_replay is not NcuReplay.APPLICATION:
        return Patience(timeout_s=once_s)
    starts, unsure = _starts(_chip(config, device), names, predicted)
    why = f"{once_s:g} s for each of {plural(starts, 'start')}"
    if once_s * starts > _LONGEST_S:
        why += ", and no more than that in all"
    return Patience(timeout_s=min(once_s * starts, _LONGEST_S), why=why + unsure)


def _chip(config: Config, device: Device | None) -> str | None:
    """Return the chip that counts; None: not known."""
    if device is not None and device.compute_capability is not None:
        return "sm_{}{}".format(*device.compute_capability)
    return None if config.chip == _NO_CHIP else config.chip


def _starts(
    chip: str | None,
    names: Sequence[str],
    predicted: Callable[[str, Sequence[str]], PassCost],
) -> tuple[int, str]:
    """Return how often the program is started, one a pass; and how unsure that is."""
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
    # one for each counter: most need less, and ncu's own one more
    return len(names) + 1, f"; a guess, for the passes are not known ({why})"


_NAME = "ncu"
_LOCK = "counting"
_WEIGHT = "gpu__time_duration.sum"  # weighs a rate of one launch against another's
_REFUSALS = "not-counted.jsonl"  # in the folder of the run: no other run reads it
_ATTEMPTS = 3  # where another profiler has the counters for a moment
_LONGEST_WAIT_S = 86_400.0  # for another run that counts: it has timeouts of its own
_VERSION_TIMEOUT_S = 30.0
_VERSION = re.compile(r"^Version (\S+)", re.MULTILINE)


def refused(site: Site) -> Refusal | None:
    """Return why no process may be started under ncu; None: it may."""
    asked = site.config.collectors
    if asked and _NAME not in asked:
        return Refusal(
            reason="the ncu collector is not among those asked for",
            remedy="add ncu, or cupti, to --gpuperf-collectors",
        )
    absence = site.absent.get(_NAME)
    if absence is not None:
        return Refusal(reason=absence.reason, remedy=absence.remedy)
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        return Refusal(
            reason=f"a rank of {size} is not started again under ncu: its kernels wait "
            "for those of the others, and a replayed one waits for ever",
            remedy="profile the job from outside, and read it with gpuperf.capture",
        )
    return None


def counted(
    site: Site,
    command: CommandLine,
    wanted: Sequence[Wanted],
    *,
    announce: Callable[[int], None] = lambda _: None,
) -> Counts:
    """
    Return the counters of some tests: found, or counted now.

    Of several processes that ask for the same (the workers of xdist), one counts and the
    others wait for it. A process that measures again, to confirm, counts again too: what
    it would find is what it is to confirm.

    Args:
        site: This process.

        command: How the run was started.

        wanted: The tests.

        announce: Told of how many tests are going to be counted.
    """
    asked = site.config.collectors
    refusal = refused(site)
    if refusal is not None:
        return Counts(refusal.of(wanted), collectors=asked)
    ncu = _Ncu(site, command)

    def fill(missing: Sequence[Wanted]) -> list[Counted]:
        announce(len(missing))
        by = {"tool_version": ncu.version, **ncu.modes}
        by["session_id"] = site.identity.session.id
        return [replace(each, **by) for each in count(missing, ncu.profile)]

    if site.identity.role is not Role.MAIN:
        return Counts(fill(wanted), collectors=asked)
    try:
        values = Values()
        found = _Shelf(ncu, wanted, values).filled(fill)
        site.remark(*_told(values.remarks))
    except GpuPerfError as error:  # around counting; no test has done wrong
        told = Refusal(reason=error.message, remedy=error.remedy)
        found = told.of(wanted)
    return Counts(found, collectors=asked)


def _told(remarks: Sequence[str]) -> list[str]:
    """Return what kept a cache from its work: what it costs is time, and no result."""
    first, *others = remarks or ("",)
    more = [f"and {len(others)} entries more"] if len(others) > 1 else others
    return [f"ncu's cache: {each}" for each in (first, *more) if each]


class _Ncu:
    """Nsight Compute on one site: it runs tests, and says of which version it is."""

    def __init__(self, site: Site, command: CommandLine) -> None:
        self.site = site
        self.command = command
        self.path = shutil.which(_NAME) or _NAME
        self.version = self._version()
        self.modes = {
            "replay_mode": site.config.ncu_replay.value,
            "clock_control": site.config.ncu_clocks.value,
        }

    def _version(self) -> str:
        """Return ncu's version; "" where it does not say."""
        argv = (self.path, "--version")
        try:
            finished = self.site.runner.run(argv, timeout_s=_VERSION_TIMEOUT_S)
        except CollectError:  # the same will be said when it is to count
            return ""
        found = _VERSION.search(finished.stdout.decode("utf-8", "replace"))
        return found[1] if found else ""

    def profile(self, wanted: Sequence[Wanted], cache_control: str) -> Profiled:
        """Run some tests in a process under ncu."""
        metrics = tuple(dict.fromkeys(m for each in wanted for m in each.metrics))
        counters = (name for each in wanted for name in each.counters)
        collect = tuple(dict.fromkeys((*counters, _WEIGHT)))
        launches: dict[str, tuple[CapturedLaunch, ...]] | None = None
        errors: list[GpuPerfError] = []

        def start(
            argv: tuple[str, ...], scratch: str, env: Mapping[str, str]
        ) -> Finished:
            nonlocal launches
            try:
                report, finished = self._run(
                    argv, scratch, env, collect, cache_control, len(wanted)
                )
                launches = self._read(report, metrics)
            except NothingProfiledError as error:
                launches = {}
                tail = error.log_tail.encode()
                return Finished(error.argv, error.exit_code or 0, tail, b"")
            except GpuPerfError as error:
                errors.append(error)
                if isinstance(error, CollectError):
                    raise
                # a command that cannot be built
                raise CollectorUnavailableError(
                    error.message, remedy=error.remedy
                ) from error
            return finished

        identity = replace(self.site.identity, spool=None, expected=None)
        ids = [each.test_id for each in wanted]
        ran = run_child(
            self.command, ids, identity, start=start, cache_control=cache_control
        )
        error = errors[0] if errors else None
        return Profiled(
            answers=ran.answers,
            launches=launches,
            refused=_refusal(error, ran.answers, collect),
            failure=ran.failure,
            hung=isinstance(error, CollectorTimeoutError),
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
        """Run a command under ncu; return its report and how it ended."""
        config, device = self.site.config, self.site.device()
        allowed = patience(config, collect, test_count, device=device)
        command = Command(
            executable=argv[0],
            args=argv[1:],
            output=str(Path(scratch, "counters")),
            metrics=collect,
            opts=_device_options(self.site),
            nvtx_includes=(INCLUDE,),
            ncu=self.path,
            replay_mode=self.modes["replay_mode"],
            cache_control=cache_control,
            clock_control=self.modes["clock_control"],
            timeout_s=allowed.timeout_s,
        )
        session = Session(
            command=command,
            runner=self.site.runner,
            program_may_fail=True,
            device="0" if device is None else device.uuid,
            lock_timeout_s=config.lock_timeout_s,
            timeout_why=allowed.why,
        )
        finished = session.run(cwd=self.command.folder, env=env, retries=_ATTEMPTS)
        return command.report, finished

    def _read(
        self, report: Path, metrics: Sequence[str]
    ) -> dict[str, tuple[CapturedLaunch, ...]]:
        """Return the launches of a report, by the ranges that were open."""
        counters = report_counters(metrics)
        capture = read_capture(report, runner=self.site.runner, metrics=counters)
        found: dict[str, list[CapturedLaunch]] = {}
        for each in capture.ranges:
            for launch in each.launches:
                for name in launch.nvtx.get(DOMAIN, ()):
                    found.setdefault(name, []).append(launch)
        return {name: tuple(launches) for name, launches in found.items()}


def _device_options(site: Site) -> tuple[str, ...]:
    """Return what tells ncu of the GPU that was asked for; no word of any other."""
    asked = site.config.device is not None and site.device() is not None
    return ("--devices", str(site.chosen.ordinal)) if asked else ()


def _refusal(
    error: GpuPerfError | None,
    answers: Mapping[str, ChildAnswer],
    collect: Sequence[str],
) -> Refusal | None:
    """Return why ncu did not count; None: it did, or a test kept it from it."""
    if error is None or isinstance(error, CollectorTimeoutError):
        return None
    # ncu ends the program for a name that it does not know
    named = any(name in error.message for name in collect)
    begun = any(not answer.ended for answer in answers.values())
    died = isinstance(error, (CollectorFailedError, CaptureFormatError))
    if died and begun and not named:
        return None
    if named or not isinstance(error, CollectorFailedError):
        return Refusal(reason=error.message, remedy=error.remedy)
    reason = f"{error.message}: {last_words(error.log_tail)}"
    return Refusal(reason=reason, remedy=error.remedy)


class _Shelf:
    """What was counted before, by this run and by earlier ones."""

    def __init__(self, ncu: _Ncu, wanted: Sequence[Wanted], values: Values) -> None:
        self._ncu = ncu
        self._wanted = wanted
        self._values = values
        folder = ncu.site.identity.expected
        self._refusals = None if folder is None else Path(folder, _REFUSALS)
        self._keys = self._all_keys()

    def filled(
        self, fill: Callable[[Sequence[Wanted]], list[Counted]]
    ) -> list[Counted]:
        """Return what is there, and what is counted now by one process at a time."""
        found = self._found(self._wanted)
        if len(found) == len(self._wanted):
            return list(found.values())
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._values.lock(_LOCK, timeout_s=_LONGEST_WAIT_S))
            except CollectorTimeoutError as error:
                told = Refusal(reason=error.message, remedy=error.remedy)
                missing = [w for w in self._wanted if w.test_id not in found]
                return [*found.values(), *told.of(missing)]
            except CollectError as error:  # others may count the same meanwhile
                self._values.remark(str(error))
            missing = [each for each in self._wanted if each.test_id not in found]
            found |= self._found(missing)  # whoever had the lock may have counted
            found |= self._refused_before(missing)
            missing = [each for each in missing if each.test_id not in found]
            fresh = fill(missing) if missing else []
            self._keep(fresh)
            return [*found.values(), *fresh]

    def _found(self, wanted: Sequence[Wanted]) -> dict[str, Counted]:
        """Return what is kept of some tests."""
        found: dict[str, Counted] = {}
        for each in wanted:
            content = self._values.get(self._keys[each.test_id])
            if content is None:
                continue
            with contextlib.suppress(RecordError):  # of another version of ours
                kept = codec.from_text(content, Counted)
                if self._will_do(kept):
                    found[each.test_id] = kept
        return found

    def _will_do(self, kept: Counted) -> bool:
        """Return whether it need not be counted again: what a baseline keeps, must be."""
        site = self._ncu.site
        return site.config.update is None or kept.session_id == site.identity.session.id

    def _refused_before(self, wanted: Sequence[Wanted]) -> dict[str, Counted]:
        """Return what another process of this run has counted in vain."""
        if self._refusals is None or not self._refusals.exists():
            return {}
        lines = self._refusals.read_bytes().splitlines()
        every = (codec.from_text(line, Counted) for line in lines)
        told = {each.test_id: each for each in every}
        return {w.test_id: told[w.test_id] for w in wanted if w.test_id in told}

    def _keep(self, counted: Sequence[Counted]) -> None:
        """Keep what would be the same again; tell this run's processes of all else."""
        for each in counted:
            text = codec.to_text(each).encode()
            if each.complete:
                self._values.keep(self._keys[each.test_id], text)
            elif self._refusals is not None:
                with self._refusals.open("ab") as file:
                    file.write(text + b"\n")

    def _all_keys(self) -> dict[str, str]:
        """Return the key of each test's counters."""
        ncu, digests = self._ncu, self._values.digests()
        root = Path(ncu.site.config.root)
        more = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        args = (*more, *ncu.command.args)
        plugins = sources.plugins(args, os.environ)
        shared: dict[str, Field] = {
            "ncu": ncu.version,
            "modes": tuple(ncu.modes.values()),
            "options": keys.telling_options(args),
            "environment": keys.chosen_environment(os.environ),
            "device": keys.device_fields(ncu.site.device()),
            **sources.python_fields(digests),
        }
        files: dict[str, Field] = {
            path: sources.project_files(
                (Path(path),), root=root, digests=digests, modules=plugins
            )
            for path in {each.path for each in self._wanted}
        }
        digests.save()
        return {
            each.test_id: keys.key_of(
                {
                    **shared,
                    "test": each.test_id,
                    "files": files[each.path],
                    "metrics": (each.metrics, each.counters),
                    "cache": each.cache_control,
                }
            )
            for each in self._wanted
        }
