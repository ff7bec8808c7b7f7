"""Rules of baseline.history."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baseline.changes import (
    Append,
    Move,
    PutBack,
    Restart,
    StoreChange,
    applied,
)
from pytest_gpuperf.baseline.history import (
    OLDEST_LIMIT,
    SESSION_LIMIT,
    by_key,
    keep_newest,
    of_project,
    slugs_holding,
)
from pytest_gpuperf.baseline.stored_record import stored_record, with_alone
from pytest_gpuperf.model.activity import ActivitySummary, KernelShape, KernelUse
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.kernel import KernelLaunch, KernelTotal
from pytest_gpuperf.model.record import (
    Kind,
    Record,
    Role,
    StoredRecord,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import Estimate
from unit.baseline.samples import key, session, stored, stored_records, value


def ids(records: Iterable[StoredRecord]) -> list[str]:
    """Return the session of each record."""
    return [each.session.id for each in records]


def test_sessions_in_the_middle_are_dropped() -> None:
    """The newest 20 sessions are kept, and the oldest 3, which show a drift."""
    kept = keep_newest([stored(number) for number in reversed(range(25))])

    assert ids(kept) == [f"s{number:04}" for number in (0, 1, 2, *range(5, 25))]
    assert len(kept) == SESSION_LIMIT + OLDEST_LIMIT


def test_the_oldest_sessions_stay_whatever_is_stored() -> None:
    """A reference that does not move outlives any number of sessions."""
    kept: tuple[StoredRecord, ...] = ()
    for number in range(60):
        kept = keep_newest([*kept, stored(number)])

    assert ids(kept)[:OLDEST_LIMIT] == ["s0000", "s0001", "s0002"]
    assert len(kept) == SESSION_LIMIT + OLDEST_LIMIT


def test_each_choice_has_a_limit_of_its_own() -> None:
    """A kernel that is chosen often does not push out one that is chosen seldom."""
    often = [stored(number) for number in range(10, 40)]
    seldom = [stored(number, choice="other") for number in range(3)]

    kept = keep_newest([*often, *seldom])

    assert ids(kept)[:3] == ["s0000", "s0001", "s0002"]
    assert len(kept) == SESSION_LIMIT + OLDEST_LIMIT + 3


def test_runs_of_a_part_do_not_push_out_those_of_the_whole() -> None:
    """Each company has its own limit, as each choice has."""
    whole = [stored(n, session=session(n, ran_count=40)) for n in range(3)]
    parts = [stored(n, session=session(n, ran_count=1)) for n in range(10, 40)]

    assert ids(keep_newest([*whole, *parts]))[:3] == ["s0000", "s0001", "s0002"]
    assert len(keep_newest([*whole, *parts])) == SESSION_LIMIT + OLDEST_LIMIT + 3


def test_a_session_counts_once() -> None:
    """Of two records of one session and choice the later one stays."""
    again = stored(1, "energy")

    assert keep_newest([stored(1), stored(2), again]) == (again, stored(2))


def test_a_session_may_have_two_choices() -> None:
    """Two kernels in one session are two experiments."""
    other = stored(1, choice="other")

    assert len(keep_newest([stored(1), other])) == 2


@given(st.lists(stored_records, max_size=8))
def test_order_does_not_matter(records: list[StoredRecord]) -> None:
    """What is kept depends on the sessions, not on the order they come in."""
    unique = {(each.key, each.choice, each.session.id): each for each in records}
    forward = by_key(unique.values())

    assert forward == by_key(reversed(unique.values()))
    assert list(forward) == sorted(forward)


def test_append_adds_a_session() -> None:
    """What was there stays."""
    before = {key(): (stored(1),)}

    assert applied(before, [Append(record=stored(2))]) == {
        key(): (stored(1), stored(2))
    }
    assert before == {key(): (stored(1),)}


def test_a_session_without_values_is_not_stored() -> None:
    """Nothing measured is nothing to count as a session."""
    empty = stored(2, values=())

    assert applied({key(): (stored(1),)}, [Append(record=empty)]) == {
        key(): (stored(1),)
    }
    assert applied({}, [Append(record=empty)]) == {}
    assert applied({key(): (stored(1),)}, [Restart(record=empty)]) == {}


def test_restart_drops_the_sessions_of_every_choice() -> None:
    """The new level replaces the old one, whichever kernel the code picks now."""
    other = stored(1, choice="other")
    before = {key(): (stored(1), other, stored(2)), key("b"): (stored(1),)}

    after = applied(before, [Restart(record=stored(3, choice="new"))])

    assert ids(after[key()]) == ["s0003"]
    assert after[key("b")] == (stored(1),)


def test_restart_may_drop_some_metrics_only() -> None:
    """The series that did not improve keep their sessions."""
    before = {key(): (stored(1, "time", "energy"), stored(2, "time"))}
    change = Restart(record=stored(3, "time"), metrics=frozenset({"time"}))

    started = stored(3, values=(value("time", 3 / 7, series=1),))
    assert applied(before, [change]) == {key(): (stored(1, "energy"), started)}


def test_changes_are_made_in_their_order() -> None:
    """A restart drops what was appended before it and nothing that came after."""
    changes: list[StoreChange] = [
        Append(record=stored(2)),
        Restart(record=stored(3)),
        Append(record=stored(4)),
    ]

    assert ids(applied({key(): (stored(1),)}, changes)[key()]) == ["s0003", "s0004"]


def record(*estimates: Estimate, **changed: object) -> Record:
    """Return a record of one process."""
    given: dict[str, object] = {"key": key(), "kind": Kind.MEASURE, "choice": "c0ffee"}
    return Record(estimates=estimates, **(given | changed))  # type: ignore[arg-type]  # the fields of a record


def estimate(metric: str, number: float, **changed: object) -> Estimate:
    """Return an estimate of one process."""
    given: dict[str, object] = {"unit": "s", "source": "host"}
    return Estimate(metric=metric, value=number, **(given | changed))  # type: ignore[arg-type]  # the fields of an estimate


def test_a_session_is_all_its_processes() -> None:
    """One run value for each process, in their order, by metric, unit and source."""
    first = record(
        estimate("time", 2.0, low=1.9, high=2.3),
        estimate("time", 3.0, source="events"),
        facts={"host-time": {"cpu_model": "x"}},
        soft_facts={"torch": "2.11.0"},
    )
    fresh = record(
        estimate("time", 4.0, low=3.0, high=5.0),
        role=Role.REPEAT,
        process_index=1,
        choice="other",
    )

    kept = stored_record([first, fresh], session(1))

    assert kept.session == session(1)
    assert (kept.key, kept.choice) == (key(), "c0ffee")
    assert kept.facts == {"host-time": {"cpu_model": "x"}}
    assert kept.soft_facts == {"torch": "2.11.0"}
    both, events = kept.values
    assert both.run_values == (2.0, 4.0)
    assert both.half_widths == pytest.approx((0.1, 0.25))
    assert events == value("time", 3.0, source="events", half_widths=())


def test_a_users_metric_keeps_its_direction() -> None:
    """Which way is better is known only to who recorded it."""
    ttft = estimate("ttft", 0.2, better="lower", source="user")

    (kept,) = stored_record([record(ttft)], session(1)).values

    assert kept.better == "lower"


def test_single_kernels_are_not_stored() -> None:
    """A value of one kernel is not a value of the measurement."""
    kept = stored_record(
        [record(estimate("registers", 64, kernel="gemm", unit="count"))], session(1)
    )

    assert kept.values == ()


def ran(count: int) -> ActivitySummary:
    """Return a call that ran so many kernels."""
    uses = tuple(
        KernelUse(
            shape=KernelShape(
                name=f"_Z{number}",
                grid=(1, 1, 1),
                block=(32, 1, 1),
                registers_count=16,
                shared_bytes=16,
                dynamic_shared_bytes=8,
                stack_bytes=0,
            ),
            demangled=None if number else "gemm()",
            count=1,
            total_s=1.23456789e-3,
        )
        for number in range(count)
    )
    return ActivitySummary(kernels=uses, kernels_count=count)


def test_names_and_times_of_kernels_are_stored() -> None:
    """As a reader writes them; four digits say which kernel takes the time."""
    kept = stored_record([record(activity=ran(2))], session(1))

    launch = KernelLaunch(
        count=1,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        registers_count=16,
        shared_bytes=24,
        stack_bytes=0,
    )
    assert kept.kernels == (
        KernelTotal(name="gemm()", total_s=1.235e-3, launch=launch),
        KernelTotal(name="_Z1", total_s=1.235e-3, launch=launch),
    )


def test_of_many_kernels_none_is_stored() -> None:
    """A part of the list would call the others new."""
    most, more = (
        stored_record([record(activity=ran(n))], session(1)) for n in (64, 65)
    )

    assert (len(most.kernels), more.kernels) == (64, ())


def test_a_value_of_zero_has_no_relative_width() -> None:
    """Nothing is relative to zero, and a negative value has a positive width."""
    zero = estimate("time", 0.0, low=-1.0, high=1.0)
    negative = estimate("drift", -2.0, low=-3.0, high=-1.0)

    kept = stored_record([record(zero, negative)], session(1))

    assert [each.half_widths for each in kept.values] == [(), (0.5,)]


def test_slugs_are_found_by_measurement() -> None:
    """A measurement that nobody has is left out, and nobody is asked for none."""
    held = {"a": {key(): 1}, "b": {key(): 1, key("x"): 1}}

    assert slugs_holding([key(), key("y")], "ab", held.__getitem__) == {
        key(): ("a", "b")
    }
    assert slugs_holding([], "abc", held.__getitem__) == {}


FACTS = {"device-time": {"gpu_name": "NVIDIA H200", "parameters": "4096"}}


def alone(number: int, seconds: float, **changed: object) -> Record:
    """Return what a fresh process measured of the test of `stored`."""
    given: dict[str, object] = {
        "key": key(),
        "kind": Kind.MEASURE,
        "estimates": (
            Estimate(metric="time", value=seconds, unit="s", source="events"),
        ),
        "facts": FACTS,
        "choice": "c0ffee",
        "role": Role.ALONE,
        "process_index": number,
    }
    return Record(**(given | changed))  # type: ignore[arg-type] # any of its fields


def in_suite() -> StoredRecord:
    """Return a session with a time by events and one by the host's clock."""
    values = (value("time", 1.0, source="events"), value("time", 1.2))
    return stored(1, facts=FACTS, values=values)


def test_a_session_has_what_its_test_took_alone() -> None:
    """A value for each process, in their order, beside that of the same source."""
    by_events, by_host = with_alone(in_suite(), [alone(2, 3.0), alone(1, 2.0)]).values

    assert (by_events.alone_values, by_events.suspected) == ((2.0, 3.0), False)
    assert by_host.alone_values == ()


def test_a_suspect_is_marked() -> None:
    """Its value of the suite was chosen for being high; without a value nothing is."""
    by_events, by_host = with_alone(in_suite(), [alone(1, 2.0)], suspected=True).values

    assert by_events.suspected
    assert not by_host.suspected


@pytest.mark.parametrize(
    "changed",
    [
        {"choice": "another"},
        {"facts": {"device-time": {"gpu_name": "NVIDIA A100"}}},
        {"void": Void(code=VoidCode.DROPPED_RECORDS, reason="")},
        {
            "estimates": (
                Estimate(metric="time", value=2.0, unit="ms", source="events"),
            )
        },
        {
            "estimates": (
                Estimate(
                    metric="time", value=2.0, unit="s", source="events", kernel="k"
                ),
            )
        },
    ],
    ids=["choice", "facts", "void", "unit", "kernel"],
)
def test_what_is_of_another_thing_is_no_value_of_a_test_alone(
    changed: dict[str, object],
) -> None:
    """Other kernels, another GPU, what is void, another unit, one kernel of several."""
    assert with_alone(in_suite(), [alone(1, 2.0, **changed)]) == in_suite()


def test_an_accepted_change_drops_what_was_measured_alone() -> None:
    """It goes with its session: the new level has values of its own."""
    before = with_alone(in_suite(), [alone(1, 2.0)])
    after = replace(in_suite(), session=session(2))
    left = applied({key(): [before]}, [Restart(record=after)])

    assert [v.alone_values for each in left[key()] for v in each.values] == [(), ()]


def test_a_renamed_test_keeps_its_sessions_as_they_were() -> None:
    """Values alone, series, arrival and digests; a later version finds them by the new key."""
    record = replace(
        stored(3),
        arrival=7,
        test_digest="d",
        values=(value(series=2, alone_values=(1.0,), suspected=True),),
    )
    new = key("tests/test_b.py::test_y")
    left = applied({key(): [record]}, [Move(key=new, old=key(), renamed=True)])

    assert left == {new: (replace(record, key=new),)}
    assert not left[new][0].has_node_id


def test_a_renamed_test_of_an_earlier_schema_has_a_key_from_now_on() -> None:
    """What was an id of pytest is not one of the new name."""
    new = key("tests/test_b.py::test_y")
    earlier = replace(stored(1), schema_version=2)
    left = applied({key(): [earlier]}, [Move(key=new, old=key(), renamed=True)])

    assert not left[new][0].has_node_id
    assert left[new][0].node_id == key().test_id


def test_what_is_put_back_is_as_it_was() -> None:
    """Beside sessions that were stored since, which go on with its series."""
    before = [
        replace(stored(number), arrival=number, values=(value(series=3),))
        for number in (1, 2)
    ]
    since = replace(stored(5), arrival=5, values=(value(),))
    left = applied({key(): [since]}, [PutBack(key=key(), records=tuple(before))])
    twice = applied(left, [PutBack(key=key(), records=tuple(before))])

    assert ids(left[key()]) == ["s0001", "s0002", "s0005"]
    assert [record.values[0].series for record in left[key()][:2]] == [3, 3]
    assert left[key()][0] == before[0]
    assert twice.keys() == left.keys()


def test_sessions_of_one_project_are_linked_by_tests_and_commits() -> None:
    """Also by way of other sessions; the reference workloads are those of all projects."""

    def ran(number: int, test: str, **changed: object) -> list[StoredRecord]:
        of = session(number, **{"commit": None, **changed})
        ids = (test, "gpuperf::references")
        return [replace(stored(number), key=key(i), session=of) for i in ids]

    records = [
        *ran(1, "a.py::test_a", commit="c1", parent="c0"),
        *ran(2, "b.py::test_b", commit="c2", parent="c1"),
        *ran(3, "b.py::test_b"),
        *ran(4, "z.py::test_z", commit="e1", parent="e0"),
    ]

    assert of_project(records, ["b.py::test_b"], []) == {"s0001", "s0002", "s0003"}
    assert of_project(records, ["new"], ["c3", "c2"]) == {"s0001", "s0002", "s0003"}
    assert of_project(records, ["new"], ["other"]) == frozenset()
