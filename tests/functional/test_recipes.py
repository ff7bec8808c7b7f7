"""The recipes of the guide: their scripts do what they promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.project import Project, command
from fakes.repositories import GIT, without_git_variables
from pytest_gpuperf.cli import output

yaml = pytest.importorskip("ruamel.yaml", reason="needs check-jsonschema")

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "ci.md").read_text(encoding="utf-8")
CLUSTERS = (DOCS / "clusters.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# when a step of a recipe runs; another condition is a KeyError here
EVENTS = {
    None: {"pull_request", "push"},
    "always()": {"pull_request", "push"},
    "github.event_name == 'pull_request'": {"pull_request"},
    "github.ref == 'refs/heads/main'": {"push"},
    '$CI_PIPELINE_SOURCE == "merge_request_event"': {"pull_request"},
    "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH": {"push"},
}
# counted, not timed: what a busy machine does must not decide about a recipe
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "work.py": "COUNT = 1_000\n\n\ndef steps():\n    return len(range(COUNT))\n",
    "tests/test_work.py": """
import pytest
import work


@pytest.mark.gpuperf(max_regression={"steps": "5 %"})
def test_steps(gpuperf):
    gpuperf.record("steps", work.steps(), unit="1", better="lower")
""",
}


class Recipe(NamedTuple):
    """A recipe under its heading, as text and as what a CI reads."""

    heading: str
    text: str
    content: Mapping[str, Any]

    @property
    def is_github(self) -> bool:
        """Whether it is a workflow of GitHub."""
        return self.text.startswith("# .github/workflows/")


def loaded(text: str) -> Any:
    """Return what a YAML text holds: `on` is a key, as in YAML 1.2."""
    return yaml.YAML(typ="safe").load(text)


def recipes() -> Iterator[Recipe]:
    """Yield the whole recipes of the page; what is a part of one has no name."""
    heading, end = "", 0
    for match in FENCED.finditer(PAGE):
        headings = re.findall(r"^##+ (.*)$", PAGE[end : match.start()], re.MULTILINE)
        heading, end = (headings or [heading])[-1], match.end()
        if match[1].startswith("# ."):
            yield Recipe(heading, match[1], loaded(match[1]))


def parts() -> Iterator[tuple[str, list[str]]]:
    """Yield the scripts of what is a part of a recipe, with its heading."""
    for match in FENCED.finditer(PAGE):
        if not match[1].startswith("# ."):
            heading = re.findall(r"^##+ (.*)$", PAGE[: match.start()], re.MULTILINE)[-1]
            steps = loaded(match[1])["steps"]
            yield heading, [step["run"] for step in steps if "run" in step]


RECIPES = {recipe.heading: recipe for recipe in recipes()}
PARTS = dict(parts())


def scripts(recipe: Recipe, event: str) -> list[str]:
    """Return the scripts that an event starts, one for each step, in their order."""
    if recipe.is_github:
        steps = [s for job in recipe.content["jobs"].values() for s in job["steps"]]
        steps = [step for step in steps if event in EVENTS[step.get("if")]]
        return [step["run"] for step in steps if "run" in step]
    jobs = [job for job in recipe.content.values() if "script" in job]
    jobs = [job for job in jobs if event in EVENTS[job["rules"][0]["if"]]]
    return [line for job in jobs for line in job["script"]]


class Pipeline:
    """A repository, and the jobs that a CI would start in it."""

    def __init__(self, project: Project, recipe: Recipe) -> None:
        self.recipe = recipe
        self.root = project.path / "repository"
        self.summary = project.path / "summary.md"
        for name, text in FILES.items():
            project.write(text, f"repository/{name}")
        project.write(".gpuperf/\n*.json\n*.md\n*.xml\n", "repository/.gitignore")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("begin")
        self.commit("as it was")

    @property
    def environment(self) -> Mapping[str, str]:
        """What a runner gives to its scripts."""
        of_gitlab = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": "rev-parse main"}
        of_github = {"GITHUB_SHA": "rev-parse HEAD"}
        asked = of_github if self.recipe.is_github else of_gitlab
        return {
            **without_git_variables(),
            **{name: self.git(*query.split()) for name, query in asked.items()},
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
            "PYTEST_ADDOPTS": "-p pytest_gpuperf.plugin -p no:cacheprovider",
        }

    def git(self, *arguments: str) -> str:
        """Run git in the repository; return what it prints."""
        done = subprocess.run(
            [*GIT, *arguments],
            cwd=self.root,
            env=without_git_variables(),
            capture_output=True,
            check=True,
            encoding="utf-8",
        )
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        """Commit all that is there."""
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def merge_request(self, *, slower: bool) -> None:
        """Check out what a CI tests: the target with a branch merged into it."""
        self.git("checkout", "--quiet", "-B", "change", "main")
        if slower:
            work = self.root / "work.py"
            work.write_text(FILES["work.py"].replace("1_000", "10_000"), "utf-8")
        self.commit("change")
        self.git("checkout", "--quiet", "--detach", "main")
        self.git("merge", "--quiet", "--no-ff", "--no-edit", "change")
        depth = re.search(r"fetch-depth: ([1-9])", self.recipe.text)
        if depth:  # the history that the recipe asks for, and no more
            origin, self.root = self.root, self.root.with_name("shallow")
            self.root.mkdir()
            self.git("clone", "--quiet", "--depth", depth[1], origin.as_uri(), ".")
            assert self.git("rev-list", "--count", "HEAD") == "3"

    def job(self, event: str) -> subprocess.CompletedProcess[str]:
        """Run the scripts of a job as its CI does; return the one it ends with."""
        self.summary.touch()
        done = subprocess.CompletedProcess("", 0, "", "")
        for script in scripts(self.recipe, event):
            if script.startswith("python -m pip install"):
                continue  # it is installed
            done = self.script(script)
            if done.returncode:
                break
        return done

    def script(
        self, script: str, *, below: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a folder of the repository, as its CI does."""
        shell = ["bash", "-e"] if self.recipe.is_github else ["bash", "-eo", "pipefail"]
        return subprocess.run(
            [*shell, "-c", script],
            cwd=self.root / below,
            env={**self.environment, **variables},
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=600,
        )


@pytest.fixture(name="pipeline")
def pipeline_(project: Project, request: pytest.FixtureRequest) -> Pipeline:
    """Return the pipeline of a recipe, by its heading."""
    for program in ("bash", "git"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return Pipeline(project, RECIPES[request.param])


def of(*headings: str) -> pytest.MarkDecorator:
    """Run a test for each of some recipes."""
    return pytest.mark.parametrize("pipeline", headings, indirect=True)


@of("A baseline on GitHub", "A baseline on GitLab")
def test_main_stores_and_a_pull_request_is_gated(pipeline: Pipeline) -> None:
    """Nothing stored: 4. Two runs of main: an unchanged one passes, a slower one fails."""
    early = pipeline.job("pull_request")
    stored = [pipeline.job("push") for _ in range(2)]
    pipeline.merge_request(slower=False)
    unchanged = pipeline.job("pull_request")
    pipeline.merge_request(slower=True)
    slower = pipeline.job("pull_request")

    assert early.returncode == pytest.ExitCode.USAGE_ERROR, early.stdout
    assert [run.returncode for run in stored] == [0, 0], stored[-1].stdout
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert "complete: 1 test, among them all 1 of .gpuperf" in unchanged.stdout
    assert slower.returncode == 1, slower.stdout + slower.stderr
    assert "steps regressed (code): 10000 1, was 1000 1: +900 %" in slower.stdout
    shown = pipeline.summary if pipeline.recipe.is_github else "summary.md"
    summary = (pipeline.root / shown).read_text("utf-8")
    assert "REGRESSED" in summary
    assert ("::error file=tests/test_work.py" in slower.stdout) is (
        pipeline.recipe.is_github
    )


@of(
    "The ten lines",
    "A pull request against its target on GitHub",
    "A merge request against its target on GitLab",
)
def test_a_pull_request_is_compared_with_its_target(pipeline: Pipeline) -> None:
    """In one job, with nothing stored: a slower one fails."""
    pipeline.merge_request(slower=True)
    slower = pipeline.job("pull_request")

    assert slower.returncode == 1, slower.stdout + slower.stderr
    assert "steps regressed (code): 10000 1, was 1000 1: +900 %" in slower.stdout
    assert not (pipeline.root / ".gpuperf").exists()


@of("A pull request against its target on GitHub")
def test_an_unchanged_pull_request_passes(pipeline: Pipeline) -> None:
    """By the same job."""
    pipeline.merge_request(slower=False)
    unchanged = pipeline.job("pull_request")

    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert "1 unchanged" in pipeline.summary.read_text("utf-8")


@of("A baseline on GitHub")
def test_a_store_lives_in_a_branch(pipeline: Pipeline) -> None:
    """What main measures is pushed there; the code's own branch stays as it was."""
    remote = pipeline.root.parent / "remote.git"
    branch = "gpuperf-store"
    pipeline.git("init", "--quiet", "--bare", str(remote))
    pipeline.git("checkout", "--quiet", "--orphan", branch)
    pipeline.git("rm", "--quiet", "-r", "--force", ".")
    pipeline.git("commit", "--quiet", "--allow-empty", "--message", "begin")
    pipeline.git("push", "--quiet", str(remote), branch)
    pipeline.git("checkout", "--quiet", "--force", "main")
    pipeline.git("clone", "--quiet", "--branch", branch, str(remote), ".gpuperf")
    measure, push = PARTS["In a branch of its own"]
    stored = pipeline.script(measure)
    pushed = pipeline.script(push, below=".gpuperf")

    assert stored.returncode == 0, stored.stdout
    assert pushed.returncode == 0, pushed.stderr
    listed = pipeline.git("-C", str(remote), "ls-tree", "-r", "--name-only", branch)
    assert "tests.test_work.json" in listed
    assert "store.lock" not in listed
    assert pipeline.git("status", "--porcelain") == ""


# -------------------------------------------------------------------- shards

# as pytest-split divides them: two in each of four shards
FOUR = """
import os
import signal

import pytest
import work


@pytest.mark.gpuperf(max_regression={"steps": "5 %"})
@pytest.mark.parametrize("name", list("abcdefgh"))
def test_steps(gpuperf, name):
    if name == os.environ.get("KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)
    gpuperf.record("steps", work.steps(), unit="1", better="lower")
"""
SPLIT = {
    "PYTHONPATH": os.pathsep.join(
        [str(DOCS.parent / "tests"), os.environ.get("PYTHONPATH", "")]
    ),
    "PYTEST_ADDOPTS": "-p pytest_gpuperf.plugin -p no:cacheprovider -p fakes.split",
}


def job_of(
    pipeline: Pipeline, name: str, event: str, **variables: str
) -> tuple[int, str]:
    """Run the steps of a job, as GitHub does; return its code and what they printed."""
    code, said = 0, ""
    for step in pipeline.recipe.content["jobs"][name]["steps"]:
        is_due = "run" in step and event in EVENTS[step.get("if")]
        always = step.get("if") == "always()"
        if is_due and "pip install" not in step["run"] and (always or not code):
            done = pipeline.script(step["run"], **SPLIT, **variables)
            code, said = code or done.returncode, said + done.stdout + done.stderr
    return code, said


def workflow(
    pipeline: Pipeline, event: str, run_id: str, **killed: str
) -> tuple[list[int], int, str]:
    """Run all shards, then their merge; return the codes, and what the merge printed."""
    for left in pipeline.root.glob("shard-*.json"):
        left.unlink()
    pipeline.summary.write_text("", "utf-8")
    store = pipeline.root.with_name("store.db")
    variables = {
        "GITHUB_RUN_ID": run_id,
        "GITHUB_RUN_ATTEMPT": "1",
        "STORE": f"sqlite:///{store}" if event == "push" else "",
    }
    matrix = pipeline.recipe.content["jobs"]["shard"]["strategy"]["matrix"]["shard"]
    codes = [
        job_of(pipeline, "shard", event, SHARD=str(number), **variables, **killed)[0]
        for number in matrix
    ]
    return codes, *job_of(pipeline, "merge", event, **variables)


@of("Shards")
def test_a_matrix_of_shards_stores_and_gates(pipeline: Pipeline) -> None:
    """Into one store, by its snapshot; the merge names what is slower, and who is missing."""
    (pipeline.root / "tests" / "test_work.py").write_text(FOUR, "utf-8")
    (pipeline.root / ".gitignore").write_text("*.json\n*.db\n", "utf-8")
    pipeline.commit("eight tests")
    stored = [workflow(pipeline, "push", run_id) for run_id in ("7", "8")]
    pipeline.merge_request(slower=False)
    codes, merged, said = workflow(pipeline, "pull_request", "9")
    _, of_killed, names = workflow(pipeline, "pull_request", "10", KILLED="c")
    pipeline.merge_request(slower=True)
    slower, _, _ = workflow(pipeline, "pull_request", "11")

    for codes_of_main, merge_of_main, printed in stored:
        assert (codes_of_main, merge_of_main) == ([0] * 4, 0), printed
        assert "complete: 8 tests in 4 sessions of 4 shards" in printed
    assert (codes, merged) == ([0] * 4, 0), said
    assert "merged 4 of 4 shards: 8 tests" in said
    assert of_killed == 1
    assert "shard 2 of 4: the run ended before" in names
    assert slower == [1] * 4
    assert "REGRESSED" in pipeline.summary.read_text("utf-8")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.heading)
def test_a_recipe_is_safe_to_copy(recipe: Recipe) -> None:
    """It installs the plugin, ends in time, and no script is made of foreign text."""
    assert "python -m pip install -e . pytest pytest-gpuperf" in recipe.text
    assert re.search(r"timeout(-minutes)?: |--gpuperf-budget=", recipe.text)
    if recipe.is_github:
        runs = [s for event in ("pull_request", "push") for s in scripts(recipe, event)]
        assert not any("${{" in script for script in runs)
        assert recipe.content["permissions"] == {"contents": "read"}


def test_the_page_keeps_the_promise_of_its_title() -> None:
    """Ten lines below the name of the file."""
    _, *lines = RECIPES["The ten lines"].text.splitlines()

    assert PAGE.startswith("# CI in ten lines\n")
    assert len(lines) == 10


def exit_codes() -> dict[int, tuple[bool, bool]]:
    """Return the codes of the page's table, and whether pytest and the command end so."""
    table = PAGE.partition("## Exit codes")[2]
    rows = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|$", table, re.MULTILINE)
    return {int(code): (bool(a.strip()), bool(b.strip())) for code, a, b in rows}


def test_the_table_has_every_exit_code() -> None:
    """Those of pytest, of the command, and of a shell that saw a signal."""
    commands = {
        *(output.GOOD, output.WORSE, output.WRONG_USAGE, output.UNDECIDED),
        *(output.UNREADABLE, output.INTERRUPTED, 141),
    }
    stated = exit_codes()

    assert {code for code, (by_pytest, _) in stated.items() if by_pytest} == {
        int(code)
        for code in pytest.ExitCode
        if code <= pytest.ExitCode.NO_TESTS_COLLECTED
    }
    assert {code for code, (_, by_command) in stated.items() if by_command} == commands


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (output.GOOD, ("verify", "run.json")),
        (output.WORSE, ("verify", "run.json", "--expect-from=other.json")),
        (output.WRONG_USAGE, ("verify",)),
        (output.UNDECIDED, ("compare", "run.json", "run.json", "--strict")),
        (output.UNREADABLE, ("verify", "other.json")),
    ],
)
def test_the_command_ends_as_the_table_says(
    project: Project, code: int, arguments: tuple[str, ...]
) -> None:
    """With a run of one test, and a store that has another one."""
    test = "def test_{}(gpuperf):\n    gpuperf.record('x', 1.0)\n"
    project.write(test.format("stored"))
    project.run("--gpuperf-baseline=other.json", "--gpuperf-update=new")
    project.write(test.format("now"))
    project.run("--gpuperf-json=run.json")

    assert command(*arguments, folder=project.path).returncode == code


@pytest.mark.parametrize(
    ("code", "text", "arguments"),
    [
        (0, "def test_x(gpuperf): gpuperf.record('x', 1.0)", ()),
        (1, "def test_x(gpuperf): assert False", ()),
        (1, "def test_x(gpuperf): gpuperf.record('x', 1.0)", ("min-judged=50%",)),
        (2, "import pytest\n@pytest.mark.gpuperf(limit='x')\ndef test_x(): ...", ()),
        (4, "def test_x(gpuperf): gpuperf.record('x', 1.0)", ("baseline=missing",)),
        (4, "def test_x(): ...", ("confirm=-1",)),
        (5, "", ()),
    ],
)
def test_pytest_ends_as_the_table_says(
    project: Project, code: int, text: str, arguments: tuple[str, ...]
) -> None:
    """Each by what the table names."""
    project.write(text)

    assert project.run(*(f"--gpuperf-{each}" for each in arguments)).ret == code


def block_of(language: str, beginning: str) -> str:
    """Return a block of a language of the page about clusters, by a line of it."""
    blocks = re.findall(
        rf"^```{language}\n(.*?)^```$", CLUSTERS, re.DOTALL | re.MULTILINE
    )
    (found,) = (block for block in blocks if f"{beginning}\n" in block)
    return str(found)


def bash_of(project: Project, **variables: str) -> tuple[str, dict[str, str]]:
    """Return a shell, and what a job finds in its environment."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    own = os.pathsep.join([str(project.path / "bin"), str(Path(sys.executable).parent)])
    return bash, {
        **os.environ,
        "PATH": os.pathsep.join([own, os.defpath]),
        **variables,
    }


def test_a_batch_script_stores_a_session(project: Project) -> None:
    """As Slurm starts it: a copy of the script, with the arguments of sbatch."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    for name, text in FILES.items():
        project.write(text, name)
    text = block_of("bash", "# performance.sbatch")
    script = project.write(text, "spool/slurm_script")
    done = subprocess.run(
        [bash, script, "--gpuperf-update=new"],
        cwd=script.parent,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
            "PYTEST_ADDOPTS": "-p pytest_gpuperf.plugin -p no:cacheprovider",
            "SLURM_JOB_ID": "7",
            "SLURM_SUBMIT_DIR": str(project.path),
        },
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "stored 1 measurement in .gpuperf" in done.stdout
    assert "run-7.json" in {path.name for path in project.path.iterdir()}


def test_the_manifest_asks_for_what_its_page_says() -> None:
    """A GPU, no quota of processor time, no second try, and every volume that is mounted."""
    manifest = loaded(block_of("yaml", "  name: gpuperf"))
    job = manifest["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]

    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "cpu" not in container["resources"]["limits"]
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    (variable,) = container["env"]
    assert variable["name"] == "GPUPERF_MACHINE"
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert [*container["command"], *container["args"]][:5] == [
        *("python", "-m", "pytest", "-m", "gpuperf")
    ]


# what Slurm does with an array, one task after the other: a copy of the script is started
# with the arguments and its variables, and the highest exit code is that of the array
SBATCH = """
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
script=$1; shift
read -r first last < <(sed -n 's/^#SBATCH --array=\\([0-9]*\\)-\\([0-9]*\\)$/\\1 \\2/p' "$script")
export SLURM_ARRAY_JOB_ID=70 SLURM_SUBMIT_DIR=$PWD SLURM_PROCID=0 SLURM_NTASKS=1
export SLURM_ARRAY_TASK_MIN=$first SLURM_ARRAY_TASK_COUNT=$((last - first + 1))
echo 70
worst=0
mkdir -p spool
for ((task = first; task <= last; task++)); do
  cp "$script" spool/slurm_script
  (cd spool && SLURM_JOB_ID=$((70 + task)) SLURM_ARRAY_TASK_ID=$task \
    bash ./slurm_script "$@" >"../task-$task.log" 2>&1)
  code=$?
  ((code > worst)) && worst=$code
done
exit "$worst"
"""
SRUN = """
#!/usr/bin/env bash
SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 exec "$@"
"""


@pytest.fixture(name="slurm")
def slurm_(project: Project) -> Project:
    """Return a project of eight tests, with the scripts of the page and a fake Slurm."""
    for name, text in {**FILES, "tests/test_work.py": FOUR}.items():
        project.write(text, name)
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        project.write(text.lstrip(), f"bin/{name}").chmod(0o755)
    for name in ("shards.sbatch", "performance.sh"):
        project.write(block_of("bash", f"# {name}"), name)
    return project


def performed(project: Project, *options: str, **variables: str) -> tuple[int, str]:
    """Run the script that submits an array; return its code and what it printed."""
    bash, environment = bash_of(project, **SPLIT, **variables)
    done = subprocess.run(
        [bash, "performance.sh", *options],
        cwd=project.path,
        env=environment,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=600,
    )
    logs = (log.read_text("utf-8") for log in sorted(project.path.glob("task-*.log")))
    return done.returncode, "".join([done.stdout, done.stderr, *logs])


def test_an_array_of_slurm_is_one_run(slurm: Project) -> None:
    """Stored, gated, and red if a task was killed: its script says which."""
    stored = [performed(slurm, "--gpuperf-update=new") for _ in range(2)]
    gated = performed(slurm, "--gpuperf-baseline=.gpuperf")
    killed, names = performed(slurm, "--gpuperf-baseline=.gpuperf", KILLED="e")
    slurm.write(FILES["work.py"].replace("1_000", "10_000"), "work.py")
    slower, _ = performed(slurm, "--gpuperf-baseline=.gpuperf")

    for code, said in (*stored, gated):
        assert code == 0, said
        assert "merged 4 of 4 shards: 8 tests" in said
    assert "run 70, shard 4/4" in gated[1]
    session = slurm.report("runs/70/run.json")["header"]["session"]
    assert (session["run"], session.get("shard")) == ("70", None)
    assert killed != 0
    assert "shard 3 of 4: the run ended before" in names
    assert slower == 1
    shown = (slurm.path / "runs" / "70" / "run.md").read_text("utf-8")
    assert shown.count("REGRESSED") >= 8


def test_an_indexed_job_is_one_run(slurm: Project) -> None:
    """Its manifest starts as many pods as there are shards, each with its variables."""
    manifest = loaded(block_of("yaml", "  name: gpuperf-shards"))
    job, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each for each in container["env"]}
    count = int(variables["GPUPERF_SHARDS"]["value"])
    bash, environment = bash_of(slurm, **SPLIT)
    environment |= {"STORE": str(slurm.path / "store"), "RUN_ID": "f00d"}
    environment["GPUPERF_SHARDS"] = variables["GPUPERF_SHARDS"]["value"]
    environment["PYTEST_ADDOPTS"] += " --gpuperf-update=new"
    for index in range(count):
        done = subprocess.run(
            [bash, *container["command"][1:], *container["args"]],
            cwd=slurm.path,
            env={**environment, "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    files = [f"store/runs/f00d/shard-{index}.json" for index in range(count)]
    merged = command("merge", *files, "-o", "run.json", folder=slurm.path)

    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert (job["completionMode"], job["completions"], job["parallelism"]) == (
        *("Indexed", count, count),
    )
    assert job["backoffLimitPerIndex"] == 0
    assert "backoffLimit" not in job  # 0 would stop the other shards
    assert pod["restartPolicy"] == "Never"  # which the limit per index needs
    field = variables["RUN_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['batch.kubernetes.io/controller-uid']"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert "JOB_COMPLETION_INDEX" not in variables  # Kubernetes sets it
    assert merged.stdout == "run.json\n  merged 4 of 4 shards: 8 tests\n"
