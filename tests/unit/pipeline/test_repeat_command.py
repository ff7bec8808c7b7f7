"""pipeline.repeat: the commands of child runs, and what comes back from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fakes.runner import FakeChild, finished
from pytest_gpuperf.collect.runner import Finished
from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError
from pytest_gpuperf.measure.site import ProcessIdentity
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.repeat import (
    ChildRun,
    ChildSpec,
    identities_of,
    last_lines,
    not_begun,
    repeat,
)

IDENTITY = ProcessIdentity(
    session=Session(id="s1", started_unix_s=1e9, host="h"), expected="/told"
)
PLAIN = CommandLine(
    args=("tests", "-k", "gemm"), folder="/project", variable="GPUPERF_CHILD"
)
PYTEST = (sys.executable, "-m", "pytest")


@pytest.mark.parametrize(
    ("changed", "args"),
    [
        ({}, ("tests", "-k", "gemm")),
        ({"plugins": frozenset({"xdist"})}, ("tests", "-k", "gemm", "-n0")),
        (
            {"plugins": frozenset({"cacheprovider"})},
            ("tests", "-k", "gemm", "-o", "cache_dir=/scratch/cache"),
        ),
        (
            {"own_basetemp": True},
            ("tests", "-k", "gemm", "--basetemp=/scratch/base"),
        ),
        (
            {"args": ("-n", "4", "--", "-odd.py"), "plugins": frozenset({"xdist"})},
            ("-n", "4", "-n0", "--", "-odd.py"),
        ),
        ({"args": ()}, ()),
    ],
)
def test_a_child_gets_the_parents_command(
    changed: Mapping[str, object], args: tuple[str, ...]
) -> None:
    """The same arguments, and what keeps it apart from its parent, before any `--`."""
    given = {"args": PLAIN.args, "folder": PLAIN.folder, "variable": "X", **changed}
    command = CommandLine(**given)  # type: ignore[arg-type] # names of its fields

    assert command.for_child("/scratch") == (*PYTEST, *args)


def measured(test_id: str, name: str = "") -> Record:
    return Record(
        key=RecordKey(test_id=test_id, name=name), kind=Kind.MEASURE, estimates=()
    )


def lines(*answers: ChildAnswer) -> bytes:
    return b"".join(codec.to_text(answer).encode() + b"\n" for answer in answers)


def run_child(
    answer: Callable[[ChildSpec], bytes],
    end: Finished | Exception | None = None,
    *,
    test_ids: Sequence[str] = ("a", "b"),
    command: CommandLine = PLAIN,
    identity: ProcessIdentity = IDENTITY,
) -> tuple[ChildRun, FakeChild]:
    child = FakeChild("GPUPERF_CHILD", answer, finished() if end is None else end)
    (run,) = repeat(
        command, test_ids, identities=[identity], runner=child, timeout_s=7.0
    )
    return run, child


def test_a_child_is_told_its_tests_and_its_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, in a file of its own; nothing of xdist, all else of the environment."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "u")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "t")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v")

    _, child = run_child(lambda _: b"", test_ids=["b", "a"])

    (call,) = child.calls
    assert child.specs[0].test_ids == ("b", "a")
    assert child.specs[0].identity == IDENTITY
    assert (call.argv, call.cwd, call.timeout_s) == (
        (*PYTEST, *PLAIN.args),
        "/project",
        7.0,
    )
    assert call.env is not None
    assert call.env["PYTEST_ADDOPTS"] == "-v"
    assert not [name for name in call.env if name.startswith("PYTEST_XDIST")]
    assert "PYTEST_CURRENT_TEST" not in call.env


def test_a_traced_child_has_coverage_data_of_its_own() -> None:
    """pytest-cov erases what it finds at its start: the parent's would be lost."""
    traced = replace(PLAIN, plugins=frozenset({"pytest_cov"}))
    _, child = run_child(lambda _: b"", command=traced)
    _, other = run_child(lambda _: b"")
    own, none = child.calls[0].env or {}, other.calls[0].env or {}

    assert Path(own["COVERAGE_FILE"]).parent == child.scratches[0]
    assert none.get("COVERAGE_FILE") == os.environ.get("COVERAGE_FILE")


def test_what_a_child_measured_comes_back() -> None:
    """By test id; a test that gave its values has no failure; its folder is gone."""
    record = measured("a")

    run, child = run_child(lambda _: lines(ChildAnswer(test_id="a", records=(record,))))

    assert run.answers["a"].records == (record,)
    assert run.failure_of("a") == ""
    assert not child.scratches[0].exists()


def test_several_answers_of_a_test_are_one() -> None:
    """Records are put together, and the first failure is the one that is told."""
    first, second = measured("a"), measured("a", "again")
    text = lines(
        ChildAnswer(test_id="a", records=(first,)),
        ChildAnswer(test_id="a", failure="one"),
        ChildAnswer(test_id="a", records=(second,), failure="two"),
    )

    run, _ = run_child(lambda _: text)

    assert run.answers["a"].records == (first, second)
    assert run.failure_of("a") == "one"


@pytest.mark.parametrize("broken", [b"{", b"[1]\n", b"\xff\n", b'{"test_id": 3}\n'])
def test_a_crash_costs_what_was_not_written(broken: bytes) -> None:
    """A line that was cut off, or written over, takes no other line with it."""
    good = lines(ChildAnswer(test_id="a", records=(measured("a"),)))

    run, _ = run_child(lambda _: good + broken)

    assert list(run.answers) == ["a"]


def test_a_test_that_a_child_never_reached_gets_its_last_lines() -> None:
    """The last lines of what it printed; where it printed nothing, that is said."""
    printed = "\n".join(f"line {number}" for number in range(50)).encode()

    run, _ = run_child(lambda _: b"", finished(1, stdout=printed))
    silent, _ = run_child(lambda _: b"", finished(1))

    assert run.failure_of("b").splitlines() == [f"line {n}" for n in range(35, 50)]
    assert silent.failure_of("b") == "the process never reached it"


def test_a_child_that_began_no_test_says_nothing_of_any() -> None:
    """Its answers' file is there as soon as one begins; else it is told how it started."""
    ended = finished(5, stdout=b"collected 0 items\n\n\x1b[33mno tests ran\n")
    none, _ = run_child(lambda _: b"", ended)
    some, _ = run_child(lambda _: b"\n", finished(-11))
    gap = not_begun(PLAIN, none)

    assert (none.began, some.began) == (False, True)
    assert gap.reason == (
        "a fresh process (python -m pytest tests -k gemm) began no test: collected 0 items"
        r" | \x1b[33mno tests ran"
    )


def test_last_lines_stand_as_they_are_or_in_a_sentence() -> None:
    """Blank ones are not counted; a sentence has a word for no line at all."""
    text = "one\n    two   2\n\n  three\n \n"

    assert last_lines(text, 2) == "    two   2\n  three"
    assert last_lines(text, 2, in_a_sentence=True) == "two 2 | three"
    assert last_lines(" \n", 2) == ""
    assert last_lines(" \n", 2, in_a_sentence=True) == "it printed nothing"


@pytest.mark.parametrize(
    "error",
    [
        CollectorUnavailableError("it cannot be started", remedy="install it"),
        CollectorTimeoutError("it did not end within 7 s", remedy="wait"),
    ],
)
def test_a_child_that_did_not_end_is_no_crash_of_ours(error: Exception) -> None:
    """What it had answered counts; the rest has the error with its remedy as reason."""
    run, child = run_child(
        lambda _: lines(ChildAnswer(test_id="a", records=(measured("a"),))), error
    )

    assert run.failure_of("a") == ""
    assert run.failure_of("b") == str(error)
    assert not child.scratches[0].exists()


def test_children_run_one_after_another() -> None:
    """One for each identity, in their order, each with its own folder."""
    child = FakeChild("GPUPERF_CHILD", lambda _: b"", finished())
    identities = identities_of(IDENTITY, Role.CONFIRM, 3)

    runs = repeat(PLAIN, ["a"], identities=identities, runner=child, timeout_s=1.0)

    assert len(runs) == 3
    assert [spec.identity for spec in child.specs] == identities
    assert len(set(child.scratches)) == 3


def caches_of(
    command: CommandLine, role: Role, *, answer: bytes = b""
) -> dict[str, str]:
    """Return the variables of a child's compilation caches that are its own."""
    (identity,) = identities_of(IDENTITY, role, 1)
    _, child = run_child(lambda _: answer, command=command, identity=identity)
    env = child.calls[0].env
    assert env is not None
    own = str(child.scratches[0])
    return {name: folder for name, folder in env.items() if folder.startswith(own)}


FRESH = replace(PLAIN, fresh_caches=True)
ALWAYS = {
    "CUDA_CACHE_PATH",
    "CUPY_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
}


def test_who_confirms_compiles_and_tunes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compiler gets a folder of its own that is there and empty, for one process."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "/home/me/triton")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    found: list[list[Path]] = []

    def look(spec: ChildSpec) -> bytes:
        found.append(list(Path(spec.out).parent.glob("jit/*/**")))
        return b""

    identities = identities_of(IDENTITY, Role.CONFIRM, 2)
    child = FakeChild("GPUPERF_CHILD", look, finished())
    repeat(FRESH, ["a"], identities=identities, runner=child, timeout_s=1.0)
    first, second = (
        {call.env[name] for name in ALWAYS} for call in child.calls if call.env
    )

    assert len(first) == len(second) == len(ALWAYS)
    assert first.isdisjoint(second)
    assert {str(folder) for folder in found[0]} >= first
    assert "JAX_COMPILATION_CACHE_DIR" not in (child.calls[0].env or {})


@pytest.mark.parametrize(
    ("command", "role"), [(PLAIN, Role.CONFIRM), (FRESH, Role.REPEAT)]
)
def test_caches_are_kept_where_nothing_is_confirmed_or_keep_is_said(
    command: CommandLine, role: Role
) -> None:
    """gpuperf_jit_cache=keep, and --gpuperf-runs: a child finds what its parent made."""
    assert not ALWAYS & caches_of(command, role).keys()


def test_a_cache_that_is_off_is_not_switched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JAX keeps what it compiled only where it was told where: then a child has its own."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/home/me/jax")

    assert "JAX_COMPILATION_CACHE_DIR" in caches_of(FRESH, Role.CONFIRM)


def test_fresh_processes_have_identities_of_their_own() -> None:
    """Numbered from 1, with a writer each, in the same session; they expect nothing."""
    identities = identities_of(IDENTITY, Role.REPEAT, 2)

    assert [(s.process_index, s.writer, s.role) for s in identities] == [
        (1, "repeat-1", Role.REPEAT),
        (2, "repeat-2", Role.REPEAT),
    ]
    assert {(s.session.id, s.expected) for s in identities} == {("s1", None)}
    assert identities_of(IDENTITY, Role.REPEAT, 0) == []


@pytest.mark.parametrize(
    ("exit_code", "failure"),
    [
        (-9, "the process was killed by SIGKILL"),
        (-200, "the process was killed by signal 200"),
    ],
)
def test_a_process_that_was_killed_says_by_what(exit_code: int, failure: str) -> None:
    """It can print nothing itself, as where memory ran out."""
    ended, _ = run_child(lambda _: b"", finished(exit_code))

    assert ended.failure_of("a") == failure
