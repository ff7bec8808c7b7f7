"""collect.selection: which GPU is measured, and what CUDA calls it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml import FakeGpu, FakeNvml
from pytest_gpuperf.collect.devices import (
    Chosen,
    DeviceQuery,
    choose_device,
    query_devices,
    same_device,
)
from pytest_gpuperf.errors import ConfigError

FIRST, SECOND, THIRD = "GPU-aa00", "GPU-ab00", "GPU-b000"
PART, OTHER_PART = "MIG-c100", "MIG-c200"
THREE = query_devices(
    FakeNvml(FakeGpu(uuid=FIRST), FakeGpu(uuid=SECOND), FakeGpu(uuid=THIRD))
)
KINDS = query_devices(FakeNvml(FakeGpu(uuid=FIRST), FakeGpu(uuid=SECOND, name="L4")))
SPLIT = query_devices(
    FakeNvml(
        FakeGpu(uuid=FIRST),
        FakeGpu(
            uuid=SECOND,
            mig=1,
            slices=(
                FakeGpu(uuid=PART, name="NVIDIA H200 MIG 1g.18gb"),
                None,
                FakeGpu(uuid=OTHER_PART, name="NVIDIA H200 MIG 2g.35gb"),
            ),
        ),
    )
)
NONE = DeviceQuery(devices=(), reason="NVML does not start")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def chosen(query: DeviceQuery, asked: str | None, **environment: str) -> Chosen:
    return choose_device(query, asked, environment)


def uuid(found: Chosen) -> str | None:
    return None if found.device is None else found.device.uuid


@pytest.mark.parametrize(
    ("asked", "found", "ordinal"),
    [
        (None, FIRST, 0),
        ("0", FIRST, 0),
        ("2", THIRD, 2),
        ("002", THIRD, 2),
        (SECOND, SECOND, 1),
        ("gpu-AB", SECOND, 1),
        ("GPU-b", THIRD, 2),
    ],
)
def test_a_gpu_has_an_index_and_a_uuid(
    asked: str | None, found: str, ordinal: int
) -> None:
    """The index is NVML's; of the UUID as much as no other GPU's begins with."""
    one = chosen(THREE, asked)

    assert (uuid(one), one.ordinal, one.reason) == (found, ordinal, "")


@pytest.mark.parametrize(
    ("visible", "first", "ordinals"),
    [
        ("2,0", THIRD, {"2": 0, "0": 1}),
        (" 1 ", SECOND, {"1": 0}),
        (f"{THIRD},GPU-aa", THIRD, {"2": 0, "0": 1}),
        ("1,9,0", SECOND, {"1": 0}),  # CUDA stops at what it does not know
        ("1,,0", SECOND, {"1": 0}),
        ("GPU-a,2", None, {}),  # the beginning of two
        ("1,1", None, {}),  # CUDA shows none then
        ("-1", None, {}),
        ("", None, {}),
        ("NoDevFiles", None, {}),
    ],
)
def test_cuda_shows_what_its_variable_says(
    visible: str, first: str | None, ordinals: dict[str, int]
) -> None:
    """In that order; the others are hidden, and none of them stands in for another."""
    found = chosen(THREE, None, **{VISIBLE: visible})
    assert uuid(found) == first
    assert found.reason == ("" if first else f"{VISIBLE}={visible} hides every GPU")

    for index in ("0", "1", "2"):
        if index in ordinals:
            one = chosen(THREE, index, **{VISIBLE: visible})
            assert one.ordinal == ordinals[index]
            continue
        with pytest.raises(ConfigError) as caught:
            chosen(THREE, index, **{VISIBLE: visible})
        assert f"is hidden by {VISIBLE}={visible}; set {VISIBLE}={index}," in str(
            caught.value
        )


@pytest.mark.parametrize(
    ("query", "asked", "message", "remedy"),
    [
        (
            NONE,
            "0",
            "there is no GPU: NVML does not start",
            "run it on a machine with a GPU",
        ),
        (THREE, "3", f"no GPU 3: this machine has 0 ({FIRST}, NVIDIA H200), 1", "name"),
        (THREE, "GPU-c", "no GPU GPU-c: this machine has 0 (", "name one of these"),
        (THREE, "GPU-a", "GPU-a matches 2 GPUs", f"prefix: 0 ({FIRST}, "),
        (SPLIT, "1", "GPU 1 is split into instances", f"1 ({PART}, NVIDIA H200 MIG"),
        (SPLIT, "MIG-c", "MIG-c matches 2 GPUs", OTHER_PART),
        (SPLIT, "MIG-d", "no GPU MIG-d: this machine has", "name one of these"),
        (KINDS, "0", "this machine has GPUs of several kinds", "CUDA_DEVICE_ORDER=PCI"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    query: DeviceQuery, asked: str, message: str, remedy: str
) -> None:
    """With what is there, so that the next try is right."""
    with pytest.raises(ConfigError) as caught:
        chosen(query, asked)

    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_a_machine_without_a_gpu_is_no_error() -> None:
    """Unless one was asked for; why there is none is the driver's own sentence."""
    assert chosen(NONE, None) == Chosen(device=None, reason="NVML does not start")


@pytest.mark.parametrize(
    "environment",
    [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {VISIBLE: f"{FIRST},{SECOND}"}],
    ids=["by-bus", "by-name"],
)
def test_gpus_of_several_kinds_have_an_order_that_is_known(
    environment: dict[str, str],
) -> None:
    """By their place on the bus, or as they are named; by their speed none can tell."""
    assert chosen(KINDS, "1", **environment).ordinal == 1
    assert uuid(chosen(KINDS, None)) == FIRST


def test_a_part_that_cuda_shows_by_name_needs_no_order() -> None:
    """Also where the GPUs beside it are of another kind."""
    part = FakeGpu(uuid=PART, name="NVIDIA H200 MIG 1g.18gb")
    split = FakeGpu(uuid=SECOND, mig=1, slices=(part,))
    mixed = query_devices(FakeNvml(FakeGpu(uuid=FIRST, name="L4"), split))

    assert chosen(mixed, PART, **{VISIBLE: PART}).ordinal == 0


@pytest.mark.parametrize("visible", [PART, "MIG-c1"])
def test_an_instance_is_a_gpu_of_its_own(visible: str) -> None:
    """CUDA shows the one that is named to it, by its UUID or the beginning of it."""
    found = chosen(SPLIT, PART, **{VISIBLE: visible})

    assert found.device is not None
    assert (found.device.uuid, found.device.index) == (PART, 1)
    assert (found.device.mig_profile, found.ordinal) == ("1g.18gb", 0)
    assert uuid(chosen(SPLIT, None, **{VISIBLE: visible})) == PART
    with pytest.raises(ConfigError, match=f"set {VISIBLE}={PART}, or leave"):
        chosen(SPLIT, PART)


def test_a_driver_that_lists_no_instances_shows_the_gpu() -> None:
    """As an older one names them: by their GPU and two numbers."""
    query = query_devices(FakeNvml(FakeGpu(uuid=FIRST, mig=1)))
    found = chosen(query, None, **{VISIBLE: f"MIG-{FIRST}/1/0"})

    assert uuid(found) == FIRST


@given(st.lists(st.sampled_from(["0", "1", "2", SECOND, "x", ""]), max_size=4))
def test_only_what_is_shown_is_chosen(tokens: list[str]) -> None:
    """Whatever the variable says: the ordinal is the place of the GPU in it."""
    visible = ",".join(tokens)
    for index, name in enumerate((FIRST, SECOND, THIRD)):
        with contextlib.suppress(ConfigError):
            found = chosen(THREE, str(index), **{VISIBLE: visible})

            assert uuid(found) == name
            assert tokens[found.ordinal] in {str(index), name}


def test_cuda_and_nvml_name_one_gpu() -> None:
    """CUDA puts the same word before the UUID of an instance."""
    assert same_device("GPU-C100", "MIG-c100")
    assert not same_device("GPU-c1", "GPU-c100")
