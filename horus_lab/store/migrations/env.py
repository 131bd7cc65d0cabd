"""Run by Alembic: migrate over the connection, and in the transaction, that the store gives."""

from __future__ import annotations

from alembic import context

from horus_lab.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
