"""What a policy sees, and what it answers. Plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field

from horus_lab.records import (
    Constraints,
    Device,
    Fit,
    Interval,
    Prediction,
    Slot,
    WaitReason,
)


class ResidentView(Struct, frozen=True, kw_only=True):
    """A job that holds a slot on a device.

    `measured_bytes` is `None` where it cannot be told; the charge is then the reservation.
    """

    job_id: str
    owner: str
    name: str
    reserved_bytes: int
    prediction: Prediction
    measured_bytes: int | None = None
    max_slowdown: float = 1.25
    exclusive: bool = False
    remaining_seconds: Interval | None = None

    @property
    def charged_bytes(self) -> int:
        """The bytes that no one else may be promised."""
        return max(self.reserved_bytes, self.measured_bytes or 0)


class DeviceView(Struct, frozen=True, kw_only=True):
    """A device as the policy may use it.

    Attributes:
        healthy: whether new jobs may be placed here.
        why_unhealthy: a few words for people, where it is not.
        unmanaged_bytes: in use by nobody that Horus granted; `None`: unknown, never grants.
        lingering_bytes: of jobs that have ended and whose memory was not yet seen free.
    """

    device: Device
    healthy: bool = True
    why_unhealthy: str = ""
    unmanaged_bytes: int | None = 0
    lingering_bytes: int = 0
    residents: tuple[ResidentView, ...] = ()


class QueuedView(Struct, frozen=True, kw_only=True):
    """A job in the queue.

    Attributes:
        predictions: by device UUID.
        held_bytes: by device UUID, what the job's own process already holds there: it is part
            of the device's unmanaged bytes and part of the prediction, and counts once.
        absent: its client has not asked for a while; it keeps its place and is passed over.
    """

    job_id: str
    owner: str
    name: str
    submitted_at: float
    predictions: Mapping[str, Prediction]
    constraints: Constraints = Constraints()
    devices: int = 1
    steps: int | None = None
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    absent: bool = False


class ClusterView(Struct, frozen=True, kw_only=True):
    """Everything a policy may look at. `usage` is each owner's decayed device-seconds."""

    devices: tuple[DeviceView, ...]
    queue: tuple[QueuedView, ...]
    usage: Mapping[str, float] = field(default_factory=dict)


class Placement(Struct, frozen=True, kw_only=True):
    """A job that goes now, and where."""

    job_id: str
    slots: tuple[Slot, ...]
    why: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    """A policy's whole answer: who goes now, and why everyone else waits."""

    placements: tuple[Placement, ...]
    waiting: Mapping[str, WaitReason]


class Policy(Protocol):
    """Queue order and placement over a cluster's state. Pure."""

    @property
    def name(self) -> str:
        """The policy's name in configuration and reports."""
        ...

    def plan(self, view: ClusterView, now: float) -> Plan:
        """Who goes now, in order, and why each other waits."""
        ...

    def assess(self, view: ClusterView, job: QueuedView, now: float) -> tuple[Fit, ...]:
        """For one job outside the queue, each device's answer: fits now, or the obstacle."""
        ...

    def never_fits(self, view: ClusterView, job: QueuedView) -> str | None:
        """A sentence why the job could not run even with every device to itself, or `None`."""
        ...
