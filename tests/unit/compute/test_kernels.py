"""Kernels of two sessions beside each other: what was replaced, and what took longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.kernels import account, aligned, family, usual_choice
from pytest_gpuperf.model.kernel import KernelLaunch, KernelTotal
from pytest_gpuperf.model.verdict import KernelChoice


def kernel(name: str, total_us: float, grid: int | None = 1) -> KernelTotal:
    """A kernel of a session; without a grid nobody knows how it was launched."""
    launch = None
    if grid is not None:
        launch = KernelLaunch(
            count=1,
            grid=(grid, 1, 1),
            block=(128, 1, 1),
            registers_count=32,
            shared_bytes=0,
            stack_bytes=0,
        )
    return KernelTotal(name=name, total_s=total_us * 1e-6, launch=launch)


def pairs(
    then: list[KernelTotal], now: list[KernelTotal]
) -> set[tuple[str | None, str | None]]:
    """The names that stand beside each other; None: nothing."""
    return {
        (
            None if move.then is None else move.then.name,
            None if move.now is None else move.now.name,
        )
        for move in aligned(then, now)
    }


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("sm90_gemm_128x128x64_bf16", "sm90_gemm_64x128x64_bf16"),
        ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_12"),
        ("add_kernel_0d1d2d3de", "add_kernel_0d1d2de3de"),
        ("add_kernel_0d1d2d3de", "add_kernel"),
        ("loop_add_fusion", "void loop_add_fusion"),
        ("fused_9f86d081884c7d65", "fused_60303ae22b998861"),
        ("f(std::array<char*, 2>)", "f(at::detail::Array<char*, 2>)"),
        ("g[abi:cxx11](int)", "g(int)"),
        ("h<{lambda(int)#1}>", "h<{lambda(int)#2}>"),
    ],
)
def test_a_family_is_what_stays(then: str, now: str) -> None:
    """Tiles, ordinals, signatures, digests, tags and spellings change with a build."""
    assert family(then) == family(now)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gemm_nt_64", "gemm_nn_64"),
        ("softmax_fwd", "softmax_bwd"),
        ("decade", "facade"),  # hexadecimal digits alone are words
    ],
)
def test_other_work_is_another_family(one: str, other: str) -> None:
    """Words tell kernels apart."""
    assert family(one) != family(other)


def test_a_name_stands_beside_itself_first() -> None:
    """Even where another of its family has the same grid."""
    then = [kernel("gemm_64", 9), kernel("gemm_128", 5)]
    now = [kernel("gemm_128", 6), kernel("gemm_256", 9)]

    assert pairs(then, now) == {("gemm_64", "gemm_256"), ("gemm_128", "gemm_128")}


def test_shapes_of_one_name_stand_beside_their_own() -> None:
    """By grid, whichever takes longer."""
    then = [kernel("copy", 9, grid=8), kernel("copy", 1, grid=2)]
    now = [kernel("copy", 10, grid=2), kernel("copy", 8, grid=8)]
    moves = aligned(then, now)

    assert [(m.then, m.now) for m in moves] == [(then[1], now[0]), (then[0], now[1])]


def test_a_kernel_of_the_same_launch_has_replaced_one() -> None:
    """cuBLAS and CUTLASS call nothing alike; a grid of its own is a sign."""
    then = [kernel("cutlass_tensorop", 100, grid=64), kernel("norm", 7, grid=3)]
    now = [kernel("xmma_gemm", 150, grid=64), kernel("rms", 90, grid=1)]

    assert pairs(then, now) == {
        ("cutlass_tensorop", "xmma_gemm"),
        ("norm", None),
        (None, "rms"),
    }


def test_the_last_of_each_is_one_if_it_takes_as_long() -> None:
    """What takes far longer does other work."""
    slow, slower, quick = kernel("a", 100, 1), kernel("b", 300, 2), kernel("c", 3, 2)

    assert pairs([slow], [slower]) == {("a", "b")}
    assert pairs([slow], [quick]) == {("a", None), (None, "c")}


def test_grids_that_are_not_of_one_kernel_say_nothing() -> None:
    """Element-wise kernels share their grids."""
    then = [kernel("relu", 5), kernel("gelu", 5)]
    now = [kernel("silu", 5), kernel("tanh", 5)]

    assert pairs(then, now) == {
        ("relu", None),
        ("gelu", None),
        (None, "silu"),
        (None, "tanh"),
    }


def test_a_store_without_launches_is_aligned_by_name() -> None:
    """Files of earlier versions have names and times alone."""
    then = [kernel("gemm_64", 9, grid=None), kernel("norm", 1, grid=None)]
    now = [kernel("gemm_128", 9), kernel("norm", 1)]

    assert pairs(then, now) == {("gemm_64", "gemm_128"), ("norm", "norm")}


def test_an_account_is_of_the_session_in_the_middle() -> None:
    """One that a clock slowed explains nothing; the worst kernel comes first."""
    then = [[kernel("gemm", us), kernel("norm", 1)] for us in (10, 11, 99)]
    now = [[kernel("gemm", us), kernel("norm", 3)] for us in (30, 21, 20)]
    found = account([[], *then], now)

    assert found is not None
    assert found.then_s == pytest.approx(12e-6)
    assert found.now_s == pytest.approx(24e-6)
    assert [move.then and move.then.name for move in found.moves] == ["gemm", "norm"]
    assert found.difference_s == pytest.approx(12e-6)


@pytest.mark.parametrize(("then", "now"), [([], [[kernel("a", 1)]]), ([[]], [[]])])
def test_what_nobody_saw_has_no_account(
    then: list[list[KernelTotal]], now: list[list[KernelTotal]]
) -> None:
    """Half of a comparison is none."""
    assert account(then, now) is None


kernels = st.lists(
    st.builds(
        kernel,
        st.sampled_from(["gemm_1", "gemm_2", "norm", "a_0d1d", "b"]),
        st.floats(min_value=0, max_value=1e3),
        st.none() | st.integers(min_value=1, max_value=3),
    ),
    max_size=9,
)


@given(then=kernels, now=kernels)
def test_each_kernel_is_told_once(
    then: list[KernelTotal], now: list[KernelTotal]
) -> None:
    """No kernel is lost, and none counts twice: the differences add up."""
    moves = aligned(then, now)

    assert sorted(id(m.then) for m in moves if m.then) == sorted(map(id, then))
    assert sorted(id(m.now) for m in moves if m.now) == sorted(map(id, now))
    total_s = sum(k.total_s for k in now) - sum(k.total_s for k in then)
    assert sum(m.difference_s for m in moves) == pytest.approx(total_s, abs=1e-12)


def test_the_usual_choice_is_that_of_most_and_of_equal_ones_the_first() -> None:
    """With how many made it; of nobody it is not known."""
    assert [usual_choice(each) for each in (("a", "b", "b"), ("b", "a", None), ())] == [
        KernelChoice(choice="b", count=2, total_count=3),
        KernelChoice(choice="b", count=1, total_count=3),
        KernelChoice(choice=None, count=0, total_count=0),
    ]
