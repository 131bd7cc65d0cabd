"""A broker that takes up what another had persisted, and devices that come and go."""

from __future__ import annotations

import pytest

from horus_lab.errors import StaleFence
from tests.broker.scripted import GIB, Desk, brief, device, use


def test_holders_keep_their_leases_and_waiters_their_order():
    desk = Desk()
    desk.train("run", 6)
    desk.submit("granted", 6)
    desk.submit("first", 12)
    desk.later(1.0).submit("second", 12)
    before = {job_id: job.lease for job_id, job in desk.broker.jobs.items()}
    after = desk.later(10.0).restart()
    after.broker.check_invariants()
    assert {job_id: job.lease for job_id, job in after.broker.jobs.items()} == before
    after.look()
    assert [job.id for job in after.broker.queue()] == ["first", "second"]


def test_a_restarted_broker_watches_every_job_that_has_not_ended():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.submit("c", 12)
    desk.cancel("c")
    assert brief(desk.restart().broker.recover()) == ["watch a", "watch b"]


def test_nothing_is_granted_before_a_look_and_only_to_clients_that_ask_again():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 2)
    desk.submit("c", 12)
    desk.end_process("a")
    after = desk.restart()
    after.poll("c")
    assert after.state("c") == "queued"
    after.later(1.0).look()
    assert after.state("c") == "granted"
    waiting = desk.restart()
    waiting.later(1.0).look()
    assert waiting.state("c") == "queued"
    waiting.poll("c")
    assert waiting.state("c") == "granted"


def test_silence_while_no_broker_was_there_is_not_held_against_anyone():
    desk = Desk()
    desk.train("a", 6)
    desk.submit("b", 6)
    after = desk.later(3600.0).restart()
    after.tick()
    assert (after.state("a"), after.state("b")) == ("running", "granted")
    after.confirm("b")
    after.later(30.5).tick()
    assert (after.state("a"), after.state("b")) == ("suspect", "suspect")


def test_a_grant_of_before_is_withdrawn_when_its_client_stays_away():
    desk = Desk()
    desk.submit("a")
    after = desk.restart()
    after.later(60.5).tick()
    assert after.state() == "queued"
    with pytest.raises(StaleFence):
        after.confirm("a", fence=1)


def test_fences_never_repeat_across_restarts():
    desk = Desk()
    fences = []
    for number in range(4):
        desk.train(f"job{number}", 12)
        fences.append(desk.fence(f"job{number}"))
        desk.release(f"job{number}")
        desk = desk.later(1.0).restart()
        desk.look()
    assert fences == [1, 2, 3, 4]


def test_a_lease_proves_its_fence_used_even_where_the_count_was_lost():
    desk = Desk()
    desk.train("a")
    lost = Desk(jobs=tuple(desk.broker.jobs.values()), next_fence=1)
    lost.submit("b")
    assert lost.fence("b") == 2


def test_a_fenced_lease_stays_fenced_until_its_survivors_are_gone():
    desk = Desk()
    desk.train("a", 12)
    desk.end_process("a", 7)
    after = desk.restart()
    assert brief(after.broker.recover()) == ["watch a"]
    after.submit("b", 12)
    after.later(1.0).look()
    assert (after.state("a"), after.state("b")) == ("fenced", "queued")
    after.end_process("a")
    after.later(1.0).look()
    assert (after.state("a"), after.state("b")) == ("lost", "granted")


def test_a_repeated_request_finds_its_job_after_a_restart():
    desk = Desk()
    desk.submit("a")
    after = desk.restart()
    assert after.broker.find_request("ada", desk.job().request) == desk.job()


def test_a_device_that_vanishes_keeps_its_residents_and_takes_nobody():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.train("a", 4, device_uuids=("GPU-0",))
    desk.change_devices(device("GPU-1"))
    desk.submit("b", 4, device_uuids=("GPU-0",))
    assert (desk.state("a"), desk.state("b")) == ("running", "queued")
    assert desk.job("a").story[-1].why == "GPU-0 has vanished; the slot is kept"
    shown = {one.device.uuid: one for one in desk.broker.device_states()}
    assert shown["GPU-0"].unmanaged_bytes is None
    assert [one.job_id for one in shown["GPU-0"].residents] == ["a"]
    view = {one.device.uuid: one for one in desk.broker.cluster_view(desk.now).devices}
    assert view["GPU-0"].why_unhealthy == "has vanished"


def test_a_device_that_comes_back_is_taken_up_with_its_residents_after_a_look():
    desk = Desk()
    desk.train("a", 8)
    desk.change_devices()
    desk.change_devices(device())
    assert desk.job("a").story[-1].why == "GPU-0 is back; the slot was kept"
    desk.submit("b", 4)
    assert desk.state("b") == "queued"
    desk.look()
    assert desk.state("b") == "granted"
    desk.submit("c", 4)
    assert desk.state("c") == "queued"


def test_a_device_that_vanishes_empty_is_forgotten():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.change_devices(device("GPU-1"))
    assert list(desk.broker.devices) == ["GPU-1"]
    desk.change_devices(device("GPU-1"), device("GPU-0"))
    desk.submit("a", 4, device_uuids=("GPU-0",))
    # What the device showed before it vanished says nothing of it now.
    assert desk.state("a") == "queued"


def test_a_vanished_device_is_forgotten_with_its_last_resident_at_the_next_listing():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.train("a", 4, device_uuids=("GPU-0",))
    desk.change_devices(device("GPU-1"))
    desk.end_process("a")
    desk.change_devices(device("GPU-1"))
    assert list(desk.broker.devices) == ["GPU-1"]


def test_a_device_that_shrinks_under_its_residents_keeps_them_and_takes_nobody():
    desk = Desk()
    desk.train("a", 12)
    desk.change_devices(device(capacity=8 * GIB))
    desk.look()
    desk.submit("b", 1)
    assert (desk.state("a"), desk.state("b")) == ("running", "queued")


def test_a_restart_without_a_device_keeps_the_lease_on_it():
    desk = Desk()
    desk.train("a", 8)
    after = Desk(
        device("GPU-1"), jobs=(desk.job(),), next_fence=desk.broker.next_fence, looked=False
    )
    after.tick()
    assert after.state() == "running"
    after.change_devices(device("GPU-0"), device("GPU-1"))
    after.look(use(after.now))
    assert [one.job_id for one in after.broker.device_states()[0].residents] == ["a"]
