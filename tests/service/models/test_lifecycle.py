"""What the rules of a request's life mean over HTTP: extensions, large requests, requests that belong together."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.pseudonyms import new_id, subject_digest
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Membership, Model, Removal, Task, Version
from expunge_service.requests.legal_holds import retry_large
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"


def ask(client: TestClient, **order: object) -> dict[str, object]:
    answer = client.post(PATH, json=order, headers={"Idempotency-Key": new_id()})
    assert answer.status_code == 202, answer.text
    shown: dict[str, object] = answer.json()
    return shown


def change(service: Service, record: type, where: object, **values: object) -> None:
    with service.database.write() as session:
        for row in session.scalars(select(record).where(where)):  # type: ignore[arg-type]
            for name, value in values.items():
                setattr(row, name, value)


def test_a_deadline_is_extended_once_with_an_entry_and_an_event(client: TestClient, service: Service) -> None:
    live_model(service)
    received = datetime.now(UTC).replace(microsecond=0) - timedelta(days=3)
    for regulation, days in (("ccpa", 90), ("gdpr", None)):
        made = ask(client, subject_id="ada", regulation=regulation, received_at=received.isoformat())
        answer = client.post(f"{PATH}/{made['id']}/extend")
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert shown["first_due_at"] == made["due_at"] and shown["extended_at"]
        due = datetime.fromisoformat(shown["due_at"])
        assert due - received == timedelta(days=days) if days else due > received + timedelta(days=88)
        again = client.post(f"{PATH}/{made['id']}/extend")
        assert (again.status_code, again.json()["code"]) == (409, "already_extended")
        assert client.get(f"{PATH}/{made['id']}").json()["due_at"] == shown["due_at"]
        with service.database.write() as session:
            integrate(session, Signer.of(service.settings))
        events = client.get("/v1/events", params={"seconds": 0}, headers={"Last-Event-ID": "0"}).text
        assert "event: request.extended" in events and str(made["id"]) in events
    with service.database.read() as session:
        bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "request.extended")).all()
    assert len(bodies) == 2 and all(json.loads(body)["first_due_at"] < json.loads(body)["due_at"] for body in bodies)


def test_a_deadline_that_cannot_be_extended_says_why(client: TestClient, service: Service) -> None:
    live_model(service)
    without = ask(client, subject_id="ada")
    late = ask(client, subject_id="ada", regulation="gdpr", received_at="2020-01-01T00:00:00Z")
    done = ask(client, subject_id="nobody", regulation="gdpr")
    for made, code in ((without, "no_deadline"), (late, "deadline_passed"), (done, "not_open")):
        answer = client.post(f"{PATH}/{made['id']}/extend")
        assert (answer.status_code, answer.json()["code"]) == (409, code)
    assert client.post(f"{PATH}/{'0' * 32}/extend").status_code == 404


def test_requests_for_the_same_person_are_linked_and_none_is_suppressed(client: TestClient, service: Service) -> None:
    live_model(service)
    first, second = (ask(client, subject_id="ada")["id"] for _ in range(2))
    samples = [ask(client, sample_ids=names)["id"] for names in (["bob-1", "ada-1"], ["ada-1", "other"])]
    stranger = ask(client, subject_id="bob")["id"]
    related = {made: client.get(f"{PATH}/{made}").json()["related"] for made in (first, second, *samples, stranger)}
    assert related == {
        first: [second],
        second: [first],
        samples[0]: [samples[1]],
        samples[1]: [samples[0]],
        stranger: [],
    }
    assert {client.get(f"{PATH}/{made}").json()["status"] for made in (first, second, *samples)} == {"queued"}


@pytest.fixture
def large(client: TestClient, service: Service) -> dict[str, object]:
    """A request for a person with more samples than are usual."""
    object.__setattr__(service.settings, "large_request", 2)
    live_model(service, "wide", {"ada": ["a1", "a2", "a3"], "bob": ["b1", "b2"]})
    live_model(service, "narrow", {"ada": ["a1"]})
    return ask(client, subject_id="ada", regulation="gdpr")


def parts(client: TestClient, request: dict[str, object]) -> dict[str, tuple[str, str | None]]:
    shown = client.get(f"{PATH}/{request['id']}").json()
    return {part["model"]: (part["status"], part["reason"]) for part in shown["models"]}


def test_an_unusually_large_request_waits_for_an_approval(client: TestClient, large: dict[str, object]) -> None:
    held = {"wide": ("blocked", "large"), "narrow": ("queued", None)}
    assert (large["status"], large["reason"], parts(client, large)) == ("blocked", "large", held)
    assert {part["model"]: part["status"] for part in large["models"]} == {"wide": "blocked", "narrow": "queued"}  # type: ignore[attr-defined]
    assert large["due_at"], "its clock runs"
    assert ask(client, subject_id="bob")["status"] == "queued", "exactly the limit is not large"
    assert client.post(f"{PATH}/{large['id']}/approve").json()["status"] == "queued"
    assert set(parts(client, large).values()) == {("queued", None)}


def test_what_was_deleted_before_does_not_make_a_request_large(
    client: TestClient, service: Service, large: dict[str, object]
) -> None:
    with service.database.write() as session:
        wide = session.scalars(select(Model).where(Model.name == "wide")).one()
        version = session.scalars(select(Version.id).where(Version.model_id == wide.id)).one()
        of_ada = select(Membership.position).where(
            Membership.generation_id == wide.generation_id,
            Membership.subject_digest == subject_digest(service.pepper, "default", "ada"),
        )
        session.add_all(
            Removal(generation_id=wide.generation_id or 0, position=position, version_id=version)
            for position in session.scalars(of_ada).all()
        )
    again = ask(client, subject_id="ada", regulation="gdpr")
    assert (again["status"], again["reason"]) == ("queued", None)


def test_or_until_its_window_is_over(client: TestClient, service: Service, large: dict[str, object]) -> None:
    with service.database.write() as session:
        assert retry_large(session) == []
    change(service, Task, Task.reason == "large", not_before=1)
    with service.database.write() as session:
        assert len(retry_large(session)) == 1
    assert client.get(f"{PATH}/{large['id']}").json()["status"] == "queued"
    with service.database.read() as session:
        kinds = session.scalars(
            select(AuditEntry.kind).where(AuditEntry.request_id == large["id"]).order_by(AuditEntry.id)
        ).all()
    assert kinds == ["request.accepted", "request.blocked", "request.retried", "request.queued"]


def test_a_large_request_made_by_mistake_is_cancelled_within_its_window(
    client: TestClient, service: Service, large: dict[str, object]
) -> None:
    change(service, Task, Task.status == "queued", not_before=2**60)
    assert client.delete(f"{PATH}/{large['id']}").json()["status"] == "cancelled"
    with service.database.read() as session:
        assert session.get_one(DeletionRequest, str(large["id"])).completed_at is None
