"""The host's CPU as a device: real, measured, for machines without a GPU.

Capacity is the memory that this process may use: the machine's, or less where a control group
says so. Used memory is what is not available, within the group where it is limited. Utilization is
that of the cores that this process may use.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from horus_lab.devices.control_group import ControlGroup
from horus_lab.devices.margins import host_margin
from horus_lab.devices.process_use import ProcessUse
from horus_lab.predict.cpu_spec import measure_cpu
from horus_lab.records import Device, DeviceKind, DeviceReading, DeviceSpec

MeasureCpu = Callable[[int, int, str], DeviceSpec]


def _measure(cores: int, memory_bytes: int, name: str) -> DeviceSpec:
    return measure_cpu(cores, memory_bytes, name=name)


class CpuProbe:
    """One device: this host's CPU.

    Args:
        measure: cores, memory bytes and name -> the device's specification; called once.
        group: the control groups that limit this process.
    """

    name = "cpu"

    def __init__(
        self, *, measure: MeasureCpu = _measure, group: ControlGroup | None = None
    ) -> None:
        self._measure = measure
        self._group = group or ControlGroup()
        self._device: Device | None = None
        self._cores = usable_cores(self._group)
        self._processes = ProcessUse(self._cores)
        self._busy: tuple[float, float] | None = None

    def open(self) -> None:
        """Measure the CPU, once."""
        if self._device is not None:
            return
        memory = usable_memory(self._group)
        self._device = Device(
            uuid=machine_uuid(),
            name="CPU",
            index=0,
            kind=DeviceKind.CPU,
            capacity_bytes=memory,
            margin_bytes=host_margin(memory),
            spec=self._measure(max(1, round(self._cores)), memory, cpu_model()),
        )

    def close(self) -> None:
        """Nothing is held."""

    def devices(self) -> tuple[Device, ...]:
        """The one device."""
        return () if self._device is None else (self._device,)

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """The host's load and memory, and those of each process in `trees`."""
        if self._device is None:
            return ()
        unknown = {"memory_utilization": "a CPU's memory bandwidth is not counted"}
        utilization = self._utilization(now)
        if utilization is None:
            unknown["utilization"] = "it takes two looks to tell"
        return (
            DeviceReading(
                uuid=self._device.uuid,
                read_at=now,
                utilization=utilization,
                memory_used_bytes=self._used(self._device.capacity_bytes),
                processes=self._processes.read(trees, now),
                unknown=unknown,
            ),
        )

    def _utilization(self, now: float) -> float | None:
        busy = self._busy_seconds()
        before, self._busy = self._busy, (busy, now)
        if before is None or now <= before[1]:
            return None
        share = (busy - before[0]) / (now - before[1]) / self._cores
        return min(1.0, max(0.0, share))

    def _busy_seconds(self) -> float:
        """CPU time taken so far: by the group under a quota, else by all, on the usable cores."""
        if self._group.cpu_limit() is not None:
            seconds = self._group.cpu_seconds()
            if seconds is not None:
                return seconds
        allowed = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        usable = [one for core, one in enumerate(times) if core in allowed] or times
        # Guest time is part of user time already.
        return sum(sum(one) - one.idle - one.iowait - one.guest - one.guest_nice for one in usable)

    def _used(self, capacity: int) -> int:
        memory = psutil.virtual_memory()
        free = int(memory.available)
        charged = self._group.memory_used()
        if charged is not None:
            free = min(free, max(0, (self._group.memory_limit() or capacity) - charged))
        return max(0, capacity - free)


def usable_cores(group: ControlGroup) -> float:
    """Cores' worth of time that this process may use: its affinity, or less by a quota."""
    cores = float(len(os.sched_getaffinity(0)))
    limit = group.cpu_limit()
    return cores if limit is None else min(cores, limit)


def usable_memory(group: ControlGroup) -> int:
    """Bytes that this process may use: the machine's memory, or the control group's limit."""
    total = int(psutil.virtual_memory().total)
    limit = group.memory_limit()
    return total if limit is None else min(total, limit)


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()[:100]
    return "CPU"


def machine_uuid(etc: Path = Path("/etc")) -> str:
    """Stable for this machine, and not its identity in clear."""
    identity = b""
    for path in (etc / "machine-id", Path("/var/lib/dbus/machine-id")):
        with contextlib.suppress(OSError):
            identity = path.read_bytes().strip()
        if identity:
            break
    identity = identity or os.uname().nodename.encode()
    return "CPU-" + hashlib.sha256(b"horus-lab cpu " + identity).hexdigest()[:16]
