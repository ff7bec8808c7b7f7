"""Every Python block and every command of the documents does what it is shown for."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.project import Project
from pytest_gpuperf import options
from pytest_gpuperf.cli.arguments import parse

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# what a reader has already: programs, data, and the test that a fragment is part of
READERS_OWN = """
import time
from types import SimpleNamespace

import numpy

from pytest_gpuperf.model import CanonicalRecord

x = numpy.zeros(100_000)
copy = rmsnorm = numpy.copy
loader = [1, 2, 3, 4]
model = lambda batch: time.sleep(1e-2) or SimpleNamespace(backward=lambda: None)
optimizer = SimpleNamespace(step=lambda: None)
train = lambda batch: None
compile_gemm = lambda target: "mix_sm_90a.cubin"
begin, end = 0.0, 1.0
records = [
    CanonicalRecord(
        gpu_index=0, gpu_uuid="", monotonic_s=i / 10, unix_s=1.0, power_watts=300.0
    )
    for i in range(11)
]

def run(steps):
    for batch in steps.data(loader):
        with steps.step():
            train(batch)
"""
OWN = {
    *("x", "copy", "rmsnorm", "loader", "model", "optimizer", "train", "run"),
    *("compile_gemm", "begin", "end", "records", "gpuperf", "steps", "report"),
    *("uuid", "step"),
}
# what stands in a block that needs a program, a chip's library or a report
TOOLS = (
    "triton-3.9",
    *("Session(", "Cache()", "Report(", "ProfilerHost(", "report.", ".ncu-rep"),
    "Sampler(",
)


def blocks() -> Iterator[object]:
    """Yield each Python block as a parameter, called by its page and its line."""
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            line = text[: match.start()].count("\n") + 1
            yield pytest.param(textwrap.dedent(match[1]), id=f"{page.stem}-{line}")


def free_names(tree: ast.Module) -> set[str]:
    """Return the names that a block uses and does not bind."""
    nodes = list(ast.walk(tree))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    return {name.id for name in names} - bound - set(dir(builtins))


def as_test(block: str, tree: ast.Module) -> str:
    """Return a test file that runs a block, a fragment inside a test of its own."""
    block = re.sub(r"^( +)\.\.\.$", r"\1run(steps)", block, flags=re.MULTILINE)
    if any(isinstance(node, ast.FunctionDef) for node in tree.body):
        return READERS_OWN + block
    before = "with gpuperf.steps() as steps: run(steps)\n"
    body = before * ("steps" in free_names(tree)) + block
    return f"{READERS_OWN}\ndef test_block(gpuperf):\n{textwrap.indent(body, '    ')}"


@pytest.mark.parametrize("block", list(blocks()))
def test_a_block_runs_as_it_stands(project: Project, block: str) -> None:
    """Its imports are shown, and pytest runs what it shows without an error."""
    tree = ast.parse(block)
    assert free_names(tree) <= OWN
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    modules = {name for node in imports for name in _modules(node)}
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}")
    if any(tool in block for tool in TOOLS):
        exec(compile(ast.Module([*imports], []), "block", "exec"), {})  # noqa: S102 - ours
        return
    cubin = ROOT / "tests" / "gold" / "binary" / "mix_sm_90a.cubin"
    shutil.copy(cubin, project.path)
    shutil.copytree(ROOT / "examples", project.path / "examples")
    project.write("\n".join((as_test(block, tree), "")))
    ended = project.run("test_it.py", "-rs")

    counts = ended.parseoutcomes()
    assert counts.keys() <= {"passed", "skipped", "warnings"}, ended.stdout.str()


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the packages that an import needs."""
    if isinstance(node, ast.ImportFrom):
        return [str(node.module).partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names]


def commands(page: Path) -> Iterator[str]:
    """Yield every command of a page, typed at a prompt or named in a sentence."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    yield from re.findall(r"^\$ ((?:gpuperf|pytest) .*)$", text, re.MULTILINE)
    yield from re.findall(r"`((?:gpuperf|pytest) -?-?[a-z][^`\n]*)`", text)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    """The parser of the command takes it, and pytest's options are ours or pytest's."""
    known = {f"--{name}" for name, _, _ in options._OPTIONS}
    for command in commands(page):
        program, *typed = shlex.split(command.partition(" | ")[0], comments=True)
        named = {word.partition("=")[0] for word in typed if "--gpuperf-" in word}
        assert named <= known, command
        if program == "gpuperf":
            assert _is_taken(typed), command


def _is_taken(typed: list[str]) -> bool:
    """Return whether the command's parser takes arguments, their names where they gape."""
    gaps = ("…", "[", "FILE", "NAME", "CHIP")
    whole = len(typed) > len(("group", "command")) and not any(
        gap in word for gap in gaps for word in typed
    )
    names = [word for word in typed if word.isalpha() and word.islower()]
    try:
        parse(typed if whole else [*names[:2], "--help"])
    except SystemExit as ended:  # 0: it prints its help
        return ended.code == 0
    return True
