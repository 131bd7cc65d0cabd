"""Answers that change nothing: what a request would get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from horus_lab.devices.probe import ProcessTable
from horus_lab.devices.process_use import ProcessUse
from horus_lab.policy.cluster import QueuedView
from horus_lab.records import (
    Device,
    DeviceKind,
    DeviceUse,
    Job,
    Prediction,
    PredictRequest,
    ProcessIdentity,
)
from horus_lab.service.predictions import held_bytes

_ASKING = "(asked)"


def asked(
    owner: str,
    request: PredictRequest,
    predictions: Mapping[str, Prediction],
    held: Mapping[str, int],
    now: float,
) -> QueuedView:
    """The request as if it stood at the end of the queue."""
    return QueuedView(
        job_id=_ASKING,
        owner=owner,
        name=_ASKING,
        submitted_at=now,
        predictions=predictions,
        constraints=request.constraints,
        devices=request.devices,
        held_bytes=held,
    )


def held(
    table: ProcessTable,
    uses: Iterable[DeviceUse],
    devices: Mapping[str, Device],
    process: ProcessIdentity | None,
) -> dict[str, int]:
    """What a process and its children hold on each device; absent where nobody can say.

    Of a GPU the last readings tell. The CPU probe reads only the processes of known jobs, so a
    newcomer's are looked at here, counted in the same way.
    """
    if process is None:
        return {}
    pids = table.tree(process)
    found = held_bytes((use.reading for use in uses if use.reading.uuid in devices), pids)
    for device in devices.values():
        if device.kind is DeviceKind.CPU and device.uuid not in found:
            own = own_bytes(pids)
            if own is not None:
                found[device.uuid] = own
    return found


def own_bytes(pids: frozenset[int]) -> int | None:
    """Host memory that these processes have for themselves; `None` where nobody can say."""
    looked_at = ProcessUse(cores=1.0).read({"": pids}, now=0.0)
    counts = [one.memory_bytes for one in looked_at if one.memory_bytes is not None]
    return sum(counts) if counts and len(counts) == len(looked_at) else None


def holds_already(jobs: Iterable[Job], process: ProcessIdentity | None) -> bool:
    """Whether the process holds a slot: its bytes are then that job's, and nobody's free use."""
    return any(job.state.holds and job.request.process == process for job in jobs)


def is_simulated(device_uuid: str) -> bool:
    """Whether the UUID is one that simulated devices have; they may no longer be here to ask."""
    return device_uuid.upper().startswith("SIM-")
