"""What the sampler and the probe say: measured use, health, devices that come and go."""

from __future__ import annotations

from msgspec.structs import replace

from horus_lab.broker import accounting, events
from horus_lab.broker.draft import Draft
from horus_lab.broker.state import State, slots_of
from horus_lab.records import DeviceUse, Job, JobState

_TRAINING = frozenset({JobState.RUNNING, JobState.SUSPECT, JobState.FENCED})
_GIB = 2**30


def measured(draft: Draft, event: events.Measured) -> None:
    """A look at the devices. One that is older than the last look at its device is passed over."""
    fresh: set[str] = set()
    for use in event.uses:
        uuid = use.reading.uuid
        last = draft.state.uses.get(uuid)
        if uuid not in draft.state.devices or uuid in draft.state.vanished:
            continue
        if last is not None and use.reading.read_at < last.reading.read_at:
            continue
        draft.state.uses[uuid] = use
        fresh.add(uuid)
        _settle(draft, use)
    for job in tuple(draft.state.holders()):
        if not fresh.isdisjoint(slots_of(job)):
            _look_at(draft, job, fresh)
    draft.decide = True


def _settle(draft: Draft, use: DeviceUse) -> None:
    """A look after a job's end shows what of its bytes is still in use.

    Where it tells whose bytes are in use, they are in the measured use now, and the charge goes;
    bytes that the look still finds with the ended job stay charged as its own. Where it cannot
    tell, the charge stays until the process tree is proven gone as well.
    """
    uuid = use.reading.uuid
    for job_id, rest in tuple(draft.state.lingering.items()):
        if uuid not in rest.charges or use.reading.read_at <= rest.ended_at:
            continue
        if use.unmanaged_bytes is None and not rest.process_gone:
            continue
        charges = {key: held for key, held in rest.charges.items() if key != uuid}
        left = use.by_job.get(job_id, 0)
        if left:
            charges[uuid] = left
        if charges:
            draft.state.lingering[job_id] = replace(rest, charges=charges)
        else:
            del draft.state.lingering[job_id]
            if not rest.process_gone:
                draft.unwatch(job_id)


def _look_at(draft: Draft, job: Job, fresh: set[str]) -> None:
    uses = [draft.state.uses[uuid] for uuid in slots_of(job) if uuid in fresh]
    memory = [use.by_job[job.id] for use in uses if job.id in use.by_job]
    loads = [load for use in uses if (load := _load(draft.state, job, use)) is not None]
    training = job.state is JobState.RUNNING
    job = replace(
        job,
        measured=accounting.seen(
            job.measured,
            memory_bytes=max(memory, default=None),
            utilization=sum(loads) / len(loads) if loads and training else None,
            shared=draft.state.live[job.id].shared,
        ),
    )
    draft.keep(job)
    draft.save_sometimes(job)
    _warn_if_outgrown(draft, job, uses)


def _load(state: State, job: Job, use: DeviceUse) -> float | None:
    load = use.utilization_by_job.get(job.id)
    if load is None and len(state.residents(use.reading.uuid)) == 1:
        # Alone on a device whose driver does not tell processes apart.
        return use.reading.utilization
    return load


def _warn_if_outgrown(draft: Draft, job: Job, uses: list[DeviceUse]) -> None:
    if draft.state.live[job.id].outgrown:
        return
    for use in uses:
        uuid = use.reading.uuid
        held, reserved = use.by_job.get(job.id, 0), slots_of(job)[uuid]
        if held > reserved:
            draft.state.change(job.id, outgrown=True)
            draft.revise(
                draft.note(
                    job,
                    f"uses {held / _GIB:.2f} GiB of {uuid}, more than the {reserved / _GIB:.2f} "
                    "GiB reserved; it is charged what it uses",
                )
            )
            return


def devices_changed(draft: Draft, event: events.DevicesChanged) -> None:
    """The devices there are now. One that vanished stays known while jobs hold it."""
    state = draft.state
    listed = {device.uuid: device for device in event.devices}
    _forget_gone_bytes(state, set(listed))
    held = {uuid for job in state.holders() for uuid in slots_of(job)}
    held |= {uuid for rest in state.lingering.values() for uuid in rest.charges}
    back = state.vanished & set(listed)
    newly_vanished = held - set(listed) - state.vanished
    for uuid in (set(state.devices) - set(listed)) | back:
        # What was in use before says nothing of what is in use after.
        state.uses.pop(uuid, None)
    kept = {uuid: one for uuid, one in state.devices.items() if uuid in held - set(listed)}
    state.devices = listed | kept
    state.vanished = frozenset(held - set(listed))
    mark_shrunk(state)
    for job in tuple(state.holders()):
        mine = set(slots_of(job))
        notes = [f"{uuid} has vanished; the slot is kept" for uuid in sorted(mine & newly_vanished)]
        notes += [f"{uuid} is back; the slot was kept" for uuid in sorted(mine & back)]
        for why in notes:
            draft.revise(draft.note(draft.state.jobs[job.id], why))
    draft.decide = True


def _forget_gone_bytes(state: State, listed: set[str]) -> None:
    """No look will ever show bytes on a device that is gone; the end of their processes does."""
    for job_id, rest in tuple(state.lingering.items()):
        if not rest.process_gone:
            continue
        charges = {uuid: held for uuid, held in rest.charges.items() if uuid in listed}
        if charges:
            state.lingering[job_id] = replace(rest, charges=charges)
        else:
            del state.lingering[job_id]


def mark_shrunk(state: State) -> None:
    """Find the devices whose reservations do not fit them any more."""
    reserved: dict[str, int] = {}
    for job in state.holders():
        for uuid, held in slots_of(job).items():
            reserved[uuid] = reserved.get(uuid, 0) + held
    state.shrunk = frozenset(
        uuid
        for uuid, device in state.devices.items()
        if reserved.get(uuid, 0) > device.capacity_bytes - device.margin_bytes
    )


def follow_neighbours(state: State) -> None:
    """Keep each training job's `shared` right, and mark the stretch in which it changed."""
    crowd: dict[str, int] = {}
    training = [job for job in state.holders() if job.state in _TRAINING]
    for job in training:
        for uuid in slots_of(job):
            crowd[uuid] = crowd.get(uuid, 0) + 1
    for job in training:
        live = state.live[job.id]
        shared = any(crowd[uuid] > 1 for uuid in slots_of(job))
        if shared != live.shared:
            state.live[job.id] = replace(live, shared=shared, mixed=True)
