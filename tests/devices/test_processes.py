"""Who is who among processes: by boot, namespace, pid and start time, and by parenthood."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from horus_lab.client.identity import this_process
from horus_lab.devices.processes import PsutilProcessTable
from horus_lab.devices.procfs import INITIAL_PID_NAMESPACE, ProcFs
from horus_lab.records import ProcessIdentity
from tests.devices.conftest import Family, until

MakeFamily = Callable[..., Family]


def test_the_table_and_the_process_itself_agree_on_who_it_is() -> None:
    assert PsutilProcessTable().identify(os.getpid()) == this_process()


def test_there_is_no_identity_for_a_pid_that_nobody_has() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert PsutilProcessTable().identify(process.pid) is None


def test_a_running_process_is_alive_and_a_killed_one_is_not(family: MakeFamily) -> None:
    table = PsutilProcessTable()
    one = family(children=0)
    identity = table.identify(one.parent.pid)
    assert identity is not None
    assert table.alive(identity)
    one.kill_parent()
    assert not table.alive(identity)


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    table = PsutilProcessTable()
    identity = table.identify(process.pid)
    assert identity is not None
    process.kill()
    # Not waited for: the process is a zombie until this test reaps it.
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert not table.alive(identity)
    assert table.tree(identity) == frozenset()
    process.wait()


def test_a_later_process_with_the_same_pid_is_not_taken_for_it() -> None:
    table = PsutilProcessTable()
    now = table.identify(os.getpid())
    assert now is not None
    earlier = replace(now, start_ticks=now.start_ticks - 1)
    assert table.alive(now)
    assert not table.alive(earlier)
    assert table.tree(earlier) == frozenset()


def test_a_process_of_another_boot_is_gone() -> None:
    table = PsutilProcessTable()
    now = table.identify(os.getpid())
    assert now is not None
    assert not table.alive(replace(now, boot_id="another"))
    assert table.tree(replace(now, boot_id="another")) == frozenset()


def test_a_tree_is_the_process_and_all_its_descendants(family: MakeFamily) -> None:
    table = PsutilProcessTable()
    one = family(children=3)
    identity = table.identify(one.parent.pid)
    assert identity is not None
    # psutil walks parenthood by itself.
    expected = {child.pid for child in psutil.Process(one.parent.pid).children(recursive=True)}
    assert expected == set(one.children)
    assert table.tree(identity) == {one.parent.pid, *one.children}


def test_children_that_outlive_their_parent_still_count_to_its_tree(family: MakeFamily) -> None:
    table = PsutilProcessTable()
    one = family(children=2)
    identity = table.identify(one.parent.pid)
    assert identity is not None
    table.tree(identity)
    one.kill_parent()
    assert table.tree(identity) == set(one.children)
    one.kill_children()
    until(lambda: table.tree(identity) == frozenset())


def test_a_grandchild_whose_parent_ended_unseen_is_found_through_the_session(
    family: MakeFamily,
) -> None:
    table = PsutilProcessTable()
    one = family(deep=True, new_session=True)
    identity = table.identify(one.parent.pid)
    assert identity is not None
    assert table.tree(identity) == {one.parent.pid, *one.children}
    one.kill_parent()
    # A table that never saw the family, as after a restart of the broker.
    assert PsutilProcessTable().tree(identity) == set(one.children)


def test_a_hidden_process_that_exists_is_not_called_gone(tmp_path: Path) -> None:
    real = ProcFs()
    _proc(tmp_path, boot_id=real.boot_id())
    hidden = ProcessIdentity(
        boot_id=real.boot_id(), pid_namespace=INITIAL_PID_NAMESPACE, pid=77, start_ticks=1
    )

    def exists(pid: int, signal: int) -> None:
        raise PermissionError

    def missing(pid: int, signal: int) -> None:
        raise ProcessLookupError

    assert PsutilProcessTable(ProcFs(tmp_path, kill=exists)).alive(hidden)
    assert not PsutilProcessTable(ProcFs(tmp_path, kill=missing)).alive(hidden)


def test_a_process_in_a_container_is_found_by_its_inner_pid(tmp_path: Path) -> None:
    _proc(tmp_path)
    _process(tmp_path, 900, started=5000, namespace=4026532777, inner=7)
    _process(tmp_path, 901, started=5001, namespace=4026532777, inner=8, parent=900)
    # Another container's process 7.
    _process(tmp_path, 950, started=5000, namespace=4026532888, inner=7)
    table = PsutilProcessTable(ProcFs(tmp_path))
    identity = ProcessIdentity(boot_id="boot", pid_namespace=4026532777, pid=7, start_ticks=5000)
    assert table.local_pid(identity) == 900
    assert table.alive(identity)
    assert table.tree(identity) == {900, 901}
    assert table.identify(900) == identity


def test_the_same_number_in_another_container_is_not_the_process(tmp_path: Path) -> None:
    _proc(tmp_path)
    _process(tmp_path, 7, started=5000, namespace=INITIAL_PID_NAMESPACE, inner=7)
    table = PsutilProcessTable(ProcFs(tmp_path))
    identity = ProcessIdentity(boot_id="boot", pid_namespace=4026532777, pid=7, start_ticks=5000)
    assert not table.alive(identity)
    assert table.tree(identity) == frozenset()


def test_from_inside_a_container_a_neighbour_container_s_process_is_not_called_gone(
    tmp_path: Path,
) -> None:
    _proc(tmp_path, namespace=4026532888)
    table = PsutilProcessTable(ProcFs(tmp_path))
    elsewhere = ProcessIdentity(boot_id="boot", pid_namespace=4026532777, pid=7, start_ticks=5000)
    assert table.alive(elsewhere)


@pytest.mark.parametrize("name", ["python", "a) b (c", ") Z 1 1 1"])
def test_any_process_name_leaves_the_numbers_right(tmp_path: Path, name: str) -> None:
    _proc(tmp_path)
    _process(tmp_path, 55, started=1234, name=name, parent=3)
    stat = ProcFs(tmp_path).stat(55)
    assert stat is not None
    assert (stat.start_ticks, stat.parent, stat.running) == (1234, 3, True)


@pytest.mark.parametrize("text", ["", "55 (x", "55 (x) S 1 2 3", "55 (x) S a b c"])
def test_a_malformed_line_is_no_process(tmp_path: Path, text: str) -> None:
    _proc(tmp_path)
    (tmp_path / "55").mkdir()
    (tmp_path / "55" / "stat").write_text(text)
    assert ProcFs(tmp_path).stat(55) is None


def test_the_scan_of_all_processes_is_used_again_while_it_is_recent(tmp_path: Path) -> None:
    _proc(tmp_path)
    _process(tmp_path, 10, started=1)
    at = 0.0
    table = PsutilProcessTable(ProcFs(tmp_path), monotonic=lambda: at)
    identity = table.identify(10)
    assert identity is not None
    assert table.tree(identity) == {10}
    _process(tmp_path, 11, started=2, parent=10)
    assert table.tree(identity) == {10}
    at = 1.0
    assert table.tree(identity) == {10, 11}


def test_after_a_death_the_survivors_are_looked_for_anew_however_recent_the_scan(
    tmp_path: Path,
) -> None:
    _proc(tmp_path)
    _process(tmp_path, 10, started=1)
    table = PsutilProcessTable(ProcFs(tmp_path, kill=_nobody), monotonic=lambda: 0.0)
    identity = table.identify(10)
    assert identity is not None
    assert table.tree(identity) == {10}
    # A child that was forked since, and outlived the process.
    shutil.rmtree(tmp_path / "10")
    _process(tmp_path, 11, started=2, session=10)
    assert table.tree(identity) == {11}


def _nobody(pid: int, signal: int) -> None:
    raise ProcessLookupError


def _proc(root: Path, *, boot_id: str = "boot", namespace: int = INITIAL_PID_NAMESPACE) -> None:
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text(boot_id + "\n")
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    (root / "mounts").write_text(f"proc {root} proc rw 0 0\n")


def _process(
    root: Path,
    pid: int,
    *,
    started: int,
    namespace: int = INITIAL_PID_NAMESPACE,
    inner: int | None = None,
    parent: int = 1,
    session: int = 0,
    name: str = "python",
) -> None:
    folder = root / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/pid").symlink_to(f"pid:[{namespace}]")
    middle = " ".join(["0"] * 15)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 {session} {middle} {started} 0 0\n")
    (folder / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{inner or pid}\n")
