"""A regression is a failed test wherever a person or a machine looks."""

from __future__ import annotations

from fakes.project import Project, lines

BASELINE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")


def test_a_regression_is_one_case_and_one_failure(project: Project) -> None:
    """JUnit has one case for the test, with one failure; pytest returns 1."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*BASELINE, "--junitxml=junit.xml")

    assert ended.ret == 1
    assert project.junit() == [
        ("test_x[a]",),
        ("test_x[b]", "failure"),
        ("test_x[c]",),
    ]
    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
