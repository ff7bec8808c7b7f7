"""What is meant for a machine with a GPU does nothing elsewhere, and says so."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from pytest_gpuperf.collect.devices import query_devices

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    *(
        f"benchmarks/{name}.py"
        for name in ("gpu_gate", "gpu_agreement", "gpu_cost", "gpu_noise")
    ),
    ".ci/gpu_captures.py",
    ".ci/gpu_probe.py",
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
    places = {"gpu_captures": tmp_path, "gpu_probe": tmp_path / "answers.jsonl"}
    folder = [str(path) for name, path in places.items() if name in script]
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
    [
        ([], "gpu_session WHEELS OUT"),
        (["w", "o", "teste"], "no part or step is called teste"),
    ],
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


STEPS = ROOT / ".ci" / "gpu_steps.py"
# prints, starts a process that prints its own id, and waits
WAITING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("begun", child.pid, flush=True)
time.sleep(600)
"""
XML = """
import sys
text = f'<testsuites><testsuite name="{sys.argv[2]}"/></testsuites>'
open(sys.argv[1], "w").write(text)
"""


def steps_module() -> Any:
    """Return the module that runs the steps of a session."""
    spec = importlib.util.spec_from_file_location("gpu_steps", STEPS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_steps"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has only not been waited for does not."""
    try:
        state = (
            Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        )
    except OSError:
        return False
    return state != "Z"


def began(log: Path) -> int:
    """Wait until a step has said that it began; return the process that it started."""
    for _ in range(600):
        words = log.read_text("utf-8").split() if log.exists() else []
        if "begun" in words and words[-1] != "begun":
            return int(words[words.index("begun") + 1])
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))


on_linux = pytest.mark.skipif(
    sys.platform != "linux" or not SESSION.exists(), reason="needs .ci, on Linux"
)


@on_linux
def test_what_does_not_end_costs_its_own_step(tmp_path: Path) -> None:
    """The log has what it said, nothing that it started goes on, and the next one runs."""
    module = steps_module()
    session = module.Session(tmp_path, 60.0)
    python = sys.executable
    steps = [
        module.Step("hangs", (python, "-c", WAITING), 3.0),
        module.Step("is not there", ("/nonexistent/program",), 3.0),
        *(
            module.Step(
                name,
                (python, "-c", XML, str(tmp_path / name), name),
                30.0,
                xml=tmp_path / name,
            )
            for name in ("a", "b")
        ),
        module.Step("says", (python, "-c", "print(6)"), 30.0, into="doctor.json"),
    ]
    session.run(steps)
    rows = (tmp_path / "index.md").read_text("utf-8").splitlines()[2:]

    assert [row.split(" | ")[1] for row in rows] == [
        "124, the limit of 3 s",
        "127",
        "0",
        "0",
        "0",
    ]
    assert session.failed
    assert not alive(began(tmp_path / "log.txt"))
    joined = (tmp_path / "tests.xml").read_text("utf-8")
    assert re.findall(r'name="(.)"', joined) == ["a", "b"]
    assert (tmp_path / "doctor.json").read_text("utf-8") == "6\n"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Undo what a shell does to what it starts in the background, as the script does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@on_linux
@pytest.mark.usefixtures("interruptible")
def test_what_is_ended_may_say_what_it_has(tmp_path: Path) -> None:
    """A step at its limit is interrupted at first: pytest then writes its failures."""
    module = steps_module()
    source = """
import time
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("one failed: why")
"""
    session = module.Session(tmp_path, 60.0)
    session.run([module.Step("tests", (sys.executable, "-c", source), 3.0)])

    assert "one failed: why" in (tmp_path / "log.txt").read_text("utf-8")
    assert "124, the limit of 3 s" in (tmp_path / "index.md").read_text("utf-8")


@on_linux
def test_all_limits_are_cut_to_what_is_left(tmp_path: Path) -> None:
    """A step for which no time is left is not begun, and said to be so."""
    module = steps_module()
    session = module.Session(tmp_path, 7.0)
    argv = (sys.executable, "-c", WAITING)
    session.run([module.Step("hangs", argv, 600.0), module.Step("waits", argv, 600.0)])
    session.run([])

    assert session.failed
    index = (tmp_path / "index.md").read_text("utf-8")
    assert "| waits | not begun: no time is left | 0 s |" in index


@on_linux
def test_a_session_that_is_ended_has_lost_one_step(tmp_path: Path) -> None:
    """TERM ends what the step has started; what was found before is in its place."""
    source = f"""
import importlib.util, signal, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("gpu_steps", {str(STEPS)!r})
module = sys.modules["gpu_steps"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
session = module.Session(Path({str(tmp_path)!r}), 60.0)
signal.signal(signal.SIGTERM, session.end)
session.run([
    module.Step("first", (sys.executable, "-c", "print(1)"), 30.0),
    module.Step("hangs", (sys.executable, "-c", {WAITING!r}), 50.0),
])
"""
    with subprocess.Popen([sys.executable, "-c", source]) as process:
        child = began(tmp_path / "log.txt")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM

    assert not alive(child)
    assert "| first | 0 |" in (tmp_path / "index.md").read_text("utf-8")


@on_linux
def test_steps_stand_in_the_order_of_what_they_are_worth(tmp_path: Path) -> None:
    """The doctor first; every file of tests/gpu; no more files than can be brought back."""
    module = steps_module()
    parts = {
        name: [*part(tmp_path / name, tmp_path)] for name, part in module.PARTS.items()
    }
    files = {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    steps = [step for part in parts.values() for step in part]
    brought = {step.into for step in steps if step.into}
    brought |= {f"{step.name}.tar.gz" for step in steps if step.folder}

    assert parts["smoke"][0].into == "doctor.json"
    assert {step.name for step in parts["tests"]} == files
    assert len(brought | {"index.md", "log.txt", "tests.xml", "probe.jsonl"}) <= 8
    for step in steps:
        script = [
            word for word in step.argv if word.startswith((".ci/", "benchmarks/"))
        ]
        assert all((ROOT / word).exists() for word in script)


@on_linux
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("test_ncu", ["test_ncu"]),
        ("gpu_noise", ["gpu_noise"]),
        ("smoke", ["doctor", "doctor in words", "versions"]),
        ("nothing", []),
    ],
)
def test_a_step_can_be_asked_for_alone(
    name: str, steps: list[str], tmp_path: Path
) -> None:
    """What a session had no time for is named in the next one, without its whole part."""
    module = steps_module()

    assert [step.name for step in module.steps_of(name, tmp_path, tmp_path)] == steps


@needs_scripts
def test_questions_stand_in_the_order_of_what_they_are_worth() -> None:
    """One that hangs or takes long costs no other; all of the rest have time for themselves."""
    module = script_module("gpu_probe")
    names = [*module.QUESTIONS]

    assert names[:3] == ["labels", "cold_sample", "launch_gaps"]
    assert names[-2:] == ["modules", "ncu"]
    assert module.LONGER_S.keys() == {"ncu"}


def script_module(name: str) -> Any:
    """Return one of the scripts of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_scripts
def test_a_recorded_run_does_not_name_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The UUID that NVML gives, and the folder, are in none of its files."""
    module = script_module("gpu_captures")
    query = query_devices(FakeNvml(FakeGpu(uuid="GPU-6f1d0c2a-0405-0607-0809-1a")))
    (gpu,) = query.devices
    monkeypatch.setattr(module, "query_devices", lambda: query)
    folder = tmp_path / "recorded"
    (folder / "readings").mkdir(parents=True)
    files = [folder / "run.json", folder / "readings" / "readings-main.jsonl"]
    for path in files:
        path.write_text(f'{{"uuid":"{gpu.uuid}","to":"{folder}/run.json"}}', "utf-8")
    module.mask(folder)

    assert {path.read_text("utf-8") for path in files} == {
        f'{{"uuid":"{module.NOBODY}","to":"recorded/run.json"}}'
    }


@needs_scripts
def test_an_answer_does_not_name_where_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and tracebacks of a question are written without the machine's folders."""
    monkeypatch.chdir(ROOT)
    module = script_module("gpu_probe")

    def asked() -> Iterator[dict[str, object]]:
        yield {"argv": [f"{sys.prefix}/bin/python", str(module.COPY)]}
        raise ZeroDivisionError

    monkeypatch.setitem(module.QUESTIONS, "asked", asked)
    file = tmp_path / "answers.jsonl"
    module.answer(file, "asked")
    text = file.read_text("utf-8")

    assert '["PREFIX/bin/python", "./tests/gpu/programs/stream_copy.py"]' in text
    assert "ZeroDivisionError" in text
    assert str(ROOT) not in text
    assert sys.prefix not in text


class Allocation:
    """A record that has a name and none: to read it ends the process in cupti-python 13.0."""

    kind, bytes = 49, 512

    @property
    def name(self) -> str:
        raise AssertionError


@needs_scripts
def test_the_name_of_an_allocation_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has an allocation's other fields, and a kernel's name."""
    monkeypatch.chdir(ROOT)
    module = script_module("gpu_probe")
    kernel = SimpleNamespace(kind=module.KERNEL, name="gemm")

    assert module.row_of(Allocation()) == {"kind": 49, "bytes": 512}
    assert module.row_of(kernel) == {"kind": module.KERNEL, "name": "gemm"}
