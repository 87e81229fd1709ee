"""Alembic's entry. The connection, its lock and its transaction come from expunge_service.infra.migrate."""

from __future__ import annotations

from alembic import context

from expunge_service.infra.tables import Record

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("Run `expunge migrate`: migrations need the service's own connection and lock.")

context.configure(
    connection=connection,
    target_metadata=Record.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
