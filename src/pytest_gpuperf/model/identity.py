"""The identity of a kernel's machine code, and the comparison of two."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import Enum

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Frozen

# The rules by which the digests are made. Digests of other rules cannot be compared.
_RULES = "1"
_DIGITS = 16


class Sameness(str, Enum):
    """The result of comparing two identities."""

    SAME = "same"  # The same code, shape and data.
    SAME_CODE = "same-code"  # The same code with other data or another shape.
    CHANGED = "changed"

    @property
    def text(self) -> str:
        """The result in words."""
        if self is Sameness.SAME_CODE:
            return "same code, other data or shape"
        return "same" if self is Sameness.SAME else "changed"


class CodeIdentity(Frozen, frozen=True, kw_only=True):
    """
    The identity of the machine code of a kernel, or of several kernels.

    Names, paths and debug information are not part of it, nor are other kernels of the file
    that its code cannot reach.

    Attributes:
        code: Digest of the target and of all instructions with their control bits, called
            functions included.

        shape: Digest of the limits of a launch, as registers, stack and parameters.

        data: Digest of the initial content of all variables and constants that the code
            names. Of AMD's code, of all those of the file.
    """

    code: str
    shape: str
    data: str

    def __str__(self) -> str:
        """Return the form in which a session stores the identity."""
        return f"{_RULES}.{self.code}.{self.shape}.{self.data}"

    @classmethod
    def read(cls, text: str) -> CodeIdentity | None:
        """
        Read the stored form. Return None if it was made by rules of another version.

        Raises:
            RecordError: The text was made by these rules, but is incomplete.
        """
        rules, *parts = text.split(".")
        if rules != _RULES:
            return None
        if len(parts) != len(cls.__struct_fields__):
            message = f"the code identity {text!r} has {len(parts)} parts, not 3"
            raise RecordError(message, path="code_digest")
        code, shape, data = parts
        return cls(code=code, shape=shape, data=data)

    @classmethod
    def of_kernels(cls, identities: Iterable[CodeIdentity]) -> CodeIdentity:
        """
        Combine the identities of several kernels, in any order.

        Args:
            identities: One identity for each kernel, at least one.
        """
        held = sorted((i.code, i.shape, i.data) for i in identities)
        code, shape, data = (digest_of(part) for part in zip(*held, strict=True))
        return cls(code=code, shape=shape, data=data)

    def compared(self, other: CodeIdentity) -> Sameness:
        """Return True if another identity is the same."""
        if self == other:
            return Sameness.SAME
        return Sameness.SAME_CODE if self.code == other.code else Sameness.CHANGED


def sameness(then: str | None, now: str | None) -> Sameness | None:
    """
    Compare two stored identities.

    Args:
        then: The earlier identity as stored, or None if unknown.

        now: The current identity as stored, or None if unknown.

    Returns:
        The result, or None if an identity is unknown or was made by other rules.
    """
    old = None if then is None else CodeIdentity.read(then)
    new = None if now is None else CodeIdentity.read(now)
    return None if old is None or new is None else new.compared(old)


def sameness_of_all(then: Sequence[str | None], now: str | None) -> Sameness | None:
    """
    Compare the stored identities of several sessions with the current one.

    Args:
        then: The earlier identities as stored, in order, None for an unknown one.

        now: The current identity as stored, or None if unknown.

    Returns:
        The last result that is not *same*. *Same* only if every identity is known.
    """
    if now is None:
        return None
    answers = [sameness(stored, now) for stored in then]
    for answer in reversed(answers):
        if answer not in {None, Sameness.SAME}:
            return answer
    return Sameness.SAME if answers and None not in answers else None


def digest_of(content: object) -> str:
    """Return the digest of a value made of numbers, texts, bytes and tuples."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:_DIGITS]
