"""A Runner that starts nothing and answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.collect.runner import Finished, LiveProcess
from pytest_gpuperf.model import codec
from pytest_gpuperf.pipeline.repeat import ChildSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One command that was asked for."""

    argv: tuple[str, ...]
    timeout_s: float
    cwd: str | None
    env: dict[str, str] | None
    stdin: bytes


class FakeRunner:
    """
    Answers each command with the next of its answers; an exception is raised.

    A runner whose answers depend on the command has an `answer` of its own.

    Attributes:
        calls: What was asked for, in order.
    """

    def __init__(self, answers: Iterable[Finished | Exception] = ()) -> None:
        self._answers = list(answers)
        self.calls: list[Call] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Finished:
        call = Call(
            argv=tuple(argv),
            timeout_s=timeout_s,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
        )
        self.calls.append(call)
        return self.answer(call)

    def answer(self, call: Call) -> Finished:
        """Return how a command ends."""
        if not self._answers:
            message = f"nobody scripted an answer to {call.argv}"
            raise AssertionError(message)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def start(
        self,
        argv: Sequence[str],
        *,
        log: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> LiveProcess:
        """Answer like `run`; the process has ended, and its log holds what it wrote."""
        ended = self.run(argv, timeout_s=0.0, cwd=cwd, env=env)
        Path(log).write_bytes(ended.stdout + ended.stderr)
        return FakeProcess(ended.exit_code)


class FakeProcess:
    """
    A process that ends when it is told to.

    Attributes:
        exit_code: Its exit status; None: it runs.

        ended: Whether somebody has ended it, or let go of it.
    """

    def __init__(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        self.ended = False

    def end(self) -> None:
        self.ended = True
        if self.exit_code is None:
            self.exit_code = -9


class FakeChild(FakeRunner):
    """
    Stands in for a pytest that measures again and answers in its file.

    Args:
        variable: The environment variable that names its file.

        text: What it writes, by what it was told.

        end: How it ends, each time.

    Attributes:
        specs: What each child was told.

        scratches: The folder of each.
    """

    def __init__(
        self,
        variable: str,
        text: Callable[[ChildSpec], bytes],
        end: Finished | Exception,
    ) -> None:
        super().__init__([end] * 9)
        self._variable = variable
        self._text = text
        self.specs: list[ChildSpec] = []
        self.scratches: list[Path] = []

    def answer(self, call: Call) -> Finished:
        place = Path((call.env or {})[self._variable])
        spec = codec.from_text(place.read_bytes(), ChildSpec)
        self.specs.append(spec)
        self.scratches.append(place.parent)
        text = self._text(spec)
        if text:
            Path(spec.out).write_bytes(text)
        return super().answer(call)


def finished(
    exit_code: int = 0, *, stdout: bytes = b"", stderr: bytes = b""
) -> Finished:
    """Return the end of some process."""
    return Finished(argv=("fake",), exit_code=exit_code, stdout=stdout, stderr=stderr)
