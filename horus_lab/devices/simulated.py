"""Simulated devices: they play their residents' predicted load. Marked SIM wherever they show."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from horus_lab.errors import ConfigurationError
from horus_lab.predict.specs import spec_for
from horus_lab.records import (
    Device,
    DeviceKind,
    DeviceReading,
    Health,
    Interval,
    Prediction,
    ProcessReading,
)

_MARGIN = 512 * 2**20
_WOBBLE = 0.03
_MOST_DEVICES = 1024


class SimulatedProbe:
    """Devices that exist on paper.

    A resident's memory and load are its prediction's middle values, with a small wobble from a
    seeded generator, so that charts move and tests repeat. Utilizations saturate at 1.

    Args:
        description: like `2xA100-80GB,1xT4`.

    Raises:
        ConfigurationError: the description cannot be understood.
    """

    name = "sim"

    def __init__(self, description: str, *, seed: int = 0) -> None:
        self._devices = parse_devices(description)
        self._random = random.Random(seed)  # noqa: S311 - a chart's wobble is no secret
        self._residents: Mapping[str, Mapping[str, Prediction]] = {}

    def open(self) -> None:
        """Nothing is to be taken."""

    def close(self) -> None:
        """Nothing is held."""

    def devices(self) -> tuple[Device, ...]:
        """The described devices."""
        return self._devices

    def set_residents(self, residents: Mapping[str, Mapping[str, Prediction]]) -> None:
        """Who trains where: device UUID -> job -> the prediction to play."""
        self._residents = residents

    def read(self, now: float, trees: Mapping[str, frozenset[int]]) -> tuple[DeviceReading, ...]:
        """Each device as its residents would load it."""
        return tuple(self._play(device, now, trees) for device in self._devices)

    def _play(
        self, device: Device, now: float, trees: Mapping[str, frozenset[int]]
    ) -> DeviceReading:
        processes = []
        memory = 0
        busy = bandwidth = 0.0
        for job_id, prediction in self._residents.get(device.uuid, {}).items():
            held = int(self._around(prediction.memory_bytes) or 0)
            load = self._around(prediction.utilization)
            memory += held
            busy += load or 0.0
            bandwidth += self._around(prediction.memory_utilization) or 0.0
            pids = sorted(trees.get(job_id, ()))
            if pids:
                processes.append(
                    ProcessReading(
                        pid=pids[0],
                        memory_bytes=held,
                        utilization=None if load is None else min(1.0, load),
                        name="simulated",
                    )
                )
        return DeviceReading(
            uuid=device.uuid,
            read_at=now,
            health=Health.OK,
            utilization=min(1.0, busy),
            memory_utilization=min(1.0, bandwidth),
            memory_used_bytes=min(memory, device.capacity_bytes),
            processes=tuple(processes),
        )

    def _around(self, interval: Interval | None) -> float | None:
        if interval is None:
            return None
        return interval.p50 * (1 + self._random.uniform(-_WOBBLE, _WOBBLE))


def parse_devices(description: str) -> tuple[Device, ...]:
    """`2xA100-80GB,1xT4` as devices.

    Raises:
        ConfigurationError: empty, malformed, an unknown model, or absurdly many.
    """
    devices: list[Device] = []
    for part in description.split(","):
        match = re.fullmatch(r"\s*(?:([0-9]{1,6})\s*[xX×]\s*)?([A-Za-z][\w .\-]*?)\s*", part)
        if match is None:
            raise ConfigurationError(
                f"{part!r} does not describe simulated devices.",
                hint="Write them like sim:2xA100-80GB,1xT4.",
            )
        count = int(match.group(1) or "1")
        spec = spec_for(match.group(2))
        if spec.source == "assumed":
            raise ConfigurationError(
                f"There is no specification of a device model {match.group(2)!r}.",
                hint="Known ones are listed in docs/devices.md: A100-80GB, H100-80GB, T4, …",
            )
        if not 1 <= count <= _MOST_DEVICES - len(devices):
            raise ConfigurationError(
                f"{part!r} asks for {count} devices.", hint=f"Between 1 and {_MOST_DEVICES} in all."
            )
        for _ in range(count):
            index = len(devices)
            devices.append(
                Device(
                    uuid=f"SIM-{index:04d}-{spec.model.replace(' ', '-')}",
                    name=f"GPU {index} ({spec.model})",
                    index=index,
                    kind=DeviceKind.SIMULATED,
                    capacity_bytes=spec.memory_bytes,
                    margin_bytes=_MARGIN,
                    spec=spec,
                    simulated=True,
                )
            )
    return tuple(devices)
