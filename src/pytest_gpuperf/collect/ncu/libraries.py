"""The shared libraries that a program loads when it starts.

Read from the binaries, for `ldd` fails on scripts and static programs and may run what it
looks at. What a program opens later is not among them: of a Python that is what its
packages bring, and the driver's libraries have the driver's version.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuperf.collect.ncu.key import Digests, Field, Gathered

__all__ = ["library_fields"]

_MAGIC = b"\x7fELF"
_DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")  # man ld.so(8)
_CACHE = Path("/etc/ld.so.cache")
# glibc's dl-cache.h, the format since 2.2: a header, entries, texts
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("=20sII20x")
_CACHE_ENTRY = struct.Struct("=iIIIQ")


class _Binary(NamedTuple):
    """What the dynamic loader reads of a binary."""

    kind: bytes  # class and machine: only a library of the same is taken
    loader: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


def library_fields(
    program: Path,
    *,
    env: Mapping[str, str],
    digests: Digests,
    cache: Path = _CACHE,
) -> Gathered:
    """
    Return the libraries of a program by name, each with the digest of its content.

    Without pyelftools it is not known which ones it loads. Then every library counts,
    by path, size and time, that lies beside the program or in LD_LIBRARY_PATH, and all
    that `ldconfig` knows by the digest of its list; a remark says so.

    Args:
        program: What is started; what is no ELF file has none.

        env: The environment it is started in.

        digests: What digests files.

        cache: The list that `ldconfig` writes.
    """
    try:
        with program.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                return Gathered({})
    except OSError:
        return Gathered({})
    try:
        import elftools.elf.elffile  # noqa: F401 - only asked whether it is there
    except ModuleNotFoundError:
        return _guessed(program, env, digests, cache)
    return Gathered(_Loader(env, digests, cache).libraries(program))


def _guessed(
    program: Path, env: Mapping[str, str], digests: Digests, cache: Path
) -> Gathered:
    """Return every library that a program might load, without reading it."""
    real = program.resolve()
    folders = [real.parent, real.parent.parent / "lib"]
    folders += map(Path, filter(None, env.get("LD_LIBRARY_PATH", "").split(":")))
    found: dict[str, Field] = {"ld.so.cache": digests.of(cache)}
    for folder in folders:
        for path in sorted(folder.glob("*.so*")):
            if path.is_file():
                seen = path.stat()
                found[str(path)] = (seen.st_size, seen.st_mtime_ns)
    remark = (
        f"pyelftools is not installed, so the libraries of {program.name} are told by "
        "size and time, and those in a folder of its own (RPATH) are not seen: "
        'pip install "pytest-gpuperf[ncu]"'
    )
    return Gathered(found, (remark,))


class _Loader:
    """Looks libraries up as ld.so does: RPATH, LD_LIBRARY_PATH, RUNPATH, cache, defaults."""

    def __init__(self, env: Mapping[str, str], digests: Digests, cache: Path) -> None:
        self._digests = digests
        self._named = tuple(filter(None, env.get("LD_LIBRARY_PATH", "").split(":")))
        self._preloaded = env.get("LD_PRELOAD", "").replace(":", " ").split()
        self._listed = _cached(cache)
        self._found: dict[str, Field] = {}

    def libraries(self, program: Path) -> Field:
        """Return the libraries of a program and of its libraries, by name."""
        binary = _read(program)
        if binary is None:
            return {}
        if binary.loader:
            self._add(binary.loader, Path(binary.loader), binary, ())
        self._follow(binary, program, (), self._preloaded)
        return self._found

    def _follow(
        self,
        binary: _Binary,
        path: Path,
        inherited: tuple[str, ...],
        more: Sequence[str] = (),
    ) -> None:
        """Add what a binary needs; `inherited` is the RPATH of those that need it."""
        own = _expanded(binary.rpath, path)
        # an RPATH is not looked at where there is a RUNPATH, and goes on to libraries
        before = () if binary.runpath else (*own, *inherited)
        behind = _expanded(binary.runpath, path)
        for name in (*more, *binary.needed):
            if name in self._found:
                continue
            place = self._place(name, binary, (*before, *self._named, *behind))
            if place is None:
                self._found[name] = "missing"
            else:
                self._add(name, place, binary, (*own, *inherited))

    def _add(
        self, name: str, place: Path, parent: _Binary, inherited: tuple[str, ...]
    ) -> None:
        """Add a library and what it needs."""
        self._found[name] = self._digests.of(place)
        binary = _read(place)
        if binary is not None and binary.kind == parent.kind:
            self._follow(binary, place, inherited)

    def _place(self, name: str, parent: _Binary, folders: Sequence[str]) -> Path | None:
        """Return where a library is found; None: nowhere."""
        for each in self._candidates(name, folders):
            if each.is_file() and _kind(each) == parent.kind:
                return each
        return None

    def _candidates(self, name: str, folders: Sequence[str]) -> Iterator[Path]:
        """Yield the places where a library may be, in the loader's order."""
        if "/" in name:
            yield Path(name)
            return
        for folder in folders:
            yield Path(folder, name)
        yield from map(Path, self._listed.get(name, ()))
        for folder in _DEFAULT_FOLDERS:
            yield Path(folder, name)


def _expanded(folders: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the folders of an RPATH or RUNPATH as they are on this disk."""
    origin = str(path.resolve().parent)
    names = {"ORIGIN": origin, "LIB": "lib64", "PLATFORM": os.uname().machine}
    done = []
    for folder in folders:
        text = folder
        for name, value in names.items():
            text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
        done.append(text)
    return tuple(done)


def _read(path: Path) -> _Binary | None:
    """Return what the loader reads of a file; None: it is no whole ELF file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    found: dict[str, list[str]] = {"NEEDED": [], "RPATH": [], "RUNPATH": []}
    loader = ""
    try:
        with path.open("rb") as stream:
            segments: Iterator[Any] = ELFFile(stream).iter_segments()
            for segment in segments:
                if segment["p_type"] == "PT_INTERP":
                    loader = segment.get_interp_name()
                elif segment["p_type"] == "PT_DYNAMIC":
                    for tag in segment.iter_tags():
                        _collect(tag, found)
    except (ELFError, OSError, ValueError):
        return None
    return _Binary(
        kind=_kind(path),
        loader=loader,
        needed=tuple(found["NEEDED"]),
        rpath=tuple(found["RPATH"]),
        runpath=tuple(found["RUNPATH"]),
    )


def _collect(tag: Any, found: Mapping[str, list[str]]) -> None:  # noqa: ANN401 - pyelftools has no types
    """Add what an entry of the dynamic section says."""
    name = str(tag.entry.d_tag).removeprefix("DT_")
    if name in found:
        text: str = getattr(tag, name.lower())
        found[name] += [text] if name == "NEEDED" else text.split(":")


def _kind(path: Path) -> bytes:
    """Return class and machine of an ELF file; b"" of any other."""
    try:
        with path.open("rb") as stream:
            head = stream.read(20)
    except OSError:
        return b""
    return head[4:6] + head[18:20] if head.startswith(_MAGIC) else b""


def _cached(cache: Path) -> dict[str, list[str]]:
    """Return what `ldconfig` knows: the paths of each name, best first."""
    try:
        content = cache.read_bytes()
    except OSError:
        return {}
    start = content.find(_CACHE_MAGIC)  # an older table may stand before it
    if start < 0:
        return {}
    table = memoryview(content)[start:]
    found: dict[str, list[str]] = {}
    try:
        _, count, _ = _CACHE_HEADER.unpack_from(table)
        for place in range(count):
            offset = _CACHE_HEADER.size + place * _CACHE_ENTRY.size
            _, name, path, _, _ = _CACHE_ENTRY.unpack_from(table, offset)
            found.setdefault(_text(content, start + name), []).append(
                _text(content, start + path)
            )
    except (struct.error, ValueError):  # cut off
        return found
    return found


def _text(content: bytes, start: int) -> str:
    """Return a text that ends with a zero byte."""
    return os.fsdecode(content[start : content.index(b"\0", start)])
