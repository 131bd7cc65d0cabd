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
# On large clusters these end the estimates sooner.
MOST_LOOKS = 1000

_NEVER = math.inf
_NOW = (0.0, 0.0, 0.0)

Moment = tuple[float, float, float]


class Looks:
    """Questions of a job to a device at a moment, and how many are left."""

    def __init__(self, interference: InterferenceModel, most: int = MOST_LOOKS) -> None:
        self._interference = interference
        self.left = most

    def admits(self, job: QueuedView, device: DeviceView) -> bool:
        """Whether the device takes the job as it is."""
        self.left -= 1
        return isinstance(admit(job, device, self._interference), Admitted)


class Timeline:
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

    Only the first `MOST_JOBS` of the queue are played, and `MOST_LOOKS` looks taken.
    """
    timelines = [Timeline(device) for device in devices]
    looks = Looks(interference)
    found: dict[str, Interval] = {}
    for job in queue[:MOST_JOBS]:
        if job.absent:
            continue
        start, chosen = _start(job, timelines, looks)
        if looks.left <= 0:
            break
        for timeline in chosen:
            timeline.join(job, start)
        low, middle, high = start
        if chosen and math.isfinite(high):
            found[job.job_id] = Interval(min(low, middle), middle, max(middle, high))
    return found


def _start(
    job: QueuedView, timelines: Sequence[Timeline], looks: Looks
) -> tuple[Moment, list[Timeline]]:
    """When the job starts, and on which devices: a gang when the last of its devices is free."""
    if job.devices == 1:
        best: tuple[Moment, list[Timeline]] = ((_NEVER, _NEVER, _NEVER), [])
        for timeline in timelines:
            start = first_moment(job, timeline, looks, before=best[0][1])
            if start is not None:
                best = (start, [timeline])
        return best
    by_model: dict[str, list[tuple[Moment, int]]] = {}
    for index, timeline in enumerate(timelines):
        start = first_moment(job, timeline, looks)
        if start is not None:
            by_model.setdefault(timeline.device.device.spec.model, []).append((start, index))
    enough = [
        sorted(starts, key=lambda one: (one[0][1], one[1]))[: job.devices]
        for starts in by_model.values()
        if len(starts) >= job.devices
    ]
    if not enough:
        return ((_NEVER, _NEVER, _NEVER), [])
    earliest = min(enough, key=lambda starts: (starts[-1][0][1], starts[-1][1]))
    return (earliest[-1][0], [timelines[index] for _, index in earliest])


def first_moment(
    job: QueuedView, timeline: Timeline, looks: Looks, *, before: float = _NEVER
) -> Moment | None:
    """The first moment at which the device takes the job, if it is sooner than `before`.

    Who is taken beside some residents is taken beside fewer, so the moments are halved.
    """
    moments = [moment for moment in timeline.moments() if moment[1] < before]
    if not moments or not looks.admits(job, timeline.at(moments[-1])):
        return None
    refused, taken = -1, len(moments) - 1
    while taken - refused > 1 and looks.left > 0:
        middle = (refused + taken) // 2
        if looks.admits(job, timeline.at(moments[middle])):
            taken = middle
        else:
            refused = middle
    return moments[taken]


def _moment(remaining: Interval | None) -> Moment:
    if remaining is None:
        return (_NEVER, _NEVER, _NEVER)
    return (remaining.p10, remaining.p50, remaining.p90)
