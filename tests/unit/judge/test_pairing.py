"""judge.case: what is compared with what, and by which source."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.judge.case import (
    Case,
    best_source,
    case_of,
    direction,
    unsteady_tests,
)
from pytest_gpuperf.judge.confirmation import Retest, confirmation_of
from pytest_gpuperf.model.environment import HARD_FACTS, Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import CodeIdentity, Sameness
from pytest_gpuperf.model.metric import METRICS, Better, Family
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from unit.judge.building import KEY, blocks_of, estimate, record, session

FACTS = {"device-time": {"gpu_name": "H200"}}


def kept(number: int, *values: SessionValue, **fields: Any) -> StoredRecord:
    """A stored session."""
    given: dict[str, Any] = {"facts": FACTS, "choice": "A"}
    return StoredRecord(
        key=KEY, session=session(number), values=values, **(given | fields)
    )


def held(value: float = 1.0, source: str = "cupti", **fields: Any) -> SessionValue:
    """A stored device time."""
    given: dict[str, Any] = {"metric": "time", "unit": "s", "run_values": (value,)}
    return SessionValue(source=source, **(given | fields))


def measured(*estimates: Estimate, **fields: Any) -> Record:
    """A record of the same device."""
    given: dict[str, Any] = {"facts": FACTS, "choice": "A"}
    return record(*(estimates or (estimate(1.0),)), **(given | fields))


def paired(
    records: list[Record],
    stored: list[StoredRecord],
    metric: str = "time",
    **fields: Any,
) -> Case:
    """The case of some records."""
    return case_of(
        records, stored, metric=metric, limit=0.05, session_id="now", **fields
    )


def test_values_of_processes_and_sessions_come_together() -> None:
    """
    Each process of the run is a run value; each stored session stands alone.

    Sessions keep the order in which they arrived: a clock may have gone back.
    """
    low_high = estimate(2.0, low=1.9, high=2.1)
    found = paired(
        [measured(low_high), measured()], [kept(1, held(1.1)), kept(0, held())]
    )

    assert found.current is not None
    assert found.current.run_values == (2.0, 1.0)
    assert found.current.half_widths == pytest.approx((0.05,))
    assert [s.value.run_values for s in found.stored] == [(1.1,), (1.0,)]
    assert [s.session.id for s in found.stored] == ["s1", "s0"]
    assert found.estimate == low_high
    assert found.choice == "A"
    assert (found.limit, found.metric) == (0.05, METRICS["time"])
    assert found.name == (KEY, "time")


def test_the_session_itself_is_no_part_of_its_baseline() -> None:
    """What this run has stored already is not compared with itself."""
    found = case_of(
        [measured()], [kept(0, held())], metric="time", limit=None, session_id="s0"
    )
    assert found.stored == ()


def test_the_best_source_that_both_have_is_compared() -> None:
    """Sources are never compared: the best common one is taken."""
    now = [measured(estimate(1.0), estimate(3.0, source="host"))]
    found = paired(now, [kept(0, held(2.9, "host"))])
    assert found.estimate is not None
    assert found.estimate.source == "host"
    assert found.stored[0].value.run_values == (2.9,)


def test_a_process_that_lost_the_source_says_nothing_of_the_facts() -> None:
    """The facts are those of a process that has the value, whichever is the first."""
    lost = record(estimate(3.0, source="host"), choice="A")
    stored = [kept(0, held(), held(2.9, "host"))]
    found = paired(
        [lost, measured(estimate(1.0), estimate(3.0, source="host"))], stored
    )

    assert found.estimate is not None
    assert found.estimate.source == "cupti"
    assert found.differences == {}
    assert len(found.stored) == 1


def test_no_common_source_is_told() -> None:
    """Stored by another collector, its source is named; in another unit, the unit."""
    now = [measured(estimate(1.0))]
    by_host = paired(now, [kept(0, held(2.9, "host"))])
    in_cycles = paired(now, [kept(0, held(2.9, unit="cycle"))])
    assert ([*by_host.stored], by_host.other_sources) == ([], ("host",))
    assert ([*in_cycles.stored], in_cycles.other_sources) == ([], ())
    assert dict(in_cycles.differences) == {"unit": ("cycle", "s")}


def test_sessions_of_another_machine_are_left_out() -> None:
    """Facts that count must agree; where no session does, the newest's are told."""
    other = {"device-time": {"gpu_name": "A100"}}
    some = paired([measured()], [kept(0, held(), facts=other), kept(1, held())])
    none = paired([measured()], [kept(0, held(), facts=other)])
    across = paired([measured()], [kept(0, held(), facts=other)], across={"gpu_name"})

    assert [s.session.id for s in some.stored] == ["s1"]
    assert not some.differences
    assert none.stored == ()
    assert none.differences == {"gpu_name": ("A100", "H200")}
    assert len(across.stored) == 1


def test_only_the_facts_of_the_metrics_family_count() -> None:
    """A resource does not care which GPU timed it."""
    other = {"device-time": {"gpu_name": "A100"}}
    now = measured(estimate(64.0, "registers"))
    value = SessionValue(
        metric="registers", unit="count", source="cupti", run_values=(64.0,)
    )
    assert paired([now], [kept(0, value, facts=other)], "registers").stored


def test_void_processes_are_left_out() -> None:
    """One usable process decides; where all are void the case is."""
    void = Void(code=VoidCode.HARDWARE_THERMAL, reason="hot")
    some = paired([measured(void=void), measured(estimate(2.0))], [])
    none = paired([measured(void=void)], [])

    assert some.current is not None
    assert some.current.run_values == (2.0,)
    assert some.void is None
    assert none.void == void


def test_only_processes_of_the_usual_choice_are_together() -> None:
    """Two processes with other kernels are another experiment."""
    records = [measured(choice="B"), *[measured(estimate(2.0), choice="A")] * 2]
    found = paired(records, [])
    assert found.current is not None
    assert found.current.run_values == (2.0, 2.0)
    assert found.choice == "A"


def test_values_of_single_kernels_are_left_out() -> None:
    """A kernel's value is not a value of the whole."""
    one = estimate(9.0, kernel="k")
    found = paired([measured(one)], [])
    assert found.current is None
    assert found.estimate is None


def test_why_there_is_no_value_travels() -> None:
    """A gap of the record is the case's; what is stored is still known."""
    gap = Unmeasured(metric="time", reason="no GPU", remedy="get one")
    found = paired([record(unmeasured=(gap,))], [kept(0, held())])
    assert found.unmeasured == gap
    assert len(found.stored) == 1


def test_soft_facts_that_moved_are_kept() -> None:
    """They are compared with the newest session's."""
    now = measured(soft_facts={"torch": "2.12"}, bound_class=BoundClass.MEMORY)
    stored = [
        kept(0, held(), soft_facts={"torch": "2.10"}),
        kept(1, held(), soft_facts={"torch": "2.11"}),
    ]
    found = paired([now], stored, other_machines=("l40s",))
    assert found.moved == {"torch": ("2.11", "2.12")}
    assert found.bound_class is BoundClass.MEMORY
    assert found.other_machines


def test_a_number_of_the_users_own_brings_its_direction() -> None:
    """The catalogue does not know it: its estimate does."""
    now = measured(estimate(5.0, "tokens", unit="1/s", source="user", better="higher"))
    own = paired([now], [], "tokens").metric
    counter = paired(
        [measured(estimate(5.0, "dram__bytes.sum", unit="byte"))], [], "dram__bytes.sum"
    ).metric
    missing = paired([measured()], [], "ttft").metric

    assert (own.better, own.unit, own.family) == (
        Better.HIGHER,
        "1/s",
        Family.RECORDED,
    )
    assert (counter.family, counter.better) == (Family.COUNTER, Better.NEITHER)
    assert missing.unit is None


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("time", Better.LOWER),
        ("throughput", Better.HIGHER),
        ("registers", Better.LOWER),
        ("occupancy.achieved", Better.HIGHER),
    ],
)
def test_every_gated_metric_has_a_direction(metric: str, better: Better) -> None:
    """A share of a peak is better higher, all else lower, unless the metric says."""
    assert direction(METRICS[metric]) is better


def test_confirming_processes_give_values_like_the_first() -> None:
    """Same key, source and unit; void ones and other tests are left out."""
    subject = paired([measured()], [kept(0, held())])
    elsewhere = record(estimate(9.0), key=RecordKey(test_id="other"))
    void = measured(void=Void(code=VoidCode.HARDWARE_THERMAL, reason="it was hot"))
    found = confirmation_of(
        subject,
        Retest(
            records=(
                measured(estimate(1.1, low=1.0, high=1.2), estimate(7, source="host")),
                measured(estimate(1.2), choice="B"),
                elsewhere,
                void,
            )
        ),
        control=True,
    )
    assert found.run_values == (1.1, 1.2)
    assert found.made_choices == ("A", "B")
    assert found.value is not None
    assert found.value.half_widths == pytest.approx((0.1 / 1.1,))
    assert [void.reason for void in found.voids] == ["it was hot"]
    assert found.control
    assert found.lost is None


def test_confirming_processes_that_nothing_traced_say_nothing_of_a_traced_suite() -> (
    None
):
    """What a tracer adds is in one of the two values only."""
    traced = {"host-time": {"tracer": "coverage"}}
    now = measured(estimate(9.0, source="host"), facts=traced)
    stored = replace(kept(0, held(source="host")), facts=traced)
    subject = paired([now], [stored])
    fresh = measured(estimate(1.0, source="host"))
    found = confirmation_of(subject, Retest(records=(fresh, fresh)))

    assert subject.stored
    assert (found.value, found.lost) == (None, None)
    assert [void.code for void in found.voids] == [VoidCode.OTHER_TRACER]
    assert found.differences == {"tracer": ("coverage", "none")}
    assert confirmation_of(subject, Retest(records=(fresh, now))).run_values == (9.0,)


@pytest.mark.parametrize(
    ("then", "now", "code"),
    [
        ({"core_count": "1"}, {"core_count": "2"}, VoidCode.OTHER_MACHINE),
        ({"core_count": "1"}, {}, VoidCode.OTHER_MACHINE),
        ({"method": "host/1"}, {"method": "host/2"}, VoidCode.OTHER_FACTS),
    ],
)
def test_confirming_processes_with_other_facts_say_nothing(
    then: dict[str, str], now: dict[str, str], code: VoidCode
) -> None:
    """What holds for a stored session holds for a fresh process: it is of something else."""
    suite = measured(estimate(9.0, source="host"), facts={"host-time": then})
    stored = replace(kept(0, held(source="host")), facts=suite.facts)
    fresh = measured(estimate(1.0, source="host"), facts={"host-time": now})
    found = confirmation_of(
        paired([suite], [stored]), Retest(records=(fresh, fresh, suite))
    )
    across = paired([suite], [stored], across=frozenset(then))

    assert found.run_values == (9.0,)
    assert [void.code for void in found.voids] == [code]
    assert found.differences.keys() == then.keys()
    assert confirmation_of(across, Retest(records=(fresh,))).run_values == (1.0,)


def test_another_gpu_of_one_kind_confirms_no_device_time() -> None:
    """Boards of one model differ; a time that no device took is of none of them."""
    suite, fresh = (
        measured(device=Device(index=n, uuid=f"GPU-{n}", name="H200")) for n in (0, 1)
    )
    host = {
        "facts": {"host-time": {"cpu_model": "Fast 1"}},
        "choice": None,
    }
    beside = [
        replace(r, estimates=(estimate(1.0, source="host"),)) for r in (suite, fresh)
    ]
    found = confirmation_of(
        paired([suite], [kept(0, held())]), Retest(records=(fresh,))
    )
    on_host = [replace(r, **host) for r in beside]
    stored = replace(kept(0, held(source="host")), **host)

    assert found.run_values == ()
    assert [void.code for void in found.voids] == [VoidCode.OTHER_DEVICE]
    assert found.differences == {"gpu_uuid": ("GPU-0", "GPU-1")}
    assert confirmation_of(
        paired(on_host[:1], [stored]), Retest(records=(on_host[1],))
    ).run_values == (1.0,)


def test_a_fact_that_was_not_stored_is_no_difference() -> None:
    """A format without a field for it says nothing; what it could have said, counts."""
    limit = {"enforced_power_limit_watts": "700"}
    facts = {"device-time": {**FACTS["device-time"], "power_limit_watts": "700"}}
    now = measured(facts={"device-time": {**facts["device-time"], **limit}})
    old = kept(0, held(), facts=facts, schema_version=2)

    assert paired([now], [old]).stored
    # of this format, it could not be read then, or could not be read now
    assert paired([now], [replace(old, schema_version=3)]).differences == {
        "enforced_power_limit_watts": ("unknown", "700")
    }
    assert paired([measured(facts=facts)], [replace(old, facts=now.facts)]).stored == ()
    lower = {"device-time": {**facts["device-time"], "power_limit_watts": "600"}}
    assert paired([now], [replace(old, facts=lower)]).differences == {
        "power_limit_watts": ("600", "700")
    }


def test_a_limit_in_force_counts_in_place_of_the_default_one() -> None:
    """Of boards with other defaults and one setting the setting counts."""
    facts = [
        {
            "device-time": {
                **FACTS["device-time"],
                "power_limit_watts": default,
                "enforced_power_limit_watts": enforced,
            }
        }
        for default, enforced in (("700", "450"), ("600", "450"), ("700", "500"))
    ]
    now = measured(facts=facts[0])

    assert paired([now], [kept(0, held(), facts=facts[1])]).stored
    assert paired([now], [kept(0, held(), facts=facts[2])]).differences == {
        "enforced_power_limit_watts": ("500", "450")
    }


def test_confirming_processes_without_a_value_are_lost() -> None:
    """Their last lines are kept; one that said nothing is lost, too."""
    subject = paired([measured()], [kept(0, held())])
    assert confirmation_of(subject, Retest(failure="a\nb")).lost == ("a", "b")
    assert confirmation_of(subject, Retest()).lost == ()


BUSY = Unmeasured(metric="time", reason="another program holds it", remedy="end it")


@pytest.mark.parametrize(
    ("records", "unmeasured"),
    [((), (BUSY,)), ((record(unmeasured=(BUSY,)),), ())],
    ids=["test", "record"],
)
def test_what_the_machine_did_not_give_is_not_lost(
    records: tuple[Record, ...], unmeasured: tuple[Unmeasured, ...]
) -> None:
    """A test that could not be measured again has not failed: nothing is confirmed."""
    subject = paired([measured()], [kept(0, held())])
    retest = Retest(records=records, unmeasured=unmeasured)
    found = confirmation_of(subject, retest)
    assert (found.lost, found.voids, found.lacking) == (None, (), (BUSY,))
    failed = confirmation_of(subject, replace(retest, failure="boom"))
    assert failed.lost == ("boom",)
    usable = replace(retest, records=(*records, measured()))
    one = confirmation_of(subject, usable)
    assert (one.lost, one.lacking) == (None, ())  # another process could be measured


def test_the_source_nearest_to_the_device_is_best() -> None:
    """A known source comes before an unknown one, and there may be none."""
    assert best_source(["host", "events", "cupti"]) == "cupti"
    assert best_source(["mine", "host"]) == "host"
    assert best_source(["b", "a"]) == "a"
    assert best_source([]) is None


def test_a_stored_session_keeps_all_that_is_known_of_it() -> None:
    """Its id, the choice of its kernels and the half-widths of its values."""
    (found,) = paired([measured()], [kept(3, held(half_widths=(0.02,)))]).stored

    assert (found.session.id, found.choice) == ("s3", "A")
    assert found.value.half_widths == (0.02,)


def test_a_lost_metric_still_has_its_sessions() -> None:
    """Each by its name: they say how many there are."""
    found = paired(
        [measured(estimate(1.0, "registers"))], [kept(3, held()), kept(4, held())]
    )

    assert found.current is None
    assert [each.session.id for each in found.stored] == ["s3", "s4"]
    assert {each.choice for each in found.stored} == {"A"}


def test_a_case_knows_how_it_was_measured_and_where_else() -> None:
    """Its kind is the record's; that other machines have sessions must be said."""
    found = paired([measured(kind=Kind.RANGE)], [])

    assert found.kind is Kind.RANGE
    assert found.other_machines == ()
    assert paired([measured()], [], other_machines=("l40s",)).other_machines


def test_confirming_processes_are_no_control_unless_said() -> None:
    """A control is measured again without being suspected."""
    subject = paired([measured()], [kept(0, held())])
    retest = Retest(records=(measured(),))

    assert confirmation_of(subject, retest).control is False
    assert confirmation_of(subject, retest, control=True).control is True


def test_a_half_width_needs_both_ends_and_a_value() -> None:
    """A value of 0 has no share of itself, and one of 1 is like any other."""
    nothing = estimate(0.0, low=-1.0, high=1.0)
    whole = estimate(1.0, low=0.5, high=1.5)
    found = paired([measured(nothing), measured(whole)], [])

    assert found.current is not None
    assert found.current.half_widths == (0.5,)


@pytest.mark.parametrize(
    ("name", "meaning", "family"),
    [
        ("dram__bytes.sum", "hardware counter", Family.COUNTER),
        ("ttft", "a number of the test's own", Family.RECORDED),
    ],
)
def test_what_is_in_no_catalogue_has_a_name_and_a_meaning(
    name: str, meaning: str, family: Family
) -> None:
    """A counter by its own name, or a number that the test recorded."""
    found = paired([measured(estimate(1.0, name, unit="s"))], [], name).metric

    assert (found.name, found.meaning, found.family) == (name, meaning, family)
    assert (found.unit, found.better) == ("s", Better.NEITHER)


@pytest.mark.parametrize(("source", "count"), [("events", 0), ("cupti", 1)])
def test_events_beside_cupti_are_no_events_alone(source: str, count: int) -> None:
    """CUPTI lengthens them, by more than many kernels take; its own times are the same."""
    beside = {"device-time": {**FACTS["device-time"], "timed_beside": "cupti"}}
    found = paired(
        [measured(estimate(1.0, source=source), facts=beside)],
        [kept(1, held(source=source))],
    )

    assert len(found.stored) == count
    assert ("timed_beside" in found.differences) is not bool(count)
    if not count:
        assert found.differences["timed_beside"] == ("none", "cupti")


def test_other_parameters_are_not_compared() -> None:
    """Whatever is measured; sessions of the same ones are, and so are unknown ones."""
    now = [measured(parameters_digest="b" * 16)]
    first = kept(0, held(), parameters_digest="a" * 16)
    same = kept(1, held(), parameters_digest="b" * 16)
    unknown = kept(2, held())
    apart = paired(now, [first])

    assert dict(apart.differences) == {"parameters": ("a" * 16, "b" * 16)}
    assert apart.stored == ()
    assert len(paired(now, [first, same]).stored) == 1
    assert len(paired(now, [first, unknown]).stored) == 1
    assert len(paired([measured()], [first, same]).stored) == 2
    assert len(paired(now, [first], across={"parameters"}).stored) == 1


@pytest.mark.parametrize("family", Family)
def test_parameters_are_a_fact_of_every_family(family: Family) -> None:
    """An option can name it, of counts, too."""
    assert "parameters" in HARD_FACTS[family]


@pytest.mark.parametrize(
    ("then", "now", "differences"),
    [
        ({"better": "lower"}, {"better": "higher"}, {"better": ("lower", "higher")}),
        ({"unit": "bytes"}, {"unit": "s"}, {"unit": ("bytes", "s")}),
        ({"better": "lower"}, {"better": "lower"}, {}),
    ],
)
def test_unit_and_direction_are_facts(
    then: dict[str, Any], now: dict[str, Any], differences: dict[str, tuple[str, str]]
) -> None:
    """A number that gets better the other way is another number."""
    stored = [kept(0, held(metric="x", source="user", **then))]
    value = measured(estimate(1.0, "x", source="user", **({"unit": "s"} | now)))
    found = paired([value], stored, "x")
    assert dict(found.differences) == differences
    assert len(found.stored) == (not differences)


def test_the_unit_that_a_test_writes_is_a_fact() -> None:
    """Seconds that become milliseconds have one SI unit; of an early store none is known."""

    def facts(unit: str | None) -> dict[str, dict[str, str]]:
        return {"recorded": {"cpu_model": "a"} | ({"unit": unit} if unit else {})}

    value = measured(estimate(1.0, "x", source="user", unit="s"), facts=facts("ms"))
    sessions = [
        kept(0, held(metric="x", source="user"), facts=facts("s")),
        kept(1, held(metric="x", source="user"), facts=facts(None)),
        kept(2, held(metric="x", source="user"), facts=facts(None), schema_version=2),
        kept(3, held(metric="x", source="user"), facts=facts("ms")),
    ]
    assert dict(paired([value], sessions[:1], "x").differences) == {"unit": ("s", "ms")}
    ids = [s.session.id for s in paired([value], sessions, "x").stored]
    assert ids == ["s2", "s3"]


def test_a_test_that_changed_is_a_soft_fact() -> None:
    """Any session that counts may have another one; what is unknown did not move."""
    now = [measured(test_digest="new")]
    old, new = kept(0, held(), test_digest="old"), kept(1, held(), test_digest="new")
    moved = {"test": ("old", "new")}

    assert paired(now, [old, new]).moved == moved
    assert len(paired(now, [old, new]).stored) == 2
    assert paired(now, [new, kept(2, held())]).moved == {}
    assert paired([measured()], [old, new]).moved == {}
    other = kept(3, held(), test_digest="old", facts={"device-time": {"mig": "on"}})
    assert paired(now, [new, other]).moved == {}


def test_a_test_is_unsteady_where_processes_disagree() -> None:
    """One that has no parameters in a process does not disagree with it."""
    a, b = (measured(parameters_digest=digest) for digest in "ab")
    assert unsteady_tests([a, b, measured()]) == {KEY.test_id}
    assert unsteady_tests([a, a, measured()]) == frozenset()


def test_a_test_without_a_compared_metric_is_silent() -> None:
    """It stays open if any process gave the metric, or may not have run the test."""
    given = [(1.0, 1.0, 1.0, 1.0)]
    (block,) = blocks_of({"a": given, "b": [(None, 1.0, 1.0, 1.0)]}, metric="x")
    both = {"a": {"x": 0.05}, "b": {"x": 0.05}}

    assert block.silent(both) == frozenset()
    assert block.silent({"a": {"time": 0.05}, "b": {"time": None}}) == {"a"}
    assert block.silent({}) == {"a"}


@pytest.mark.parametrize(
    ("metric", "counts", "now", "expected"),
    [
        ("dram.bytes", [3.0, 3.0], 4.0, (3.0, 4.0)),
        ("dram.bytes", [3.0, 4.0], 4.0, (3.5, 4.0)),
        ("dram.bytes", [4.0], 4.0, None),
        ("dram.bytes", [], 4.0, None),
        ("dram.bytes", [3.0], None, None),
        ("launches.count", [3.0], 4.0, None),
        ("l2.hit_fraction", [3.0], 4.0, None),
    ],
)
def test_the_launches_behind_a_total_of_a_report_are_kept(
    metric: str,
    counts: list[float],
    now: float | None,
    expected: tuple[float, float] | None,
) -> None:
    """A share has no total, and a number of launches is itself what is compared."""
    from_report = {"source": "ncu-report", "unit": ""}
    of_metric = {"metric": metric, **from_report}
    of_count = {"metric": "launches.count", **from_report}
    stored = [
        kept(number, held(count, **of_count), held(1.0, **of_metric))
        for number, count in enumerate(counts)
    ]
    stored.append(kept(9, held(1.0, **of_metric)))
    launches = [] if now is None else [estimate(now, **of_count)]
    found = paired([measured(estimate(2.0, **of_metric), *launches)], stored, metric)

    assert found.launches == expected


def test_the_launches_of_a_measured_call_are_its_own() -> None:
    """A call that launches more kernels has changed, and its counts are judged as they are."""
    of_count = {"metric": "launches.count", "unit": "count"}
    of_bytes = {"metric": "dram.bytes", "unit": "bytes"}
    now = [measured(estimate(4.0, **of_count), estimate(2.0, **of_bytes))]
    found = paired(
        now, [kept(0, held(3.0, **of_count), held(1.0, **of_bytes))], "dram.bytes"
    )

    assert found.stored
    assert found.launches is None


def code(name: str) -> str:
    """A stored identity of machine code."""
    return str(CodeIdentity(code=name, shape="s", data="d"))


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        (["a"], ["a", "a"], Sameness.SAME),
        (["a"], ["b", "a"], Sameness.CHANGED),
        (["a"], [None, "a"], None),
        (["a", "a"], ["a"], Sameness.SAME),
        (["a", "b"], ["a"], None),
        ([None], ["a"], None),
    ],
)
def test_a_case_knows_whether_all_processes_and_sessions_ran_the_same_code(
    now: list[str | None], then: list[str | None], expected: Sameness | None
) -> None:
    """What one of them does not tell is not known."""

    def digest(name: str | None) -> str | None:
        return None if name is None else code(name)

    records = [measured(code_digest=digest(name)) for name in now]
    stored = [
        kept(number, held(), code_digest=digest(name))
        for number, name in enumerate(then)
    ]
    elsewhere = kept(8, held(source="host"), code_digest=code("z"))

    assert paired(records, [*stored, elsewhere]).code is expected
