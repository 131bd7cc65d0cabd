"""NVIDIA GPUs and MIG slices through NVML.

A card in MIG mode is not a device; its slices are, so nothing is counted twice. A slice's
utilization is unknown to NVML. On unified-memory devices the capacity is the system's memory. A
device that stops answering is lost, and the others go on. Devices are known by their UUIDs; their
index is the place in PCI order, for people. No CUDA context is ever made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil
from msgspec import Struct

from horus_lab.devices.margins import gpu_margin, host_margin
from horus_lab.devices.nvml_processes import NvmlProcesses
from horus_lab.devices.nvml_query import DeviceLost, Nvml, Unknown, known, percent
from horus_lab.errors import DeviceUnavailable
from horus_lab.predict.specs import spec_for
from horus_lab.records import Device, DeviceKind, DeviceReading, Health

_MAX_RESIDENTS = 8
_MISSING = ("utilization", "memory_utilization", "memory_used_bytes")
# A utilization of 100 % with no process anywhere is believed for this many looks.
_BELIEVED_LOOKS = 3

_log = logging.getLogger(__name__)


class _Memory(Struct, frozen=True):
    """What NVML tells of a device's memory. `why` says why `used` is missing, or what it holds."""

    capacity: int
    used: int | None
    unified: bool = False
    why: str = ""


class _Place(Struct, frozen=True):
    """Where a device is: its own handle, and its card's."""

    device: Device
    handle: Any
    card: Any
    unified: bool
    compute_mode: int | None


class NvmlProbe:
    """The GPUs that the driver shows.

    Args:
        library: a stand-in for the module `pynvml`, for tests.
        processes: looks at the processes on a device.
        monotonic: seconds from some fixed point.
    """

    name = "nvml"

    def __init__(
        self,
        library: Any = None,
        *,
        processes: NvmlProcesses | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = Nvml(library, monotonic=monotonic)
        self._processes = processes or NvmlProcesses()
        self._places: dict[str, _Place] = {}
        self._generation = 0
        self._full_looks: dict[str, int] = {}
        self._silent: set[int] = set()

    def open(self) -> None:
        """Start NVML.

        Raises:
            DeviceUnavailable: no usable driver, with the reason.
        """
        self._nvml.open()

    def close(self) -> None:
        """Stop NVML. Safe to call twice."""
        self._nvml.close()
        self._places.clear()

    def devices(self) -> tuple[Device, ...]:
        """The devices as the driver lists them now; one that does not answer stays as it was.

        Raises:
            DeviceUnavailable: NVML does not work.
        """
        self._nvml.open()
        count = self._nvml.ask("nvmlDeviceGetCount")
        if isinstance(count, Unknown):
            raise DeviceUnavailable(f"NVML cannot count the GPUs: {count.why}.")
        found: dict[str, _Place] = {}
        for index in range(count):
            try:
                places = self._at(index)
            except DeviceLost as error:
                places = [p for p in self._places.values() if p.device.index == index]
                if not places and index not in self._silent:
                    _log.warning("GPU %d does not answer and is left out: %s", index, error)
                    self._silent.add(index)
            for place in places:
                found.setdefault(place.device.uuid, place)
        self._places = found
        self._generation = self._nvml.generation
        return tuple(place.device for place in found.values())

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """One reading a device. NVML lists the processes by itself; `trees` tells whose are jobs'.

        Raises:
            DeviceUnavailable: NVML does not work.
        """
        self._nvml.open()
        if not self._places or self._generation != self._nvml.generation:
            self.devices()
        ours = frozenset(pid for tree in trees.values() for pid in tree)
        return tuple(self._read(place, now, ours) for place in self._places.values())

    # --- listing --------------------------------------------------------------------------------

    def _at(self, index: int) -> list[_Place]:
        nvml = self._nvml
        card = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if isinstance(card, Unknown):
            raise DeviceLost(card.why)
        mode = nvml.ask("nvmlDeviceGetMigMode", card)
        if isinstance(mode, Unknown) or not mode[0]:
            return [self._place(index, card, card, DeviceKind.NVIDIA, f"GPU {index}")]
        places = []
        for slot in range(known(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card)) or 0):
            handle = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card, slot)
            if not isinstance(handle, Unknown):
                name = f"GPU {index} slice {slot}"
                places.append(self._place(index, handle, card, DeviceKind.MIG, name))
        return places

    def _place(self, index: int, handle: Any, card: Any, kind: DeviceKind, name: str) -> _Place:
        nvml = self._nvml
        uuid = nvml.ask("nvmlDeviceGetUUID", handle)
        if isinstance(uuid, Unknown):
            raise DeviceLost(uuid.why)
        model = str(known(nvml.ask("nvmlDeviceGetName", handle)) or "unknown GPU")
        memory = self._memory(handle)
        compute_mode = known(nvml.ask("nvmlDeviceGetComputeMode", card))
        shared = ", memory shared with the system" if memory.unified else ""
        margin = host_margin if memory.unified else gpu_margin
        device = Device(
            uuid=str(uuid),
            name=f"{name} ({model.removeprefix('NVIDIA ').strip()}{shared})",
            index=index,
            kind=kind,
            capacity_bytes=memory.capacity,
            margin_bytes=margin(memory.capacity),
            spec=spec_for(model, memory.capacity or None),
            max_residents=1 if self._is_exclusive(compute_mode) else _MAX_RESIDENTS,
        )
        return _Place(device, handle, card, memory.unified, compute_mode)

    def _memory(self, handle: Any) -> _Memory:
        """Version 2 tells what the driver reserves apart; it is no one's use, and no capacity.

        Raises:
            DeviceLost: the device does not tell, and a device that is well would.
        """
        nvml = self._nvml
        library = nvml.library
        version = getattr(library, "nvmlMemory_v2", None)
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        if memory is not None and not isinstance(memory, Unknown):
            return _plausible(int(memory.total) - int(memory.reserved), int(memory.used), "")
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        if not isinstance(memory, Unknown):
            why = "this driver counts what it reserves for itself as used"
            return _plausible(int(memory.total), int(memory.used), why)
        if memory.code == library.NVML_ERROR_NOT_SUPPORTED:
            system = psutil.virtual_memory()
            return _Memory(
                capacity=int(system.total),
                used=int(system.total - system.available),
                unified=True,
                why="one pool with the system's memory",
            )
        if memory.code == library.NVML_ERROR_NO_PERMISSION:
            return _Memory(capacity=0, used=None, why=memory.why)
        raise DeviceLost(memory.why)

    def _is_exclusive(self, compute_mode: int | None) -> bool:
        library = self._nvml.library
        return compute_mode in (
            library.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            library.NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
        )

    # --- reading --------------------------------------------------------------------------------

    def _read(self, place: _Place, now: float, ours: frozenset[int]) -> DeviceReading:
        try:
            return self._present(place, now, ours)
        except DeviceLost as error:
            self._full_looks.pop(place.device.uuid, None)
            reason = f"the device does not answer: {error}"
            return DeviceReading(
                uuid=place.device.uuid,
                read_at=now,
                health=Health.LOST,
                unknown=dict.fromkeys(_MISSING, reason),
            )

    def _present(self, place: _Place, now: float, ours: frozenset[int]) -> DeviceReading:
        uuid = place.device.uuid
        memory = self._memory(place.handle)
        unknown: dict[str, str] = {}
        if memory.used is None:
            unknown["memory_used_bytes"] = memory.why
        elif memory.why:
            unknown["memory_reserved"] = memory.why
        utilization, bandwidth = self._rates(place, unknown)
        found = self._processes.on(
            self._nvml, uuid, place.handle, most_bytes=memory.capacity, busy=utilization
        )
        unknown.update(found.unknown)
        if utilization is not None and self._sticks(uuid, utilization, found.nobody):
            utilization = None
            unknown["utilization"] = "the counter stands at 100 % with no process on the device"
        closed = self._closed(place, frozenset(each.pid for each in found.readings) - ours)
        return DeviceReading(
            uuid=uuid,
            read_at=now,
            health=Health.DEGRADED if closed else Health.OK,
            utilization=utilization,
            memory_utilization=bandwidth,
            memory_used_bytes=memory.used,
            processes=found.readings,
            unknown={"device": closed, **unknown} if closed else unknown,
        )

    def _rates(self, place: _Place, unknown: dict[str, str]) -> tuple[float | None, float | None]:
        """Utilization and memory-bandwidth utilization; why not goes to `unknown`."""
        if place.device.kind is DeviceKind.MIG:
            # Some drivers would answer with the whole card's.
            why = "NVML does not tell a MIG slice's utilization"
            unknown.update(utilization=why, memory_utilization=why)
            return None, None
        rates = self._nvml.ask("nvmlDeviceGetUtilizationRates", place.handle)
        if isinstance(rates, Unknown):
            unknown.update(utilization=rates.why, memory_utilization=rates.why)
            return None, None
        gpu, memory = percent(rates.gpu), percent(rates.memory)
        if gpu is None:
            unknown["utilization"] = f"the driver says {rates.gpu} %"
        if memory is None:
            unknown["memory_utilization"] = f"the driver says {rates.memory} %"
        return gpu, memory

    def _sticks(self, uuid: str, utilization: float, nobody: bool) -> bool:
        """Whether the counter has stood at 100 % with nobody there for several looks."""
        looks = self._full_looks.get(uuid, 0) + 1 if nobody and utilization >= 1.0 else 0
        self._full_looks[uuid] = looks
        return looks > _BELIEVED_LOOKS

    def _closed(self, place: _Place, others: frozenset[int]) -> str:
        """Why no job could use the device now, whatever its memory; empty where one could."""
        if place.compute_mode == self._nvml.library.NVML_COMPUTEMODE_PROHIBITED:
            return "its compute mode is PROHIBITED: no program may use it"
        if self._is_exclusive(place.compute_mode) and others:
            return "its compute mode is EXCLUSIVE_PROCESS, and a process without a slot has it"
        return ""


def _plausible(capacity: int, used: int, why: str) -> _Memory:
    if capacity <= 0 or not 0 <= used <= capacity:
        return _Memory(
            capacity=max(0, capacity),
            used=None,
            why=f"the driver says {used} of {capacity} bytes are used",
        )
    return _Memory(capacity=capacity, used=used, why=why)
