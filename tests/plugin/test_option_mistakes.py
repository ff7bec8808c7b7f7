"""Options that make no sense are usage errors, all told at once."""

from __future__ import annotations

import pytest

from fakes.project import XDIST, Project, lines

WRONG = {
    "gpuperf-update": "everything",
    "gpuperf-max-regression": "5",
    "gpuperf-min-judged": "many",
    "gpuperf-compare-across": "weather",
    "gpuperf-shard": "5/4",
    "gpuperf-run-id": "7" * 201,
    "gpuperf-confirm": "-1",
    "gpuperf-confirm-by": "luck",
    "gpuperf-against": "-1",
    "gpuperf-against-tests": "theirs",
    "gpuperf-budget": "10",
    "gpuperf-runs": "0",
    "gpuperf-collectors": "magic",
    "gpuperf-device": "first",
    "gpuperf-lock": "mine",
    "gpuperf-replay": "nowhere",
    "gpuperf-json": "no/such/folder/run.json",
}


def told(ended: pytest.RunResult) -> set[str]:
    """Return the options that an error names."""
    return {name for name in WRONG if lines(ended, "gpuperf: ", f"{name}=")}


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_all_wrong_options_are_told_at_once(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Exit status 4 and one line for each, before a test was collected."""
    project.write("raise ZeroDivisionError\n")
    ended = project.run(*(f"--{name}={WRONG[name]}" for name in WRONG), *workers)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert told(ended) == set(WRONG)
    assert lines(ended, "ZeroDivisionError") == []


@pytest.mark.parametrize("share", ["50", "50%", " 50 % "])
def test_a_share_of_tests_needs_no_sign(project: Project, share: str) -> None:
    """A whole number can only be a percentage; 0.5 can be two things."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    good = project.run(f"--gpuperf-min-judged={share}")
    bad = project.run("--gpuperf-min-judged=0.5")

    assert good.ret == pytest.ExitCode.TESTS_FAILED
    assert lines(good, "judged 0 of 1 test; --gpuperf-min-judged=50% requires 1")
    assert bad.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(bad, "write a percentage, as 5%")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("compare-across=gpu", "gpu is not a fact; did you mean gpu_name"),
        ("collectors=cupty", "cupty is not a collector; did you mean cupti"),
        ("collectors=cuda", "cuda is not a collector; write some of auto, replay"),
        ("collectors=magic", "magic is not a collector; write some of auto, replay"),
        ("max-regression=-5%", "write a percentage of 0 or more, as 5%, or off"),
    ],
)
def test_a_wrong_value_is_answered_with_a_right_one(
    project: Project, argument: str, said: str
) -> None:
    """With what was meant, where a name is like it."""
    ended = project.run(f"--gpuperf-{argument}")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, f"gpuperf: --gpuperf-{argument}: {said}")


def test_wrong_ini_values_are_told_by_their_ini_name(project: Project) -> None:
    """The same mistakes in an ini file name the ini option."""
    values = "\n".join(f"{n.replace('-', '_')} = {WRONG[n]}" for n in WRONG)
    project.write(f"[pytest]\n{values}\n", "pytest.ini")
    ended = project.run()

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    for name in WRONG:
        assert lines(ended, f"gpuperf: ini option {name.replace('-', '_')}=")


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_a_misspelt_ini_value_is_refused(
    project: Project, workers: tuple[str, ...]
) -> None:
    """pytest only warns, and the gate that it should switch on would be off."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    values = "gpuperf_baselin = store\ngpuperf_zzz = 1\nother_plugin = 1\n"
    project.write(f"[pytest]\n{values}", "pytest.ini")
    ended = project.run("-p", "no:cacheprovider", *workers)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    said = "is not an option of pytest-gpuperf; "
    assert lines(ended, f"ini option gpuperf_baselin {said}did you mean", "_baseline")
    assert lines(ended, f"ini option gpuperf_zzz {said}", "pytest --help")
    assert lines(ended, "gpuperf: ", "other_plugin") == []


def test_a_flag_of_the_ini_file_that_is_neither_on_nor_off_is_named(
    project: Project,
) -> None:
    """pytest itself tells the value alone, and neither the option nor the remedy."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    project.write("[pytest]\ngpuperf_strict = maybe\n", "pytest.ini")
    ended = project.run()

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "ERROR: gpuperf: ini option gpuperf_strict: ", "'maybe'")
    assert lines(ended, "'maybe'; write true or false")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpuperf-record=a", "--gpuperf-replay=."), "exclude each other"),
        (("--gpuperf-json=a", "--gpuperf-csv=./a"), "--gpuperf-csv name one file"),
        (("--gpuperf-json=-", "--gpuperf-markdown=-"), "markdown name one file"),
        (("--gpuperf-disable", "--gpuperf-update=new"), "measures nothing to store"),
        (("--gpuperf-disable", "--gpuperf-against=HEAD"), "measures, and"),
        (("--gpuperf-replay=.", "--gpuperf-against=HEAD"), "measures, and"),
        (("--gpuperf-baseline=nowhere",), "nowhere"),
    ],
)
def test_options_that_cannot_stand_together(
    project: Project, options: tuple[str, ...], said: str
) -> None:
    """Each alone may be right; together, or without what they need, they are not."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run(*options)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, said)


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--gpuperf-baseline=nowhere",
            "create it: pytest --gpuperf-update=new --gpuperf-baseline=nowhere",
        ),
        ("--gpuperf-record=test_it.py", "cannot be written"),
    ],
)
def test_a_place_that_cannot_be_used_is_told_of_a_named_test(
    project: Project, option: str, said: str, workers: tuple[str, ...]
) -> None:
    """In one line with exit status 4, as of a folder of tests: no error of a test."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run("test_it.py::test_it", option, *workers)

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "ERROR: gpuperf: ", said)
    assert lines(ended, "ERROR collecting") == []


def test_a_mistyped_store_has_the_name_of_one_beside_it(project: Project) -> None:
    """A folder of sessions and a file of the same suffix, and no other file or folder."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    (project.path / ".gpuprs").mkdir()  # Holds no session.
    project.write("{}", "bases.txt")
    stores = {".gpuprf": ".gpuperf", "base.json": "bases.json"}
    for place in stores.values():
        project.run(f"--gpuperf-baseline={place}", "--gpuperf-update=new")
    for typed, place in stores.items():
        ended = project.run(f"--gpuperf-baseline={typed}")

        assert ended.ret == pytest.ExitCode.USAGE_ERROR
        assert lines(ended, f"did you mean {place}? Else create it: pytest ")


@pytest.mark.parametrize("option", ["baseline", "html", "json", "replay"])
def test_a_path_where_nobody_may_look_is_told_of_its_option(
    project: Project, option: str
) -> None:
    """The system refuses to say what it is; a mistake and not an internal error."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run(f"--gpuperf-{option}={'x' * 300}")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "ERROR: gpuperf: ", "xxx")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("test_it.py", "a test file; the option takes a value: a folder or a .json"),
        ("test_it.py::test_it", "a test file; the option takes a value"),
        ("perf.db", "the place of a database; write sqlite:///perf.db"),
        ("sqlite:perf.db", "the place of a database; write sqlite:///perf.db"),
        ("sqlite:/srv/a.db", "the place of a database; write sqlite:////srv/a.db"),
        ("postgresql:db/a#x", "the place of a database; write postgresql://db/a#x"),
        ("postgres:/db/a", "the place of a database; write postgresql://db/a"),
        ("postgresql//db/a", "the place of a database; write postgresql://db/a"),
        (".gpuperf#x", "only databases have projects; write .gpuperf"),
        ("notes.txt", "a file without the .json suffix; name a folder or a .json"),
    ],
)
def test_a_store_that_is_none_is_told_of_its_option(
    project: Project, value: str, said: str
) -> None:
    """Whoever forgets the value reads which option took a test for it."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    project.write("", "notes.txt")
    typed = project.run("--gpuperf-baseline", value)
    kept = project.run(f"-ogpuperf_baseline={value}")

    assert {typed.ret, kept.ret} == {pytest.ExitCode.USAGE_ERROR}
    assert lines(typed, f"ERROR: gpuperf: --gpuperf-baseline={value}: {said}")
    assert lines(kept, f"ERROR: gpuperf: ini option gpuperf_baseline={value}: {said}")


def test_a_file_of_another_tool_is_no_store(project: Project) -> None:
    """Whatever its suffix is, it is named as what it is."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    project.write(".version 8.2\n.target sm_90a\n", "in.ptx")
    project.write('{"context": {"num_cpus": 4}}', "google.json")
    written = "; name a store that --gpuperf-update has written"
    ptx = project.run("--gpuperf-baseline=in.ptx")
    google = project.run("--gpuperf-baseline=google.json")

    assert {ptx.ret, google.ret} == {pytest.ExitCode.USAGE_ERROR}
    assert lines(ptx, "ERROR: gpuperf: --gpuperf-baseline=in.ptx: it is PTX: ", written)
    assert lines(google, "it is a result of Google Benchmark: ", written)


def test_two_dashes_are_no_revision(project: Project) -> None:
    """Python's argparse takes the value for the end of the options."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run("--gpuperf-against=--")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "--gpuperf-against=--: a revision does not begin with a dash")


def test_credentials_are_never_shown(project: Project) -> None:
    """A URL's user and password are masked in the error."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    ended = project.run("--gpuperf-baseline=postgresql://me:secret@host/db")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert "secret" not in ended.stdout.str() + ended.stderr.str()


def test_an_option_takes_its_value_and_no_path(project: Project) -> None:
    """`--opt VALUE path` and `--opt=VALUE path` both leave the path alone."""
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")

    for options in (("--gpuperf-confirm", "0"), ("--gpuperf-confirm=0",)):
        assert project.run(*options, "test_it.py").parseoutcomes() == {"passed": 1}


NATIVE = """
    [tool.pytest]
    gpuperf_confirm = 3
    gpuperf_max_regression = "7 %"
    gpuperf_lock_timeout = 5
    gpuperf_strict = true
    gpuperf_grades = ["memory: A 85%, B 70%, C 50%, D 25%"]
    gpuperf_carry = ["data/big.bin", "weights.pt"]
"""
QUOTED = (
    """
    [tool.pytest.ini_options]
    gpuperf_confirm = "3"
    gpuperf_max_regression = "7 %"
    gpuperf_lock_timeout = 5
    gpuperf_strict = true
    gpuperf_grades = ["memory: A 85%, B 70%, C 50%, D 25%"]
    gpuperf_carry = """
    "'''\n    data/big.bin\n    weights.pt'''\n"
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            NATIVE,
            marks=pytest.mark.skipif(
                pytest.version_tuple < (9, 2), reason="pytest 9.2 has unions of types"
            ),
        ),
        QUOTED,
    ],
    ids=["native", "ini"],
)
def test_pyproject_holds_numbers_and_lists(project: Project, text: str) -> None:
    """As TOML has them, with no warning of pytest's."""
    project.write(text, "pyproject.toml")
    project.write("""
        from pytest_gpuperf.settings import config_of

        def test_it(request):
            config = config_of(request.config)
            assert (config.confirm, config.max_regression) == (3, 0.07)
            assert (config.lock_timeout_s, config.strict) == (5, True)
            assert config.carry == ("data/big.bin", "weights.pt")
            assert len(config.grades) == 1
    """)
    ended = project.run("-W", "error")

    assert ended.ret == 0, ended.stdout.str()


@pytest.mark.skipif(
    pytest.version_tuple < (9, 2), reason="pytest 9.2 has unions of types"
)
def test_a_list_of_pyproject_is_no_text(project: Project) -> None:
    """All such mistakes are named at once, each with what to write."""
    project.write(
        """
        [tool.pytest]
        gpuperf_grades = "memory: A 85%, B 70%, C 50%, D 25%"
        gpuperf_confirm = [3]
        gpuperf_strict = "yes"
        """,
        "pyproject.toml",
    )
    ended = project.run()

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert lines(ended, "ini option gpuperf_grades: ", 'write a list, as ["..."]')
    assert lines(ended, "ini option gpuperf_confirm: ", "write it in quotes")
    assert lines(ended, "ini option gpuperf_strict: ", "write true or false")
