"""A broker on paper: it answers like the API, in this process, and writes down what it was told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from horus_lab.errors import BrokerUnavailable, HorusError
from horus_lab.records import (
    Device,
    DeviceKind,
    DeviceSpec,
    DeviceState,
    Heartbeat,
    Job,
    JobRequest,
    JobState,
    Lease,
    Release,
    Slot,
)

GIB = 2**30
CPU = Device(
    uuid="CPU-1",
    name="CPU",
    index=0,
    kind=DeviceKind.CPU,
    capacity_bytes=16 * GIB,
    margin_bytes=GIB,
    spec=DeviceSpec(
        model="cpu",
        kind=DeviceKind.CPU,
        memory_bytes=16 * GIB,
        peak_flops={"float32": 1e11},
        memory_bandwidth=1e10,
        multiprocessors=2,
        launch_seconds=1e-5,
        context_bytes=0,
        source="measured",
    ),
)


class PaperBroker:
    """The client's calls, answered at once. `polls` is how often a job must ask before its turn."""

    patience_seconds = 0.0

    def __init__(self, *, polls: int = 0, devices: tuple[Device, ...] = (CPU,)) -> None:
        self.polls = polls
        self.requests: list[JobRequest] = []
        self.releases: list[Release] = []
        self.heartbeats: list[Heartbeat] = []
        self.cancelled: list[str] = []
        self.on_poll: Callable[[], None] = lambda: None
        self.stop_running = False
        self.down = False
        self.submit_error: HorusError | None = None
        self._devices = devices
        self._job: Job | None = None

    def devices(self) -> tuple[DeviceState, ...]:
        if self.down:
            raise BrokerUnavailable("Nobody answers.", hint="Start it.")
        return tuple(
            DeviceState(device=d, reading=None, reserved_bytes=0, unmanaged_bytes=0)
            for d in self._devices
        )

    def submit(self, request: JobRequest) -> Job:
        if self.submit_error is not None:
            raise self.submit_error
        self.requests.append(request)
        self._job = Job(
            id=f"job-{len(self.requests)}",
            owner="ana",
            request=request,
            state=JobState.QUEUED,
            revision=1,
            submitted_at=100.0,
        )
        return self._job

    def job(self, job_id: str, **_: Any) -> Job:
        self.on_poll()
        if self.polls > 0:
            self.polls -= 1
            return self._changed()
        slot = Slot(device_uuid=self._devices[0].uuid, reserved_bytes=GIB)
        lease = Lease(fence=len(self.requests), slots=(slot,), granted_at=101.0)
        return self._changed(state=JobState.GRANTED, lease=lease, granted_at=101.0)

    def confirm(self, job_id: str, fence: int) -> Job:
        return self._changed(state=JobState.RUNNING)

    def heartbeat(self, job_id: str, heartbeat: Heartbeat, **_: Any) -> Job:
        self.heartbeats.append(heartbeat)
        return self._changed(cancel_requested=self.stop_running)

    def release(self, job_id: str, release: Release, **_: Any) -> Job:
        self.releases.append(release)
        return self._changed(state=JobState(release.outcome))

    def cancel(self, job_id: str, **_: Any) -> Job:
        self.cancelled.append(job_id)
        return self._changed(state=JobState.CANCELLED)

    def _changed(self, **fields: Any) -> Job:
        assert self._job is not None
        self._job = msgspec.structs.replace(self._job, revision=self._job.revision + 1, **fields)
        return self._job


@pytest.fixture
def broker() -> PaperBroker:
    return PaperBroker()
