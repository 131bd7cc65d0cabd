"""The watcher tells once that a process ended, with what of its tree lives on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from horus_lab.devices.processes import PidfdWatcher, PsutilProcessTable
from horus_lab.records import ProcessIdentity
from tests.devices.conftest import Family, until

MakeFamily = Callable[..., Family]


class Told:
    """What the watcher told, in order."""

    def __init__(self) -> None:
        self.news: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, job_id: str, survivors: tuple[int, ...]) -> None:
        self.news.append((job_id, survivors))

    def of(self, job_id: str) -> list[tuple[int, ...]]:
        return [survivors for job, survivors in self.news if job == job_id]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(params=["pidfd", "polling"])
def watcher(request: pytest.FixtureRequest, told: Told) -> Iterator[PidfdWatcher]:
    """A started watcher, with pidfds and without."""
    table = PsutilProcessTable()
    if request.param == "pidfd":
        watcher = PidfdWatcher(table, poll_seconds=0.1)
    else:
        watcher = PidfdWatcher(table, poll_seconds=0.05, pidfd_open=None)
    watcher.start(told)
    yield watcher
    watcher.close()


def identity(pid: int) -> ProcessIdentity:
    found = PsutilProcessTable().identify(pid)
    assert found is not None
    return found


def test_a_killed_process_without_children_leaves_no_survivors(
    family: MakeFamily, watcher: PidfdWatcher, told: Told
) -> None:
    one = family(children=0)
    watcher.watch("a", identity(one.parent.pid))
    one.kill_parent()
    until(lambda: told.of("a"))
    assert told.of("a") == [()]


def test_survivors_are_told_and_told_again_until_none_is_left(
    family: MakeFamily, watcher: PidfdWatcher, told: Told
) -> None:
    one = family(children=2, new_session=True)
    first, second = one.children
    watcher.watch("a", identity(one.parent.pid))
    one.kill_parent()
    until(lambda: told.of("a"))
    assert told.of("a") == [tuple(sorted((first, second)))]
    os.kill(first, 9)
    until(lambda: len(told.of("a")) == 2)
    assert told.of("a")[1] == (second,)
    os.kill(second, 9)
    until(lambda: len(told.of("a")) == 3)
    assert told.of("a")[2] == ()


def test_a_process_that_is_gone_already_is_told_of_like_one_that_ends_later(
    family: MakeFamily, watcher: PidfdWatcher, told: Told
) -> None:
    one = family(children=0)
    gone = identity(one.parent.pid)
    one.kill_parent()
    watcher.watch("a", gone)
    until(lambda: told.of("a"))
    assert told.of("a") == [()]


def test_a_later_process_with_the_same_pid_does_not_keep_the_job(
    watcher: PidfdWatcher, told: Told
) -> None:
    now = identity(os.getpid())
    watcher.watch("a", replace(now, start_ticks=now.start_ticks - 1))
    until(lambda: told.of("a"))
    assert told.of("a") == [()]


def test_nothing_is_told_of_a_process_that_is_not_watched_any_more(
    family: MakeFamily, watcher: PidfdWatcher, told: Told
) -> None:
    left, kept = family(children=0), family(children=0)
    watcher.watch("left", identity(left.parent.pid))
    watcher.watch("kept", identity(kept.parent.pid))
    watcher.unwatch("left")
    left.kill_parent()
    kept.kill_parent()
    until(lambda: told.of("kept"))
    assert told.of("left") == []


def test_one_process_may_hold_several_jobs(
    family: MakeFamily, watcher: PidfdWatcher, told: Told
) -> None:
    one = family(children=0)
    watcher.watch("a", identity(one.parent.pid))
    watcher.watch("b", identity(one.parent.pid))
    one.kill_parent()
    until(lambda: told.of("a") and told.of("b"))
    assert sorted(told.news) == [("a", ()), ("b", ())]


def test_a_listener_that_fails_does_not_blind_the_watcher(family: MakeFamily) -> None:
    told = Told()

    def fails_first(job_id: str, survivors: tuple[int, ...]) -> None:
        told(job_id, survivors)
        if job_id == "a":
            raise RuntimeError("the listener is broken")

    watcher = PidfdWatcher(PsutilProcessTable(), poll_seconds=0.1)
    watcher.start(fails_first)
    first, second = family(children=0), family(children=0)
    watcher.watch("a", identity(first.parent.pid))
    watcher.watch("b", identity(second.parent.pid))
    first.kill_parent()
    until(lambda: told.of("a"))
    second.kill_parent()
    until(lambda: told.of("b"))
    watcher.close()


def test_the_living_are_never_told_dead_while_others_come_and_go(told: Told) -> None:
    """Descriptors' numbers are used again; one process's end is not another's."""
    watcher = PidfdWatcher(PsutilProcessTable(), poll_seconds=0.02)
    watcher.start(told)
    here = identity(os.getpid())
    for turn in range(60):
        short = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
        watcher.watch("short", identity(short.pid))
        watcher.watch(f"living-{turn % 3}", here)
        short.wait()
        watcher.unwatch("short")
        watcher.watch("again", here)
    watcher.close()
    assert {job for job, _ in told.news} <= {"short"}


def test_descriptors_past_1024_are_watched_like_others(family: MakeFamily, told: Told) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine does not allow so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    # Its poll interval is longer than the test waits: only the descriptor can tell.
    watcher = PidfdWatcher(PsutilProcessTable(), poll_seconds=300)
    try:
        watcher.start(told)
        one = family(children=0)
        watcher.watch("a", identity(one.parent.pid))
        one.kill_parent()
        until(lambda: told.of("a"))
    finally:
        watcher.close()
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told.of("a") == [()]


def test_closing_ends_the_thread_and_gives_the_descriptors_back(family: MakeFamily) -> None:
    before = set(os.listdir("/proc/self/fd"))
    watcher = PidfdWatcher(PsutilProcessTable())
    watcher.start(Told())
    watcher.watch("a", identity(family(children=0).parent.pid))
    watcher.close()
    watcher.close()
    watcher.unwatch("a")
    assert not [thread for thread in threading.enumerate() if thread.name == "horus-watcher"]
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_watcher_that_was_never_started_can_be_closed() -> None:
    watcher = PidfdWatcher(PsutilProcessTable())
    watcher.watch("a", identity(os.getpid()))
    watcher.close()


def test_a_gone_process_is_told_of_at_once_and_not_at_the_next_poll(
    family: MakeFamily, told: Told
) -> None:
    watcher = PidfdWatcher(PsutilProcessTable(), poll_seconds=300)
    watcher.start(told)
    first, second = family(children=0), family(children=0)
    gone = identity(second.parent.pid)
    second.kill_parent()
    watcher.watch("first", identity(first.parent.pid))
    first.kill_parent()
    until(lambda: told.of("first"))
    watcher.watch("gone", gone)
    until(lambda: told.of("gone"))
    watcher.close()
    assert told.of("gone") == [()]


def test_a_job_that_is_unwatched_during_a_look_is_not_told_of(told: Told) -> None:
    class UnwatchesWhileAsked:
        """A table in whose answer the world changes."""

        asked = threading.Event()

        def alive(self, process: ProcessIdentity) -> bool:
            watcher.unwatch("a")
            self.asked.set()
            return False

        def tree(self, process: ProcessIdentity) -> frozenset[int]:
            return frozenset()

        def local_pid(self, process: ProcessIdentity) -> int | None:
            return process.pid

    table = UnwatchesWhileAsked()
    watcher = PidfdWatcher(table, poll_seconds=0.02, pidfd_open=None)
    watcher.start(told)
    watcher.watch("a", identity(os.getpid()))
    assert table.asked.wait(20)
    watcher.close()
    assert told.news == []
