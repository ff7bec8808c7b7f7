"""A whole run: header, records, verdicts, what each test and each child process gave."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.change import Against
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import (
    REFERENCES,
    BoundClass,
    Record,
    RecordKey,
    StoredRecord,
)
from pytest_gpuperf.model.sample import ReferenceSamples, Unmeasured
from pytest_gpuperf.model.verdict import Verdict

__all__ = [
    "ChildAnswer",
    "Completeness",
    "Expected",
    "Header",
    "HeaderNote",
    "MachineShift",
    "Measured",
    "ProfiledRange",
    "Run",
    "Scope",
    "TestPlace",
]


class Scope(Frozen, frozen=True, kw_only=True):
    """
    Where a run looked for tests; files and folders are those of keys.

    Attributes:
        paths: The files and folders that pytest looked into, "" for the whole checkout;
            None: it was told to run a part of their tests, or they are unknown.

        whole_modules: Test files that were collected completely and run as a whole.

        partial_modules: Those of which a test was left out, as by a shard.

        gone_modules: Those of stored tests that lie in `paths` and are no longer there.
    """

    paths: tuple[str, ...] | None = None
    whole_modules: tuple[str, ...] = ()
    partial_modules: tuple[str, ...] = ()
    gone_modules: tuple[str, ...] = ()

    def has_removed(self, key: str) -> bool:
        """Return whether a test that did not run is no longer in the code."""
        module = key.partition("::")[0]
        known = module in self.whole_modules or module in self.gone_modules
        return self.paths is not None and known

    def is_elsewhere(self, key: str, *, sharded: bool) -> bool:
        """
        Return whether the run was not to run a test: it lies elsewhere, or in another shard.

        Args:
            key: The key of the test.

            sharded: Whether the run is one shard of several.
        """
        module = key.partition("::")[0]
        if self.paths is None:
            return False
        if sharded and module in self.partial_modules:
            return True
        return not any(
            path in {"", module} or module.startswith(f"{path}/") for path in self.paths
        )


class Completeness(Frozen, frozen=True, kw_only=True):
    """
    Which tests were to report, and which did.

    Attributes:
        expected_count: Tests with a measurement that were selected.

        reported_count: Those that reported.

        missing: Ids of those that never did.

        interrupted: What ended the run early; "" where nothing did.

        absent: Ids of stored tests that their modules no longer have, or whose modules
            are gone, of what ran as a whole.

        removed: Those of `absent` that are no longer in the code, because their modules were
            collected completely, or because their files are gone.

        skipped: Ids of stored tests that were selected, and skipped before they measured.

        left_out: Ids of stored tests that were collected, and that a plugin left out
            without saying so, of those that the newest session with this selection has.

        due: Ids of `absent`, `skipped` and `left_out` that the newest session with this
            selection has measured on this kind of machine.

        scope: Where the run looked for tests; None: unknown.
    """

    expected_count: int
    reported_count: int
    missing: tuple[str, ...] = ()
    interrupted: str = ""
    absent: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    scope: Scope | None = None

    @property
    def complete(self) -> bool:
        """Whether every test reported and nothing ended the run early."""
        return not self.missing and not self.interrupted


class Expected(Frozen, frozen=True, kw_only=True):
    """
    What a process is going to measure.

    Attributes:
        test_ids: The selected tests with a measurement.

        whole_modules: Test files of which nothing was left out.

        partial_modules: Those of which a test was, or all. Modules are those of keys.

        unsure_modules: Those of which a part could not be collected, or a test had no
            parameters: nobody knows which tests they have.

        collected: A digest of the ids of all tests that were collected, before any was
            left out; None: unknown, or the processes of the run do not agree.

        collected_count: How many these are.

        shard: Which part of them pytest-split keeps, as "3/8"; None: all.

        keys: The keys of the tests whose id is not their key, by id.

        selection: A digest of what selects the tests, as in a Session; None: unknown.

        dropped: Tests with a measurement that were collected, and that a plugin left out
            without saying so.
    """

    test_ids: tuple[str, ...] = ()
    whole_modules: tuple[str, ...] = ()
    partial_modules: tuple[str, ...] = ()
    unsure_modules: tuple[str, ...] = ()
    collected: str | None = None
    collected_count: int | None = None
    shard: str | None = None
    keys: Mapping[str, str] = {}
    selection: str | None = None
    dropped: tuple[str, ...] = ()


class HeaderNote(Frozen, frozen=True, kw_only=True):
    """
    A sentence about the equipment of a run.

    Attributes:
        about: A collector's name, "lock", "telemetry", "ncu-cache" or "gpu".

        text: The sentence.

        code: Why it is not there; None: it is.
    """

    about: str
    text: str
    code: GapCode | None = None


class Header(Frozen, frozen=True, kw_only=True):
    """
    What a run has to say before its first record.

    Attributes:
        session: When and where.

        environment: Machine and software.

        options: The plugin's options that were set, as text, credentials masked; also
            `rootdir` and `arguments`: with what else pytest was started.

        collectors: The collectors that were used.

        sentences: Why each of the others was not: the texts of `notes`.

        notes: The same, with what each is about; empty in files of earlier versions.

        completeness: Which tests reported.

        jit_cache: "fresh" where each confirming process compiled and tuned anew, "keep"
            where it found what earlier ones had chosen; None: not known.
    """

    session: Session
    environment: Environment
    completeness: Completeness
    options: Mapping[str, str] = {}
    collectors: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    notes: tuple[HeaderNote, ...] = ()
    jit_cache: str | None = None


class MachineShift(Frozen, frozen=True, kw_only=True):
    """
    How far the machine moved a class of tests, up to the confirming processes.

    Attributes:
        bound_class: The class.

        metric: The metric's name.

        effect: Of the class as a whole [fraction].

        control_count: Controls that show it.

        moved: Whether it is more than noise.

        controls: Ids of the tests among them; the others are reference workloads.
    """

    bound_class: BoundClass
    metric: str
    effect: float
    control_count: int
    moved: bool
    controls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("shift.effect", self.effect)


class TestPlace(Frozen, frozen=True, kw_only=True):
    """
    Where a test stands in the project, and in reports.

    Attributes:
        test_id: The node id, without what xdist appends; its file is the first part.

        line: The line of its definition, from 1; None: not known.

        group: A heading in reports; None: its marker names none.

        key: What its stored values are of, the same in every checkout; "": its id.

        typed: The test as an argument, from the folder where pytest was started; "": its
            id, from pytest's root folder.
    """

    __test__ = False  # pytest collects what is called like a test

    test_id: str
    line: int | None = None
    group: str | None = None
    key: str = ""
    typed: str = ""

    @property
    def file(self) -> str:
        """The file of the test, relative to the folder that `typed` or its id starts from."""
        return (self.typed or self.test_id).partition("::")[0]


class MissedAssert(Frozen, frozen=True, kw_only=True):
    """
    An assert in a test's body on a measured value that did not hold.

    Attributes:
        key: The measurement.

        comparison: What was compared, with units, as `time 193 us <= 150 us`.
    """

    key: RecordKey
    comparison: str


class Run(Frozen, frozen=True, kw_only=True):
    """
    One run of a suite.

    Attributes:
        schema: The schema of its JSON.

        header: What it has to say before its first record.

        records: One for each process, test and measurement.

        verdicts: Limits first, then changes, by test.

        xfailed: Ids of tests that failed and were expected to: what they missed is no
            failure of the run.

        asserted: Ids of tests that passed and compared a measured value themselves.

        missed: What failed tests asserted of a measured value themselves, in vain.

        broken: Ids of tests that failed for another reason than a limit or a missed assert,
            before anything of them was judged.

        skipped: Ids of tests that a skip or an expected failure ended in their body.

        shifts: What the machine did to whole classes of tests, as controls show it.

        references: One for each process and reference workload: never judged, and no
            test of the run.

        tests: Where each test stands; empty in files of earlier versions.

        stored: The comparable sessions that the baseline held of what was judged, oldest
            first, without the facts that they share; only in reports.

        against: Its comparison with a revision; None: none was asked for.
    """

    schema: str
    header: Header
    records: tuple[Record, ...]
    verdicts: tuple[Verdict, ...] = ()
    xfailed: tuple[str, ...] = ()
    asserted: tuple[str, ...] = ()
    missed: tuple[MissedAssert, ...] = ()
    broken: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    shifts: tuple[MachineShift, ...] = ()
    references: tuple[Record, ...] = ()
    tests: tuple[TestPlace, ...] = ()
    stored: tuple[StoredRecord, ...] = ()
    against: Against | None = None

    @property
    def version(self) -> int:
        """The version of its schema."""
        return int(self.schema.rpartition("/")[2])

    @property
    def test_ids(self) -> frozenset[str]:
        """Ids of the tests that it measured or judged."""
        measured = {record.key.test_id for record in self.records}
        judged = {verdict.key.test_id for verdict in self.verdicts}
        return frozenset((measured | judged) - {REFERENCES})


class Measured(BulkRecord, frozen=True, kw_only=True):
    """
    All that a test measured, and the verdicts of its limits.

    Attributes:
        test_id: The node id, without what xdist appends.

        records: One for each measurement; without samples where they travel by spool.

        verdicts: One for each limit of its markers; empty where its body failed.

        refusals: Values it asked for in vain.

        max_regression: Largest change by metric [fraction]; empty: what the run says.

        body_failed: Whether it failed for another reason than its limits: nothing of it is
            judged.

        skipped: Whether a skip or an expected failure ended it. What it had measured until
            then is judged all the same.

        xfailed: Whether that was an expected failure: its values are not stored.

        asserted: Whether its body compared a measured value itself.

        missed: Which of these comparisons its body failed by; None: by none.

        group: A heading in reports.

        lost: Collectors that turned out to be of no use in its process, and why.

        references: Samples of reference workloads, taken around it.

        line: The line of its definition, from 1; None: not known.

        key: What its stored values are of; "": its id.

        typed: The test as an argument; "": its id, from pytest's root folder.
        positional_id: The part of its id that counts the position of a parameter's
            value, as "shape0", or "" if there is none.
    """

    test_id: str
    records: tuple[Record, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    refusals: tuple[Unmeasured, ...] = ()
    max_regression: Mapping[str, float | None] = {}
    body_failed: bool = False
    skipped: bool = False
    xfailed: bool = False
    asserted: bool = False
    missed: MissedAssert | None = None
    group: str | None = None
    lost: tuple[Unmeasured, ...] = ()
    references: tuple[ReferenceSamples, ...] = ()
    line: int | None = None
    key: str = ""
    typed: str = ""
    positional_id: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("measured.max_regression", *self.max_regression.values())


class ProfiledRange(Frozen, frozen=True, kw_only=True):
    """
    One measurement of a test that ran under a profiler.

    Attributes:
        name: Its name inside the test.

        range: What the profiler calls it.

        cache_control: What the profiler should do about caches for it.
    """

    name: str
    range: str
    cache_control: str


class ChildAnswer(Frozen, frozen=True, kw_only=True):
    """
    What a child says of one test.

    Attributes:
        test_id: The test.

        records: What it measured.

        failure: The last lines of why it failed there; "" where it did not.

        unmeasured: What it asked for and could not have there, so that it was skipped.

        reached: The measurements that it came to, under a profiler.

        ended: Whether it came to its end, under a profiler.

        references: Samples of reference workloads, taken around it.

        parameters_digest: Digest of its parameters, where it was only collected; None:
            it ran, or has none.
    """

    test_id: str
    records: tuple[Record, ...] = ()
    failure: str = ""
    unmeasured: tuple[Unmeasured, ...] = ()
    reached: tuple[ProfiledRange, ...] = ()
    ended: bool = False
    references: tuple[ReferenceSamples, ...] = ()
    parameters_digest: str | None = None
