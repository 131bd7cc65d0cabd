from __future__ import annotations

import os
import signal
import threading
import time

import msgspec
import pytest

from horus_lab.client import acquire
from horus_lab.errors import BrokerUnavailable, InvalidTransition, JobCancelled, NeverFits
from horus_lab.records import Job, JobRequest, JobState, WaitReason
from tests.client.conftest import ScriptedBroker


def later(seconds: float, call: object, *args: object) -> None:
    timer = threading.Timer(seconds, call, args)  # type: ignore[arg-type]
    timer.daemon = True
    timer.start()


def test_a_granted_request_is_confirmed_and_held(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    later(0.2, broker.grant)
    with acquire(broker.client(), request_) as lease:
        assert lease.job.state is JobState.RUNNING
        assert lease.lease.fence == 7
        assert lease.held
    assert broker.releases[0].outcome == "done"


def test_each_change_is_told_once_and_in_order(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    told: list[Job] = []
    reason = WaitReason(position=2, sentence="digits.ipynb holds the device")
    later(0.1, lambda: broker.change(reason=reason))
    later(0.4, broker.grant)
    acquire(broker.client(), request_, on_update=told.append).release()
    states = [(job.state, job.reason.position if job.reason else None) for job in told]
    assert states == [
        (JobState.QUEUED, None),
        (JobState.QUEUED, 2),
        (JobState.GRANTED, 2),
        (JobState.RUNNING, 2),
    ]


def test_a_withdrawn_grant_goes_on_waiting_for_the_next(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    broker.grant(fence=7)

    def withdraw(method: str, path: str) -> None:
        job = broker.job
        if path.endswith("confirm") and job and job.lease and job.lease.fence == 7:
            broker.change(state=JobState.QUEUED, lease=None)
            later(0.2, broker.grant, 8)

    broker.before = withdraw  # type: ignore[assignment]
    lease = acquire(broker.client(), request_)
    assert lease.lease.fence == 8
    lease.release()


def test_waiting_goes_on_across_a_restart_and_says_so(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    notices: list[str] = []
    broker.client().submit(request_)
    later(0.2, broker.stop)
    later(1.0, broker.start)
    later(1.2, broker.grant)
    lease = acquire(broker.client(patience_seconds=0.1), request_, on_notice=notices.append)
    assert lease.held
    assert len(notices) == 2
    assert "cannot be reached" in notices[0]
    assert "answers again" in notices[1]
    lease.release()


def test_a_confirmation_whose_answer_was_lost_is_no_second_grant(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    broker.grant()
    broker.change(state=JobState.RUNNING)  # the first confirmation arrived; its answer did not
    lease = acquire(broker.client(), request_)
    assert lease.lease.fence == 7
    lease.release()


def test_a_broker_that_lost_its_store_is_asked_again_with_the_same_request(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)

    def forget() -> None:
        with broker._changed:
            broker.job = None
            broker._changed.notify_all()
        later(0.3, broker.grant)

    later(0.2, forget)
    lease = acquire(broker.client(), request_)
    assert {r.request_id for r in broker.submissions} == {"request-1"}
    lease.release()


def test_a_first_submission_to_nobody_fails_soon(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.stop()
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        acquire(broker.client(patience_seconds=0.2), request_, on_notice=lambda text: None)
    assert time.monotonic() - begun < 30  # not the five minutes of a wait


def test_ctrl_c_cancels_at_the_broker_and_is_raised_again(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    later(0.3, os.kill, os.getpid(), signal.SIGINT)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        acquire(broker.client(), request_)
    assert time.monotonic() - begun < 15  # in the middle of a poll of 20 s
    assert broker.cancels == 1
    assert broker.job is not None
    assert broker.job.state is JobState.CANCELLED


def test_ctrl_c_while_the_grant_is_being_taken_gives_the_slot_back(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    broker.grant()

    def interrupted(job: Job) -> None:
        if job.state is JobState.RUNNING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(broker.client(), request_, on_update=interrupted)
    assert [r.outcome for r in broker.releases] == ["cancelled"]


def test_an_event_gives_up_the_wait(broker: ScriptedBroker, request_: JobRequest) -> None:
    give_up = threading.Event()
    later(0.3, give_up.set)
    with pytest.raises(JobCancelled, match="by its owner"):
        acquire(broker.client(), request_, cancel_event=give_up)
    assert broker.cancels == 1


def test_a_job_that_others_cancelled_says_so(broker: ScriptedBroker, request_: JobRequest) -> None:
    broker.client().submit(request_)
    later(0.2, lambda: broker.change(state=JobState.CANCELLED, outcome="by an admin"))
    with pytest.raises(JobCancelled, match="by an admin"):
        acquire(broker.client(), request_)


def test_a_job_that_can_never_fit_says_why(broker: ScriptedBroker, request_: JobRequest) -> None:
    broker.client().submit(request_)
    later(0.2, lambda: broker.change(state=JobState.REJECTED, outcome="It needs 90 GiB."))
    with pytest.raises(NeverFits, match="90 GiB"):
        acquire(broker.client(), request_)


def test_a_job_that_was_lost_before_it_started_names_its_story(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    broker.change(state=JobState.LOST, outcome="its process ended")
    with pytest.raises(InvalidTransition, match="its process ended") as caught:
        acquire(broker.client(), request_)
    assert "%horus why job-1" in caught.value.hint


def test_a_display_that_fails_does_not_cost_the_slot(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    def broken(job: Job) -> None:
        raise RuntimeError("no such widget")

    broker.client().submit(request_)
    broker.grant()
    acquire(broker.client(), request_, on_update=broken).release()
    assert broker.releases[0].outcome == "done"


def test_a_server_that_answers_at_once_is_not_asked_in_a_hurry(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    job = msgspec.json.encode(broker.client().submit(request_))
    polls = lambda: [r for r in broker.requests if r == "GET jobs/job-1"]  # noqa: E731

    def hurried(method: str, path: str) -> bytes | None:
        return job if method == "GET" and broker.job and broker.job.lease is None else None

    broker.before = hurried
    later(2.5, broker.grant)
    acquire(broker.client(), request_).release()
    assert len(polls()) <= 6
