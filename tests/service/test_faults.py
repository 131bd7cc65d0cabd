"""A commit that fails changes nothing, and loses nothing that was acknowledged."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from horus_lab.errors import BrokerUnavailable, HorusError, StoreUnavailable
from horus_lab.records import BrokerEvent, Confirm, Heartbeat, JobState, Release
from horus_lab.service import Pace, ServiceSettings
from horus_lab.store import StoreSettings
from horus_lab.testing import some_features
from tests.service.world import GIB, World, device, eventually, request


class Failing:
    """A failpoint that fails at one place, so many times."""

    def __init__(self, place: str, times: int = 1) -> None:
        self.place, self.times = place, times

    def __call__(self, name: str) -> None:
        if name == self.place and self.times > 0:
            self.times -= 1
            raise StoreUnavailable(f"the test made {name} fail")


def stored(world: World) -> dict[str, str]:
    """Job id -> state, as an independent reader sees the store."""
    with sqlite3.connect(world.file) as audit:
        rows = audit.execute("SELECT id, state FROM jobs").fetchall()
    audit.close()
    return dict(rows)


def test_a_submission_whose_commit_fails_is_refused_and_leaves_no_job(world: World) -> None:
    service = world.start()
    world.failpoint = Failing("before_commit")
    with pytest.raises(StoreUnavailable):
        service.submit("ann", request("r1")).result(10)
    assert service.jobs().result(10) == ()
    assert stored(world) == {}
    job, new = service.submit("ann", request("r1")).result(10)  # the client tries again
    assert new
    assert stored(world) == {job.id: "granted"}


def test_a_submission_whose_answer_is_lost_is_found_again_by_its_request(world: World) -> None:
    service = world.start()
    world.failpoint = Failing("after_commit")
    with pytest.raises(StoreUnavailable):
        service.submit("ann", request("r1")).result(10)
    (job_id,) = stored(world)
    job, new = service.submit("ann", request("r1")).result(10)
    assert (job.id, new) == (job_id, False)
    assert len(service.jobs().result(10)) == 1


def test_an_end_whose_answer_was_lost_is_not_undone_by_what_was_put_off_before(
    world: World,
) -> None:
    service = world.start()
    service.submit("ann", request("holder", gib=9)).result(10)
    job, _ = service.submit("ann", request("waits", gib=9)).result(10)
    for number in range(4):  # new reasons, which are put off
        service.submit("ann", request(f"r{number}", gib=9)).result(10)
    world.failpoint = Failing("after_commit")
    with pytest.raises(StoreUnavailable):
        service.cancel(job.id, "ann").result(10)
    world.clock.advance(10)  # what was put off is due
    assert service.poll(job.id).result(10).state is JobState.CANCELLED
    world.clock.advance(10)
    service.stop()
    assert stored(world)[job.id] == "cancelled"


def test_after_a_failed_write_news_waits_a_while_so_that_those_who_only_ask_are_answered(
    world: World,
) -> None:
    world.probe.used["GPU-a"] = 9 * GIB
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=4)).result(10)
    assert job.state is JobState.QUEUED
    failing = world.failpoint = Failing("before_commit", times=1000)
    world.probe.used["GPU-a"] = 0  # the next look grants, which must be written
    eventually(lambda: failing.times == 999)
    looks = len(world.probe.trees)
    eventually(lambda: len(world.probe.trees) >= looks + 3)
    assert service.jobs().result(10)
    assert failing.times == 999  # time stands still, so nothing was tried again
    world.failpoint = Failing("before_commit", times=0)
    world.clock.advance(4)
    eventually(lambda: service.job(job.id).result(10).state is JobState.GRANTED)


def test_nothing_that_was_put_off_is_written_at_a_stop_while_a_commit_is_in_doubt(
    world: World,
) -> None:
    pace = Pace(sample=60.0, idle_sample=60.0)  # no look settles the doubt before the stop
    world.settings = ServiceSettings(store_url=world.url, pace=pace)
    service = world.start()
    service.submit("ann", request("holder", gib=9)).result(10)
    job, _ = service.submit("ann", request("waits", gib=9)).result(10)
    for number in range(4):
        service.submit("ann", request(f"r{number}", gib=9)).result(10)
    world.failpoint = Failing("after_commit")
    with pytest.raises(StoreUnavailable):
        service.cancel(job.id, "ann").result(10)
    service.stop()
    assert stored(world)[job.id] == "cancelled"


def test_fences_do_not_repeat_after_a_grant_whose_answer_was_lost(world: World) -> None:
    service = world.start()
    world.failpoint = Failing("after_commit")
    with pytest.raises(StoreUnavailable):
        service.submit("ann", request("r1", gib=2)).result(10)
    other, _ = service.submit("bob", request("r2", gib=2)).result(10)
    world.clock.advance(1)
    other = eventually(
        lambda: (job := service.poll(other.id).result(10)).state is JobState.GRANTED and job
    )
    first, _ = service.submit("ann", request("r1", gib=2)).result(10)
    assert first.lease is not None
    assert other.lease is not None
    assert first.lease.fence != other.lease.fence


def test_a_release_whose_commit_fails_leaves_the_slot_taken_until_it_is_repeated(
    world: World,
) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=8)).result(10)
    assert job.lease is not None
    fence = job.lease.fence
    service.confirm(job.id, Confirm(fence=fence)).result(10)
    world.failpoint = Failing("before_commit")
    with pytest.raises(StoreUnavailable):
        service.release(job.id, Release(fence=fence)).result(10)
    assert service.job(job.id).result(10).state is JobState.RUNNING
    (device,) = service.devices().result(10)
    assert device.reserved_bytes == 8 * GIB
    assert service.release(job.id, Release(fence=fence)).result(10).state is JobState.DONE


def test_an_ended_process_is_told_again_until_it_is_on_disk(world: World) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1")).result(10)
    world.failpoint = Failing("before_commit", times=2)
    world.watcher.end(job.id)
    eventually(lambda: world.failpoint.times < 2)
    assert stored(world) == {job.id: "granted"}

    def lost() -> bool:
        world.clock.advance(1)
        return service.job(job.id).result(10).state is JobState.LOST

    eventually(lost)
    assert stored(world) == {job.id: "lost"}


def test_what_failed_is_not_announced(world: World) -> None:
    service = world.start()
    heard: list[BrokerEvent] = []
    service.subscribe(heard.append).result(10)
    world.failpoint = Failing("before_commit")
    with pytest.raises(StoreUnavailable):
        service.submit("ann", request("failed")).result(10)
    service.submit("ann", request("kept")).result(10)
    jobs = eventually(lambda: [event.job for event in heard if event.job is not None])
    assert {job.request.request_id for job in jobs if job} == {"kept"}


def test_a_locked_store_refuses_what_must_be_written_and_answers_the_rest(world: World) -> None:
    world.store_settings = StoreSettings(busy_seconds=0.05)
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=1)).result(10)
    assert job.lease is not None
    fence = job.lease.fence
    service.confirm(job.id, Confirm(fence=fence)).result(10)
    shell = sqlite3.connect(world.file, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        service.submit("ann", request("r2", gib=1)).result(10)
    assert any("locked" in notice for notice in service.health().result(10).notices)
    assert [known.id for known in service.jobs().result(10)] == [job.id]
    beat = Heartbeat(fence=fence, sequence=1, steps=3)
    assert service.heartbeat(job.id, beat).result(10).measured.steps == 3  # needs no disk
    shell.execute("ROLLBACK")
    shell.close()
    _, new = service.submit("ann", request("r2", gib=1)).result(10)
    assert new
    assert service.health().result(10).notices == ()


def test_a_full_disk_refuses_submissions_and_keeps_what_is_there(world: World) -> None:
    service = world.start()
    kept, _ = service.submit("ann", request("kept", gib=1)).result(10)
    service.stop()
    world.store_settings = StoreSettings(max_bytes=1)  # no page more than there are
    service = world.start()
    refused = 0
    for number in range(40):
        try:
            service.submit("ann", request(f"r{number}", gib=0.01)).result(10)
        except StoreUnavailable:
            refused += 1
    assert refused > 0
    shown = {job.id for job in service.jobs().result(10)}
    assert shown == set(stored(world))
    assert kept.id in shown


def test_a_broker_that_was_replaced_acknowledges_nothing_more(world: World) -> None:
    service = world.start()
    with sqlite3.connect(world.file) as usurper:
        usurper.execute("UPDATE broker SET epoch = epoch + 1")
    usurper.close()
    with pytest.raises(StoreUnavailable, match="taken over"):
        service.submit("ann", request("r1")).result(10)
    assert stored(world) == {}
    assert any("taken over" in notice for notice in service.health().result(10).notices)


def test_a_second_service_over_the_same_store_is_refused(world: World) -> None:
    service = world.start()
    with pytest.raises(StoreUnavailable, match="in use by another broker"):
        world.build()
    assert service.submit("ann", request("r1")).result(10)[1]


def test_an_answer_that_is_lost_on_its_way_loses_no_job(world: World) -> None:
    service = world.start()

    def breaks(name: str) -> None:
        if name == "before_answer":
            world.failpoint = lambda _name: None
            raise BrokerUnavailable("the wire broke")

    world.failpoint = breaks
    with pytest.raises(BrokerUnavailable):
        service.submit("ann", request("r1")).result(10)
    job, new = service.submit("ann", request("r1")).result(10)
    assert not new
    assert stored(world) == {job.id: "granted"}


def test_a_defect_in_the_policy_is_an_error_of_the_request_and_not_the_end(world: World) -> None:
    service = world.start()
    policy = service._parts.policy
    plan = policy.plan
    policy.plan = None  # type: ignore[method-assign, assignment]
    with pytest.raises(HorusError) as caught:
        service.submit("ann", request("r1")).result(10)
    assert caught.value.code == "internal"
    policy.plan = plan  # type: ignore[method-assign]
    assert service.jobs().result(10) == ()
    assert service.submit("ann", request("r1")).result(10)[1]


def test_a_predictor_that_fails_makes_the_prediction_unknown_and_says_so(world: World) -> None:
    world.predictor.fails = True
    service = world.start()
    job, _ = service.submit("ann", request("r1", declared=None, features=some_features())).result(
        10
    )
    assert [made.basis.value for made in job.predictions.values()] == ["unknown"]
    assert not job.state.holds  # unknown never grants
    assert any("predictor failed" in notice for notice in service.health().result(10).notices)


def test_nothing_is_left_open_when_the_start_fails(world: World) -> None:
    class NoDriver:
        name = "none"

        def open(self) -> None:
            raise BrokerUnavailable("no driver")

        def close(self) -> None: ...

    service = world.build(probe=NoDriver())
    with pytest.raises(BrokerUnavailable, match="no driver"):
        service.start()
    world.start()  # the store is free again


def test_a_commit_that_fails_in_a_way_nobody_expected_changes_nothing_either(
    world: World,
) -> None:
    service = world.start()

    def overflows(name: str) -> None:
        if name == "before_commit":
            world.failpoint = lambda _name: None
            raise OverflowError("Python int too large")

    world.failpoint = overflows
    with pytest.raises(HorusError) as caught:
        service.submit("ann", request("r1")).result(10)
    assert caught.value.code == "internal"
    assert service.jobs().result(10) == ()
    assert service.submit("ann", request("r1")).result(10)[1]


def test_a_device_that_vanishes_while_nothing_can_be_written_is_told_afterwards(
    world: World,
) -> None:
    service = world.start()
    job, _ = service.submit("ann", request("r1", gib=10)).result(10)
    world.failpoint = Failing("before_commit", times=2)
    world.probe.listed = (device("GPU-b"),)
    service.devices_changed(world.probe.listed)

    def told() -> bool:
        world.clock.advance(1)
        return "vanished" in service.job(job.id).result(10).story[-1].why

    eventually(told)
    assert world.failpoint.times == 0


def test_a_stop_during_the_start_leaves_nothing_open(world: World) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hangs() -> None:
        entered.set()
        go_on.wait(10)

    world.probe.before_read = hangs
    service = world.build()
    starting = threading.Thread(target=service.start)
    starting.start()
    assert entered.wait(10)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    go_on.set()
    for thread in (starting, stopping):
        thread.join(20)
        assert not thread.is_alive()
    with pytest.raises(BrokerUnavailable):
        service.jobs().result(10)
    with pytest.raises(BrokerUnavailable):
        service.start()
    world.start()
