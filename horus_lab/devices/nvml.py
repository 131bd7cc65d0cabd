"""NVIDIA GPUs and MIG slices through NVML.

A card in MIG mode is not a device; its slices are, so nothing is counted twice. A slice's
utilization is unknown to NVML. On unified-memory devices the capacity is the system's memory. A
device that stops answering is lost, and the others go on. No CUDA context is ever made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from horus_lab.devices.nvml_query import DeviceLost, Nvml, Unknown, known, readable_bytes
from horus_lab.predict.specs import spec_for
from horus_lab.records import Device, DeviceKind, DeviceReading, Health, ProcessReading

_MARGIN_SHARE = 0.02
_LEAST_MARGIN = 512 * 2**20
_MOST_MARGIN = 2 * 2**30
_MAX_RESIDENTS = 8


class NvmlProbe:
    """The GPUs that the driver shows.

    Args:
        library: a stand-in for the module `pynvml`, for tests.
    """

    name = "nvml"

    def __init__(self, library: Any = None) -> None:
        self._nvml = Nvml(library)
        self._handles: dict[str, Any] = {}
        self._devices: dict[str, Device] = {}

    def open(self) -> None:
        """Start NVML.

        Raises:
            DeviceUnavailable: no usable driver, with the reason.
        """
        self._nvml.open()

    def close(self) -> None:
        """Stop NVML. Safe to call twice."""
        self._nvml.close()
        self._handles.clear()

    def devices(self) -> tuple[Device, ...]:
        """The devices as the driver lists them now; a lost one stays listed as it was."""
        nvml = self._nvml
        count = known(nvml.ask("nvmlDeviceGetCount")) or 0
        found: dict[str, Device] = {}
        for index in range(count):
            try:
                handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
                if isinstance(handle, Unknown):
                    continue
                for device, owner in self._listed(index, handle):
                    found[device.uuid] = device
                    self._handles[device.uuid] = owner
            except DeviceLost:
                # Its reading says so; what was known of it stays.
                for uuid, device in self._devices.items():
                    if device.index == index:
                        found[uuid] = device
        self._devices = found
        return tuple(found.values())

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """One reading a device; NVML lists the processes by itself."""
        del trees
        if not self._devices:
            self.devices()
        return tuple(self._read(device, now) for device in self._devices.values())

    # --- listing --------------------------------------------------------------------------------

    def _listed(self, index: int, handle: Any) -> list[tuple[Device, Any]]:
        nvml = self._nvml
        mode = nvml.ask("nvmlDeviceGetMigMode", handle)
        if not isinstance(mode, Unknown) and mode[0]:
            return self._slices(index, handle)
        return [(self._device(index, handle, DeviceKind.NVIDIA, f"GPU {index}"), handle)]

    def _slices(self, index: int, card: Any) -> list[tuple[Device, Any]]:
        nvml = self._nvml
        found = []
        for place in range(known(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card)) or 0):
            handle = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card, place)
            if isinstance(handle, Unknown):
                continue
            name = f"GPU {index} slice {place}"
            found.append((self._device(index, handle, DeviceKind.MIG, name), handle))
        return found

    def _device(self, index: int, handle: Any, kind: DeviceKind, name: str) -> Device:
        nvml = self._nvml
        uuid = known(nvml.ask("nvmlDeviceGetUUID", handle))
        model = str(known(nvml.ask("nvmlDeviceGetName", handle)) or "unknown GPU")
        capacity, _, _ = self._memory(handle)
        margin = int(min(_MOST_MARGIN, max(_LEAST_MARGIN, _MARGIN_SHARE * capacity)))
        compute = known(nvml.ask("nvmlDeviceGetComputeMode", handle))
        exclusive = compute in (
            getattr(nvml.library, "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS", 3),
            getattr(nvml.library, "NVML_COMPUTEMODE_PROHIBITED", 2),
            getattr(nvml.library, "NVML_COMPUTEMODE_EXCLUSIVE_THREAD", 1),
        )
        return Device(
            uuid=str(uuid) if uuid else f"GPU-without-uuid-{index}",
            name=f"{name} ({model.removeprefix('NVIDIA ').strip()})",
            index=index,
            kind=kind,
            capacity_bytes=capacity,
            margin_bytes=min(margin, capacity),
            spec=spec_for(model, capacity or None),
            max_residents=1 if exclusive else _MAX_RESIDENTS,
        )

    # --- reading --------------------------------------------------------------------------------

    def _memory(self, handle: Any) -> tuple[int, int | None, str]:
        """Capacity, bytes in use without the driver's own, and why a value is missing.

        Version 2 tells what the driver reserves apart; it is no one's use, and no capacity.
        """
        nvml = self._nvml
        version = getattr(nvml.library, "nvmlMemory_v2", None)
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        if memory is not None and not isinstance(memory, Unknown):
            reserved = int(getattr(memory, "reserved", 0))
            return int(memory.total) - reserved, int(memory.used), ""
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        if isinstance(memory, Unknown):
            system = psutil.virtual_memory()
            return (
                int(system.total),
                int(system.total - system.available),
                "memory shared with the system",
            )
        return int(memory.total), int(memory.used), ""

    def _read(self, device: Device, now: float) -> DeviceReading:
        handle = self._handles.get(device.uuid)
        if handle is None:
            return self._lost(device, now, "it is not listed any more")
        try:
            return self._present(device, handle, now)
        except DeviceLost as error:
            return self._lost(device, now, str(error))

    def _present(self, device: Device, handle: Any, now: float) -> DeviceReading:
        nvml = self._nvml
        unknown: dict[str, str] = {}
        _, used, shared = self._memory(handle)
        if shared:
            unknown["memory_reserved"] = shared
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        utilization = bandwidth = None
        if isinstance(rates, Unknown):
            unknown["utilization"] = rates.why
            unknown["memory_utilization"] = rates.why
        else:
            utilization = min(1.0, max(0.0, rates.gpu / 100))
            bandwidth = min(1.0, max(0.0, rates.memory / 100))
        processes, why = self._processes(handle)
        if why:
            unknown["processes"] = why
        return DeviceReading(
            uuid=device.uuid,
            read_at=now,
            health=Health.OK,
            utilization=utilization,
            memory_utilization=bandwidth,
            memory_used_bytes=used,
            processes=processes,
            unknown=unknown,
        )

    def _processes(self, handle: Any) -> tuple[tuple[ProcessReading, ...], str]:
        """Compute and graphics processes together, each once, with its bytes where readable."""
        nvml = self._nvml
        found: dict[int, int | None] = {}
        why = ""
        for kind in ("Compute", "Graphics"):
            answer = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
            if isinstance(answer, Unknown):
                if kind == "Compute":
                    why = answer.why
                continue
            for process in answer:
                pid = int(process.pid)
                if pid <= 0:
                    continue
                count = readable_bytes(process.usedGpuMemory)
                if count is None and pid not in found:
                    why = why or "the driver does not tell processes' memory"
                earlier = found.get(pid)
                found[pid] = count if earlier is None else max(earlier, count or 0)
        loads = self._loads(handle)
        return (
            tuple(
                ProcessReading(
                    pid=pid,
                    memory_bytes=count,
                    utilization=loads.get(pid),
                    name=_name(pid),
                    user=_user(pid),
                )
                for pid, count in sorted(found.items())
            ),
            why,
        )

    def _loads(self, handle: Any) -> dict[int, float]:
        """The newest utilization sample of each process over the last seconds."""
        since = int((time.time() - 3) * 1e6)
        samples = self._nvml.ask("nvmlDeviceGetProcessUtilization", handle, since)
        if isinstance(samples, Unknown):
            return {}
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            pid, stamp = int(sample.pid), int(sample.timeStamp)
            if pid not in newest or stamp > newest[pid][0]:
                newest[pid] = (stamp, min(1.0, max(0.0, sample.smUtil / 100)))
        return {pid: load for pid, (_, load) in newest.items()}

    def _lost(self, device: Device, now: float, why: str) -> DeviceReading:
        reason = f"the device does not answer: {why}"
        return DeviceReading(
            uuid=device.uuid,
            read_at=now,
            health=Health.LOST,
            unknown=dict.fromkeys(
                ("utilization", "memory_utilization", "memory_used_bytes"), reason
            ),
        )


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError):
        return None


def _user(pid: int) -> str | None:
    try:
        return psutil.Process(pid).username()
    except (psutil.Error, OSError, KeyError):
        return None
