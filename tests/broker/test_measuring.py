"""What heartbeats and looks make of a job's measurements, and of its owner's share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horus_lab.broker import accounting
from horus_lab.broker.commands import Learn
from horus_lab.broker.settings import BrokerSettings
from horus_lab.records import Basis, Interval
from tests.broker.scripted import (
    GIB,
    Desk,
    FlatInterference,
    brief,
    device,
    prediction,
    use,
)


def beats(desk: Desk, job_id: str, *told: tuple[float, int, float | None]) -> None:
    """Beats of one job: after how many seconds, how many steps, which rate."""
    for seconds, steps, rate in told:
        desk.later(seconds).beat(job_id, steps=steps, rate=rate)


def test_the_rate_alone_is_weighted_by_time_and_leaves_out_the_start():
    desk = Desk()
    desk.train("a")
    # The first beat with steps ends the start-up. Then 10 s at 2/s and 5 s at 5/s: 45/15 = 3/s.
    beats(desk, "a", (5, 0, None), (5, 3, 99.0), (10, 23, 2.0), (5, 48, 5.0))
    measured = desk.job().measured
    assert measured.steps == 48
    assert measured.steps_per_second_alone == pytest.approx(3.0)
    assert measured.seconds_alone == pytest.approx(15.0)
    assert (measured.steps_per_second_shared, measured.slowdown) == (None, None)


def test_without_a_told_rate_the_steps_between_beats_count():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (5, 1, None), (10, 41, None))
    assert desk.job().measured.steps_per_second_alone == pytest.approx(4.0)


def test_time_beside_others_is_kept_apart_and_gives_the_slowdown():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (1, 1, 4.0), (5, 21, 4.0))
    desk.train("b")
    # The first beat after b came covers both kinds of time and counts as neither.
    beats(desk, "a", (5, 35, 3.0), (5, 45, 2.0), (5, 55, 2.0))
    measured = desk.job("a").measured
    assert (measured.steps_per_second_alone, measured.seconds_alone) == (4.0, 5.0)
    assert (measured.steps_per_second_shared, measured.seconds_shared) == (2.0, 10.0)
    assert (measured.slowdown, measured.slowdown_basis) == (2.0, "own")


def test_a_neighbour_that_does_not_train_yet_is_none():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (1, 1, 4.0))
    desk.submit("b")
    beats(desk, "a", (5, 21, 4.0))
    assert desk.job("a").measured.seconds_alone == 5.0


def test_time_after_a_neighbour_left_is_alone_again():
    desk = Desk()
    desk.train("a")
    desk.train("b")
    beats(desk, "a", (1, 1, 2.0), (5, 11, 2.0))
    desk.release("b")
    beats(desk, "a", (5, 26, 3.0), (5, 46, 4.0))
    measured = desk.job("a").measured
    assert (measured.seconds_shared, measured.seconds_alone) == (5.0, 5.0)
    assert measured.slowdown == pytest.approx(2.0)


def test_without_time_alone_the_slowdown_rests_on_earlier_runs():
    desk = Desk()
    desk.train("b")
    ran_before = prediction(4, basis=Basis.HISTORY, step_seconds=0.1)
    desk.train("a", predictions={"GPU-0": ran_before})
    beats(desk, "a", (1, 1, 8.0), (5, 41, 8.0))
    measured = desk.job("a").measured
    assert measured.slowdown == pytest.approx(1.25)  # 10/s before, 8/s now
    assert measured.slowdown_basis == "history"


def test_a_prediction_that_is_no_history_is_no_basis_for_a_slowdown():
    desk = Desk()
    desk.train("b")
    desk.train("a", predictions={"GPU-0": prediction(4, step_seconds=0.1)})
    beats(desk, "a", (1, 1, 8.0), (5, 41, 8.0))
    assert desk.job("a").measured.slowdown is None


def test_a_moment_is_too_short_for_a_slowdown():
    desk = Desk(settings=BrokerSettings(solo_seconds=10.0))
    desk.train("a")
    beats(desk, "a", (1, 1, 4.0), (5, 21, 4.0))
    desk.train("b")
    beats(desk, "a", (5, 31, 2.0), (20, 71, 2.0))
    assert desk.job("a").measured.slowdown is None


def test_a_slowdown_is_at_least_one():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (1, 1, 4.0), (5, 21, 4.0))
    desk.train("b")
    beats(desk, "a", (5, 31, 5.0), (5, 56, 5.0))
    assert desk.job("a").measured.slowdown == 1.0


def test_steps_never_go_back():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (5, 50, None), (5, 20, None))
    desk.release("a", steps=3)
    assert desk.job("a").measured.steps == 50


def test_rates_go_on_after_a_restart():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (1, 1, 4.0), (10, 41, 4.0))
    later = desk.restart()
    # 10 s at 4/s before; the first beat after is neither; then 10 s at 2/s: (40 + 20) / 20 = 3/s.
    beats(later, "a", (10, 81, 4.0), (10, 101, 2.0))
    assert later.job("a").measured.steps_per_second_alone == pytest.approx(3.0)
    assert later.job("a").measured.seconds_alone == pytest.approx(20.0)


def test_beats_are_told_and_now_and_then_saved():
    desk = Desk()
    desk.train("a")
    assert brief(desk.later(5.0).beat("a", steps=1)) == ["tell a running"]
    assert brief(desk.later(5.0).beat("a", steps=2)) == ["save a running", "tell a running"]
    assert brief(desk.later(5.0).beat("a", steps=3)) == ["tell a running"]


def test_beats_are_no_change_that_a_waiter_waits_for():
    desk = Desk()
    desk.train("a")
    revision = desk.job().revision
    desk.later(5.0).beat("a", steps=5)
    desk.look(use(desk.now, a=GIB))
    assert desk.job().revision == revision


def test_memory_is_kept_as_its_peak():
    desk = Desk()
    desk.train("a")
    for gib in (1, 3, 2):
        desk.later(1.0).look(use(desk.now, a=gib * GIB))
    desk.later(1.0).look(use(desk.now))
    desk.beat("a", allocator=2 * GIB)
    desk.beat("a", allocator=1 * GIB)
    measured = desk.job().measured
    assert measured.memory_peak_bytes == 3 * GIB
    assert measured.allocator_peak_bytes == 2 * GIB


def test_utilization_is_the_mean_since_the_first_step_and_alone_apart():
    desk = Desk()
    desk.train("a")
    desk.later(1.0).look(use(desk.now, utilization={"a": 0.01}))
    desk.beat("a", steps=1)
    desk.later(1.0).look(use(desk.now, utilization={"a": 0.6}))
    desk.later(1.0).look(use(desk.now, utilization={"a": 0.8}))
    desk.train("b")
    desk.later(1.0).look(use(desk.now, utilization={"a": 0.4, "b": 0.4}))
    measured = desk.job("a").measured
    assert (measured.utilization, measured.utilization_samples) == (pytest.approx(0.6), 3)
    assert measured.utilization_alone == pytest.approx(0.7)
    assert measured.utilization_alone_samples == 2


def test_alone_on_a_device_that_does_not_tell_processes_apart_its_load_is_the_jobs():
    desk = Desk()
    desk.train("a")
    desk.beat("a", steps=1)
    desk.later(1.0).look(use(desk.now, device_utilization=0.5))
    desk.train("b")
    desk.later(1.0).look(use(desk.now, device_utilization=0.9))
    assert desk.job("a").measured.utilization == 0.5


def test_an_unknown_utilization_is_not_a_zero():
    desk = Desk()
    desk.train("a")
    desk.beat("a", steps=1)
    desk.later(1.0).look(use(desk.now, utilization={"a": 0.6}))
    desk.later(1.0).look(use(desk.now))
    assert desk.job().measured.utilization == 0.6


def test_an_older_look_that_comes_late_is_passed_over():
    desk = Desk()
    desk.train("a")
    desk.later(5.0).look(use(desk.now, unmanaged=GIB))
    desk.look(use(desk.now - 1.0, unmanaged=9 * GIB))
    assert desk.broker.device_states()[0].unmanaged_bytes == GIB


def test_a_look_at_a_device_that_is_not_here_is_passed_over():
    desk = Desk()
    desk.look(use(desk.now, "GPU-9"))
    assert [one.device.uuid for one in desk.broker.device_states()] == ["GPU-0"]


def test_an_end_with_measurements_teaches_and_one_without_does_not():
    desk = Desk()
    desk.train("a")
    desk.look(use(desk.now, a=GIB))
    taught = [one for one in desk.release("a") if isinstance(one, Learn)]
    assert [one.job.state.value for one in taught] == ["done"]
    desk.later(1.0).look()
    desk.train("b")
    assert not [one for one in desk.release("b") if isinstance(one, Learn)]


def test_devices_show_their_residents_as_they_are():
    desk = Desk(interference=FlatInterference(1.2))
    desk.train("a")
    desk.train("b", 5)
    desk.look(use(desk.now, unmanaged=GIB, utilization={"a": 0.5}, a=3 * GIB))
    (state,) = desk.broker.device_states()
    assert (state.reserved_bytes, state.unmanaged_bytes) == (9 * GIB, GIB)
    shown = [
        (one.job_id, one.reserved_bytes, one.measured_bytes, one.measured_utilization)
        for one in state.residents
    ]
    assert shown == [("a", 4 * GIB, 3 * GIB, 0.5), ("b", 5 * GIB, None, None)]
    assert [one.slowdown.p50 for one in state.residents] == [1.2, 1.2]
    desk.release("b")
    assert desk.broker.device_states()[0].residents[0].slowdown.p50 == 1.0


def remaining(desk: Desk, job_id: str = "a") -> Interval | None:
    residents = desk.broker.cluster_view(desk.now).devices[0].residents
    return next(one.remaining_seconds for one in residents if one.job_id == job_id)


def test_the_time_left_is_the_steps_left_at_the_rates_seen():
    desk = Desk()
    desk.train("a", steps=100)
    beats(desk, "a", (10, 10, 2.0), (10, 40, 3.0))
    # 60 steps left: at 3/s now and at best; over all 20 s it made 2/s.
    assert remaining(desk) == Interval(20.0, 20.0, 30.0)


def test_before_a_rate_the_time_left_is_the_predicted_one():
    desk = Desk()
    desk.train("a", steps=100, predictions={"GPU-0": prediction(4, step_seconds=0.5)})
    assert remaining(desk) == Interval(50.0, 50.0, 50.0)


def test_nobody_can_say_how_long_an_endless_job_goes_on():
    desk = Desk()
    desk.train("a")
    beats(desk, "a", (10, 10, 2.0), (10, 30, 2.0))
    assert remaining(desk) is None


def test_use_is_charged_by_the_larger_share_and_halves_in_a_half_life():
    hour = 3600.0
    desk = Desk(settings=BrokerSettings(usage_half_life_seconds=hour))
    # 8 of 16 GiB is more than the slot's utilization of 0.3: half a device.
    desk.train("a", 8)
    desk.later(hour).tick()
    # Holding s for one half-life h from nothing: s h/ln2 (1 - 1/2).
    expected = 0.5 * hour / math.log(2) / 2
    assert desk.broker.cluster_view(desk.now).usage == {"ada": pytest.approx(expected)}
    desk.release("a")
    desk.later(hour).tick()
    assert desk.broker.cluster_view(desk.now).usage == {"ada": pytest.approx(expected / 2)}


def test_an_exclusive_job_is_charged_the_whole_device():
    desk = Desk()
    desk.train("a", 1, exclusive=True)
    assert accounting.share(desk.job(), desk.broker.devices) == 1.0


def test_a_gang_is_charged_each_device():
    desk = Desk(device("GPU-0"), device("GPU-1"))
    desk.train("a", 8, devices=2)
    assert accounting.share(desk.job(), desk.broker.devices) == 1.0


def test_use_is_the_same_after_a_restart():
    desk = Desk()
    desk.train("a", 8)
    desk.train("b", 2, owner="bob")
    desk.later(5000.0).release("a")
    desk.later(3000.0).tick()
    before = desk.broker.cluster_view(desk.now).usage
    after = desk.restart().broker.cluster_view(desk.now).usage
    assert after == {owner: pytest.approx(value) for owner, value in before.items()}
    assert set(after) == {"ada", "bob"}


@given(
    held=st.floats(0.0, 8.0),
    parts=st.lists(st.floats(0.1, 1e4), min_size=1, max_size=8),
    half_life=st.floats(60.0, 1e6),
)
def test_use_does_not_depend_on_how_often_it_is_added_up(held, parts, half_life):
    whole = accounting.accrued({"ada": 100.0}, {"ada": held}, sum(parts), half_life)
    in_parts = {"ada": 100.0}
    for seconds in parts:
        in_parts = accounting.accrued(in_parts, {"ada": held}, seconds, half_life)
    assert in_parts.get("ada", 0.0) == pytest.approx(whole.get("ada", 0.0), rel=1e-6, abs=2e-2)
