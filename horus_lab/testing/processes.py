"""Processes that live and die by the script."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from horus_lab.records import ProcessIdentity
from horus_lab.testing.builders import a_process


class ScriptedProcesses:
    """A process table without processes.

    `start` makes one (and its identity), `end` ends it; its children live on until they are ended
    too, and count to its tree until then.
    """

    def __init__(self) -> None:
        self._alive: dict[int, ProcessIdentity] = {}
        self._children: dict[ProcessIdentity, set[int]] = {}
        self._started = 0

    def start(self, pid: int, *, children: Iterable[int] = ()) -> ProcessIdentity:
        """A new process with this pid; a pid may be used again once its process has ended.

        Raises:
            ValueError: a process with this pid lives.
        """
        if pid in self._alive:
            raise ValueError(f"process {pid} lives already")
        self._started += 1
        process = a_process(pid, start_ticks=1000 + self._started)
        self._alive[pid] = process
        self._children[process] = set()
        for child in children:
            self.fork(process, child)
        return process

    def fork(self, parent: ProcessIdentity, pid: int) -> ProcessIdentity:
        """A child of the parent."""
        child = self.start(pid)
        self._children[parent].add(pid)
        return child

    def end(self, pid: int) -> None:
        """End the process; its children live on."""
        self._alive.pop(pid, None)

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this pid now."""
        return self._alive.get(pid)

    def alive(self, process: ProcessIdentity) -> bool:
        """Whether exactly this process lives."""
        return self._alive.get(process.pid) == process

    def tree(self, process: ProcessIdentity) -> frozenset[int]:
        """Its live pids and its descendants'."""
        pids = {process.pid} if self.alive(process) else set()
        for child in self._children.get(process, ()):
            identity = self._alive.get(child)
            if identity is not None:
                pids |= self.tree(identity)
        return frozenset(pids)


class ScriptedWatcher:
    """A watcher that tells of an end when the test says so.

    Attributes:
        watched: job id -> the process that is watched for it.
    """

    def __init__(self) -> None:
        self.watched: dict[str, ProcessIdentity] = {}
        self._ended: Callable[[str, tuple[int, ...]], None] | None = None

    def start(self, ended: Callable[[str, tuple[int, ...]], None]) -> None:
        """From now on `end` calls `ended(job_id, survivors)`."""
        self._ended = ended

    def watch(self, job_id: str, process: ProcessIdentity) -> None:
        """Watch this process for the job."""
        self.watched[job_id] = process

    def unwatch(self, job_id: str) -> None:
        """Watch it no more."""
        self.watched.pop(job_id, None)

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._ended = None

    def end(self, job_id: str, survivors: tuple[int, ...] = ()) -> None:
        """Tell that the job's process ended, if the job is watched."""
        if self._ended is not None and job_id in self.watched:
            self._ended(job_id, survivors)
