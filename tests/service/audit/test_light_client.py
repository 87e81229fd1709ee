"""The light client beside the service: one verdict on every certificate, one signature, one vocabulary."""

from __future__ import annotations

import copy
import json
import random
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from fastapi.testclient import TestClient

import expunge_client
from expunge_client import NotAuthentic, answers, calls, certificates, verify_certificate, verify_webhook
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.audit.signed_note import NotAuthentic as ServiceNotAuthentic
from expunge_service.audit.signed_note import Signer
from expunge_service.certificates.envelope import sign, verify
from expunge_service.infra.settings import Settings
from expunge_service.requests.intake import Order, commitment
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint, webhook_key, webhook_signature
from tests.service.certificates.test_certificates import forgeries, issued

__all__ = ["issued"]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
FORGERIES_AT_RANDOM = 400


def verdicts(envelope: dict[str, Any], signer: Signer) -> tuple[Any, Any]:
    """Return what the service's verifier and the client's say: the statement, or None for a forgery."""
    try:
        ours: Any = verify(envelope, signer.verifier)
    except ServiceNotAuthentic:
        ours = None
    try:
        theirs: Any = verify_certificate(envelope, str(signer.verifier)).statement
    except NotAuthentic:
        theirs = None
    return ours, theirs


@ON_SQLITE
def test_the_client_says_what_the_service_says_of_good_and_forged_certificates(service: Service, issued: Any) -> None:
    _, envelope, _ = issued
    signer = Signer.of(service.settings)
    ours, theirs = verdicts(envelope, signer)
    assert ours == theirs and ours is not None
    assert verify_certificate(json.dumps(envelope), str(signer.verifier)).statement == ours
    forged = forgeries(signer, envelope)
    assert len(forged) > 15
    assert {name: verdicts(each, signer) for name, each in forged.items()} == dict.fromkeys(forged, (None, None))
    with pytest.raises(NotAuthentic):
        verify_certificate(envelope, str(Signer("expunge.local/log", b"x" * 32).verifier))


@ON_SQLITE
def test_the_client_says_what_the_service_says_of_certificates_changed_at_random(service: Service, issued: Any) -> None:
    """Anywhere in the signed statement, signed again with the right key: only the log contradicts them."""
    _, envelope, _ = issued
    signer, rng = Signer.of(service.settings), random.Random(7)
    statement = json.loads(b64decode(envelope["payload"]))
    refused = 0
    for _ in range(FORGERIES_AT_RANDOM):
        forged = sign(signer, json.dumps(changed(statement, rng)).encode())
        ours, theirs = verdicts(forged, signer)
        assert ours == theirs
        refused += ours is None
    assert FORGERIES_AT_RANDOM / 10 < refused < FORGERIES_AT_RANDOM


def changed(statement: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy with one value of the part about the log replaced or removed."""
    made = copy.deepcopy(statement)
    node: Any = made["predicate"]
    place: Any = rng.choice(["audit", "audit", "audit", "request", "models"])
    while isinstance(node[place], dict | list) and node[place] and rng.random() < 0.85:
        node = node[place]
        place = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    odd: list[Any] = [None, "", "x", 5, 1 << 70, -1, [], {}, "00" * 32, b64encode(b"\0" * 32).decode()]
    if rng.random() < 0.2:
        del node[place]
    else:
        node[place] = rng.choice([*odd, node[place]])
    return made


@ON_SQLITE
def test_the_client_checks_whom_a_certificate_is_about(service: Service, issued: Any) -> None:
    made, envelope, _ = issued
    key, opening = str(Signer.of(service.settings).verifier), made["opening"]
    assert verify_certificate(envelope, key, opening=opening, subject_id="ada")
    for wrong in (
        {"opening": opening, "subject_id": "bob"},
        {"opening": "00" * 32, "subject_id": "ada"},
        {"opening": "zz", "subject_id": "ada"},
        {"opening": opening, "sample_ids": ["ada"]},
    ):
        with pytest.raises(NotAuthentic):
            verify_certificate(envelope, key, **wrong)
    for unclear in ({"opening": opening}, {"subject_id": "ada"}):
        with pytest.raises(ValueError, match="opening opens one name"):
            verify_certificate(envelope, key, **unclear)
    with pytest.raises(ValueError, match="public key"):
        verify_certificate(envelope)
    with pytest.raises(NotAuthentic):
        verify_certificate(envelope, key.replace("+", "-"))


@ON_SQLITE
def test_the_client_opens_what_the_service_commits_to(service: Service, issued: Any) -> None:
    """Several ids of one person, samples, and a case: the same commitment on both sides."""
    _, envelope, _ = issued
    statement = verify(envelope, Signer.of(service.settings).verifier)
    salt = b"o" * 32
    for order in (
        Order(subject_ids=("b", "a")),
        Order(subject_ids=("a",), case_id="C-1"),
        Order(subject_id="é", case_id="C-1"),
        Order(sample_ids=("2", "1")),
    ):
        entries = statement["predicate"]["audit"]["entries"]
        entries[0]["body"] = json.dumps({"commitment": commitment(salt, order)})
        people = sorted({*filter(None, [order.subject_id]), *(order.subject_ids or ())})
        certificates._check_opening(statement, salt, people, order.sample_ids or (), order.case_id)
        with pytest.raises(NotAuthentic):
            certificates._check_opening(statement, salt, people, order.sample_ids or (), "other")


@ON_SQLITE
def test_the_client_verifies_what_the_service_signs(service: Service) -> None:
    with service.database.write() as session:
        url = "https://example.org/hook"
        endpoint, secret = add_endpoint(session, service.session_key, "default", url, list(WebhookEvent))
        public = webhook_key(service.session_key, endpoint)
        seconds, body = int(time.time()), '{"type":"x"}'
        signed = webhook_signature(service.session_key, endpoint, "msg_1", seconds, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(seconds), "webhook-signature": signed}
    for key in (secret, public):
        assert verify_webhook(key, headers, body) == {"type": "x"}
        with pytest.raises(NotAuthentic):
            verify_webhook(key, headers, body + " ")


SCHEMAS = {
    "DeletionRequest": "AcceptedView",
    "ModelPart": "ModelPart",
    "Remedy": "RemedyView",
    "Estimate": "EstimateView",
    "Cost": "CostView",
    "Findings": "SearchView",
    "KnownIn": "KnownInView",
    "Version": "VersionView",
}


def test_the_clients_types_have_the_fields_that_the_service_describes(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(home=tmp_path))) as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for name, schema in SCHEMAS.items():
        assert set(get_type_hints(getattr(answers, name))) == set(schemas[schema]["properties"]), name
    assert set(get_type_hints(calls.Order)) == set(schemas["DeletionOrder"]["properties"])


def test_what_the_client_offers_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "integrate.md").read_text()
    offered = [name for name in expunge_client.__all__ if name not in vars(answers)]
    calls_ = [name for name in vars(expunge_client.AsyncExpunge) if not name.startswith("_") and name != "aclose"]
    assert [name for name in [*offered, *calls_] if name not in page] == []
