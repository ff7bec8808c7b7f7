"""Test ids that are hard on files, on XML and on shells."""

from __future__ import annotations

import pytest

from fakes.project import Project, lines

ODD = [
    "a/b",
    "../../etc/passwd",
    "with space",
    "äöü-日本-🚀",
    "x" * 5000,
    "a::b",
    "a@group",
    "[brackets]",
    "<&\\\"'>",
    "%s{0}$HOME`ls`",
    "line\nbreak",
    "CON",
]


def test_odd_ids_are_measured_stored_and_compared(project: Project) -> None:
    """Every id is one measurement with one baseline of its own, inside the store."""
    project.write(
        f"""
        import pytest

        @pytest.mark.gpuperf(max_regression={{"x": "5 %"}})
        @pytest.mark.parametrize("name", {ODD!r}, ids=str)
        def test_it(gpuperf, name):
            gpuperf.record("x", len(name), unit="s", better="lower")
        """
    )
    for _ in range(3):
        assert project.run("--gpuperf-update=new", "-q").ret == 0
    ended = project.run(
        "--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json", "--junitxml=junit.xml"
    )

    assert ended.parseoutcomes() == {"passed": len(ODD)}
    assert lines(ended, f"judged {len(ODD)} of {len(ODD)}: {len(ODD)} unchanged")
    assert len(project.outcomes()) == len(ODD)
    assert len(project.junit()) == len(ODD)
    assert {path.name for path in project.path.iterdir()} <= {
        *(".gpuperf", "junit.xml", "run.json", "test_it.py"),
        *(".pytest_cache", "__pycache__"),
    }
    assert not (project.path.parent / "etc").exists()


def test_odd_names_of_measurements(project: Project) -> None:
    """A measurement may be called anything; each name is one measurement."""
    project.write(
        f"""
        def test_it(gpuperf):
            for name in {ODD!r}:
                gpuperf.record(name, 1.0)
                gpuperf.measure(int, name="m" + name)
        """
    )
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-update=all")

    assert ended.parseoutcomes() == {"passed": 1}
    assert len(project.report()["records"]) == 2 * len(ODD)


def test_files_in_folders_with_the_same_name(project: Project) -> None:
    """The whole id tells tests apart, not the file's name."""
    text = "def test_it(gpuperf):\n    gpuperf.record('x', 1)\n"
    project.write(text, "a/test_it.py")
    project.write(text, "b c/test_it.py")
    ended = project.run("--import-mode=importlib", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 2}
    assert [r["key"]["test_id"] for r in project.report()["records"]] == [
        "a/test_it.py::test_it",
        "b c/test_it.py::test_it",
    ]


def test_markup_in_an_id_does_not_reach_the_terminal(project: Project) -> None:
    """An escape sequence in an id is shown, not obeyed."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        @pytest.mark.parametrize("name", [1], ids=["\\x1b[31mred"])
        def test_it(gpuperf, name):
            gpuperf.record("x", 2)
        """
    )
    ended = project.run()

    assert ended.parseoutcomes() == {"failed": 1}
    assert "\x1b[31mred" not in ended.stdout.str()


@pytest.mark.parametrize("flag", ["-v", "-q", "-rA"])
def test_verbosity_changes_no_outcome(project: Project, flag: str) -> None:
    """However much is printed, the last line says how much was judged."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        def test_it(gpuperf):
            gpuperf.record("x", 1)
        """
    )

    assert lines(project.run(flag), "judged 1 of 1: 1 passed")
