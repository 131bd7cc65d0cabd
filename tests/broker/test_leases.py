"""A lease from its confirmation to its end, and what silence and proof mean for it."""

from __future__ import annotations

import pytest

from horus_lab.errors import InvalidTransition, StaleFence
from tests.broker.scripted import GIB, BrokerSettings, Desk, brief, device, use


def test_a_confirmed_grant_runs():
    desk = Desk()
    desk.submit("a")
    assert brief(desk.later(2.0).confirm("a")) == ["save a running", "tell a running"]
    assert desk.job().started_at == 1002.0


def test_a_confirmation_can_be_repeated():
    desk = Desk()
    desk.train("a")
    revision = desk.job().revision
    assert desk.later(1.0).confirm("a") == ()
    assert (desk.job().revision, desk.job().started_at) == (revision, 1000.0)


def test_another_fence_confirms_nothing():
    desk = Desk()
    desk.submit("a")
    with pytest.raises(StaleFence):
        desk.confirm("a", fence=7)
    assert desk.state() == "granted"


def test_a_grant_that_is_not_taken_goes_back_to_its_place_and_its_fence_is_void():
    desk = Desk()
    desk.submit("a", 12)
    desk.submit("b", 12)
    desk.later(60.0).look()
    desk.tick()
    assert desk.state("a") == "granted"
    desk.poll("b")
    assert brief(desk.later(1.0).tick()) == [
        "fence 3",
        "save a queued",
        "save b granted",
        "tell a queued",
        "tell b granted",
    ]
    with pytest.raises(StaleFence):
        desk.confirm("a", fence=1)
    # The client comes back: first in the queue again, under a new fence.
    desk.cancel("b")
    desk.poll("a")
    assert (desk.state("a"), desk.fence("a")) == ("granted", 3)


def test_a_withdrawn_job_keeps_its_place_before_later_ones():
    desk = Desk()
    desk.submit("a", 12)
    desk.later(1.0).submit("b", 12)
    desk.later(61.0).look()
    desk.tick()
    assert desk.state("a") == "queued"
    desk.poll("a")
    assert desk.state("a") == "granted"
    assert desk.state("b") == "queued"


def test_a_withdrawn_client_that_stays_away_is_not_granted_again():
    desk = Desk()
    desk.submit("a")
    desk.later(61.0).look()
    desk.tick()
    for _ in range(3):
        desk.later(1.0).look()
    assert desk.state("a") == "queued"


def test_a_client_that_polls_and_does_not_take_its_grant_has_to_ask_again():
    desk = Desk()
    desk.submit("a")
    desk.later(50.0).poll("a")
    desk.later(10.5).look()
    desk.tick()
    assert desk.state("a") == "queued"
    desk.poll("a")
    assert desk.state("a") == "granted"


def test_a_beat_that_overtakes_its_confirmation_is_the_confirmation():
    desk = Desk()
    desk.submit("a")
    desk.beat("a", steps=1)
    assert desk.state() == "running"
    assert desk.confirm("a") == ()


def test_silence_makes_suspect_and_touches_nothing():
    desk = Desk()
    desk.train("a", 12)
    desk.later(30.0).look()
    desk.tick()
    assert desk.state() == "running"
    assert brief(desk.later(0.5).tick()) == ["save a suspect", "tell a suspect"]
    lease = desk.job().lease
    desk.submit("b", 12)
    assert desk.state("b") == "queued"
    assert desk.job().lease == lease


def test_silence_alone_never_frees_anything():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    for _ in range(100):
        desk.later(3600.0).look()
        desk.tick()
        desk.poll("b")
    assert (desk.state("a"), desk.state("b")) == ("suspect", "queued")


@pytest.mark.parametrize("contact", ["beat", "confirm"])
def test_contact_makes_a_suspect_run_again(contact):
    desk = Desk()
    desk.train("a")
    desk.later(31.0).tick()
    assert brief(getattr(desk, contact)("a"))[:1] == ["save a running"]
    assert desk.tick() == ()


def test_a_poll_knows_no_fence_and_brings_no_lease_back():
    desk = Desk()
    desk.train("a")
    desk.later(29.0).poll("a")
    desk.later(2.0).tick()
    assert desk.state() == "suspect"
    desk.poll("a")
    assert desk.state() == "suspect"


def test_a_beat_with_another_fence_is_no_contact():
    desk = Desk()
    desk.train("a")
    desk.later(31.0).tick()
    with pytest.raises(StaleFence):
        desk.beat("a", fence=9)
    assert desk.state() == "suspect"


def test_a_late_or_doubled_beat_is_no_contact():
    desk = Desk()
    desk.train("a")
    desk.beat("a", 5, steps=10)
    desk.later(31.0).tick()
    assert desk.beat("a", 5, steps=10) == ()
    assert desk.beat("a", 4, steps=8) == ()
    assert desk.state() == "suspect"


@pytest.mark.parametrize("outcome", ["done", "failed", "cancelled"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_release_ends_the_job_as_its_process_says(outcome, silent):
    desk = Desk()
    desk.train("a")
    if silent:
        desk.later(31.0).tick()
    desk.release("a", outcome, message="so it was", steps=7)
    job = desk.job()
    assert (job.state.value, job.outcome, job.measured.steps) == (outcome, "so it was", 7)
    assert job.ended_at == desk.now


def test_a_repeated_release_answers_the_job_as_it_is():
    desk = Desk()
    desk.train("a")
    desk.release("a")
    job = desk.job()
    assert desk.later(1.0).release("a", "failed") == ()
    assert desk.job() == job


def test_a_release_with_another_fence_is_refused():
    desk = Desk()
    desk.train("a")
    with pytest.raises(StaleFence):
        desk.release("a", fence=2)
    desk.release("a")
    with pytest.raises(StaleFence):
        desk.release("a", fence=2)


def test_a_grant_that_is_given_back_unused_is_cancelled_and_leaves_nothing_charged():
    desk = Desk()
    desk.submit("a", 12)
    desk.submit("b", 12)
    desk.release("a", "done")
    assert (desk.state("a"), desk.state("b")) == ("cancelled", "granted")


def test_a_beat_after_the_end_is_refused():
    desk = Desk()
    desk.train("a")
    desk.release("a")
    with pytest.raises(InvalidTransition):
        desk.beat("a")
    with pytest.raises(InvalidTransition):
        desk.confirm("a")


@pytest.mark.parametrize("confirmed", [False, None])
def test_cancelling_who_does_not_train_ends_it_at_once(confirmed):
    desk = Desk()
    if confirmed is None:
        desk.look(use(desk.now, unmanaged=16 * GIB))
    desk.submit("a")
    desk.cancel("a", by="bob")
    assert (desk.state(), desk.job().outcome) == ("cancelled", "cancelled by bob")
    if confirmed is False:
        with pytest.raises(InvalidTransition):
            desk.confirm("a", fence=1)


def test_cancelling_who_trains_asks_it_to_stop_and_keeps_its_slot():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    assert brief(desk.cancel("a")) == ["save a running", "tell a running"]
    assert desk.job().cancel_requested
    assert desk.cancel("a") == ()
    assert (desk.state("a"), desk.state("b")) == ("running", "queued")


def test_cancelling_twice_is_once_and_cancelling_what_ended_otherwise_is_refused():
    desk = Desk()
    desk.submit("a")
    desk.cancel("a")
    assert desk.cancel("a") == ()
    desk.train("b")
    desk.release("b")
    with pytest.raises(InvalidTransition, match="done"):
        desk.cancel("b")


def test_a_waiting_job_whose_process_is_gone_is_lost():
    desk = Desk()
    desk.submit("a", 12)
    desk.submit("b", 12)
    assert brief(desk.end_process("b", 7)) == ["save b lost", "unwatch b", "tell b lost"]


@pytest.mark.parametrize("state", ["granted", "running", "suspect"])
def test_a_holder_whose_whole_tree_is_gone_is_lost(state):
    desk = Desk()
    desk.submit("a")
    if state != "granted":
        desk.confirm("a")
    if state == "suspect":
        desk.later(31.0).tick()
    assert desk.state() == state
    desk.end_process("a")
    assert (desk.state(), desk.job().outcome) == ("lost", "its process is gone")


@pytest.mark.parametrize("state", ["granted", "running", "suspect"])
def test_survivors_of_a_dead_process_keep_the_slot_until_they_are_gone(state):
    desk = Desk()
    desk.submit("a", 12)
    if state != "granted":
        desk.confirm("a")
    if state == "suspect":
        desk.later(31.0).tick()
    desk.submit("b", 12)
    desk.end_process("a", 7, 8)
    assert (desk.state("a"), desk.state("b")) == ("fenced", "queued")
    assert desk.job().outcome == "its process is gone; still running: 7, 8"
    desk.later(1.0).end_process("a", 8)
    desk.later(1000.0).look()
    desk.tick()
    desk.poll("b")
    assert (desk.state("a"), desk.state("b")) == ("fenced", "queued")
    desk.end_process("a")
    desk.later(1.0).look()
    assert (desk.state("a"), desk.state("b")) == ("lost", "granted")


def test_nobody_speaks_for_a_fenced_lease():
    desk = Desk()
    desk.train("a")
    desk.end_process("a", 7)
    for speak in (desk.beat, desk.confirm, desk.release):
        with pytest.raises(StaleFence):
            speak("a")
    with pytest.raises(InvalidTransition):
        desk.cancel("a")


def test_the_same_survivors_told_again_are_no_news():
    desk = Desk()
    desk.train("a")
    desk.end_process("a", 7, 8)
    assert desk.end_process("a", 7, 8) == ()
    assert brief(desk.end_process("a", 8)) == ["save a fenced", "tell a fenced"]


def test_released_bytes_stay_charged_until_a_later_look_shows_the_device():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.later(5.0).release("a")
    assert desk.state("b") == "queued"
    assert desk.broker.device_states()[0].reserved_bytes == 12 * GIB
    # This look began before the release.
    desk.look(use(1004.0))
    assert desk.state("b") == "queued"
    assert brief(desk.later(1.0).look())[-1] == "tell b granted"


def test_what_a_kernel_still_holds_after_its_release_stays_in_use():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.release("a")
    desk.later(1.0).look(use(desk.now, unmanaged=9 * GIB))
    assert desk.state("b") == "queued"
    desk.later(1.0).look(use(desk.now, unmanaged=0))
    assert desk.state("b") == "granted"


def test_bytes_that_a_look_still_finds_with_an_ended_job_stay_its_own():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.release("a")
    desk.later(1.0).look(use(desk.now, a=9 * GIB))
    view = desk.broker.cluster_view(desk.now).devices[0]
    assert (view.lingering_bytes, view.unmanaged_bytes) == (9 * GIB, 0)
    assert brief(desk.later(1.0).look()) == [
        "fence 3",
        "save b granted",
        "unwatch a",
        "tell b granted",
    ]


def test_a_look_that_cannot_tell_keeps_the_charge_until_the_process_is_gone_too():
    desk = Desk()
    desk.train("a", 12)
    desk.release("a")
    desk.later(1.0).look(use(desk.now, unmanaged=None))
    assert desk.broker.cluster_view(desk.now).devices[0].lingering_bytes == 12 * GIB
    desk.later(1.0)
    assert brief(desk.end_process("a", 9)) == []
    assert brief(desk.end_process("a")) == ["unwatch a"]
    desk.look(use(desk.now, unmanaged=None))
    assert desk.broker.cluster_view(desk.now).devices[0].lingering_bytes == 12 * GIB
    desk.later(1.0).look(use(desk.now, unmanaged=None))
    assert desk.broker.cluster_view(desk.now).devices[0].lingering_bytes == 0


def test_a_job_that_used_more_than_reserved_lingers_with_what_it_used():
    desk = Desk()
    desk.train("a", 4)
    desk.look(use(desk.now, a=9 * GIB))
    desk.release("a")
    assert desk.broker.cluster_view(desk.now).devices[0].lingering_bytes == 9 * GIB


def test_a_gang_lingers_on_each_device_by_itself():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.train("a", 12, devices=2)
    desk.release("a")
    desk.later(1.0).look(use(desk.now, "GPU-1"))
    lingering = [view.lingering_bytes for view in desk.broker.cluster_view(desk.now).devices]
    assert lingering == [12 * GIB, 0]


def test_fences_only_grow():
    desk = Desk()
    fences = []
    for number in range(5):
        desk.train(f"job{number}", 12)
        fences.append(desk.fence(f"job{number}"))
        desk.release(f"job{number}")
        desk.later(1.0).look()
    assert fences == [1, 2, 3, 4, 5]


def test_ended_jobs_past_the_bound_are_left_to_the_store():
    desk = Desk(settings=BrokerSettings(ended_kept=2))
    for number in range(4):
        desk.submit(f"job{number}")
        desk.cancel(f"job{number}")
    assert list(desk.broker.jobs) == ["job2", "job3"]


def test_a_clock_that_is_set_back_stops_neither_time_limits_nor_looks():
    desk = Desk(now=1e9)
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.release("a")
    desk.now -= 365 * 86400.0
    desk.tick()
    desk.later(1.0).look()
    assert desk.state("b") == "granted"
    desk.confirm("b")
    desk.now -= 365 * 86400.0
    desk.beat("b")
    desk.later(30.5).tick()
    assert desk.state("b") == "suspect"


def test_a_clock_that_is_set_forward_loses_nothing():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 12)
    desk.later(365 * 86400.0).tick()
    assert (desk.state("a"), desk.state("b")) == ("suspect", "queued")
    desk.beat("a")
    desk.poll("b")
    desk.release("a")
    desk.later(1.0).look()
    assert (desk.state("a"), desk.state("b")) == ("done", "granted")
