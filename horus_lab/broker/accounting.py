"""What was measured of jobs and owners: rates, slowdown, utilization, time left, fair share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from horus_lab.broker.state import Live
from horus_lab.records import (
    Basis,
    Device,
    Heartbeat,
    Interval,
    Job,
    Measurement,
    Prediction,
    Release,
)

_LN2 = math.log(2.0)
_LEAST_USAGE = 1e-3


def prediction_of(job: Job) -> Prediction | None:
    """The prediction for the first device that the job is on; `None` where there is none."""
    if job.lease is None or not job.lease.slots:
        return None
    return job.predictions.get(job.lease.slots[0].device_uuid)


def solo_rate(job: Job) -> float | None:
    """Steps/s alone from earlier runs of the same graph, where the prediction rests on them."""
    prediction = prediction_of(job)
    if prediction is None or prediction.basis is not Basis.HISTORY:
        return None
    step = prediction.step_seconds
    return 1.0 / step.p50 if step is not None and step.p50 > 0 else None


def beaten(
    measured: Measurement,
    live: Live,
    beat: Heartbeat,
    now: float,
    *,
    solo_steps_per_second: float | None,
    solo_seconds: float,
) -> tuple[Measurement, Live]:
    """A job's measurements after a heartbeat.

    The beat's rate (without one, the steps since the last beat over the time since) is credited
    to the time since the last beat: to the time alone or to the time with neighbours, and to
    neither where neighbours came or went in between. Means are weighted by time. The time before
    the first beat that reports steps is start-up, and credited to neither.
    """
    gained = max(0, beat.steps - measured.steps)
    measured = replace(
        measured,
        steps=measured.steps + gained,
        allocator_peak_bytes=largest(measured.allocator_peak_bytes, beat.allocator_peak_bytes),
    )
    if measured.steps == 0:
        return measured, live
    seconds = 0.0 if live.beat_at is None else max(0.0, now - live.beat_at)
    rate = beat.steps_per_second
    if rate is None and seconds > 0.0:
        rate = gained / seconds
    after = replace(live, beat_at=now, mixed=False, rate=live.rate if rate is None else rate)
    if rate is None or seconds == 0.0 or live.mixed:
        return measured, after
    if live.shared:
        measured = replace(
            measured,
            steps_per_second_shared=_mean(
                measured.steps_per_second_shared, measured.seconds_shared, rate, seconds
            ),
            seconds_shared=measured.seconds_shared + seconds,
        )
    else:
        measured = replace(
            measured,
            steps_per_second_alone=_mean(
                measured.steps_per_second_alone, measured.seconds_alone, rate, seconds
            ),
            seconds_alone=measured.seconds_alone + seconds,
        )
    return with_slowdown(measured, solo_steps_per_second, solo_seconds), after


def with_slowdown(
    measured: Measurement, solo_steps_per_second: float | None, solo_seconds: float
) -> Measurement:
    """The slowdown from the job's own time alone, else from earlier runs alone, else unknown."""
    shared = measured.steps_per_second_shared
    if not shared or measured.seconds_shared < solo_seconds:
        return measured
    alone = measured.steps_per_second_alone
    if alone is not None and measured.seconds_alone >= solo_seconds:
        return replace(measured, slowdown=max(1.0, alone / shared), slowdown_basis="own")
    if solo_steps_per_second is not None:
        slowdown = max(1.0, solo_steps_per_second / shared)
        return replace(measured, slowdown=slowdown, slowdown_basis="history")
    return measured


def released(measured: Measurement, release: Release) -> Measurement:
    """A job's measurements after its own last word."""
    return replace(
        measured,
        steps=max(measured.steps, release.steps),
        allocator_peak_bytes=largest(measured.allocator_peak_bytes, release.allocator_peak_bytes),
    )


def seen(
    measured: Measurement, *, memory_bytes: int | None, utilization: float | None, shared: bool
) -> Measurement:
    """A job's measurements after a look: memory's peak, utilization's mean while it trains.

    Before the first step the process only prepares, so its utilization says nothing yet.
    """
    measured = replace(
        measured, memory_peak_bytes=largest(measured.memory_peak_bytes, memory_bytes)
    )
    if utilization is None or measured.steps == 0:
        return measured
    measured = replace(
        measured,
        utilization=_mean(measured.utilization, measured.utilization_samples, utilization, 1),
        utilization_samples=measured.utilization_samples + 1,
    )
    if shared:
        return measured
    return replace(
        measured,
        utilization_alone=_mean(
            measured.utilization_alone, measured.utilization_alone_samples, utilization, 1
        ),
        utilization_alone_samples=measured.utilization_alone_samples + 1,
    )


def remaining_seconds(job: Job, live: Live | None, now: float) -> Interval | None:
    """How long a holder will probably go on; `None` where nobody can say.

    Steps left at its last rate, between the fastest and the slowest mean seen of it (over its
    whole time, pauses included, too); before its first rate, steps left times the predicted step
    time.
    """
    if job.request.steps is None:
        return None
    left = float(max(0, job.request.steps - job.measured.steps))
    if live is not None and live.rate:
        rates = [live.rate]
        rates += [
            rate
            for rate in (
                job.measured.steps_per_second_alone,
                job.measured.steps_per_second_shared,
            )
            if rate
        ]
        if job.started_at is not None and now > job.started_at and job.measured.steps > 0:
            rates.append(job.measured.steps / (now - job.started_at))
        return Interval(left / max(rates), left / live.rate, left / min(rates))
    prediction = prediction_of(job)
    step = prediction.step_seconds if prediction is not None else None
    if step is None:
        return None
    return Interval(left * step.p10, left * step.p50, left * step.p90)


def share(job: Job, devices: Mapping[str, Device]) -> float:
    """How many devices' worth a job holds: on each, the larger of its shares of memory and load.

    An exclusive job, and one whose load is unknown so that nobody may join it, holds all of it.
    """
    total = 0.0
    for slot in job.lease.slots if job.lease else ():
        device = devices.get(slot.device_uuid)
        alone = job.request.constraints.exclusive or slot.utilization is None
        if alone or device is None or device.capacity_bytes == 0:
            total += 1.0
        else:
            load = slot.utilization or 0.0
            total += min(1.0, max(slot.reserved_bytes / device.capacity_bytes, load))
    return total


def accrued(
    usage: Mapping[str, float],
    shares: Mapping[str, float],
    seconds: float,
    half_life_seconds: float,
) -> dict[str, float]:
    """Each owner's decayed device-seconds after `seconds` more of holding these shares.

    The exact integral: u' = s - u ln2/h, so u(t) = u 2^(-t/h) + s h/ln2 (1 - 2^(-t/h)).
    """
    keep = 0.5 ** (seconds / half_life_seconds)
    gain = half_life_seconds / _LN2 * (1.0 - keep)
    later = {owner: value * keep for owner, value in usage.items()}
    for owner, held in shares.items():
        later[owner] = later.get(owner, 0.0) + held * gain
    return {owner: value for owner, value in later.items() if value > _LEAST_USAGE}


def past_usage(
    jobs: tuple[Job, ...], devices: Mapping[str, Device], now: float, half_life_seconds: float
) -> dict[str, float]:
    """Each owner's decayed device-seconds as the kept jobs tell it, after a restart."""
    usage: dict[str, float] = {}
    for job in jobs:
        if job.lease is None:
            continue
        start = min(job.lease.granted_at, now)
        stop = min(job.ended_at if job.ended_at is not None else now, now)
        held = accrued(
            {}, {job.owner: share(job, devices)}, max(0.0, stop - start), half_life_seconds
        )
        since = accrued(held, {}, now - stop, half_life_seconds)
        for owner, value in since.items():
            usage[owner] = usage.get(owner, 0.0) + value
    return usage


def largest(one: int | None, other: int | None) -> int | None:
    """The larger of two amounts, of which either may be unknown."""
    return max((value for value in (one, other) if value is not None), default=None)


def _mean(mean: float | None, weight: float, value: float, value_weight: float) -> float:
    if mean is None:
        return value
    return mean + (value - mean) * value_weight / (weight + value_weight)
