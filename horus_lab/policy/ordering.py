"""In which order the queue is looked at: the due first, then a fair share between people."""

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
    due = [job for job in queue if is_due(job, now, due_seconds)]
    due.sort(key=lambda job: (job.submitted_at, job.job_id))
    by_owner: dict[str, list[QueuedView]] = {}
    for job in queue:
        if not is_due(job, now, due_seconds):
            by_owner.setdefault(job.owner, []).append(job)
    for jobs in by_owner.values():
        jobs.sort(key=lambda job: (-job.constraints.priority, job.submitted_at, job.job_id))
    turns = [(usage.get(owner, 0.0), _oldest(jobs), owner, 0) for owner, jobs in by_owner.items()]
    heapq.heapify(turns)
    ordered = due
    while turns:
        used, _, owner, place = heapq.heappop(turns)
        jobs = by_owner[owner]
        ordered.append(jobs[place])
        rest = jobs[place + 1 :]
        if rest:
            heapq.heappush(turns, (used + TURN_SECONDS, _oldest(rest), owner, place + 1))
    return ordered


def _oldest(jobs: Sequence[QueuedView]) -> float:
    """Between owners who have used the same, whoever has waited longest has the turn."""
    return min(job.submitted_at for job in jobs)
