"""The probe with the real nvidia-ml-py, over a small `libnvidia-ml.so.1` that the tests build.

Everything from the probe down to the C structures is what runs on a GPU machine; only the library
below is ours (`libnvidia_ml.c`), scripted by a file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from horus_lab.records import Device, DeviceKind, DeviceReading, Health

GIB = 2**30
COMPILER = shutil.which("cc") or shutil.which("gcc")
SOURCE = Path(__file__).with_name("libnvidia_ml.c")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

T = TypeVar("T")


class Machine:
    """A process that reads a scripted machine's GPUs."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._script = folder / "nvml.txt"
        self._script.write_text("")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.devices.nvml_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library),
                "HORUS_TEST_NVML": str(self._script),
            },
        )

    def script(self, *lines: str) -> None:
        """What the library says from now on."""
        written = self._script.with_suffix(".new")
        written.write_text("".join(f"{line}\n" for line in lines))
        written.replace(self._script)

    def open(self) -> str | None:
        return self._ask("open", str | None)  # type: ignore[arg-type]

    def devices(self) -> dict[str, Device]:
        return {one.uuid: one for one in self._ask("devices", list[Device])}

    def read(self) -> dict[str, DeviceReading]:
        return {one.uuid: one for one in self._ask("read", list[DeviceReading])}

    def refusal(self, command: str) -> str:
        return self._ask(command, str)

    def end(self) -> None:
        self._child.kill()
        self._child.communicate()

    def _ask(self, command: str, kind: type[T]) -> T:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()
        return msgspec.json.decode(self._child.stdout.readline(), type=kind)


def build(folder: Path, *flags: str) -> Path:
    assert COMPILER is not None
    target = folder / "libnvidia-ml.so.1"
    command = [COMPILER, *flags, "-shared", "-fPIC", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[[Path], Machine]]:
    machines: list[Machine] = []

    def make(library: Path) -> Machine:
        folder = tmp_path / str(len(machines))
        folder.mkdir()
        machines.append(Machine(folder, library))
        return machines[-1]

    yield make
    for machine in machines:
        machine.end()


@pytest.fixture
def machine(boot: Callable[[Path], Machine], library: Path) -> Machine:
    return boot(library)


def card(
    uuid: str,
    index: int,
    *,
    total: int = 80 * GIB,
    reserved: int = 0,
    used: int = 0,
    load: int = 0,
    mode: int = 0,
    mig: int = -1,
    parent: str = "-",
    name: str = "NVIDIA A100-SXM4-80GB",
) -> str:
    return f"device {uuid} {parent} {index} {total} {reserved} {used} {load} 7 {mode} {mig} {name}"


def test_two_gpus_are_read_whole(machine: Machine) -> None:
    machine.script(
        card("GPU-a", 0, reserved=GIB, used=10 * GIB, load=60),
        card("GPU-b", 1, mode=3, name="NVIDIA H100 80GB HBM3"),
        f"process GPU-a c 7001 {6 * GIB}",
        f"process GPU-a g 7001 {6 * GIB}",
        f"process GPU-a m 7002 {3 * GIB}",
        "load GPU-a 7001 45",
    )
    assert machine.open() is None
    devices = machine.devices()
    assert list(devices) == ["GPU-a", "GPU-b"]
    assert devices["GPU-a"].capacity_bytes == 79 * GIB
    assert devices["GPU-b"].spec.model == "H100-80GB"
    assert devices["GPU-b"].max_residents == 1
    reading = machine.read()["GPU-a"]
    assert reading.health is Health.OK
    assert reading.memory_used_bytes == 10 * GIB
    assert (reading.utilization, reading.memory_utilization) == (0.6, 0.07)
    seen = [(one.pid, one.memory_bytes, one.utilization) for one in reading.processes]
    assert seen == [(7001, 6 * GIB, 0.45), (7002, 3 * GIB, 0.0)]


def test_slices_stand_for_their_card(machine: Machine) -> None:
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    machine.script(
        card("GPU-a", 0, mig=1),
        card("MIG-x", 0, parent="GPU-a", total=40 * GIB, used=GIB, name=name),
        card("MIG-y", 3, parent="GPU-a", total=40 * GIB, name=name),
        f"process MIG-x c 7001 {GIB}",
    )
    machine.open()
    devices = machine.devices()
    assert list(devices) == ["MIG-x", "MIG-y"]
    assert {one.kind for one in devices.values()} == {DeviceKind.MIG}
    readings = machine.read()
    assert readings["MIG-x"].utilization is None
    assert readings["MIG-x"].memory_used_bytes == GIB
    assert [one.pid for one in readings["MIG-x"].processes] == [7001]
    machine.script(card("GPU-a", 0, mig=0))
    assert {one.health for one in machine.read().values()} == {Health.LOST}
    assert list(machine.devices()) == ["GPU-a"]


def test_a_gpu_that_falls_off_the_bus_is_one_gpu(machine: Machine) -> None:
    well = [card("GPU-a", 0), card("GPU-b", 1)]
    machine.script(*well)
    machine.open()
    listed = machine.devices()
    machine.script(*well, "fail GPU-a * 15", "fail GPU-a nvmlDeviceGetHandleByIndex 15")
    assert machine.devices() == listed
    readings = machine.read()
    assert (readings["GPU-a"].health, readings["GPU-b"].health) == (Health.LOST, Health.OK)
    machine.script(*well)
    assert machine.read()["GPU-a"].health is Health.OK


def test_memory_that_processes_do_not_show_is_unknown(machine: Machine) -> None:
    machine.script(card("GPU-a", 0, used=GIB), "process GPU-a c 7001 -1")
    machine.open()
    machine.devices()
    (process,) = machine.read()["GPU-a"].processes
    assert process.memory_bytes is None


def test_unified_memory_is_not_a_lost_device(machine: Machine) -> None:
    machine.script(card("GPU-a", 0, name="NVIDIA GB10"), "fail GPU-a nvmlDeviceGetMemoryInfo 3")
    machine.open()
    (device,) = machine.devices().values()
    assert "shared with the system" in device.name
    assert machine.read()["GPU-a"].health is Health.OK


def test_a_driver_that_is_upgraded_under_its_library_says_so(machine: Machine) -> None:
    machine.script("init 18")
    assert "upgraded under its library" in machine.refusal("open")


def test_an_old_driver_is_read_by_its_older_functions(
    boot: Callable[[Path], Machine], tmp_path: Path
) -> None:
    machine = boot(build(tmp_path, "-DWITHOUT_MEMORY_V2", "-DWITHOUT_PROCESSES_V3"))
    machine.script(card("GPU-a", 0, reserved=GIB, used=GIB), f"process GPU-a c 7001 {GIB}")
    machine.open()
    assert machine.devices()["GPU-a"].capacity_bytes == 80 * GIB
    reading = machine.read()["GPU-a"]
    assert reading.memory_used_bytes == 2 * GIB
    assert reading.unknown["memory_reserved"]
    assert [one.memory_bytes for one in reading.processes] == [GIB]


def test_without_a_driver_the_real_module_s_refusal_is_told(
    boot: Callable[[Path], Machine], tmp_path: Path
) -> None:
    # On a machine with a driver the loader finds the true library.
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert "Library Not Found" in boot(tmp_path).refusal("open")
