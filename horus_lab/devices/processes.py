"""Who is who among the machine's processes, and when they end.

A process is known by its boot, its pid namespace, its pid and its start time, so a later process
with the same pid is never taken for it. Every look may be denied (another user's process, a
hardened `/proc`) and every process may be gone by then; neither is an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from horus_lab.records import ProcessIdentity

_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)

ProcessEnded = Callable[[str, tuple[int, ...]], None]


class PsutilProcessTable:
    """This machine's processes, through `/proc` and psutil."""

    def __init__(self) -> None:
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this pid now."""
        ticks = start_ticks(pid)
        if ticks is None:
            return None
        namespace = 0
        with contextlib.suppress(OSError):
            namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
        return ProcessIdentity(
            boot_id=self._boot_id, pid_namespace=namespace, pid=pid, start_ticks=ticks
        )

    def alive(self, process: ProcessIdentity) -> bool:
        """Whether exactly this process runs (a zombie does not)."""
        if process.boot_id != self._boot_id:
            return False
        return start_ticks(process.pid) == process.start_ticks and not _is_zombie(process.pid)

    def tree(self, process: ProcessIdentity) -> frozenset[int]:
        """Its pid and its living descendants'."""
        if not self.alive(process):
            return frozenset()
        pids = {process.pid}
        with contextlib.suppress(psutil.Error, OSError):
            for child in psutil.Process(process.pid).children(recursive=True):
                if not _is_zombie(child.pid):
                    pids.add(child.pid)
        return frozenset(pids)


class PidfdWatcher:
    """Sees processes end within a millisecond, and what of their trees lives on.

    Descendants are remembered with their identities at every look, so that those which outlive
    the process (and are then nobody's children) still count as survivors until they are gone.

    Args:
        table: looks at processes.
        poll_seconds: how often trees are refreshed and survivors looked at.
    """

    def __init__(self, table: PsutilProcessTable, *, poll_seconds: float = _POLL_SECONDS) -> None:
        self._table = table
        self._poll_seconds = poll_seconds
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._ended: ProcessEnded | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="horus-watcher", daemon=True)

    def start(self, ended: ProcessEnded) -> None:
        """From now on call `ended(job_id, survivors)`."""
        self._ended = ended
        self._thread.start()

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch this process for the job."""
        watched = _Watched(process, self._open(process))
        with self._lock:
            earlier = self._watched.pop(job_id, None)
            self._watched[job_id] = watched
        if earlier is not None:
            earlier.close()
        self._wake()

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        with self._lock:
            watched = self._watched.pop(job_id, None)
        if watched is not None:
            watched.close()
        self._wake()

    def close(self) -> None:
        """Stop. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        with self._lock:
            for watched in self._watched.values():
                watched.close()
            self._watched.clear()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"x")

    def _open(self, process: ProcessIdentity) -> int | None:
        """A pidfd of exactly this process; without one its end is found by polling."""
        if not self._table.alive(process):
            return None
        try:
            descriptor = os.pidfd_open(process.pid)
        except (OSError, AttributeError):
            return None
        if not self._table.alive(process):
            # The pid was given to another process in between.
            os.close(descriptor)
            return None
        return descriptor

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                descriptors = [w.descriptor for w in self._watched.values() if w.descriptor]
            with contextlib.suppress(OSError, ValueError):
                ready, _, _ = select.select(
                    [self._wake_reader, *descriptors], [], [], self._poll_seconds
                )
                if self._wake_reader in ready:
                    os.read(self._wake_reader, 4096)
            if not self._closed:
                self._look()

    def _look(self) -> None:
        with self._lock:
            watched = list(self._watched.items())
        for job_id, one in watched:
            survivors = self._survivors(one)
            if survivors is None or survivors == one.told:
                continue
            one.told = survivors
            try:
                if self._ended is not None:
                    self._ended(job_id, survivors)
            except Exception:  # noqa: BLE001 - the listener's failure must not blind the watcher
                _log.exception("Horus could not be told that the process of %s ended", job_id)

    def _survivors(self, one: _Watched) -> tuple[int, ...] | None:
        """Pids of the tree that live on after the process; `None` while it lives."""
        if self._table.alive(one.process):
            for pid in self._table.tree(one.process) - {one.process.pid}:
                if pid not in one.descendants:
                    ticks = start_ticks(pid)
                    if ticks is not None:
                        one.descendants[pid] = ticks
            return None
        one.close()
        for pid, ticks in list(one.descendants.items()):
            if start_ticks(pid) != ticks or _is_zombie(pid):
                del one.descendants[pid]
        return tuple(sorted(one.descendants))


class _Watched:
    """One watched process, and its remembered descendants: pid -> start time."""

    def __init__(self, process: ProcessIdentity, descriptor: int | None) -> None:
        self.process = process
        self.descriptor = descriptor
        self.descendants: dict[int, int] = {}
        self.told: tuple[int, ...] | None = None

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def start_ticks(pid: int) -> int | None:
    """The process's start time in clock ticks since boot; `None` where there is none.

    Field 22 of `/proc/PID/stat`; the name in field 2 may hold spaces and brackets, so fields are
    counted after the last bracket.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else None


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
