"""The tests' own place in the machine, whatever container they run in."""

from __future__ import annotations

from horus_lab.devices.nvml_processes import NvmlProcesses
from horus_lab.devices.process_names import DriverPids
from horus_lab.devices.procfs import INITIAL_PID_NAMESPACE, ProcFs


class FirstNamespace(ProcFs):
    """The real `/proc`, as if outside of every container."""

    def own_namespace(self) -> int:
        return INITIAL_PID_NAMESPACE


def outside_of_containers() -> NvmlProcesses:
    """Process lists read as on a machine itself."""
    return NvmlProcesses(pids=DriverPids(FirstNamespace()))
