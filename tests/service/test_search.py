"""Who may learn whether a person is in the data, or was forgotten: holders of ``people:search``, and it is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.api.dependencies import Service
from service.infra.tables import AuditEntry, DeletionRequest, Removal
from tests.service.worlds import live_model, publish

pytestmark = pytest.mark.both_engines

PATH = "/v1/deletion-requests"
TOLD = {"id", "status", "received_at", "due_at", "opening"}
Keys = Callable[..., dict[str, str]]


def send(client: TestClient, key: dict[str, str], idempotency: str, **order: Any) -> Any:
    return client.post(PATH, json=order, headers=key | {"Idempotency-Key": idempotency})


def searches(service: Service) -> list[dict[str, Any]]:
    with service.database.read() as session:
        bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "people.searched"))
        return [json.loads(body) for body in bodies]


def test_only_the_scope_for_searches_estimates_and_each_use_is_recorded_without_the_person(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    live_model(service)
    for scope in ("deletions:read", "deletions:write", "models:admin", "audit:read"):
        refused = api.post(f"{PATH}/estimate", json={"subject_id": "ada"}, headers=key_of(scope))
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    assert searches(service) == []
    key = key_of("people:search")
    told = [api.post(f"{PATH}/estimate", json={"subject_id": who}, headers=key).json() for who in ("ada", "nobody")]
    assert [each["samples"] for each in told] == [2, 0]
    written = searches(service)
    assert [each["search"] for each in written] == [each["search"] for each in told]
    assert {each["actor"] for each in written} == {each["actor"] for each in written[:1]} != {None}
    assert written[0].keys() == {"actor", "search", "entry", "at", "kind", "tenant", "request", "model"}


@pytest.mark.parametrize("who", ["ada", "nobody", "large", "forgotten"])
def test_who_may_only_write_is_told_the_same_of_everybody(
    api: TestClient, service: Service, key_of: Keys, who: str
) -> None:
    live_model(service, people={"ada": ["a"], "large": [f"l{each}" for each in range(1100)], "forgotten": ["f"]})
    assert send(api, key_of(), "earlier", subject_id="forgotten").status_code == 202
    key = key_of("deletions:write")
    first = send(api, key, "k", subject_id=who, regulation="gdpr")
    assert (first.status_code, first.json()["status"]) == (202, "queued")
    assert first.json().keys() == TOLD and first.json()["due_at"] is not None
    assert send(api, key, "k", subject_id=who, regulation="gdpr").json() == first.json(), "the replay says the same"
    batch = {"requests": [{"subject_id": who}, {"sample_ids": ["a"]}, {"subject_id": who, "verified": False}]}
    answer = api.post(f"{PATH}/batch", json=batch, headers=key | {"Idempotency-Key": "b"})
    requests = [outcome["request"] for outcome in answer.json()["outcomes"]]
    assert [request["status"] for request in requests] == ["queued", "queued", "blocked"]
    assert all(request.keys() == TOLD for request in requests)
    assert api.post(f"{PATH}/batch", json=batch, headers=key | {"Idempotency-Key": "b"}).json() == answer.json()
    item = f"{PATH}/{first.json()['id']}"
    tried = [api.get(item, headers=key), api.delete(item, headers=key)]
    tried += [api.post(f"{item}/{what}", json={"reason": "x"}, headers=key) for what in ("extend", "verify", "reject")]
    assert [each.status_code for each in tried] == [403] * 5, "a refusal would tell too"


def test_who_may_also_read_sees_the_request(api: TestClient, service: Service, key_of: Keys) -> None:
    live_model(service)
    key = key_of("deletions:write", "deletions:read")
    assert [part["model"] for part in send(api, key, "k", subject_id="ada").json()["models"]] == ["digits"]
    assert send(api, key, "l", subject_id="nobody").json()["reason"] == "no_match"


def test_a_hold_tells_who_was_forgotten_only_to_who_may_search(api: TestClient, service: Service, key_of: Keys) -> None:
    model = live_model(service, people={"ada": ["a"]})
    version = publish(service, model, b"version two")
    with service.database.write() as session:
        session.add(Removal(generation_id=model.generation_id or 0, position=0, version_id=version.id))
    body = {"subject_id": "ada", "reason": "court"}
    without = api.post("/v1/holds", json=body, headers=key_of("models:admin"))
    unknown = api.post("/v1/holds", json=body | {"subject_id": "nobody"}, headers=key_of("models:admin"))
    assert (without.status_code, unknown.status_code) == (201, 201)
    assert without.json().keys() == unknown.json().keys()
    assert searches(service) == []
    key = key_of("models:admin", "people:search")
    refused = api.post("/v1/holds", json=body, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_forgotten")
    assert "version 2 of digits" in refused.json()["detail"]
    assert len(searches(service)) == 1
    with service.database.read() as session:
        assert session.scalars(select(DeletionRequest)).all() == []
