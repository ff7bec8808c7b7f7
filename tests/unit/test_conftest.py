"""tests/conftest.py: how many tests used a GPU is counted by their marker."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("@pytest.mark.parametrize('on', ['gpu'])\ndef test_it(on): pass", None),
        ("def test_gpu(): pass", None),
        ("@pytest.mark.gpu\ndef test_it(): pass", "1 of 1 GPU tests ran"),
        (
            "@pytest.mark.gpu\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): n == 1 or pytest.skip('none')",
            "1 of 2 GPU tests ran",
        ),
    ],
    ids=["parameter", "name", "marker", "skipped"],
)
def test_a_gpu_test_is_one_that_is_marked(
    pytester: pytest.Pytester, tests: str, told: str | None
) -> None:
    """The id of a parameter and the name of a test are words, and no marker."""
    pytester.makeini("[pytest]\nmarkers = gpu: needs a GPU\n")
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile(f"import pytest\n{tests}\n")
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    lines = [line for line in ended.outlines if "GPU tests ran" in line]
    assert lines == ([] if told is None else [told])


def test_what_may_not_be_counted_is_skipped(pytester: pytest.Pytester) -> None:
    """Permission shows when counting begins: a GPU test then names it, and fails for all else."""
    pytester.makeconftest("from gpu.conftest import pytest_runtest_call")
    pytester.makepyfile(
        """
        import pytest
        from pytest_gpuperf.errors import CollectError, CounterPermissionError

        @pytest.mark.parametrize("kind", [CounterPermissionError, CollectError])
        def test_it(kind):
            raise kind("only root may count", remedy="ask root")
        """
    )
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs")

    ended.assert_outcomes(skipped=1, failed=1)
    ended.stdout.fnmatch_lines(["SKIPPED * counters: only root may count; ask root*"])
