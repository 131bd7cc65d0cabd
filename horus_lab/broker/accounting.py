"""What heartbeats and readings say of a job: its rates, its slowdown, what is left to do."""

from __future__ import annotations

from msgspec.structs import replace

from horus_lab.broker.state import Pace
from horus_lab.records import Basis, Heartbeat, Interval, Job, Measurement, Prediction

_LONGEST_STRETCH_SECONDS = 60.0
_REMAINING_SPREAD = 0.25


def first_device(job: Job) -> str | None:
    """The device that a job's prediction is read for: its first slot's."""
    return job.lease.slots[0].device_uuid if job.lease and job.lease.slots else None


def prediction_of(job: Job) -> Prediction | None:
    """The prediction for the device the job is on; for a waiting job its first one."""
    uuid = first_device(job)
    if uuid is not None and uuid in job.predictions:
        return job.predictions[uuid]
    return next(iter(job.predictions.values()), None)


def beat(
    measured: Measurement,
    pace: Pace,
    heartbeat: Heartbeat,
    *,
    shared: bool,
    solo_rate: float | None,
    solo_seconds: float,
    now: float,
) -> tuple[Measurement, Pace]:
    """Take in one heartbeat.

    The stretch since the last beat counts as alone or shared only if the neighbours did not
    change within it. Rates are weighted by time: steps over seconds of their kind.
    """
    if heartbeat.sequence <= pace.sequence:
        return measured, pace
    rate = heartbeat.steps_per_second
    seconds = min(max(0.0, now - pace.beat_at), _LONGEST_STRETCH_SECONDS)
    alone_steps, shared_steps = pace.alone_steps, pace.shared_steps
    seconds_alone, seconds_shared = measured.seconds_alone, measured.seconds_shared
    if rate is not None and not pace.mixed:
        if shared:
            shared_steps += rate * seconds
            seconds_shared += seconds
        else:
            alone_steps += rate * seconds
            seconds_alone += seconds
    pace = Pace(
        beat_at=now,
        sequence=heartbeat.sequence,
        mixed=False,
        rate=rate if rate is not None else pace.rate,
        alone_steps=alone_steps,
        shared_steps=shared_steps,
    )
    peaks = (measured.allocator_peak_bytes, heartbeat.allocator_peak_bytes)
    measured = replace(
        measured,
        steps=max(measured.steps, heartbeat.steps),
        seconds_alone=seconds_alone,
        seconds_shared=seconds_shared,
        steps_per_second_alone=alone_steps / seconds_alone if seconds_alone > 0 else None,
        steps_per_second_shared=shared_steps / seconds_shared if seconds_shared > 0 else None,
        allocator_peak_bytes=max((p for p in peaks if p is not None), default=None),
    )
    return with_slowdown(measured, solo_rate=solo_rate, solo_seconds=solo_seconds), pace


def with_slowdown(
    measured: Measurement, *, solo_rate: float | None, solo_seconds: float
) -> Measurement:
    """The slowdown from the job's own time alone, else from earlier runs alone, else unknown."""
    shared = measured.steps_per_second_shared
    if shared is None or shared <= 0 or measured.seconds_shared < solo_seconds:
        return measured
    alone = measured.steps_per_second_alone
    if alone is not None and measured.seconds_alone >= solo_seconds:
        return replace(measured, slowdown=max(1.0, alone / shared), slowdown_basis="own")
    if solo_rate is not None:
        return replace(measured, slowdown=max(1.0, solo_rate / shared), slowdown_basis="history")
    return measured


def seen(
    measured: Measurement, *, memory_bytes: int | None, utilization: float | None
) -> Measurement:
    """Take in one reading: the peak of memory, the mean of utilization while it trains."""
    peaks = (measured.memory_peak_bytes, memory_bytes)
    peak = max((p for p in peaks if p is not None), default=None)
    if utilization is None or measured.steps == 0:
        return replace(measured, memory_peak_bytes=peak)
    count = measured.utilization_samples
    mean = ((measured.utilization or 0.0) * count + utilization) / (count + 1)
    return replace(
        measured, memory_peak_bytes=peak, utilization=mean, utilization_samples=count + 1
    )


def solo_rate(job: Job) -> float | None:
    """Steps/s alone from earlier runs of the same graph, where the prediction rests on them."""
    prediction = prediction_of(job)
    if prediction is None or prediction.basis is not Basis.HISTORY:
        return None
    step = prediction.step_seconds
    return 1.0 / step.p50 if step is not None and step.p50 > 0 else None


def remaining_seconds(job: Job, pace: Pace | None) -> Interval | None:
    """How long a holder will go on: steps left at its rate, else at the predicted step time."""
    if job.request.steps is None:
        return None
    left = max(0, job.request.steps - job.measured.steps)
    if pace is not None and pace.rate:
        middle = left / pace.rate
        return Interval(middle * (1 - _REMAINING_SPREAD), middle, middle * (1 + _REMAINING_SPREAD))
    prediction = prediction_of(job)
    step = prediction.step_seconds if prediction is not None else None
    if step is None:
        return None
    return Interval(left * step.p10, left * step.p50, left * step.p90)
