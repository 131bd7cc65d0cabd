from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horus_lab.client import HeldLease, acquire
from horus_lab.client.lease import StepRate
from horus_lab.errors import InvalidTransition
from horus_lab.records import JobRequest, JobState
from tests.client.conftest import ScriptedBroker


@pytest.fixture
def lease(broker: ScriptedBroker, request_: JobRequest) -> HeldLease:
    broker.client().submit(request_)
    broker.grant()
    return acquire(broker.client(), request_, heartbeat_seconds=0.05)


def test_heartbeats_carry_the_fence_the_steps_and_a_growing_number(
    broker: ScriptedBroker, lease: HeldLease
) -> None:
    lease.report(10, 5_000)
    lease.report(20, 4_000)
    broker.until(lambda: broker.beats and broker.beats[-1].steps == 20)
    beat = broker.beats[-1]
    assert (beat.fence, beat.allocator_peak_bytes) == (7, 5_000)
    broker.until(lambda: len(broker.beats) >= 3)
    numbers = [beat.sequence for beat in broker.beats]
    assert numbers == list(range(1, len(numbers) + 1))
    lease.release()


def test_a_release_is_sent_exactly_once(broker: ScriptedBroker, lease: HeldLease) -> None:
    lease.report_steps(30)
    job = lease.release("done", "finished")
    assert job is not None
    assert job.state is JobState.DONE
    assert lease.release("failed", "again") is None
    assert [(r.outcome, r.message, r.steps, r.fence) for r in broker.releases] == [
        ("done", "finished", 30, 7)
    ]


def test_two_threads_that_release_at_once_release_once(
    broker: ScriptedBroker, lease: HeldLease
) -> None:
    threads = [threading.Thread(target=lease.release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(broker.releases) == 1


def test_no_heartbeat_follows_the_release(broker: ScriptedBroker, lease: HeldLease) -> None:
    lease.release()
    lease._thread.join(5)
    assert not lease._thread.is_alive()


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [(None, "done"), (KeyboardInterrupt(), "cancelled"), (ValueError("bad batch"), "failed")],
)
def test_a_with_block_releases_by_how_it_ends(
    broker: ScriptedBroker, lease: HeldLease, raised: BaseException | None, outcome: str
) -> None:
    expected = pytest.raises(type(raised)) if raised is not None else nullcontext()
    with expected, lease:
        if raised is not None:
            raise raised
    assert [r.outcome for r in broker.releases] == [outcome]
    if outcome == "failed":
        assert broker.releases[0].message == "ValueError: bad batch"


def test_being_asked_to_stop_sets_the_event_and_calls_back_once(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    called: list[int] = []
    broker.client().submit(request_)
    broker.grant()
    lease = acquire(
        broker.client(),
        request_,
        heartbeat_seconds=0.02,
        on_cancel=lambda: called.append(1),
    )
    broker.change(cancel_requested=True)
    assert lease.cancelled.wait(10)
    count = len(broker.beats)
    broker.until(lambda: len(broker.beats) > count + 3)
    assert called == [1]
    lease.release("cancelled")


def test_a_broker_that_dies_costs_one_warning_and_no_step(
    broker: ScriptedBroker, lease: HeldLease, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "horus_lab.client"):
        broker.stop()
        broker.until(lambda: len(caplog.records) >= 3)
        for step in range(100):
            lease.report(step)
        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "training goes on" in warnings[0].getMessage()
        assert lease.release() is None


def test_heartbeats_go_on_when_the_broker_is_back(
    broker: ScriptedBroker, lease: HeldLease, caplog: pytest.LogCaptureFixture
) -> None:
    broker.stop()
    broker.until(lambda: "training goes on" in caplog.text)
    broker.start()
    count = len(broker.beats)
    broker.until(lambda: len(broker.beats) > count)
    assert lease.release() is not None


def test_a_withdrawn_lease_ends_the_heartbeats_and_not_the_training(
    broker: ScriptedBroker, lease: HeldLease, caplog: pytest.LogCaptureFixture
) -> None:
    broker.grant(fence=8)  # somebody else's now
    lease._thread.join(10)
    assert not lease._thread.is_alive()
    assert "no longer held" in caplog.text
    lease.report(5)
    assert lease.release() is None


def test_a_forked_child_neither_beats_nor_releases(
    broker: ScriptedBroker, lease: HeldLease
) -> None:
    child = os.fork()
    if child == 0:
        try:
            lease.report(999_999)
            clean = lease.release("failed") is None and not lease.held
        finally:
            os._exit(0 if clean else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert broker.releases == []
    assert lease.held
    lease.release()
    assert broker.releases[0].steps == 0


def test_a_process_that_ends_without_releasing_releases_as_it_exits(
    broker: ScriptedBroker, request_: JobRequest
) -> None:
    broker.client().submit(request_)
    broker.grant()
    script = f"""
        import os
        from horus_lab.client import HorusClient, acquire, this_process
        from horus_lab.records import DeclaredNeeds, JobRequest
        request = JobRequest(request_id="request-1", name="training", process=this_process(),
                             declared=DeclaredNeeds(memory_bytes=1))
        lease = acquire(HorusClient({broker.url!r}, "secret"), request)
        if os.fork() == 0:
            raise SystemExit  # a child's own exit must not release
        os.wait()
        lease.report(3)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    assert [(r.outcome, r.steps) for r in broker.releases] == [("cancelled", 3)]


def test_a_job_without_a_lease_cannot_be_held(broker: ScriptedBroker, request_: JobRequest) -> None:
    job = broker.client().submit(request_)
    with pytest.raises(InvalidTransition):
        HeldLease(broker.client(), job)


def test_the_rate_is_taken_from_step_to_step() -> None:
    # By hand: steps 1..11 at 0.5 s each: 10 steps in 5 s. Then one step after 4 s: 1 / 4.
    rate = StepRate()
    for step in range(1, 12):
        rate.report(step, 100.0 + 0.5 * step)
    assert rate.take_rate() == pytest.approx(2.0)
    assert rate.take_rate() is None
    rate.report(12, 109.5)
    assert rate.take_rate() == pytest.approx(0.25)


def test_no_step_is_no_rate_and_not_a_rate_of_zero() -> None:
    rate = StepRate()
    assert rate.take_rate() is None
    rate.report(0, 10.0)
    assert rate.take_rate() is None
    rate.report(0, 20.0)
    assert rate.take_rate() is None


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.floats(0.001, 100.0), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_rates_times_their_times_give_back_all_steps(
    moves: list[tuple[int, float, bool]],
) -> None:
    """Whenever beats fall, no step is counted twice and none is lost."""
    rate = StepRate()
    at, steps, counted, since = 5.0, 0, 0.0, 5.0
    rate.report(0, at)
    for more, seconds, beat in moves:
        at, steps = at + seconds, steps + more
        rate.report(steps, at)
        if beat:
            taken = rate.take_rate()
            assert taken is not None
            counted, since = counted + taken * (at - since), at
    last = rate.take_rate()
    counted += (last or 0.0) * (at - since)
    assert counted == pytest.approx(steps)
