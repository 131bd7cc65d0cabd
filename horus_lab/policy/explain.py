"""Obstacles and reasons as sentences for people. Plain text; names are data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from horus_lab.policy.cluster import ClusterView
from horus_lab.records import Interval, Obstacle, ObstacleKind

_MOST_OBSTACLES = 3


class Names:
    """What devices and jobs are called in a cluster."""

    def __init__(self, view: ClusterView) -> None:
        self.devices = {device.device.uuid: device.device.name for device in view.devices}
        self.jobs: dict[str, str] = {}
        for device in view.devices:
            for resident in device.residents:
                self.jobs[resident.job_id] = f"{resident.name} of {resident.owner}"
        for job in view.queue:
            self.jobs[job.job_id] = f"{job.name} of {job.owner}"
        self.why_unhealthy = {d.device.uuid: d.why_unhealthy for d in view.devices}


def obstacle_sentence(obstacle: Obstacle, names: Names) -> str:
    """Why the job cannot join this device now."""
    device = names.devices.get(obstacle.device_uuid, "a device")
    other = names.jobs.get(obstacle.job_id or "", "another job")
    kind = obstacle.kind
    if kind is ObstacleKind.MEMORY:
        return f"{device} lacks {_gibibytes(obstacle.lacking_bytes or 0)}"
    if kind is ObstacleKind.SLOWDOWN_RESIDENT:
        return f"{device} would slow {other} by {_slower(obstacle)}"
    if kind is ObstacleKind.SLOWDOWN_SELF:
        return f"{device} would slow this job by {_slower(obstacle)}"
    texts: Mapping[ObstacleKind, str] = {
        ObstacleKind.EXCLUSIVE_SELF: f"{device} is not free, and this job wants no neighbours",
        ObstacleKind.EXCLUSIVE_RESIDENT: f"{device} is taken exclusively by {other}",
        ObstacleKind.RESIDENTS_FULL: f"{device} has as many jobs as it takes",
        ObstacleKind.UNKNOWN_MEMORY: f"{device} does not tell what is in use",
        ObstacleKind.UNKNOWN_PREDICTION: (
            f"{device} is shared, and the load of "
            f"{other if obstacle.job_id else 'this job'} is unknown"
        ),
        ObstacleKind.UNHEALTHY: (
            f"{device} cannot be used: "
            f"{names.why_unhealthy.get(obstacle.device_uuid) or 'it is not well'}"
        ),
        ObstacleKind.NOT_ALLOWED: f"{device} is not one of the devices this job may use",
        ObstacleKind.RESERVED_FOR_DUE: f"{device} is kept for {other}, who has waited longest",
    }
    return texts[kind]


def waiting_sentence(
    obstacles: Iterable[Obstacle],
    names: Names,
    *,
    absent: bool,
    gang: int,
    expected: Interval | None,
    before: int = 0,
) -> str:
    """Why a job waits, and for how long it probably will.

    Args:
        before: how many jobs are looked at before it, where it was not looked at itself.
    """
    if absent:
        return "waits: its kernel has not asked for a while; it keeps its place"
    if before:
        return f"waits: {before} jobs before it wait for a place"
    telling = [one for one in obstacles if one.kind is not ObstacleKind.NOT_ALLOWED]
    parts = [obstacle_sentence(one, names) for one in telling[:_MOST_OBSTACLES]]
    if len(telling) > _MOST_OBSTACLES:
        parts.append(f"and {len(telling) - _MOST_OBSTACLES} more devices are taken")
    if gang > 1:
        parts.insert(0, f"needs {gang} devices of one kind at the same time")
    if not parts:
        parts = ["no device may be used"]
    when = f"; expected in {duration_range(expected)}" if expected is not None else ""
    return f"waits: {'; '.join(parts)}{when}"


def duration_range(interval: Interval) -> str:
    """`12–25 s`, `50 s–4 min`."""
    low, high = _duration(interval.p10), _duration(interval.p90)
    if low == high:
        return high
    if low.split()[-1] == high.split()[-1]:
        return f"{low.split()[0]}–{high}"
    return f"{low}–{high}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.0f} MiB"


def _slower(obstacle: Obstacle) -> str:
    if obstacle.slowdown is None or obstacle.bound is None:
        return "an unknown amount"
    return f"{100 * (obstacle.slowdown - 1):.0f} % (bound {100 * (obstacle.bound - 1):.0f} %)"
