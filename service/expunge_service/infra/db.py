"""The database engine and its two scopes: ``write`` (the only commit) and ``read``."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Boolean, Connection, Engine, Row, Select, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from expunge_service.infra.actors import OPERATOR, Actor, actor_of_call
from expunge_service.infra.files import filesystem_of
from expunge_service.infra.settings import SettingsError

BATCH = 500
"""values in one statement: SQLite allows 32,766 variables, and PostgreSQL plans short lists better"""
BUSY_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""after this PostgreSQL ends an idle transaction, so that a client that vanished keeps no lock"""
CLOCKS = {
    # SQLite's clock has millisecond resolution
    "sqlite": text("SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"),
    "postgresql": text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"),
}
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_NETWORK_FILESYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}


Value = TypeVar("Value")


class Busy(RuntimeError):
    """The database did not answer in time, went away, or has no room. What was written is unknown: try again."""

    retry_after_seconds = 1


_LINES = "lines to log"


def log_after_commit(session: Session, log: logging.Logger, message: str, **facts: object) -> None:
    """Log an INFO line when the transaction has committed, and none where it is rolled back.

    ``facts``: fields that infra/logging.py lists. None of them may be a person's.
    """
    session.info.setdefault(_LINES, []).append((log, message, facts))


class Database:
    """One database. Safe to share between threads; each scope opens a new session."""

    actor = OPERATOR
    """the actor of a transaction that no caller of the API asked for"""

    def __init__(self, url: str, actor: str = OPERATOR) -> None:
        self.actor = actor
        parsed = make_url(url)
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() != "sqlite":
            self._serve(_postgres(parsed))
            self._looker: Engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            return
        self._serve(_sqlite(parsed.database))
        self._fresh = create_engine(self.engine.url, hide_parameters=True, poolclass=NullPool)
        event.listen(self._fresh, "connect", _let_begin)
        event.listen(self._fresh, "begin", _begin_sqlite)

    def _serve(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect: str = engine.dialect.name
        self._writer = self.engine.execution_options(expunge_begin="BEGIN IMMEDIATE")
        self._reader = self.engine.execution_options(postgresql_readonly=True)
        self._fresh = self._reader
        self._looker = self.engine

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that commits at the end of the block, or rolls back where that raises. Raises Busy."""
        with _busy(), Session(self._writer, expire_on_commit=False) as session:
            with session.begin():
                session.info["actor"] = actor_of_call() or Actor(self.actor)
                yield session
            for log, message, facts in session.info.get(_LINES, ()):
                log.info(message, extra=facts)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session that only reads. Raises Busy."""
        with _busy(), self._reading(self._reader) as session:
            yield session

    def look(self, question: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """Return the rows of a question that is asked again and again: one statement, in no transaction.

        Build ``question`` once: that takes longer than its answer. PostgreSQL plans it once for a connection; on
        SQLite it is a transaction, which costs no round trip. Raises Busy.
        """
        with _busy(), self._looker.connect() as connection:
            return connection.execute(question).all()

    @contextmanager
    def without_transaction(self) -> Iterator[Session]:
        """Open a session whose statements are in no transaction, as that of ``look``: for a few small questions a call.

        On PostgreSQL that spares two round trips; nothing refuses a statement that writes. Raises Busy.
        """
        with _busy(), Session(self._looker, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Open a session that only reads, and sees one moment in all of its statements. Raises Busy."""
        with self.read() as session:
            if self.dialect == "postgresql":  # SQLite's transactions do so anyway
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def fresh(self) -> Iterator[Session]:
        """Open a session as ``read``, in a new connection on SQLite: an old one keeps reading a file that was
        replaced. PostgreSQL's end with their server. Raises Busy.
        """
        with _busy(), self._reading(self._fresh) as session:
            yield session

    @contextmanager
    def _reading(self, engine: Engine) -> Iterator[Session]:
        with Session(engine, expire_on_commit=False) as session:
            yield session
            if self.dialect == "postgresql":  # at a ROLLBACK psycopg forgets which statements it has prepared
                session.expunge_all()
                session.commit()

    def truncate_log(self) -> bool:
        """Empty SQLite's write-ahead log, where deleted bytes remain.

        Returns False where readers kept it: try again later.
        """
        if self.dialect != "sqlite":
            return True
        raw = self.engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA busy_timeout=100")  # waiting for readers would make the writers wait
            busy, _, _ = raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            raw.cursor().execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
            raw.close()
        return not busy

    def close(self) -> None:
        self.engine.dispose()


def batches(values: Iterable[Value], size: int = BATCH) -> Iterator[list[Value]]:
    """Yield the values in lists of ``size``, the last one shorter."""
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch


def now(session: Session) -> int:
    """Return microseconds since 1970 UTC on the database's clock, the only clock that leases may use."""
    return int(session.execute(CLOCKS[session.get_bind().dialect.name]).scalar_one())


class _Clock(FunctionElement[int]):
    inherit_cache = True
    type = BigInteger()


NOW = _Clock()
"""``now`` inside a statement. PostgreSQL plans without its value: compare it with a minimum where rows are many."""


@compiles(_Clock)
def _clock(_: _Clock, compiler: SQLCompiler, **__: Any) -> str:
    return f"({CLOCKS[compiler.dialect.name]})"


class _InRecovery(FunctionElement[bool]):
    inherit_cache = True
    type = Boolean()


IN_RECOVERY = _InRecovery()
"""whether a standby answers, which may lack the last commits"""


@compiles(_InRecovery)
def _in_recovery(_: _InRecovery, compiler: SQLCompiler, **__: Any) -> str:
    return "pg_is_in_recovery()" if compiler.dialect.name == "postgresql" else "FALSE"


@contextmanager
def _busy() -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise Busy(f"No database connection became free within {BUSY_SECONDS:g} seconds.") from error
    except DBAPIError as error:
        if error.connection_invalidated or _is_busy(error.orig, isinstance(error, OperationalError)):
            raise Busy("The database is busy or unreachable.") from error
        raise


def _is_busy(error: BaseException | None, operational: bool) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
    # 55P03 lock timeout, 40P01 deadlock, 40001 serialization, 53 no room, 57P shutting down, 58 disk error
    state = getattr(error, "sqlstate", None)
    if state is None:
        return operational
    return state in {"55P03", "40P01", "40001"} or state.startswith(("08", "53", "57P", "58"))


def _postgres(url: Any) -> Engine:
    limits = {"lock_timeout": BUSY_SECONDS, "idle_in_transaction_session_timeout": SILENT_SECONDS}
    options = " ".join(f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items())
    return create_engine(
        url,
        hide_parameters=True,  # an error's text must not carry values into logs
        pool_size=10,
        max_overflow=10,
        pool_timeout=BUSY_SECONDS,
        # the encoding: without it a database in SQL_ASCII answers in bytes, and no sentence says why nothing works
        connect_args={"connect_timeout": 5, "options": options, "client_encoding": "utf8"},
    )


def _sqlite(path: str | None) -> Engine:
    if not path or path == ":memory:":
        raise SettingsError(
            "EXPUNGE_DATABASE_URL: an in-memory SQLite database loses requests. Name a file, as sqlite:////srv/expunge.db."
        )
    _refuse_network_filesystem(Path(path).absolute())
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    Path(path).touch(mode=0o600)  # SQLite gives its log the same mode
    engine = create_engine(f"sqlite:///{path}", hide_parameters=True, connect_args={"timeout": BUSY_SECONDS})
    tell_sqlite(engine)
    return engine


def tell_sqlite(engine: Engine) -> None:
    """Make every connection of ``engine`` durable, overwrite what it deletes, and lock at once when it writes."""
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)


def _let_begin(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # _begin_sqlite begins transactions, not the driver


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    _let_begin(connection, record)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; a writer takes the lock at once, because reading first and then writing fails."""
    connection.exec_driver_sql(connection.get_execution_options().get("expunge_begin", "BEGIN"))


def _refuse_network_filesystem(path: Path) -> None:
    point, kind = filesystem_of(path)
    if kind in _NETWORK_FILESYSTEMS:
        raise SettingsError(f"{path} lies on {point} ({kind}): SQLite's locks do not hold there. Use a local disk.")
