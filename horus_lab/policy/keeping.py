"""Devices that are kept for a job that is due, so that no later one delays it."""

from __future__ import annotations

import math
from typing import NamedTuple

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import DeviceView, QueuedView
from horus_lab.policy.placing import Floor, could_when_left
from horus_lab.policy.waiting import Looks, Timeline, first_moment

# A due job's first moment is worked out exactly while these last; then devices are taken by when
# they will be empty.
MOST_LOOKS = 2000


class Keeper:
    """Keeps devices for the due jobs of one plan.

    Args:
        due_seconds: how long a job waits until it is due.
    """

    def __init__(
        self, floor: Floor, interference: InterferenceModel, *, due_seconds: float
    ) -> None:
        self._floor = floor
        self._interference = interference
        self._due_seconds = due_seconds
        self._looks = Looks(interference, MOST_LOOKS)

    def keep_for(self, job: QueuedView, waited_seconds: float) -> None:
        """Keep the devices on which a due job would start first: nobody else is put there.

        A gang's are of one model. Expected ends may change from look to look, and another device
        be the first one then. So that this cannot go on for ever, one more device than the job
        needs is kept each time its wait has doubled since it was due. Devices that an older due
        job keeps stay that job's. A device that would not take the job even with its residents
        gone (it is not well, or used by others) is not kept.
        """
        by_model: dict[str, list[_Able]] = {}
        for device in self._floor.devices():
            if could_when_left(job, device, self._interference):
                model = device.device.spec.model if job.devices > 1 else ""
                by_model.setdefault(model, []).append(self._able(job, device))
        enough = [sorted(able) for able in by_model.values() if len(able) >= job.devices]
        if not enough:
            return
        first = min(enough, key=lambda able: able[job.devices - 1])
        for able in first[: job.devices + self._more(waited_seconds)]:
            self._floor.kept.setdefault(able.uuid, job.job_id)

    def _able(self, job: QueuedView, device: DeviceView) -> _Able:
        uuid, place = device.device.uuid, device.device.index
        empty = _seconds_until_empty(device)
        start = empty
        if self._looks.left > 0:
            moment = first_moment(job, Timeline(device), self._looks)
            start = moment[1] if moment is not None else math.inf
        return _Able(uuid in self._floor.kept, start, empty, place, uuid)

    def _more(self, waited_seconds: float) -> int:
        if self._due_seconds <= 0:
            return 0
        return int(math.log2(max(1.0, waited_seconds / self._due_seconds)))


class _Able(NamedTuple):
    """A device that could take the job, in the order of preference."""

    kept: bool
    start_seconds: float
    empty_seconds: float
    place: int
    uuid: str


def _seconds_until_empty(device: DeviceView) -> float:
    """When the last resident will have gone; infinite where one's end is unknown."""
    remaining = [
        resident.remaining_seconds.p50 if resident.remaining_seconds else math.inf
        for resident in device.residents
    ]
    return max(remaining, default=0.0)
