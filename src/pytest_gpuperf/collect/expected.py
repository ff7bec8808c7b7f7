"""The tests that the processes of a run are going to measure: a file per process."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.disk import write_whole
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.run import Expected


def write_expected(folder: str, writer: str, expected: Expected) -> None:
    """Write the tests that a worker will measure, in case the worker crashes."""
    target = Path(folder) / f"expected-{writer}.json"
    write_whole(target, codec.to_text(expected).encode(), sync=False)


def read_expected(folder: str) -> Expected:
    """Return the tests that all workers will measure, without duplicates."""
    test_ids: dict[str, None] = {}
    modules: dict[str, None] = {}
    partial: dict[str, None] = {}
    dropped: dict[str, None] = {}
    selections: set[str | None] = set()
    unsure: dict[str, None] = {}
    wholes: set[tuple[str | None, int | None, int | None]] = set()
    keys: dict[str, str] = {}
    unchanged: dict[str, str] = {}
    all_changed = ""
    judged: dict[str, None] = {}
    for file in sorted(Path(folder).glob("expected-*.json")):
        expected = codec.from_text(file.read_bytes(), Expected, path=str(file))
        test_ids |= dict.fromkeys(expected.test_ids)
        modules |= dict.fromkeys(expected.whole_modules)
        partial |= dict.fromkeys(expected.partial_modules)
        unsure |= dict.fromkeys(expected.unsure_modules)
        wholes.add(
            (expected.collected, expected.collected_count, expected.measuring_count)
        )
        keys |= expected.keys
        dropped |= dict.fromkeys(expected.dropped)
        selections.add(expected.selection)
        unchanged |= dict.fromkeys(expected.unchanged, expected.unchanged_since)
        all_changed = all_changed or expected.all_changed
        judged |= dict.fromkeys(expected.judged)
    collected, count, measuring = wholes.pop() if len(wholes) == 1 else (None,) * 3
    return Expected(
        test_ids=tuple(test_ids),
        whole_modules=tuple(modules),
        partial_modules=tuple(partial),
        unsure_modules=tuple(unsure),
        collected=collected,
        collected_count=count,
        measuring_count=measuring,
        keys=keys,
        selection=selections.pop() if len(selections) == 1 else None,
        # Another worker may run a test that one worker has left out.
        dropped=tuple(test_id for test_id in dropped if test_id not in test_ids),
        unchanged=tuple(test_id for test_id in unchanged if test_id not in test_ids),
        unchanged_since=next(iter(unchanged.values()), ""),
        all_changed=all_changed,
        judged=tuple(judged),
    )
