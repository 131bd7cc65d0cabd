"""Jobs, leases, reasons, and what a training process says of its job."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from horus_lab.records.bounds import Bytes, Count, Identifier, Interval, LongText, ShortText
from horus_lab.records.devices import ProcessIdentity
from horus_lab.records.features import DeclaredNeeds, GraphFeatures, Prediction


class Constraints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner allows.

    Attributes:
        exclusive: no neighbours.
        max_slowdown: the bound on the job's own slowdown (1.25: a quarter slower at most).
        priority: higher goes first within fair share; 0 is usual.
        device_uuids: the only devices allowed; empty: any. A kernel that already initialised
            CUDA sends what it can see.
    """

    exclusive: bool = False
    max_slowdown: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.25
    priority: Annotated[int, Meta(ge=-10, le=10)] = 0
    device_uuids: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()


class JobRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request for a slot. The owner is the caller, and never part of the body.

    Attributes:
        request_id: made by the client; the same id with the same body replays the answer.
        devices: how many devices the job needs (a gang gets all or none).
        process: the process that will train; its end releases the job.
        steps: optimizer steps that the training will take, where known.
        notebook: the notebook's or script's path, for display.
    """

    request_id: Identifier
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    process: ProcessIdentity
    features: GraphFeatures | None = None
    declared: DeclaredNeeds | None = None
    devices: Annotated[int, Meta(ge=1, le=64)] = 1
    constraints: Constraints = Constraints()
    steps: Annotated[int, Meta(ge=1, le=2**50)] | None = None
    notebook: ShortText = ""
    kernel_id: ShortText = ""


class JobState(enum.StrEnum):
    QUEUED = "queued"
    GRANTED = "granted"
    RUNNING = "running"
    SUSPECT = "suspect"
    FENCED = "fenced"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        """Whether the job will never change again."""
        return self in _ENDED

    @property
    def holds(self) -> bool:
        """Whether a job in this state holds reservations."""
        return self in _HOLDING


_ENDED = frozenset(
    {JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED, JobState.LOST}
)
_HOLDING = frozenset({JobState.GRANTED, JobState.RUNNING, JobState.SUSPECT, JobState.FENCED})


class Slot(Struct, frozen=True, kw_only=True):
    """A job's share of one device."""

    device_uuid: str
    reserved_bytes: Bytes
    utilization: float | None = None
    slowdown: Interval | None = None


class Lease(Struct, frozen=True, kw_only=True):
    """A granted slot (or a gang's slots) with its fence."""

    fence: int
    slots: tuple[Slot, ...]
    granted_at: float
    neighbours: tuple[str, ...] = ()


class ObstacleKind(enum.StrEnum):
    MEMORY = "memory"
    SLOWDOWN_SELF = "slowdown_self"
    SLOWDOWN_RESIDENT = "slowdown_resident"
    EXCLUSIVE_SELF = "exclusive_self"
    EXCLUSIVE_RESIDENT = "exclusive_resident"
    RESIDENTS_FULL = "residents_full"
    UNKNOWN_MEMORY = "unknown_memory"
    UNKNOWN_PREDICTION = "unknown_prediction"
    UNHEALTHY = "unhealthy"
    NOT_ALLOWED = "not_allowed"
    RESERVED_FOR_DUE = "reserved_for_due"


class Obstacle(Struct, frozen=True, kw_only=True):
    """Why a job cannot join one device now.

    Attributes:
        lacking_bytes: how much memory is missing (`memory`).
        slowdown: the predicted slowdown that would break `bound` (`slowdown_*`).
        job_id: the resident, or due job, that it concerns.
    """

    device_uuid: str
    kind: ObstacleKind
    lacking_bytes: Bytes | None = None
    slowdown: float | None = None
    bound: float | None = None
    job_id: str | None = None


class WaitReason(Struct, frozen=True, kw_only=True):
    """Why a job waits, where it stands, and for how long it probably will.

    Attributes:
        position: its place in the queue, from 1.
        obstacles: at most one for each device.
        absent: the job's client has not asked for a while, so it is passed over.
        sentence: the same for people, written with names.
        expected_seconds: `None` when nobody can say.
    """

    position: int
    obstacles: tuple[Obstacle, ...] = ()
    absent: bool = False
    sentence: str = ""
    expected_seconds: Interval | None = None


class StoryEntry(Struct, frozen=True, kw_only=True):
    """One step in a job's life. `event` names its kind, `event_id` the very event."""

    at: float
    event: str
    from_state: JobState | None
    to_state: JobState
    why: str = ""
    event_id: str = ""


class Measurement(Struct, frozen=True, kw_only=True):
    """What was really seen of a job so far.

    Attributes:
        steps_per_second_alone: the mean rate over the time without neighbours.
        steps_per_second_shared: the mean rate over the time with neighbours.
        utilization: the mean over the samples while it ran; `utilization_alone` over those of
            them without neighbours.
        slowdown: alone / shared, where both are known; at least 1.
        slowdown_basis: `own` (its own time alone) or `history` (the same graph alone before).
    """

    steps: Count = 0
    steps_per_second_alone: float | None = None
    steps_per_second_shared: float | None = None
    seconds_alone: float = 0.0
    seconds_shared: float = 0.0
    utilization: float | None = None
    utilization_samples: int = 0
    utilization_alone: float | None = None
    utilization_alone_samples: int = 0
    memory_peak_bytes: Bytes | None = None
    allocator_peak_bytes: Bytes | None = None
    slowdown: float | None = None
    slowdown_basis: Literal["own", "history"] | None = None


class Job(Struct, frozen=True, kw_only=True):
    """One job, whole. `revision` grows with every change a waiter could care about."""

    id: str
    owner: str
    request: JobRequest
    state: JobState
    revision: int
    submitted_at: float
    predictions: dict[str, Prediction] = field(default_factory=dict)
    lease: Lease | None = None
    reason: WaitReason | None = None
    last_contact_at: float = 0.0
    granted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    measured: Measurement = Measurement()
    story: tuple[StoryEntry, ...] = ()
    cancel_requested: bool = False


class Heartbeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training process says every few seconds. `sequence` grows by one each time."""

    fence: Count
    sequence: Count
    steps: Count = 0
    steps_per_second: Annotated[float, Meta(ge=0.0, le=1e9)] | None = None
    allocator_peak_bytes: Bytes | None = None


class Confirm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The client has its grant and starts training."""

    fence: Count


class Release(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a job as its own process tells it."""

    fence: Count
    outcome: Literal["done", "failed", "cancelled"] = "done"
    message: LongText = ""
    steps: Count = 0
    allocator_peak_bytes: Bytes | None = None
