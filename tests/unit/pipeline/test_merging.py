"""pipeline.merging: the runs of shards become the run of their suite, or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import runs
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.change import Against
from pytest_gpuperf.model.codec import decode_run, encode_run
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import Run, Scope
from pytest_gpuperf.pipeline.merging import (
    MergedRun,
    ShardFile,
    check_shards,
    merge,
)

FILE = "tests/test_gemm.py"
WHOLE = Scope(paths=("",), partial_modules=(FILE,))


def shard(
    number: int, *names: str, count: int = 3, expected: int | None = None, **about: Any
) -> Run:
    """Return a shard of a suite of six tests. `about` replaces facts of the session."""
    measured = tuple(runs.record(name, runs.time_of(1e-3)) for name in names)
    run = runs.run(measured, session_id=f"s{number}", expected=expected)
    facts = {
        "run": "77.1",
        "commit": "3f2a1c9d5b",
        "collected": "c0ffee",
        "collected_count": 9,
        "machine": "h200-1",
        "shard": f"{number}/{count}",
    }
    return of(
        replace(run, header=replace(run.header, session=session(run, facts | about)))
    )


def session(run: Run, facts: dict[str, Any]) -> Session:
    """Return the session of a run with other facts."""
    return replace(run.header.session, **facts)


def of(run: Run, **changes: Any) -> Run:
    """Return a run with another completeness."""
    given = {"scope": WHOLE, "measuring_count": 6} | changes
    completeness = replace(run.header.completeness, **given)
    return replace(run, header=replace(run.header, completeness=completeness))


def merged(*shards: Run) -> MergedRun:
    """Return the union of runs, in files called a.json, b.json and so on."""
    files = [
        ShardFile(name=f"{name}.json", run=run)
        for name, run in zip("abcdef", shards, strict=False)
    ]
    return merge(files)


def suite() -> list[Run]:
    """Return the three shards of a suite of six tests."""
    pairs = (("a", "b"), ("c", "d"), ("e", "f"))
    return [shard(number, *names) for number, names in enumerate(pairs, 1)]


def test_all_shards_are_the_run_of_the_suite() -> None:
    """In the order of their numbers, whatever the order of the files; nothing is averaged."""
    first, second, third = suite()
    whole = merged(third, first, second)

    assert (whole.numbers, whole.missing, whole.faults) == ((1, 2, 3), (), ())
    assert whole.run.records == (*first.records, *second.records, *third.records)
    assert whole.run.header.completeness.complete
    assert whole.run.header.completeness.expected_count == 6
    found = whole.run.header.session
    assert (found.shard, found.run, found.machine) == (None, "77.1", "h200-1")
    assert found.id not in {"s1", "s2", "s3"}
    assert found == merged(first, second, third).run.header.session
    assert decode_run(encode_run(whole.run)) == whole.run
    # each collected test was in a shard, so what is stored of the file else is gone
    scope = whole.run.header.completeness.scope
    assert scope is not None
    assert scope.has_removed(f"{FILE}::gone")
    assert not scope.is_elsewhere(f"{FILE}::gone", sharded=False)


@pytest.mark.parametrize(
    ("left", "missing", "says"),
    [
        ((0, 2), (2,), "shard 2 of 3 never arrived"),
        ((1,), (1, 3), "shard 1 of 3 never arrived; shard 3 of 3 never arrived"),
    ],
)
def test_a_shard_that_never_arrived_is_named(
    left: tuple[int, ...], missing: tuple[int, ...], says: str
) -> None:
    """The run says so itself, and holds what the others measured."""
    whole = merged(*(suite()[place] for place in left))

    assert whole.missing == missing
    assert "; ".join(whole.faults) == says
    assert whole.run.header.completeness.interrupted == says
    assert whole.remarks == (f"{6 - 2 * len(left)} tests of the suite are missing",)
    assert len(whole.run.test_ids) == 2 * len(left)
    assert whole.run.header.completeness.expected_count == 6
    scope = whole.run.header.completeness.scope
    assert scope is not None
    assert not scope.has_removed(f"{FILE}::c")


def test_a_shard_that_was_killed_is_named() -> None:
    """By what its file says; before its first test, that knows nothing of the suite."""
    first, second, third = suite()
    begun = replace(
        second, header=replace(second.header, session=session(second, {"commit": None}))
    )
    unknown = {"scope": None, "measuring_count": None, "expected_count": 0}
    killed = of(replace(begun, records=()), interrupted="it was killed", **unknown)
    whole = merged(first, killed, third)

    assert whole.faults == ("shard 2 of 3: it was killed",)
    assert whole.remarks == ("2 tests of the suite are missing",)
    assert whole.run.header.completeness.interrupted == "shard 2 of 3: it was killed"
    assert whole.run.header.session.commit == "3f2a1c9d5b"


def test_tests_that_never_reported_are_named() -> None:
    """With their shard."""
    first, second, third = suite()
    lost = of(second, missing=(f"{FILE}::c",))

    assert merged(first, lost, third).faults == (
        f"shard 2 of 3: 1 test never reported: {FILE}::c",
    )


def test_tests_in_no_shard_are_counted() -> None:
    """A plugin may deselect them everywhere, or lose them between two shards."""
    whole = merged(*(of(run, measuring_count=8) for run in suite()))

    assert whole.faults == ()
    assert whole.remarks == ("2 tests of the suite were deselected in every shard",)


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"run": "77.2"}, "the runs differ: 77.1 in a.json, c.json, 77.2 in b.json"),
        ({"run": None}, "the runs differ: 77.1 in a.json, c.json, no run id in b.json"),
        (
            {"commit": "9be01d4c77"},
            "the commits differ: 3f2a1c9 in a.json, c.json, 9be01d4 in b.json",
        ),
        (
            {"count": 4},
            "the numbers of shards differ: 3 in a.json, c.json, 4 in b.json",
        ),
        (
            {"collected": "bad"},
            "the shards collected different suites: a.json, c.json against b.json",
        ),
        ({"shard": "3/3"}, "b.json, c.json are all shard 3/3"),
        ({"shard": None}, "b.json names no shard"),
        ({"shard": "9/4"}, "b.json names no shard"),
        ({"shard": "1/1"}, "b.json names no shard"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(
    about: dict[str, Any], says: str
) -> None:
    """Each difference with the files that have it, and a remedy."""
    first, _, third = suite()

    with pytest.raises(RecordError) as caught:
        merged(first, shard(2, "c", "d", **about), third)
    assert caught.value.message == says
    assert caught.value.remedy


def test_all_differences_are_told_at_once() -> None:
    """Of two attempts with other numbers of shards, at two commits."""
    other = shard(1, "a", count=8, run="77.2", commit="9be01d4c77")

    with pytest.raises(RecordError) as caught:
        merged(*suite(), replace(other, schema="pytest-gpuperf/run/2"))
    for what in ("schemas", "runs", "commits", "numbers of shards"):
        assert f"the {what} differ" in caught.value.message
    assert "measure all of them again" in caught.value.remedy


def test_a_test_of_two_shards_is_refused() -> None:
    """Two machines measured it, or the tests were divided in two ways."""
    first, second, third = suite()
    again = shard(3, "a", "f")

    with pytest.raises(RecordError, match=r"test_gemm.py::a: measured in .*a.json, c"):
        merged(first, second, again)
    assert merged(first, second, third, first).numbers == (1, 2, 3)  # a file twice


def test_shards_divided_by_paths_collect_what_is_theirs() -> None:
    """They have no collection in common, and its number is unknown."""
    halves = [
        of(
            shard(number, name, count=2, collected=name),
            scope=Scope(
                paths=(f"tests/{name}",), whole_modules=(f"tests/{name}/t.py",)
            ),
            measuring_count=1,
        )
        for number, name in ((1, "a"), (2, "b"))
    ]
    whole = merged(*halves)

    assert (whole.faults, whole.remarks) == ((), ())
    scope = whole.run.header.completeness.scope
    assert scope is not None
    assert scope.paths == ("tests/a", "tests/b")
    assert scope.whole_modules == ("tests/a/t.py", "tests/b/t.py")


def test_a_measurement_keeps_its_machine() -> None:
    """Of shards on two machines, the records of the second name it."""
    first, second, third = suite()
    there = session(second, {"host": "h2", "machine": "h200-2"})
    second = replace(second, header=replace(second.header, session=there))
    whole = merged(first, second, third)

    assert whole.run.header.session.machine == "h200-1"
    hosts = [record.host for record in whole.run.records]
    assert [host and host.machine for host in hosts] == [
        *(None, None, "h200-2", "h200-2", None, None),
    ]
    assert "h200-1, h200-2" in whole.run.header.notes[0].text


def test_what_another_shard_measured_is_not_absent() -> None:
    """A shard sees a stored test leave its file, and not where it went."""
    first, second, third = suite()
    gone = (f"{FILE}::c", f"{FILE}::old")
    first = of(first, absent=gone, removed=gone, due=gone)
    completeness = merged(first, second, third).run.header.completeness

    assert completeness.absent == completeness.removed == (f"{FILE}::old",)
    assert completeness.due == (f"{FILE}::old",)


def test_comparisons_with_a_revision_are_joined() -> None:
    """The blocks add up, and the noise is the largest; two revisions are refused."""
    shards = [
        replace(
            run,
            against=Against(
                revision="main", commit="abc", block_count=4, null_fraction=null
            ),
        )
        for run, null in zip(suite(), (0.01, 0.03, None), strict=True)
    ]
    against = merged(*shards).run.against

    assert against is not None
    assert (against.block_count, against.null_fraction) == (12, 0.03)
    other = replace(shards[2], against=Against(revision="v1", commit="def"))
    with pytest.raises(RecordError, match="the revisions differ"):
        merged(*shards[:2], other)


def test_a_run_that_is_no_shard_is_whole() -> None:
    """A pipeline of one shard has nothing to merge."""
    run = runs.gpu_run()

    assert merged(run) == MergedRun(run=run)


def stored(number: int, shard_text: str | None, **about: Any) -> Session:
    """Return a stored session of a run."""
    return Session(
        id=f"s{number}",
        started_unix_s=1.0,
        host="h",
        run="77",
        shard=shard_text,
        **about,
    )


@pytest.mark.parametrize(
    ("shards", "faults"),
    [
        (["1/2", "2/2"], []),
        (["1/2", "1/2", "2/2"], []),  # xdist on two hosts
        ([None], []),
        (
            ["2/3"],
            [
                "shard 1 of 3 has stored no session",
                "shard 3 of 3 has stored no session",
            ],
        ),
        (
            ["1/2", "2/3", "3/3"],
            ["some of its shards are parts of 2 and of 3: the number was changed"],
        ),
    ],
)
def test_shards_of_a_stored_run_are_counted(
    shards: list[str | None], faults: list[str]
) -> None:
    """A session of the whole run needs no shards."""
    check = check_shards([stored(n, text) for n, text in enumerate(shards)])

    assert [*check.faults] == faults


def test_a_stored_run_of_two_commits_is_a_fault() -> None:
    """Other collections are only told: shards may be divided by paths."""
    check = check_shards(
        [
            stored(1, "1/2", commit="a" * 40, collected="x"),
            stored(2, "2/2", commit="b" * 40, collected="y"),
        ]
    )

    assert check.faults == ("its shards measured different commits: aaaaaaa, bbbbbbb",)
    assert check.remarks == ("its shards collected different suites",)
