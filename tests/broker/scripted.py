"""A trivial policy and interference, and short ways to say events, for the broker's tests.

The policy is first come, first served: it places the queue's head where its declared memory fits,
and everyone behind waits for the head. The interference model says what a test tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from horus_lab.broker import events
from horus_lab.broker.commands import Announce, Command, Learn, SaveFence, SaveJob, Unwatch, Watch
from horus_lab.broker.machine import Broker
from horus_lab.broker.settings import BrokerSettings
from horus_lab.policy.cluster import ClusterView, DeviceView, Placement, Plan, QueuedView
from horus_lab.records import (
    Basis,
    Constraints,
    DeclaredNeeds,
    Device,
    DeviceKind,
    DeviceReading,
    DeviceSpec,
    DeviceUse,
    Fit,
    Health,
    Heartbeat,
    Interval,
    Job,
    JobRequest,
    Obstacle,
    ObstacleKind,
    Prediction,
    ProcessIdentity,
    Release,
    Slot,
    WaitReason,
)

GIB = 2**30
CAPACITY = 16 * GIB
MARGIN = 1 * GIB

SPEC = DeviceSpec(
    model="Toy",
    kind=DeviceKind.NVIDIA,
    memory_bytes=CAPACITY,
    peak_flops={"float32": 1e13},
    memory_bandwidth=1e12,
    multiprocessors=10,
    launch_seconds=1e-6,
    context_bytes=0,
)


def device(uuid: str = "GPU-0", capacity: int = CAPACITY, max_residents: int = 8) -> Device:
    return Device(
        uuid=uuid,
        name=uuid,
        index=0,
        kind=DeviceKind.NVIDIA,
        capacity_bytes=capacity,
        margin_bytes=MARGIN,
        spec=SPEC,
        max_residents=max_residents,
    )


def prediction(
    gib: float = 4,
    utilization: float | None = 0.3,
    *,
    basis: Basis = Basis.MODEL,
    step_seconds: float | None = None,
) -> Prediction:
    def exactly(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, value, value)

    return Prediction(
        device_model="Toy",
        basis=basis,
        utilization=exactly(utilization),
        memory_bytes=exactly(gib * GIB),
        step_seconds=exactly(step_seconds),
    )


class FirstComeFirstServed:
    """Places the head of the queue while it fits; reserves exactly the predicted memory."""

    name = "first come, first served"

    def plan(self, view: ClusterView, now: float) -> Plan:
        placements: list[Placement] = []
        waiting: dict[str, WaitReason] = {}
        devices = {one.device.uuid: one for one in view.devices}
        taken: dict[str, int] = {}
        blocked = False
        for job in view.queue:
            fitting = [one for one in devices.values() if self._fits(one, job, taken)]
            if blocked or job.absent or len(fitting) < job.devices:
                blocked |= not job.absent
                waiting[job.job_id] = WaitReason(
                    position=len(waiting) + 1,
                    absent=job.absent,
                    obstacles=tuple(
                        Obstacle(device_uuid=uuid, kind=ObstacleKind.MEMORY) for uuid in devices
                    ),
                    sentence="it waits",
                )
                continue
            slots = []
            for one in fitting[: job.devices]:
                uuid = one.device.uuid
                need = _need(job, uuid)
                slots.append(Slot(device_uuid=uuid, reserved_bytes=need, utilization=0.3))
                taken[uuid] = taken.get(uuid, 0) + need
                if job.constraints.exclusive:
                    taken[uuid] = CAPACITY
            placements.append(Placement(job_id=job.job_id, slots=tuple(slots), why="it fits"))
        return Plan(placements=tuple(placements), waiting=waiting)

    def _fits(self, one: DeviceView, job: QueuedView, taken: dict[str, int]) -> bool:
        uuid = one.device.uuid
        if not one.healthy or one.unmanaged_bytes is None or uuid not in job.predictions:
            return False
        if job.constraints.device_uuids and uuid not in job.constraints.device_uuids:
            return False
        crowd = list(one.residents)
        if (job.constraints.exclusive and (crowd or uuid in taken)) or any(
            resident.exclusive for resident in crowd
        ):
            return False
        used = sum(resident.charged_bytes for resident in crowd) + one.lingering_bytes
        used += one.unmanaged_bytes - job.held_bytes.get(uuid, 0) + taken.get(uuid, 0)
        room = one.device.capacity_bytes - one.device.margin_bytes
        return used + _need(job, uuid) <= room

    def assess(self, view: ClusterView, job: QueuedView, now: float) -> tuple[Fit, ...]:
        return tuple(
            Fit(
                device_uuid=one.device.uuid,
                prediction=job.predictions[one.device.uuid],
                fits_now=self._fits(one, job, {}),
                fits_ever=True,
            )
            for one in view.devices
        )

    def never_fits(self, view: ClusterView, job: QueuedView) -> str | None:
        large_enough = any(
            _need(job, one.device.uuid) <= one.device.capacity_bytes - one.device.margin_bytes
            for one in view.devices
            if one.device.uuid in job.predictions
        )
        return None if large_enough else "no device is large enough"


def _need(job: QueuedView, uuid: str) -> int:
    """What the policy reserves: the predicted memory, to the byte."""
    memory = job.predictions[uuid].memory_bytes
    assert memory is not None
    return round(memory.p50)


class ToldPolicy(FirstComeFirstServed):
    """Places exactly what it is told next, right or wrong."""

    def __init__(self) -> None:
        self.next: tuple[Placement, ...] = ()

    def plan(self, view: ClusterView, now: float) -> Plan:
        waiting = {
            job.job_id: WaitReason(position=at, sentence="it waits")
            for at, job in enumerate(view.queue, start=1)
        }
        placements, self.next = self.next, ()
        return Plan(placements=placements, waiting=waiting)


class FlatInterference:
    """Everyone with neighbours is slowed down by the same factor."""

    def __init__(self, factor: float = 1.1) -> None:
        self.factor = factor

    def slowdowns(
        self, residents: Sequence[Prediction], spec: DeviceSpec
    ) -> tuple[Interval | None, ...]:
        if len(residents) == 1:
            return (Interval(1.0, 1.0, 1.0),)
        if any(one.utilization is None for one in residents):
            return (None,) * len(residents)
        return (Interval(self.factor, self.factor, self.factor),) * len(residents)


def process(pid: int = 100) -> ProcessIdentity:
    return ProcessIdentity("boot", 1, pid, 5)


def use(
    at: float,
    uuid: str = "GPU-0",
    *,
    unmanaged: int | None = 0,
    health: Health = Health.OK,
    unknown: dict[str, str] | None = None,
    utilization: dict[str, float] | None = None,
    device_utilization: float | None = None,
    **by_job: int,
) -> DeviceUse:
    return DeviceUse(
        reading=DeviceReading(
            uuid=uuid,
            read_at=at,
            health=health,
            unknown=unknown or {},
            utilization=device_utilization,
        ),
        by_job=by_job,
        utilization_by_job=utilization or {},
        unmanaged_bytes=unmanaged,
    )


class Desk:
    """A broker with a clock that only the test moves, held to its invariants at each step."""

    def __init__(
        self,
        *devices: Device,
        policy: FirstComeFirstServed | None = None,
        interference: FlatInterference | None = None,
        settings: BrokerSettings | None = None,
        strict: bool = True,
        jobs: tuple[Job, ...] = (),
        next_fence: int = 1,
        now: float = 1000.0,
        looked: bool = True,
    ) -> None:
        self.now = now
        self.number = 0
        self.broker = Broker(
            devices or (device(),),
            policy or FirstComeFirstServed(),
            interference or FlatInterference(),
            settings,
            jobs=jobs,
            next_fence=next_fence,
            now=now,
            strict=strict,
        )
        if looked:
            self.look(*(use(now, uuid) for uuid in self.broker.devices))

    # Each word below is one event; it answers with the commands.

    def _tell(self, kind: type, **said: object) -> tuple[Command, ...]:
        self.number += 1
        commands = self.broker.handle(kind(event_id=f"e{self.number}", **said), self.now)
        self.broker.check_invariants()
        return commands

    def submit(
        self,
        job_id: str = "a",
        gib: float = 4,
        *,
        owner: str = "ada",
        request_id: str = "",
        predictions: dict[str, Prediction] | None = None,
        devices: int = 1,
        steps: int | None = None,
        constraints: Constraints | None = None,
        **constrained: object,
    ) -> tuple[Command, ...]:
        return self._tell(
            events.Submitted,
            job_id=job_id,
            owner=owner,
            request=request(
                request_id or f"r-{job_id}",
                gib,
                name=job_id,
                devices=devices,
                steps=steps,
                constraints=constraints or Constraints(**constrained),
            ),
            predictions=predictions or {uuid: prediction(gib) for uuid in self.broker.devices},
        )

    def predict(self, job_id: str, **predictions: Prediction) -> tuple[Command, ...]:
        told = {uuid.replace("_", "-"): one for uuid, one in predictions.items()}
        return self._tell(events.Predicted, job_id=job_id, predictions=told)

    def poll(self, job_id: str = "a") -> tuple[Command, ...]:
        return self._tell(events.Polled, job_id=job_id)

    def confirm(self, job_id: str = "a", fence: int | None = None) -> tuple[Command, ...]:
        return self._tell(events.Confirmed, job_id=job_id, fence=self._fence(job_id, fence))

    def beat(
        self,
        job_id: str = "a",
        sequence: int | None = None,
        *,
        fence: int | None = None,
        steps: int = 0,
        rate: float | None = None,
        allocator: int | None = None,
    ) -> tuple[Command, ...]:
        if sequence is None:
            self.number += 1
            sequence = self.number
        heartbeat = Heartbeat(
            fence=self._fence(job_id, fence),
            sequence=sequence,
            steps=steps,
            steps_per_second=rate,
            allocator_peak_bytes=allocator,
        )
        return self._tell(events.Beat, job_id=job_id, heartbeat=heartbeat)

    def release(
        self,
        job_id: str = "a",
        outcome: Literal["done", "failed", "cancelled"] = "done",
        *,
        fence: int | None = None,
        message: str = "",
        steps: int = 0,
    ) -> tuple[Command, ...]:
        release = Release(
            fence=self._fence(job_id, fence), outcome=outcome, message=message, steps=steps
        )
        return self._tell(events.Released, job_id=job_id, release=release)

    def cancel(self, job_id: str = "a", by: str = "ada") -> tuple[Command, ...]:
        return self._tell(events.Cancelled, job_id=job_id, by=by)

    def end_process(self, job_id: str = "a", *survivors: int) -> tuple[Command, ...]:
        return self._tell(events.ProcessEnded, job_id=job_id, survivors=survivors)

    def look(self, *uses: DeviceUse) -> tuple[Command, ...]:
        return self._tell(events.Measured, uses=uses or (use(self.now),))

    def change_devices(self, *devices: Device) -> tuple[Command, ...]:
        return self._tell(events.DevicesChanged, devices=devices)

    def tick(self) -> tuple[Command, ...]:
        return self._tell(events.Tick)

    def later(self, seconds: float) -> Desk:
        self.now += seconds
        return self

    # And what is asked.

    def job(self, job_id: str = "a") -> Job:
        return self.broker.job(job_id)

    def state(self, job_id: str = "a") -> str:
        return self.job(job_id).state.value

    def fence(self, job_id: str = "a") -> int:
        lease = self.job(job_id).lease
        assert lease is not None
        return lease.fence

    def train(self, job_id: str = "a", gib: float = 4, **said: object) -> Job:
        """Submit a job that is granted at once, and confirm it."""
        self.submit(job_id, gib, **said)  # type: ignore[arg-type]
        self.confirm(job_id)
        return self.job(job_id)

    def restart(self) -> Desk:
        """Another broker on what this one had persisted; nobody looked at the devices yet."""
        return Desk(
            *self.broker.devices.values(),
            jobs=tuple(self.broker.jobs.values()),
            next_fence=self.broker.next_fence,
            now=self.now,
            looked=False,
        )

    def _fence(self, job_id: str, fence: int | None) -> int:
        if fence is not None:
            return fence
        lease = self.job(job_id).lease
        return lease.fence if lease is not None else 0


def request(request_id: str, gib: float = 4, **said: object) -> JobRequest:
    return JobRequest(
        request_id=request_id,
        process=process(),
        declared=DeclaredNeeds(memory_bytes=round(gib * GIB)),
        **{"name": "a", **said},  # type: ignore[arg-type]
    )


def brief(commands: tuple[Command, ...]) -> list[str]:
    """Commands in a line each: `save a granted`, `fence 2`, `watch a`, `tell a granted`."""
    words = []
    for command in commands:
        match command:
            case SaveJob(job=job):
                words.append(f"save {job.id} {job.state.value}")
            case SaveFence(next_fence=fence):
                words.append(f"fence {fence}")
            case Watch(job_id=job_id):
                words.append(f"watch {job_id}")
            case Unwatch(job_id=job_id):
                words.append(f"unwatch {job_id}")
            case Learn(job=job):
                words.append(f"learn {job.id}")
            case Announce(job=job):
                words.append(f"tell {job.id} {job.state.value}")
    return words
