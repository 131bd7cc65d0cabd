"""One live broker for one SQLite file: an advisory lock on a file beside it.

The kernel drops the lock with the process, however it dies, so nothing stale is ever left. The
lock file itself stays: removing it would let two brokers lock two files of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

import msgspec
from msgspec import Struct

from horus_lab.errors import StoreUnavailable


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a lock, as the holder wrote it down."""

    pid: int
    host: str
    since: float
    broker_id: str = ""


class StoreLock:
    """The lock beside one store file, held until `release`.

    Raises:
        StoreUnavailable: another live broker holds it, or the lock file cannot be made.
    """

    def __init__(self, store: Path, now: float) -> None:
        self._store = store
        self._path = store.with_name(store.name + ".lock")
        self._since = now
        try:
            # Owned by the open file and not by the process (unlike POSIX record locks), so a
            # second broker in this very process is refused too.
            self._file: int | None = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StoreUnavailable(
                f"The store {store} cannot be locked: {error.strerror or error}.",
                hint="Make its folder writable for this account, or choose another store.",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._file)
            raise StoreUnavailable(
                f"The store {store} is in use by another broker: {holder}.",
                hint="Stop that broker (its Jupyter server), or give this one a store of its own.",
            ) from error
        os.register_at_fork(after_in_child=self._close)
        self.sign("")

    def sign(self, broker_id: str) -> None:
        """Write down who holds the lock, for the message that a second broker gets."""
        if self._file is None:
            return
        holder = Holder(
            pid=os.getpid(), host=socket.gethostname(), since=self._since, broker_id=broker_id
        )
        with contextlib.suppress(OSError):  # a full disk: the lock itself holds all the same
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Let the next broker in. Safe to call twice."""
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _holder(self) -> str:
        assert self._file is not None
        try:
            holder = msgspec.json.decode(os.pread(self._file, 4096, 0), type=Holder)
        except (OSError, msgspec.DecodeError):
            return "a process that did not say who it is"
        called = f" (broker {holder.broker_id})" if holder.broker_id else ""
        return f"process {holder.pid} on {holder.host}{called}"
