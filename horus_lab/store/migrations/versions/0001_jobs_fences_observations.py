"""Jobs, the broker's epoch and fences, observations.

The tables stand here as they were when this revision was made, and not as `schema` has them now.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "broker",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("broker_id", sa.String(200), nullable=False),
        sa.Column("claimed_at", sa.Float, nullable=False),
        sa.Column("next_fence", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("request_id", sa.String(100), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.UniqueConstraint("owner", "request_id", name="uq_jobs_owner_request"),
    )
    op.create_index("ix_jobs_ended", "jobs", ["ended", "ended_at"])
    op.create_table(
        "observations",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("graph_hash", sa.String(128), nullable=False),
        sa.Column("device_model", sa.String(200), nullable=False),
        sa.Column("observed_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_observations_graph", "observations", ["graph_hash", "device_model"])


def downgrade() -> None:
    """There is nothing before the first revision."""
    raise NotImplementedError("a store is never taken back to an older schema")
