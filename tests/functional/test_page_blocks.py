"""Every block of the documents is of a known language, and runs or is validated.

Python blocks and the options of commands are those of test_documents.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.project import HUNG_S, VALUES, Project, command

yaml = pytest.importorskip("ruamel.yaml", reason="needs check-jsonschema")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*$")

# what a reader types that is not ours: (first word): why no test types it
FOREIGN = {
    "bash": "starts a script of the page, which test_recipes runs",
    "cat": "the shell's own",
    "nvidia-smi": "NVIDIA's driver brings it",
    "dcgmi": "NVIDIA's data centre GPU manager needs a GPU",
    "echo": "the shell's own",
    "eval": "the shell's own",
    "export": "the shell's own",
    "git": "git's own",
    "kubectl": "needs a cluster",
    "python": "pip and tox install from an index; a script is checked to be there",
    "sbatch": "needs a cluster; the script is run by test_recipes",
    "tox": "would start this suite again",
    ".tox/mutate/bin/mutmut": "the same",
}
# commands of ours that are not started here, by how they begin: why
NOT_STARTED = {
    "gpuperf bisect": "tests/functional/against/test_run.py measures commits",
    "gpuperf compare --against": "the same",
    "gpuperf compare before.ncu-rep": "the project has no reports made by others",
    "gpuperf show kept --launches": "CUPTI sees no launch without a GPU",
    "pytest examples/test_13_on_a_gpu.py": "test_examples replays the recording",
    "pytest --gpuperf-against": "test_recipes compares two sides",
    "pytest --gpuperf-baseline=.gpuperf --gpuperf-confirm-by": "the same",
    "pytest --collect-only --gpuperf-chip": "shows an error; test_markers has it",
}
# what ends with another code than 0, by how it begins
ENDS_WITH = {
    "gpuperf compare triton-3.7": {1},  # shows kernels that got worse
    "gpuperf doctor": {0, 1, 2},  # what this machine is
    "gpuperf metrics check --chip=GB20B": {1},
    "gpuperf metrics check --chip=GH100 time": {1},
    "gpuperf parity": {1},  # shows an operation that is slower
    "gpuperf scorecard": {1},  # shows an invariant that is unmeasured
}


OURS = {"gpuperf", "pytest"}


class Block(NamedTuple):
    """A fenced block: its page, the line of its fence, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """Yield the blocks of all pages."""
    for page in PAGES:
        opened: re.Match[str] | None = None
        held: list[str] = []
        begun = 0
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            fence = FENCE.match(line)
            if fence and opened is None:
                opened, held, begun = fence, [], number
            elif fence and opened is not None:
                text = "\n".join((*held, ""))
                yield Block(page.stem, begun, opened["language"], text)
                opened = None
            elif opened is not None:
                held.append(line[len(opened["indent"]) :])
        assert opened is None, f"{page.name}:{begun} is not closed"


BLOCKS = list(blocks())


def named(language: str) -> list[Any]:
    """Return the blocks of a language as parameters, called by page and line."""
    found = [block for block in BLOCKS if block.language == language]
    return [pytest.param(b, id=f"{b.page}-{b.line}") for b in found]


def typed(block: Block) -> list[str]:
    """Return the commands of a console block, each on one line."""
    text = block.text.replace("\\\n", " ")
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def loaded(text: str) -> Any:
    """Return what a YAML text holds: `on` is a key, as in YAML 1.2."""
    return yaml.YAML(typ="safe").load(text)


def beginning(table: dict[str, Any], line: str) -> Any:
    """Return what a table has for a command, by how it begins; None: nothing."""
    return next((v for k, v in table.items() if line.startswith(k)), None)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}-{b.line}")
def test_a_block_has_a_language_that_is_tested(block: Block) -> None:
    """What has none is output, and no command is hidden in it."""
    assert block.language in {
        *("", "text", "python", "console", "bash"),
        *("ini", "toml", "yaml", "json"),
    }
    if block.language in {"", "text"}:
        assert not typed(block)


def test_every_exception_is_used() -> None:
    """A table names what a page has, and what this project starts nowhere is few."""
    lines = [line for block in BLOCKS for line in typed(block)]

    unused = [
        each
        for each in (*NOT_STARTED, *ENDS_WITH)
        if not any(line.startswith(each) for line in lines)
    ]
    assert not unused
    assert len(NOT_STARTED) <= 8


@pytest.mark.parametrize("block", named("console"))
def test_a_console_block_has_commands_that_exist(block: Block) -> None:
    """Ours, a file of the checkout, or one of the named others."""
    lines = typed(block)
    assert lines
    for line in lines:
        first = line.split()[0]
        if first.startswith(".ci/"):  # the source distribution has none of it
            assert (ROOT / first).is_file() is (ROOT / ".ci").is_dir()
            continue
        assert first in FOREIGN or first in OURS, line
        for script in re.findall(r"^python ([\w/]+\.py)", line):
            assert (ROOT / script).is_file()


def readers(project: Project) -> None:
    """Give a project what the pages speak of: tests, a store, a run, readings."""
    gemm = VALUES.replace("test_x(", "test_gemm(").replace('"x"', '"steps"')
    project.store(gemm, sessions=2)
    project.write(gemm, "tests/test_gemm.py")
    project.run("-q", "--gpuperf-update=new", "--gpuperf-json=run.json")
    profiles = ROOT / "examples" / "profiles"
    shutil.copytree(profiles, project.path, dirs_exist_ok=True)
    entity = "#Entity SMACT SMOCC TENSO DRAMA GRACT\nID\n"
    project.write(entity + "GPU 0 0.9 0.5 0.6 0.4 0.9\n" * 3, "readings.txt")
    project.environment.setenv("GPUPERF_CACHE_DIR", str(project.path / "cache"))


def sessions() -> list[Any]:
    """Return the commands of each page that are started, as parameters."""
    pages: dict[str, list[str]] = {}
    for block in BLOCKS:
        for line in typed(block) if block.language == "console" else ():
            if line.split()[0] in OURS and beginning(NOT_STARTED, line) is None:
                pages.setdefault(block.page, []).append(line)
    return [pytest.param(lines, id=page) for page, lines in pages.items()]


@pytest.mark.parametrize("lines", sessions())
def test_the_commands_of_a_page_run_in_their_order(
    project: Project, lines: list[str]
) -> None:
    """Each ends as the page shows it, but for those that a table leaves out."""
    if any(line.startswith("gpuperf metrics") for line in lines):
        pytest.importorskip("nvidia.cu13", reason="needs libnvperf_host")
    if any("html" in line for line in lines):
        pytest.importorskip("jinja2", reason="needs the extra html")
    readers(project)
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "pytest":
            code, shown = started(project, arguments)
        else:
            done = command(*arguments, folder=project.path)
            code, shown = done.returncode, done.stdout + done.stderr
        assert code in (beginning(ENDS_WITH, line) or {0}), f"$ {line}\n{shown}"


def test_the_first_commands_end_well_from_an_empty_folder(project: Project) -> None:
    """README's, one after the other, each as often as its comment says."""
    first = next(b for b in BLOCKS if (b.page, b.language) == ("README", "console"))
    lines = [line for line in typed(first) if line.startswith("pytest")]
    project.write(VALUES)
    *here, of_a_revision = lines
    for line in here:
        for _ in range(2 if "twice" in line else 1):
            code, shown = started(project, shlex.split(line, comments=True)[1:])
            assert code == 0, f"$ {line}\n{shown}"
    assert "git" in of_a_revision.partition("#")[2]


def started(project: Project, arguments: list[str]) -> tuple[int, str]:
    """Run pytest; return its exit code and what it printed."""
    ended = project.run(*arguments)
    return int(ended.ret), ended.stdout.str() + ended.stderr.str()


@pytest.mark.parametrize("block", [*named("ini"), *named("toml")])
def test_settings_are_taken(project: Project, block: Block) -> None:
    """Each name is an ini value of pytest or ours, and pytest reads its value."""
    name = "pytest.ini" if block.language == "ini" else "pyproject.toml"
    project.write(block.text, name)
    assert config_is_taken(project)


def config_is_taken(project: Project) -> bool:
    """Return whether pytest starts with the settings of a project."""
    project.write("def test_x(gpuperf):\n    gpuperf.record('x', 1.0)\n")
    return project.run("--strict-config", "-q", "-s", "--gpuperf-lock=off").ret == 0


@pytest.mark.parametrize("wrong", ["gpuperf_sesions = 5", "gpuperf_sessions = many"])
def test_wrong_settings_are_not_taken(project: Project, wrong: str) -> None:
    """A name or a value that is none is told."""
    project.write(f"[pytest]\n{wrong}\n", "pytest.ini")

    assert not config_is_taken(project)


@pytest.mark.parametrize("block", named("json"))
def test_json_is_whole(block: Block) -> None:
    """It can be read as it stands."""
    assert json.loads(block.text)


@pytest.mark.parametrize("block", named("bash"))
def test_a_script_is_one(block: Block) -> None:
    """The shell reads all of it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    assert says_of(bash, block.text) == ""
    assert says_of(bash, f"{block.text}\nif true\n") != ""


def says_of(bash: str, script: str) -> str:
    """Return what the shell says of a script that it does not run."""
    done = subprocess.run(
        [bash, "-n"], input=script, capture_output=True, check=False, encoding="utf-8"
    )
    return done.stderr


# -------------------------------------------------------------------- pipelines

WORKFLOW = """
name: part
on: push
jobs:
  part:
    runs-on: ubuntu-latest
"""


def workflow(text: str) -> str:
    """Return a part of a job as a workflow."""
    part = text if "steps:" in text else f"{text}steps:\n  - run: 'true'\n"
    return WORKFLOW + re.sub("^", "    ", part, flags=re.MULTILINE)


def ci_of(text: str) -> str:
    """Return whose YAML a text is."""
    keys = loaded(text).keys()
    if "apiVersion" in keys:
        return "kubernetes"
    if keys & {"jobs", "steps", "strategy"}:
        return "github-workflows"
    return "gitlab-ci"


def is_part(text: str) -> bool:
    """Return whether a text is a part of a job of GitHub's."""
    return bool(loaded(text).keys() & {"steps", "strategy"})


def pipelines(ci: str) -> list[tuple[Block, str]]:
    """Return the blocks of a CI, parts of a workflow as whole ones."""
    found = [b for b in BLOCKS if b.language == "yaml" and ci_of(b.text) == ci]
    return [(b, workflow(b.text) if is_part(b.text) else b.text) for b in found]


def checked(schema: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Return what the schema of a CI says of files."""
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=HUNG_S,
    )


@pytest.mark.parametrize(
    ("ci", "key", "misspelt"),
    [
        ("github-workflows", "runs-on:", "run-on:"),
        ("gitlab-ci", "script:", "scripts:"),
    ],
)
def test_a_pipeline_fits_the_schema_of_its_ci(
    tmp_path: Path, ci: str, key: str, misspelt: str
) -> None:
    """Whole recipes and parts of one; one with a misspelt key is refused."""
    paths = []
    for block, text in pipelines(ci):
        paths.append(tmp_path / f"{block.page}-{block.line}.yml")
        paths[-1].write_text(text, encoding="utf-8")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(paths[0].read_text("utf-8").replace(key, misspelt), "utf-8")
    good, bad = checked(f"vendor.{ci}", *paths), checked(f"vendor.{ci}", wrong)

    assert good.returncode == 0, good.stdout + good.stderr
    assert bad.returncode == 1, bad.stdout + bad.stderr


def test_every_manifest_is_one_that_test_recipes_reads() -> None:
    """No schema of Kubernetes is at hand: its two manifests are looked at there."""
    assert len(pipelines("kubernetes")) == 2
