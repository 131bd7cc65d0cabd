"""Records with sensible values; name what matters to the test, leave the rest."""

from __future__ import annotations

from typing import Any

from horus_lab.records import (
    Basis,
    CaptureMethod,
    DeclaredNeeds,
    Device,
    DeviceKind,
    DeviceReading,
    DeviceSpec,
    GraphFeatures,
    Interval,
    JobRequest,
    OperationClass,
    OperationStatistics,
    Phase,
    Prediction,
    ProcessIdentity,
)

GIB = 2**30


def a_device(
    uuid: str = "GPU-a",
    *,
    gib: float = 80.0,
    model: str = "A100-80GB",
    margin_gib: float = 0.5,
    **changes: Any,
) -> Device:
    """A GPU of `gib` GiB. `changes` are fields of `Device`."""
    kind = changes.get("kind", DeviceKind.NVIDIA)
    spec = DeviceSpec(
        model=model,
        kind=DeviceKind.NVIDIA if kind is DeviceKind.SIMULATED else kind,
        memory_bytes=int(gib * GIB),
        peak_flops={"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
        memory_bandwidth=2.0e12,
        multiprocessors=108,
        launch_seconds=8e-6,
        context_bytes=GIB // 2,
    )
    values: dict[str, Any] = {
        "uuid": uuid,
        "name": f"{uuid} ({model})",
        "index": 0,
        "kind": kind,
        "capacity_bytes": int(gib * GIB),
        "margin_bytes": int(margin_gib * GIB),
        "spec": spec,
    }
    return Device(**{**values, **changes})


def a_prediction(
    *,
    gib: float | None = 4.0,
    utilization: float | None = 0.3,
    memory_utilization: float | None = 0.2,
    step_seconds: float | None = 0.1,
    spread: float = 0.1,
    **changes: Any,
) -> Prediction:
    """A prediction whose percentiles lie `spread` (a share) around these middle values.

    `None` is an unknown quantity. `changes` are fields of `Prediction`.
    """
    values: dict[str, Any] = {
        "device_model": "A100-80GB",
        "basis": Basis.MODEL,
        "utilization": _around(utilization, spread, most=1.0),
        "memory_utilization": _around(memory_utilization, spread, most=1.0),
        "memory_startup_bytes": _around(None if gib is None else gib * GIB, spread),
        "memory_bytes": _around(None if gib is None else gib * GIB, spread),
        "step_seconds": _around(step_seconds, spread),
        "explanation": "scripted",
    }
    return Prediction(**{**values, **changes})


def some_features(graph_hash: str = "0123456789abcdef", **changes: Any) -> GraphFeatures:
    """The features of one step of a small convolutional net with Adam, batch 32.

    `changes` are fields of `GraphFeatures`.
    """
    parameters = 1_000_000
    values: dict[str, Any] = {
        "method": CaptureMethod.FAKE_STEP,
        "confidence": 1.0,
        "graph_hash": graph_hash,
        "module_name": "Net",
        "samples": 32,
        "operations": (
            OperationStatistics(
                operation=OperationClass.CONVOLUTION,
                phase=Phase.FORWARD,
                launches=10,
                flops=2e9,
                bytes_moved=100_000_000,
            ),
            OperationStatistics(
                operation=OperationClass.CONVOLUTION,
                phase=Phase.BACKWARD,
                launches=20,
                flops=4e9,
                bytes_moved=200_000_000,
            ),
            OperationStatistics(
                operation=OperationClass.OPTIMIZER,
                phase=Phase.OPTIMIZER,
                launches=10,
                flops=1e7,
                bytes_moved=28_000_000,
            ),
        ),
        "flops": 6.01e9,
        "bytes_moved": 328_000_000,
        "launches": 40,
        "dtype_flops": {"float32": 6.01e9},
        "parameters": parameters,
        "parameter_bytes": 4 * parameters,
        "gradient_bytes": 4 * parameters,
        "optimizer_state_bytes": 8 * parameters,
        "buffer_bytes": 4_096,
        "input_bytes": 32 * 3 * 64 * 64 * 4,
        "saved_activation_bytes": 60_000_000,
        "peak_live_bytes": 80_000_000,
    }
    return GraphFeatures(**{**values, **changes})


def a_process(pid: int = 4242, **changes: Any) -> ProcessIdentity:
    """A process that nobody started: for scripted process tables."""
    values: dict[str, Any] = {
        "boot_id": "scripted-boot",
        "pid_namespace": 4026531836,
        "pid": pid,
        "start_ticks": 1000 + pid,
    }
    return ProcessIdentity(**{**values, **changes})


def a_request(name: str = "train", *, gib: float | None = 4.0, **changes: Any) -> JobRequest:
    """A request by process 4242 that declares `gib` GiB; with `gib=None`, with features instead.

    The request id follows the name. `changes` are fields of `JobRequest`.
    """
    values: dict[str, Any] = {
        "request_id": f"request-{name}",
        "name": name,
        "process": a_process(),
    }
    if gib is None:
        values["features"] = some_features()
    else:
        values["declared"] = DeclaredNeeds(memory_bytes=int(gib * GIB), utilization=0.3)
    return JobRequest(**{**values, **changes})


def a_reading(
    uuid: str = "GPU-a", *, used_gib: float | None = 0.0, **changes: Any
) -> DeviceReading:
    """A healthy device's reading. `changes` are fields of `DeviceReading`."""
    values: dict[str, Any] = {
        "uuid": uuid,
        "read_at": 1_000_000.0,
        "utilization": 0.0,
        "memory_utilization": 0.0,
        "memory_used_bytes": None if used_gib is None else int(used_gib * GIB),
    }
    return DeviceReading(**{**values, **changes})


def _around(middle: float | None, spread: float, *, most: float | None = None) -> Interval | None:
    if middle is None:
        return None
    low, high = middle * (1 - spread), middle * (1 + spread)
    return Interval(low, middle, high if most is None else max(middle, min(most, high)))
