"""Rules of baseline.store, directory and single: what every kind of store does."""

from __future__ import annotations

import os
import shutil
import string
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.baseline.changes import Append, Drop, Move, Restart, StoreChange
from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.store import (
    DirectoryStore,
    SingleFileStore,
    Store,
    file_name,
    folder_name,
    open_store,
    places_of,
)
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    BaselineError,
    BaselineMissingError,
    ConfigError,
    RecordError,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import STORE_VERSION, StoredRecord
from unit.baseline.samples import TEST, key, session, stored, stored_records, test_ids

PLACES = (".gpuperf", "baseline.json")
PLACE_OF: dict[type, str] = {DirectoryStore: PLACES[0], SingleFileStore: PLACES[1]}


@pytest.fixture(params=PLACES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store of each kind."""
    return open_store(request.param, tmp_path, create=True)


def ids(records: Iterable[StoredRecord]) -> set[tuple[str, str | None]]:
    """Return session and choice of each record."""
    return {(record.session.id, record.choice) for record in records}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, but locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize("place", PLACES)
# each example writes files; that any record comes back is proven without them
@settings(max_examples=min(25, settings().max_examples))
@given(records=st.lists(stored_records, max_size=5), slug=st.text(max_size=20))
def test_what_is_stored_is_loaded(
    place: str, records: list[StoredRecord], slug: str
) -> None:
    """Any test id and any slug come back, from inside the store's place."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "a" / "b"
        root.mkdir(parents=True)
        store = open_store(place, root, create=True)

        store.write(slug, [Append(record=each) for each in records])

        kept = {key: ids(several) for key, several in store.load(slug).items()}
        # What is appended continues the series, whatever number it has elsewhere.
        of_one_series = by_key(
            replace(r, values=tuple(replace(v, series=0) for v in r.values))
            for r in records
        )
        assert kept == {key: ids(several) for key, several in of_one_series.items()}
        for each in records:
            wanted = store.load(slug, [each.key.test_id])
            assert each.key in wanted
            assert {found.test_id for found in wanted} == {each.key.test_id}
        outside = {name.partition("/")[0] for name in files_of(Path(folder))}
        assert outside <= {"a"}
        assert all(name.startswith(f"a/b/{place}") for name in files_of(Path(folder)))


def test_an_absent_slug_is_empty(store: Store) -> None:
    """Nothing stored is nothing, and no error."""
    assert store.load("h200") == {}
    assert store.slugs() == ()
    assert store.other_slugs("h200", [key()]) == {}

    store.write("h200", [Append(record=stored(1))])

    assert store.load("b200") == {}
    assert store.load("h200", ["tests/test_other.py::test"]) == {}
    assert store.load("h200", ["\udcff.py::test"]) == {}
    assert store.load("h200", []) == {}


def test_other_slugs_are_known(store: Store) -> None:
    """A baseline of another GPU makes a test incomparable, not new."""
    store.write("h200", [Append(record=stored(1))])
    store.write("a100", [Append(record=stored(2))])
    store.write("b200", [Append(record=stored(2, test_id="tests/test_b.py::t"))])

    assert store.slugs() == ("a100", "b200", "h200")
    assert store.other_slugs("h200", [key(), key("tests/test_c.py::t")]) == {
        key(): ("a100",)
    }
    assert store.other_slugs("b200", [key()]) == {key(): ("a100", "h200")}


def test_what_is_set_aside_comes_back(store: Store) -> None:
    """Of the measurements that are named, with their numbers; other sessions stay."""
    other = "tests/test_b.py::t"
    for number in (1, 2):
        changes = [stored(number), stored(number, test_id=other)]
        store.write("h200", [Append(record=each) for each in changes])
    before = store.load("h200")
    gone = frozenset({"s0001", "s0002"})
    drops = [Drop(key=each, session_ids=gone) for each in (key(), key(other))]
    store.set_aside("h200", drops)
    store.write("h200", [Append(record=stored(3, test_id=other))])

    assert {*store.load("h200")} == {key(other)}
    assert store.aside() == {"h200": before}
    store.put_back("h200", [key()])
    assert store.load("h200")[key()] == before[key()]
    assert {*store.aside()["h200"]} == {key(other)}
    assert store.slugs() == ("h200",)
    store.put_back("h200", [key(other)])
    numbers = [record.session.id for record in store.load("h200")[key(other)]]
    assert numbers == ["s0001", "s0002", "s0003"]


def test_what_was_set_aside_long_ago_is_forgotten(store: Store) -> None:
    """It makes a store no larger for ever."""
    ids_ = ("tests/a.py::t", "tests/b.py::t")
    for test_id, arrival in zip(ids_, (1, 200), strict=True):
        record = stored(arrival, test_id=test_id)
        numbers = [
            Append(record=stored(n, test_id="tests/z.py::t")) for n in range(1, arrival)
        ]
        store.write("h200", [*numbers, Append(record=record)])
        drop = Drop(key=record.key, session_ids=frozenset({record.session.id}))
        store.set_aside("h200", [drop])

    assert {each.test_id for each in store.aside()["h200"]} == {ids_[1]}


def test_sessions_add_up(store: Store) -> None:
    """Each write adds to what is there, in the order in which sessions arrive; a session
    that comes again is replaced, and keeps its place."""
    store.write("h200", [Append(record=stored(1))])
    store.write("h200", [Append(record=stored(3)), Append(record=stored(2))])
    store.write("h200", [Append(record=stored(3, "energy"))])

    assert store.load("h200")[key()] == (
        stored(1, arrival=1),
        stored(3, "energy", arrival=2),
        stored(2, arrival=3),
    )


def test_the_newest_and_the_oldest_sessions_are_kept(store: Store) -> None:
    """One in the middle leaves the store."""
    for number in range(26):
        store.write("h200", [Append(record=stored(number))])

    kept = store.load("h200")[key()]

    numbers = (0, 1, 2, *range(6, 26))
    assert [each.session.id for each in kept] == [f"s{n:04}" for n in numbers]


def test_a_restart_leaves_one_session(store: Store) -> None:
    """What improved has a new level; the old one is gone."""
    store.write("h200", [Append(record=stored(number)) for number in range(5)])
    store.write("h200", [Restart(record=stored(9))])

    (only,) = store.load("h200")[key()]
    assert (only.session.id, only.arrival) == ("s0009", 6)


def test_writing_twice_changes_no_byte(store: Store, tmp_path: Path) -> None:
    """The same sessions are the same text, and untouched files stay as they are."""
    changes = [Append(record=stored(1)), Append(record=stored(1, test_id="b.py::t"))]
    store.write("h200", changes)
    before = files_of(tmp_path)

    store.write("h200", list(reversed(changes)))
    store.write("h200", [])

    assert files_of(tmp_path) == before


def test_what_an_editor_of_windows_does_changes_nothing(
    store: Store, tmp_path: Path
) -> None:
    """A byte order mark and other line ends are no damage, and the next write is clean."""
    store.write("h200", [Append(record=stored(1))])
    (path,) = (path for path in tmp_path.rglob("*.json") if path.is_file())
    clean = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + clean.replace(b"\n", b"\r\n"))
    again = open_store(PLACE_OF[type(store)], tmp_path)

    assert again.load("h200") == store.load("h200")
    assert again.damage == ()
    again.write("h200", [Append(record=stored(2))])
    assert path.read_bytes().startswith(clean[:10])


def test_what_cannot_be_read_is_not_written(store: Store, tmp_path: Path) -> None:
    """One bad record leaves everything as it was."""
    store.write("h200", [Append(record=stored(1))])
    before = files_of(tmp_path)
    bad = stored(2, test_id="\udcff.py::t")

    with pytest.raises(RecordError, match="UTF-8"):
        store.write("h200", [Append(record=stored(2)), Append(record=bad)])

    assert files_of(tmp_path) == before


@pytest.mark.parametrize("damage", [b"", b"<<<<<<< HEAD\n", b'{"schema":"x"}'])
def test_a_corrupt_file_is_never_overwritten(
    store: Store, tmp_path: Path, damage: bytes
) -> None:
    """Neither it nor its neighbours: what can be saved by hand stays."""
    neighbour = stored(1, test_id="a.py::t")
    store.write("h200", [Append(record=stored(1)), Append(record=neighbour)])
    path = next(
        each for each in tmp_path.rglob("*.json") if b"gemm" in each.read_bytes()
    )
    path.write_bytes(damage)
    before = files_of(tmp_path)

    for deed in (
        lambda: store.load("h200"),
        lambda: store.other_slugs("b200", [key()]),
        lambda: store.write(
            "h200", [Append(record=stored(2)), Append(record=neighbour)]
        ),
    ):
        with pytest.raises(BaselineCorruptError, match=path.name) as caught:
            deed()
        assert caught.value.path == str(path)

    assert files_of(tmp_path) == before


def test_a_module_has_a_file() -> None:
    """A reviewer finds the tests by the name of their file."""
    assert file_name("tests/kernels/test_gemm.py") == "tests.kernels.test_gemm.json"
    assert file_name("test_a-b.py") == "test_a-b.json"


def test_folder_holds_module_files(tmp_path: Path) -> None:
    """A slug is a folder, a module a file; locks and leftovers stay out of diffs."""
    store = DirectoryStore(tmp_path / ".gpuperf")
    store.write("nvidia-h200", [Append(record=stored(1))])

    assert sorted(files_of(tmp_path)) == [
        ".gpuperf/.gitattributes",
        ".gpuperf/.gitignore",
        ".gpuperf/nvidia-h200/tests.test_gemm.json",
    ]
    ignored = (tmp_path / ".gpuperf/.gitignore").read_text("utf-8")
    assert ignored.splitlines() == ["*.lock", "*.tmp"]


def merged(folder: Path, ours: Sequence[StoreChange], theirs: StoreChange) -> Store:
    """Return a store of two sessions that two branches have changed, merged by git."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    store = DirectoryStore(folder)
    path = folder / "h200" / "tests.test_gemm.json"
    store.write("h200", [Append(record=stored(1))])
    base = path.read_bytes()
    sides = []
    for number, changes in enumerate((ours, [theirs])):
        path.write_bytes(base)
        for change in changes:
            store.write("h200", [change])
        sides.append(folder / f"side{number}")
        sides[-1].write_bytes(path.read_bytes())
    (folder / "base").write_bytes(base)
    first, second = map(str, sides)
    done = subprocess.run(
        [git, "merge-file", "--union", "-p", first, str(folder / "base"), second],
        capture_output=True,
        check=True,
    )
    path.write_bytes(done.stdout)
    return store


@pytest.mark.parametrize("accepts_first", [True, False])
def test_a_merge_keeps_what_one_branch_has_accepted(
    tmp_path: Path, *, accepts_first: bool
) -> None:
    """git brings the replaced lines back; neither they nor those of old code count."""
    accepted: list[StoreChange] = [Restart(record=stored(9))]
    added: list[StoreChange] = [Append(record=stored(n)) for n in (2, 3, 4)]
    if accepts_first:
        store = merged(tmp_path, added, accepted[0])
    else:
        store = merged(tmp_path, accepted, added[0])

    assert b"s0001" in (tmp_path / "h200" / "tests.test_gemm.json").read_bytes()
    assert [each.session.id for each in store.load("h200")[key()]] == ["s0009"]

    store.write("h200", [Append(record=stored(10))])
    kept = store.load("h200")[key()]
    assert [each.session.id for each in kept] == ["s0009", "s0010"]
    assert [each.values[0].series for each in kept] == [1, 1]
    assert store.damage == ()


def test_two_branches_merge_without_a_conflict(tmp_path: Path) -> None:
    """git takes the lines of both sides, as `.gitattributes` tells it, and all count."""
    store = merged(tmp_path, [Append(record=stored(2))], Append(record=stored(3)))

    kept = store.load("h200")[key()]
    store.write("h200", [Append(record=stored(4))])

    attributes = (tmp_path / ".gitattributes").read_text("utf-8")
    assert attributes == "*.json merge=union\n"
    assert store.damage == ()
    assert [(each.arrival, each.session.id) for each in kept] == [
        (1, "s0001"),
        (2, "s0002"),
        (2, "s0003"),
    ]
    assert store.load("h200")[key()][-1].arrival == 3


def test_a_clock_that_goes_back_loses_no_session(store: Store) -> None:
    """A session that is dated before 23 others is the newest all the same."""
    future = [session(number, started_unix_s=2e9 + number) for number in range(23)]
    for each in future:
        store.write("h200", [Append(record=stored(1, session=each))])
    store.write("h200", [Append(record=stored(30))])

    kept = store.load("h200")[key()]

    assert [each.session.id for each in kept][-2:] == ["s0022", "s0030"]
    assert len(kept) == 23


def test_a_session_has_one_number_on_every_device(store: Store) -> None:
    """A run that measured two GPUs is one session."""
    store.write("h200", [Append(record=stored(1))])
    store.write("h200", [Append(record=stored(2))])
    store.write("l4", [Append(record=stored(2))])
    store.write("l4", [Append(record=stored(3))])

    numbers = [each.arrival for each in store.load("l4")[key()]]

    assert numbers == [2, 3]


def test_sessions_are_dropped(store: Store) -> None:
    """Only those that are named, and the measurement goes with its last one."""
    store.write("h200", [Append(record=stored(number)) for number in (1, 2, 3)])
    store.write("h200", [Drop(key=key(), session_ids=frozenset({"s0002"}))])
    kept = store.load("h200")[key()]
    store.write("h200", [Drop(key=key(), session_ids=frozenset({"s0001", "s0003"}))])

    assert [each.session.id for each in kept] == ["s0001", "s0003"]
    assert store.load("h200") == {}


def edited(folder: Path, before: bytes, after: bytes) -> Path:
    """Change a text in the one file of a store by hand, and return the file."""
    (path,) = folder.rglob("*.json")
    text = path.read_bytes()
    assert before in text
    path.write_bytes(text.replace(before, after, 1))
    return path


def test_a_line_that_was_edited_is_left_out_until_it_is_accepted(
    store: Store, tmp_path: Path
) -> None:
    """It is named with its line, is not lost by the next session, and may be accepted."""
    store.write("h200", [Append(record=stored(number)) for number in (1, 7)])
    path = edited(tmp_path, b'[["time","s","host",[1.0]', b'[["time","s","host",[2.0]')
    before = path.read_bytes()
    (line,) = [n for n, text in enumerate(before.splitlines(), 1) if b"[2.0]" in text]

    kept = store.load("h200")[key()]
    with pytest.raises(
        BaselineCorruptError, match=rf"line {line}: it differs"
    ) as caught:
        store.write("h200", [Append(record=stored(8))])
    after = path.read_bytes()
    repair = store.accept_edits()
    again = open_store(PLACE_OF[type(store)], tmp_path)

    assert [each.session.id for each in kept] == ["s0001"]
    assert [(each.path, each.line) for each in store.damage] == [(str(path), line)]
    place = tmp_path / PLACE_OF[type(store)]
    assert f"gpuperf baseline accept {place} --edited" in caught.value.remedy
    assert after == before
    assert ([each.line for each in repair.accepted], repair.removed) == ([line], ())
    assert again.load("h200")[key()][1].values[0].run_values == (2.0,)
    assert again.damage == ()


def test_a_line_that_is_broken_is_removed_by_accepting(
    store: Store, tmp_path: Path
) -> None:
    """What nobody can read cannot be accepted; the other lines stay."""
    store.write("h200", [Append(record=stored(number)) for number in (1, 7)])
    edited(tmp_path, b'"values":[[', b'"values":[(')

    kept = store.load("h200")[key()]
    repair = store.accept_edits()

    assert [each.session.id for each in kept] == ["s0007"]
    assert repair.accepted == ()
    assert [each.reason for each in repair.removed] == ["it is not JSON"]
    store.write("h200", [Append(record=stored(8))])
    assert [each.session.id for each in store.load("h200")[key()]] == ["s0007", "s0008"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it leads to gets the session, and its mode stays."""
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "base.json"
    link = tmp_path / "link.json"
    SingleFileStore(target).write("h200", [Append(record=stored(1))])
    target.chmod(0o640)
    link.symlink_to(target)
    SingleFileStore(link).write("h200", [Append(record=stored(2))])

    assert link.is_symlink()
    assert len(SingleFileStore(target).load("h200")[key()]) == 2
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes a named pipe")
def test_a_pipe_is_no_store_and_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write into it; a device may never end."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")

    for name in ("pipe.json", "zero.json"):
        with pytest.raises(BaselineError, match=r"a pipe or a device"):
            open_store(name, tmp_path).load("h200")


def test_too_large_a_file_is_refused_unread(tmp_path: Path) -> None:
    """It is named with its size, before memory runs out."""
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(3_000_000_000)

    with pytest.raises(
        BaselineError, match=r"large\.json: cannot be read \(it has 3000 MB"
    ):
        open_store("large.json", tmp_path).load("h200")


def test_somebodys_gitignore_stays(tmp_path: Path) -> None:
    """What a person wrote there is theirs."""
    (tmp_path / ".gitignore").write_text("mine\n", "utf-8")

    DirectoryStore(tmp_path).write("h200", [Append(record=stored(1))])

    assert (tmp_path / ".gitignore").read_text("utf-8") == "mine\n"


modules = st.one_of(
    test_ids.map(lambda each: each.partition("::")[0]),
    st.text("aA_-./~\\", max_size=6).map(lambda each: f"{each}.py"),
    st.from_regex(r"[a-zA-Z0-9_./~-]{0,12}\.(py|json|md)", fullmatch=True),
)


@given(modules, modules)
def test_two_modules_have_two_files(first: str, second: str) -> None:
    """Not even on a file system that knows no upper case."""
    assume(first != second)

    assert file_name(first).lower() != file_name(second).lower()


@given(modules | st.text())
def test_a_name_is_safe_everywhere(text: str) -> None:
    """It is short, stays in its folder and is not a device of Windows."""
    for name in (file_name(text), folder_name(text)):
        assert 0 < len(name) < 120
        assert set(name) <= set(string.ascii_lowercase + string.digits + "._-~")
        assert not name.startswith((".", "-"))
        assert name.partition(".")[0] not in {"con", "nul", "com1", "lpt9", "aux"}


@pytest.mark.parametrize("device", ["con.py", "nul/test_a.py", "com1.py"])
def test_windows_devices_are_no_names(device: str) -> None:
    """A module of that name is kept under another."""
    assert "~" in file_name(device)
    assert "~" in folder_name("con")


@given(st.text())
def test_a_folders_name_is_a_slug(slug: str) -> None:
    """What slugs() names can be loaded."""
    assert folder_name(folder_name(slug)) == folder_name(slug)


def test_a_copied_file_is_refused(tmp_path: Path) -> None:
    """A copy beside the original would count each session twice."""
    store = DirectoryStore(tmp_path)
    store.write("h200", [Append(record=stored(1))])
    original = tmp_path / "h200" / "tests.test_gemm.json"
    (tmp_path / "h200" / "copy.json").write_bytes(original.read_bytes())

    with pytest.raises(
        BaselineCorruptError, match=r"belongs in tests\.test_gemm\.json"
    ):
        store.load("h200")


def test_other_folders_are_no_slugs(tmp_path: Path) -> None:
    """Only a folder with sessions in it is one."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()

    assert DirectoryStore(tmp_path).slugs() == ()


def test_a_leftover_is_swept(tmp_path: Path) -> None:
    """What a killed run left behind is never read, and goes with the next write."""
    store = DirectoryStore(tmp_path)
    store.write("h200", [Append(record=stored(1))])
    leftover = tmp_path / "h200" / "tests.test_b.json.tmp"
    leftover.write_bytes(b'{"schema"')

    assert store.load("h200")[key()] == (stored(1, arrival=1),)
    store.write("h200", [Append(record=stored(2))])

    assert not leftover.exists()


def test_one_file_holds_every_slug(tmp_path: Path) -> None:
    """A .json file is a whole store, with nothing else beside it but its lock."""
    store = SingleFileStore(tmp_path / "deep" / "base.json")
    store.write("h200", [Append(record=stored(1))])
    store.write("Any Text/..", [Append(record=stored(2))])

    assert list(files_of(tmp_path)) == ["deep/base.json"]
    assert store.load("Any Text/..")[key()] == (stored(2, arrival=2),)


def test_a_module_file_is_no_store(tmp_path: Path) -> None:
    """Naming one file out of a folder is an error, not an empty baseline."""
    DirectoryStore(tmp_path).write("h200", [Append(record=stored(1))])
    store = open_store("h200/tests.test_gemm.json", tmp_path)

    with pytest.raises(BaselineCorruptError, match="name the whole store"):
        store.load("h200")


@pytest.mark.parametrize("place", ["s3://u:secret@b", "mysql://u:secret@h/d"])
def test_another_database_is_refused(place: str) -> None:
    """It is refused with the stores that there are, and no credentials are shown."""
    with pytest.raises(ConfigError, match=place.partition(":")[0]) as caught:
        open_store(place, ".")

    assert "postgresql://" in caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["sqlite:", "sqlite://a.db", "sqlite:///", "sqlite:///a?b"]
)
def test_a_url_of_sqlite_names_a_file(place: str) -> None:
    """Another number of slashes would be a file that is not meant."""
    with pytest.raises(ConfigError, match="does not name a file"):
        open_store(place, ".", create=True)


@pytest.mark.parametrize("place", ["", "  ", "a\0b"])
def test_a_name_must_be_one(place: str) -> None:
    """An empty name is not the project's own folder."""
    with pytest.raises(ConfigError, match="is not the name of a store"):
        open_store(place, ".")


@pytest.mark.parametrize("place", PLACES)
def test_a_missing_store_is_an_error(place: str, tmp_path: Path) -> None:
    """A gate with a wrong path is not silently off."""
    with pytest.raises(BaselineMissingError, match=place) as caught:
        open_store(place, tmp_path)

    assert "--gpuperf-update=new" in caught.value.remedy
    assert not (tmp_path / place).exists()


def test_a_place_is_relative_to_the_root(tmp_path: Path) -> None:
    """And an absolute one is what it is."""
    open_store("x", tmp_path, create=True).write("h200", [Append(record=stored(1))])

    assert open_store(str(tmp_path / "x"), "/").slugs() == ("h200",)


@pytest.mark.parametrize("name", ["perf.db", "/srv/perf.SQLITE", "a/b.sqlite3"])
def test_a_file_of_sqlite_has_a_url(tmp_path: Path, name: str) -> None:
    """A database that is named like a file would become a folder of that name."""
    with pytest.raises(ConfigError) as caught:
        open_store(name, tmp_path, create=True)

    assert caught.value.remedy == f"write sqlite:///{name}"


@pytest.mark.parametrize(
    ("place", "name"),
    [("sqlite:///perf.db#", "''"), ("sqlite:///perf.db#a b", "'a b'")],
)
def test_a_project_has_a_plain_name(tmp_path: Path, place: str, name: str) -> None:
    """Another one would be taken for a part of the file's name."""
    with pytest.raises(ConfigError, match=f"{name} is not the name of a project"):
        open_store(place, tmp_path, create=True)


def test_another_file_is_no_store(tmp_path: Path) -> None:
    """Neither where a folder should be, nor in the place of a slug."""
    (tmp_path / "notes.txt").touch()
    (tmp_path / "h200").touch()

    with pytest.raises(BaselineError, match=r"without the \.json suffix"):
        open_store("notes.txt", tmp_path)
    store = DirectoryStore(tmp_path)
    with pytest.raises(BaselineError, match="h200: cannot be read"):
        store.load("h200")
    with pytest.raises(BaselineError, match=r"h200.*: cannot be read"):
        store.load("h200", [TEST])
    with pytest.raises(BaselineError, match="h200: cannot be written"):
        store.write("h200", [Append(record=stored(1))])


def test_a_folder_named_json_is_a_folder(tmp_path: Path) -> None:
    """What is there decides, not its name."""
    (tmp_path / "base.json").mkdir()

    assert isinstance(open_store("base.json", tmp_path), DirectoryStore)


def test_too_long_a_place_is_named(tmp_path: Path) -> None:
    """The system's own reason is passed on."""
    with pytest.raises(BaselineError, match=r"cannot be read .*too long"):
        open_store("a" * 300, tmp_path)


def test_a_store_of_the_second_schema_is_read() -> None:
    """Every session that an earlier version has stored counts, and says that it is of that."""
    store = DirectoryStore(Path(__file__).parents[2] / "gold/store-2")
    records = [r for rs in store.load("amd-epyc-2").values() for r in rs]

    assert store.damage == ()
    assert store.of_earlier_schema
    assert len(records) == 24  # three of four tests and four reference workloads
    assert {record.schema_version for record in records} == {2}


@pytest.mark.parametrize("name", ["store", "store.json"])
def test_sessions_stored_under_an_id_get_a_key(tmp_path: Path, name: str) -> None:
    """A move keeps every session, its arrival and what it was stored under."""
    old, new = key("tests/test_a.py::test_x"), key("pkg/tests/test_a.py::test_x")
    earlier = [
        replace(stored(n, test_id=old.test_id), schema_version=2) for n in (1, 2)
    ]
    store = open_store(name, tmp_path, create=True)
    store.write("h100", [Append(record=record) for record in earlier])
    later = stored(3, test_id=new.test_id)
    store.write("h100", [Move(key=new, old=old), Append(record=later)])
    left = open_store(name, tmp_path).load("h100")

    assert [*left] == [new]
    assert [r.session.id for r in left[new]] == ["s0001", "s0002", "s0003"]
    assert [r.arrival for r in left[new]] == [1, 2, 3]
    assert [r.node_id for r in left[new]] == [old.test_id, old.test_id, ""]
    assert [r.schema_version for r in left[new]] == [2, 2, STORE_VERSION]
    assert not any(r.has_node_id for r in left[new])


def test_a_key_is_not_moved_for_an_equal_id(tmp_path: Path) -> None:
    """What stands under a key of this version stays, though it looks like the id."""
    other, new = key("tests/test_a.py::test_x"), key("pkg/tests/test_a.py::test_x")
    store = DirectoryStore(tmp_path / "store")
    store.write("h100", [Append(record=stored(1, test_id=other.test_id))])
    store.write("h100", [Move(key=new, old=other)])

    assert [*store.load("h100")] == [other]


def test_a_merge_that_brings_back_the_id_doubles_nothing(tmp_path: Path) -> None:
    """One branch has moved the sessions, and the other one stored on under the id."""
    old, new = key("tests/test_a.py::test_x"), key("tests/test_a.py::test_x[{root}]")
    ours, theirs = (
        DirectoryStore(tmp_path / "ours"),
        DirectoryStore(tmp_path / "theirs"),
    )
    earlier = replace(stored(1, test_id=old.test_id), schema_version=2)
    for store in (ours, theirs):
        store.write("h100", [Append(record=earlier)])
    ours.write("h100", [Move(key=new, old=old)])
    file = Path("h100/tests.test_a.json")
    union = tmp_path / "union" / file
    union.parent.mkdir(parents=True)
    mine = (tmp_path / "ours" / file).read_text().splitlines(keepends=True)
    other = (tmp_path / "theirs" / file).read_text().splitlines(keepends=True)
    union.write_text(
        "".join([*mine[:-2], *(x for x in other if '"test"' in x), *mine[-2:]])
    )
    merged = DirectoryStore(tmp_path / "union")
    merged.write("h100", [Move(key=new, old=old)])

    assert [*merged.load("h100")] == [new]
    assert [r.session.id for r in merged.load("h100")[new]] == ["s0001"]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("postgresql://localhost/perf", set()),
        (
            "sqlite:///perf.db#mine",
            {"perf.db", "perf.db-wal", "perf.db-shm", "perf.db-journal"},
        ),
    ],
)
def test_the_files_of_a_database_are_known(
    tmp_path: Path, place: str, names: set[str]
) -> None:
    """With the files that SQLite writes; a server has none here."""
    assert set(places_of(place, tmp_path)) == {str(tmp_path / name) for name in names}


@pytest.mark.parametrize("place", PLACES)
def test_a_store_writes_only_at_its_places(tmp_path: Path, place: str) -> None:
    """The lock is one of them."""
    kept = open_store(place, tmp_path, create=True)
    kept.write("s", [Append(record=stored(1))])

    assert {str(path) for path in tmp_path.iterdir()} <= set(places_of(place, tmp_path))
