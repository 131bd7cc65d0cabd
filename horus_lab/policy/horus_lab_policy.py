"""The engine of every named policy: an order of the queue, and places in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import ClusterView, DeviceView, Plan, QueuedView
from horus_lab.policy.explain import Names, obstacle_sentence, waiting_sentence
from horus_lab.policy.keeping import Keeper
from horus_lab.policy.memory import reservation_bytes
from horus_lab.policy.ordering import fair_order, is_due
from horus_lab.policy.placing import Floor, Tier, could_ever, spread
from horus_lab.policy.waiting import expected_waits
from horus_lab.records import Fit, Interval, Obstacle, Slot, WaitReason

DUE_SECONDS = 600.0

# So many jobs in a row that found no place, and the rest of the queue is not looked at in this
# plan: on a full cluster a long queue would only be refused at length.
MOST_MISSES = 200

# A reason names no more devices than these; on a large cluster they say the same many times over.
MOST_OBSTACLES = 64

Order = Callable[[ClusterView, float], list[QueuedView]]


class _Waiting(NamedTuple):
    """A job that found no place; `looked_at` is false where it was not looked at."""

    job: QueuedView
    obstacles: list[Obstacle]
    looked_at: bool = True


class HorusLabPolicy:
    """Places every job that passes all checks, in a fair order.

    A job that has waited `due_seconds` is due: a device on which it could run is kept for it, and
    no later job is put there until it has started. Others go on elsewhere.

    Args:
        due_seconds: infinite: no job is ever due.
        sharing: `False` gives every job a device of its own.
        order: of the queue; without one it is fair (`fair_order`).
        tier: which devices are tried first; among one tier's the paper's cost decides.
        most_residents: fewer than a device itself takes, where given.
        least_margin_bytes: more than a device's own margin, where it is smaller.
        most_misses: so many jobs without a place, and the rest is not looked at.
    """

    def __init__(
        self,
        interference: InterferenceModel,
        *,
        name: str = "horus-lab",
        due_seconds: float = DUE_SECONDS,
        sharing: bool = True,
        order: Order | None = None,
        tier: Callable[[DeviceView], Tier] = spread,
        most_residents: int | None = None,
        least_margin_bytes: int = 0,
        most_misses: int = MOST_MISSES,
    ) -> None:
        self.name = name
        self._interference = interference
        self._due_seconds = due_seconds
        self._sharing = sharing
        self._order = order
        self._tier = tier
        self._most_residents = most_residents
        self._least_margin_bytes = least_margin_bytes
        self._most_misses = most_misses

    def order(self, view: ClusterView, now: float) -> list[QueuedView]:
        """The queue in the order of its places."""
        if self._order is not None:
            return self._order(view, now)
        return fair_order(view.queue, view.usage, now, self._due_seconds)

    def plan(self, view: ClusterView, now: float) -> Plan:
        """Who goes now, in order, and why each other waits."""
        floor = self._floor(view)
        keeper = Keeper(floor, self._interference, due_seconds=self._due_seconds)
        placements = []
        waiting: list[_Waiting] = []
        misses = 0
        for job in self.order(view, now):
            if job.absent:
                waiting.append(_Waiting(job, []))
                continue
            if misses >= self._most_misses:
                waiting.append(_Waiting(job, [], looked_at=False))
                continue
            found = floor.find(self._alone(job))
            if isinstance(found, tuple):
                placements.append(floor.place(self._alone(job), found))
                continue
            misses += 1
            waiting.append(_Waiting(job, found))
            if is_due(job, now, self._due_seconds):
                keeper.keep_for(self._alone(job), now - job.submitted_at)
        return Plan(placements=tuple(placements), waiting=self._reasons(view, floor, waiting))

    def assess(self, view: ClusterView, job: QueuedView, now: float) -> tuple[Fit, ...]:
        """For one job outside the queue, each device's answer."""
        del now
        names = Names(view)
        floor = self._floor(view)
        fits = []
        for device in floor.devices():
            uuid = device.device.uuid
            prediction = job.predictions.get(uuid)
            if prediction is None:
                continue
            answer = floor.answer(self._alone(job), uuid)
            slot = answer if isinstance(answer, Slot) else None
            obstacle = answer if isinstance(answer, Obstacle) else None
            fits.append(
                Fit(
                    device_uuid=uuid,
                    prediction=prediction,
                    fits_now=slot is not None,
                    fits_ever=could_ever(job, device, self._interference),
                    obstacle=obstacle,
                    slowdown=slot.slowdown if slot else None,
                    neighbours=tuple(r.job_id for r in device.residents),
                    sentence=obstacle_sentence(obstacle, names) if obstacle else "",
                )
            )
        return tuple(fits)

    def never_fits(self, view: ClusterView, job: QueuedView) -> str | None:
        """A sentence why the job could not run even with every device to itself, or `None`."""
        if not view.devices:
            return "the broker has no device"
        allowed = job.constraints.device_uuids
        candidates = [d for d in view.devices if not allowed or d.device.uuid in allowed]
        if not candidates:
            return "none of the devices that this job may use is here"
        able = [d for d in map(self._limited, candidates) if could_ever(job, d, self._interference)]
        if len(able) >= job.devices:
            models: dict[str, int] = {}
            for device in able:
                models[device.device.spec.model] = models.get(device.device.spec.model, 0) + 1
            if max(models.values()) >= job.devices:
                return None
            return f"it needs {job.devices} devices of one kind, and there are not so many"
        if able:
            return f"it needs {job.devices} devices, and {len(able)} here could hold it"
        needs = [
            count
            for d in candidates
            if (prediction := job.predictions.get(d.device.uuid)) is not None
            and (count := reservation_bytes(prediction)) is not None
        ]
        if not needs:
            return "its memory is unknown; declare it, for example with memory_bytes"
        largest = max(d.device.capacity_bytes - d.device.margin_bytes for d in candidates)
        return (
            f"no device here could hold it: it needs {min(needs) / 2**30:.1f} GiB, and the largest "
            f"takes {largest / 2**30:.1f} GiB"
        )

    def expected_wait(self, view: ClusterView, job: QueuedView, now: float) -> Interval | None:
        """When a job at the end of the queue would start."""
        order = [*self.order(view, now), job]
        return expected_waits(view.devices, order, self._interference).get(job.job_id)

    def _floor(self, view: ClusterView) -> Floor:
        return Floor(map(self._limited, view.devices), self._interference, tier=self._tier)

    def _limited(self, device: DeviceView) -> DeviceView:
        """The device with the policy's own limits, where they are tighter."""
        own = device.device
        residents = min(own.max_residents, self._most_residents or own.max_residents)
        margin = max(own.margin_bytes, self._least_margin_bytes)
        if (residents, margin) == (own.max_residents, own.margin_bytes):
            return device
        return replace(device, device=replace(own, max_residents=residents, margin_bytes=margin))

    def _alone(self, job: QueuedView) -> QueuedView:
        if self._sharing:
            return job
        return replace(job, constraints=replace(job.constraints, exclusive=True))

    def _reasons(
        self, view: ClusterView, floor: Floor, waiting: Sequence[_Waiting]
    ) -> dict[str, WaitReason]:
        names = Names(view)
        looked_at = [self._alone(one.job) for one in waiting if one.looked_at]
        waits = expected_waits(floor.devices(), looked_at, self._interference)
        reasons = {}
        for position, (job, obstacles, was_looked_at) in enumerate(waiting, start=1):
            expected = waits.get(job.job_id)
            if expected is not None and expected.p90 == 0.0:
                # It would pass now if nobody were kept or asked before it.
                expected = None
            reasons[job.job_id] = WaitReason(
                position=position,
                obstacles=tuple(obstacles[:MOST_OBSTACLES]),
                absent=job.absent,
                sentence=waiting_sentence(
                    obstacles,
                    names,
                    absent=job.absent,
                    gang=job.devices,
                    expected=expected,
                    before=0 if was_looked_at else position - 1,
                ),
                expected_seconds=expected,
            )
        return reasons
