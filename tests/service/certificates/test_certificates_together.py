"""Many certificates at once: what they cost, and that each says what it says when it is issued alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, select

from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.certificates import issue
from expunge_service.certificates.envelope import verify
from expunge_service.certificates.issue import issue_due
from expunge_service.infra.db import now
from expunge_service.infra.tables import (
    Certificate,
    DeletionRequest,
    Task,
)
from expunge_service.requests.near_misses import Question
from expunge_service.requests.reasons import Cause
from expunge_service.requests.spelling_decisions import ask_those
from expunge_service.requests.status import settle
from tests.service.certificates.test_certificates import PATH, carry_out
from tests.service.requests.test_membership_plan import plans
from tests.service.worlds import live_model


@pytest.mark.both_engines
def test_a_certificate_among_many_costs_a_few_statements(client: TestClient, service: Service) -> None:
    live_model(service)
    for number in range(30):
        made = client.post(PATH, json={"subject_id": f"p{number}"}, headers={"Idempotency-Key": f"{number}"}).json()
        with service.database.write() as session:
            completed = session.get_one(DeletionRequest, made["id"]).completed_at
            session.add(Certificate(request_id=made["id"], completed_at=completed or 0, tenant_id="default"))
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    statements: list[str] = []
    event.listen(service.database.engine, "before_cursor_execute", lambda *seen: statements.append(seen[2]))
    issued = issue_due(service.database, Signer.of(service.settings), service.pepper)
    assert issued == 30
    assert len(statements) < 2 * issued, len(statements) / issued


def test_who_writes_waits_for_a_few_certificates_and_not_for_all(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = live_model(
        service, "digits", {f"p{number}": [f"s{number}-{place}" for place in range(2)] for number in range(5)}
    )
    requests = [
        client.post(PATH, json={"subject_id": f"p{number}"}, headers={"Idempotency-Key": f"{number}"}).json()["id"]
        for number in range(5)
    ]
    for place, request in enumerate(requests):
        carry_out(service, model, request, first=2 * place)
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        while integrate(session, signer):
            pass
    stored: list[int] = []
    keep: Any = issue._keep
    monkeypatch.setattr(issue, "STORED_AT_ONCE", 2)
    monkeypatch.setattr(issue, "_keep", lambda session, part: stored.append(len(part)) or keep(session, part))
    assert issue_due(service.database, signer, service.pepper) == 5
    assert stored == [2, 2, 1]


def test_sqlite_finds_what_was_forgotten_by_the_index(client: TestClient, service: Service) -> None:
    """A plan that uses the generation alone reads all of its rows: 15 ms a certificate at 10,000 people. So does one
    that reads the whole tree for its proofs.
    """
    model = live_model(service, "digits", {name: [f"{name}-0", f"{name}-1"] for name in ("ada", "bob")})
    named = {"subject_id": "ada"}, {"sample_ids": ["bob-0", "bob-1"]}
    for place, each in enumerate(named):
        made = client.post(PATH, json=each, headers={"Idempotency-Key": str(place)}).json()
        carry_out(service, model, made["id"], first=2 * place)
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        while integrate(session, signer):
            pass
    found = plans(service.database)
    assert issue_due(service.database, signer, service.pepper) == 2
    searches = [plan for plan in found if plan.startswith(("SEARCH memberships", "SCAN memberships"))]
    assert len(searches) == 2
    assert any(plan.startswith("SEARCH tree_nodes") for plan in found)
    assert not any(plan.startswith("SCAN tree_nodes") for plan in found)
    assert all("(generation_id=? AND subject_digest=?" in each or "AND sample_digest=?" in each for each in searches)


def test_certificates_that_are_issued_together_say_what_each_says_alone(client: TestClient, service: Service) -> None:
    """The slow twin: one at a time. Two models, requests by person and by sample, one with both models."""
    signer = Signer.of(service.settings)
    people = {name: [f"{name}-{place}" for place in range(2)] for name in ("ada", "bob", "eve")}
    models = [live_model(service, name, people) for name in ("digits", "faces")]
    requests = [
        client.post(PATH, json={"subject_id": name}, headers={"Idempotency-Key": name}).json()["id"]
        for name in ("ada", "bob", "eve")
    ]
    for place, request in enumerate(requests):
        for model in models[: 1 + place % 2]:
            carry_out(service, model, request, first=2 * place)
    with service.database.write() as session:
        for task in session.scalars(select(Task).where(Task.status != "completed")):
            task.status, task.completed_at = "completed", now(session)
        settle(session, requests)
        while integrate(session, signer):
            pass

    def issued(limit: int) -> list[dict[str, Any]]:
        while issue_due(service.database, signer, service.pepper, limit):
            pass
        with service.database.write() as session:
            rows = session.scalars(select(Certificate).order_by(Certificate.request_id)).all()
            texts = [str(row.envelope) for row in rows]
            for row in rows:
                row.envelope = row.issued_at = None
        return [verify(json.loads(text), signer.verifier) for text in texts]

    alone, together = issued(1), issued(100)
    assert len(alone) == 3
    assert alone == together
    assert {len(each["predicate"]["models"]) for each in alone} == {1, 2}
    commitments = {part["samples_commitment"] for each in alone for part in each["predicate"]["models"]}
    assert len(commitments) == 3 and None not in commitments, "the same samples in both models of bob"


@pytest.mark.both_engines
def test_a_request_that_is_asked_about_since_it_completed_holds_up_no_other_certificate(
    client: TestClient, service: Service
) -> None:
    """A registration brings somebody with nearly its id: it waits again, before the scheduler could issue anything."""
    people = {"ada": ["s1", "s2"], "bob": ["s3", "s4"]}
    model, signer = live_model(service, people=people), Signer.of(service.settings)
    requests = [
        client.post(PATH, json={"subject_id": subject}, headers={"Idempotency-Key": subject}).json()["id"]
        for subject in ("ada", "bob")
    ]
    for place, request in enumerate(requests):
        carry_out(service, model, request, first=2 * place)
    with service.database.write() as session:
        ask_those(session, {requests[0]: Question(Cause.SPELLING, (7,))})
        assert session.get_one(DeletionRequest, requests[0]).completed_at is None
        integrate(session, signer)
    assert issue_due(service.database, signer, service.pepper) == 1
    with service.database.read() as session:
        (certificate,) = session.scalars(select(Certificate)).all()
        assert (certificate.request_id, certificate.envelope is None) == (requests[1], False)


@pytest.mark.both_engines
def test_what_completes_again_while_it_is_read_is_not_issued_from_half_of_it(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, signer = live_model(service), Signer.of(service.settings)
    request = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()["id"]
    carry_out(service, model, request)
    with service.database.write() as session:
        integrate(session, signer)
    read: Any = issue._releases

    def meanwhile(*values: Any) -> Any:
        with service.database.write() as other:
            row = other.get_one(DeletionRequest, request)
            row.completed_at = (row.completed_at or 0) + 1
            other.add(Certificate(request_id=request, completed_at=row.completed_at, tenant_id="default"))
        return read(*values)

    monkeypatch.setattr(issue, "_releases", meanwhile)
    assert issue_due(service.database, signer, service.pepper) == 0
    with service.database.read() as session:
        (left,) = session.scalars(select(Certificate)).all()
        assert left.envelope is None and left.refused is None
        assert left.completed_at == session.get_one(DeletionRequest, request).completed_at
