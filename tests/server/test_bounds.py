"""What waits in the server is bounded, and nobody who waits is forgotten."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from horus_lab.client import this_process
from horus_lab.errors import BrokerUnavailable
from horus_lab.records import BrokerEvent, Job, JobRequest, JobState
from jupyter_ext.backend import SlowConsumer
from jupyter_ext.event_queue import EventQueue
from jupyter_ext.waiters import JobWaiters


def event(number: int, job_id: str = "job-1") -> BrokerEvent:
    job = Job(
        id=job_id,
        owner="ada",
        request=JobRequest(request_id="r", name="training", process=this_process()),
        state=JobState.QUEUED,
        revision=number,
        submitted_at=0.0,
    )
    return BrokerEvent(sequence=number, at=0.0, kind="job", job=job)


async def test_a_change_wakes_all_who_wait_for_that_job_and_nobody_else() -> None:
    waiters = JobWaiters(limit=10)
    first, second, other = waiters.add("job-1"), waiters.add("job-1"), waiters.add("job-2")
    waiters.hear(event(5))
    assert (await first).revision == (await second).revision == 5  # type: ignore[union-attr]
    assert not other.done()


async def test_missed_events_wake_everybody_to_look_for_themselves() -> None:
    waiters = JobWaiters(limit=10)
    waiting = [waiters.add("job-1"), waiters.add("job-2")]
    waiters.hear(BrokerEvent(sequence=1, at=0.0, kind="snapshot"))
    assert await asyncio.gather(*waiting) == [None, None]


async def test_the_number_of_waiters_is_counted_right() -> None:
    waiters = JobWaiters(limit=2)
    first, _ = waiters.add("job-1"), waiters.add("job-1")
    assert waiters.full
    waiters.remove("job-1", first)
    waiters.remove("job-1", first)
    assert not waiters.full
    assert not waiters.empty


async def test_events_arrive_in_order_from_another_thread() -> None:
    queue = EventQueue(room=4)
    sender = threading.Thread(target=lambda: [queue.receive(event(n)) for n in range(100)])
    sender.start()
    assert [(await queue.next()).sequence for _ in range(100)] == list(range(100))
    sender.join(5)


async def test_a_reader_that_stands_still_holds_its_sender_back() -> None:
    queue = EventQueue(room=4)
    sent: list[int] = []

    def send() -> None:
        for number in range(100):
            queue.receive(event(number))
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    await asyncio.sleep(0.3)
    assert len(sent) == 4
    queue.close()
    await asyncio.to_thread(sender.join, 60)
    assert not sender.is_alive()


async def test_a_dropped_reader_gets_what_was_sent_and_then_the_reason() -> None:
    queue = EventQueue()
    queue.receive(event(1))
    queue.lost()
    assert (await queue.next()).sequence == 1
    with pytest.raises(SlowConsumer):
        await queue.next()


async def test_readers_are_told_when_the_broker_stops() -> None:
    queue = EventQueue()
    queue.stopped()
    with pytest.raises(BrokerUnavailable):
        await queue.next()


async def test_a_closed_queue_lets_a_sender_go_at_once() -> None:
    queue = EventQueue(room=1)
    queue.receive(event(1))
    queue.close()
    begun = time.monotonic()
    await asyncio.to_thread(lambda: [queue.receive(event(n)) for n in range(3)])
    assert time.monotonic() - begun < 10
