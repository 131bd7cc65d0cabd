"""A setting names the devices; `auto` says why there is no GPU."""

from __future__ import annotations

import pytest

from horus_lab.devices.choice import choose_probe
from horus_lab.devices.nvml import NvmlProbe
from horus_lab.devices.probe import Probe
from horus_lab.errors import ConfigurationError
from horus_lab.testing import ScriptedNvml, ScriptedProbe, a_device


def cpu() -> Probe:
    return ScriptedProbe([a_device("CPU-x")])


def nvml(script: ScriptedNvml) -> Probe:
    return NvmlProbe(library=script)


@pytest.mark.parametrize("setting", ["auto", "", " auto "])
def test_auto_takes_the_gpus_where_there_are_some(setting: str) -> None:
    script = ScriptedNvml.with_cards(2)
    probe, notices = choose_probe(setting, nvml=lambda: nvml(script), cpu=cpu)
    assert [device.uuid for device in probe.devices()] == ["GPU-0", "GPU-1"]
    assert notices == ()


def test_auto_takes_the_cpu_where_the_driver_is_missing_and_says_why() -> None:
    script = ScriptedNvml()
    script.init_error = ScriptedNvml.NVML_ERROR_DRIVER_NOT_LOADED
    probe, (notice,) = choose_probe("auto", nvml=lambda: nvml(script), cpu=cpu)
    assert probe.name == "scripted"
    assert notice == "No GPU here (NVML: Driver Not Loaded): the CPU is the device."


def test_auto_takes_the_cpu_where_the_driver_shows_no_gpu_and_shuts_nvml_down() -> None:
    script = ScriptedNvml()
    probe, (notice,) = choose_probe("auto", nvml=lambda: nvml(script), cpu=cpu)
    assert probe.name == "scripted"
    assert "the driver shows none" in notice
    assert script.initialized == 0


def test_auto_does_not_wait_for_ever_on_a_driver_that_hangs() -> None:
    script = ScriptedNvml.with_cards(1)
    script.hold.set()
    probe, (notice,) = choose_probe(
        "auto", nvml=lambda: nvml(script), cpu=cpu, patience_seconds=0.05
    )
    assert probe.name == "scripted"
    assert "has not answered for 0.05 s" in notice
    script.released.set()


def test_nvml_and_cpu_are_taken_at_their_word_without_looking() -> None:
    script = ScriptedNvml()
    script.init_error = ScriptedNvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert choose_probe("nvml", nvml=lambda: nvml(script), cpu=cpu)[0].name == "nvml"
    assert choose_probe("cpu", nvml=lambda: nvml(script), cpu=cpu)[0].name == "scripted"
    assert not script.calls


def test_simulated_devices_are_said_to_be_simulated() -> None:
    probe, (notice,) = choose_probe("sim:2xA100-80GB")
    assert len(probe.devices()) == 2
    assert "simulated" in notice


@pytest.mark.parametrize("setting", ["gpu", "cuda:0", "sim", "NVML", "cpu,nvml"])
def test_anything_else_is_refused_with_the_forms_that_are_understood(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sim:2xA100-80GB"):
        choose_probe(setting)


def test_on_this_machine_auto_finds_some_device() -> None:
    probe, _ = choose_probe("auto", cpu=cpu)
    probe.open()
    assert probe.devices()
    probe.close()
