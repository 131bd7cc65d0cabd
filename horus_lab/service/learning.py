"""What ended runs teach, and how well predictions did against them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from horus_lab.records import (
    Basis,
    Device,
    Interval,
    Job,
    JobState,
    Observation,
    Prediction,
    TrackRecord,
)

_PREDICTED = (Basis.MODEL, Basis.HISTORY)
_SETTLED_STEPS = 10


def observation_of(job: Job, device: Device | None, now: float) -> Observation | None:
    """What an ended job teaches about its graph on its device's model, or `None`.

    Nothing is learned from a simulated device: it plays predictions back, and they would return
    as if they had been measured. Nor from a gang, whose figures are not one device's, nor from a
    run that broke off within its first steps: what it had used by then is less than it would need.
    """
    features, lease, seen = job.request.features, job.lease, job.measured
    if features is None or lease is None or len(lease.slots) != 1:
        return None
    if device is None or device.simulated:
        return None
    if job.state is not JobState.DONE and seen.steps < _SETTLED_STEPS:
        return None
    rate = seen.steps_per_second_alone
    observation = Observation(
        graph_hash=features.graph_hash,
        device_model=device.spec.model,
        observed_at=now,
        memory_bytes=seen.memory_peak_bytes,
        utilization=seen.utilization_alone,
        step_seconds=1.0 / rate if rate else None,
        steps=seen.steps,
    )
    known = (observation.memory_bytes, observation.utilization, observation.step_seconds)
    return observation if any(value is not None for value in known) else None


def track_record(jobs: Iterable[Job], simulated: Callable[[str], bool]) -> TrackRecord:
    """Predictions against measurements over ended jobs.

    Counted are jobs on one real device whose prediction was made (not declared), and of which
    something was measured. An error is |p50 - measured| / measured; a coverage is the share of
    the measured values that lie within p10 and p90.

    Args:
        simulated: whether a device UUID is a simulated device's.
    """
    memory: list[tuple[Interval, float]] = []
    utilization: list[tuple[Interval, float]] = []
    runs = 0
    for job in jobs:
        prediction = _tested(job, simulated)
        if prediction is None:
            continue
        seen = job.measured
        pairs = (
            (memory, prediction.memory_bytes, seen.memory_peak_bytes),
            (utilization, prediction.utilization, seen.utilization_alone),
        )
        compared = False
        for found, predicted, measured in pairs:
            if predicted is not None and measured is not None:
                found.append((predicted, float(measured)))
                compared = True
        runs += compared
    return TrackRecord(
        runs=runs,
        memory_coverage=_coverage(memory),
        memory_median_error=_median_error(memory),
        utilization_coverage=_coverage(utilization),
        utilization_median_error=_median_error(utilization),
    )


def _tested(job: Job, simulated: Callable[[str], bool]) -> Prediction | None:
    if not job.state.ended or job.lease is None or len(job.lease.slots) != 1:
        return None
    uuid = job.lease.slots[0].device_uuid
    prediction = job.predictions.get(uuid)
    if prediction is None or prediction.basis not in _PREDICTED or simulated(uuid):
        return None
    return prediction


def _coverage(pairs: list[tuple[Interval, float]]) -> float | None:
    if not pairs:
        return None
    return sum(one.p10 <= value <= one.p90 for one, value in pairs) / len(pairs)


def _median_error(pairs: list[tuple[Interval, float]]) -> float | None:
    errors = [abs(one.p50 - value) / value for one, value in pairs if value > 0]
    return statistics.median(errors) if errors else None
