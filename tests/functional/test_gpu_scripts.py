"""What is meant for a machine with a GPU does nothing elsewhere, and says so."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.collect.devices import query_devices

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    *(f"benchmarks/{name}.py" for name in ("gpu_agreement", "gpu_cost", "gpu_noise")),
    ".ci/gpu_captures.py",
]
SESSION = ROOT / ".ci" / "gpu_session"

needs_scripts = pytest.mark.skipif(
    not SESSION.exists(), reason="this is not a checkout: .ci is not there"
)


@needs_scripts
@pytest.mark.skipif(bool(query_devices().devices), reason="there is a GPU")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_without_a_gpu_says_so(script: str, tmp_path: Path) -> None:
    """One line with the reason, and a good end: the rest of a session goes on."""
    folder = [str(tmp_path)] if "captures" in script else []
    ended = subprocess.run(
        [sys.executable, str(ROOT / script), *folder],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert "skipped, no GPU: " in ended.stdout
    assert ended.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())


@needs_scripts
def test_a_machine_without_a_network_gets_all_that_the_package_needs() -> None:
    """Each dependency has a wheel to carry, or comes with the frameworks."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    _, _, rest = project.partition("\ndependencies = [")
    listed, _, _ = rest.partition("\n]")
    needed = {name.lower() for name in re.findall(r'\n  "([\w-]+)', listed)}
    wheels = (ROOT / ".ci" / "gpu_wheels").read_text("utf-8")
    there = {"pluggy", "pytest"}
    carried = set(re.findall(r'\n  "?([\w-]+)', wheels))

    assert len(needed) > len(there)
    assert needed - there <= carried


@needs_scripts
def test_the_scripts_know_what_they_take_from_the_package() -> None:
    """Every name that they import, even in a function that needs a GPU, is there."""
    trees = [ast.parse((ROOT / script).read_text("utf-8")) for script in SCRIPTS]
    taken = {
        (node.module, alias.name)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if node.module.startswith("pytest_gpuperf")
    }

    assert taken
    assert not [
        (module, name)
        for module, name in taken
        if not hasattr(importlib.import_module(module), name)
    ]


@needs_scripts
@pytest.mark.skipif(sys.platform == "win32", reason="the session is a script of bash")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "gpu_session WHEELS OUT"), (["w", "o", "teste"], "no part is called teste")],
)
def test_a_session_that_is_asked_wrongly_does_nothing(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    """Nothing is installed or run, and the exit status is that of a wrong command."""
    for name in ("w", "o"):
        (tmp_path / name).mkdir()
    given = [str(tmp_path / each) if len(each) == 1 else each for each in arguments]
    ended = subprocess.run(
        ["bash", str(SESSION), *given],  # noqa: S607 - where bash lies is the system's affair
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert said in ended.stderr
    assert not list((tmp_path / "o").iterdir())
