"""The tables. A record is kept whole as JSON, beside columns for what is asked for.

Changing anything here takes a new revision in `migrations/versions`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# One row: who may write (the epoch), and the lowest fence that was never given out.
broker = Table(
    "broker",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("broker_id", String(200), nullable=False),
    Column("claimed_at", Float, nullable=False),
    Column("next_fence", BigInteger, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("owner", String(200), nullable=False),
    Column("request_id", String(100), nullable=False),
    Column("state", String(20), nullable=False),
    Column("ended", Boolean, nullable=False),
    Column("submitted_at", Float, nullable=False),
    Column("ended_at", Float, nullable=True),
    Column("revision", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=True),
    Column("body", Text, nullable=False),
    UniqueConstraint("owner", "request_id", name="uq_jobs_owner_request"),
    Index("ix_jobs_ended", "ended", "ended_at"),
)

observations = Table(
    "observations",
    metadata,
    # Integer: SQLite gives numbers by itself only to an INTEGER key.
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("graph_hash", String(128), nullable=False),
    Column("device_model", String(200), nullable=False),
    Column("observed_at", Float, nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_observations_graph", "graph_hash", "device_model"),
)
