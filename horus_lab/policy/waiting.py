"""When the waiting jobs will probably start: the queue played forward, job by job.

Residents leave when their remaining time is over; each waiting job in its order takes the first
device on which it would pass every check. Whatever has no known end is taken to stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.admission import Admitted, admit
from horus_lab.policy.cluster import DeviceView, QueuedView, ResidentView
from horus_lab.policy.memory import reservation_bytes
from horus_lab.records import Interval

MOST_JOBS = 40

_NEVER = math.inf
_NOW = (0.0, 0.0, 0.0)

Moment = tuple[float, float, float]


class _Timeline:
    """One device's residents with the moments (p10, p50, p90) when they leave."""

    def __init__(self, device: DeviceView) -> None:
        self.device = device
        self.leaving: list[tuple[Moment, ResidentView]] = [
            (_moment(resident.remaining_seconds), resident) for resident in device.residents
        ]

    def moments(self) -> list[Moment]:
        """When somebody leaves, soonest first; now at the head."""
        ends = [end for end, _ in self.leaving if math.isfinite(end[1])]
        return [_NOW, *sorted(ends, key=lambda end: end[1])]

    def at(self, moment: Moment) -> DeviceView:
        """The device with everybody gone who leaves until then."""
        staying = tuple(r for end, r in self.leaving if end[1] > moment[1])
        return replace(self.device, residents=staying, lingering_bytes=0)

    def join(self, job: QueuedView, start: Moment) -> None:
        """The job is here from then on."""
        uuid = self.device.device.uuid
        prediction = job.predictions[uuid]
        step = prediction.step_seconds
        end: Moment = (_NEVER, _NEVER, _NEVER)
        if job.steps is not None and step is not None:
            end = (
                start[0] + job.steps * step.p10,
                start[1] + job.steps * step.p50,
                start[2] + job.steps * step.p90,
            )
        self.leaving.append(
            (
                end,
                ResidentView(
                    job_id=job.job_id,
                    owner=job.owner,
                    name=job.name,
                    reserved_bytes=reservation_bytes(prediction) or 0,
                    prediction=prediction,
                    max_slowdown=job.constraints.max_slowdown,
                    exclusive=job.constraints.exclusive,
                ),
            )
        )


def expected_waits(
    devices: Sequence[DeviceView],
    queue: Sequence[QueuedView],
    interference: InterferenceModel,
) -> dict[str, Interval]:
    """Seconds until each waiting job starts; a job that nobody can tell is left out.

    Only the first `MOST_JOBS` of the queue are played, and gangs are not.
    """
    timelines = [_Timeline(device) for device in devices]
    found: dict[str, Interval] = {}
    for job in queue[:MOST_JOBS]:
        if job.absent or job.devices > 1:
            continue
        best: tuple[Moment, _Timeline] | None = None
        for timeline in timelines:
            start = _first(job, timeline, interference)
            if start is not None and (best is None or start[1] < best[0][1]):
                best = (start, timeline)
        if best is None:
            continue
        start, timeline = best
        timeline.join(job, start)
        low, middle, high = start
        if math.isfinite(high):
            found[job.job_id] = Interval(min(low, middle), middle, max(middle, high))
    return found


def _first(job: QueuedView, timeline: _Timeline, interference: InterferenceModel) -> Moment | None:
    for moment in timeline.moments():
        if isinstance(admit(job, timeline.at(moment), interference), Admitted):
            return moment
    return None


def _moment(remaining: Interval | None) -> Moment:
    if remaining is None:
        return (_NEVER, _NEVER, _NEVER)
    return (remaining.p10, remaining.p50, remaining.p90)
