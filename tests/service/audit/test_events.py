"""Server-sent events over HTTP, and over a real connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from sqlalchemy import update

from expunge_service.access.api_keys import revoke_key
from expunge_service.access.sessions import end_session
from expunge_service.api.cookies import COOKIE
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate, record
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.db import now
from expunge_service.infra.tables import ApiKey
from tests.service.conftest import Login

Keys = Callable[..., dict[str, str]]


def grow(service: Service, *kinds: str, tenant_id: str = "default") -> None:
    with service.database.write() as session:
        for kind in kinds:
            record(session, tenant_id, kind, request_id="r" * 32, reason="why", samples=["another person's digest"])
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))


def read(client: TestClient, last: int | None, **headers: str) -> list[dict[str, Any]]:
    seen = {} if last is None else {"Last-Event-ID": str(last)}
    answer = client.get("/v1/events", params={"seconds": 0}, headers=seen | headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.split("\n\n") if block.startswith("id: ")]
    lines = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [{"id": int(line["id"]), "event": line["event"]} | json.loads(line["data"]) for line in lines]


@pytest.mark.both_engines
def test_events_come_in_the_logs_order_after_the_last_that_was_seen(client: TestClient, service: Service) -> None:
    grow(service, "request.accepted", "key.created", "version.published", "request.completed")
    everything = read(client, -1)
    assert [each["event"] for each in everything] == ["request.accepted", "version.published", "request.completed"]
    assert read(client, everything[0]["id"]) == everything[1:]
    assert read(client, everything[-1]["id"]) == []
    assert read(client, None) == []


def test_an_event_says_nothing_of_others(client: TestClient, service: Service) -> None:
    grow(service, "version.published")
    (event,) = read(client, -1)
    assert event.keys() == {"id", "event", "at", "request", "reason"}


def test_a_key_sees_what_its_scopes_may_read_and_its_tenant_alone(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    grow(service, "request.accepted", "version.published")
    grow(service, "request.accepted", tenant_id="other")
    assert [each["event"] for each in read(api, -1, **key_of("deletions:read"))] == ["request.accepted"]
    assert [each["event"] for each in read(api, -1, **key_of("models:read"))] == ["version.published"]
    assert len(read(api, -1, **key_of("deletions:read", tenant_id="other"))) == 1
    assert api.get("/v1/events", headers=key_of("audit:read")).status_code == 403


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_stream_ends_soon_after_its_key(api: TestClient, service: Service, key_of: Keys, how: str) -> None:
    key = key_of("deletions:read")
    prefix = key["Authorization"].split("_")[1]

    def over() -> None:
        with service.database.write() as session:
            if how == "revoked":
                assert revoke_key(session, prefix)
            else:
                session.execute(update(ApiKey).where(ApiKey.prefix == prefix).values(expires_at=now(session)))

    timer = threading.Timer(2.0, over)  # a busy machine may open the stream late
    timer.start()
    began = time.monotonic()
    assert api.get("/v1/events", params={"seconds": 60}, headers=key).status_code == 200
    assert 0.2 < time.monotonic() - began < 10
    timer.join()
    assert api.get("/v1/events", headers=key).status_code == 401


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_stream_of_a_session_ends_soon_after_its_log_out(login: Login, service: Service) -> None:
    client = login("deletions:read")
    cookie = client.cookies[COOKIE]

    def log_out() -> None:
        with service.database.write() as session:
            end_session(session, cookie)

    timer = threading.Timer(0.5, log_out)
    timer.start()
    began = time.monotonic()
    assert client.get("/v1/events", params={"seconds": 60}).status_code == 200
    assert 0.4 < time.monotonic() - began < 10
    timer.join()


@pytest.mark.parametrize("last", ["x", "-2", "9" * 30])
def test_a_malformed_last_event_id_is_refused(client: TestClient, last: str) -> None:
    assert client.get("/v1/events", headers={"Last-Event-ID": last}).status_code == 422


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_event_reaches_a_client_that_is_connected(client: TestClient, service: Service) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(client.app, port=port, log_level="error", lifespan="off"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    headers = {"Authorization": client.headers["Authorization"]}
    with httpx.stream("GET", f"http://127.0.0.1:{port}/v1/events", headers=headers, timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        grow(service, "request.completed")
        assert next(line for line in lines if line.startswith("event:")) == "event: request.completed"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
