"""A process that begins while its databases are locked waits for them, and does not die."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from expunge_service.infra import db
from expunge_service.infra.files import DiskFolder
from expunge_service.infra.migrate import migrate
from expunge_service.infra.tables import Heartbeat
from expunge_workers.runtime import db_retry
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.heartbeat import HeartbeatSender
from expunge_workers.storage.key_store import KeyFiles, KeyStore


@contextmanager
def locked(path: Path, begun: threading.Event) -> Iterator[None]:
    """Another process writes to the database, and goes on until somebody has waited for it."""
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    free = threading.Thread(target=lambda: (begun.wait(20), writer.execute("COMMIT")))
    free.start()
    yield
    begun.set()
    free.join()
    writer.close()


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody met Busy and waits."""
    met = threading.Event()
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(db_retry.log, "warning", lambda *_: met.set())
    return met


def test_a_key_store_that_is_locked_is_waited_for(tmp_path: Path, waited: threading.Event) -> None:
    path = tmp_path / "keys.db"
    with locked(path, waited):
        keys = retry(lambda: KeyStore(f"sqlite:///{path}", KeyFiles(DiskFolder(tmp_path / "files"))), None, 0.05)
        assert waited.is_set()
    keys.close()


def test_the_first_heartbeat_waits_for_the_database(tmp_path: Path, waited: threading.Event) -> None:
    path = tmp_path / "expunge.db"
    database = db.Database(f"sqlite:///{path}")
    migrate(database)
    pulse = HeartbeatSender(database, "here", "worker", 30)
    with locked(path, waited):
        pulse.start()
        assert waited.is_set()
    with database.read() as session:
        assert session.get(Heartbeat, "here") is not None
    pulse.stop()
    database.close()
