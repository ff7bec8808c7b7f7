"""Where and when a run was made."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.mistakes import finite

__all__ = ["Environment", "Session"]


class Environment(Frozen, frozen=True, kw_only=True):
    """
    The machine and the software of one process; an allow-list, never os.environ.

    Attributes:
        cpu_model: The processor's name; None where the system does not say.

        core_count: Logical cores that this process may use.

        python_minor: "3.12".

        platform: "linux", "win32", "darwin".

        versions: Version by package name, of the packages that change speed.
    """

    cpu_model: str | None
    core_count: int | None
    python_minor: str
    platform: str
    versions: Mapping[str, str] = {}


class Session(Frozen, frozen=True, kw_only=True):
    """
    One pytest start on one host: the unit of evidence.

    Attributes:
        id: A name that no other session has.

        started_unix_s: When it began, since the epoch [s].

        host: A short hash of host and boot; no host name is kept.

        commit: The revision of the project; None outside a repository.

        dirty: Whether the working tree differed from `commit`; None: unknown.
    """

    id: str
    started_unix_s: float
    host: str
    commit: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("session.started_unix_s", self.started_unix_s)
