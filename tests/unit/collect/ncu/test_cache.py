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
from pytest_gpuperf.collect.ncu.cache import Cache, Entry
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.session import Session
from pytest_gpuperf.collect.ncu.store import (
    FOLDER_VARIABLE,
    EntryStore,
    cache_folder,
    key_of,
)
from pytest_gpuperf.errors import (
    CollectError,
    CollectorFailedError,
    CollectorTimeoutError,
    CollectorUnavailableError,
    ConfigError,
)
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace

H200 = Device(
    index=0,
    uuid="GPU-8b1d",
    name="NVIDIA H200",
    sm_count=132,
    compute_capability=(9, 0),
    driver_version="580.65.06",
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
def store(tmp_path: Path) -> EntryStore:
    return EntryStore(tmp_path / "cache")


def put(store: EntryStore, number: int = 0, content: bytes = b"x") -> None:
    """Put one value set."""
    store.put("values", key(number), {"counted.json": content})


def got(store: EntryStore, number: int = 0) -> bytes | None:
    """Return a value set; None: there is none."""
    content = store.get("values", key(number))
    return None if content is None else content.files["counted.json"]


# ------------------------------------------------------------------ values


@given(st.binary())
@settings(max_examples=20, deadline=None)
def test_what_is_put_is_got(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Any bytes, lines and all; another key has nothing."""
    store = EntryStore(tmp_path_factory.mktemp("cache"))
    put(store, content=content)

    assert got(store) == content
    assert got(store, 1) is None


def test_the_last_put_stays(store: EntryStore) -> None:
    """In place of what was there."""
    put(store, content=b"old")
    put(store, content=b"new")

    assert got(store) == b"new"
    assert len(store.entries()) == 1


@pytest.mark.parametrize("text", ["../../etc/passwd", "", "a" * 63, "A" * 64])
def test_only_a_key_is_looked_up(store: EntryStore, text: str) -> None:
    """Nothing outside the folder can be read, put or removed."""
    with pytest.raises(ConfigError, match="is not a key"):
        store.get("values", text)
    with pytest.raises(ConfigError, match="is not a key"):
        store.put("values", text, {})


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


@pytest.mark.parametrize("file", ["counted.json", "manifest"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_values_are_a_miss(
    store: EntryStore, damage: Callable[[Path], None], file: str
) -> None:
    """They are removed, that is said, and can be put again."""
    put(store, content=b"content")
    damage(store.entries()[0].path / file)

    assert got(store) is None
    assert store.entries() == ()
    assert "was damaged" in store.remarks[0]
    put(store, content=b"again")
    assert got(store) == b"again"


def test_values_under_another_key_are_a_miss(store: EntryStore) -> None:
    """A folder that was renamed is not what its name says."""
    put(store)
    path = store.entries()[0].path
    other = path.parents[1] / key(1)[:2] / key(1)
    other.parent.mkdir(exist_ok=True)
    path.rename(other)

    assert got(store, 1) is None


def test_a_hit_takes_no_lock(store: EntryStore) -> None:
    """Any number of processes read at once."""
    put(store)

    assert got(store) == b"x"
    assert not (store.folder / "locks").exists()


@unix
def test_everything_is_private(store: EntryStore) -> None:
    """Only its owner may look into the cache, whatever the umask."""
    before = os.umask(0)
    try:
        with store.lock("a", timeout_s=1):
            put(store)
    finally:
        os.umask(before)

    for path in [store.folder, *store.folder.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path


def test_backups_and_git_leave_the_cache_out(store: EntryStore) -> None:
    """It may lie in a project, and can be made again."""
    put(store)

    assert (store.folder / ".gitignore").read_text() == "*\n"
    tag = (store.folder / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    """It names the folder and the variable."""
    (tmp_path / "file").write_text("in the way")
    store = EntryStore(tmp_path / "file" / "cache")

    assert got(store) is None
    with pytest.raises(CollectError, match=FOLDER_VARIABLE):
        put(store)


@not_root
def test_a_cache_of_others_can_be_read(store: EntryStore) -> None:
    """A folder that somebody filled and shut gives its values."""
    put(store)
    path = store.entries()[0].path
    path.chmod(0o500)
    path.parent.chmod(0o500)

    assert got(store) == b"x"


def test_the_folder_is_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "pytest-gpuperf" / "ncu"

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "here"))

    assert cache_folder() == EntryStore().folder == tmp_path / "here"


# ------------------------------------------------------------------ room


def sized(tmp_path: Path, clock: FakeClock, **limits: float) -> EntryStore:
    return EntryStore(tmp_path / "cache", clock=clock, **limits)  # type: ignore[arg-type]


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    """What was used longest ago makes room; reading is using."""
    clock = FakeClock()
    store = sized(tmp_path, clock, limit_bytes=4000)
    for number in range(3):
        put(store, number, b"x" * 1000)
        clock.advance(10**9)
    assert got(store, 0) is not None
    clock.advance(10**9)

    put(store, 3, b"x" * 1000)

    assert [n for n in range(4) if got(store, n) is not None] == [0, 2, 3]


@given(st.lists(st.integers(0, 3000), max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_limit_is_kept(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    """After each put there is no more than the limit, or only what was just put."""
    store = EntryStore(tmp_path_factory.mktemp("cache"), limit_bytes=4000)
    for number, size in enumerate(sizes):
        put(store, number, b"x" * size)
        kept = store.entries()

        assert got(store, number) is not None
        assert sum(each.size_bytes for each in kept) <= 4000 or len(kept) == 1


def test_another_process_counts_too(tmp_path: Path) -> None:
    """What others have put is part of the limit."""
    for number in range(6):
        put(EntryStore(tmp_path, limit_bytes=4000), number, b"x" * 1000)

    assert sum(each.size_bytes for each in EntryStore(tmp_path).entries()) <= 4000


def test_what_nobody_uses_gets_too_old(tmp_path: Path) -> None:
    """An entry is a miss once its time is over, and is removed."""
    clock = FakeClock()
    store = sized(tmp_path, clock, max_age_s=100.0)
    put(store)
    clock.advance(99 * 10**9)
    assert got(store) == b"x"
    clock.advance(99 * 10**9)
    assert got(store) == b"x"
    clock.advance(101 * 10**9)

    assert got(store) is None
    assert store.entries() == ()


@pytest.mark.parametrize("limits", [{"limit_bytes": 0}, {"max_age_s": float("nan")}])
def test_a_limit_is_above_zero(tmp_path: Path, limits: dict[str, float]) -> None:
    """A cache that holds nothing is a mistake."""
    with pytest.raises(ConfigError, match="give more than zero"):
        sized(tmp_path, FakeClock(), **limits)


def test_what_killed_processes_left_is_swept(store: EntryStore) -> None:
    """After a day; what is being written now stays."""
    put(store)
    old, new = (store.folder / "staging" / name for name in ("old", "new"))
    lock = store.folder / "locks" / "old.lock"
    for path in (old / "x", new / "x", lock):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for path in (old, lock):
        os.utime(path, (time.time() - 90_000,) * 2)

    put(EntryStore(store.folder), 1)

    assert not old.exists()
    assert not lock.exists()
    assert new.exists()


# ------------------------------------------------------------------ locks and threads


def test_any_thread_may_use_it(store: EntryStore) -> None:
    """What one has put another gets; nothing belongs to the thread that opened it."""
    put(store)
    seen: list[object] = []

    def work() -> None:
        seen.append(got(store))
        put(store, 1, b"y")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [b"x"]
    assert got(store, 1) == b"y"


def test_waiting_ends(store: EntryStore) -> None:
    """Who waits longer than it may is told who to wait for."""
    with (
        store.lock("gpu", timeout_s=1),
        pytest.raises(CollectorTimeoutError, match=r"gpu\.lock for 0.1 s"),
    ):
        in_thread(lambda: hold(store))


def hold(store: EntryStore) -> None:
    with store.lock("gpu", timeout_s=0.1):
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
def test_a_lock_has_a_plain_name(store: EntryStore, name: str) -> None:
    """No lock lies outside the folder."""
    with (
        pytest.raises(ConfigError, match="name of a lock"),
        store.lock(name, timeout_s=0),
    ):
        pass


LOADED = """
import sys
from pathlib import Path
before = set(sys.modules)  # whoever watches this process loads more
from pytest_gpuperf.collect.ncu.store import EntryStore
assert EntryStore(Path(sys.argv[1])).get("values", sys.argv[2])
print(*{name.partition(".")[0] for name in sys.modules.keys() - before})
"""


def test_reading_values_loads_nothing_heavy(store: EntryStore) -> None:
    """Neither ncu's reader nor numpy, scipy, the locks or a pickle."""
    put(store)
    argv = [sys.executable, "-c", LOADED, str(store.folder), key()]

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
        usual: dict[str, object] = {
            "executable": sys.executable,
            "args": ("t.py",),
            "output": output,
            "metrics": ("gpu__time_duration.sum",),
        }
        return Command(**(usual | fields))  # type: ignore[arg-type] # whatever a test gives

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


def test_a_hit_is_not_written_through_a_link_beside_it(bench: Bench) -> None:
    """Whoever shares the folder may have guessed the name of the unfinished file."""
    bench.run("first")
    victim = bench.folder / "victim"
    victim.write_text("precious")
    (bench.folder / f".second.ncu-rep.{os.getpid()}.tmp").symlink_to(victim)
    bench.run("second")

    assert victim.read_text() == "precious"
    assert (bench.folder / "second.ncu-rep").stat().st_size > len("precious")


def test_get_puts_nothing_elsewhere(bench: Bench) -> None:
    """It says where the report is in the cache."""
    bench.run("first")
    entry = bench.cache().get(bench.command("second"), cwd=bench.folder, env=bench.env)

    assert entry.cached
    assert not (bench.folder / "second.ncu-rep").exists()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


PROGRAM = {
    "t.py": """
import importlib, json
import pkg.deep
import beside
importlib.import_module("pkg." + "late")
json.load(open("data/" + "table.json"))
open("kernels/k.cu").close()
""",
    "pkg/__init__.py": "",
    "pkg/deep.py": "from pkg import deeper",
    "pkg/deeper.py": "N = 1",
    "pkg/late.py": "",
    "pkg/unused.py": "",
    "data/table.json": "[]",
    "kernels/k.cu": '#include "inc/k.cuh"',
    "kernels/inc/k.cuh": "",
    "site/beside.py": "",
    "site/flash-1.dist-info/RECORD": "flash.py,sha256=1,1",
}


USED = [
    "t.py",
    "pkg/__init__.py",
    "pkg/deeper.py",
    "pkg/late.py",
    "data/table.json",
    "kernels/k.cu",
    "kernels/inc/k.cuh",
    "site/beside.py",
    "site/flash-1.dist-info/RECORD",
]


def test_a_changed_file_that_the_program_used_is_a_miss(bench: Bench) -> None:
    """However deep it is imported, and wherever its name comes from."""
    write(bench.folder, PROGRAM)
    bench.env["PYTHONPATH"] = str(bench.folder / "site")
    bench.run()
    for name in USED:
        os.utime(bench.folder / name, (1, 1))
    write(bench.folder, {"pkg/unused.py": "changed"})
    assert bench.run().cached

    for name in USED:
        with (bench.folder / name).open("a") as stream:
            stream.write("\n")

        assert not bench.run().cached, name
    assert bench.run().cached
    assert bench.starts == 1 + len(USED)


def test_a_deleted_file_that_the_program_used_is_a_miss(bench: Bench) -> None:
    """It is profiled without it."""
    write(
        bench.folder,
        {
            "x.json": "",
            "t.py": "import os\nos.path.exists('x.json') and open('x.json')",
        },
    )
    bench.run()
    (bench.folder / "x.json").unlink()

    assert not bench.run().cached


def test_a_file_that_was_changed_back_is_a_hit(bench: Bench) -> None:
    """Both states are kept."""
    write(bench.folder, {"t.py": "import a", "a.py": "1"})
    bench.run()
    write(bench.folder, {"a.py": "2"})
    bench.run()
    write(bench.folder, {"a.py": "1"})

    assert bench.run().cached


def test_a_file_that_changes_while_it_is_profiled_is_no_hit(bench: Bench) -> None:
    """The report is there, and the next run profiles again."""
    write(
        bench.folder,
        {
            "a.py": "",
            "t.py": "import subprocess, sys, a\nsubprocess.run([sys.executable, 'w.py'])",
        },
    )
    write(bench.folder, {"w.py": "open('a.py', 'a').write('#')"})
    with bench.cache() as cache:
        entry = cache.run(bench.command(), cwd=bench.folder, env=bench.env)

    assert (entry.directory / "report.ncu-rep").exists()
    assert "a.py changed while it was counted" in cache.remarks[0]
    assert not bench.run().cached


def test_a_program_that_does_not_say_what_it_used_is_no_hit(bench: Bench) -> None:
    """A Python that ignores its environment; that is said."""
    for _ in range(2):
        with bench.cache() as cache:
            command = bench.command(args=("-I", "t.py"))
            entry = cache.run(command, cwd=bench.folder, env=bench.env)

        assert not entry.cached
        assert "did not say which files it loaded" in cache.remarks[0]


CHANGES: list[dict[str, object]] = [
    {"env": {"CUDA_VISIBLE_DEVICES": "1"}},
    {"env": {"LD_LIBRARY_PATH": "/opt/lib"}},
    {"env": {"FAKE_NCU_VERSION": "2026.1.0.0"}},
    {"device": H200},
    {"device": replace(H200, driver_version="590.1")},
    {"cache_control": "none"},
    {"clock_control": "base"},
    {"replay_mode": "application"},
    {"metrics": ("dram__bytes.sum",)},
    {"opts": ("--set", "full")},
    {"args": ("t.py", "2")},
    {"args": ("t.py 2",)},
    {"args": ("t.py", "x" * 5000)},
    {"executable": "true"},
    {"own": {"MODE": "fast"}},
    {"cwd": "copy"},
    {"ncu": "copied"},
]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench on which the program has been profiled once."""
    bench = Bench(tmp_path_factory.mktemp("profiled"))
    for name in ("copy/t.py", "t.py 2"):
        write(bench.folder, {name: "print(1)\n"})
    copied = bench.folder / "copied"
    copied.write_text(f'#!/bin/sh\nexec "{FAKES}/ncu" "$@"\n')
    copied.chmod(0o755)
    bench.run(device=None)
    return bench


@pytest.mark.parametrize("change", CHANGES, ids="-".join)
def test_environment_gpu_clocks_and_options_are_part_of_the_key(
    profiled: Bench, change: dict[str, object]
) -> None:
    """Whatever may change a counter changes the key; also another ncu and folder."""
    fields = dict(change)
    env = {**profiled.env, **fields.pop("env", {})}  # type: ignore[dict-item] # texts by name
    cwd = profiled.folder / str(fields.pop("cwd", "."))
    device = fields.pop("device", None)
    if "ncu" in fields:
        fields["ncu"] = profiled.folder / str(fields["ncu"])
    fields["env"] = fields.pop("own", None)

    with profiled.cache(device=device) as cache:
        command = profiled.command(**fields)  # type: ignore[arg-type] # of any field
        assert not cache.run(command, cwd=cwd, env=env).cached


def test_other_variables_are_no_part_of_the_key(profiled: Bench) -> None:
    """Nor is their order, nor where kernels are kept, nor which of equal boards it is."""
    env = {"EDITOR": "vi", "TRITON_CACHE_DIR": "/fresh/1", **profiled.env}

    with profiled.cache() as cache:
        entry = cache.run(profiled.command("other"), cwd=profiled.folder, env=env)

    assert entry.cached


def test_a_program_that_is_not_there_is_said(bench: Bench) -> None:
    """Before anything is started, with what can be done about it."""
    with pytest.raises(CollectorUnavailableError, match="put it on PATH"):
        bench.cache().get(bench.command(executable="no-such-program"), env=bench.env)

    assert bench.starts == 0


def test_a_script_counts_with_its_interpreter(bench: Bench) -> None:
    """A relative program is that of the folder it is started in."""
    write(bench.folder, {"run": "#!/usr/bin/env sh\nexit 0\n"})
    (bench.folder / "run").chmod(0o755)
    command = bench.command(executable="./run", args=())
    with bench.cache() as cache:
        assert not cache.run(command, cwd=bench.folder, env=bench.env).cached
        assert cache.run(command, cwd=bench.folder, env=bench.env).cached
        write(bench.folder, {"run": "#!/usr/bin/env sh\nexit 00\n"})
        assert not cache.run(command, cwd=bench.folder, env=bench.env).cached


def test_a_folder_behind_an_argument_is_listed(bench: Bench) -> None:
    """Names, sizes and times: what is in it may be a large data set."""
    write(bench.folder, {"data/a.npy": "1"})
    command = bench.command(args=("t.py", "--data=data"))
    with bench.cache() as cache:
        cache.run(command, cwd=bench.folder, env=bench.env)
        write(bench.folder, {"data/__pycache__/a.pyc": "made by a run"})
        assert cache.run(command, cwd=bench.folder, env=bench.env).cached
        write(bench.folder, {"data/b.npy": "2"})
        assert not cache.run(command, cwd=bench.folder, env=bench.env).cached


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's loader says what it loads")
@pytest.mark.parametrize("how", ["linked", "opened"])
def test_a_changed_library_of_a_binary_is_a_miss(bench: Bench, how: str) -> None:
    """One in a folder of its own, loaded at the start or later."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    code = {
        "linked": "int own(void); int main(void) { return own(); }",
        "opened": "#include <dlfcn.h>\n"
        'int main(void) { return !dlopen("./libown.so", RTLD_NOW); }',
    }[how]
    link = ["-L.", "-lown", "-Wl,-rpath,$ORIGIN"] if how == "linked" else ["-ldl"]

    write(bench.folder, {"own.c": "int own(void) { return 0; }", "p.c": code})
    for argv in (
        ["-shared", "-fPIC", "-o", "libown.so", "own.c"],
        ["-o", "p", "p.c", *link],
    ):
        subprocess.run([compiler, *argv], cwd=bench.folder, check=True)
    command = bench.command(executable="./p", args=())
    with bench.cache() as cache:
        cache.run(command, cwd=bench.folder, env=bench.env)
        assert cache.run(command, cwd=bench.folder, env=bench.env).cached
        (bench.folder / "libown.so").write_bytes(
            (bench.folder / "libown.so").read_bytes() + b"\0"
        )
        assert not cache.run(command, cwd=bench.folder, env=bench.env).cached


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
    store = EntryStore(bench.folder / "cache")
    put(store)
    bench.run()

    assert {each.kind for each in store.entries()} == {"values", "reports", "files"}
    assert store.verify() == ()


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
    put(EntryStore(bench.folder / "cache"))

    kept = [path.read_bytes() for path in files(bench.folder / "cache")]

    assert len(kept) == 7
    assert not any(b"s3cr3t" in content for content in kept)


# ------------------------------------------------------------------ the command


def cache_command(
    capsysbinary: pytest.CaptureFixture[bytes], *argv: str
) -> tuple[int, str]:
    code = main(["cache", *argv])
    return code, capsysbinary.readouterr().out.decode()


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_info_says_what_there_is(
    store: EntryStore, form: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """How many entries of what size, in each form."""
    put(store, 0, b"x" * 1000)
    folder = str(store.folder)

    code, said = cache_command(
        capsysbinary, "info", "--folder", folder, "--format", form
    )

    assert code == 0
    assert folder in said
    if form == "json":
        found = json.loads(said)
        assert found["values"]["entries"] == 1
        assert found["size_bytes"] == store.entries()[0].size_bytes > 1000
        assert found["limit_bytes"] == 1 << 30
    else:
        assert re.search(r"values\W+1\W+1\.\d+ kB", said)
        assert re.search(r"reports\W+0\W+0 B\W+never", said)
        assert "of 1.07 GB" in said


def test_verify_removes_what_is_damaged(
    bench: Bench, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It exits 1 then, and 0 the next time."""
    store = EntryStore(bench.folder / "cache")
    put(store)
    put(store, 1, b"y")
    flipped(bench.run().directory / "ncu.log")
    cut(next(e.path for e in store.entries() if e.key == key(1)) / "counted.json")
    argv = ("verify", "--folder", str(store.folder), "--format")

    code, said = cache_command(capsysbinary, *argv, "json")
    assert code == 1
    assert len(json.loads(said)["damaged"]) == 2

    assert cache_command(capsysbinary, *argv, "text")[0] == 0
    values = [each.key for each in store.entries() if each.kind == "values"]
    assert values == [key()]


def test_clear_removes_entries_and_nothing_else(
    bench: Bench, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A folder that holds other things too loses only what is the cache's."""
    store = EntryStore(bench.folder)
    put(store)
    mine = bench.folder / "values" / "mine.txt"
    mine.touch()

    code, said = cache_command(capsysbinary, "clear", "--folder", str(bench.folder))

    assert code == 0
    assert "1 entry removed" in said
    assert store.entries() == ()
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
