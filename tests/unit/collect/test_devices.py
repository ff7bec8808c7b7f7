"""Rules of collect.devices, collect.listed_devices and collect.chip_limits."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys

import pynvml
import pytest

from fakes.nvml import FakeGpu, FakeNvml
from pytest_gpuperf.collect.chip_limits import chip_limits, target_capability
from pytest_gpuperf.collect.cuda_device import DriverFacts
from pytest_gpuperf.collect.devices import bare_uuid, query_devices
from pytest_gpuperf.collect.environment import known_facts
from pytest_gpuperf.collect.listed_devices import free_device_bytes, with_driver_facts
from pytest_gpuperf.model.environment import (
    Device,
    Environment,
    differences,
    family_facts,
)
from pytest_gpuperf.model.metric import Family

CAPABILITIES = [
    (7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9),
    (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
]  # fmt: skip


def test_a_device_is_read_in_si_units() -> None:
    """Clocks are hertz, power is watts, memory is bytes."""
    query = query_devices(FakeNvml(FakeGpu()))

    assert query.reason is None
    assert query.devices == (
        Device(
            index=0,
            uuid="GPU-00000000-0000-0000-0000-000000000000",
            name="NVIDIA H200",
            memory_bytes=150_754_820_096,
            sm_count=132,
            compute_capability=(9, 0),
            mig=False,
            ecc=True,
            max_sm_clock_hz=1_980_000_000,
            max_memory_clock_hz=3_201_000_000,
            power_limit_watts=700.0,
            enforced_power_limit_watts=700.0,
            application_sm_clock_hz=1_980_000_000,
            application_memory_clock_hz=3_201_000_000,
            driver_version="580.95.05",
            vendor="nvidia",
            memory_bus_bits=6016,
        ),
    )


def test_devices_keep_the_drivers_order() -> None:
    """The index is the driver's own."""
    query = query_devices(FakeNvml(FakeGpu(uuid="GPU-b"), FakeGpu(uuid="GPU-a")))

    assert [(each.index, each.uuid) for each in query.devices] == [
        (0, "GPU-b"),
        (1, "GPU-a"),
    ]


def test_bytes_are_text() -> None:
    """An old pynvml answers in bytes, and nobody sees it."""
    query = query_devices(
        FakeNvml(FakeGpu(name=b"Tesla V100", uuid=b"GPU-1"), driver_version=b"450.80")
    )

    assert query.devices[0].name == "Tesla V100"
    assert query.devices[0].uuid == "GPU-1"
    assert query.devices[0].driver_version == "450.80"


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetMemoryInfo", ["memory_bytes"]),
        ("nvmlDeviceGetCudaComputeCapability", ["compute_capability"]),
        ("nvmlDeviceGetMaxClockInfo", ["max_sm_clock_hz", "max_memory_clock_hz"]),
        ("nvmlDeviceGetPowerManagementDefaultLimit", ["power_limit_watts"]),
        ("nvmlDeviceGetEnforcedPowerLimit", ["enforced_power_limit_watts"]),
        (
            "nvmlDeviceGetApplicationsClock",
            ["application_sm_clock_hz", "application_memory_clock_hz"],
        ),
        ("nvmlDeviceGetEccMode", ["ecc"]),
        ("nvmlDeviceGetMigMode", ["mig"]),
        ("nvmlDeviceGetNumGpuCores", ["sm_count"]),
        ("nvmlDeviceGetMemoryBusWidth", ["memory_bus_bits"]),
    ],
)
def test_what_a_device_does_not_support_is_none(
    function: str, fields: list[str]
) -> None:
    """A refused reading is None, and the device is there all the same."""
    gpu = FakeGpu(errors={function: pynvml.NVML_ERROR_NOT_SUPPORTED})
    query = query_devices(FakeNvml(gpu))

    assert query.reason is None
    assert [getattr(query.devices[0], field) for field in fields] == [None] * len(
        fields
    )


def test_a_limit_that_was_set_is_the_one_in_force() -> None:
    """`nvidia-smi -pl` and `-ac` change neither the default limit nor the top clock."""
    clocks = {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 3201}
    gpu = FakeGpu(enforced_milliwatts=450_000, application_clocks_mhz=clocks)
    (device,) = query_devices(FakeNvml(gpu)).devices

    assert (device.power_limit_watts, device.enforced_power_limit_watts) == (700, 450)
    assert device.application_sm_clock_hz == 1_410_000_000
    assert device.max_sm_clock_hz == 1_980_000_000


def test_a_binding_without_application_clocks_gives_none() -> None:
    """They are to leave NVML, and whatever else it says counts."""
    nvml = FakeNvml(FakeGpu())
    del nvml.nvmlDeviceGetApplicationsClock
    (device,) = query_devices(nvml).devices

    assert device.application_sm_clock_hz is None
    assert device.max_sm_clock_hz == 1_980_000_000


@pytest.mark.parametrize(
    ("capability", "cores", "sm_count"),
    [
        ((7, 0), 5120, 80),  # V100
        ((7, 5), 2560, 40),  # T4
        ((8, 0), 6912, 108),  # A100
        ((8, 6), 10752, 84),  # A40
        ((9, 0), 16896, 132),  # H100
        ((12, 0), 21760, 170),  # RTX 5090
        ((6, 0), 3584, None),  # chips that have 64 and chips that have 128
    ],
)
def test_multiprocessors_are_counted_by_their_cores(
    capability: tuple[int, int], cores: int, sm_count: int | None
) -> None:
    """64 cores make one up to 8.0, 128 from 8.6 on."""
    gpu = FakeGpu(compute_capability=capability, core_count=cores)
    (device,) = query_devices(FakeNvml(gpu)).devices

    assert device.sm_count == sm_count


def test_a_slice_has_its_own_multiprocessors() -> None:
    """Of a slice of a GPU the name gives the profile, and NVML the multiprocessors."""
    gpu = FakeGpu(name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", slice_sm_count=14)
    (device,) = query_devices(FakeNvml(gpu)).devices

    assert (device.mig_profile, device.sm_count) == ("1g.10gb", 14)


def test_the_cuda_driver_adds_what_nvml_does_not_know() -> None:
    """Rated clock and L2 come from it; NVML's clocks and memory stay."""
    (device,) = query_devices(FakeNvml(FakeGpu())).devices
    facts = DriverFacts(
        name="NVIDIA H200",
        sm_count=132,
        rated_clock_hz=1_980_000_000,
        memory_clock_hz=None,
        memory_bus_bits=None,
        l2_bytes=62_914_560,
        integrated=False,
    )
    known = with_driver_facts(device, facts)

    assert with_driver_facts(device, None) is device
    assert (known.rated_clock_hz, known.l2_bytes) == (1_980_000_000, 62_914_560)
    assert known.integrated is False
    assert (known.max_memory_clock_hz, known.memory_bus_bits) == (3_201_000_000, 6016)
    assert known.memory_bytes == device.memory_bytes


def test_a_driver_that_sees_a_slice_names_it() -> None:
    """NVML lists the whole GPU; the process may have a part of it alone."""
    (device,) = query_devices(FakeNvml(FakeGpu(mig=1))).devices
    facts = DriverFacts(
        name="NVIDIA H200 MIG 1g.18gb",
        sm_count=16,
        rated_clock_hz=None,
        memory_clock_hz=3_201_000_000,
        memory_bus_bits=None,
        l2_bytes=None,
        integrated=None,
    )
    known = with_driver_facts(device, facts)

    assert (known.name, known.mig_profile) == ("NVIDIA H200 MIG 1g.18gb", "1g.18gb")
    assert known.sm_count == 16


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND),
        ("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
        ("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN),
        ("nvmlDeviceGetCount", pynvml.NVML_ERROR_UNKNOWN),
    ],
)
def test_no_driver_is_a_reason_and_no_error(function: str, code: int) -> None:
    """Whatever NVML refuses, the answer is no devices and one sentence."""
    nvml = FakeNvml(FakeGpu(), errors={function: code})
    query = query_devices(nvml)

    assert query.devices == ()
    assert query.reason is not None
    assert "NVML" in query.reason
    assert "\n" not in query.reason
    assert nvml.open_count == 0


def test_no_gpu_is_a_reason() -> None:
    """A driver that knows no GPU says so."""
    query = query_devices(FakeNvml())

    assert query.devices == ()
    assert query.reason == "the driver lists no GPU"


def test_a_lost_gpu_hides_no_other() -> None:
    """A GPU that does not answer is left out by name; the others stay."""
    lost = FakeGpu(errors={"nvmlDeviceGetUUID": pynvml.NVML_ERROR_GPU_IS_LOST})
    query = query_devices(FakeNvml(lost, FakeGpu(uuid="GPU-ok")))

    assert [each.uuid for each in query.devices] == ["GPU-ok"]
    assert query.reason is not None
    assert query.reason.startswith("GPU 0 does not answer: ")


def test_the_library_is_let_go() -> None:
    """Every start of NVML is ended, and an error of the end changes nothing."""
    nvml = FakeNvml(FakeGpu())
    stubborn = FakeNvml(
        FakeGpu(), errors={"nvmlShutdown": pynvml.NVML_ERROR_UNINITIALIZED}
    )

    assert len(query_devices(nvml).devices) == 1
    assert nvml.open_count == 0
    assert len(query_devices(stubborn).devices) == 1


def test_a_machine_without_the_driver_is_told_at_once() -> None:
    """Where there is no driver, its binding is not imported to say so."""
    code = (
        "import sys; from pytest_gpuperf.collect.devices import query_devices;"
        "print(query_devices(library='libnobodyhasthis.so').reason, 'pynvml' in sys.modules)"
    )
    argv = [sys.executable, "-c", code]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    assert "no NVIDIA driver is installed False" in printed


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pynvml there are no devices, and the sentence names what to install."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    query = query_devices(library="libc.so.6")

    assert query.devices == ()
    assert query.reason is not None
    assert "nvidia-ml-py" in query.reason


def test_the_real_library_never_raises() -> None:
    """The same code runs on pynvml itself, with a driver and without."""
    query = query_devices()

    assert bool(query.devices) or query.reason is not None


def test_the_double_is_like_the_real_library() -> None:
    """Every function of the double is pynvml's, and takes as many arguments."""
    for name, function in FakeNvml().functions.items():
        wanted = inspect.signature(getattr(pynvml, name))
        given = inspect.signature(function)

        assert len(given.parameters) <= len(wanted.parameters), name
        wanted.bind(*given.parameters)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_limits_agree_with_each_other(capability: tuple[int, int]) -> None:
    """A block's shared memory and the driver's fill a multiprocessor."""
    limits = chip_limits(capability)

    assert limits is not None
    assert limits.compute_capability == capability
    assert (
        limits.max_shared_per_block_bytes + limits.reserved_shared_per_block_bytes
        == limits.shared_per_sm_bytes
    )
    assert limits.shared_per_sm_bytes % limits.shared_allocation_bytes == 0


@pytest.mark.parametrize(
    ("capability", "warps", "blocks", "shared_bytes"),
    [
        ((7, 5), 32, 16, 65_536),
        ((8, 6), 48, 16, 101_376),
        ((8, 9), 48, 24, 101_376),
        ((9, 0), 64, 32, 232_448),
        ((11, 0), 48, 24, 232_448),
        ((12, 0), 48, 24, 101_376),
    ],
)
def test_limits_are_the_programming_guides(
    capability: tuple[int, int], warps: int, blocks: int, shared_bytes: int
) -> None:
    """The table says what table 27 of the CUDA C++ Programming Guide 13.0 says."""
    limits = chip_limits(capability)

    assert limits is not None
    assert limits.max_warps_per_sm_count == warps
    assert limits.max_blocks_per_sm_count == blocks
    assert limits.max_shared_per_block_bytes == shared_bytes


@pytest.mark.parametrize("capability", [(8, 8), (6, 0), (13, 0), (0, 0)])
def test_an_unknown_chip_has_no_limits(capability: tuple[int, int]) -> None:
    """What no source says is not guessed from a neighbour."""
    assert chip_limits(capability) is None


@pytest.mark.parametrize(
    ("target", "capability"),
    [
        ("sm_75", (7, 5)),
        ("sm_90", (9, 0)),
        ("sm_90a", (9, 0)),
        ("sm_103a", (10, 3)),
        ("sm_120f", (12, 0)),
        ("compute_121", (12, 1)),
        ("gfx942", None),
        ("sm_", None),
        ("sm_9", None),
        ("sm_90x", None),
        ("SM_90", None),
        ("", None),
    ],
)
def test_a_target_names_a_capability(
    target: str, capability: tuple[int, int] | None
) -> None:
    """The last digit is the minor number; what is not a CUDA target is None."""
    assert target_capability(target) == capability


def test_instances_are_listed_with_their_gpu() -> None:
    """Each has a UUID and a profile of its own; an empty place is none."""
    part = FakeGpu(uuid="MIG-a", name="NVIDIA H200 MIG 1g.18gb")
    query = query_devices(FakeNvml(FakeGpu(), FakeGpu(mig=1, slices=(None, part))))

    assert [(each.index, each.mig) for each in query.devices] == [(0, False), (1, True)]
    assert [(each.index, each.uuid, each.mig_profile) for each in query.slices] == [
        (1, "MIG-a", "1g.18gb")
    ]


MACHINE = Environment(
    cpu_model=None, core_count=8, python_minor="3.11", platform="linux"
)
PROFILES = {  # of an H200: multiprocessors and memory [B]
    "1g.18gb": (16, 18_765_316_096),
    "3g.71gb": (60, 75_094_818_816),
    "7g.141gb": (132, 150_323_855_360),
}
# NVML refuses these of an instance, which shares the board with others.
OF_THE_BOARD = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetNumGpuCores",
)


def instance(profile: str, uuid: str) -> FakeGpu:
    """Return an instance of an H200 that is split."""
    sm_count, memory_bytes = PROFILES[profile]
    return FakeGpu(
        uuid=uuid,
        name=f"NVIDIA H200 MIG {profile}",
        slice_sm_count=sm_count,
        memory_bytes=memory_bytes,
        errors=dict.fromkeys(OF_THE_BOARD, pynvml.NVML_ERROR_NOT_SUPPORTED),
    )


def test_instances_of_three_profiles_are_three_devices() -> None:
    """Each has facts of its own, those of the board are unknown, and twins are alike."""
    parts = [instance(profile, f"MIG-{profile}") for profile in PROFILES]
    split = FakeGpu(mig=1, slices=(*parts, instance("1g.18gb", "MIG-twin")))
    *found, twin = query_devices(FakeNvml(split)).slices
    whole = query_devices(FakeNvml(FakeGpu())).devices[0]
    known = [
        family_facts(Family.DEVICE_TIME, known_facts(MACHINE, each))
        for each in (*found, whole)
    ]

    assert [(d.mig_profile, d.sm_count, d.memory_bytes) for d in found] == [
        (profile, *facts) for profile, facts in PROFILES.items()
    ]
    assert all(
        differences(one, other) for one, other in itertools.combinations(known, 2)
    )
    of_twin = known_facts(MACHINE, twin)
    assert not differences(known[0], family_facts(Family.DEVICE_TIME, of_twin))
    assert "max_sm_clock_hz" not in known[0]
    assert "enforced_power_limit_watts" not in known[0]


def test_a_part_is_known_by_its_bare_uuid() -> None:
    """What stands before it is NVML's, and CUDA has one word for both."""
    assert [bare_uuid(each) for each in ("GPU-Aa", "MIG-aa", "aa", "gpu-gpu-a")] == [
        "aa",
        "aa",
        "aa",
        "gpu-a",
    ]


def test_free_memory_is_asked_of_the_device_by_its_name() -> None:
    """NVML is closed afterwards, also where it does not say."""
    nvml = FakeNvml(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", free_bytes=5 << 30))
    silent = FakeNvml(
        FakeGpu(uuid="GPU-b"),
        errors={"nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_UNKNOWN},
    )
    closed = FakeNvml(errors={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})

    assert free_device_bytes("GPU-b", nvml) == 5 << 30
    assert free_device_bytes("GPU-b", silent) is None
    assert free_device_bytes("GPU-b", closed) is None
    assert nvml.open_count == silent.open_count == closed.open_count == 0
