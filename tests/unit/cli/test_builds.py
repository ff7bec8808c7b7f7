"""cli.builds: two builds of kernels are compared, and a library with its inventory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes.binaries import fatbin
from fakes.code_object import bundle, code_object, kernel, program
from pytest_gpuperf import cli
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.report.lines import SCHEMAS

GOLD = Path(__file__).parents[2] / "gold" / "binary"


class Commands:
    """Runs commands, and returns what they print."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Return the output of a command that ends with an exit code."""
        assert cli.main([str(word) for word in arguments]) == code
        printed = self._capture.readouterr()
        return (printed.out + printed.err).decode()


class Stream:
    """Standard output with a buffer, on a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        self.buffer = io.BytesIO()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._terminal

    def flush(self) -> None:
        """Do nothing."""


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Commands:
    """Commands whose output is captured."""
    return Commands(capfdbinary)


def write(path: Path, kernels: Sequence[dict[str, object]]) -> Path:
    """Write a library with kernels for two chips."""
    codes = {chip: code_object(kernels, chip) for chip in ("gfx90a", "gfx942")}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(program(bundle(codes)))
    return path


@pytest.fixture
def builds(tmp_path: Path) -> tuple[Path, Path]:
    """Two builds of a library: one kernel spills, another needs fewer registers."""
    was = [kernel("spilling"), kernel("leaner"), kernel("same"), kernel("gone")]
    now = [
        kernel("spilling", vgpr_spill_count=25, private_segment_fixed_size=104),
        kernel("leaner", vgpr_count=60),
        kernel("same"),
        kernel("new", group_segment_fixed_size=4096),
    ]
    return write(tmp_path / "a" / "lib.so", was), write(tmp_path / "b" / "lib.so", now)


def tools() -> None:
    """Skip where NVIDIA's tools are not installed."""
    try:
        find_tool(CUOBJDUMP)
        find_tool(NVDISASM)
    except CollectError as error:
        pytest.skip(str(error))


def test_a_spill_fails_with_its_reason(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """The worse kernels stand first; each chip has its row."""
    text = run("compare", *builds, code=1)
    rows = [line for line in text.splitlines() if "gfx" in line]

    assert "spilling" in rows[0]
    assert "spill added: 100 B" in text
    assert "registers 64 -> 60" in text
    assert "2 worse, 2 better, 2 gone, 2 new, 2 same" in text


@pytest.mark.parametrize(
    ("fail_on", "forward", "backward"),
    [("worse", 1, 1), ("any", 1, 1), ("never", 0, 0)],
)
def test_the_exit_code_follows_fail_on(
    builds: tuple[Path, Path], run: Commands, fail_on: str, forward: int, backward: int
) -> None:
    """In both directions, because each build has a kernel that needs less."""
    was, now = builds

    run("compare", was, now, f"--fail-on={fail_on}", code=forward)
    run("compare", now, was, f"--fail-on={fail_on}", code=backward)
    run("compare", was, was, f"--fail-on={fail_on}")


def test_folders_are_compared_file_by_file(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """Files without device code are passed over; a file may move."""
    was, now = builds
    (was.parent / "README").write_text("no code")
    (now.parent / "kernels").mkdir()
    now.rename(now.parent / "kernels" / "other.so")

    text = run("compare", was.parent, now.parent, code=1)
    assert "2 worse" in text


def test_json_and_markdown_say_the_same(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """JSON has every kernel with both builds, Markdown escapes the names."""
    content = json.loads(run("compare", *builds, "--format=json", code=1))
    markdown = run("compare", *builds, "--format=markdown", code=1)
    (spilling,) = (
        change
        for change in content["changes"]
        if change["kernel"] == "spilling" and change["target"] == "gfx942"
    )

    assert content["schema"] == SCHEMAS["compare BINARY BINARY"]
    assert len(content["changes"]) == 10
    assert spilling["result"] == "worse"
    assert spilling["was"]["spills_bytes"] == 0
    assert spilling["now"]["spills_bytes"] == 100
    assert "| `spilling` | gfx90a | WORSE |" in markdown


def test_a_chip_and_a_block_are_chosen(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """With a block the occupancy is compared, too."""
    was, now = builds
    write(was, [kernel("k", vgpr_count=128)])
    write(now, [kernel("k", vgpr_count=129)])

    text = run("compare", was, now, "--target=gfx942", "--block=256", code=1)
    assert "gfx90a" not in text
    assert "occupancy 50.0 % -> 37.5 %" in text
    assert "occupancy" not in run("compare", was, now, code=1)


def test_lost_fusion_is_said(run: Commands) -> None:
    """One kernel of Triton, before and after the default of fusion changed."""
    tools()
    with_fusion, without = (GOLD / f"axpy_{n}_sm_90a.cubin" for n in (1, 0))

    assert "FMA contraction lost (128 -> 0)" in run(
        "compare", with_fusion, without, code=1
    )
    assert "FMA contraction added" in run("compare", without, with_fusion, code=1)


def test_nvidias_code_gains_a_spill(run: Commands, tmp_path: Path) -> None:
    """The kernels of two cubins are paired by name, and nvdisasm counts the spills."""
    tools()
    fatbin = GOLD / "kernels.fatbin"

    assert "same" in run("compare", fatbin, fatbin)
    content = json.loads(
        run("compare", fatbin, GOLD / "kernels_sm_80.cubin", "--format=json")
    )
    assert {change["result"] for change in content["changes"]} == {"same", "gone"}
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("{a}",), "at least two"),
        (("{a}", "{b}", "{a}"), "two are compared"),
        (("{a}", "{b}", "--fail-on=slower"), "has no times"),
        (("{a}", "{b}", "--total"), "--total"),
    ],
)
def test_a_wrong_comparison_is_refused(
    builds: tuple[Path, Path], run: Commands, words: tuple[str, ...], reason: str
) -> None:
    """With exit code 2 and a remedy."""
    a, b = builds
    text = run("compare", *(word.format(a=a, b=b) for word in words), code=2)

    assert reason in text
    assert "remedy" in text


def test_a_folder_without_code_is_refused(
    builds: tuple[Path, Path], run: Commands, tmp_path: Path
) -> None:
    """An empty build must not look as if all kernels were gone."""
    empty = tmp_path / "empty"
    empty.mkdir()

    assert "no file" in run("compare", builds[0], empty, code=4)
    assert "no file" in run("inventory", empty, code=4)


def test_an_inventory_is_a_ratchet(
    builds: tuple[Path, Path], run: Commands, tmp_path: Path
) -> None:
    """Written once, it fails for a spill until it is updated; better passes."""
    was, now = builds
    file = tmp_path / "kernels.jsonl"
    missing = run("inventory", was, "--baseline", file, code=4)
    assert "--update" in missing
    assert not file.exists()

    assert "written to" in run("inventory", was, "--baseline", file, "--update")
    assert len(file.read_text().splitlines()) == 9
    assert "8 same" in run("inventory", was, "--baseline", file, "--fail-on=any")
    text = run("inventory", now, "--baseline", file, code=1)
    assert "spill added" in text
    assert "--update" in text
    run("inventory", now, "--baseline", file, "--update")
    run("inventory", now, "--baseline", file, "--fail-on=any")
    leaner = write(tmp_path / "c" / "lib.so", [kernel("leaner", vgpr_count=50)])
    run("inventory", leaner, "--baseline", file)
    run("inventory", leaner, "--baseline", file, "--fail-on=any", code=1)


@pytest.mark.parametrize("command", ["compare", "inventory"])
def test_a_new_name_hides_no_spill_of_nvidias_code(
    run: Commands, tmp_path: Path, command: str
) -> None:
    """
    Its spills are instructions, which are read of a new kernel with stack, and of no other.
    """
    tools()
    was, now = tmp_path / "was", tmp_path / "now"
    for folder, names in ((was, ["mix"]), (now, ["mix", "kernels"])):
        folder.mkdir()
        for name in names:
            file = GOLD / f"{name}_sm_80.cubin"
            (folder / file.name).write_bytes(file.read_bytes())
    baseline = tmp_path / "kernels.jsonl"
    run("inventory", was, f"--baseline={baseline}", "--update")
    before = (was,) if command == "compare" else (f"--baseline={baseline}",)

    text = run(command, *before, now, code=1)

    assert "WORSE, new  spill added: 680 B" in text
    assert "1 worse, 3 new" in text


@pytest.mark.parametrize("command", ["compare", "inventory"])
def test_spills_that_are_too_much_to_read_are_unknown(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """And said to be: nothing is called free of spills that was not read."""
    tools()
    baseline = tmp_path / "kernels.jsonl"
    file = GOLD / "mix_sm_80.cubin"
    run("inventory", file, f"--baseline={baseline}", "--update")
    monkeypatch.setattr("pytest_gpuperf.measure.inventory.MOST_BYTES", 1000)

    before = (file,) if command == "compare" else (f"--baseline={baseline}",)
    text = run(command, *before, GOLD / "kernels_sm_80.cubin")

    assert (
        "spills of 2 new kernels with stack are unknown: the changed code has more than "
        "1000 B; choose one chip with --target"
    ) in " ".join(text.split())


def test_much_code_that_changed_hides_no_spill_of_a_new_kernel(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all that changed is too much to read, the new kernels are read alone."""
    tools()
    was, now = tmp_path / "was", tmp_path / "now"
    before, changed, spilling = (
        (GOLD / f"{name}_sm_80.cubin").read_bytes()
        for name in ("referring", "referring_changed", "kernels")
    )
    for folder, content in ((was, before), (now, changed)):
        folder.mkdir()
        (folder / "changed.cubin").write_bytes(content)
    (now / "new.cubin").write_bytes(spilling)
    size_bytes = max(len(changed), len(spilling))
    monkeypatch.setattr("pytest_gpuperf.measure.inventory.MOST_BYTES", size_bytes)

    text = run("compare", was, now, code=1)

    assert "spill added: 680 B" in text
    assert "instructions are not compared: the changed code has more than" in text
    assert "unknown" not in text


def test_a_kernel_that_only_one_build_has_is_shown_with_its_needs(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """Under another name and with other code it is compared with nothing."""
    table = run("compare", *builds, "--target=gfx942", "--format=markdown", code=1)
    text = " ".join(table.replace("|", " ").replace("`", "").split())

    assert "new gfx942 new registers 64, shared memory 4096 B" in text
    assert "gone gfx942 gone registers 64" in text
    assert "is gone and new, and not compared: --fail-on=any fails for it" in text
    same = run("compare", builds[0], builds[0])
    assert "gone" not in same


@pytest.mark.parametrize(
    ("environment", "is_red"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_worse_is_red_on_a_terminal(
    builds: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    *,
    environment: dict[str, str],
    is_red: bool,
) -> None:
    """Nothing else is, and nothing in a log or in JSON."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def printed(form: str, *, terminal: bool) -> str:
        stream = Stream(terminal=terminal)
        monkeypatch.setattr("sys.stdout", stream)
        files = map(str, builds)
        assert cli.main(["compare", *files, f"--format={form}"]) == 1
        return stream.buffer.getvalue().decode()

    plain = printed("text", terminal=False)
    shown = printed("text", terminal=True)

    assert "\x1b" not in plain
    assert shown.count("\x1b[31mWORSE\x1b[0m") == (2 if is_red else 0)
    assert shown.replace("\x1b[31m", "").replace("\x1b[0m", "") == plain
    for form in ("json", "markdown"):
        assert "\x1b" not in printed(form, terminal=True)


@pytest.mark.parametrize("update", [(), ("--update",)])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"context": {"num_cpus": 4}}', "it is a result of Google Benchmark"),
        ("my notes\n", "it is no inventory of kernels, or of another version"),
    ],
)
def test_a_file_that_is_no_inventory_is_kept(
    builds: tuple[Path, Path],
    run: Commands,
    tmp_path: Path,
    text: str,
    message: str,
    update: tuple[str, ...],
) -> None:
    """It is named, and the remedy does not delete it."""
    file = tmp_path / "results.json"
    file.write_text(text)
    said = run("inventory", builds[0], "--baseline", file, *update, code=4)

    assert message in said
    assert "delete" not in said
    assert file.read_text() == text


def test_an_inventory_lists_each_chip(builds: tuple[Path, Path], run: Commands) -> None:
    """Without a baseline it is a summary, and JSON has every kernel."""
    text = run("inventory", builds[1])
    content = json.loads(run("inventory", builds[1], "--format=json"))

    assert "8 kernels" in text
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [
        ["gfx90a", "4"],
        ["gfx942", "4"],
    ]
    assert content["schema"] == SCHEMAS["inventory"]
    assert len(content["kernels"]) == 8


def test_one_chip_is_compared_with_its_own_lines(
    builds: tuple[Path, Path], run: Commands, tmp_path: Path
) -> None:
    """And never written, because the other chips would be lost."""
    file = tmp_path / "kernels.jsonl"
    run("inventory", builds[0], "--baseline", file, "--update")
    before = file.read_bytes()

    text = run(
        "inventory", builds[0], "--baseline", file, "--target=gfx942", "--fail-on=any"
    )
    assert "4 same" in text
    run(
        *("inventory", builds[0], "--baseline", file, "--target=gfx942", "--update"),
        code=2,
    )
    assert file.read_bytes() == before


def test_an_option_without_a_baseline_is_refused(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """Both need one."""
    for option in ("--update", "--fail-on=any"):
        assert "needs a baseline" in run("inventory", builds[0], option, code=2)


def test_links_to_a_library_are_one_library(
    builds: tuple[Path, Path], run: Commands
) -> None:
    """Libraries come with links for their versions, in a folder or named twice."""
    alone = run("inventory", builds[0], "--format=json")
    (builds[0].parent / "lib.so.1").symlink_to("lib.so")

    for named in ([builds[0].parent], [builds[0], builds[0].parent]):
        kernels = json.loads(run("inventory", *named, "--format=json"))["kernels"]
        assert kernels == json.loads(alone)["kernels"]


def test_a_called_function_belongs_to_the_code(run: Commands) -> None:
    """`direct` is the same in both files, and calls a function that is not."""
    tools()
    files = [GOLD / f"referring{name}_sm_80.cubin" for name in ("", "_changed")]
    text = run("compare", *files, "--fail-on=any", code=1)

    assert "same" not in text.splitlines()[-1]


def test_a_chip_is_chosen_among_files_for_several(
    tmp_path: Path, run: Commands
) -> None:
    """Each file of a folder may be for one chip; only a chip of none is a mistake."""
    tools()
    for name in ("axpy_1_sm_90a.cubin", "matmul_64_gfx942.hsaco", "only_ptx.fatbin"):
        (tmp_path / name).write_bytes((GOLD / name).read_bytes())
    every = run("inventory", tmp_path, "--format=json")
    chosen = run("inventory", tmp_path, "--target=gfx942", "--format=json")

    assert "only_ptx.fatbin" in json.loads(every)["remarks"][0]
    assert {k["target"] for k in json.loads(every)["kernels"]} == {"sm_90a", "gfx942"}
    assert {k["target"] for k in json.loads(chosen)["kernels"]} == {"gfx942"}
    assert json.loads(chosen)["remarks"] == []
    assert "has no kernel" in run("inventory", tmp_path, "--target=gfx90a", code=4)


@pytest.mark.parametrize(
    ("name", "moved"), [("", 0), ("data_", 3), ("called_", 2), ("moved_", 2)]
)
def test_other_data_or_called_code_of_amd_moves_a_kernel(
    name: str, moved: int, run: Commands
) -> None:
    """It needs no more of anything, but is not called the same."""
    then, now = GOLD / "referring_gfx90a.hsaco", GOLD / f"referring_{name}gfx90a.hsaco"
    text = run("compare", "--format=json", then, now)

    results = {c["kernel"]: c["result"] for c in json.loads(text)["changes"]}
    results.pop("first", None)  # Only the moved file has it.
    assert [*results.values()].count("moved") == moved
    assert [*results.values()].count("same") == 3 - moved


def test_a_chosen_chip_that_one_file_hides_is_read_from_the_others(
    run: Commands, tmp_path: Path
) -> None:
    """The line below the table names the file; the only file is an error that names it."""
    tools()
    cubin = (GOLD / "kernels_sm_90.cubin").read_bytes()
    invalid = cubin[:4] + b"\t" + cubin[5:]
    other = (GOLD / "kernels_sm_80.cubin").read_bytes()
    folder = tmp_path / "libs"
    folder.mkdir()
    (folder / "good.fatbin").write_bytes(fatbin({80: other, 90: cubin}))
    (folder / "bad.fatbin").write_bytes(fatbin({80: other, 90: invalid}))

    listed = run("inventory", folder, "--target=sm_90")
    compared = run("compare", folder, folder, "--target=sm_90")
    alone = run("inventory", folder / "bad.fatbin", "--target=sm_90", code=4)

    assert "4 kernels" in listed
    assert "4 same" in compared
    for text in (listed, compared, alone):
        words = " ".join(text.split())
        assert f"cuobjdump cannot read sm_90 of {folder / 'bad.fatbin'}: " in words
        assert "gpuperf-binary-" not in words


def test_a_damaged_file_of_a_folder_is_refused(tmp_path: Path, run: Commands) -> None:
    """Its kernels would be gone without a word."""
    whole = (GOLD / "matmul_64_gfx942.hsaco").read_bytes()
    (tmp_path / "a.hsaco").write_bytes(whole)
    (tmp_path / "b.hsaco").write_bytes(whole[: len(whole) // 2])

    assert "b.hsaco" in run("inventory", tmp_path, code=4)


def test_a_conflict_is_mended_as_the_error_says(
    builds: tuple[Path, Path], tmp_path: Path, run: Commands
) -> None:
    """Deleting the file and writing it again is one of the two ways."""
    baseline = tmp_path / "kernels.jsonl"
    update = ("inventory", builds[0], "--baseline", baseline, "--update")
    run(*update)
    head, *lines = baseline.read_text("utf-8").splitlines()
    baseline.write_text("\n".join([head, "<<<<<<< HEAD", *lines]), "utf-8")

    assert "delete it, and write it again" in run(*update, code=4)
    baseline.unlink()
    run(*update)
    run("inventory", builds[0], "--baseline", baseline)


def test_a_first_baseline_has_all_chips(
    builds: tuple[Path, Path], tmp_path: Path, run: Commands
) -> None:
    """A baseline of one chip could never be updated."""
    baseline = tmp_path / "kernels.jsonl"
    arguments = ("--baseline", baseline, "--update", "--target=gfx942")

    assert "--update writes all chips" in run(
        "inventory", builds[0], *arguments, code=2
    )
    assert not baseline.exists()


def test_scalar_spills_are_shown(run: Commands) -> None:
    """30 of them are in the notes of the file."""
    text = run("show", GOLD / "matmul_128_gfx1100.hsaco")

    assert "scalar spills" in text
    assert " 30" in text


@pytest.mark.parametrize(
    "name", [b"bad\xff.cubin", "größe.cubin".encode(), b"a\nb.cubin"]
)
def test_any_file_name_is_read(name: bytes, tmp_path: Path, run: Commands) -> None:
    """A name of bytes that are no text, too."""
    tools()
    file = tmp_path / os.fsdecode(name)
    file.write_bytes((GOLD / "axpy_1_sm_90a.cubin").read_bytes())

    assert "axpy" in run("show", file)
    assert len(json.loads(run("inventory", tmp_path, "--format=json"))["kernels"]) == 1
