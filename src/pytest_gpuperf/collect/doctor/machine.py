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

__all__ = [
    "VERSION_FILE",
    "MachineFacts",
    "cupti_libraries",
    "loading_error",
    "this_machine",
]

VERSION_FILE = "/proc/driver/nvidia/version"  # written by the driver's kernel module
_HEAD_BYTES = 1 << 22  # of a file: /proc/self/maps of a process with torch has 1 MB
_FIRST_NAMESPACE = "pid:[4026531836]"  # Linux, include/linux/proc_ns.h: the host's own
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")  # of Docker, of Podman
_CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")  # Kubernetes; nspawn

_LIBRARY = re.compile(r"libcupti\.so(?:\.(\d+))?")
_WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cuda_cupti/lib")  # from CUDA 13 on; before
_TOOLKIT_FOLDERS = (  # where NVIDIA's packages put them
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

        pid: This process.

        load: Returns why a shared library cannot be loaded; None: it can.

        runner: Asks programs for their version.

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
        """Return a file's text; None: it cannot be read."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_HEAD_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def line(self, path: str) -> str | None:
        """Return a file's first line; None: it cannot be read, or is empty."""
        lines = (self.text(path) or "").strip().splitlines()
        return lines[0].strip() if lines else None

    def field(self, path: str, name: str) -> str | None:
        """Return the text behind `name:` in a file; None: there is none."""
        pattern = rf"^{re.escape(name)}:[ \t]*(\S.*?)\s*$"
        match = re.search(pattern, self.text(path) or "", re.MULTILINE)
        return match and match[1]

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        try:
            return self.at(path).exists()
        except OSError:  # a folder above it may not be entered
            return False

    def paths(self, pattern: str) -> tuple[str, ...]:
        """Return the absolute paths that match a pattern, sorted."""
        paths = self.root.glob(pattern.lstrip("/"))
        return tuple(sorted(f"/{path.relative_to(self.root)}" for path in paths))

    def processes(self) -> dict[str, list[int]]:
        """Return the other processes by their short names (at most 15 letters)."""
        pids: dict[str, list[int]] = {}
        for path in self.paths("/proc/[0-9]*/comm"):
            pid, name = int(path.split("/")[2]), self.line(path)
            if name and pid != self.pid:
                pids.setdefault(name, []).append(pid)
        return pids

    def hidden(self) -> str | None:
        """Return why some processes are hidden; None: none is."""
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
        """Return the sign that this is a container; None: there is none."""
        signs = [path for path in _CONTAINER_FILES if self.exists(path)]
        signs += [name for name in _CONTAINER_VARIABLES if name in self.environment]
        return signs[0] if signs else None

    def variables(self, names: Iterable[str]) -> list[str]:
        """Return the names of the variables that are set and not empty."""
        return [name for name in names if self.environment.get(name)]

    def program(self, name: str) -> str | None:
        """Return a program's path on PATH; None: not found."""
        on_path = self.environment.get("PATH", "").split(os.pathsep)
        for folder in filter(None, on_path):
            path = f"{folder.rstrip('/')}/{name}"
            with contextlib.suppress(OSError):  # a folder that may not be entered
                if self.at(path).is_file() and os.access(self.at(path), os.X_OK):
                    return path
        return None

    def package(self, name: str) -> str | None:
        """Return the version of an installed package; None: it is not installed."""
        folders = [str(self.at(folder)) for folder in self.search]
        distributions = metadata.distributions(name=name, path=folders)
        return next((distribution.version for distribution in distributions), None)

    def masked(self, finding: Finding) -> Finding:
        """Return a finding in which the user's home is written as ~."""
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
    """Return the machine that this process runs on."""
    return MachineFacts(
        root=Path("/"),
        environment=os.environ,
        search=tuple(str(Path(place).absolute()) for place in sys.path),
        pid=os.getpid(),
        load=loading_error,
        runner=ProcessRunner(),
    )


def loading_error(library: str) -> str | None:
    """Return why a shared library cannot be loaded; None: it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def cupti_libraries(machine: MachineFacts) -> dict[str, str | None]:
    """Return every libcupti that a program may load: path and CUDA major version."""
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
    """Return the libcupti in some folders; links to one file count once."""
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
