"""`horus-lab`, the default policy: bounds on slowdown, a fair queue, nobody starves."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.cluster import ClusterView, Plan, QueuedView
from horus_lab.policy.explain import Names, obstacle_sentence, waiting_sentence
from horus_lab.policy.memory import reservation_bytes
from horus_lab.policy.ordering import fair_order, is_due
from horus_lab.policy.placing import Floor, could_ever
from horus_lab.policy.waiting import expected_waits
from horus_lab.records import Fit, Interval, Obstacle, WaitReason

DUE_SECONDS = 600.0


class HorusLabPolicy:
    """Places every job that passes all checks, in a fair order.

    A job that has waited `due_seconds` is due: a device on which it could run is kept for it, and
    no later job is put there until it has started. Others go on elsewhere.

    Args:
        sharing: `False` gives every job a device of its own.
    """

    def __init__(
        self,
        interference: InterferenceModel,
        *,
        name: str = "horus-lab",
        due_seconds: float = DUE_SECONDS,
        sharing: bool = True,
    ) -> None:
        self.name = name
        self._interference = interference
        self._due_seconds = due_seconds
        self._sharing = sharing

    def order(self, view: ClusterView, now: float) -> list[QueuedView]:
        """The queue in the order of its places."""
        return fair_order(view.queue, view.usage, now, self._due_seconds)

    def plan(self, view: ClusterView, now: float) -> Plan:
        """Who goes now, in order, and why each other waits."""
        floor = Floor(view.devices, self._interference)
        order = self.order(view, now)
        placements = []
        waiting: list[tuple[QueuedView, list[Obstacle]]] = []
        for job in order:
            if job.absent:
                waiting.append((job, []))
                continue
            slots, obstacles = floor.look(self._alone(job))
            chosen = floor.choose(job, slots)
            if chosen:
                placements.append(floor.place(job, chosen))
                # A job that has its place keeps no other.
                for uuid in [u for u, holder in floor.kept.items() if holder == job.job_id]:
                    del floor.kept[uuid]
                continue
            waiting.append((job, obstacles))
            if is_due(job, now, self._due_seconds):
                self._keep(job, floor)
        return Plan(
            placements=tuple(placements),
            waiting=self._reasons(view, floor, waiting),
        )

    def assess(self, view: ClusterView, job: QueuedView, now: float) -> tuple[Fit, ...]:
        """For one job outside the queue, each device's answer."""
        del now
        names = Names(view)
        floor = Floor(view.devices, self._interference)
        slots, obstacles = floor.look(self._alone(job))
        by_slot = {slot.device_uuid: slot for slot in slots}
        by_obstacle = {obstacle.device_uuid: obstacle for obstacle in obstacles}
        fits = []
        for device in view.devices:
            uuid = device.device.uuid
            slot, obstacle = by_slot.get(uuid), by_obstacle.get(uuid)
            prediction = job.predictions.get(uuid)
            if prediction is None:
                continue
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
        able = [d for d in candidates if could_ever(job, d, self._interference)]
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

    def _alone(self, job: QueuedView) -> QueuedView:
        if self._sharing:
            return job
        return replace(job, constraints=replace(job.constraints, exclusive=True))

    def _keep(self, job: QueuedView, floor: Floor) -> None:
        """Keep for a due job the devices on which it would start first, as many as it needs."""
        able = [
            device
            for device in floor.devices()
            if device.device.uuid not in floor.kept and could_ever(job, device, self._interference)
        ]
        if len(able) < job.devices:
            return

        def end(device_index: int) -> tuple[float, int]:
            residents = able[device_index].residents
            remaining = [r.remaining_seconds.p50 for r in residents if r.remaining_seconds]
            unknown = len(residents) - len(remaining)
            return (max(remaining, default=0.0) if not unknown else float("inf"), device_index)

        for index in sorted(range(len(able)), key=end)[: job.devices]:
            floor.kept[able[index].device.uuid] = job.job_id

    def _reasons(
        self,
        view: ClusterView,
        floor: Floor,
        waiting: Sequence[tuple[QueuedView, list[Obstacle]]],
    ) -> dict[str, WaitReason]:
        names = Names(view)
        waits = expected_waits(
            floor.devices(), [self._alone(job) for job, _ in waiting], self._interference
        )
        reasons = {}
        for position, (job, obstacles) in enumerate(waiting, start=1):
            expected = waits.get(job.job_id)
            if expected is not None and expected.p90 == 0.0:
                # It would pass now if nobody were kept or asked before it.
                expected = None
            reasons[job.job_id] = WaitReason(
                position=position,
                obstacles=tuple(obstacles),
                absent=job.absent,
                sentence=waiting_sentence(
                    obstacles, names, absent=job.absent, gang=job.devices, expected=expected
                ),
                expected_seconds=expected,
            )
        return reasons
