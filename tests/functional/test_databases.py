"""A run whose store is a database judges, stores and accepts as with files."""

from __future__ import annotations

import pytest

from fakes.project import VALUES, Project, command, lines
from fakes.servers import PASSWORD, new_database, sql, url
from pytest_gpuperf.baseline.protocol import Store
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.model.record import REFERENCES

NEW = "--gpuperf-update=new"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """Return the name of a database that has nothing."""
    return "sqlite:///perf.db" if request.param == "sqlite" else new_database()


def test_a_database_holds_the_baseline(project: Project, place: str) -> None:
    """A change is found against it, accepted, and the sessions are listed."""
    project.write(VALUES)
    baseline = f"--gpuperf-baseline={place}"
    stored = [project.run(NEW, baseline) for _ in range(5)]
    gated = project.run(baseline, "--gpuperf-confirm=1")
    project.set_values(b=1.5)
    slower = project.run(baseline, "--gpuperf-confirm=1")
    part = project.run(baseline, "--gpuperf-confirm=1", "-k", "b")
    project.run(baseline, "--gpuperf-update=all", "--gpuperf-confirm=1")
    after = project.run(baseline, "--gpuperf-confirm=1")

    assert [run.ret for run in (*stored, gated)] == [0] * 6
    assert (slower.ret, after.ret) == (1, 0)
    assert lines(slower, "test_x[b] x", "REGRESSED")
    # A run of one test of three is no evidence, but is read of its sessions, too.
    assert lines(part, "not confirmed")
    listed = command("baseline", "list", place, folder=project.path)
    assert listed.returncode == 0
    assert PASSWORD not in listed.stdout + listed.stderr
    assert "6 sessions of 3 tests" in listed.stdout


def test_a_missing_database_stops_the_run(project: Project) -> None:
    """Before any test runs, and with the command that creates it."""
    project.write(VALUES)
    ended = project.run("--gpuperf-baseline=sqlite:///absent.db")

    assert ended.ret == 4
    assert lines(ended, "there is no baseline at", "--gpuperf-update=new")
    assert not (project.path / "absent.db").exists()


def test_a_password_is_nowhere(project: Project) -> None:
    """Not in the output, in a report, or in the arguments of a process that confirms."""
    place = new_database()
    project.write(
        VALUES
        + """
    def test_arguments():
        import pathlib, sys
        with open("arguments.txt", "a") as file:
            file.write(pathlib.Path("/proc/self/cmdline").read_text() + repr(sys.argv))
    """
    )
    baseline = f"--gpuperf-baseline={place}"
    reports = ("--gpuperf-json=run.json", "--junit-xml=junit.xml")
    runs = [project.run(NEW, baseline, *reports) for _ in range(3)]
    project.set_values(b=1.5)
    runs.append(project.run(baseline, "--gpuperf-confirm=2", *reports))
    runs.append(project.run(baseline.replace(PASSWORD, f"{PASSWORD}x"), *reports))

    assert [run.ret for run in runs] == [0, 0, 0, 1, 4]
    for run in runs:
        assert PASSWORD not in "\n".join((*run.outlines, *run.errlines))
    for path in project.path.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            # pytest itself was given it here.
            if path.name != "arguments.txt":
                assert PASSWORD.encode() not in held, path


@pytest.mark.parametrize("target", [".gpuperf", "baseline.json", "sqlite:///copy.db"])
def test_a_snapshot_judges_as_its_source(
    project: Project, place: str, target: str
) -> None:
    """A copy has the same sessions in the same order, and copying again adds nothing."""
    project.write(VALUES)
    for value in (1.0, 1.01, 0.99):
        project.set_values(b=value)
        project.run(NEW, f"--gpuperf-baseline={place}")

    copied = [
        command("baseline", "copy", place, target, folder=project.path)
        for _ in range(2)
    ]
    project.set_values(b=1.5)
    slower = project.run(f"--gpuperf-baseline={target}", "--gpuperf-confirm=1")

    assert [each.returncode for each in copied] == [0, 0]
    assert "copied 3 sessions" in copied[0].stdout
    assert PASSWORD not in copied[0].stdout
    of_source, of_copy = (
        loaded(open_store(name, project.path)) for name in (place, target)
    )
    assert of_copy == of_source
    assert lines(slower, "test_x[b] x", "REGRESSED")


def loaded(store: Store) -> dict[str, list[tuple[str, float]]]:
    """Return sessions and values of each test."""
    (slug,) = store.slugs()
    return {
        str(key): [(r.session.id, r.values[0].run_values[0]) for r in records]
        for key, records in store.load(slug).items()
        if key.test_id != REFERENCES
    }


def test_a_copy_of_an_unknown_machine_is_refused(project: Project) -> None:
    """The machines that there are, are named."""
    project.store(sessions=1)
    refused = command(
        *("baseline", "copy", ".gpuperf", "x.json", "--machine=h200"),
        folder=project.path,
    )

    assert refused.returncode == 2
    assert "has no sessions of h200" in refused.stderr
    assert "name one of" in refused.stderr
    assert not (project.path / "x.json").exists()


def test_the_printed_grants_let_roles_store_and_read(project: Project) -> None:
    """A user in gpuperf_write stores, a user in gpuperf_read gates and cannot store."""
    owner = new_database()
    name = owner.partition("@/")[2].partition("?")[0]
    project.write(VALUES)
    project.run(NEW, f"--gpuperf-baseline={owner}")
    statements = command("baseline", "grants").stdout
    for _ in range(2):  # They may be run again.
        sql(statements, name)
    for role in ("read", "write"):
        sql(f"CREATE USER {role}_{name} PASSWORD 'pw' IN ROLE gpuperf_{role}")
    writing, reading = (
        f"--gpuperf-baseline={url(name, f'{role}_{name}', 'pw')}"
        for role in ("write", "read")
    )

    stored = [project.run(NEW, writing) for _ in range(3)]
    project.set_values(b=1.5)
    gated = project.run(reading, "--gpuperf-confirm=1")
    refused = project.run(reading, NEW)

    assert [run.ret for run in (*stored, gated, refused)] == [0, 0, 0, 1, 1]
    assert lines(gated, "test_x[b] x", "REGRESSED")
    assert lines(refused, "permission denied", "gpuperf_write")


@pytest.mark.parametrize("options", [(), (NEW,)])
def test_a_server_that_is_lost_during_a_run_loses_no_result(
    project: Project, options: tuple[str, ...]
) -> None:
    """The run says so and fails; its table and its report are written."""
    place = new_database()
    project.write(VALUES)
    baseline = f"--gpuperf-baseline={place}"
    for _ in range(2):
        project.run(NEW, baseline)
    closing = """
    def test_z_last():
        import psycopg
        with psycopg.connect(SERVER, autocommit=True) as link:
            link.execute("ALTER DATABASE NAME ALLOW_CONNECTIONS false")
            link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = 'NAME'"
            )
    """
    name = place.partition("@/")[2].partition("?")[0]
    closing = closing.replace("SERVER", repr(url("postgres"))).replace("NAME", name)
    project.write(VALUES + closing)
    ended = project.run(baseline, "--gpuperf-json=run.json", *options)

    assert ended.ret == 1
    assert lines(ended, "test_x[a] x")
    assert not lines(ended, "INTERNALERROR")
    assert len(project.report()["records"]) == 3
    assert PASSWORD not in ended.stdout.str() + ended.stderr.str()
