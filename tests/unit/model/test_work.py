"""model.work: declared work, and the models that count it."""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.work import DTYPE_BYTES, Work


class Amount(IntEnum):
    """An integer of a type that is not Python's own."""

    MANY = 2**60 + 1


sizes = st.integers(1, 10_000)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))

ATTENTION: dict[str, Any] = {
    "batch": 2,
    "heads": 8,
    "seq_q": 128,
    "seq_k": 128,
    "head_dim": 64,
    "dtype": "bf16",
}
LAYER: dict[str, Any] = {
    "batch": 2,
    "seq": 64,
    "hidden": 256,
    "heads": 8,
    "feedforward": 1024,
    "dtype": "bf16",
}


def test_declared_work_is_declared() -> None:
    """What an author counted is not an estimate of ours."""
    assert Work(bytes=1.0).label is SourceLabel.DECLARED


@pytest.mark.parametrize(
    ("numbers", "path"),
    [
        ({}, "work"),
        ({"flop": 1.0}, "work.dtype"),
        ({"bytes": 0.0}, "work.bytes"),
        ({"flop": float("nan"), "dtype": "bf16"}, "work.flop"),
        ({"flop": 1.0, "bytes": 1.0}, "work.dtype"),
        ({"flop": "1", "dtype": "bf16"}, "work.flop"),
        ({"bytes": True}, "work.bytes"),
        ({"bytes": 10**400}, "work.bytes"),
        ({"flop": 10**5000, "dtype": "bf16"}, "work.flop"),
        ({"bytes": 1.0, "dtype": "bf17"}, "work.dtype"),
        ({"bytes": 1.0, "dtype": ["bf16"]}, "work.dtype"),
        ({"bytes": 1.0, "label": "declared"}, "work.label"),
    ],
)
def test_work_that_no_roof_can_be_found_for_is_refused(
    numbers: dict[str, Any], path: str
) -> None:
    """Nothing, FLOP of no type, an unknown type, and what is not a number above zero."""
    with pytest.raises(RecordError) as caught:
        Work(**numbers)

    assert caught.value.path == path
    assert 'dtype="bf16"' in caught.value.remedy


def test_all_mistakes_of_declared_work_are_told_at_once() -> None:
    """Every field that is wrong stands in the message, and the types that are known."""
    wrong: dict[str, Any] = {"flop": "1", "bytes": 0, "dtype": "e4m3", "label": None}

    with pytest.raises(RecordError) as caught:
        Work(**wrong)

    assert caught.value.message == (
        "work.flop: '1' is not a number; work.bytes: 0 is not above zero; "
        f"work.dtype: 'e4m3' is none of {', '.join(DTYPE_BYTES)}; "
        "work.label: None is not a SourceLabel"
    )


@pytest.mark.parametrize(
    ("amount", "plain"), [(Amount.MANY, 2**60 + 1), (Fraction(3, 2), 1.5)]
)
def test_an_amount_of_another_library_becomes_pythons_own(
    amount: Any, plain: float
) -> None:
    """A run is written as JSON, which takes no others; integers stay exact."""
    work = Work(flop=amount, bytes=amount, dtype="bf16")

    assert (work.flop, work.bytes) == (plain, plain)
    assert type(work.flop) is type(work.bytes) is type(plain)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("float64", "fp64"),
        ("float32", "fp32"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("bfloat16", "bf16"),
    ],
)
def test_a_frameworks_name_of_a_type_is_taken_for_ours(name: str, ours: str) -> None:
    """In work that is declared and in work that is counted: peaks have one name."""
    assert Work(flop=1.0, dtype=name) == Work(flop=1.0, dtype=ours)
    assert Work.matmul(2, 3, 4, name) == Work.matmul(2, 3, 4, ours)


@given(m=sizes, n=sizes, k=sizes, batch=st.integers(1, 64), dtype=dtypes)
def test_a_product_moves_three_matrices(
    m: int, n: int, k: int, batch: int, dtype: str
) -> None:
    """2·m·n·k FLOP; operands and result once, in their own size."""
    work = Work.matmul(m, n, k, dtype, batch=batch)

    assert work.flop == 2 * m * n * k * batch
    assert work.bytes == DTYPE_BYTES[dtype] * (m * k + k * n + m * n) * batch
    assert (work.dtype, work.label) == (dtype, SourceLabel.ESTIMATED)


def test_a_narrower_type_moves_less() -> None:
    """A model knows the size of its type: FP8 moves half of what BF16 does."""
    wide, narrow = (Work.matmul(512, 512, 512, dtype) for dtype in ("bf16", "fp8"))

    assert wide.bytes is not None
    assert narrow.bytes == wide.bytes / 2
    assert narrow.flop == wide.flop


def counted_pairs(seq_q: int, seq_k: int) -> int:
    """Count the pairs by looking at each: the last query sees every key."""
    shift = seq_k - seq_q
    return sum(k <= q + shift for q in range(seq_q) for k in range(seq_k))


@given(seq_q=st.integers(1, 40), seq_k=st.integers(1, 40))
def test_a_causal_query_sees_no_later_key(seq_q: int, seq_k: int) -> None:
    """The pairs are those that a mask, laid to the lower right, leaves."""
    sequences: dict[str, Any] = {**ATTENTION, "seq_q": seq_q, "seq_k": seq_k}
    work = Work.attention(**sequences, causal=True)

    assert work.flop == 4 * 2 * 8 * 64 * counted_pairs(seq_q, seq_k)
    assert work.bytes == Work.attention(**sequences).bytes


def test_full_attention_multiplies_twice() -> None:
    """Scores and weighted sum are a product each; four tensors are moved."""
    work = Work.attention(**ATTENTION)

    assert work.flop == 2 * (2 * 2 * 8 * 128 * 128 * 64)
    assert work.bytes == 2 * 4 * (2 * 8 * 128 * 64)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_grouped_queries_move_fewer_keys(kv_heads: int) -> None:
    """Keys and values are moved once a group, and every head computes as before."""
    work = Work.attention(**ATTENTION, kv_heads=kv_heads)

    assert work.flop == Work.attention(**ATTENTION).flop
    assert work.bytes == 2 * 2 * (2 * 128 * 64) * (8 + kv_heads)


def test_a_layer_is_its_parts() -> None:
    """Projections, attention and feed-forward, weights once and eight activations."""
    work = Work.transformer_layer(**LAYER)
    tokens, hidden = 2 * 64, 256
    attention = Work.attention(
        batch=2, heads=8, seq_q=64, seq_k=64, head_dim=32, dtype="bf16"
    )
    weights = 4 * hidden * hidden + 2 * hidden * 1024

    assert attention.flop is not None
    assert work.flop == 2 * tokens * weights + attention.flop
    assert work.bytes == 2 * (weights + 8 * tokens * hidden)


def test_a_layers_options_change_what_they_say() -> None:
    """A third matrix, fewer key heads and a mask, each by its own amount."""
    plain = Work.transformer_layer(**LAYER)
    gated = Work.transformer_layer(**LAYER, gated=True)
    grouped = Work.transformer_layer(**LAYER, kv_heads=2)
    causal = Work.transformer_layer(**LAYER, causal=True)
    tokens, hidden = 2 * 64, 256
    assert plain.flop is not None
    assert plain.bytes is not None

    assert gated.flop == plain.flop + 2 * tokens * hidden * 1024
    assert gated.bytes == plain.bytes + 2 * hidden * 1024
    left_out = 2 * hidden * (8 - 2) * 32
    assert grouped.flop == plain.flop - 2 * tokens * left_out
    assert grouped.bytes == plain.bytes - 2 * left_out
    assert causal.flop == plain.flop - 4 * 2 * 8 * 32 * (64 * 64 - 64 * 65 // 2)
    assert causal.bytes == plain.bytes


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8", None, 2**63, 10**400])
def test_a_size_is_a_whole_number(wrong: Any) -> None:
    """Nothing is rounded, and no number of heads is a fraction."""
    with pytest.raises(RecordError, match=r"work\.matmul\.n: .* is not a whole number"):
        Work.matmul(1, wrong, 1, "bf16")


def test_all_mistakes_of_a_model_are_told_at_once() -> None:
    """Each size that is none, and the type that has no size."""
    with pytest.raises(RecordError) as caught:
        Work.attention(**{**ATTENTION, "batch": 0, "seq_q": -3, "dtype": "bf17"})

    for part in ("batch: 0 is", "seq_q: -3 is", "dtype: 'bf17' is none of fp64, "):
        assert part in str(caught.value)


def test_a_size_of_another_library_is_one() -> None:
    """What stands for an integer anywhere in Python does here too."""

    class Eight:
        def __index__(self) -> int:
            return 8

    eight: Any = Eight()

    assert Work.matmul(eight, eight, 8, "bf16") == Work.matmul(8, 8, 8, "bf16")


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (Work.attention, {**ATTENTION, "kv_heads": 3}),
        (Work.transformer_layer, {**LAYER, "heads": 12}),
        (Work.transformer_layer, {**LAYER, "kv_heads": 3}),
    ],
)
def test_heads_divide_what_they_are_heads_of(
    model: Any, arguments: dict[str, Any]
) -> None:
    """Columns are never dropped to make a head fit."""
    with pytest.raises(RecordError, match="is not a multiple of"):
        model(**arguments)
