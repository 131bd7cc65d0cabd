"""What the broker is told. Each event has an id that follows it through the story and the log."""

from __future__ import annotations

from msgspec import Struct

from horus_lab.records import (
    Device,
    DeviceUse,
    Heartbeat,
    JobRequest,
    Prediction,
    Release,
)


class Submitted(Struct, frozen=True, kw_only=True, tag=True):
    """A caller asks for a slot. `job_id` is made by the service; predictions by device UUID."""

    event_id: str
    job_id: str
    owner: str
    request: JobRequest
    predictions: dict[str, Prediction]


class Predicted(Struct, frozen=True, kw_only=True, tag=True):
    """Better (or first) predictions for a job that waits."""

    event_id: str
    job_id: str
    predictions: dict[str, Prediction]


class Polled(Struct, frozen=True, kw_only=True, tag=True):
    """The job's client asked for it: it is there and can take a grant."""

    event_id: str
    job_id: str


class Confirmed(Struct, frozen=True, kw_only=True, tag=True):
    """The client takes its grant and starts. Raises `StaleFence` where the grant was withdrawn."""

    event_id: str
    job_id: str
    fence: int


class Beat(Struct, frozen=True, kw_only=True, tag=True):
    """A heartbeat of the training process."""

    event_id: str
    job_id: str
    heartbeat: Heartbeat


class Released(Struct, frozen=True, kw_only=True, tag=True):
    """The training process ended its lease."""

    event_id: str
    job_id: str
    release: Release


class Cancelled(Struct, frozen=True, kw_only=True, tag=True):
    """The owner (or an admin) cancels. A running job is asked to stop; it keeps its slot."""

    event_id: str
    job_id: str
    by: str


class ProcessEnded(Struct, frozen=True, kw_only=True, tag=True):
    """The job's process is proven gone; `survivors` are pids of its tree that live on.

    Told again when the survivors change; an empty tuple proves the whole tree gone.
    """

    event_id: str
    job_id: str
    survivors: tuple[int, ...] = ()


class Measured(Struct, frozen=True, kw_only=True, tag=True):
    """The sampler's look at every device, attributed."""

    event_id: str
    uses: tuple[DeviceUse, ...]


class DevicesChanged(Struct, frozen=True, kw_only=True, tag=True):
    """The whole list of devices as it is now."""

    event_id: str
    devices: tuple[Device, ...]


class Tick(Struct, frozen=True, kw_only=True, tag=True):
    """Time has passed."""

    event_id: str


Event = (
    Submitted
    | Predicted
    | Polled
    | Confirmed
    | Beat
    | Released
    | Cancelled
    | ProcessEnded
    | Measured
    | DevicesChanged
    | Tick
)
