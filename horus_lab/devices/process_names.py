"""What a process is called and whose it is, for people. Every look may be denied."""

from __future__ import annotations

import contextlib
import pwd
from pathlib import Path

from horus_lab.devices.procfs import INITIAL_PID_NAMESPACE, ProcFs

ANOTHER_USER = "another user"
_MOST_KEPT = 4096


class ProcessNames:
    """Names and users by pid, looked up once in a process's life.

    Args:
        procfs: where to look.
    """

    def __init__(self, procfs: ProcFs | None = None) -> None:
        self._procfs = procfs or ProcFs()
        self._known: dict[tuple[int, int], tuple[str | None, str | None]] = {}

    def of(self, pid: int) -> tuple[str | None, str | None]:
        """The name and the user; `another user` where the process exists and is hidden."""
        stat = self._procfs.stat(pid)
        if stat is None:
            return None, ANOTHER_USER if self._procfs.exists(pid) else None
        key = (pid, stat.start_ticks)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = (self._procfs.name(pid), self._user(pid))
        return self._known[key]

    def _user(self, pid: int) -> str | None:
        owner = self._procfs.owner(pid)
        if owner is None:
            return ANOTHER_USER
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(owner).pw_name
        return str(owner)


class DriverPids:
    """From the pids that the NVIDIA driver tells to those by which processes are known here.

    The driver numbers processes as the machine's first pid namespace does. Inside a container the
    same number is another process, or none; so there a process is only named where the machine's
    own `/proc` is mounted too and says which of ours it is.

    Args:
        procfs: the proc file system of this process.
        machine: the machine's own, mounted in a container as `/host/proc` by custom.
    """

    def __init__(self, procfs: ProcFs | None = None, machine: ProcFs | None = None) -> None:
        own = (procfs or ProcFs()).own_namespace()
        self._own = own
        self._same = own in (0, INITIAL_PID_NAMESPACE)
        self._machine = machine
        if machine is None and Path("/host/proc/self").is_dir():
            self._machine = ProcFs(Path("/host/proc"))

    @property
    def same(self) -> bool:
        """Whether the driver's pids are those of this process's namespace."""
        return self._same

    def here(self, pid: int) -> int | None:
        """The pid here; `None` where the process is outside this container, or cannot be told."""
        if self._same:
            return pid
        if self._machine is None or self._machine.namespace(pid) != self._own:
            return None
        return self._machine.inner_pid(pid)
