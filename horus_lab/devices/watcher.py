"""Sees processes end within a millisecond, and what of their trees lives on."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from horus_lab.records import ProcessIdentity

_POLL_SECONDS = 1.0
_PIDFD_OPEN: Callable[[int], int] | None = getattr(os, "pidfd_open", None)

_log = logging.getLogger(__name__)

ProcessEnded = Callable[[str, tuple[int, ...]], None]


class Processes(Protocol):
    """What the watcher asks of a process table."""

    def alive(self, process: ProcessIdentity) -> bool:
        """Whether exactly this process still runs."""
        ...

    def tree(self, process: ProcessIdentity) -> frozenset[int]:
        """Live pids of the process and its descendants, those included that outlive it."""
        ...

    def local_pid(self, process: ProcessIdentity) -> int | None:
        """The pid by which the process is known here."""
        ...


class PidfdWatcher:
    """One thread that waits on a pidfd for each watched process.

    Where there are no pidfds (an old kernel, no free descriptor) the process is looked at every
    `poll_seconds` instead. Survivors are looked at as often, and told again when they change,
    until none is left.

    Args:
        table: looks at processes.
        poll_seconds: how often trees are refreshed and survivors looked at.
        pidfd_open: makes a descriptor that becomes readable when the process ends.
    """

    def __init__(
        self,
        table: Processes,
        *,
        poll_seconds: float = _POLL_SECONDS,
        pidfd_open: Callable[[int], int] | None = _PIDFD_OPEN,
    ) -> None:
        self._table = table
        self._poll_seconds = poll_seconds
        self._pidfd_open = pidfd_open
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._retired: list[_Watched] = []
        self._ended: ProcessEnded | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._closed = False
        self._released = False
        self._thread = threading.Thread(target=self._run, name="horus-watcher", daemon=True)

    def start(self, ended: ProcessEnded) -> None:
        """From now on call `ended(job_id, survivors)`, in the watcher's thread."""
        self._ended = ended
        self._thread.start()

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch this process for the job; one that is gone already is told of at once."""
        watched = _Watched(process, self._open(process))
        with self._lock:
            self._retire(job_id)
            self._watched[job_id] = watched
        self._wake()

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        with self._lock:
            self._retire(job_id)
        self._wake()

    def close(self) -> None:
        """Stop; nothing is told afterwards. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake()
        if self._thread.ident is None:
            self._release()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _retire(self, job_id: str) -> None:
        """Take it out; only the watcher's thread closes its descriptor.

        Closed here, its number could be the next process's while the thread still waits on it,
        and one process's end would be taken for the other's.
        """
        watched = self._watched.pop(job_id, None)
        if watched is not None:
            self._retired.append(watched)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._released:
                os.write(self._wake_writer, b"x")

    def _open(self, process: ProcessIdentity) -> int | None:
        """A pidfd of exactly this process."""
        pid = self._table.local_pid(process)
        if self._pidfd_open is None or pid is None or not self._table.alive(process):
            return None
        try:
            descriptor = self._pidfd_open(pid)
        except OSError:
            return None
        if self._table.alive(process):
            return descriptor
        # It ended in between, and its pid may be another process's by now.
        os.close(descriptor)
        return None

    # --- the watcher's thread -------------------------------------------------------------------

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closed:
            ready = self._wait(max(0.0, due - time.monotonic()))
            if self._closed:
                break
            every = time.monotonic() >= due
            if every:
                due = time.monotonic() + self._poll_seconds
            with self._lock:
                watched = list(self._watched.items())
            for job_id, one in watched:
                if every or one.new or one.descriptor in ready:
                    self._look(job_id, one, exited=one.descriptor in ready)
        self._release()

    def _wait(self, seconds: float) -> set[int | None]:
        """Descriptors of processes that ended, after `seconds` at most."""
        poll = select.poll()  # takes descriptors past 1024, which `select` does not
        poll.register(self._wake_reader, select.POLLIN)
        with self._lock:
            while self._retired:
                self._retired.pop().close()
            for one in self._watched.values():
                if one.descriptor is not None:
                    poll.register(one.descriptor, select.POLLIN)
        ready: set[int | None] = {descriptor for descriptor, _ in poll.poll(1000 * seconds)}
        if self._wake_reader in ready:
            ready.discard(self._wake_reader)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)
        return ready

    def _look(self, job_id: str, one: _Watched, *, exited: bool) -> None:
        one.new = False
        # A pidfd proves the end also of a process that may not be looked at.
        one.exited = one.exited or exited or not self._table.alive(one.process)
        # While it lives this remembers its descendants, afterwards it finds those that are left.
        tree = self._table.tree(one.process)
        if not one.exited:
            return
        one.close()
        survivors = tuple(sorted(tree - {self._table.local_pid(one.process)}))
        if survivors == one.told:
            return
        one.told = survivors
        with self._lock:
            current = self._watched.get(job_id) is one and not self._closed
        if not current or self._ended is None:
            return
        try:
            self._ended(job_id, survivors)
        except Exception:  # noqa: BLE001 - the listener's failure must not blind the watcher
            _log.exception("Horus could not be told that the process of %s ended", job_id)

    def _release(self) -> None:
        with self._lock:
            for one in (*self._watched.values(), *self._retired):
                one.close()
            self._watched.clear()
            self._released = True
            os.close(self._wake_reader)
            os.close(self._wake_writer)


class _Watched:
    """One watched process."""

    def __init__(self, process: ProcessIdentity, descriptor: int | None) -> None:
        self.process = process
        self.descriptor = descriptor
        self.new = True
        self.exited = False
        self.told: tuple[int, ...] | None = None

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
