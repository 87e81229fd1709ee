"""Intake's fast way writes what the plain way writes, or nothing; on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import secrets
import sqlite3
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from service.access.api_keys import revoke_key
from service.access.keyring import SECONDS, Keyring
from service.api.dependencies import Service
from service.infra.db import Busy, Database
from service.infra.tables import ApiKey, AuditEntry, DeletionRequest, IdempotencyKey, SuppressionEntry, Task
from service.infra.wire import inserting
from service.requests import express
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
TABLES = (DeletionRequest, SuppressionEntry, Task, AuditEntry, IdempotencyKey)
RANDOM = {"id", "entry", "salt", "request_id", "commitment", "key", "Location", "request"}
MOMENTS = {"at", "created_at", "received_at", "due_at", "not_before", "expires_at", "completed_at"}


def post(client: TestClient, key: str | None = None, **body: Any) -> Any:
    return client.post(PATH, json=body, headers={"Idempotency-Key": key or secrets.token_hex(8)})


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every call, whether the fast way took it."""
    seen: list[bool] = []
    fast = express.accept

    def watched(*values: Any, **more: Any) -> Any:
        seen.append(False)
        found = fast(*values, **more)
        seen[-1] = found is not None
        return found

    monkeypatch.setattr(express, "accept", watched)
    return seen


def plain(value: Any, name: str = "") -> Any:
    """What two requests for the same person have in common."""
    if name in RANDOM and value is not None:
        return "random"
    if name in MOMENTS and value is not None:
        return "moment"
    if name == "body":
        return plain(json.loads(value))
    return {key: plain(each, key) for key, each in value.items()} if isinstance(value, dict) else value


def everything(service: Service) -> dict[str, list[Any]]:
    with service.database.read() as session:
        return {
            table.__tablename__: sorted(
                (
                    {name: plain(value, name) for name, value in row._mapping.items() if name != "body_digest"}
                    for row in session.execute(select(table.__table__))  # type: ignore[arg-type]
                ),
                key=repr,
            )
            for table in TABLES
        }


def emptied(service: Service) -> None:
    with service.database.write() as session:
        for table in (IdempotencyKey, AuditEntry, Task, SuppressionEntry, DeletionRequest):
            session.execute(table.__table__.delete())  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", [{}, {"regulation": "gdpr", "received_at": "2026-01-31T10:00:00+02:00"}])
def test_the_fast_way_writes_the_rows_of_the_plain_way(
    client: TestClient, service: Service, taken: list[bool], monkeypatch: pytest.MonkeyPatch, order: dict[str, str]
) -> None:
    live_model(service, "digits")
    live_model(service, "faces", {"ada": ["x"]})
    live_model(service, "others", {"zoe": ["z"]})
    client.post("/v1/models", json={"name": "new", "recipe": "digits", "method": "recollection"})
    emptied(service)
    fast, rows = post(client, subject_id="ada", **order), everything(service)
    assert taken == [True]
    emptied(service)
    monkeypatch.setattr(express, "accept", lambda *_, **__: None)
    slow = post(client, subject_id="ada", **order)
    kept = everything(service)
    assert rows == kept
    assert len(rows["tasks"]) == 3
    assert plain(fast.json()) | {"opening": 0} == plain(slow.json()) | {"opening": 0}
    assert fast.headers.keys() == slow.headers.keys()


def test_what_is_not_the_common_case_is_left_to_the_plain_way(
    client: TestClient, service: Service, taken: list[bool]
) -> None:
    live_model(service)
    assert post(client, "k", subject_id="ada").status_code == 202
    assert post(client, "k", subject_id="ada").status_code == 202
    assert post(client, "k", subject_id="bob").status_code == 422
    assert post(client, subject_id="nobody").json()["status"] == "completed"
    assert post(client, subject_id="ada", models=["digits"]).status_code == 202
    assert post(client, sample_ids=["ada-1"]).status_code == 202
    assert taken == [True, False, False, False, False, False]
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 4


def test_a_remembered_key_that_was_revoked_or_has_expired_does_not_work(client: TestClient, service: Service) -> None:
    live_model(service)
    for spoil in ("revoke", "expire"):
        header = client.headers["Authorization"]
        prefix = header.split("_")[1]
        assert post(client, subject_id="ada").status_code == 202
        with service.database.write() as session:
            if spoil == "revoke":
                assert revoke_key(session, prefix)
            else:
                session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one().revoked_at = None
                session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one().expires_at = 1
        answer = post(client, subject_id="ada")
        assert (answer.status_code, answer.json()["code"]) == (401, "key_invalid")
        with service.database.write() as session:
            row = session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one()
            row.revoked_at, row.expires_at = None, None
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 2


def test_a_keyring_forgets_after_its_time() -> None:
    at = [0.0]
    ring = Keyring(clock=lambda: at[0])
    caller: Any = object()
    ring.remember("digest", caller)
    assert (ring.holder("digest"), ring.holder("other")) == (caller, None)
    at[0] = SECONDS
    assert ring.holder("digest") is None


def test_an_error_on_the_wire_leaves_nothing_and_the_connection_usable(database: Database) -> None:
    row = {"name": "scheduler", "token": 1, "owner": "me", "expires_at": 1}

    class Leases:
        __tablename__ = "leases"

    lease = inserting(Leases, *row)
    for _ in range(12):  # more often than the driver waits to prepare a statement
        with pytest.raises((psycopg.Error, sqlite3.Error, DBAPIError)), database.wire() as wire:
            wire.insert((lease, row))
            wire.insert((lease, row))
    with database.wire() as wire:
        wire.insert((lease, row))
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM leases")) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_database_that_goes_away_is_busy(database: Database, postgres_server: Any) -> None:
    with pytest.raises(Busy), database.wire() as wire:
        wire._driver.execute("SELECT 1").fetchall()
        with psycopg.connect(
            f"postgresql://postgres@{postgres_server.address}/postgres", autocommit=True
        ) as administrator:
            administrator.execute("SELECT pg_terminate_backend(%s)", [wire._driver.info.backend_pid])
        wire._driver.execute("SELECT 1").fetchall()
    with database.wire() as wire:
        assert wire._driver.execute("SELECT 1").fetchall() == [(1,)]
