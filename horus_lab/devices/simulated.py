"""Simulated devices: they play their residents' predicted load. Marked SIM wherever they show."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping

from horus_lab.devices.margins import gpu_margin
from horus_lab.errors import ConfigurationError
from horus_lab.predict.specs import SPECS, spec_for
from horus_lab.records import (
    Device,
    DeviceKind,
    DeviceReading,
    Interval,
    Prediction,
    ProcessReading,
)

_WOBBLE = 0.03
_MOST_DEVICES = 1024


class SimulatedProbe:
    """Devices that exist on paper.

    A resident holds its prediction's middle memory and loads the device with its middle
    utilization, give or take 3 % from a seeded generator, so that charts move and tests repeat.
    Loads that add up to more than the device are cut down in proportion. What a prediction does
    not know is unknown of the device, too.

    Args:
        description: like `2xA100-80GB,1xT4`.
        seed: of the generator.

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
        """Each device as its residents would load it.

        A resident shows as one process: the first of its tree, which in truth runs on the CPU.
        """
        return tuple(self._play(device, now, trees) for device in self._devices)

    def _play(
        self, device: Device, now: float, trees: Mapping[str, frozenset[int]]
    ) -> DeviceReading:
        residents = self._residents.get(device.uuid, {})
        held = {job: _middle(each.memory_bytes) for job, each in residents.items()}
        loads = {job: self._wobbling(each.utilization) for job, each in residents.items()}
        bandwidths = [self._wobbling(each.memory_utilization) for each in residents.values()]
        busy = _total(loads.values())
        memory = _total(held.values())
        bandwidth = _total(bandwidths)
        crowding = max(1.0, busy or 0.0)
        processes = []
        for job in residents:
            pids = trees.get(job)
            count, load = held[job], loads[job]
            if pids:
                processes.append(
                    ProcessReading(
                        pid=min(pids),
                        memory_bytes=None if count is None else int(count),
                        utilization=None if load is None or busy is None else load / crowding,
                        name="simulated",
                    )
                )
        unknown = {
            name: "a resident's prediction does not say"
            for name, value in (
                ("utilization", busy),
                ("memory_utilization", bandwidth),
                ("memory_used_bytes", memory),
            )
            if value is None
        }
        return DeviceReading(
            uuid=device.uuid,
            read_at=now,
            utilization=None if busy is None else min(1.0, busy),
            memory_utilization=None if bandwidth is None else min(1.0, bandwidth),
            memory_used_bytes=None if memory is None else min(int(memory), device.capacity_bytes),
            processes=tuple(processes),
            unknown=unknown,
        )

    def _wobbling(self, interval: Interval | None) -> float | None:
        if interval is None:
            return None
        return interval.p50 * (1 + self._random.uniform(-_WOBBLE, _WOBBLE))


def _middle(interval: Interval | None) -> float | None:
    return None if interval is None else interval.p50


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; unknown where a part is."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


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
                hint=f"Known ones: {', '.join(SPECS)}.",
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
                    margin_bytes=gpu_margin(spec.memory_bytes),
                    spec=spec,
                    simulated=True,
                )
            )
    return tuple(devices)
