"""Webhooks: endpoints, the outbox, and signatures by Standard Webhooks 1.0."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from sqlalchemy import select

from expunge_service.access.api_keys import create_key
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.audit.log import charge
from expunge_service.infra.db import now
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import DeletionRequest, Generation, Task, WebhookDelivery, WebhookEndpoint
from expunge_service.requests.deadlines import announce_due_soon
from expunge_service.requests.status import settle
from expunge_service.requests.webhooks import (
    MAX_ATTEMPTS,
    SUBSCRIBED,
    WebhookEvent,
    announce,
    announce_exhaustion,
    webhook_signature,
)
from tests.service.certificates.test_certificates import carry_out, tick
from tests.service.worlds import live_model

PATH = "/v1/webhooks"
URL = {"url": "https://hooks.example.com/expunge"}
ENDS = URL | {"kinds": ["deletion_request.completed", "deletion_request.blocked"]}


def outbox(service: Service) -> list[WebhookDelivery]:
    with service.database.read() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at, WebhookDelivery.id)))


def test_an_endpoint_shows_its_secret_once_and_keeps_it_nowhere(client: TestClient, service: Service) -> None:
    answer = client.post(PATH, json=URL)
    assert answer.status_code == 201
    made = answer.json()
    secret = base64.b64decode(made.pop("secret").removeprefix("whsec_"))
    assert made["kinds"] == sorted(SUBSCRIBED)
    assert client.get(PATH).json()["data"] == [made | {"secret": None}]
    with service.database.read() as session:
        endpoint = session.scalars(select(WebhookEndpoint)).one()
    assert not any(secret in value for value in vars(endpoint).values() if isinstance(value, bytes))
    wanted = hmac.new(secret, b"msg_1.1700000000.{}", hashlib.sha256).digest()
    assert webhook_signature(service.session_key, endpoint, "msg_1", 1700000000, "{}").split()[0] == (
        "v1," + base64.b64encode(wanted).decode()
    )


def test_completed_and_held_requests_are_news_that_names_nobody(client: TestClient, service: Service) -> None:
    client.post(PATH, json=ENDS)
    live_model(service)
    done = client.post("/v1/deletion-requests", json={"subject_id": "nobody"}, headers={"Idempotency-Key": "1"}).json()
    held = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "2"}).json()
    with service.database.write() as session:
        task = session.scalars(select(Task)).one()
        task.status, task.reason = "blocked", "legal_hold"
        settle(session, [held["id"]])
    sent = outbox(service)
    assert [each.kind for each in sent] == ["deletion_request.completed", "deletion_request.blocked"]
    first, second = (json.loads(each.payload) for each in sent)
    assert first.keys() == {"type", "timestamp", "data"}
    assert (first["data"]["id"], second["data"]["id"]) == (done["id"], held["id"])
    assert second["data"]["reason"] == "legal_hold"
    assert held["subject_digest"] not in sent[1].payload
    assert all(each.id.startswith("msg_") and each.attempts == 0 and each.delivered_at is None for each in sent)


def test_news_of_requests_takes_the_scope_that_reads_them(api: TestClient, service: Service, key_of: Any) -> None:
    """With ``models:admin`` alone every request of the tenant came to an endpoint of one's own."""
    operator, both = key_of("models:admin"), key_of("models:admin", "deletions:read")
    hidden = [
        kind for kind in SUBSCRIBED if kind not in (WebhookEvent.VERSION_PUBLISHED, WebhookEvent.BUDGET_EXHAUSTED)
    ]
    for kinds in [{}, *({"kinds": [WebhookEvent.VERSION_PUBLISHED, kind]} for kind in hidden)]:
        refused = api.post(PATH, json=URL | kinds, headers=operator)
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), kinds
        assert api.post(PATH, json=URL | kinds, headers=both).status_code == 201
    seen = {"kinds": [WebhookEvent.VERSION_PUBLISHED, WebhookEvent.BUDGET_EXHAUSTED]}
    assert api.post(PATH, json=URL | seen, headers=operator).status_code == 201


@pytest.mark.both_engines
def test_news_is_undone_with_its_transaction(client: TestClient, service: Service) -> None:
    client.post(PATH, json=URL)
    with pytest.raises(KeyError), service.database.write() as session:
        announce(session, "default", WebhookEvent.VERSION_PUBLISHED, {"model": "digits"})
        raise KeyError
    assert outbox(service) == []


def test_an_endpoint_gets_what_it_asked_for_and_nothing_of_other_tenants(
    client: TestClient, service: Service, key_of: Any
) -> None:
    client.post(PATH, json=URL | {"kinds": ["budget.exhausted"]})
    client.post(PATH, json=URL, headers=key_of(tenant_id="other"))
    disabled = client.post(PATH, json=URL).json()
    assert client.delete(f"{PATH}/{disabled['id']}").json()["disabled_at"] is not None
    assert client.delete(f"{PATH}/{disabled['id']}", headers=key_of(tenant_id="other")).status_code == 404
    client.post("/v1/deletion-requests", json={"subject_id": "nobody"}, headers={"Idempotency-Key": "1"})
    assert outbox(service) == []
    assert client.get(f"{PATH}/{disabled['id']}").json()["deliveries"]["data"] == []


def test_an_exhausted_budget_is_news_once(client: TestClient, service: Service) -> None:
    made = client.post(PATH, json=URL).json()
    model = live_model(service)
    for _ in range(10):
        with service.database.write() as session:
            charge(session, model.generation_id or 0, None, 1_000_000)
            announce_exhaustion(session, model.generation_id or 0)
    (sent,) = outbox(service)
    told = json.loads(sent.payload)["data"]
    assert told.pop("actions")[0]["command"] == "expunge models retrain digits"
    assert told == {
        "model": "digits",
        "generation": model.generation_id,
        "spent": 10_000_000,
        "limit": 10_500_000,
    }
    with service.database.read() as session:
        assert session.get_one(Generation, model.generation_id).spent == 10_000_000
    (shown,) = client.get(f"{PATH}/{made['id']}").json()["deliveries"]["data"]
    assert (shown["id"], shown["kind"], shown["attempts"]) == (sent.id, "budget.exhausted", 0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "http://hooks.example.com"},
        {"url": "https://user:canary@hooks.example.com"},
        {"url": "https://:canary@hooks.example.com"},
        {"url": "https://"},
        {"url": "https://[canary"},
        {"url": "ftp://x"},
        {"url": "https://x\ny"},
        URL | {"kinds": []},
        URL | {"kinds": ["canary"]},
    ],
)
def test_a_malformed_endpoint_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post(PATH, json=body)
    assert answer.status_code == 422
    assert "canary" not in answer.text


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_delivery_is_replayed_under_its_id_by_its_tenant_alone(
    client: TestClient, service: Service, key_of: Any
) -> None:
    made = client.post(PATH, json=ENDS).json()
    client.post("/v1/deletion-requests", json={"subject_id": "nobody"}, headers={"Idempotency-Key": "1"})
    (sent,) = outbox(service)
    with service.database.write() as session:
        row = session.get_one(WebhookDelivery, sent.id)
        row.attempts, row.next_at, row.last_status = MAX_ATTEMPTS, 2**51, 500
    path = f"{PATH}/{made['id']}/deliveries"
    assert client.get(f"{PATH}/{made['id']}").json()["deliveries"]["data"][0]["state"] == "given_up"
    assert client.post(f"{path}/{sent.id}/replay", headers=key_of(tenant_id="other")).status_code == 404
    other = client.post(PATH, json=URL).json()
    assert client.post(f"{PATH}/{other['id']}/deliveries/{sent.id}/replay").status_code == 404
    answer = client.post(f"{path}/{sent.id}/replay")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (202, sent.id, "pending")
    (again,) = outbox(service)
    assert (again.attempts, again.attempts_before, again.delivered_at) == (MAX_ATTEMPTS, MAX_ATTEMPTS, None)
    assert again.next_at < 2**51 and answer.json()["attempts"] == MAX_ATTEMPTS


def test_plain_http_to_this_machine_is_for_development(settings: Settings) -> None:
    order = {"url": "http://127.0.0.1:9000/hook", "kinds": [WebhookEvent.VERSION_PUBLISHED]}
    for mode, status in (("development", 201), ("production", 422)):
        with TestClient(create_app(settings.model_copy(update={"mode": mode}))) as client:
            service = client.app.state.service  # type: ignore[attr-defined]
            with service.database.write() as session:
                key = create_key(session, service.pepper, label="test", scopes=["models:admin"])
            answer = client.post(PATH, json=order, headers={"Authorization": f"Bearer {key.secret}"})
            assert answer.status_code == status, mode


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def ask(client: TestClient, subject: str, **more: Any) -> dict[str, Any]:
    body = {"subject_id": subject} | more
    made: dict[str, Any] = client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": subject}).json()
    return made


@ON_SQLITE
def test_every_step_of_a_request_is_news_and_fits_its_schema(client: TestClient, service: Service) -> None:
    client.post(PATH, json=URL)
    model = live_model(service)
    first, second = (ask(client, name, verified=False)["id"] for name in ("ada", "bob"))
    client.post(f"/v1/deletion-requests/{first}/verify")
    client.post(f"/v1/deletion-requests/{second}/reject", json={"reason": "somebody else"})
    third = ask(client, "eve", verified=False)["id"]
    client.delete(f"/v1/deletion-requests/{third}")
    carry_out(service, model, first)
    assert tick(service) == 1
    sent = [json.loads(each.payload) for each in outbox(service)]
    assert {kind: Counter(each["type"] for each in sent)[kind] for kind in SUBSCRIBED} == {
        WebhookEvent.REQUEST_ACCEPTED: 3,
        WebhookEvent.REQUEST_BLOCKED: 3,
        WebhookEvent.REQUEST_VERIFIED: 1,
        WebhookEvent.REQUEST_REJECTED: 1,
        WebhookEvent.REQUEST_CANCELLED: 1,
        WebhookEvent.REQUEST_COMPLETED: 1,
        WebhookEvent.CERTIFICATE_ISSUED: 1,
        WebhookEvent.REQUEST_DUE_SOON: 0,
        WebhookEvent.VERSION_PUBLISHED: 0,
        WebhookEvent.BUDGET_EXHAUSTED: 0,
    }
    parts = {each["type"]: each["data"].get("models") for each in sent if each["data"]["id"] == first}
    queued = {"model": "digits", "status": "queued", "reason": None, "version": None}
    assert parts[WebhookEvent.REQUEST_ACCEPTED] == [], "nobody is looked for before the request is verified"
    assert parts[WebhookEvent.REQUEST_VERIFIED] == [queued]
    assert parts[WebhookEvent.REQUEST_COMPLETED] == [queued | {"status": "completed", "version": 2}]
    document = client.get("/openapi.json").json()
    for each in sent:
        body = document["webhooks"][each["type"]]["post"]["requestBody"]["content"]["application/json"]
        schema = body["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(each)
        facts = document["components"]["schemas"]["RequestFacts"]["properties"]
        assert each["type"] == WebhookEvent.CERTIFICATE_ISSUED or each["data"].keys() == facts.keys()
        assert "somebody else" not in json.dumps(each) and not re.search(r"\bada\b", json.dumps(each))


@ON_SQLITE
def test_a_near_deadline_is_news_once_and_again_after_an_extension(client: TestClient, service: Service) -> None:
    client.post(PATH, json=URL | {"kinds": [WebhookEvent.REQUEST_DUE_SOON]})
    live_model(service)
    received = (datetime.now(UTC) - timedelta(days=27)).isoformat()
    late = ask(client, "ada", regulation="gdpr", received_at=received)["id"]
    ask(client, "bob", regulation="gdpr")
    ask(client, "nobody", regulation="gdpr", received_at=received)  # completed at once: nothing is due
    assert [announce_due_soon(service.database) for _ in range(2)] == [1, 0]
    (sent,) = outbox(service)
    assert json.loads(sent.payload)["data"]["id"] == late
    client.post(f"/v1/deletion-requests/{late}/extend")
    assert announce_due_soon(service.database) == 0, "two months are not near"
    with service.database.write() as session:
        row = session.get_one(DeletionRequest, late)
        row.due_at = now(session) + 1
    assert announce_due_soon(service.database) == 1


@ON_SQLITE
def test_an_endpoint_can_be_tested(client: TestClient, service: Service, key_of: Any) -> None:
    made, other = (client.post(PATH, json=URL).json() for _ in range(2))
    sent = client.post(f"{PATH}/{made['id']}/test")
    assert (sent.status_code, sent.json()["kind"], sent.json()["state"]) == (202, "webhook.test", "pending")
    (row,) = outbox(service)
    assert row.endpoint_id == made["id"] and json.loads(row.payload)["data"] == {"endpoint": made["id"]}
    assert client.post(f"{PATH}/{made['id']}/test", headers=key_of(tenant_id="other")).status_code == 404
    client.delete(f"{PATH}/{other['id']}")
    assert client.post(f"{PATH}/{other['id']}/test").status_code == 409
