"""What a store does for a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from horus_lab.records import Job, Observation


class StoredState(Struct, frozen=True, kw_only=True):
    """Everything a broker starts from.

    Attributes:
        jobs: all jobs that have not ended, oldest first, then the latest ended ones.
        next_fence: the lowest fence that was never given out.
        observations: what ended runs taught, oldest first.
    """

    jobs: tuple[Job, ...] = ()
    next_fence: int = 1
    observations: tuple[Observation, ...] = ()


class Store(Protocol):
    """A broker's memory. Every method raises `StoreUnavailable` where the store cannot be used.

    A method that raised has written nothing, except where a commit's own answer was lost; who
    must know reads the store again.
    """

    @property
    def description(self) -> str:
        """What and where it is, for people."""
        ...

    def claim(self, broker_id: str, now: float) -> int:
        """Make this broker the only one that may write; the new epoch, higher than any before."""
        ...

    def load(self) -> StoredState:
        """What was committed."""
        ...

    def commit(
        self,
        epoch: int,
        *,
        jobs: Sequence[Job] = (),
        next_fence: int | None = None,
        observations: Sequence[Observation] = (),
    ) -> None:
        """Write all of this, or nothing, and return once it is on disk.

        Raises:
            StoreUnavailable: it could not be written, or a later broker has claimed the store.
        """
        ...

    def job(self, job_id: str) -> Job | None:
        """The job as it was last committed."""
        ...

    def find_request(self, owner: str, request_id: str) -> Job | None:
        """The job that an owner's request made, ended or not."""
        ...

    def history(self, limit: int) -> tuple[Job, ...]:
        """Ended jobs, the latest first."""
        ...

    def close(self) -> None:
        """Let go of the store. Safe to call twice."""
        ...
