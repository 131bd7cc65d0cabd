"""Placing one job: the devices that take it, the cheapest of them, a gang whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from horus_lab.interference.protocol import InterferenceModel
from horus_lab.policy.admission import Admitted, admit
from horus_lab.policy.cluster import DeviceView, Placement, QueuedView, ResidentView
from horus_lab.policy.cost import horus_cost
from horus_lab.records import Obstacle, ObstacleKind, Slot


class Floor:
    """The devices while a plan is made: placements change them at once.

    `kept` maps a device to the due job that it is kept for.
    """

    def __init__(self, devices: Iterable[DeviceView], interference: InterferenceModel) -> None:
        self._devices = {device.device.uuid: device for device in devices}
        self._interference = interference
        self.kept: dict[str, str] = {}

    def devices(self) -> tuple[DeviceView, ...]:
        """The devices as they are with what was placed."""
        return tuple(self._devices.values())

    def look(self, job: QueuedView) -> tuple[list[Slot], list[Obstacle]]:
        """The slots that the job could have, and the obstacles on the other devices."""
        slots: list[Slot] = []
        obstacles: list[Obstacle] = []
        for uuid, device in self._devices.items():
            answer = admit(job, device, self._interference)
            holder = self.kept.get(uuid)
            if isinstance(answer, Obstacle):
                obstacles.append(answer)
            elif holder is not None and holder != job.job_id:
                obstacles.append(
                    Obstacle(device_uuid=uuid, kind=ObstacleKind.RESERVED_FOR_DUE, job_id=holder)
                )
            else:
                slots.append(answer.slot)
        return slots, obstacles

    def choose(self, job: QueuedView, slots: list[Slot]) -> tuple[Slot, ...]:
        """The best slots for the job, as many as it needs; none where they are too few.

        Fewest residents first, then the smallest device that fits, then the paper's cost. A gang
        takes devices of one model, so that the slowest does not set everybody's pace.
        """
        groups: dict[str, list[Slot]] = {}
        for slot in slots:
            model = self._devices[slot.device_uuid].device.spec.model if job.devices > 1 else ""
            groups.setdefault(model, []).append(slot)
        best: tuple[tuple[float, ...], tuple[Slot, ...]] | None = None
        for group in groups.values():
            if len(group) < job.devices:
                continue
            group.sort(key=lambda slot: self._rank(job, slot))
            chosen = tuple(group[: job.devices])
            rank = self._rank(job, chosen[-1])
            if best is None or rank < best[0]:
                best = (rank, chosen)
        return best[1] if best else ()

    def place(self, job: QueuedView, slots: tuple[Slot, ...]) -> Placement:
        """Put the job there."""
        for slot in slots:
            device = self._devices[slot.device_uuid]
            resident = ResidentView(
                job_id=job.job_id,
                owner=job.owner,
                name=job.name,
                reserved_bytes=slot.reserved_bytes,
                prediction=job.predictions[slot.device_uuid],
                max_slowdown=job.constraints.max_slowdown,
                exclusive=job.constraints.exclusive,
            )
            self._devices[slot.device_uuid] = replace(
                device, residents=(*device.residents, resident)
            )
        return Placement(job_id=job.job_id, slots=slots, why=self._why(slots))

    def _rank(self, job: QueuedView, slot: Slot) -> tuple[float, ...]:
        device = self._devices[slot.device_uuid]
        cost = horus_cost(device, job.predictions[slot.device_uuid], slot.reserved_bytes)
        return (
            len(device.residents),
            device.device.capacity_bytes,
            cost,
            device.device.index,
        )

    def _why(self, slots: tuple[Slot, ...]) -> str:
        names = ", ".join(self._devices[slot.device_uuid].device.name for slot in slots)
        neighbours = len(self._devices[slots[0].device_uuid].residents) - 1
        if neighbours == 0:
            return f"{names} has nobody else on it"
        slowdown = slots[0].slowdown
        expected = f", slowdown {slowdown.p50:.2f} expected" if slowdown else ""
        return f"{names} takes it beside {neighbours} more{expected}"


def could_ever(job: QueuedView, device: DeviceView, interference: InterferenceModel) -> bool:
    """Whether the device would take the job with everybody else gone."""
    empty = DeviceView(device=device.device)
    return isinstance(admit(job, empty, interference), Admitted)
