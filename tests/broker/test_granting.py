"""Who gets a slot, what is written and told about it, and what never grants."""

from __future__ import annotations

import pytest

from horus_lab.broker import events
from horus_lab.broker.invariants import InvariantBroken
from horus_lab.errors import Conflict, TooManyJobs, UnknownJob
from horus_lab.policy.cluster import Placement
from horus_lab.records import Health, Slot
from tests.broker.scripted import (
    GIB,
    BrokerSettings,
    Desk,
    FlatInterference,
    ToldPolicy,
    brief,
    device,
    prediction,
    request,
    use,
)


def test_a_job_that_fits_is_granted_with_what_is_saved_before_what_is_told():
    desk = Desk()
    assert brief(desk.submit("a")) == [
        "fence 2",
        "save a granted",
        "watch a",
        "tell a granted",
    ]
    lease = desk.job().lease
    assert lease is not None
    assert (lease.fence, lease.granted_at, lease.neighbours) == (1, 1000.0, ())
    assert lease.slots == (Slot(device_uuid="GPU-0", reserved_bytes=4 * GIB, utilization=0.3),)


def test_a_job_that_does_not_fit_waits_with_a_reason_and_its_place():
    desk = Desk()
    desk.submit("a", 10)
    assert brief(desk.submit("b", 10)) == ["save b queued", "watch b", "tell b queued"]
    reason = desk.job("b").reason
    assert reason is not None
    assert reason.position == 1
    assert [one.device_uuid for one in reason.obstacles] == ["GPU-0"]


def test_neighbours_are_written_into_the_lease():
    desk = Desk()
    desk.submit("a")
    desk.submit("b")
    lease = desk.job("b").lease
    assert lease is not None
    assert lease.neighbours == ("a",)


def test_the_story_names_each_event_and_why():
    desk = Desk()
    desk.submit("a")
    told = [
        (entry.event, entry.event_id, entry.from_state, entry.to_state.value, entry.why)
        for entry in desk.job().story
    ]
    assert told == [
        ("Submitted", "e2", None, "queued", ""),
        ("Grant", "e2", "queued", "granted", "it fits"),
    ]


def test_a_job_that_never_fits_is_rejected_and_kept():
    desk = Desk()
    # 16 GiB less 1 GiB of margin hold 15 GiB.
    assert brief(desk.submit("a", 15.5)) == ["save a rejected", "tell a rejected"]
    job = desk.job()
    assert (job.outcome, job.ended_at) == ("no device is large enough", 1000.0)


def test_without_devices_a_job_waits_and_is_not_rejected():
    desk = Desk()
    desk.change_devices()
    desk.submit("a", predictions={})
    assert desk.state() == "queued"


def test_a_better_prediction_can_show_that_a_waiting_job_never_fits():
    desk = Desk()
    desk.submit("a", 10)
    desk.submit("b", 10)
    assert brief(desk.predict("b", GPU_0=prediction(40))) == [
        "save b rejected",
        "unwatch b",
        "tell b rejected",
    ]


def test_a_better_prediction_can_let_a_waiting_job_in():
    desk = Desk()
    desk.submit("a", 10)
    desk.submit("b", 10)
    desk.predict("b", GPU_0=prediction(4))
    assert desk.state("b") == "granted"


def test_predictions_of_a_holder_stay_those_it_was_granted_by():
    desk = Desk()
    desk.train("a")
    assert desk.predict("a", GPU_0=prediction(40)) == ()
    assert desk.job().predictions == {"GPU-0": prediction(4)}


def test_nothing_is_granted_before_the_first_look_at_a_device():
    desk = Desk(looked=False)
    desk.submit("a")
    assert desk.state() == "queued"
    desk.look()
    assert desk.state() == "granted"


def test_an_old_look_grants_nothing():
    desk = Desk()
    desk.later(31.0).submit("a")
    assert desk.state() == "queued"
    assert desk.broker.device_states(desk.now)[0].unmanaged_bytes is None


@pytest.mark.parametrize("health", [Health.DEGRADED, Health.LOST])
def test_a_device_that_is_not_well_takes_no_newcomer_and_keeps_its_residents(health):
    desk = Desk()
    desk.train("a")
    desk.look(use(desk.now, health=health, unknown={"memory": "Xid 79"}))
    desk.submit("b")
    assert (desk.state("a"), desk.state("b")) == ("running", "queued")
    view = desk.broker.cluster_view(desk.now).devices[0]
    assert view.why_unhealthy == f"is {health.value}: Xid 79"
    desk.look(use(desk.now))
    assert desk.state("b") == "granted"


def test_unknown_use_grants_nothing_and_is_not_shown_as_zero():
    desk = Desk()
    desk.look(use(desk.now, unmanaged=None))
    desk.submit("a")
    assert desk.state() == "queued"
    assert desk.broker.device_states()[0].unmanaged_bytes is None


def test_unmanaged_use_is_not_promised():
    desk = Desk()
    desk.look(use(desk.now, unmanaged=12 * GIB))
    desk.submit("a", 4)
    assert desk.state() == "queued"
    desk.look(use(desk.now, unmanaged=11 * GIB))
    assert desk.state() == "granted"


def test_what_a_waiting_job_holds_already_counts_once():
    desk = Desk()
    desk.submit("other", 9)
    # 9 reserved, 4 held by b's own kernel, 2 left of 15: b's 6 are its 4 and 2 more.
    desk.submit("b", 6, device_uuids=("elsewhere",))
    desk.look(use(desk.now, b=4 * GIB))
    view = desk.broker.cluster_view(desk.now)
    assert view.devices[0].unmanaged_bytes == 4 * GIB
    assert view.queue[0].held_bytes == {"GPU-0": 4 * GIB}
    desk.cancel("b")
    desk.submit("c", 6)
    desk.look(use(desk.now, c=4 * GIB))
    assert desk.state("c") == "granted"
    assert desk.broker.cluster_view(desk.now).devices[0].unmanaged_bytes == 0


def test_a_resident_that_outgrows_its_reservation_is_charged_what_it_uses_and_told_once():
    desk = Desk()
    desk.train("a", 4)
    before = desk.job().revision
    desk.look(use(desk.now, a=12 * GIB))
    desk.look(use(desk.now, a=12 * GIB))
    assert desk.job().revision == before + 1
    assert "12.00 GiB" in desk.job().story[-1].why
    desk.submit("b", 4)
    assert desk.state("b") == "queued"
    desk.look(use(desk.now, a=11 * GIB))
    assert desk.state("b") == "granted"


def test_an_absent_client_keeps_its_place_and_is_passed_over():
    desk = Desk()
    desk.train("a", 12)
    desk.submit("b", 10)
    desk.later(31.0).look()
    assert desk.job("b").reason.absent
    desk.submit("c", 10)
    desk.release("a")
    desk.later(1.0).look()
    assert (desk.state("b"), desk.state("c")) == ("queued", "granted")
    assert [job.id for job in desk.broker.queue()] == ["b"]
    desk.cancel("c")
    desk.poll("b")
    assert desk.state("b") == "granted"


def test_a_poll_of_a_present_client_says_nothing_to_anyone():
    desk = Desk()
    desk.submit("a", 12)
    desk.submit("b", 12)
    desk.later(5.0)
    assert desk.poll("b") == ()
    assert desk.job("b").last_contact_at == desk.now


def test_a_gang_gets_all_its_devices_or_none():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.train("a", 12)
    desk.submit("gang", 8, devices=2)
    assert desk.state("gang") == "queued"
    desk.release("a")
    desk.later(1.0).look(use(desk.now, "GPU-0"), use(desk.now, "GPU-1"))
    lease = desk.job("gang").lease
    assert lease is not None
    assert [slot.device_uuid for slot in lease.slots] == ["GPU-0", "GPU-1"]


def test_the_same_request_twice_is_one_job():
    desk = Desk()
    desk.submit("a", request_id="r")
    found = desk.broker.find_request("ada", request("r"))
    assert found == desk.job("a")
    again = events.Submitted(
        event_id="again", job_id="a2", owner="ada", request=request("r"), predictions={}
    )
    assert desk.broker.handle(again, desk.now) == ()
    assert list(desk.broker.jobs) == ["a"]
    assert desk.broker.find_request("bob", request("r")) is None


def test_another_body_under_the_same_request_id_is_a_conflict():
    desk = Desk()
    desk.submit("a", request_id="r")
    with pytest.raises(Conflict):
        desk.broker.find_request("ada", request("r", 5))
    with pytest.raises(Conflict):
        desk.submit("b", 5, request_id="r")
    assert list(desk.broker.jobs) == ["a"]


def test_an_unknown_job_is_told_as_such():
    with pytest.raises(UnknownJob):
        Desk().poll("nobody")


def test_a_full_queue_takes_no_more():
    desk = Desk(settings=BrokerSettings(max_queued=2, max_queued_per_owner=1))
    desk.submit("a", 15)
    desk.submit("b", 15, owner="ada")
    with pytest.raises(TooManyJobs, match="your jobs"):
        desk.submit("c", 15, owner="ada")
    desk.submit("d", 15, owner="bob")
    with pytest.raises(TooManyJobs, match="2 jobs wait"):
        desk.submit("e", 15, owner="eve")


def test_a_reason_is_told_again_only_when_it_really_changed():
    desk = Desk()
    desk.submit("a", 12)
    desk.submit("b", 12)
    revision = desk.job("b").revision
    for _ in range(5):
        desk.poll("b")
        assert brief(desk.later(1.0).look()) == []
    assert desk.job("b").revision == revision


def slot(uuid: str = "GPU-0", gib: float = 4) -> Slot:
    return Slot(device_uuid=uuid, reserved_bytes=round(gib * GIB), utilization=0.3)


def place(policy: ToldPolicy, job_id: str, *slots: Slot) -> None:
    policy.next = (Placement(job_id=job_id, slots=slots or (slot(),)),)


WRONG = {
    "more memory than there is": (lambda: slot(gib=15.1), {}, "would be promised"),
    "a device that is not here": (lambda: slot("GPU-9"), {}, "no such device"),
    "a device its owner did not allow": (
        slot,
        {"device_uuids": ("GPU-9",)},
        "did not allow",
    ),
    "an exclusive job beside another": (slot, {"exclusive": True}, "exclusive"),
    "a slowdown past its bound": (slot, {"max_slowdown": 1.05}, "a bound of 1.05"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_placement_is_refused_whatever_the_policy_says(case):
    wrong, constraints, why = WRONG[case]
    policy = ToldPolicy()
    lenient = Desk(policy=policy, strict=False)
    place(policy, "a")
    lenient.submit("a")
    place(policy, "b", wrong())
    lenient.submit("b", **constraints)
    assert lenient.state("b") == "queued"
    assert why in lenient.job("b").reason.sentence
    assert lenient.broker.next_fence == 2

    strict = Desk(policy=policy)
    place(policy, "a")
    strict.submit("a")
    place(policy, "b", wrong())
    with pytest.raises(InvariantBroken, match="b: "):
        strict.submit("b", **constraints)
    assert "b" not in strict.broker.jobs


def test_a_placement_beside_an_exclusive_resident_is_refused():
    policy = ToldPolicy()
    desk = Desk(policy=policy)
    place(policy, "a")
    desk.submit("a", exclusive=True)
    place(policy, "b")
    with pytest.raises(InvariantBroken, match="a is exclusive"):
        desk.submit("b")


def test_a_placement_of_an_absent_client_is_refused():
    policy = ToldPolicy()
    desk = Desk(policy=policy)
    desk.submit("a")
    desk.later(31.0).look()
    place(policy, "a")
    with pytest.raises(InvariantBroken, match="its client is absent"):
        desk.tick()


def test_a_placement_that_slows_a_resident_past_its_bound_is_refused():
    policy = ToldPolicy()
    desk = Desk(policy=policy, interference=FlatInterference(1.3))
    place(policy, "a")
    desk.submit("a", max_slowdown=1.2)
    place(policy, "b")
    with pytest.raises(InvariantBroken, match=r"1\.30 would break a bound of 1\.20"):
        desk.submit("b", max_slowdown=2.0)


def test_a_placement_whose_slowdown_nobody_knows_is_refused():
    policy = ToldPolicy()
    desk = Desk(policy=policy)
    place(policy, "a")
    desk.submit("a", predictions={"GPU-0": prediction(utilization=None)})
    place(policy, "b")
    with pytest.raises(InvariantBroken, match="nobody can say"):
        desk.submit("b")


def test_a_full_device_takes_no_further_resident():
    policy = ToldPolicy()
    desk = Desk(device(max_residents=1), policy=policy)
    place(policy, "a")
    desk.submit("a")
    place(policy, "b")
    with pytest.raises(InvariantBroken, match="1 jobs are there already"):
        desk.submit("b")


def test_two_placements_of_one_plan_are_held_against_each_other():
    policy = ToldPolicy()
    desk = Desk(policy=policy)
    desk.submit("a", 8)
    desk.submit("b", 8)
    policy.next = tuple(Placement(job_id=one, slots=(slot(gib=8),)) for one in "ab")
    with pytest.raises(InvariantBroken, match="places b"):
        desk.tick()
    assert (desk.state("a"), desk.state("b")) == ("queued", "queued")


def test_a_forecast_says_where_a_job_fits_and_queues_nothing():
    desk = Desk()
    desk.submit("a", 10)
    view = desk.broker.cluster_view(desk.now)
    desk.submit("b", 10)
    queued = desk.broker.cluster_view(desk.now).queue[0]
    desk.cancel("b")
    reply = desk.broker.forecast(queued, desk.now)
    assert [fit.fits_now for fit in reply.fits] == [False]
    assert (reply.expected_wait_seconds, reply.queue_length) == (None, 0)
    desk.cancel("a")
    reply = desk.broker.forecast(queued, desk.now)
    assert [fit.fits_now for fit in reply.fits] == [True]
    assert reply.expected_wait_seconds.p50 == 0.0
    assert desk.broker.cluster_view(desk.now).queue == view.queue == ()
