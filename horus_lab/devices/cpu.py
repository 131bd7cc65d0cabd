"""The host's CPU as a device: real, measured, for machines without a GPU.

Capacity is the memory that this process may use: the machine's, or less where a control group
says so. A process's memory is its resident set less what it shares with files (libraries that
every kernel maps), so that kernels are not charged for the same pages; its utilization is the CPU
time it took since the last look, over the time and the cores.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from horus_lab.predict.cpu_spec import measure_cpu
from horus_lab.records import Device, DeviceKind, DeviceReading, DeviceSpec, Health, ProcessReading

_MARGIN_SHARE = 0.05
_LEAST_MARGIN = 256 * 2**20
_MOST_MARGIN = 4 * 2**30
_CGROUP = Path("/sys/fs/cgroup")

MeasureCpu = Callable[[int, int, str], DeviceSpec]


def _measure(cores: int, memory_bytes: int, name: str) -> DeviceSpec:
    return measure_cpu(cores, memory_bytes, name=name)


class CpuProbe:
    """One device: this host's CPU.

    Args:
        measure: cores, memory bytes and name -> the device's specification; called once.
    """

    name = "cpu"

    def __init__(self, *, measure: MeasureCpu = _measure) -> None:
        self._measure = measure
        self._device: Device | None = None
        self._cores = usable_cores()
        self._busy: tuple[float, float] | None = None
        self._times: dict[tuple[int, int], tuple[float, float]] = {}

    def open(self) -> None:
        """Measure the CPU, once."""
        if self._device is not None:
            return
        memory = usable_memory()
        model = cpu_model()
        self._device = Device(
            uuid=_machine_uuid(),
            name="CPU",
            index=0,
            kind=DeviceKind.CPU,
            capacity_bytes=memory,
            margin_bytes=int(min(_MOST_MARGIN, max(_LEAST_MARGIN, _MARGIN_SHARE * memory))),
            spec=self._measure(self._cores, memory, model),
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
        unknown: dict[str, str] = {
            "memory_utilization": "a CPU does not count its memory bandwidth"
        }
        utilization = self._utilization(now)
        if utilization is None:
            unknown["utilization"] = "needs two looks"
        used = self._used()
        pids = sorted({pid for tree in trees.values() for pid in tree})
        processes = [reading for pid in pids if (reading := self._process(pid, now))]
        keep = set(pids)
        self._times = {key: value for key, value in self._times.items() if key[0] in keep}
        return (
            DeviceReading(
                uuid=self._device.uuid,
                read_at=now,
                health=Health.OK,
                utilization=utilization,
                memory_used_bytes=used,
                processes=tuple(processes),
                unknown=unknown,
            ),
        )

    def _utilization(self, now: float) -> float | None:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        before, self._busy = self._busy, (total - idle, now)
        if before is None or now <= before[1]:
            return None
        busy = (total - idle - before[0]) / (now - before[1]) / self._cores
        return min(1.0, max(0.0, busy))

    def _used(self) -> int:
        memory = psutil.virtual_memory()
        used = int(memory.total - memory.available)
        limited = _cgroup_used()
        return used if limited is None else limited

    def _process(self, pid: int, now: float) -> ProcessReading | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory = process.memory_info()
                times = process.cpu_times()
                name = process.name()
                started = int(process.create_time() * 100)
        except (psutil.Error, OSError):
            return None
        spent = times.user + times.system
        key = (pid, started)
        before = self._times.get(key)
        self._times[key] = (spent, now)
        utilization = None
        if before is not None and now > before[1]:
            utilization = min(1.0, max(0.0, (spent - before[0]) / (now - before[1]) / self._cores))
        return ProcessReading(
            pid=pid,
            memory_bytes=max(0, memory.rss - memory.shared),
            utilization=utilization,
            name=name,
        )


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or less by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def usable_memory() -> int:
    """Bytes that this process may use: the machine's memory, or the control group's limit."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            total = min(total, int(limit))
    return total


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()[:100]
    return "CPU"


def _cgroup_used() -> int | None:
    """Bytes charged to a limited control group, less page cache that can be dropped."""
    try:
        if (_CGROUP / "memory.max").read_text().strip() == "max":
            return None
        current = int((_CGROUP / "memory.current").read_text())
        rows = dict(
            line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines() if line
        )
        return max(0, current - int(rows.get("inactive_file", "0")))
    except (OSError, ValueError):
        return None


def _machine_uuid() -> str:
    """Stable for this machine, and not its identity in clear."""
    identity = b""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            identity = Path(path).read_bytes().strip()
            if identity:
                break
    identity = identity or os.uname().nodename.encode()
    return "CPU-" + hashlib.sha256(b"horus-lab cpu " + identity).hexdigest()[:16]
