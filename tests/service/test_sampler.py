"""The devices are looked at for everybody, and a bad driver takes nothing down with it."""

from __future__ import annotations

import threading
from typing import Any

import psutil

from horus_lab.devices.attribution import attribute
from horus_lab.devices.processes import PsutilProcessTable
from horus_lab.records import Confirm, DeviceKind, JobState, ProcessReading
from horus_lab.service import Pace, ServiceSettings
from horus_lab.service.asking import held
from horus_lab.service.sampler import Sampler
from horus_lab.testing import ManualClock
from tests.service.world import GIB, ScriptedProbe, World, device, eventually, identity, request
from tests.store.records import job


def quick(world: World, **changes: Any) -> None:
    pace = Pace(**{"sample": 0.5, "idle_sample": 0.5, "probe_timeout": 0.3, **changes})
    world.settings = ServiceSettings(store_url=world.url, pace=pace)


def test_a_probe_that_raises_grants_nothing_until_it_works_again(world: World) -> None:
    quick(world)
    service = world.start()

    def breaks() -> None:
        raise OSError("Unknown Error")

    world.probe.before_read = breaks
    eventually(lambda: service.health().result(10).notices)
    job, _ = service.submit("ann", request("r1")).result(10)
    assert job.state is JobState.QUEUED
    (state,) = service.devices().result(10)
    assert state.unmanaged_bytes is None  # unknown, and not zero
    assert state.reading is not None
    assert "Unknown Error" in state.reading.unknown["memory_used_bytes"]
    assert "Unknown Error" in " ".join(service.health().result(10).notices)
    world.probe.before_read = lambda: None
    eventually(lambda: service.poll(job.id).result(10).state is JobState.GRANTED)
    eventually(lambda: service.health().result(10).notices == ())


def test_a_probe_that_hangs_grants_nothing_and_the_service_goes_on(world: World) -> None:
    quick(world)
    service = world.start()
    stuck = threading.Event()
    entered = threading.Event()

    def hangs() -> None:
        entered.set()
        stuck.wait(30)

    world.probe.before_read = hangs
    eventually(lambda: "has not answered" in " ".join(service.health().result(10).notices))
    job, _ = service.submit("ann", request("r1")).result(10)
    assert job.state is JobState.QUEUED
    assert service.cancel(job.id, "ann").result(10).state is JobState.CANCELLED
    waiting, _ = service.submit("ann", request("r2")).result(10)
    world.probe.before_read = lambda: None
    stuck.set()
    eventually(lambda: service.poll(waiting.id).result(10).state is JobState.GRANTED)


def test_a_probe_that_hangs_does_not_keep_the_service_from_stopping(world: World) -> None:
    quick(world)
    service = world.start()
    stuck = threading.Event()
    world.probe.before_read = lambda: stuck.wait(30)
    eventually(lambda: service.health().result(10).notices)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    world.probe.before_read = lambda: None
    stuck.set()
    world.start()  # the store was freed


def test_a_device_that_gives_no_reading_is_unknown_alone(world: World) -> None:
    quick(world)
    world.probe.listed = (device("GPU-a"), device("GPU-b"))
    service = world.start()
    read = world.probe.read
    world.probe.read = lambda now, trees: read(now, trees)[:1]  # type: ignore[method-assign]

    def second_unknown() -> bool:
        states = service.devices().result(10)
        return [state.unmanaged_bytes for state in states] == [0, None]

    eventually(second_unknown)


def test_every_open_jobs_process_tree_is_read_and_its_bytes_are_its_own(world: World) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=4)).result(10)
    assert job.lease is not None
    service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    pid = identity().pid
    world.probe.processes["GPU-a"] = (
        ProcessReading(pid=pid, memory_bytes=3 * GIB),
        ProcessReading(pid=1, memory_bytes=GIB),
    )
    world.probe.used["GPU-a"] = 4 * GIB
    eventually(lambda: service.job(job.id).result(10).measured.memory_peak_bytes == 3 * GIB)
    assert any(pid in tree.get(job.id, ()) for tree in world.probe.trees)
    (state,) = service.devices().result(10)
    assert state.unmanaged_bytes == GIB
    assert [resident.measured_bytes for resident in state.residents] == [3 * GIB]


def test_bytes_of_a_kernel_that_holds_one_slot_and_waits_for_another_are_the_slots() -> None:
    """Attribution gives a process to the first job that names it, so holders are named first."""
    probe = ScriptedProbe()
    probe.processes["GPU-a"] = (ProcessReading(pid=identity().pid, memory_bytes=3 * GIB),)
    probe.used["GPU-a"] = 3 * GIB
    sampler = Sampler(probe, PsutilProcessTable(), attribute, ManualClock())
    sampler.open()
    waits = job("waits", process=identity())
    holds = job("holds", JobState.RUNNING, process=identity())
    (use,) = sampler.look((waits, holds))
    assert use.by_job == {"holds": 3 * GIB}
    sampler.stop()


def test_a_probe_that_plays_its_residents_is_told_who_trains(world: World) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=4)).result(10)
    assert job.lease is not None
    service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    told = eventually(lambda: [one for one in world.probe.residents if one])
    assert told[0] == {"GPU-a": {job.id: job.predictions["GPU-a"]}}


def test_a_device_that_appears_is_used(world: World) -> None:
    quick(world)
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=10)).result(10)
    second, _ = service.submit("ann", request("r2", gib=10)).result(10)
    assert (job.state, second.state) == (JobState.GRANTED, JobState.QUEUED)
    world.probe.listed = (device("GPU-a"), device("GPU-b"))
    lease = eventually(lambda: service.poll(second.id).result(10).lease, 30)
    assert [slot.device_uuid for slot in lease.slots] == ["GPU-b"]


def test_the_pace_is_slow_while_nobody_cares_and_full_while_somebody_does(world: World) -> None:
    quick(world, sample=0.5, idle_sample=60.0)
    service = world.start()
    looks = len(world.probe.trees)
    reader = service.subscribe(lambda _event: None).result(10)
    eventually(lambda: len(world.probe.trees) >= looks + 3)  # woken, then at full pace
    service.unsubscribe(reader)
    assert service.idle()
    service.submit("ann", request("r1")).result(10)
    assert not service.idle()


def test_looks_do_not_pile_up_behind_one_that_hangs() -> None:
    probe = ScriptedProbe()
    sampler = Sampler(probe, PsutilProcessTable(), attribute, ManualClock(), timeout=0.1)
    sampler.open()
    stuck = threading.Event()
    probe.before_read = lambda: stuck.wait(20)
    for _ in range(3):
        assert [use.unmanaged_bytes for use in sampler.look(())] == [None]
    probe.before_read = lambda: None
    stuck.set()
    eventually(lambda: [use.unmanaged_bytes for use in sampler.look(())] == [0])
    assert (len(probe.residents), len(probe.trees)) == (2, 2)  # the one that hung, and the last
    sampler.stop()


def test_a_newcomers_own_memory_on_a_cpu_is_known_before_it_is_sampled() -> None:
    """On a CPU it is the base of the prediction; no look has shown the process yet."""
    cpu = device("CPU-a", kind=DeviceKind.CPU)
    gpu = device("GPU-a")
    devices = {cpu.uuid: cpu, gpu.uuid: gpu}
    found = held(PsutilProcessTable(), (), devices, identity())
    assert set(found) == {"CPU-a"}  # of a GPU only its driver could tell
    resident = psutil.Process().memory_info().rss
    assert 2**20 < found["CPU-a"] <= resident
    assert held(PsutilProcessTable(), (), devices, None) == {}
