"""The broker's state as others see it: the policy, and people."""

from __future__ import annotations

from horus_lab.broker import accounting
from horus_lab.broker.settings import BrokerSettings
from horus_lab.broker.state import State, slots_of
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import ClusterView, DeviceView, QueuedView, ResidentView
from horus_lab.records import (
    Basis,
    Device,
    DeviceState,
    DeviceUse,
    Health,
    Interval,
    Job,
    Prediction,
    Resident,
)


def cluster_view(state: State, settings: BrokerSettings, now: float) -> ClusterView:
    """Everything that the policy may look at."""
    return ClusterView(
        devices=tuple(
            device_view(state, settings, device, now) for device in state.devices.values()
        ),
        queue=tuple(queued_view(state, settings, job, now) for job in state.queue()),
        usage=dict(state.usage),
    )


def device_view(state: State, settings: BrokerSettings, device: Device, now: float) -> DeviceView:
    """One device: its residents, and whether anyone may join them."""
    why = why_closed(state, settings, device.uuid, now)
    return DeviceView(
        device=device,
        healthy=not why,
        why_unhealthy=why,
        unmanaged_bytes=unmanaged_bytes(state, settings, device.uuid, now),
        lingering_bytes=lingering_bytes(state, device.uuid),
        residents=tuple(
            resident_view(state, device, job, now) for job in state.residents(device.uuid)
        ),
    )


def why_closed(state: State, settings: BrokerSettings, uuid: str, now: float) -> str:
    """Why nobody may be placed on the device, in a few words; empty where somebody may.

    Memory that cannot be told closes a device too, and is not said here: the policy sees it as
    `unmanaged_bytes` being `None`.
    """
    if uuid in state.vanished:
        return "has vanished"
    use = state.uses.get(uuid)
    if use is None:
        return "has not been looked at yet"
    if is_stale(use, settings, now):
        return f"was last looked at {max(0.0, now - use.reading.read_at):.0f} s ago"
    if use.reading.health is not Health.OK:
        detail = next(iter(use.reading.unknown.values()), "")
        return f"is {use.reading.health.value}" + (f": {detail}" if detail else "")
    return ""


def is_stale(use: DeviceUse, settings: BrokerSettings, now: float) -> bool:
    """Whether a look is too old to say what is in use now."""
    return now - use.reading.read_at > settings.reading_seconds


def unmanaged_bytes(state: State, settings: BrokerSettings, uuid: str, now: float) -> int | None:
    """In use by nobody that was granted: foreign processes, and kernels that wait or idle.

    `None`: unknown, because nobody looked, lately or at all, or because the look did not show it.
    """
    use = state.uses.get(uuid)
    if use is None or use.unmanaged_bytes is None or is_stale(use, settings, now):
        return None
    charged = {job.id for job in state.residents(uuid)} | {
        job_id for job_id, rest in state.lingering.items() if uuid in rest.charges
    }
    others = sum(held for job_id, held in use.by_job.items() if job_id not in charged)
    return use.unmanaged_bytes + others


def lingering_bytes(state: State, uuid: str) -> int:
    """Of ended jobs, and not yet seen free."""
    return sum(rest.charges.get(uuid, 0) for rest in state.lingering.values())


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
        absent=is_absent(state, settings, job, now),
    )


def is_absent(state: State, settings: BrokerSettings, job: Job, now: float) -> bool:
    """Whether the waiting client has not asked for a while, or not since a restart."""
    live = state.live.get(job.id)
    if live is None or live.contact_at is None:
        return True
    return now - live.contact_at > settings.absent_seconds


def resident_view(state: State, device: Device, job: Job, now: float) -> ResidentView:
    """One job that holds a slot on the device."""
    use = state.uses.get(device.uuid)
    return ResidentView(
        job_id=job.id,
        owner=job.owner,
        name=job.request.name,
        reserved_bytes=slots_of(job)[device.uuid],
        prediction=prediction_on(job, device),
        measured_bytes=use.by_job.get(job.id) if use else None,
        max_slowdown=job.request.constraints.max_slowdown,
        exclusive=job.request.constraints.exclusive,
        remaining_seconds=accounting.remaining_seconds(job, state.live.get(job.id), now),
    )


def prediction_on(job: Job, device: Device) -> Prediction:
    """The job's prediction for the device; an unknown one where it has none."""
    found = job.predictions.get(device.uuid)
    return found or Prediction(device_model=device.spec.model, basis=Basis.UNKNOWN)


def device_states(
    state: State,
    settings: BrokerSettings,
    interference: InterferenceModel | None,
    now: float,
) -> tuple[DeviceState, ...]:
    """Every device as people see it. Bytes not yet seen free count as reserved."""
    return tuple(
        _device_state(state, settings, interference, device, now)
        for device in state.devices.values()
    )


def _device_state(
    state: State,
    settings: BrokerSettings,
    interference: InterferenceModel | None,
    device: Device,
    now: float,
) -> DeviceState:
    use = state.uses.get(device.uuid)
    jobs = state.residents(device.uuid)
    slowdowns: tuple[Interval | None, ...]
    if interference is None:
        slowdowns = tuple(_slowdown_at_grant(job, device.uuid) for job in jobs)
    else:
        predictions = [prediction_on(job, device) for job in jobs]
        slowdowns = interference.slowdowns(predictions, device.spec) if jobs else ()
    residents = tuple(
        Resident(
            job_id=job.id,
            name=job.request.name,
            owner=job.owner,
            notebook=job.request.notebook,
            state=job.state,
            reserved_bytes=slots_of(job)[device.uuid],
            measured_bytes=use.by_job.get(job.id) if use else None,
            predicted_utilization=prediction_on(job, device).utilization,
            measured_utilization=use.utilization_by_job.get(job.id) if use else None,
            slowdown=slowdown,
            measured_slowdown=job.measured.slowdown,
        )
        for job, slowdown in zip(jobs, slowdowns, strict=True)
    )
    reserved = sum(resident.reserved_bytes for resident in residents)
    return DeviceState(
        device=device,
        reading=use.reading if use else None,
        reserved_bytes=reserved + lingering_bytes(state, device.uuid),
        unmanaged_bytes=unmanaged_bytes(state, settings, device.uuid, now),
        residents=residents,
    )


def _slowdown_at_grant(job: Job, uuid: str) -> Interval | None:
    slots = job.lease.slots if job.lease else ()
    return next((slot.slowdown for slot in slots if slot.device_uuid == uuid), None)
