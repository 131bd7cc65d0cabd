"""Order, placement, keeping for the due, gangs, reasons and waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horus_lab.errors import ConfigurationError
from horus_lab.interference import FittedInterference
from horus_lab.policy import policy_named
from horus_lab.policy.admission import free_bytes, standing
from horus_lab.policy.cluster import ClusterView, DeviceView, Plan
from horus_lab.policy.horus_lab_policy import HorusLabPolicy
from horus_lab.records import Interval, ObstacleKind
from tests.policy.cluster import GIB, Sharing, cluster, gpu, job, resident

NOW = 1000.0


def plan(view: ClusterView, now: float = NOW, due: float = 600.0) -> Plan:
    return HorusLabPolicy(Sharing(), due_seconds=due).plan(view, now)


def placed(found: Plan) -> dict[str, tuple[str, ...]]:
    return {p.job_id: tuple(s.device_uuid for s in p.slots) for p in found.placements}


def test_a_job_that_fits_goes_at_once() -> None:
    found = plan(cluster(gpu(), queue=[job("a")]))
    assert placed(found) == {"a": ("GPU-0",)}
    assert found.waiting == {}


def test_jobs_of_one_plan_count_against_each_other() -> None:
    # 0.5 + 0.5 is full; a third would slow everybody by half.
    found = plan(cluster(gpu(), queue=[job(name, at=NOW - 1) for name in "abc"]))
    assert set(placed(found)) == {"a", "b"}
    assert found.waiting["c"].position == 1
    (obstacle,) = found.waiting["c"].obstacles
    assert obstacle.kind is ObstacleKind.SLOWDOWN_RESIDENT


def test_an_empty_device_is_better_than_a_shared_one_and_a_small_one_than_a_large() -> None:
    busy, large, small = gpu(0, residents=(resident(),)), gpu(1, capacity=80), gpu(2, capacity=16)
    assert placed(plan(cluster(busy, large, small, queue=[job("a")]))) == {"a": ("GPU-2",)}
    # What does not fit on the small one takes the large.
    asked = job("a", memory=20)
    assert placed(plan(cluster(busy, large, small, queue=[asked]))) == {"a": ("GPU-1",)}


def test_people_take_turns_whoever_asked_more_often() -> None:
    queue = [job(f"a{n}", owner="ana", at=NOW - 90 + n, load=1.0) for n in range(3)]
    queue.append(job("b0", owner="ben", at=NOW - 10, load=1.0))
    order = HorusLabPolicy(Sharing()).order(cluster(gpu(), queue=queue), NOW)
    assert [one.job_id for one in order] == ["a0", "b0", "a1", "a2"]


def test_who_has_used_more_waits_longer() -> None:
    queue = [job("a", owner="ana", at=NOW - 90), job("b", owner="ben", at=NOW - 10)]
    order = HorusLabPolicy(Sharing()).order(cluster(gpu(), queue=queue, ana=5000.0), NOW)
    assert [one.job_id for one in order] == ["b", "a"]


def test_priority_orders_ones_own_jobs_only() -> None:
    queue = [
        job("a", owner="ana", at=NOW - 90),
        job("b", owner="ana", at=NOW - 10, priority=5),
        job("c", owner="ben", at=NOW - 50),
    ]
    order = HorusLabPolicy(Sharing()).order(cluster(gpu(), queue=queue), NOW)
    assert [one.job_id for one in order] == ["b", "c", "a"]


def test_nothing_is_put_on_the_device_that_a_due_job_waits_for() -> None:
    # The due job needs a whole device; GPU 0's resident leaves first.
    soon = resident("soon", load=0.2, remaining_seconds=Interval(5, 10, 15))
    late = resident("late", load=0.2, remaining_seconds=Interval(50, 100, 150))
    queue = [job("due", at=0.0, exclusive=True), job("young", at=NOW - 5, load=0.2)]
    found = plan(cluster(gpu(0, residents=(soon,)), gpu(1, residents=(late,)), queue=queue))
    assert placed(found) == {"young": ("GPU-1",)}
    # Where there is only the kept device, the young one waits, and knows for whom.
    found = plan(cluster(gpu(0, residents=(soon,)), queue=queue))
    assert placed(found) == {}
    (obstacle,) = found.waiting["young"].obstacles
    assert (obstacle.kind, obstacle.job_id) == (ObstacleKind.RESERVED_FOR_DUE, "due")


def test_a_job_that_is_not_due_is_passed_by_whatever_fits() -> None:
    queue = [job("big", memory=30, at=NOW - 90, on=1), job("small", at=NOW - 5)]
    assert set(placed(plan(cluster(gpu(), queue=queue)))) == {"small"}


def test_an_absent_client_keeps_its_place_and_is_passed_over() -> None:
    queue = [job("gone", at=NOW - 90, absent=True), job("here", at=NOW - 5)]
    found = plan(cluster(gpu(), queue=queue))
    assert set(placed(found)) == {"here"}
    assert found.waiting["gone"].absent
    assert "keeps its place" in found.waiting["gone"].sentence


def test_a_gang_gets_all_its_devices_or_none() -> None:
    two = [gpu(0), gpu(1, residents=(resident(load=1.0),))]
    found = plan(cluster(*two, queue=[job("gang", devices=2)]))
    assert placed(found) == {}
    assert "2 devices" in found.waiting["gang"].sentence
    three = [*two, gpu(2)]
    assert placed(plan(cluster(*three, queue=[job("gang", devices=2)]))) == {
        "gang": ("GPU-0", "GPU-2")
    }


def test_a_gang_takes_devices_of_one_model() -> None:
    devices = [gpu(0, model="A"), gpu(1, model="B"), gpu(2, model="A")]
    found = plan(cluster(*devices, queue=[job("gang", devices=2)]))
    assert placed(found) == {"gang": ("GPU-0", "GPU-2")}


def test_a_reason_names_the_device_the_neighbour_and_the_bound() -> None:
    full = gpu(0, residents=(resident("x", load=0.9),))
    short = gpu(1, residents=(resident("y", memory=22.5, load=0.0),))
    sentence = plan(cluster(full, short, queue=[job("a")])).waiting["a"].sentence
    assert sentence == (
        "waits: GPU 0 would slow resnet50 of ana by 40 % (bound 25 %); GPU 1 lacks 2.5 GiB"
    )


def test_the_expected_wait_is_when_the_neighbour_leaves() -> None:
    leaving = resident("x", load=0.9, remaining_seconds=Interval(40, 60, 80))
    found = plan(cluster(gpu(0, residents=(leaving,)), queue=[job("a", steps=100)]))
    assert found.waiting["a"].expected_seconds == Interval(40, 60, 80)
    assert found.waiting["a"].sentence.endswith("; expected in 40–80 s")


def test_a_wait_counts_those_who_are_before_in_the_queue() -> None:
    leaving = resident("x", load=0.9, remaining_seconds=Interval(60, 60, 60))
    # Each takes 100 steps of 0.1 s on a whole device.
    queue = [job(n, at=NOW - 9 + i, load=1.0, steps=100) for i, n in enumerate("ab")]
    waiting = plan(cluster(gpu(0, residents=(leaving,)), queue=queue)).waiting
    assert waiting["a"].expected_seconds == Interval(60, 60, 60)
    assert waiting["b"].expected_seconds == Interval(70, 70, 70)


def test_a_wait_nobody_can_tell_is_unknown() -> None:
    endless = resident("x", load=0.9)
    found = plan(cluster(gpu(0, residents=(endless,)), queue=[job("a")]))
    assert found.waiting["a"].expected_seconds is None


def test_what_no_device_could_hold_is_said_with_the_numbers() -> None:
    policy = HorusLabPolicy(Sharing())
    view = cluster(gpu(0), gpu(1, capacity=16))
    assert policy.never_fits(view, job(memory=20)) is None
    assert policy.never_fits(view, job(memory=30)) == (
        "no device here could hold it: it needs 30.0 GiB, and the largest takes 24.0 GiB"
    )
    assert "unknown" in (policy.never_fits(view, job(memory=None)) or "")
    assert "no device" in (policy.never_fits(cluster(), job()) or "")
    assert "may use" in (policy.never_fits(view, job(device_uuids=("GPU-9",))) or "")
    assert "2 devices" in (policy.never_fits(view, job(memory=20, devices=2)) or "")


def test_an_assessment_answers_for_each_device_and_queues_nothing() -> None:
    view = cluster(gpu(0), gpu(1, residents=(resident("x", load=1.0),)), gpu(2, capacity=2))
    fits = HorusLabPolicy(Sharing()).assess(view, job("a"), NOW)
    assert [(f.fits_now, f.fits_ever) for f in fits] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert fits[1].neighbours == ("x",)
    assert fits[2].sentence == "GPU 2 lacks 2.0 GiB"


def test_the_exclusive_policy_gives_every_job_a_device_of_its_own() -> None:
    policy = policy_named("exclusive", Sharing())
    queue = [job(name, load=0.1, at=NOW - 1) for name in "ab"]
    assert set(placed(policy.plan(cluster(gpu(), queue=queue), NOW))) == {"a"}


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match="exclusive, fifo, horus, horus-lab"):
        policy_named("slurm", Sharing())
    assert policy_named("", Sharing()).name == "horus-lab"


def test_fifo_gives_the_oldest_a_device_of_its_own_whoever_has_used_how_much() -> None:
    policy = policy_named("fifo", Sharing())
    queue = [
        job("late", at=30.0, owner="ben", load=0.1, priority=5),
        job("first", at=10.0, owner="ana", load=0.1),
        job("gang", at=20.0, owner="ana", load=0.1, devices=3),
    ]
    found = policy.plan(cluster(gpu(0), gpu(1), queue=queue, ana=1e6), NOW)
    assert placed(found) == {"first": ("GPU-0",), "late": ("GPU-1",)}
    # Days later the gang still keeps nothing.
    assert placed(policy.plan(cluster(gpu(0), queue=queue[::2]), 1e6)) == {"late": ("GPU-0",)}


def test_horus_takes_the_lightest_first_and_looks_five_ahead() -> None:
    policy = policy_named("horus", Sharing())
    queue = [job("heavy", load=0.9, at=0.0), job("light", load=0.1, at=NOW), job("mid", load=0.4)]
    assert [p.job_id for p in policy.plan(cluster(gpu(), queue=queue), NOW).placements] == [
        "light",
        "mid",
    ]
    # Five that are too large stand before one that would fit.
    large = [job(f"l{n}", load=0.1, memory=30, at=float(n)) for n in range(5)]
    fits = job("fits", load=0.2, at=0.0)
    found = policy.plan(cluster(gpu(), queue=[fits, *large]), NOW)
    assert placed(found) == {}
    assert found.waiting["fits"].sentence == "waits: 5 jobs before it wait for a place"
    assert placed(policy.plan(cluster(gpu(), queue=[fits, *large[1:]]), NOW)) == {
        "fits": ("GPU-0",)
    }


def test_horus_keeps_500_mib_free_and_takes_three() -> None:
    policy = policy_named("horus", Sharing())
    tight, loose = 24 - 500 / 1024, 24 - 501 / 1024
    assert placed(policy.plan(cluster(gpu(), queue=[job("a", memory=tight)]), NOW)) == {}
    assert placed(policy.plan(cluster(gpu(), queue=[job("a", memory=loose)]), NOW)) != {}
    three = tuple(resident(f"r{n}", memory=1, load=0.1) for n in range(3))
    found = policy.plan(cluster(gpu(residents=three), queue=[job("a", load=0.1)]), NOW)
    assert [o.kind for o in found.waiting["a"].obstacles] == [ObstacleKind.RESIDENTS_FULL]


def test_horus_chooses_by_cost_alone_and_horus_lab_an_empty_device() -> None:
    # Load 0.5 beside 0.5 on 80 GiB: 1.3 x 8/80 + 0 + 1 = 1.13; alone on 5 GiB: 1.3 x 4/5 + 0.5.
    shared = gpu(0, capacity=80, residents=(resident(load=0.5),))
    empty = gpu(1, capacity=5)
    view = cluster(shared, empty, queue=[job("a", load=0.5)])
    assert placed(policy_named("horus", Sharing()).plan(view, NOW)) == {"a": ("GPU-0",)}
    assert placed(plan(view)) == {"a": ("GPU-1",)}


def test_behind_too_many_that_wait_nobody_is_looked_at() -> None:
    policy = HorusLabPolicy(Sharing(), most_misses=2)
    queue = [job(f"j{n}", memory=30, at=NOW - 9 + n) for n in range(2)]
    queue.append(job("fits", at=NOW))
    found = policy.plan(cluster(gpu(), queue=queue), NOW)
    assert placed(found) == {}
    assert found.waiting["fits"].position == 3
    assert found.waiting["fits"].sentence == "waits: 2 jobs before it wait for a place"


def test_a_gang_waits_for_the_last_of_its_devices() -> None:
    def until(index: int, seconds: float, model: str) -> DeviceView:
        left = Interval(seconds - 1, seconds, seconds + 1)
        busy = resident(f"r{index}", load=1.0, remaining_seconds=left)
        return gpu(index, model=model, residents=(busy,))

    # Of model A two are free in 50 s; B's first is free sooner, its second later.
    devices = [until(0, 20, "A"), until(1, 50, "A"), until(2, 5, "B"), until(3, 90, "B")]
    found = plan(cluster(*devices, queue=[job("gang", devices=2, load=1.0)]))
    assert found.waiting["gang"].expected_seconds == Interval(49, 50, 51)


def test_a_name_that_looks_like_markup_stays_what_it_is() -> None:
    named = resident("x", name="<b>net</b>", owner="ana; rm", load=0.9)
    sentence = plan(cluster(gpu(residents=(named,)), queue=[job("a")])).waiting["a"].sentence
    assert "would slow <b>net</b> of ana; rm by" in sentence


jobs = st.lists(
    st.builds(
        lambda memory, load, age, owner, devices, exclusive, bound: {
            "memory": memory,
            "load": load,
            "at": NOW - age,
            "owner": owner,
            "devices": devices,
            "exclusive": exclusive,
            "max_slowdown": bound,
        },
        st.integers(1, 30),
        st.one_of(st.none(), st.floats(0, 1)),
        st.floats(0, 2000),
        st.sampled_from(["ana", "ben", "eva"]),
        st.integers(1, 3),
        st.booleans(),
        st.floats(1, 3),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(asked=jobs, loads=st.lists(st.floats(0, 1), max_size=3))
def test_no_plan_breaks_memory_or_a_bound_and_the_same_view_gives_the_same_plan(
    asked: list[dict[str, object]], loads: list[float]
) -> None:
    interference = FittedInterference.load()
    residents = tuple(resident(f"r{i}", memory=5, load=u) for i, u in enumerate(loads))
    devices = (gpu(0, residents=residents), gpu(1), gpu(2, capacity=16, model="B"))
    queue = [job(f"j{i}", **options) for i, options in enumerate(asked)]  # type: ignore[arg-type]
    view = cluster(*devices, queue=queue)
    policy = HorusLabPolicy(interference)
    found = policy.plan(view, NOW)
    assert policy.plan(view, NOW) == found
    by_id = {one.job_id: one for one in queue}
    assert set(placed(found)) | set(found.waiting) == set(by_id)
    assert not set(placed(found)) & set(found.waiting)
    for device in devices:
        uuid = device.device.uuid
        new = [
            (by_id[p.job_id], slot)
            for p in found.placements
            for slot in p.slots
            if slot.device_uuid == uuid
        ]
        reserved = sum(slot.reserved_bytes for _, slot in new)
        if new:
            assert reserved <= free_bytes(job("nobody"), standing(device))
        everyone = [r.prediction for r in device.residents]
        everyone += [one.predictions[uuid] for one, _ in new]
        bounds = [r.max_slowdown for r in device.residents]
        bounds += [one.constraints.max_slowdown for one, _ in new]
        if new and len(everyone) > 1:
            assert not any(one.constraints.exclusive for one, _ in new)
            slowdowns = interference.slowdowns(everyone, device.device.spec)
            for slowdown, bound in zip(slowdowns, bounds, strict=True):
                assert slowdown is not None
                assert slowdown.p50 <= bound
    for p in found.placements:
        assert len({slot.device_uuid for slot in p.slots}) == by_id[p.job_id].devices


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nobody_starves_behind_an_endless_stream_of_small_jobs(seed: int) -> None:
    """A small simulated loop: every 10 s a small job comes and stays for 50 s."""
    policy = HorusLabPolicy(Sharing(), due_seconds=100.0)
    big = job("big", at=0.0, exclusive=True)
    running: dict[str, float] = {}
    queue = [big]
    for tick in range(200):
        now = 10.0 * tick
        running = {name: end for name, end in running.items() if end > now}
        load = 0.2 + (seed * 7 + tick * 13) % 10 / 50
        queue.append(job(f"s{tick}", owner=f"o{tick % 7}", at=now, load=load))
        device = gpu(
            0,
            residents=tuple(
                resident(
                    name, load=0.2, remaining_seconds=Interval(end - now, end - now, end - now)
                )
                for name, end in running.items()
            ),
        )
        for placement in policy.plan(cluster(device, queue=queue), now).placements:
            if placement.job_id == "big":
                return
            running[placement.job_id] = now + 50
            queue = [one for one in queue if one.job_id != placement.job_id]
    raise AssertionError("the big job never started")


def test_free_bytes_may_be_below_zero_where_too_much_is_promised_already() -> None:
    grown = resident(memory=4, measured_bytes=30 * GIB)
    assert free_bytes(job(), standing(gpu(residents=(grown,)))) == -6 * GIB
