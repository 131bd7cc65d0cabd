"""In which order the queue is looked at."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from horus_lab.policy.cluster import QueuedView

# What one waiting job adds to its owner's use while the order is made, so that people take turns.
TURN_SECONDS = 600.0


def is_due(job: QueuedView, now: float, due_seconds: float) -> bool:
    """Whether the job has waited so long that no later one may delay it."""
    return now - job.submitted_at >= due_seconds


def fair_order(
    queue: Sequence[QueuedView], usage: Mapping[str, float], now: float, due_seconds: float
) -> list[QueuedView]:
    """Due jobs by age; then turns between owners, who has used least first.

    Among one owner's jobs the higher priority goes first, then the older. The order is the same
    for the same input.
    """
    due: list[QueuedView] = []
    young: list[QueuedView] = []
    for job in queue:
        (due if is_due(job, now, due_seconds) else young).append(job)
    due.sort(key=_age)
    by_owner: dict[str, list[QueuedView]] = {}
    for job in young:
        by_owner.setdefault(job.owner, []).append(job)
    turns = []
    oldest: dict[str, list[float]] = {}
    for owner, jobs in by_owner.items():
        jobs.sort(key=lambda job: (-job.constraints.priority, *_age(job)))
        oldest[owner] = _oldest_from(jobs)
        turns.append((usage.get(owner, 0.0), oldest[owner][0], owner, 0))
    heapq.heapify(turns)
    ordered = due
    while turns:
        used, _, owner, place = turns[0]
        ordered.append(by_owner[owner][place])
        place += 1
        if place < len(by_owner[owner]):
            turn = (used + TURN_SECONDS, oldest[owner][place], owner, place)
            heapq.heapreplace(turns, turn)
        else:
            heapq.heappop(turns)
    return ordered


def submission_order(queue: Sequence[QueuedView]) -> list[QueuedView]:
    """The oldest first."""
    return sorted(queue, key=_age)


def lightest_order(queue: Sequence[QueuedView]) -> list[QueuedView]:
    """The lowest mean predicted utilization over the devices first; unknown ones last."""
    return sorted(queue, key=lambda job: (_mean_utilization(job), *_age(job)))


def _age(job: QueuedView) -> tuple[float, str]:
    return (job.submitted_at, job.job_id)


def _oldest_from(jobs: Sequence[QueuedView]) -> list[float]:
    """For each place, when the oldest job from there on was submitted.

    Between owners who have used the same, whoever has waited longest has the turn.
    """
    found = [job.submitted_at for job in jobs]
    for place in range(len(found) - 2, -1, -1):
        found[place] = min(found[place], found[place + 1])
    return found


def _mean_utilization(job: QueuedView) -> float:
    known = [p.utilization.p50 for p in job.predictions.values() if p.utilization is not None]
    return sum(known) / len(known) if known else 2.0
