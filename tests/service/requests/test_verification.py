"""Requests that nobody has verified change nothing until they are verified, and then go on as any other."""

from __future__ import annotations

import json
import secrets
import threading
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import AuditEntry, DeletionRequest, SuppressionEntry, Task, WebhookDelivery
from expunge_service.requests.suppression import carried_out, positions
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint
from expunge_workers.scheduler import run
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
WHY = {"reason": "could not show who they are"}


def post(client: TestClient, **body: Any) -> Any:
    answer = client.post(PATH, json=body, headers={"Idempotency-Key": secrets.token_hex(8)})
    assert answer.status_code == 202, answer.text
    return answer.json()


def unverified(client: TestClient, **body: Any) -> str:
    return str(post(client, verified=False, regulation="gdpr", **body)["id"])


def decide(client: TestClient, request: str, what: str, status: int = 200, **more: Any) -> Any:
    body = WHY if what == "reject" else None
    answer = client.post(f"{PATH}/{request}/{what}", json=body, **more)
    assert answer.status_code == status, answer.text
    return answer.json()


def shown(client: TestClient, request: str) -> Any:
    return client.get(f"{PATH}/{request}").json()


def kinds(service: Service, request: str) -> list[str]:
    with service.database.read() as session:
        entries = select(AuditEntry.kind).where(AuditEntry.request_id == request).order_by(AuditEntry.id)
        return list(session.scalars(entries))


def settings(service: Service, **values: Any) -> None:
    object.__setattr__(service, "settings", service.settings.model_copy(update=values))


def in_force(service: Service, request: str) -> int:
    stones = select(func.count()).where(SuppressionEntry.request_id == request, SuppressionEntry.lifted_at.is_(None))
    with service.database.read() as session:
        return session.scalar(stones) or 0


def test_an_unverified_request_is_taken_in_with_its_clock_and_changes_nothing(
    client: TestClient, service: Service
) -> None:
    model = live_model(service)
    with service.database.write() as session:
        add_endpoint(session, service.session_key, "default", "https://hooks.example/", list(WebhookEvent))
    body = {"subject_id": "ada", "verified": False, "regulation": "gdpr"}
    first = client.post(PATH, json=body, headers={"Idempotency-Key": "k"})
    made = first.json()
    assert (made["status"], made["reason"], made["samples"], made["models"]) == ("blocked", "unverified", None, [])
    assert made["due_at"] > made["received_at"] and made["completed_at"] is None
    assert client.post(PATH, json=body, headers={"Idempotency-Key": "k"}).json() == made, "replayed"
    assert run.settle_unmatched(service.database) == 0, "the scheduler leaves it alone"
    assert shown(client, made["id"])["status"] == "blocked" and in_force(service, made["id"]) == 0
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 0
        assert positions(session, "default", "digits", model.generation_id or 0) == {}
        sent = {each.kind: each for each in session.scalars(select(WebhookDelivery))}
        assert sent.keys() == {"deletion_request.accepted", "deletion_request.blocked"}
        news = sent["deletion_request.blocked"]
        accepted = json.loads(
            session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "request.accepted")).one()
        )
    assert (news.kind, json.loads(news.payload)["data"]["reason"]) == ("deletion_request.blocked", "unverified")
    assert kinds(service, made["id"]) == ["request.accepted", "request.blocked"] and accepted["verified"] is False
    metrics = client.get("/metrics").text
    assert "expunge_requests_unverified 1.0" in metrics and "expunge_requests_unverified_next_due" in metrics
    assert client.post(f"{PATH}/{made['id']}/retry").json()["code"] == "unverified"
    assert client.post(f"{PATH}/{made['id']}/extend").status_code == 200


def rows(service: Service, request: str) -> list[Any]:
    """What the intake writes, without what is random or a moment."""
    with service.database.read() as session:
        task = session.execute(
            select(Task.model_id, Task.status, Task.reason, Task.not_before - Task.created_at)
            .where(Task.request_id == request)
            .order_by(Task.model_id)
        ).all()
        stones = session.execute(
            select(
                SuppressionEntry.subject_digest,
                SuppressionEntry.sample_digest,
                SuppressionEntry.lifted_at,
                SuppressionEntry.lifted_reason,
            )
            .where(SuppressionEntry.request_id == request)
            .order_by(SuppressionEntry.sample_digest)
        ).all()
        row = session.get_one(DeletionRequest, request)
        return [*task, *stones, row.status, row.reason, row.completed_at is None, row.models]


@pytest.mark.parametrize(
    "order",
    [
        {"subject_id": "ada"},
        {"subject_id": "bob", "models": ["digits"]},
        {"sample_ids": ["ada-1", "x", "nobody's"]},
        {"subject_id": "nobody"},
        {"subject_id": "many"},
    ],
)
def test_verified_it_is_what_the_intake_would_have_made_of_it(
    client: TestClient, service: Service, order: dict[str, Any]
) -> None:
    settings(service, cancel_window=60.0, large_request=2)
    live_model(service, people={"ada": ["ada-1", "ada-2"], "bob": ["b"], "many": ["1", "2", "3"]})
    live_model(service, "faces", {"ada": ["x"]})
    if order["subject_id" if "subject_id" in order else "sample_ids"] != "nobody":
        assert (
            client.post("/v1/models", json={"name": "new", "recipe": "digits", "method": "retrain"}).status_code == 202
        )
    before = unverified(client, **order)
    decide(client, before, "verify")
    assert rows(service, before) == rows(service, post(client, regulation="gdpr", **order)["id"])
    end = {"completed": ["request.completed"], "blocked": ["request.blocked"]}.get(shown(client, before)["status"], [])
    assert kinds(service, before) == ["request.accepted", "request.blocked", "request.verified", *end]


def test_verifying_twice_is_once_and_what_was_verified_is_not_rejected(client: TestClient, service: Service) -> None:
    live_model(service)
    request = unverified(client, subject_id="ada")
    first = decide(client, request, "verify")
    assert (first["status"], [part["status"] for part in first["models"]]) == ("queued", ["queued"])
    assert decide(client, request, "verify") == first
    assert kinds(service, request).count("request.verified") == 1
    with service.database.read() as session:
        (stone,) = session.scalars(select(SuppressionEntry))
        (task,) = session.scalars(select(Task))
        asked_at = session.get_one(DeletionRequest, request).created_at
    assert stone.created_at == task.created_at > asked_at, "in force from now on"
    refused = decide(client, request, "reject", 409)
    assert refused["code"] == "not_unverified" and "Cancel it" in refused["detail"]
    assert shown(client, request) == first and in_force(service, request) == 1
    plain = post(client, subject_id="bob")["id"]
    assert decide(client, plain, "verify")["status"] == "queued", "taken in as verified"
    assert decide(client, plain, "reject", 409)["code"] == "not_unverified"


def test_a_rejected_request_stays_so_and_never_says_whom_it_named(client: TestClient, service: Service) -> None:
    live_model(service)
    request = unverified(client, subject_id="lovelace")
    ended = decide(client, request, "reject")
    assert (ended["status"], ended["reason"], ended["rejection"]) == ("rejected", None, WHY["reason"])
    again = client.post(f"{PATH}/{request}/reject", json={"reason": "another"})
    assert again.json() == ended, "twice is once"
    assert decide(client, request, "verify", 409)["code"] == "already_rejected"
    assert client.delete(f"{PATH}/{request}").json()["code"] == "not_cancellable"
    assert run.settle_unmatched(service.database) == 0 and in_force(service, request) == 0
    assert kinds(service, request) == ["request.accepted", "request.blocked", "request.rejected"]
    with service.database.read() as session:
        bodies = "".join(session.scalars(select(AuditEntry.body)))
    assert "lovelace" not in bodies and "could not" not in bodies
    assert 'expunge_deletion_requests_total{status="rejected"} 1.0' in client.get("/metrics").text
    assert [each["id"] for each in client.get(PATH, params={"status": "rejected"}).json()["data"]] == [request]
    for body in ({}, {"reason": ""}, {"reason": "x" * 1001}, {"reason": "x\x00"}, WHY | {"subject_id": "canary"}):
        refused = client.post(f"{PATH}/{request}/reject", json=body)
        assert refused.status_code == 422 and "canary" not in refused.text


def test_an_unverified_request_is_withdrawn_at_any_time_and_then_for_good(client: TestClient, service: Service) -> None:
    live_model(service)
    request = unverified(client, subject_id="ada")
    gone = client.delete(f"{PATH}/{request}")
    assert (gone.status_code, gone.json()["status"], gone.json()["reason"]) == (200, "cancelled", None)
    assert client.delete(f"{PATH}/{request}").json() == gone.json()
    for what in ("verify", "reject"):
        assert decide(client, request, what, 409)["code"] == "already_cancelled"
    assert kinds(service, request)[-1] == "request.cancelled" and in_force(service, request) == 0
    assert run.settle_unmatched(service.database) == 0


def test_an_unverified_request_neither_blocks_nor_delays_a_verified_one(client: TestClient, service: Service) -> None:
    model = live_model(service)
    stranger = unverified(client, subject_id="ada")
    person = post(client, subject_id="ada")
    assert (person["status"], person["reason"]) == ("queued", None)
    assert client.get(f"{PATH}/{person['id']}").json()["related"] == [stranger], "linked, and no more"
    with service.database.read() as session:
        assert set(positions(session, "default", "digits", model.generation_id or 0)) == {person["id"]}
        (task,) = session.scalars(select(Task))
        assert task.not_before == task.created_at
    decide(client, stranger, "reject")
    assert shown(client, person["id"])["status"] == "queued" and in_force(service, person["id"]) == 1
    client.post("/v1/holds", json={"subject_id": "ada", "reason": "court"})
    with service.database.read() as session:
        assert carried_out(session, "default", subject_digest(service.pepper, "default", "ada")) == []


def test_a_batch_takes_unverified_items_beside_verified_ones(client: TestClient, service: Service) -> None:
    live_model(service)
    items = [{"subject_id": "ada", "verified": False}, {"subject_id": "bob"}, {"subject_id": "x", "models": ["no"]}]
    items.append(items[2] | {"verified": False})
    made = client.post(f"{PATH}/batch", json={"requests": items}, headers={"Idempotency-Key": "b"}).json()["outcomes"]
    assert [each["status"] for each in made] == [202, 202, 422, 422]
    assert [each["request"]["status"] for each in made[:2]] == ["blocked", "queued"]


def test_only_its_tenants_deciders_decide(client: TestClient, service: Service, key_of: Any) -> None:
    live_model(service)
    request = unverified(client, subject_id="ada")
    for what in ("verify", "reject"):
        decide(client, request, what, 404, headers=key_of(tenant_id="other"))
        decide(
            client, request, what, 403, headers=key_of(Scope.DELETIONS_READ, Scope.DELETIONS_WRITE, Scope.MODELS_ADMIN)
        )
        decide(client, request, what, 412, headers={"If-Match": '"' + "0" * 64 + '"'})
    assert shown(client, request)["reason"] == "unverified"


@pytest.mark.both_engines
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("verify", "verify"),
        ("verify", "reject"),
        pytest.param("reject", "verify", marks=pytest.mark.drill),
        ("cancel", "verify"),
    ],
)
def test_of_two_decisions_at_once_the_first_has_its_effect_and_no_other(
    client: TestClient, service: Service, first: str, second: str
) -> None:
    """Both have looked, and wait for the request's row in this order."""
    live_model(service)
    request = unverified(client, subject_id="ada")
    answers: dict[int, int] = {}

    def call(place: int, what: str) -> None:
        path = f"{PATH}/{request}"
        sent = {"json": WHY} if what == "reject" else {}
        answer = client.delete(path) if what == "cancel" else client.post(f"{path}/{what}", **sent)
        answers[place] = answer.status_code

    threads = [threading.Thread(target=call, args=each) for each in enumerate((first, second))]
    with service.database.write() as session:
        session.get_one(DeletionRequest, request, with_for_update=True)
        for thread in threads:
            thread.start()
            thread.join(0.3)
            assert thread.is_alive()
    for thread in threads:
        thread.join()
    assert answers == {0: 200, 1: 200 if first == second else 409}
    ends = {"verify": "request.verified", "reject": "request.rejected", "cancel": "request.cancelled"}
    assert kinds(service, request)[2:] == [ends[first]]
    with service.database.read() as session:
        tasks = session.scalar(select(func.count()).select_from(Task))
    assert tasks == in_force(service, request) == (first == "verify")
