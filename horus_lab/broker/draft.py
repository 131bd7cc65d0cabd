"""One event at work: the state's working copy, and the commands that come of it.

An event changes a draft. Where it raises, the draft is dropped, and the broker's state is what it
was. Where it goes through, the draft's state becomes the broker's, and its commands are handed
out: first what must be on disk, then what to watch, then what to tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from horus_lab.broker.commands import (
    Announce,
    Command,
    Learn,
    SaveFence,
    SaveJob,
    Unwatch,
    Watch,
)
from horus_lab.broker.invariants import InvariantBroken
from horus_lab.broker.settings import BrokerSettings
from horus_lab.broker.state import Lingering, State, slots_of
from horus_lab.broker.transitions import ALLOWED
from horus_lab.errors import UnknownJob
from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import Policy
from horus_lab.records import Job, JobState, Measurement, StoryEntry

STORY_LIMIT = 200
STORY_HEAD = 20


@dataclass(frozen=True, slots=True)
class Rules:
    """What the broker decides by.

    Without an interference model of its own the broker trusts the policy with rule 2 (every
    resident within its bound), and shows each slot's slowdown as it was at the grant.
    """

    policy: Policy
    interference: InterferenceModel | None
    settings: BrokerSettings
    strict: bool = False


@dataclass(slots=True)
class Draft:
    """The working copy of the state while one event is handled.

    Attributes:
        saved, told: ids of jobs to persist and to announce, each once, as they are in the end.
        watching: commands between the saving and the telling.
        decide: whether the queue may look different after this event.
    """

    state: State
    rules: Rules
    event_id: str
    event: str
    now: float
    saved: dict[str, None] = field(default_factory=dict)
    told: dict[str, None] = field(default_factory=dict)
    watching: list[Command] = field(default_factory=list)
    holders_changed: bool = False
    decide: bool = False
    first_fence: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_fence = self.state.next_fence

    def job(self, job_id: str) -> Job:
        """The job.

        Raises:
            UnknownJob: no job has this id.
        """
        try:
            return self.state.jobs[job_id]
        except KeyError:
            raise UnknownJob(
                f"There is no job {job_id!r}.", hint="`%horus jobs` lists the jobs there are."
            ) from None

    def keep(self, job: Job) -> None:
        """Take the job as it is now: nobody is told, nothing is saved."""
        self.state.jobs[job.id] = job

    def save(self, job: Job) -> None:
        """Take the job as it is now and have it persisted."""
        self.keep(job)
        self.saved[job.id] = None
        if job.id in self.state.live:
            self.state.change(job.id, saved_at=self.now)

    def save_sometimes(self, job: Job) -> None:
        """Take measurements alone; have them persisted if that was a while ago."""
        self.keep(job)
        saved_at = self.state.live[job.id].saved_at
        if self.now - saved_at >= self.rules.settings.save_seconds:
            self.save(job)

    def tell(self, job: Job) -> None:
        """Take the job as it is now and have waiters and viewers told."""
        self.keep(job)
        self.told[job.id] = None

    def revise(self, job: Job) -> None:
        """Take a job with a change that its waiters could care about; persist and tell it."""
        job = replace(job, revision=job.revision + 1)
        self.save(job)
        self.tell(job)

    def note(self, job: Job, why: str) -> Job:
        """The job with an entry in its story that leads nowhere else."""
        return _told(job, self._entry(job.state, job.state, self.event, why))

    def move(self, job: Job, target: JobState, event: str, why: str) -> Job:
        """The job in another state, with its story.

        Raises:
            InvariantBroken: the table has no such transition: the broker's own mistake.
        """
        if (job.state, event, target) not in ALLOWED:
            raise InvariantBroken(
                f"{job.id}: no transition from {job.state} to {target} on {event}"
            )
        entry = self._entry(job.state, target, event, why)
        self.holders_changed |= job.state.holds or target.holds
        return _told(replace(job, state=target), entry)

    def begin(self, job: Job, event: str, why: str) -> Job:
        """A new job with the first entry of its story."""
        if (None, event, job.state) not in ALLOWED:
            raise InvariantBroken(f"{job.id}: no job begins as {job.state} on {event}")
        return _told(job, self._entry(None, job.state, event, why))

    def end(self, job: Job, target: JobState, event: str, why: str) -> None:
        """End the job: story, lingering bytes, watching, learning.

        The bytes of a job that started stay charged until a later reading shows the device's
        use, and its process stays watched until then. A grant that was never confirmed was never
        used, and leaves nothing.
        """
        charges = self._charges(job) if job.started_at is not None else {}
        gone = event == "ProcessEnded"
        if not why:
            why = target.value
        ended = replace(
            self.move(job, target, event, why), ended_at=self.now, outcome=why, reason=None
        )
        del self.state.live[job.id]
        self.state.ended[job.id] = None
        if charges:
            self.state.lingering[job.id] = Lingering(
                ended_at=self.now, charges=charges, process_gone=gone
            )
        if gone or not charges:
            self.unwatch(job.id)
        self.revise(ended)
        if worth_learning(ended.measured):
            self.watching.append(Learn(event_id=self.event_id, job=self.state.jobs[job.id]))
        self.decide = True

    def watch(self, job: Job) -> None:
        """Have the job's process watched."""
        self.watching.append(
            Watch(event_id=self.event_id, job_id=job.id, process=job.request.process)
        )

    def unwatch(self, job_id: str) -> None:
        """The job's process no longer matters."""
        self.watching.append(Unwatch(event_id=self.event_id, job_id=job_id))

    def forget_old(self) -> None:
        """Drop the oldest ended jobs past the bound; the store still has them."""
        surplus = len(self.state.ended) - self.rules.settings.ended_kept
        for job_id in list(self.state.ended)[: max(0, surplus)]:
            if job_id in self.state.lingering or job_id in self.saved:
                continue
            job = self.state.jobs.pop(job_id)
            del self.state.ended[job_id]
            self.state.requests.pop((job.owner, job.request.request_id), None)

    def commands(self) -> tuple[Command, ...]:
        """What the service must do, in order: save, watch and learn, tell."""
        jobs = self.state.jobs
        commands: list[Command] = []
        if self.state.next_fence != self.first_fence:
            commands.append(SaveFence(event_id=self.event_id, next_fence=self.state.next_fence))
        commands += [SaveJob(event_id=self.event_id, job=jobs[job_id]) for job_id in self.saved]
        commands += self.watching
        commands += [Announce(event_id=self.event_id, job=jobs[job_id]) for job_id in self.told]
        return tuple(commands)

    def _charges(self, job: Job) -> dict[str, int]:
        uses = self.state.uses
        return {
            uuid: max(reserved, uses[uuid].by_job.get(job.id, 0) if uuid in uses else 0)
            for uuid, reserved in slots_of(job).items()
        }

    def _entry(self, source: JobState | None, target: JobState, event: str, why: str) -> StoryEntry:
        return StoryEntry(
            at=self.now,
            event=event,
            from_state=source,
            to_state=target,
            why=why,
            event_id=self.event_id,
        )


def worth_learning(measured: Measurement) -> bool:
    """Whether a job's measurements say anything about its graph."""
    return (
        measured.memory_peak_bytes is not None
        or measured.allocator_peak_bytes is not None
        or measured.utilization is not None
        or measured.steps_per_second_alone is not None
    )


def _told(job: Job, entry: StoryEntry) -> Job:
    """The job with one more entry; a story past its bound keeps its beginning and its end."""
    story = (*job.story, entry)
    if len(story) > STORY_LIMIT:
        story = story[:STORY_HEAD] + story[STORY_HEAD + 1 :]
    return replace(job, story=story)
