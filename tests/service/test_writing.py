"""What is written when: commitments before they are told, descriptions now and then."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from horus_lab.records import Confirm, Heartbeat, Job, JobState
from horus_lab.service import BrokerService
from horus_lab.store import SqlStore
from tests.service.world import World, eventually, request


class Counting:
    """A store that counts its commits and remembers what was on disk at each announcement."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, *arguments: Any, **named: Any) -> None:
        self.commits += 1
        self._store.commit(*arguments, **named)


def on_disk(world: World) -> dict[str, Job]:
    """Every job, as an independent reader sees the store."""
    with sqlite3.connect(world.file) as audit:
        rows = audit.execute("SELECT body FROM jobs").fetchall()
    audit.close()
    jobs = [msgspec.json.decode(body, type=Job) for (body,) in rows]
    return {job.id: job for job in jobs}


def running(world: World) -> tuple[BrokerService, Counting, Job, int]:
    store = Counting(SqlStore.open(world.url))
    service = world.start(store=store)
    job, _ = service.submit("ann", request("r1")).result(10)
    assert job.lease is not None
    job = service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    assert job.lease is not None
    return service, store, job, job.lease.fence


def test_each_step_of_a_job_is_on_disk_when_it_is_announced(world: World) -> None:
    service = world.start()
    seen: list[tuple[JobState, JobState]] = []

    def compare(event: Any) -> None:
        if event.job is not None:
            seen.append((event.job.state, on_disk(world)[event.job.id].state))

    service.subscribe(compare).result(10)
    job, _ = service.submit("ann", request("r1")).result(10)
    eventually(lambda: len(seen) == 1)
    assert job.lease is not None
    service.confirm(job.id, Confirm(fence=job.lease.fence)).result(10)
    eventually(lambda: len(seen) == 2)
    service.cancel(job.id, "ann").result(10)
    eventually(lambda: len(seen) == 3)
    assert on_disk(world)[job.id].cancel_requested
    assert all(told is stored for told, stored in seen)


def test_heartbeats_are_not_each_written(world: World) -> None:
    service, store, job, fence = running(world)
    before = store.commits
    for number in range(1, 21):
        beat = Heartbeat(fence=fence, sequence=number, steps=number)
        service.heartbeat(job.id, beat).result(10)
    assert store.commits == before
    assert service.job(job.id).result(10).measured.steps == 20


def test_measurements_are_written_every_few_seconds_and_at_a_stop(world: World) -> None:
    service, _, job, fence = running(world)

    def beat(number: int) -> None:
        world.clock.advance(1)
        sent = Heartbeat(fence=fence, sequence=number, steps=number)
        service.heartbeat(job.id, sent).result(10)

    for number in range(1, 31):
        beat(number)
    assert on_disk(world)[job.id].measured.steps >= 10
    for number in range(31, 61):
        beat(number)
    assert 40 <= on_disk(world)[job.id].measured.steps < 60
    service.stop()
    assert on_disk(world)[job.id].measured.steps == 60


def test_a_commit_that_is_needed_takes_what_was_put_off_with_it(world: World) -> None:
    service, _, job, fence = running(world)
    service.heartbeat(job.id, Heartbeat(fence=fence, sequence=1, steps=9)).result(10)
    service.cancel(job.id, "ann").result(10)
    assert on_disk(world)[job.id].measured.steps == 9


def test_two_hundred_concurrent_submissions_are_all_acknowledged_and_on_disk(
    world: World,
) -> None:
    service = world.start()
    start = threading.Barrier(16)

    def submit(thread: int) -> list[str]:
        start.wait()
        owner = f"owner{thread % 5}"
        return [
            service.submit(owner, request(f"t{thread}-{number}", gib=0.5)).result(60)[0].id
            for number in range(13)
        ]

    with ThreadPoolExecutor(16) as pool:
        ids = [job_id for made in pool.map(submit, range(16)) for job_id in made]
    assert len(ids) == len(set(ids)) == 208
    stored = on_disk(world)
    assert set(stored) == set(ids)
    fences = [job.lease.fence for job in stored.values() if job.lease is not None]
    assert len(fences) == len(set(fences)) == 8  # a device takes eight residents
    with sqlite3.connect(world.file) as audit:
        (next_fence,) = audit.execute("SELECT next_fence FROM broker").fetchone()
    audit.close()
    assert next_fence == max(fences) + 1


def test_the_same_request_from_many_threads_at_once_makes_one_job(world: World) -> None:
    service = world.start()
    start = threading.Barrier(8)

    def submit(_thread: int) -> tuple[str, bool]:
        start.wait()
        job, new = service.submit("ann", request("the-one")).result(60)
        return job.id, new

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(new for _, new in answers) == 1
    assert len(on_disk(world)) == 1
