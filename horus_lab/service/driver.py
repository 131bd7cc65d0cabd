"""One event, whole: decide, commit, then tell. Runs in the broker's thread only.

What must be on disk before anyone is told: a job's begin and end, every change of its state, its
lease, a wish to cancel, and its story. What only describes it (a waiting reason, what was
measured so far) is told at once and written with the next commit of that job, or a few seconds
later; after a crash it is found anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from horus_lab.broker.commands import Announce, Command, Learn, SaveFence, SaveJob, Unwatch, Watch
from horus_lab.broker.events import Event
from horus_lab.broker.machine import Broker
from horus_lab.errors import HorusError, StoreUnavailable
from horus_lab.records import Job, Observation, ProcessIdentity
from horus_lab.store.protocol import Store, StoredState

REVISION_STRIDE = 2**32

_logger = logging.getLogger(__name__)

BuildBroker = Callable[[StoredState, float], Broker]
Failpoint = Callable[[str], None]


class Effects(Protocol):
    """What the driver does to the world once a step is committed. None of it may fail or wait."""

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch the process for the job."""
        ...

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        ...

    def announce(self, job: Job) -> None:
        """Tell the event stream."""
        ...

    def observe(self, job: Job) -> Observation | None:
        """What an ended job teaches."""
        ...

    def learn(self, observation: Observation) -> None:
        """Teach the predictor."""
        ...


def no_failpoint(_name: str) -> None:
    """Where tests make a step fail; here nothing does."""


class Driver:
    """Carries a broker's commands out, and keeps the broker as it is on disk.

    Args:
        build: makes a broker of what was stored.
        failpoint: called with `before_commit` and `after_commit` around each commit.
    """

    def __init__(
        self,
        store: Store,
        epoch: int,
        build: BuildBroker,
        effects: Effects,
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._build = build
        self._effects = effects
        self._failpoint = failpoint
        self._marks: dict[str, tuple[object, ...]] = {}
        self._deferred: dict[str, Job] = {}
        self._highest_revision = epoch * REVISION_STRIDE
        self._doubtful: tuple[Job, ...] | None = None
        self.broker: Broker
        self.trouble = ""

    def start(self, now: float) -> StoredState:
        """Take up what is stored, and watch the processes of all open jobs.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return self._take_up(now)

    def handle(self, event: Event, now: float) -> None:
        """Take in one event; when this returns, what must be on disk is.

        Raises:
            StoreUnavailable: nothing happened: the broker is as it was before.
            HorusError: the event is not possible; nothing changed.
        """
        self._settle_doubt(now)
        checkpoint = self.broker.checkpoint()
        try:
            commands = self.broker.handle(event, now)
            learned = self._persist(commands)
        except StoreUnavailable as error:
            self.broker.restore(checkpoint)
            self.trouble = str(error)
            raise
        except HorusError:
            self.broker.restore(checkpoint)
            raise
        except Exception as error:
            self.broker.restore(checkpoint)
            _logger.exception("The broker failed on %s", type(event).__name__)
            self.trouble = f"The broker failed on an event ({type(error).__name__}: {error})."
            raise HorusError(
                "The broker could not take this in; nothing was changed.",
                hint="The server's log has the details.",
            ) from error
        self._tell(commands)
        for seen in learned:
            self._effects.learn(seen)

    def flush(self, *, everything: bool = False) -> None:
        """Write what was put off.

        Args:
            everything: also what the broker would put off further: every open job as it is.

        Raises:
            StoreUnavailable: it stays put off.
        """
        if self._doubtful is not None:
            return  # what was put off may be older than what is on disk
        if everything:
            jobs = self.broker.jobs.values()
            self._deferred.update({job.id: job for job in jobs if not job.state.ended})
        if not self._deferred:
            return
        try:
            self._store.commit(self._epoch, jobs=tuple(self._deferred.values()))
        except StoreUnavailable as error:
            self.trouble = str(error)
            raise
        self._deferred.clear()
        self.trouble = ""

    def _persist(self, commands: Sequence[Command]) -> list[Observation]:
        """Write what must be on disk before it is told, and put the rest off."""
        saves: dict[str, Job] = {}
        next_fence: int | None = None
        observations: list[Observation] = []
        for command in commands:
            match command:
                case SaveJob(job=job):
                    saves[job.id] = job
                case SaveFence(next_fence=fence):
                    next_fence = fence
                case Learn(job=job):
                    seen = self._effects.observe(job)
                    if seen is not None:
                        observations.append(seen)
        urgent = tuple(job for job in saves.values() if self._marks.get(job.id) != _mark(job))
        if urgent or next_fence is not None or observations:
            self._commit(urgent, next_fence, observations)
        for job in saves.values():
            self._deferred[job.id] = job
        for job in urgent:
            del self._deferred[job.id]
            if job.state.ended:
                self._marks.pop(job.id, None)
            else:
                self._marks[job.id] = _mark(job)
        return observations

    def _commit(
        self, jobs: tuple[Job, ...], next_fence: int | None, observations: list[Observation]
    ) -> None:
        try:
            self._failpoint("before_commit")
            self._store.commit(
                self._epoch, jobs=jobs, next_fence=next_fence, observations=observations
            )
            self._failpoint("after_commit")
        except Exception:
            # A commit whose answer is lost may be on disk all the same.
            self._doubtful = jobs
            raise
        self.trouble = ""

    def _tell(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Watch(job_id=job_id, process=process):
                    self._effects.watch(job_id, process)
                case Unwatch(job_id=job_id):
                    self._effects.unwatch(job_id)
                case Announce(job=job):
                    self._highest_revision = max(self._highest_revision, job.revision)
                    self._effects.announce(job)

    def _settle_doubt(self, now: float) -> None:
        """After a failed commit, go on only from what the store really holds.

        Raises:
            StoreUnavailable: it cannot be read either.
        """
        if self._doubtful is None:
            return
        landed = [job for job in self._doubtful if self._store.job(job.id) == job]
        if landed:
            self._take_up(now)
        self._doubtful = None
        for job in landed:
            self._effects.announce(self.broker.jobs.get(job.id, job))

    def _take_up(self, now: float) -> StoredState:
        stored = self._store.load()
        jobs = tuple(self._raised(self._latest(job)) for job in stored.jobs)
        self._marks = {job.id: _mark(job) for job in jobs if not job.state.ended}
        # What was put off of a job that has moved on would take it back.
        self._deferred = {job.id: job for job in jobs if job.id in self._deferred}
        self.broker = self._build(
            StoredState(jobs=jobs, next_fence=stored.next_fence, observations=stored.observations),
            now,
        )
        self._tell(self.broker.recover())
        return stored

    def _latest(self, job: Job) -> Job:
        put_off = self._deferred.get(job.id)
        return put_off if put_off is not None and _mark(put_off) == _mark(job) else job

    def _raised(self, job: Job) -> Job:
        """A revision above all that were ever told.

        Revisions that were told and not written are lost with the broker; a client that waits
        for a higher one must not wait for ever.
        """
        if job.state.ended:
            return job
        return replace(job, revision=max(job.revision, self._highest_revision) + 1)


def _mark(job: Job) -> tuple[object, ...]:
    """What of a job must be on disk before it is told."""
    last = job.story[-1] if job.story else None
    return (job.state, job.lease, job.cancel_requested, job.outcome, job.started_at, last)
