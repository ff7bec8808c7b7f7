"""Kinds of repositories: each is compared at the first level that is proven, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.repositories import KINDS, Repo, need


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if kind.is_fast else pytest.mark.long)
        for name, kind in KINDS.items()
    ],
)
def test_each_side_runs_its_own_files(
    name: str,
    repo: Repo,
    opened: Callable[..., dict[str, Any]],
    scratch: Path,
) -> None:
    """The level is the first that is proven; N is 1 on the old side and 2 on the new one."""
    kind = KINDS[name]
    need(kind.needs)
    kind.build(repo)
    before = repo.git("status", "--porcelain")

    answer = opened(repo)

    if kind.level is None:
        assert kind.says in answer["text"]
    else:
        assert answer.get("level") == kind.level, answer
        assert answer["told"][-2:] == ["2", "1"]
        assert answer["test_ids"] == ["tests/test_core.py::test_work"]
        assert kind.says in " ".join(answer["remarks"])
    assert not list(scratch.iterdir())
    assert repo.git("worktree", "list").count("\n") == 0
    assert repo.git("status", "--porcelain") == before
