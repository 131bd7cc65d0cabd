"""Frozen records that every part speaks. The wire format is these records.

Units stand in the names: bytes, seconds, FLOP/s; utilizations and fractions are 0-1; instants
(`*_at`) are seconds since the Unix epoch as the broker's clock reads them. `None` in a field
that could be measured or predicted means *unknown*: it is never read as zero.

Records that come from outside (`JobRequest`, `PredictRequest`, `Heartbeat`, ...) refuse unknown
fields, non-finite numbers and sizes past the bounds below.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from horus_lab.errors import InvalidRequest

SCHEMA_VERSION = 1

MAX_BYTES = 2**53
MAX_SECONDS = 10 * 365 * 86400.0
MAX_FLOPS = 1e24

Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Count = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Flops = Annotated[float, Meta(ge=0.0, le=MAX_FLOPS)]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
ShortText = Annotated[str, Meta(max_length=200)]
LongText = Annotated[str, Meta(max_length=2000)]
Identifier = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._:-]+$")]


class Interval(Struct, frozen=True):
    """A predicted quantity as its 10th, 50th and 90th percentile."""

    p10: float
    p50: float
    p90: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.p10) and math.isfinite(self.p50) and math.isfinite(self.p90)):
            raise ValueError("an interval's percentiles must be finite")
        if not self.p10 <= self.p50 <= self.p90:
            raise ValueError("an interval's percentiles must not decrease")


# --- devices ------------------------------------------------------------------------------------


class DeviceKind(enum.StrEnum):
    NVIDIA = "nvidia"
    MIG = "mig"
    CPU = "cpu"
    SIMULATED = "simulated"


class DeviceSpec(Struct, frozen=True, kw_only=True):
    """What a device model can do: the predictor's view of a device.

    Attributes:
        model: the device model's name ("A100-80GB", "RTX 3090", a CPU's name).
        kind: `SIMULATED` never stands here: a simulated A100 has an A100's specification.
        memory_bytes: usable memory of the model.
        peak_flops: FLOP/s by dtype ("float32", "tf32", "bfloat16", "float16", "float64").
        memory_bandwidth: bytes/s.
        multiprocessors: streaming multiprocessors, or CPU cores.
        launch_seconds: the least time that one operation's launch costs.
        context_bytes: memory a process pays for using the device at all.
        source: `table` (published), `measured` (here, at start) or `assumed`.
    """

    model: str
    kind: DeviceKind
    memory_bytes: Bytes
    peak_flops: dict[str, float]
    memory_bandwidth: float
    multiprocessors: int
    launch_seconds: float
    context_bytes: Bytes
    source: Literal["table", "measured", "assumed"] = "table"


class Device(Struct, frozen=True, kw_only=True):
    """One device a job can be put on. Identified by `uuid`, never by `index`."""

    uuid: str
    name: str
    index: int
    kind: DeviceKind
    capacity_bytes: Bytes
    margin_bytes: Bytes
    spec: DeviceSpec
    simulated: bool = False
    max_residents: int = 8


class Health(enum.StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    LOST = "lost"


class ProcessIdentity(Struct, frozen=True):
    """A process that cannot be mistaken for a later one with the same pid."""

    boot_id: ShortText
    pid_namespace: Count
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    start_ticks: Count


class ProcessReading(Struct, frozen=True, kw_only=True):
    """What one process uses of one device. `None`: the driver does not say."""

    pid: int
    memory_bytes: Bytes | None = None
    utilization: float | None = None
    name: str | None = None
    user: str | None = None


class DeviceReading(Struct, frozen=True, kw_only=True):
    """One look at one device. `unknown` says why each missing value is missing."""

    uuid: str
    read_at: float
    health: Health = Health.OK
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used_bytes: Bytes | None = None
    processes: tuple[ProcessReading, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)


class DeviceUse(Struct, frozen=True, kw_only=True):
    """A reading after attribution: whose the used memory is.

    Attributes:
        by_job: measured bytes of each job's process tree on the device; a job whose bytes cannot
            be told is absent.
        utilization_by_job: measured utilization of each job's process tree.
        unmanaged_bytes: bytes in use that belong to no job; `None` when it cannot be known.
    """

    reading: DeviceReading
    by_job: dict[str, int] = field(default_factory=dict)
    utilization_by_job: dict[str, float] = field(default_factory=dict)
    unmanaged_bytes: Bytes | None = None


# --- graph features and predictions -------------------------------------------------------------


class OperationClass(enum.StrEnum):
    CONVOLUTION = "convolution"
    LINEAR = "linear"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORMALIZATION = "normalization"
    ACTIVATION = "activation"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    LOSS = "loss"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    OTHER = "other"


class Phase(enum.StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class OperationStatistics(Struct, frozen=True, kw_only=True):
    """Totals over one step of the operations of one class in one phase."""

    operation: OperationClass
    phase: Phase
    launches: Count
    flops: Flops
    bytes_moved: Count


class CaptureMethod(enum.StrEnum):
    FAKE_STEP = "fake_step"
    FAKE_FORWARD = "fake_forward"
    CPU_STEP = "cpu_step"
    MODULE_WALK = "module_walk"


class GraphFeatures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of one training step before it runs.

    Attributes:
        method: how the features were found; `confidence` (0-1) says how sure that is.
        graph_hash: hex digest of the step's structure (operations, shapes, dtypes): equal for
            equal steps, across processes.
        operations: totals by class and phase.
        flops: floating-point operations of one whole step (a multiply-add counts two).
        bytes_moved: bytes read and written by all operations of one step.
        launches: operations that start a kernel in one step.
        dtype_flops: FLOPs by the dtype they are computed in.
        parameters: number of parameters, trainable or not.
        saved_activation_bytes: bytes that the forward pass keeps for the backward pass.
        peak_live_bytes: the most bytes alive at once in the step, parameters, gradients,
            optimizer state, buffers and batch included.
        samples: the batch size; `None` when it cannot be told.
    """

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    method: CaptureMethod
    confidence: Fraction
    graph_hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{16,128}$")]
    module_name: ShortText = ""
    samples: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    operations: Annotated[tuple[OperationStatistics, ...], Meta(max_length=64)] = ()
    flops: Flops
    bytes_moved: Count
    launches: Count
    dtype_flops: Annotated[dict[ShortText, Flops], Meta(max_length=16)] = field(
        default_factory=dict
    )
    parameters: Count
    parameter_bytes: Bytes
    gradient_bytes: Bytes
    optimizer_state_bytes: Bytes
    buffer_bytes: Bytes
    input_bytes: Bytes
    saved_activation_bytes: Bytes
    peak_live_bytes: Bytes
    precision: ShortText = "32-true"
    capture_seconds: Seconds = 0.0
    notes: Annotated[tuple[LongText, ...], Meta(max_length=20)] = ()


class DeclaredNeeds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user says of a job that cannot be captured. Memory is required to be granted."""

    memory_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)]
    utilization: Fraction | None = None
    memory_utilization: Fraction | None = None
    step_seconds: Annotated[float, Meta(gt=0.0, le=MAX_SECONDS)] | None = None


class Basis(enum.StrEnum):
    MODEL = "model"
    HISTORY = "history"
    DECLARED = "declared"
    UNKNOWN = "unknown"


class Prediction(Struct, frozen=True, kw_only=True):
    """What a job would use of one device model, alone on it.

    Attributes:
        memory_startup_bytes: the start-up peak (context, workspaces, first steps).
        memory_bytes: the steady state's peak, context included.
        memory_utilization: memory-bandwidth utilization, 0-1.
        explanation: one sentence: what the prediction rests on, what makes it wide.
    """

    device_model: str
    basis: Basis
    utilization: Interval | None = None
    memory_utilization: Interval | None = None
    memory_startup_bytes: Interval | None = None
    memory_bytes: Interval | None = None
    step_seconds: Interval | None = None
    explanation: str = ""


# --- jobs and leases ----------------------------------------------------------------------------


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


# --- the wire -----------------------------------------------------------------------------------

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()


def encode(record: Any) -> bytes:
    """A record as JSON. Never `NaN` or `Infinity`: msgspec writes those as `null`."""
    return _ENCODER.encode(record)


def decode(data: bytes | str, kind: type[T]) -> T:
    """JSON as a record.

    Raises:
        InvalidRequest: malformed JSON, wrong types, unknown fields, numbers out of bounds.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"This is not a valid {kind.__name__}: {error}.",
            hint="Correct the named field and send it again.",
        ) from error


def to_builtins(record: Any) -> Mapping[str, Any]:
    """A record as plain dicts and lists, for display and for documents."""
    result: Mapping[str, Any] = msgspec.to_builtins(record)
    return result
