"""Everything that is particular to SQLite: where the file may lie, and how it is opened."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from horus_lab.errors import ConfigurationError, StoreUnavailable

MOUNTS = Path("/proc/self/mounts")
READ_ONLY_TRANSACTION = "horus_read_only"

# Write-ahead logging needs shared memory and locks that all processes see the same way.
_NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "davfs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2", "gfs2", "orangefs", "pvfs2"),
    }
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs", "fuseblk"})


def file_of(url: URL) -> Path:
    """The file behind a SQLite URL, with links resolved, so that one store has one lock.

    Raises:
        ConfigurationError: the URL names no file.
    """
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigurationError(
            f"The store {url.render_as_string()!r} names no file; jobs would be lost with it.",
            hint="Give a file: sqlite:////absolute/path/horus.sqlite3.",
        )
    return Path(name).expanduser().resolve()


def prepare_folder(file: Path, mounts: Path = MOUNTS) -> None:
    """Make the store's folder, private to this account, where a store may lie.

    Raises:
        StoreUnavailable: it lies on a network file system, or cannot be made.
    """
    kind = file_system(file, _read_mounts(mounts))
    if kind in _NETWORK_FILE_SYSTEMS or (kind.startswith("fuse") and kind not in _LOCAL_FUSE):
        raise StoreUnavailable(
            f"The store {file} lies on a network file system ({kind}), where SQLite's "
            "write-ahead log is not safe.",
            hint="Choose a file on a local disk, or PostgreSQL, as the store's URL "
            "(c.HorusLab.store_url).",
        )
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"The store's folder {file.parent} cannot be made: {error.strerror or error}.",
            hint="Make it writable for this account, or choose another store.",
        ) from error


def make_private(file: Path) -> None:
    """Make the file where there is none, readable for this account alone.

    An empty file is an empty database; the log files beside it get the same mode from SQLite.
    """
    with contextlib.suppress(OSError):  # SQLite says better what is wrong
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def file_system(path: Path, mounts: str) -> str:
    """The kind of file system that a path lies on, from a mount table; "" where it is not said.

    Later lines of the table cover earlier ones, and a deeper mount point covers a shallower.
    """
    kind, depth = "", -1
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(_unescaped(fields[1]))
        if (path == point or point in path.parents) and len(point.parts) >= depth:
            kind, depth = fields[2], len(point.parts)
    return kind


def open_engine(file: Path, *, busy_seconds: float, max_bytes: int | None) -> Engine:
    """An engine whose transactions are `BEGIN IMMEDIATE`, or read-only where a connection says so.

    A deferred transaction that turns into a writing one fails at once when somebody else has
    written, whatever the time-out is; so none does.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        connect_args={"timeout": busy_seconds, "check_same_thread": False},
        pool_size=2,
        max_overflow=2,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's events begin, not the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA journal_size_limit = 16777216")
        if max_bytes is not None:
            (page,) = cursor.execute("PRAGMA page_size").fetchone()
            cursor.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page):d}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get(READ_ONLY_TRANSACTION, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def check_integrity(engine: Engine, file: Path) -> None:
    """Look through the whole file.

    Raises:
        StoreUnavailable: the file is damaged; it is left as it is.
    """
    with engine.connect().execution_options(**{READ_ONLY_TRANSACTION: True}) as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise damaged(file, str(found))


def use_write_ahead_log(engine: Engine, file: str) -> None:
    """Switch the file to write-ahead logging; it stays so.

    Raises:
        StoreUnavailable: the file system cannot do it.
    """
    raw = engine.raw_connection()  # the mode cannot change inside a transaction
    try:
        cursor = raw.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        answer = cursor.fetchone()
    finally:
        raw.close()
    if answer is None or answer[0] != "wal":
        raise StoreUnavailable(
            f"The store {file} lies where SQLite's write-ahead log does not work.",
            hint="Choose a file on a local disk as the store's URL (c.HorusLab.store_url).",
        )


def damaged(file: Path, why: str) -> StoreUnavailable:
    """The error for a file that SQLite cannot read."""
    return StoreUnavailable(
        f"The store {file} is damaged or not a database: {why}. It was left as it is.",
        hint="Put a backup in its place, or move it away together with its -wal and -shm files "
        "to start with an empty store.",
    )


def _read_mounts(mounts: Path) -> str:
    try:
        return mounts.read_text(errors="replace")
    except OSError:
        return ""  # no mount table: nothing can be said, so nothing is refused


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
