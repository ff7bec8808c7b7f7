"""Rules of the cache of ncu's values and reports: whole, private, small, and one at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import fake_ncu_report
from fakes.clock import FakeClock
from pytest_gpuperf.cli import main
from pytest_gpuperf.collect.ncu.cache import Cache, Entry, Values
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.folder import FOLDER_VARIABLE, cache_folder
from pytest_gpuperf.collect.ncu.key import key_of
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.errors import (
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    ConfigError,
)

FAKES = Path(__file__).parents[3] / "fakes"
PAGE = Path(__file__).parents[4] / "docs" / "ncu.md"

unix = pytest.mark.skipif(os.name == "nt", reason="needs permissions of Unix")
not_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)


def key(number: int = 0) -> str:
    return key_of({"number": number})


def files(folder: Path) -> list[Path]:
    """Return what is kept, without locks and the two files that mark the folder."""
    marks = {"CACHEDIR.TAG", ".gitignore"}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in marks and path.suffix != ".lock"
    ]


@pytest.fixture
def values(tmp_path: Path) -> Values:
    return Values(tmp_path / "cache")


# ------------------------------------------------------------------ values


@given(st.binary())
@settings(max_examples=20)
def test_what_is_put_is_got(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Any bytes, lines and all; another key has nothing."""
    values = Values(tmp_path_factory.mktemp("cache"))
    values.put(key(), content)

    assert values.get(key()) == content
    assert values.get(key(1)) is None


def test_the_last_put_stays(values: Values) -> None:
    """In place of what was there."""
    values.put(key(), b"old")
    values.put(key(), b"new")

    assert values.get(key()) == b"new"
    assert len(values.entries()) == 1


@pytest.mark.parametrize("text", ["../../etc/passwd", "", "a" * 63, "A" * 64])
def test_only_a_key_is_looked_up(values: Values, text: str) -> None:
    """Nothing outside the folder can be read, put or removed."""
    with pytest.raises(ConfigError, match="is no key"):
        values.get(text)
    with pytest.raises(ConfigError, match="is no key"):
        values.put(text, b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    path.write_bytes(b"something else\n")


DAMAGES = [cut, emptied, grown, flipped, foreign]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_values_are_a_miss(
    values: Values, damage: Callable[[Path], None]
) -> None:
    """They are removed, that is said, and the next who makes them is heard again."""
    values.put(key(), b"content")
    damage(values.entries()[0].path)

    assert values.get(key()) is None
    assert values.entries() == ()
    assert "was damaged" in values.remarks[0]
    assert values.populated(key(), lambda: b"again", timeout_s=1) == b"again"
    assert values.get(key()) == b"again"


def test_values_under_another_key_are_a_miss(values: Values) -> None:
    """A file that was renamed is not what its name says."""
    values.put(key(), b"content")
    path = values.entries()[0].path
    other = path.parents[1] / key(1)[:2] / key(1)
    other.parent.mkdir(exist_ok=True)
    path.rename(other)

    assert values.get(key(1)) is None


def test_a_failed_make_leaves_nothing(values: Values) -> None:
    """What it raises is raised, and who comes next makes it anew."""

    def fail() -> bytes:
        message = "no GPU"
        raise CollectError(message, remedy="get one")

    with pytest.raises(CollectError, match="no GPU"):
        values.populated(key(), fail, timeout_s=1)

    assert files(values.folder) == []
    assert values.populated(key(), lambda: b"x", timeout_s=1) == b"x"


def test_a_hit_makes_nothing(values: Values) -> None:
    """And reads no lock."""
    values.put(key(), b"content")

    assert values.populated(key(), lambda: b"other", timeout_s=0) == b"content"
    assert not (values.folder / "locks").exists()


@unix
def test_everything_is_private(values: Values) -> None:
    """Only its owner may look into the cache, whatever the umask."""
    before = os.umask(0)
    try:
        values.populated(key(), lambda: b"x", timeout_s=1)
        values.digests()
    finally:
        os.umask(before)

    for path in [values.folder, *values.folder.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path


def test_backups_and_git_leave_the_cache_out(values: Values) -> None:
    """It may lie in a project, and can be made again."""
    values.put(key(), b"x")

    assert (values.folder / ".gitignore").read_text() == "*\n"
    tag = (values.folder / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    """The values are measured and given back; why nothing is kept is said."""
    (tmp_path / "file").write_text("in the way")
    values = Values(tmp_path / "file" / "cache")

    assert values.populated(key(), lambda: b"x", timeout_s=1) == b"x"
    assert any("cannot be written" in each for each in values.remarks)
    with pytest.raises(CollectError, match=FOLDER_VARIABLE):
        values.put(key(), b"x")


@not_root
def test_a_cache_of_others_can_be_read(values: Values) -> None:
    """A folder that somebody filled and shut gives its values."""
    values.put(key(), b"x")
    path = values.entries()[0].path
    path.parent.chmod(0o500)
    path.chmod(0o400)

    assert values.get(key()) == b"x"


def test_the_folder_is_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "pytest-gpuperf" / "ncu"

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "here"))

    assert cache_folder() == Values().folder == tmp_path / "here"


# ------------------------------------------------------------------ room


def sized(tmp_path: Path, clock: FakeClock, **limits: float) -> Values:
    return Values(tmp_path / "cache", clock=clock, **limits)  # type: ignore[arg-type]


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    """What was used longest ago makes room; reading is using."""
    clock = FakeClock()
    values = sized(tmp_path, clock, limit_bytes=4000)
    for number in range(3):
        values.put(key(number), b"x" * 1000)
        clock.advance(10**9)
    assert values.get(key(0)) is not None
    clock.advance(10**9)

    values.put(key(3), b"x" * 1000)

    assert [n for n in range(4) if values.get(key(n)) is not None] == [0, 2, 3]


@given(st.lists(st.integers(0, 3000), max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_limit_is_kept(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    """After each put there is no more than the limit, or only what was just put."""
    values = Values(tmp_path_factory.mktemp("cache"), limit_bytes=4000)
    for number, size in enumerate(sizes):
        values.put(key(number), b"x" * size)
        kept = values.entries()

        assert values.get(key(number)) is not None
        assert sum(each.size_bytes for each in kept) <= 4000 or len(kept) == 1


def test_another_process_counts_too(tmp_path: Path) -> None:
    """What others have put is part of the limit."""
    for number in range(6):
        Values(tmp_path, limit_bytes=4000).put(key(number), b"x" * 1000)

    assert sum(each.size_bytes for each in Values(tmp_path).entries()) <= 4000


def test_what_nobody_uses_gets_too_old(tmp_path: Path) -> None:
    """An entry is a miss once its time is over, and is removed."""
    clock = FakeClock()
    values = sized(tmp_path, clock, max_age_s=100.0)
    values.put(key(), b"x")
    clock.advance(99 * 10**9)
    assert values.get(key()) == b"x"
    clock.advance(99 * 10**9)
    assert values.get(key()) == b"x"
    clock.advance(101 * 10**9)

    assert values.get(key()) is None
    assert values.entries() == ()


@pytest.mark.parametrize("limits", [{"limit_bytes": 0}, {"max_age_s": float("nan")}])
def test_a_limit_is_above_zero(tmp_path: Path, limits: dict[str, float]) -> None:
    """A cache that holds nothing is a mistake."""
    with pytest.raises(ConfigError, match="give more than zero"):
        sized(tmp_path, FakeClock(), **limits)


def test_what_killed_processes_left_is_swept(values: Values) -> None:
    """After a day; what is being written now stays."""
    values.put(key(), b"x")
    old, new = (values.folder / "staging" / name for name in ("old", "new"))
    lock = values.folder / "locks" / "old.lock"
    for path in (old / "x", new / "x", lock):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for path in (old, lock):
        os.utime(path, (time.time() - 90_000,) * 2)

    Values(values.folder).put(key(1), b"x")

    assert not old.exists()
    assert not lock.exists()
    assert new.exists()


# ------------------------------------------------------------------ locks and threads


def test_one_thread_makes_it_and_others_wait(values: Values) -> None:
    """Eight at once: one makes, all have it."""
    made: list[int] = []
    got: list[bytes] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.1)
        return b"x"

    threads = [
        threading.Thread(
            target=lambda: got.append(values.populated(key(), make, timeout_s=20))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert got == [b"x"] * 8


def test_any_thread_may_use_it(values: Values) -> None:
    """What one has put another gets; nothing belongs to the thread that opened it."""
    values.put(key(), b"x")
    got: list[object] = []

    def work() -> None:
        got.append(values.get(key()))
        values.put(key(1), b"y")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert got == [b"x"]
    assert values.get(key(1)) == b"y"


def test_waiting_ends(values: Values) -> None:
    """Who waits longer than it may is told who to wait for."""
    with (
        values.lock("gpu", timeout_s=1),
        pytest.raises(CollectorTimeoutError, match=r"gpu\.lock for 0.1 s"),
    ):
        in_thread(lambda: hold(values))


def hold(values: Values) -> None:
    with values.lock("gpu", timeout_s=0.1):
        pass


def in_thread(work: Callable[[], None]) -> None:
    """Do something in another thread and raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("name", ["../x", "", "a b"])
def test_a_lock_has_a_plain_name(values: Values, name: str) -> None:
    """No lock lies outside the folder."""
    with (
        pytest.raises(ConfigError, match="name of a lock"),
        values.lock(name, timeout_s=0),
    ):
        pass


LOADED = """
import sys
from pathlib import Path
before = set(sys.modules)  # whoever watches this process loads more
from pytest_gpuperf.collect.ncu.values import Values
assert Values(Path(sys.argv[1])).get(sys.argv[2]) == b"x"
print(*{name.partition(".")[0] for name in sys.modules.keys() - before})
"""


def test_reading_values_loads_nothing_heavy(values: Values) -> None:
    """Neither ncu's reader nor numpy, scipy, the locks or a pickle."""
    values.put(key(), b"x")
    argv = [sys.executable, "-c", LOADED, str(values.folder), key()]

    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    heavy = {"ncu_report", "numpy", "scipy", "filelock", "msgspec", "pickle", "asyncio"}
    assert not heavy & set(done.stdout.split())


# ------------------------------------------------------------------ whole reports


class Bench:
    """A project with a program, a double of ncu, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "t.py"
        self.program.write_text("print(1)\n")
        self.starts_file = folder / "starts"
        self.env = {
            "PATH": f"{FAKES}{os.pathsep}{os.environ['PATH']}",
            "FAKE_NCU_STARTS": str(self.starts_file),
            "FAKE_NCU_VALUES": '{"gpu__time_duration.sum": [1000, "ns"]}',
        }

    @property
    def starts(self) -> int:
        """How often ncu has profiled."""
        if not self.starts_file.exists():
            return 0
        return len(self.starts_file.read_text().splitlines())

    def command(self, output: str = "r", **fields: object) -> Command:
        return Command(
            executable=sys.executable,
            args=("t.py",),
            output=output,
            metrics=("gpu__time_duration.sum",),
            **fields,  # type: ignore[arg-type]
        )

    def cache(self, **options: object) -> Cache:
        return Cache(
            self.folder / "cache",
            session=lambda c: Session(command=c, lock_folder=self.folder / "leases"),
            **options,  # type: ignore[arg-type]
        )

    def run(self, output: str = "r", **options: object) -> Entry:
        with self.cache(**options) as cache:
            return cache.run(self.command(output), cwd=self.folder, env=self.env)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_report_is_made_once(bench: Bench) -> None:
    """The second time it is there, with the time when it was made."""
    first, second = bench.run(), bench.run()

    assert (first.cached, second.cached) == (False, True)
    assert (first.digest, first.timestamp) == (second.digest, second.timestamp)
    assert abs(datetime.now(timezone.utc) - first.timestamp).total_seconds() < 60
    assert {each.name for each in second.directory.iterdir()} == {
        "manifest",
        "ncu.log",
        "report.ncu-rep",
    }
    assert bench.starts == 1


def test_a_hit_is_put_where_this_command_says(bench: Bench) -> None:
    """Under its own names, whatever the first one's were; also with dots in them."""
    bench.run("first")
    entry = bench.run("deep/second.v1")

    made = (bench.folder / "first.ncu-rep").read_bytes()
    assert entry.cached
    assert (bench.folder / "deep" / "second.v1.ncu-rep").read_bytes() == made
    assert (bench.folder / "deep" / "second.v1.log").exists()


def test_get_puts_nothing_elsewhere(bench: Bench) -> None:
    """It says where the report is in the cache."""
    bench.run("first")
    entry = bench.cache().get(bench.command("second"), cwd=bench.folder, env=bench.env)

    assert entry.cached
    assert not (bench.folder / "second.ncu-rep").exists()


def test_a_changed_program_is_profiled_again(bench: Bench) -> None:
    """The file behind the argument counts."""
    bench.run()
    bench.program.write_text("print(2)\n")

    assert not bench.run().cached
    assert bench.starts == 2


def removed(path: Path) -> None:
    path.unlink()


def folder_removed(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (emptied, "report.ncu-rep"),
        (flipped, "report.ncu-rep"),
        (removed, "report.ncu-rep"),
        (cut, "ncu.log"),
        (cut, "manifest"),
        (removed, "manifest"),
        (folder_removed, "manifest"),
    ],
)
def test_a_damaged_or_removed_entry_is_a_miss(
    bench: Bench, name: str, damage: Callable[[Path], None]
) -> None:
    """It is made again in the same call."""
    entry = bench.run()
    damage(entry.directory / name)

    assert not bench.run().cached
    assert {each.name for each in entry.directory.iterdir()} == {
        "manifest",
        "ncu.log",
        "report.ncu-rep",
    }


def test_a_failed_profile_leaves_nothing(bench: Bench) -> None:
    """No entry, no half of one, and no empty folder."""
    bench.env["FAKE_NCU_MODE"] = "launch-failed"
    with pytest.raises(CollectorFailedError):
        bench.run()
    kept = bench.folder / "cache"
    assert files(kept) == []
    assert not (kept / "reports").exists()

    bench.env["FAKE_NCU_MODE"] = "ok"

    assert not bench.run().cached


def test_values_and_reports_share_a_new_folder(bench: Bench) -> None:
    """Neither is in the way of the other, whoever was first."""
    values = Values(bench.folder / "cache")
    values.put(key(), b"x")
    bench.run()

    assert {each.kind for each in values.entries()} == {"values", "reports"}
    assert values.verify() == ()


def test_values_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reports no path, command line or source is kept, and they are handed out."""
    fake_ncu_report.install(bench.folder / "site")
    monkeypatch.syspath_prepend(str(bench.folder / "site"))
    first = bench.run("first", reports=False)
    second = bench.run("second", reports=False)

    assert (first.cached, second.cached) == (False, True)
    kept = [path.read_bytes() for path in second.directory.iterdir()]
    assert len(kept) == 2
    assert not any(str(bench.folder).encode() in content for content in kept)
    for name in ("first", "second"):
        text = (bench.folder / f"{name}.values.json").read_bytes()
        launch = json.loads(text)["ranges"][0]["launches"][0]
        assert launch["metrics"]["gpu__time_duration.sum"]["value"] == 1000
    assert not bench.run("third").cached  # a whole report is another thing


def test_a_cache_may_be_too_small(bench: Bench) -> None:
    """What was just made stays all the same; leaving the cache removes what is too much."""
    entry = bench.run(limit_bytes=10)

    assert not entry.cached
    assert not entry.directory.exists()
    assert (bench.folder / "r.ncu-rep").exists()


def test_nothing_of_the_environment_is_kept(bench: Bench) -> None:
    """Values of variables go into the key and nowhere else."""
    bench.env |= {"CUDA_SECRET": "s3cr3t-cuda", "TOKEN": "s3cr3t-token"}
    bench.run()
    Values(bench.folder / "cache").put(key(), b"x")

    kept = [path.read_bytes() for path in files(bench.folder / "cache")]

    assert len(kept) == 4
    assert not any(b"s3cr3t" in content for content in kept)


# ------------------------------------------------------------------ the command


def cache_command(
    capsysbinary: pytest.CaptureFixture[bytes], *argv: str
) -> tuple[int, str]:
    code = main(["cache", *argv])
    return code, capsysbinary.readouterr().out.decode()


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_info_says_what_there_is(
    values: Values, form: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """How many entries of what size, in each form."""
    values.put(key(), b"x" * 1000)
    folder = str(values.folder)

    code, said = cache_command(
        capsysbinary, "info", "--folder", folder, "--format", form
    )

    assert code == 0
    assert folder in said
    if form == "json":
        found = json.loads(said)
        assert found["values"]["entries"] == 1
        assert found["size_bytes"] == values.entries()[0].size_bytes > 1000
        assert found["limit_bytes"] == 1 << 30
    else:
        assert re.search(r"values\W+1\W+1\.\d+ kB", said)
        assert re.search(r"reports\W+0\W+0 B\W+never", said)
        assert "of 1.07 GB" in said


def test_verify_removes_what_is_damaged(
    bench: Bench, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It exits 1 then, and 0 the next time."""
    values = Values(bench.folder / "cache")
    values.put(key(), b"x")
    values.put(key(1), b"y")
    flipped(bench.run().directory / "ncu.log")
    cut(next(each.path for each in values.entries() if each.key == key(1)))
    argv = ("verify", "--folder", str(values.folder), "--format")

    code, said = cache_command(capsysbinary, *argv, "json")
    assert code == 1
    assert len(json.loads(said)["damaged"]) == 2

    assert cache_command(capsysbinary, *argv, "text")[0] == 0
    assert [each.key for each in values.entries()] == [key()]


def test_clear_removes_entries_and_nothing_else(
    bench: Bench, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A folder that holds other things too loses only what is the cache's."""
    values = Values(bench.folder)
    values.put(key(), b"x")
    mine = bench.folder / "values" / "mine.txt"
    mine.touch()

    code, said = cache_command(capsysbinary, "clear", "--folder", str(bench.folder))

    assert code == 0
    assert "1 entry removed" in said
    assert values.entries() == ()
    assert mine.exists()
    assert bench.program.exists()


# ------------------------------------------------------------------ the page


def test_the_page_names_tests_that_are_there() -> None:
    """Each fault that the page says cannot happen is held by a test of that name."""
    section = PAGE.read_text(encoding="utf-8").partition("## The cache")[2]
    named = re.findall(r"`(\w+\.py)::(test_\w+)`", section)
    folders = (Path(__file__).parent, Path(__file__).parents[3] / "functional")

    assert len(named) >= 14
    for file, name in named:
        path = next(p / file for p in folders if (p / file).exists())
        assert f"def {name}(" in path.read_text(encoding="utf-8")
