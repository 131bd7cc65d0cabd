"""Questions and answers of the API that are more than one job or device."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from horus_lab.records.bounds import Bytes, Count, Interval
from horus_lab.records.devices import Device, DeviceReading, ProcessIdentity
from horus_lab.records.features import DeclaredNeeds, GraphFeatures, Prediction
from horus_lab.records.jobs import Constraints, Job, JobState, Obstacle


class PredictRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question: where would this fit, how much would it use, how long would it wait?"""

    features: GraphFeatures | None = None
    declared: DeclaredNeeds | None = None
    constraints: Constraints = Constraints()
    devices: Annotated[int, Meta(ge=1, le=64)] = 1
    process: ProcessIdentity | None = None


class Fit(Struct, frozen=True, kw_only=True):
    """The answer for one device: fits now, or the obstacle."""

    device_uuid: str
    prediction: Prediction
    fits_now: bool
    fits_ever: bool
    obstacle: Obstacle | None = None
    slowdown: Interval | None = None
    neighbours: tuple[str, ...] = ()
    sentence: str = ""


class PredictReply(Struct, frozen=True, kw_only=True):
    """`expected_wait_seconds` is zero where the job would be granted at once."""

    fits: tuple[Fit, ...]
    expected_wait_seconds: Interval | None = None
    queue_length: int = 0


class Resident(Struct, frozen=True, kw_only=True):
    """A job on a device, as shown to everyone who may see the device."""

    job_id: str
    name: str
    owner: str
    notebook: str
    state: JobState
    reserved_bytes: Bytes
    measured_bytes: Bytes | None = None
    predicted_utilization: Interval | None = None
    measured_utilization: float | None = None
    slowdown: Interval | None = None
    measured_slowdown: float | None = None


class DeviceState(Struct, frozen=True, kw_only=True):
    """A device with its last reading and its residents."""

    device: Device
    reading: DeviceReading | None
    reserved_bytes: Bytes
    unmanaged_bytes: Bytes | None
    residents: tuple[Resident, ...] = ()


class Observation(Struct, frozen=True, kw_only=True):
    """What one ended run teaches about its graph on its device model.

    `step_seconds` and `utilization` are of the time without neighbours; `None` where there was
    none, or it could not be measured. `memory_bytes` is the measured peak, context included.
    """

    graph_hash: str
    device_model: str
    observed_at: float
    memory_bytes: Bytes | None = None
    utilization: float | None = None
    step_seconds: float | None = None
    steps: Count = 0


class TrackRecord(Struct, frozen=True, kw_only=True):
    """How predictions did against measurements. Coverage: share inside p10-p90."""

    runs: int
    memory_coverage: float | None = None
    memory_median_error: float | None = None
    utilization_coverage: float | None = None
    utilization_median_error: float | None = None


class History(Struct, frozen=True, kw_only=True):
    """Ended jobs, newest first."""

    jobs: tuple[Job, ...]
    track_record: TrackRecord


class HealthReport(Struct, frozen=True, kw_only=True):
    """What the broker is and whether it is well."""

    version: str
    broker_id: str
    epoch: int
    started_at: float
    devices: int
    probe: str
    notices: tuple[str, ...] = ()
    store: str = ""


class BrokerEvent(Struct, frozen=True, kw_only=True):
    """One message of the event stream: what changed, with a number that only grows.

    A connection without a number to resume from, or with one too old, is sent a `snapshot` of
    everything first; then each `job` that changed, and `devices` after each look at them.
    """

    sequence: int
    at: float
    kind: Literal["snapshot", "job", "devices"]
    job: Job | None = None
    jobs: tuple[Job, ...] = ()
    devices: tuple[DeviceState, ...] = ()


class ErrorReply(Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    code: str
    message: str
    hint: str = ""
