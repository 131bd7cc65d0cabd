"""What each process takes of the host: CPU time, and memory that is its own.

A process's memory is what it would give back by ending: anonymous pages and its share of shared
memory. Pages of files (libraries that every kernel maps) belong to nobody. A process that stands
alone in its tree shares none of it with relatives, so its resident set less file and shared pages
says it, which is cheap to read. Forked workers share their parent's pages, and batches pass
through shared memory; there the kernel divides each page among those who map it (PSS), which
takes some milliseconds a process. So it is read anew only where the resident set changed by 5 %,
or after five seconds and more, so long that these readings take 0.5 % of a core at most; in
between the last share of the resident set holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from horus_lab.records import ProcessReading

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_SHARE_SECONDS = 5.0
_SHARE_COST = 0.005
_SHARE_CHANGE = 0.05


class _Share(NamedTuple):
    """The last division of a process's pages: own bytes, resident bytes, and when."""

    own: int
    resident: int
    at: float


class _Seen(NamedTuple):
    seconds: float
    at: float


class ProcessUse:
    """Reads processes, and remembers the last look to tell what changed.

    Args:
        cores: cores' worth of time that is 100 %.
        proc: the proc file system.
        spent: seconds of CPU time that the calling thread has taken so far.
    """

    def __init__(
        self,
        cores: float,
        proc: Path = Path("/proc"),
        *,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._cores = cores
        self._proc = str(proc)
        self._spent = spent
        self._reading_seconds = 0.0
        self._related = 0
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._shares: dict[tuple[int, int], _Share] = {}

    def read(self, trees: Mapping[str, frozenset[int]], now: float) -> tuple[ProcessReading, ...]:
        """Every process of the trees once; those that are gone by now are left out.

        A process's utilization is the CPU time it took since the last look, in cores' worth of
        all cores; unknown at its first look.
        """
        together = {pid: len(tree) > 1 for tree in trees.values() for pid in tree}
        self._related = sum(together.values())
        seen: dict[tuple[int, int], _Seen] = {}
        shares: dict[tuple[int, int], _Share] = {}
        readings = []
        for pid, related in sorted(together.items()):
            found = self._stat(pid)
            if found is None:
                continue
            name, seconds, started = found
            key = (pid, started)
            before = self._seen.get(key)
            seen[key] = _Seen(seconds, now)
            utilization = None
            if before is not None and now > before.at:
                spent = (seconds - before.seconds) / (now - before.at) / self._cores
                utilization = min(1.0, max(0.0, spent))
            readings.append(
                ProcessReading(
                    pid=pid,
                    memory_bytes=self._memory(key, related, now, shares),
                    utilization=utilization,
                    name=name,
                )
            )
        self._seen, self._shares = seen, shares
        return tuple(readings)

    def _memory(
        self,
        key: tuple[int, int],
        related: bool,
        now: float,
        shares: dict[tuple[int, int], _Share],
    ) -> int | None:
        counted = self._statm(key[0])
        if counted is None:
            return None
        resident, shared = counted
        if not related:
            return max(0, resident - shared)
        last = self._shares.get(key)
        if (
            last is not None
            and now - last.at < self._share_seconds()
            and abs(resident - last.resident) <= _SHARE_CHANGE * last.resident
        ):
            shares[key] = last
            return int(last.own * resident / max(1, last.resident))
        before = self._spent()
        own = self._proportional(key[0])
        self._reading_seconds = self._spent() - before
        if own is None:
            return max(0, resident - shared)
        shares[key] = _Share(own, resident, now)
        return own

    def _share_seconds(self) -> float:
        """How long a share holds, by what reading those of all related processes would take."""
        return max(_SHARE_SECONDS, self._reading_seconds * self._related / _SHARE_COST)

    def _stat(self, pid: int) -> tuple[str, float, int] | None:
        """Name, CPU seconds so far, start in clock ticks; `None` where there is no such process."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb") as file:
                head, _, tail = file.read(2048).rpartition(b")")
            fields = tail.split()
            if fields[0] in (b"Z", b"X"):
                return None
            name = head.partition(b"(")[2].decode(errors="replace")
            return name, (int(fields[11]) + int(fields[12])) / _TICK, int(fields[19])
        except (OSError, ValueError, IndexError):
            return None

    def _statm(self, pid: int) -> tuple[int, int] | None:
        """Resident bytes, and those of them that files and shared memory back."""
        try:
            with open(f"{self._proc}/{pid}/statm", "rb") as file:
                fields = file.read(256).split()
            return int(fields[1]) * _PAGE, int(fields[2]) * _PAGE
        except (OSError, ValueError, IndexError):
            return None

    def _proportional(self, pid: int) -> int | None:
        """Anonymous and shared-memory pages, each divided by the processes that map it."""
        found = 0
        told = False
        try:
            with open(f"{self._proc}/{pid}/smaps_rollup", "rb") as file:
                for line in file:
                    if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                        found += int(line.split()[1]) * 1024
                        told = True
        except (OSError, ValueError, IndexError):
            return None
        return found if told else None
