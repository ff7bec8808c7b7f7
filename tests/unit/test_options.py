"""Every option, from the command line and from the ini file."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from fakes.project import PLUGIN
from pytest_gpuperf import options
from pytest_gpuperf.collect.checkout import checkout_of
from pytest_gpuperf.config import (
    AgainstTests,
    Config,
    ConfirmBy,
    JitCache,
    Lock,
    NcuClocks,
    NcuReplay,
    Update,
)
from pytest_gpuperf.model.shard import Shard
from pytest_gpuperf.settings import config_of

# option, what is written, what is read, another text, what is read then
EACH: dict[str, tuple[str, object, str, object]] = {
    "baseline": ("a", "{root}/a", "b", "{root}/b"),
    "baseline_fallback": ("a", "{root}/a", "sqlite:///b.db", "sqlite:///b.db"),
    "update": ("new", Update.NEW, "all", Update.ALL),
    "max_regression": ("7.5 %", 0.075, "off", None),
    "min_judged": ("95%", 0.95, ".5 %", 0.005),
    "compare_across": (
        "driver",
        frozenset({"driver_branch"}),
        "cpu_model, core_count",
        frozenset({"cpu_model", "core_count"}),
    ),
    "shard": (
        "3/8",
        Shard(number=3, count=8),
        " 1 / 1 ",
        Shard(number=1, count=1),
    ),
    "run_id": ("77.1", "77.1", " a b/c ", "a b/c"),
    "confirm": ("0", 0, "7", 7),
    "confirm_by": ("against", ConfirmBy.AGAINST, "auto", ConfirmBy.AUTO),
    "against": ("main", "main", " HEAD~3", "HEAD~3"),
    "against_tests": ("mine", AgainstTests.MINE, "same", AgainstTests.SAME),
    "budget": ("90s", 90.0, "10 min", 600.0),
    "runs": ("1", 1, "3", 3),
    "collectors": ("host", ("host",), "auto", ()),
    "chip": ("GH100", "GH100", " sm_90", "sm_90"),
    "ncu_replay": ("range", NcuReplay.RANGE, "kernel", NcuReplay.KERNEL),
    "ncu_clocks": ("base", NcuClocks.BASE, "none", NcuClocks.NONE),
    "sort": ("mean", "mean", " name", "name"),
    "columns": ("min", ("min",), "time, ops", ("time", "ops")),
    "time_unit": ("us", "us", "auto", None),
    "record": ("a", "{root}/a", "b", "{root}/b"),
    "replay": ("kept", "{root}/kept", ".", "{root}"),
    "json": ("a.json", "{root}/a.json", "kept/b.json", "{root}/kept/b.json"),
    "html": ("a.html", "{root}/a.html", "kept/b.html", "{root}/kept/b.html"),
    "markdown": ("a.md", "{root}/a.md", "-", "-"),
    "csv": ("a.csv", "{root}/a.csv", "-", "-"),
    "device": ("0", "0", "GPU-bb", "GPU-bb"),
    "lock": ("shared", Lock.SHARED, "off", Lock.OFF),
    "telemetry": ("12.5", 12.5, "off", None),
}
FIELDS = {"budget": "budget_s"}  # of Config, where it is not the option's name
FLAGS = ("strict", "changed", "disable", "annotations", "junit_properties")


@pytest.fixture
def root(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project with one folder in it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.mkdir("kept")
    return str(pytester.path)


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this machine two GPUs, as far as NVML knows."""
    load = ctypes.CDLL

    def loaded(name: str | None, *how: Any, **more: Any) -> object:
        there = name == "libnvidia-ml.so.1"
        return object() if there else load(name, *how, **more)

    nvml = FakeNvml(FakeGpu(uuid="GPU-aa00"), FakeGpu(uuid="GPU-bb00"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def read(pytester: pytest.Pytester, name: str, *arguments: str) -> Any:
    """Return one field of the Config that a command line gives."""
    config = pytester.parseconfig(*PLUGIN, *arguments)
    return getattr(config_of(config), FIELDS.get(name, name))


def here(value: object, root: str) -> object:
    """Return an expected value with its folder."""
    return value.replace("{root}", root) if isinstance(value, str) else value


def test_every_option_is_tried_here() -> None:
    """An option that is added without a row in this file fails this test."""
    declared = {name for name, _, _ in options._OPTIONS}
    tried = {f"gpuperf-{name.replace('_', '-')}" for name in (*EACH, *FLAGS)}

    assert declared == tried
    fields = {FIELDS.get(name, name) for name in (*EACH, *FLAGS)}
    assert set(Config.__struct_fields__) >= fields


@pytest.mark.parametrize("name", EACH)
def test_an_ini_value_alone_works_and_the_command_line_wins(
    pytester: pytest.Pytester, root: str, name: str
) -> None:
    """Both are read alike; where both speak, the command line does."""
    in_ini, meant, on_line, meant_then = EACH[name]
    flag = f"--gpuperf-{name.replace('_', '-')}"
    pytester.makeini(f"[pytest]\ngpuperf_{name} = {in_ini}\n")

    assert read(pytester, name) == here(meant, root)
    assert read(pytester, name, f"{flag}={on_line}") == here(meant_then, root)
    assert read(pytester, name, flag, on_line) == here(meant_then, root)


@pytest.mark.parametrize("name", EACH)
def test_the_command_line_alone_works(
    pytester: pytest.Pytester, root: str, name: str
) -> None:
    """No ini file is needed; what was given is kept as text for the report."""
    text, meant, _, _ = EACH[name]
    flag = f"--gpuperf-{name.replace('_', '-')}={text}"
    config = config_of(pytester.parseconfig(*PLUGIN, flag))

    assert getattr(config, FIELDS.get(name, name)) == here(meant, root)
    assert dict(config.option_texts) == {f"gpuperf_{name}": text}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_off_unless_said(
    pytester: pytest.Pytester, root: str, name: str
) -> None:
    """Off by default, on by either, and an ini value of false is off."""
    flag = f"--gpuperf-{name.replace('_', '-')}"

    assert read(pytester, name) is False
    assert read(pytester, name, flag) is True
    pytester.makeini(f"[pytest]\ngpuperf_{name} = true\n")
    assert read(pytester, name) is True
    pytester.makeini(f"[pytest]\ngpuperf_{name} = false\n")
    assert read(pytester, name) is False
    assert read(pytester, name, flag) is True


@pytest.mark.parametrize("text", ["fresh", "keep"])
def test_caches_are_for_the_ini_file(
    pytester: pytest.Pytester, root: str, text: str
) -> None:
    """What a project decides once is read there, and is not an option of the command."""
    pytester.makeini(f"[pytest]\ngpuperf_jit_cache = {text}\n")

    assert read(pytester, "jit_cache") is JitCache(text)
    with pytest.raises(pytest.UsageError, match="unrecognized arguments"):
        pytester.parseconfig(*PLUGIN, f"--gpuperf-jit-cache={text}")


def test_how_a_side_is_built_is_for_the_ini_file(
    pytester: pytest.Pytester, root: str
) -> None:
    """A command, and files of which there may be several: one a line, below the root."""
    command = "python setup.py build_ext --inplace"
    pytester.makeini(
        f"[pytest]\ngpuperf_build_command = {command}\n"
        "gpuperf_carry =\n    pkg/_version.py\n    data/*.bin\n"
    )

    assert read(pytester, "build_command") == command
    assert read(pytester, "carry") == ("pkg/_version.py", "data/*.bin")
    for outside in ("../a.py", "/etc/hosts", "a/../../b"):
        pytester.makeini(f"[pytest]\ngpuperf_carry = {outside}\n")
        with pytest.raises(pytest.UsageError, match="is outside the repository"):
            read(pytester, "carry")


def test_the_wait_for_a_gpu_is_for_the_ini_file(
    pytester: pytest.Pytester, root: str
) -> None:
    """In seconds, of which there is at least one."""
    assert read(pytester, "lock_timeout_s") == 600.0
    pytester.makeini("[pytest]\ngpuperf_lock_timeout = 30\n")
    assert read(pytester, "lock_timeout_s") == 30
    pytester.makeini("[pytest]\ngpuperf_lock_timeout = 86400\n")
    assert read(pytester, "lock_timeout_s") == 86_400
    pytester.makeini("[pytest]\ngpuperf_ncu_timeout = 21600\n")
    assert read(pytester, "ncu_timeout_s") == 21_600
    pytester.makeini("[pytest]\ngpuperf_ncu_timeout = 86401\n")
    with pytest.raises(pytest.UsageError, match="whole number from 1 to 86400"):
        read(pytester, "ncu_timeout_s")
    pytester.makeini("[pytest]\ngpuperf_lock_timeout = 0\n")
    with pytest.raises(
        pytest.UsageError, match="gpuperf_lock_timeout=0: write a whole"
    ):
        read(pytester, "lock_timeout_s")


def test_a_gpu_that_is_not_there_is_told_with_those_that_are(
    pytester: pytest.Pytester, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By index and UUID; a hidden one with what would show it; a replay needs none."""
    with pytest.raises(pytest.UsageError) as absent:
        read(pytester, "device", "--gpuperf-device=3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(pytest.UsageError) as hidden:
        read(pytester, "device", "--gpuperf-device=1")

    assert str(absent.value) == (
        "gpuperf: --gpuperf-device=3: no GPU 3: this machine has 0 (GPU-aa00, NVIDIA "
        "H200), 1 (GPU-bb00, NVIDIA H200); name one of these, or leave --gpuperf-device "
        "out"
    )
    assert str(hidden.value) == (
        "gpuperf: --gpuperf-device=1: GPU 1 (GPU-bb00) is hidden by "
        "CUDA_VISIBLE_DEVICES=0; set CUDA_VISIBLE_DEVICES=1, or leave --gpuperf-device "
        "out"
    )
    line = ("--gpuperf-device=3", "--gpuperf-replay=kept")
    assert read(pytester, "device", *line) == "3"


def test_a_wrong_ini_value_is_a_usage_error(
    pytester: pytest.Pytester, root: str
) -> None:
    """It is told where nothing else was asked for, with the name of the ini option."""
    pytester.makeini("[pytest]\ngpuperf_jit_cache = frsh\n")
    config = pytester.parseconfig(*PLUGIN)

    assert options.is_configured(config)
    with pytest.raises(
        pytest.UsageError,
        match="ini option gpuperf_jit_cache=frsh: write fresh or keep",
    ):
        config_of(config)


def test_defaults_are_those_of_config(pytester: pytest.Pytester, root: str) -> None:
    """With nothing said, a run is what Config says by itself."""
    config = pytester.parseconfig(*PLUGIN)

    checkout = checkout_of(root, root)
    assert config_of(config) == Config(root=root, checkout=checkout)
    assert options.is_configured(config) is False


def test_a_found_store_is_not_a_named_one(pytester: pytest.Pytester, root: str) -> None:
    """`.gpuperf` at the root is compared with, and never fails a test."""
    pytester.mkdir(".gpuperf")
    found = config_of(pytester.parseconfig(*PLUGIN))
    named = config_of(pytester.parseconfig(*PLUGIN, "--gpuperf-baseline=.gpuperf"))

    assert (found.baseline, found.baseline_named) == (f"{root}/.gpuperf", False)
    assert (named.baseline, named.baseline_named) == (f"{root}/.gpuperf", True)


def test_an_ini_path_is_seen_from_the_root(
    pytester: pytest.Pytester, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started in a subfolder, an ini path is the root's and a typed one the folder's."""
    pytester.makeini(
        "[pytest]\ngpuperf_baseline = base\ngpuperf_json = run.json\n"
        "gpuperf_record = rec\n"
    )
    monkeypatch.chdir("kept")
    config = config_of(pytester.parseconfig(*PLUGIN))
    typed = config_of(
        pytester.parseconfig(
            *PLUGIN, "--gpuperf-baseline=base", "--gpuperf-json=r.json"
        )
    )

    assert config.baseline == f"{root}/base"
    assert config.json == f"{root}/run.json"
    assert config.record == f"{root}/rec"
    assert config.option_texts["gpuperf_baseline"] == "../base"  # to be typed here
    assert typed.option_texts["gpuperf_baseline"] == "base"
    assert typed.baseline == f"{root}/kept/base"
    assert typed.json == f"{root}/kept/r.json"


def test_the_file_of_a_url_is_seen_as_a_path(
    pytester: pytest.Pytester, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a subfolder, a relative file of SQLite has the folder that a path has."""
    pytester.makeini(
        "[pytest]\ngpuperf_baseline = sqlite:///perf.db#kernels\n"
        "gpuperf_baseline_fallback = sqlite:////srv/perf.db\n"
    )
    at_root = config_of(pytester.parseconfig(*PLUGIN))
    monkeypatch.chdir("kept")
    of_ini = config_of(pytester.parseconfig(*PLUGIN))
    typed = config_of(
        pytester.parseconfig(*PLUGIN, "--gpuperf-baseline=sqlite:///perf.db")
    )

    assert at_root.baseline == "sqlite:///perf.db#kernels"
    assert of_ini.baseline == f"sqlite:///{root}/perf.db#kernels"
    assert of_ini.option_texts["gpuperf_baseline"] == "sqlite:///../perf.db#kernels"
    assert of_ini.baseline_fallback == "sqlite:////srv/perf.db"
    assert typed.baseline == f"sqlite:///{root}/kept/perf.db"
    assert typed.option_texts["gpuperf_baseline"] == "sqlite:///perf.db"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("update", "New"),
        ("max-regression", "5"),
        ("max-regression", "-5%"),
        ("max-regression", "nan%"),
        ("min-judged", "off"),
        ("confirm", "-1"),
        ("confirm", "1e2"),
        ("confirm", "99999"),
        ("runs", "0"),
        ("collectors", ","),
        ("collectors", "host,magic"),
        ("compare-across", "weather"),
        ("device", "first"),
        ("device", "-1"),
        ("device", "2"),
        ("device", "GPU-cc"),
        ("lock", "mine"),
        ("json", "kept"),
        ("json", "no/folder.json"),
        ("replay", "nowhere"),
        ("telemetry", "0"),
        ("telemetry", "-1"),
        ("telemetry", "100.1"),
        ("telemetry", "nan"),
        ("telemetry", "1e2"),
    ],
)
def test_a_wrong_value_is_a_usage_error(
    pytester: pytest.Pytester, root: str, name: str, text: str
) -> None:
    """The error names the option as it was written, and what was wrong with it."""
    config = pytester.parseconfig(*PLUGIN, f"--gpuperf-{name}={text}")

    with pytest.raises(pytest.UsageError, match=f"gpuperf: --gpuperf-{name}="):
        config_of(config)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:a/b c@d@host/db", "postgresql://me:***@host/db"),
        (
            "postgresql://host/db?user=me&password=x&a=b",
            "postgresql://host/db?user=me&password=***&a=b",
        ),
        ("--index=https://token@host/simple", "--index=https://***@host/simple"),
        ("--index=https://me:a@host/simple", "--index=https://me:***@host/simple"),
        ("postgresql:me:secret@host/db", "postgresql:me:***@host/db"),
        ("postgresql//me:secret@host/db", "postgresql//me:***@host/db"),
        ("no postgres:me:secret@host/db", "no postgres:me:***@host/db"),
        ("postgres://me:secret", "postgres://me:***"),
        ("no 'postgres:/me:secret'", "no 'postgres:/me:***'"),
        ("postgresql://a:5432,b:5433/db", "postgresql://a:5432,b:5433/db"),
        ("postgresql://me@[::1]:5432/db", "postgresql://me@[::1]:5432/db"),
        ("postgresql://host:5432: no", "postgresql://host:5432: no"),
        (
            "postgresql:///db?sslpassword=x&sslkey=k",
            "postgresql:///db?sslpassword=***&sslkey=k",
        ),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("sqlite://me:secret@host/a.db", "sqlite://me:***@host/a.db"),
        ("a@b", "a@b"),
    ],
)
def test_credentials_are_masked(text: str, shown: str) -> None:
    """No password of a URL reaches a report; a role stays, so that commands can be typed."""
    assert options.masked(text) == shown


def test_help_says_percent_once(pytester: pytest.Pytester, root: str) -> None:
    """Of an option and of its ini value: only one of the two is formatted."""
    shown = pytester.runpytest(*PLUGIN, "--help").stdout.str()

    assert shown.count("(5 %)") == 2
    assert "%%)" not in shown


@pytest.mark.parametrize(
    ("typed", "others", "selects"),
    [
        (("-q", "-rA", "--tb", "short", "-n2"), (), ()),
        (("--gpuperf-strict", "-o", "gpuperf_alone=0"), ("-ogpuperf_alone=0",), ()),
        (("-m", "gpuperf", "--junitxml=x"), ("-v", "-m", "gpuperf"), ("-m", "gpuperf")),
        (("--slow", "tests"), ("-p", "no:x", "--slow", "tests"), ("--slow", "tests")),
    ],
)
@pytest.mark.usefixtures("root")
def test_what_selects_tests_is_told_apart_from_output(
    pytester: pytest.Pytester,
    typed: tuple[str, ...],
    others: tuple[str, ...],
    selects: tuple[str, ...],
) -> None:
    """Two runs that differ in what they print and in our options select alike."""
    found = []
    for args in (typed, others):
        config = pytester.parseconfig(*PLUGIN)
        start = {"process": {"args": list(args)}}
        config.workerinput = {options.WORKER_START: start}  # type: ignore[attr-defined] # as xdist has it
        found.append(options.selecting(config))

    assert found == [selects, selects]
