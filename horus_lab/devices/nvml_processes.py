"""Who is on a GPU: compute, graphics and MPS processes, their bytes and their load."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from horus_lab.devices.nvml_query import Nvml, Unknown, percent, readable_bytes
from horus_lab.devices.process_names import DriverPids, ProcessNames
from horus_lab.records import ProcessReading

_MOST_PID = 2**31
_LISTS = ("Compute", "Graphics", "MPSCompute")


class OnDevice(Struct, frozen=True):
    """The processes on one device.

    Attributes:
        readings: one for each process; pid 0 stands for one that has no pid here.
        nobody: every list could be read, and all of them are empty.
        unknown: why values are missing.
    """

    readings: tuple[ProcessReading, ...]
    nobody: bool
    unknown: dict[str, str] = field(default_factory=dict)


class NvmlProcesses:
    """Reads the process lists of devices, and remembers what was sampled already.

    Args:
        names: looks up names and users.
        pids: translates the driver's pids.
    """

    def __init__(self, names: ProcessNames | None = None, pids: DriverPids | None = None) -> None:
        self._names = names or ProcessNames()
        self._pids = pids or DriverPids()
        self._sampled: dict[str, int] = {}

    def on(
        self, nvml: Nvml, uuid: str, handle: Any, *, most_bytes: int, busy: float | None
    ) -> OnDevice:
        """The processes on this device.

        Args:
            most_bytes: more than these cannot be a process's; such a count is garbage.
            busy: the whole device's utilization, where known.

        Raises:
            DeviceLost: the device stopped answering.
            DeviceUnavailable: NVML stopped working.
        """
        unknown: dict[str, str] = {}
        held, complete = self._lists(nvml, handle, most_bytes, unknown)
        loads = self._loads(nvml, uuid, handle, busy, held)
        readings = []
        outside = 0
        for pid, count in sorted(held.items()):
            here = self._pids.here(pid)
            if here is None:
                outside += 1
                name: str | None = f"outside this container ({pid} on the machine)"
                user = None
            else:
                name, user = self._names.of(here)
            readings.append(
                ProcessReading(
                    pid=here or 0,
                    memory_bytes=count,
                    utilization=loads.get(pid),
                    name=name,
                    user=user,
                )
            )
        if outside:
            unknown["processes"] = (
                f"{outside} of them cannot be told apart from inside this container: "
                "the driver numbers processes as the machine does"
            )
        elif not held and not self._pids.same:
            unknown["processes"] = "the driver may hide other containers' processes"
        nobody = complete and not held and self._pids.same
        return OnDevice(tuple(readings), nobody, unknown)

    def _lists(
        self, nvml: Nvml, handle: Any, most_bytes: int, unknown: dict[str, str]
    ) -> tuple[dict[int, int | None], bool]:
        """Each process once, with its bytes where readable; and whether all lists were read."""
        held: dict[int, int | None] = {}
        complete = True
        for kind in _LISTS:
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            answer = nvml.ask_newest((f"{name}_v3", f"{name}_v2"), handle)
            if isinstance(answer, Unknown):
                # Old drivers have no list of MPS clients: those are in the compute list then.
                if kind != "MPSCompute":
                    complete = False
                    unknown.setdefault("processes", answer.why)
                continue
            for process in answer:
                pid = int(process.pid)
                if not 0 < pid < _MOST_PID:
                    continue
                count = readable_bytes(process.usedGpuMemory, most_bytes)
                # One process in two lists has its bytes in both.
                told = [bytes_ for bytes_ in (held.get(pid), count) if bytes_ is not None]
                held[pid] = max(told, default=None)
        if None in held.values():
            unknown.setdefault(
                "process_memory", "the driver does not tell how much each process uses"
            )
        return held, complete

    def _loads(
        self,
        nvml: Nvml,
        uuid: str,
        handle: Any,
        busy: float | None,
        held: dict[int, int | None],
    ) -> dict[int, float]:
        """Each process's share of the multiprocessors by the newest sample since the last look.

        The driver only samples processes that did something. So where it answers, a process
        without a sample did nothing; where it has no samples at all, that is believed only of an
        idle device.
        """
        if not held:
            return {}
        library = nvml.library
        since = self._sampled.get(uuid, 0)
        samples = nvml.ask("nvmlDeviceGetProcessUtilization", handle, since)
        if isinstance(samples, Unknown):
            if samples.code == library.NVML_ERROR_NOT_FOUND and busy == 0.0:
                return dict.fromkeys(held, 0.0)
            return {}
        newest: dict[int, tuple[int, float | None]] = {}
        for sample in samples:
            pid, stamp = int(sample.pid), int(sample.timeStamp)
            if stamp > since and (pid not in newest or stamp > newest[pid][0]):
                newest[pid] = (stamp, percent(int(sample.smUtil)))
        if not newest:
            return {}
        self._sampled[uuid] = max(stamp for stamp, _ in newest.values())
        loads = dict.fromkeys(held, 0.0)
        for pid, (_, load) in newest.items():
            if load is None:
                loads.pop(pid, None)
            else:
                loads[pid] = load
        return loads
