"""Rules of the tree of results."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.ncu.launches import MetricFacts
from pytest_gpuperf.collect.ncu.metrics import MetricCorrelationData, MetricValue
from pytest_gpuperf.collect.ncu.results import ProfilingMetrics, ProfilingResults
from pytest_gpuperf.errors import (
    EntryCountError,
    GpuPerfError,
    MeasureError,
    MetricUnavailableError,
    MissingEntryError,
    WrongEntryError,
)

COUNTER = MetricFacts("byte", "double", "counter", None, "sum")
PERCENT = MetricFacts(
    "%", "double", "throughput", "pct_of_peak_sustained_elapsed", "avg"
)
HIGHEST = MetricFacts("cycle", "double", "counter", None, "max")
RATE = MetricFacts("byte/s", "double", "counter", "per_second", "sum")
SIZE = MetricFacts("", "uint64", "other", None, None)


def leaf(**values: MetricValue) -> ProfilingMetrics:
    """Return a launch that a caller made."""
    return ProfilingMetrics(values)


def results() -> ProfilingResults:
    """Return a tree of two nodes and three launches."""
    found = ProfilingResults()
    found.assign_metrics(("outer", "k-0"), {"a": 1, "b": 2.5})
    found.assign_metrics(("outer", "k-1"), {"a": 2, "b": 0.25})
    found.assign_metrics(("outer", "inner", "k-2"), {"a": 4})
    return found


class TestQueries:
    def test_walk_by_names(self) -> None:
        """No names mean the node itself."""
        tree = results()

        assert tree.query(()) is tree
        assert isinstance(tree.query(["outer", "inner"]), ProfilingResults)
        assert tree.query_metrics(("outer", "k-1"))["a"] == 2
        assert len(tree) == 1

    def test_say_what_there_is_instead(self) -> None:
        """A name that is not there is a KeyError with the names that are."""
        with pytest.raises(KeyError) as caught:
            results().query(("outer", "k-9"))

        assert isinstance(caught.value, GpuPerfError)
        assert str(caught.value).startswith("outer has no entry 'k-9'; ")
        assert "inner" in str(caught.value)

    @pytest.mark.parametrize(
        "ask",
        [
            lambda tree: tree.query(("outer", "k-0", "a")),
            lambda tree: tree.query_filter(("outer", "k-0"), bool),
            lambda tree: tree.query_metrics(("outer",)),
            lambda tree: tree.query_single_next(("outer", "k-0")),
            lambda tree: tree.query_single_next_metrics(()),
            lambda tree: list(tree.iter_metrics(("outer",))),
            lambda tree: tree.aggregate_metrics(("outer",)),
        ],
    )
    def test_tell_a_node_from_a_launch(self, ask: object) -> None:
        """What needs the other of the two is a TypeError."""
        assert callable(ask)
        with pytest.raises(TypeError) as caught:
            ask(results())

        assert isinstance(caught.value, WrongEntryError)

    def test_refuse_a_text_for_names(self) -> None:
        """'a' would be found by accident and 'outer' letter by letter."""
        with pytest.raises(WrongEntryError, match=r"accessors=\('outer',\)"):
            results().query("outer")
        with pytest.raises(WrongEntryError, match=r"keys=\('ab',\)"):
            results().aggregate_metrics(("outer", "inner"), keys="ab")

    def test_filter_direct_entries(self) -> None:
        """The entries are the same objects."""
        tree = results()

        kept = tree.query_filter(("outer",), lambda name: name.startswith("k-"))

        assert list(kept.data) == ["k-0", "k-1"]
        assert kept.query(("k-0",)) is tree.query(("outer", "k-0"))

    def test_give_the_only_entry(self) -> None:
        """With its name, which holds the launch's index."""
        tree = results()

        assert tree.query_single_next()[0] == "outer"
        name, found = tree.query_single_next_metrics(("outer", "inner"))
        assert (name, found["a"]) == ("k-2", 4)

    @pytest.mark.parametrize("tree", [ProfilingResults(), results().query(("outer",))])
    def test_count_where_one_is_expected(self, tree: ProfilingResults) -> None:
        """None and several are a RuntimeError that says how many."""
        with pytest.raises(
            RuntimeError, match=f"has {len(tree)} entries instead"
        ) as caught:
            tree.query_single_next()

        assert isinstance(caught.value, EntryCountError)

    def test_iterate_before_they_complain(self) -> None:
        """The launches before a node come first."""
        found = results().iter_metrics(("outer",))

        assert [next(found)[0], next(found)[0]] == ["k-0", "k-1"]
        with pytest.raises(WrongEntryError, match="outer/inner is a node"):
            next(found)

    def test_walk_all_launches_once(self) -> None:
        """One under the ranges of two domains is still one launch."""
        tree, one = ProfilingResults(), leaf(a=1)
        tree.assign_metrics(("x", "k-0"), one)
        tree.assign_metrics(("y", "z", "k-0"), one)
        tree.assign_metrics(("k-1",), {"a": 1})

        assert [way for way, _ in tree.iter_launches()] == [("x", "k-0"), ("k-1",)]


class TestAssigning:
    def test_replaces_a_launch_by_a_launch(self) -> None:
        """The name is the same, and so is what it stands for."""
        tree = results()

        tree.assign_metrics(("outer", "k-0"), leaf(a=9))

        assert tree.query_metrics(("outer", "k-0"))["a"] == 9

    @pytest.mark.parametrize("way", [("outer", "k-0", "k-5"), ("outer",), ()])
    def test_never_loses_anything(self, way: tuple[str, ...]) -> None:
        """A launch holds no entries, and a node is not replaced by a launch."""
        tree = results()
        before = str(tree)

        with pytest.raises(WrongEntryError):
            tree.assign_metrics(way, {"a": 1})

        assert str(tree) == before


class TestALaunch:
    def test_is_a_mapping(self) -> None:
        """It compares with one, too."""
        launch = leaf(a=1, b="x")

        assert dict(launch) == {"a": 1, "b": "x"} == launch
        assert (len(launch), "a" in launch, launch.get("z", 0)) == (2, True, 0)
        assert launch == leaf(a=1, b="x") != leaf(a=1)
        with pytest.raises(KeyError, match="ask for one of a, b"):
            launch["z"]

    def test_answers_to_newer_spellings(self) -> None:
        """The key itself comes first."""
        launch = ProfilingMetrics({"k.sum": 3}, aliases={"k": "k.sum"})

        assert launch["k"] == launch["k.sum"] == 3
        assert "k" in launch
        assert list(launch) == ["k.sum"]

    def test_that_failed_gives_no_number(self) -> None:
        """Zeros and NaN of such a launch would pass a limit; the device is what it is."""
        launch = ProfilingMetrics(
            {"a": 0.0, "b": None, "device__attribute_x": 7, "demangled": "k()"},
            measured=False,
            name="k-3",
        )

        for key in ("a", "b"):
            with pytest.raises(
                MetricUnavailableError, match="k-3: profiling it failed"
            ):
                launch[key]
        assert (launch["device__attribute_x"], launch["demangled"]) == (7, "k()")
        assert launch.data["a"] == 0.0

    def test_gives_no_number_that_is_none(self) -> None:
        """None compared with a limit would be another error than what it means."""
        with pytest.raises(MetricUnavailableError, match="NaN or infinite"):
            leaf(a=None)["a"]


class TestSums:
    def test_add_what_a_caller_made(self) -> None:
        """No report says that it does not add up."""
        tree = results().query_filter(("outer",), lambda name: name != "inner")

        assert tree.aggregate_metrics() == {"a": 3, "b": 2.75}
        assert tree.aggregate_metrics((), ("b",)) == {"b": 2.75}

    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            (PERCENT, "pct_of_peak_sustained_elapsed does not add up"),
            (HIGHEST, "its roll-up is max, not sum"),
            (RATE, "per_second does not add up"),
            (SIZE, "it is not a counter"),
        ],
    )
    def test_are_only_of_what_adds_up(self, facts: MetricFacts, reason: str) -> None:
        """What does not is left out and said; asked for by name it is an error."""
        tree = ProfilingResults()
        for number in range(2):
            tree.assign_metrics(
                (f"k-{number}",),
                ProfilingMetrics(
                    {"good": 2, "bad": 50.0, "mangled": "k"},
                    facts={"good": COUNTER, "bad": facts},
                ),
            )

        found = tree.aggregate_metrics()

        assert found == {"good": 4}
        assert reason in found.left_out["bad"]
        assert set(found.left_out) == {"bad"}
        with pytest.raises(MeasureError, match=reason):
            tree.aggregate_metrics((), ("good", "bad"))

    def test_name_everything_that_has_none(self) -> None:
        """One error for all keys, with the reason of each."""
        tree = ProfilingResults({"k-0": leaf(a=1, b=None), "k-1": leaf(a=math.nan)})

        with pytest.raises(MeasureError) as caught:
            tree.aggregate_metrics((), ("a", "b", "z"))

        assert "a: it is not a finite number" in str(caught.value)
        assert "b: a launch: its value is absent" in str(caught.value)
        assert "z: a launch has no such value" in str(caught.value)

    def test_need_a_launch(self) -> None:
        """No launch has no sum, not the sum 0."""
        with pytest.raises(EntryCountError, match="no launch to add up"):
            ProfilingResults().aggregate_metrics()

    def test_leave_out_a_launch_that_failed(self) -> None:
        """A sum without it would look like the whole."""
        tree = ProfilingResults(
            {"k-0": leaf(a=1), "k-1": ProfilingMetrics({"a": 1}, measured=False)}
        )

        assert tree.aggregate_metrics() == {}
        assert "profiling it failed" in tree.aggregate_metrics().left_out["a"]

    @given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
    def test_of_integers_are_exact(self, numbers: list[int]) -> None:
        """A counter beyond 2**53 is not rounded."""
        tree = ProfilingResults({f"k-{i}": leaf(a=n) for i, n in enumerate(numbers)})

        assert tree.aggregate_metrics() == {"a": sum(numbers)}


class TestText:
    def test_shows_the_tree(self) -> None:
        """Without any package."""
        tree = results()
        tree.assign_metrics(
            ("k-3",), {"c": MetricCorrelationData(correlated={"IMAD": 3}), "d": None}
        )

        assert str(tree).splitlines() == [
            "Profiling results",
            "├── outer",
            "│   ├── k-0",
            "│   │   ├── a: 1",
            "│   │   └── b: 2.5",
            "│   ├── k-1",
            "│   │   ├── a: 2",
            "│   │   └── b: 0.25",
            "│   └── inner",
            "│       └── k-2",
            "│           └── a: 4",
            "└── k-3",
            "    ├── c: not measured (1 correlated)",
            "    └── d: not measured",
        ]

    @given(st.text(max_size=300))
    def test_has_one_line_for_each_value(self, name: str) -> None:
        """Whatever a kernel is called: no control character, 200 columns at most."""
        lines = str(ProfilingResults({"k": ProfilingMetrics({name: name})})).split("\n")

        assert len(lines) == 3
        assert all(line.isprintable() and len(line) <= 200 for line in lines)

    def test_is_the_same_in_rich(self) -> None:
        """Names are not markup there."""
        rich = pytest.importorskip("rich.console")
        tree = results()
        tree.assign_metrics(("[red]x[/red]", "k-4"), {"a": "x" * 300})
        console = rich.Console(width=400, file=None)
        with console.capture() as captured:
            console.print(tree.to_tree())

        shown = [line.rstrip() for line in captured.get().splitlines()]
        assert [line[:100] for line in shown] == [
            line[:100] for line in str(tree).splitlines()
        ]

    def test_says_that_rich_is_not_installed(self) -> None:
        """And what needs no package."""
        code = (
            "import sys; sys.modules['rich'] = sys.modules['rich.tree'] = None\n"
            "from pytest_gpuperf.collect.ncu.results import ProfilingResults\n"
            "from pytest_gpuperf.errors import CollectorUnavailableError\n"
            "try: ProfilingResults().to_tree()\n"
            "except CollectorUnavailableError as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True
        )

        assert "pip install rich" in done.stdout


def test_errors_are_of_the_plugin() -> None:
    """Each has a remedy, and is what its callers may already catch."""
    for kind, base in (
        (MissingEntryError, KeyError),
        (WrongEntryError, TypeError),
        (EntryCountError, RuntimeError),
    ):
        assert issubclass(kind, GpuPerfError)
        assert issubclass(kind, base)
