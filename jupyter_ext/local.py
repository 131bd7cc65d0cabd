"""The broker in this very process: futures of its thread, awaited on the server's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from horus_lab.errors import BrokerUnavailable, HorusError, NeverFits
from horus_lab.records import (
    BrokerEvent,
    Confirm,
    DeviceState,
    HealthReport,
    Heartbeat,
    History,
    Job,
    JobRequest,
    JobState,
    PredictReply,
    PredictRequest,
    Release,
    StoryEntry,
)
from jupyter_ext.backend import Caller
from jupyter_ext.event_queue import EventQueue
from jupyter_ext.waiters import JobWaiters

if TYPE_CHECKING:
    from horus_lab.service.broker_service import BrokerService
    from horus_lab.service.event_stream import Subscription
    from horus_lab.service.settings import ServiceSettings

MAX_WAITERS = 1000
MAX_READERS = 100

_LINGER_SECONDS = 30.0


async def open_local(settings: ServiceSettings) -> LocalBackend:
    """A broker as the settings describe it, started.

    Raises:
        HorusError: it cannot start, with the reason.
    """

    def started() -> BrokerService:
        from horus_lab.service.composition import build_service

        service = build_service(settings)
        service.start()
        return service

    return LocalBackend(await asyncio.to_thread(started))


class LocalBackend:
    """A `Backend` over a started `BrokerService`; used on one event loop.

    Args:
        max_waiters: requests that may be held back at once; one more is answered at once.
        max_readers: readers of the event stream at once; one more is refused.
    """

    def __init__(
        self,
        service: BrokerService,
        *,
        max_waiters: int = MAX_WAITERS,
        max_readers: int = MAX_READERS,
    ) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._waiters = JobWaiters(max_waiters)
        self._listening: Future[Subscription] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._max_readers = max_readers
        self._readers: set[EventQueue] = set()

    async def health(self) -> HealthReport:
        """What the broker is and whether it is well."""
        return await asyncio.wrap_future(self._service.health())

    async def devices(self) -> tuple[DeviceState, ...]:
        """Every device with its last reading and its residents."""
        return await asyncio.wrap_future(self._service.devices())

    async def jobs(self, *, states: frozenset[JobState] | None, limit: int) -> tuple[Job, ...]:
        """The queue in its order, then holders, then ended jobs, newest first."""
        return await asyncio.wrap_future(self._service.jobs(states, limit))

    async def story(self, job_id: str) -> tuple[StoryEntry, ...]:
        """What happened to the job, oldest first."""
        job = await asyncio.wrap_future(self._service.job(job_id))
        return job.story

    async def predict(self, caller: Caller, request: PredictRequest) -> PredictReply:
        """Where it would fit, what it would use, how long it would wait."""
        return await asyncio.wrap_future(self._service.predict(caller.owner, request))

    async def submit(self, caller: Caller, request: JobRequest) -> tuple[Job, bool]:
        """The job, and whether it is new.

        Raises:
            NeverFits: the job was rejected; it stays in the history with its reason.
        """
        job, new = await asyncio.wrap_future(self._service.submit(caller.owner, request))
        if job.state is JobState.REJECTED:
            raise _never_fits(job)
        return job, new

    async def confirm(self, caller: Caller, job_id: str, confirm: Confirm) -> Job:
        """The client takes its grant."""
        return await asyncio.wrap_future(
            self._service.confirm(job_id, confirm, caller.owner, caller.admin)
        )

    async def heartbeat(self, caller: Caller, job_id: str, heartbeat: Heartbeat) -> Job:
        """The training lives, and is this far."""
        return await asyncio.wrap_future(
            self._service.heartbeat(job_id, heartbeat, caller.owner, caller.admin)
        )

    async def release(self, caller: Caller, job_id: str, release: Release) -> Job:
        """The training ended."""
        return await asyncio.wrap_future(
            self._service.release(job_id, release, caller.owner, caller.admin)
        )

    async def cancel(self, caller: Caller, job_id: str) -> Job:
        """Leave the queue, or ask the running job to stop."""
        return await asyncio.wrap_future(self._service.cancel(job_id, caller.owner, caller.admin))

    async def history(self, *, limit: int) -> History:
        """Ended jobs, newest first."""
        return await asyncio.wrap_future(self._service.history(limit))

    # --- waiting ----------------------------------------------------------------------------

    async def job(
        self, caller: Caller, job_id: str, *, after_revision: int | None, wait_seconds: float
    ) -> Job:
        """The job; held back until its revision passes `after_revision`."""
        job = await asyncio.wrap_future(self._service.job(job_id))
        if after_revision is None:
            return job
        if caller.owner == job.owner:
            job = await asyncio.wrap_future(self._service.poll(job_id))
        if job.revision > after_revision or wait_seconds <= 0.0 or self._waiters.full:
            return job
        return await self._changed(job, after_revision, self._loop.time() + wait_seconds)

    async def _changed(self, job: Job, after: int, deadline: float) -> Job:
        """The job with a higher revision, or as it is at the deadline (on the loop's clock)."""
        while job.revision <= after:
            waiter = self._waiters.add(job.id)
            try:
                await self._listen()
                # What changed before the listening began is not announced again.
                job = await asyncio.wrap_future(self._service.job(job.id))
                left = deadline - self._loop.time()
                if job.revision > after or left <= 0.0:
                    return job
                announced = await asyncio.wait_for(waiter, left)
                if announced is not None:
                    job = announced
            except TimeoutError:
                return await asyncio.wrap_future(self._service.job(job.id))
            finally:
                self._waiters.remove(job.id, waiter)
                self._listen_no_longer_than_needed()
        return job

    async def _listen(self) -> None:
        """See that announcements reach the waiters; one subscription serves them all."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._listening is None:
            self._listening = self._service.subscribe(
                self._on_loop(self._waiters.hear), None, self._on_loop(self._lost)
            )
        listening = self._listening
        try:
            await asyncio.shield(asyncio.wrap_future(listening))
        except HorusError:
            if self._listening is listening:
                self._listening = None
            raise

    def _listen_no_longer_than_needed(self) -> None:
        # A subscription keeps the sampler at its full pace, so it ends when nobody waits; but
        # not between two polls of the same client.
        if self._waiters.empty and self._linger is None and self._listening is not None:
            self._linger = self._loop.call_later(_LINGER_SECONDS, self._stop_listening)

    def _stop_listening(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        listening, self._listening = self._listening, None
        if listening is not None:
            self._let_go(listening)

    def _let_go(self, subscribed: Future[Subscription]) -> None:
        """End a subscription, also one whose answer is still to come."""

        def end(subscribed: Future[Subscription]) -> None:
            if not subscribed.cancelled() and subscribed.exception() is None:
                self._service.unsubscribe(subscribed.result())

        subscribed.add_done_callback(end)

    def _lost(self) -> None:
        self._listening = None
        self._waiters.wake_all()

    def _on_loop(self, call: Callable[..., None]) -> Callable[..., None]:
        def from_any_thread(*arguments: object) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call, *arguments)

        return from_any_thread

    # --- the event stream -------------------------------------------------------------------

    async def events(self, after: int | None) -> AsyncIterator[BrokerEvent]:
        """A snapshot if `after` is absent or too old, then every event with a higher number.

        Raises:
            SlowConsumer: the reader fell too far behind.
            BrokerUnavailable: the broker stopped, or there are too many readers.
        """
        if len(self._readers) >= self._max_readers:
            raise BrokerUnavailable(
                f"{len(self._readers)} readers of events are connected, and that is the most.",
                hint="Close some of this server's JupyterLab pages.",
            )
        queue = EventQueue()
        self._readers.add(queue)
        subscribed = self._service.subscribe(queue.receive, after, queue.lost)
        try:
            await asyncio.wrap_future(subscribed)
            while True:
                yield await queue.next()
        finally:
            self._readers.discard(queue)
            queue.close()
            self._let_go(subscribed)

    async def close(self) -> None:
        """Let everybody go, then stop the broker, off the loop."""
        for queue in tuple(self._readers):
            queue.stopped()
        self._stop_listening()
        await asyncio.to_thread(self._service.stop)
        self._waiters.wake_all()


def _never_fits(job: Job) -> NeverFits:
    why = job.outcome.rstrip(".") or "no device here could hold it, even alone"
    return NeverFits(
        f"{job.request.name} can never run here: {why}.",
        hint="Ask for less (a smaller batch or model, fewer devices); "
        "`%horus predict` shows what it needs on each device.",
    )
