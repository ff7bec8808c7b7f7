"""A whole run: header, records, verdicts, and results of tests and processes."""

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

# Stands for a metric where a test measured nothing.
ANY_METRIC = "any metric"


class Scope(Frozen, frozen=True, kw_only=True):
    """
    The places where a run looked for tests. Files and folders are written as in keys.

    Attributes:
        paths: The files and folders in which pytest looked for tests, "" for the whole
            checkout. None if only a part of the tests was selected, or if the paths are
            unknown.

        whole_modules: Test files that were collected completely and run as a whole.

        partial_modules: Test files with a test left out, for example by a shard.

        gone_modules: Files of stored tests that lie in `paths` and no longer exist.
    """

    paths: tuple[str, ...] | None = None
    whole_modules: tuple[str, ...] = ()
    partial_modules: tuple[str, ...] = ()
    gone_modules: tuple[str, ...] = ()

    def has_removed(self, key: str) -> bool:
        """Return True if a test that did not run is no longer in the code."""
        module = key.partition("::")[0]
        known = module in self.whole_modules or module in self.gone_modules
        return self.paths is not None and known

    def is_elsewhere(self, key: str, *, sharded: bool) -> bool:
        """
        Return True if a test lies outside of the run's paths, or in a different shard.

        If the options of a shard select some of its tests, all others may be in a
        different shard.

        Args:
            key: The key of the test.

            sharded: Whether the run is one shard of several.
        """
        module = key.partition("::")[0]
        if sharded and (self.paths is None or module in self.partial_modules):
            return True
        if self.paths is None:
            return False
        return not any(
            path in {"", module} or module.startswith(f"{path}/") for path in self.paths
        )


class Completeness(Frozen, frozen=True, kw_only=True):
    """
    Expected and reported tests.

    Attributes:
        expected_count: Selected tests with a measurement.

        reported_count: Expected tests that reported.

        missing: Ids of expected tests that never reported.

        interrupted: What ended the run early, or "".

        absent: Ids of stored tests that no longer exist in modules that ran completely,
            or whose modules are gone.

        removed: The part of `absent` that is no longer in the code, because the modules
            were collected completely or their files are gone.

        unchanged: Ids of selected tests that ran unmeasured, because no file that they
            use has changed since a stored session.

        unchanged_since: The commit of that session, or "" if every test was measured.

        skipped: Ids of stored tests that were selected, but skipped before they
            measured.

        left_out: Ids of stored tests that were collected, but dropped by a plugin
            without notice. Only tests of the newest session with this selection are
            considered.

        due: Ids from `absent`, `skipped` and `left_out` that the newest session with
            this selection measured on this kind of machine.

        scope: The places where the run looked for tests, or None if unknown.

        measuring_count: Number of collected tests with a measurement, before any was
            left out, as by a shard. None if unknown.
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
    unchanged: tuple[str, ...] = ()
    unchanged_since: str = ""
    scope: Scope | None = None
    measuring_count: int | None = None

    @property
    def complete(self) -> bool:
        """True if every test reported and nothing ended the run early."""
        return not self.missing and not self.interrupted


class Expected(Frozen, frozen=True, kw_only=True):
    """
    The planned measurements of a process.

    Attributes:
        test_ids: The selected tests with a measurement.

        whole_modules: Test files without any test left out.

        partial_modules: Test files with a test left out, or all tests. Modules are
            written as in keys.

        unsure_modules: Test files with parts that could not be collected, or with a
            parametrized test without any values. Their tests are unknown.

        collected: A digest of the ids of all collected tests, before any was left out.
            None if unknown, or if the processes of the run differ.

        collected_count: Number of collected tests.

        measuring_count: Number of collected tests with a measurement.

        keys: Keys of the tests whose id is not the key, by id.

        selection: A digest of what selects the tests, as in a Session, or None if
            unknown.

        dropped: Tests with a measurement that were collected, but dropped by a plugin
            without notice.

        unchanged: Selected tests that run unmeasured, as in Completeness.

        unchanged_since: The commit of the session that measured them, or "".

        all_changed: Why every test is measured although only changed ones were asked
            for, or "".

        judged: The metrics that markers name.
    """

    test_ids: tuple[str, ...] = ()
    whole_modules: tuple[str, ...] = ()
    partial_modules: tuple[str, ...] = ()
    unsure_modules: tuple[str, ...] = ()
    collected: str | None = None
    collected_count: int | None = None
    measuring_count: int | None = None
    keys: Mapping[str, str] = {}
    selection: str | None = None
    dropped: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    unchanged_since: str = ""
    all_changed: str = ""
    judged: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The tests that the code has, measured or not."""
        return (*self.test_ids, *self.unchanged)


class HeaderNote(Frozen, frozen=True, kw_only=True):
    """
    A sentence about the equipment of a run.

    Attributes:
        about: Name of a collector, "lock", "telemetry", "ncu-cache" or "gpu".

        text: The sentence.

        code: Why the equipment is missing, or None if it is there.
    """

    about: str
    text: str
    code: GapCode | None = None


class Header(Frozen, frozen=True, kw_only=True):
    """
    Information about a run as a whole.

    Attributes:
        session: Time and place of the run.

        environment: Machine and software.

        options: The plugin's options that were set, as text with credentials masked.
            Also `rootdir`, and `arguments` with the other arguments of pytest.

        collectors: The collectors that were used.

        sentences: Why other collectors were not used. Texts of `notes`.

        notes: The same sentences with their subjects. Empty in files of earlier
            versions.

        completeness: Expected and reported tests.

        jit_cache: "fresh" if each confirming process compiled and tuned anew, "keep" if
            it used the choices of earlier processes, or None if unknown.
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
    Machine drift of a class of tests, up to the confirming processes.

    Attributes:
        bound_class: The class.

        metric: Name of the metric.

        effect: Shift of the class as a whole [fraction].

        control_count: Number of controls behind the effect.

        moved: Whether the shift is more than noise.

        controls: Ids of the tests among the controls. The others are reference
            workloads.
    """

    bound_class: BoundClass
    metric: str
    effect: float
    control_count: int
    moved: bool
    controls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("shift.effect", self.effect)


class TestPlace(Frozen, frozen=True, kw_only=True):
    """
    Location of a test in the project and in reports.

    Attributes:
        test_id: The node id, without suffixes of xdist. Its file is the first part.

        line: Line of the definition, from 1, or None if unknown.

        group: A heading in reports, or None if its marker sets none.

        key: Key of the test's stored values, the same in every checkout, or "" if equal
            to the id.

        typed: The test as an argument, from the folder in which pytest was started, or
            "" if equal to the id, from pytest's root folder.
    """

    __test__ = False  # Keeps pytest from collecting a class with this name.

    test_id: str
    line: int | None = None
    group: str | None = None
    key: str = ""
    typed: str = ""

    @property
    def file(self) -> str:
        """
        File of the test, relative to the base folder of `typed` or, without `typed`, of
        the id.
        """
        return (self.typed or self.test_id).partition("::")[0]


class MissedAssert(Frozen, frozen=True, kw_only=True):
    """
    A failed assert on a measured value in a test's body.

    Attributes:
        key: The measurement.

        comparison: The comparison, with units, as `time 193 us <= 150 us`.
    """

    key: RecordKey
    comparison: str


class Run(Frozen, frozen=True, kw_only=True):
    """
    One run of a suite.

    Attributes:
        schema: Schema of the JSON.

        header: Information about the run as a whole.

        records: The records by process, test and measurement.

        verdicts: Limits first, then changes, by test.

        xfailed: Ids of tests that were expected to fail and did. Their missed limits do
            not fail the run.

        asserted: Ids of tests that passed and compared a measured value themselves.

        missed: Failed asserts of tests on measured values.

        broken: Ids of tests that failed before they were judged, for a reason other
            than a limit or a missed assert.

        skipped: Ids of tests ended in their body by a skip or an expected failure.

        shifts: Machine drift of classes of tests, as shown by controls.

        references: Records of reference workloads, by process. They are never judged
            and are not tests of the run.

        tests: Location of each test. Empty in files of earlier versions.

        stored: The comparable stored sessions of the judged tests, oldest first,
            without their common facts. Only in reports.

        against: Comparison with a revision, or None if not requested.
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
        """The version of the schema."""
        return int(self.schema.rpartition("/")[2])

    @property
    def test_ids(self) -> frozenset[str]:
        """Ids of the tests that were measured or judged."""
        measured = {record.key.test_id for record in self.records}
        judged = {verdict.key.test_id for verdict in self.verdicts}
        return frozenset((measured | judged) - {REFERENCES})


class Measured(BulkRecord, frozen=True, kw_only=True):
    """
    The measurements of a test, and the verdicts on its limits.

    Attributes:
        test_id: The node id, without suffixes of xdist.

        records: The records by measurement, without samples if they are sent by spool.

        verdicts: Verdicts on the limits of the markers. Empty if the body failed.

        refusals: Requested values that were unavailable.

        max_regression: Largest change by metric [fraction], or empty for the run's
            setting.

        body_failed: Whether the body failed for a reason other than its limits. Nothing
            of the test is judged then.

        skipped: Whether a skip or an expected failure ended the body. Earlier
            measurements of the test are still judged.

        xfailed: Whether that was an expected failure. The values are not stored then.

        asserted: Whether the body compared a measured value itself.

        missed: The comparison that failed the body, or None.

        group: A heading in reports.

        lost: Collectors that failed in the process, with reasons.

        references: Samples of reference workloads, taken before and after the test.

        line: Line of the definition, from 1, or None if unknown.

        key: Key of the test's stored values, or "" if equal to the id.

        typed: The test as an argument, or "" if equal to the id, from pytest's root
            folder.

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
        """Reject numbers that are not finite."""
        finite("measured.max_regression", *self.max_regression.values())


class ProfiledRange(Frozen, frozen=True, kw_only=True):
    """
    A measurement of a test under a profiler.

    Attributes:
        name: Name of the measurement inside the test.

        range: Name of the profiler's range.

        cache_control: Cache control that the profiler should use for the range.
    """

    name: str
    range: str
    cache_control: str


class ChildAnswer(Frozen, frozen=True, kw_only=True):
    """
    The result of one test in a child process.

    Attributes:
        test_id: The test.

        records: The test's records.

        failure: The last lines of the failure, or "".

        unmeasured: Requested values that were unavailable in the child, so that the
            test was skipped.

        reached: The measurements that were reached under a profiler.

        ended: Whether the test reached its end under a profiler.

        references: Samples of reference workloads, taken before and after the test.

        parameters_digest: Digest of the parameters if the test was only collected. None
            if the test ran or has no parameters.
    """

    test_id: str
    records: tuple[Record, ...] = ()
    failure: str = ""
    unmeasured: tuple[Unmeasured, ...] = ()
    reached: tuple[ProfiledRange, ...] = ()
    ended: bool = False
    references: tuple[ReferenceSamples, ...] = ()
    parameters_digest: str | None = None
