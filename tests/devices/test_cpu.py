"""The host's CPU is measured: processes really run and really hold memory here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from horus_lab.devices.control_group import ControlGroup
from horus_lab.devices.cpu import CpuProbe, machine_uuid, usable_cores, usable_memory
from horus_lab.devices.process_use import ProcessUse
from horus_lab.records import DeviceKind, DeviceSpec
from tests.devices.conftest import until

MIB = 2**20
GIB = 2**30


def spec(cores: int, memory_bytes: int, name: str) -> DeviceSpec:
    """Instead of a second of measuring."""
    return DeviceSpec(
        model=name,
        kind=DeviceKind.CPU,
        memory_bytes=memory_bytes,
        peak_flops={"float32": 1e11},
        memory_bandwidth=1e10,
        multiprocessors=cores,
        launch_seconds=1e-5,
        context_bytes=0,
    )


@pytest.fixture
def probe() -> CpuProbe:
    probe = CpuProbe(measure=spec)
    probe.open()
    return probe


Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program and waits for its first line."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            continue
        finally:
            process.wait()


def test_the_cpu_is_one_device_with_the_machine_s_memory(probe: CpuProbe) -> None:
    (device,) = probe.devices()
    assert device.kind is DeviceKind.CPU
    assert not device.simulated
    assert 0 < device.capacity_bytes <= psutil.virtual_memory().total
    assert 0 < device.margin_bytes < device.capacity_bytes
    assert device.spec.multiprocessors <= (os.cpu_count() or 1)


def test_it_is_measured_once_however_often_it_is_opened() -> None:
    measured: list[str] = []

    def measure(cores: int, memory_bytes: int, name: str) -> DeviceSpec:
        measured.append(name)
        return spec(cores, memory_bytes, name)

    probe = CpuProbe(measure=measure)
    assert probe.devices() == ()
    assert probe.read(0.0, {}) == ()
    probe.open()
    probe.open()
    assert len(measured) == 1


def test_its_uuid_stays_and_does_not_tell_the_machine_s_id(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    first = machine_uuid(tmp_path)
    assert first == machine_uuid(tmp_path)
    assert first.startswith("CPU-")
    assert "0123456789abcdef" not in first
    (tmp_path / "machine-id").write_text("another\n")
    assert machine_uuid(tmp_path) != first


def test_utilization_is_unknown_at_the_first_look_and_never_zero_for_that(
    probe: CpuProbe,
) -> None:
    (first,) = probe.read(100.0, {"a": frozenset({os.getpid()})})
    assert first.utilization is None
    assert first.unknown["utilization"]
    assert first.processes[0].utilization is None
    (second,) = probe.read(101.0, {"a": frozenset({os.getpid()})})
    assert second.utilization is not None
    assert second.processes[0].utilization is not None
    assert "memory_utilization" in second.unknown


def test_a_process_s_utilization_is_its_cpu_time_over_time_and_cores(start: Start) -> None:
    process = start("print(flush=True)\nwhile True: pass")
    use = ProcessUse(cores=4.0)
    tree = {"a": frozenset({process.pid})}
    started = psutil.Process(process.pid).cpu_times()
    use.read(tree, now=0.0)
    time.sleep(0.5)
    # The clock is given: 10 s pass by it, whatever really passed.
    (reading,) = use.read(tree, now=10.0)
    ended = psutil.Process(process.pid).cpu_times()
    most = (ended.user + ended.system - started.user - started.system) / 10.0 / 4.0
    assert reading.utilization is not None
    assert 0.0 < reading.utilization <= most


def test_a_process_s_memory_is_what_it_holds_itself(start: Start) -> None:
    bare = start("print(flush=True)\ninput()")
    full = start("held = bytearray(200 * 2**20)\nprint(flush=True)\ninput()")
    pids = [bare.pid, full.pid]
    trees = {str(pid): frozenset({pid}) for pid in pids}
    found = {one.pid: one.memory_bytes for one in ProcessUse(1.0).read(trees, 0.0)}
    held = (found[full.pid] or 0) - (found[bare.pid] or 0)
    assert held == pytest.approx(200 * MIB, rel=0.05)
    # Libraries are mapped by both and charged to neither.
    assert (found[bare.pid] or 0) < psutil.Process(bare.pid).memory_info().rss


FORKED = """
import os, sys, time
held = bytearray(200 * 2**20)
pids = [os.getpid()]
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        time.sleep(120)
    pids.append(pid)
print(*pids, flush=True)
time.sleep(120)
"""


def test_pages_that_a_process_shares_with_its_forks_are_counted_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        tree = frozenset(int(pid) for pid in process.stdout.readline().split())
        assert len(tree) == 4
        readings = ProcessUse(1.0).read({"a": tree}, 0.0)
        total = sum(one.memory_bytes or 0 for one in readings)
        # Four processes map the same 200 MiB; each has a few MiB of its own.
        assert 200 * MIB <= total < 300 * MIB
        resident = sum(psutil.Process(pid).memory_info().rss for pid in tree)
        assert resident > 800 * MIB
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_shared_memory_that_workers_hold_is_counted(start: Start) -> None:
    process = start(
        "import mmap, os, time\n"
        "held = mmap.mmap(-1, 100 * 2**20)\n"
        "held.write(b'x' * (100 * 2**20))\n"
        "pid = os.fork()\n"
        "if pid: print(flush=True)\n"
        "time.sleep(120)\n"
    )
    child = psutil.Process(process.pid).children()[0].pid
    readings = ProcessUse(1.0).read({"a": frozenset({process.pid, child})}, 0.0)
    assert sum(one.memory_bytes or 0 for one in readings) >= 100 * MIB


def test_a_share_of_shared_pages_is_used_again_until_memory_changes_or_seconds_pass(
    tmp_path: Path,
) -> None:
    use = ProcessUse(1.0, proc=tmp_path)
    tree = {"a": frozenset({10, 11})}
    page = os.sysconf("SC_PAGE_SIZE")
    _process(tmp_path, 10, resident_pages=1000, own_kib=1000)
    _process(tmp_path, 11, resident_pages=1000, own_kib=1000)

    def own(now: float) -> int | None:
        return use.read(tree, now)[0].memory_bytes

    assert own(0.0) == 1000 * 1024
    _process(tmp_path, 10, resident_pages=1000, own_kib=3000)
    assert own(1.0) == 1000 * 1024
    # 2 % more resident: the old share of what is resident now.
    _process(tmp_path, 10, resident_pages=1020, own_kib=3000)
    assert own(2.0) == int(1000 * 1024 * 1020 / 1000)
    # 10 % more: read anew.
    _process(tmp_path, 10, resident_pages=1100, own_kib=2000)
    assert own(3.0) == 2000 * 1024
    _process(tmp_path, 10, resident_pages=1100, own_kib=2500)
    assert own(8.5) == 2500 * 1024
    # Without the kernel's division: resident less file and shared pages (10 of them).
    (tmp_path / "10/smaps_rollup").unlink()
    assert own(20.0) == 1090 * page


def test_shares_are_read_so_rarely_that_reading_them_stays_cheap(tmp_path: Path) -> None:
    spent = 0.0

    def costly() -> float:
        nonlocal spent
        spent += 0.010
        return spent

    use = ProcessUse(1.0, proc=tmp_path, spent=costly)
    tree = {"a": frozenset({10, 11})}
    for pid in (10, 11):
        _process(tmp_path, pid, own_kib=1000)
    use.read(tree, 0.0)
    for pid in (10, 11):
        _process(tmp_path, pid, own_kib=2000)
    # Two processes of 10 ms each: 0.5 % of a core allows that every 4 s, and 5 s is the least.
    assert use.read(tree, 4.9)[0].memory_bytes == 1000 * 1024
    assert use.read(tree, 5.1)[0].memory_bytes == 2000 * 1024
    crowd = {"a": frozenset(range(10, 20))}
    for pid in range(10, 20):
        _process(tmp_path, pid, own_kib=3000)
    # Ten of them: every 20 s.
    assert use.read(crowd, 20.0)[0].memory_bytes == 2000 * 1024
    assert use.read(crowd, 25.2)[0].memory_bytes == 3000 * 1024


def test_a_later_process_with_the_same_pid_starts_with_unknown_utilization(
    tmp_path: Path,
) -> None:
    use = ProcessUse(1.0, proc=tmp_path)
    tree = {"a": frozenset({10})}
    _process(tmp_path, 10, started=1, ticks=10_000)
    use.read(tree, 0.0)
    _process(tmp_path, 10, started=2, ticks=10_001)
    assert use.read(tree, 1.0)[0].utilization is None


def test_a_process_of_two_jobs_is_read_once_and_a_gone_one_not_at_all(probe: CpuProbe) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    me = os.getpid()
    trees = {"a": frozenset({me, gone.pid}), "b": frozenset({me})}
    (reading,) = probe.read(1.0, trees)
    assert [one.pid for one in reading.processes] == [me]


def test_used_memory_is_what_is_not_available(
    probe: CpuProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = probe.devices()
    (real,) = probe.read(1.0, {})
    assert real.memory_used_bytes is not None
    assert 0 < real.memory_used_bytes < device.capacity_bytes
    memory = SimpleNamespace(total=device.capacity_bytes, available=device.capacity_bytes // 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    unlimited = CpuProbe(measure=spec, group=ControlGroup(Path("/none"), Path("/none")))
    unlimited.open()
    (reading,) = unlimited.read(2.0, {})
    assert reading.memory_used_bytes == device.capacity_bytes - device.capacity_bytes // 4


# --- control groups -----------------------------------------------------------------------------


def test_the_tightest_limit_on_the_way_up_holds(tmp_path: Path) -> None:
    proc, mount = _group(tmp_path, "0::/user/me/jupyter\n")
    _write(mount / "user/memory.max", 8 * GIB)
    _write(mount / "user/memory.current", 5 * GIB)
    _write(mount / "user/memory.stat", f"anon 1\ninactive_file {GIB}\n")
    _write(mount / "user/me/memory.max", "max")
    _write(mount / "user/me/jupyter/memory.max", 16 * GIB)
    _write(mount / "user/me/jupyter/memory.current", GIB)
    _write(mount / "user/cpu.max", "400000 100000")
    _write(mount / "user/me/cpu.max", "150000 100000")
    _write(mount / "user/me/jupyter/cpu.max", "max 100000")
    _write(mount / "user/me/jupyter/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    group = ControlGroup(proc, mount)
    assert group.memory_limit() == 8 * GIB
    assert group.memory_used() == 4 * GIB
    assert group.cpu_limit() == 1.5
    assert group.cpu_seconds() == 2.5


def test_version_one_groups_are_read_too(tmp_path: Path) -> None:
    proc, mount = _group(tmp_path, "4:memory:/lab\n2:cpuacct:/lab\n1:cpu:/lab\n0::/\n")
    _write(mount / "memory/memory.limit_in_bytes", 9223372036854771712)
    _write(mount / "memory/lab/memory.limit_in_bytes", 4 * GIB)
    _write(mount / "memory/lab/memory.usage_in_bytes", 3 * GIB)
    _write(mount / "memory/lab/memory.stat", f"cache 7\ntotal_inactive_file {GIB}\n")
    _write(mount / "cpu/lab/cpu.cfs_quota_us", 50000)
    _write(mount / "cpu/lab/cpu.cfs_period_us", 100000)
    _write(mount / "cpuacct/lab/cpuacct.usage", 1_500_000_000)
    group = ControlGroup(proc, mount)
    assert group.memory_limit() == 4 * GIB
    assert group.memory_used() == 2 * GIB
    assert group.cpu_limit() == 0.5
    assert group.cpu_seconds() == 1.5


def test_inside_a_container_the_mount_s_root_is_the_own_group(tmp_path: Path) -> None:
    proc, mount = _group(tmp_path, "0::/../../system.slice/docker-abc\n")
    _write(mount / "memory.max", 2 * GIB)
    assert ControlGroup(proc, mount).memory_limit() == 2 * GIB


@pytest.mark.parametrize("text", ["max", "", "nonsense", "-1"])
def test_no_limit_and_nonsense_are_no_limit(tmp_path: Path, text: str) -> None:
    proc, mount = _group(tmp_path, "0::/\n")
    _write(mount / "memory.max", text)
    _write(mount / "cpu.max", text)
    group = ControlGroup(proc, mount)
    assert group.memory_limit() is None
    assert group.memory_used() is None
    assert group.cpu_limit() is None
    assert usable_memory(group) == psutil.virtual_memory().total
    assert usable_cores(group) == len(os.sched_getaffinity(0))


def test_a_limited_machine_is_as_large_as_its_limit_and_as_full_as_its_group(
    tmp_path: Path,
) -> None:
    proc, mount = _group(tmp_path, "0::/\n")
    _write(mount / "memory.max", GIB)
    _write(mount / "memory.current", 300 * MIB)
    _write(mount / "memory.stat", "inactive_file 0\n")
    _write(mount / "cpu.max", "25000 100000")
    _write(mount / "cpu.stat", "usage_usec 1000000\n")
    probe = CpuProbe(measure=spec, group=ControlGroup(proc, mount))
    probe.open()
    (device,) = probe.devices()
    assert device.capacity_bytes == GIB
    assert device.spec.multiprocessors == 1
    probe.read(0.0, {})
    _write(mount / "cpu.stat", "usage_usec 1500000\n")
    (reading,) = probe.read(10.0, {})
    assert reading.memory_used_bytes == 300 * MIB
    # Half a second of CPU time in 10 s on a quarter of a core: 0.5 / 10 / 0.25.
    assert reading.utilization == pytest.approx(0.2)


def test_a_limited_group_on_a_full_machine_is_as_full_as_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, mount = _group(tmp_path, "0::/\n")
    _write(mount / "memory.max", 8 * GIB)
    _write(mount / "memory.current", GIB)
    memory = SimpleNamespace(total=16 * GIB, available=2 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    probe = CpuProbe(measure=spec, group=ControlGroup(proc, mount))
    probe.open()
    (reading,) = probe.read(1.0, {})
    # The group may have 7 GiB more, and there are 2.
    assert reading.memory_used_bytes == 6 * GIB


def test_a_burning_core_shows_in_the_host_s_utilization(start: Start) -> None:
    probe = CpuProbe(measure=spec)
    probe.open()
    process = start("print(flush=True)\nwhile True: pass")
    used = psutil.Process(process.pid).cpu_times
    started = time.monotonic()
    before = used().user
    probe.read(started, {})
    until(lambda: used().user > before + 0.5)
    ended = time.monotonic()
    (reading,) = probe.read(ended, {})
    assert reading.utilization is not None
    # That process alone took half a second; the clock ticks of both counts are coarse.
    least = 0.5 / (ended - started) / len(os.sched_getaffinity(0))
    assert reading.utilization >= 0.8 * least


def _group(tmp_path: Path, lines: str) -> tuple[Path, Path]:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    _write(proc / "self/cgroup", lines)
    mount.mkdir()
    return proc, mount


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{content}")


def _process(
    root: Path,
    pid: int,
    *,
    resident_pages: int = 1000,
    own_kib: int = 1000,
    started: int = 1,
    ticks: int = 0,
) -> None:
    zeros = " ".join(["0"] * 6)
    stat = f"{pid} (py) S 1 1 1 0 0 0 0 0 0 0 {ticks} 0 {zeros} {started} 0 0"
    _write(root / f"{pid}/stat", stat)
    _write(root / f"{pid}/statm", f"9999 {resident_pages} 10 1 0 1 0")
    _write(root / f"{pid}/smaps_rollup", f"Pss: 1 kB\nPss_Anon: {own_kib} kB\nPss_Shmem: 0 kB\n")
