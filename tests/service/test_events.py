"""The stream of events: in order, resumable, and never held up by a reader."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from horus_lab.records import BrokerEvent, JobState
from horus_lab.service import Limits, ServiceSettings
from horus_lab.service.event_stream import EPOCH_STRIDE, EventStream, Subscription
from tests.service.world import World, eventually, request
from tests.store.records import job


def numbers(events: list[BrokerEvent]) -> list[int]:
    return [event.sequence for event in events]


def test_a_new_reader_gets_a_snapshot_and_then_every_change_in_order(world: World) -> None:
    service = world.start()
    before, _ = service.submit("ann", request("before", gib=1)).result(10)
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append).result(10)
    after, _ = service.submit("ann", request("after", gib=1)).result(10)
    service.cancel(after.id, "ann").result(10)
    eventually(lambda: sum(event.kind == "job" for event in heard) >= 2)
    assert heard[0].kind == "snapshot"
    assert [known.id for known in heard[0].jobs] == [before.id]
    assert [known.device.uuid for known in heard[0].devices] == ["GPU-a"]
    told = [event.job for event in heard if event.job is not None]
    assert [(one.id, one.state) for one in told] == [
        (after.id, JobState.GRANTED),
        (after.id, JobState.CANCELLED),
    ]
    assert numbers(heard) == sorted(set(numbers(heard)))


def test_a_reader_that_comes_back_misses_nothing_and_hears_nothing_twice(world: World) -> None:
    service = world.start()
    first: list[BrokerEvent] = []
    reader = service.subscribe(first.append).result(10)
    service.submit("ann", request("r1", gib=1)).result(10)
    eventually(lambda: any(event.kind == "job" for event in first))
    service.unsubscribe(reader)
    last = first[-1].sequence
    missed = [service.submit("ann", request(f"m{n}", gib=1)).result(10)[0].id for n in range(3)]
    second: list[BrokerEvent] = []
    service.subscribe(second.append, last).result(10)
    eventually(lambda: sum(event.kind == "job" for event in second) >= 3)
    assert all(event.kind != "snapshot" for event in second)
    assert [event.job.id for event in second if event.job is not None] == missed
    assert min(numbers(second)) > last


def test_a_reader_from_before_a_restart_gets_a_snapshot_with_a_higher_number(
    world: World,
) -> None:
    service = world.start()
    for number in range(3):
        service.submit("ann", request(f"r{number}", gib=1)).result(10)
    last = service.snapshot().result(10).sequence
    service = world.restart()
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append, last).result(10)
    eventually(lambda: heard)
    assert heard[0].kind == "snapshot"
    assert heard[0].sequence > last
    assert len(heard[0].jobs) == 3


def test_a_reader_that_missed_more_than_is_kept_gets_a_snapshot(world: World) -> None:
    limits = Limits(resumable_events=2)
    world.settings = ServiceSettings(store_url=world.url, limits=limits)
    service = world.start()
    old = service.snapshot().result(10).sequence
    for number in range(5):
        service.submit("ann", request(f"r{number}", gib=1)).result(10)
    assert service.events_since(old).result(10) is None
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append, old).result(10)
    eventually(lambda: heard)
    assert heard[0].kind == "snapshot"


def test_a_number_that_was_never_given_gets_a_snapshot(world: World) -> None:
    service = world.start()
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append, 2**60).result(10)
    eventually(lambda: heard)
    assert heard[0].kind == "snapshot"


def test_the_devices_are_told_after_each_look(world: World) -> None:
    service = world.start()
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append).result(10)
    eventually(lambda: sum(event.kind == "devices" for event in heard) >= 2)
    devices = [event.devices for event in heard if event.kind == "devices"]
    assert devices[0][0].reading is not None


def test_a_reader_that_hangs_holds_nobody_up_and_is_dropped_past_its_buffer() -> None:
    stream = EventStream(1)
    stuck, lost = threading.Event(), threading.Event()
    slow = Subscription(lambda _event: stuck.wait(20) and None, on_lost=lost.set, limit=3)
    heard: list[BrokerEvent] = []
    quick = Subscription(heard.append)
    stream.add(slow, ())
    stream.add(quick, ())
    for _ in range(10):
        stream.job(job(), 1.0)
    eventually(lambda: len(heard) == 10)  # while the other still hangs in its first event
    assert slow.lost
    assert not quick.lost
    stuck.set()
    assert lost.wait(10)
    stream.close()
    assert not stream.watched


def test_a_reader_that_fails_is_dropped_alone() -> None:
    stream = EventStream(1)
    lost = threading.Event()

    def breaks(_event: BrokerEvent) -> None:
        raise RuntimeError("the reader's own defect")

    heard: list[BrokerEvent] = []
    stream.add(Subscription(breaks, on_lost=lost.set), ())
    stream.add(Subscription(heard.append), ())
    stream.job(job(), 1.0)
    assert lost.wait(10)
    stream.job(job(), 2.0)
    eventually(lambda: len(heard) == 2)
    stream.close()


@given(
    kept=st.integers(1, 5),
    changes=st.lists(st.booleans(), max_size=20),
    after=st.integers(-3, 25),
)
def test_resuming_gives_every_later_change_of_a_job_or_says_that_some_are_gone(
    kept: int, changes: list[bool], after: int
) -> None:
    """Against a list that forgets nothing; `True` stands for a job, `False` for a look."""
    stream = EventStream(3, keep=kept)
    everything: list[tuple[int, bool]] = []
    for is_job in changes:
        if is_job:
            stream.job(job(), 1.0)
        else:
            stream.devices((), 1.0)
        everything.append((stream.sequence, is_job))
    asked = 3 * EPOCH_STRIDE + after
    missed = [number for number, is_job in everything if is_job and number > asked]
    found = stream.since(asked)
    known = 3 * EPOCH_STRIDE <= asked <= stream.sequence
    if not known or len(missed) > kept:
        assert found is None
    elif found is not None:
        assert [event.sequence for event in found if event.kind == "job"] == missed
    else:
        # Only where a job's change at or before `asked` was the last that was forgotten.
        jobs = [number for number, is_job in everything if is_job]
        assert jobs[-kept - 1] > asked
