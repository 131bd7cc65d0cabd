"""Everything the broker remembers. Records inside are frozen, so a shallow copy is a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from msgspec import Struct

from horus_lab.records import Device, DeviceUse, Job


class Lingering(Struct, frozen=True, kw_only=True):
    """Bytes of an ended job on one device, charged until a later reading shows what is left."""

    job_id: str
    device_uuid: str
    charged_bytes: int
    since: float


class Pace(Struct, frozen=True, kw_only=True):
    """What is needed to tell a running job's time alone from its time with neighbours.

    Attributes:
        beat_at: when it last beat.
        sequence: the last heartbeat's number; older ones are late and ignored.
        mixed: a neighbour came or went since the last beat, so that stretch is neither.
        rate: the last steps/s it told.
        alone_steps, shared_steps: steps in each kind of stretch.
    """

    beat_at: float
    sequence: int = 0
    mixed: bool = True
    rate: float | None = None
    alone_steps: float = 0.0
    shared_steps: float = 0.0


@dataclass
class State:
    """The broker's memory.

    Attributes:
        devices: by UUID, in the order they are shown.
        uses: the last attributed reading of each device; absent: not looked at yet.
        jobs: live jobs, and recently ended ones for repeats of old requests.
        requests: (owner, request id) -> job id.
        lingering: by (job id, device UUID).
        paces: of running jobs.
        saved_at: when each live job was last persisted.
        told_at: when each waiting job's reason was last announced.
        usage: each owner's decayed device-seconds as of `usage_at`.
    """

    next_fence: int = 1
    usage_at: float = 0.0
    devices: dict[str, Device] = field(default_factory=dict)
    uses: dict[str, DeviceUse] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    requests: dict[tuple[str, str], str] = field(default_factory=dict)
    lingering: dict[tuple[str, str], Lingering] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)
    saved_at: dict[str, float] = field(default_factory=dict)
    told_at: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)

    def copy(self) -> State:
        """A checkpoint: later changes to either do not touch the other."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            values[each.name] = dict(value) if isinstance(value, dict) else value
        return State(**values)

    def residents(self, device_uuid: str) -> list[Job]:
        """The jobs that hold a slot on the device, in the order of their grants."""
        found = [
            job
            for job in self.jobs.values()
            if job.state.holds
            and job.lease is not None
            and any(slot.device_uuid == device_uuid for slot in job.lease.slots)
        ]
        return sorted(found, key=lambda job: job.lease.fence if job.lease else 0)

    def queue(self) -> list[Job]:
        """The waiting jobs, oldest first."""
        waiting = [job for job in self.jobs.values() if job.state.value == "queued"]
        return sorted(waiting, key=lambda job: (job.submitted_at, job.id))
