"""The rules of judge/grammar: limits as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import (
    ConfigError,
    LimitSyntaxError,
    UnitError,
    UnknownMetricError,
)
from pytest_gpuperf.judge.grammar import (
    parse_limit,
    parse_max_regression,
)
from pytest_gpuperf.model.metric import METRICS


@pytest.mark.parametrize(
    ("text", "metric", "operator", "threshold", "unit", "kernel"),
    [
        ("time <= 60 us", "time", "<=", 6e-05, "s", None),
        ("  time<60us\t", "time", "<", 6e-05, "s", None),
        ("time <= 60 µs", "time", "<=", 6e-05, "s", None),
        ("time <= 60 \u03bcs", "time", "<=", 6e-05, "s", None),
        ("roofline.fraction >= 80 %", "roofline.fraction", ">=", 0.8, "fraction", None),
        ("roofline.fraction > 0.8", "roofline.fraction", ">", 0.8, None, None),
        ("roofline.fraction >= 1", "roofline.fraction", ">=", 1.0, None, None),
        ("launches.count == 1", "launches.count", "==", 1.0, None, None),
        ("stack_bytes == 0", "stack_bytes", "==", 0.0, None, None),
        ("shared_bytes <= 48 KiB", "shared_bytes", "<=", 49152.0, "bytes", None),
        ("speedup >= 1.3", "speedup", ">=", 1.3, None, None),
        ("dram__bytes.sum <= 1.1 GB", "dram__bytes.sum", "<=", 1.1e9, "bytes", None),
        ("dram__bytes.sum <= 1_000", "dram__bytes.sum", "<=", 1000.0, None, None),
        ('registers["rms*"] <= 64', "registers", "<=", 64.0, None, "rms*"),
        (
            "registers['f(a[0], \"b\")'] < 64",
            "registers",
            "<",
            64.0,
            None,
            'f(a[0], "b")',
        ),
        ('registers [ "été*" ] <= 64', "registers", "<=", 64.0, None, "été*"),
        ("\n time\r\n <=\n60\tus\n", "time", "<=", 6e-05, "s", None),
    ],
)
def test_a_limit_is_read(
    text: str,
    metric: str,
    operator: str,
    threshold: float,
    unit: str | None,
    kernel: str | None,
) -> None:
    """Metric, kernel, operator and quantity are read, in SI."""
    limit = parse_limit(text)

    assert limit.metric == metric
    assert limit.operator == operator
    assert limit.threshold == threshold
    assert limit.unit == unit
    assert limit.kernel == kernel
    assert limit.text == text.strip()


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 0, "begins with a metric"),
        ("60 us >= time", 0, "begins with a metric"),
        ("time", 4, "operator is missing"),
        ("time 60 us", 5, "'60' is not an operator"),
        ("time = 60 us", 5, "'=' is not an operator"),
        ("time =< 60 us", 5, "write <="),
        ("time != 60 us", 5, "'!=' is not an operator"),
        ("time @ 60 us", 5, "'@' is not an operator"),
        ("time == 60 us", 5, "measured with noise"),
        ("time <=", 7, "number is missing"),
        ("time <= us", 8, "does not begin with a number"),
        ("time <= nan us", 8, "does not begin with a number"),
        ("time <= inf", 8, "does not begin with a number"),
        ("time <= 1e400 s", 14, "not a finite number"),
        ("time <= 1e308 min", 14, "not a finite number"),
        ("stack_bytes <= 2KBfoo", 16, "unknown unit 'KBfoo'"),
        ("throughput >= 1000 token/s", 19, "write it as a bare number"),
        ("registers <= 64 regs", 16, "write it as a bare number"),
        ("time <= 60 m", 11, "write one of: ms, min$"),
        ("energy <= 60 m", 13, "write one of: mJ$"),
        ("time <= 60 us please", 14, "'please' stands after"),
        ("time <= 60 us <= 70 us", 14, "stands after"),
        ("time <= 1 000 us", 10, "no spaces and no commas"),
        ("time <= 1,000 us", 9, "no spaces and no commas"),
        ("registers[rms*] <= 64", 9, "in quotes and brackets"),
        ('registers["rms* <= 64', 9, "in quotes and brackets"),
        ('registers[""] <= 64', 9, "pattern is empty"),
    ],
)
def test_what_does_not_parse_is_pointed_at(
    text: str, column: int, message: str
) -> None:
    """The error says what is wrong, and the column where."""
    with pytest.raises(LimitSyntaxError, match=message) as caught:
        parse_limit(text)

    assert caught.value.column == column
    assert caught.value.text == text
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("time <= -5 ms", 8, "time is never below zero"),
        ("time < 0 ms", 7, "time is never below zero"),
        ("stack_bytes >= -1", 15, "stack_bytes is never below zero"),
        ("stack_bytes >= 0", 15, "stack_bytes is never below zero"),
        ("launches.count == 1.5", 18, "a whole number"),
        ('time["k"] <= 5 ms', 4, "time is not known of each kernel"),
        (' launches.count ["k"] <= 5', 16, "is not known of each kernel"),
        ('ttft["k"] <= 5 ms', 4, "ttft is not known of each kernel"),
    ],
)
def test_what_can_never_hold_is_refused(text: str, column: int, message: str) -> None:
    """A limit that no value can meet, or every value meets, is a mistake."""
    with pytest.raises(LimitSyntaxError, match=message) as caught:
        parse_limit(text, names={"ttft"})

    assert caught.value.column == column


@pytest.mark.parametrize(
    "text",
    [
        "ttft >= -5 ms",
        "waves == 1.5",
        "stack_bytes <= 0",
        "stack_bytes > 0",
        "dram__bytes.sum >= -1",
        'occupancy.achieved["k"] >= 50 %',
        'dram.bytes["k"] <= 1 GB',
        'dram__bytes.sum["k"] <= 1 GB',
    ],
)
def test_what_may_hold_is_read(text: str) -> None:
    """A number of the user's own may be negative; what a launch has, a kernel has."""
    assert parse_limit(text, names={"ttft"}).text == text


_CHANGE = 'write "5 %", "off" or {"time": "5 %"}'
_ANY_OPERATOR = "write one of <= < >= > =="
_QUANTITY = "write a number and a unit: 60 us"
_PATTERN = 'write it as: registers["rmsnorm*"] <= 64'
_NO_SPACES = "a number has no spaces and no commas in it"
_BRACKETS = 'leave the brackets out; registers["rmsnorm*"] belongs to a kernel'
_WHOLE = "launches.count is a whole number and never equals 1.5"
_TEXTS = [  # text, column, message, remedy
    ("60 us", 0, "a limit begins with a metric", "write it as: time <= 60 us"),
    ("6\u2264 time", 0, "a limit begins with a metric", "write it as: time <= 60 us"),
    ("time", 4, "the operator is missing", _ANY_OPERATOR),
    ("größe", 5, "the operator is missing", _ANY_OPERATOR),
    ("größe =", 6, "'=' is not an operator", "write =="),
    ("time = 60 us", 5, "'=' is not an operator", "write <= or >="),
    ("time === 60 us", 5, "'===' is not an operator", "write <= or >="),
    ("registers === 6", 10, "'===' is not an operator", "write =="),
    ("time => 60 us", 5, "'=>' is not an operator", "write >="),
    ("time != 60 us", 5, "'!=' is not an operator", _ANY_OPERATOR),
    ("time is 60 us", 5, "'is' is not an operator", _ANY_OPERATOR),
    ("time X<= 60 us", 5, "'X<=' is not an operator", _ANY_OPERATOR),
    ("time 60 \u03bcs", 5, "'60' is not an operator", _ANY_OPERATOR),
    ("time 6\u2264 1", 5, "'6\u2264' is not an operator", _ANY_OPERATOR),
    (
        "time == 60 us",
        5,
        "time is measured with noise and never equals a number",
        "write <= or >=",
    ),
    ("time <=", 7, "the number is missing", _QUANTITY),
    ("time <= us ", 8, "'us' does not begin with a number", _QUANTITY),
    ("ttft <= us", 8, "'us' does not begin with a number", _QUANTITY),
    ("time <= 1 2us", 10, _NO_SPACES, "write 1_000 or 1e3"),
    ("time <= 1,000 us", 9, _NO_SPACES, "write 1_000 or 1e3"),
    (
        "time <= 60 us s",
        14,
        "'s' stands after the limit",
        'give each limit its own text: limits=["…", "…"]',
    ),
    (
        "registers[r] <= 3",
        9,
        "the kernel's pattern stands in quotes and brackets",
        _PATTERN,
    ),
    (
        'registers[""] <= 3',
        9,
        "the kernel's pattern is empty",
        'write "*" for any kernel',
    ),
    ('time["a[0]"] <= 5 ms', 4, "time is not known of each kernel", _BRACKETS),
    ('time["time"] <= 5 ms', 4, "time is not known of each kernel", _BRACKETS),
    (
        '     p99 [s]["k"] <= 1',
        12,
        "p99 [s] is not known of each kernel",
        _BRACKETS,
    ),
    ("time < 0 ms", 7, "time is never below zero", "write a number above zero"),
    ("launches.count == 1.5", 18, _WHOLE, "write a whole number"),
    (
        "time \u2264 60 us",
        5,
        "'\u2264' (less-than or equal to) is not a character of a limit",
        "write '<='",
    ),
    (
        "time \ue000 60 us",
        5,
        "'\\ue000' (u+e000) is not a character of a limit",
        "write it in ASCII",
    ),
]


@pytest.mark.parametrize(("text", "column", "message", "remedy"), _TEXTS)
def test_a_refusal_says_what_where_and_what_to_write(
    text: str, column: int, message: str, remedy: str
) -> None:
    """All of it is read by a person; a name of the user's own may hold a bracket."""
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limit(text, names={"ttft", "größe", "p99 [s]"})

    problem = caught.value
    assert (problem.message, problem.remedy) == (message, remedy)
    assert (problem.text, problem.column) == (text, column)


@pytest.mark.parametrize(
    ("text", "column", "remedy"),
    [
        ("time \u2264 60 us", 5, "write '<='"),
        ("time \uff1c 60 us", 5, "write '<'"),
        ("time <= \u221260 us", 8, "write '-'"),
        ("time <= 60 \uff55s", 11, "write 'u'"),
        ("time <= 60\u00a0us", 10, "write ' '"),
        ("time <= \u0663 us", 8, "write it in ASCII"),
        ("t\u0456me <= 60 us", 1, "write it in ASCII"),
        ("\u03c4ime <= 60 us", 0, "write it in ASCII"),
        (" \u03c4ime <= 60 us", 1, "write it in ASCII"),
    ],
)
def test_lookalikes_are_named(text: str, column: int, remedy: str) -> None:
    """A character that only looks right is named, with what to write."""
    with pytest.raises(LimitSyntaxError, match="not a character of a limit") as caught:
        parse_limit(text)

    assert caught.value.column == column
    assert remedy in caught.value.remedy


def test_an_unknown_metric_gets_suggestions() -> None:
    """Names that come close are offered; also the test's own."""
    with pytest.raises(UnknownMetricError) as caught:
        parse_limit("tmie <= 60 us")
    assert "time" in caught.value.close_matches

    with pytest.raises(UnknownMetricError) as caught:
        parse_limit("tttf <= 60 us", names={"ttft", "A docstring of a test. " * 9})
    assert caught.value.close_matches[0] == "ttft"

    with pytest.raises(UnknownMetricError) as caught:
        parse_limit("phase.forwrd <= 60 us", names={"forward", "loss"})
    assert caught.value.close_matches[0] == "phase.forward"

    with pytest.raises(UnknownMetricError) as caught:
        parse_limit("qqq <= 60 us")
    assert caught.value.remedy == (
        "gpuperf explain metrics lists all of them; where a helper of the test records "
        "it, write records=['qqq']"
    )


def test_a_suggestion_is_close_and_one_of_three() -> None:
    """Half of a name is close enough, and the remedy says how else it may be known."""
    with pytest.raises(UnknownMetricError) as caught:
        parse_limit("tim \u2264 60 us")

    assert caught.value.close_matches == ("time", "time.p95", "time.p50")
    assert caught.value.remedy == (
        "did you mean time, time.p95, time.p50; where a helper of the test records it, "
        "write records=['tim']"
    )


@pytest.mark.parametrize(("letters", "offered"), [(40, True), (41, False)])
def test_no_long_text_is_suggested(letters: int, *, offered: bool) -> None:
    """Of what a test's source holds, 40 letters may be a name; more are a sentence."""
    name = "x" * letters
    with pytest.raises(UnknownMetricError) as caught:
        parse_limit(f"{name[1:]} <= 1", names={name})

    assert (name in caught.value.close_matches) is offered


@pytest.mark.parametrize("text", ["my metric X 3", "my metric a<= 1"])
def test_a_recorded_name_ends_where_an_operator_or_a_kernel_begins(text: str) -> None:
    """Else it is another name, of which nothing is known."""
    with pytest.raises(UnknownMetricError, match="unknown metric 'my'"):
        parse_limit(text, names={"my metric"})


def test_a_recorded_name_may_stand_behind_spaces() -> None:
    """They are not part of any name."""
    limit = parse_limit("  p99 [s] <= 1", names={"p99 [s]"})
    assert (limit.metric, limit.text) == ("p99 [s]", "p99 [s] <= 1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time <= 60 GB", "time is in s, the limit in bytes"),
        ("registers <= 64 %", "registers is in count"),
        ("time <= 60", "time needs a unit"),
        ("time <= 0", "time needs a unit"),
        ("energy <= 5", "energy needs a unit"),
        ("roofline.fraction >= 80", "more than the whole"),
        ("l2.hit_fraction >= 1.01", "more than the whole"),
    ],
)
def test_a_unit_that_does_not_fit_is_refused(text: str, message: str) -> None:
    """A unit must be the metric's; a number that can be misread needs one."""
    with pytest.raises(UnitError, match=message) as caught:
        parse_limit(text)

    assert "write" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (" time <= 60 GB ", "write it as 60 us"),
        ("registers <= 64 %", "write it as a bare number"),
        ("roofline.intensity >= 3 s", "write it as a number of FLOP/B"),
        (" energy <= 5 ", "write its unit, as 5 mJ"),
        ("power <= 5", "write its unit, as 5 W"),
        ("time <= 5", "write its unit, as 5 us"),
        (" roofline.fraction >= 80", "write 80 %, or a fraction up to 1"),
    ],
)
def test_a_unit_that_does_not_fit_is_shown_with_one_that_does(
    text: str, remedy: str
) -> None:
    """The error is of the whole limit, and its remedy can be copied."""
    with pytest.raises(UnitError) as caught:
        parse_limit(text)

    assert (caught.value.path, caught.value.remedy) == (text.strip(), remedy)


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("ttft <= 200 ms", "ttft"),
        ("p99-latency [s] <= 200 ms", "p99-latency [s]"),
        ("my <= 1", "my"),
        ("my metric <= 1", "my metric"),
        ("größe == 3", "größe"),
    ],
)
def test_recorded_names_are_known(text: str, metric: str) -> None:
    """A name given to record() is a metric, the longest that fits, in any script."""
    known = {"ttft", "p99-latency [s]", "my", "my metric", "größe", ""}
    assert parse_limit(text, names=known).metric == metric


def refusal(text: str) -> ConfigError | UnitError | None:
    """Return why a text is not a limit; None: it is one."""
    try:
        parse_limit(text)
    except (LimitSyntaxError, UnknownMetricError, UnitError) as problem:
        return problem
    return None


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused_by_name(text: str) -> None:
    """No text raises anything but an error of ours, and its column is in the text."""
    problem = refusal(text)

    if problem is None:
        assert parse_limit(text).text == text.strip()
    else:
        assert problem.remedy
        assert 0 <= getattr(problem, "column", 0) <= len(text)


@given(
    st.sampled_from(sorted(name for name, m in METRICS.items() if m.unit == "s")),
    st.sampled_from(["<=", "<", ">=", ">"]),
    st.floats(1e-9, 1e9),
)
def test_a_written_limit_reads_as_it_was_meant(
    metric: str, operator: str, value: float
) -> None:
    """Whatever number is written in seconds comes back."""
    limit = parse_limit(f"{metric}{operator}{value!r}s")
    assert (limit.metric, limit.operator) == (metric, operator)
    assert limit.threshold == value


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("5 %", {"time": 0.05}),
        ("0.05 fraction", {"time": 0.05}),
        ("0%", {"time": 0.0}),
        (" OFF ", {"time": None}),
        ({"time": "5 %", "registers": "0 %"}, {"time": 0.05, "registers": 0.0}),
        ({"ttft": "10 %"}, {"ttft": 0.1}),
        ({}, {}),
    ],
)
def test_max_regression_is_read(
    given_text: str | dict[str, str], expected: dict[str, float | None]
) -> None:
    """One text is for time; off is only shown."""
    assert parse_max_regression(given_text, names={"ttft"}) == expected


@pytest.mark.parametrize(
    ("given_text", "message"),
    [
        ("5", "'5' is not a percentage"),
        ("5 us", "'5 us' is not a percentage"),
        ("-5 %", "negative"),
        ("", "does not begin with a number"),
        ({"time": 0.05}, "not text"),
        (
            {"tmie": "5 %", "time": "5"},
            "unknown metric 'tmie'.*'5' is not a percentage",
        ),
    ],
)
def test_a_wrong_max_regression_is_refused(
    given_text: str | dict[str, str], message: str
) -> None:
    """All that is wrong is told at once."""
    with pytest.raises(ConfigError, match=message):
        parse_max_regression(given_text)


@pytest.mark.parametrize(
    ("given_text", "message", "remedy"),
    [
        ({3: "5 %"}, "3: a metric is named by text", _CHANGE),
        ({"time": 5}, "time: 5 is not text", "put it in quotes, with its %"),
        ("x", "time: 'x' does not begin with a number", _CHANGE),
        ("5", "time: '5' is not a percentage", _CHANGE),
        ("-5 %", "time: '-5 %' is negative", "write how much worse it may get"),
        (
            {"time": 5, "power": "-3 %", "energy": "6"},
            (
                "time: 5 is not text; put it in quotes, with its %; "
                "power: '-3 %' is negative; write how much worse it may get; "
                "energy: '6' is not a percentage"
            ),
            _CHANGE,
        ),
    ],
)
def test_a_wrong_max_regression_says_what_to_write(
    given_text: str | dict[str, str], message: str, remedy: str
) -> None:
    """Each mistake has its remedy behind it, the last one as the error's own."""
    with pytest.raises(ConfigError) as caught:
        parse_max_regression(given_text)

    assert (caught.value.message, caught.value.remedy) == (message, remedy)
