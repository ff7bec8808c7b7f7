"""A pytest inside a test of another: each registers the plugin anew."""

from __future__ import annotations

import pytest

from fakes.project import Project

NESTED = """
    import pytest_gpuperf

    pytest_plugins = "pytester"


    def test_twice(pytester):
        pytester.makepyfile("def test_it(gpuperf):\\n    assert gpuperf(sum, [1]) == 1")
        for _ in range(2):
            ended = pytester.inline_run("-p", "pytest_gpuperf.plugin", "-q")
            ended.assertoutcome(passed=1)
"""


STORING = """
    pytest_plugins = "pytester"

    def test_nested(pytester):
        pytester.makepyfile("def test_it(gpuperf):\\n    gpuperf.measure(dir)")
        for _ in range(2):
            ended = pytester.inline_run(
                "-p", "pytest_gpuperf.plugin", "-q", "--gpuperf-update=all"
            )
            ended.assertoutcome(passed=1)

    def test_measures(gpuperf):
        gpuperf.measure(dir)
"""


def test_a_run_stores_after_one_inside_it_has_stored(project: Project) -> None:
    """pytester removes what the inner one loaded, and the outer one loads no second copy."""
    project.write(STORING)
    for _ in range(2):
        ended = project.spawn("-q", "--gpuperf-update=all")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "Error" not in ended.stdout

    assert len([*(project.path / ".gpuperf").glob("*/test_it.json")]) == 1


def test_two_runs_inside_one_that_has_no_plugin(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytester removes the modules of each, and the package keeps them as attributes."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project.write(NESTED)
    ended = project.plain("-q")

    assert ended.returncode == 0, ended.stdout + ended.stderr
