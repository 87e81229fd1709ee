"""The state of the schema, and its migration."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from expunge_service.infra.db import Database
from expunge_service.infra.tables import Record

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x6578_7075_6E67  # "expung": the advisory lock of every process that migrates this database


_ANEW = "_alembic_tmp_"
_DUPLICATES = {"42P07", "42710"}
"""SQLSTATE of a table and of another object whose name is taken"""
_IN_THE_WAY = (
    "The database has tables that are not Expunge's, under names that a migration needs: {}. Nothing was changed. Look "
    "at what they hold, rename or drop them, and run `expunge migrate` again."
)


class SchemaState(StrEnum):
    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"


RUN_MIGRATE = "The schema is behind this release: run `expunge migrate`."


def schema_state(database: Database) -> SchemaState:
    """Return whether the tables are those of this software. ``ahead``: a newer release has migrated them."""
    with database.read() as session:
        return _state(session.connection())


def migrate(database: Database) -> None:
    """Bring the schema up to date: under one lock, and in one transaction that ends with what was there or all of it.

    Raises:
        RuntimeError: this release does not know the schema, what the migrations gave is not this release's, a table of
            another program has a name that they need, or the database cannot hold every text.
    """
    with _alone(database):
        if schema_state(database) is SchemaState.CURRENT:
            return
        from alembic import command  # noqa: PLC0415 (alembic costs 0.2 s, and only a migration needs it)

        with _locked(database) as connection, connection.begin():
            configuration = _configuration()
            configuration.attributes["connection"] = connection
            _require_text(connection)
            _require_free(connection)
            try:
                command.upgrade(configuration, "head")
            except DBAPIError as error:
                raise _taken(error) from error
            _refuse(_differences(connection), "The migration was rolled back.")


def _require_text(connection: Connection) -> None:
    """Raise RuntimeError for a PostgreSQL database of another encoding than UTF8."""
    if connection.dialect.name != "postgresql":
        return
    name, encoding = connection.execute(text("SELECT current_database(), current_setting('server_encoding')")).one()
    if encoding != "UTF8":
        raise RuntimeError(
            f"The database {name} is in {encoding}, which cannot hold every text. Nothing was changed. Make one in "
            "UTF8 and name it in EXPUNGE_DATABASE_URL: createdb --encoding=UTF8 --template=template0 NAME."
        )


def _require_free(connection: Connection) -> None:
    """Raise RuntimeError where a name is taken under which a migration makes a table anew; SQLite needs that."""
    found = inspect(connection)
    taken = [name for name in (*found.get_table_names(), *found.get_view_names()) if name.startswith(_ANEW)]
    if taken and connection.dialect.name == "sqlite":
        raise RuntimeError(_IN_THE_WAY.format(", ".join(sorted(taken))))


def _taken(error: DBAPIError) -> Exception:
    """Return an error that names the table in the way; any other as it is."""
    reason, state = error.orig, getattr(error.orig, "sqlstate", None)
    primary = str(getattr(getattr(reason, "diag", None), "message_primary", None) or reason)
    if state in _DUPLICATES or (state is None and primary.endswith("already exists")):
        return RuntimeError(_IN_THE_WAY.format(primary))
    return error


def compare(database: Database) -> None:
    """Compare the tables with those of this release. Raises RuntimeError: they differ, and in what."""
    with database.read() as session:
        _refuse(_differences(session.connection()), "Nothing was changed.")


@contextmanager
def _locked(database: Database) -> Iterator[Connection]:
    """Yield a connection that holds the migration lock, outside a transaction. Raises RuntimeError: schema ahead."""
    with database.engine.execution_options(expunge_begin="BEGIN IMMEDIATE").connect() as connection:
        _lock(connection)
        try:
            if _state(connection) is SchemaState.AHEAD:
                found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
                differences = _differences(connection)
                needed = f" This one would need: {'; '.join(differences)}." if differences else ""
                raise RuntimeError(
                    f"The database has the schema {', '.join(found)}, and this release knows none later than "
                    f"{_revisions()[0]}. Nothing was changed. Install the release that migrated it.{needed}"
                )
            connection.commit()
            yield connection
        finally:
            _unlock(connection)


def _differences(connection: Connection) -> list[str]:
    """Return in what the tables differ from the records of this release, and the rows that refer to no row."""
    from alembic.autogenerate import compare_metadata  # noqa: PLC0415
    from alembic.migration import MigrationContext  # noqa: PLC0415

    partitions: set[str] = set()
    if connection.dialect.name == "postgresql":
        partitions |= {*connection.execute(text("SELECT relname FROM pg_class WHERE relispartition")).scalars()}
    context = MigrationContext.configure(
        connection, opts={"include_name": lambda name, kind, _: kind != "table" or name not in partitions}
    )
    found = [_named(each) for each in compare_metadata(context, Record.metadata)]
    if connection.dialect.name == "sqlite":
        orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        found += sorted({f"rows of {table} refer to rows that {parent} lacks" for table, _, parent, _ in orphans})
    return found


def _named(difference: Any) -> str:
    """Return one difference of Alembic in words, such as ``add_column models.name``."""
    if isinstance(difference, list):  # the changes of one column
        operation, _, table, column, *_ = difference[0]
        return f"{operation} {table}.{column}"
    operation, *rest = difference
    named = [each for each in rest if each is not None]
    places = [each if isinstance(each, str) else getattr(each, "name", None) or str(each) for each in named]
    table = getattr(getattr(named[-1], "table", None), "name", None)
    return f"{operation} {'.'.join([table, *places] if table and table not in places else places)}"


def _refuse(differences: list[str], state: str) -> None:
    if differences:
        raise RuntimeError(
            f"The tables are not those of this release, which needs: {'; '.join(differences)}. {state} "
            "Restore a backup of a release, or begin with an empty database."
        )


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
    configuration.set_main_option("script_location", str(files("expunge_migrations")))
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
    """Wait for a session lock on PostgreSQL. On SQLite, switch off what refuses to replace a table that rows refer to.

    That has no effect inside a transaction. ``_differences`` looks at every reference before the commit.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
        connection.commit()
    else:
        _tell(connection, "PRAGMA foreign_keys=OFF")


def _unlock(connection: Connection) -> None:
    connection.rollback()
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})
        connection.execute(text("RESET lock_timeout"))
        connection.commit()
    else:
        _tell(connection, "PRAGMA foreign_keys=ON")


def _tell(connection: Connection, pragma: str) -> None:
    """Send a pragma outside a transaction: SQLAlchemy would begin one."""
    driver: Any = connection.connection.driver_connection
    driver.execute(pragma)
