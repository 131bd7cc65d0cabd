"""`LocalBackend` over a real `BrokerService` with simulated devices."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from horus_lab.client import this_process
from horus_lab.errors import BrokerUnavailable, Forbidden, HorusError, NeverFits
from horus_lab.records import Confirm, DeclaredNeeds, Job, JobRequest, JobState, Release
from horus_lab.service.settings import ServiceSettings
from jupyter_ext import local
from jupyter_ext.backend import Caller
from jupyter_ext.local import LocalBackend, open_local

ADA = Caller(owner="ada", via="kernel")
BOB = Caller(owner="bob", via="user")


def request(memory_bytes: int = 2**30) -> JobRequest:
    return JobRequest(
        request_id=uuid.uuid4().hex,
        name="training",
        process=this_process(),
        declared=DeclaredNeeds(memory_bytes=memory_bytes, utilization=0.2),
    )


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    opened = await open_local(
        ServiceSettings(store_url=f"sqlite:///{tmp_path}/h.sqlite3", devices="sim:1xA100-80GB")
    )
    yield opened
    await opened.close()


async def running(backend: LocalBackend) -> Job:
    job, _ = await backend.submit(ADA, request())
    while job.state is JobState.QUEUED:
        job = await backend.job(ADA, job.id, after_revision=job.revision, wait_seconds=5)
    assert job.lease is not None
    return await backend.confirm(ADA, job.id, Confirm(fence=job.lease.fence))


def watched(backend: LocalBackend) -> bool:
    engine = backend._service._started
    assert engine is not None
    return engine.stream.watched


async def test_other_peoples_jobs_may_be_seen_and_not_changed(backend: LocalBackend) -> None:
    job = await running(backend)
    assert job.lease is not None
    fence = job.lease.fence
    assert (await backend.job(BOB, job.id, after_revision=None, wait_seconds=0)).id == job.id
    for attempt in (
        backend.cancel(BOB, job.id),
        backend.confirm(BOB, job.id, Confirm(fence=fence)),
        backend.release(BOB, job.id, Release(fence=fence)),
    ):
        with pytest.raises(Forbidden):
            await attempt
    admin = Caller(owner="root", via="user", admin=True)
    assert (await backend.cancel(admin, job.id)).cancel_requested


async def test_a_request_that_can_never_run_is_refused_and_kept_with_its_reason(
    backend: LocalBackend,
) -> None:
    huge = request(900 * 2**30)
    for _ in range(2):  # the repeated submission is refused alike
        with pytest.raises(NeverFits) as caught:
            await backend.submit(ADA, huge)
    kept = await backend.jobs(states=frozenset({JobState.REJECTED}), limit=10)
    assert [job.request.request_id for job in kept] == [huge.request_id]
    assert kept[0].outcome.rstrip(".") in caught.value.message


async def test_one_subscription_serves_all_who_wait_and_ends_after_the_last(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LINGER_SECONDS", 0.05)
    job = await running(backend)
    await asyncio.sleep(0.2)
    assert not watched(backend)
    waits = [
        asyncio.ensure_future(backend.job(ADA, job.id, after_revision=2**53, wait_seconds=0.5))
        for _ in range(20)
    ]
    await asyncio.sleep(0.2)
    engine = backend._service._started
    assert engine is not None
    assert len(engine.stream._readers) == 1
    await asyncio.gather(*waits)
    await asyncio.sleep(0.2)
    assert not watched(backend)


async def test_a_change_wakes_every_waiter(backend: LocalBackend) -> None:
    job = await running(backend)
    assert job.lease is not None
    waits = [
        asyncio.ensure_future(
            backend.job(ADA, job.id, after_revision=job.revision, wait_seconds=25)
        )
        for _ in range(20)
    ]
    await asyncio.sleep(0.1)
    await backend.release(ADA, job.id, Release(fence=job.lease.fence))
    woken = await asyncio.wait_for(asyncio.gather(*waits), 20)
    assert all(other.revision > job.revision for other in woken)


async def test_one_waiter_too_many_is_answered_at_once(backend: LocalBackend) -> None:
    job = await running(backend)
    small = LocalBackend(backend._service, max_waiters=1)
    first = asyncio.ensure_future(small.job(ADA, job.id, after_revision=2**53, wait_seconds=25))
    await asyncio.sleep(0.1)
    begun = time.monotonic()
    await small.job(ADA, job.id, after_revision=2**53, wait_seconds=25)
    assert time.monotonic() - begun < 10
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert small._waiters.empty


async def test_a_waiter_that_gives_up_leaves_nothing_behind(backend: LocalBackend) -> None:
    job = await running(backend)
    waiting = asyncio.ensure_future(backend.job(ADA, job.id, after_revision=2**53, wait_seconds=25))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert backend._waiters.empty


async def test_one_reader_of_events_too_many_is_refused(backend: LocalBackend) -> None:
    small = LocalBackend(backend._service, max_readers=1)
    async with aclosing(small.events(None)) as first:
        assert (await anext(first)).kind == "snapshot"
        with pytest.raises(BrokerUnavailable, match="that is the most"):
            await anext(small.events(None))
    async with aclosing(small.events(None)) as again:
        assert (await anext(again)).kind == "snapshot"


async def test_a_reader_that_leaves_is_forgotten(backend: LocalBackend) -> None:
    async with aclosing(backend.events(None)) as events:
        await anext(events)
        assert watched(backend)
    await asyncio.sleep(0.1)
    assert not watched(backend)


async def test_closing_lets_waiters_and_readers_go(tmp_path: Path) -> None:
    backend = await open_local(
        ServiceSettings(store_url=f"sqlite:///{tmp_path}/h2.sqlite3", devices="sim:1xT4")
    )
    job = await running(backend)
    waiting = asyncio.ensure_future(backend.job(ADA, job.id, after_revision=2**53, wait_seconds=25))

    async def read() -> Any:
        async for _ in backend.events(None):
            pass

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0.2)
    await backend.close()
    for task in (waiting, reading):
        with pytest.raises(HorusError):
            await asyncio.wait_for(task, 10)
