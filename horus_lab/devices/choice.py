"""From a setting to a probe: `auto`, `nvml`, `cpu`, or `sim:…`."""

from __future__ import annotations

from horus_lab.devices.cpu import CpuProbe
from horus_lab.devices.nvml import NvmlProbe
from horus_lab.devices.probe import Probe
from horus_lab.devices.simulated import SimulatedProbe
from horus_lab.errors import ConfigurationError, DeviceUnavailable


def choose_probe(setting: str) -> tuple[Probe, tuple[str, ...]]:
    """The probe that the setting names, and what people should know about the choice.

    `auto` takes NVML where it shows at least one GPU, and the CPU elsewhere, with the reason.

    Raises:
        ConfigurationError: the setting cannot be understood.
    """
    chosen = setting.strip()
    if chosen.startswith("sim:"):
        return SimulatedProbe(chosen.removeprefix("sim:")), ("These devices are simulated.",)
    if chosen == "cpu":
        return CpuProbe(), ()
    if chosen == "nvml":
        return NvmlProbe(), ()
    if chosen in ("", "auto"):
        probe = NvmlProbe()
        try:
            probe.open()
            if probe.devices():
                return probe, ()
            why = "the driver shows none"
            probe.close()
        except DeviceUnavailable as error:
            why = error.message.rstrip(".")
        return CpuProbe(), (f"No GPU here ({why}): the CPU is the device.",)
    raise ConfigurationError(
        f"{setting!r} names no devices.", hint="Use auto, nvml, cpu, or sim:2xA100-80GB."
    )
