"""The state of the schema, and its migration."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from service.infra.db import Database

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x6578_7075_6E67  # "expung": the advisory lock of every process that migrates this database


class SchemaState(StrEnum):
    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"


def schema_state(database: Database) -> SchemaState:
    """Return whether the tables are those of this software. ``ahead``: a newer release has migrated them."""
    with database.read() as session:
        return _state(session.connection())


def migrate(database: Database) -> None:
    """Bring the schema up to date, under one lock and in one transaction per migration. A current one is left as it is.

    Raises:
        RuntimeError: the database was migrated by a newer release.
    """
    with _alone(database):
        if schema_state(database) is SchemaState.CURRENT:
            return
        from alembic import command  # noqa: PLC0415 (alembic costs 0.2 s, and only a migration needs it)

        with _locked(database) as configuration:
            command.upgrade(configuration, "head")


@contextmanager
def _locked(database: Database) -> Iterator[Config]:
    """Take the migration lock; yield Alembic's configuration for its connection. Raises RuntimeError: schema ahead."""
    with database.engine.connect() as connection:
        _lock(connection)
        try:
            if _state(connection) is SchemaState.AHEAD:
                raise RuntimeError("The database was migrated by a newer release. Install that release.")
            connection.commit()
            configuration = _configuration()
            configuration.attributes["connection"] = connection
            yield configuration
        finally:
            _unlock(connection)


def _state(connection: Connection) -> SchemaState:
    if not inspect(connection).has_table("alembic_version"):
        return SchemaState.BEHIND
    found = set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
    known = _revisions()
    if found == {known[0]}:
        return SchemaState.CURRENT
    return SchemaState.BEHIND if found <= set(known) else SchemaState.AHEAD


@cache
def _revisions() -> tuple[str, ...]:
    """Return all revisions, newest first."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return tuple(script.revision for script in ScriptDirectory.from_config(_configuration()).walk_revisions())


def _configuration() -> Config:
    from alembic.config import Config  # noqa: PLC0415

    configuration = Config()
    configuration.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations"))
    configuration.set_main_option("path_separator", "os")
    return configuration


@contextmanager
def _alone(database: Database) -> Iterator[None]:
    """Lock a file next to an SQLite database, so that one process migrates at a time. The lock ends with the process.

    SQLite's own write lock comes too late: a migration reads the version first, and may not write afterwards. The look
    before it needs the lock as well: while another process turns a new file to its write-ahead log, SQLite refuses to
    open it without waiting.
    """
    path = database.engine.url.database
    if database.dialect != "sqlite" or not path:
        yield
        return
    with os.fdopen(os.open(f"{path}.migrating", os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(connection: Connection) -> None:
    """Wait for a session lock on PostgreSQL."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
        connection.commit()


def _unlock(connection: Connection) -> None:
    connection.rollback()
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
        connection.execute(text("RESET lock_timeout"))
        connection.commit()
