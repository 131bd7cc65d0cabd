"""The broker: events in, commands out. No clock, no I/O, no randomness, no logging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from horus_lab.broker import (
    accounting,
    asking,
    events,
    granting,
    holding,
    invariants,
    looking,
    views,
)
from horus_lab.broker.commands import Command, Watch
from horus_lab.broker.draft import Draft, Rules
from horus_lab.broker.settings import BrokerSettings
from horus_lab.broker.state import Live, State, slots_of
from horus_lab.errors import UnknownJob
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import ClusterView, Policy, QueuedView
from horus_lab.records import (
    Device,
    DeviceState,
    Fit,
    Interval,
    Job,
    JobRequest,
    JobState,
    PredictReply,
)

_HANDLERS: Mapping[type, Callable[[Draft, Any], None]] = {
    events.Submitted: asking.submitted,
    events.Predicted: asking.predicted,
    events.Polled: asking.polled,
    events.Cancelled: asking.cancelled,
    events.Confirmed: holding.confirmed,
    events.Beat: holding.beat,
    events.Released: holding.released,
    events.ProcessEnded: holding.process_ended,
    events.Tick: holding.tick,
    events.Measured: looking.measured,
    events.DevicesChanged: looking.devices_changed,
}


class Broker:
    """One broker's state machine.

    Args:
        devices: the devices as they are now.
        policy: who goes where; each placement is held against the rules before it counts.
        interference: what neighbours do to each other, for rule 2 and for display; without one
            the policy alone answers for it.
        jobs: what was persisted, after a restart: every job that had not ended, and as many of
            the ended ones as should be found again and count in the fair share. Holders keep
            their leases and fences, waiters their places; nothing is granted before a `Measured`
            that came after, nor to a client that has not asked since.
        next_fence: the first fence that was never given out.
        strict: raise `InvariantBroken` where the policy places a job against the rules (for
            tests); else that job waits on, and its reason says what was refused.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        policy: Policy,
        interference: InterferenceModel | None = None,
        settings: BrokerSettings | None = None,
        *,
        jobs: tuple[Job, ...] = (),
        next_fence: int = 1,
        now: float = 0.0,
        strict: bool = False,
    ) -> None:
        self.settings = settings or BrokerSettings()
        self._rules = Rules(policy, interference, self.settings, strict)
        self._state = _taken_up(devices, self.settings, jobs, next_fence, now)

    # --- questions ------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """Who goes where."""
        return self._rules.policy

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Every job that has not ended, and the recently ended ones, by id."""
        return MappingProxyType(self._state.jobs)

    @property
    def devices(self) -> Mapping[str, Device]:
        """The devices by UUID; those that vanished under their residents included."""
        return MappingProxyType(self._state.devices)

    @property
    def next_fence(self) -> int:
        """The first fence that was never given out."""
        return self._state.next_fence

    def job(self, job_id: str) -> Job:
        """The job.

        Raises:
            UnknownJob: there is none with this id (or it ended long ago, and only the store
                knows it).
        """
        try:
            return self._state.jobs[job_id]
        except KeyError:
            raise UnknownJob(
                f"There is no job {job_id!r}.", hint="`%horus jobs` lists the jobs there are."
            ) from None

    def find_request(self, owner: str, request: JobRequest) -> Job | None:
        """The job that this very request made before; `None` for a new one.

        Raises:
            Conflict: the same request id came with another body.
        """
        return asking.find_request(self._state, owner, request)

    def queue(self) -> list[Job]:
        """The waiting jobs, in the order of their places."""
        waiting = self._state.queue()
        return sorted(waiting, key=lambda job: job.reason.position if job.reason else len(waiting))

    def cluster_view(self, now: float) -> ClusterView:
        """What the policy sees."""
        return views.cluster_view(self._state, self.settings, now)

    def device_states(self, now: float | None = None) -> tuple[DeviceState, ...]:
        """What people see of the devices at `now`, or at the last event."""
        at = self._state.now if now is None else now
        return views.device_states(self._state, self.settings, self._rules.interference, at)

    def assess(self, job: QueuedView, now: float) -> tuple[Fit, ...]:
        """Each device's answer to a job outside the queue."""
        return self._rules.policy.assess(self.cluster_view(now), job, now)

    def forecast(self, job: QueuedView, now: float) -> PredictReply:
        """What would happen to a job that was submitted now: where it fits, how long it waits."""
        view = self.cluster_view(now)
        plan = self._rules.policy.plan(replace(view, queue=(*view.queue, job)), now)
        waits = None
        if any(placement.job_id == job.job_id for placement in plan.placements):
            waits = Interval(0.0, 0.0, 0.0)
        elif job.job_id in plan.waiting:
            waits = plan.waiting[job.job_id].expected_seconds
        return PredictReply(
            fits=self._rules.policy.assess(view, job, now),
            expected_wait_seconds=waits,
            queue_length=len(view.queue),
        )

    def check_invariants(self) -> None:
        """Hold everything against what must always hold.

        Raises:
            InvariantBroken: with the rule and what breaks it.
        """
        invariants.check(self._state)

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> tuple[Command, ...]:
        """Take in one event.

        Returns:
            What to carry out, in order: what must be persisted, what to watch and learn, what to
            tell.

        Raises:
            HorusError: the event is not possible; the broker is as it was before.
        """
        state = self._state.copy()
        if now < state.now:
            state.rebase(now)
        _use_devices(state, self.settings, now)
        state.now = now
        draft = Draft(
            state=state,
            rules=self._rules,
            event_id=event.event_id,
            event=type(event).__name__,
            now=now,
        )
        _HANDLERS[type(event)](draft, event)
        if draft.decide:
            granting.decide(draft)
        if draft.holders_changed:
            looking.follow_neighbours(state)
        draft.forget_old()
        commands = draft.commands()
        self._state = state
        return commands

    def checkpoint(self) -> State:
        """The state as it is now, for `restore`."""
        return self._state.copy()

    def restore(self, checkpoint: State) -> None:
        """Forget everything since the checkpoint (its commands could not be carried out)."""
        self._state = checkpoint

    def recover(self) -> tuple[Command, ...]:
        """After a restart: watch the process of every job that has not ended."""
        return tuple(
            Watch(event_id="recover", job_id=job.id, process=job.request.process)
            for job in self._state.unended()
        )


def _taken_up(
    devices: tuple[Device, ...],
    settings: BrokerSettings,
    jobs: tuple[Job, ...],
    next_fence: int,
    now: float,
) -> State:
    """The state of a broker that takes up what was persisted."""
    state = State(next_fence=next_fence, usage_at=now, now=now)
    state.devices = {device.uuid: device for device in devices}
    for job in sorted(jobs, key=lambda job: (job.submitted_at, job.id)):
        state.jobs[job.id] = job
        state.requests[job.owner, job.request.request_id] = job.id
        if job.lease is not None:
            state.next_fence = max(state.next_fence, job.lease.fence + 1)
        if not job.state.ended:
            # Silence counts from now on: while no broker was there, nobody could be heard.
            state.live[job.id] = Live(
                contact_at=now if job.state.holds else None,
                held_since=now if job.state is JobState.GRANTED else None,
                saved_at=now,
            )
    ended = (job for job in jobs if job.state.ended)
    for job in sorted(ended, key=lambda job: job.ended_at or 0.0):
        state.ended[job.id] = None
    held = {uuid for job in state.holders() for uuid in slots_of(job)}
    state.vanished = frozenset(held - set(state.devices))
    looking.mark_shrunk(state)
    looking.follow_neighbours(state)
    state.usage = accounting.past_usage(jobs, state.devices, now, settings.usage_half_life_seconds)
    return state


def _use_devices(state: State, settings: BrokerSettings, now: float) -> None:
    """Add what the holders used since the last event to their owners' use."""
    seconds = now - state.usage_at
    if seconds <= 0.0:
        return
    shares: dict[str, float] = {}
    for job in state.holders():
        shares[job.owner] = shares.get(job.owner, 0.0) + accounting.share(job, state.devices)
    state.usage = accounting.accrued(state.usage, shares, seconds, settings.usage_half_life_seconds)
    state.usage_at = now
