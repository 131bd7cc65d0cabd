"""Whose memory and load a reading shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from horus_lab.records import DeviceReading, DeviceUse

Trees = Mapping[str, frozenset[int]]


def attribute(readings: tuple[DeviceReading, ...], trees: Trees) -> tuple[DeviceUse, ...]:
    """Each reading with its bytes and load given to the jobs whose processes use them.

    `trees` maps jobs to the live pids of their process trees. A pid in two jobs' trees (two jobs
    of one kernel, one after the other) counts for the first that is named.
    """
    owners: dict[int, str] = {}
    for job_id, pids in trees.items():
        for pid in pids:
            owners.setdefault(pid, job_id)
    return tuple(_attributed(reading, owners) for reading in readings)


def _attributed(reading: DeviceReading, owners: Mapping[int, str]) -> DeviceUse:
    by_job: dict[str, int] = {}
    load: dict[str, float] = {}
    untold: set[str] = set()
    for process in reading.processes:
        owner = owners.get(process.pid)
        if owner is None:
            continue
        if process.memory_bytes is None:
            untold.add(owner)
        else:
            by_job[owner] = by_job.get(owner, 0) + process.memory_bytes
        if process.utilization is not None:
            load[owner] = load.get(owner, 0.0) + process.utilization
    for owner in untold:
        # A sum with a part missing is not the job's use.
        by_job.pop(owner, None)
    used = reading.memory_used_bytes
    unmanaged = None if used is None else max(0, used - sum(by_job.values()))
    return DeviceUse(
        reading=reading,
        by_job=by_job,
        utilization_by_job={owner: min(1.0, value) for owner, value in load.items()},
        unmanaged_bytes=unmanaged,
    )
