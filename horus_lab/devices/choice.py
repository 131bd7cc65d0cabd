"""From a setting to a probe: `auto`, `nvml`, `cpu`, or `sim:…`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horus_lab.devices.cpu import CpuProbe
from horus_lab.devices.nvml import NvmlProbe
from horus_lab.devices.probe import Probe
from horus_lab.devices.simulated import SimulatedProbe
from horus_lab.errors import ConfigurationError, DeviceUnavailable

# Without persistence mode the driver takes a second or two for each GPU to wake.
_PATIENCE_SECONDS = 20.0


def choose_probe(
    setting: str,
    *,
    nvml: Callable[[], Probe] = NvmlProbe,
    cpu: Callable[[], Probe] = CpuProbe,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> tuple[Probe, tuple[str, ...]]:
    """The probe that the setting names, and what people should know about the choice.

    `auto`, or nothing, takes NVML where it shows at least one GPU, and the CPU elsewhere, with the
    reason. A driver that hangs counts as none.

    Args:
        nvml, cpu: make these probes.
        patience_seconds: how long `auto` waits for the driver.

    Raises:
        ConfigurationError: the setting cannot be understood.
    """
    chosen = setting.strip()
    if chosen.startswith("sim:"):
        probe: Probe = SimulatedProbe(chosen.removeprefix("sim:"))
        return probe, ("These devices are simulated: they play what is predicted.",)
    if chosen == "cpu":
        return cpu(), ()
    if chosen == "nvml":
        return nvml(), ()
    if chosen in ("", "auto"):
        probe = nvml()
        why = _why_not(probe, patience_seconds)
        if not why:
            return probe, ()
        return cpu(), (f"No GPU here ({why}): the CPU is the device.",)
    raise ConfigurationError(
        f"{setting!r} names no devices.", hint="Use auto, nvml, cpu, or sim:2xA100-80GB."
    )


def _why_not(probe: Probe, patience_seconds: float) -> str:
    """Why this probe shows no device; empty where it shows one. It is left open then."""
    answers: list[str] = []

    def ask() -> None:
        try:
            probe.open()
            answers.append("" if probe.devices() else "the driver shows none")
        except DeviceUnavailable as error:
            answers.append(str(error).rstrip("."))
        if answers[0]:
            probe.close()

    # In a thread of its own: a call into a driver that hangs cannot be taken back.
    asking = threading.Thread(target=ask, name="horus-probe-choice", daemon=True)
    asking.start()
    asking.join(patience_seconds)
    return answers[0] if answers else f"the driver has not answered for {patience_seconds:g} s"
