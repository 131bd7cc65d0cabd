"""Who is who among the machine's processes.

A process is known by its boot, its pid namespace, its pid and its start time, so a later process
with the same pid is never taken for it. Every look may be denied (another user's process, a
hardened `/proc`) and every process may be gone by then; neither is an error, and only what is
proven gone is called gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from horus_lab.devices.family import living_descendants
from horus_lab.devices.procfs import INITIAL_PID_NAMESPACE, ProcessStat, ProcFs
from horus_lab.devices.watcher import PidfdWatcher
from horus_lab.records import ProcessIdentity

__all__ = ["PidfdWatcher", "PsutilProcessTable"]

_FRESH_SECONDS = 0.2
_SCAN_SHARE = 100.0  # a scan of all processes is used for 100 times as long as it took
_MOST_REMEMBERED = 1024


class PsutilProcessTable:
    """This machine's processes, through `/proc`. May be used from several threads.

    Args:
        procfs: where to look.
        monotonic: seconds from some fixed point.
    """

    def __init__(
        self, procfs: ProcFs | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._procfs = procfs or ProcFs()
        self._monotonic = monotonic
        self._boot_id = self._procfs.boot_id()
        self._namespace = self._procfs.own_namespace()
        self._lock = threading.RLock()
        self._descendants: dict[ProcessIdentity, dict[int, int]] = {}
        self._places: dict[ProcessIdentity, int] = {}
        self._scan: dict[int, ProcessStat] = {}
        self._scan_until = float("-inf")

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this pid now; `None` where none can be seen."""
        one = self._procfs.stat(pid)
        if one is None:
            return None
        return ProcessIdentity(
            boot_id=self._boot_id,
            pid_namespace=self._procfs.namespace(pid) or 0,
            pid=self._procfs.inner_pid(pid) or pid,
            start_ticks=one.start_ticks,
        )

    def alive(self, process: ProcessIdentity) -> bool:
        """Whether exactly this process runs (a zombie does not).

        One that exists and may not be looked at counts as alive, and so does one of a container
        whose processes cannot be seen from here: neither is proven gone.
        """
        if process.boot_id != self._boot_id:
            return False
        pid = self.local_pid(process)
        if pid is None:
            return not self._sees_all()
        one = self._procfs.stat(pid)
        if one is not None:
            return one.start_ticks == process.start_ticks and one.running
        return self._procfs.exists(pid)

    def tree(self, process: ProcessIdentity) -> frozenset[int]:
        """Live pids of the process and its descendants, as they are numbered here.

        Descendants that outlive the process, or the one in between, still count.
        """
        if process.boot_id != self._boot_id:
            return frozenset()
        alive = self.alive(process)
        pid = self.local_pid(process)
        if pid is None:
            return frozenset()
        with self._lock:
            seen = self._processes(fresh=not alive)
            found = living_descendants(
                seen, pid, process.start_ticks, self._descendants.get(process, {})
            )
            if not alive:
                found.pop(pid, None)
            if alive or found:
                self._remember(process, found)
            else:
                self._forget(process)
        return frozenset(found) | ({pid} if alive else set())

    def local_pid(self, process: ProcessIdentity) -> int | None:
        """The pid by which the process is known here; `None` where it cannot be found.

        A process in a container knows itself by another number than this machine does.
        """
        if process.pid_namespace in (0, self._namespace) or not self._namespace:
            return process.pid
        known = self._places.get(process)
        if known is not None:
            return known
        with self._lock:
            for one in self._processes(fresh=True).values():
                if one.start_ticks != process.start_ticks:
                    continue
                if self._procfs.namespace(one.pid) not in (None, process.pid_namespace):
                    continue
                if self._procfs.inner_pid(one.pid) == process.pid:
                    self._places[process] = one.pid
                    return one.pid
        return None

    def _sees_all(self) -> bool:
        return self._namespace == INITIAL_PID_NAMESPACE and not self._procfs.hides()

    def _processes(self, *, fresh: bool) -> dict[int, ProcessStat]:
        """A scan of all processes: a new one, or one so recent that scanning stays cheap."""
        started = self._monotonic()
        if fresh or started >= self._scan_until:
            self._scan = self._procfs.snapshot()
            took = self._monotonic() - started
            self._scan_until = started + max(_FRESH_SECONDS, _SCAN_SHARE * took)
        return self._scan

    def _remember(self, process: ProcessIdentity, found: dict[int, int]) -> None:
        self._descendants[process] = found
        if len(self._descendants) > _MOST_REMEMBERED:
            for other in list(self._descendants):
                if not self._descendants[other] and not self.alive(other):
                    self._forget(other)

    def _forget(self, process: ProcessIdentity) -> None:
        self._descendants.pop(process, None)
        self._places.pop(process, None)
