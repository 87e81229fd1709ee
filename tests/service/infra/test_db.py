"""The database's scopes: locks, clocks, what busy means, and what SQLite is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from expunge_service.audit.log import record
from expunge_service.infra import db, files
from expunge_service.infra.db import NOW, Busy, Database, now
from expunge_service.infra.migrate import SchemaState, migrate, schema_state
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import AuditEntry, Lease, Record
from tests.harness.deaths import crash
from tests.harness.seams import die, inside_commit

pytestmark = pytest.mark.both_engines


def test_the_tables_are_those_of_the_records(database: Database) -> None:
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Record.metadata) == []


def test_checks_of_the_records_are_in_the_database(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(
            text(
                "INSERT INTO models (id, tenant_id, name, status, recipe, policy, created_at)"
                " VALUES ('1', 't', 'n', 'dreaming', 'r', '{}', 1)"
            )
        )


def test_the_database_itself_refuses_what_must_be_unique(database: Database) -> None:
    """At most one effect per generation and sample, one child per version, one answer per key: constraints, not
    care.
    """
    tables = inspect(database.engine)
    keys = {
        (table, tuple(tables.get_pk_constraint(table)["constrained_columns"])) for table in tables.get_table_names()
    }
    keys |= {
        (table, tuple(each["column_names"]))
        for table in tables.get_table_names()
        for each in tables.get_unique_constraints(table)
    }
    assert {
        ("forgotten", ("generation_id", "position")),
        ("versions", ("model_id", "parent_id")),
        ("versions", ("model_id", "number")),
        ("tasks", ("request_id", "model_id")),
        ("idempotency_keys", ("tenant_id", "actor_id", "key")),
        ("audit_entries", ("log_index",)),
    } <= keys


def test_the_schema_says_where_it_stands(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    assert schema_state(database) is SchemaState.BEHIND
    migrate(database)
    assert schema_state(database) is SchemaState.CURRENT
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'from-the-future'"))
    assert schema_state(database) is SchemaState.AHEAD
    with pytest.raises(RuntimeError, match="has the schema from-the-future"):
        migrate(database)
    database.close()


def test_many_processes_may_migrate_at_once(postgres_url: str) -> None:
    def one(_: int) -> SchemaState:
        database = Database(postgres_url)
        migrate(database)
        state = schema_state(database)
        database.close()
        return state

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(one, range(6))) == {SchemaState.CURRENT}


def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(KeyError), database.write() as session:
        session.add(Lease(name="x", token=1, owner="me", expires_at=0))
        session.flush()
        raise KeyError
    with database.read() as session:
        assert session.get(Lease, "x") is None


def test_writers_that_read_first_all_succeed(database: Database) -> None:
    """Read, then write, under a plain BEGIN fails on SQLite; here every writer gets its turn."""
    with database.write() as session:
        session.add(Lease(name="x", token=0, owner="me", expires_at=0))

    def add(_: int) -> None:
        with database.write() as session:
            session.get_one(Lease, "x", with_for_update=True).token += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(80)))
    with database.read() as session:
        assert session.get_one(Lease, "x").token == 80


def test_a_database_that_stays_locked_is_busy(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.2)
    other = Database(database.engine.url.render_as_string(hide_password=False))
    with database.write() as session:
        session.add(Lease(name="x", token=1, owner="me", expires_at=0))
        session.flush()
        with pytest.raises(Busy), other.write() as second:
            second.add(Lease(name="x", token=1, owner="you", expires_at=0))
            second.flush()
    other.close()


def test_a_database_without_room_is_busy(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'small.db'}")
    migrate(database)
    with pytest.raises(Busy), database.write() as session:
        session.execute(text("PRAGMA max_page_count = 1"))  # SQLite takes the present size: no page more
        session.execute(text("CREATE TABLE grows (x BLOB)"))
        session.execute(text("INSERT INTO grows VALUES (zeroblob(1000000))"))
    database.close()


def test_a_database_that_is_gone_is_busy() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(Busy), database.read() as session:
        session.execute(text("SELECT 1"))


def test_readers_write_nothing(postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(text("CREATE TABLE x (y int)"))
    database.close()


def test_the_clock_is_microseconds_of_utc_and_runs_inside_a_transaction(database: Database) -> None:
    with database.read() as session:
        first = now(session)
        assert abs(first / 1e6 - time.time()) < 5
        time.sleep(0.02)
        assert 10_000 < now(session) - first < 5_000_000


def test_sqlite_is_told_to_be_durable_and_to_wipe(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.read() as session:
        pragmas = {name: session.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}
        assert session.execute(text("PRAGMA secure_delete")).scalar() == 1
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1
    database.close()


def test_truncating_the_log_removes_what_was_deleted_and_says_when_it_could_not(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    migrate(database)
    with database.write() as session:
        record(session, "t", "x", canary="4f6e2a-canary")
    with database.write() as session:
        session.query(AuditEntry).delete()
    with database.read() as session:
        session.execute(text("SELECT count(*) FROM audit_entries"))
        with database.write() as other:
            record(other, "t", "y")
        assert not database.truncate_log()
    assert database.truncate_log()
    assert b"4f6e2a-canary" not in b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))
    database.close()


def test_a_database_in_memory_or_on_a_network_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="memory"):
        Database("sqlite://")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/share {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    with pytest.raises(SettingsError, match="nfs4"):
        Database(f"sqlite:///{tmp_path / 'a.db'}")


def test_an_errors_text_carries_no_values(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught, database.write() as session:
        session.execute(text("INSERT INTO leases (name) VALUES (:name)"), {"name": "canary-77"})
    assert "canary-77" not in str(caught.value).replace(str(caught.value.orig), "")


def write_fifty(url: str) -> None:
    """Write fifty rows, and die inside their commit."""
    with inside_commit(die), Database(url).write() as session:
        session.add_all(Lease(name=str(n), token=1, owner="me", expires_at=0) for n in range(50))
    time.sleep(1)


@pytest.mark.parametrize("attempt", [0, *(pytest.param(each, marks=pytest.mark.drill) for each in (1, 2))])
def test_a_death_inside_commit_leaves_all_or_nothing(database: Database, attempt: int) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    assert crash(None, write_fifty, url) == -9
    deadline = time.monotonic() + 5
    while True:
        with database.read() as session:
            count = session.query(Lease).where(Lease.owner == "me").count()
        if count == 50 or time.monotonic() > deadline or database.dialect == "sqlite":
            break
        time.sleep(0.1)
    assert count in (0, 50)


def test_a_look_finds_what_a_session_finds_and_leaves_the_connection_as_it_was(database: Database) -> None:
    question = select(Lease.name, Lease.token, Lease.expires_at <= NOW).order_by(Lease.name)
    sent: list[str] = []
    event.listen(database._looker, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))
    for count in range(12):  # PostgreSQL prepares a statement at its sixth time
        with database.read() as session:
            expected = session.execute(question).all()
        sent.clear()
        assert database.look(question) == expected
        assert len([each for each in sent if not each.startswith("BEGIN")]) == 1
        assert len(expected) == 1 + count, "the scheduler's and those of the rounds before"
        with pytest.raises(ZeroDivisionError), database.write() as session:  # its transaction still rolls back
            session.add(Lease(name=f"undone {count}", owner="me", token=1, expires_at=0))
            session.flush()
            raise ZeroDivisionError
        with database.write() as session:
            session.add(Lease(name=f"lease {count:02}", owner="me", token=count, expires_at=0))


@pytest.mark.parametrize("scope", [Database.read, Database.without_transaction])
def test_a_connection_of_postgresql_keeps_what_it_has_prepared(
    database: Database, scope: Callable[[Database], AbstractContextManager[Session]]
) -> None:
    if database.dialect != "postgresql":
        pytest.skip("SQLite's driver prepares nothing")
    question = select(Lease.name).order_by(Lease.name)
    for _ in range(8):  # psycopg prepares a statement at its sixth time
        with scope(database) as session:
            session.execute(question).all()
    with scope(database) as session:
        prepared = session.scalars(text("SELECT statement FROM pg_prepared_statements")).all()
    assert any("FROM leases" in statement for statement in prepared)


def test_a_look_says_that_the_database_is_away() -> None:
    away = Database("postgresql://postgres@127.0.0.1:9/expunge")
    with pytest.raises(Busy):
        away.look(select(Lease.name))
    away.close()
