"""compute.activity: spans, gaps, choice and metrics of what ran."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.activity import choice_of, estimates, notes, summarise
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import Copy, KernelShape, Launches, Trace, Track
from pytest_gpuperf.model.codec import from_builtins, to_builtins
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS

NOW = 1_763_000_000_000_000_000  # ns: a float has steps of 256 ns here
SHAPE = KernelShape(
    name="_Z4axpyPf",
    grid=(8, 1, 1),
    block=(128, 1, 1),
    registers_count=32,
    shared_bytes=0,
    dynamic_shared_bytes=0,
    stack_bytes=0,
)
Span = tuple[int, int]


def launches(*spans: Span, shapes: tuple[KernelShape, ...] = (SHAPE,)) -> Launches:
    """Return kernels from and to so many ns, of the shapes by turns."""
    count = len(spans)
    zeros = array("I", [0] * count)
    return Launches(
        shapes=shapes[:count],
        shape=array("I", [place % len(shapes) for place in range(count)]),
        start_ns=array("Q", [NOW + start for start, _ in spans]),
        end_ns=array("Q", [NOW + end for _, end in spans]),
        call_ns=array("Q", [NOW] * count),
        device=zeros,
        stream=zeros,
        graph=zeros,
    )


def trace(*spans: Span, **fields: object) -> Trace:
    """Return what was seen of kernels from and to so many ns."""
    plain = Trace(begun_ns=NOW, ended_ns=NOW + 10**9, launches=launches(*spans))
    return replace(plain, **fields)


def copy(start_ns: int, end_ns: int, **fields: object) -> Copy:
    """Return a copy of 100 bytes to the device."""
    plain = Copy(
        direction="host_to_device",
        source="pinned",
        target="device",
        size_bytes=100,
        count=1,
        start_ns=NOW + start_ns,
        end_ns=NOW + end_ns,
    )
    return replace(plain, **fields)


class InPieces:
    """Launches that come two at a time, as those of a stream do."""

    def __init__(self, whole: Launches) -> None:
        self.shapes = whole.shapes
        self._whole = whole

    def __len__(self) -> int:
        return len(self._whole)

    def pieces(self) -> Iterator[Launches]:
        return self._whole.pieces(2)


class TestPieces:
    """A list that is too long for memory amounts to what it would be whole."""

    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=9),
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
    )
    def test_times_are_the_union_of_all_pieces(
        self, ran: list[Span], copied: list[Span]
    ) -> None:
        """In whatever order they come: every nanosecond in which something ran."""
        spans = [(begin, begin + length) for begin, length in ran]
        copies = [(begin, begin + length) for begin, length in copied]
        seen = trace(*spans, copies=tuple(copy(*each) for each in copies))
        found = summarise(replace(seen, launches=InPieces(launches(*spans))))
        busy = {ns for start, end in spans + copies for ns in range(start, end)}
        gaps = "".join(
            "x" if ns in busy else " "
            for ns in range(min(busy, default=0), max(busy, default=-1) + 1)
        ).split("x")

        assert found == summarise(seen)
        assert (found.busy_s is None) == (not busy)
        if busy:
            assert round((found.busy_s or 0) * 1e9) == len(busy)
            assert round((found.span_s or 0) * 1e9) == max(busy) - min(busy) + 1
            assert found.gaps_count == len([gap for gap in gaps if gap])
            assert round(found.longest_gap_s * 1e9) == max(map(len, gaps))

    def test_shapes_are_counted_over_all_pieces(self) -> None:
        """Count and time of a shape are of all its launches."""
        other = replace(SHAPE, name="other")
        whole = launches((0, 5), (6, 7), (8, 9), (9, 12), shapes=(SHAPE, other))
        found = summarise(replace(trace(), launches=InPieces(whole)))

        assert [(use.shape.name, use.count) for use in found.kernels] == [
            (SHAPE.name, 2),
            ("other", 2),
        ]
        assert [round(use.total_s * 1e9) for use in found.kernels] == [6, 4]
        assert (found.launches_count, found.kernels_count) == (4, 2)


class TestTimes:
    """Span, busy time and gaps are of all that ran."""

    def test_overlap_counts_once_and_a_gap_is_idle(self) -> None:
        """Two streams beside each other are busy once."""
        found = summarise(trace((0, 100), (50, 150), (350, 400)))
        assert found.span_s == pytest.approx(400e-9)
        assert found.busy_s == pytest.approx(200e-9)
        assert found.idle_fraction == pytest.approx(0.5)
        assert (found.gaps_count, found.longest_gap_s) == (1, 200e-9)

    def test_copies_fills_and_graphs_are_work_too(self) -> None:
        """A gap that a copy fills is none."""
        found = summarise(
            trace(
                (0, 100),
                copies=(copy(100, 200),),
                fills=((64, NOW + 200, NOW + 250),),
                graphs=((NOW + 250, NOW + 300),),
            )
        )
        assert (found.gaps_count, found.idle_fraction) == (0, 0.0)
        assert found.span_s == pytest.approx(300e-9)

    def test_a_nanosecond_is_not_lost(self) -> None:
        """Moments of this century as floats would be 256 ns apart."""
        assert summarise(trace((1, 2))).span_s == 1e-9

    def test_copies_are_counted_where_they_alone_run(self) -> None:
        """Beside a kernel or a fill a copy takes no time of its own."""
        found = summarise(
            trace(
                (0, 100),
                copies=(copy(50, 160), copy(200, 240)),
                fills=((64, NOW + 150, NOW + 210),),
            )
        )
        assert found.copying_s == pytest.approx(80e-9)

    def test_a_gap_in_which_a_wait_ended_is_that_waits(self) -> None:
        """A wait that ended while something ran held up nothing."""
        kernels = ((0, 100), (150, 200), (300, 400))
        ends = (NOW + 40, NOW + 210, NOW + 220, NOW + 900)
        found = summarise(trace(*kernels, wait_ends_ns=ends))
        assert found.waited_s == pytest.approx(100e-9)
        assert summarise(trace(*kernels)).waited_s == 0

    def test_waits_that_were_not_recorded_filled_nobody_knows_what(self) -> None:
        """None is not nought."""
        unseen = trace((0, 100), (150, 200), unrecorded={"SYNCHRONIZATION": "old"})
        assert summarise(unseen).waited_s is None

    def test_nothing_that_ran_has_no_time(self) -> None:
        """None is not nought."""
        found = summarise(trace())
        assert (found.span_s, found.busy_s, found.idle_fraction) == (None, None, None)
        assert (found.copying_s, found.waited_s) == (None, None)
        assert found.launches_count == 0

    def test_work_without_a_time_is_left_out(self) -> None:
        """CUPTI writes 0 where it could not tell."""
        known = trace((0, 100), (10, 20))
        columns = launches((0, 100), (10, 20))
        untimed = replace(columns, start_ns=array("Q", [NOW, 0]))
        found = summarise(replace(known, launches=untimed, untimed_count=1))
        assert found.busy_s == pytest.approx(100e-9)
        assert "not timed" in notes(found)[0].text
        assert found.kernels[0].total_s == pytest.approx(100e-9)

    @given(
        st.lists(
            st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(
                lambda pair: (pair[0], sum(pair))
            ),
            min_size=1,
            max_size=20,
        )
    )
    def test_busy_and_gaps_make_up_the_span(self, spans: list[Span]) -> None:
        """Whatever ran, idle is what is left, and busy is at most all work."""
        found = summarise(trace(*spans))
        assert found.span_s is not None
        assert found.busy_s is not None
        assert found.idle_fraction is not None
        assert 0 < found.busy_s <= found.span_s
        assert found.busy_s <= sum(end - start for start, end in spans) / 1e9 + 1e-12
        idle_s = found.idle_fraction * found.span_s
        assert found.busy_s + idle_s == pytest.approx(found.span_s)
        assert found.longest_gap_s <= idle_s + 1e-12
        assert (found.gaps_count == 0) == (found.idle_fraction == 0)


class TestChoice:
    """Two runs that chose other kernels are other experiments."""

    @pytest.mark.parametrize(
        "change",
        [
            {"name": "_Z5otherv"},
            {"grid": (9, 1, 1)},
            {"block": (64, 1, 1)},
            {"registers_count": 33},
            {"shared_bytes": 1},
            {"dynamic_shared_bytes": 1},
        ],
    )
    def test_each_part_of_a_shape_makes_another(
        self, change: dict[str, object]
    ) -> None:
        """Name, grid, block, registers and shared memory tell choices apart."""
        assert choice_of({SHAPE: 1}) != choice_of({replace(SHAPE, **change): 1})

    def test_how_often_counts_and_in_which_order_does_not(self) -> None:
        """It is a multiset."""
        other = replace(SHAPE, block=(64, 1, 1))
        assert choice_of({SHAPE: 1, other: 2}) == choice_of({other: 2, SHAPE: 1})
        assert choice_of({SHAPE: 1, other: 2}) != choice_of({SHAPE: 2, other: 1})

    def test_it_is_the_same_in_every_process(self) -> None:
        """It is stored: nothing of this process may be in it."""
        assert choice_of({SHAPE: 3}) == "fa1cce2a3ccdc637"

    def test_the_name_of_an_anonymous_namespace_is_not_part_of_it(self) -> None:
        """nvcc puts a hash of the build into it."""

        def built(code: str) -> str:
            space = f"_GLOBAL__N__{code}_7_code_cu_{code}_1234"
            name = f"_ZN2at{len(space)}{space}6kernelEvi"
            return choice_of({replace(SHAPE, name=name): 1})

        assert built("4b7ac2d5") == built("00000000ff")
        assert built("4b7ac2d5") != choice_of({SHAPE: 1})

    def test_it_is_not_known_of_half_the_kernels(self) -> None:
        """Lost records, other processes, whole graphs: nobody knows what was chosen."""
        assert summarise(trace((0, 1))).choice == choice_of({SHAPE: 1})
        for hidden in (
            {"dropped_count": 1},
            {"device_children": (7,)},
            {"graphs": ((NOW, NOW + 1),)},
        ):
            assert summarise(trace((0, 1), **hidden)).choice is None
        assert summarise(trace()).choice is None


class TestKernels:
    """What ran, by shape."""

    def test_most_time_comes_first(self) -> None:
        """The list is cut from its end; counts and choice are of all."""
        shapes = tuple(replace(SHAPE, registers_count=n) for n in range(300))
        spans = [(n * 1000, n * 1000 + n + 1) for n in range(300)]
        columns = launches(*spans, shapes=shapes)
        found = summarise(trace(launches=columns), demangle=lambda _: "axpy(float*)")
        assert (len(found.kernels), found.kernels_count) == (256, 300)
        assert found.launches_count == 300
        first = found.kernels[0]
        assert (first.shape.registers_count, first.count) == (299, 1)
        assert first.demangled == "axpy(float*)"

    def test_the_summary_of_a_record_comes_back_from_json(self) -> None:
        """It is part of the record."""
        found = summarise(trace((0, 5), copies=(copy(5, 6),), latencies_ns=[1, 2]))
        assert from_builtins(to_builtins(found), type(found)) == found


class TestEstimates:
    """Metrics of what was seen, and a reason for each that was not."""

    def values(self, seen: Trace) -> dict[str, float]:
        return {e.metric: e.value for e in estimates(summarise(seen))[0]}

    def reasons(self, seen: Trace) -> dict[str, str]:
        return {u.metric: u.reason for u in estimates(summarise(seen))[1]}

    def test_all_that_was_seen_is_given(self) -> None:
        """Units are the catalogue's, and the source is said."""
        seen = trace(
            (0, 100),
            (300, 400),
            copies=(
                copy(100, 150, source="pageable"),
                copy(0, 1, direction="device_to_host", target="pageable"),
                copy(0, 1, direction="device_to_device", source="device"),
            ),
            host_launches_count=1,
            latencies_ns=[4_000],
            synchronizations={"event": 1, "stream": 2, "stream_wait": 9},
            allocations=(10, 20),
            compilations_ns=(3_000_000,),
        )
        assert self.values(seen) == pytest.approx(
            {
                "time.busy": 250e-9,
                "time.idle_fraction": 0.375,
                "launches.count": 2,
                "launches.host_count": 1,
                "launches.kernels": 1,
                "launches.latency": 4e-6,
                "synchronizations.count": 3,
                "allocations.count": 2,
                "transfers.host_to_device_bytes": 100,
                "transfers.device_to_host_bytes": 100,
                "transfers.pageable_bytes": 200,
                "compile.count": 1,
                "compile.time": 3e-3,
            }
        )
        assert self.reasons(seen) == {}
        assert {e.source for e in estimates(summarise(seen))[0]} == {"cupti"}

    def test_nothing_that_ran_is_a_count_of_nought_and_no_time(self) -> None:
        """No kernel is a fact; its time is not."""
        assert self.values(trace())["launches.count"] == 0
        assert set(self.reasons(trace())) == {
            *("time.busy", "time.idle_fraction", "launches.latency"),
            "launches.kernels",
        }

    @pytest.mark.parametrize(
        ("kind", "metrics"),
        [
            ("SYNCHRONIZATION", {"synchronizations.count"}),
            ("MEMORY2", {"allocations.count"}),
            ("JIT", {"compile.count", "compile.time"}),
        ],
    )
    def test_what_is_not_recorded_is_unmeasured(
        self, kind: str, metrics: set[str]
    ) -> None:
        """With the reason that CUPTI gave."""
        seen = trace((0, 1), latencies_ns=[1], unrecorded={kind: "too old (CUPTI 21)"})
        reasons = self.reasons(seen)
        assert set(reasons) == metrics
        assert all("too old (CUPTI 21)" in reason for reason in reasons.values())

    def test_the_work_of_a_child_is_unmeasured(self) -> None:
        """Named by its number; no count of this process stands for it."""
        seen = trace((0, 1), children=("77", "78"), device_children=(78,))
        assert self.values(seen) == {}
        reasons = self.reasons(seen)
        assert "launches.count" in reasons
        assert all("(78)" in reason for reason in reasons.values())

    def test_a_child_beside_work_is_a_note(self) -> None:
        """It is not a reason to throw away what was seen."""
        seen = trace((0, 1), children=("77",))
        assert "launches.count" in self.values(seen)
        assert [note.code for note in notes(summarise(seen))] == ["child-processes"]

    def test_work_told_by_time_is_a_note(self) -> None:
        """The reader knows which threads carry a label."""
        (note,) = notes(summarise(trace((0, 1), unlabelled_count=3)))
        assert note.code == "unlabelled-work"
        assert note.text.startswith("3 pieces of work were launched")

    def test_an_estimate_has_the_catalogues_unit(self) -> None:
        """A share and a count have theirs too."""
        given, _ = estimates(summarise(trace((0, 1), latencies_ns=[1])))

        assert {e.metric: e.unit for e in given} == {
            e.metric: METRICS[e.metric].unit for e in given
        }

    def test_what_cannot_be_given_says_what_to_do(self) -> None:
        """Nothing to time, nothing launched, or a CUPTI that does not see it."""
        _, nothing = estimates(summarise(trace(unrecorded={"JIT": "too old"})))

        assert {u.metric: (u.reason, u.remedy) for u in nothing} == {
            **dict.fromkeys(
                ("time.busy", "time.idle_fraction"),
                (
                    "nothing that CUPTI could time ran on the device",
                    "measure a call that uses the device",
                ),
            ),
            "launches.latency": (
                "no call launched a kernel",
                "measure a call that launches a kernel",
            ),
            "launches.kernels": (
                (
                    "which kernels ran is not known: none did, or a graph is one record, or"
                    " records were lost"
                ),
                "measure a call that launches its kernels in this process",
            ),
            **dict.fromkeys(
                ("compile.count", "compile.time"),
                (
                    "CUPTI does not record it here: too old",
                    "pip install --upgrade nvidia-cuda-cupti, or update the driver",
                ),
            ),
        }

    def test_work_of_several_children_says_where_to_do_it(self) -> None:
        """All of them are named."""
        seen = trace((0, 1), children=("7", "8"), device_children=(7, 8))
        _, missing = estimates(summarise(seen))

        assert {(u.reason, u.remedy) for u in missing} == {
            (
                (
                    "child processes ran during the measurement (7, 8), and CUPTI records its own"
                    " process only"
                ),
                "do the work in the test's own process",
            )
        }

    def test_notes_are_told_in_full(self) -> None:
        """One piece of work was, two pieces were; all children are named."""
        seen = trace((0, 1), unlabelled_count=1, untimed_count=2, children=("7", "8"))

        assert {note.code: note.text for note in notes(summarise(seen))} == {
            "unlabelled-work": (
                "1 piece of work was launched by threads without a label, and assigned"
                " by time"
            ),
            "untimed-work": (
                "2 pieces of work were not timed by CUPTI, and missing in time.busy and"
                " time.idle_fraction"
            ),
            "child-processes": (
                "child processes ran during the measurement (7, 8): their work on a GPU is not"
                " counted"
            ),
        }


class TestTracks:
    """When each piece of work ran, by stream."""

    def test_streams_come_first_and_kernels_are_numbered(self) -> None:
        """Times count from the first piece of work, kernels from the longest one."""
        other = replace(SHAPE, name="gemm")
        columns = replace(
            launches((50, 60), (55, 95), shapes=(SHAPE, other)),
            stream=array("I", [7, 14]),
        )
        seen = replace(
            trace(copies=(copy(40, 70),), fills=((4, NOW + 90, NOW + 91),)),
            launches=columns,
            graphs=((NOW + 96, NOW + 99),),
        )
        summary = summarise(seen)

        assert [use.shape.name for use in summary.kernels] == ["gemm", SHAPE.name]
        assert [
            (t.kind, t.device, t.stream, t.starts_ns, t.ends_ns, t.kernels)
            for t in summary.tracks
        ] == [
            ("kernel", 0, 7, (10,), (20,), (1,)),
            ("kernel", 0, 14, (15,), (55,), (0,)),
            ("graph", None, None, (56,), (59,), ()),
            ("copy", None, None, (0,), (30,), ()),
            ("memset", None, None, (50,), (51,), ()),
        ]
        assert summary.pieces_count == 5

    def test_only_the_first_pieces_are_kept(self) -> None:
        """The earliest 120, in whichever order they were recorded; all are counted."""
        spans = [(2 * place, 2 * place + 1) for place in range(500)]
        late = trace(*reversed(spans[1:]), copies=(copy(0, 1),))
        in_pieces = replace(late, launches=InPieces(late.launches))  # type: ignore[arg-type] # it is one
        for seen in (late, in_pieces):
            summary = summarise(seen)
            kernels, copies = summary.tracks

            assert kernels.starts_ns == tuple(start for start, _ in spans[1:120])
            assert copies.starts_ns == (0,)
            assert summary.pieces_count == 500

    def test_what_was_not_timed_is_left_out(self) -> None:
        """A piece of work without an end has no place on a line."""
        columns = replace(launches((0, 5), (7, 9)), end_ns=array("Q", [NOW + 5, 0]))
        summary = summarise(replace(trace(), launches=columns, untimed_count=1))

        assert [t.starts_ns for t in summary.tracks] == [(0,)]
        assert summary.pieces_count == 1
        assert summarise(trace()).tracks == ()

    def test_columns_of_other_lengths_are_refused(self) -> None:
        """A file that was edited is no track."""
        with pytest.raises(RecordError, match="2 pieces of work, and not as many ends"):
            Track(kind="copy", device=None, stream=None, starts_ns=(0, 1), ends_ns=(1,))
