"""What `/proc` says of processes. A look may be denied or come too late; neither is an error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's first pid namespace (Linux, `include/linux/proc_ns.h`)."""

_ENDED_STATES = frozenset({"Z", "X", "x"})


class ProcessStat(NamedTuple):
    """One process as `/proc/PID/stat` shows it.

    Attributes:
        running: it is neither a zombie nor dead.
        parent, group, session: pids of its parent, its process group's and its session's leader.
        start_ticks: its start in clock ticks since boot.
    """

    pid: int
    running: bool
    parent: int
    group: int
    session: int
    start_ticks: int


class ProcFs:
    """A mounted proc file system.

    Args:
        root: where it is mounted.
        kill: sends a signal; signal 0 asks whether a pid is in use, also where `/proc` hides it.
    """

    def __init__(
        self, root: Path = Path("/proc"), *, kill: Callable[[int, int], None] = os.kill
    ) -> None:
        self._root = str(root)
        self._kill = kill

    def boot_id(self) -> str:
        """The id of this boot of the machine; empty where it cannot be read."""
        with contextlib.suppress(OSError):
            return Path(self._root, "sys/kernel/random/boot_id").read_text().strip()
        return ""

    def own_namespace(self) -> int:
        """The inode of this process's pid namespace; 0 where it cannot be read."""
        return self.namespace("self") or 0

    def namespace(self, pid: int | str) -> int | None:
        """The inode of the process's pid namespace; `None` where it cannot be read."""
        with contextlib.suppress(OSError):
            link = os.readlink(f"{self._root}/{pid}/ns/pid")  # pid:[4026531836]
            digits = link.partition("[")[2].rstrip("]")
            return int(digits) if digits.isdigit() else None
        return None

    def stat(self, pid: int) -> ProcessStat | None:
        """The process that has this pid now; `None` where there is none, or it is hidden."""
        try:
            with open(f"{self._root}/{pid}/stat", "rb") as file:
                line = file.read(2048)
        except OSError:
            return None
        return _parsed(pid, line)

    def inner_pid(self, pid: int) -> int | None:
        """The pid by which the process knows itself in its own, innermost pid namespace."""
        numbers = self._status(pid, "NSpid:")
        return numbers[-1] if numbers else None

    def owner(self, pid: int) -> int | None:
        """The user id that the process runs as; `None` where it cannot be read."""
        numbers = self._status(pid, "Uid:")
        return numbers[0] if numbers else None

    def _status(self, pid: int, field: str) -> list[int]:
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"{self._root}/{pid}/status", errors="replace") as file,
        ):
            for line in file:
                if line.startswith(field):
                    return [int(number) for number in line.split()[1:]]
        return []

    def name(self, pid: int) -> str | None:
        """The program's name, at most 15 characters of it."""
        with contextlib.suppress(OSError):
            return Path(self._root, str(pid), "comm").read_text(errors="replace").strip()
        return None

    def exists(self, pid: int) -> bool:
        """Whether any process has this pid, hidden ones included."""
        try:
            self._kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def snapshot(self) -> dict[int, ProcessStat]:
        """All visible processes by pid."""
        found: dict[int, ProcessStat] = {}
        try:
            names = os.listdir(self._root)
        except OSError:
            return found
        for name in names:
            if name.isdigit():
                one = self.stat(int(name))
                if one is not None:
                    found[one.pid] = one
        return found

    def hides(self) -> bool:
        """Whether other users' processes may be invisible here (the `hidepid` option)."""
        try:
            with open(f"{self._root}/mounts", errors="replace") as file:
                for line in file:
                    _, mounted, kind, options, *_ = line.split()
                    if kind == "proc" and mounted == self._root:
                        return "hidepid=" in options and "hidepid=0" not in options
        except (OSError, ValueError):
            return True
        return False


def _parsed(pid: int, line: bytes) -> ProcessStat | None:
    # The name in field 2 may hold spaces and brackets: fields count from its last bracket.
    fields = line.rpartition(b")")[2].split()
    try:
        return ProcessStat(
            pid=pid,
            running=fields[0].decode() not in _ENDED_STATES,
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None
