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

# Data types with known peaks, and the size of one element [B]. A suffix names the unit
# or the accumulator and does not affect the size.
DTYPE_BYTES = MappingProxyType(
    {
        "fp64": 8.0,
        "fp64_tensor": 8.0,
        "fp32": 4.0,
        "tf32": 4.0,  # Rounded inside the tensor core. Stored as FP32.
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
# Names used by frameworks.
_ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
_SIZE_END = 2**63  # A size is an int64 everywhere.
_REMEDY = 'say what a call has to do, as Work(flop=2e9, bytes=6e6, dtype="bf16")'


class Work(Frozen, frozen=True, kw_only=True):
    """
    The work of one call, as counted by its author.

    Attributes:
        flop: Floating-point operations of a call [FLOP], > 0.

        bytes: Bytes that a call must move to or from DRAM [B], > 0.

        dtype: The data type of the compute peak, one of `DTYPE_BYTES`. Required with
            `flop`. A framework's name, as "bfloat16", is converted.

        label: Origin of the counts: declared, or estimated by one of the models.
    """

    flop: float | None = None
    bytes: float | None = None
    dtype: str | None = None
    label: SourceLabel = SourceLabel.DECLARED

    def __post_init__(self) -> None:
        """Reject work without a roof. The error lists all mistakes."""
        force_setattr(self, "dtype", _canonical(self.dtype))
        mistakes = []
        if self.flop is None and self.bytes is None:
            text = "it declares neither flop nor bytes"
            mistakes.append(Mistake(path="work", text=text))
        for name, amount in (("flop", self.flop), ("bytes", self.bytes)):
            wrong = "" if amount is None else no_number(amount)
            if not wrong and amount is not None and amount <= 0:
                wrong = f"{amount!r} is not above zero"
            if wrong:
                mistakes.append(Mistake(path=f"work.{name}", text=wrong))
        if self.dtype is not None:
            mistakes += _unknown(self.dtype, "work.dtype")
        elif self.flop is not None:
            text = "flop need the data type whose peak counts"
            mistakes.append(Mistake(path="work.dtype", text=text))
        label: object = self.label
        if not isinstance(label, SourceLabel):
            text = f"{shown(label)} is not a SourceLabel"
            mistakes.append(Mistake(path="work.label", text=text))
        refuse(mistakes, remedy=_REMEDY)
        force_setattr(self, "flop", _builtin(self.flop))
        force_setattr(self, "bytes", _builtin(self.bytes))

    @classmethod
    def matmul(cls, m: int, n: int, k: int, dtype: str, *, batch: int = 1) -> Work:
        """
        Estimate the work of a matrix product, with every operand moved once.

        Args:
            m: Rows of the first operand and the result, >= 1.

            n: Columns of the second operand and the result, >= 1.

            k: Columns of the first operand, rows of the second, >= 1.

            dtype: Data type of all three matrices, as "bf16".

            batch: Independent products, >= 1.

        Returns:
            2·m·n·k FLOP and the bytes of (m, k), (k, n) and (m, n), times `batch`, with
            the label estimated.

        Raises:
            RecordError: A size is not a positive whole number, or the type is unknown.
                The error lists all mistakes.

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
        Estimate the work of scaled dot-product attention, with scores that never leave
        the chip.

        Args:
            batch: Sequences, >= 1.

            heads: Query heads, >= 1.

            seq_q: Queries per sequence, >= 1.

            seq_k: Keys per sequence, >= 1.

            head_dim: Elements per head, >= 1.

            dtype: Data type of queries, keys, values and result.

            kv_heads: Key and value heads. `heads` must be a multiple of them (grouped
                queries). None for as many as `heads`.

            causal: Whether a query sees only the keys up to its own position, with the
                last query aligned to the last key. Invisible pairs are not counted.

        Returns:
            4·head_dim FLOP for each visible pair of query and key (scores and weighted
            sum, without the softmax), and the bytes of the four tensors, with the label
            estimated.

        Raises:
            RecordError: An argument is wrong. The error lists all mistakes.
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
        Estimate the forward work of one transformer layer.

        Weights are moved once. Activations are moved eight times batch·seq·hidden
        elements: into and out of the projections, the attention, the projection back
        and the feed-forward block. Scores and the feed-forward's inner elements stay on
        the chip. Biases, norms and the softmax are not counted.

        Args:
            batch: Sequences, >= 1.

            seq: Tokens per sequence, >= 1.

            hidden: Elements per token, a multiple of `heads`.

            heads: Query heads, >= 1.

            feedforward: Inner size of the feed-forward block, >= 1.

            dtype: Data type of weights and activations.

            kv_heads: Key and value heads (grouped queries), or None for as many as
                `heads`.

            causal: See `attention`.

            gated: Whether the feed-forward block has three matrices instead of two.

        Returns:
            FLOP and bytes, with the label estimated.

        Raises:
            RecordError: An argument is wrong. The error lists all mistakes.
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
    """Return the number of visible pairs if the last query sees every key."""
    queries = min(seq_q, seq_k)  # Queries that see any key.
    return queries * seq_k - queries * (queries - 1) // 2


def _builtin(amount: float | None) -> float | None:
    """
    Return a number of another library as a builtin, because records are written to
    JSON.
    """
    if amount is None or type(amount) in {int, float}:
        return amount
    # Widened, because the declared type hides numbers of other libraries.
    number: object = amount
    return int(number) if isinstance(number, Integral) else float(amount)


def _canonical(dtype: object) -> object:
    return _ALIASES.get(dtype, dtype) if isinstance(dtype, str) else dtype


def _unknown(dtype: object, path: str) -> Iterator[Mistake]:
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        text = f"{shown(dtype)} is none of {', '.join(DTYPE_BYTES)}"
        yield Mistake(path=path, text=text)


def _checked(model: str, dtype: str, **sizes: object) -> tuple[float, list[int]]:
    """
    Check sizes and data type. Sizes may be integers of numpy.

    Returns:
        The bytes of an element, and the sizes as integers.

    Raises:
        RecordError: A size is invalid, or the type is unknown. The error lists all
            mistakes.
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
    """Return a whole number as an integer, or 0 for other values."""
    if isinstance(size, bool):
        return 0
    try:
        return operator.index(size)  # type: ignore[arg-type] # asked for here
    except TypeError:
        return 0


def _divides(model: str, part: str, few: int, whole: str, many: int) -> None:
    if many % few:
        message = f"{whole}={many} is not a multiple of {part}={few}"
        raise RecordError(
            message, path=f"work.{model}", remedy=f"give a {whole} that is"
        )
