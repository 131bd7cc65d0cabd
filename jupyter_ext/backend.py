"""The one interface between the handlers and a broker, wherever the broker runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

from msgspec import Struct

from horus_lab.errors import HorusError
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


class Caller(Struct, frozen=True, kw_only=True):
    """Who is asking, as `access` proved it.

    Attributes:
        owner: the name that jobs are kept under.
        via: a kernel's capability, or a person's authenticated browser or token.
        admin: may cancel other people's jobs.
    """

    owner: str
    via: Literal["kernel", "user"]
    admin: bool = False


class SlowConsumer(HorusError):
    """A reader of the event stream fell further behind than its buffer reaches."""

    code = "slow_consumer"
    status = 503


class Backend(Protocol):
    """Every method raises `HorusError`s only. Changing a job takes its owner or an admin."""

    async def health(self) -> HealthReport: ...

    async def devices(self) -> tuple[DeviceState, ...]: ...

    async def jobs(self, *, states: frozenset[JobState] | None, limit: int) -> tuple[Job, ...]:
        """Jobs, the queue in its order first, then holders, then ended ones newest first."""
        ...

    async def job(
        self, caller: Caller, job_id: str, *, after_revision: int | None, wait_seconds: float
    ) -> Job:
        """The job; held back until its revision passes `after_revision`, `wait_seconds` at most.

        Asked by its owner with `after_revision`, as a client that waits does, it also counts as
        the client's contact.
        """
        ...

    async def story(self, job_id: str) -> tuple[StoryEntry, ...]: ...

    async def predict(self, caller: Caller, request: PredictRequest) -> PredictReply: ...

    async def submit(self, caller: Caller, request: JobRequest) -> tuple[Job, bool]:
        """The job, and whether it is new (`False`: an earlier answer to the same request)."""
        ...

    async def confirm(self, caller: Caller, job_id: str, confirm: Confirm) -> Job: ...

    async def heartbeat(self, caller: Caller, job_id: str, heartbeat: Heartbeat) -> Job: ...

    async def release(self, caller: Caller, job_id: str, release: Release) -> Job: ...

    async def cancel(self, caller: Caller, job_id: str) -> Job: ...

    async def history(self, *, limit: int) -> History: ...

    def events(self, after: int | None) -> AsyncIterator[BrokerEvent]:
        """A snapshot if `after` is absent or too old, then every event with a higher number."""
        ...

    async def close(self) -> None:
        """Let waiters and readers of events go, and write everything down."""
        ...
