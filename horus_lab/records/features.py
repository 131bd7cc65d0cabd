"""What is known of a training step before it runs, and what is predicted from it."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct, field

from horus_lab.records.bounds import (
    MAX_BYTES,
    MAX_SECONDS,
    SCHEMA_VERSION,
    Bytes,
    Count,
    Flops,
    Fraction,
    Interval,
    LongText,
    Seconds,
    ShortText,
)


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
