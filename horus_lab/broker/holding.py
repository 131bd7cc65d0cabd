"""What holders say, what is proven of their processes, and what silence means."""

from __future__ import annotations

from msgspec.structs import replace

from horus_lab.broker import accounting, events, granting
from horus_lab.broker.draft import Draft
from horus_lab.errors import InvalidTransition, StaleFence
from horus_lab.records import Job, JobState


def confirmed(draft: Draft, event: events.Confirmed) -> None:
    """The client takes its grant. Repeated, it changes nothing.

    Raises:
        StaleFence: the grant was withdrawn or replaced.
        InvalidTransition: the job has ended.
    """
    job = draft.job(event.job_id)
    _check_fence(job, event.fence)
    if job.state is JobState.GRANTED:
        _start(draft, job, "Confirmed", "")
    elif job.state is JobState.SUSPECT:
        _back(draft, job, "Confirmed")
    else:
        _touch(draft, job)


def beat(draft: Draft, event: events.Beat) -> None:
    """A heartbeat: contact, progress, rates. One that is late or doubled says nothing.

    Raises:
        StaleFence: the lease is not (any more) the caller's.
        InvalidTransition: the job has ended.
    """
    job = draft.job(event.job_id)
    heartbeat = event.heartbeat
    _check_fence(job, heartbeat.fence)
    if heartbeat.sequence <= draft.state.live[job.id].sequence:
        return
    if job.state is JobState.GRANTED:
        job = _start(draft, job, "Beat", "it trains already; the confirmation will follow")
    elif job.state is JobState.SUSPECT:
        job = _back(draft, job, "Beat")
    else:
        job = _touch(draft, job)
    measured, live = accounting.beaten(
        job.measured,
        draft.state.live[job.id],
        heartbeat,
        draft.now,
        solo_steps_per_second=accounting.solo_rate(job),
        solo_seconds=draft.rules.settings.solo_seconds,
    )
    draft.state.live[job.id] = replace(live, sequence=heartbeat.sequence)
    job = replace(job, measured=measured)
    draft.tell(job)
    draft.save_sometimes(job)


def released(draft: Draft, event: events.Released) -> None:
    """The process gives its lease back. Repeated with the same fence, it changes nothing.

    Raises:
        StaleFence: the lease is not the caller's.
    """
    job = draft.job(event.job_id)
    release = event.release
    if job.state.ended and job.lease is not None and job.lease.fence == release.fence:
        return
    _check_fence(job, release.fence)
    # A grant that was never confirmed was never used, whatever its client says of it.
    unused = job.state is JobState.GRANTED
    target = JobState.CANCELLED if unused else JobState(release.outcome)
    job = replace(job, measured=accounting.released(job.measured, release))
    draft.end(job, target, "Released", release.message)


def process_ended(draft: Draft, event: events.ProcessEnded) -> None:
    """The process is proven gone. Only its whole tree's end gives the slot back."""
    job = draft.job(event.job_id)
    if job.state.ended:
        _lingering_process_ended(draft, job, event)
        return
    if job.state is JobState.QUEUED or not event.survivors:
        draft.end(job, JobState.LOST, "ProcessEnded", "its process is gone")
        return
    pids = ", ".join(str(pid) for pid in event.survivors[:10])
    more = " and more" if len(event.survivors) > 10 else ""
    why = f"its process is gone; still running: {pids}{more}"
    if job.state is not JobState.FENCED:
        job = draft.move(job, JobState.FENCED, "ProcessEnded", why)
        draft.state.change(job.id, held_since=None)
        draft.revise(replace(job, outcome=why))
        draft.decide = True
    elif job.outcome != why:
        draft.revise(draft.note(replace(job, outcome=why), why))


def _lingering_process_ended(draft: Draft, job: Job, event: events.ProcessEnded) -> None:
    rest = draft.state.lingering.get(job.id)
    if rest is None or event.survivors or rest.process_gone:
        return
    draft.state.lingering[job.id] = replace(rest, process_gone=True, ended_at=draft.now)
    draft.unwatch(job.id)


def tick(draft: Draft, _event: events.Tick) -> None:
    """Time has passed: silence makes suspect, an untaken grant goes back. Nothing else is freed."""
    settings = draft.rules.settings
    for job in tuple(draft.state.holders()):
        live = draft.state.live[job.id]
        if job.state is JobState.RUNNING and live.contact_at is not None:
            silent = draft.now - live.contact_at
            if silent > settings.suspect_seconds:
                why = f"no heartbeat for {silent:.0f} s; its reservation is untouched"
                draft.revise(draft.move(job, JobState.SUSPECT, "Tick", why))
        elif live.held_since is not None and draft.now - live.held_since > settings.confirm_seconds:
            granting.withdraw(draft, job)
    draft.decide = True


def _start(draft: Draft, job: Job, event: str, why: str) -> Job:
    job = draft.move(job, JobState.RUNNING, event, why)
    draft.state.change(job.id, held_since=None, contact_at=draft.now)
    job = replace(job, started_at=draft.now, last_contact_at=draft.now)
    draft.revise(job)
    return draft.state.jobs[job.id]


def _back(draft: Draft, job: Job, event: str) -> Job:
    job = draft.move(job, JobState.RUNNING, event, "contact is back; nothing was taken from it")
    draft.revise(_touch(draft, job))
    return draft.state.jobs[job.id]


def _touch(draft: Draft, job: Job) -> Job:
    draft.state.change(job.id, contact_at=draft.now)
    job = replace(job, last_contact_at=draft.now)
    draft.keep(job)
    return job


def _check_fence(job: Job, fence: int) -> None:
    """Only the lease's own fence speaks for it, and only while the lease is valid."""
    if job.lease is None or job.lease.fence != fence:
        raise StaleFence(
            f"The fence {fence} is not job {job.id}'s, which is {job.state.value}.",
            hint="Ask for the job again: its grant was withdrawn or replaced.",
        )
    if job.state is JobState.FENCED:
        raise StaleFence(
            f"The fence {fence} is void: job {job.id}'s process is proven gone.",
            hint="Submit a new job.",
        )
    if job.state.ended:
        raise InvalidTransition(
            f"Job {job.id} has ended: it is {job.state.value}.", hint="Submit a new job."
        )
