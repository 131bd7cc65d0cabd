"""Everything the broker knows, in records, and the working copy that one event changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from horus_lab.records import Device, DeviceUse, Job, JobState


class Live(Struct, frozen=True, kw_only=True):
    """What the broker knows of a job that has not ended and that no store needs to keep.

    Attributes:
        contact_at: the last sign of the job's client; `None` until the first one, after a
            restart too.
        held_since: when the grant that now waits for its confirmation was made, or taken over
            by a restarted broker.
        saved_at: when the job was last handed to the store.
        told_at: when its waiting reason was last told.
        sequence: the highest heartbeat number seen; older ones are late or doubled.
        beat_at: when the last heartbeat that reported steps was counted.
        rate: steps/s of the last heartbeat that told one.
        shared: whether the job trains beside others now.
        mixed: whether that changed since the last heartbeat, so that the time in between says
            nothing about either.
        outgrown: whether the job was seen above its reservation.
    """

    contact_at: float | None = None
    held_since: float | None = None
    saved_at: float = 0.0
    told_at: float = 0.0
    sequence: int = -1
    beat_at: float | None = None
    rate: float | None = None
    shared: bool = False
    mixed: bool = False
    outgrown: bool = False


class Lingering(Struct, frozen=True, kw_only=True):
    """Bytes of an ended job that were not yet seen free.

    Attributes:
        ended_at: only a reading taken after this says anything about them.
        charges: bytes by device UUID that nobody else may be promised.
        process_gone: whether the job's whole process tree is proven gone.
    """

    ended_at: float
    charges: Mapping[str, int]
    process_gone: bool = False


@dataclass(slots=True)
class State:
    """The broker's state. Only `machine` replaces it, whole, after an event went through.

    Attributes:
        devices: by UUID, in the order they were listed; vanished ones with residents included.
        vanished: UUIDs that jobs hold and the last listing lacked.
        shrunk: UUIDs of devices that hold more than they now have room for, through no grant:
            their capacity or margin changed under their residents.
        jobs: by id; those that ended lately included.
        live: by id of every job that has not ended.
        ended: ids of ended jobs, oldest first (a dict for its order).
        lingering: by id of ended jobs.
        uses: the last look at each device.
        requests: (owner, request id) -> job id.
        usage: each owner's decayed device-seconds as of `usage_at`.
        now: the time of the last event.
    """

    devices: dict[str, Device] = field(default_factory=dict)
    vanished: frozenset[str] = frozenset()
    shrunk: frozenset[str] = frozenset()
    jobs: dict[str, Job] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    lingering: dict[str, Lingering] = field(default_factory=dict)
    uses: dict[str, DeviceUse] = field(default_factory=dict)
    requests: dict[tuple[str, str], str] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    usage_at: float = 0.0
    next_fence: int = 1
    now: float = 0.0

    def copy(self) -> State:
        """A copy whose changes leave this one as it is; the records themselves are shared."""
        return State(
            devices=dict(self.devices),
            vanished=self.vanished,
            shrunk=self.shrunk,
            jobs=dict(self.jobs),
            live=dict(self.live),
            ended=dict(self.ended),
            lingering=dict(self.lingering),
            uses=dict(self.uses),
            requests=dict(self.requests),
            usage=dict(self.usage),
            usage_at=self.usage_at,
            next_fence=self.next_fence,
            now=self.now,
        )

    def unended(self) -> Iterator[Job]:
        """Jobs that have not ended, in the order they were submitted."""
        return (self.jobs[job_id] for job_id in self.live)

    def holders(self) -> Iterator[Job]:
        """Jobs that hold reservations."""
        return (job for job in self.unended() if job.state.holds)

    def residents(self, uuid: str) -> tuple[Job, ...]:
        """Jobs that hold a slot on a device, in the order of their grants."""
        found = [job for job in self.holders() if uuid in slots_of(job)]
        return tuple(sorted(found, key=lambda job: job.lease.fence if job.lease else 0))

    def queue(self) -> tuple[Job, ...]:
        """Waiting jobs, in the order they were submitted."""
        return tuple(job for job in self.unended() if job.state is JobState.QUEUED)

    def change(self, job_id: str, **changes: Any) -> None:
        """Change what is known of a job that has not ended."""
        self.live[job_id] = replace(self.live[job_id], **changes)

    def rebase(self, now: float) -> None:
        """Move what elapsed times are measured from, after the clock was set back to `now`.

        Without this nothing would time out, and no reading would be newer than a release, until
        the clock has caught up again.
        """
        back = self.now - now
        self.usage_at -= back
        for job_id, live in self.live.items():
            self.live[job_id] = replace(
                live,
                contact_at=_earlier(live.contact_at, back),
                held_since=_earlier(live.held_since, back),
                beat_at=_earlier(live.beat_at, back),
                saved_at=live.saved_at - back,
                told_at=live.told_at - back,
            )
        for job_id, rest in self.lingering.items():
            self.lingering[job_id] = replace(rest, ended_at=rest.ended_at - back)
        for uuid, use in self.uses.items():
            reading = replace(use.reading, read_at=use.reading.read_at - back)
            self.uses[uuid] = replace(use, reading=reading)


def _earlier(at: float | None, back: float) -> float | None:
    return None if at is None else at - back


def slots_of(job: Job) -> Mapping[str, int]:
    """The reserved bytes of a job's slots by device UUID; empty without a lease."""
    if job.lease is None:
        return {}
    return {slot.device_uuid: slot.reserved_bytes for slot in job.lease.slots}
