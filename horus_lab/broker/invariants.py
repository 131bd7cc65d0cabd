"""What must always hold. Checked after every event in tests, and by the service on demand."""

from __future__ import annotations

from horus_lab.broker.state import State, slots_of
from horus_lab.broker.transitions import ALLOWED
from horus_lab.records import Job, JobState


class InvariantBroken(AssertionError):
    """A defect of Horus Lab itself: what must always hold does not. Says which and where."""


def check(state: State) -> None:
    """Hold the whole state against its rules.

    Raises:
        InvariantBroken: with the rule and the job or device that breaks it.
    """
    _check_index(state)
    fences: dict[int, str] = {}
    for job in state.jobs.values():
        _check_lease(state, job, fences)
        _check_story(job)
    _check_devices(state)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


def _check_index(state: State) -> None:
    """Every job is known once: as live or as ended, and by its request."""
    for job_id, job in state.jobs.items():
        _require(job_id == job.id, f"{job_id}: is kept under another job's id")
        _require((job_id in state.live) != job.state.ended, f"{job_id}: {job.state}, but live")
        _require((job_id in state.ended) == job.state.ended, f"{job_id}: {job.state}, but ended")
        asked = state.requests.get((job.owner, job.request.request_id))
        _require(asked == job_id, f"{job_id}: its request leads to {asked}")
    _require(len(state.requests) == len(state.jobs), "a request leads to no job")
    _require(
        len(state.live) + len(state.ended) == len(state.jobs), "a job is listed that is not there"
    )


def _check_lease(state: State, job: Job, fences: dict[int, str]) -> None:
    """Holders hold, waiters do not, and every fence is one job's."""
    if job.state is JobState.QUEUED:
        _require(job.lease is None, f"{job.id}: waits and has a lease")
        _require(job.granted_at is None, f"{job.id}: waits and was granted")
    if job.state.ended:
        _require(job.ended_at is not None, f"{job.id}: ended, nobody knows when")
        _require(job.reason is None, f"{job.id}: ended and waits for something")
    if job.state is JobState.GRANTED:
        _require(job.started_at is None, f"{job.id}: started before its confirmation")
        _require(state.live[job.id].held_since is not None, f"{job.id}: granted for ever")
    if not job.state.holds and job.lease is None:
        return
    lease = job.lease
    if lease is None:
        raise InvariantBroken(f"{job.id}: {job.state} without a lease")
    _require(
        len(slots_of(job)) == len(lease.slots) == job.request.devices,
        f"{job.id}: asked for {job.request.devices} devices, got {len(lease.slots)}",
    )
    _require(
        0 < lease.fence < state.next_fence,
        f"{job.id}: fence {lease.fence} was never given out",
    )
    other = fences.setdefault(lease.fence, job.id)
    _require(other == job.id, f"{job.id}: shares fence {lease.fence} with {other}")
    if job.state.holds:
        for slot in lease.slots:
            known = slot.device_uuid in state.devices or slot.device_uuid in state.vanished
            _require(known, f"{job.id}: on unknown {slot.device_uuid}")


def _check_story(job: Job) -> None:
    """The story is whole, allowed step by step, and tells the job's present state."""
    _require(bool(job.story), f"{job.id}: has no story")
    _require(job.story[-1].to_state is job.state, f"{job.id}: its story ends elsewhere")
    for entry in job.story:
        step = (entry.from_state, entry.event, entry.to_state)
        _require(
            entry.from_state is entry.to_state or step in ALLOWED,
            f"{job.id}: {entry.event} led from {entry.from_state} to {entry.to_state}",
        )


def _check_devices(state: State) -> None:
    """No device is promised beyond its room, and exclusive jobs are alone."""
    for uuid, device in state.devices.items():
        residents = state.residents(uuid)
        reserved = sum(slots_of(job)[uuid] for job in residents)
        room = device.capacity_bytes - device.margin_bytes
        _require(
            reserved <= room or uuid in state.shrunk,
            f"{uuid}: {reserved} bytes are reserved of {room}",
        )
        exclusive = [job.id for job in residents if job.request.constraints.exclusive]
        _require(not exclusive or len(residents) == 1, f"{uuid}: {exclusive} are not alone on it")
    for job_id, rest in state.lingering.items():
        job = state.jobs.get(job_id)
        _require(job is not None and job.state.ended, f"{job_id}: lingers and has not ended")
        _require(bool(rest.charges), f"{job_id}: lingers without bytes")
