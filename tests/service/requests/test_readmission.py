"""Lifting suppression entries: who was deleted may come back, in generations that begin afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import AuditEntry, Generation, SuppressionEntry, Task
from expunge_service.requests.status import settle
from expunge_service.requests.suppression import positions
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
WHY = {"reason": "asked to come back"}


def delete(client: TestClient, key: str, **order: Any) -> str:
    request: str = client.post(PATH, json=order, headers={"Idempotency-Key": key}).json()["id"]
    return request


def complete(service: Service) -> None:
    with service.database.write() as session:
        tasks = session.scalars(select(Task)).all()
        for task in tasks:
            task.status = "completed"
        settle(session, [task.request_id for task in tasks])


@pytest.mark.both_engines
def test_lifting_waits_for_the_request_then_admits_to_new_generations_once(
    client: TestClient, service: Service
) -> None:
    model = live_model(service)
    request = delete(client, "1", subject_id="ada")
    again = delete(client, "2", subject_id="ada")
    early = client.post(f"{PATH}/{request}/lift", json=WHY)
    assert (early.status_code, early.json()["code"]) == (409, "still_open")
    complete(service)
    first = client.post(f"{PATH}/{request}/lift", json=WHY)
    assert (first.status_code, first.json()) == (200, {"request": request, "lifted": 1, "others": 1})
    assert client.post(f"{PATH}/{request}/lift", json=WHY).json()["lifted"] == 0
    with service.database.read() as session:
        stones = {stone.request_id: stone for stone in session.scalars(select(SuppressionEntry))}
        assert stones[request].lifted_reason == "asked to come back" and stones[again].lifted_at is None
        assert positions(session, "default", "digits", model.generation_id or 0).keys() == {again}
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.kind == "suppression.lifted"))
        assert entry.request_id == request and "come back" not in entry.body


def test_nobody_is_admitted_to_a_generation_that_has_begun(client: TestClient, service: Service) -> None:
    request = delete(client, "1", sample_ids=["x", "y"])
    model = live_model(service)
    with service.database.write() as session:
        session.get_one(Generation, model.generation_id).status = "candidate"
    answer = client.post(f"{PATH}/{request}/lift", json=WHY)
    assert (answer.status_code, answer.json()["code"]) == (409, "generation_beginning")
    with service.database.write() as session:
        session.get_one(Generation, model.generation_id).status = "live"
    assert client.post(f"{PATH}/{request}/lift", json=WHY).json()["lifted"] == 2


def test_lifting_is_for_the_tenants_administrators_and_needs_a_reason(client: TestClient, key_of: Any) -> None:
    path = f"{PATH}/{delete(client, '1', subject_id='ada')}/lift"
    assert client.post(path, json=WHY, headers=key_of(tenant_id="other")).status_code == 404
    assert client.post(path, json=WHY, headers=key_of(Scope.DELETIONS_WRITE)).status_code == 403
    assert client.post(path, json={}).status_code == 422
    assert client.post(path, json={"reason": ""}).status_code == 422
