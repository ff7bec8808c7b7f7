"""Rules of collect.ncu.store: what a profile depends on; anything less is a false hit."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.collect.loaded_files import FileKind, LoadedFile
from pytest_gpuperf.collect.ncu.store import (
    CHOSEN,
    PASSED_OVER,
    EntryStore,
    FileSets,
    chosen_environment,
    device_fields,
    key_of,
    telling_options,
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

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def same(left: object, right: object) -> bool:
    """Return whether two fields are equal, types included: 1 is not True here."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        keys = left.keys() == right.keys()
        return keys and all(same(left[name], right[name]) for name in left)
    return type(left) is type(right) and repr(left) == repr(right)


@given(left=plain, right=plain)
@settings(deadline=None)
def test_fields_that_differ_have_different_keys(left: object, right: object) -> None:
    """Whatever types and nesting."""
    assert (key_of({"a": left}) == key_of({"a": right})) is same(left, right)


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3)))
@settings(deadline=None)
def test_fields_are_framed(left: list[str], right: list[str]) -> None:
    """`a b` and `ab` are two things, however their letters are spread."""
    assert (key_of({"args": left}) == key_of({"args": right})) is (left == right)


@given(st.dictionaries(st.text(), plain), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_names_does_not_matter(
    fields: dict[str, object], random: object
) -> None:
    """A mapping in another order has the same key."""
    names = list(fields)
    random.shuffle(names)  # type: ignore[attr-defined] # hypothesis gives a Random

    assert key_of({name: fields[name] for name in names}) == key_of(fields)


def test_a_key_is_the_same_in_every_process() -> None:
    """It hangs on no hash seed, no address and no version of Python."""
    assert key_of({"b": ("x", 1, None), "a": {"y": 0.5, "z": "\udc80"}}) == (
        "366c6588662201661cd83c7b42e6f42096d754ff79f5bb0f4bb5ef74369f69ee"
    )


def test_a_key_takes_plain_fields_only() -> None:
    """An object is refused: its text would tell where it lies, not what it is."""
    with pytest.raises(TypeError, match="object"):
        key_of({"a": object()})


def test_every_variable_has_its_reason() -> None:
    """The list of variables is short and each one is argued for."""
    for name, reason in {**CHOSEN, **PASSED_OVER}.items():
        assert re.fullmatch(r"[A-Z_]+\*?", name)
        assert len(reason) > 10


def test_only_chosen_variables_are_looked_at() -> None:
    """A token, a home and where compiled kernels are kept are nobody's business."""
    env = {
        "CUDA_VISIBLE_DEVICES": "1",
        "TRITON_CACHE_DIR": "/fresh/1",
        "GITHUB_TOKEN": "secret",
        "HOME": "/home/me",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
    }

    assert chosen_environment(env) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"name": "NVIDIA H100"},
        {"driver_version": "590.1"},
        {"compute_capability": (9, 1)},
        {"mig_profile": "1g.10gb"},
        {"uuid": "MIG-8b1d"},
    ],
    ids=str,
)
def test_another_gpu_or_driver_has_another_key(change: dict[str, object]) -> None:
    """What may change a counter is told apart."""
    other = replace(H200, **change)

    assert key_of(device_fields(other)) != key_of(device_fields(H200))


def test_two_boards_of_a_kind_share_their_values() -> None:
    """Which of eight equal boards a runner has is not a difference."""
    other = replace(H200, uuid="GPU-ffff", index=3)

    assert key_of(device_fields(other)) == key_of(device_fields(H200))


@pytest.mark.parametrize(
    ("args", "telling"),
    [
        (("-q", "--tb=short", "-k", "x", "t.py"), ()),
        (("--size", "2", "-p", "own", "-pown"), ("--size", "2", "-p", "own", "-pown")),
        (("--size=2", "--gpuperf-confirm=1", "--maxfail", "3"), ("--size=2",)),
        (("-o", "a=b", "--", "--size", "2"), ("-o", "a=b")),
    ],
)
def test_options_that_only_show_or_choose_are_left_out(
    args: tuple[str, ...], telling: tuple[str, ...]
) -> None:
    """Any other may change what a test does."""
    assert telling_options(args) == telling


# ------------------------------------------------------------------ file sets


IDENTITY = key_of({"test": 1})


class Project:
    """Files, and a cache that remembers which of them results depend on."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.store = EntryStore(folder / "cache")
        self.env: dict[str, str] = {}

    def write(self, files: Mapping[str, str]) -> None:
        """Write files by name, from the root."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def add(self, *names: str, kind: FileKind = FileKind.MODULE) -> str | None:
        """Keep what a profile depended on."""
        files = [LoadedFile(str(self.root / name), kind) for name in names]
        return self.add_files(files)

    def add_files(self, files: Iterable[LoadedFile]) -> str | None:
        """Keep what a profile depended on."""
        sets = FileSets(self.store, self.root, self.env)
        return sets.add(IDENTITY, files, since_unix_s=time.time() + 60)

    def states(self) -> tuple[str, ...]:
        """Return a fresh look at all sets."""
        return FileSets(self.store, self.root, self.env).states(IDENTITY)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write({"t.py": "import a", "a.py": "import b", "b.py": "N = 1"})
    return project


def test_what_has_not_changed_is_the_same_state(project: Project) -> None:
    """Nothing is known at first; then the state is what it was when it was added."""
    assert project.states() == ()

    state = project.add("t.py", "a.py")

    assert state is not None
    assert project.states() == (state,)


@pytest.mark.parametrize("name", ["t.py", "b.py"])
def test_a_changed_file_is_another_state(project: Project, name: str) -> None:
    """And the old one again when it is changed back."""
    state = project.add("t.py", "a.py", "b.py")
    text = (project.root / name).read_text()

    project.write({name: text + " "})
    assert project.states() != (state,)

    project.write({name: text})
    assert project.states() == (state,)


def test_a_touched_file_is_the_same_state(project: Project) -> None:
    """Its content counts, not its time."""
    state = project.add("t.py")
    os.utime(project.root / "t.py", (1, 1))

    assert project.states() == (state,)


def test_a_changed_file_with_its_old_time_is_another_state(project: Project) -> None:
    """`cp -p` and `touch -d` set times back."""
    state = project.add("t.py")
    before = (project.root / "t.py").stat()
    project.write({"t.py": "import c"})
    os.utime(project.root / "t.py", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert project.states() != (state,)


def test_a_deleted_file_is_another_state(project: Project) -> None:
    """It is not skipped."""
    state = project.add("t.py", "a.py")
    (project.root / "a.py").unlink()

    assert project.states() != (state,)


def test_a_moved_project_is_the_same_state(project: Project, tmp_path: Path) -> None:
    """Names in it are relative."""
    state = project.add("t.py", "a.py")
    project.root.rename(tmp_path / "elsewhere")
    project.root = tmp_path / "elsewhere"

    assert project.states() == (state,)


def test_the_last_sets_are_looked_at(project: Project) -> None:
    """Who changes between two branches finds both, and old sets are forgotten."""
    project.write({f"f{n}.py": str(n) for n in range(6)})
    added = [project.add(f"f{n}.py") for n in range(6)]
    assert project.states() == tuple(reversed(added[2:]))

    project.add("f3.py")
    assert project.states()[0] == added[3]
    assert len(set(project.states())) == 4


def test_a_file_that_changes_meanwhile_is_not_kept(project: Project) -> None:
    """What ran and what is digested may be two things; that is said."""
    files = [LoadedFile(str(project.root / "t.py"), FileKind.MODULE)]
    sets = FileSets(project.store, project.root, {})

    assert sets.add(IDENTITY, files, since_unix_s=time.time() - 60) is None
    assert project.states() == ()
    assert "t.py changed while it was counted" in project.store.remarks[0]


def test_a_file_that_is_gone_meanwhile_is_not_kept(project: Project) -> None:
    """It was loaded, and nobody can say what it was."""
    assert project.add("gone.py") is None


def test_a_new_version_of_a_distribution_is_another_state(project: Project) -> None:
    """So is another build of the same version, and one more distribution."""
    site, states = ".venv/lib/python3.12/site-packages", set()
    record = f"{site}/torch-2.9.dist-info/RECORD"
    project.write({record: "torch/a.py,sha256=1,1"})
    states.add(project.add(site, kind=FileKind.PACKAGES))
    project.write({record: "torch/a.py,sha256=2,1"})
    states.update(project.states())
    old, new = (project.root / site / f"torch-{v}.dist-info" for v in ("2.9", "2.10"))
    old.rename(new)
    states.update(project.states())
    project.write({f"{site}/flash_attn-1.egg-info/PKG-INFO": "Name: flash-attn"})
    states.update(project.states())

    assert len(states) == 4
    assert None not in states


def counted(project: Project, *files: LoadedFile) -> set[str]:
    """Return the names of the files that count, of some that were used."""
    assert project.add_files(files) is not None
    content = project.store.get("files", IDENTITY)
    assert content is not None
    return set(re.findall(r'"([^"]+)"', content.files["sets.json"].decode()))


def test_what_is_installed_counts_by_its_distribution(project: Project) -> None:
    """Neither modules nor libraries of it are read, wherever the environment lies."""
    names = (
        ".venv/lib/python3.12/site-packages/torch/a.py",
        ".venv/lib/python3.12/site-packages/torch/lib/libtorch.so",
        "usr/lib/python3.12/json/a.py",
        "usr/lib/python3/dist-packages/a.py",
    )
    project.write(dict.fromkeys((*names, "lib/own.so"), ""))
    files = [LoadedFile(str(project.root / n), FileKind.LIBRARY) for n in names]
    own = LoadedFile(str(project.root / "lib/own.so"), FileKind.LIBRARY)

    assert counted(project, *files, own) == {"lib/own.so"}


def test_what_compilers_and_tools_made_does_not_count(project: Project) -> None:
    """A run whose compiled kernels lie in a fresh folder finds the values before it."""
    project.env = {"TRITON_CACHE_DIR": str(project.root / "fresh")}
    modules = ("fresh/k.so", ".cache/torch_extensions/e.so", "torchinductor_me/ab/c.py")
    opened = (".git/HEAD", ".gpuperf/baseline.json", "data.json")
    project.write(dict.fromkeys((*modules, *opened), ""))
    files = [LoadedFile(str(project.root / n), FileKind.MODULE) for n in modules]
    files += [LoadedFile(str(project.root / n), FileKind.OPENED) for n in opened]

    assert counted(project, *files) == {"data.json"}


def test_headers_count_where_a_source_was_opened(project: Project) -> None:
    """A compiler opens them where nobody sees it: every one of the project counts."""
    sources = ("k.cu", "inc/deep/k.cuh", "other.h")
    away = (".hidden/x.h", "node_modules/y/z.h", "k.txt")
    project.write(dict.fromkeys((*sources, *away), ""))
    opened = LoadedFile(str(project.root / "k.cu"), FileKind.OPENED)

    assert counted(project, opened) == {*sources}
    state = project.states()
    project.write({"inc/deep/k.cuh": "#define N 2"})
    assert project.states() != state


def test_a_file_outside_of_the_project_has_its_whole_name(
    project: Project, tmp_path: Path
) -> None:
    """A module of PYTHONPATH or of an editable install."""
    (tmp_path / "beside.py").write_text("")
    file = LoadedFile(str(tmp_path / "beside.py"), FileKind.MODULE)

    assert counted(project, file) == {str(tmp_path / "beside.py")}


@pytest.mark.skipif(sys.platform == "win32", reason="Unix has named pipes")
def test_nobody_waits_for_a_pipe(project: Project) -> None:
    """It has no content of its own."""
    os.mkfifo(project.root / "pipe")
    state = project.add("pipe")
    (project.root / "pipe").unlink()

    assert project.states() == (state,)
