"""Rules of collect.ncu.key and of what gathers its fields: what else would be a false hit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.clock import FakeClock
from pytest_gpuperf.collect.ncu.command import Command
from pytest_gpuperf.collect.ncu.key import (
    CHOSEN,
    PASSED_OVER,
    Digests,
    Field,
    chosen_environment,
    device_fields,
    encoded,
    key_of,
)
from pytest_gpuperf.collect.ncu.libraries import library_fields
from pytest_gpuperf.collect.ncu.program import (
    argument_fields,
    command_fields,
    interpreters,
    resolved,
    scripts,
)
from pytest_gpuperf.collect.ncu.sources import (
    installed,
    plugins,
    project_files,
    python_fields,
)
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")

H200 = Device(
    index=0,
    uuid="GPU-8b1d",
    name="NVIDIA H200",
    sm_count=132,
    compute_capability=(9, 0),
    driver_version="580.65.06",
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def same(left: object, right: object) -> bool:
    """Return whether two fields are equal, types included: 1 is not True here."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        keys = left.keys() == right.keys()
        return keys and all(same(left[name], right[name]) for name in left)
    return type(left) is type(right) and repr(left) == repr(right)


@given(left=plain, right=plain)
def test_fields_that_differ_are_encoded_differently(left: Field, right: Field) -> None:
    """No two fields share their bytes, whatever types and nesting."""
    assert (encoded(left) == encoded(right)) is same(left, right)


@example(["a", "b"], ["asb"])  # what a letter for the type alone would mix up
@example(["a", "b"], ["ab"])
@example(["a"], ["a", ""])
@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3)))
def test_fields_are_framed(left: list[str], right: list[str]) -> None:
    """`a b` and `ab` are two things, however their letters are spread."""
    assert (key_of({"args": left}) == key_of({"args": right})) is (left == right)


@given(st.dictionaries(st.text(), plain), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_names_does_not_matter(
    fields: dict[str, Field], random: object
) -> None:
    """A mapping in another order, and a set in any, has the same key."""
    names = list(fields)
    random.shuffle(names)  # type: ignore[attr-defined]

    assert key_of({name: fields[name] for name in names}) == key_of(fields)
    assert key_of({"s": frozenset(fields)}) == key_of({"s": frozenset(names)})


def test_a_key_is_the_same_in_every_process() -> None:
    """It hangs on no hash seed, no address and no version of Python."""
    assert key_of({"b": ("x", 1, None), "a": {"y": 0.5, "z": b"\0"}}) == (
        "92653a67e406d58fb92430ba06763852214b72abbe4af93b7a315a06c3807a62"
    )


def test_a_key_takes_plain_fields_only() -> None:
    """An object is refused: its text would tell where it lies, not what it is."""
    with pytest.raises(TypeError, match="cannot depend on a object"):
        key_of({"a": object()})  # type: ignore[dict-item]


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
    """Which of eight equal boards a runner has is no difference."""
    other = replace(H200, uuid="GPU-ffff", index=3)

    assert key_of(device_fields(other)) == key_of(device_fields(H200))


# ------------------------------------------------------------------ digests


class Later(FakeClock):
    """A clock that runs ahead, so that no file is new to it."""

    def __init__(self) -> None:
        super().__init__(wall_s=4e9)


def test_a_large_file_is_digested_once(tmp_path: Path) -> None:
    """Another process remembers its digest, without its path and without reading it."""
    path, memory = tmp_path / "libtorch_cuda.so", tmp_path / "digests.json"
    path.write_bytes(b"x" * (9 << 20))
    digests = Digests(memory, Later())
    digest = digests.of(path)
    assert digest is not None
    digests.save()
    text = memory.read_text()
    assert str(tmp_path) not in text
    assert memory.stat().st_mode & 0o777 == 0o600

    memory.write_text(text.replace(digest, "f" * 64))

    assert Digests(memory, Later()).of(path) == "f" * 64


def test_a_small_file_is_not_remembered_between_processes(tmp_path: Path) -> None:
    """It is read again in 3 ms at most."""
    path = tmp_path / "t.py"
    path.write_text("1")
    digests = Digests(tmp_path / "digests.json", Later())
    first = digests.of(path)
    digests.save()

    assert digests.of(path) == first
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize("restored", [False, True])
def test_a_changed_file_is_digested_anew(tmp_path: Path, *, restored: bool) -> None:
    """Also where its size is the same and its time was set back."""
    path = tmp_path / "t.py"
    path.write_text("1")
    seen = path.stat()
    digests = Digests(clock=Later())
    before = digests.of(path)

    time.sleep(0.02)  # a tick of the file system's clock
    path.write_text("2")
    if restored:
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    assert digests.of(path) not in {before, None}


def test_a_file_just_written_is_not_remembered(tmp_path: Path) -> None:
    """Within a tick of the file system it can change again and look the same."""
    path = tmp_path / "t.py"
    path.write_bytes(b"x" * (9 << 20))
    memory = tmp_path / "digests.json"
    digests = Digests(memory, FakeClock(wall_s=path.stat().st_mtime + 1))

    digests.of(path)
    digests.save()

    assert not memory.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "\xff", '{"a": "b"}'])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, content: str) -> None:
    """Digests are computed again, and nothing else happens."""
    memory, path = tmp_path / "digests.json", tmp_path / "t.py"
    memory.write_text(content, encoding="latin-1")
    path.write_text("1")

    assert Digests(memory, Later()).of(path) == Digests(clock=Later()).of(path)


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    """Neither a folder nor what is not there."""
    digests = Digests()

    assert digests.of(tmp_path) is None
    assert digests.of(tmp_path / "no") is None


@linux
def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    """An argument may name one, and reading it would take what the program is to read."""
    os.mkfifo(tmp_path / "pipe")

    assert Digests().of(tmp_path / "pipe") is None


# ------------------------------------------------------------------ a command

Make = Callable[..., str]
PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture
def key(tmp_path: Path) -> Make:
    """Return what gives the key of a command on `t.py` in a project of its own."""
    (tmp_path / "t.py").write_text("import kernels\nopen('table.csv')\n")
    (tmp_path / "kernels.py").write_text("N = 1\n")
    (tmp_path / "table.csv").write_text("1,2\n")

    def make(
        *,
        env: Mapping[str, str] = PATH,
        device: Device | None = H200,
        version: str = "2025.3",
        cwd: Path = tmp_path,
        own: Mapping[str, str] | None = None,
        **fields: object,
    ) -> str:
        given: dict[str, object] = {
            "executable": sys.executable,
            "args": ("t.py",),
            "output": "r",
        }
        given["env"] = own
        found, _ = command_fields(
            Command(**(given | fields)),  # type: ignore[arg-type]
            ncu_version=version,
            cwd=cwd,
            env=env,
            digests=Digests(),
            device=device,
        )
        return key_of(found)

    return make


def test_the_same_command_has_the_same_key(key: Make) -> None:
    """Wherever its report goes."""
    assert key() == key() == key(output="elsewhere/s")


@pytest.mark.parametrize("name", ["t.py", "kernels.py", "table.csv"])
def test_a_changed_file_behind_an_argument_is_a_miss(
    key: Make, tmp_path: Path, name: str
) -> None:
    """The script, a module that it imports, and a file that it names are looked into."""
    before = key()

    with (tmp_path / name).open("a") as stream:
        stream.write("\n")

    assert key() != before


@pytest.mark.parametrize(
    "change",
    [
        {"env": {**PATH, "CUDA_VISIBLE_DEVICES": "1"}},
        {"env": {**PATH, "LD_LIBRARY_PATH": "/opt/lib"}},
        {"device": None},
        {"device": replace(H200, driver_version="590.1")},
        {"version": "2026.1"},
        {"cache_control": "none"},
        {"clock_control": "base"},
        {"replay_mode": "application"},
        {"metrics": ("dram__bytes.sum",)},
        {"opts": ("--set", "full")},
        {"args": ("t.py", "2")},
        {"args": ("t.py 2",)},
        {"executable": "sh"},
        {"own": {"MODE": "fast"}},
    ],
    ids="-".join,
)
def test_environment_gpu_clocks_and_options_are_part_of_the_key(
    key: Make, change: dict[str, object]
) -> None:
    """Whatever may change a counter changes the key."""
    assert key(**change) != key()


def test_the_folder_is_part_of_the_key(key: Make, tmp_path: Path) -> None:
    """A program may open a file by a name that it puts together."""
    shutil.copytree(tmp_path, tmp_path / "copy")

    assert key(cwd=tmp_path / "copy") != key()


def test_the_order_of_variables_is_no_part_of_the_key(key: Make) -> None:
    """Nor is a variable that no GPU cares for."""
    one, two = {"CUDA_A": "1"}, {"CUDA_B": "2"}

    assert key(env={**PATH, **one, **two}) == key(env={**two, **one, **PATH})
    assert key() == key(env={**PATH, "EDITOR": "vi"})


def test_a_bare_name_a_script_and_a_static_binary_have_a_key(
    key: Make, tmp_path: Path
) -> None:
    """A name is looked up on PATH, a script brings its interpreter, no `ldd` is asked."""
    script, static = tmp_path / "run", tmp_path / "static"
    script.write_text("#!/usr/bin/env sh\nexit 0\n")
    static.write_bytes(b"\x7fELF" + bytes(99))
    for each in (script, static):
        each.chmod(0o755)

    keys = {key(executable=name, args=()) for name in ("sh", "./run", "./static")}

    assert len(keys) == 3
    programs = [each.name for each in interpreters(script, os.environ["PATH"])]
    assert programs == ["env", "sh"]
    before = key(executable="./run", args=())
    script.write_text("#!/usr/bin/env sh\nexit 1\n")
    assert key(executable="./run", args=()) != before


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Before anything is started, with what can be done about it."""
    with pytest.raises(CollectorUnavailableError, match="put it on PATH"):
        resolved("no-such-program", tmp_path, os.environ["PATH"])


def test_a_relative_program_is_that_of_its_folder(tmp_path: Path) -> None:
    """A path with a slash counts from where it is started, and so does PATH."""
    program = tmp_path / "bin" / "p"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert resolved("bin/p", tmp_path, None) == program
    assert resolved("p", tmp_path, "bin") == program


def test_a_module_and_a_folder_name_their_files(tmp_path: Path) -> None:
    """`-m pkg` and `pytest tests` are followed as `t.py` is."""
    write(tmp_path, {"pkg/__main__.py": "", "tests/test_a.py": "", "t.py": ""})

    def given(*arguments: str) -> set[str]:
        found = (p for p in scripts(arguments, tmp_path) if p.is_file())
        return {path.relative_to(tmp_path).as_posix() for path in found}

    assert given("-m", "pkg") == {"pkg/__main__.py"}
    assert given("tests", "-q") == {"tests/test_a.py"}
    assert given("t.py::test_x[1]") == {"t.py"}


@pytest.mark.parametrize("text", ["x" * 5000, "x" * 5000 + ".py", "", "-", "a=", "::"])
def test_an_argument_that_can_be_no_name_counts_by_its_text(
    key: Make, tmp_path: Path, text: str
) -> None:
    """However long it is."""
    assert argument_fields([text], tmp_path, Digests()).fields == [(text, None)]
    assert key(args=(text,)) != key(args=())


def test_a_folder_behind_an_argument_is_listed(tmp_path: Path) -> None:
    """Names, sizes and times: what is in it may be a large data set."""
    data = tmp_path / "data"
    write(data, {"a.npy": "1", "__pycache__/a.pyc": ""})
    before = argument_fields(["--data=data"], tmp_path, Digests())
    write(data, {"__pycache__/x.pyc": "made by a run"})
    assert argument_fields(["--data=data"], tmp_path, Digests()) == before

    write(data, {"b.npy": "2"})

    assert argument_fields(["--data=data"], tmp_path, Digests()) != before


def test_a_folder_of_too_many_files_is_never_found_again(tmp_path: Path) -> None:
    """Its state is not known, so no two runs have the same key, and that is said."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "0").touch()
    for number in range(1, 10_001):
        os.link(data / "0", data / str(number))

    first, second = (argument_fields(["data"], tmp_path, Digests()) for _ in range(2))

    assert first.fields != second.fields
    assert "more than 10000 files" in first.remarks[0]


def test_python_is_told_apart_by_what_is_installed(tmp_path: Path) -> None:
    """Another build of the same version has another list of files."""
    write(tmp_path, {"torch-2.9.dist-info/RECORD": "torch/a.py,sha256=1,1\n"})
    before = installed([str(tmp_path)], Digests())
    assert before.keys() == {"torch-2.9.dist-info"}

    write(tmp_path, {"torch-2.9.dist-info/RECORD": "torch/a.py,sha256=2,1\n"})

    assert installed([str(tmp_path)], Digests()) != before
    assert "python" in python_fields(Digests())


def test_another_python_is_asked_what_it_has(tmp_path: Path) -> None:
    """The environment of the interpreter that is started, not of this one."""
    site = "lib/python3.12/site-packages/x-1.dist-info/METADATA"
    write(tmp_path, {site: "Name: x"})

    found = python_fields(Digests(), [tmp_path / "bin" / "python"])["installed"]

    assert isinstance(found, dict)
    assert found.keys() == {"x-1.dist-info"}


# ------------------------------------------------------------------ sources


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found_from(root: Path, start: str = "tests/test_a.py") -> set[str]:
    """Return the files that a test module needs, itself left out."""
    files = project_files([root / start], root=root, digests=Digests())
    assert start in files
    return {*files} - {start}


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("import a.b", {"a/__init__.py", "a/b.py"}),
        ("from a import b", {"a/__init__.py", "a/b.py"}),
        ("from a.b import x", {"a/__init__.py", "a/b.py"}),
        ("def f():\n    import lib", {"src/lib.py"}),
        ("from . import near", {"tests/near.py"}),
        ("from .near import *", {"tests/near.py"}),
        ("import near", {"tests/near.py"}),
        ("import pkg.inner", {"pkg/inner.py"}),
        ("importlib.import_module('lib')", {"src/lib.py"}),
        ("pytest.importorskip('lib')", {"src/lib.py"}),
        ("pytest_plugins = ['lib']", {"src/lib.py"}),
        ("load('k.cu')", {"tests/k.cu", "tests/k.cuh"}),
        ("load('data/w.bin')", {"data/w.bin"}),
        ("import os, torch", set()),
        ("import lib as", set()),
        ("'lib'", set()),
        ("open('../../outside.py')", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_test_needs_is_found(
    tmp_path: Path, text: str, needed: set[str]
) -> None:
    """Imports in every form, files it names and what those include."""
    root = tmp_path / "project"
    write(tmp_path, {"outside.py": ""})
    write(
        root,
        {
            "a/__init__.py": "",
            "a/b.py": "x = 1",
            "src/lib.py": "",
            "pkg/inner.py": "",
            "tests/near.py": "",
            "tests/k.cu": '#include "k.cuh"\n#include <cuda.h>\n',
            "tests/k.cuh": "",
            "data/w.bin": "\0",
            "tests/test_a.py": text,
        },
    )

    assert found_from(root) == needed


def test_imports_are_followed_to_the_end(tmp_path: Path) -> None:
    """A module of a module counts, in a circle too; settings and conftests always do."""
    write(
        tmp_path,
        {
            "pyproject.toml": "",
            "conftest.py": "import settings",
            "settings.py": "",
            "unused.py": "",
            "tests/conftest.py": "",
            "tests/deep/test_a.py": "import one",
            "one.py": "import two",
            "two.py": "import one",
        },
    )

    assert found_from(tmp_path, "tests/deep/test_a.py") == {
        "pyproject.toml",
        "conftest.py",
        "settings.py",
        "tests/conftest.py",
        "one.py",
        "two.py",
    }


def test_sources_on_the_path_of_python_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an editable install and of PYTHONPATH no list of files says that they changed."""
    beside, site = tmp_path / "beside", tmp_path / "env" / "site-packages"
    write(beside, {"one.py": "from pkg import two", "unused.py": ""})
    write(beside, {"pkg/__init__.py": "", "pkg/two.py": "from . import three"})
    write(beside, {"pkg/three.py": ""})
    write(site, {"numpy.py": ""})
    write(tmp_path / "root", {"tests/test_a.py": "import one, numpy, json"})
    monkeypatch.setattr(sys, "path", [str(beside), str(site), *sys.path])

    assert found_from(tmp_path / "root") == {
        (beside / name).as_posix()
        for name in ("one.py", "pkg/__init__.py", "pkg/two.py", "pkg/three.py")
    }


class Finder:
    """Maps names to places, as what setuptools installs for `pip install -e` does."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self.places = places

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return where a module lies."""
        place = self.places.get(name)
        if place is None:
            return None
        file = place / "__init__.py" if place.is_dir() else place
        return spec_from_file_location(name, file)


def test_sources_that_an_import_hook_finds_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install may be no folder of Python's path, and its package be renamed."""
    away, site = tmp_path / "away", tmp_path / "env" / "site-packages"
    write(away, {"lib/__init__.py": "", "lib/two.py": "import alone", "other.py": ""})
    write(away, {"alone.py": "import other", "lib/unused.py": ""})
    write(site, {"numpy/__init__.py": ""})
    text = "from hooked_pkg import two\nimport nump, hooked_own"
    write(tmp_path / "root", {"tests/test_a.py": text, "lib/__init__.py": ""})
    places = {
        "hooked_pkg": away / "lib",
        "alone": away / "alone.py",
        "hooked_own": tmp_path / "root" / "lib",
        "nump": site / "numpy",
    }
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder(places)])

    assert found_from(tmp_path / "root") == {
        "lib/__init__.py",
        *((away / f"lib/{name}.py").as_posix() for name in ("__init__", "two")),
        (away / "alone.py").as_posix(),
    }


def test_a_module_that_nobody_finds_is_none_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that was made in this process, or whose finder fails."""

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "broken":
                raise ImportError(name)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Broken()])
    monkeypatch.setitem(sys.modules, "made_here", ModuleType("made_here"))
    text = "import made_here, broken, none_such, sys"
    write(tmp_path, {"tests/test_a.py": text})

    assert found_from(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pytest.ini", "[pytest]\naddopts = -q -p own.plugin -p no:randomly\n"),
        ("tox.ini", "[pytest]\naddopts =\n    -pown.plugin\n"),
        ("pyproject.toml", '[tool.pytest]\naddopts = ["-p", "own.plugin"]\n'),
        ("pyproject.toml", "[tool.pytest]\naddopts = ['-p own.plugin']\n"),
    ],
)
def test_a_plugin_that_settings_name_is_followed(
    tmp_path: Path, name: str, settings: str
) -> None:
    """It may hold the fixtures that launch the kernels."""
    write(tmp_path, {"own/plugin.py": "import kernels", "kernels.py": ""})
    write(tmp_path, {name: settings, "no.py": "", "tests/test_a.py": ""})

    assert found_from(tmp_path) == {name, "own/plugin.py", "kernels.py"}


def test_plugins_are_those_that_pytest_is_told_of() -> None:
    """By its options and by its variable; what is switched off is none."""
    args = ("-q", "-p", "a.b", "-pc", "-p", "no:randomly", "tests", "-p")

    assert plugins(args, {"PYTEST_PLUGINS": "d,a.b"}) == ("d", "a.b", "c")
    assert plugins((), {}) == ()


def test_what_is_installed_in_the_project_is_not_followed(tmp_path: Path) -> None:
    """An environment inside the project counts by its own lists of files."""
    site = ".venv/lib/python3.12/site-packages/numpy/__init__.py"
    write(tmp_path, {site: "", "tests/test_a.py": f"import numpy\nopen({site!r})"})

    assert found_from(tmp_path) == set()


# ------------------------------------------------------------------ libraries


@linux
@pytest.mark.parametrize("name", ["ls", "bash", "git", "python3"])
def test_libraries_are_those_of_ldd(name: str) -> None:
    """Where `ldd` has an answer, ours is the same."""
    pytest.importorskip("elftools")
    program = shutil.which(name)
    ldd = shutil.which("ldd")
    if program is None or ldd is None:
        pytest.skip(f"no {name} or no ldd here")
    done = subprocess.run([ldd, program], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{name} is no dynamic program here")
    theirs = set(re.findall(r"^\s*(\S+) =>", done.stdout, re.MULTILINE))

    ours = library_fields(Path(program), env=os.environ, digests=Digests())

    assert isinstance(ours.fields, dict)
    assert theirs <= ours.fields.keys()
    rest = {Path(each).name for each in ours.fields.keys() - theirs}
    assert all(each.startswith("ld-linux") for each in rest)
    assert "missing" not in ours.fields.values()


@linux
def test_a_library_that_changes_is_seen(tmp_path: Path) -> None:
    """The one that LD_LIBRARY_PATH puts before the system's is the one that counts."""
    pytest.importorskip("elftools")
    program = Path(sys.executable).resolve()
    fields = library_fields(program, env={}, digests=Digests()).fields
    assert isinstance(fields, dict)
    libc = next(each for each in fields if each.startswith("libc."))
    real = next(
        Path(folder, libc)
        for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64")
        if Path(folder, libc).exists()
    )
    (tmp_path / libc).write_bytes(real.read_bytes() + b"\0")

    other = library_fields(
        program, env={"LD_LIBRARY_PATH": str(tmp_path)}, digests=Digests()
    ).fields

    assert isinstance(other, dict)
    assert {n for n in fields if fields[n] != other[n]} == {libc}


@linux
def test_a_library_that_is_missing_is_named() -> None:
    """It may appear, and then the program is another one."""
    pytest.importorskip("elftools")
    program = Path(sys.executable).resolve()

    fields = library_fields(
        program, env={"LD_PRELOAD": "libnot-there.so.1"}, digests=Digests()
    ).fields

    assert isinstance(fields, dict)
    assert fields["libnot-there.so.1"] == "missing"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" * 99])
def test_what_is_no_whole_program_has_no_libraries(
    tmp_path: Path, content: bytes
) -> None:
    """A script, an empty file and a broken one are no error."""
    pytest.importorskip("elftools")
    path = tmp_path / "p"
    path.write_bytes(content)

    assert library_fields(path, env={}, digests=Digests()).fields == {}


@linux
def test_without_pyelftools_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all that lies near counts by size and time, and the sentence says so."""
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    program, library = tmp_path / "bin" / "p", tmp_path / "lib" / "liba.so.1"
    write(tmp_path, {"bin/p": "\x7fELF", "lib/liba.so.1": "1"})
    before = library_fields(program, env={}, digests=Digests())

    library.write_text("12")
    after = library_fields(program, env={}, digests=Digests())

    assert 'pip install "pytest-gpuperf[ncu]"' in before.remarks[0]
    assert before.fields != after.fields


@linux
@pytest.mark.parametrize("tag", ["RUNPATH", "RPATH"])
def test_a_library_of_a_program_s_own_folder_is_found(tmp_path: Path, tag: str) -> None:
    """`$ORIGIN` in what the linker wrote is the folder of the program."""
    pytest.importorskip("elftools")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    write(
        tmp_path,
        {
            "a.c": "int a(void){return 1;}",
            "p.c": "int a(void);int main(void){return a();}",
        },
    )
    flags = (
        f"-Wl,-rpath,$ORIGIN,--{'enable' if tag == 'RUNPATH' else 'disable'}-new-dtags"
    )
    for argv in (
        ["-shared", "-fPIC", "-o", "libown.so", "a.c"],
        ["-o", "p", "p.c", "-L.", "-lown", flags],
    ):
        subprocess.run([compiler, *argv], cwd=tmp_path, check=True)
    digests = Digests()

    fields = library_fields(tmp_path / "p", env={}, digests=digests).fields

    assert isinstance(fields, dict)
    assert fields["libown.so"] == digests.of(tmp_path / "libown.so")
