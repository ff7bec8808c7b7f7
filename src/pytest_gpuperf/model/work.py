"""The work that a test declares for one call; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.border import positive
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What one call has to do, by the author's own count.

    Attributes:
        flop: Floating-point operations of a call [FLOP], > 0.

        bytes: Bytes that a call must move to or from DRAM [B], > 0.

        dtype: The data type whose peak counts, as "bf16"; required with `flop` alone.

        label: How the count came to be: declared, or estimated by one of the models.
    """

    flop: float | None = None
    bytes: float | None = None
    dtype: str | None = None
    label: SourceLabel = SourceLabel.DECLARED

    def __post_init__(self) -> None:
        """Refuse work that says nothing, or that no roof can be found for."""
        positive("work.flop", self.flop)
        positive("work.bytes", self.bytes)
        if self.flop is None and self.bytes is None:
            message = "work declares neither flop nor bytes"
            raise RecordError(message, path="work", remedy="give one of them")
        if self.flop is not None and self.bytes is None and self.dtype is None:
            message = "work in FLOP alone needs the data type whose peak counts"
            raise RecordError(message, path="work.dtype", remedy='add dtype="bf16"')

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
            RecordError: A size is no whole number above zero, or the type is unknown;
                all of them are named.

        Example:
            >>> Work.matmul(4096, 4096, 4096, "bf16").flop
            137438953472
        """
        _check("matmul", dtype, m=m, n=n, k=k, batch=batch)
        return cls(
            flop=2 * batch * m * n * k,
            bytes=DTYPE_BYTES[dtype] * batch * (m * k + k * n + m * n),
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
        groups = heads if kv_heads is None else kv_heads
        _check(
            "attention",
            dtype,
            batch=batch,
            heads=heads,
            seq_q=seq_q,
            seq_k=seq_k,
            head_dim=head_dim,
            kv_heads=groups,
        )
        _divides("attention", "kv_heads", groups, "heads", heads)
        pairs = _causal_pairs(seq_q, seq_k) if causal else seq_q * seq_k
        elements = 2 * batch * head_dim * (heads * seq_q + groups * seq_k)
        return cls(
            flop=4 * batch * heads * head_dim * pairs,
            bytes=DTYPE_BYTES[dtype] * elements,
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
        groups = heads if kv_heads is None else kv_heads
        _check(
            "transformer_layer",
            dtype,
            batch=batch,
            seq=seq,
            hidden=hidden,
            heads=heads,
            feedforward=feedforward,
            kv_heads=groups,
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
            bytes=DTYPE_BYTES[dtype] * elements,
            dtype=dtype,
            label=SourceLabel.ESTIMATED,
        )


def _causal_pairs(seq_q: int, seq_k: int) -> int:
    """Return how many pairs see each other where the last query sees every key."""
    seen = min(seq_q, seq_k)  # queries that see any key
    return seen * seq_k - seen * (seen - 1) // 2


def _check(model: str, dtype: str, **sizes: object) -> None:
    """Refuse sizes that are none and types that have no size, all at once."""
    mistakes = [
        f"{name}={size!r} is no whole number above zero"
        for name, size in sizes.items()
        if isinstance(size, bool) or not isinstance(size, int) or size < 1
    ]
    if dtype not in DTYPE_BYTES:
        mistakes.append(f"dtype={dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    if mistakes:
        message = "; ".join(mistakes)
        raise RecordError(
            message, path=f"work.{model}", remedy="give what the call has"
        )


def _divides(model: str, part: str, few: int, whole: str, many: int) -> None:
    """Refuse a number that must be a multiple of another and is not."""
    if many % few:
        message = f"{whole}={many} is no multiple of {part}={few}"
        raise RecordError(
            message, path=f"work.{model}", remedy=f"give a {whole} that is"
        )
