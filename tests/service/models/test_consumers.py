"""A consumer's name belongs to the actor that reported it first."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import rotate_key
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import ApiKey, AuditEntry, Consumer
from tests.service.worlds import live_model, publish

Keys = Callable[..., dict[str, str]]
WEB = "/v1/models/digits/consumers/web"


@pytest.mark.both_engines
def test_no_other_actor_speaks_for_a_consumer(
    client: TestClient, api: TestClient, service: Service, key_of: Keys
) -> None:
    """Any key that downloads checkpoints completed another consumer's requests, or held all of them up."""
    model = live_model(service)
    publish(service, model, b"two")
    mine, other = key_of("checkpoints:read"), key_of("checkpoints:read")
    assert api.put(WEB, json={"version": 1}, headers=mine).status_code == 200
    refused = api.put(WEB, json={"version": 2}, headers=other)
    assert (refused.status_code, refused.json()["code"]) == (409, "consumer_of_another")
    assert "expunge models remove-consumer digits web" in refused.json()["detail"]
    (shown,) = client.get("/v1/models/digits/consumers").json()["data"]
    assert (shown["version"], shown["status"]) == (1, "behind")
    assert api.put(WEB, json={"version": 2}, headers=mine).json()["status"] == "current"
    added = entries(service, "consumer.added")
    assert [(each["consumer"], each["actor"]) for each in added] == [("web", actor_of(service, mine))], "once"
    assert client.delete(WEB).status_code == 204
    assert api.put(WEB, json={"version": 2}, headers=other).status_code == 200, "a removed name is free"
    assert [each["actor"] for each in entries(service, "consumer.added")][1:] == [actor_of(service, other)]


def test_a_rotated_key_still_speaks_for_its_consumer(api: TestClient, service: Service, key_of: Keys) -> None:
    live_model(service)
    first = key_of("checkpoints:read")
    api.put(WEB, json={"version": 1}, headers=first)
    with service.database.write() as session:
        made = rotate_key(session, service.pepper, first["Authorization"].split("_")[1], 0)
    assert made is not None
    successor = {"Authorization": f"Bearer {made.secret}"}
    assert api.put(WEB, json={"version": 1}, headers=successor).status_code == 200


def test_a_name_from_before_belongs_to_the_next_actor_that_reports_it(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    model = live_model(service)
    with service.database.write() as session:
        row = Consumer(model_id=model.id, name="web", tenant_id="default", version_id=model.current_id or "", seen_at=1)
        session.add(row)
    mine, other = key_of("checkpoints:read"), key_of("checkpoints:read")
    answers = [api.put(WEB, json={"version": 1}, headers=key).status_code for key in (mine, other)]
    assert answers == [200, 409]


def entries(service: Service, kind: str) -> list[dict[str, Any]]:
    rows = select(AuditEntry.body).where(AuditEntry.kind == kind).order_by(AuditEntry.id)
    with service.database.read() as session:
        return [json.loads(body) for body in session.scalars(rows)]


def actor_of(service: Service, key: dict[str, str]) -> str:
    prefix = key["Authorization"].split("_")[1]
    with service.database.read() as session:
        return session.scalars(select(ApiKey.actor_id).where(ApiKey.prefix == prefix)).one()
