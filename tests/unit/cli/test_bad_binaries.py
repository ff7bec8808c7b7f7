"""The commands of binaries with files that are damaged, empty, hostile or of the future."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from fakes.binaries import fatbin
from fakes.code_object import bundle, code_object, elf, kernel, program
from pytest_gpuperf import cli
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool
from pytest_gpuperf.errors import CollectError

GOLD = Path(__file__).parents[2] / "gold" / "binary"
CUBIN = (GOLD / "kernels_sm_90.cubin").read_bytes()
HSACO = (GOLD / "matmul_64_gfx942.hsaco").read_bytes()
FATBIN = (GOLD / "kernels.fatbin").read_bytes()
COMMANDS = ("show", "inventory", "compare")
# Places in the header of a cubin, and in an entry of its table of sections.
TABLE, FLAGS, ENTRY_BYTES, COUNT = 40, 48, 58, 60
KIND, START, SIZE, LINK = 4, 24, 32, 40
CUTS = 200
HOSTILE = "k\x1b[31m|<b>x</b>\n`" + "A" * 10_000


def changed(place: int, form: str, number: int) -> bytes:
    """Return a cubin with another number at a place."""
    content = bytearray(CUBIN)
    struct.pack_into(form, content, place, number)
    return bytes(content)


def with_section(kind: int, place: int, form: str, number: int) -> bytes:
    """Return a cubin of which the header of a section of some kind lies."""
    (table,) = struct.unpack_from("<Q", CUBIN, TABLE)
    (count,) = struct.unpack_from("<H", CUBIN, COUNT)
    for index in range(count):
        start = table + 64 * index
        if struct.unpack_from("<I", CUBIN, start + KIND) == (kind,):
            return changed(start + place, form, number)
    raise AssertionError(kind)


def stripped() -> bytes:
    """Return a cubin whose table of symbols was removed."""
    return with_section(2, KIND, "<I", 0)


def printed(
    capture: pytest.CaptureFixture[bytes], command: str, *paths: Path
) -> tuple[int, str]:
    """Return the exit code of a command, and what it prints of one file or both."""
    files = paths if command == "compare" else paths[:1]
    code = cli.main([command, *map(str, files)])
    out, err = capture.readouterr()
    return code, (out + err).decode()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "reason", "remedy"),
    [
        pytest.param(b"", "empty", "compile or copy it again", id="empty"),
        pytest.param(stripped(), "is stripped", "without strip", id="stripped"),
        pytest.param(CUBIN[:50], "cut off", "compile or copy it again", id="head"),
        pytest.param(
            changed(COUNT, "<H", 65_535), "cut off", "compile or copy", id="count"
        ),
        pytest.param(
            changed(ENTRY_BYTES, "<H", 1), "too small", "compile or copy", id="entries"
        ),
        pytest.param(
            with_section(2, SIZE, "<Q", 2**63), "cut off", "compile or copy", id="size"
        ),
        pytest.param(
            with_section(2, START, "<Q", 2**62),
            "cut off",
            "compile or copy",
            id="start",
        ),
        pytest.param(
            with_section(2, LINK, "<I", 60_000), "damaged", "compile or copy", id="link"
        ),
        pytest.param(
            with_section(4, SIZE, "<Q", 25), "damaged", "compile or copy", id="rela"
        ),
        pytest.param(
            with_section(2, 0, "<I", 2**31), "does not end", "compile or", id="name"
        ),
        pytest.param(
            elf({".note": (7, b"")}, machine=224),
            "no note of its kernels",
            "compile or copy it again",
            id="no-note",
        ),
        pytest.param(b".version 9.0\n.target sm_90\n", "PTX", "ptxas -arch", id="ptx"),
    ],
)
def test_a_bad_file_is_refused_with_a_remedy(
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    command: str,
    content: bytes,
    reason: str,
    remedy: str,
) -> None:
    """The error names the file, and no tool has to be installed to read it."""
    path = tmp_path / "bad.cubin"
    path.write_bytes(content)

    code, text = printed(capfdbinary, command, path, GOLD / "kernels_sm_90.cubin")

    assert code == 4
    assert "bad.cubin" in text
    assert reason in text
    assert remedy in text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("whole", [CUBIN, HSACO], ids=["cubin", "hsaco"])
def test_a_file_that_is_cut_anywhere_is_refused(
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    command: str,
    whole: bytes,
) -> None:
    """Its kernels would be fewer, or others, without a word."""
    path = tmp_path / "cut.bin"
    for number in range(CUTS):
        path.write_bytes(whole[: len(whole) * number // CUTS])

        code, text = printed(capfdbinary, command, path, GOLD / "kernels.fatbin")

        assert code == 4, (number, text)
        assert "cut.bin" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cut_fatbin_is_not_called_free_of_code(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Its header states how long it is."""
    _need_tools()
    path = tmp_path / "cut.fatbin"
    # All 200 places were tried once. Each starts a process.
    for number in range(1, 10):
        path.write_bytes(FATBIN[: len(FATBIN) * number // 10])

        code, text = printed(capfdbinary, command, path, path)

        assert code == 4, (number, text)
        assert "cut off or damaged" in text


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_name_controls_nothing(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str, form: str
) -> None:
    """No terminal, no cell of a table and no page; JSON has it whole."""
    names = [HOSTILE, "ok\u202e=1+1", "<script>alert(1)</script>"]
    path = tmp_path / "evil.hsaco"
    path.write_bytes(code_object([kernel(name) for name in names]))
    other = tmp_path / "other.hsaco"
    other.write_bytes(code_object([kernel("k")]))
    files = (path, other) if command == "compare" else (path,)

    assert cli.main([command, *map(str, files), f"--format={form}"]) == 0

    text = capfdbinary.readouterr().out.decode()
    assert text.replace("\n", "").isprintable()
    if form == "json":
        assert HOSTILE in json.dumps(json.loads(text), ensure_ascii=False) or (
            json.dumps(HOSTILE)[1:-1] in json.dumps(json.loads(text))
        )
    else:
        assert max(map(len, text.splitlines())) < 600
    if form == "markdown" and command != "inventory":
        assert "`<script>alert(1)</script>`" in text
        assert "\\|<b>" in text or "|<b>" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_equal_names_of_two_units_are_two_kernels(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Each is counted, and compared with its own kind."""
    units = [code_object([kernel("k", vgpr_count=n)]) for n in (8, 16)]
    path = tmp_path / "lib.so"
    path.write_bytes(program(*(bundle({"gfx942": unit}) for unit in units)))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("2 same" if command == "compare" else "2 kernels") in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_chip_of_the_future_has_resources(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Those that the file states; its instructions are unknown, with the tool's reason."""
    _need_tools()
    path = tmp_path / "future.cubin"
    (flags,) = struct.unpack_from("<I", CUBIN, FLAGS)
    path.write_bytes(changed(FLAGS, "<I", flags & ~0xFF00 | 0xC8 << 8))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("4 same" if command == "compare" else "sm_200") in text
    if command == "show":
        assert "instructions and spills n/a: nvdisasm cannot read sm_200: " in text


def of_the_future(cubin: bytes) -> bytes:
    """Return a cubin for a chip that no tool knows: sm_250."""
    content = bytearray(cubin)
    (flags,) = struct.unpack_from("<I", content, FLAGS)
    struct.pack_into("<I", content, FLAGS, flags & ~0xFF00 | 250 << 8)
    return bytes(content)


def test_a_chip_of_the_future_is_named_and_the_others_are_read(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """Its resources are in the file; its instructions are unknown, and said to be."""
    _need_tools()
    paths = [tmp_path / "was.fatbin", tmp_path / "now.fatbin"]
    for path, older, newer in zip(
        paths, ("referring", "referring_changed"), ("axpy_0", "axpy_1"), strict=True
    ):
        known = (GOLD / f"{older}_sm_80.cubin").read_bytes()
        unknown = of_the_future((GOLD / f"{newer}_sm_90a.cubin").read_bytes())
        path.write_bytes(fatbin({80: known, 250: unknown}))

    shown, listed, compared = (
        (code, " ".join(text.split()))
        for command in COMMANDS
        for code, text in (printed(capfdbinary, command, *paths),)
    )

    assert (shown[0], listed[0]) == (0, 0)
    assert "instructions n/a for sm_250a: nvdisasm cannot read sm_250a: " in shown[1]
    assert "pip install -U nvidia-cuda-nvdisasm" in shown[1]
    assert "fatal" not in shown[1]
    assert shown[1].count("Cannot decode") == 1
    assert "global_load" in shown[1]
    assert all(chip in listed[1] for chip in ("sm_80", "sm_250a"))
    assert "instructions of sm_250a are not compared: nvdisasm" in compared[1]
    assert "update it (pip install -U nvidia-cuda-nvdisasm)" in compared[1]
    assert "instructions of sm_80" not in compared[1]
    assert "registers 26 -> 30" in compared[1]


def test_code_that_is_not_read_is_neither_gone_nor_new(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """Nor is it dropped from a baseline: nothing is known about it."""
    _need_tools()
    whole, part = tmp_path / "whole.fatbin", tmp_path / "part.fatbin"
    baseline = tmp_path / "kernels.jsonl"
    other = (GOLD / "kernels_sm_80.cubin").read_bytes()
    whole.write_bytes(fatbin({80: other, 90: CUBIN}))
    part.write_bytes(fatbin({80: other, 90: CUBIN[:4] + b"\t" + CUBIN[5:]}))
    update = ["inventory", str(part), f"--baseline={baseline}", "--update"]

    for files in ((whole, part), (part, whole)):
        code, text = printed(capfdbinary, "compare", *files)
        assert code == 0
        assert "4 not read, 4 same" in text
        assert "sm_90 is not read: this cuobjdump finds an invalid ELF" in text
        assert cli.main(["compare", *map(str, files), "--fail-on=any"]) == 1
    cli.main(["inventory", str(whole), f"--baseline={baseline}", "--update"])
    before = baseline.read_bytes()
    capfdbinary.readouterr()
    assert cli.main(update) == 0

    assert baseline.read_bytes() == before
    text = capfdbinary.readouterr().out.decode()
    assert "4 lines of kernels that are not read stay in it" in text


# By the number of a kind: what is said of it.
OTHER_KINDS = {8: "LTO code for sm_90", 64: "code of an unknown kind (64) for sm_90"}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_code_of_another_kind_is_not_gone(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, kind: int
) -> None:
    """cuobjdump skips it and ends with 0, as if the chip were gone."""
    _need_tools()
    whole, part = tmp_path / "whole", tmp_path / "part"
    cubins = {80: (GOLD / "kernels_sm_80.cubin").read_bytes(), 90: CUBIN}
    whole.write_bytes(fatbin(cubins))
    part.write_bytes(fatbin(cubins, {90: kind}))

    for files in ((whole, part), (part, whole)):
        code, text = printed(capfdbinary, "compare", *files)
        assert code == 0
        assert "4 not read, 4 same" in text
        assert OTHER_KINDS[kind] in text
    refused = cli.main(["inventory", str(part), "--target=sm_90"])

    assert refused == 4
    assert OTHER_KINDS[kind].encode() in capfdbinary.readouterr().err


@pytest.mark.parametrize("target", [(), ("--target=sm_90",)], ids=["all", "one"])
def test_a_part_of_another_kind_is_named_beside_the_others_for_its_chip(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, target: tuple[str, ...]
) -> None:
    """Also if the chip was chosen, and has other code that is read."""
    _need_tools()
    path = tmp_path / "part.fatbin"
    path.write_bytes(fatbin({90: CUBIN}) + fatbin({90: CUBIN}, {90: 64}))

    code = cli.main(["inventory", str(path), *target])

    text = capfdbinary.readouterr().out.decode()
    assert code == 0
    assert "4 kernels" in text
    assert OTHER_KINDS[64] in text


def test_a_fatbin_that_lies_about_a_chip_lacks_no_code(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """The cubin says which chip it is for."""
    _need_tools()
    path = tmp_path / "lies.fatbin"
    path.write_bytes(fatbin({250: CUBIN}))

    code, text = printed(capfdbinary, "inventory", path)

    assert code == 0
    assert "sm_90 " in text
    assert "not" not in text


def test_a_file_without_a_cubin_says_what_it_has(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """In a folder its kernels are not read, and not gone."""
    _need_tools()
    was, now = tmp_path / "was", tmp_path / "now"
    cubins = {80: (GOLD / "kernels_sm_80.cubin").read_bytes()}
    for folder, kinds in ((was, {}), (now, {80: 64})):
        folder.mkdir()
        (folder / "a.cubin").write_bytes(CUBIN)
        (folder / "b.fatbin").write_bytes(fatbin(cubins, kinds))

    code, text = printed(capfdbinary, "inventory", now / "b.fatbin")
    assert code == 4
    assert "has no kernel compiled for a chip: code of an unknown kind (64)" in text
    code, text = printed(capfdbinary, "compare", was, now)

    assert code == 0
    assert "4 not read, 4 same" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fatbin_whose_entry_is_too_long_is_refused(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """The code behind it is not found, and cuobjdump ends with 0."""
    _need_tools()
    path = tmp_path / "lies.fatbin"
    path.write_bytes(FATBIN[:24] + struct.pack("<Q", 2**60) + FATBIN[32:])

    code, text = printed(capfdbinary, command, path, path)

    assert code == 4
    assert "lies.fatbin: is cut off or damaged" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_code_of_another_machine_in_a_fatbin_hides_no_other(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """cuobjdump stops at it; the other chips are read on their own."""
    _need_tools()
    path = tmp_path / "amd.fatbin"
    path.write_bytes(fatbin({90: CUBIN, 80: code_object([kernel("k")])}))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("4 same" if command == "compare" else "4 kernels") in text
    assert "sm_80 is not read" in text


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name", [b"s\nale", b"s\x1b[1m", b"|<b>|", b"`````", b"\xff\xfe\xe9\x80\xc3"]
)
def test_a_hostile_name_of_nvidias_code_hides_no_kernel(
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    command: str,
    name: bytes,
) -> None:
    """cuobjdump prints it as it is, a line break in it, too."""
    _need_tools()
    path = tmp_path / "evil.cubin"
    path.write_bytes(CUBIN.replace(b"scale", name))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("4 same" if command == "compare" else "4 kernels") in text
    assert "_Z" not in text  # The others are demangled.
    assert text.replace("\n", "").isprintable()


def both_vendors(fatbins: bytes) -> bytes:
    """Return a library with code for gfx942, and with fatbins."""
    bundles = bundle({"gfx942": code_object([kernel("k")])})
    held = {".hip_fatbin": (1, bundles), ".nv_fatbin": (1, fatbins)}
    return elf(held, machine=62)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_code_of_both_vendors_is_read(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """From sections of a library, each chip on its own, and one of them if chosen."""
    _need_tools()
    path = tmp_path / "both.so"
    path.write_bytes(both_vendors(FATBIN))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    if command == "compare":
        assert "9 same" in text
        return
    assert "9 kernels" in text
    assert all(chip in text for chip in ("sm_80", "sm_90a", "gfx942"))
    for chip, count in (("gfx942", "1 kernel"), ("sm_80", "4 kernels")):
        assert cli.main([command, str(path), f"--target={chip}"]) == 0
        assert f"{count}\n" in capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bundle_with_code_of_both_vendors_is_read(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """clang puts the code of OpenMP for all chips into one."""
    _need_tools()
    path = tmp_path / "omp.bundle"
    content = bundle({"gfx942": code_object([kernel("k")]), "sm_90": CUBIN})
    path.write_bytes(content)

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("5 same" if command == "compare" else "5 kernels") in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_vendor_without_a_kernel_is_named(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """PTX is no code for a chip; the other vendor's kernels are read."""
    _need_tools()
    path = tmp_path / "both.so"
    path.write_bytes(both_vendors((GOLD / "only_ptx.fatbin").read_bytes()))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert ("1 same" if command == "compare" else "gfx942") in text
    assert "code for NVIDIA's GPUs: has no kernel compiled for a chip" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_code_of_one_vendor_is_refused(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Half of a library must not look as if it were all."""
    _need_tools()
    path = tmp_path / "both.so"
    path.write_bytes(both_vendors(FATBIN[:3000]))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 4
    assert "both.so: is cut off or damaged" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_one_unknown_chip_of_twenty_hides_no_other(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Its kernels are listed as the notes state them."""
    chips = [*(f"gfx{900 + n}" for n in range(19)), "gfx9999"]
    path = tmp_path / "chips.hsaco"
    path.write_bytes(bundle({chip: code_object([kernel()], chip) for chip in chips}))

    code, text = printed(capfdbinary, command, path, path)

    assert code == 0
    assert "gfx9999" in text or "20 same" in text


@pytest.mark.parametrize("command", ["show", "compare"])
def test_the_occupancy_of_an_unknown_chip_is_said_to_be_unknown(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, command: str
) -> None:
    """Beside one that is known, which is shown and compared."""
    path = tmp_path / "chips.hsaco"
    codes = {chip: code_object([kernel()], chip) for chip in ("gfx90a", "gfx9999")}
    path.write_bytes(bundle(codes))
    files = (path, path) if command == "compare" else (path,)

    assert cli.main([command, *map(str, files), "--block=256"]) == 0

    text = capfdbinary.readouterr().out.decode()
    assert "occupancy n/a for gfx9999: its limits are not known here" in text


@pytest.mark.parametrize("threads", ["0", "1025", "5000", "-1", "x"])
@pytest.mark.parametrize("command", ["show", "compare"])
def test_a_block_that_no_chip_runs_is_refused(
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    command: str,
    threads: str,
) -> None:
    """Its occupancy would be shown as 0 %."""
    path = tmp_path / "k.hsaco"
    path.write_bytes(HSACO)

    with pytest.raises(SystemExit) as ended:
        cli.main([command, str(path), f"--block={threads}"])

    assert ended.value.code == 2
    assert (
        "is not a whole number from 1 to 1024" in capfdbinary.readouterr().err.decode()
    )


def _need_tools() -> None:
    try:
        find_tool(CUOBJDUMP)
        find_tool(NVDISASM)
    except CollectError as error:
        pytest.skip(str(error))
