"""What people and waiting clients say: a request, a look at it, second thoughts."""

from __future__ import annotations

from msgspec.structs import replace

from horus_lab.broker import events, views
from horus_lab.broker.draft import Draft
from horus_lab.broker.state import Live, State
from horus_lab.errors import Conflict, InvalidTransition, TooManyJobs
from horus_lab.records import Job, JobRequest, JobState


def find_request(state: State, owner: str, request: JobRequest) -> Job | None:
    """The job that this very request made before; `None` for a new one.

    Raises:
        Conflict: the same request id came with another body.
    """
    job_id = state.requests.get((owner, request.request_id))
    if job_id is None:
        return None
    job = state.jobs[job_id]
    if job.request != request:
        raise Conflict(
            f"The request id {request.request_id!r} was used for another request.",
            hint="Make a new id for a new request.",
        )
    return job


def submitted(draft: Draft, event: events.Submitted) -> None:
    """A new job, queued or rejected. The same request again changes nothing.

    Raises:
        Conflict: the request id or the job id is another request's.
        TooManyJobs: the queue, or the owner's part of it, is full.
    """
    if find_request(draft.state, event.owner, event.request) is not None:
        return
    if event.job_id in draft.state.jobs:
        raise Conflict(f"There is a job {event.job_id!r} already.", hint="Make a new id.")
    _check_room(draft, event.owner)
    job = Job(
        id=event.job_id,
        owner=event.owner,
        request=event.request,
        state=JobState.QUEUED,
        revision=0,
        submitted_at=draft.now,
        predictions=event.predictions,
        last_contact_at=draft.now,
    )
    draft.state.requests[job.owner, job.request.request_id] = job.id
    never = _never_fits(draft, job)
    if never:
        job = replace(job, state=JobState.REJECTED, ended_at=draft.now, outcome=never)
        draft.state.ended[job.id] = None
        draft.revise(draft.begin(job, "Submitted", never))
        return
    draft.state.live[job.id] = Live(contact_at=draft.now)
    draft.revise(draft.begin(job, "Submitted", ""))
    draft.watch(job)
    draft.decide = True


def _check_room(draft: Draft, owner: str) -> None:
    waiting = draft.state.queue()
    settings = draft.rules.settings
    own = sum(1 for job in waiting if job.owner == owner)
    if own >= settings.max_queued_per_owner:
        raise TooManyJobs(
            f"{own} of your jobs wait already; more are not taken.",
            hint="Wait for some of them, or cancel some.",
        )
    if len(waiting) >= settings.max_queued:
        raise TooManyJobs(f"{len(waiting)} jobs wait already.", hint="Try again later.")


def _never_fits(draft: Draft, job: Job) -> str:
    if not draft.state.devices:
        # Devices that are away may come back; nothing is known of what they could hold.
        return ""
    view = views.cluster_view(draft.state, draft.rules.settings, draft.now)
    asked = views.queued_view(draft.state, draft.rules.settings, job, draft.now)
    return draft.rules.policy.never_fits(view, asked) or ""


def predicted(draft: Draft, event: events.Predicted) -> None:
    """Better predictions. A job that waits uses them; one that holds a slot keeps its own."""
    job = draft.job(event.job_id)
    if job.state is not JobState.QUEUED or job.predictions == event.predictions:
        return
    job = replace(job, predictions=event.predictions)
    never = _never_fits(draft, job)
    if never:
        draft.end(job, JobState.REJECTED, "Predicted", never)
        return
    draft.revise(job)
    draft.decide = True


def polled(draft: Draft, event: events.Polled) -> None:
    """A waiting client is there. A poll knows no fence, so it proves nothing of a lease."""
    job = draft.job(event.job_id)
    if job.state.ended:
        return
    if job.state is JobState.QUEUED:
        draft.decide |= views.is_absent(draft.state, draft.rules.settings, job, draft.now)
    if not job.state.holds or job.state is JobState.GRANTED:
        draft.state.change(job.id, contact_at=draft.now)
        draft.keep(replace(job, last_contact_at=draft.now))


def cancelled(draft: Draft, event: events.Cancelled) -> None:
    """Who waits is cancelled at once; who runs is asked to stop, and keeps the slot until then.

    Cancelling a second time changes nothing.

    Raises:
        InvalidTransition: the job has ended in another way, or is ending.
    """
    job = draft.job(event.job_id)
    why = f"cancelled by {event.by}"
    if job.state is JobState.CANCELLED:
        return
    if job.state.ended:
        raise InvalidTransition(
            f"Job {job.id} has ended already: it is {job.state.value}.",
            hint="There is nothing to cancel.",
        )
    if job.state is JobState.FENCED:
        raise InvalidTransition(
            f"Job {job.id}'s process is gone already; processes that it started hold its slot.",
            hint=f"{job.outcome.capitalize()}. The slot comes back when they end.",
        )
    if job.state in (JobState.QUEUED, JobState.GRANTED):
        draft.end(job, JobState.CANCELLED, "Cancelled", why)
    elif not job.cancel_requested:
        draft.revise(draft.note(replace(job, cancel_requested=True), f"asked to stop: {why}"))
