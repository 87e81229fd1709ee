"""Who may learn whether a person is in the data, or was forgotten: holders of ``people:search``, and it is recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import AuditEntry, DeletionRequest, HoldoutPerson, Membership, Model, Removal, Task
from tests.service.worlds import live_model, publish

pytestmark = pytest.mark.both_engines

PATH = "/v1/deletion-requests"
TOLD = {"id", "status", "received_at", "due_at", "opening", "note"}
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
    assert {each["actor_key"] for each in written} == {each["actor_key"] for each in written[:1]} != {None}
    names = {"search", "ids", "entry", "at", "kind", "tenant", "request", "model", "actor", "actor_key"}
    assert written[0].keys() == names


def test_a_search_counts_as_many_ids_as_it_tries(api: TestClient, service: Service, key_of: Keys) -> None:
    """Fifty people in one call were one search of sixty."""
    live_model(service)
    key = key_of("people:search", "deletions:decide")
    fifty = {"subject_ids": [f"p{each}" for each in range(50)]}
    assert api.post(f"{PATH}/estimate", json=fifty, headers=key).status_code == 200
    assert api.post(f"{PATH}/search", json={"subject_id": "ada"}, headers=key).status_code == 200
    samples = {"sample_ids": [f"s{each}" for each in range(25)] * 2}
    assert api.post(f"{PATH}/estimate", json=samples, headers=key).status_code == 200
    refused = [
        api.post(f"{PATH}/estimate", json={"subject_id": "ada"}, headers=key),
        api.post(f"{PATH}/search", json={"subject_id": "ada"}, headers=key),
        api.post("/v1/holds", json={"subject_id": "ada", "reason": "court"}, headers=key),
    ]
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(429, "too_many_searches")] * 3
    assert int(refused[0].headers["retry-after"]) > 10, "the 25 samples are made up for first, one a second"
    assert [each["ids"] for each in searches(service)] == [50, 1, 25]
    assert api.post(f"{PATH}/search", json={"subject_id": "ada"}, headers=key_of()).status_code == 200


@pytest.mark.parametrize("ending", ["", "/reject", "cancel"])
def test_an_unverified_request_links_a_person_only_for_a_search_that_is_recorded(
    api: TestClient, service: Service, key_of: Keys, ending: str
) -> None:
    """A stranger's request changes nothing; it must not tell either who was deleted before."""
    live_model(service)
    first = send(api, key_of(), "first", subject_id="ada").json()
    key = key_of("deletions:write", "deletions:read")
    mine = send(api, key, "mine", subject_id="ada", verified=False).json()
    item = f"{PATH}/{mine['id']}"
    if ending == "cancel":
        assert api.delete(item, headers=key).status_code == 200
    elif ending:
        assert api.post(item + ending, json={"reason": "not them"}, headers=key_of()).status_code == 200
    assert mine["subject_digest"] is api.get(item, headers=key).json()["subject_digest"] is None
    for reader in (key, key_of("deletions:read", "people:search")):
        assert api.get(item, headers=reader).json()["related"] is None
    assert api.get(f"{PATH}/{first['id']}", headers=key).json()["related"] == [mine["id"]]
    assert searches(service) == [], "of a request that counts there is nothing new to learn"
    found = find(api, key_of("deletions:read", "people:search"), "ada")
    assert {each["id"] for each in found["requests"]} == {first["id"], mine["id"]}
    assert [each["ids"] for each in searches(service)] == [1]


@pytest.mark.parametrize(
    ("database_url", "who"),
    [
        *(("sqlite", who) for who in ("ada", "nobody", "large", "forgotten")),
        ("postgresql", "ada"),
        *(pytest.param("postgresql", who, marks=pytest.mark.drill) for who in ("nobody", "large", "forgotten")),
    ],
    indirect=["database_url"],
)
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
    without = api.post("/v1/holds", json=body, headers=key_of("deletions:decide"))
    unknown = api.post("/v1/holds", json=body | {"subject_id": "nobody"}, headers=key_of("deletions:decide"))
    assert (without.status_code, unknown.status_code) == (201, 201)
    assert without.json().keys() == unknown.json().keys()
    assert searches(service) == []
    key = key_of("deletions:decide", "people:search")
    refused = api.post("/v1/holds", json=body, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_forgotten")
    assert "version 2 of digits" in refused.json()["detail"]
    assert len(searches(service)) == 1
    with service.database.read() as session:
        assert session.scalars(select(DeletionRequest)).all() == []


def find(client: TestClient, key: dict[str, str], subject: str) -> Any:
    answer = client.post(f"{PATH}/search", json={"subject_id": subject}, headers=key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def forget(service: Service, model: Model, request: str, positions: list[int]) -> int:
    """Do what a worker does: publish a version that forgot these samples for this request; return its number."""
    version = publish(service, model, f"without {request}".encode())
    with service.database.write() as session:
        task = session.scalars(select(Task).where(Task.request_id == request, Task.model_id == model.id)).one()
        task.status, task.samples, task.version_id = "completed", len(positions), version.id
        generation = session.get_one(Model, model.id).generation_id or 0
        session.add_all(Removal(generation_id=generation, position=each, version_id=version.id) for each in positions)
    return version.number


def test_a_person_is_found_in_every_model_and_request(api: TestClient, service: Service, key_of: Keys) -> None:
    digits, faces = live_model(service, "digits"), live_model(service, "faces", {"bob": ["b"]})
    live_model(service, "ranking", {"ada": ["r"]})
    with service.database.write() as session:
        row = HoldoutPerson(
            generation_id=faces.generation_id or 0, subject_digest=subject_digest(service.pepper, "default", "ada")
        )
        session.add(row)
        session.add(
            Model(
                id="p" * 32, tenant_id="default", name="soon", status="preparing", recipe="r", policy={}, created_at=1
            )
        )
    key = key_of()
    before = find(api, key, "ada")
    assert before["requests"] == [] and before["has_more"] is False
    assert {each["model"]: (each["state"], each["samples"]) for each in before["models"]} == {
        "digits": ("holds", 2),
        "faces": ("holdout", 0),
        "ranking": ("holds", 1),
        "soon": ("preparing", None),
    }
    asked = send(api, key, "k", subject_id="ada", models=["digits"]).json()["id"]
    number = forget(service, digits, asked, [0, 1])
    unverified = send(api, key, "l", subject_id="ada", verified=False).json()["id"]
    by_sample = send(api, key, "m", sample_ids=["r"]).json()["id"]
    send(api, key, "n", subject_id="bob")
    after = find(api, key, "ada")
    assert [each["id"] for each in after["requests"]] == [by_sample, unverified, asked]
    digits_now = next(each for each in after["models"] if each["model"] == "digits")
    assert (digits_now["state"], digits_now["samples"], digits_now["version"]) == ("forgot", 0, number)
    assert digits_now["forgotten_at"] is not None
    nobody = find(api, key, "nobody")
    assert nobody["requests"] == [] and [each["model"] for each in nobody["models"]] == ["soon"]


def test_what_ended_generations_forgot_is_found_and_only_the_persons(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    model = live_model(service)
    key = key_of()
    asked = send(api, key, "k", subject_id="ada").json()["id"]
    number = forget(service, model, asked, [0, 1])
    samples = send(api, key, "l", sample_ids=["bob-1", "ada-1"]).json()["id"]
    later = forget(service, model, samples, [2])
    with service.database.write() as session:  # a retrain: the new generation knows neither
        session.execute(Membership.__table__.delete())
        session.execute(Removal.__table__.delete())
    (ada,) = find(api, key, "ada")["models"]
    assert (ada["state"], ada["version"]) == ("forgot", number), f"version {later} forgot samples of others too"
    assert find(api, key, "bob")["models"] == [], "which samples were whose is not kept"


def test_a_search_names_who_searched_and_never_who_was_searched(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    live_model(service)
    for scope in set(Scope) - {Scope.PEOPLE_SEARCH}:
        refused = api.post(f"{PATH}/search", json={"subject_id": "ada"}, headers=key_of(scope))
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    assert searches(service) == []
    told = [find(api, key_of("people:search"), who)["search"] for who in ("ada", "nobody")]
    written = searches(service)
    assert [each["search"] for each in written] == told
    person = subject_digest(service.pepper, "default", "ada")
    assert not re.search(r"\bada\b", json.dumps(written)) and person not in json.dumps(written)
    assert written[0].keys() == written[1].keys(), "the entry does not depend on who was found"


def test_another_tenants_people_are_not_found(api: TestClient, service: Service, key_of: Keys) -> None:
    live_model(service)
    send(api, key_of(), "k", subject_id="ada")
    other = find(api, key_of(tenant_id="other"), "ada")
    assert (other["models"], other["requests"]) == ([], [])


def test_nobody_tries_all_ids_of_a_population(api: TestClient, service: Service, key_of: Keys) -> None:
    service.searches.burst, service.searches.per_second = 2, 0.1
    busy, other = key_of(), key_of()
    body = {"subject_id": "ada"}
    codes = [
        api.post(f"{PATH}/{what}", json=body, headers=busy).status_code for what in ("search", "estimate", "search")
    ]
    assert codes == [200, 200, 429]
    refused = api.post(f"{PATH}/estimate", json=body, headers=busy)
    assert refused.json()["code"] == "too_many_searches" and 1 <= int(refused.headers["retry-after"]) <= 10
    assert api.post(f"{PATH}/search", json=body, headers=other).status_code == 200
    assert len(searches(service)) == 3, "what was refused told nothing"
