"""Certificates of erasure: issued when everything has happened, verified offline, bound to who was named."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from expunge_client import verify_certificate
from expunge_service.api.dependencies import Service
from expunge_service.api.views.metrics import render
from expunge_service.audit.log import charge, integrate, record
from expunge_service.audit.merkle import leaf_hash
from expunge_service.audit.signed_note import NotAuthentic, Signer
from expunge_service.certificates import issue
from expunge_service.certificates.envelope import sign, verify
from expunge_service.certificates.issue import issue_due
from expunge_service.certificates.statement import summed
from expunge_service.cli.checks import examine
from expunge_service.infra.db import now
from expunge_service.infra.tables import (
    AuditEntry,
    Certificate,
    DeletionRequest,
    Erasure,
    Generation,
    Model,
    Removal,
    Task,
    Version,
)
from expunge_service.infra.time import SECOND
from expunge_service.models.publication_entry import claim_digest, facts_of
from expunge_service.requests.status import settle
from tests.service.worlds import live_model, publish
from unlearning.accounting.budget import mu_of
from unlearning.accounting.certificate import Claim, Guarantee, Reference, epsilon_at, guess

PATH = "/v1/deletion-requests"
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
KEPT = "With an old and a new version, one can probably tell who left. Nothing here prevents it."
CLAIM = Claim.of(
    method="recollection",
    guarantee=Guarantee.PROVED,
    reference=Reference.RENORMALISED,
    noise_std=0.01,
    max_distance=1e-5,
    delta=1e-5,
    updates=1,
    spent=1_000_001,
    limit=10**11,
    samples=2,
    people=1,
    assumptions=("The objective is strongly convex.",),
)


def carry_out(
    service: Service, model: Model, request_id: str, destroyed: bool = True, first: int = 0, claim: Claim = CLAIM
) -> Version:
    """What a worker's publication writes, for one request of two samples from position ``first`` on."""
    version = publish(service, model, b"forgotten", samples=2, people=1, claim=claim.to_json())
    with service.database.write() as session:
        at = now(session)
        charge(session, model.generation_id or 0, version.id, 1_000_001)
        session.add_all(
            Removal(generation_id=model.generation_id or 0, position=n, version_id=version.id)
            for n in (first, first + 1)
        )
        erasure = Erasure(
            tenant_id="default",
            generation_id=model.generation_id or 0,
            version_id=version.id,
            key_id=f"k{first}",
            created_at=at,
            destroyed_at=at if destroyed else None,
        )
        session.add(erasure)
        _say_published(session, version)
        task = session.scalars(select(Task).where(Task.request_id == request_id, Task.model_id == model.id)).one()
        task.status, task.samples, task.version_id, task.method = "completed", 2, version.id, "recollection"
        settle(session, [request_id])
    return version


def _say_published(session: Session, version: Version) -> None:
    """The entry that a worker writes with its version."""
    parent = session.get(Version, version.parent_id)
    facts = facts_of(version, parent, 1_000_001)
    record(session, version.tenant_id, "version.published", model_id=version.model_id, **facts)


def tick(service: Service) -> int:
    """The scheduler's part: extend the log, issue what is due."""
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        integrate(session, signer)
    return issue_due(service.database, signer, service.pepper)


@pytest.fixture
def issued(client: TestClient, service: Service) -> tuple[dict[str, Any], dict[str, Any], Version]:
    """(the accepted request with its opening, the envelope, the version)"""
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada", "regulation": "gdpr"}, headers={"Idempotency-Key": "k"}).json()
    version = carry_out(service, model, made["id"])
    assert tick(service) == 1
    return made, client.get(f"{PATH}/{made['id']}/certificate").json(), version


def test_a_certificate_attests_the_release_by_its_digest(service: Service, issued: Any) -> None:
    made, envelope, version = issued
    statement = verify(envelope, Signer.of(service.settings).verifier)
    assert statement["subject"] == [{"name": "digits/versions/2", "digest": {"sha256": version.checkpoint}}]
    predicate = statement["predicate"]
    assert (predicate["request"], predicate["regulation"], predicate["due_at"]) == (made["id"], "gdpr", made["due_at"])
    (part,) = predicate["models"]
    assert (part["version"], part["parent"], part["samples"], part["method"]) == (2, 1, 2, "recollection")
    assert part["budget"] == {"unit": "1e-12 mu^2", "before": 0, "after": 1_000_001, "limit": 10**11}
    assert part["claim"]["guarantee"] == "proved"
    total = predicate["together"]
    limit = total.pop("from_these_versions_on")
    assert total == pytest.approx(
        {"guarantee": "proved", "mu": CLAIM.mu, "epsilon": part["claim"]["epsilon"], "delta": 1e-5}
    )
    assert CLAIM.mu is not None
    assert part["as_of_version"] == {"mu": CLAIM.mu, "epsilon": CLAIM.epsilon, "delta": 1e-5}
    assert limit["mu"] == pytest.approx(mu_of(10**11)) and limit["epsilon"] == pytest.approx(CLAIM.epsilon_limit)
    assert part["from_this_version_on"] | {"statement": ""} == pytest.approx(limit | {"statement": ""})
    now, ever = guess(CLAIM.mu), guess(limit["mu"])
    (said,) = predicate["in_plain_words"]
    assert f"allow at most {now:g}, and all that may ever follow at most {ever:g}." in said and ever > now > 50
    assert KEPT in part["claim"]["not_claimed"]
    assert part["keys_destroyed_with_release"]["count"] == 1
    assert [entry["kind"] for entry in predicate["audit"]["entries"]] == [
        "request.accepted",
        "version.published",
        "request.completed",
    ]


def test_the_envelope_is_dsse_over_in_toto_by_their_specifications(service: Service, issued: Any) -> None:
    """Checked here from the two specifications alone."""
    _, envelope, _ = issued
    payload = b64decode(envelope["payload"])
    pae = b" ".join([b"DSSEv1", b"28", b"application/vnd.in-toto+json", str(len(payload)).encode(), payload])
    key = Ed25519PublicKey.from_public_bytes(Signer.of(service.settings).verifier.public_key)
    key.verify(b64decode(envelope["signatures"][0]["sig"]), pae)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement.keys() == {"_type", "subject", "predicateType", "predicate"}
    assert all(set(each) == {"name", "digest"} and len(each["digest"]["sha256"]) == 64 for each in statement["subject"])


def test_only_who_holds_the_opening_can_say_whom_it_names(service: Service, issued: Any) -> None:
    made, envelope, _ = issued
    key = str(Signer.of(service.settings).verifier)
    assert verify_certificate(envelope, key, opening=made["opening"], subject_id="ada")
    with pytest.raises(ValueError, match="about the person"):
        verify_certificate(envelope, key, opening=made["opening"], subject_id="bob")
    text = b64decode(envelope["payload"]).decode()
    assert made["opening"] not in text
    assert made["subject_digest"] not in text
    assert '"ada"' not in text


UNSIGNED_CHANGES: dict[str, Any] = {
    "digest": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "samples": lambda s: s["predicate"]["models"][0].update(samples=1),
    "moment": lambda s: s["predicate"].update(completed_at="2020-01-01T00:00:00Z"),
}
SIGNED_CHANGES: dict[str, Any] = {
    "text": lambda s: s["predicate"]["audit"]["entries"][0].update(body='{"request":"x"}'),
    "index": lambda s: s["predicate"]["audit"]["entries"][0].update(index=0),
    "leaf": lambda s: s["predicate"]["audit"]["entries"][1].update(leaf_hash="0" * 64),
    "completion": lambda s: s["predicate"]["audit"]["entries"].pop(),
    "head": lambda s: s["predicate"]["audit"].update(checkpoint="forged"),
    "request": lambda s: s["predicate"].update(request="0" * 32),
    "type": lambda s: s.update(predicateType="other"),
    "audit": lambda s: s["predicate"].pop("audit"),
    "longer proof": lambda s: s["predicate"]["audit"]["entries"][0]["hashes"].append("AAAA"),
    "shorter proof": lambda s: s["predicate"]["audit"]["entries"][0]["hashes"].pop(),
    "no text": lambda s: s["predicate"]["audit"]["entries"][0].update(body=5),
    "no head": lambda s: s["predicate"]["audit"].update(checkpoint=None),
}
"""what somebody with the signing key might put into a certificate that the log does not say"""


def forgeries(signer: Signer, envelope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return certificates that were changed, each under its name; the client's verifier is tried on them too."""

    def changed(change: Any) -> bytes:
        copy = json.loads(b64decode(envelope["payload"]))
        change(copy)
        return json.dumps(copy).encode()

    found = {
        name: envelope | {"payload": b64encode(changed(change)).decode()} for name, change in UNSIGNED_CHANGES.items()
    }
    found |= {f"signed {name}": sign(signer, changed(change)) for name, change in SIGNED_CHANGES.items()}
    (signed,) = envelope["signatures"]
    spare = (
        f"{signed['sig'][:-3]}{chr(ord(signed['sig'][-3]) + 1)}=="  # the last letter has bits that belong to no byte
    )
    found["another letter"] = envelope | {"signatures": [signed | {"sig": spare}]}
    assert b64decode(spare) == b64decode(signed["sig"])
    broken: tuple[dict[str, Any], ...] = ({}, {"payload": "!"}, {"signatures": []}, {"payloadType": "text/plain"})
    return found | {f"broken {place}": envelope | each if place else {} for place, each in enumerate(broken)}


def test_a_changed_certificate_is_not_authentic(service: Service, issued: Any) -> None:
    _, envelope, _ = issued
    signer = Signer.of(service.settings)
    for forged in forgeries(signer, envelope).values():
        with pytest.raises(NotAuthentic):
            verify(forged, signer.verifier)
    with pytest.raises(NotAuthentic):
        verify(envelope, Signer("expunge.local/log", b"x" * 32).verifier)


@pytest.mark.parametrize(
    ("begun", "budget", "guarantee", "generations", "units"),
    [
        (-1, 3 * 10**11, "proved", 2, 4 * 10**11),  # planned before she asked: it may hold her
        (+1, 3 * 10**11, "proved", 1, 10**11),  # planned after: she was left out
        (-1, None, "none", 2, None),  # its terms are not fixed: nobody knows its limit
        (-1, 10**11, "exact", 2, 10**11),
    ],
)
@ON_SQLITE
def test_a_certificate_bounds_all_generations_that_may_hold_the_person(
    client: TestClient,
    service: Service,
    begun: int,
    budget: int | None,
    guarantee: str,
    generations: int,
    units: int | None,
) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()
    with service.database.write() as session:
        asked = session.get_one(DeletionRequest, made["id"]).created_at
        facts = {"tenant_id": "default", "model_id": model.id, "method": "recollection", "created_at": asked + begun}
        session.add(Generation(status="candidate", guarantee=guarantee, budget=budget, **facts))
        session.add(Generation(status="refused", guarantee="none", budget=None, **facts))
    carry_out(service, model, made["id"])
    assert tick(service) == 1
    statement = verify(client.get(f"{PATH}/{made['id']}/certificate").json(), Signer.of(service.settings).verifier)
    (part,) = statement["predicate"]["models"]
    assert len(part["generations"]) == generations
    limit = part["from_this_version_on"]
    assert limit is None if units is None else limit["mu"] == mu_of(units)


EDITS: dict[str, Callable[[Version], dict[str, Any]]] = {
    "claim": lambda version: {
        "claim": version.claim | {"guarantee": "exact", "max_distance": 0, "mu": 0, "epsilon": 0}
    },
    "checkpoint": lambda version: {"checkpoint": "0" * 64},
    "number": lambda version: {"number": 7},
    "method": lambda version: {"method": "retrain"},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_version_is_not_signed_and_everybody_is_told(client: TestClient, service: Service, edit: str) -> None:
    model = live_model(service)
    made, other = (
        client.post(PATH, json={"subject_id": name}, headers={"Idempotency-Key": name}).json()
        for name in ("ada", "bob")
    )
    version = carry_out(service, model, made["id"])
    before = {name: getattr(version, name) for name in EDITS[edit](version)}
    _edit(service, version.id, EDITS[edit](version))
    assert tick(service) == 0
    answer = client.get(f"{PATH}/{made['id']}/certificate")
    assert (answer.status_code, answer.json()["code"]) == (409, "certificate_refused")
    assert edit in answer.json()["detail"]
    assert b"expunge_certificates_refused 1.0" in render(
        service.database, service.settings, service.traffic, differs=False
    )
    (finding,) = (each for each in examine(service.settings) if each.name == "certificate")
    assert not finding.well and made["id"] in finding.what
    assert tick(service) == 0 and kinds(service).count("certificate.refused") == 1, "it is said once"
    _edit(service, version.id, before)
    assert tick(service) == 1, "what was put right is signed"
    assert client.get(f"{PATH}/{made['id']}/certificate").status_code == 200
    assert b"expunge_certificates_refused 0.0" in render(
        service.database, service.settings, service.traffic, differs=False
    )
    assert other["status"] == "queued"


@pytest.mark.parametrize("fact", ["received_at", "due_at", "regulation"])
def test_an_edited_request_is_not_signed(client: TestClient, service: Service, fact: str) -> None:
    model = live_model(service)
    order = {"subject_id": "ada", "regulation": "gdpr"}
    made = client.post(PATH, json=order, headers={"Idempotency-Key": "ada"}).json()
    carry_out(service, model, made["id"])
    with service.database.write() as session:
        row = session.get_one(DeletionRequest, made["id"])
        before = getattr(row, fact)
        setattr(row, fact, "ccpa" if fact == "regulation" else before + 30 * 24 * 3600 * SECOND)
    assert tick(service) == 0
    answer = client.get(f"{PATH}/{made['id']}/certificate")
    assert (answer.status_code, answer.json()["code"]) == (409, "certificate_refused")
    assert f"differ on the request: {fact}" in answer.json()["detail"]
    with service.database.write() as session:
        setattr(session.get_one(DeletionRequest, made["id"]), fact, before)
    assert tick(service) == 1, "what was put right is signed"


@pytest.mark.parametrize("fact", ["first_due_at", "extended_at"])
@pytest.mark.parametrize("extended", [True, False])
def test_an_edited_extension_is_not_signed(client: TestClient, service: Service, fact: str, extended: bool) -> None:
    model = live_model(service)
    order = {"subject_id": "ada", "regulation": "gdpr"}
    made = client.post(PATH, json=order, headers={"Idempotency-Key": "ada"}).json()
    if extended:
        assert client.post(f"{PATH}/{made['id']}/extend").status_code == 200
    carry_out(service, model, made["id"])
    edits = [30 * 24 * 3600 * SECOND, None] if extended else [30 * 24 * 3600 * SECOND]
    with service.database.read() as session:
        before = getattr(session.get_one(DeletionRequest, made["id"]), fact)
    for edit in edits:
        with service.database.write() as session:
            setattr(session.get_one(DeletionRequest, made["id"]), fact, edit)
        assert tick(service) == 0
        detail = client.get(f"{PATH}/{made['id']}/certificate").json()["detail"]
        assert f"differ on the request: {fact}." in detail
    with service.database.write() as session:
        setattr(session.get_one(DeletionRequest, made["id"]), fact, before)
    assert tick(service) == 1, "what was put right is signed"


@pytest.mark.parametrize("edit", ["samples", "method", "version", "deleted"])
def test_an_edited_task_is_not_signed(client: TestClient, service: Service, edit: str) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "ada"}).json()
    carry_out(service, model, made["id"])
    with service.database.write() as session:
        task = session.scalars(select(Task).where(Task.request_id == made["id"])).one()
        match edit:
            case "samples":
                task.samples = 97 + (task.samples or 0)
            case "method":
                task.method = "retrain"
            case "version":
                task.version_id = None
            case _:
                session.delete(task)
    assert tick(service) == 0
    answer = client.get(f"{PATH}/{made['id']}/certificate")
    assert (answer.status_code, answer.json()["code"]) == (409, "certificate_refused")
    assert "differ on the request: outcome" in answer.json()["detail"]


def test_an_edited_entry_of_a_publication_is_not_signed_either(client: TestClient, service: Service) -> None:
    """Whoever edits the claim and the entry alike meets the head that was signed before."""
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "ada"}).json()
    version = carry_out(service, model, made["id"])
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        integrate(session, signer)
    forged = version.claim | {"samples": 1}
    _edit(service, version.id, {"claim": forged})
    with service.database.write() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.kind == "version.published")).one()
        entry.body = entry.body.replace(claim_digest(version.claim), claim_digest(forged))
    assert issue_due(service.database, signer, service.pepper) == 0
    with service.database.write() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.kind == "version.published")).one()
        entry.leaf_hash = leaf_hash(entry.body.encode()).hex()
    assert tick(service) == 0
    with service.database.read() as session:
        assert "does not lead to the signed head" in (session.scalars(select(Certificate)).one().refused or "")


def test_a_refused_certificate_keeps_no_other_waiting(client: TestClient, service: Service) -> None:
    model = live_model(service)
    ids = [
        client.post(PATH, json={"subject_id": name}, headers={"Idempotency-Key": name}).json()["id"]
        for name in ("ada", "bob")
    ]
    first = carry_out(service, model, ids[0])
    _edit(service, first.id, {"method": "retrain"})
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    assert issue_due(service.database, Signer.of(service.settings), service.pepper, limit=1) == 0
    carry_out(service, model, ids[1], first=2)
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    assert issue_due(service.database, Signer.of(service.settings), service.pepper, limit=1) == 1


def _edit(service: Service, version_id: str, values: dict[str, Any]) -> None:
    with service.database.write() as session:
        session.execute(update(Version).where(Version.id == version_id).values(**values))


def kinds(service: Service) -> list[str]:
    with service.database.read() as session:
        return list(session.scalars(select(AuditEntry.kind)))


@pytest.mark.both_engines
def test_a_certificate_waits_for_the_keys_and_for_the_log(client: TestClient, service: Service) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()
    path = f"{PATH}/{made['id']}/certificate"
    assert (client.get(path).status_code, client.get(path).json()["code"]) == (409, "not_completed")
    carry_out(service, model, made["id"], destroyed=False)
    assert issue_due(service.database, Signer.of(service.settings), service.pepper) == 0
    assert tick(service) == 0
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (409, "certificate_pending")
    with service.database.write() as session:
        session.scalars(select(Erasure)).one().destroyed_at = now(session)
    assert tick(service) == 1
    first = client.get(path)
    assert first.status_code == 200
    assert tick(service) == 0
    assert client.get(path).content == first.content


@pytest.mark.parametrize("left", ["keys", "state"])
def test_certificate_letter_and_answer_wait_for_what_left(
    login: Callable[[], TestClient], client: TestClient, service: Service, left: str
) -> None:
    """For the keys, and for the secret state of the version before."""
    model = live_model(service)
    request = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()["id"]
    version = carry_out(service, model, request)
    record, gone = (Erasure, "destroyed_at") if left == "keys" else (Version, "state_deleted_at")
    which = record.version_id == version.id if record is Erasure else record.id == version.parent_id

    def set_gone(at: int | None) -> None:
        with service.database.write() as session:
            setattr(session.scalars(select(record).where(which)).one(), gone, at)

    def pending() -> tuple[bool, int]:
        letter = login().get(f"/console/requests/{request}/letter")
        return client.get(f"{PATH}/{request}").json()["erasing"], letter.status_code

    set_gone(None)
    assert tick(service) == 0 and pending() == (True, 409)
    set_gone(1)
    assert tick(service) == 1 and pending() == (False, 200)


def said_of_certificates(service: Service) -> list[tuple[str | None, str]]:
    """(request, digest) of each entry that a certificate was issued."""
    with service.database.read() as session:
        rows = session.scalars(
            select(AuditEntry).where(AuditEntry.kind == "certificate.issued").order_by(AuditEntry.id)
        )
        return [(row.request_id, json.loads(row.body)["payload_sha256"]) for row in rows]


def test_the_log_holds_the_digest_of_each_certificate(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are stored, or neither; however often and by however many schedulers it is tried."""
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()
    carry_out(service, model, made["id"])
    with pytest.MonkeyPatch.context() as dying, pytest.raises(ZeroDivisionError):
        dying.setattr("expunge_service.certificates.issue.announce", lambda *_: 1 / 0)
        tick(service)
    assert said_of_certificates(service) == []
    with service.database.read() as session:
        assert session.scalars(select(Certificate.issued_at)).all() == [None]
    signer, outcomes = Signer.of(service.settings), issue._outcomes

    def and_then_another_is_first(*facts: Any) -> Any:
        found = outcomes(*facts)
        monkeypatch.setattr(issue, "_outcomes", outcomes)
        assert issue_due(service.database, signer, service.pepper) == 1
        return found

    monkeypatch.setattr(issue, "_outcomes", and_then_another_is_first)
    assert issue_due(service.database, signer, service.pepper) == 0
    assert issue_due(service.database, signer, service.pepper) == 0
    payload = b64decode(client.get(f"{PATH}/{made['id']}/certificate").json()["payload"])
    assert said_of_certificates(service) == [(made["id"], hashlib.sha256(payload).hexdigest())]


def test_a_reopened_request_gets_another_certificate(client: TestClient, service: Service) -> None:
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()
    carry_out(service, model, made["id"])
    for status in ("queued", "completed"):
        with service.database.write() as session:
            session.scalars(select(Task)).one().status = status
            settle(session, [made["id"]])
    assert tick(service) == 1
    with service.database.read() as session:
        assert len(session.scalars(select(Certificate)).all()) == 1


def test_where_nothing_matched_there_is_nothing_to_certify(client: TestClient, service: Service) -> None:
    made = client.post(PATH, json={"subject_id": "nobody"}, headers={"Idempotency-Key": "k"}).json()
    assert tick(service) == 0
    answer = client.get(f"{PATH}/{made['id']}/certificate")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_certificate")


def test_consumers_report_what_they_serve(client: TestClient, service: Service) -> None:
    model = live_model(service)
    path = "/v1/models/digits/consumers"
    assert client.put(f"{path}/web", json={"version": 1}).json() == {"name": "web", "version": 1, "status": "current"}
    client.put(f"{path}/batch", json={"version": 1})
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()
    carry_out(service, model, made["id"])
    client.put(f"{path}/web", json={"version": 2})
    shown = client.get(path).json()["data"]
    assert [(each["name"], each["status"]) for each in shown] == [("batch", "behind"), ("web", "current")]
    tick(service)
    statement = verify(client.get(f"{PATH}/{made['id']}/certificate").json(), Signer.of(service.settings).verifier)
    assert statement["predicate"]["models"][0]["consumers"] == shown
    with service.database.write() as session:
        session.connection().exec_driver_sql("UPDATE consumers SET seen_at = seen_at - 301000000")
    assert {each["status"] for each in client.get(path).json()["data"]} == {"unknown"}
    assert client.put(f"{path}/web", json={"version": 9}).status_code == 422
    assert client.put(f"{path}/WEB", json={"version": 1}).status_code == 422
    assert client.put("/v1/models/nope/consumers/web", json={"version": 1}).status_code == 404


def test_a_person_is_charged_the_sum_over_the_models_under_the_weakest_guarantee() -> None:
    assumed = replace(CLAIM, guarantee=Guarantee.CALIBRATED)
    nothing = Claim.of(
        method="safe",
        guarantee=Guarantee.NONE,
        reference=Reference.RENORMALISED,
        noise_std=0.01,
        max_distance=None,
        delta=None,
        updates=1,
        spent=0,
        limit=None,
        samples=2,
        people=1,
    )
    assert CLAIM.mu is not None and CLAIM.epsilon is not None
    total = summed([CLAIM, assumed])
    assert total is not None
    assert total["guarantee"] == "calibrated"
    assert total["mu"] == pytest.approx(2**0.5 * CLAIM.mu, rel=1e-12)
    assert total["epsilon"] == epsilon_at(total["mu"], 1e-5) > CLAIM.epsilon
    assert summed([CLAIM, nothing]) is None
    assert summed([]) is None
