"""Wrong arguments: each costs its own test, never the run, and says what to write."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import pytest

import pytest_gpuperf
from fakes.project import XDIST, Project, lines
from pytest_gpuperf.errors import MeasureError, UnknownMetricError
from pytest_gpuperf.fixture import Ledger, Perf
from pytest_gpuperf.hooks.tracebacks import hide_own_frames
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate

# what a test does, and what its failure says
WRONG_CALLS = {
    "gpuperf.measure(len, [], name=5)": "name: 5 is not a string; write a name",
    "gpuperf.measure(len, [], name='\\ud800')": "contains a lone surrogate",
    "gpuperf.measure(len, [], work=5)": "work: 5 is not a Work; write Work(",
    "gpuperf.measure(len, [], setup=5)": "setup: 5 cannot be called",
    "gpuperf.measure(len, [], check=5)": "check: 5 cannot be called",
    "gpuperf.measure(len, inputs=5)": "inputs: 5 is not a list of argument tuples",
    "gpuperf.measure(len, inputs=[])": "inputs: [] is not a list of argument tuples",
    "gpuperf.measure(len, inputs=[5])": "inputs: 5 is not a tuple of arguments",
    "gpuperf.measure(len, [], cache=['cold'])": "cache: ['cold'] is not a cache mode",
    "gpuperf.measure(len, [], setup=lambda: ([],))": "both setup and positional arguments",
    "gpuperf.measure(len, [], inputs=[([],)])": "both inputs and positional arguments",
    "gpuperf.compare(len, len, [], setup=list)": "would give the arguments; give one of",
    "gpuperf.measure(5)": "fn: 5 cannot be called",
    "gpuperf.compare(len, sorted, [], name=5)": "name: 5 is not a string",
    "gpuperf.compare(len, 5, [])": "b: 5 cannot be called",
    "gpuperf.compare(len, len, setup=[])": "setup: [] cannot be called",
    "gpuperf.range(5).__enter__()": "name: 5 is not a string",
    "gpuperf.range(None).__enter__()": "name: None is not a string",
    "gpuperf.capture(None)": "path: None is not a path; give the path of a file",
    "gpuperf.capture('')": "path: '' cannot be the path of a file",
    "gpuperf.capture('a\\0b')": "cannot be the path of a file",
    "gpuperf.capture('a', kernel=5)": "kernel: 5 is not a string",
    "gpuperf.binary('k', ptxas_log=b'x')": "ptxas_log: b'x' is neither text nor a path",
    "gpuperf.binary(None)": "source: None is not a path",
    "gpuperf.record('x', 5, unit=None)": "unit: None is not a string; write it as",
    "gpuperf.record('x', 5, unit='\\ud800')": "unit: '\\ud800' contains a lone",
    "gpuperf.record('\\ud800', 5)": "metric: '\\ud800' contains a lone",
    "gpuperf.record(5, 5)": "metric: 5 is not a string; write its name",
    "gpuperf.record('x', 5, better=[])": "better: [] is not a string",
    "gpuperf.record('x', float('nan'))": "'x' is not finite; record a number",
    "gpuperf.record('x', 10**400)": "'x' is not finite; record a number",
    "gpuperf.record('x', '5')": "the value of 'x': '5' is not a number; record",
    "gpuperf.record('x', True)": "the value of 'x': True is not a number",
    "gpuperf.record('x', [1, None])": "the value of 'x': None is not a number",
    "gpuperf.record('x', [])": "'x' has no samples; record a number",
    "gpuperf.measure(gpuperf.measure, len, [])": "cannot run inside another one",
    "gpuperf.measure(gpuperf.record, 'x', 5)": "cannot run inside another one",
    "gpuperf.compare(gpuperf, len, [])": "cannot run inside another one",
    "gpuperf.measure(in_a_thread, gpuperf)": "another thread of this test measures",
}

# what a marker says, and what the collection error says
WRONG_MARKERS = {
    "limits={'time <= 5 ms'}": "a limit is text, as 'time <= 60 us': {'time <= 5 ms'}",
    "limits={'time': 5}": "a limit is text, as 'time <= 60 us': {'time': 5}",
    "limits=[['x']]": "a limit is text, as 'time <= 60 us': ['x']",
    "limits=[Angry()]": "a limit is text, as 'time <= 60 us': <Angry instance",
    "limits=['time <= 5 \\x1b[31ms\\0']": r"time <= 5 \x1b[31ms\x00",
    "limits=['time <= -5 ms']": "time is never below zero; write a number above",
    "limits=['launches.count == 1.5']": "launches.count is a whole number",
    "limits=['time[\"k\"] <= 5 ms']": "time is not known of each kernel",
    "cache=['cold']": "cache: ['cold'] is not a cache mode",
    "cache=Angry()": "cache: <Angry instance",
    "max_regression={1: '5 %'}": 'max_regression: 1: a metric is named by text; write "5 %"',
    "max_regression='five %'": 'does not begin with a number; write "5 %", "off"',
    "max_regression={'\\x1b': '5 %'}": r"unknown metric '\x1b'",
    "min_grade=['A']": "min_grade: ['A'] is not a grade",
    "requires={'gpu'}": "requires: {'gpu'}: not a known requirement",
    "counters={'dram__bytes.sum'}": "{'dram__bytes.sum'}: not a counter name",
    "group='\\ud800'": r"group: '\ud800' contains a lone surrogate",
    "group=' '": r"group: ' ' is blank",
}

ANGRY = """
    import pytest

    class Angry:
        def __repr__(self):
            raise ValueError

        def __eq__(self, other):
            raise ValueError

        __hash__ = None
"""


def told(ended: pytest.RunResult, text: str) -> bool:
    """Return whether a run says a text, on one line or with a limit's caret between."""
    if lines(ended, text):
        return True
    message, _, remedy = text.partition("; ")
    return bool(lines(ended, message) and lines(ended, remedy))


def test_no_name_may_be_written_as_none(project: Project) -> None:
    """A helper hands its own `name=None` on: it is the default of each call."""
    project.write(
        """
        def test_x(gpuperf):
            gpuperf.measure(int, name=None)
            gpuperf.compare(int, str, name="compared")

        def test_y(gpuperf):
            gpuperf.compare(int, str, name=None)
        """
    )
    ended = project.run("--gpuperf-json=run.json")
    keys = [record["key"] for record in project.report()["records"]]

    assert ended.parseoutcomes() == {"passed": 2}
    assert {"", "compared"} <= {key.get("name", "") for key in keys}


def test_a_wrong_argument_fails_its_own_test(project: Project) -> None:
    """Each test says which of its arguments is wrong; the run goes on to its end."""
    in_a_thread = """
from concurrent.futures import ThreadPoolExecutor

def in_a_thread(gpuperf):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gpuperf.measure, int).result()
"""
    body = [
        in_a_thread,
        *(
            f"def test_{index}(gpuperf):\n    {call}\n"
            for index, call in enumerate(WRONG_CALLS)
        ),
    ]
    project.write("\n".join([*body, "def test_right(gpuperf):\n    gpuperf(int)\n"]))
    ended = project.run("-q", "--tb=line", "-rf")

    assert ended.parseoutcomes() == {"failed": len(WRONG_CALLS), "passed": 1}
    assert [text for text in WRONG_CALLS.values() if not told(ended, text)] == []
    assert lines(ended, "INTERNALERROR") == []


def test_numbers_of_other_libraries_are_numbers(project: Project) -> None:
    """Whatever turns into a float is recorded: only text and truth values are not."""
    project.write(
        """
        from decimal import Decimal
        from fractions import Fraction

        def test_it(gpuperf):
            assert gpuperf.record("a", Decimal("0.5")) == 0.5
            assert gpuperf.record("b", (Fraction(1, 2), 2, 1.0)) == 1.0
            assert gpuperf.record("c", range(3)) == 1.0
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


def test_one_measurement_may_follow_a_failed_one(project: Project) -> None:
    """What raised while it was measured is over: the next is not inside it."""
    project.write(
        """
        import pytest

        def test_it(gpuperf):
            with pytest.raises(ZeroDivisionError):
                gpuperf.measure(lambda: 1 / 0, name="broken")
            with gpuperf.range("block"):
                gpuperf(int)
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n1")], ids=["alone", "worker"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("5", "cannot be read"), ("'\\ud800'", "cannot be written")],
)
def test_a_payload_that_is_none_fails_its_test(
    project: Project, workers: tuple[str, ...], name: str, text: str
) -> None:
    """What a test put into a record by force costs that test, not the run."""
    project.write(
        f"""
        from msgspec.structs import force_setattr

        def test_forced(gpuperf):
            gpuperf(int)
            force_setattr(gpuperf.ledger.records[0].key, "name", {name})

        def test_right(gpuperf):
            gpuperf(int)
        """
    )
    ended = project.run("-rf", *workers)

    assert ended.parseoutcomes() == {"failed": 1, "passed": 1}
    assert lines(ended, "gpuperf: the test's measurements", text)
    assert lines(ended, "INTERNALERROR") == []


def test_a_wrong_marker_is_a_collection_error(project: Project) -> None:
    """Whatever a marker is given, its test is named with what to write."""
    project.write(
        ANGRY
        + "".join(
            f"""
    @pytest.mark.gpuperf({keyword})
    def test_{index}(gpuperf):
        gpuperf(int)
"""
            for index, keyword in enumerate(WRONG_MARKERS)
        )
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"errors": 1}
    assert [text for text in WRONG_MARKERS.values() if not told(ended, text)] == []
    assert not any("\x1b" in line or "\0" in line for line in ended.outlines)


def test_a_parameter_that_has_every_attribute_is_no_code(project: Project) -> None:
    """The names that a test may record are read from code and text, not from doubles."""
    project.write(
        """
        from unittest.mock import MagicMock

        import pytest

        @pytest.mark.parametrize("double", [MagicMock()])
        def test_it(gpuperf, double):
            gpuperf(int)
        """
    )

    assert project.run().parseoutcomes() == {"passed": 1}


def perf_of_time() -> Perf:
    """Return a measurement that gave a time."""
    time = Estimate(metric="time", value=1.0, unit="s", source="host")
    key = RecordKey(test_id="test_it.py::test_it")
    return Perf(Ledger(), Record(key=key, kind=Kind.MEASURE, estimates=(time,)))


def test_a_metric_that_is_none_is_an_error() -> None:
    """A typing mistake names what may have been meant; it is not a missing value."""
    perf = perf_of_time()

    with pytest.raises(UnknownMetricError, match="did you mean") as told:
        perf["tmie"]
    assert "time" in told.value.close_matches
    assert not perf.has("tmie")
    assert perf._ledger.refusals == []


def test_a_number_of_the_test_s_own_is_a_metric(project: Project) -> None:
    """What the test has recorded is not a typing mistake, only not of this measurement."""
    project.write(
        """
        def test_it(gpuperf):
            gpuperf.record("ttft", 5)
            gpuperf.measure(int)["ttft"]
        """
    )

    assert project.run().parseoutcomes() == {"skipped": 1}


@pytest.mark.parametrize("wrong", [5, None, ("time",)])
def test_metrics_and_kernels_are_named_by_text(wrong: str) -> None:
    """Anything else is refused, with an example of what to write."""
    perf = perf_of_time()

    with pytest.raises(MeasureError, match=r'perf\["time"\]'):
        perf[wrong]
    with pytest.raises(MeasureError, match=r'perf\.time\["rmsnorm'):
        perf.time[wrong]


MISTAKES = """
    import pytest

    def test_capture(gpuperf):
        gpuperf.capture("nothing.ncu-rep")

    def test_binary(gpuperf):
        gpuperf.binary("nothing.cubin")

    def test_loop(gpuperf):
        with gpuperf.steps():
            pass

    def test_phase(gpuperf):
        with gpuperf.steps() as steps:
            with steps.phase("forward"):
                pass

    def test_metric(gpuperf):
        gpuperf.measure(int).tmie

    def test_own(gpuperf):
        def inner():
            raise ValueError("mine")
        gpuperf.measure(inner)
"""


@pytest.mark.parametrize(
    ("test", "last", "message"),
    [
        ("test_capture", "gpuperf.capture(", "CaptureFormatError: "),
        ("test_binary", "gpuperf.binary(", "CaptureFormatError: "),
        (
            "test_loop",
            "with gpuperf.steps()",
            "MeasureError: the loop recorded no step",
        ),
        (
            "test_phase",
            "with steps.phase(",
            "MeasureError: phase 'forward' is outside of",
        ),
        ("test_metric", "gpuperf.measure(int).tmie", "did you mean time"),
        ("test_own", 'raise ValueError("mine")', "ValueError: mine"),
    ],
)
def test_a_traceback_ends_where_the_user_wrote_it(
    project: Project, test: str, last: str, message: str
) -> None:
    """None of our own lines, nor how we came to know, unless --full-trace asks."""
    project.write(MISTAKES)
    ended = project.run("-k", test)
    whole = project.run("-k", test, "--full-trace")

    marked = [text for text in ended.outlines if text.startswith(">")]
    assert last in marked[-1]
    assert lines(ended, "E   ", message)
    assert not lines(ended, "pytest_gpuperf/")
    assert not lines(ended, "contextlib.py")
    assert not lines(ended, "direct cause")
    assert lines(whole, "pytest_gpuperf/")


# a function of the test's own that is called wrongly, and what its failure says
REFUSED_CALLS = {
    "gpuperf.measure(f)": "f() missing 1 required positional argument: 'a'",
    "gpuperf(f, 1, 2)": "f() takes 1 positional argument but 2 were given",
    "gpuperf.compare(f, f)": "f() missing 1 required positional argument: 'a'",
    "gpuperf.measure(int, 'x')": "ValueError: invalid literal for int()",
    "gpuperf.measure(f, setup=lambda x: x)": "missing 1 required positional argument",
    "gpuperf.measure(f, setup=lambda: ((), {1: 2}))": "keywords must be strings",
    "gpuperf.measure(f, 1, check=lambda: 1)": "takes 0 positional arguments but 1 was",
    "gpuperf.measure(f, 1, check=lambda r: r == 2)": "check refused the first timed",
}


@pytest.mark.parametrize("options", [(), ("--gpuperf-disable",)])
def test_a_call_that_the_function_refuses_shows_none_of_our_lines(
    project: Project, options: tuple[str, ...]
) -> None:
    """No frame follows ours, and yet the mistake is the test's: it ends at its line."""
    calls = {"gpuperf(f, 1, 2)": "f() takes 1"} if options else REFUSED_CALLS
    tests = [f"def test_{i}(gpuperf):\n    {call}\n" for i, call in enumerate(calls)]
    project.write("\n".join(["def f(a): return a\n", *tests]))
    ended = project.run(*options)

    marked = [text[1:].strip() for text in ended.outlines if text.startswith(">")]
    assert sorted(marked) == sorted(calls)
    assert [text for text in calls.values() if not lines(ended, "E  ", text)] == []
    assert not lines(ended, "pytest_gpuperf/")


@pytest.mark.parametrize(
    "call", ["measure(f, ", "compare(f, f, ", "measure(sum, [1], "]
)
@pytest.mark.parametrize("keyword", ["rounds", "iterations"])
def test_a_number_of_calls_is_written_in_the_marker(
    project: Project, call: str, keyword: str
) -> None:
    """A function that refuses the keyword of another plugin is no end of the road."""
    call = f"gpuperf.{call}{keyword}=20)"
    project.write(f"def f(): pass\n\ndef test_it(gpuperf):\n    {call}\n")
    (told,) = lines(project.run(), "E  ", f"'{keyword}'")

    assert told.endswith(
        "; write @pytest.mark.gpuperf(iterations=20) to fix the number of calls"
    )


def test_a_keyword_of_measure_is_not_passed_by_a_call(project: Project) -> None:
    """A call of the fixture passes all keywords to the function, as other plugins do."""
    project.write("def f(): pass\n\ndef test_it(gpuperf):\n    gpuperf(f, name='a')\n")
    (told,) = lines(project.run(), "E  ", "'name'")

    assert told.endswith(
        "; write gpuperf.measure(fn, name='a'): gpuperf(fn) passes keywords to fn"
    )


def test_a_block_is_measured_by_range(project: Project) -> None:
    """The fixture is no context manager, and says what is one."""
    project.write("def test_it(gpuperf):\n    with gpuperf:\n        pass\n")
    ended = project.run()

    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    assert lines(ended, "E  ", 'write with gpuperf.range("forward"):')


def test_a_refused_keyword_of_another_name_is_the_test_s_own(project: Project) -> None:
    """Nothing is added to an error that a number of calls has no part in."""
    project.write(
        """
        def f(rounds): pass

        def test_it(gpuperf):
            gpuperf.measure(f, rounds=20, foo=1)
        """
    )
    (told,) = lines(project.run(), "E  ", "unexpected keyword argument 'foo'")

    assert told.endswith("'foo'")


OURS = str(Path(pytest_gpuperf.__file__).with_name("some.py"))
STDLIB = str(Path(sysconfig.get_path("stdlib"), "some.py"))
PACKAGE = str(Path(sysconfig.get_path("stdlib"), "site-packages", "some.py"))
FRAMES = {"ours": OURS, "stdlib": STDLIB, "package": PACKAGE, "test": "test_it.py"}


def raised(error: Exception, *files: str) -> BaseException:
    """Return an error that came through a frame of each file, the last one raised it."""
    inner: object = error
    for number, file in enumerate(reversed(files)):
        space = {"inner": inner}
        body = "inner()" if number else "raise inner"
        exec(compile(f"def f(): {body}", FRAMES[file], "exec"), space)  # noqa: S102
        inner = space["f"]
    with pytest.raises(type(error)) as caught:
        inner()  # type: ignore[operator] # it was just made
    return caught.value


@pytest.mark.parametrize(
    ("error", "files", "left"),
    [
        (ValueError(), ["test", "ours", "test"], ["test", "test"]),
        (ValueError(), ["test", "stdlib", "ours", "package"], ["test", "package"]),
        (ValueError(), ["test", "ours"], ["test", "ours"]),
        (ValueError(), ["test", "ours", "stdlib"], ["test", "ours", "stdlib"]),
        (MeasureError("", remedy=""), ["test", "stdlib", "ours"], ["test"]),
        (MeasureError("", remedy=""), ["test", "package", "ours"], ["test", "package"]),
    ],
)
def test_own_frames_are_hidden_unless_the_bug_is_ours(
    error: Exception, files: list[str], left: list[str]
) -> None:
    """What others raised below us is theirs; what we raised unasked is shown whole."""
    ended = raised(error, *files)
    hide_own_frames(ended)
    seen = [frame.filename for frame in traceback.extract_tb(ended.__traceback__)]

    assert [name for name in seen if name != __file__] == [FRAMES[f] for f in left]
