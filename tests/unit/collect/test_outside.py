"""collect.outside: code that is neither in the repository nor named by a version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect import outside
from pytest_gpuperf.collect.outside import code_digest, import_places, outside_code

ROOT = "/repository"


def test_installed_packages_and_the_library_are_left_out() -> None:
    """Their versions, and that of Python, are compared instead."""
    loaded = {json.__file__, pytest.__file__}

    assert loaded.isdisjoint(outside_code(ROOT, (), loaded))


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "lib"])
def test_a_module_that_no_package_has_recorded_counts(
    tmp_path: Path, folder: str
) -> None:
    """Someone has put it there, and no version names its content."""
    module = str(tmp_path / folder / "put_here.py")

    assert module in outside_code(ROOT, (), {module})
    assert module not in outside_code(str(tmp_path), (), {module})
    assert module in outside_code(str(tmp_path), (str(tmp_path / folder),), {module})


def test_a_folder_of_the_path_stands_for_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of the repository, of packages and of commands are no such places."""
    inner = tmp_path / "lib" / "inner"
    packages = tmp_path / "site-packages"
    for folder in (inner, packages):
        folder.mkdir(parents=True)
    commands = str(Path(sys.executable).parent)
    entries = [str(inner), str(inner.parent), str(packages), commands, "/not/there"]
    monkeypatch.setattr(sys, "path", entries)
    monkeypatch.setattr(sys, "meta_path", [])

    assert import_places(ROOT, ()) == {str(inner.parent)}
    assert import_places(str(tmp_path), ()) == frozenset()
    assert outside_code(ROOT, (), {str(inner / "a.py")}) == {str(inner.parent)}


def test_a_digest_is_of_every_file_below(tmp_path: Path) -> None:
    """Byte code, hidden files and the repository have no part in it."""
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / "data.txt").write_text("1")
    digests = [code_digest(str(tmp_path), ROOT)]
    for name in (".hidden", "__pycache__/a.pyc", "root/a.py", ".git/HEAD", "b.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
        assert code_digest(str(tmp_path), str(tmp_path / "root")) == digests[0]
    for name, text in (("deep/data.txt", "2"), ("new.py", ""), ("new.py", "1")):
        (tmp_path / name).write_text(text)
        digests.append(code_digest(str(tmp_path), str(tmp_path / "root")))

    assert len({*digests}) == len(digests)


def test_what_may_have_changed_meanwhile_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has a missing file, or a folder of more files than can be read each time."""
    file = tmp_path / "a.py"
    file.touch()
    written_unix_s = file.stat().st_mtime

    for path in (file, tmp_path):
        assert code_digest(str(path), ROOT, before_unix_s=written_unix_s + 1)
        assert code_digest(str(path), ROOT, before_unix_s=written_unix_s) == ""
    assert code_digest(str(tmp_path / "missing.py"), ROOT) == ""
    monkeypatch.setattr(outside, "_MOST_FILES", 1)
    assert code_digest(str(tmp_path), ROOT)
    (tmp_path / "b.py").touch()
    assert code_digest(str(tmp_path), ROOT) == ""
