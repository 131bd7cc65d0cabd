"""A small world for services under test: scripted devices, a plain policy, real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horus_lab.devices.attribution import attribute
from horus_lab.devices.processes import PsutilProcessTable
from horus_lab.policy.cluster import ClusterView, Placement, Plan, QueuedView
from horus_lab.records import (
    Basis,
    DeclaredNeeds,
    Device,
    DeviceReading,
    DeviceSpec,
    Fit,
    GraphFeatures,
    Interval,
    JobRequest,
    Observation,
    Prediction,
    ProcessIdentity,
    ProcessReading,
    Slot,
    WaitReason,
)
from horus_lab.service import BrokerService, Pace, Parts, ServiceSettings
from horus_lab.store import SqlStore, StoreSettings
from horus_lab.testing import ManualClock, ScriptedWatcher, a_device

GIB = 2**30


def device(name: str = "GPU-a", gib: float = 10.0, **changes: Any) -> Device:
    """A GPU without a margin, so that sums are easy."""
    return a_device(name, gib=gib, model="Test GPU", margin_gib=0.0, **changes)


def identity(pid: int | None = None) -> ProcessIdentity:
    """A real process's; without a pid, this one's."""
    found = PsutilProcessTable().identify(pid or os.getpid())
    assert found is not None
    return found


def request(name: str = "r1", gib: float = 4.0, **changes: Any) -> JobRequest:
    given: dict[str, Any] = {
        "request_id": name,
        "name": name,
        "process": identity(),
        "declared": DeclaredNeeds(memory_bytes=int(gib * GIB)),
    }
    return JobRequest(**{**given, **changes})


class DeclaredPredictor:
    """Predicts what is declared; for features, what it was taught, else 2 GiB."""

    def __init__(self) -> None:
        self.learned: list[Observation] = []
        self.asked = 0
        self.fails = False

    def predict(
        self,
        features: GraphFeatures | None,
        declared: DeclaredNeeds | None,
        spec: DeviceSpec,
        *,
        held_bytes: int | None = None,
    ) -> Prediction:
        self.asked += 1
        if self.fails:
            raise ArithmeticError("a model of nothing")
        basis, memory = Basis.MODEL, 2 * GIB
        if declared is not None:
            basis, memory = Basis.DECLARED, declared.memory_bytes
        for seen in self.learned:
            if features and seen.graph_hash == features.graph_hash and seen.memory_bytes:
                basis, memory = Basis.HISTORY, seen.memory_bytes
        whole = Interval(float(memory), float(memory), float(memory))
        half = Interval(0.4, 0.5, 0.6)
        return Prediction(
            device_model=spec.model, basis=basis, memory_bytes=whole, utilization=half
        )

    def learn(self, observation: Observation) -> None:
        self.learned.append(observation)


class FirstFit:
    """Oldest first, the first device whose memory suffices; nobody overtakes."""

    name = "first-fit"

    def plan(self, view: ClusterView, now: float) -> Plan:
        free = {each.device.uuid: self._free(each) for each in view.devices}
        placements, waiting = [], {}
        for position, job in enumerate(view.queue, start=1):
            slot = None if job.absent or waiting else self._slot(job, free)
            if slot is None:
                waiting[job.job_id] = WaitReason(
                    position=position, absent=job.absent, sentence="waits for memory"
                )
                continue
            free[slot.device_uuid] -= slot.reserved_bytes
            placements.append(Placement(job_id=job.job_id, slots=(slot,)))
        return Plan(placements=tuple(placements), waiting=waiting)

    def assess(self, view: ClusterView, job: QueuedView, now: float) -> tuple[Fit, ...]:
        return tuple(
            Fit(
                device_uuid=each.device.uuid,
                prediction=job.predictions[each.device.uuid],
                fits_now=self._need(job, each.device.uuid) <= self._free(each),
                fits_ever=True,
            )
            for each in view.devices
        )

    def never_fits(self, view: ClusterView, job: QueuedView) -> str | None:
        needs = [
            self._need(job, each.device.uuid) <= each.device.capacity_bytes for each in view.devices
        ]
        return None if any(needs) else "no device here is large enough"

    def _slot(self, job: QueuedView, free: dict[str, int]) -> Slot | None:
        for uuid, room in free.items():
            need = self._need(job, uuid)
            if need <= room:
                return Slot(device_uuid=uuid, reserved_bytes=need, utilization=0.5)
        return None

    def _need(self, job: QueuedView, uuid: str) -> int:
        memory = job.predictions[uuid].memory_bytes
        return int(memory.p90) if memory is not None else 2**60

    def _free(self, view: Any) -> int:
        if not view.healthy or view.unmanaged_bytes is None:
            return -1
        charged = sum(resident.charged_bytes for resident in view.residents)
        taken = charged + view.unmanaged_bytes + view.lingering_bytes
        return view.device.capacity_bytes - view.device.margin_bytes - taken


class ScriptedProbe:
    """Devices that show what a test wrote into it."""

    name = "scripted"

    def __init__(self, *devices: Device) -> None:
        self.listed = devices or (device(),)
        self.used: dict[str, int] = {}
        self.processes: dict[str, tuple[ProcessReading, ...]] = {}
        self.trees: list[Mapping[str, frozenset[int]]] = []
        self.residents: list[Mapping[str, Mapping[str, Prediction]]] = []
        self.before_read: Any = lambda: None
        self.opened = 0
        self.closed = 0

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def devices(self) -> tuple[Device, ...]:
        return self.listed

    def set_residents(self, residents: Mapping[str, Mapping[str, Prediction]]) -> None:
        self.residents.append(residents)

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        self.before_read()
        self.trees.append(trees)
        return tuple(
            DeviceReading(
                uuid=each.uuid,
                read_at=now,
                utilization=0.0,
                memory_used_bytes=self.used.get(each.uuid, 0),
                processes=self.processes.get(each.uuid, ()),
            )
            for each in self.listed
        )


@dataclass
class World:
    """One service with all its scripted parts at hand."""

    folder: Path
    probe: ScriptedProbe = field(default_factory=ScriptedProbe)
    predictor: DeclaredPredictor = field(default_factory=DeclaredPredictor)
    watcher: ScriptedWatcher = field(default_factory=ScriptedWatcher)
    clock: Any = field(default_factory=ManualClock)
    failpoint: Any = lambda _name: None
    settings: ServiceSettings | None = None
    store_settings: StoreSettings = field(default_factory=StoreSettings)
    services: list[BrokerService] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "horus.sqlite3"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def build(self, **parts: Any) -> BrokerService:
        """A service that is not started."""
        pace = Pace(sample=0.5, idle_sample=0.5, probe_timeout=5.0)
        settings = self.settings or ServiceSettings(store_url=self.url, pace=pace)
        given: dict[str, Any] = {
            "probe": self.probe,
            "table": PsutilProcessTable(),
            "attribute": attribute,
            "watcher": self.watcher,
            "predictor": self.predictor,
            "policy": FirstFit(),
            "clock": self.clock,
            "failpoint": lambda name: self.failpoint(name),
        }
        if "store" not in parts:
            given["store"] = SqlStore.open(self.url, self.store_settings)
        service = BrokerService(Parts(**{**given, **parts}), settings)
        self.services.append(service)
        return service

    def start(self, **parts: Any) -> BrokerService:
        """A service that answers."""
        service = self.build(**parts)
        service.start()
        return service

    def restart(self) -> BrokerService:
        """Stop the last service and start another over the same store."""
        self.services[-1].stop()
        self.probe = ScriptedProbe(*self.probe.listed)
        self.watcher = ScriptedWatcher()
        return self.start()

    def stop(self) -> None:
        for service in self.services:
            service.stop()


def eventually(check: Any, seconds: float = 20.0) -> Any:
    """What `check` answers once it is true; fails when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
