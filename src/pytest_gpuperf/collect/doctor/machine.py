"""The machine that the doctor examines: files, environment, processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path

from pytest_gpuperf.collect.binary.tools import Tool, find_tool
from pytest_gpuperf.collect.runner import ProcessRunner, Runner
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Finding

# Written by the driver's kernel module.
VERSION_FILE = "/proc/driver/nvidia/version"
# Limit for one file. /proc/self/maps of a process with torch has 1 MB.
_HEAD_BYTES = 1 << 22
# Linux, include/linux/proc_ns.h: the PID namespace of the host.
_FIRST_NAMESPACE = "pid:[4026531836]"
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")  # Docker, Podman.
_CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")  # Kubernetes, nspawn.

_LIBRARY = re.compile(r"libcupti\.so(?:\.(\d+))?")
# The folders of wheels from CUDA 13 on, and of older wheels.
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_cupti/lib")
# The folders of NVIDIA's toolkit packages.
_TOOLKIT_FOLDERS = (
    "/usr/local/cuda*/extras/CUPTI/lib64",
    "/usr/local/cuda*/targets/*/lib",
)


class MachineFacts(Frozen, frozen=True, kw_only=True):
    """
    Everything that the doctor reads, except NVML.

    Attributes:
        root: The folder of `/proc`, `/sys`, `/dev` and installed software.

        environment: The environment variables.

        search: Folders in which Python finds packages, as absolute paths.

        pid: The id of this process.

        load: Returns why a shared library cannot be loaded, or None if it can.

        runner: Runs programs to read their version.

        find: Finds a tool that reads binaries, as the `binary` collector does.
    """

    root: Path
    environment: Mapping[str, str]
    search: tuple[str, ...]
    pid: int
    load: Callable[[str], str | None]
    runner: Runner
    find: Callable[[Tool], str] = find_tool

    def at(self, path: str | os.PathLike[str]) -> Path:
        """Return an absolute path below the root."""
        return self.root / os.fspath(path).lstrip("/")

    def text(self, path: str) -> str | None:
        """Return the text of a file (the first 4 MiB), or None if unreadable."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_HEAD_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def line(self, path: str) -> str | None:
        """Return the first line of a file, or None if the file is unreadable or empty."""
        lines = (self.text(path) or "").strip().splitlines()
        return lines[0].strip() if lines else None

    def field(self, path: str, name: str) -> str | None:
        """Return the text after `name:` in a file, or None if there is no such field."""
        pattern = rf"^{re.escape(name)}:[ \t]*(\S.*?)\s*$"
        match = re.search(pattern, self.text(path) or "", re.MULTILINE)
        return match and match[1]

    def exists(self, path: str) -> bool:
        """Return True if a file or folder exists."""
        try:
            return self.at(path).exists()
        except OSError:  # A parent folder may not be entered.
            return False

    def paths(self, pattern: str) -> tuple[str, ...]:
        """Return the absolute paths that match a pattern, sorted."""
        paths = self.root.glob(pattern.lstrip("/"))
        return tuple(sorted(f"/{path.relative_to(self.root)}" for path in paths))

    def processes(self) -> dict[str, list[int]]:
        """Return the ids of other processes by short name (at most 15 characters)."""
        pids: dict[str, list[int]] = {}
        for path in self.paths("/proc/[0-9]*/comm"):
            pid, name = int(path.split("/")[2]), self.line(path)
            if name and pid != self.pid:
                pids.setdefault(name, []).append(pid)
        return pids

    def hidden(self) -> str | None:
        """Return why some processes are hidden, or None if all are visible."""
        try:
            namespace = self.at("/proc/self/ns/pid").readlink().name
        except OSError:
            return "the processes of this machine cannot be listed"
        if namespace != _FIRST_NAMESPACE:
            return "this is a container: the host's processes are hidden"
        if self.line("/proc/1/comm") is None:
            return "/proc hides the processes of other users"
        return None

    def container(self) -> str | None:
        """Return the sign of a container, or None outside of a container."""
        signs = [path for path in _CONTAINER_FILES if self.exists(path)]
        signs += [name for name in _CONTAINER_VARIABLES if name in self.environment]
        return signs[0] if signs else None

    def variables(self, names: Iterable[str]) -> list[str]:
        """Return the names of variables that are set and not empty."""
        return [name for name in names if self.environment.get(name)]

    def program(self, name: str) -> str | None:
        """Return the path of a program on PATH, or None if not found."""
        on_path = self.environment.get("PATH", "").split(os.pathsep)
        for folder in filter(None, on_path):
            path = f"{folder.rstrip('/')}/{name}"
            # Some folders may not be entered.
            with contextlib.suppress(OSError):
                if self.at(path).is_file() and os.access(self.at(path), os.X_OK):
                    return path
        return None

    def package(self, name: str) -> str | None:
        """Return the version of an installed package, or None if not installed."""
        folders = [str(self.at(folder)) for folder in self.search]
        distributions = metadata.distributions(name=name, path=folders)
        return next((distribution.version for distribution in distributions), None)

    def masked(self, finding: Finding) -> Finding:
        """Return a copy of a finding with the user's home written as ~."""
        home = self.environment.get("HOME", "").rstrip("/")
        if not home:
            return finding
        hidden = re.compile(rf"{re.escape(home)}(?![^/\s:,;)'\"])")

        def hide(text: str) -> str:
            return hidden.sub("~", text)

        return replace(
            finding,
            cause=hide(finding.cause),
            evidence=tuple(map(hide, finding.evidence)),
            remedy=finding.remedy and hide(finding.remedy),
        )


def this_machine() -> MachineFacts:
    """Return the facts of the current machine."""
    return MachineFacts(
        root=Path("/"),
        environment=os.environ,
        search=tuple(str(Path(place).absolute()) for place in sys.path),
        pid=os.getpid(),
        load=loading_error,
        runner=ProcessRunner(),
    )


def loading_error(library: str) -> str | None:
    """Try to load a shared library, and return the error text or None."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def cupti_libraries(machine: MachineFacts) -> dict[str, str | None]:
    """
    Return the CUDA major version of every libcupti that a program may load, by path.

    Toolkit folders are searched only if there is no other libcupti. The version is None
    if the name of the file does not show it.
    """
    wheels = [
        folder
        for place in machine.search
        for pattern in _WHEEL_FOLDERS
        for folder in machine.paths(f"{place}/{pattern}")
    ]
    variable = machine.environment.get
    homes = [home for name in ("CUDA_HOME", "CUDA_PATH") if (home := variable(name))]
    named = [
        *variable("LD_LIBRARY_PATH", "").split(":"),
        *(f"{home}/extras/CUPTI/lib64" for home in homes),
        *(f"{prefix}/lib" for prefix in [variable("CONDA_PREFIX")] if prefix),
    ]
    return _in_folders(machine, [*wheels, *named]) or _in_folders(
        machine,
        [path for pattern in _TOOLKIT_FOLDERS for path in machine.paths(pattern)],
    )


def _in_folders(machine: MachineFacts, folders: list[str]) -> dict[str, str | None]:
    """Return the libcupti libraries of several folders. Links to the same file count once."""
    libraries: dict[str, tuple[str, str | None]] = {}
    for folder in filter(None, folders):
        for path in sorted(machine.at(folder).glob("libcupti.so*")):
            name = _LIBRARY.match(path.name)
            if name is None:
                continue
            real = str(path.resolve())
            major = name[1] if name[1] and len(name[1]) < len("2025") else None
            shown, known_major = libraries.get(real, (f"{folder}/{path.name}", None))
            libraries[real] = (shown, known_major or major)
    return dict(libraries.values())
