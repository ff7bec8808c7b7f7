"""Runs made of values, for the tests of reports and of the command."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.activity import KernelShape, KernelUse
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.environment import Device, Environment, Session
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import Completeness, Header, HeaderNote, Run
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.verdict import BaselineSpan, Limit, Outcome, Reason, Verdict
from pytest_gpuperf.model.work import Work

H200 = Device(index=0, uuid="GPU-0", name="NVIDIA H200", driver_version="580.159")

SPAN = BaselineSpan(
    session_count=6,
    first_unix_s=1793600000.0,
    last_unix_s=1795200000.0,
    first_commit="3f2a1c9d5b",
    last_commit="9be01d4c77",
    moved={"torch": ("2.11.0", "2.11.1")},
)


def key(name: str, file: str = "tests/test_gemm.py") -> RecordKey:
    """Return the key of a test's first measurement."""
    return RecordKey(test_id=f"{file}::{name}")


def kernel_use(name: str) -> KernelUse:
    """Return a kernel that ran once, of the smallest shape."""
    shape = KernelShape(
        name=name,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        registers_count=1,
        shared_bytes=0,
        dynamic_shared_bytes=0,
        stack_bytes=0,
    )
    return KernelUse(shape=shape, demangled=None, count=1, total_s=1.0)


def time_of(value_s: float, spread: float = 0.003) -> Estimate:
    """Return a time with its interval."""
    return Estimate(
        metric="time",
        value=value_s,
        unit="s",
        source="events",
        low=value_s * (1 - spread),
        high=value_s * (1 + spread),
        sample_count=50,
    )


def value_of(
    metric: str, number: float, unit: str, *, kernel: str | None = None
) -> Estimate:
    """Return an exact value."""
    return Estimate(
        metric=metric,
        value=number,
        unit=unit,
        source="binary",
        label=SourceLabel.DETECTED,
        kernel=kernel,
    )


def record(
    name: str,
    *estimates: Estimate,
    work: Work | None = None,
    device: Device | None = None,
) -> Record:
    """Return what the main process measured for a test."""
    return Record(
        key=key(name),
        kind=Kind.MEASURE,
        estimates=estimates,
        work=work,
        device=device,
    )


def change(
    effect: float, now: float, *, half: float = 0.008, sees: float = 0.016
) -> Change:
    """Return a change with its interval."""
    return Change(
        effect=effect,
        low=effect - half,
        high=effect + half,
        current=now,
        reference=now / (1 + effect),
        session_count=6,
        run_count=5,
        detectable_effect=sees,
    )


def changed(
    name: str,
    outcome: Outcome,
    reason: Reason,
    moved: Change,
    **more: object,
) -> Verdict:
    """Return the verdict of a changed time."""
    return Verdict(
        key=key(name),
        metric="time",
        outcome=outcome,
        reason=reason,
        threshold=0.05,
        estimate=time_of(moved.current),
        change=moved,
        **more,  # type: ignore[arg-type] # fields of Verdict
    )


REGRESSED = changed(
    "test_gemm[4096]",
    Outcome.REGRESSED,
    Reason.SLOWER_THAN_LIMIT,
    change(0.079, 183e-6),
    confirmations=(0.077, 0.081, 0.079),
    baseline=SPAN,
    detail=("registers 168 -> 232",),
)

REGISTERS = Limit(
    text='registers["rms*"] <= 64',
    metric="registers",
    operator="<=",
    threshold=64,
    unit=None,
    kernel="rms*",
)

FAILED = Verdict(
    key=key("test_registers"),
    metric="registers",
    outcome=Outcome.FAILED,
    reason=Reason.BEYOND_LIMIT,
    limit=REGISTERS,
    estimate=value_of("registers", 72, "count", kernel="rmsnorm"),
)

UNMEASURED = Verdict(
    key=key("test_counters"),
    metric="dram.bytes",
    outcome=Outcome.UNMEASURED,
    reason=Reason.NOT_MEASURED,
    detail=("counters: no permission",),
    remedy="allow counters in the driver",
)


NO_CUPTI = HeaderNote(
    about="cupti",
    text="cupti: the package is not installed; pip install cupti-python",
    code=GapCode.NOT_INSTALLED,
)


def no_gpu(text: str) -> HeaderNote:
    """Return why a run had no GPU."""
    return HeaderNote(about="gpu", text=text, code=GapCode.NO_DEVICE)


def run(
    records: tuple[Record, ...] = (),
    verdicts: tuple[Verdict, ...] = (),
    *,
    expected: int | None = None,
    missing: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    notes: tuple[HeaderNote, ...] = (),
    collectors: tuple[str, ...] = ("host",),
    session_id: str = "s1",
) -> Run:
    """Return a run on one machine."""
    count = len(records) if expected is None else expected
    return Run(
        schema=SCHEMA_VERSION,
        header=Header(
            session=Session(id=session_id, started_unix_s=1795200000.0, host="h"),
            environment=Environment(
                cpu_model="Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz",
                core_count=16,
                python_minor="3.12",
                platform="linux",
            ),
            completeness=Completeness(
                expected_count=count,
                reported_count=count - len(missing),
                missing=missing,
            ),
            options=options or {},
            collectors=collectors,
            sentences=tuple(note.text for note in notes),
            notes=notes,
        ),
        records=records,
        verdicts=verdicts,
    )


def gpu_run() -> Run:
    """Return a run with one of everything, as the design draws it."""
    long_name = "test_attention_backward[bfloat16-8192-causal-128]"
    records = (
        record(
            "test_rmsnorm[8192]",
            time_of(41.2e-6),
            value_of("roofline.fraction", 0.87, "fraction"),
            work=Work(bytes=1e9),
            device=H200,
        ),
        record(
            "test_gemm[4096]",
            time_of(183e-6, 0.004),
            value_of("roofline.fraction", 0.61, "fraction"),
            work=Work(flop=1e12, dtype="bf16"),
            device=H200,
        ),
        record("test_gather[64k]", time_of(9.1e-6, 0.06), device=H200),
        record(long_name, time_of(1.5e-3), device=H200),
        record(
            "test_registers",
            value_of("registers", 72, "count"),
            value_of("stack_bytes", 0, "bytes"),
            value_of("occupancy.theoretical", 0.625, "fraction"),
        ),
    )
    verdicts = (
        FAILED,
        Verdict(
            key=key(long_name),
            metric="time",
            outcome=Outcome.INCONCLUSIVE,
            reason=Reason.STRADDLES_LIMIT,
            limit=Limit(
                text="time <= 1.49 ms",
                metric="time",
                operator="<=",
                threshold=1.49e-3,
                unit="s",
            ),
            estimate=time_of(1.5e-3),
            low=1.48e-3,
            high=1.52e-3,
        ),
        changed(
            "test_rmsnorm[8192]",
            Outcome.UNCHANGED,
            Reason.WITHIN_NOISE,
            change(-0.012, 41.2e-6, sees=0.08),
        ),
        REGRESSED,
        changed(
            "test_gather[64k]",
            Outcome.INCONCLUSIVE,
            Reason.TOO_FEW_SESSIONS,
            change(0.03, 9.1e-6, half=0.06),
            remedy="store 2 more sessions with --gpuperf-update=new",
        ),
        UNMEASURED,
    )
    return run(
        records,
        verdicts,
        expected=7,
        missing=("tests/test_gemm.py::test_lost",),
        options={"gpuperf_baseline": ".gpuperf", "gpuperf_json": "run.json"},
        collectors=("events", "host"),
        notes=(NO_CUPTI,),
    )
