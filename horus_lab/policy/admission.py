"""Whether one job may join one device now: every check, in whole numbers where it can be."""

from __future__ import annotations

from typing import NamedTuple

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import DeviceView, QueuedView
from horus_lab.policy.memory import reservation_bytes
from horus_lab.records import Basis, Interval, Obstacle, ObstacleKind, Prediction, Slot

# How far from the middle to the 90th percentile a slowdown has to stay within its bound. On the
# measured pairs, half-way keeps 88 % of the admitted ones within a bound of 15 %, and admits 89 %
# of those that would keep it (benchmarks/interference).
CONFIDENCE_WEIGHT = 0.5


class Admitted(NamedTuple):
    """The slot that the job would get, and everybody's slowdown then, residents first."""

    slot: Slot
    slowdowns: tuple[Interval | None, ...]


def admit(
    job: QueuedView, device: DeviceView, interference: InterferenceModel
) -> Admitted | Obstacle:
    """The slot, or the first check that fails.

    Memory: sum over residents of max(reserved, measured) + unmanaged use, less what the job's own
    process holds already, + what ended jobs still hold + the reservation <= capacity - margin.
    Slowdown: each resident and the job stay within their own bounds, and together they do more
    than one after the other. A job whose utilization is unknown gets no neighbours and is nobody's
    neighbour.
    """
    uuid = device.device.uuid

    def no(kind: ObstacleKind, **details: int | float | str | None) -> Obstacle:
        return Obstacle(device_uuid=uuid, kind=kind, **details)  # type: ignore[arg-type]

    wanted = job.constraints.device_uuids
    if wanted and uuid not in wanted:
        return no(ObstacleKind.NOT_ALLOWED)
    if not device.healthy:
        return no(ObstacleKind.UNHEALTHY)
    prediction = job.predictions.get(uuid)
    reservation = reservation_bytes(prediction) if prediction is not None else None
    if prediction is None or reservation is None:
        return no(ObstacleKind.UNKNOWN_PREDICTION)
    if device.unmanaged_bytes is None:
        return no(ObstacleKind.UNKNOWN_MEMORY)
    refusal = _company(job, device, prediction)
    if refusal is not None:
        kind, job_id = refusal
        return no(kind, job_id=job_id)
    lacking = reservation - free_bytes(job, device)
    if lacking > 0:
        return no(ObstacleKind.MEMORY, lacking_bytes=lacking)
    everyone = [*(resident.prediction for resident in device.residents), prediction]
    slowdowns = interference.slowdowns(everyone, device.device.spec)
    for resident, slowdown in zip(device.residents, slowdowns[:-1], strict=True):
        value = cautious(slowdown)
        if value is None or value > resident.max_slowdown:
            return no(
                ObstacleKind.SLOWDOWN_RESIDENT,
                slowdown=value,
                bound=resident.max_slowdown,
                job_id=resident.job_id,
            )
    own = cautious(slowdowns[-1])
    if own is None or own > job.constraints.max_slowdown:
        return no(ObstacleKind.SLOWDOWN_SELF, slowdown=own, bound=job.constraints.max_slowdown)
    if sum(1.0 / s.p50 for s in slowdowns if s is not None) < 1.0:
        return no(ObstacleKind.SLOWDOWN_SELF, slowdown=own, bound=float(len(slowdowns)))
    slot = Slot(
        device_uuid=uuid,
        reserved_bytes=reservation,
        utilization=prediction.utilization.p50 if prediction.utilization else None,
        slowdown=slowdowns[-1],
    )
    return Admitted(slot, slowdowns)


def free_bytes(job: QueuedView, device: DeviceView) -> int:
    """Bytes that can be promised to this job; below zero where too much is promised already."""
    uuid = device.device.uuid
    charged = sum(resident.charged_bytes for resident in device.residents)
    unmanaged = max(0, (device.unmanaged_bytes or 0) - job.held_bytes.get(uuid, 0))
    capacity = device.device.capacity_bytes - device.device.margin_bytes
    return capacity - charged - unmanaged - device.lingering_bytes


def cautious(slowdown: Interval | None) -> float | None:
    """The slowdown that is held against the bound."""
    if slowdown is None:
        return None
    return slowdown.p50 + CONFIDENCE_WEIGHT * (slowdown.p90 - slowdown.p50)


def _company(
    job: QueuedView, device: DeviceView, prediction: Prediction
) -> tuple[ObstacleKind, str | None] | None:
    """Whether the job and the residents may be together at all."""
    residents = device.residents
    if not residents:
        return None
    first = residents[0].job_id
    if job.constraints.exclusive:
        return ObstacleKind.EXCLUSIVE_SELF, first
    for resident in residents:
        if resident.exclusive:
            return ObstacleKind.EXCLUSIVE_RESIDENT, resident.job_id
    if len(residents) >= device.device.max_residents:
        return ObstacleKind.RESIDENTS_FULL, None
    if prediction.basis is Basis.UNKNOWN or prediction.utilization is None:
        return ObstacleKind.UNKNOWN_PREDICTION, None
    for resident in residents:
        if resident.prediction.utilization is None:
            return ObstacleKind.UNKNOWN_PREDICTION, resident.job_id
    return None
