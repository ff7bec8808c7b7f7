"""Merge the runs of shards into the run of the whole suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from blake3 import blake3

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.change import Against
from pytest_gpuperf.model.environment import Host, Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.run import Completeness, Header, HeaderNote, Run, Scope
from pytest_gpuperf.model.shard import Shard
from pytest_gpuperf.report.display import listed, plural

_T = TypeVar("_T")

# Subject of the note about a merge.
_ABOUT = "shards"
# Characters of a commit, enough for a person.
_COMMIT = 7
_ID_LENGTH = 8
_ONE_RUN = "name the files of one run, with one file for each shard"
_ONE_ID = (
    "give all shards the same --gpuperf-run-id; after a failure measure all of them "
    "again, or the values of two attempts are mixed"
)
_ONE_SUITE = (
    "collect the same tests in every shard, with the same parameters, and let --splits "
    "and --group, paths or -k choose among them"
)
_ONE_SHARD = (
    "divide the tests so that each is in one shard, and merge the runs of each kind of "
    "machine separately"
)


def shard_of(run: Run) -> Shard | None:
    """Return the shard that a run is, or None for a run of the whole suite."""
    shard = Shard.read(run.header.session.shard)
    return None if shard is None or shard.is_whole else shard


class ShardFile(Frozen, frozen=True, kw_only=True):
    """
    A run, and the file that holds it.

    Attributes:
        name: The name of the file, for messages.

        run: The run.
    """

    name: str
    run: Run

    @property
    def shard(self) -> Shard | None:
        """The part of the tests that the run is, or None if it names none."""
        return shard_of(self.run)


class ShardCheck(Frozen, frozen=True, kw_only=True):
    """
    The shards of a run that were found.

    Attributes:
        numbers: Their numbers, ascending, or empty for a run that is not divided.

        missing: The numbers of the other shards, ascending.

        faults: Why the run is not complete.

        remarks: Other sentences for the user.
    """

    numbers: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class MergedRun(ShardCheck, frozen=True, kw_only=True):
    """
    The union of the runs of some shards.

    Attributes:
        run: The run of the whole suite. It is interrupted if a shard is missing.
    """

    run: Run


def merge(files: Sequence[ShardFile]) -> MergedRun:
    """
    Return the union of the runs of shards.

    Nothing is averaged. A run that is named twice counts once.

    Args:
        files: The runs of all shards, in any order, or a single run that is no shard.

    Raises:
        RecordError: The runs do not belong together. The error names every difference.
    """
    files = [*{file.run.header.session.id: file for file in files}.values()]
    if len(files) == 1 and files[0].shard is None:
        return MergedRun(run=files[0].run)
    differences = [*_differences(files)]
    if differences:
        message = "; ".join(text for text, _ in differences)
        remedy = "; ".join(dict.fromkeys(remedy for _, remedy in differences))
        raise RecordError(message, path="", remedy=remedy)
    shards = {s.number: f.run for f in files if (s := f.shard) is not None}
    count = max(s.count for f in files if (s := f.shard) is not None)
    runs = [shards[number] for number in sorted(shards)]
    missing = tuple(n for n in range(1, count + 1) if n not in shards)
    ended = [f"shard {number} of {count} never arrived" for number in missing]
    ended += [
        f"shard {number} of {count}: {shards[number].header.completeness.interrupted}"
        for number in sorted(shards)
        if shards[number].header.completeness.interrupted
    ]
    left_count = _left_count(runs)
    faults = [*ended]
    for number in sorted(shards):
        never = shards[number].header.completeness.missing
        if never:
            tests = plural(len(never), "test")
            faults.append(
                f"shard {number} of {count}: {tests} never reported: {listed(never)}"
            )
    remarks = []
    if left_count:
        why = "are missing" if ended else "were deselected in every shard"
        remarks = [f"{plural(left_count, 'test')} of the suite {why}"]
    return MergedRun(
        run=_union(runs, "; ".join(ended), left_count),
        numbers=tuple(sorted(shards)),
        missing=missing,
        faults=tuple(faults),
        remarks=tuple(remarks),
    )


def _differences(files: Sequence[ShardFile]) -> Iterator[tuple[str, str]]:
    unnamed = [file.name for file in files if file.shard is None]
    if unnamed:
        name = "names" if len(unnamed) == 1 else "name"
        yield (
            f"{listed(unnamed)} {name} no shard",
            "measure each shard with --gpuperf-shard=I/N",
        )
    for what, remedy, value_of in (
        (
            "schemas",
            "measure all shards with one version of pytest-gpuperf",
            lambda file: file.run.schema,
        ),
        ("runs", _ONE_ID, lambda file: file.run.header.session.run or "no run id"),
        ("commits", "measure all shards at one commit", _commit),
        (
            "numbers of shards",
            _ONE_RUN,
            lambda file: None if file.shard is None else str(file.shard.count),
        ),
        ("revisions", "compare all shards with one revision", _revision),
    ):
        names = _by_value(files, value_of)
        if len(names) > 1:
            each = (f"{value} in {listed(of)}" for value, of in names.items())
            yield f"the {what} differ: {', '.join(each)}", remedy
    yield from _other_collections(files)
    by_shard = _by_value(
        files, lambda file: None if file.shard is None else str(file.shard)
    )
    several = {text: of for text, of in by_shard.items() if len(of) > 1}
    for text, of in several.items():
        yield f"{listed(of)} are all shard {text}", _ONE_RUN
    if not several:
        yield from _shared_tests(files)


def _by_value(
    files: Iterable[ShardFile], value_of: Callable[[ShardFile], str | None]
) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for file in files:
        value = value_of(file)
        if value is not None:
            names.setdefault(value, []).append(file.name)
    return names


def _commit(file: ShardFile) -> str | None:
    commit = file.run.header.session.commit
    return None if commit is None else commit[:_COMMIT]


def _revision(file: ShardFile) -> str | None:
    against = file.run.against
    return None if against is None else against.commit[:_COMMIT] or against.revision


def _other_collections(files: Sequence[ShardFile]) -> Iterator[tuple[str, str]]:
    """
    Yield the shards that collected other tests.

    Shards that were divided by paths collect different tests.
    """
    by_paths: dict[tuple[str, ...] | None, list[ShardFile]] = {}
    for file in files:
        scope = file.run.header.completeness.scope
        paths = None if scope is None else scope.paths
        by_paths.setdefault(paths, []).append(file)
    for alike in by_paths.values():
        names = _by_value(alike, lambda file: file.run.header.session.collected)
        if len(names) > 1:
            groups = (listed(of) for of in names.values())
            yield (
                f"the shards collected different suites: {' against '.join(groups)}",
                _ONE_SUITE,
            )


def _shared_tests(files: Sequence[ShardFile]) -> Iterator[tuple[str, str]]:
    names: dict[str, list[str]] = {}
    for file in files:
        for test_id in file.run.test_ids:
            names.setdefault(test_id, []).append(file.name)
    shared = sorted(test_id for test_id, of in names.items() if len(of) > 1)
    if shared:
        yield (
            f"{listed(shared)}: measured in {listed(names[shared[0]])}",
            _ONE_SHARD,
        )


def _left_count(runs: Sequence[Run]) -> int | None:
    """
    Return the number of collected tests that no shard selected, or None if unknown.

    The number is unknown if options or paths select the tests of the shards.
    """
    parts = [run.header.completeness for run in runs]
    known = [part for part in parts if part.measuring_count is not None]
    counts = {part.measuring_count for part in known}
    paths = {None if p.scope is None else p.scope.paths for p in known}
    count = counts.pop() if len(counts) == 1 else None
    if count is None or len(paths) != 1 or None in paths:
        return None
    selected = sum(part.expected_count + len(part.unchanged) for part in parts)
    return max(0, count - selected)


def _union(runs: Sequence[Run], interrupted: str, left_count: int | None) -> Run:
    first = runs[0]
    hosted = [_with_host(run, first.header.session.host) for run in runs]
    header = _header(runs)
    completeness = _completeness(runs, interrupted, left_count)
    return Run(
        schema=first.schema,
        header=replace(header, completeness=completeness),
        records=_joined(run.records for run in hosted),
        verdicts=_joined(run.verdicts for run in runs),
        xfailed=_joined(run.xfailed for run in runs),
        asserted=_joined(run.asserted for run in runs),
        missed=_joined(run.missed for run in runs),
        broken=_joined(run.broken for run in runs),
        skipped=_joined(run.skipped for run in runs),
        shifts=_joined(run.shifts for run in runs),
        references=_joined(run.references for run in hosted),
        tests=_joined(run.tests for run in runs),
        stored=_joined(run.stored for run in runs),
        against=_against(runs),
    )


def _joined(parts: Iterable[Iterable[_T]]) -> tuple[_T, ...]:
    return tuple(chain.from_iterable(parts))


def _with_host(run: Run, base_host: str) -> Run:
    session, environment = run.header.session, run.header.environment
    if session.host == base_host:
        return run
    host = Host(
        id=session.host,
        machine=session.machine,
        boot=session.boot,
        cpu_model=environment.cpu_model,
        core_count=environment.core_count,
        python_minor=environment.python_minor,
    )

    def on_host(record: Record) -> Record:
        return record if record.host is not None else replace(record, host=host)

    return replace(
        run,
        records=tuple(map(on_host, run.records)),
        references=tuple(map(on_host, run.references)),
    )


def _header(runs: Sequence[Run]) -> Header:
    headers = [run.header for run in runs]
    machines = (header.session.machine or "an unknown machine" for header in headers)
    shards = ", ".join(header.session.shard or "" for header in headers)
    text = f"merged from the shards {shards}, measured on {listed(machines)}"
    notes = (
        HeaderNote(about=_ABOUT, text=text),
        *dict.fromkeys(_joined(header.notes for header in headers)),
    )
    options = headers[0].options.items()
    environments = [header.environment for header in headers]
    first = environments[0]
    versions = first.versions.items()
    return replace(
        headers[0],
        session=_session([header.session for header in headers]),
        environment=replace(
            first,
            cpu_model=_common(each.cpu_model for each in environments),
            core_count=_common(each.core_count for each in environments),
            versions={
                name: version
                for name, version in versions
                if all(each.versions.get(name) == version for each in environments)
            },
        ),
        options={
            name: value
            for name, value in options
            if all(header.options.get(name) == value for header in headers)
        },
        collectors=tuple(dict.fromkeys(_joined(h.collectors for h in headers))),
        sentences=tuple(note.text for note in notes),
        notes=notes,
        jit_cache=_common(header.jit_cache for header in headers),
    )


def _common(values: Iterable[_T]) -> _T | None:
    distinct = [*dict.fromkeys(values)]
    return distinct[0] if len(distinct) == 1 else None


def _session(sessions: Sequence[Session]) -> Session:
    first = min(sessions, key=lambda session: session.started_unix_s)
    ids = "\n".join(sorted(session.id for session in sessions))
    digest = blake3(ids.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_LENGTH]
    counts = [s.ran_count for s in sessions if s.ran_count is not None]
    dirty = {session.dirty for session in sessions} - {None}
    return replace(
        sessions[0],
        id=f"{first.id.partition('-')[0]}-{digest}",
        started_unix_s=first.started_unix_s,
        commit=_known(session.commit for session in sessions),
        parent=_known(session.parent for session in sessions),
        dirty=any(dirty) if dirty else None,
        branch=_common(session.branch for session in sessions),
        shard=None,
        collected=_common(s.collected for s in sessions),
        collected_count=_common(s.collected_count for s in sessions),
        ran_count=round(sum(counts) / len(counts)) if counts else None,
        selection=_common(session.selection for session in sessions),
    )


def _known(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _completeness(
    runs: Sequence[Run], interrupted: str, left_count: int | None
) -> Completeness:
    parts = [run.header.completeness for run in runs]
    # A shard does not see the tests of the others.
    unchanged = tuple(dict.fromkeys(_joined(part.unchanged for part in parts)))
    measured = chain.from_iterable(run.test_ids for run in runs)
    present = frozenset(unchanged).union(measured)

    def of_no_shard(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
        return tuple(t for t in dict.fromkeys(_joined(lists)) if t not in present)

    absent = of_no_shard(part.absent for part in parts)
    skipped = of_no_shard(part.skipped for part in parts)
    left_out = of_no_shard(part.left_out for part in parts)
    return Completeness(
        expected_count=sum(part.expected_count for part in parts)
        + (left_count or 0 if interrupted else 0),
        reported_count=sum(part.reported_count for part in parts),
        missing=_joined(part.missing for part in parts),
        interrupted=interrupted,
        absent=absent,
        skipped=skipped,
        left_out=left_out,
        due=of_no_shard(part.due for part in parts),
        removed=of_no_shard(part.removed for part in parts),
        unchanged=unchanged,
        unchanged_since=_common(
            part.unchanged_since for part in parts if part.unchanged
        )
        or "",
        scope=_scope(
            [part.scope for part in parts],
            is_whole=not interrupted and left_count == 0,
        ),
        measuring_count=_common(part.measuring_count for part in parts),
    )


def _scope(scopes: Sequence[Scope | None], *, is_whole: bool) -> Scope | None:
    """
    Return the joint scope of all shards, or None if the scope of a shard is unknown.

    Args:
        scopes: The scope of each shard.

        is_whole: Whether every collected test was in a shard.
    """
    known = [scope for scope in scopes if scope is not None]
    if len(known) < len(scopes):
        return None
    paths = [scope.paths for scope in known if scope.paths is not None]
    partial_modules = dict.fromkeys(_joined(s.partial_modules for s in known))
    whole_modules = dict.fromkeys(_joined(s.whole_modules for s in known))
    if is_whole:
        whole_modules |= partial_modules
    return Scope(
        paths=tuple(dict.fromkeys(_joined(paths)))
        if len(paths) == len(known)
        else None,
        whole_modules=tuple(whole_modules),
        partial_modules=tuple(m for m in partial_modules if m not in whole_modules),
        gone_modules=tuple(dict.fromkeys(_joined(s.gone_modules for s in known))),
    )


def _against(runs: Sequence[Run]) -> Against | None:
    """Return the comparisons of shards with a revision as one, or None without any."""
    found = [run.against for run in runs if run.against is not None]
    if not found:
        return None
    present = frozenset(chain.from_iterable(run.test_ids for run in runs))
    nulls = [a.null_fraction for a in found if a.null_fraction is not None]
    return replace(
        found[0],
        level=_common(each.level for each in found),
        modules=tuple(dict.fromkeys(_joined(each.modules for each in found))),
        block_count=sum(each.block_count for each in found),
        elapsed_s=sum(each.elapsed_s for each in found),
        null_fraction=max(nulls, default=None),
        gap=_known(each.gap for each in found),
        changed=tuple(dict.fromkeys(_joined(each.changed for each in found))),
        only_old=tuple(
            t
            for t in dict.fromkeys(_joined(each.only_old for each in found))
            if t not in present
        ),
        only_new=tuple(dict.fromkeys(_joined(each.only_new for each in found))),
    )


def check_shards(sessions: Collection[Session]) -> ShardCheck:
    """
    Check that every shard of a run has a session.

    A run with a session of all tests needs no shards.

    Args:
        sessions: The stored sessions of one run.
    """
    shards = [Shard.read(session.shard) for session in sessions]
    found = {(s.number, s.count) for s in shards if s is not None}
    if None in shards or not found:
        return ShardCheck()
    counts = sorted({count for _, count in found})
    numbers = tuple(sorted({number for number, _ in found}))
    missing = tuple(n for n in range(1, counts[-1] + 1) if n not in numbers)
    faults = [f"shard {n} of {counts[-1]} has stored no session" for n in missing]
    if len(counts) > 1:
        of = " and of ".join(map(str, counts))
        faults.append(f"some of its shards are parts of {of}: the number was changed")
    commits = sorted({s.commit[:_COMMIT] for s in sessions if s.commit})
    if len(commits) > 1:
        faults.append(f"its shards measured different commits: {', '.join(commits)}")
    remarks = []
    if len({s.collected for s in sessions} - {None}) > 1:
        remarks = ["its shards collected different suites"]
    return ShardCheck(
        numbers=numbers,
        missing=missing,
        faults=tuple(faults),
        remarks=tuple(remarks),
    )
