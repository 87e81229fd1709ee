"""The audit log over HTTP: what a client downloads verifies offline."""

from __future__ import annotations

import random
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.audit import merkle
from expunge_service.audit.log import integrate, record
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.verification import verify
from tests.harness import log_tree
from tests.service import rfc6962
from tests.service.audit.test_verify import KINDS, tamper

Keys = Callable[..., dict[str, str]]


def grow(service: Service, count: int, tenant_id: str = "default") -> None:
    signer = Signer.of(service.settings)
    with service.database.write() as session:
        for n in range(count):
            record(session, tenant_id, "test.step", n=n)
    with service.database.write() as session:
        integrate(session, signer)


def download(client: TestClient, **headers: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(
            "/v1/audit-log", params={"limit": 7} | ({"cursor": cursor} if cursor else {}), headers=headers
        ).json()
        entries += page["data"]
        if not page["has_more"]:
            return entries
        cursor = page["next_cursor"]


def test_an_empty_log_has_no_head_yet(client: TestClient) -> None:
    assert client.get("/v1/audit-log").json()["data"] == []
    assert client.get("/v1/audit-log/checkpoint").status_code == 404


def test_the_downloaded_log_verifies_with_the_public_key(client: TestClient, service: Service) -> None:
    verifier = Signer.of(service.settings).verifier
    grow(service, 10)
    earlier = client.get("/v1/audit-log/checkpoint")
    assert earlier.headers["content-type"].startswith("text/plain")
    grow(service, 13)
    newest = client.get("/v1/audit-log/checkpoint").text
    entries = download(client)
    assert verify(entries, newest, verifier, [earlier.text]).size == 24  # the client's key is an entry too
    assert rfc6962.accepts(entries, newest, str(verifier), [earlier.text])


def test_an_independent_verifier_rejects_each_of_two_hundred_tamperings_of_a_real_log(
    client: TestClient, service: Service
) -> None:
    verifier = Signer.of(service.settings).verifier
    grow(service, 10)
    earlier = [client.get("/v1/audit-log/checkpoint").text]
    grow(service, 13)
    newest = client.get("/v1/audit-log/checkpoint").text
    entries = download(client)
    dice = random.Random(6962)
    for kind in KINDS:
        for _ in range(26):
            assert not rfc6962.accepts(tamper(kind, entries, dice), newest, str(verifier), earlier), kind


def test_proofs_are_those_of_the_signed_head(client: TestClient, service: Service) -> None:
    verifier = Signer.of(service.settings).verifier
    grow(service, 10)
    old = verifier.checkpoint(client.get("/v1/audit-log/checkpoint").text)
    grow(service, 13)
    for entry in download(client):
        for leaf in (entry["index"], entry["leaf_hash"]):
            proof = client.get("/v1/audit-log/proof", params={"leaf": leaf}).json()
            head = verifier.checkpoint(proof["checkpoint"])
            hashes = [b64decode(each) for each in proof["hashes"]]
            assert merkle.verify_inclusion(
                bytes.fromhex(proof["leaf_hash"]), proof["index"], head.size, hashes, head.root
            )
            assert proof["index"] == entry["index"]
    grown = client.get("/v1/audit-log/consistency", params={"old_size": old.size}).json()
    head = verifier.checkpoint(grown["checkpoint"])
    hashes = [b64decode(each) for each in grown["hashes"]]
    assert log_tree.verify_consistency(old.size, head.size, old.root, head.root, hashes)


def test_a_leaf_or_a_head_that_is_not_there_is_not_found(client: TestClient, service: Service) -> None:
    grow(service, 3)
    for leaf in ("99", "0" * 64, "999999999999999999"):
        assert client.get("/v1/audit-log/proof", params={"leaf": leaf}).status_code == 404
    assert client.get("/v1/audit-log/consistency", params={"old_size": 99}).status_code == 404


@pytest.mark.both_engines
def test_a_tenant_verifies_the_whole_log_and_reads_its_own_part(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    grow(service, 5, "one")
    grow(service, 5, "two")
    key = key_of(tenant_id="one")
    grow(service, 1, "one")
    entries = download(api, **key)
    kinds = {entry["kind"] for entry in entries if entry["body"] is not None}
    assert kinds == {"test.step", "key.created"}
    assert sum(entry["body"] is not None for entry in entries) == 7
    hidden = [entry for entry in entries if entry["body"] is None]
    assert all(entry["kind"] is entry["request_id"] is entry["at"] is None for entry in hidden)
    head = api.get("/v1/audit-log/checkpoint", headers=key).text
    assert verify(entries, head, Signer.of(service.settings).verifier).size == 12
