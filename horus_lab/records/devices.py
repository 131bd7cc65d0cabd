"""Devices, what is read of them, and whose it is."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from horus_lab.records.bounds import Bytes, Count, ShortText


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
