"""What a broker that starts again finds, keeps and gives up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horus_lab.devices.processes import PidfdWatcher, PsutilProcessTable
from horus_lab.records import Confirm, Heartbeat, Job, JobState, Release
from horus_lab.service import BrokerService, SystemClock
from tests.service.world import World, eventually, request

SCRIPT = Path(__file__).with_name("run_service.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kernel() -> Iterator[subprocess.Popen[bytes]]:
    """A real process that trains nothing and can be killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def real(world: World) -> BrokerService:
    """A service with the real process table and watcher, and real time."""
    table = PsutilProcessTable()
    world.clock = SystemClock()
    return world.start(table=table, watcher=PidfdWatcher(table, poll_seconds=0.05))


def test_a_restart_keeps_the_queue_in_its_order_and_running_jobs_running(world: World) -> None:
    service = world.start()
    running, _ = service.submit("ann", request("running", gib=8)).result(10)
    assert running.lease is not None
    fence = running.lease.fence
    service.confirm(running.id, Confirm(fence=fence)).result(10)
    waiting = []
    for name in ("first", "second", "third"):
        world.clock.advance(1)
        waiting.append(service.submit("ann", request(name, gib=8)).result(10)[0].id)
    service = world.restart()
    assert service.health().result(10).epoch == 2
    jobs = service.jobs().result(10)
    assert [job.id for job in jobs] == [*waiting, running.id]
    assert jobs[-1].state is JobState.RUNNING
    beat = Heartbeat(fence=fence, sequence=2, steps=9)
    assert service.heartbeat(running.id, beat).result(10).measured.steps == 9
    released = service.release(running.id, Release(fence=fence)).result(10)
    assert released.state is JobState.DONE


def test_fences_do_not_repeat_across_restarts(world: World) -> None:
    fences = []
    service = world.start()
    for number in range(3):
        job, _ = service.submit("ann", request(f"r{number}", gib=1)).result(10)
        assert job.lease is not None
        fences.append(job.lease.fence)
        service.cancel(job.id, "ann").result(10)
        service = world.restart()
    assert len(set(fences)) == 3
    assert fences == sorted(fences)


def test_revisions_told_before_a_restart_are_lower_than_all_told_after_it(world: World) -> None:
    service = world.start()
    service.submit("ann", request("holder", gib=9)).result(10)
    job, _ = service.submit("ann", request("waiter", gib=9)).result(10)
    for number in range(20):  # a queue that moves changes reasons, which are not written at once
        world.clock.advance(10)
        service.submit("ann", request(f"r{number}", gib=9)).result(10)
    told = service.poll(job.id).result(10).revision
    service = world.restart()
    first = service.job(job.id).result(10).revision
    assert first > told
    service = world.restart()
    assert service.job(job.id).result(10).revision > first


def test_a_request_is_answered_the_same_after_a_restart_and_after_its_job_ended(
    world: World,
) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1")).result(10)
    service.cancel(job.id, "ann").result(10)
    world.store_settings = type(world.store_settings)(recent_ended=0)  # only the store knows it
    service = world.restart()
    again, new = service.submit("ann", request("r1")).result(10)
    assert (again.id, again.state, new) == (job.id, JobState.CANCELLED, False)
    assert service.job(job.id).result(10) == again


def test_nothing_is_granted_before_the_devices_were_looked_at(world: World) -> None:
    service = world.start()
    service.submit("ann", request("r1", gib=8)).result(10)
    service.submit("ann", request("r2", gib=8)).result(10)
    service.stop()
    world.probe = type(world.probe)(*world.probe.listed)

    def breaks() -> None:
        raise OSError("the driver is gone")

    world.probe.before_read = breaks
    service = world.start()
    third, _ = service.submit("ann", request("r3", gib=1)).result(10)
    assert third.state is JobState.QUEUED
    assert any("driver is gone" in notice for notice in service.health().result(10).notices)


def test_a_job_whose_process_died_while_the_broker_was_down_is_told_so(
    world: World, kernel: subprocess.Popen[bytes]
) -> None:
    service = real(world)
    process = PsutilProcessTable().identify(kernel.pid)
    job, _ = service.submit("ann", request("r1", gib=8, process=process)).result(10)
    assert job.lease is not None
    service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    service.stop()
    kernel.kill()
    kernel.wait()
    world.probe = type(world.probe)(*world.probe.listed)
    service = real(world)
    eventually(lambda: service.job(job.id).result(10).state is JobState.LOST)
    after, _ = service.submit("ann", request("r2", gib=8)).result(10)
    eventually(lambda: service.poll(after.id).result(10).state is JobState.GRANTED)


def test_a_killed_kernel_is_seen_at_once_and_its_slot_is_given_on(
    world: World, kernel: subprocess.Popen[bytes]
) -> None:
    service = real(world)
    process = PsutilProcessTable().identify(kernel.pid)
    job, _ = service.submit("ann", request("r1", gib=8, process=process)).result(10)
    assert job.lease is not None
    service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    waiting, _ = service.submit("bob", request("r2", gib=8)).result(10)
    assert waiting.state is JobState.QUEUED
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.wait()
    # Far below `suspect_seconds` (30): the process was seen to end, no time-out was waited for.
    eventually(lambda: service.poll(waiting.id).result(10).state is JobState.GRANTED, 15)
    assert service.job(job.id).result(10).state is JobState.LOST


def test_a_kernel_that_ends_while_it_waits_leaves_the_queue(
    world: World, kernel: subprocess.Popen[bytes]
) -> None:
    service = real(world)
    service.submit("ann", request("r1", gib=8)).result(10)
    process = PsutilProcessTable().identify(kernel.pid)
    job, _ = service.submit("ann", request("r2", gib=8, process=process)).result(10)
    kernel.kill()
    kernel.wait()
    eventually(lambda: service.job(job.id).result(10).state is JobState.LOST, 15)


def start_other(world: World, count: int, log: Path, pid: int) -> subprocess.Popen[bytes]:
    log.touch()
    command = [sys.executable, str(SCRIPT), str(world.file), str(count), str(log), str(pid)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def acknowledged(log: Path) -> list[list[str]]:
    lines = log.read_text().splitlines(keepends=True)
    return [line.split() for line in lines if line.endswith("\n") and line != "all\n"]


def test_a_broker_killed_while_its_jobs_run_and_wait_is_taken_over_whole(
    world: World, tmp_path: Path, kernel: subprocess.Popen[bytes]
) -> None:
    log = tmp_path / "acknowledged"
    other = start_other(world, 6, log, kernel.pid)
    try:
        eventually(lambda: log.read_text().endswith("all\n") or other.poll() is not None, 60)
    finally:
        other.kill()
        other.wait()
    known = acknowledged(log)
    assert len(known) == 6
    service = real(world)
    jobs = {job.id: job for job in service.jobs().result(10)}
    assert set(jobs) == {job_id for job_id, _, _ in known}
    for job_id, state, fence in known:
        assert jobs[job_id].state.value == state
        assert lease_fence(jobs[job_id]) == int(fence)
    running = [job for job in jobs.values() if job.state is JobState.RUNNING]
    assert len(running) == 2  # 4 GiB each on 10
    kernel.kill()
    kernel.wait()
    eventually(lambda: all(job.state.ended for job in service.jobs().result(10)), 15)


@pytest.mark.parametrize("after", [1, 5, 17])
def test_no_acknowledged_job_is_lost_when_the_broker_is_killed_between_any_two_steps(
    world: World, tmp_path: Path, kernel: subprocess.Popen[bytes], after: int
) -> None:
    log = tmp_path / "acknowledged"
    other = start_other(world, 10_000, log, kernel.pid)
    try:
        eventually(lambda: len(acknowledged(log)) >= after or other.poll() is not None, 60)
        time.sleep(0.001 * after)
    finally:
        other.kill()
        other.wait()
    known = acknowledged(log)
    assert known
    service = real(world)
    jobs = {job.id: job for job in service.jobs(limit=10_000).result(10)}
    assert {job_id for job_id, _, _ in known} <= set(jobs)
    # The one in flight may be there or not; nothing else is.
    assert len(jobs) <= len(known) + 1
    fences = [job.lease.fence for job in jobs.values() if job.lease is not None]
    assert len(fences) == len(set(fences))


def lease_fence(job: Job) -> int:
    return job.lease.fence if job.lease else 0
