"""The broker's memory as others see it: the policy, and people."""

from __future__ import annotations

from horus_lab.broker import accounting
from horus_lab.broker.settings import BrokerSettings
from horus_lab.broker.state import State
from horus_lab.policy.cluster import ClusterView, DeviceView, QueuedView, ResidentView
from horus_lab.records import (
    Basis,
    Device,
    DeviceState,
    Health,
    Job,
    JobState,
    Prediction,
    Resident,
)


def cluster_view(state: State, settings: BrokerSettings, now: float) -> ClusterView:
    """Everything that the policy may look at."""
    return ClusterView(
        devices=tuple(device_view(state, device) for device in state.devices.values()),
        queue=tuple(queued_view(state, settings, job, now) for job in state.queue()),
        usage=dict(state.usage),
    )


def device_view(state: State, device: Device) -> DeviceView:
    """One device: its residents, and whether anyone may join."""
    use = state.uses.get(device.uuid)
    residents = tuple(_resident_view(state, device, job) for job in state.residents(device.uuid))
    lingering = sum(
        one.charged_bytes for one in state.lingering.values() if one.device_uuid == device.uuid
    )
    if use is None:
        return DeviceView(
            device=device,
            healthy=False,
            why_unhealthy="has not been looked at yet",
            unmanaged_bytes=None,
            lingering_bytes=lingering,
            residents=residents,
        )
    health = use.reading.health
    why = next(iter(use.reading.unknown.values()), "") if health is not Health.OK else ""
    return DeviceView(
        device=device,
        healthy=health is Health.OK,
        why_unhealthy=why or (f"is {health.value}" if health is not Health.OK else ""),
        unmanaged_bytes=unmanaged_bytes(state, device.uuid),
        lingering_bytes=lingering,
        residents=residents,
    )


def unmanaged_bytes(state: State, device_uuid: str) -> int | None:
    """In use by nobody that was granted: foreign processes, and kernels that wait or idle."""
    use = state.uses.get(device_uuid)
    if use is None or use.unmanaged_bytes is None:
        return None
    holders = {job.id for job in state.residents(device_uuid)}
    waiting = sum(count for job_id, count in use.by_job.items() if job_id not in holders)
    return use.unmanaged_bytes + waiting


def queued_view(state: State, settings: BrokerSettings, job: Job, now: float) -> QueuedView:
    """One waiting job."""
    return QueuedView(
        job_id=job.id,
        owner=job.owner,
        name=job.request.name,
        submitted_at=job.submitted_at,
        predictions=job.predictions,
        constraints=job.request.constraints,
        devices=job.request.devices,
        steps=job.request.steps,
        held_bytes={
            uuid: use.by_job[job.id] for uuid, use in state.uses.items() if job.id in use.by_job
        },
        absent=is_absent(job, settings, now),
    )


def is_absent(job: Job, settings: BrokerSettings, now: float) -> bool:
    """Whether the waiting client has not asked for a while."""
    return now - job.last_contact_at > settings.absent_seconds


def _resident_view(state: State, device: Device, job: Job) -> ResidentView:
    slot = next(s for s in job.lease.slots if s.device_uuid == device.uuid) if job.lease else None
    use = state.uses.get(device.uuid)
    unknown = Prediction(device_model=device.spec.model, basis=Basis.UNKNOWN)
    return ResidentView(
        job_id=job.id,
        owner=job.owner,
        name=job.request.name,
        reserved_bytes=slot.reserved_bytes if slot else 0,
        prediction=job.predictions.get(device.uuid, unknown),
        measured_bytes=use.by_job.get(job.id) if use else None,
        max_slowdown=job.request.constraints.max_slowdown,
        exclusive=job.request.constraints.exclusive,
        remaining_seconds=accounting.remaining_seconds(job, state.paces.get(job.id)),
    )


def device_states(state: State) -> tuple[DeviceState, ...]:
    """Every device as people see it."""
    return tuple(_device_state(state, device) for device in state.devices.values())


def _device_state(state: State, device: Device) -> DeviceState:
    use = state.uses.get(device.uuid)
    residents = state.residents(device.uuid)
    shown = []
    for job in residents:
        slot = (
            next(s for s in job.lease.slots if s.device_uuid == device.uuid) if job.lease else None
        )
        prediction = job.predictions.get(device.uuid)
        shown.append(
            Resident(
                job_id=job.id,
                name=job.request.name,
                owner=job.owner,
                notebook=job.request.notebook,
                state=job.state,
                reserved_bytes=slot.reserved_bytes if slot else 0,
                measured_bytes=use.by_job.get(job.id) if use else None,
                predicted_utilization=prediction.utilization if prediction else None,
                measured_utilization=use.utilization_by_job.get(job.id) if use else None,
                slowdown=slot.slowdown if slot else None,
                measured_slowdown=job.measured.slowdown,
            )
        )
    return DeviceState(
        device=device,
        reading=use.reading if use else None,
        reserved_bytes=sum(one.reserved_bytes for one in shown),
        unmanaged_bytes=unmanaged_bytes(state, device.uuid),
        residents=tuple(shown),
    )


def has_running_neighbours(state: State, job: Job) -> bool:
    """Whether anybody else trains on one of the job's devices."""
    if job.lease is None:
        return False
    active = (JobState.RUNNING, JobState.SUSPECT, JobState.FENCED)
    return any(
        other.id != job.id and other.state in active
        for slot in job.lease.slots
        for other in state.residents(slot.device_uuid)
    )
