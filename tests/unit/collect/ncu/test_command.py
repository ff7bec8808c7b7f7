"""collect.ncu.command: a start of ncu as a value."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fake_ncu import _FLAGS, _parsed
from pytest_gpuperf.collect import ncu
from pytest_gpuperf.collect.ncu.command import Command, Modes, paired_modes
from pytest_gpuperf.collect.ncu.metrics import Metric, MetricCounter
from pytest_gpuperf.errors import MeasureError, RecordError
from pytest_gpuperf.model.frozen import replace

CONDITIONS = (
    "--replay-mode=kernel",
    "--cache-control=all",
    "--clock-control=none",
    "--graph-profiling=node",
    "--target-processes=all",
    "--config-file=off",
    "--rename-kernels=off",
)


def command(**changes: object) -> Command:
    """Return a command with only what it must have, and some changes."""
    return Command(**({"executable": "./saxpy", "output": "out"} | changes))  # type: ignore[arg-type] # wrong values are what is tested


def mistakes_of(**changes: object) -> str:
    with pytest.raises(RecordError) as caught:
        command(**changes)
    return str(caught.value)


def test_the_least_that_is_asked_for() -> None:
    """Given options, summary, sampling, conditions, places, program: in this order."""
    assert command().cmd == (
        "ncu",
        "--print-summary=per-kernel",
        "--warp-sampling-interval=0",
        *CONDITIONS,
        "--force-overwrite",
        "-o",
        "out",
        "--log-file",
        "out.log",
        "./saxpy",
    )


def test_all_that_can_be_asked_for() -> None:
    """Ranges before metrics, each filter its own option, metrics joined in order."""
    full = command(
        executable=Path("/usr/bin/python3"),
        output=Path("folder", "out"),
        opts=("--set", "full"),
        metrics=[MetricCounter("dram__bytes"), "sm__cycles_active.avg"],
        nvtx_includes=["a@b", "c/"],
        nvtx_excludes=["d"],
        args=("t.py", Path("x y")),
        ncu=Path("/opt/ncu"),
        kernel_name="regex:^k",
        kernel_name_base="demangled",
        kernel_id="::k:1",
        launch_skip=0,
        launch_count=3,
        replay_mode="application",
        cache_control="none",
        clock_control="base",
        graph_profiling="graph",
        target_processes="application-only",
    )

    assert full.cmd == (
        "/opt/ncu",
        "--set",
        "full",
        "--print-summary=per-kernel",
        "--warp-sampling-interval=0",
        "--nvtx",
        "--print-nvtx-rename=kernel",
        "--nvtx-include=a@b",
        "--nvtx-include=c/",
        "--nvtx-exclude=d",
        "--metrics=dram__bytes.sum,sm__cycles_active.avg",
        "--replay-mode=application",
        "--cache-control=none",
        "--clock-control=base",
        "--graph-profiling=graph",
        "--target-processes=application-only",
        "--kernel-name=regex:^k",
        "--kernel-name-base=demangled",
        "--kernel-id=::k:1",
        "--launch-skip=0",
        "--launch-count=3",
        "--config-file=off",
        "--rename-kernels=off",
        "--force-overwrite",
        "-o",
        "folder/out",
        "--log-file",
        "folder/out.log",
        "/usr/bin/python3",
        "t.py",
        "x y",
    )


def test_excludes_alone_leave_the_rest_in() -> None:
    """`ncu` itself takes them so: an exclude needs no include."""
    opts = command(nvtx_excludes=("warmup",)).opts

    assert "--nvtx" in opts
    assert "--nvtx-exclude=warmup" in opts
    assert not any(each.startswith("--nvtx-include") for each in opts)


@pytest.mark.parametrize(
    ("output", "report", "log"),
    [
        ("report", "report.ncu-rep", "report.log"),
        ("report.v1", "report.v1.ncu-rep", "report.v1.log"),
        ("a.b/r.ncu-rep", "a.b/r.ncu-rep", "a.b/r.ncu-rep.log"),
    ],
)
def test_a_suffix_is_appended(output: str, report: str, log: str) -> None:
    """Two outputs that differ behind a dot are two reports and two logs."""
    made = command(output=output)

    assert (made.report, made.log) == (Path(report), Path(log))


def test_the_stored_options_hold_no_place() -> None:
    """They are what a cache may compare: the same wherever the report goes."""
    assert command(output="a").opts == command(output="b").opts
    assert command(opts=["--verbose"]).opts[0] == "--verbose"


def test_a_command_is_a_value() -> None:
    """Equal ones have equal hashes, survive pickling, and cannot be changed."""
    first, second = (
        command(metrics=[Metric("dram__bytes.sum")], env={"A": "1"}, args=["x"])
        for _ in range(2)
    )

    assert first == second == pickle.loads(pickle.dumps(first))  # noqa: S301 - our own
    assert hash(first) == hash(second)
    assert first != replace(first, env={"A": "2"})
    with pytest.raises(AttributeError):
        first.ncu = "other"  # type: ignore[misc] # it must not


def test_a_changed_copy_starts_from_what_was_given() -> None:
    """The options that followed from other fields are made anew."""
    first = command(opts=("--verbose",), metrics=["dram__bytes.sum"])

    changed = replace(first, metrics=["sm__cycles_active.avg"])

    assert changed == command(opts=("--verbose",), metrics=["sm__cycles_active.avg"])
    assert replace(first) == first


def test_the_callers_environment_is_copied() -> None:
    """A mapping that changes later is not the command's."""
    env = {"A": "1"}
    made = command(env=env)
    env["A"] = "2"

    assert made.env == {"A": "1"}


def test_options_may_say_what_a_field_says() -> None:
    """As a text with =, or as two; once in argv, and the field tells the truth."""
    made = command(
        opts=("--cache-control=none", "-c", "5", "--clock-control", "base", "--nvtx"),
        nvtx_includes=("a",),
    )

    assert (made.cache_control, made.clock_control, made.launch_count) == (
        "none",
        "base",
        5,
    )
    for name in ("--cache-control", "--clock-control", "--launch-count", "--nvtx"):
        said = [each for each in made.cmd if each.partition("=")[0] == name]
        assert len(said) == (0 if name == "--launch-count" else 1)
    assert replace(made) == made


def test_all_mistakes_are_told_at_once() -> None:
    """Each with its field."""
    told = mistakes_of(
        executable="-x",
        output="%p",
        opts=("full", "--log-file=x", ""),
        metrics=["no metric"],
        replay_mode="kernels",
        cache_control="some",
        launch_skip=-1,
        launch_count=True,
        nvtx_includes=["/"],
        kernel_name="",
        timeout_s=0,
        args=[3],
    )

    for field in (
        "executable: ",
        "output: ",
        "opts[0]: ",
        "opts[1]: ",
        "opts[2]: ",
        "metrics: ",
        "replay_mode: ",
        "cache_control: ",
        "launch_skip: ",
        "launch_count: ",
        "nvtx_includes[0]: ",
        "kernel_name: ",
        "timeout_s: ",
        "args[0]: ",
    ):
        assert field in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"executable": "", "output": 3, "opts": "-k x"}, "not a path; output: 3 is"),
        ({"metrics": "dram__bytes.sum"}, "not a tuple"),
        ({"env": {"A": 1}}, "mapping of texts"),
        ({"env": ["A"]}, "mapping of texts"),
        ({"output": "."}, "is a folder"),
        ({"output": "a/.."}, "is a folder"),
        ({"opts": ("-c", 3)}, "list of texts"),
        ({"opts": ("--set=full", "x")}, "take 'x' for the program"),
        ({"opts": ("-c", "3", "x")}, "take 'x' for the program"),
        ({"metrics": [3]}, "3 is not text"),
        ({"env": {"A=B": "1", "": "1"}}, "['A=B', ''] are not names of variables"),
        (
            {"cache_control": "none", "opts": ("--cache-control=all",)},
            "opts have 'all'",
        ),
        ({"launch_count": 2, "opts": ("-c", "3")}, "2, and opts have 3"),
        ({"launch_count": None, "opts": ("-c", "x")}, "'x' is not a number"),
        ({"metrics": ["a__b.sum"], "opts": ("--metrics=x",)}, "opts have --metrics"),
        ({"nvtx_excludes": ["a"], "replay_mode": "range"}, "no excludes"),
        ({"kernel_name_base": "function"}, "without kernel_name"),
        ({"timeout_s": float("inf")}, "finite"),
    ],
)
def test_a_mistake_is_refused(changes: dict[str, object], words: str) -> None:
    """What ncu would misunderstand, or what two places say differently."""
    assert words in mistakes_of(**changes)


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/"),
    min_size=1,
).filter(str.strip)


@given(includes=st.lists(texts, max_size=3), args=st.lists(texts, max_size=3))
def test_no_text_is_taken_apart(includes: list[str], args: list[str]) -> None:
    """Blanks, quotes and equal signs arrive as they are: there is no shell."""
    made = command(nvtx_includes=includes, args=args)

    options, program = _parsed(made.cmd[1:])

    assert program == ["./saxpy", *args]
    assert options.get("--nvtx-include", []) == includes
    assert not _FLAGS & {*args} - {*program}


@pytest.mark.parametrize(
    ("cache", "clocks", "modes"),
    [
        ("cold", "free", Modes("all", "none")),
        ("warm", "free", Modes("none", "none")),
        ("none", "locked", Modes("none", "none")),
        ("cold", "base", Modes("all", "base")),
    ],
)
def test_modes_pair_with_the_test(cache: str, clocks: str, modes: Modes) -> None:
    """Counters are taken under the conditions of the time beside them."""
    assert paired_modes(cache, clocks=clocks) == modes
    command(**modes._asdict())


def test_unknown_modes_are_refused_together() -> None:
    """Both mistakes, with what there is."""
    with pytest.raises(MeasureError, match=r"cache: .hot.*clocks: .fast"):
        paired_modes("hot", clocks="fast")


def test_it_is_a_public_name_of_the_room() -> None:
    """`from pytest_gpuperf.collect.ncu import Command`."""
    assert ncu.Command is Command
    assert os.fspath(command().log) == "out.log"
