"""The broker: events in, commands out. No clock, no I/O, no randomness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from horus_lab.broker import accounting, events, views
from horus_lab.broker.commands import Announce, Command, Learn, SaveFence, SaveJob, Unwatch, Watch
from horus_lab.broker.invariants import check_grants, check_state
from horus_lab.broker.settings import BrokerSettings
from horus_lab.broker.state import Lingering, Pace, State
from horus_lab.broker.transitions import ALLOWED
from horus_lab.errors import Conflict, InvalidTransition, StaleFence, UnknownJob
from horus_lab.policy.cluster import ClusterView, Placement, Policy
from horus_lab.records import (
    Device,
    DeviceState,
    Job,
    JobRequest,
    JobState,
    Lease,
    StoryEntry,
    WaitReason,
)

STORY_LIMIT = 60
ENDED_LIMIT = 1000
SAVE_SECONDS = 10.0
REASON_SECONDS = 5.0


class Broker:
    """One broker's state machine.

    Args:
        devices: the devices as they are now.
        policy: who goes where; its plans are checked against the invariants before they count.
        jobs: persisted jobs, after a restart. Nothing is granted before the first `Measured`.
        next_fence: the first unused fence.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        policy: Policy,
        *,
        settings: BrokerSettings | None = None,
        jobs: tuple[Job, ...] = (),
        next_fence: int = 1,
        now: float = 0.0,
    ) -> None:
        self.policy = policy
        self.settings = settings or BrokerSettings()
        self._state = State(next_fence=next_fence, usage_at=now)
        self._state.devices = {device.uuid: device for device in devices}
        for job in jobs:
            self._state.jobs[job.id] = job
            self._state.requests[job.owner, job.request.request_id] = job.id
            if job.state.holds:
                self._state.paces[job.id] = Pace(beat_at=now)
                # A lease taken over has `suspect_seconds` to be heard of.
                self._state.jobs[job.id] = replace(job, last_contact_at=now)
            elif not job.state.ended:
                # Its client has to ask again before it can take a grant.
                self._state.jobs[job.id] = replace(
                    job, last_contact_at=now - 2 * self.settings.absent_seconds
                )
        self._changed: dict[str, Job] = {}
        self._quiet: dict[str, Job] = {}
        self._extra: list[Command] = []
        self._fence_used = False

    # --- questions ------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Live jobs and recently ended ones, by id."""
        return self._state.jobs

    @property
    def devices(self) -> Mapping[str, Device]:
        """The devices by UUID."""
        return self._state.devices

    @property
    def next_fence(self) -> int:
        """The first unused fence."""
        return self._state.next_fence

    def job(self, job_id: str) -> Job:
        """The job.

        Raises:
            UnknownJob: there is none with this id.
        """
        try:
            return self._state.jobs[job_id]
        except KeyError:
            raise UnknownJob(
                f"There is no job {job_id!r}.", hint="`%horus jobs --all` lists the known ones."
            ) from None

    def find_request(self, owner: str, request: JobRequest) -> Job | None:
        """The job that this very request made before.

        Raises:
            Conflict: the same request id came with another body.
        """
        job_id = self._state.requests.get((owner, request.request_id))
        job = self._state.jobs.get(job_id) if job_id is not None else None
        if job is not None and job.request != request:
            raise Conflict(
                f"The request id {request.request_id!r} was used for another request.",
                hint="Make a new id for a new request.",
            )
        return job

    def queue(self) -> list[Job]:
        """The waiting jobs, in the order of their places."""
        waiting = self._state.queue()
        return sorted(waiting, key=lambda job: job.reason.position if job.reason else 10**9)

    def cluster_view(self, now: float) -> ClusterView:
        """What the policy sees."""
        return views.cluster_view(self._state, self.settings, now)

    def device_states(self) -> tuple[DeviceState, ...]:
        """What people see of the devices."""
        return views.device_states(self._state)

    def check_invariants(self) -> None:
        """Raises `InvariantBroken` where the memory contradicts itself."""
        check_state(self._state)

    def checkpoint(self) -> State:
        """The memory as it is now, for `restore`."""
        return self._state.copy()

    def restore(self, checkpoint: State) -> None:
        """Forget everything since the checkpoint (its commands could not be carried out)."""
        self._state = checkpoint

    def recover(self) -> tuple[Command, ...]:
        """After a restart: watch the process of every live job."""
        return tuple(
            Watch(event_id="recover", job_id=job.id, process=job.request.process)
            for job in self._state.jobs.values()
            if not job.state.ended
        )

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> tuple[Command, ...]:
        """Take in one event.

        Returns:
            What to carry out, in order: what must be persisted, then what may be told.

        Raises:
            HorusError: the event is not possible; the broker is as it was before.
        """
        before = self._state.copy()
        self._changed, self._quiet, self._extra = {}, {}, []
        self._fence_used = False
        try:
            self._age(now)
            self._handlers[type(event)](self, event, now)
            self._schedule(event.event_id, now)
        except BaseException:
            self._state = before
            raise
        return self._commands(event.event_id, now)

    def _submitted(self, event: events.Submitted, now: float) -> None:
        if event.job_id in self._state.jobs:
            raise InvalidTransition(f"The job {event.job_id} was submitted before.")
        job = Job(
            id=event.job_id,
            owner=event.owner,
            request=event.request,
            state=JobState.QUEUED,
            revision=0,
            submitted_at=now,
            predictions=event.predictions,
            last_contact_at=now,
        )
        queued = views.queued_view(self._state, self.settings, job, now)
        why = self.policy.never_fits(views.cluster_view(self._state, self.settings, now), queued)
        self._state.requests[job.owner, job.request.request_id] = job.id
        if why is not None:
            self._begin(job, JobState.REJECTED, event.event_id, why, now)
            return
        self._begin(job, JobState.QUEUED, event.event_id, "", now)
        self._extra.append(
            Watch(event_id=event.event_id, job_id=job.id, process=event.request.process)
        )

    def _predicted(self, event: events.Predicted, now: float) -> None:  # noqa: ARG002
        job = self.job(event.job_id)
        if job.state is JobState.QUEUED:
            self._put(replace(job, predictions=event.predictions), quiet=True)

    def _polled(self, event: events.Polled, now: float) -> None:
        job = self.job(event.job_id)
        if not job.state.ended:
            # Contact alone is neither saved nor announced.
            self._state.jobs[job.id] = replace(job, last_contact_at=now)

    def _confirmed(self, event: events.Confirmed, now: float) -> None:
        job = self.job(event.job_id)
        self._check_fence(job, event.fence)
        if job.state is JobState.RUNNING:
            return
        job = self._move(job, "Confirmed", JobState.RUNNING, event.event_id, "", now)
        self._put(replace(job, started_at=now, last_contact_at=now))
        self._state.paces[job.id] = Pace(beat_at=now)
        self._mix_neighbours(job)

    def _beat(self, event: events.Beat, now: float) -> None:
        job = self.job(event.job_id)
        self._check_fence(job, event.heartbeat.fence)
        if job.state is JobState.GRANTED:
            raise InvalidTransition(
                f"Job {job.id} beats before it confirmed its grant.", hint="Confirm first."
            )
        if job.state is JobState.FENCED:
            raise StaleFence(f"Job {job.id}'s process is gone; its lease takes no heartbeat.")
        if job.state is JobState.SUSPECT:
            why = "contact is back; the reservation was untouched"
            job = self._move(job, "Beat", JobState.RUNNING, event.event_id, why, now)
        pace = self._state.paces.get(job.id) or Pace(beat_at=now)
        measured, pace = accounting.beat(
            job.measured,
            pace,
            event.heartbeat,
            shared=views.has_running_neighbours(self._state, job),
            solo_rate=accounting.solo_rate(job),
            solo_seconds=self.settings.solo_seconds,
            now=now,
        )
        self._state.paces[job.id] = pace
        self._put(replace(job, measured=measured, last_contact_at=now), quiet=True)

    def _released(self, event: events.Released, now: float) -> None:
        job = self.job(event.job_id)
        release = event.release
        if job.state.ended and job.lease is not None and job.lease.fence == release.fence:
            return
        self._check_fence(job, release.fence)
        if job.state is JobState.FENCED:
            raise StaleFence(f"Job {job.id}'s process is gone; its lease is not its any more.")
        outcome = JobState(release.outcome)
        if job.state is JobState.GRANTED:
            outcome = JobState.CANCELLED
        peaks = (job.measured.allocator_peak_bytes, release.allocator_peak_bytes)
        measured = replace(
            job.measured,
            steps=max(job.measured.steps, release.steps),
            allocator_peak_bytes=max((p for p in peaks if p is not None), default=None),
        )
        self._end(
            replace(job, measured=measured),
            "Released",
            outcome,
            event.event_id,
            release.message,
            now,
        )

    def _cancelled(self, event: events.Cancelled, now: float) -> None:
        job = self.job(event.job_id)
        if job.state.ended:
            raise InvalidTransition(
                f"Job {job.id} has ended already: {job.state.value}.",
                hint="There is nothing to cancel.",
            )
        why = f"cancelled by {event.by}"
        if job.state in (JobState.QUEUED, JobState.GRANTED):
            self._end(job, "Cancelled", JobState.CANCELLED, event.event_id, why, now)
        elif not job.cancel_requested:
            job = replace(job, cancel_requested=True)
            self._note(job, "Cancelled", event.event_id, f"asked to stop: {why}", now)

    def _process_ended(self, event: events.ProcessEnded, now: float) -> None:
        job = self._state.jobs.get(event.job_id)
        if job is None or job.state.ended:
            return
        if not event.survivors or job.state is JobState.QUEUED:
            why = "its process is gone"
            self._end(job, "ProcessEnded", JobState.LOST, event.event_id, why, now)
            return
        pids = ", ".join(str(pid) for pid in event.survivors[:10])
        why = f"its process is gone; still running: {pids}"
        if job.state is JobState.FENCED:
            if job.outcome != why:
                self._note(replace(job, outcome=why), "ProcessEnded", event.event_id, why, now)
            return
        job = self._move(job, "ProcessEnded", JobState.FENCED, event.event_id, why, now)
        self._put(replace(job, outcome=why))

    def _measured(self, event: events.Measured, now: float) -> None:  # noqa: ARG002
        for use in event.uses:
            uuid = use.reading.uuid
            if uuid not in self._state.devices:
                continue
            self._state.uses[uuid] = use
            if use.reading.memory_used_bytes is not None:
                self._settle(uuid, use.reading.read_at)
        for job in list(self._state.jobs.values()):
            if job.state.holds and job.lease is not None:
                self._look_at(job)

    def _settle(self, device_uuid: str, read_at: float) -> None:
        """A reading after an end shows what that end really freed."""
        for key, one in list(self._state.lingering.items()):
            if one.device_uuid == device_uuid and read_at > one.since:
                del self._state.lingering[key]

    def _look_at(self, job: Job) -> None:
        uuids = [slot.device_uuid for slot in job.lease.slots] if job.lease else []
        uses = [self._state.uses[uuid] for uuid in uuids if uuid in self._state.uses]
        memory = [use.by_job[job.id] for use in uses if job.id in use.by_job]
        loads = []
        for use in uses:
            load = use.utilization_by_job.get(job.id)
            if load is None and len(self._state.residents(use.reading.uuid)) == 1:
                # Alone on a device whose driver does not tell processes apart.
                load = use.reading.utilization
            if load is not None:
                loads.append(load)
        measured = accounting.seen(
            job.measured,
            memory_bytes=max(memory, default=None),
            utilization=sum(loads) / len(loads) if loads else None,
        )
        if measured != job.measured:
            self._state.jobs[job.id] = replace(job, measured=measured)
            self._quiet.setdefault(job.id, job)

    def _devices_changed(self, event: events.DevicesChanged, now: float) -> None:
        devices = {device.uuid: device for device in event.devices}
        gone = set(self._state.devices) - set(devices)
        back = set(devices) - set(self._state.devices)
        self._state.devices = devices
        for uuid in gone:
            self._state.uses.pop(uuid, None)
        for job in list(self._state.jobs.values()):
            if not job.state.holds or job.lease is None:
                continue
            mine = {slot.device_uuid for slot in job.lease.slots}
            for uuids, what in ((mine & gone, "vanished"), (mine & back, "is back")):
                for uuid in sorted(uuids):
                    job = self._note(
                        job, "DevicesChanged", event.event_id, f"device {uuid} {what}", now
                    )

    def _tick(self, event: events.Tick, now: float) -> None:
        for job in list(self._state.jobs.values()):
            silent = now - job.last_contact_at
            if job.state is JobState.RUNNING and silent > self.settings.suspect_seconds:
                why = f"no heartbeat for {silent:.0f} s; its reservation is untouched"
                self._move(job, "Tick", JobState.SUSPECT, event.event_id, why, now)
            elif (
                job.state is JobState.GRANTED
                and now - (job.granted_at or now) > self.settings.confirm_seconds
            ):
                self._withdraw(job, event.event_id, now)

    def _withdraw(self, job: Job, event_id: str, now: float) -> None:
        self._mix_neighbours(job)
        why = f"not taken within {self.settings.confirm_seconds:.0f} s; it keeps its place"
        job = self._move(job, "Withdraw", JobState.QUEUED, event_id, why, now)
        absent_since = now - 2 * self.settings.absent_seconds
        self._put(replace(job, lease=None, granted_at=None, last_contact_at=absent_since))

    _handlers: Mapping[type, Callable[[Broker, Any, float], None]] = {
        events.Submitted: _submitted,
        events.Predicted: _predicted,
        events.Polled: _polled,
        events.Confirmed: _confirmed,
        events.Beat: _beat,
        events.Released: _released,
        events.Cancelled: _cancelled,
        events.ProcessEnded: _process_ended,
        events.Measured: _measured,
        events.DevicesChanged: _devices_changed,
        events.Tick: _tick,
    }

    # --- scheduling -----------------------------------------------------------------------------

    def _age(self, now: float) -> None:
        """Past use fades; use since the last event is added."""
        elapsed = now - self._state.usage_at
        if elapsed <= 0:
            return
        self._state.usage_at = now
        keep = 0.5 ** (elapsed / self.settings.usage_half_life_seconds)
        usage = {owner: value * keep for owner, value in self._state.usage.items()}
        for job in self._state.jobs.values():
            if job.state.holds and job.lease is not None:
                usage[job.owner] = usage.get(job.owner, 0.0) + elapsed * len(job.lease.slots)
        self._state.usage = {owner: value for owner, value in usage.items() if value > 1e-3}

    def _schedule(self, event_id: str, now: float) -> None:
        if not any(job.state is JobState.QUEUED for job in self._state.jobs.values()):
            return
        plan = self.policy.plan(views.cluster_view(self._state, self.settings, now), now)
        check_grants(self._state, plan.placements)
        for placement in plan.placements:
            self._grant(placement, event_id, now)
        for job_id, reason in plan.waiting.items():
            self._explain(job_id, reason, now)

    def _grant(self, placement: Placement, event_id: str, now: float) -> None:
        job = self.job(placement.job_id)
        neighbours = tuple(
            dict.fromkeys(
                other.id
                for slot in placement.slots
                for other in self._state.residents(slot.device_uuid)
            )
        )
        lease = Lease(
            fence=self._state.next_fence,
            slots=placement.slots,
            granted_at=now,
            neighbours=neighbours,
        )
        self._state.next_fence += 1
        self._fence_used = True
        job = self._move(job, "Grant", JobState.GRANTED, event_id, placement.why, now)
        self._put(replace(job, lease=lease, granted_at=now, reason=None))

    def _explain(self, job_id: str, reason: WaitReason, now: float) -> None:
        """Tell a new reason at once, and changing numbers in it only now and then."""
        job = self._state.jobs.get(job_id)
        if job is None or job.state is not JobState.QUEUED or job.reason == reason:
            return
        steady = job.reason is not None and _shape(job.reason) == _shape(reason)
        if steady and now - self._state.told_at.get(job_id, 0.0) < REASON_SECONDS:
            return
        self._state.told_at[job_id] = now
        self._put(replace(job, reason=reason, revision=job.revision + 1))

    # --- one job's change -----------------------------------------------------------------------

    def _begin(self, job: Job, target: JobState, event_id: str, why: str, now: float) -> None:
        entry = StoryEntry(
            at=now, event=f"Submitted {event_id}", from_state=None, to_state=target, why=why
        )
        ended = {"ended_at": now, "outcome": why} if target.ended else {}
        self._put(replace(job, state=target, revision=1, story=(entry,), **ended))

    def _move(
        self, job: Job, event: str, target: JobState, event_id: str, why: str, now: float
    ) -> Job:
        if (job.state, event, target) not in ALLOWED:
            raise InvalidTransition(
                f"Job {job.id} is {job.state.value}, and {event} does not lead to {target.value}."
            )
        moved = replace(job, state=target)
        return self._note(moved, event, event_id, why, now, from_state=job.state)

    def _note(
        self,
        job: Job,
        event: str,
        event_id: str,
        why: str,
        now: float,
        *,
        from_state: JobState | None = None,
    ) -> Job:
        entry = StoryEntry(
            at=now,
            event=f"{event} {event_id}",
            from_state=from_state or job.state,
            to_state=job.state,
            why=why,
        )
        story = (*job.story, entry)
        if len(story) > STORY_LIMIT:
            # The beginning and the latest are what people ask for.
            story = (*story[:10], *story[-(STORY_LIMIT - 10) :])
        job = replace(job, story=story, revision=job.revision + 1)
        self._put(job)
        return job

    def _end(
        self, job: Job, event: str, target: JobState, event_id: str, why: str, now: float
    ) -> None:
        held = job.state.holds
        if held:
            self._mix_neighbours(job)
            for slot in job.lease.slots if job.lease else ():
                use = self._state.uses.get(slot.device_uuid)
                measured = use.by_job.get(job.id, 0) if use else 0
                charged = max(slot.reserved_bytes, measured)
                started = job.started_at is not None
                if started:
                    self._state.lingering[job.id, slot.device_uuid] = Lingering(
                        job_id=job.id,
                        device_uuid=slot.device_uuid,
                        charged_bytes=charged,
                        since=now,
                    )
        job = self._move(job, event, target, event_id, why, now)
        outcome = why or target.value
        job = replace(job, ended_at=now, outcome=outcome, reason=None)
        self._put(job)
        self._state.paces.pop(job.id, None)
        self._state.told_at.pop(job.id, None)
        self._state.saved_at.pop(job.id, None)
        self._extra.append(Unwatch(event_id=event_id, job_id=job.id))
        if held and job.started_at is not None and job.measured.steps > 0:
            self._extra.append(Learn(event_id=event_id, job=job))
        self._forget_old()

    def _forget_old(self) -> None:
        ended = [job for job in self._state.jobs.values() if job.state.ended]
        if len(ended) <= ENDED_LIMIT:
            return
        ended.sort(key=lambda job: job.ended_at or 0.0)
        for job in ended[: len(ended) - ENDED_LIMIT]:
            del self._state.jobs[job.id]
            self._state.requests.pop((job.owner, job.request.request_id), None)

    def _mix_neighbours(self, job: Job) -> None:
        """The stretch since their last beat is neither alone nor shared for anyone here."""
        for slot in job.lease.slots if job.lease else ():
            for other in self._state.residents(slot.device_uuid):
                pace = self._state.paces.get(other.id)
                if pace is not None:
                    self._state.paces[other.id] = replace(pace, mixed=True)

    def _check_fence(self, job: Job, fence: int) -> None:
        if job.lease is None or job.lease.fence != fence or not job.state.holds:
            raise StaleFence(
                f"The fence {fence} is not job {job.id}'s: it is {job.state.value}.",
                hint="Ask for the job again; its grant may have been withdrawn.",
            )

    def _put(self, job: Job, *, quiet: bool = False) -> None:
        """Remember the job; `quiet` changes are announced, and saved only now and then."""
        self._state.jobs[job.id] = job
        if quiet:
            self._quiet.setdefault(job.id, job)
        else:
            self._changed.setdefault(job.id, job)

    def _commands(self, event_id: str, now: float) -> tuple[Command, ...]:
        commands: list[Command] = []
        jobs = self._state.jobs
        if self._fence_used:
            commands.append(SaveFence(event_id=event_id, next_fence=self._state.next_fence))
        told = []
        for job_id in self._changed:
            if job_id in jobs:
                commands.append(SaveJob(event_id=event_id, job=jobs[job_id]))
                self._state.saved_at[job_id] = now
                told.append(job_id)
        for job_id in self._quiet:
            if job_id in jobs and job_id not in self._changed:
                if now - self._state.saved_at.get(job_id, 0.0) >= SAVE_SECONDS:
                    commands.append(SaveJob(event_id=event_id, job=jobs[job_id]))
                    self._state.saved_at[job_id] = now
                told.append(job_id)
        commands += self._extra
        commands += [Announce(event_id=event_id, job=jobs[job_id]) for job_id in told]
        return tuple(commands)


def _shape(reason: WaitReason) -> tuple[object, ...]:
    """What of a reason people would call another reason."""
    return (
        reason.position,
        reason.absent,
        tuple((one.device_uuid, one.kind, one.job_id) for one in reason.obstacles),
    )
