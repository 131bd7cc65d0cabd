"""What ended runs teach, and how well predictions did."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horus_lab.records import (
    Basis,
    Confirm,
    Heartbeat,
    Interval,
    Job,
    JobState,
    Measurement,
    Prediction,
    ProcessReading,
    Release,
)
from horus_lab.service.learning import observation_of, track_record
from horus_lab.testing import some_features
from tests.service.world import GIB, World, device, eventually, identity, request
from tests.store.records import job as stored_job


def ended(memory: int | None, p10: float, p50: float, p90: float, **changes: Any) -> Job:
    """A job that ran, with a prediction of its memory and what was measured."""
    prediction = Prediction(
        device_model="Test GPU",
        basis=changes.pop("basis", Basis.MODEL),
        memory_bytes=Interval(p10, p50, p90),
        utilization=Interval(0.2, 0.4, 0.6),
    )
    running = stored_job("j", JobState.RUNNING)
    return replace(
        running,
        state=JobState.DONE,
        ended_at=2.0,
        predictions={"GPU-a": prediction},
        measured=Measurement(memory_peak_bytes=memory, **changes),
    )


def never(_uuid: str) -> bool:
    return False


def test_coverage_and_error_are_what_one_computes_by_hand() -> None:
    jobs = [
        ended(100, 90, 110, 120),  # inside, error 10 %
        ended(100, 110, 150, 200),  # below, error 50 %
        ended(100, 50, 80, 90, utilization_alone=0.5),  # above, error 20 %; utilization inside
        ended(None, 50, 80, 90),  # nothing measured
    ]
    record = track_record(jobs, never)
    assert record.runs == 3
    assert record.memory_coverage == pytest.approx(1 / 3)
    assert record.memory_median_error == pytest.approx(0.2)
    assert record.utilization_coverage == 1.0
    assert record.utilization_median_error == pytest.approx(abs(0.4 - 0.5) / 0.5)


def test_what_was_declared_or_simulated_or_never_ran_counts_for_nothing() -> None:
    declared = ended(100, 90, 110, 120, basis=Basis.DECLARED)
    simulated = ended(100, 90, 110, 120)
    waiting = replace(ended(100, 90, 110, 120), lease=None)
    assert track_record([declared, waiting], never).runs == 0
    record = track_record([simulated], lambda uuid: uuid == "GPU-a")
    assert (record.runs, record.memory_coverage) == (0, None)


def test_an_observation_is_of_the_time_alone() -> None:
    job = ended(
        5 * GIB,
        1,
        2,
        3,
        steps=100,
        steps_per_second_alone=4.0,
        steps_per_second_shared=2.0,
        utilization=0.9,
        utilization_alone=0.5,
    )
    job = replace(job, request=replace(job.request, features=some_features()))
    seen = observation_of(job, device(), now=7.0)
    assert seen is not None
    assert (seen.memory_bytes, seen.utilization, seen.step_seconds) == (5 * GIB, 0.5, 0.25)
    assert (seen.graph_hash, seen.device_model) == (some_features().graph_hash, "Test GPU")


def test_nothing_is_learned_from_a_simulated_device_or_without_a_graph() -> None:
    job = ended(5 * GIB, 1, 2, 3)
    with_graph = replace(job, request=replace(job.request, features=some_features()))
    assert observation_of(job, device(), 1.0) is None
    assert observation_of(with_graph, device(simulated=True), 1.0) is None
    assert observation_of(with_graph, None, 1.0) is None
    assert observation_of(with_graph, device(), 1.0) is not None


def test_nothing_is_learned_from_a_run_that_broke_off_within_its_first_steps() -> None:
    job = ended(5 * GIB, 1, 2, 3, steps=9)
    job = replace(job, request=replace(job.request, features=some_features()))
    assert observation_of(replace(job, state=JobState.FAILED), device(), 1.0) is None
    assert observation_of(replace(job, state=JobState.DONE), device(), 1.0) is not None
    longer = replace(job, state=JobState.LOST, measured=replace(job.measured, steps=10))
    assert observation_of(longer, device(), 1.0) is not None


def test_a_run_teaches_those_that_wait_with_the_same_graph_and_later_brokers(
    world: World,
) -> None:
    service = world.start()
    with_graph = {"declared": None, "features": some_features()}
    first, _ = service.submit("ann", request("first", **with_graph)).result(10)
    assert first.lease is not None
    fence = first.lease.fence
    service.confirm(first.id, Confirm(fence=fence)).result(10)
    # 2 GiB were predicted; 6 GiB are used, so the 9 GiB job and then the next one wait.
    pid = identity().pid
    world.probe.processes["GPU-a"] = (ProcessReading(pid=pid, memory_bytes=6 * GIB),)
    world.probe.used["GPU-a"] = 6 * GIB
    beat = Heartbeat(fence=fence, sequence=1, steps=5)
    service.heartbeat(first.id, beat).result(10)
    eventually(lambda: service.job(first.id).result(10).measured.memory_peak_bytes == 6 * GIB)
    service.submit("ann", request("large", gib=9)).result(10)
    other = {"declared": None, "features": some_features("fedcba9876543210")}
    same, _ = service.submit("ann", request("same", **with_graph)).result(10)
    apart, _ = service.submit("ann", request("apart", **other)).result(10)
    assert same.predictions["GPU-a"].basis is Basis.MODEL
    service.release(first.id, Release(fence=fence, steps=9)).result(10)

    def known() -> bool:
        made = service.job(same.id).result(10).predictions["GPU-a"]
        return made.basis is Basis.HISTORY and made.memory_bytes is not None

    eventually(known)
    assert service.job(apart.id).result(10).predictions["GPU-a"].basis is Basis.MODEL
    assert service.history(10).result(10).track_record.runs == 1
    world.predictor.learned.clear()
    world.restart()
    assert [seen.memory_bytes for seen in world.predictor.learned] == [6 * GIB]
