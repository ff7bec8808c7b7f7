"""Keys of tests. A key identifies stored values of a test and is the same in every
checkout.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pytest_gpuperf.model.frozen import Frozen

ROOT = "{root}"  # Replaces the folder of the checkout in keys.
# These characters continue a path, so a match between two of them is part of another
# path. A minus joins the parameters of an id and may precede a path.
_BEFORE = r"(?:(?<=file://)|(?<![\w./~\\]))"
_BEHIND = r"(?=/|\Z|[^\w.~+@%#-])"


class Checkout(Frozen, frozen=True, kw_only=True):
    """
    The folder of a project. Keys of tests are relative to this folder.

    Attributes:
        root: The folder, with slashes and without links, or "" if unknown.

        spellings: Other spellings of the folder's path, through links or escaped.

        rootdir: pytest's root folder, relative to `root`. "" if they are equal, or None
            if it lies elsewhere, so that a test's id does not determine the key.
    """

    root: str
    spellings: tuple[str, ...] = ()
    rootdir: str | None = ""

    def relative(self, path: str) -> str | None:
        """
        Return a path relative to the folder, or None for a path outside of the folder.
        """
        for spelling in (self.root, *self.spellings):
            if spelling and path.startswith(f"{spelling.rstrip('/')}/"):
                return path[len(spelling.rstrip("/")) + 1 :]
        return None

    def portable(self, text: str) -> str:
        """Replace the folder by a token in all paths of a text."""
        if "/" not in text or len(self.root) <= 1:
            return text
        return _pattern((self.root, *self.spellings)).sub(ROOT, text)

    def local(self, text: str) -> str:
        """Replace the token of a portable text by the checkout's folder."""
        return text.replace(ROOT, self.root) if self.root else text

    def key_of(self, node_id: str) -> str:
        """
        Return the key of a test from the id alone.

        Args:
            node_id: The id. Its file is relative to pytest's root folder.
        """
        module, colons, name = node_id.partition("::")
        if self.rootdir:
            module = f"{self.rootdir}/{module}"
        return f"{module}{colons}{self.portable(name)}"

    def id_of(self, key: str) -> str:
        """Return the test id for a key, as pytest shows the test here."""
        module, colons, name = key.partition("::")
        if self.rootdir:
            module = module.removeprefix(f"{self.rootdir}/")
        return f"{module}{colons}{self.local(name)}"


@lru_cache(maxsize=8)  # One per run, and some for a comparison.
def _pattern(spellings: tuple[str, ...]) -> re.Pattern[str]:
    # The longest first, because a spelling may be a prefix of another one.
    texts = sorted(set(filter(None, spellings)), key=len, reverse=True)
    return re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, texts))}){_BEHIND}")


def is_of(test_id: str, name: str) -> bool:
    """Return True if a pytest argument selects a test, or a repetition of the test."""
    ends = ("::", "[", "#") if "::" in name else ("::", "/")
    if not test_id.startswith(name):  # Nearly all tests of a large store.
        return False
    return test_id == name or test_id.startswith(ends, len(name))
