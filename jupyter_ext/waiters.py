"""Whoever waits for a job's change, woken by the event stream and never by a clock."""

from __future__ import annotations

import asyncio

from horus_lab.records import BrokerEvent, Job


class JobWaiters:
    """Futures by job, on one event loop. Bounded: past `limit` nobody else may wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._by_job: dict[str, set[asyncio.Future[Job | None]]] = {}

    @property
    def full(self) -> bool:
        """Whether another waiter would be one too many."""
        return self._count >= self._limit

    @property
    def empty(self) -> bool:
        """Whether nobody waits."""
        return self._count == 0

    def add(self, job_id: str) -> asyncio.Future[Job | None]:
        """A future of the job's next change; `None` says to look for oneself."""
        waiter: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        self._by_job.setdefault(job_id, set()).add(waiter)
        self._count += 1
        return waiter

    def remove(self, job_id: str, waiter: asyncio.Future[Job | None]) -> None:
        """Wait no more. Safe to call twice."""
        waiters = self._by_job.get(job_id)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            self._count -= 1
            if not waiters:
                del self._by_job[job_id]
        waiter.cancel()

    def hear(self, event: BrokerEvent) -> None:
        """Wake those whose job has changed."""
        if event.job is not None:
            self._wake(event.job.id, event.job)
        elif event.kind == "snapshot":
            self.wake_all()

    def wake_all(self) -> None:
        """Have everybody look for themselves: events may have been missed."""
        for job_id in list(self._by_job):
            self._wake(job_id, None)

    def _wake(self, job_id: str, job: Job | None) -> None:
        for waiter in self._by_job.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(job)
