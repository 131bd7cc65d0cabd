"""Placing one job: the devices that take it, the cheapest of them, a gang whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.admission import Admitted, Standing, admit, bears, fits, standing
from horus_lab.policy.cluster import DeviceView, Placement, QueuedView, ResidentView
from horus_lab.policy.cost import horus_cost
from horus_lab.records import Obstacle, ObstacleKind, Slot

# A job that this many devices of one tier and model refuse for somebody's slowdown, the cheapest
# first, is not tried on dearer ones of them: more load slows no less.
MOST_REFUSALS = 32

Tier = tuple[float, ...]


def spread(device: DeviceView) -> Tier:
    """Fewest residents first, then the smallest device that fits."""
    return (len(device.residents), device.device.capacity_bytes)


def by_cost_alone(device: DeviceView) -> Tier:
    """All devices alike: the paper's cost decides."""
    del device
    return ()


class Floor:
    """The devices while a plan is made: placements change them at once.

    `kept` maps a device to the due job that it is kept for.

    Args:
        tier: which devices are tried first; among one tier's the paper's cost decides.
    """

    def __init__(
        self,
        devices: Iterable[DeviceView],
        interference: InterferenceModel,
        *,
        tier: Callable[[DeviceView], Tier] = spread,
    ) -> None:
        self._interference = interference
        self._tier = tier
        self._standings = {device.device.uuid: standing(device) for device in devices}
        self._places = {uuid: place for place, uuid in enumerate(self._standings)}
        self._tiers: dict[Tier, dict[str, None]] = {}
        for uuid, seen in self._standings.items():
            self._tiers.setdefault(tier(seen.device), {})[uuid] = None
        self.kept: dict[str, str] = {}

    def devices(self) -> tuple[DeviceView, ...]:
        """The devices as they are with what was placed."""
        return tuple(seen.device for seen in self._standings.values())

    def find(self, job: QueuedView) -> tuple[Slot, ...] | list[Obstacle]:
        """The best slots for the job, as many as it needs; else the obstacles, by device.

        A gang takes devices of one model, so that the slowest does not set everybody's pace; among
        models, the one whose dearest device is the cheapest.
        """
        found: dict[str, list[Slot]] = {}
        refusals: dict[tuple[Tier, str], int] = {}
        obstacles: list[Obstacle] = []
        for tier in sorted(self._tiers):
            for seen, reservation in self._cheapest(job, tier, obstacles):
                model = seen.device.device.spec.model
                if refusals.get((tier, model), 0) >= MOST_REFUSALS:
                    continue
                answer = bears(job, seen, reservation, self._interference)
                if isinstance(answer, Obstacle):
                    obstacles.append(answer)
                    refusals[tier, model] = refusals.get((tier, model), 0) + 1
                    continue
                slots = found.setdefault(model if job.devices > 1 else "", [])
                slots.append(answer.slot)
                if len(slots) == job.devices:
                    return tuple(slots)
        obstacles.sort(key=lambda obstacle: self._places[obstacle.device_uuid])
        return obstacles

    def answer(self, job: QueuedView, uuid: str) -> Slot | Obstacle:
        """What one device says to the job."""
        seen = self._standings[uuid]
        obstacle = self._held(job, uuid)
        reservation = fits(job, seen)
        if isinstance(reservation, Obstacle):
            return reservation
        answer = bears(job, seen, reservation, self._interference)
        if isinstance(answer, Obstacle):
            return answer
        return obstacle or answer.slot

    def place(self, job: QueuedView, slots: tuple[Slot, ...]) -> Placement:
        """Put the job there."""
        for slot in slots:
            device = self._standings[slot.device_uuid].device
            resident = ResidentView(
                job_id=job.job_id,
                owner=job.owner,
                name=job.name,
                reserved_bytes=slot.reserved_bytes,
                prediction=job.predictions[slot.device_uuid],
                max_slowdown=job.constraints.max_slowdown,
                exclusive=job.constraints.exclusive,
            )
            self._put(replace(device, residents=(*device.residents, resident)))
        return Placement(job_id=job.job_id, slots=slots, why=self._why(slots))

    def _put(self, device: DeviceView) -> None:
        uuid = device.device.uuid
        old = self._tier(self._standings[uuid].device)
        del self._tiers[old][uuid]
        if not self._tiers[old]:
            del self._tiers[old]
        self._standings[uuid] = standing(device)
        self._tiers.setdefault(self._tier(device), {})[uuid] = None

    def _cheapest(
        self, job: QueuedView, tier: Tier, obstacles: list[Obstacle]
    ) -> list[tuple[Standing, int]]:
        """The tier's devices that the job fits on with its reservation, by cost."""
        able: list[tuple[float, int, Standing, int]] = []
        for uuid in self._tiers[tier]:
            seen = self._standings[uuid]
            reservation = fits(job, seen)
            held = self._held(job, uuid)
            if isinstance(reservation, Obstacle):
                obstacles.append(reservation)
            elif held is not None:
                obstacles.append(held)
            else:
                cost = horus_cost(seen.device, job.predictions[uuid], reservation)
                able.append((cost, seen.device.device.index, seen, reservation))
        able.sort(key=lambda one: one[:2])
        return [(seen, reservation) for _, _, seen, reservation in able]

    def _held(self, job: QueuedView, uuid: str) -> Obstacle | None:
        holder = self.kept.get(uuid)
        if holder is None or holder == job.job_id:
            return None
        return Obstacle(device_uuid=uuid, kind=ObstacleKind.RESERVED_FOR_DUE, job_id=holder)

    def _why(self, slots: tuple[Slot, ...]) -> str:
        devices = [self._standings[slot.device_uuid].device for slot in slots]
        names = ", ".join(device.device.name for device in devices)
        neighbours = len(devices[0].residents) - 1
        if neighbours == 0:
            return f"{names} has nobody else on it"
        slowdown = slots[0].slowdown
        expected = f", slowdown {slowdown.p50:.2f} expected" if slowdown else ""
        return f"{names} takes it beside {neighbours} more{expected}"


def could_ever(job: QueuedView, device: DeviceView, interference: InterferenceModel) -> bool:
    """Whether the device would take the job with everybody and everything else gone."""
    return _takes(job, DeviceView(device=device.device), interference)


def could_when_left(job: QueuedView, device: DeviceView, interference: InterferenceModel) -> bool:
    """Whether the device, as well and as used by others as it is, would take the job with its
    residents gone."""
    return _takes(job, replace(device, residents=(), lingering_bytes=0), interference)


def _takes(job: QueuedView, device: DeviceView, interference: InterferenceModel) -> bool:
    return isinstance(admit(job, device, interference), Admitted)
