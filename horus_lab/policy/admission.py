"""Whether one job may join one device now: every check, in whole numbers where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import DeviceView, QueuedView
from horus_lab.policy.memory import reservation_bytes
from horus_lab.records import (
    Basis,
    DeviceKind,
    DeviceSpec,
    Interval,
    Obstacle,
    ObstacleKind,
    Prediction,
    Slot,
)

# How far from the middle towards the 90th percentile, and past it, a slowdown stays within its
# bound. On measured pairs of models that the fit had not seen, 97 % of the pairs that this admits
# at a bound of 15 % keep it (benchmarks/interference).
CONFIDENCE_WEIGHT = 1.5

# On a CPU the interval is that of the loads alone, and its end is held against the bound.
CPU_CONFIDENCE_WEIGHT = 1.0

_ROUNDING = 1e-9


class Admitted(NamedTuple):
    """The slot that the job would get, and everybody's slowdown then, residents first."""

    slot: Slot
    slowdowns: tuple[Interval | None, ...]


class Standing(NamedTuple):
    """What every check of a device needs, worked out once for all the jobs that ask.

    Attributes:
        room_bytes: capacity less the margin, the residents' charges and what ended jobs hold; what
            is in use unmanaged is not taken off yet.
        exclusive_id: the resident that wants no neighbours, if any.
        unknown_id: a resident whose utilization is unknown, if any.
    """

    device: DeviceView
    room_bytes: int
    exclusive_id: str | None
    unknown_id: str | None


def standing(device: DeviceView) -> Standing:
    """The device as the checks see it."""
    capacity = device.device.capacity_bytes - device.device.margin_bytes
    charged = sum(resident.charged_bytes for resident in device.residents)
    exclusive = unknown = None
    for resident in device.residents:
        if exclusive is None and resident.exclusive:
            exclusive = resident.job_id
        if unknown is None and resident.prediction.utilization is None:
            unknown = resident.job_id
    return Standing(device, capacity - charged - device.lingering_bytes, exclusive, unknown)


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
    seen = standing(device)
    reservation = fits(job, seen)
    if isinstance(reservation, Obstacle):
        return reservation
    return bears(job, seen, reservation, interference)


def fits(job: QueuedView, seen: Standing) -> int | Obstacle:
    """Every check but that of slowdowns, which costs most: the reservation, or what fails."""
    device = seen.device
    uuid = device.device.uuid
    wanted = job.constraints.device_uuids
    if wanted and uuid not in wanted:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.NOT_ALLOWED)
    if not device.healthy:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.UNHEALTHY)
    prediction = job.predictions.get(uuid)
    reservation = reservation_bytes(prediction) if prediction is not None else None
    if prediction is None or reservation is None:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.UNKNOWN_PREDICTION)
    unmanaged = device.unmanaged_bytes
    if unmanaged is None:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.UNKNOWN_MEMORY)
    if device.residents:
        refusal = _company(job, seen, prediction)
        if refusal is not None:
            return refusal
    lacking = reservation - free_bytes(job, seen)
    if lacking > 0:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.MEMORY, lacking_bytes=lacking)
    return reservation


def bears(
    job: QueuedView, seen: Standing, reservation: int, interference: InterferenceModel
) -> Admitted | Obstacle:
    """Whether everybody bears the others: the slot, or whose bound would break.

    The job `fits` with this reservation.
    """
    device = seen.device
    uuid, spec = device.device.uuid, device.device.spec
    prediction = job.predictions[uuid]
    everyone = [*(resident.prediction for resident in device.residents), prediction]
    slowdowns = interference.slowdowns(everyone, spec)
    for resident, slowdown in zip(device.residents, slowdowns[:-1], strict=True):
        value = cautious(slowdown, spec)
        if value is None or value > resident.max_slowdown:
            return Obstacle(
                device_uuid=uuid,
                kind=ObstacleKind.SLOWDOWN_RESIDENT,
                slowdown=value,
                bound=resident.max_slowdown,
                job_id=resident.job_id,
            )
    own, bound = cautious(slowdowns[-1], spec), job.constraints.max_slowdown
    if own is None or own > bound:
        return Obstacle(
            device_uuid=uuid, kind=ObstacleKind.SLOWDOWN_SELF, slowdown=own, bound=bound
        )
    loss = _loss(device, slowdowns)
    if loss is not None:
        return loss
    slot = Slot(
        device_uuid=uuid,
        reserved_bytes=reservation,
        utilization=prediction.utilization.p50 if prediction.utilization else None,
        slowdown=slowdowns[-1],
    )
    return Admitted(slot, slowdowns)


def _loss(device: DeviceView, slowdowns: Sequence[Interval | None]) -> Obstacle | None:
    """Whose slowdown is worst, where everybody would be better off taking turns.

    That is where the rates, 1 / slowdown each, sum to less than one job's alone. Somebody is then
    slowed by more than the number of jobs.
    """
    middles = [slowdown.p50 for slowdown in slowdowns if slowdown is not None]
    if sum(1.0 / middle for middle in middles) >= 1.0 - _ROUNDING:
        return None
    worst = max(range(len(middles)), key=middles.__getitem__)
    is_resident = worst < len(device.residents)
    return Obstacle(
        device_uuid=device.device.uuid,
        kind=ObstacleKind.SLOWDOWN_RESIDENT if is_resident else ObstacleKind.SLOWDOWN_SELF,
        slowdown=middles[worst],
        bound=float(len(middles)),
        job_id=device.residents[worst].job_id if is_resident else None,
    )


def free_bytes(job: QueuedView, seen: Standing) -> int:
    """Bytes that can be promised to this job; below zero where too much is promised already."""
    unmanaged = seen.device.unmanaged_bytes or 0
    held = job.held_bytes.get(seen.device.device.uuid, 0) if job.held_bytes else 0
    return seen.room_bytes - max(0, unmanaged - held)


def cautious(slowdown: Interval | None, spec: DeviceSpec) -> float | None:
    """The slowdown that is held against a bound."""
    if slowdown is None:
        return None
    weight = CPU_CONFIDENCE_WEIGHT if spec.kind is DeviceKind.CPU else CONFIDENCE_WEIGHT
    return slowdown.p50 + weight * (slowdown.p90 - slowdown.p50)


def _company(job: QueuedView, seen: Standing, prediction: Prediction) -> Obstacle | None:
    """Why the job and the residents may not be together at all."""
    uuid = seen.device.device.uuid
    residents = seen.device.residents
    if job.constraints.exclusive:
        return Obstacle(
            device_uuid=uuid, kind=ObstacleKind.EXCLUSIVE_SELF, job_id=residents[0].job_id
        )
    if seen.exclusive_id is not None:
        return Obstacle(
            device_uuid=uuid, kind=ObstacleKind.EXCLUSIVE_RESIDENT, job_id=seen.exclusive_id
        )
    if len(residents) >= seen.device.device.max_residents:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.RESIDENTS_FULL)
    if prediction.basis is Basis.UNKNOWN or prediction.utilization is None:
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.UNKNOWN_PREDICTION)
    if seen.unknown_id is not None:
        return Obstacle(
            device_uuid=uuid, kind=ObstacleKind.UNKNOWN_PREDICTION, job_id=seen.unknown_id
        )
    return None
