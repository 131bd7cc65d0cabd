"""Small clusters by hand, and a slowdown that is easy to work out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horus_lab.policy.cluster import ClusterView, DeviceView, QueuedView, ResidentView
from horus_lab.records import (
    Basis,
    Constraints,
    Device,
    DeviceKind,
    DeviceSpec,
    Interval,
    Prediction,
)

GIB = 2**30


class Sharing:
    """Everybody's slowdown is max(1, the sum of loads): processor sharing, without an interval."""

    def slowdowns(
        self, residents: Sequence[Prediction], spec: DeviceSpec
    ) -> tuple[Interval | None, ...]:
        if len(residents) == 1:
            return (Interval(1.0, 1.0, 1.0),)
        loads = [r.utilization.p50 if r.utilization else None for r in residents]
        if None in loads:
            return (None,) * len(residents)
        total = max(1.0, sum(load for load in loads if load is not None))
        return (Interval(total, total, total),) * len(residents)


def prediction(
    memory: float | None = 4.0, load: float | None = 0.5, step: float | None = 0.1
) -> Prediction:
    def exact(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, value, value)

    return Prediction(
        device_model="A",
        basis=Basis.MODEL if memory is not None else Basis.UNKNOWN,
        memory_bytes=exact(None if memory is None else memory * GIB),
        utilization=exact(load),
        step_seconds=exact(step),
    )


def gpu(index: int = 0, *, capacity: int = 24, model: str = "A", **options: Any) -> DeviceView:
    spec = DeviceSpec(
        model=model,
        kind=DeviceKind.NVIDIA,
        memory_bytes=capacity * GIB,
        peak_flops={"float32": 1e13},
        memory_bandwidth=1e12,
        multiprocessors=80,
        launch_seconds=5e-6,
        context_bytes=GIB,
    )
    device = Device(
        uuid=f"GPU-{index}",
        name=f"GPU {index}",
        index=index,
        kind=DeviceKind.NVIDIA,
        capacity_bytes=capacity * GIB,
        margin_bytes=options.pop("margin", 0),
        spec=spec,
        max_residents=options.pop("max_residents", 8),
    )
    return DeviceView(device=device, **options)


def resident(
    job_id: str = "r", *, memory: float = 4.0, load: float | None = 0.5, **options: Any
) -> ResidentView:
    return ResidentView(
        job_id=job_id,
        owner=options.pop("owner", "ana"),
        name=options.pop("name", "resnet50"),
        reserved_bytes=int(memory * GIB),
        prediction=prediction(memory, load),
        **options,
    )


def job(
    job_id: str = "j",
    *,
    memory: float | None = 4.0,
    load: float | None = 0.5,
    at: float = 0.0,
    owner: str = "ben",
    on: int = 8,
    steps: int | None = None,
    devices: int = 1,
    held: dict[str, int] | None = None,
    absent: bool = False,
    **constraints: Any,
) -> QueuedView:
    return QueuedView(
        job_id=job_id,
        owner=owner,
        name=f"net-{job_id}",
        submitted_at=at,
        predictions={f"GPU-{index}": prediction(memory, load) for index in range(on)},
        constraints=Constraints(**constraints),
        devices=devices,
        steps=steps,
        held_bytes=held or {},
        absent=absent,
    )


def cluster(*devices: DeviceView, queue: Sequence[QueuedView] = (), **usage: float) -> ClusterView:
    return ClusterView(devices=devices, queue=tuple(queue), usage=usage)
