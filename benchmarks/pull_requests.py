"""Whether the recipes of docs/ci.md leave a pipeline red for good, or drop what is there.

Runs the scripts of the recipes as they stand, in clean clones of a small repository, with a
store in a cache, in git, in a branch, for each machine and for each shard. Pull requests
change nothing, slow a test, add, delete, rename and skip tests and files; each that may be
merged is, `main` stores, and the next one begins there.

    python benchmarks/pull_requests.py
    python benchmarks/pull_requests.py --only "cache" "shards"

Needs pytest-split, for the shards of the page, and ruamel.yaml.

Prints a line for each pull request: how its gate and the run of `main` ended, and whether the
store then has the tests of the code. It ends with 1 if one of them is not as it has to be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = (CHECKOUT / "docs/ci.md").read_text(encoding="utf-8")
BASH = shutil.which("bash") or "bash"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
GITHUB, GITLAB = "A baseline on GitHub", "A baseline on GitLab"
# counted, not timed: what a busy machine does must not decide here
TEST = """

@pytest.mark.gpuperf(max_regression={{"steps": "5 %"}})
def {name}(gpuperf):
    gpuperf.record("steps", work.steps("{name}"), unit="1", better="lower")
"""
SIZES = """

@pytest.mark.gpuperf(max_regression={"steps": "5 %"})
@pytest.mark.parametrize("size", [64, 128])
def test_sizes(gpuperf, size):
    gpuperf.record("steps", work.steps("test_sizes") * size, unit="1", better="lower")
"""
HEAD = "import pytest\nimport work\n"
WORK = "SLOW = {}\n\n\ndef steps(name):\n    return SLOW.get(name, 1000)\n"
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n'
    'gpuperf_alone = 0\ngpuperf_confirm = 1\naddopts = "--import-mode=importlib"\n',
    "work.py": WORK,
    "tests/kernels/test_gemm.py": HEAD + TEST.format(name="test_gemm") + SIZES,
    "tests/kernels/test_sort.py": HEAD + TEST.format(name="test_sort"),
    "tests/training/test_step.py": HEAD
    + TEST.format(name="test_step")
    + TEST.format(name="test_eval"),
    "tests/unit/test_plain.py": "def test_plain():\n    pass\n",
    ".gitignore": ".gpuperf/\n*.json\n*.md\n*.xml\n__pycache__/\n",
}
GEMM, STEP = "tests/kernels/test_gemm.py", "tests/training/test_step.py"


# what a pull request changes


def replaced(path: str, old: str, new: str) -> Callable[[Path], None]:
    """Return an edit that replaces a text in a file."""

    def edit(root: Path) -> None:
        text = (root / path).read_text("utf-8")
        assert old in text, (path, old)
        (root / path).write_text(text.replace(old, new), "utf-8")

    return edit


def moved(old: str, new: str) -> Callable[[Path], None]:
    """Return an edit that renames a file."""

    def edit(root: Path) -> None:
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        (root / old).rename(root / new)

    return edit


def deleted(path: str) -> Callable[[Path], None]:
    """Return an edit that deletes a file."""
    return lambda root: (root / path).unlink()


def added(path: str, text: str) -> Callable[[Path], None]:
    """Return an edit that adds a text to a file, which may be new."""

    def edit(root: Path) -> None:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        before = place.read_text("utf-8") if place.exists() else ""
        place.write_text(before + text, "utf-8")

    return edit


def nothing(root: Path) -> None:
    """Change a file that no test reads."""
    added("README", "words\n")(root)


@dataclass(frozen=True)
class Change:
    """
    A pull request.

    Attributes:
        name: What it does.

        edit: Does it.

        code: How its gate has to end.

        merges: Whether it is merged.

        runs: How often `main` stores afterwards.
    """

    name: str
    edit: Callable[[Path], None] = nothing
    code: int = 0
    merges: bool = True
    runs: int = 1


SLOWER = replaced("work.py", "SLOW = {", 'SLOW = {"test_gemm": 2000, ')
SKIPPING = replaced(STEP, HEAD, HEAD + 'pytest.importorskip("not_there")\n')
CHANGES = (
    Change("unchanged"),
    Change("slower, not merged", SLOWER, code=1, merges=False),
    Change("unchanged, tried twice"),
    Change("adds a test", added(GEMM, TEST.format(name="test_new"))),
    Change("renames a test", replaced(GEMM, "test_new", "test_newer")),
    Change("deletes a test", replaced(GEMM, TEST.format(name="test_newer"), "")),
    Change("deletes a parameter", replaced(GEMM, "[64, 128]", "[64]")),
    Change(
        "renames a file", moved("tests/kernels/test_sort.py", "tests/kernels/test_s.py")
    ),
    Change("skips a module, not merged", SKIPPING, code=1, merges=False),
    Change("deletes a file", deleted("tests/kernels/test_s.py")),
    Change("slower, accepted", SLOWER, code=1, runs=2),
    Change("unchanged behind all of it"),
)
SHORT = (
    Change("unchanged"),
    Change("slower, not merged", SLOWER, code=1, merges=False),
    Change("renames a test", replaced(GEMM, "def test_gemm", "def test_gemms")),
    Change("deletes a file", deleted("tests/kernels/test_sort.py")),
    Change(
        "adds a file",
        added("tests/kernels/test_more.py", HEAD + TEST.format(name="test_m")),
    ),
    Change("unchanged behind all of it"),
)
AGAINST = (
    Change("unchanged", merges=False),
    Change("slower", SLOWER, code=1, merges=False),
    Change("renames a test", replaced(GEMM, "def test_gemm", "def test_gemms")),
    Change("deletes a file", deleted("tests/kernels/test_sort.py")),
)


# the page


def fenced() -> Iterator[tuple[str, str, Any]]:
    """Yield the YAML of the page: its heading, its text and its content."""
    from ruamel.yaml import YAML

    end, heading = 0, ""
    for match in re.finditer(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        headings = re.findall(r"^##+ (.*)$", PAGE[end : match.start()], re.MULTILINE)
        heading, end = (headings or [heading])[-1], match.end()
        yield heading, match[1], YAML(typ="safe").load(match[1])


def scripts(heading: str, *, event: str) -> list[str]:
    """Return the scripts that a recipe runs at an event: "pull_request" or "push"."""
    (content,) = (
        c for h, text, c in fenced() if h == heading and text.startswith("# .")
    )
    if "jobs" not in content:  # of GitLab
        name = {"pull_request": "merge_request_event", "push": "$CI_COMMIT_BRANCH"}[
            event
        ]
        jobs = [
            j for j in content.values() if "script" in j and name in str(j["rules"])
        ]
        lines = [line for job in jobs for line in job["script"]]
    else:
        steps = [s for job in content["jobs"].values() for s in job["steps"]]
        wanted = {"pull_request": "pull_request", "push": "refs/heads/main"}[event]
        steps = [s for s in steps if wanted in s.get("if", wanted)]
        lines = [step["run"] for step in steps if "run" in step]
    return [line for line in lines if not line.startswith("python -m pip install")]


# what a CI does


@dataclass
class Job:
    """
    A job: its scripts, what it is told, and where its store is between jobs.

    Attributes:
        gate: Its scripts for a pull request.

        store: Those for `main`.

        variables: What the CI tells it.

        cache: The key of its store.

        folder: Where it starts, in the clone.
    """

    gate: Sequence[str]
    store: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    cache: str = "all"
    folder: str = "."


@dataclass
class Repository:
    """
    A repository, its caches, and the clean clones that jobs run in.

    Attributes:
        folder: All of it.

        files: What it begins with.
    """

    folder: Path
    files: Mapping[str, str]
    clones: int = 0

    def __post_init__(self) -> None:
        self.root = self.folder / "origin"
        for name, text in self.files.items():
            added(name, text)(self.root)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("begin")
        self.commit("as it was")

    def git(self, *arguments: str, root: Path | None = None) -> str:
        """Run git; return what it prints."""
        done = subprocess.run(
            [*GIT, *arguments],
            cwd=root or self.root,
            env=environment(),
            capture_output=True,
            check=True,
            encoding="utf-8",
        )
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        """Commit all that is there."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def clone(self, revision: str, *, depth: int = 2) -> Path:
        """Return a clean, shallow clone with a revision checked out."""
        self.clones += 1
        place = self.folder / f"clone{self.clones}"
        self.git("branch", "--quiet", "--force", "tested", revision)
        self.git(
            *("clone", "--quiet", "--depth", str(depth), "--branch", "tested"),
            *(self.root.as_uri(), str(place)),
        )
        return place

    def run(self, job: Job, revision: str, *, event: str) -> tuple[int, str, Path]:
        """Run a job in a clean clone; return its exit status, its output, and the clone."""
        place = self.clone(revision)
        cache = self.folder / "caches" / job.cache
        if cache.exists():
            shutil.copytree(cache, place / ".gpuperf")
        variables = {
            "GITHUB_SHA": self.git("rev-parse", revision),
            "GITHUB_STEP_SUMMARY": str(place.with_suffix(".summary.md")),
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": self.git("rev-parse", "main"),
            **job.variables,
        }
        told = []
        code = 0
        for script in job.gate if event == "pull_request" else job.store:
            done = subprocess.run(
                [BASH, "-e", "-c", script],
                cwd=place / job.folder,
                env={**environment(), **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                encoding="utf-8",
            )
            told.append(done.stdout)
            code = done.returncode
            if code:
                break
        if event == "push" and (place / ".gpuperf").exists():
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(place / ".gpuperf", cache)
        return code, "\n".join(told), place

    def merged(self, change: Change, number: int) -> str:
        """Return the branch that a CI tests: `main` with a pull request merged into it."""
        name = f"change{number}"
        self.git("checkout", "--quiet", "-B", name, "main")
        change.edit(self.root)
        self.commit(change.name)
        self.git("checkout", "--quiet", "-B", f"merge{number}", "main")
        self.git("merge", "--quiet", "--no-ff", "--no-edit", name)
        self.git("checkout", "--quiet", "main")
        return f"merge{number}"


def environment() -> dict[str, str]:
    """Return what a runner gives to all scripts."""
    left_out = ("GIT_", "CI_", "GITHUB_", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:randomly",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


def tests_of_code(place: Path, folder: str) -> set[str]:
    """Return the tests that measure, by what pytest collects in a folder of a clone."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpuperf"],
        cwd=place / folder,
        env=environment(),
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    found = {line.strip() for line in done.stdout.splitlines() if "::" in line}
    return {os.path.normpath(f"{folder}/{test}") for test in found}


def tests_of_store(store: Path) -> set[str]:
    """Return the tests of a store."""
    tests = set()
    for file in store.glob("*/*.json"):
        for section in filter(None, json.loads(file.read_bytes())["sections"]):
            rows = filter(None, section["records"])
            tests |= {section["name"] + row["test"] for row in rows}
    return tests - {"gpuperf::references"}


@dataclass
class Pipeline:
    """
    The jobs of a repository, and its pull requests.

    Attributes:
        name: How it is called in the output.

        jobs: What runs for each pull request, and for `main`.

        changes: The pull requests.

        files: What the repository begins with.

        stores: Whether something is stored.
    """

    name: str
    jobs: Sequence[Job]
    changes: Sequence[Change]
    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    stores: bool = True

    def run(self, folder: Path) -> Iterator[tuple[Change, bool, str]]:
        """Yield each pull request, whether all was as it has to be, and what was."""
        repository = Repository(folder, self.files)
        if self.stores:
            for job in (*self.jobs, *self.jobs):
                code, told, _ = repository.run(job, "main", event="push")
                assert code == 0, told
        for number, change in enumerate(self.changes):
            revision = repository.merged(change, number)
            tries = 2 if "twice" in change.name else 1
            jobs = [job for _ in range(tries) for job in self.jobs]
            gates = [repository.run(j, revision, event="pull_request") for j in jobs]
            code = max(code for code, _, _ in gates)
            good, told = code == change.code, f"gate {code}"
            if not good:
                told += "\n" + "\n".join(text for _, text, _ in gates)
            if change.merges:
                repository.git("merge", "--quiet", "--ff-only", revision)
                if self.stores:
                    stored, text = self._store(repository, change.runs)
                    good, told = good and stored, told + text
            yield change, good, told

    def _store(self, repository: Repository, runs: int) -> tuple[bool, str]:
        """Run `main`; return whether the store has the tests of the code, and what was told."""
        code, dropped, texts = 0, 0, []
        for _ in range(runs):
            for job in self.jobs:
                ended, text, place = repository.run(job, "main", event="push")
                code = max(code, ended)
                texts.append(text)
                found = re.findall(r"^dropped (\d+) tests?", text, re.MULTILINE)
                dropped += sum(map(int, found))
        wanted = set().union(*(tests_of_code(place, job.folder) for job in self.jobs))
        there: set[str] = set()
        for job in self.jobs:
            there |= tests_of_store(repository.folder / "caches" / job.cache)
        good = code == 0 and there == wanted
        told = f", main {code}, dropped {dropped}, store has {len(there)} of {len(wanted)} tests"
        if not good:
            told += f"\nlost {wanted - there}\nleft {there - wanted}\n" + "\n".join(
                texts
            )
        return good, told


def in_packages(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a repository of two packages with tests of the same names."""
    packages = {
        f"packages/{package}/{name}": text
        for package in ("alpha", "beta")
        for name, text in files.items()
        if name != ".gitignore"
    }
    return {**packages, ".gitignore": files[".gitignore"]}


def below(package: str, change: Change) -> Change:
    """Return a pull request that changes one package."""
    return Change(
        f"{package}: {change.name}",
        lambda root: change.edit(root / "packages" / package),
        change.code,
        change.merges,
        change.runs,
    )


# keeps a part of the tests, as plugins for shards do, and tells nobody
SPLIT = """
import os


def pytest_collection_modifyitems(items):
    told = os.environ.get("CI_NODE_INDEX", 1), os.environ.get("CI_NODE_TOTAL", 1)
    index, total = map(int, told)
    items[:] = [item for n, item in enumerate(items) if n % total == index - 1]
"""
VERIFY = "gpuperf verify run.json --expect-from=.gpuperf --allow-removed"


def pipelines() -> Iterator[Pipeline]:
    """Yield the recipes of the page, and two that it does not have."""
    for name, heading in (("cache, GitHub", GITHUB), ("cache, GitLab", GITLAB)):
        gate = scripts(heading, event="pull_request")
        store = scripts(heading, event="push")
        changes = CHANGES if heading == GITHUB else SHORT
        yield Pipeline(name, [Job(gate, store)], changes)
    matrix = scripts("Several machines", event="pull_request")
    store = scripts(GITHUB, event="push")
    jobs = [Job(matrix, store, cache=machine) for machine in ("h200", "cpu")]
    # a renamed test is not judged until main has stored it: one of many, for the least share
    text = FILES[GEMM].replace("[64, 128]", "range(64, 80)")
    yield Pipeline("machines", jobs, SHORT, {**FILES, GEMM: text})
    shards = [
        'python -m pytest "tests/$SHARD" --gpuperf-baseline=.gpuperf --gpuperf-json=run.json',
        VERIFY,
    ]
    storing = ['python -m pytest "tests/$SHARD" --gpuperf-update=all']
    jobs = [
        Job(shards, storing, {"SHARD": s}, cache=s) for s in ("kernels", "training")
    ]
    yield Pipeline("shards by folder", jobs, SHORT)
    jobs = [Job(shards, storing, {"SHARD": s}) for s in ("kernels", "training")]
    yield Pipeline("shards by folder, one store", jobs, SHORT)
    gate = [
        "python -m pytest -m gpuperf --gpuperf-baseline=.gpuperf --gpuperf-json=run.json"
    ]
    storing = ["python -m pytest -m gpuperf --gpuperf-update=all"]
    told = [{"CI_NODE_INDEX": str(n), "CI_NODE_TOTAL": "2"} for n in (1, 2)]
    yield Pipeline(
        "shards by position, one store, whole runs of main",
        [
            *(Job([*gate, VERIFY], [], variables) for variables in told),
            Job([], [*storing], {"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "1"}),
        ],
        SHORT,
        {**FILES, "conftest.py": SPLIT},
    )
    for heading in (
        "The ten lines",
        "A pull request against its target on GitHub",
        "A merge request against its target on GitLab",
    ):
        gate = scripts(heading, event="pull_request")
        yield Pipeline(f"against: {heading}", [Job(gate, [])], AGAINST, stores=False)
    flags = "--gpuperf-baseline=../../.gpuperf"
    jobs = [
        Job(
            [
                f"python -m pytest {flags} --gpuperf-json=run.json",
                "gpuperf verify run.json --expect-from=../../.gpuperf --allow-removed",
            ],
            [f"python -m pytest {flags} --gpuperf-update=all"],
            folder=f"packages/{package}",
        )
        for package in ("alpha", "beta")
    ]
    changes = [below("alpha" if n % 2 else "beta", c) for n, c in enumerate(SHORT)]
    yield Pipeline("two packages, one store", jobs, changes, in_packages(FILES))


def in_git(folder: Path) -> Iterator[tuple[Change, bool, str]]:
    """Yield pull requests that change the store with the code, by the printed commands."""
    files = {**FILES, ".gitignore": "*.md\nrun.json\n*.xml\n__pycache__/\n"}
    repository = Repository(folder, files)
    gate = "python -m pytest -m gpuperf --gpuperf-baseline=.gpuperf --gpuperf-json=run.json"
    verify = "gpuperf verify run.json --expect-from=.gpuperf"
    place = repository.root

    def shell(script: str) -> tuple[int, str]:
        done = subprocess.run(
            [BASH, "-c", script],
            cwd=place,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            encoding="utf-8",
        )
        return done.returncode, done.stdout

    for _ in range(2):
        code, told = shell("python -m pytest -m gpuperf --gpuperf-update=new")
        assert code == 0, told
    repository.commit("store")
    for change, label in (
        (SHORT[2], "if renamed: "),
        (SHORT[3], "if removed: "),
        (
            Change("renames a folder", moved(GEMM, "tests/fast/test_gemm.py")),
            "if renamed: ",
        ),
        (SHORT[0], ""),
    ):
        change.edit(place)
        codes = [shell(gate)[0]]
        code, told = shell(verify)
        codes.append(code)
        if label:
            typed = next(line for line in told.splitlines() if label in line)
            ended, words = shell(typed.partition(label)[2])
            codes += [ended, shell(verify)[0]]
            told += words
        repository.commit(change.name)
        good = codes == ([0, 1, 0, 0] if label else [0, 0])
        text = f"gate, verify, command, verify: {codes}"
        yield change, good, text if good else f"{text}\n{told}"


@dataclass
class Shards:
    """
    The recipe of shards that store into a database, and of the job that merges their runs.

    Attributes:
        repository: The repository that is tested.
    """

    repository: Repository
    runs: int = 0

    def __post_init__(self) -> None:
        (content,) = (c for heading, _, c in fenced() if heading == "Shards")
        self.steps = {name: job["steps"] for name, job in content["jobs"].items()}
        self.snapshot = self.repository.folder / "snapshot.db"

    def run(self, revision: str, *, event: str) -> tuple[int, str]:
        """Run all jobs in clean clones; return the worst exit status, and what was told."""
        self.runs += 1
        told: list[str] = []
        codes = [0]
        clones = [self.repository.clone(revision) for _ in range(5)]
        *shards, merging = clones
        for number, place in enumerate(shards, start=1):
            if event == "pull_request":
                shutil.copy(self.snapshot, place)
            codes.append(self._job("shard", place, event, told, SHARD=str(number)))
            for file in place.glob("shard-*.json"):
                shutil.copy(file, merging)
        codes.append(self._job("merge", merging, event, told))
        if event == "push":
            shutil.copy(merging / "snapshot.db", self.snapshot)
        return max(codes), "\n".join(told)

    def _job(
        self, name: str, place: Path, event: str, told: list[str], **variables: str
    ) -> int:
        other = {"pull_request": "refs/heads/main", "push": "pull_request"}[event]
        code = 0
        for step in self.steps[name]:
            script, condition = step.get("run", "pip install"), step.get("if", "")
            if "pip install" in script or other in condition:
                continue
            if code and condition != "always()":
                continue
            done = subprocess.run(
                [BASH, "-e", "-c", script],
                cwd=place,
                env={
                    **environment(),
                    "GITHUB_RUN_ID": str(self.runs),
                    "GITHUB_RUN_ATTEMPT": "1",
                    "GITHUB_STEP_SUMMARY": str(place.with_suffix(".md")),
                    "STORE": f"sqlite:///{self.repository.folder}/store.db",
                    **variables,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                encoding="utf-8",
            )
            told.append(done.stdout)
            code = code or done.returncode
        return code


def in_database(folder: Path) -> Iterator[tuple[Change, bool, str]]:
    """Yield the pull requests of a suite in four shards with one database."""
    text = FILES[GEMM].replace("[64, 128]", "range(64, 76)")
    shards = Shards(Repository(folder, {**FILES, GEMM: text}))
    for _ in range(2):
        code, told = shards.run("main", event="push")
        assert code == 0, told
    for number, change in enumerate(SHORT):
        revision = shards.repository.merged(change, number)
        gate, told = shards.run(revision, event="pull_request")
        main = 0
        if change.merges:
            shards.repository.git("merge", "--quiet", "--ff-only", revision)
            main, text = shards.run("main", event="push")
            told += text
        good = (gate, main) == (change.code, 0)
        ended = f"gate {gate}, main {main}" if change.merges else f"gate {gate}"
        yield change, good, ended if good else f"{ended}\n{told}"


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="names of pipelines")
    only = parser.parse_args().only
    counts = {True: 0, False: 0}
    with tempfile.TemporaryDirectory() as scratch:
        kinds: list[tuple[str, Callable[[Path], Iterator[tuple[Change, bool, str]]]]]
        kinds = [(pipeline.name, pipeline.run) for pipeline in pipelines()]
        kinds.append(("store in git", in_git))
        kinds.append(("shards by pytest-split, a database", in_database))
        for number, (name, run) in enumerate(kinds):
            if not any(text in name for text in only):
                continue
            print(name, flush=True)
            for change, good, told in run(Path(scratch) / str(number)):
                counts[good] += 1
                word = "ok " if good else "NOT"
                print(f"  {word} {change.name}: {told}", flush=True)
    print(
        f"{sum(counts.values())} pull requests, {counts[False]} not as they have to be"
    )
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
