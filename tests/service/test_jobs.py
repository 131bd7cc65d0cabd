"""The way of a job through the service, from request to end."""

from __future__ import annotations

import pytest

from horus_lab.broker.settings import BrokerSettings
from horus_lab.errors import (
    BrokerUnavailable,
    Conflict,
    Forbidden,
    StaleFence,
    TooManyJobs,
    UnknownJob,
)
from horus_lab.records import Confirm, Heartbeat, JobState, PredictRequest, Release
from horus_lab.service import ServiceSettings
from horus_lab.testing import some_features
from tests.service.world import GIB, World, eventually, request


def test_a_job_is_granted_confirmed_heard_of_and_released(world: World) -> None:
    service = world.start()
    job, new = service.submit("ann", request("r1", gib=4)).result(10)
    assert new
    assert job.state is JobState.GRANTED
    assert job.lease is not None
    fence = job.lease.fence
    job = service.confirm(job.id, Confirm(fence=fence), "ann").result(10)
    assert job.state is JobState.RUNNING
    beat = Heartbeat(fence=fence, sequence=1, steps=5, steps_per_second=10.0)
    assert service.heartbeat(job.id, beat, "ann").result(10).measured.steps == 5
    job = service.release(job.id, Release(fence=fence, steps=7), "ann").result(10)
    assert (job.state, job.measured.steps) == (JobState.DONE, 7)
    assert service.history(10).result(10).jobs == (job,)


def test_a_job_that_does_not_fit_waits_and_is_granted_when_the_memory_was_seen_free(
    world: World,
) -> None:
    service = world.start()  # one device of 10 GiB
    first, _ = service.submit("ann", request("r1", gib=8)).result(10)
    second, _ = service.submit("bob", request("r2", gib=8)).result(10)
    assert second.state is JobState.QUEUED
    assert second.reason is not None
    assert first.lease is not None
    service.confirm(first.id, Confirm(fence=first.lease.fence)).result(10)
    service.release(first.id, Release(fence=first.lease.fence)).result(10)
    assert service.job(second.id).result(10).state is JobState.QUEUED
    world.clock.advance(1.0)  # the next look is after the end
    eventually(lambda: service.poll(second.id).result(10).state is JobState.GRANTED)


def test_the_same_request_again_is_answered_with_the_same_job(world: World) -> None:
    service = world.start()
    first, _ = service.submit("ann", request("r1")).result(10)
    again, new = service.submit("ann", request("r1")).result(10)
    assert (again.id, new) == (first.id, False)
    other, new = service.submit("bob", request("r1")).result(10)  # another owner's r1
    assert new
    assert other.id != first.id


def test_the_same_request_id_with_another_body_is_a_conflict(world: World) -> None:
    service = world.start()
    service.submit("ann", request("r1", gib=1)).result(10)
    with pytest.raises(Conflict):
        service.submit("ann", request("r1", gib=2)).result(10)
    assert len(service.jobs().result(10)) == 1


def test_only_the_owner_or_an_admin_cancels(world: World) -> None:
    service = world.start()
    service.submit("ann", request("r0", gib=9)).result(10)
    job, _ = service.submit("ann", request("r1", gib=9)).result(10)
    with pytest.raises(Forbidden):
        service.cancel(job.id, "bob").result(10)
    assert service.job(job.id).result(10).state is JobState.QUEUED
    assert service.cancel(job.id, "root", admin=True).result(10).state is JobState.CANCELLED


def test_another_persons_lease_cannot_be_used(world: World) -> None:
    service = world.start()
    job, _ = service.submit("ann", request()).result(10)
    assert job.lease is not None
    with pytest.raises(Forbidden):
        service.confirm(job.id, Confirm(fence=job.lease.fence), "bob").result(10)
    with pytest.raises(StaleFence):
        service.confirm(job.id, Confirm(fence=job.lease.fence + 1), "ann").result(10)


def test_an_unknown_job_is_a_clear_error(world: World) -> None:
    service = world.start()
    for answer in (service.job("j-nope"), service.poll("j-nope"), service.cancel("j-nope", "ann")):
        with pytest.raises(UnknownJob):
            answer.result(10)


def test_a_request_that_no_device_could_ever_hold_is_rejected_with_the_reason(
    world: World,
) -> None:
    service = world.start()
    job, _ = service.submit("ann", request(gib=11)).result(10)
    assert job.state is JobState.REJECTED
    assert "large enough" in job.outcome


def test_each_owner_and_everybody_have_a_bound_on_waiting_jobs(world: World) -> None:
    bounds = BrokerSettings(max_queued_per_owner=2, max_queued=3)
    world.settings = ServiceSettings(store_url=world.url, broker=bounds)
    service = world.start()
    service.submit("ann", request("runs", gib=10)).result(10)
    for name in ("a1", "a2"):
        service.submit("ann", request(name, gib=10)).result(10)
    with pytest.raises(TooManyJobs, match="2 of your jobs"):
        service.submit("ann", request("a3", gib=10)).result(10)
    service.submit("bob", request("b1", gib=10)).result(10)
    with pytest.raises(TooManyJobs, match="3 jobs wait"):
        service.submit("cid", request("c1", gib=10)).result(10)
    # A repeat of what was accepted is no new job.
    assert service.submit("ann", request("a2", gib=10)).result(10)[1] is False


def test_a_question_is_answered_without_queueing(world: World) -> None:
    service = world.start()
    reply = service.predict("ann", PredictRequest(features=some_features())).result(10)
    assert [fit.fits_now for fit in reply.fits] == [True]
    assert reply.expected_wait_seconds is not None
    assert reply.expected_wait_seconds.p90 == 0.0
    service.submit("bob", request("r1", gib=9)).result(10)
    reply = service.predict("ann", PredictRequest(features=some_features())).result(10)
    assert [fit.fits_now for fit in reply.fits] == [False]
    assert reply.expected_wait_seconds is None  # nobody said for how long bob runs
    assert len(service.jobs().result(10)) == 1


def test_jobs_are_listed_queue_first_then_holders_then_ended(world: World) -> None:
    service = world.start()
    gone, _ = service.submit("ann", request("gone", gib=11)).result(10)
    holder, _ = service.submit("ann", request("holder", gib=9)).result(10)
    first, _ = service.submit("ann", request("first", gib=9)).result(10)
    world.clock.advance(1)
    second, _ = service.submit("ann", request("second", gib=9)).result(10)
    listed = [job.id for job in service.jobs().result(10)]
    assert listed == [first.id, second.id, holder.id, gone.id]
    queued = service.jobs(frozenset({JobState.QUEUED}), limit=1).result(10)
    assert [job.id for job in queued] == [first.id]


def test_a_service_answers_only_between_start_and_stop(world: World) -> None:
    service = world.build()
    with pytest.raises(BrokerUnavailable):
        service.jobs().result(10)
    service.start()
    assert service.jobs().result(10) == ()
    service.stop()
    service.stop()
    for answer in (service.jobs(), service.history(1), service.submit("ann", request())):
        with pytest.raises(BrokerUnavailable):
            answer.result(10)
    assert world.probe.closed == 1


def test_health_tells_who_the_broker_is(world: World) -> None:
    service = world.start()
    report = service.health().result(10)
    assert (report.epoch, report.devices, report.probe) == (1, 1, "scripted")
    assert str(world.file) in report.store
    assert report.notices == ()


def test_memory_that_nobody_was_granted_is_not_promised(world: World) -> None:
    world.probe.used["GPU-a"] = 7 * GIB
    service = world.start()
    job, _ = service.submit("ann", request(gib=4)).result(10)
    assert job.state is JobState.QUEUED
    (state,) = service.devices().result(10)
    assert state.unmanaged_bytes == 7 * GIB
