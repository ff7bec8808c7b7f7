"""pipeline.keeping: what of a run a baseline keeps."""

from __future__ import annotations

from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role
from pytest_gpuperf.pipeline.keeping import confirming


def record(choice: str, role: Role = Role.CONFIRM) -> Record:
    """Return what a process measured with a choice of kernels."""
    key = RecordKey(test_id="a")
    return Record(key=key, kind=Kind.MEASURE, estimates=(), choice=choice, role=role)


def test_processes_that_chose_other_kernels_are_no_part_of_a_session() -> None:
    """The kernels that most of them chose, which the verdict is of, are stored."""
    usual = [record("a") for _ in range(4)]
    drawn = [record("c", Role.REPEAT), record("b"), *usual]

    assert confirming(drawn) == usual
