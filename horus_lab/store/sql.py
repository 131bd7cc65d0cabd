"""The store in a SQL database, through SQLAlchemy Core."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Engine, create_engine, delete, func, insert, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from horus_lab.errors import ConfigurationError, StoreUnavailable
from horus_lab.records import Job, Observation
from horus_lab.store import migrate, schema, sqlite
from horus_lab.store.faults import translated
from horus_lab.store.lock import StoreLock
from horus_lab.store.protocol import StoredState

T = TypeVar("T", bound=Struct)

_ROW = 1  # the broker table's only key
_PRUNE_EVERY = 100


class StoreSettings(Struct, frozen=True, kw_only=True):
    """How much is kept, and how long a busy database is waited for.

    Attributes:
        ended_jobs: how many ended jobs are kept; the oldest go first.
        recent_ended: how many of them a broker starts with.
        observations: how many observations are kept.
        busy_seconds: how long one operation waits for somebody else's lock.
        max_bytes: the most that a SQLite file may grow to; `None`: as the disk allows.
    """

    ended_jobs: int = 10_000
    recent_ended: int = 200
    observations: int = 20_000
    busy_seconds: float = 2.0
    max_bytes: int | None = None


USUAL = StoreSettings()


class SqlStore:
    """A `Store` in SQLite, or in any database that SQLAlchemy speaks to."""

    def __init__(
        self, engine: Engine, name: str, settings: StoreSettings, lock: StoreLock | None
    ) -> None:
        self._engine = engine
        self._name = name
        self._settings = settings
        self._lock = lock
        self._ended_since_pruning = 0

    @classmethod
    def open(
        cls, url: str, settings: StoreSettings = USUAL, *, mounts: Path = sqlite.MOUNTS
    ) -> SqlStore:
        """Lock the store, check it, and bring its schema to this version's.

        Args:
            url: an SQLAlchemy URL; SQLite's names a file, which is made where there is none.

        Raises:
            ConfigurationError: the URL cannot be understood, or its driver is not installed.
            StoreUnavailable: the store is in use, damaged, newer, read-only, on a network file
                system, or out of reach. It is left as it was.
        """
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ConfigurationError(
                f"{url!r} is not a store's URL.",
                hint="Expected sqlite:////absolute/path/horus.sqlite3 or postgresql+psycopg://...",
            ) from error
        if parsed.get_backend_name() == "sqlite":
            return cls._open_sqlite(parsed, settings, mounts)
        name = parsed.render_as_string(hide_password=True)
        try:
            engine = create_engine(parsed, pool_pre_ping=True)
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigurationError(
                f"The store {name} cannot be used: {error}.",
                hint="Install the database's driver, or correct the URL.",
            ) from error
        store = cls(engine, name, settings, None)
        store._bring_up_to_date()
        return store

    @classmethod
    def _open_sqlite(cls, url: URL, settings: StoreSettings, mounts: Path) -> SqlStore:
        file = sqlite.file_of(url)
        sqlite.prepare_folder(file, mounts)
        lock = StoreLock(file, time.time())
        sqlite.make_private(file)
        engine = sqlite.open_engine(
            file, busy_seconds=settings.busy_seconds, max_bytes=settings.max_bytes
        )
        store = cls(engine, str(file), settings, lock)
        try:
            with translated(store._name):
                sqlite.check_integrity(engine, file)
            store._bring_up_to_date()
        except BaseException:
            store.close()
            raise
        return store

    def _bring_up_to_date(self) -> None:
        with translated(self._name):
            # Looked at first without any write: a newer store stays as it is to the byte.
            with self._reading() as connection:
                migrate.check_version(connection, self._name)
            if self._engine.dialect.name == "sqlite":
                sqlite.use_write_ahead_log(self._engine, self._name)
            with self._engine.begin() as connection:
                migrate.upgrade(connection)
                if connection.execute(select(schema.broker.c.id)).first() is None:
                    connection.execute(
                        insert(schema.broker).values(
                            id=_ROW, epoch=0, broker_id="", claimed_at=0.0, next_fence=1
                        )
                    )
                # Changes nothing, and fails now where nothing can be written.
                connection.execute(update(schema.broker).values(epoch=schema.broker.c.epoch))

    @property
    def description(self) -> str:
        """What and where it is, for people."""
        return f"{self._engine.dialect.name}: {self._name}"

    def claim(self, broker_id: str, now: float) -> int:
        """Make this broker the only one that may write; the new epoch, higher than any before."""
        with self._writing() as connection:
            epoch = self._epoch(connection) + 1
            connection.execute(
                update(schema.broker).values(epoch=epoch, broker_id=broker_id, claimed_at=now)
            )
        if self._lock is not None:
            self._lock.sign(broker_id)
        return epoch

    def load(self) -> StoredState:
        """What was committed: all open jobs, the latest ended ones, fences and observations."""
        jobs, seen = schema.jobs, schema.observations
        with self._reading() as connection:
            fence = connection.execute(select(schema.broker.c.next_fence)).scalar_one()
            open_jobs = connection.execute(
                select(jobs.c.body)
                .where(jobs.c.ended.is_(False))
                .order_by(jobs.c.submitted_at, jobs.c.id)
            ).scalars()
            found = [self._decoded(body, Job) for body in open_jobs]
            found += self._ended(connection, self._settings.recent_ended)
            observed = connection.execute(select(seen.c.body).order_by(seen.c.id)).scalars()
            return StoredState(
                jobs=tuple(found),
                next_fence=fence,
                observations=tuple(self._decoded(body, Observation) for body in observed),
            )

    def commit(
        self,
        epoch: int,
        *,
        jobs: Sequence[Job] = (),
        next_fence: int | None = None,
        observations: Sequence[Observation] = (),
    ) -> None:
        """Write all of this, or nothing, and return once it is on disk.

        Raises:
            StoreUnavailable: it could not be written, or a later broker has claimed the store.
        """
        with self._writing() as connection:
            self._check_epoch(connection, epoch)
            for job in jobs:
                self._save(connection, job)
            if next_fence is not None:
                self._save_fence(connection, next_fence)
            if observations:
                connection.execute(
                    insert(schema.observations), [_observation_row(seen) for seen in observations]
                )
            self._ended_since_pruning += sum(job.state.ended for job in jobs)
            if self._ended_since_pruning >= _PRUNE_EVERY:
                self._prune(connection)
        if self._ended_since_pruning >= _PRUNE_EVERY:
            self._ended_since_pruning = 0

    def job(self, job_id: str) -> Job | None:
        """The job as it was last committed."""
        return self._one(schema.jobs.c.id == job_id)

    def find_request(self, owner: str, request_id: str) -> Job | None:
        """The job that an owner's request made, ended or not."""
        jobs = schema.jobs
        return self._one((jobs.c.owner == owner) & (jobs.c.request_id == request_id))

    def history(self, limit: int) -> tuple[Job, ...]:
        """Ended jobs, the latest first."""
        with self._reading() as connection:
            return tuple(self._ended(connection, limit))

    def close(self) -> None:
        """Let go of the store. Safe to call twice."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()

    # --- inside a transaction -------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with translated(self._name), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        options = {sqlite.READ_ONLY_TRANSACTION: True}
        with (
            translated(self._name),
            self._engine.connect().execution_options(**options) as connection,
        ):
            yield connection

    def _epoch(self, connection: Connection) -> int:
        epoch: int = connection.execute(
            select(schema.broker.c.epoch).with_for_update()
        ).scalar_one()
        return epoch

    def _check_epoch(self, connection: Connection, epoch: int) -> None:
        current = self._epoch(connection)
        if current != epoch:
            raise StoreUnavailable(
                f"Another broker has taken over the store {self._name} (epoch {current}; this "
                f"one had {epoch}). Nothing was written.",
                hint="Restart this server if it should be the broker again.",
            )

    def _save(self, connection: Connection, job: Job) -> None:
        row = _job_row(job)
        changed = connection.execute(
            update(schema.jobs).where(schema.jobs.c.id == job.id).values(row)
        )
        if changed.rowcount == 0:
            connection.execute(insert(schema.jobs).values(row))

    def _save_fence(self, connection: Connection, next_fence: int) -> None:
        changed = connection.execute(
            update(schema.broker)
            .where(schema.broker.c.next_fence <= next_fence)
            .values(next_fence=next_fence)
        )
        if changed.rowcount != 1:
            raise StoreUnavailable(
                f"The store {self._name} has given out fences beyond {next_fence} already; "
                "nothing was written.",
                hint="Restart the server: the broker starts from what the store holds.",
            )

    def _prune(self, connection: Connection) -> None:
        jobs, seen = schema.jobs, schema.observations
        surplus = (
            select(jobs.c.id)
            .where(jobs.c.ended.is_(True))
            .order_by(jobs.c.ended_at.desc(), jobs.c.id.desc())
            .offset(self._settings.ended_jobs)
        )
        gone = list(connection.execute(surplus).scalars())
        for start in range(0, len(gone), 500):
            connection.execute(delete(jobs).where(jobs.c.id.in_(gone[start : start + 500])))
        newest = connection.execute(select(func.max(seen.c.id))).scalar()
        if newest is not None:
            connection.execute(
                delete(seen).where(seen.c.id <= newest - self._settings.observations)
            )

    def _ended(self, connection: Connection, limit: int) -> list[Job]:
        jobs = schema.jobs
        bodies = connection.execute(
            select(jobs.c.body)
            .where(jobs.c.ended.is_(True))
            .order_by(jobs.c.ended_at.desc(), jobs.c.id.desc())
            .limit(limit)
        ).scalars()
        return [self._decoded(body, Job) for body in bodies]

    def _one(self, condition: Any) -> Job | None:
        with self._reading() as connection:
            body = connection.execute(select(schema.jobs.c.body).where(condition)).scalar()
        return None if body is None else self._decoded(body, Job)

    def _decoded(self, body: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise StoreUnavailable(
                f"The store {self._name} holds a {kind.__name__} that cannot be read: {error}.",
                hint="Put a backup of the store in its place; it was left as it is.",
            ) from error


def _job_row(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "owner": job.owner,
        "request_id": job.request.request_id,
        "state": job.state.value,
        "ended": job.state.ended,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "revision": job.revision,
        "fence": job.lease.fence if job.lease else None,
        "body": msgspec.json.encode(job).decode(),
    }


def _observation_row(seen: Observation) -> dict[str, Any]:
    return {
        "graph_hash": seen.graph_hash,
        "device_model": seen.device_model,
        "observed_at": seen.observed_at,
        "body": msgspec.json.encode(seen).decode(),
    }
