"""collect.binary.demangling: names of kernels as Nsight Compute shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.binary.demangling import base_name, native_demangler


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("axpy(float*)", "axpy"),
        (
            "void at::native::fill_kernel<4, at::native::Add<float>, A<char*> >(int)",
            "fill_kernel",
        ),
        ("void (anonymous namespace)::softmax<float, 8>(float const*)", "softmax"),
        ("", ""),
        ("<>", "<>"),
        ("a::", "a::"),
    ],
)
def test_a_base_name_is_what_templates_share(demangled: str, name: str) -> None:
    """Neither namespaces nor arguments belong to it."""
    assert base_name(demangled) == name


@given(st.text())
def test_every_name_has_a_base_name(text: str) -> None:
    """A kernel may be called anything, and a name is not a reason to lose its numbers."""
    assert bool(base_name(text)) or not text


def test_mangled_names_are_read_first() -> None:
    """As the device's code has them."""
    readable = native_demangler()("_ZN2at6native4fillILi4EEEvif")
    if readable is None:
        pytest.skip("libstdc++ is not here")

    assert base_name(readable) == "fill"
