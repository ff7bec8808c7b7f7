"""The command line of a run, from which its child processes get theirs."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.collect.launcher import PYTEST, Launcher
from pytest_gpuperf.model.frozen import Frozen


class CommandLine(Frozen, frozen=True, kw_only=True):
    """
    The command line of the parent.

    Attributes:
        args: The arguments, as passed to pytest.

        folder: The start folder.

        variable: The environment variable with the task file of a child.

        launcher: The program that started pytest.

        others: The arguments without this plugin's options.

        paths: The arguments that name tests.

        plugins: The active plugins that need extra arguments, among xdist,
            cacheprovider, pytest_cov and randomly.

        own_basetemp: True if --basetemp was given. A child must not clear that folder.

        fresh_caches: True if a confirming child gets empty compilation and autotuning
            caches. Otherwise all processes would repeat one choice, which may be
            chance.
    """

    args: tuple[str, ...]
    folder: str
    variable: str
    launcher: Launcher = PYTEST
    others: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    plugins: frozenset[str] = frozenset()
    own_basetemp: bool = False
    fresh_caches: bool = False

    def for_child(self, scratch: str) -> tuple[str, ...]:
        """Return the command line of a child that writes its files to `scratch`."""
        extra: list[str] = []
        if "xdist" in self.plugins:
            extra.append("-n0")
        if "cacheprovider" in self.plugins:
            extra += ["-o", f"cache_dir={scratch}/cache"]
        if self.own_basetemp:
            extra.append(f"--basetemp={scratch}/base")
        # The last -n wins. After "--", pytest would take options for paths.
        end = self.args.index("--") if "--" in self.args else len(self.args)
        args = (*self.args[:end], *extra, *self.args[end:])
        return (*self.launcher.command(scratch), *args)

    def launch(self, argv: Sequence[str]) -> Launch | None:
        """
        Return the start that a child must find, or None if pytest starts the child directly.
        """
        if self.launcher.is_pytest:
            return None
        words = argv[len(self.launcher.command("")) :]
        return Launch(argv=tuple(argv[1:]), args=(*self.launcher.added, *words))


class Launch(Frozen, frozen=True, kw_only=True):
    """
    The expected start of a child that is not started by pytest directly.

    Attributes:
        argv: The command line, without the interpreter.

        args: The arguments that must reach pytest.
    """

    argv: tuple[str, ...]
    args: tuple[str, ...]
