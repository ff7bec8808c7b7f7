"""The work that a test declares for one call."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from numbers import Integral
from types import MappingProxyType

from msgspec.structs import force_setattr

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Frozen, Mistake, no_number, refuse, shown
from pytest_gpuperf.model.sample import SourceLabel

__all__ = ["DTYPE_BYTES", "Work"]

# Data types that peaks are known of, and the bytes of one element [B]. A suffix names
# the unit or the accumulator, and changes nothing about the size.
DTYPE_BYTES = MappingProxyType(
    {
        "fp64": 8.0,
        "fp64_tensor": 8.0,
        "fp32": 4.0,
        "tf32": 4.0,  # rounded inside the tensor core; stored as FP32
        "bf16": 2.0,
        "fp16": 2.0,
        "fp16_vector": 2.0,
        "fp16_acc16": 2.0,
        "fp8": 1.0,
        "fp8_acc16": 1.0,
        "fp6": 0.75,
        "fp4": 0.5,
        "int8": 1.0,
        "int4": 0.5,
    }
)
# the names that frameworks use
_ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
_SIZE_END = 2**63  # a size is an int64 everywhere
_REMEDY = 'say what a call has to do, as Work(flop=2e9, bytes=6e6, dtype="bf16")'


class Work(Frozen, frozen=True, kw_only=True):
    """
    What one call has to do, by the author's own count.

    Attributes:
        flop: Floating-point operations of a call [FLOP], > 0.

        bytes: Bytes that a call must move to or from DRAM [B], > 0.

        dtype: The data type whose peak counts, one of `DTYPE_BYTES`; required with
            `flop`. A framework's name of it, as "bfloat16", is taken for ours.

        label: How the count came to be: declared, or estimated by one of the models.
    """

    flop: float | None = None
    bytes: float | None = None
    dtype: str | None = None
    label: SourceLabel = SourceLabel.DECLARED

    def __post_init__(self) -> None:
        """Refuse work that no roof can be found for, with all of its mistakes."""
        force_setattr(self, "dtype", _canonical(self.dtype))
        refuse(list(self._mistakes()), remedy=_REMEDY)
        force_setattr(self, "flop", _builtin(self.flop))
        force_setattr(self, "bytes", _builtin(self.bytes))

    def _mistakes(self) -> Iterator[Mistake]:
        """Yield what keeps it from being held against a roof."""
        if self.flop is None and self.bytes is None:
            yield Mistake(path="work", text="it declares neither flop nor bytes")
        for name, amount in (("flop", self.flop), ("bytes", self.bytes)):
            wrong = "" if amount is None else no_number(amount)
            if not wrong and amount is not None and amount <= 0:
                wrong = f"{amount!r} is not above zero"
            if wrong:
                yield Mistake(path=f"work.{name}", text=wrong)
        if self.dtype is not None:
            yield from _unknown(self.dtype, "work.dtype")
        elif self.flop is not None:
            text = "flop need the data type whose peak counts"
            yield Mistake(path="work.dtype", text=text)
        label: object = self.label
        if not isinstance(label, SourceLabel):
            text = f"{shown(label)} is not a SourceLabel"
            yield Mistake(path="work.label", text=text)

    @classmethod
    def matmul(cls, m: int, n: int, k: int, dtype: str, *, batch: int = 1) -> Work:
        """
        Return the work of a matrix product, every operand moved once.

        Args:
            m: Rows of the first operand and the result, >= 1.

            n: Columns of the second operand and the result, >= 1.

            k: Columns of the first operand, rows of the second, >= 1.

            dtype: Of all three matrices, as "bf16".

            batch: Independent products, >= 1.

        Returns:
            2·m·n·k FLOP and the bytes of (m, k), (k, n) and (m, n), times `batch`;
            estimated.

        Raises:
            RecordError: A size is not a whole number above zero, or the type is unknown;
                all of them are named.

        Example:
            >>> Work.matmul(4096, 4096, 4096, "bf16").flop
            137438953472
        """
        size, (m, n, k, batch) = _checked("matmul", dtype, m=m, n=n, k=k, batch=batch)
        return cls(
            flop=2 * batch * m * n * k,
            bytes=size * batch * (m * k + k * n + m * n),
            dtype=dtype,
            label=SourceLabel.ESTIMATED,
        )

    @classmethod
    def attention(
        cls,
        *,
        batch: int,
        heads: int,
        seq_q: int,
        seq_k: int,
        head_dim: int,
        dtype: str,
        kv_heads: int | None = None,
        causal: bool = False,
    ) -> Work:
        """
        Return the work of scaled dot-product attention, scores never leaving the chip.

        Args:
            batch: Sequences, >= 1.

            heads: Query heads, >= 1.

            seq_q: Queries of a sequence, >= 1.

            seq_k: Keys of a sequence, >= 1.

            head_dim: Elements of a head, >= 1.

            dtype: Of queries, keys, values and result.

            kv_heads: Key and value heads, of which `heads` is a multiple (grouped
                queries); None: as many as `heads`.

            causal: Whether a query sees the keys up to its own place only, the last
                query beside the last key. What it does not see is not counted.

        Returns:
            4·head_dim FLOP for each pair of query and key that see each other (scores
            and weighted sum; the softmax is not counted), and the bytes of the four
            tensors; estimated.

        Raises:
            RecordError: An argument is wrong; all of them are named.
        """
        size, (batch, heads, seq_q, seq_k, head_dim, groups) = _checked(
            "attention",
            dtype,
            batch=batch,
            heads=heads,
            seq_q=seq_q,
            seq_k=seq_k,
            head_dim=head_dim,
            kv_heads=heads if kv_heads is None else kv_heads,
        )
        _divides("attention", "kv_heads", groups, "heads", heads)
        pairs = _causal_pairs(seq_q, seq_k) if causal else seq_q * seq_k
        elements = 2 * batch * head_dim * (heads * seq_q + groups * seq_k)
        return cls(
            flop=4 * batch * heads * head_dim * pairs,
            bytes=size * elements,
            dtype=dtype,
            label=SourceLabel.ESTIMATED,
        )

    @classmethod
    def transformer_layer(
        cls,
        *,
        batch: int,
        seq: int,
        hidden: int,
        heads: int,
        feedforward: int,
        dtype: str,
        kv_heads: int | None = None,
        causal: bool = False,
        gated: bool = False,
    ) -> Work:
        """
        Return the forward work of one transformer layer.

        Weights are moved once. Eight times batch·seq·hidden elements are: into and out
        of the projections, the attention, the projection back and the feed-forward
        block. Scores and the feed-forward's inner elements stay on the chip; biases,
        norms and the softmax are not counted.

        Args:
            batch: Sequences, >= 1.

            seq: Tokens of a sequence, >= 1.

            hidden: Elements of a token, a multiple of `heads`.

            heads: Query heads, >= 1.

            feedforward: Inner size of the feed-forward block, >= 1.

            dtype: Of weights and activations.

            kv_heads: Key and value heads (grouped queries); None: as many as `heads`.

            causal: As in `attention`.

            gated: Whether the feed-forward block has three matrices instead of two.

        Returns:
            FLOP and bytes; estimated.

        Raises:
            RecordError: An argument is wrong; all of them are named.
        """
        size, (batch, seq, hidden, heads, feedforward, groups) = _checked(
            "transformer_layer",
            dtype,
            batch=batch,
            seq=seq,
            hidden=hidden,
            heads=heads,
            feedforward=feedforward,
            kv_heads=heads if kv_heads is None else kv_heads,
        )
        _divides("transformer_layer", "heads", heads, "hidden", hidden)
        _divides("transformer_layer", "kv_heads", groups, "heads", heads)
        head_dim = hidden // heads
        matrices = 3 if gated else 2
        weights = 2 * hidden * (hidden + groups * head_dim)
        weights += matrices * hidden * feedforward
        pairs = _causal_pairs(seq, seq) if causal else seq * seq
        scores = 4 * batch * heads * head_dim * pairs
        elements = weights + 8 * batch * seq * hidden
        return cls(
            flop=2 * batch * seq * weights + scores,
            bytes=size * elements,
            dtype=dtype,
            label=SourceLabel.ESTIMATED,
        )


def _causal_pairs(seq_q: int, seq_k: int) -> int:
    """Return how many pairs see each other where the last query sees every key."""
    queries = min(seq_q, seq_k)  # queries that see any key
    return queries * seq_k - queries * (queries - 1) // 2


def _builtin(amount: float | None) -> float | None:
    """Return a number of another library as Python's own: a record goes into JSON."""
    if amount is None or type(amount) in {int, float}:
        return amount
    number: object = amount  # by its type it could be neither of another library's
    return int(number) if isinstance(number, Integral) else float(amount)


def _canonical(dtype: object) -> object:
    """Return our name of a data type; what is not a known name as it is."""
    return _ALIASES.get(dtype, dtype) if isinstance(dtype, str) else dtype


def _unknown(dtype: object, path: str) -> Iterator[Mistake]:
    """Yield a mistake where nothing is known of a data type."""
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        text = f"{shown(dtype)} is none of {', '.join(DTYPE_BYTES)}"
        yield Mistake(path=path, text=text)


def _checked(model: str, dtype: str, **sizes: object) -> tuple[float, list[int]]:
    """
    Return the bytes of an element, and sizes as integers: numpy's are some too.

    Raises:
        RecordError: A size is none, or the type has none; all of them are named.
    """
    path, ours = f"work.{model}", _canonical(dtype)
    integers = {name: _whole(size) for name, size in sizes.items()}
    mistakes = [
        Mistake(
            path=f"{path}.{name}",
            text=f"{shown(sizes[name])} is not a whole number from 1 to 2^63 - 1",
        )
        for name, size in integers.items()
        if not 0 < size < _SIZE_END
    ]
    refuse([*mistakes, *_unknown(ours, f"{path}.dtype")], remedy=_REMEDY)
    return DTYPE_BYTES[str(ours)], list(integers.values())


def _whole(size: object) -> int:
    """Return a whole number as an integer; 0 of what is none."""
    if isinstance(size, bool):
        return 0
    try:
        return operator.index(size)  # type: ignore[arg-type] # asked for here
    except TypeError:
        return 0


def _divides(model: str, part: str, few: int, whole: str, many: int) -> None:
    """Refuse a number that must be a multiple of another and is not."""
    if many % few:
        message = f"{whole}={many} is not a multiple of {part}={few}"
        raise RecordError(
            message, path=f"work.{model}", remedy=f"give a {whole} that is"
        )
