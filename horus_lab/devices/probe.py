"""One protocol for everything that can list devices and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from horus_lab.records import Device, DeviceReading, Prediction, ProcessIdentity


class Probe(Protocol):
    """Lists devices and reads them. Called from the sampler's thread only.

    A probe never raises for one bad device: that device's reading says `LOST` or carries the
    missing values' reasons.
    """

    @property
    def name(self) -> str:
        """`nvml`, `cpu` or `sim`."""
        ...

    def open(self) -> None:
        """Take what is needed (a driver handle). Raises `DeviceUnavailable` with the reason."""
        ...

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """The devices as they are now."""
        ...

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """One reading a device. `trees` maps each job that holds or waits to its live pids.

        NVML lists every process by itself and ignores `trees`; the CPU probe reads exactly these
        processes, and reports each of them in `DeviceReading.processes`.
        """
        ...


class ResidentAware(Protocol):
    """A probe that plays residents itself (the simulated one)."""

    def set_residents(self, residents: Mapping[str, Mapping[str, Prediction]]) -> None:
        """Device UUID -> job id -> the prediction to play."""
        ...


class ProcessTable(Protocol):
    """Looks at processes. The real one uses psutil; tests script one."""

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The process's identity, or `None` where there is no such process."""
        ...

    def alive(self, process: ProcessIdentity) -> bool:
        """Whether exactly this process (not a later one with its pid) still runs."""
        ...

    def tree(self, process: ProcessIdentity) -> frozenset[int]:
        """Live pids of the process and its descendants; empty when all of them are gone.

        Descendants that outlive the process still count: what they hold is the job's.
        """
        ...
