"""Names of kernels as a reader writes them; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CollectError

__all__ = ["demangled_names"]

_TOOLS = ("cu++filt", "c++filt")
_TIMEOUT_S = 20.0


def demangled_names(
    names: Sequence[str], *, runner: Runner, tools: Sequence[str] = _TOOLS
) -> Mapping[str, str]:
    """
    Return readable names, as far as a demangler is there.

    Args:
        names: As the binary has them.

        runner: Starts the demangler.

        tools: Programs to try, best first; the first on PATH is used.

    Returns:
        The readable name by the mangled one; empty where no demangler is on PATH or
        the one that is there fails: a name is no reason to lose a measurement.
    """
    distinct = sorted(set(names))
    tool = next((found for each in tools if (found := shutil.which(each))), None)
    if tool is None or not distinct:
        return {}
    text = "\n".join(distinct) + "\n"
    try:
        finished = runner.run([tool], timeout_s=_TIMEOUT_S, stdin=text.encode())
    except CollectError:
        return {}
    lines = finished.stdout.decode("utf-8", "replace").splitlines()
    if finished.exit_code or len(lines) != len(distinct):
        return {}
    return dict(zip(distinct, lines, strict=True))
