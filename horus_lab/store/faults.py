"""The database's errors as `StoreUnavailable`: what happened, and what to do next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from horus_lab.errors import StoreUnavailable

_SQLITE = {
    sqlite3.SQLITE_BUSY: (
        "is locked by another program",
        "Close the program that has it open (a sqlite3 shell, say); then try again.",
    ),
    sqlite3.SQLITE_LOCKED: (
        "is locked by another program",
        "Close the program that has it open (a sqlite3 shell, say); then try again.",
    ),
    sqlite3.SQLITE_FULL: (
        "is full: its disk, or its own limit, has no room",
        "Free some disk space; the broker goes on by itself.",
    ),
    sqlite3.SQLITE_READONLY: (
        "can only be read",
        "Make the file and its folder writable for this account.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "Check that the file and its folder exist and are writable for this account.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged, and was left as it is",
        "Stop the server and put a backup in its place, or move it away together with its -wal "
        "and -shm files to start with an empty store.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "is not a database, and was left as it is",
        "Put a backup in its place, or move it away to start with an empty store.",
    ),
    sqlite3.SQLITE_IOERR: (
        "had a disk error",
        "Look at the disk's health and the system's log; nothing new is acknowledged until it "
        "can be written again.",
    ),
}


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise every database error inside as `StoreUnavailable` about the store called `name`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise unavailable(name, error) from error


def unavailable(name: str, error: Exception) -> StoreUnavailable:
    """What a database error means for the store called `name`."""
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlite_errorcode", None)
    # The low byte is the kind; the rest says where it happened.
    known = _SQLITE.get(code & 0xFF) if isinstance(code, int) else None
    what, hint = known or (
        "could not be used",
        "Check that the database is reachable; then try again.",
    )
    said = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return StoreUnavailable(f"The store {name} {what} ({said}).", hint=hint)
