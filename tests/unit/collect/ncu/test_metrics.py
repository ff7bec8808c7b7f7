"""Rules of collect.ncu.metrics."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect import ncu
from pytest_gpuperf.collect.ncu.metrics import (
    Metric,
    MetricCorrelation,
    MetricCorrelationData,
    MetricCounter,
    MetricCounterRollUp,
    MetricCounterRollUpQuantity,
    MetricDeviceAttribute,
    MetricRatio,
    MetricRatioRollUp,
    MetricThroughput,
    gather,
    labels,
    newer_labels,
    parse_name,
)
from pytest_gpuperf.errors import ConfigError

SUM, AVG = MetricCounterRollUp.SUM, MetricCounterRollUp.AVG
OF_ELAPSED = MetricCounterRollUpQuantity.PCT_OF_PEAK_SUSTAINED_ELAPSED
WORDS = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
ENDINGS = st.sampled_from(
    [
        "",
        ".sum",
        ".avg.per_second",
        ".max.pct_of_peak_sustained_elapsed",
        ".avg.peak_sustained_elapsed.per_second",
        ".pct",
        ".max_rate",
    ]
)


@pytest.mark.parametrize(
    ("metric", "names", "keys"),
    [
        (Metric("dram__bytes.sum"), ["dram__bytes.sum"], ["dram__bytes.sum"]),
        (Metric("dram__bytes.sum", "bytes"), ["dram__bytes.sum"], ["bytes"]),
        (
            Metric("dram__bytes", "bytes", ("sum", ("sum", "per_second"))),
            ["dram__bytes.sum", "dram__bytes.sum.per_second"],
            ["bytes.sum", "bytes.sum.per_second"],
        ),
        (MetricCounter("dram__bytes"), ["dram__bytes.sum"], ["dram__bytes.sum"]),
        (
            MetricCounter("dram__bytes", "bytes", (AVG, (SUM, OF_ELAPSED))),
            ["dram__bytes.avg", "dram__bytes.sum.pct_of_peak_sustained_elapsed"],
            ["bytes.avg", "bytes.sum.pct_of_peak_sustained_elapsed"],
        ),
        (MetricRatio("a__hits"), ["a__hits.ratio"], ["a__hits.ratio"]),
        (
            MetricRatio("a__hits", subs=(MetricRatioRollUp.PCT,)),
            ["a__hits.pct"],
            ["a__hits.pct"],
        ),
        (
            MetricThroughput("sm__throughput"),
            ["sm__throughput.avg.pct_of_peak_sustained_elapsed"],
            ["sm__throughput.avg.pct_of_peak_sustained_elapsed"],
        ),
        (
            MetricDeviceAttribute("display_name"),
            ["device__attribute_display_name"],
            ["device__attribute_display_name"],
        ),
        (
            MetricCorrelation("sass__inst_executed_per_opcode"),
            ["sass__inst_executed_per_opcode"],
            ["sass__inst_executed_per_opcode"],
        ),
    ],
)
def test_what_is_asked_for_and_under_which_key(
    metric: Metric, names: list[str], keys: list[str]
) -> None:
    """A name for ncu and a key for results, one of each for each roll-up."""
    assert list(metric.gather()) == names
    assert list(metric.labels()) == keys
    assert gather([metric]) == tuple(names)
    assert labels([metric]) == tuple(keys)


def test_the_pretty_name_is_the_name_unless_given() -> None:
    """A metric always has something to be called by."""
    assert Metric("a__b.sum").pretty_name == "a__b.sum"
    assert MetricCounter("a__b", "mine").pretty_name == "mine"


def test_names_are_asked_for_in_order_and_once() -> None:
    """Two metrics that share a name cost ncu one; a text is a metric too."""
    metrics: list[Metric | str] = [
        MetricCounter("b__x"),
        "a__y.avg",
        Metric("b__x.sum"),
        "a__y.avg",
    ]

    assert gather(metrics) == ("b__x.sum", "a__y.avg")
    assert labels(metrics) == ("b__x.sum", "a__y.avg")


def test_a_text_is_one_metric() -> None:
    """A name alone is not taken letter by letter."""
    assert gather("dram__bytes.sum") == ("dram__bytes.sum",)


def test_a_metric_unpacks_to_itself() -> None:
    """Programs that star-unpack what a factory returns get the one metric."""
    metric = MetricCounter("a__b")

    assert (*metric,) == (metric,)
    assert gather(metric) == gather([metric]) == ("a__b.sum",)


def test_metrics_are_values() -> None:
    """Equal metrics hash alike, however their roll-ups were spelled; none can change."""
    metric = MetricCounter("a__b", subs=(SUM,))

    assert (
        len({metric, MetricCounter("a__b"), MetricCounter("a__b", subs=("sum",))}) == 1
    )
    assert metric != Metric("a__b", subs=(SUM,))
    listed = Metric("a__b", subs=[["sum", "per_second"]])  # type: ignore[arg-type] # a list becomes a tuple
    assert hash(listed) == hash(Metric("a__b", subs=(("sum", "per_second"),)))
    with pytest.raises(AttributeError):
        metric.name = "c__d"  # type: ignore[misc] # what is refused


def test_a_key_stands_for_one_value() -> None:
    """Two metrics of one pretty name would overwrite each other: refused."""
    metrics = [Metric("a__b.sum", "x"), Metric("a__c.sum", "x")]

    with pytest.raises(ConfigError, match=r"'x' would be a__b\.sum and a__c\.sum"):
        labels(metrics)
    assert labels([metrics[0], metrics[0]]) == ("x",)


def test_a_complete_name_is_a_metric() -> None:
    """A counter's name has no roll-up: the remedy is the class that takes both."""
    with pytest.raises(ConfigError, match="has a roll-up already") as caught:
        MetricCounter("dram__bytes.sum")

    assert caught.value.remedy == 'write Metric("dram__bytes.sum")'


def test_newer_keys_leave_the_usual_roll_up_unsaid() -> None:
    """`sum` of a counter and `ratio` of a ratio; any other stands in brackets."""
    metrics = [
        MetricCounter("a__b", "loads", (SUM, AVG, (SUM, OF_ELAPSED))),
        MetricRatio("a__r", "hits"),
        MetricCounter("a__plain"),
    ]

    assert newer_labels(metrics) == {
        "loads": "loads.sum",
        "loads (avg)": "loads.avg",
        "loads (sum, pct_of_peak_sustained_elapsed)": (
            "loads.sum.pct_of_peak_sustained_elapsed"
        ),
        "hits": "hits.ratio",
    }


def test_a_newer_key_that_means_two_values_is_none() -> None:
    """`x` cannot be the sum of one metric where it is another's own key."""
    metrics = [MetricCounter("a__b", "x"), Metric("a__c.sum", "x")]

    assert newer_labels(metrics) == {}
    assert newer_labels([MetricCounter("a__b", "x"), MetricRatio("a__r", "x")]) == {}


@pytest.mark.parametrize(
    ("make", "mistakes"),
    [
        (lambda: Metric(""), ["is not a unit__quantity"]),
        (lambda: Metric("a b"), ["blanks, commas"]),
        (lambda: Metric("a__b.sum,c__d.sum"), ["blanks, commas"]),
        (lambda: Metric("regex:"), ["the pattern after regex:"]),
        (lambda: Metric("a__b."), ["'' is not a roll-up"]),
        (
            lambda: Metric("a__b.smu.sometimes"),
            ["did you mean sum", "'sometimes' is not a submetric"],
        ),
        (lambda: Metric("a__b.pct.per_second"), ["nothing follows pct"]),
        (
            lambda: MetricCounter("-", subs=("ratio", "pct")),
            [
                "'-' is not a unit__quantity",
                "'ratio' is not a roll-up",
                "'pct' is not a roll-up",
            ],
        ),
        (lambda: MetricCounter("a__b.sum"), ['write Metric."a__b.sum"']),
        (lambda: MetricRatio("a__b", subs=("sum",)), ["'sum' is not a roll-up"]),
        (lambda: Metric("a__b", subs=()), ["subs is empty"]),
        (lambda: Metric("a__b", subs=((),)), ["an empty path"]),
        (lambda: Metric("a__b", subs="sum"), [r"write subs=\('sum',\)"]),  # type: ignore[arg-type] # refused
        (lambda: Metric(None), ["None is not text"]),  # type: ignore[arg-type] # refused
        (lambda: MetricDeviceAttribute(5), ["5 is not text"]),  # type: ignore[arg-type] # refused
        (
            lambda: MetricThroughput("sm__throughput", subs=("avg", "max")),
            ["'avg' is not a percentage", "'max' is not a percentage"],
        ),
        (lambda: gather(["a__b.sum", "a b"]), ["blanks, commas"]),
    ],
)
def test_all_that_is_wrong_is_told_at_once(make: object, mistakes: list[str]) -> None:
    """A metric that ncu could not collect is refused where it is written."""
    assert callable(make)
    for mistake in mistakes:
        with pytest.raises(ConfigError, match=mistake) as caught:
            make()
        assert caught.value.remedy


def test_an_attribute_may_have_its_whole_name() -> None:
    """The prefix is never doubled."""
    whole = MetricDeviceAttribute("device__attribute_display_name")

    assert whole == MetricDeviceAttribute("display_name")
    assert whole.full_name == "device__attribute_display_name"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
            ("l1tex", "t", "sectors", "pipe_lsu_mem_global_op_ld_lookup_hit", "sum"),
        ),
        (
            "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_ld",
            ("l1tex", "t_output", "wavefronts", "pipe_lsu_mem_global_op_ld", None),
        ),
        (
            "smsp__sass_inst_executed_op_global_ld.avg",
            ("smsp", "sass", "inst", "executed_op_global_ld", "avg"),
        ),
        ("dram__bytes.sum", ("dram", None, "bytes", None, "sum")),
        ("launch__grid_size", ("launch", None, "grid_size", None, None)),
        ("inst_executed", (None, None, "inst", "executed", None)),
        ("memory_access_type", (None, None, "memory_access_type", None, None)),
    ],
)
def test_a_name_has_parts(name: str, parts: tuple[str | None, ...]) -> None:
    """Unit, stage, quantity and qualifier, where the name says them."""
    found = parse_name(name)

    assert (
        found.unit,
        found.stage,
        found.quantity,
        found.qualifier,
        found.rollup,
    ) == parts


@given(
    kind=st.sampled_from(["", "group:", "breakdown:", "pmsampling:"]),
    unit=WORDS,
    words=st.lists(WORDS, min_size=1, max_size=5),
    ending=ENDINGS,
)
def test_a_name_is_the_sum_of_its_parts(
    kind: str, unit: str, words: list[str], ending: str
) -> None:
    """What was taken apart is put together again."""
    name = f"{kind}{unit}__{'_'.join(words)}{ending}"

    assert str(parse_name(name)) == name


def test_a_pattern_has_no_parts() -> None:
    """What stands behind regex: is ncu's to read."""
    name = "regex:l1tex__.*_(ld|st)$"

    assert parse_name(name).kind == "regex"
    assert str(parse_name(name)) == name
    with pytest.raises(ConfigError, match="is not a metric"):
        parse_name("dram__bytes.smu")


def test_correlated_values_are_a_value() -> None:
    """They cannot change, and equal ones hash alike."""
    counts: dict[str | int, int | float] = {"HMMA": 4, "LDG": 2}
    data = MetricCorrelationData(correlated=counts, value=6)
    counts["LDG"] = 3

    assert data.correlated["LDG"] == 2
    assert data == MetricCorrelationData(correlated={"LDG": 2, "HMMA": 4}, value=6)
    assert hash(data) == hash(
        MetricCorrelationData(correlated=data.correlated, value=6)
    )
    assert MetricCorrelationData(correlated={0x10: 1}).value is None


def test_the_room_names_its_metrics_without_loading_them() -> None:
    """Each public name is one object; a wrong one is an AttributeError."""
    assert ncu.Metric is Metric
    assert set(ncu.__all__) == set(dir(ncu))
    assert all(getattr(ncu, name) for name in ncu.__all__)
    with pytest.raises(AttributeError, match="Metrik"):
        ncu.Metrik  # noqa: B018 - the access is the test
    code = "import sys, pytest_gpuperf.collect.ncu as n; n.__all__\n"
    code += "print([m for m in sys.modules if m.startswith(n.__name__ + '.')])"
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == "[]"
