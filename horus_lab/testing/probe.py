"""A probe that shows what a test wants seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from horus_lab.errors import DeviceUnavailable
from horus_lab.records import Device, DeviceReading


class ScriptedProbe:
    """Fixed devices, and a list of looks at them.

    Each `read` gives the next look; the last one is repeated. A look is the readings to give, or
    an exception to raise. Without any look every device is idle and empty.

    Args:
        devices: what `devices` lists; may be replaced between looks (`probe.listed = ...`).
        looks: the looks, in order; more may be appended (`probe.looks.append(...)`).

    Attributes:
        trees: the process trees that the last `read` was given.
        opened: whether it is open now.
        unavailable: the reason for which `open` fails; empty: it does not.
    """

    name = "scripted"

    def __init__(
        self,
        devices: Iterable[Device],
        looks: Iterable[tuple[DeviceReading, ...] | Exception] = (),
    ) -> None:
        self.listed = tuple(devices)
        self.looks = list(looks)
        self.trees: Mapping[str, frozenset[int]] = {}
        self.opened = False
        self.unavailable = ""

    def open(self) -> None:
        """Open.

        Raises:
            DeviceUnavailable: the script says so.
        """
        if self.unavailable:
            raise DeviceUnavailable(self.unavailable)
        self.opened = True

    def close(self) -> None:
        """Close. Safe to call twice."""
        self.opened = False

    def devices(self) -> tuple[Device, ...]:
        """The scripted devices."""
        return self.listed

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """The next look, dated `now`.

        Raises:
            Exception: where the look is one.
        """
        self.trees = dict(trees)
        if not self.looks:
            return tuple(
                DeviceReading(
                    uuid=device.uuid,
                    read_at=now,
                    utilization=0.0,
                    memory_utilization=0.0,
                    memory_used_bytes=0,
                )
                for device in self.listed
            )
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return tuple(replace(reading, read_at=now) for reading in look)
