"""Whose memory and load a reading shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from horus_lab.records import DeviceReading, DeviceUse

Number = TypeVar("Number", int, float)
Trees = Mapping[str, frozenset[int]]


def attribute(readings: tuple[DeviceReading, ...], trees: Trees) -> tuple[DeviceUse, ...]:
    """Each reading with its bytes and load given to the jobs whose processes use them.

    A pid in two jobs' trees (two jobs of one kernel) counts for the first that is named. What is
    left of the used bytes is unmanaged. Where a part of a job's use is unknown, so is the whole:
    its bytes then count as unmanaged too, which errs on the side of leaving memory free.

    Args:
        trees: the live pids of each job's process tree. Pid 0 in a reading stands for a process
            that has no pid here, and is nobody's.
    """
    owners: dict[int, str] = {}
    for job_id, pids in trees.items():
        for pid in pids:
            owners.setdefault(pid, job_id)
    return tuple(_attributed(reading, owners) for reading in readings)


def _attributed(reading: DeviceReading, owners: Mapping[int, str]) -> DeviceUse:
    held: dict[str, int | None] = {}
    load: dict[str, float | None] = {}
    for process in reading.processes:
        owner = owners.get(process.pid) if process.pid else None
        if owner is not None:
            held[owner] = _sum(held.get(owner, 0), process.memory_bytes)
            load[owner] = _sum(load.get(owner, 0.0), process.utilization)
    by_job = {owner: count for owner, count in held.items() if count is not None}
    used = reading.memory_used_bytes
    return DeviceUse(
        reading=reading,
        by_job=by_job,
        utilization_by_job={
            owner: min(1.0, value) for owner, value in load.items() if value is not None
        },
        unmanaged_bytes=None if used is None else max(0, used - sum(by_job.values())),
    )


def _sum(one: Number | None, other: Number | None) -> Number | None:
    """The sum, unknown where a part is."""
    return None if one is None or other is None else one + other
