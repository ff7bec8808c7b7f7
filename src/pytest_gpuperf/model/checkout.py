"""The key of a test: what its stored values are of, the same in every checkout."""

from __future__ import annotations

import re
from functools import lru_cache

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["ROOT", "Checkout", "is_of"]

ROOT = "{root}"  # stands in keys for the folder of the checkout
# a path goes on with these, so what stands between two of them is a part of another path;
# a minus joins the parameters of an id, and may stand before a path
_BEFORE = r"(?:(?<=file://)|(?<![\w./~\\]))"
_BEHIND = r"(?=/|\Z|[^\w.~+@%#-])"


class Checkout(Frozen, frozen=True, kw_only=True):
    """
    The folder of a project, which keys of tests are relative to.

    Attributes:
        root: The folder, with slashes and without links; "": unknown.

        spellings: How paths of the folder may be written, through links or escaped.

        rootdir: pytest's root folder, relative to it; "": the folder itself; None: it lies
            elsewhere, so that the id of a test does not tell its key.
    """

    root: str
    spellings: tuple[str, ...] = ()
    rootdir: str | None = ""

    def relative(self, path: str) -> str | None:
        """Return a path relative to the folder, or None if it lies elsewhere."""
        for spelling in (self.root, *self.spellings):
            if spelling and path.startswith(f"{spelling.rstrip('/')}/"):
                return path[len(spelling.rstrip("/")) + 1 :]
        return None

    def portable(self, text: str) -> str:
        """Return a text in which the folder is one token, wherever a path begins with it."""
        if "/" not in text or len(self.root) <= 1:
            return text
        return _pattern((self.root, *self.spellings)).sub(ROOT, text)

    def local(self, text: str) -> str:
        """Return a portable text with the folder of this checkout."""
        return text.replace(ROOT, self.root) if self.root else text

    def key_of(self, node_id: str) -> str:
        """
        Return the key of a test by its id alone.

        Args:
            node_id: The id, whose file is relative to pytest's root folder.
        """
        module, colons, name = node_id.partition("::")
        if self.rootdir:
            module = f"{self.rootdir}/{module}"
        return f"{module}{colons}{self.portable(name)}"

    def id_of(self, key: str) -> str:
        """Return a key as pytest would show the test here."""
        module, colons, name = key.partition("::")
        if self.rootdir:
            module = module.removeprefix(f"{self.rootdir}/")
        return f"{module}{colons}{self.local(name)}"


@lru_cache(maxsize=8)  # one of a run, and those of a comparison
def _pattern(spellings: tuple[str, ...]) -> re.Pattern[str]:
    # the longest first: one may be the beginning of another
    texts = sorted(set(filter(None, spellings)), key=len, reverse=True)
    return re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, texts))}){_BEHIND}")


def is_of(test_id: str, name: str) -> bool:
    """Return whether a name as pytest takes it selects a test, or a repeat of it."""
    ends = ("::", "[", "#") if "::" in name else ("::", "/")
    return test_id == name or test_id.startswith(tuple(name + end for end in ends))
