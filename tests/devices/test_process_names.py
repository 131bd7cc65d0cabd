"""Names and users for people; in a container no foreign process is taken for one of ours."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from horus_lab.devices.nvml import NvmlProbe
from horus_lab.devices.nvml_processes import NvmlProcesses
from horus_lab.devices.process_names import ANOTHER_USER, DriverPids, ProcessNames
from horus_lab.devices.procfs import INITIAL_PID_NAMESPACE, ProcFs
from horus_lab.records import DeviceReading
from horus_lab.testing import ScriptedCard, ScriptedNvml

GIB = 2**30
INSIDE = 4026532777


def test_a_process_is_named_with_its_user() -> None:
    name, user = ProcessNames().of(os.getpid())
    assert name == Path("/proc/self/comm").read_text().strip()
    assert user == pwd.getpwuid(os.getuid()).pw_name


def test_a_process_that_may_not_be_looked_at_is_another_user_s(tmp_path: Path) -> None:
    def hidden(pid: int, signal: int) -> None:
        raise PermissionError

    def missing(pid: int, signal: int) -> None:
        raise ProcessLookupError

    assert ProcessNames(ProcFs(tmp_path, kill=hidden)).of(7) == (None, ANOTHER_USER)
    assert ProcessNames(ProcFs(tmp_path, kill=missing)).of(7) == (None, None)


def test_a_user_without_a_name_is_shown_by_number(tmp_path: Path) -> None:
    _process(tmp_path, 7, owner=3_999_999_999)
    assert ProcessNames(ProcFs(tmp_path)).of(7) == ("train", "3999999999")


def test_a_later_process_with_the_same_pid_gets_its_own_name(tmp_path: Path) -> None:
    names = ProcessNames(ProcFs(tmp_path))
    _process(tmp_path, 7, started=1, name="first")
    assert names.of(7)[0] == "first"
    _process(tmp_path, 7, started=2, name="second")
    assert names.of(7)[0] == "second"


def test_outside_of_containers_the_driver_s_pids_are_taken_as_they_are(tmp_path: Path) -> None:
    pids = DriverPids(_namespace(tmp_path, INITIAL_PID_NAMESPACE))
    assert pids.same
    assert pids.here(1234) == 1234


def test_inside_a_container_a_number_of_the_machine_is_not_taken_for_one_of_ours(
    tmp_path: Path,
) -> None:
    own = _namespace(tmp_path, INSIDE)
    # The container has a process 1234 of its own, which does not use the GPU.
    reading = _look(DriverPids(own), {1234: 5 * GIB})
    (process,) = reading.processes
    assert process.pid == 0
    assert process.memory_bytes == 5 * GIB
    assert process.name is not None
    assert "outside this container" in process.name
    assert reading.memory_used_bytes == 5 * GIB
    assert "container" in reading.unknown["processes"]


def test_inside_a_container_the_machine_s_proc_tells_which_process_is_ours(
    tmp_path: Path,
) -> None:
    own, machine = _namespace(tmp_path / "own", INSIDE), tmp_path / "machine"
    _process(machine, 1234, namespace=INSIDE, inner=17)
    _process(machine, 1300, namespace=4026532999, inner=17)  # another container's 17
    reading = _look(DriverPids(own, ProcFs(machine)), {1234: 5 * GIB, 1300: GIB})
    assert sorted((one.pid, one.memory_bytes) for one in reading.processes) == [
        (0, GIB),
        (17, 5 * GIB),
    ]


def test_an_empty_list_inside_a_container_is_no_proof_that_nobody_is_there(
    tmp_path: Path,
) -> None:
    pids = DriverPids(_namespace(tmp_path, INSIDE))
    script = ScriptedNvml([ScriptedCard(uuid="GPU-0", name="NVIDIA A100", utilization=100)])
    probe = NvmlProbe(library=script, processes=NvmlProcesses(pids=pids))
    probe.open()
    readings = [probe.read(float(turn), {})[0] for turn in range(6)]
    # Another container may well use all of it.
    assert [reading.utilization for reading in readings] == [1.0] * 6
    assert readings[-1].unknown["processes"]


def _look(pids: DriverPids, compute: dict[int, int | None]) -> DeviceReading:
    used = sum(count or 0 for count in compute.values())
    card = ScriptedCard(uuid="GPU-0", name="NVIDIA A100", used=used, compute=compute)
    probe = NvmlProbe(library=ScriptedNvml([card]), processes=NvmlProcesses(pids=pids))
    probe.open()
    (reading,) = probe.read(1.0, {})
    return reading


def _namespace(root: Path, inode: int) -> ProcFs:
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").symlink_to(f"pid:[{inode}]")
    return ProcFs(root)


def _process(
    root: Path,
    pid: int,
    *,
    started: int = 1,
    name: str = "train",
    owner: int = 0,
    namespace: int = INITIAL_PID_NAMESPACE,
    inner: int | None = None,
) -> None:
    folder = root / str(pid)
    (folder / "ns").mkdir(parents=True, exist_ok=True)
    link = folder / "ns/pid"
    link.unlink(missing_ok=True)
    link.symlink_to(f"pid:[{namespace}]")
    (folder / "comm").write_text(name + "\n")
    (folder / "stat").write_text(f"{pid} ({name}) S 1 1 1 {' '.join(['0'] * 15)} {started} 0")
    (folder / "status").write_text(f"Uid:\t{owner}\t0\t0\t0\nNSpid:\t{pid}\t{inner or pid}\n")
