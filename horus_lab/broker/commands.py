"""What the broker wants done. The service carries them out, in order, saving before telling."""

from __future__ import annotations

from msgspec import Struct

from horus_lab.records import Job, ProcessIdentity


class SaveJob(Struct, frozen=True, kw_only=True, tag=True):
    """Persist this job as it is now (insert or replace)."""

    event_id: str
    job: Job


class SaveFence(Struct, frozen=True, kw_only=True, tag=True):
    """Persist that fences below `next_fence` are used, in the same transaction as the grant."""

    event_id: str
    next_fence: int


class Announce(Struct, frozen=True, kw_only=True, tag=True):
    """Tell waiters and the event stream that this job changed (after the commit)."""

    event_id: str
    job: Job


class Watch(Struct, frozen=True, kw_only=True, tag=True):
    """Watch this process for the job; tell the broker with `ProcessEnded` when it is gone."""

    event_id: str
    job_id: str
    process: ProcessIdentity


class Unwatch(Struct, frozen=True, kw_only=True, tag=True):
    """The job no longer depends on its process."""

    event_id: str
    job_id: str


class Learn(Struct, frozen=True, kw_only=True, tag=True):
    """The job ended with measurements worth learning from."""

    event_id: str
    job: Job


Command = SaveJob | SaveFence | Announce | Watch | Unwatch | Learn
